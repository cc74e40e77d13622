//! Acknowledged hits per second: `add().await` against plain HINCRBY.

use counterfoil::Family;
use redis::aio::MultiplexedConnection;
use testkit::RedisServer;

use crate::alternate::{Rounds, alternate, median};
use crate::bench::Bench;
use crate::curve::{Curve, draw};
use crate::figure::{Figure, Target::AtLeast, Target::AtMost};
use crate::ids::Ids;
use crate::load::{self, Load};
use crate::servers::{Counters, Pair, connect, flush_all};
use crate::sides::{Acked, Plain};

const CPU: Figure = Figure {
    name: "cpu_per_hit_vs_hincrby",
    what: "Redis's CPU per hit, 256 tasks, Zipf : plain HINCRBY",
    target: AtMost(1.0),
};

struct Comparison {
    figure: Figure,
    /// How the absolute figures begin.
    name: &'static str,
    tasks: usize,
    ids: fn() -> Ids,
}

const COMPARISONS: [Comparison; 4] = [
    Comparison {
        figure: Figure {
            name: "acked_vs_hincrby",
            what: "hits/s of add().await, 256 tasks, Zipf over 100 k ids : plain HINCRBY",
            target: AtLeast(2.0),
        },
        name: "acked",
        tasks: 256,
        ids: || Ids::zipf(100_000),
    },
    Comparison {
        figure: Figure { name: "acked_2048_vs_hincrby", what: "the same with 2,048 tasks", target: AtLeast(3.0) },
        name: "acked_2048",
        tasks: 2048,
        ids: || Ids::zipf(100_000),
    },
    Comparison {
        figure: Figure { name: "acked_64_vs_hincrby", what: "the same with 64 tasks", target: AtLeast(1.2) },
        name: "acked_64",
        tasks: 64,
        ids: || Ids::zipf(100_000),
    },
    Comparison {
        figure: Figure {
            name: "acked_uniform_vs_hincrby",
            what: "the same with 256 tasks, ids drawn evenly from 1 M",
            target: AtLeast(1.2),
        },
        name: "acked_uniform",
        tasks: 256,
        ids: || Ids::even(1_000_000),
    },
];

pub async fn measure(bench: &mut Bench) {
    for comparison in COMPARISONS {
        let has_cpu = comparison.name == "acked";
        let names = [comparison.figure.name, CPU.name];
        if !bench.wants(if has_cpu { &names } else { &names[..1] }) {
            continue;
        }
        let rounds = compare(bench, &(comparison.ids)(), comparison.tasks, bench.rounds()).await;
        bench.figure(comparison.figure, rounds.ratio(Load::per_second));
        let name = comparison.name;
        bench.absolute(format!("{name}_per_second"), median(rounds.ours.iter().map(Load::per_second)));
        bench.absolute(format!("{name}_hincrby_per_second"), median(rounds.theirs.iter().map(Load::per_second)));
        let ours = |what: fn(&Load) -> f64| median(rounds.ours.iter().map(what));
        bench.absolute(format!("{name}_hits_per_call"), ours(|load| load.hits / load.scripts.calls));
        bench.absolute(format!("{name}_script_us"), ours(|load| load.scripts.mean_us()));
        bench.absolute(format!("{name}_redis_busy"), ours(|load| load.redis_cpu / load.seconds));
        if has_cpu {
            bench.figure(CPU, rounds.ratio(Load::redis_cpu_per_hit));
            let micros = |load: &Load| load.redis_cpu_per_hit() * 1e6;
            bench.absolute("redis_us_per_hit", median(rounds.ours.iter().map(micros)));
            bench.absolute("redis_us_per_hincrby", median(rounds.theirs.iter().map(micros)));
        }
    }
}

/// The curve of hits per second against the number of tasks.
pub async fn measure_by_tasks(bench: &mut Bench) {
    if !bench.wants(&["acked_by_tasks"]) {
        return;
    }
    let ids = Ids::zipf(100_000);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for exponent in (0..=11).step_by(bench.size(1, 3)) {
        let tasks = 1 << exponent;
        let rounds = compare(bench, &ids, tasks, 1).await;
        ours.push((tasks as f64, median(rounds.ours.iter().map(Load::per_second))));
        theirs.push((tasks as f64, median(rounds.theirs.iter().map(Load::per_second))));
    }
    let curves = [Curve { name: "add().await", points: ours }, Curve { name: "plain HINCRBY", points: theirs }];
    draw("acked_by_tasks", "tasks", "hits per second", &curves);
}

/// Both sides on one Redis, each over a connection of its own, each round on an empty Redis.
pub async fn compare(bench: &Bench, ids: &Ids, tasks: usize, rounds: usize) -> Rounds<Load> {
    let stage = Stage::set(bench).await;
    let (time, mut family) = (bench.time(), 0);
    let ours = async || {
        family += 1;
        let side = Acked(stage.counters(family).await);
        load::run(&side, ids, tasks, time, &mut stage.emptied().await).await
    };
    let theirs = async || load::run(&stage.plain(), ids, tasks, time, &mut stage.emptied().await).await;
    alternate(rounds, ours, theirs).await
}

/// A Redis with a connection for each side and one to look on.
pub struct Stage {
    pair: Pair,
    plain: MultiplexedConnection,
    probe: MultiplexedConnection,
    _redis: RedisServer,
}

impl Stage {
    pub async fn set(bench: &Bench) -> Self {
        let redis = bench.servers.redis().await;
        let pair = bench.servers.pair(&redis).await;
        Stage { pair, plain: connect(&redis).await, probe: connect(&redis).await, _redis: redis }
    }

    /// A family of this round's own.
    pub async fn counters(&self, number: usize) -> Counters {
        let family = Family::buffered("bench", format!("round-{number}")).build().unwrap();
        self.pair.open(family).await.unwrap()
    }

    pub fn plain(&self) -> Plain {
        Plain { redis: self.plain.clone(), hash: "plain" }
    }

    /// The connection to look on, after everything was deleted.
    pub async fn emptied(&self) -> MultiplexedConnection {
        let mut probe = self.probe.clone();
        flush_all(&mut probe).await;
        probe
    }
}

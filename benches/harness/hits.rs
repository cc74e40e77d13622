//! Hits on buffered counters, acknowledged or recorded, compared with plain HINCRBY.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use counterfoil::Family;

use crate::measuring::{
    Acked, AtLeast, AtMost, Bench, Counters, Curve, Figure, Ids, Load, Plain, Rounds, Side, Stage,
    alternate, connect, draw, latencies, median, percentile,
};

const CPU: Figure = Figure {
    name: "cpu_per_hit_vs_hincrby",
    what: "Redis's CPU per hit, 256 tasks, Zipf : plain HINCRBY",
    target: AtMost(1.15),
};
const PROCESS_CPU: Figure = Figure {
    name: "process_cpu_per_hit_vs_hincrby",
    what: "the process's CPU per hit, 256 tasks, Zipf : plain HINCRBY",
    target: AtMost(0.45),
};
const ONE_TASK: Figure = Figure {
    name: "acked_one_task_vs_hincrby",
    what: "latency of add().await of one task, p50 : plain HINCRBY",
    target: AtMost(1.15),
};
const ONE_TASK_P99: Figure = Figure {
    name: "acked_one_task_p99_vs_hincrby",
    what: "the same, p99",
    target: AtMost(1.3),
};
const TAIL: Figure = Figure {
    name: "acked_p999_vs_hincrby",
    what: "latency of add().await of 256 tasks, p99.9 : plain HINCRBY",
    target: AtMost(1.5),
};
const RECORDED: Figure = Figure {
    name: "record_vs_hincrby",
    what: "hits/s of record() and a flush at the end, 256 tasks, Zipf : plain HINCRBY",
    target: AtLeast(25.0),
};

const ONCE: Figure = Figure {
    name: "once_vs_add",
    what: "requests/s of add_once().await, 256 tasks, Zipf : add().await",
    target: AtLeast(0.5),
};

/// `add().await` by many tasks.
struct Throughput {
    figure: Figure,
    /// The prefix of the absolute figures' names.
    name: &'static str,
    tasks: usize,
    ids: fn() -> Ids,
}

const THROUGHPUTS: [Throughput; 4] = [
    Throughput {
        figure: Figure {
            name: "acked_vs_hincrby",
            what: "hits/s of add().await, 256 tasks, Zipf over 100 k ids : plain HINCRBY",
            target: AtLeast(1.4),
        },
        name: "acked",
        tasks: 256,
        ids: || Ids::zipf(100_000),
    },
    Throughput {
        figure: Figure {
            name: "acked_2048_vs_hincrby",
            what: "the same with 2,048 tasks",
            target: AtLeast(2.2),
        },
        name: "acked_2048",
        tasks: 2048,
        ids: || Ids::zipf(100_000),
    },
    Throughput {
        figure: Figure {
            name: "acked_64_vs_hincrby",
            what: "the same with 64 tasks",
            target: AtLeast(1.0),
        },
        name: "acked_64",
        tasks: 64,
        ids: || Ids::zipf(100_000),
    },
    Throughput {
        figure: Figure {
            name: "acked_uniform_vs_hincrby",
            what: "the same with 256 tasks, ids drawn evenly from 1 M",
            target: AtLeast(1.25),
        },
        name: "acked_uniform",
        tasks: 256,
        ids: || Ids::even(1_000_000),
    },
];

pub async fn measure(bench: &mut Bench) {
    measure_throughput(bench).await;
    measure_by_tasks(bench).await;
    measure_one_task(bench).await;
    measure_tail(bench).await;
    measure_recorded(bench).await;
    measure_once(bench).await;
}

async fn measure_throughput(bench: &mut Bench) {
    for throughput in THROUGHPUTS {
        let has_cpu = throughput.name == "acked";
        let names = [throughput.figure.name, CPU.name, PROCESS_CPU.name];
        if !bench.wants(if has_cpu { &names } else { &names[..1] }) {
            continue;
        }
        let rounds = compare(bench, &(throughput.ids)(), throughput.tasks, bench.rounds()).await;
        bench.figure(throughput.figure, rounds.ratio(Load::per_second));
        let name = throughput.name;
        bench.absolute(
            format!("{name}_per_second"),
            median(rounds.ours.iter().map(Load::per_second)),
        );
        bench.absolute(
            format!("{name}_hincrby_per_second"),
            median(rounds.theirs.iter().map(Load::per_second)),
        );
        let ours = |what: fn(&Load) -> f64| median(rounds.ours.iter().map(what));
        bench.absolute(
            format!("{name}_hits_per_call"),
            ours(|load| load.hits / load.scripts.calls),
        );
        bench.absolute(
            format!("{name}_script_us"),
            ours(|load| load.scripts.mean_us()),
        );
        bench.absolute(
            format!("{name}_redis_busy"),
            ours(|load| load.redis_cpu / load.seconds),
        );
        bench.absolute(
            format!("{name}_process_busy"),
            ours(|load| load.own_cpu / load.seconds),
        );
        let theirs = median(
            rounds
                .theirs
                .iter()
                .map(|load| (load.redis_cpu + load.own_cpu) / load.hits * 1e6),
        );
        bench.absolute(
            format!("{name}_us_of_both"),
            ours(|load| (load.redis_cpu + load.own_cpu) / load.hits * 1e6),
        );
        bench.absolute(format!("{name}_hincrby_us_of_both"), theirs);
        if has_cpu {
            bench.figure(CPU, rounds.ratio(Load::redis_cpu_per_hit));
            bench.figure(PROCESS_CPU, rounds.ratio(|load| load.own_cpu / load.hits));
            let micros = |load: &Load| load.redis_cpu_per_hit() * 1e6;
            bench.absolute("redis_us_per_hit", median(rounds.ours.iter().map(micros)));
            bench.absolute(
                "redis_us_per_hincrby",
                median(rounds.theirs.iter().map(micros)),
            );
        }
    }
}

/// Draws the curve of hits per second over the number of tasks.
async fn measure_by_tasks(bench: &mut Bench) {
    if !bench.wants(&["acked_by_tasks"]) {
        return;
    }
    let ids = Ids::zipf(100_000);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for exponent in (0..=11).step_by(bench.size(1, 3)) {
        let tasks = 1 << exponent;
        let rounds = compare(bench, &ids, tasks, 1).await;
        ours.push((
            tasks as f64,
            median(rounds.ours.iter().map(Load::per_second)),
        ));
        theirs.push((
            tasks as f64,
            median(rounds.theirs.iter().map(Load::per_second)),
        ));
    }
    let curves = [
        Curve {
            name: "add().await",
            points: ours,
        },
        Curve {
            name: "plain HINCRBY",
            points: theirs,
        },
    ];
    draw("acked_by_tasks", "tasks", "hits per second", &curves);
}

/// Compares both sides on one Redis, each over its own connection. Redis is empty at the start of
/// each round.
async fn compare(bench: &Bench, ids: &Ids, tasks: usize, rounds: usize) -> Rounds<Load> {
    let sides = Sides::set(bench).await;
    let (time, mut family) = (bench.time(), 0);
    let ours = async || {
        family += 1;
        let side = Acked(sides.counters(family).await);
        Load::run(&side, ids, tasks, time, &mut sides.stage.emptied().await).await
    };
    let theirs = async || {
        Load::run(
            &sides.plain,
            ids,
            tasks,
            time,
            &mut sides.stage.emptied().await,
        )
        .await
    };
    alternate(rounds, ours, theirs).await
}

/// Measures the latency of a hit by a single task.
async fn measure_one_task(bench: &mut Bench) {
    if !bench.wants(&[ONE_TASK.name, ONE_TASK_P99.name]) {
        return;
    }
    let rounds = compare_latency(bench, 1).await;
    let p50 = |micros: &Vec<f64>| percentile(micros, 0.5);
    let p99 = |micros: &Vec<f64>| percentile(micros, 0.99);
    bench.figure(ONE_TASK, rounds.ratio(p50));
    bench.figure(ONE_TASK_P99, rounds.ratio(p99));
    bench.absolute("one_task_us", median(rounds.ours.iter().map(p50)));
    bench.absolute("one_task_hincrby_us", median(rounds.theirs.iter().map(p50)));
    bench.absolute("one_task_p99_us", median(rounds.ours.iter().map(p99)));
    bench.absolute(
        "one_task_hincrby_p99_us",
        median(rounds.theirs.iter().map(p99)),
    );
}

/// Measures the slowest hits of many tasks.
async fn measure_tail(bench: &mut Bench) {
    if !bench.wants(&[TAIL.name]) {
        return;
    }
    let rounds = compare_latency(bench, 256).await;
    let p999 = |micros: &Vec<f64>| percentile(micros, 0.999);
    bench.figure(TAIL, rounds.ratio(p999));
    bench.absolute("acked_p999_us", median(rounds.ours.iter().map(p999)));
    bench.absolute(
        "acked_hincrby_p999_us",
        median(rounds.theirs.iter().map(p999)),
    );
}

/// Measures the times of all hits on both sides, as [`compare`] does.
async fn compare_latency(bench: &Bench, tasks: usize) -> Rounds<Vec<f64>> {
    let (sides, ids, time) = (Sides::set(bench).await, Ids::zipf(100_000), bench.time());
    let mut family = 0;
    let ours = async || {
        family += 1;
        sides.stage.emptied().await;
        latencies(Acked(sides.counters(family).await), &ids, tasks, time).await
    };
    let theirs = async || {
        sides.stage.emptied().await;
        latencies(sides.plain.clone(), &ids, tasks, time).await
    };
    alternate(bench.rounds(), ours, theirs).await
}

/// `record()`.
#[derive(Clone)]
struct Recorded {
    counters: Counters,
    hits: u32,
}

impl Side for Recorded {
    async fn hit(&mut self, id: &str) {
        self.counters.record(id, 1).unwrap();
        self.hits += 1;
        // record() never waits, so this lets the other tasks run
        if self.hits.is_multiple_of(64) {
            tokio::task::yield_now().await;
        }
    }

    async fn finish(self) {
        let _ = self.counters.flush().await.unwrap();
    }
}

/// Measures hits that are summed in the process, with a flush at the end.
async fn measure_recorded(bench: &mut Bench) {
    if !bench.wants(&[RECORDED.name]) {
        return;
    }
    let (sides, ids, time) = (Sides::set(bench).await, Ids::zipf(100_000), bench.time());
    let mut family = 0;
    let ours = async || {
        family += 1;
        let side = Recorded {
            counters: sides.counters(family).await,
            hits: 0,
        };
        Load::run(&side, &ids, 256, time, &mut sides.stage.emptied().await).await
    };
    let theirs = async || {
        Load::run(
            &sides.plain,
            &ids,
            256,
            time,
            &mut sides.stage.emptied().await,
        )
        .await
    };
    let rounds = alternate(bench.rounds(), ours, theirs).await;
    bench.figure(RECORDED, rounds.ratio(Load::per_second));
    bench.absolute(
        "recorded_per_second",
        median(rounds.ours.iter().map(Load::per_second)),
    );
}

/// `add_once().await`, each with a name of its own.
#[derive(Clone)]
struct Once {
    counters: Counters,
    names: Arc<AtomicU64>,
}

impl Side for Once {
    async fn hit(&mut self, id: &str) {
        let name = format!("order/{}", self.names.fetch_add(1, Ordering::Relaxed));
        let added = self.counters.add_once(&name, id, 1).await.unwrap();
        assert!(added.counted().is_some(), "{id} was not counted: {added:?}");
    }
}

/// Measures requests, compared with plain hits.
async fn measure_once(bench: &mut Bench) {
    if !bench.wants(&[ONCE.name]) {
        return;
    }
    let (sides, ids, time) = (Sides::set(bench).await, Ids::zipf(100_000), bench.time());
    let (mut once, mut add) = (0, 1_000);
    let ours = async || {
        once += 1;
        let side = Once {
            counters: sides.counters(once).await,
            names: Arc::default(),
        };
        Load::run(&side, &ids, 256, time, &mut sides.stage.emptied().await).await
    };
    let theirs = async || {
        add += 1;
        let side = Acked(sides.counters(add).await);
        Load::run(&side, &ids, 256, time, &mut sides.stage.emptied().await).await
    };
    let rounds = alternate(bench.rounds(), ours, theirs).await;
    bench.figure(ONCE, rounds.ratio(Load::per_second));
    bench.absolute(
        "once_per_second",
        median(rounds.ours.iter().map(Load::per_second)),
    );
    bench.absolute(
        "once_add_per_second",
        median(rounds.theirs.iter().map(Load::per_second)),
    );
}

/// A database and a Redis, with a separate connection for each side.
struct Sides {
    stage: Stage,
    plain: Plain,
}

impl Sides {
    async fn set(bench: &Bench) -> Self {
        let stage = Stage::set(bench).await;
        let plain = Plain {
            redis: connect(&stage.redis).await,
            hash: "plain",
        };
        Sides { stage, plain }
    }

    /// Opens a new family for the round.
    async fn counters(&self, number: usize) -> Counters {
        let family = Family::buffered("bench", format!("round-{number}"));
        self.stage.pair.open(family).await.unwrap()
    }
}

//! The growth of costs up to millions of pending ids.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::measuring::{
    Acked, AtMost, Bench, Curve, Figure, Ids, Load, Pending, Rounds, alternate, draw, median,
};
use crate::scripts::{self, Longest, Watch};

const ADD: Figure = Figure {
    name: "add_growth_vs_hincrby",
    what: "growth of the time per hit of add().await, 256 tasks, from 10 k to 5 M ids pending : that of plain HINCRBY",
    target: AtMost(1.1),
};
const FLUSH: Figure = Figure {
    name: "flush_growth",
    what: "time per row of a flush with 5 M ids pending : with 10 k",
    target: AtMost(1.25),
};
const SCRIPT: Figure = Figure {
    name: "longest_script_vs_command",
    what: "longest run of a script, 5 M ids pending, hits coming in : longest HSET, HMGET or HSCAN of as many ids",
    target: AtMost(1.2),
};

/// A number of ids, both pending and in plain hashes, on its own stage, with the results there.
struct Size {
    ids: u32,
    stage: Pending,
    hits: Rounds<Load>,
    row_us: Vec<f64>,
}

pub async fn measure(bench: &mut Bench) {
    let (hits, scripts, rows) = (
        bench.wants(&[ADD.name]),
        bench.wants(&[SCRIPT.name]),
        bench.wants(&[FLUSH.name]),
    );
    if !(hits || scripts || rows) {
        return;
    }
    let mut sizes = Vec::new();
    for ids in bench.size(
        [10_000, 100_000, 1_000_000, 5_000_000],
        [10_000, 50_000, 200_000, 1_000_000],
    ) {
        let size = Size {
            ids,
            stage: Pending::set(bench).await,
            hits: Rounds::new(),
            row_us: Vec::new(),
        };
        size.stage.fill(size.names()).await;
        size.stage.plain.fill(size.names()).await;
        sizes.push(size);
    }
    if hits {
        measure_hits(bench, &mut sizes).await;
    }
    if scripts {
        watch_scripts(bench, &sizes).await;
    }
    if rows {
        measure_rows(bench, &mut sizes).await;
    }
}

impl Size {
    fn names(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.ids).map(|number| format!("page/{number}"))
    }

    /// Hits pending ids only, so that their number stays constant.
    async fn hit(&mut self, ids: &Ids, time: Duration, round: usize) {
        const TASKS: usize = 256;
        let (acked, plain, probe) = (
            Acked(self.stage.counters.clone()),
            &self.stage.plain,
            &self.stage.probe,
        );
        let ours = async || Load::run(&acked, ids, TASKS, time, &mut probe.clone()).await;
        let theirs = async || Load::run(plain, ids, TASKS, time, &mut probe.clone()).await;
        self.hits.measure(round, ours, theirs).await;
    }

    /// Flushes rows that are already in the database. Small sizes run several times; large ones are
    /// long enough.
    async fn flush(&mut self) {
        // inserts the rows
        self.stage.fill(self.names()).await;
        self.stage.flush().await;
        for _ in 0..(1_000_000 / self.ids).clamp(1, 10) {
            self.stage.fill(self.names()).await;
            self.row_us
                .push(self.stage.flush().await * 1e6 / f64::from(self.ids));
        }
    }
}

/// Measures all sizes in every round, so that other load on the machine affects all of them.
async fn measure_hits(bench: &mut Bench, sizes: &mut [Size]) {
    let ids: Vec<_> = sizes.iter().map(|size| Ids::in_order(size.ids)).collect();
    for round in 0..=bench.rounds() {
        for (size, ids) in sizes.iter_mut().zip(&ids) {
            size.hit(ids, bench.time() / 2, round).await;
        }
    }
    let [least, .., most] = &*sizes else { return };
    let growth = |of: fn(&Load) -> f64| {
        let rounds = most.hits.ratios(of).zip(least.hits.ratios(of));
        median(rounds.map(|(most, least)| most / least))
    };
    bench.figure(ADD, growth(Load::us_per_hit));
    bench.absolute(
        "add_growth_in_redis_vs_hincrby",
        growth(Load::redis_cpu_per_hit),
    );
    let of = |side: fn(&Rounds<Load>) -> &[Load], what: fn(&Load) -> f64| -> Vec<_> {
        sizes
            .iter()
            .map(|size| {
                (
                    f64::from(size.ids),
                    median(side(&size.hits).iter().map(what)),
                )
            })
            .collect()
    };
    let curve = |what| {
        (
            of(|rounds| &rounds.ours, what),
            of(|rounds| &rounds.theirs, what),
        )
    };
    let ((ours, theirs), (ours_in_redis, theirs_in_redis)) =
        (curve(Load::us_per_hit), curve(Load::redis_cpu_per_hit));
    for ((ids, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        bench.absolute(format!("hit_us_at_{ids}_pending"), *ours);
        bench.absolute(format!("hincrby_us_at_{ids}_ids"), *theirs);
    }
    for ((ids, ours), (_, theirs)) in ours_in_redis.iter().zip(&theirs_in_redis) {
        bench.absolute(format!("redis_us_per_hit_at_{ids}_pending"), ours * 1e6);
        bench.absolute(format!("redis_us_per_hincrby_at_{ids}_ids"), theirs * 1e6);
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
    draw("add", "ids pending", "us per hit", &curves);
}

/// Passes a batch of each partition through all scripts while hits come in, does the same with
/// plain commands, and compares the longest runs.
///
/// Nothing else runs meanwhile, not even a database: Redis's clock continues while a script waits
/// for a processor.
async fn watch_scripts(bench: &mut Bench, sizes: &[Size]) {
    let Some(Size { ids, stage, .. }) = sizes.last() else {
        return;
    };
    let watch = Watch::start(stage.probe.clone()).await;
    let (mut partitions, mut hashes) = (stage.partitions(), stage.plain.hashes());
    let ours = async || {
        scripts::batch_through(&partitions.next().unwrap(), stage.counters.family(), *ids).await;
        watch.scripts().await
    };
    let theirs = async || {
        scripts::commands_through(&stage.probe, hashes.next().unwrap(), *ids).await;
        watch.commands().await
    };
    // the first round is a warm-up
    let rounds = alternate(stage.partitions().count() - 1, ours, theirs).await;
    let of_all = |look: &Longest| look.values().copied().fold(0.0, f64::max);
    bench.figure(SCRIPT, rounds.ratio(of_all));
    bench.absolute(
        "longest_script_of_a_round_us",
        median(rounds.ours.iter().map(of_all)),
    );
    bench.absolute(
        "longest_command_of_a_round_us",
        median(rounds.theirs.iter().map(of_all)),
    );
    // the longest run of each script over all rounds
    let mut longest = BTreeMap::new();
    for (name, micros) in rounds.ours.iter().chain(&rounds.theirs).flatten() {
        let longest = longest.entry(name).or_insert(0.0);
        *longest = micros.max(*longest);
    }
    for (name, micros) in longest {
        bench.absolute(format!("longest_{name}_us"), micros);
    }
}

async fn measure_rows(bench: &mut Bench, sizes: &mut [Size]) {
    for size in &mut *sizes {
        size.stage.plain.delete().await;
        size.flush().await;
    }
    let [least, .., most] = &*sizes else { return };
    bench.figure(
        FLUSH,
        median(most.row_us.clone()) / median(least.row_us.clone()),
    );
    let points: Vec<_> = sizes
        .iter()
        .map(|size| (f64::from(size.ids), median(size.row_us.iter().copied())))
        .collect();
    for (ids, micros) in &points {
        bench.absolute(format!("row_us_at_{ids}_pending"), *micros);
    }
    draw(
        "flush",
        "ids pending",
        "us per row",
        &[Curve {
            name: "flush",
            points,
        }],
    );
}

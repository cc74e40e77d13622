//! Acknowledged increments per second of counters that are in Redis, against plain INCRBY.

use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::cached::stage::{Incr, Stage, fill};
use crate::figure::{Figure, Target::AtLeast};
use crate::ids::Ids;
use crate::load::{self, Load};

const FIGURE: Figure = Figure {
    name: "cached_throughput_vs_incrby",
    what: "increments/s of incr().await, 256 tasks, Zipf over 100 k warm counters in 4 partitions : plain INCRBY",
    target: AtLeast(1.2),
};
const IDS: u32 = 100_000;
const TASKS: usize = 256;
/// The family's default, and beside the figure what fewer and more of them do.
const PARTITIONS: u32 = 4;
const OTHERS: [u32; 3] = [1, 2, 8];

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let rounds = compare(bench, PARTITIONS, bench.rounds()).await;
    bench.figure(FIGURE, rounds.ratio(Load::per_second));
    let ours = |what: fn(&Load) -> f64| median(rounds.ours.iter().map(what));
    bench.absolute("cached_per_second", ours(Load::per_second));
    bench.absolute("cached_incrby_per_second", median(rounds.theirs.iter().map(Load::per_second)));
    bench.absolute("cached_per_call", ours(|load| load.hits / load.scripts.calls));
    bench.absolute("cached_script_us", ours(|load| load.scripts.mean_us()));
    bench.absolute("cached_redis_busy", ours(|load| load.redis_cpu / load.seconds));
    for partitions in OTHERS {
        let rounds = compare(bench, partitions, bench.size(3, 1)).await;
        bench.absolute(format!("cached_throughput_in_{partitions}_partitions"), rounds.ratio(Load::per_second));
    }
}

async fn compare(bench: &Bench, partitions: u32, rounds: usize) -> crate::alternate::Rounds<Load> {
    let stage = Stage::set(bench).await;
    let counters = stage.family(&format!("warm-{partitions}"), partitions).await;
    let names: Vec<_> = (0..IDS).map(|number| format!("page/{number}")).collect();
    fill(&counters, &names).await;
    let (incr, plain) = (Incr(counters), stage.plain().await);
    let (ids, time) = (Ids::zipf(IDS), bench.time());
    let ours = async || load::run(&incr, &ids, TASKS, time, &mut stage.probe.clone()).await;
    let theirs = async || load::run(&plain, &ids, TASKS, time, &mut stage.probe.clone()).await;
    alternate(rounds, ours, theirs).await
}

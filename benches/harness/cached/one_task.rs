//! How long one increment of a counter that is in Redis takes for somebody who is alone.

use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::cached::stage::{Incr, Stage};
use crate::figure::{Figure, Target::AtMost};
use crate::ids::Ids;
use crate::one_task::latency;

const FIGURE: Figure = Figure {
    name: "cached_incr_vs_incrby",
    what: "latency of incr().await of a hot counter, one task, p50 : plain INCRBY",
    target: AtMost(1.2),
};

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let (incr, plain) = (Incr(stage.family("hot", 4).await), stage.plain().await);
    let (ids, time) = (Ids::even(1), bench.time());
    let ours = async || latency(incr.clone(), &ids, time).await;
    let theirs = async || latency(plain.clone(), &ids, time).await;
    let rounds = alternate(bench.rounds(), ours, theirs).await;
    bench.figure(FIGURE, rounds.ratio(|micros| *micros));
    bench.absolute("cached_incr_us", median(rounds.ours));
    bench.absolute("incrby_us", median(rounds.theirs));
}

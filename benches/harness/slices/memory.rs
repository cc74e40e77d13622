//! What a series with full windows costs in Redis.

use counterfoil::Precision;

use crate::bench::Bench;
use crate::figure::{Figure, Target::AtMost};
use crate::slices::stage::{Stage, starts};

const FIGURE: Figure = Figure {
    name: "series_memory",
    what: "Redis's bytes per series, its 7 windows of 120 slices full : 7 plain hashes of the same slices",
    target: AtMost(1.15),
};
const SLICES: i64 = 120;

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let series = stage.series("memory").await;
    // seven keys each: three quarters of a power of two, for both sides, since a table is half empty after it grew
    let names: Vec<_> = (0..bench.size(877, 438)).map(|number| format!("page/{number}")).collect();
    let now = stage.time().await;
    let empty = stage.used().await;
    // what a first hit makes, lifetimes and names included, and then the slices before
    for name in &names {
        let _ = series.add(name, 1_000).await.unwrap();
    }
    for name in &names {
        let partition = series.family().partition_of(name);
        let window = |precision| format!("cf1:{{bench/memory/{partition}}}:series:{precision}:{name}");
        stage.fill(window, now).await;
    }
    let ours = stage.used().await - empty;
    let before = stage.used().await;
    for name in &names {
        stage.fill(|precision| format!("count:{precision}:{name}"), now).await;
    }
    let theirs = stage.used().await - before;
    bench.figure(FIGURE, ours / theirs);
    bench.absolute("redis_bytes_per_series", ours / names.len() as f64);
    bench.absolute("redis_bytes_per_7_hashes", theirs / names.len() as f64);
}

impl Stage {
    /// Seven hashes of 120 slices each.
    async fn fill(&self, key: impl Fn(Precision) -> String, now: i64) {
        let mut pipe = redis::pipe();
        for precision in Precision::DEFAULT {
            for start in starts(precision, SLICES, now) {
                pipe.hset(key(precision), start, 1_000 + start % 977).ignore();
            }
        }
        pipe.exec_async(&mut self.probe.clone()).await.unwrap();
    }
}

//! What a counter costs in Redis while it is there and saved.

use crate::bench::Bench;
use crate::cached::stage::{Stage, fill};
use crate::figure::{Figure, Target::AtMost};
use crate::servers::{info, number_after};

const FIGURE: Figure = Figure {
    name: "cached_memory",
    what: "Redis's bytes per warm clean counter, ids of 11 bytes : plain string keys with a TTL",
    target: AtMost(3.0),
};

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    // three quarters of a power of two, for both sides: a table is half empty after it grew
    let ids = bench.size(196_608, 49_152);
    let names: Vec<_> = (0..ids).map(|number| format!("item/{number:06}")).collect();
    let stage = Stage::set(bench).await;
    let counters = stage.family("memory", 4).await;
    let before = stage.used().await;
    fill(&counters, &names).await;
    stage.pair.drain().await.unwrap();
    let ours = stage.used().await - before;
    let mut probe = stage.probe.clone();
    let before = stage.used().await;
    for some in names.chunks(1000) {
        let mut pipe = redis::pipe();
        for id in some {
            pipe.cmd("SET").arg(id).arg(1).arg("EX").arg(600).ignore();
        }
        pipe.exec_async(&mut probe).await.unwrap();
    }
    let theirs = stage.used().await - before;
    bench.figure(FIGURE, ours / theirs);
    bench.absolute("redis_bytes_per_cached_counter", ours / f64::from(ids));
    bench.absolute("redis_bytes_per_string_key", theirs / f64::from(ids));
}

impl Stage {
    /// All that Redis has allocated.
    async fn used(&self) -> f64 {
        number_after(&info(&mut self.probe.clone(), "memory").await, "used_memory:")
    }
}

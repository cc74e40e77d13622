//! What an id costs in Redis while it is pending.

use crate::bench::Bench;
use crate::figure::{Figure, Target::AtMost};
use crate::pending::Stage;

const FIGURE: Figure = Figure {
    name: "memory_vs_hash",
    what: "Redis's bytes per pending id : the same ids in one plain hash",
    target: AtMost(1.1),
};
const HASH: &str = "plain";

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    // three quarters of a power of two, for both sides: a hash's table is half empty after it grew
    let ids = bench.size(196_608, 49_152);
    let names = || (0..ids).map(|number| format!("page/{number}"));
    let stage = Stage::set(bench).await;
    stage.fill(names()).await;
    for id in names() {
        redis::cmd("HINCRBY").arg(HASH).arg(id).arg(1).exec_async(&mut stage.probe.clone()).await.unwrap();
    }
    let mut ours = 0.0;
    for kind in ["buffer", "meta", "epochs", "calls", "calls_before"] {
        for key in stage.keys(kind) {
            ours += stage.bytes(&key).await;
        }
    }
    let theirs = stage.bytes(HASH).await;
    bench.figure(FIGURE, ours / theirs);
    bench.absolute("redis_bytes_per_pending_id", ours / f64::from(ids));
    bench.absolute("redis_bytes_per_id_of_hash", theirs / f64::from(ids));
}

impl Stage {
    /// What the key takes, exactly; 0 where it is not there.
    async fn bytes(&self, key: &str) -> f64 {
        let mut command = redis::cmd("MEMORY");
        command.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        command.query_async::<Option<f64>>(&mut self.probe.clone()).await.unwrap().unwrap_or(0.0)
    }
}

//! How long it takes to read a window, against reading the hash that it is.

use std::collections::HashMap;

use counterfoil::{Precision, Series};
use redis::aio::MultiplexedConnection;

use crate::bench::Bench;
use crate::figure::{Figure, Target::AtMost};
use crate::ids::Ids;
use crate::servers::connect;
use crate::sides::Side;
use crate::slices::compare::Comparison;
use crate::slices::stage::{Stage, starts};

const FIGURE: Figure = Figure {
    name: "series_get_vs_hgetall",
    what: "latency of get() of 120 slices, one task, p50 : plain HGETALL of the same",
    target: AtMost(1.3),
};
const SLICES: i64 = 120;

#[derive(Clone)]
struct Ours(Series<MultiplexedConnection>);

impl Side for Ours {
    async fn hit(&mut self, name: &str) {
        let window = self.0.get(name, Precision::HOUR).await.unwrap();
        // none of it left the window since it was filled, or one slice did
        assert!(window.iter().filter(|slice| slice.count > 0).count() >= 119);
    }
}

#[derive(Clone)]
struct Plain(MultiplexedConnection);

impl Side for Plain {
    async fn hit(&mut self, name: &str) {
        let window: HashMap<i64, i64> = redis::cmd("HGETALL").arg(name).query_async(&mut self.0).await.unwrap();
        assert_eq!(window.len(), SLICES as usize);
    }
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let (ours, theirs) = (Ours(stage.series("window").await), Plain(connect(&stage.redis).await));
    let ids = Ids::even(1);
    let name = ids.of_task(0, 1).next().unwrap();
    let partition = ours.0.family().partition_of(name);
    let now = stage.time().await;
    for hash in [name.to_owned(), format!("cf1:{{bench/window/{partition}}}:series:3600s:{name}")] {
        for start in starts(Precision::HOUR, SLICES, now) {
            let mut probe = stage.probe.clone();
            redis::cmd("HSET").arg(&hash).arg(start).arg(1_000 + start % 977).exec_async(&mut probe).await.unwrap();
        }
    }
    Comparison { figure: FIGURE, ours, theirs, names: ["series_get", "hgetall"], ids, stage }.latency(bench).await;
}

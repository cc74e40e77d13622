//! Hits per second that are counted at seven precisions, against what the textbook does for each.

use counterfoil::{Precision, Series};
use redis::aio::MultiplexedConnection;

use crate::bench::Bench;
use crate::figure::{Figure, Target::AtLeast};
use crate::ids::Ids;
use crate::servers::connect;
use crate::sides::Side;
use crate::slices::compare::Comparison;
use crate::slices::stage::{Stage, length};

const FIGURE: Figure = Figure {
    name: "series_add_vs_pipeline",
    what: "add().await over 7 precisions, 256 tasks, Zipf over 1,000 names, hits/s : MULTI of 7 ZADD and 7 HINCRBY",
    target: AtLeast(2.0),
};
const NAMES: u32 = 1_000;

/// `add().await`.
#[derive(Clone)]
struct Ours(Series<MultiplexedConnection>);

impl Side for Ours {
    async fn hit(&mut self, name: &str) {
        let _ = self.0.add(name, 1).await.unwrap();
    }
}

/// What a well-known book on Redis does for each hit, in one transaction over one multiplexed connection.
#[derive(Clone)]
struct Textbook(MultiplexedConnection);

impl Side for Textbook {
    async fn hit(&mut self, name: &str) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        let mut pipe = redis::pipe();
        pipe.atomic();
        for precision in Precision::DEFAULT.map(length) {
            let series = format!("{precision}:{name}");
            pipe.zadd("known:", &series, 0).ignore();
            pipe.hincr(format!("count:{series}"), now / precision * precision, 1).ignore();
        }
        pipe.exec_async(&mut self.0).await.unwrap();
    }
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let (ours, theirs) = (Ours(stage.series("add").await), Textbook(connect(&stage.redis).await));
    let (names, ids) = (["series_add", "series_textbook"], Ids::zipf(NAMES));
    Comparison { figure: FIGURE, ours, theirs, names, ids, stage }.throughput(bench).await;
}

//! Hits per second that are counted at seven precisions, against what the textbook does for each.

use counterfoil::{Precision, Series};
use redis::aio::MultiplexedConnection;

use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::figure::{Figure, Target::AtLeast};
use crate::ids::Ids;
use crate::load::{self, Load};
use crate::one_task::latency;
use crate::servers::connect;
use crate::sides::Side;
use crate::slices::stage::{Stage, length};

const FIGURE: Figure = Figure {
    name: "series_add_vs_pipeline",
    what: "add().await over 7 precisions, 256 tasks, Zipf over 1,000 names, hits/s : MULTI of 7 ZADD and 7 HINCRBY",
    target: AtLeast(2.0),
};
const NAMES: u32 = 1_000;
const TASKS: usize = 256;

/// `add().await`.
#[derive(Clone)]
struct Ours(Series<MultiplexedConnection>);

impl Side for Ours {
    async fn hit(&mut self, name: &str) {
        self.0.add(name, 1).await.unwrap();
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
    let (ids, time) = (Ids::zipf(NAMES), bench.time());
    let rounds = alternate(
        bench.rounds(),
        async || load::run(&ours, &ids, TASKS, time, &mut stage.probe.clone()).await,
        async || load::run(&theirs, &ids, TASKS, time, &mut stage.probe.clone()).await,
    )
    .await;
    bench.figure(FIGURE, rounds.ratio(Load::per_second));
    let of_ours = |what: fn(&Load) -> f64| median(rounds.ours.iter().map(what));
    bench.absolute("series_add_per_second", of_ours(Load::per_second));
    bench.absolute("series_textbook_per_second", median(rounds.theirs.iter().map(Load::per_second)));
    bench.absolute("series_hits_per_call", of_ours(|load| load.hits / load.scripts.calls));
    bench.absolute("series_script_us", of_ours(|load| load.scripts.seconds * 1e6 / load.scripts.calls));
    let alone = alternate(
        bench.rounds(),
        async || latency(ours.clone(), &ids, time).await,
        async || latency(theirs.clone(), &ids, time).await,
    )
    .await;
    bench.absolute("series_add_one_task_us", median(alone.ours));
    bench.absolute("series_textbook_one_task_us", median(alone.theirs));
}

//! Views per second that are counted with their visitors, against a counter and a HyperLogLog.

use counterfoil::Activity;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis::aio::MultiplexedConnection;

use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::figure::{Figure, Target::AtLeast};
use crate::ids::Ids;
use crate::load::{self, Load};
use crate::one_task::latency;
use crate::servers::connect;
use crate::sides::Side;
use crate::slices::stage::Stage;

const FIGURE: Figure = Figure {
    name: "activity_touch_vs_two_commands",
    what: "touch().await, 256 tasks, Zipf over 1,000 pages, 100,000 visitors, views/s : INCR and PFADD in one pipeline",
    target: AtLeast(0.8),
};
const PAGES: u32 = 1_000;
const VISITORS: u32 = 100_000;
const TASKS: usize = 256;

/// `touch().await`, each time by somebody else.
#[derive(Clone)]
struct Ours(Activity<MultiplexedConnection>, Visitors);

impl Side for Ours {
    async fn hit(&mut self, page: &str) {
        self.0.touch(page, self.1.next()).await.unwrap();
    }
}

/// What one does without counterfoil, without a window.
#[derive(Clone)]
struct TwoCommands(MultiplexedConnection, Visitors);

impl Side for TwoCommands {
    async fn hit(&mut self, page: &str) {
        let mut pipe = redis::pipe();
        pipe.incr(format!("views:{page}"), 1).ignore();
        pipe.pfadd(format!("visitors:{page}"), self.1.next()).ignore();
        pipe.exec_async(&mut self.0).await.unwrap();
    }
}

/// Who comes next: another sequence in every clone.
struct Visitors(SmallRng);

impl Visitors {
    fn next(&mut self) -> String {
        format!("visitor-{:06}", self.0.random_range(0..VISITORS))
    }
}

impl Clone for Visitors {
    fn clone(&self) -> Self {
        Visitors(SmallRng::from_rng(&mut rand::rng()))
    }
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let visitors = Visitors(SmallRng::seed_from_u64(1));
    let ours = Ours(stage.activity("touch").await, visitors.clone());
    let theirs = TwoCommands(connect(&stage.redis).await, visitors);
    let (ids, time) = (Ids::zipf(PAGES), bench.time());
    let rounds = alternate(
        bench.rounds(),
        async || load::run(&ours, &ids, TASKS, time, &mut stage.probe.clone()).await,
        async || load::run(&theirs, &ids, TASKS, time, &mut stage.probe.clone()).await,
    )
    .await;
    bench.figure(FIGURE, rounds.ratio(Load::per_second));
    let of_ours = |what: fn(&Load) -> f64| median(rounds.ours.iter().map(what));
    bench.absolute("activity_touch_per_second", of_ours(Load::per_second));
    bench.absolute("activity_two_commands_per_second", median(rounds.theirs.iter().map(Load::per_second)));
    bench.absolute("activity_touches_per_call", of_ours(|load| load.hits / load.scripts.calls));
    bench.absolute("activity_script_us", of_ours(|load| load.scripts.seconds * 1e6 / load.scripts.calls));
    let alone = alternate(
        bench.rounds(),
        async || latency(ours.clone(), &ids, time).await,
        async || latency(theirs.clone(), &ids, time).await,
    )
    .await;
    bench.absolute("activity_touch_one_task_us", median(alone.ours));
    bench.absolute("activity_two_commands_one_task_us", median(alone.theirs));
}

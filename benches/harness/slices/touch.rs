//! Views per second that are counted with their visitors, against a counter and a HyperLogLog.

use counterfoil::Activity;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis::aio::MultiplexedConnection;

use crate::bench::Bench;
use crate::figure::{Figure, Target::AtLeast};
use crate::ids::Ids;
use crate::load::Load;
use crate::servers::connect;
use crate::sides::Side;
use crate::slices::compare::Comparison;
use crate::slices::stage::Stage;

const FIGURE: Figure = Figure {
    name: "activity_touch_vs_two_commands",
    what: "touch().await, 256 tasks, Zipf over 1,000 pages, 100,000 visitors, views/s : INCR and PFADD in one pipeline",
    target: AtLeast(0.9),
};
const PAGES: u32 = 1_000;
const VISITORS: u32 = 100_000;
/// The family's default, and beside the figure what fewer of them do.
const PARTITIONS: u32 = 4;
const OTHERS: [u32; 3] = [1, 2, 8];

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
    compare(bench, PARTITIONS).await.throughput(bench).await;
    for partitions in OTHERS {
        let ratio = compare(bench, partitions).await.load(bench, bench.rounds()).await.ratio(Load::per_second);
        bench.absolute(format!("activity_touch_in_{partitions}_partitions"), ratio);
    }
}

async fn compare(bench: &Bench, partitions: u32) -> Comparison<Ours, TwoCommands> {
    let stage = Stage::set(bench).await;
    let visitors = Visitors(SmallRng::seed_from_u64(1));
    let ours = Ours(stage.activity("touch", partitions).await, visitors.clone());
    let theirs = TwoCommands(connect(&stage.redis).await, visitors);
    let (names, ids) = (["activity_touch", "activity_two_commands"], Ids::zipf(PAGES));
    Comparison { figure: FIGURE, ours, theirs, names, ids, stage }
}

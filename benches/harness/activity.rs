//! Activity, compared with plain commands.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use counterfoil::{Activity, Durability, Family, test_hooks};
use futures_util::future::try_join_all;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis::aio::MultiplexedConnection;

use crate::measuring::{
    AtLeast, AtMost, Bench, Comparison, Figure, Ids, Load, Side, Stage, connect,
};

const TOUCH: Figure = Figure {
    name: "activity_touch",
    what: "touch().await, 256 tasks, Zipf over 1,000 pages, 100,000 visitors, views/s : ZADD, ZREMRANGEBYSCORE, \
           INCR, EXPIRE in one pipeline",
    target: AtLeast(1.0),
};
const NOW: Figure = Figure {
    name: "activity_now_vs_get",
    what: "latency of now() of a page with 100,000 visitors in the window, one task, p50 : plain GET",
    target: AtMost(10.0),
};
const VISITORS: u32 = 100_000;
/// The default window of a family.
const WINDOW: Duration = Duration::from_secs(600);
/// The default number of partitions of a family.
const PARTITIONS: u32 = 4;

pub async fn measure(bench: &mut Bench) {
    measure_touch(bench).await;
    measure_now(bench).await;
}

/// Opens a family with the default window in `partitions` partitions. It caches no results.
async fn activity(stage: &Stage, partitions: u32) -> Activity {
    let family = Family::activity("bench", "readers")
        .partitions(partitions)
        .durability(Durability::Immediate);
    let online = stage.pair.open(family).await.unwrap();
    online.cache_for(Duration::ZERO)
}

/// `touch().await`, each time by a random visitor.
#[derive(Clone)]
struct Touch(Activity, Visitors);

impl Side for Touch {
    async fn hit(&mut self, page: &str) {
        self.0.touch(page, self.1.next()).await.unwrap();
    }
}

/// The alternative without counterfoil, for the same window.
#[derive(Clone)]
struct ByHand(MultiplexedConnection, Visitors);

impl Side for ByHand {
    async fn hit(&mut self, page: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let (visitor, minute) = (self.1.next(), now.as_secs() / 60);
        let (views, window) = (format!("views:{page}:{minute}"), WINDOW.as_secs() as i64);
        let mut pipe = redis::pipe();
        let (visitors, now_ms) = (format!("visitors:{page}"), now.as_millis() as i64);
        pipe.zadd(&visitors, visitor, now_ms).ignore();
        pipe.zrembyscore(&visitors, "-inf", now_ms - WINDOW.as_millis() as i64)
            .ignore();
        pipe.incr(&views, 1).ignore();
        pipe.expire(&views, window).ignore();
        pipe.exec_async(&mut self.0).await.unwrap();
    }
}

/// A random sequence of visitors, different in every clone.
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

/// Measures views that are counted with their visitors, also in fewer and more partitions.
async fn measure_touch(bench: &mut Bench) {
    if bench.wants(&[TOUCH.name]) {
        compare(bench, PARTITIONS).await.throughput(bench).await;
        for partitions in [1, 2, 8] {
            let comparison = compare(bench, partitions).await;
            let ratio = comparison
                .load(bench, bench.rounds())
                .await
                .ratio(Load::per_second);
            bench.absolute(format!("activity_touch_in_{partitions}_partitions"), ratio);
        }
    }
}

async fn compare(bench: &Bench, partitions: u32) -> Comparison<Touch, ByHand> {
    let stage = Stage::set(bench).await;
    let visitors = Visitors(SmallRng::seed_from_u64(1));
    let ours = Touch(activity(&stage, partitions).await, visitors.clone());
    let theirs = ByHand(connect(&stage.redis).await, visitors);
    Comparison {
        figure: TOUCH,
        ours,
        theirs,
        names: ["activity_touch", "activity_by_hand"],
        ids: Ids::zipf(1_000),
        stage,
    }
}

/// `now()`.
#[derive(Clone)]
struct Now(Activity);

impl Side for Now {
    async fn hit(&mut self, page: &str) {
        assert!(self.0.now(page).await.unwrap().visitors > 0);
    }
}

#[derive(Clone)]
struct Get(MultiplexedConnection);

impl Side for Get {
    async fn hit(&mut self, page: &str) {
        let _: Option<u64> = redis::cmd("GET")
            .arg(page)
            .query_async(&mut self.0)
            .await
            .unwrap();
    }
}

/// Compares `now()` with a plain GET.
async fn measure_now(bench: &mut Bench) {
    if !bench.wants(&[NOW.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let (ours, theirs) = (
        Now(activity(&stage, PARTITIONS).await),
        Get(connect(&stage.redis).await),
    );
    let ids = Ids::even(1);
    let page = ids.of_task(0, 1).next().unwrap();
    redis::cmd("SET")
        .arg(page)
        .arg(VISITORS)
        .exec_async(&mut stage.probe.clone())
        .await
        .unwrap();
    let empty = stage.used().await;
    fill(&stage, &ours.0, page).await;
    let bytes = (stage.used().await - empty) / f64::from(VISITORS);
    bench.absolute("redis_bytes_per_visitor_of_14_bytes", bytes);
    assert!(ours.0.now(page).await.unwrap().visitors > u64::from(VISITORS) / 2);
    Comparison {
        figure: NOW,
        ours,
        theirs,
        names: ["activity_now", "get"],
        ids,
        stage,
    }
    .latency(bench)
    .await;
}

/// Adds visitors to every layer of the window, as if they had come over the last ten minutes.
async fn fill(stage: &Stage, activity: &Activity, page: &str) {
    const LAYERS: u32 = 200;
    let now_ms = stage.time().await as u64 * 1000;
    for layer in 0..LAYERS {
        test_hooks::set_time(Some(now_ms - 3_000 * u64::from(LAYERS - 1 - layer)));
        let visitors = (layer..VISITORS).step_by(LAYERS as usize);
        try_join_all(visitors.map(|visitor| activity.touch(page, format!("visitor-{visitor:06}"))))
            .await
            .unwrap();
    }
    test_hooks::set_time(None);
}

//! How long it takes to say who is here now, against a plain GET.

use counterfoil::{Activity, test_hooks};
use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;

use crate::bench::Bench;
use crate::figure::{Figure, Target::AtMost};
use crate::ids::Ids;
use crate::servers::connect;
use crate::sides::Side;
use crate::slices::compare::Comparison;
use crate::slices::stage::Stage;

const FIGURE: Figure = Figure {
    name: "activity_now_vs_get",
    what: "latency of now() of a page with 100,000 visitors in the window, one task, p50 : plain GET",
    target: AtMost(10.0),
};
const VISITORS: u32 = 100_000;

#[derive(Clone)]
struct Ours(Activity<MultiplexedConnection>);

impl Side for Ours {
    async fn hit(&mut self, page: &str) {
        assert!(self.0.now(page).await.unwrap().visitors.count() > 0);
    }
}

#[derive(Clone)]
struct Plain(MultiplexedConnection);

impl Side for Plain {
    async fn hit(&mut self, page: &str) {
        let _: Option<u64> = redis::cmd("GET").arg(page).query_async(&mut self.0).await.unwrap();
    }
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let (ours, theirs) = (Ours(stage.activity("now", 4).await), Plain(connect(&stage.redis).await));
    let ids = Ids::even(1);
    let page = ids.of_task(0, 1).next().unwrap();
    redis::cmd("SET").arg(page).arg(VISITORS).exec_async(&mut stage.probe.clone()).await.unwrap();
    let empty = stage.used().await;
    fill(&stage, &ours.0, page).await;
    let bytes = (stage.used().await - empty) / f64::from(VISITORS);
    bench.absolute("redis_bytes_per_visitor_of_14_bytes", bytes);
    assert!(ours.0.now(page).await.unwrap().visitors.count() > u64::from(VISITORS) / 2);
    Comparison { figure: FIGURE, ours, theirs, names: ["activity_now", "get"], ids, stage }.latency(bench).await;
}

/// Visitors in every layer of the window, as if they had come over the last ten minutes.
async fn fill(stage: &Stage, activity: &Activity<MultiplexedConnection>, page: &str) {
    const LAYERS: u32 = 200;
    let now_ms = stage.time().await as u64 * 1000;
    for layer in 0..LAYERS {
        test_hooks::set_time(Some(now_ms - 3_000 * u64::from(LAYERS - 1 - layer)));
        let visitors = (layer..VISITORS).step_by(LAYERS as usize);
        try_join_all(visitors.map(|visitor| activity.touch(page, format!("visitor-{visitor:06}")))).await.unwrap();
    }
    test_hooks::set_time(None);
}

//! The cost of namespaces with nothing pending.

use std::time::Duration;

use counterfoil::Family;
use redis::aio::MultiplexedConnection;

use crate::measuring::{Bench, Stage, info, number_after, process, redis_cpu};

/// Measures what namespaces with nothing pending cost a reconciler. It checks each one four times a
/// second, instead of the usual four times a minute, so that the cost is measurable.
pub async fn measure(bench: &mut Bench) {
    const LOOKS: f64 = 4.0;
    if !bench.wants(&["idle_namespaces"]) {
        return;
    }
    let (namespaces, seconds) = (bench.size(10_000, 1_000), bench.size(10u32, 4));
    let Stage {
        pair,
        mut probe,
        redis: _redis,
        ..
    } = Stage::set(bench).await;
    let own = std::process::id();
    let before = process::memory(own);
    for number in 0..namespaces {
        let family = Family::buffered(format!("shop-{number}"), "views")
            .sync_hits(50)
            .sync_time(Duration::from_secs(1));
        pair.open(family).await.unwrap();
    }
    bench.absolute(
        "idle_namespace_bytes",
        (process::memory(own) - before) / f64::from(namespaces),
    );
    let reconciler = pair.reconciler().start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (spent, server) = (process::cpu(own), redis_cpu(&mut probe).await);
    let calls = exists_calls(&mut probe).await;
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let calls = exists_calls(&mut probe).await - calls;
    let looks = f64::from(namespaces) * LOOKS * f64::from(seconds);
    bench.absolute("idle_namespaces", f64::from(namespaces));
    bench.absolute("idle_namespace_calls_per_look", calls / looks);
    let (ours, redis_s) = (
        (process::cpu(own) - spent) * 1e6 / calls,
        (redis_cpu(&mut probe).await - server) * 1e6 / calls,
    );
    bench.absolute("idle_namespace_us_per_look", ours);
    bench.absolute("idle_namespace_redis_us_per_look", redis_s);
    // at the default sync time of 60 s
    let looks_a_second = f64::from(namespaces) * LOOKS / 60.0;
    bench.absolute(
        "idle_namespaces_percent_of_a_core",
        ours * looks_a_second / 1e4,
    );
    bench.absolute(
        "idle_namespaces_percent_of_redis",
        redis_s * looks_a_second / 1e4,
    );
    reconciler.shutdown().await.unwrap();
}

async fn exists_calls(redis: &mut MultiplexedConnection) -> f64 {
    let calls = number_after(&info(redis, "commandstats").await, "cmdstat_exists:calls=");
    if calls.is_nan() { 0.0 } else { calls }
}

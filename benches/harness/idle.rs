//! What namespaces with nothing pending cost.

use std::time::Duration;

use counterfoil::Family;
use redis::aio::MultiplexedConnection;

use crate::measuring::{Bench, Stage, info, number_after, redis_cpu};

/// What namespaces with nothing pending cost a reconciler that looks at each four times a second, instead of the usual
/// four times a minute, so that there is something to measure.
pub async fn measure(bench: &mut Bench) {
    const LOOKS: f64 = 4.0;
    if !bench.wants(&["idle_namespaces"]) {
        return;
    }
    let (namespaces, seconds) = (bench.size(10_000, 1_000), bench.size(10u32, 4));
    let Stage { pair, mut probe, redis: _redis, .. } = Stage::set(bench).await;
    let before = memory();
    for number in 0..namespaces {
        let family = Family::buffered(format!("shop-{number}"), "views").sync_after(50, Duration::from_secs(1));
        pair.open(family.build().unwrap()).await.unwrap();
    }
    bench.absolute("idle_namespace_bytes", (memory() - before) / f64::from(namespaces));
    let reconciler = pair.reconciler().start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (process, server) = (cpu(), redis_cpu(&mut probe).await);
    let calls = exists_calls(&mut probe).await;
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let calls = exists_calls(&mut probe).await - calls;
    let looks = f64::from(namespaces) * LOOKS * f64::from(seconds);
    bench.absolute("idle_namespaces", f64::from(namespaces));
    bench.absolute("idle_namespace_calls_per_look", calls / looks);
    let (ours, redis_s) = ((cpu() - process) * 1e6 / calls, (redis_cpu(&mut probe).await - server) * 1e6 / calls);
    bench.absolute("idle_namespace_us_per_look", ours);
    bench.absolute("idle_namespace_redis_us_per_look", redis_s);
    // at the default sync time of 60 s
    let looks_a_second = f64::from(namespaces) * LOOKS / 60.0;
    bench.absolute("idle_namespaces_percent_of_a_core", ours * looks_a_second / 1e4);
    bench.absolute("idle_namespaces_percent_of_redis", redis_s * looks_a_second / 1e4);
    reconciler.shutdown().await.unwrap();
}

/// Seconds of CPU that this process has used; where the system does not say, not a number.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: Vec<f64> = after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse().ok()).collect();
    if ticks.len() == 2 { ticks.iter().sum::<f64>() / 100.0 } else { f64::NAN }
}

/// Bytes of memory that this process uses; where the system does not say, not a number.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<f64>().ok())
        .map_or(f64::NAN, |kb| kb * 1024.0)
}

async fn exists_calls(redis: &mut MultiplexedConnection) -> f64 {
    let calls = number_after(&info(redis, "commandstats").await, "cmdstat_exists:calls=");
    if calls.is_nan() { 0.0 } else { calls }
}

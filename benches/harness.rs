//! What the crate costs, measured beside what it is compared with, in one run: `./dev bench [--quick] [--json FILE]`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use counterfoil::{Counterfoil, Family, MysqlStore};
use redis::aio::ConnectionManager;
use testkit::{MysqlServer, RedisOptions, RedisServer};

#[derive(Parser)]
struct Args {
    /// A tenth of the work.
    #[arg(long)]
    quick: bool,
    /// Where to write the figures: one flat object, name: number.
    #[arg(long)]
    json: Option<PathBuf>,
    /// What cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

type Figures = BTreeMap<&'static str, f64>;

#[tokio::main]
async fn main() {
    let args = Args::parse();
    println!("{}", testkit::versions());
    let mut figures = Figures::new();
    idle_namespaces(&mut figures, if args.quick { 1_000 } else { 10_000 }).await;
    for (name, figure) in &figures {
        println!("{name:40} {figure:14.3}");
    }
    if let Some(path) = args.json {
        let mut json = String::from("{");
        for (place, (name, figure)) in figures.iter().enumerate() {
            write!(json, "{}\n  \"{name}\": {figure}", if place == 0 { "" } else { "," }).unwrap();
        }
        json.push_str("\n}\n");
        std::fs::write(path, json).expect("the figures are written");
    }
}

/// What namespaces with nothing pending cost a reconciler that looks at each four times a second, instead of the usual
/// four times a minute, so that there is something to measure.
async fn idle_namespaces(figures: &mut Figures, namespaces: u32) {
    const SECONDS: u64 = 10;
    const LOOKS: f64 = 4.0;
    let (redis, mysql) = (RedisServer::start(RedisOptions::volatile()).await, MysqlServer::start().await);
    let (_, pool) = mysql.database("bench").await;
    let store = MysqlStore::new(pool);
    store.create_tables().await.unwrap();
    let counterfoil = Counterfoil::new(redis.manager().await, store);
    let before = memory();
    for number in 0..namespaces {
        let family = Family::buffered(format!("shop-{number}"), "views").sync_after(50, Duration::from_secs(1));
        counterfoil.open(family.build().unwrap()).await.unwrap();
    }
    figures.insert("idle_namespace_bytes", (memory() - before) / f64::from(namespaces));
    let reconciler = counterfoil.reconciler().start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut probe = redis.manager().await;
    let (process, server) = (cpu(), redis_cpu(&mut probe).await);
    let calls = exists_calls(&mut probe).await;
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    let calls = exists_calls(&mut probe).await - calls;
    let looks = f64::from(namespaces) * LOOKS * SECONDS as f64;
    figures.insert("idle_namespaces", f64::from(namespaces));
    figures.insert("idle_namespace_calls_per_look", calls / looks);
    let (ours, redis_s) = ((cpu() - process) * 1e6 / calls, (redis_cpu(&mut probe).await - server) * 1e6 / calls);
    figures.insert("idle_namespace_us_per_look", ours);
    figures.insert("idle_namespace_redis_us_per_look", redis_s);
    // at the default sync time of 60 s
    let looks_a_second = f64::from(namespaces) * LOOKS / 60.0;
    figures.insert("idle_namespaces_percent_of_a_core", ours * looks_a_second / 1e4);
    figures.insert("idle_namespaces_percent_of_redis", redis_s * looks_a_second / 1e4);
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

async fn info(redis: &mut ConnectionManager, section: &str) -> String {
    redis::cmd("INFO").arg(section).query_async(redis).await.unwrap()
}

/// Seconds of CPU that Redis has used.
async fn redis_cpu(redis: &mut ConnectionManager) -> f64 {
    let info = info(redis, "cpu").await;
    let used = ["used_cpu_user:", "used_cpu_sys:"].map(|name| {
        info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap_or(f64::NAN)
    });
    used.iter().sum()
}

async fn exists_calls(redis: &mut ConnectionManager) -> f64 {
    let info = info(redis, "commandstats").await;
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_exists:calls=")?.split(',').next());
    calls.map_or(0.0, |calls| calls.parse().unwrap())
}

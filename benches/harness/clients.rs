//! The client packages, each beside plain commands of its library.

use std::path::Path;

use counterfoil::{Counterfoil, Family, MemoryStore};
use serde_json::Value;
use testkit::{Package, RedisOptions, RedisServer};

use crate::measuring::{AtLeast, AtMost, Bench, Figure};

const NAMESPACE: &str = "bench";

/// The packages with their libraries, and whether hits at a time share calls.
const PACKAGES: [(&str, &str, bool); 7] = [
    ("python", "redis-py", true),
    ("python", "asyncio", true),
    ("node", "ioredis", true),
    ("node", "node-redis", true),
    ("php", "phpredis", false),
    ("ruby", "redis", true),
    ("go", "go-redis", true),
];

pub async fn measure(bench: &mut Bench) {
    for (package, library, shares) in PACKAGES {
        let prefix = format!("clients_{package}_{library}");
        if !bench.wants(&[&prefix]) {
            continue;
        }
        let installed = match Package(package).install() {
            Ok(installed) => installed,
            Err(reason) => {
                println!("{package}: skipped, {reason}");
                continue;
            }
        };
        let found = measured(Package(package), &installed, library).await;
        let number = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
        let mut figure = |name: &str, what, target, value| {
            let name = format!("{prefix}_{name}").leak();
            bench.figure(Figure { name, what, target }, value);
        };
        figure(
            "add",
            "latency of a lone add, compared with a bare EVALSHA of the script",
            AtMost(1.2),
            number("add_p50_us") / number("evalsha_p50_us"),
        );
        figure(
            "later",
            "hits per second that the process sums, compared with HINCRBY one after the other",
            AtLeast(if package == "php" { 2.0 } else { 10.0 }),
            number("later_per_s") / number("hincrby_per_s"),
        );
        if shares {
            figure(
                "shared",
                "hits per second of 64 callers, compared with HINCRBY",
                AtLeast(2.0),
                number("add_64_per_s") / number("hincrby_64_per_s"),
            );
            let cpu = |name: &str| found["cpu_us_per_hit"][name].as_f64().unwrap_or(f64::NAN);
            figure(
                "shared_cpu",
                "CPU time of Redis for a hit of 64 callers, compared with HINCRBY",
                AtMost(0.5),
                cpu("add_64") / cpu("hincrby_64"),
            );
        }
        let latencies = number("add_p50_us") / number("hincrby_p50_us");
        bench.absolute(format!("{prefix}_add_compared_with_hincrby"), latencies);
        for (name, value) in found.as_object().into_iter().flatten() {
            if let Some(value) = value.as_f64() {
                bench.absolute(format!("{prefix}_{name}"), value);
            }
        }
    }
}

/// Runs the package's own measurement over a library, and returns its numbers.
async fn measured(package: Package, installed: &Path, library: &str) -> Value {
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    let counterfoil = Counterfoil::new(redis.manager().await, MemoryStore::new());
    let _ = counterfoil
        .open(Family::buffered(NAMESPACE, "views"))
        .await
        .unwrap();
    let mut command = package.dev("bench", installed);
    command.arg(redis.socket()).arg(NAMESPACE).arg(library);
    let ended = command.output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    let complaint = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success(),
        "{}: {printed}{complaint}",
        package.0
    );
    let last = printed.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{last}: {error}"))
}

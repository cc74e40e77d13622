//! The sizes that a pair supports.

use std::time::Duration;

use counterfoil::{Counterfoil, Family};
use redis::aio::MultiplexedConnection;
use sqlx::MySqlPool;
use testkit::{RedisOptions, RedisServer};
use tokio::time::sleep;

use super::cost::{Costs, names};
use super::{BUSY, SYNC, grouped};
use crate::cached;
use crate::daemon::{Daemon, program};
use crate::measuring::{Bench, Pending, Stage, info, number_after, process, redis_cpu};

/// Bytes of Redis, connections, and what a daemon costs.
pub struct Limits {
    /// A pending id.
    pub id_bytes: f64,
    cached_bytes: f64,
    /// An open family with four partitions, nothing pending.
    family_bytes: f64,
    /// A partition with one pending id, in addition.
    partition_bytes: f64,
    /// The connections of an application: to Redis, to MySQL.
    process: (f64, f64),
    daemon: Option<DaemonCost>,
}

struct DaemonCost {
    /// To Redis, to MySQL.
    connections: (f64, f64),
    /// Microseconds of Redis per idle family and second.
    redis_us: f64,
    /// Bytes of the process per family.
    bytes: f64,
}

impl Limits {
    pub async fn measure(bench: &Bench) -> Self {
        // 3/4 of a power of two: a table is half empty right after it grows
        let ids = bench.size(196_608, 49_152);
        let pending = Pending::set(bench).await;
        let before = used(&pending.probe).await;
        pending.fill(names(ids)).await;
        let id_bytes = (used(&pending.probe).await - before) / f64::from(ids);
        let saved: Vec<_> = (0..ids).map(|number| format!("item/{number:06}")).collect();
        let cached_bytes = cached::used_by(&Stage::set(bench).await, &saved).await / f64::from(ids);

        let (families, stage) = (bench.size(2_000, 200), Stage::set(bench).await);
        let before = stage.used().await;
        let mut all = Vec::new();
        for number in 0..families {
            let family = Family::buffered(format!("shop-{number}"), "views");
            all.push(stage.pair.open(family).await.unwrap());
        }
        let opened = stage.used().await;
        for counters in &all {
            let mut partitions = [false; 4];
            for name in names(1_000) {
                let partition = counters.family().partition_of(&name) as usize;
                if !std::mem::replace(&mut partitions[partition], true) {
                    let _ = counters.add(&name, 1).await.unwrap();
                }
                if partitions == [true; 4] {
                    break;
                }
            }
        }
        let counted = stage.used().await;
        Limits {
            id_bytes,
            cached_bytes,
            family_bytes: (opened - before) / f64::from(families),
            partition_bytes: (counted - opened) / f64::from(4 * families),
            process: connections_of_process(bench).await,
            daemon: DaemonCost::measure(bench, &stage, families).await,
        }
    }

    pub fn record(&self, bench: &mut Bench) {
        bench.absolute("scale_bytes_per_pending_id", self.id_bytes);
        bench.absolute("scale_bytes_per_cached_counter", self.cached_bytes);
        bench.absolute("scale_bytes_per_family", self.family_bytes);
        bench.absolute("scale_bytes_per_active_partition", self.partition_bytes);
    }

    /// Prints each size with the figure that limits it.
    pub fn print(&self, costs: &Costs) {
        let per_gb = |bytes: f64| 1e9 / bytes;
        println!("| size | limited by | measured | so a pair supports |\n|---|---|---|---|");
        let line = |size: &str, by: &str, measured: String, supports: String| {
            println!("| {size} | {by} | {measured} | {supports} |");
        };
        let bytes = |bytes: f64| format!("{} bytes each", grouped(bytes));
        let millions = |bytes: f64| format!("{:.1} million per GB", per_gb(bytes) / 1e6);
        line(
            "pending ids",
            "memory of Redis",
            bytes(self.id_bytes),
            millions(self.id_bytes),
        );
        line(
            "cached counters in use",
            "memory of Redis",
            bytes(self.cached_bytes),
            millions(self.cached_bytes),
        );
        let opened = format!("{} per GB", grouped(per_gb(self.family_bytes)));
        line(
            "families, open",
            "memory of Redis",
            bytes(self.family_bytes),
            opened,
        );
        let with_one = format!("{} per GB", grouped(per_gb(self.partition_bytes)));
        line(
            "partitions with pending hits",
            "memory of Redis",
            bytes(self.partition_bytes),
            with_one,
        );
        for (server, sync) in [("Redis", costs.redis.sync), ("MySQL", costs.mysql.sync)] {
            line(
                "partitions with hits in each sync time",
                &format!("CPU time of {server}"),
                format!("{sync:.0} us each"),
                format!(
                    "{} on {BUSY} of a core, with {SYNC} s",
                    grouped(BUSY * SYNC * 1e6 / sync)
                ),
            );
        }
        let (redis, mysql) = self.process;
        line(
            "processes that count",
            "maxclients, 10,000 by default",
            format!("{redis} connections to Redis, {mysql} to MySQL"),
            grouped(1e4 / redis),
        );
        let Some(daemon) = &self.daemon else {
            return println!(
                "daemons: skipped, the program is not built: cargo build --release -p counterfoil-cli"
            );
        };
        let (redis, mysql) = daemon.connections;
        line(
            "daemons",
            "max_connections, 151 by default",
            format!("{redis} connections to Redis, {mysql} to MySQL, at most 10"),
            format!("{:.0}", (151.0_f64 / 10.0).floor()),
        );
        let families = format!("{} on a tenth of a core", grouped(1e5 / daemon.redis_us));
        line(
            "families times daemons",
            "CPU time of Redis",
            format!("{:.1} us per second each", daemon.redis_us),
            families,
        );
        line(
            "families of a daemon",
            "its memory",
            bytes(daemon.bytes),
            format!("{} per GB", grouped(per_gb(daemon.bytes))),
        );
    }
}

/// Counts a hit in a process of the usual kind, and returns its connections.
async fn connections_of_process(bench: &Bench) -> (f64, f64) {
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    let mysql = bench.servers.mysql().await;
    let (database, pool) = mysql.database("bench").await;
    let mut probe = crate::measuring::connect(&redis).await;
    let before = (clients(&mut probe).await, sessions(&pool).await);
    let pair = Counterfoil::connect(&redis.url(), &mysql.url(&database))
        .await
        .unwrap();
    counterfoil::MysqlStore::new(&pool)
        .unwrap()
        .create_tables()
        .await
        .unwrap();
    let counters = pair
        .open(Family::buffered("bench", "connections"))
        .await
        .unwrap();
    let _ = counters.add("a", 1).await.unwrap();
    (
        clients(&mut probe).await - before.0,
        sessions(&pool).await - before.1,
    )
}

impl DaemonCost {
    /// Starts a daemon on a pair with so many families.
    async fn measure(bench: &Bench, stage: &Stage, families: u32) -> Option<Self> {
        let program = program()?;
        let mysql = bench.servers.mysql().await;
        let database: String = sqlx::query_scalar("SELECT DATABASE()")
            .fetch_one(&stage.pool)
            .await
            .unwrap();
        stage.pair.drain().await.unwrap();
        let mut probe = stage.probe.clone();
        let (empty_database, empty_pool) = mysql.database("bench").await;
        let empty_redis = RedisServer::start(RedisOptions::volatile()).await;
        counterfoil::MysqlStore::new(&empty_pool)
            .unwrap()
            .create_tables()
            .await
            .unwrap();
        let before = (clients(&mut probe).await, sessions(&stage.pool).await);
        let daemon = Daemon::start(&program, &stage.redis.url(), &mysql.url(&database));
        sleep(Duration::from_secs(bench.size(15, 5))).await;
        let seconds = bench.size(20, 10);
        let spent = redis_cpu(&mut probe).await;
        sleep(Duration::from_secs(seconds)).await;
        let redis_us = (redis_cpu(&mut probe).await - spent) * 1e6 / seconds as f64;
        let connections = (
            clients(&mut probe).await - before.0,
            sessions(&stage.pool).await - before.1,
        );
        let empty = Daemon::start(&program, &empty_redis.url(), &mysql.url(&empty_database));
        sleep(Duration::from_secs(3)).await;
        let bytes = process::memory(daemon.id()) - process::memory(empty.id());
        Some(DaemonCost {
            connections,
            redis_us: redis_us / f64::from(families),
            bytes: bytes / f64::from(families),
        })
    }
}

async fn used(probe: &MultiplexedConnection) -> f64 {
    number_after(&info(&mut probe.clone(), "memory").await, "used_memory:")
}

async fn clients(probe: &mut MultiplexedConnection) -> f64 {
    number_after(&info(probe, "clients").await, "connected_clients:")
}

async fn sessions(pool: &MySqlPool) -> f64 {
    let count = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()";
    sqlx::query_scalar::<_, i64>(count)
        .fetch_one(pool)
        .await
        .unwrap() as f64
}

//! The model against the nodes of a cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use counterfoil::{Cluster, Counterfoil, Durability, Family, MysqlStore};
use redis::aio::MultiplexedConnection;
use testkit::{RedisCluster, RedisOptions};
use tokio::time::sleep;

use super::cost::Redis;
use super::grouped;
use crate::measuring::{Acked, Bench, Counters, Ids, Load, Scripts, Side, connect, redis_cpu};

const NODES: usize = 3;
const PARTITIONS: u32 = 12;
/// The loads, from calls with few hits to calls with many.
const TASKS: [usize; 3] = [16, 256, 2048];
const IDS: u32 = 200_000;

/// A node under one load.
pub struct Check {
    tasks: usize,
    node: usize,
    hits: f64,
    calls: f64,
    rows: f64,
    pub predicted: f64,
    pub measured: f64,
}

impl Check {
    pub fn name(&self) -> String {
        format!("{}_tasks_node_{}", self.tasks, self.node)
    }
}

/// Counts acknowledged hits by partition.
#[derive(Clone)]
struct Tallied {
    acked: Acked,
    hits: Arc<[AtomicU64]>,
}

impl Side for Tallied {
    async fn hit(&mut self, id: &str) {
        let partition = self.acked.0.family().partition_of(id);
        self.acked.hit(id).await;
        self.hits[partition as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts on all nodes, brings the hits to MySQL, and compares the CPU time of each node.
pub async fn check(bench: &Bench, redis: &Redis) -> Vec<Check> {
    let cluster = RedisCluster::start(RedisOptions::volatile()).await;
    let mut probes = Vec::new();
    for node in 0..NODES {
        probes.push(connect(cluster.node(node)).await);
    }
    let idle = idle(bench, &mut probes).await;
    let mut checks = Vec::new();
    for tasks in TASKS {
        checks.extend(load(bench, &cluster, &mut probes, tasks, redis, &idle).await);
    }
    checks
}

/// Returns the share of a core that each node takes without load.
async fn idle(bench: &Bench, probes: &mut [MultiplexedConnection]) -> Vec<f64> {
    let (before, time) = (cpu(probes).await, bench.size(5.0, 2.0));
    sleep(Duration::from_secs_f64(time)).await;
    let after = cpu(probes).await;
    after
        .iter()
        .zip(before)
        .map(|(after, before)| (after - before) / time)
        .collect()
}

async fn cpu(probes: &mut [MultiplexedConnection]) -> Vec<f64> {
    let mut all = Vec::new();
    for probe in probes {
        all.push(redis_cpu(probe).await);
    }
    all
}

async fn calls(probes: &mut [MultiplexedConnection]) -> Vec<f64> {
    let mut all = Vec::new();
    for probe in probes {
        let calls = Scripts::so_far(probe).await.calls;
        all.push(if calls.is_nan() { 0.0 } else { calls });
    }
    all
}

async fn load(
    bench: &Bench,
    cluster: &RedisCluster,
    probes: &mut [MultiplexedConnection],
    tasks: usize,
    redis: &Redis,
    idle: &[f64],
) -> Vec<Check> {
    let (_, pool) = bench.servers.mysql().await.database("bench").await;
    let store = MysqlStore::new(&pool).unwrap();
    store.create_tables().await.unwrap();
    let urls = cluster.urls();
    let client = redis::cluster::ClusterClient::builder(urls.iter().map(String::as_str));
    let client = counterfoil::cluster_settings(client).build().unwrap();
    let pair = Counterfoil::new(Cluster::connect(client).await.unwrap(), store);
    let family = Family::buffered("bench", format!("load-{tasks}"))
        .partitions(PARTITIONS)
        .durability(Durability::Immediate);
    let counters: Counters = pair.open(family).await.unwrap();
    let nodes = nodes_of(cluster, &counters).await;

    let (before, calls_before, started) = (cpu(probes).await, calls(probes).await, Instant::now());
    let side = Tallied {
        acked: Acked(counters.clone()),
        hits: (0..PARTITIONS).map(|_| AtomicU64::new(0)).collect(),
    };
    let time = bench.size(Duration::from_secs(5), Duration::from_secs(1));
    Load::run(&side, &Ids::even(IDS), tasks, time, &mut probes[0].clone()).await;
    let counted = calls(probes).await;
    pair.drain().await.unwrap();
    let (after, seconds) = (cpu(probes).await, started.elapsed().as_secs_f64());

    let mut rows_of: HashMap<u32, f64> = HashMap::new();
    let ids = sqlx::query_scalar::<_, Vec<u8>>("SELECT CAST(id AS BINARY) FROM counterfoil_values");
    for id in ids.fetch_all(&pool).await.unwrap() {
        let id = String::from_utf8(id).unwrap();
        *rows_of
            .entry(counters.family().partition_of(&id))
            .or_default() += 1.0;
    }
    (0..NODES)
        .map(|node| {
            let own = || (0..PARTITIONS).filter(|partition| nodes[*partition as usize] == node);
            let hits = own()
                .map(|p| side.hits[p as usize].load(Ordering::Relaxed) as f64)
                .sum();
            let rows = own().filter_map(|partition| rows_of.get(&partition)).sum();
            let calls = counted[node] - calls_before[node];
            let us = calls * (redis.call + redis.partition)
                + hits * redis.id
                + rows * redis.row
                + own().count() as f64 * redis.sync;
            Check {
                tasks,
                node,
                hits,
                calls,
                rows,
                predicted: us / 1e6 + seconds * idle[node],
                measured: after[node] - before[node],
            }
        })
        .collect()
}

/// Returns the node of each partition.
async fn nodes_of(cluster: &RedisCluster, counters: &Counters) -> Vec<usize> {
    let mut nodes = Vec::new();
    for partition in 0..PARTITIONS {
        let ask = format!("CLUSTER KEYSLOT {{{}/{partition}}}", counters.family());
        let slot: u16 = cluster.node(0).run(&ask).await.unwrap();
        nodes.push(cluster.primary_of_slot(slot).await);
    }
    nodes
}

pub fn print(checks: &[Check]) {
    println!(
        "| tasks | node | hits | hits per call | rows | predicted | measured | predicted : measured |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for check in checks {
        let Check {
            tasks,
            node,
            hits,
            calls,
            rows,
            predicted,
            measured,
        } = check;
        println!(
            "| {tasks} | {node} | {} | {:.1} | {} | {predicted:.2} s | {measured:.2} s | {:.2} |",
            grouped(*hits),
            hits / calls,
            grouped(*rows),
            predicted / measured
        );
    }
}

//! A family that has many ids pending, and how long it takes to bring them to the database.

use std::time::{Duration, Instant};

use counterfoil::test_hooks::Partition;
use counterfoil::{Durability, Family};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use sqlx::MySqlPool;
use testkit::RedisServer;

use crate::bench::Bench;
use crate::servers::{Counters, Pair, connect};
use crate::sides::PlainHashes;

/// Pairs of one call while it is being filled.
const PAIRS: usize = 1000;

/// A Redis and a database with one family, and plain hashes beside it.
pub struct Stage {
    pub pair: Pair,
    pub pool: MySqlPool,
    pub counters: Counters,
    pub plain: PlainHashes,
    pub redis: RedisServer,
    pub probe: MultiplexedConnection,
}

impl Stage {
    pub async fn set(bench: &Bench) -> Self {
        let redis = bench.servers.redis().await;
        let (pair, pool) = bench.servers.pair_with_pool(&redis).await;
        // this Redis keeps nothing on disk
        let family = Family::buffered("bench", "pending").durability(Durability::Immediate).max_pending(10_000_000);
        let counters = pair.open(family.build().unwrap()).await.unwrap();
        let probe = connect(&redis).await;
        let plain = PlainHashes::new(connect(&redis).await, counters.clone());
        Stage { pair, pool, counters, plain, redis, probe }
    }

    /// Counts 1 for each of the ids.
    pub async fn fill(&self, ids: impl Iterator<Item = String>) {
        let family = self.counters.family();
        let mut waiting = vec![Vec::with_capacity(PAIRS); family.partitions() as usize];
        let mut full = Vec::new();
        for id in ids {
            let partition = family.partition_of(&id);
            let ids = &mut waiting[partition as usize];
            ids.push(id);
            if ids.len() == PAIRS {
                full.push((partition, std::mem::replace(ids, Vec::with_capacity(PAIRS))));
            }
            if full.len() == waiting.len() {
                join_all(full.drain(..).map(|(partition, ids)| self.add(partition, ids))).await;
            }
        }
        full.extend((0..).zip(waiting).filter(|(_, ids)| !ids.is_empty()));
        join_all(full.into_iter().map(|(partition, ids)| self.add(partition, ids))).await;
    }

    async fn add(&self, partition: u32, ids: Vec<String>) {
        let pairs: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
        let partition = self.partition(partition);
        let _ = partition.add(self.counters.family(), partition.unfenced(), pairs.len() as u64, pairs).await.unwrap();
    }

    pub fn partitions(&self) -> impl Iterator<Item = Partition<MultiplexedConnection>> {
        (0..self.counters.family().partitions()).map(|number| self.partition(number))
    }

    fn partition(&self, number: u32) -> Partition<MultiplexedConnection> {
        Partition::new(self.probe.clone(), self.counters.family(), number)
    }

    /// Runs a reconciler until nothing is pending any more; returns the seconds that it took.
    pub async fn flush(&self) -> f64 {
        let started = Instant::now();
        let reconciler = self.pair.reconciler().redis(connect(&self.redis).await).start().await.unwrap();
        while self.has_pending().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let seconds = started.elapsed().as_secs_f64();
        reconciler.shutdown().await.unwrap();
        seconds
    }

    async fn has_pending(&self) -> bool {
        let keys = ["buffer", "batch"].iter().flat_map(|kind| self.keys(kind));
        redis::cmd("EXISTS").arg(keys.collect::<Vec<_>>()).query_async::<u64>(&mut self.probe.clone()).await.unwrap()
            > 0
    }

    /// The keys of that kind of all partitions.
    pub fn keys(&self, kind: &str) -> impl Iterator<Item = String> {
        let family = self.counters.family();
        (0..family.partitions()).map(move |partition| format!("cf1:{{{family}/{partition}}}:{kind}"))
    }
}

//! The stage of a measurement: a Redis and a database, empty or with many ids pending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::test_hooks::Partition;
use counterfoil::{Counterfoil, Durability, Family, MysqlStore, Primary};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use sqlx::MySqlPool;
use testkit::{RedisOptions, RedisServer};

use super::bench::Bench;
use super::load::Side;
use super::servers::{Counters, Pair, connect, info, number_after};

/// A private Redis without persistence, and a new database with counterfoil's tables.
pub struct Stage {
    pub pair: Pair,
    /// A connection pool to the database, for the other side.
    pub pool: MySqlPool,
    pub redis: RedisServer,
    /// A connection for observing Redis.
    pub probe: MultiplexedConnection,
}

impl Stage {
    pub async fn set(bench: &Bench) -> Self {
        Stage::on(bench, RedisServer::start(RedisOptions::volatile()).await).await
    }

    /// Sets the stage on another Redis.
    pub async fn on(bench: &Bench, redis: RedisServer) -> Self {
        let (_, pool) = bench.servers.mysql().await.database("bench").await;
        let store = MysqlStore::new(&pool).unwrap();
        store.create_tables().await.unwrap();
        // as an application connects
        let primary = Primary::connect(redis.url()).await.unwrap();
        let pair = Counterfoil::new(primary, store);
        let probe = connect(&redis).await;
        Stage {
            pair,
            pool,
            redis,
            probe,
        }
    }

    /// Returns the server's time in Unix seconds.
    pub async fn time(&self) -> i64 {
        let time: (i64, i64) = redis::cmd("TIME")
            .query_async(&mut self.probe.clone())
            .await
            .unwrap();
        time.0
    }

    /// Runs a reconciler until nothing of the family is pending. Returns the elapsed seconds.
    pub async fn flush(&self, family: &Family) -> f64 {
        flush(&self.pair, &self.redis, &self.probe, family).await
    }

    /// Returns the number of bytes that Redis has allocated.
    pub async fn used(&self) -> f64 {
        number_after(
            &info(&mut self.probe.clone(), "memory").await,
            "used_memory:",
        )
    }

    /// Deletes everything in Redis and returns a connection for observing it.
    pub async fn emptied(&self) -> MultiplexedConnection {
        let mut probe = self.probe.clone();
        redis::cmd("FLUSHALL")
            .arg("SYNC")
            .exec_async(&mut probe)
            .await
            .unwrap();
        probe
    }
}

/// The number of pairs per call while the stage is filled.
const PAIRS: usize = 1000;

/// A stage with one family that has many pending ids, and with plain hashes beside it.
pub struct Pending {
    pub pair: Pair,
    pub pool: MySqlPool,
    pub counters: Counters,
    pub plain: PlainHashes,
    pub redis: RedisServer,
    pub probe: MultiplexedConnection,
}

impl Pending {
    pub async fn set(bench: &Bench) -> Self {
        Pending::on(Stage::set(bench).await, 4).await
    }

    /// Opens the family in so many partitions.
    pub async fn on(stage: Stage, partitions: u32) -> Self {
        let Stage {
            pair,
            pool,
            redis,
            probe,
        } = stage;
        // a private Redis never fails
        let family = Family::buffered("bench", "pending")
            .partitions(partitions)
            .durability(Durability::Immediate)
            .max_pending(10_000_000);
        let counters = pair.open(family).await.unwrap();
        let plain = PlainHashes::new(connect(&redis).await, counters.clone());
        Pending {
            pair,
            pool,
            counters,
            plain,
            redis,
            probe,
        }
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
                join_all(
                    full.drain(..)
                        .map(|(partition, ids)| self.add(partition, ids)),
                )
                .await;
            }
        }
        full.extend((0..).zip(waiting).filter(|(_, ids)| !ids.is_empty()));
        join_all(
            full.into_iter()
                .map(|(partition, ids)| self.add(partition, ids)),
        )
        .await;
    }

    async fn add(&self, partition: u32, ids: Vec<String>) {
        let pairs: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
        let partition = self.partition(partition);
        let _ = partition
            .add(
                self.counters.family(),
                partition.unfenced(),
                pairs.len() as u64,
                pairs,
            )
            .await
            .unwrap();
    }

    pub fn partitions(&self) -> impl Iterator<Item = Partition> {
        (0..self.counters.family().partitions()).map(|number| self.partition(number))
    }

    fn partition(&self, number: u32) -> Partition {
        Partition::new(self.probe.clone(), self.counters.family(), number)
    }

    /// Runs a reconciler until nothing is pending. Returns the elapsed seconds.
    pub async fn flush(&self) -> f64 {
        flush(&self.pair, &self.redis, &self.probe, self.counters.family()).await
    }

    /// Returns the keys of that kind in all partitions.
    pub fn keys(&self, kind: &str) -> impl Iterator<Item = String> {
        keys(self.counters.family(), kind)
    }
}

async fn flush(
    pair: &Pair,
    redis: &RedisServer,
    probe: &MultiplexedConnection,
    family: &Family,
) -> f64 {
    let pending: Vec<_> = ["buffer", "batch"]
        .iter()
        .flat_map(|kind| keys(family, kind))
        .collect();
    let started = Instant::now();
    let reconciler = pair
        .reconciler()
        .redis(connect(redis).await)
        .start()
        .await
        .unwrap();
    while redis::cmd("EXISTS")
        .arg(&pending)
        .query_async::<u64>(&mut probe.clone())
        .await
        .unwrap()
        > 0
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    reconciler.shutdown().await.unwrap();
    seconds
}

fn keys(family: &Family, kind: &str) -> impl Iterator<Item = String> {
    (0..family.partitions()).map(move |partition| format!("cf1:{{{family}/{partition}}}:{kind}"))
}

/// [`Plain`](super::load::Plain) on one hash per partition of a family, each with the ids of that
/// partition.
#[derive(Clone)]
pub struct PlainHashes {
    redis: MultiplexedConnection,
    counters: Counters,
    hashes: Arc<[String]>,
}

impl Side for PlainHashes {
    async fn hit(&mut self, id: &str) {
        let mut hit = redis::cmd("HINCRBY");
        let _: i64 = hit
            .arg(self.hash_of(id))
            .arg(id)
            .arg(1)
            .query_async(&mut self.redis)
            .await
            .unwrap();
    }
}

impl PlainHashes {
    pub fn new(redis: MultiplexedConnection, counters: Counters) -> Self {
        let hashes = (0..counters.family().partitions())
            .map(|number| format!("plain/{number}"))
            .collect();
        PlainHashes {
            redis,
            counters,
            hashes,
        }
    }

    pub fn hashes(&self) -> impl Iterator<Item = &str> {
        self.hashes.iter().map(String::as_str)
    }

    pub fn hash_of(&self, id: &str) -> &str {
        &self.hashes[self.counters.family().partition_of(id) as usize]
    }

    /// Counts 1 for each of the ids, many at a time.
    pub async fn fill(&self, ids: impl Iterator<Item = String>) {
        let mut ids = ids.peekable();
        while ids.peek().is_some() {
            let mut pipe = redis::pipe();
            for id in ids.by_ref().take(1000) {
                pipe.hincr(self.hash_of(&id), &id, 1).ignore();
            }
            pipe.exec_async(&mut self.redis.clone()).await.unwrap();
        }
    }

    pub async fn delete(&self) {
        redis::cmd("DEL")
            .arg(&*self.hashes)
            .exec_async(&mut self.redis.clone())
            .await
            .unwrap();
    }
}

//! A Redis and a database, with series and activity on both.

use std::time::Duration;

use counterfoil::{Activity, Durability, Family, Precision, Series};
use redis::aio::MultiplexedConnection;
use testkit::RedisServer;

use crate::bench::Bench;
use crate::servers::{Pair, connect, info, number_after};

pub struct Stage {
    pub pair: Pair,
    pub redis: RedisServer,
    pub probe: MultiplexedConnection,
}

impl Stage {
    pub async fn set(bench: &Bench) -> Self {
        let redis = bench.servers.redis().await;
        let pair = bench.servers.pair(&redis).await;
        let probe = connect(&redis).await;
        Stage { pair, redis, probe }
    }

    /// Of the default precisions, none of them kept.
    pub async fn series(&self, name: &str) -> Series<MultiplexedConnection> {
        let family = Family::series("bench", name).durability(Durability::Immediate);
        self.pair.open(family.build().unwrap()).await.unwrap()
    }

    /// Of the default window, in so many partitions, each result asked for.
    pub async fn activity(&self, name: &str, partitions: u32) -> Activity<MultiplexedConnection> {
        let family = Family::activity("bench", name).partitions(partitions);
        let family = family.durability(Durability::Immediate).cache_for(Duration::ZERO);
        self.pair.open(family.build().unwrap()).await.unwrap()
    }

    /// The server's time in Unix seconds.
    pub async fn time(&self) -> i64 {
        let time: (i64, i64) = redis::cmd("TIME").query_async(&mut self.probe.clone()).await.unwrap();
        time.0
    }

    /// All that Redis has allocated.
    pub async fn used(&self) -> f64 {
        number_after(&info(&mut self.probe.clone(), "memory").await, "used_memory:")
    }
}

/// How long the slices are; days are those of UTC.
pub fn length(precision: Precision) -> i64 {
    match precision {
        Precision::Seconds(seconds) => i64::from(seconds),
        _ => 86_400,
    }
}

/// The starts of so many slices, the last one the current one.
pub fn starts(precision: Precision, slices: i64, now: i64) -> impl Iterator<Item = i64> {
    let length = length(precision);
    (1 - slices..=0).map(move |back| (now.div_euclid(length) + back) * length)
}

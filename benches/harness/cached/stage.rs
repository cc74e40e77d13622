//! A Redis, a database, and a cached family on both.

use std::time::Duration;

use counterfoil::{CachedCounters, Changed, Durability, Family};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use sqlx::MySqlPool;
use testkit::RedisServer;

use crate::bench::Bench;
use crate::servers::{Pair, connect};
use crate::sides::Side;

pub type Cached = CachedCounters<MultiplexedConnection>;

pub struct Stage {
    pub pair: Pair,
    pub pool: MySqlPool,
    pub redis: RedisServer,
    pub probe: MultiplexedConnection,
}

impl Stage {
    pub async fn set(bench: &Bench) -> Self {
        let redis = bench.servers.redis().await;
        let (pair, pool) = bench.servers.pair_with_pool(&redis).await;
        let probe = connect(&redis).await;
        Stage { pair, pool, redis, probe }
    }

    /// A family in so many partitions. This Redis keeps nothing on disk.
    pub async fn family(&self, name: &str, partitions: u32) -> Cached {
        let family = Family::cached("bench", name)
            .partitions(partitions)
            .durability(Durability::Immediate)
            .save_after(Duration::from_millis(50));
        self.pair.open(family.build().unwrap()).await.unwrap()
    }

    /// Plain INCRBY over a connection of its own.
    pub async fn plain(&self) -> Plain {
        Plain(connect(&self.redis).await)
    }
}

/// `incr().await`.
#[derive(Clone)]
pub struct Incr(pub Cached);

impl Side for Incr {
    async fn hit(&mut self, id: &str) {
        let changed = self.0.incr(id, 1).await.unwrap();
        assert!(matches!(changed, Changed::Counted { .. }), "{id} was not counted: {changed:?}");
    }
}

/// What one does without counterfoil: an INCRBY for each hit, over one multiplexed connection.
#[derive(Clone)]
pub struct Plain(MultiplexedConnection);

impl Side for Plain {
    async fn hit(&mut self, id: &str) {
        let _: i64 = redis::cmd("INCRBY").arg(id).arg(1).query_async(&mut self.0).await.unwrap();
    }
}

/// Gives each counter 1, many at a time.
pub async fn fill(counters: &Cached, ids: &[String]) {
    for some in ids.chunks(2048) {
        let all = join_all(some.iter().map(|id| counters.incr(id, 1))).await;
        assert!(all.iter().all(Result::is_ok));
    }
}

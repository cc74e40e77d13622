//! The two sides of most comparisons: what one hit is on each.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;

use crate::servers::Counters;

/// Somebody who counts hits. Each task has a clone.
pub trait Side: Clone + Send + 'static {
    /// Counts 1 for the id, and returns when that is acknowledged.
    fn hit(&mut self, id: &str) -> impl Future<Output = ()> + Send;

    /// Does what is left to do after the last hit; its time counts.
    fn finish(self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// `add().await`.
#[derive(Clone)]
pub struct Acked(pub Counters);

impl Side for Acked {
    async fn hit(&mut self, id: &str) {
        let added = self.0.add(id, 1).await.unwrap();
        assert!(matches!(added, counterfoil::Added::Counted { .. }), "{id} was not counted: {added:?}");
    }
}

/// What one does without counterfoil: a HINCRBY for each hit on one hash, over one multiplexed connection.
#[derive(Clone)]
pub struct Plain {
    pub redis: MultiplexedConnection,
    pub hash: &'static str,
}

impl Side for Plain {
    async fn hit(&mut self, id: &str) {
        let _: i64 = redis::cmd("HINCRBY").arg(self.hash).arg(id).arg(1).query_async(&mut self.redis).await.unwrap();
    }
}

/// The same on as many hashes as a family has partitions, each with the ids of one.
#[derive(Clone)]
pub struct PlainHashes {
    redis: MultiplexedConnection,
    counters: Counters,
    hashes: Arc<[String]>,
}

impl Side for PlainHashes {
    async fn hit(&mut self, id: &str) {
        let mut hit = redis::cmd("HINCRBY");
        let _: i64 = hit.arg(self.hash_of(id)).arg(id).arg(1).query_async(&mut self.redis).await.unwrap();
    }
}

impl PlainHashes {
    pub fn new(redis: MultiplexedConnection, counters: Counters) -> Self {
        let hashes = (0..counters.family().partitions()).map(|number| format!("plain/{number}")).collect();
        PlainHashes { redis, counters, hashes }
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
        redis::cmd("DEL").arg(&*self.hashes).exec_async(&mut self.redis.clone()).await.unwrap();
    }
}

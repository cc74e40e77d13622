//! The two sides of most comparisons: what one hit is on each.

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

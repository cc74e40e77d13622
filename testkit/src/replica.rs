//! A server that follows another one.

use crate::redis::{RedisServer, until};

impl RedisServer {
    /// Makes it a replica of `primary`, which needs [`tcp`](crate::RedisOptions::tcp), and returns when it has all that
    /// is there. Replication is asynchronous: a write is acknowledged before the replica has it.
    ///
    /// # Panics
    ///
    /// Where the two do not come together.
    pub async fn replica_of(&self, primary: &RedisServer) {
        let replicate = format!("REPLICAOF 127.0.0.1 {}", primary.port());
        self.run::<()>(&replicate).await.unwrap_or_else(|e| self.fail(&format!("it does not become a replica: {e}")));
        until("a replica that has caught up", async || self.is_following().await).await;
    }

    /// Whether it takes writes, as far as it knows itself.
    pub async fn is_primary(&self) -> bool {
        self.replication().await.is_some_and(|told| told.contains("role:master"))
    }

    /// Whether it is a replica with a live link to its primary.
    pub async fn is_following(&self) -> bool {
        self.replication().await.is_some_and(|told| told.contains("master_link_status:up"))
    }

    async fn replication(&self) -> Option<String> {
        self.run("INFO replication").await.ok()
    }
}

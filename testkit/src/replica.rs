//! A server that follows another one.

use crate::redis::{RedisServer, until};

impl RedisServer {
    /// Makes the server a replica of `primary`, which needs [`tcp`](crate::RedisOptions::tcp).
    /// Returns when it has all existing data. Replication is asynchronous: a write is acknowledged
    /// before the replica has it.
    ///
    /// # Panics
    ///
    /// If the replica does not link to the primary.
    pub async fn replica_of(&self, primary: &RedisServer) {
        let replicate = format!("REPLICAOF 127.0.0.1 {}", primary.port());
        self.run::<()>(&replicate)
            .await
            .unwrap_or_else(|e| self.fail(&format!("it does not become a replica: {e}")));
        until("a replica that has caught up", async || {
            self.is_following().await
        })
        .await;
    }

    /// Returns whether the server reports that it is a primary.
    pub async fn is_primary(&self) -> bool {
        self.replication()
            .await
            .is_some_and(|told| told.contains("role:master"))
    }

    /// Returns whether the server is a replica with a live link to its primary.
    pub async fn is_following(&self) -> bool {
        self.replication()
            .await
            .is_some_and(|told| told.contains("master_link_status:up"))
    }

    async fn replication(&self) -> Option<String> {
        self.run("INFO replication").await.ok()
    }
}

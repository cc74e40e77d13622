//! Moving slots from node to node.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::RedisCluster;

impl RedisCluster {
    /// Moves slots to the primary `to` as in production, key by key, with a pause after each key.
    /// Meanwhile each of the two nodes has a part of the slot. Slots that `to` already has stay
    /// unchanged.
    ///
    /// # Panics
    ///
    /// If a node refuses a step, for example because of a failover in between.
    pub async fn move_slots(&self, slots: RangeInclusive<u16>, to: usize, pause: Duration) {
        for slot in slots {
            let from = self.primary_of_slot(slot).await;
            if from != to {
                self.move_slot(slot, from, to, pause).await;
            }
        }
    }

    async fn move_slot(&self, slot: u16, from: usize, to: usize, pause: Duration) {
        let (source, target) = (self.own(from).await.id, self.own(to).await.id);
        // the target comes first: once the source is migrating, it redirects clients, and the
        // target must accept them
        self.tell(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {source}"))
            .await;
        self.tell(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {target}"))
            .await;
        while let Some(key) = self.any_key(from, slot).await {
            self.move_key(&key, from, to).await;
            tokio::time::sleep(pause).await;
        }
        // the target comes first: otherwise no node would own the slot for a moment
        self.tell(to, &format!("CLUSTER SETSLOT {slot} NODE {target}"))
            .await;
        self.tell(from, &format!("CLUSTER SETSLOT {slot} NODE {target}"))
            .await;
        for other in self.primaries().await {
            if other != from && other != to {
                self.tell(other, &format!("CLUSTER SETSLOT {slot} NODE {target}"))
                    .await;
            }
        }
    }

    async fn any_key(&self, from: usize, slot: u16) -> Option<Vec<u8>> {
        let node = self.node(from);
        let keys: Vec<Vec<u8>> = match node.run(&format!("CLUSTER GETKEYSINSLOT {slot} 1")).await {
            Ok(keys) => keys,
            Err(e) => node.fail(&format!("the keys of slot {slot}: {e}")),
        };
        keys.into_iter().next()
    }

    async fn move_key(&self, key: &[u8], from: usize, to: usize) {
        let mut migrate = redis::cmd("MIGRATE");
        migrate
            .arg("127.0.0.1")
            .arg(self.node(to).port())
            .arg("")
            .arg(0)
            .arg(5000)
            .arg("KEYS")
            .arg(key);
        let moved = self.node(from).ask::<()>(&migrate).await;
        moved.unwrap_or_else(|e| {
            self.node(from)
                .fail(&format!("{}: {e}", String::from_utf8_lossy(key)))
        });
    }
}

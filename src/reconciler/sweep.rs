//! The search of families for hits that wait in Redis. It also deletes the cached counters that are
//! due.

use std::sync::Arc;

use crate::connection::each;
use crate::error::{Error, Result};
use crate::process::family::Opened;
use crate::process::work::{FamilySlot, PartitionId};
use crate::reconciler::flush::Flusher;
use crate::reconciler::step::caught;
use crate::scripts::bundle;
use crate::scripts::keys::Key;
use crate::scripts::partition::Partition;

/// The result of the search for hits in a family. Some may be found although it failed.
pub struct Swept {
    pub family: FamilySlot,
    pub pending: Vec<PartitionId>,
    pub result: Result<()>,
}

impl Flusher {
    /// Searches each family for partitions that have anything pending, or else for
    /// [strays](Self::strays).
    #[tracing::instrument(level = "debug", skip_all, fields(families = families.len()))]
    pub async fn sweep(&self, families: &[Arc<Opened>], strays: bool) -> Vec<Swept> {
        let sweep = async |opened: &Arc<Opened>| {
            let mut pending = Vec::new();
            let result = if strays {
                let found = caught(self.strays(opened)).await;
                found.map(|found| pending = found)
            } else {
                caught(self.sweep_one(opened, &mut pending)).await
            };
            Swept {
                family: opened.slot,
                pending,
                result,
            }
        };
        each(families, sweep).await
    }

    async fn sweep_one(&self, opened: &Opened, pending: &mut Vec<PartitionId>) -> Result<()> {
        let family = &opened.family;
        let all: Vec<_> = (0..family.partitions())
            .map(|number| self.partition(family, number))
            .collect();
        let tidied = match family.retention() {
            Some(retention) => self.delete_due(opened, retention, &all).await,
            None => Ok(()),
        };
        // a key of a wrong type or a node of a cluster does not hold up the hits beside it
        let is_retryable = tidied.as_ref().is_err_and(Error::is_retryable);
        if !is_retryable || self.shared.topology.is_cluster() {
            self.find_pending(opened.slot, &all, pending).await?;
        }
        tidied
    }

    /// Finds the partitions of the family that have anything pending, and returns an error of the
    /// others. Takes one command if the family is idle on one server.
    async fn find_pending(
        &self,
        family: FamilySlot,
        all: &[Partition],
        pending: &mut Vec<PartitionId>,
    ) -> Result<()> {
        let keys = all.iter().flat_map(|one| one.keys.pending());
        match self.has_any(keys).await {
            Ok(false) => return Ok(()),
            // the one server is unreachable
            Err(error) if error.is_retryable() => return Err(error),
            _ => {}
        }
        let mut result = Ok(());
        for (partition, found) in (0..).zip(each(all, Partition::has_pending).await) {
            match found {
                Ok(true) => pending.push((family, partition)),
                Ok(false) => {}
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Returns true if any of the keys exists. Takes one command; a cluster, which refuses keys of
    /// several slots, is assumed to have one.
    pub async fn has_any(&self, keys: impl Iterator<Item = Key>) -> Result<bool> {
        if self.shared.topology.is_cluster() {
            return Ok(true);
        }
        bundle::any_exists(&self.redis, &keys.collect::<Vec<_>>()).await
    }
}

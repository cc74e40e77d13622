//! The search of families for hits that wait in Redis. It also moves the slices that are over to
//! the buffers, and deletes the cached counters that are due.

use std::sync::Arc;

use crate::connection::each;
use crate::error::{Error, Result};
use crate::process::family::Opened;
use crate::reconciler::flush::{Flusher, PartitionId};
use crate::scripts::bundle;
use crate::scripts::keys::Key;
use crate::scripts::partition::Partition;

/// The result of the search for hits in a family. Some may be found although it failed.
pub struct Swept {
    pub family: u64,
    pub pending: Vec<PartitionId>,
    pub result: Result<()>,
}

impl Swept {
    /// Returns the result of a search that failed and found nothing.
    pub fn failed(family: u64, error: Error) -> Self {
        Swept {
            family,
            pending: Vec::new(),
            result: Err(error),
        }
    }
}

impl Flusher {
    /// Returns the partitions of each family that have anything pending.
    #[tracing::instrument(level = "debug", skip_all, fields(families = families.len()))]
    pub async fn sweep(&self, families: &[Arc<Opened>]) -> Vec<Swept> {
        let sweep = async |opened: &Arc<Opened>| {
            let Opened { family, number, .. } = &**opened;
            let all: Vec<_> = (0..family.partitions())
                .map(|partition| Partition::new(self.redis.clone(), family, partition))
                .collect();
            let mut swept = Swept {
                family: *number,
                pending: Vec::new(),
                result: self.tidy(opened, &all).await,
            };
            // a key of a wrong type or a node of a cluster does not hold up the hits beside it
            let is_retryable = swept.result.as_ref().is_err_and(Error::is_retryable);
            if !is_retryable || self.shared.topology.is_cluster() {
                let (pending, result) = self.pending_partitions(*number, &all).await;
                swept.pending = pending;
                swept.result = result.and(swept.result);
            }
            swept
        };
        each(families, sweep).await
    }

    /// Closes the slices that are over, and deletes the counters that are due.
    async fn tidy(&self, opened: &Opened, partitions: &[Partition]) -> Result<()> {
        if opened.family.keeps_slices() {
            self.close_slices(partitions).await?;
        }
        match opened.family.retention() {
            Some(retention) => self.delete_due(opened, retention, partitions).await,
            None => Ok(()),
        }
    }

    /// Returns the partitions of the family that have anything pending, and an error of the others;
    /// takes one command if it is idle on one server.
    async fn pending_partitions(
        &self,
        family: u64,
        all: &[Partition],
    ) -> (Vec<PartitionId>, Result<()>) {
        let (mut pending, mut result) = (Vec::new(), Ok(()));
        match self
            .has_any(all.iter().flat_map(|one| one.keys.pending()))
            .await
        {
            Ok(false) => return (pending, result),
            // the one server is unreachable
            Err(error) if error.is_retryable() => return (pending, Err(error)),
            _ => {}
        }
        for (partition, found) in (0..).zip(each(all, Partition::has_pending).await) {
            match found {
                Ok(true) => pending.push((family, partition)),
                Ok(false) => {}
                Err(error) => result = Err(error),
            }
        }
        (pending, result)
    }

    /// Returns true if any of the keys exists. Takes one command; a cluster is assumed to have one:
    /// it refuses keys of several slots once, and is then known as a cluster.
    pub(super) async fn has_any(&self, keys: impl Iterator<Item = Key>) -> Result<bool> {
        if self.shared.topology.is_cluster() {
            return Ok(true);
        }
        match bundle::any_exists(&self.redis, &keys.collect::<Vec<_>>()).await {
            Err(error) if bundle::crosses_slots(&error) => {
                self.shared.topology.found_cluster();
                Ok(true)
            }
            reply => reply,
        }
    }

    /// Moves the slices that are over, or all of them, to the buffers.
    async fn close_slices(&self, partitions: &[Partition]) -> Result<()> {
        if !self
            .has_any(partitions.iter().map(|one| one.keys.schedule()))
            .await?
        {
            return Ok(());
        }
        let close = async |partition: &Partition| {
            if self.closing_all {
                partition.close_all_slices().await
            } else {
                partition.close_slices().await.map(drop)
            }
        };
        each(partitions, close).await.into_iter().collect()
    }
}

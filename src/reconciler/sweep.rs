//! The search of families for hits that wait in Redis. It also deletes the cached counters that are
//! due.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::process::family::OpenFamily;
use crate::process::tasks::each;
use crate::process::work::{FamilySlot, PartitionId};
use crate::reconciler::flusher::Flusher;
use crate::reconciler::step::caught;
use crate::reconciler::{cached, upkeep};
use crate::scripts::partition::Partition;

/// The result of the search for hits in a family. Some may be found although it failed.
pub struct SweepResult {
    pub family: FamilySlot,
    pub pending: Vec<PartitionId>,
    pub result: Result<()>,
}

/// Searches each family for partitions that have anything pending, or else for
/// [strays](upkeep::strays).
#[tracing::instrument(level = "debug", skip_all, fields(families = families.len()))]
pub async fn sweep(
    flusher: &Flusher,
    families: &[Arc<OpenFamily>],
    strays: bool,
) -> Vec<SweepResult> {
    let sweep = async |opened: &Arc<OpenFamily>| {
        let mut pending = Vec::new();
        let result = if strays {
            let found = caught(upkeep::strays(flusher, opened)).await;
            found.map(|found| pending = found)
        } else {
            caught(sweep_one(flusher, opened, &mut pending)).await
        };
        SweepResult {
            family: opened.slot,
            pending,
            result,
        }
    };
    each(families, sweep).await
}

async fn sweep_one(
    flusher: &Flusher,
    opened: &OpenFamily,
    pending: &mut Vec<PartitionId>,
) -> Result<()> {
    let family = &opened.family;
    let all: Vec<_> = (0..family.partitions())
        .map(|number| flusher.partition(family, number))
        .collect();
    let tidied = match family.retention() {
        Some(retention) => cached::delete_due(flusher, opened, retention, &all).await,
        None => Ok(()),
    };
    // The deletion may have failed because of one key of a wrong type, or one node of a
    // cluster. Neither holds up hits in other partitions.
    let is_retryable = tidied.as_ref().is_err_and(Error::is_retryable);
    if !is_retryable || flusher.shared.topology.is_cluster() {
        find_pending(flusher, opened.slot, &all, pending).await?;
    }
    tidied
}

/// Finds the partitions of the family that have anything pending, and returns an error of the
/// others. On one server this takes a single call if the family is idle.
async fn find_pending(
    flusher: &Flusher,
    family: FamilySlot,
    all: &[Partition],
    pending: &mut Vec<PartitionId>,
) -> Result<()> {
    let keys = all.iter().flat_map(|one| one.keys.pending());
    match flusher.has_any(keys).await {
        Ok(false) => return Ok(()),
        // only a single server was asked, and it is unreachable
        Err(error) if error.is_retryable() => return Err(error),
        _ => {}
    }
    let mut result = Ok(());
    for (number, found) in (0..).zip(each(all, Partition::has_pending).await) {
        match found {
            Ok(true) => pending.push(PartitionId { family, number }),
            Ok(false) => {}
            Err(error) => result = Err(error),
        }
    }
    result
}

//! The drain: brings everything in Redis to the database, without a reconciler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::backoff::Retries;
use crate::error::{Error, Result};
use crate::family::ids::BatchId;
use crate::process::family::OpenFamily;
use crate::process::work::{PartitionId, WorkItem};
use crate::reconciler::flush::{self, FlushOutcome, RotateOutcome};
use crate::reconciler::flusher::Flusher;
use crate::reconciler::step::Step;
use crate::reconciler::sweep;
use crate::scripts::partition::buffered::Cut;

/// Brings everything in Redis to the database, also what clients with another number of
/// partitions have counted. A failing partition or family does not block others.
#[tracing::instrument(skip_all)]
pub async fn drain(flusher: &Flusher) -> Result<()> {
    let drained = drain_families(flusher, flusher.shared.opened(), false).await;
    let mut known = flusher.shared.opened();
    // a family that the database does not know yet had nothing to drain, and has no strays
    // either
    known.retain(|opened| opened.known().is_some());
    drained.and(drain_families(flusher, known, true).await)
}

/// Drains the partitions of the families, or with `strays` those beyond their number.
async fn drain_families(
    flusher: &Flusher,
    mut families: Vec<Arc<OpenFamily>>,
    strays: bool,
) -> Result<()> {
    let (mut retries, mut result) = (Retries::default(), Ok(()));
    loop {
        let mut pending = Vec::new();
        for swept in sweep::sweep(flusher, &std::mem::take(&mut families), strays).await {
            pending.extend(swept.pending);
            let Err(error) = swept.result else { continue };
            match retries.failed("drain", error) {
                Ok(()) => families.extend(flusher.shared.family(swept.family)),
                Err(error) => result = Err(error),
            }
        }
        let drained = drain_partitions(flusher, pending, Cut::Now, &mut retries).await;
        result = drained.and(result);
        if families.is_empty() {
            retries.succeeded();
            return result;
        }
        // once for all families, because an outage concerns all of them
        retries.pause().await;
    }
}

/// Cuts every partition of the family, and makes reconcilers delay further cuts for this time.
pub async fn hold(flusher: &Flusher, opened: &OpenFamily, time: Duration) -> Result<()> {
    let numbers = 0..opened.family.partitions();
    let partitions = numbers.map(|number| opened.partition(number)).collect();
    let (cut, mut retries) = (Cut::NowAndHold(time), Retries::default());
    let held = drain_partitions(flusher, partitions, cut, &mut retries).await;
    retries.succeeded();
    held
}

/// The partitions that may still hold a hit from before the drain, each with the batch that another
/// caller had cut when the drain first looked.
type Left = BTreeMap<PartitionId, Option<BatchId>>;

/// Brings what these partitions have pending now to the database.
async fn drain_partitions(
    flusher: &Flusher,
    partitions: Vec<PartitionId>,
    cut: Cut,
    retries: &mut Retries,
) -> Result<()> {
    let (mut left, mut stuck) = (Left::new(), Ok(()));
    left.extend(partitions.into_iter().map(|id| (id, None)));
    while !left.is_empty() {
        let (mut again, failed) = drain_once(flusher, &left, cut).await;
        let mut pauses = false;
        for (id, error) in failed {
            match retries.failed("drain", error) {
                Ok(()) => {
                    again.entry(id).or_insert(left[&id]);
                    pauses = true;
                }
                Err(error) => {
                    again.remove(&id);
                    stuck = Err(error);
                }
            }
        }
        if pauses {
            retries.pause().await;
        }
        left = again;
    }
    stuck
}

/// Takes one batch off each partition. Returns what is left, and the errors. If another caller has
/// cut the batch, hits from before the drain may have been counted after that cut, and wait in the
/// buffer. They are in the next batch, whoever cuts that: other callers may cut each batch.
async fn drain_once(flusher: &Flusher, left: &Left, cut: Cut) -> (Left, Vec<(PartitionId, Error)>) {
    let (mut held, mut again, mut failed) = (Vec::new(), Left::new(), Vec::new());
    let partitions: Vec<_> = left.keys().copied().collect();
    for (id, rotated) in flush::rotate(flusher, &partitions, cut).await {
        match rotated {
            Ok(RotateOutcome::Batch(batch)) => {
                let (first, found) = (left[&id], batch.cut.id);
                let is_next = cut == Cut::Now && first.is_some_and(|first| first != found);
                if !batch.cut.fresh && !is_next {
                    again.insert(id, first.or(Some(found)));
                }
                held.push(batch);
            }
            // a drain ignores due times and leases
            Ok(RotateOutcome::Nothing | RotateOutcome::Early(_) | RotateOutcome::Leased(_)) => {}
            Err(error) => failed.push((id, error)),
        }
    }
    while let Some(ready) = held.iter().map(|held| held.ready_at).max() {
        tokio::time::sleep_until(ready).await;
        for (id, end) in flush::flush(flusher, flush::next_flush(&mut held, |_| true)).await {
            match end {
                Ok(FlushOutcome::Done) => flusher.succeeded(Step::Work(WorkItem::Due(id))),
                Ok(FlushOutcome::Waits(batch)) => held.push(batch),
                Err(error) => failed.push((id, error)),
            }
        }
    }
    (again, failed)
}

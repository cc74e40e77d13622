//! The drain: brings everything in Redis to the database, without a reconciler.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::backoff::Retries;
use crate::error::{Error, Result};
use crate::process::family::Opened;
use crate::process::work::{Announced, PartitionId};
use crate::reconciler::flush::{Flushed, Flusher, Rotated};
use crate::reconciler::step::Step;
use crate::scripts::buffered::Cut;

impl Flusher {
    /// Brings everything in Redis to the database, also what clients with another number of
    /// partitions have counted. A failing partition or family does not block others.
    #[tracing::instrument(skip_all)]
    pub async fn drain(&self) -> Result<()> {
        let drained = self.drain_families(self.shared.opened(), false).await;
        let mut known = self.shared.opened();
        // one that the database does not know yet has nothing there either
        known.retain(|opened| opened.known().is_some());
        drained.and(self.drain_families(known, true).await)
    }

    /// Drains the partitions of the families, or else those beyond.
    async fn drain_families(&self, mut families: Vec<Arc<Opened>>, strays: bool) -> Result<()> {
        let (mut retries, mut result) = (Retries::default(), Ok(()));
        loop {
            let mut pending = Vec::new();
            for swept in self.sweep(&std::mem::take(&mut families), strays).await {
                pending.extend(swept.pending);
                let Err(error) = swept.result else { continue };
                match retries.failed("drain", error) {
                    Ok(()) => families.extend(self.shared.family(swept.family)),
                    Err(error) => result = Err(error),
                }
            }
            let drained = self.drain_partitions(pending, Cut::Now, &mut retries).await;
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
    pub async fn hold(&self, opened: &Opened, time: Duration) -> Result<()> {
        let numbers = 0..opened.family.partitions();
        let partitions = numbers.map(|number| (opened.slot, number)).collect();
        let (cut, mut retries) = (Cut::NowAndHold(time), Retries::default());
        let held = self.drain_partitions(partitions, cut, &mut retries).await;
        retries.succeeded();
        held
    }

    /// Brings what these partitions have pending now to the database.
    async fn drain_partitions(
        &self,
        mut left: Vec<PartitionId>,
        cut: Cut,
        retries: &mut Retries,
    ) -> Result<()> {
        let mut stuck = Ok(());
        while !left.is_empty() {
            let (mut again, failed) = self.drain_once(&left, cut).await;
            let mut pauses = false;
            for (id, error) in failed {
                match retries.failed("drain", error) {
                    Ok(()) => {
                        again.insert(id);
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
            left = again.into_iter().collect();
        }
        stuck
    }

    /// Takes one batch off each partition. Returns the partitions that may still hold a hit from
    /// before the call, because a batch cut by another caller says nothing about the buffer, and
    /// the errors.
    async fn drain_once(
        &self,
        partitions: &[PartitionId],
        cut: Cut,
    ) -> (BTreeSet<PartitionId>, Vec<(PartitionId, Error)>) {
        let (mut held, mut again, mut failed) = (Vec::new(), BTreeSet::new(), Vec::new());
        for (id, rotated) in self.rotate(partitions, cut).await {
            match rotated {
                Ok(Rotated::Held(batch)) => {
                    if !batch.cut.fresh {
                        again.insert(id);
                    }
                    held.push(batch);
                }
                // a drain ignores due times and leases
                Ok(Rotated::Nothing | Rotated::Early(_) | Rotated::Leased(_)) => {}
                Err(error) => failed.push((id, error)),
            }
        }
        while let Some(ready) = held.iter().map(|held| held.ready_at).max() {
            tokio::time::sleep_until(ready).await;
            for (id, end) in self.flush(self.next_flush(&mut held, |_| true)).await {
                match end {
                    Ok(Flushed::Done) => self.succeeded(Step::Work(Announced::Due(id))),
                    Ok(Flushed::Waits(batch)) => held.push(batch),
                    Err(error) => failed.push((id, error)),
                }
            }
        }
        (again, failed)
    }
}

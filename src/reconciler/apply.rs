//! The write of batches to the database: together, in parts, and repeated while the database is
//! unreachable.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::connection::backoff::{Backoff, GRACE, pause_unless_stopped, unless_stopped};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::process::work::{Announced, FamilySlot, PartitionId};
use crate::reconciler::flush::{Fetched, Flusher};
use crate::reconciler::step::Step;
use crate::store::{Applied, Progress};

/// The time after which a flush leaves the rest of its batches to a later one, so that others go
/// first. The ledger has the position.
const TURN: Duration = Duration::from_secs(3);

/// The time after which a write without a reply counts as failing. A lock ends it within a second
/// or two.
const SILENCE: Duration = Duration::from_secs(5);

impl Flusher {
    /// Applies the batches together, or family by family if one of them cannot be written. Returns
    /// the progress or the error of each batch.
    pub async fn apply(&self, fetched: &[Fetched]) -> Vec<Result<Progress>> {
        let all: Vec<_> = fetched.iter().collect();
        let mut results = self.apply_together(&all).await;
        let mut families: BTreeMap<FamilySlot, Vec<usize>> = BTreeMap::new();
        for (index, (held, _)) in fetched.iter().enumerate() {
            families.entry(held.id.0).or_default().push(index);
        }
        if families.len() < 2 {
            return results;
        }
        for mut indexes in families.into_values() {
            // an unreachable database concerns all families
            let concerns_one = |error: &Error| error.kind() != ErrorKind::Store;
            indexes.retain(|&index| results[index].as_ref().is_err_and(concerns_one));
            let some: Vec<_> = indexes.iter().map(|&index| all[index]).collect();
            let again = self.apply_together(&some).await;
            for (index, result) in indexes.into_iter().zip(again) {
                results[index] = result;
            }
        }
        results
    }

    /// Applies the batches together, part by part, until each is complete, one fails, or the
    /// [`TURN`] is over. Returns the progress of each, or its error.
    async fn apply_together(&self, batches: &[&Fetched]) -> Vec<Result<Progress>> {
        let (mut stopped, mut left) = (None, Vec::from_iter(0..batches.len()));
        let mut ends = vec![Ok(Progress::Repeated); batches.len()];
        let begun = Instant::now();
        while !left.is_empty() {
            let some: Vec<_> = left.iter().map(|&index| batches[index]).collect();
            let is_late =
                *self.stop.borrow() && stopped.get_or_insert_with(Instant::now).elapsed() > GRACE;
            let applied = if is_late {
                let late = "stopped before the rest of a batch was applied";
                Err(Error::store(late))
            } else {
                self.apply_repeated(&some).await
            };
            match applied {
                Ok(applied) => {
                    record(&applied);
                    self.warn_of_rejects(applied.rejected, applied.lost);
                    for (&index, progress) in left.iter().zip(applied.progress) {
                        if let Progress::Partial { left } = progress {
                            let family = &batches[index].1.family.family;
                            tracing::debug!(%family, left, "applied a part of a batch");
                        }
                        ends[index] = Ok(progress);
                    }
                }
                Err(error) => {
                    for &index in &left {
                        ends[index] = Err(error.clone());
                    }
                }
            }
            left.retain(|&index| matches!(ends[index], Ok(Progress::Partial { .. })));
            if begun.elapsed() >= TURN {
                break;
            }
        }
        ends
    }

    /// Applies the batches, and retries while the database is unreachable, until it is stopped.
    async fn apply_repeated(&self, batches: &[&Fetched]) -> Result<Applied> {
        let (mut pause, mut grace) = (Backoff::default(), GRACE);
        let (ids, batches): (Vec<_>, Vec<_>) = batches
            .iter()
            .map(|(held, batch)| (held.id, batch.clone()))
            .unzip();
        loop {
            let apply = self.shared.store.apply(&batches, self.max_rows);
            let apply = self.noting_silence(&ids, apply);
            match unless_stopped(&self.stop, grace, apply).await {
                Ok(applied) if applied.progress.len() == batches.len() => return Ok(applied),
                Ok(applied) => {
                    let (some, all) = (applied.progress.len(), batches.len());
                    return Err(Error::corrupt(format!(
                        "the store returned the progress of {some} of {all} batches"
                    )));
                }
                // a lock or a table that fails concerns one family, and the others do not wait for
                // it
                Err(error) if error.is_retryable() && error.kind() != ErrorKind::Busy => {
                    metrics::retried("apply");
                    self.failed_all(&ids, &error);
                    grace = Duration::ZERO;
                    if !pause_unless_stopped(&self.stop, pause.next()).await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the database. If it is silent, for example because its disk is full, the flushes
    /// count as failing meanwhile.
    async fn noting_silence<T>(&self, ids: &[PartitionId], reply: impl Future<Output = T>) -> T {
        let mut reply = pin!(reply);
        if let Ok(reply) = timeout(SILENCE, &mut reply).await {
            return reply;
        }
        let waited = SILENCE.as_secs();
        let silence = format!("batches are not written yet: no reply within {waited} s");
        self.failed_all(ids, &Error::store(silence));
        reply.await
    }

    /// Notes that the flush of each partition fails.
    fn failed_all(&self, ids: &[PartitionId], error: &Error) {
        for id in ids {
            self.failed(Step::Work(Announced::Due(*id)), error);
        }
    }

    fn warn_of_rejects(&self, rejected: u64, lost: u64) {
        if rejected + lost > 0
            && let Some(transactions) = self.failures.lock().count("rejects".to_owned())
        {
            tracing::warn!(
                rejected,
                lost,
                transactions,
                "the database refused rows: see counterfoil_rejects"
            );
        }
    }
}

fn record(applied: &Applied) {
    let is_complete = |progress: &&Progress| **progress == Progress::Complete;
    let complete = applied.progress.iter().filter(is_complete).count() as u64;
    ::metrics::counter!(metrics::BATCHES).increment(complete);
    ::metrics::counter!(metrics::ROWS).increment(applied.rows);
    ::metrics::counter!(metrics::REJECTS).increment(applied.rejected);
    ::metrics::counter!(metrics::WITHOUT_ROW).increment(applied.dropped);
    ::metrics::counter!(metrics::REJECTS_LOST).increment(applied.lost);
}

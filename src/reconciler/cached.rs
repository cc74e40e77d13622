//! Cached counters in Redis: marks those that a batch brought to the database as saved, and deletes those that are not used
//! any more (docs/protocol.md, section 4).

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::aio::ConnectionLike;
use tokio::time::Instant;

use crate::error::{ErrorKind, Result};
use crate::family::Retention;
use crate::metrics;
use crate::reconciler::flush::{CALLS, Flusher, Held};
use crate::scripts::cached::{Deleted, TICKET};
use crate::scripts::partition::Partition;
use crate::store::{Batch, Registered, Store};
use crate::writer::opened::Opened;

/// How many rows of a cached family are read back at a time, and how many of them one call marks as saved.
const READ_BACK: usize = 5_000;
const SAVES: usize = 500;
/// How many counters of a cached family one call deletes, and how many calls one look makes in a partition.
const DELETES: usize = 200;
const DELETE_CALLS: usize = 100;

impl<C, S> Flusher<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// Reads the rows of a complete batch back and marks its counters as saved.
    pub(super) async fn save(&self, held: &Held, batch: &Batch, retention: &Retention) -> Result<()> {
        let partition = held.partition(&self.redis);
        for deltas in batch.deltas.chunks(READ_BACK) {
            // an id that is not UTF-8 has no row
            let ids: Vec<_> = deltas.iter().filter_map(|(id, _)| std::str::from_utf8(id).ok()).collect();
            let values = self.read_back(&held.registered, &ids).await?;
            let rows: Vec<_> = deltas.iter().map(|(id, _)| (&**id, values.get(&**id).copied().flatten())).collect();
            let marks = rows.chunks(SAVES).map(|some| partition.saved(retention, batch.id, some));
            if try_join_all(marks).await?.contains(&None) {
                break;
            }
        }
        Ok(())
    }

    /// Reads rows. A value beyond i64 is left out, and holds up no other.
    async fn read_back<'i>(&self, family: &Registered, ids: &[&'i str]) -> Result<HashMap<&'i [u8], Option<i64>>> {
        let (mut found, mut left) = (HashMap::with_capacity(ids.len()), vec![ids]);
        while let Some(some) = left.pop() {
            match self.shared.store.rows(family, some).await {
                Ok(values) => found.extend(some.iter().map(|id| id.as_bytes()).zip(values)),
                Err(error) if error.kind() == ErrorKind::Range && some.len() > 1 => {
                    let (first, second) = some.split_at(some.len() / 2);
                    left.extend([second, first]);
                }
                Err(error) if error.kind() == ErrorKind::Range => {
                    tracing::warn!(family = %family.family, %error, "a cached counter leaves Redis");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Deletes the counters of a cached family that are due and have nothing pending.
    pub(super) async fn delete_due(
        &self,
        opened: &Opened,
        retention: &Retention,
        partitions: &[Partition<C>],
    ) -> Result<()> {
        let deletions = || self.deletions.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if deletions().get(&opened.number).is_some_and(|due| *due > now) || !self.has_scheduled(partitions).await? {
            return Ok(());
        }
        let mut next = Some(retention.retain.min(TICKET));
        for some in partitions.chunks(CALLS) {
            for (deleted, due) in try_join_all(some.iter().map(|one| delete_in(one, retention))).await? {
                ::metrics::counter!(metrics::DELETED, "family" => opened.label.clone()).increment(deleted);
                next = next.into_iter().chain(due).min();
            }
        }
        deletions().insert(opened.number, now + next.unwrap_or_default());
        Ok(())
    }
}

/// Deletes the counters of a partition that are due. Returns how many, and how long it is until the next one is.
async fn delete_in<C>(partition: &Partition<C>, retention: &Retention) -> Result<(u64, Option<Duration>)>
where
    C: ConnectionLike + Clone + 'static,
{
    let (mut done, mut next) = (0, None);
    for _ in 0..DELETE_CALLS {
        let (deleted, due) = partition.delete_due(retention, DELETES).await?;
        done += deleted.iter().filter(|deleted| **deleted == Deleted::Done).count() as u64;
        next = due;
        if due != Some(Duration::ZERO) {
            break;
        }
    }
    Ok((done, next))
}

//! Cached counters in Redis: marks counters as saved once their batch is in the database, and
//! deletes unused ones (docs/protocol.md, section 4).

use ::metrics::SharedString;
use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::family::kind::Retention;
use crate::metrics;
use crate::process::family::OpenFamily;
use crate::process::tasks::{GRACE, bisected, each, unless_stopped};
use crate::reconciler::flusher::{Flusher, Pass};
use crate::scripts::keys::Keys;
use crate::scripts::partition::Partition;
use crate::scripts::partition::cached::{DeleteOutcome, RowState};
use crate::store::{Batch, Mark, ReadFrom, Snapshot};

/// The number of rows of a cached family in one read-back, and of counters that one call marks as
/// saved.
const READ_BACK: usize = 5_000;
const SAVES: usize = 500;
/// The number of counters that one deletion call scans, and of such calls in a partition at a time.
const DELETES: usize = 200;
const DELETE_CALLS: usize = 100;

/// The number of deletion passes within `retain`: a counter stays for at most a quarter longer.
const PASSES: u32 = 4;

/// Reads the rows of a complete batch back, and marks its counters as saved.
pub async fn save(flusher: &Flusher, batch: &Batch) -> Result<()> {
    let partition = flusher.partition(&batch.family.family, batch.partition);
    for deltas in batch.deltas.chunks(READ_BACK) {
        let ids = deltas.iter().map(|(id, _)| &**id);
        let texts: Vec<_> = ids
            .clone()
            .filter_map(|id| std::str::from_utf8(id).ok())
            .collect();
        let mut rows = read_back(flusher, batch, &texts).await?;
        // an id that is not UTF-8 has no row
        let others = ids.filter(|id| std::str::from_utf8(id).is_err());
        rows.extend(others.map(|id| (id, RowState::Missing)));
        let marks = rows
            .chunks(SAVES)
            .map(|some| partition.saved(batch.id, some));
        if try_join_all(marks).await?.contains(&None) {
            break;
        }
    }
    Ok(())
}

/// Reads rows of a batch. A value beyond i64 does not block others.
async fn read_back<'i>(
    flusher: &Flusher,
    batch: &Batch,
    ids: &[&'i str],
) -> Result<Vec<(&'i [u8], RowState)>> {
    let mut found = Vec::with_capacity(ids.len());
    let is_beyond = |error: &Error| error.kind() == ErrorKind::Range;
    let family = &batch.family;
    let read = |some| rows_with(flusher, batch, some);
    for (some, values) in bisected(ids, is_beyond, read).await? {
        let rows = match values {
            Ok(values) => values.into_iter().map(RowState::from).collect(),
            Err(error) => {
                tracing::warn!(family = %family.family, error = %format_args!("{error:#}"), "a row's value is out of range, its cached counter is dropped from Redis");
                vec![RowState::Beyond]
            }
        };
        found.extend(some.iter().map(|id| id.as_bytes()).zip(rows));
    }
    Ok(found)
}

/// Reads rows, and checks by the ledger of the same moment that they contain the batch. The
/// server that replies may be another one than the one that took the batch, such as a second
/// node of Galera.
async fn rows_with(flusher: &Flusher, batch: &Batch, ids: &[&str]) -> Result<Vec<Option<i64>>> {
    let (store, id) = (&flusher.shared.store, batch.id);
    let ledger = [(batch.partition, id.incarnation)];
    let reading = store.read(&batch.family, ids, &ledger, ReadFrom::Primary);
    let Snapshot { values, ledger } = unless_stopped(&flusher.stop, GRACE, reading).await?;
    let complete = Mark {
        seq: id.seq,
        nonce: id.nonce,
        position: None,
    };
    let has_batch = |mark: &Mark| mark.seq > id.seq || *mark == complete;
    if ledger.first().is_some_and(has_batch) {
        return Ok(values);
    }
    let lacks = "the rows that were read back lack the batch";
    Err(Error::store(lacks))
}

/// Deletes the counters of a cached family that are due and have nothing pending.
pub async fn delete_due(
    flusher: &Flusher,
    opened: &OpenFamily,
    retention: &Retention,
    partitions: &[Partition],
) -> Result<()> {
    let started = Instant::now();
    let delete = async |(partition, number): &(&Partition, u32)| {
        let id = opened.partition(*number);
        let pass = flusher.passes.lock().get(&id).copied();
        let Pass { at, mut cursor } = pass.unwrap_or(Pass {
            at: started,
            cursor: 0,
        });
        if at > started {
            return Ok(());
        }
        let home = flusher.shared.home(&opened.family, *number);
        let deleted = delete_in(partition, &home, &opened.label, &mut cursor).await;
        let is_over = match &deleted {
            Ok(()) => cursor == 0,
            Err(error) => !error.is_retryable(),
        };
        let next = if is_over {
            Pass {
                at: started + retention.retain / PASSES,
                cursor: 0,
            }
        } else {
            Pass { at, cursor }
        };
        flusher.passes.lock().insert(id, next);
        deleted
    };
    let partitions: Vec<_> = partitions.iter().zip(0..).collect();
    each(&partitions, delete).await.into_iter().collect()
}

/// Deletes counters of a partition that are due, from the cursor on, which is 0 at the end.
async fn delete_in(
    partition: &Partition,
    home: &Keys,
    label: &SharedString,
    cursor: &mut u64,
) -> Result<()> {
    for _ in 0..DELETE_CALLS {
        let (deleted, next) = partition.delete_due(home, *cursor, DELETES).await?;
        let is_done = |deleted: &&DeleteOutcome| **deleted == DeleteOutcome::Done;
        let done = deleted.iter().filter(is_done).count();
        metrics::count(metrics::DELETED, label, done as u64);
        *cursor = next;
        if next == 0 {
            break;
        }
    }
    Ok(())
}

//! Deltas that the database refused: kept with their batch and the reason, so that they never block
//! the others (docs/protocol.md, section 1, promise 5).

use std::time::{Duration, SystemTime};

use sqlx::mysql::MySqlRow;
use sqlx::{MySqlPool, Row};

use super::json::JsonRows;
use super::session::Transaction;
use crate::family::Family;
use crate::store::{Batch, Incarnation};

/// A delta that the database refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reject {
    /// The number of the reject. Numbers ascend, with gaps.
    pub number: u64,
    /// The family's namespace.
    pub namespace: String,
    /// The family's name.
    pub family: String,
    /// The counter's id. A longer one is cut at 255 bytes, and the reason states it.
    pub id: String,
    /// The delta that was not added.
    pub delta: i64,
    /// The partition that it came from.
    pub partition: u32,
    /// The batch's incarnation.
    pub incarnation: Incarnation,
    /// The batch's sequence number.
    pub seq: u64,
    /// The reason, in most cases the server's own words. At most 1024 characters.
    pub reason: String,
    /// The time of the reject, by the database's clock.
    pub at: SystemTime,
}

/// The batch that a delta came in. Together with the id it identifies a reject, so that each is
/// kept once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) family: u64,
    pub(super) partition: u32,
    pub(super) incarnation: u64,
    pub(super) seq: u64,
}

impl Origin {
    pub(super) fn batch(batch: &Batch) -> Self {
        let Batch {
            family,
            partition,
            id,
            ..
        } = batch;
        Origin {
            family: family.number,
            partition: *partition,
            incarnation: id.incarnation.0,
            seq: id.seq,
        }
    }
}

/// A delta about to become a [`Reject`].
pub(super) struct Rejected<'b> {
    pub(super) origin: Origin,
    pub(super) id: &'b [u8],
    pub(super) delta: i64,
    pub(super) reason: String,
}

/// The maximum number of rejects that a transaction locks.
pub(super) const MOST: usize = 10_000;

/// The maximum number of rows in a statement. A reason may have some thousand bytes.
const CHUNK: usize = 500;

/// The beginning of the reason of a discarded reject.
pub(super) const DISCARDED: &str = "discarded: ";

/// The reason for an id that a client in another language wrote.
pub(super) const NOT_UTF8: &str = "the id is not UTF-8";

const ID_BYTES: usize = 255;
const REASON_CHARS: usize = 1024;

/// Inserts the rejects, except those that exist.
pub(super) async fn write(
    transaction: &mut Transaction,
    rejected: &[Rejected<'_>],
) -> Result<(), sqlx::Error> {
    const WRITE: &str = "INSERT INTO counterfoil_rejects (family, partition_no, incarnation, seq, id, delta, reason) \
         SELECT j.family, j.partition_no, j.incarnation, j.seq, UNHEX(j.id), j.delta, \
         CONVERT(UNHEX(j.reason) USING utf8mb4) FROM JSON_TABLE(?, '$[*]' COLUMNS(\
         family INT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR, \
         partition_no INT UNSIGNED PATH '$[1]' ERROR ON EMPTY ERROR ON ERROR, \
         incarnation BIGINT UNSIGNED PATH '$[2]' ERROR ON EMPTY ERROR ON ERROR, \
         seq BIGINT UNSIGNED PATH '$[3]' ERROR ON EMPTY ERROR ON ERROR, \
         id VARCHAR(510) PATH '$[4]' ERROR ON EMPTY ERROR ON ERROR, \
         delta BIGINT PATH '$[5]' ERROR ON EMPTY ERROR ON ERROR, \
         reason VARCHAR(8192) PATH '$[6]' ERROR ON EMPTY ERROR ON ERROR)) AS j \
         ON DUPLICATE KEY UPDATE number = number";
    for chunk in rejected.chunks(CHUNK) {
        let mut rows = JsonRows::default();
        for Rejected {
            origin,
            id,
            delta,
            reason,
        } in chunk
        {
            let row = rows.row();
            row.number(origin.family)
                .number(origin.partition)
                .number(origin.incarnation)
                .number(origin.seq);
            row.bytes(fitting(id));
            row.number(delta);
            row.bytes(short(reason).as_bytes());
        }
        transaction
            .execute(sqlx::query(WRITE).bind(rows.finish()))
            .await?;
    }
    Ok(())
}

/// Cuts the reason to its column.
pub(super) fn short(reason: &str) -> String {
    reason.chars().take(REASON_CHARS).collect()
}

/// Returns `true` if the id may have been cut, so that it could be another counter's: it was too
/// long, or not UTF-8.
pub(super) fn is_cut(family: &Family, kept: &[u8], reason: &str) -> bool {
    let was_too_long = || reason.starts_with(&format!("{family}: id "));
    reason == NOT_UTF8 || kept.len() > ID_BYTES - 4 && was_too_long()
}

/// Cuts the id to its column, between two letters.
fn fitting(id: &[u8]) -> &[u8] {
    match std::str::from_utf8(id) {
        Ok(text) => &id[..text.floor_char_boundary(ID_BYTES)],
        Err(_) => &id[..id.len().min(ID_BYTES)],
    }
}

/// Returns the numbers, each once, in the order in which all transactions lock rejects.
pub(super) fn in_order(numbers: &[u64]) -> Vec<u64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// The decision about a locked reject.
pub(super) struct Decision<'d> {
    pub(super) number: u64,
    /// `true` if the reject is neither listed nor applied again.
    pub(super) is_done: bool,
    pub(super) reason: &'d str,
}

/// Writes the decisions to their rejects.
pub(super) async fn decide(
    transaction: &mut Transaction,
    decisions: impl IntoIterator<Item = Decision<'_>>,
) -> Result<(), sqlx::Error> {
    const DECIDE: &str = "UPDATE JSON_TABLE(?, '$[*]' COLUMNS(\
         number BIGINT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR, \
         done INT PATH '$[1]' ERROR ON EMPTY ERROR ON ERROR, \
         reason VARCHAR(8192) PATH '$[2]' ERROR ON EMPTY ERROR ON ERROR)) AS j \
         STRAIGHT_JOIN counterfoil_rejects AS r ON r.number = j.number \
         SET r.applied_at = IF(j.done = 1, CURRENT_TIMESTAMP(3), NULL), \
         r.reason = CONVERT(UNHEX(j.reason) USING utf8mb4)";
    let mut rows = JsonRows::default();
    for Decision {
        number,
        is_done,
        reason,
    } in decisions
    {
        rows.row()
            .number(number)
            .number(u8::from(is_done))
            .bytes(short(reason).as_bytes());
    }
    transaction
        .execute(sqlx::query(DECIDE).bind(rows.finish()))
        .await
        .map(drop)
}

/// A query for the open rejects.
macro_rules! open_rejects {
    ($and:literal) => {
        concat!(
            "SELECT r.number, f.namespace, f.name, r.id, r.delta, r.partition_no, r.incarnation, r.seq, \
             r.reason, CAST(UNIX_TIMESTAMP(r.rejected_at) * 1000 AS UNSIGNED) \
             FROM counterfoil_rejects AS r JOIN counterfoil_families AS f ON f.number = r.family \
             WHERE r.applied_at IS NULL ",
            $and
        )
    };
}

/// Returns up to `limit` open rejects with numbers above `after`, ascending.
pub(super) async fn read(
    pool: &MySqlPool,
    after: u64,
    limit: u64,
) -> Result<Vec<Reject>, sqlx::Error> {
    const READ: &str = open_rejects!("AND r.number > ? ORDER BY r.number LIMIT ?");
    sqlx::query(READ)
        .bind(after)
        .bind(limit)
        .fetch_all(pool)
        .await?
        .iter()
        .map(reject)
        .collect()
}

/// Returns the latest `limit` open rejects, descending.
pub(super) async fn latest(pool: &MySqlPool, limit: u64) -> Result<Vec<Reject>, sqlx::Error> {
    const LATEST: &str = open_rejects!("ORDER BY r.number DESC LIMIT ?");
    sqlx::query(LATEST)
        .bind(limit)
        .fetch_all(pool)
        .await?
        .iter()
        .map(reject)
        .collect()
}

fn reject(row: &MySqlRow) -> Result<Reject, sqlx::Error> {
    let text = |index| {
        row.try_get::<Vec<u8>, usize>(index)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Reject {
        number: row.try_get(0)?,
        namespace: text(1)?,
        family: text(2)?,
        id: text(3)?,
        delta: row.try_get(4)?,
        partition: row.try_get(5)?,
        incarnation: Incarnation(row.try_get(6)?),
        seq: row.try_get(7)?,
        reason: row.try_get(8)?,
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(row.try_get(9)?),
    })
}

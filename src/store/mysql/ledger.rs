//! The ledger: the last batch of each partition and incarnation, with its progress
//! (docs/protocol.md, section 3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::families;
use super::fault::store;
use super::json::{self, ID, INPUT, U64, hex};
use super::session::{Database, Session};
use super::statement::Statement;
use crate::error::Result;
use crate::store::ledger::{BatchPart, LedgerKey};
use crate::store::{
    Batch, DroppedHits, FamilyNumber, Incarnation, LedgerRow, Mark, Nonce, Registration,
};

/// The maximum number of rows in a statement.
const CHUNK: usize = 10_000;

/// A [`Mark`] of the ledger `l` as text, empty if the row does not exist: the number, the nonce,
/// and the position in hexadecimal digits. A reply costs more with each of its columns.
pub const MARK: &str = "CAST(CONCAT_WS(' ', l.seq, l.nonce, HEX(l.position)) AS CHAR)";

/// The columns of a key and a mark in a statement's JSON; the position in hexadecimal digits, or
/// `-` if there is none.
const ROW: [(&str, &str); 6] = [
    ("family", U64),
    ("partition_no", U64),
    ("incarnation", U64),
    ("seq", U64),
    ("nonce", U64),
    ("position", ID),
];

/// The ledger, looked up by the given keys.
fn by_key() -> String {
    format!(
        "counterfoil_ledger AS l FORCE INDEX (PRIMARY) ON l.family = {INPUT}.family \
         AND l.partition_no = {INPUT}.partition_no AND l.incarnation = {INPUT}.incarnation"
    )
}

/// The rows that a transaction which applies batches has locked.
pub struct LockedRows {
    /// The ledger rows of the batches that exist.
    pub known: BTreeMap<LedgerKey, Mark>,
    /// A family of the batches that the database does not have under its number.
    pub unregistered: Option<Arc<Registration>>,
}

/// Locks the ledger rows of the batches, in the order of the primary key, and the rows of their
/// families against a removal.
pub async fn lock(
    transaction: &mut Session,
    batches: &[Arc<Batch>],
) -> Result<LockedRows, sqlx::Error> {
    let lock = Statement::new(format!(
        "SELECT CAST({INPUT}.pos AS UNSIGNED), {MARK}, ({}) FROM {} LEFT JOIN {} FOR UPDATE",
        families::holder_of(&format!("{INPUT}.family"), families::SHARED),
        json::derived_table(ROW[..3].iter().copied()),
        by_key()
    ));
    let mut keys: Vec<_> = batches.iter().map(|batch| batch.ledger_key()).collect();
    keys.sort_unstable();
    keys.dedup();
    let (mut known, mut holders) = (BTreeMap::new(), BTreeMap::<FamilyNumber, Vec<u8>>::new());
    for some in keys.chunks(CHUNK) {
        let rows: Vec<(u64, Option<String>, Option<Vec<u8>>)> =
            transaction.fetch(lock.clone().bind_rows(some)).await?;
        let by_position = rows
            .into_iter()
            .map(|(at, text, holder)| (at, (text, holder)))
            .collect();
        let found = json::by_position(by_position, some.len())?;
        for (key, (text, holder)) in some.iter().zip(found) {
            known.extend(mark(text)?.map(|mark| (*key, mark)));
            holders.extend(holder.map(|holder| (key.0, holder)));
        }
    }
    let unregistered = batches.iter().map(|batch| &batch.family).find(|family| {
        let holder = holders.get(&family.number);
        !holder.is_some_and(|holder| families::is_holder(family, holder))
    });
    Ok(LockedRows {
        known,
        unregistered: unregistered.cloned(),
    })
}

/// Writes the rows. Rows that are not `known` are inserted plainly: a duplicate key is a conflict
/// with another transaction, after which this one starts again.
pub async fn write(
    transaction: &mut Session,
    known: &BTreeMap<LedgerKey, Mark>,
    marks: &BTreeMap<LedgerKey, Mark>,
) -> Result<(), sqlx::Error> {
    let input = json::table(ROW);
    let position = format!("UNHEX(NULLIF({INPUT}.position, '-'))");
    // NULL means complete, so a position that cannot be read must not become NULL. Such a row is
    // left out, and the check of the number of rows fails.
    let is_read = format!("({INPUT}.position = '-' OR {position} IS NOT NULL)");
    let update = format!(
        "UPDATE {input} STRAIGHT_JOIN {} SET l.seq = {INPUT}.seq, l.nonce = {INPUT}.nonce, \
         l.position = {position}, l.applied_at = CURRENT_TIMESTAMP WHERE {is_read}",
        by_key()
    );
    let insert = format!(
        "INSERT INTO counterfoil_ledger (family, partition_no, incarnation, seq, nonce, position, applied_at) \
         SELECT family, partition_no, incarnation, seq, nonce, {position}, CURRENT_TIMESTAMP \
         FROM {input} WHERE {is_read}"
    );
    let (updates, inserts): (Vec<_>, Vec<_>) =
        marks.iter().partition(|(key, _)| known.contains_key(key));
    for (text, rows) in [(update, updates), (insert, inserts)] {
        let statement = Statement::new(text);
        for some in rows.chunks(CHUNK) {
            let write = statement.clone().bind_rows(some.iter().map(row));
            json::check_all(some.len(), transaction.execute(write).await?)?;
        }
    }
    Ok(())
}

/// Returns the key and mark as [`ROW`] describes them.
fn row((key, mark): &(&LedgerKey, &Mark)) -> (FamilyNumber, u32, Incarnation, u64, Nonce, String) {
    let &(family, partition, incarnation) = *key;
    let position = mark.position.as_ref().map_or("-".to_owned(), hex);
    (
        family,
        partition,
        incarnation,
        mark.seq,
        mark.nonce,
        position,
    )
}

/// Records the batches that the database has lost, in the ledger row of the batch that found the
/// loss. It is a statement of its own, because a loss is rare, and another column of [`write`]
/// would cost every batch.
pub async fn record_lost(
    transaction: &mut Session,
    steps: &[BatchPart<'_>],
) -> Result<(), sqlx::Error> {
    let statement = Statement::new(format!(
        "UPDATE {} STRAIGHT_JOIN {} SET l.lost_batches = l.lost_batches + {INPUT}.lost, \
         l.lost_at = CURRENT_TIMESTAMP",
        json::table([ROW[0], ROW[1], ROW[2], ("lost", U64)]),
        by_key()
    ));
    let rows: Vec<_> = steps
        .iter()
        .filter(|step| step.lost > 0)
        .map(|step| {
            let (family, partition, incarnation) = step.batch.ledger_key();
            (family, partition, incarnation, step.lost)
        })
        .collect();
    for some in rows.chunks(CHUNK) {
        let update = statement.clone().bind_rows(some);
        json::check_all(some.len(), transaction.execute(update).await?)?;
    }
    Ok(())
}

/// Records the hits that were dropped from a partition, in the row of the incarnation that ended,
/// which proved that Redis was set back.
pub async fn record_dropped(database: &Database, dropped: &DroppedHits) -> Result<()> {
    let update = Statement::new(
        "UPDATE counterfoil_ledger SET dropped_hits = dropped_hits + ?, \
         dropped_ids = dropped_ids + ?, dropped_at = CURRENT_TIMESTAMP \
         WHERE family = ? AND partition_no = ? AND incarnation = ?",
    )
    .bind(dropped.hits)
    .bind(dropped.ids)
    .bind(dropped.family)
    .bind(dropped.partition)
    .bind(dropped.incarnation.0);
    let failed = "dropped hits were not recorded";
    database.transact(failed, update).await.map(drop)
}

/// Returns the rows of these families.
pub async fn read(database: &Database, families: &[FamilyNumber]) -> Result<Vec<LedgerRow>> {
    const FAILED: &str = "the ledger was not read";
    let distinct: BTreeSet<_> = families.iter().collect();
    let select = Statement::new(format!(
        "SELECT l.family, l.partition_no, l.incarnation, {MARK} FROM {} \
         STRAIGHT_JOIN counterfoil_ledger AS l ON l.family = {INPUT}.family",
        json::table([ROW[0]])
    ))
    .bind_rows(distinct.into_iter().map(|family| (family,)));
    let mut rows = Vec::new();
    for (family, partition, incarnation, text) in database.read(FAILED, select).await? {
        rows.push(LedgerRow {
            family,
            partition,
            incarnation: Incarnation(incarnation),
            mark: mark(text).map_err(store(FAILED))?.unwrap_or_default(),
        });
    }
    Ok(rows)
}

/// Reads the text of [`MARK`]. Returns `None` if the row does not exist.
pub fn mark(text: Option<String>) -> Result<Option<Mark>, sqlx::Error> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match parse(&text) {
        Some(mark) => Ok(Some(mark)),
        None => Err(sqlx::Error::Protocol(format!("{text:?} is no mark"))),
    }
}

fn parse(text: &str) -> Option<Mark> {
    let mut parts = text.split(' ');
    Some(Mark {
        seq: parts.next()?.parse().ok()?,
        nonce: Nonce(parts.next()?.parse().ok()?),
        position: match parts.next() {
            Some(digits) => Some(json::unhex(digits)?),
            None => None,
        },
    })
}

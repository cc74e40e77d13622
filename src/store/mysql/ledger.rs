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
use crate::store::ledger::LedgerKey;
use crate::store::{Batch, FamilyNumber, Incarnation, LedgerRow, Mark, Nonce, Registered};

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
pub struct Locked {
    /// The ledger rows of the batches that exist.
    pub known: BTreeMap<LedgerKey, Mark>,
    /// A family of the batches that the database does not have under its number.
    pub unregistered: Option<Arc<Registered>>,
}

/// Locks the ledger rows of the batches, in the order of the primary key, and the rows of their
/// families against a removal.
pub async fn lock(
    transaction: &mut Session,
    batches: &[Arc<Batch>],
) -> Result<Locked, sqlx::Error> {
    let lock = Statement::new(format!(
        "SELECT CAST({INPUT}.pos AS UNSIGNED), {MARK}, ({}) FROM {} LEFT JOIN {} FOR UPDATE",
        families::holder_of(&format!("{INPUT}.family"), families::SHARED),
        json::derived_table(ROW[..3].iter().copied()),
        by_key()
    ));
    let keys: BTreeSet<_> = batches.iter().map(|batch| batch.ledger_key()).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let (mut known, mut holders) = (BTreeMap::new(), BTreeMap::<FamilyNumber, Vec<u8>>::new());
    for keys in keys.chunks(CHUNK) {
        let found = transaction.fetch(lock.clone().bind_rows(keys)).await?;
        let found = found.into_iter().map(|(at, text, holder)| {
            let found: (Option<String>, Option<Vec<u8>>) = (text, holder);
            (at, found)
        });
        let rows = json::by_position(found.collect(), keys.len())?;
        for (key, (text, holder)) in keys.iter().zip(rows) {
            known.extend(mark(text)?.map(|mark| (*key, mark)));
            holders.extend(holder.map(|holder| (key.0, holder)));
        }
    }
    let is_registered = |family: &Registered| {
        let holder = holders.get(&family.number);
        holder.is_some_and(|holder| families::is_holder(family, holder))
    };
    let mut families = batches.iter().map(|batch| &batch.family);
    let unregistered = families.find(|family| !is_registered(family));
    Ok(Locked {
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
    let given = json::table(ROW);
    let position = format!("UNHEX(NULLIF({INPUT}.position, '-'))");
    // NULL means complete: a row whose position cannot be read is left out, and so fails the count
    let is_read = format!("({INPUT}.position = '-' OR {position} IS NOT NULL)");
    let update = format!(
        "UPDATE {given} STRAIGHT_JOIN {} SET l.seq = {INPUT}.seq, l.nonce = {INPUT}.nonce, \
         l.position = {position}, l.applied_at = CURRENT_TIMESTAMP WHERE {is_read}",
        by_key()
    );
    let insert = format!(
        "INSERT INTO counterfoil_ledger (family, partition_no, incarnation, seq, nonce, position, applied_at) \
         SELECT family, partition_no, incarnation, seq, nonce, {position}, CURRENT_TIMESTAMP \
         FROM {given} WHERE {is_read}"
    );
    let (updates, inserts): (Vec<_>, Vec<_>) =
        marks.iter().partition(|(key, _)| known.contains_key(key));
    let row = |(key, mark): &(&LedgerKey, &Mark)| {
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
    };
    for (text, rows) in [(update, updates), (insert, inserts)] {
        let statement = Statement::new(text);
        for rows in rows.chunks(CHUNK) {
            let given = statement.clone().bind_rows(rows.iter().map(row));
            json::check_all(rows.len(), transaction.execute(given).await?)?;
        }
    }
    Ok(())
}

/// Returns the rows of these families.
pub async fn read(database: &Database, families: &[FamilyNumber]) -> Result<Vec<LedgerRow>> {
    const FAILED: &str = "the ledger was not read";
    let select = Statement::new(format!(
        "SELECT l.family, l.partition_no, l.incarnation, {MARK} FROM {} \
         STRAIGHT_JOIN counterfoil_ledger AS l ON l.family = {INPUT}.family",
        json::table([ROW[0]])
    ));
    let families: BTreeSet<_> = families.iter().collect();
    let select = select.bind_rows(families.into_iter().map(|family| (family,)));
    let rows = database.read(FAILED, select).await?;
    let row = |(family, partition, incarnation, text)| {
        let mark = mark(text).map_err(store(FAILED))?;
        Ok(LedgerRow {
            family,
            partition,
            incarnation: Incarnation(incarnation),
            mark: mark.unwrap_or_default(),
        })
    };
    rows.into_iter().map(row).collect()
}

/// Reads the text of [`MARK`]. Returns `None` if the row does not exist.
pub fn mark(text: Option<String>) -> Result<Option<Mark>, sqlx::Error> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let mark = parse(&text).map(Some);
    mark.ok_or_else(|| sqlx::Error::Protocol(format!("{text:?} is no mark")))
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

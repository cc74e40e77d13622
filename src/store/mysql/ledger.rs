//! The ledger: the last batch of each partition and incarnation, with its progress
//! (docs/protocol.md, section 3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::json::{self, INPUT, JsonRows};
use super::session::{Database, Transaction};
use super::statement::Text;
use crate::store::ledger::LedgerKey;
use crate::store::{Batch, Incarnation, LedgerRow, Mark, Nonce};

/// The maximum number of rows in a statement.
const CHUNK: usize = 10_000;

/// A [`Mark`] as columns of the ledger `l`, NULL if the row does not exist.
pub const MARK: &str = "l.seq, l.nonce, l.position";

const KEY: [(&str, &str); 3] = [
    ("family", "INT UNSIGNED"),
    ("partition_no", "INT UNSIGNED"),
    ("incarnation", "BIGINT UNSIGNED"),
];

/// A mark in a statement's JSON; the position in hexadecimal digits, or `-` if there is none.
const GIVEN_MARK: [(&str, &str); 3] = [
    ("seq", "BIGINT UNSIGNED"),
    ("nonce", "BIGINT UNSIGNED"),
    ("position", "VARCHAR(510)"),
];

/// The ledger, looked up by the given rows.
fn by_given() -> String {
    let matches = KEY.map(|(column, _)| format!("l.{column} = {INPUT}.{column}"));
    format!(
        "counterfoil_ledger AS l FORCE INDEX (PRIMARY) ON {}",
        matches.join(" AND ")
    )
}

/// Locks the ledger rows of the batches, in the order of the primary key, and returns those that
/// exist.
pub async fn lock(
    transaction: &mut Transaction,
    batches: &[Arc<Batch>],
) -> Result<BTreeMap<LedgerKey, Mark>, sqlx::Error> {
    static LOCK: LazyLock<Text> = LazyLock::new(|| {
        Text::new(format!(
            "SELECT CAST({INPUT}.pos AS UNSIGNED), {MARK} FROM {} LEFT JOIN {} FOR UPDATE",
            json::derived_table(KEY),
            by_given()
        ))
    });
    let keys: BTreeSet<_> = batches.iter().map(|batch| batch.ledger_key()).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let mut rows = BTreeMap::new();
    for keys in keys.chunks(CHUNK) {
        let mut json = JsonRows::default();
        keys.iter().for_each(|key| write_key(json.row(), key));
        let found = transaction.fetch(LOCK.query().bind(json.finish())).await?;
        let marks = json::by_position(&found, keys.len(), |row| mark(row, 1))?;
        let marks = keys.iter().zip(marks);
        rows.extend(marks.filter_map(|(key, mark)| Some((*key, mark?))));
    }
    Ok(rows)
}

/// Writes the rows. Rows that are not `known` are inserted plainly: a duplicate key is a conflict
/// with another transaction, after which this one starts again.
pub async fn write(
    transaction: &mut Transaction,
    known: &BTreeMap<LedgerKey, Mark>,
    marks: &BTreeMap<LedgerKey, Mark>,
) -> Result<(), sqlx::Error> {
    static UPDATE: LazyLock<Text> = LazyLock::new(|| {
        Text::new(format!(
            "UPDATE {} STRAIGHT_JOIN {} SET l.seq = {INPUT}.seq, l.nonce = {INPUT}.nonce, \
             l.position = UNHEX(NULLIF({INPUT}.position, '-')), l.applied_at = CURRENT_TIMESTAMP",
            json::table(KEY.into_iter().chain(GIVEN_MARK)),
            by_given()
        ))
    });
    static INSERT: LazyLock<Text> = LazyLock::new(|| {
        Text::new(format!(
            "INSERT INTO counterfoil_ledger (family, partition_no, incarnation, seq, nonce, position, applied_at) \
             SELECT family, partition_no, incarnation, seq, nonce, UNHEX(NULLIF(position, '-')), CURRENT_TIMESTAMP \
             FROM {}",
            json::table(KEY.into_iter().chain(GIVEN_MARK))
        ))
    });
    let (updates, inserts): (Vec<_>, Vec<_>) =
        marks.iter().partition(|(key, _)| known.contains_key(key));
    for (text, rows) in [(&UPDATE, updates), (&INSERT, inserts)] {
        for rows in rows.chunks(CHUNK) {
            let mut json = JsonRows::default();
            for (key, mark) in rows {
                write_key(json.row(), key);
                json.number(mark.seq).number(mark.nonce.0);
                match &mark.position {
                    Some(id) => json.bytes(id),
                    None => json.plain("-"),
                };
            }
            let written = transaction.execute(text.query().bind(json.finish()));
            json::check_all(rows.len(), written.await?)?;
        }
    }
    Ok(())
}

/// Returns the rows of these families.
pub async fn read(database: &Database, families: &[u64]) -> Result<Vec<LedgerRow>, sqlx::Error> {
    static READ: LazyLock<Text> = LazyLock::new(|| {
        Text::new(format!(
            "SELECT l.family, l.partition_no, l.incarnation, {MARK} FROM {} \
             STRAIGHT_JOIN counterfoil_ledger AS l ON l.family = {INPUT}.family",
            json::table([KEY[0]])
        ))
    });
    let families: BTreeSet<_> = families.iter().collect();
    let mut json = JsonRows::default();
    for family in families {
        json.row().number(family);
    }
    let json = json.finish();
    let row = |row: &MySqlRow| {
        Ok(LedgerRow {
            family: row.try_get(0)?,
            partition: row.try_get(1)?,
            incarnation: Incarnation(row.try_get(2)?),
            mark: mark(row, 3)?.unwrap_or_default(),
        })
    };
    database.fetch_each(|| READ.query().bind(&json), row).await
}

fn write_key(row: &mut JsonRows, (family, partition, incarnation): &LedgerKey) {
    row.number(family).number(partition).number(incarnation.0);
}

/// Reads the columns of [`MARK`], of which `index` is the first.
pub fn mark(row: &MySqlRow, index: usize) -> Result<Option<Mark>, sqlx::Error> {
    let Some(seq) = row.try_get(index)? else {
        return Ok(None);
    };
    Ok(Some(Mark {
        seq,
        nonce: Nonce(row.try_get(index + 1)?),
        position: row.try_get(index + 2)?,
    }))
}

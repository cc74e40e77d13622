//! The ledger: the last batch of each partition and incarnation, with its progress
//! (docs/protocol.md, section 3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sqlx::mysql::MySqlRow;
use sqlx::{MySqlPool, Row};

use super::json::{self, JsonRows};
use super::positions;
use super::session::{self, Meter, Transaction};
use crate::store::ledger::LedgerKey;
use crate::store::{Batch, Incarnation, LedgerRow, Mark, Nonce};

/// The maximum number of rows in a statement.
const CHUNK: usize = 10_000;

/// A [`Mark`] as one column of the ledger `l`: `SEQ NONCE POSITION`, two decimal numbers and
/// hexadecimal digits, or `-` if the batch is complete. NULL if the row does not exist.
macro_rules! mark {
    () => {
        "CONCAT(l.seq, ' ', l.nonce, ' ', COALESCE(HEX(l.position), '-'))"
    };
}

pub(super) const MARK: &str = mark!();

/// Ledger rows in a statement's JSON; the name of the table follows.
macro_rules! given {
    ($($columns:literal)?) => {
        concat!(
            "JSON_TABLE(?, '$[*]' COLUMNS(pos FOR ORDINALITY, \
             family INT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR, \
             partition_no INT UNSIGNED PATH '$[1]' ERROR ON EMPTY ERROR ON ERROR, \
             incarnation BIGINT UNSIGNED PATH '$[2]' ERROR ON EMPTY ERROR ON ERROR",
            $($columns,)?
            "))"
        )
    };
    (marks) => {
        given!(
            ", seq BIGINT UNSIGNED PATH '$[3]' ERROR ON EMPTY ERROR ON ERROR, \
             nonce BIGINT UNSIGNED PATH '$[4]' ERROR ON EMPTY ERROR ON ERROR, \
             position VARCHAR(510) PATH '$[5]' ERROR ON EMPTY ERROR ON ERROR"
        )
    };
}

/// The condition that the row `l` of the ledger is the one given as `j`.
macro_rules! matches {
    () => {
        "l.family = j.family AND l.partition_no = j.partition_no AND l.incarnation = j.incarnation"
    };
}

/// Locks the ledger rows of the batches, in the order of the primary key, and returns those that
/// exist.
pub(super) async fn lock(
    transaction: &mut Transaction,
    batches: &[Arc<Batch>],
) -> Result<BTreeMap<LedgerKey, Mark>, sqlx::Error> {
    // the derived table is for MySQL, which refuses to lock a JSON_TABLE (error 3569)
    const LOCK: &str = concat!(
        "SELECT CAST(j.pos AS UNSIGNED), ",
        mark!(),
        " FROM (SELECT * FROM ",
        given!(),
        " AS given) AS j LEFT JOIN counterfoil_ledger AS l FORCE INDEX (PRIMARY) ON ",
        matches!(),
        " FOR UPDATE",
    );
    let keys: BTreeSet<_> = batches.iter().map(|batch| batch.ledger_key()).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let mut rows = BTreeMap::new();
    for keys in keys.chunks(CHUNK) {
        let mut json = JsonRows::default();
        keys.iter().for_each(|key| write_key(json.row(), key));
        let found = transaction
            .fetch(sqlx::query(LOCK).bind(json.finish()))
            .await?;
        let marks = positions::by_position(&found, keys.len(), |row| mark(row, 1))?;
        rows.extend(
            keys.iter()
                .zip(marks)
                .filter_map(|(key, mark)| Some((*key, mark?))),
        );
    }
    Ok(rows)
}

/// Writes the rows. Rows that are not `known` are inserted plainly: a duplicate key is a conflict
/// with another transaction, after which this one starts again.
pub(super) async fn write(
    transaction: &mut Transaction,
    known: &BTreeMap<LedgerKey, Mark>,
    marks: &BTreeMap<LedgerKey, Mark>,
) -> Result<(), sqlx::Error> {
    const UPDATE: &str = concat!(
        "UPDATE ",
        given!(marks),
        " AS j STRAIGHT_JOIN counterfoil_ledger AS l FORCE INDEX (PRIMARY) ON ",
        matches!(),
        " SET l.seq = j.seq, l.nonce = j.nonce, l.position = UNHEX(NULLIF(j.position, '-')), \
         l.applied_at = CURRENT_TIMESTAMP",
    );
    const INSERT: &str = concat!(
        "INSERT INTO counterfoil_ledger (family, partition_no, incarnation, seq, nonce, position, applied_at) \
         SELECT j.family, j.partition_no, j.incarnation, j.seq, j.nonce, UNHEX(NULLIF(j.position, '-')), \
         CURRENT_TIMESTAMP FROM ",
        given!(marks),
        " AS j",
    );
    let (updates, inserts): (Vec<_>, Vec<_>) =
        marks.iter().partition(|(key, _)| known.contains_key(key));
    for (text, rows) in [(UPDATE, updates), (INSERT, inserts)] {
        for rows in rows.chunks(CHUNK) {
            let mut json = JsonRows::default();
            rows.iter()
                .for_each(|(key, mark)| write_row(json.row(), key, mark));
            positions::all(
                rows.len(),
                transaction
                    .execute(sqlx::query(text).bind(json.finish()))
                    .await?,
            )?;
        }
    }
    Ok(())
}

/// Returns the rows of these families.
pub(super) async fn read(
    pool: &MySqlPool,
    meter: &Meter,
    families: &[u64],
) -> Result<Vec<LedgerRow>, sqlx::Error> {
    const READ: &str = concat!(
        "SELECT l.family, l.partition_no, l.incarnation, ",
        mark!(),
        " FROM JSON_TABLE(?, '$[*]' COLUMNS(family INT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR)) AS j \
         STRAIGHT_JOIN counterfoil_ledger AS l ON l.family = j.family",
    );
    let families: BTreeSet<_> = families.iter().collect();
    let families: Vec<_> = families.into_iter().collect();
    let mut found = Vec::new();
    for families in families.chunks(CHUNK) {
        let mut json = JsonRows::default();
        for family in families {
            json.row().number(family);
        }
        let json = json.finish();
        for row in session::fetch(pool, meter, || sqlx::query(READ).bind(json.clone())).await? {
            found.push(LedgerRow {
                family: row.try_get(0)?,
                partition: row.try_get(1)?,
                incarnation: Incarnation(row.try_get(2)?),
                mark: mark(&row, 3)?.unwrap_or_default(),
            });
        }
    }
    Ok(found)
}

fn write_key(row: &mut JsonRows, (family, partition, incarnation): &LedgerKey) {
    row.number(family).number(partition).number(incarnation.0);
}

fn write_row(row: &mut JsonRows, key: &LedgerKey, mark: &Mark) {
    write_key(row, key);
    row.number(mark.seq).number(mark.nonce.0);
    match &mark.position {
        Some(id) => row.bytes(id),
        None => row.plain("-"),
    };
}

/// Reads a column of [`MARK`].
pub(super) fn mark(row: &MySqlRow, index: usize) -> Result<Option<Mark>, sqlx::Error> {
    row.try_get::<Option<String>, _>(index)?
        .map(|text| parse(&text))
        .transpose()
}

/// Reads the text of [`MARK`].
pub(super) fn parse(text: &str) -> Result<Mark, sqlx::Error> {
    let mark = || {
        let (seq, rest) = text.split_once(' ')?;
        let (nonce, position) = rest.split_once(' ')?;
        let position = if position == "-" {
            None
        } else {
            Some(json::unhex(position)?)
        };
        Some(Mark {
            seq: seq.parse().ok()?,
            nonce: Nonce(nonce.parse().ok()?),
            position,
        })
    };
    mark().ok_or_else(|| sqlx::Error::Protocol(format!("unexpected mark in the ledger: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_from_its_column() {
        let mark = |position| Mark {
            seq: 7,
            nonce: Nonce(u64::MAX),
            position,
        };
        assert_eq!(
            parse("7 18446744073709551615 -").expect("a mark"),
            mark(None)
        );
        assert_eq!(
            parse("7 18446744073709551615 00FF61").expect("a mark"),
            mark(Some(b"\x00\xFFa".to_vec()))
        );
        assert_eq!(
            parse("7 18446744073709551615 ").expect("a mark"),
            mark(Some(Vec::new()))
        );
        for wrong in ["", "7", "7 8", "7 8 9", "7 8 XX", "-7 8 -"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}

//! The ledger: which batches were applied before, told by the database itself (docs/protocol.md, section 3.5).

use std::collections::BTreeSet;

use super::json::JsonRows;
use super::positions;
use super::session::Transaction;
use crate::store::Batch;

/// Most rows of a statement.
const CHUNK: usize = 10_000;

/// The batches' ids as a statement is given them.
macro_rules! given {
    () => {
        "JSON_TABLE(?, '$[*]' COLUMNS(pos FOR ORDINALITY, \
         family INT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR, \
         partition_no INT UNSIGNED PATH '$[1]' ERROR ON EMPTY ERROR ON ERROR, \
         incarnation BIGINT UNSIGNED PATH '$[2]' ERROR ON EMPTY ERROR ON ERROR, \
         seq BIGINT UNSIGNED PATH '$[3]' ERROR ON EMPTY ERROR ON ERROR)) AS j"
    };
}

/// A batch's id, in the order of the ledger's primary key, so that everybody locks its rows in one order.
type BatchId = (u64, u32, u64, u64);

fn id(batch: &Batch) -> BatchId {
    (batch.family.number, batch.partition, batch.incarnation.0, batch.seq)
}

/// Advances the ledger to the batches given and returns those that were new to it, in the ledger's order.
///
/// A transaction signs the rows that it advances with a random token and then reads which carry it. So the two
/// statements need no knowledge of what was there before, and a row is locked from the first to the commit: of two
/// transactions with the same batch the second waits, and finds the first one's token.
pub(super) async fn advance<'b>(
    transaction: &mut Transaction,
    batches: &'b [Batch],
) -> Result<Vec<&'b Batch>, sqlx::Error> {
    let token = getrandom::u64().map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
    let mut sorted: Vec<_> = batches.iter().collect();
    sorted.sort_by_key(|batch| id(batch));
    // the same batch handed in twice counts once
    sorted.dedup_by_key(|batch| id(batch));
    for chunk in sorted.chunks(CHUNK) {
        sign(transaction, chunk, token).await?;
    }
    let mut signed = BTreeSet::new();
    for chunk in sorted.chunks(CHUNK) {
        signed.extend(read_signed(transaction, chunk, token).await?);
    }
    sorted.retain(|batch| signed.contains(&id(batch)));
    Ok(sorted)
}

async fn sign(transaction: &mut Transaction, batches: &[&Batch], token: u64) -> Result<(), sqlx::Error> {
    // assignments run from left to right: seq comes last, the others look at it
    const SIGN: &str = concat!(
        "INSERT INTO counterfoil_ledger (family, partition_no, incarnation, seq, token, applied_at) ",
        "SELECT j.family, j.partition_no, j.incarnation, j.seq, ?, CURRENT_TIMESTAMP FROM ",
        given!(),
        " ON DUPLICATE KEY UPDATE ",
        "token = IF(j.seq > counterfoil_ledger.seq, ?, token), ",
        "applied_at = IF(j.seq > counterfoil_ledger.seq, CURRENT_TIMESTAMP, applied_at), ",
        "seq = GREATEST(counterfoil_ledger.seq, j.seq)",
    );
    transaction.execute(sqlx::query(SIGN).bind(token).bind(rows(batches)).bind(token)).await.map(drop)
}

async fn read_signed(
    transaction: &mut Transaction,
    batches: &[&Batch],
    token: u64,
) -> Result<Vec<BatchId>, sqlx::Error> {
    const READ: &str = concat!(
        "SELECT CAST(j.pos AS UNSIGNED), CAST(l.seq = j.seq AND l.token = ? AS SIGNED) FROM ",
        given!(),
        " LEFT JOIN counterfoil_ledger AS l ",
        "ON l.family = j.family AND l.partition_no = j.partition_no AND l.incarnation = j.incarnation",
    );
    let found = transaction.fetch(sqlx::query(READ).bind(token).bind(rows(batches))).await?;
    let signed = positions::flags(&found, batches.len())?;
    Ok(batches.iter().zip(signed).filter(|(_, signed)| *signed).map(|(batch, _)| id(batch)).collect())
}

fn rows(batches: &[&Batch]) -> String {
    let mut rows = JsonRows::default();
    for (family, partition, incarnation, seq) in batches.iter().map(|batch| id(batch)) {
        rows.row().number(family).number(partition).number(incarnation).number(seq);
    }
    rows.finish()
}

//! Rejects that are given up: marked as done without being added, so that they are neither listed
//! nor applied again.

use sqlx::Row;

use super::MysqlStore;
use super::json::JsonRows;
use super::rejects::{self, Decision};
use super::session::Transaction;
use super::transact::{UnitOfWork, transact};
use crate::error::Result;

/// Discards the open rejects among these numbers, and returns their numbers, ascending.
pub(super) async fn discard(mysql: &MysqlStore, numbers: &[u64]) -> Result<Vec<u64>> {
    let mut discarded = Vec::new();
    for numbers in rejects::in_order(numbers).chunks(rejects::MOST) {
        discarded
            .extend(transact(mysql, "rejects were not discarded", &Discard { numbers }).await?);
    }
    Ok(discarded)
}

struct Discard<'d> {
    numbers: &'d [u64],
}

impl UnitOfWork for Discard<'_> {
    type Output = Vec<u64>;

    async fn run(&self, transaction: &mut Transaction) -> Result<Self::Output, sqlx::Error> {
        let open = self.lock(transaction).await?;
        let decisions = open.iter().map(|(number, reason)| Decision {
            number: *number,
            is_done: true,
            reason,
        });
        rejects::decide(transaction, decisions).await?;
        Ok(open.into_iter().map(|(number, _)| number).collect())
    }
}

impl Discard<'_> {
    /// Locks the open rejects, and returns each with its new reason. Waits for a reject that is
    /// just being applied; it is open if it was refused again.
    async fn lock(&self, transaction: &mut Transaction) -> Result<Vec<(u64, String)>, sqlx::Error> {
        // the derived table is for MySQL, which refuses to lock a JSON_TABLE (error 3569)
        const LOCK: &str = "SELECT r.number, r.reason FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS(\
             number BIGINT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR)) AS given) AS j \
             STRAIGHT_JOIN counterfoil_rejects AS r ON r.number = j.number WHERE r.applied_at IS NULL FOR UPDATE";
        let mut numbers = JsonRows::default();
        for number in self.numbers {
            numbers.row().number(number);
        }
        let rows = transaction
            .fetch(sqlx::query(LOCK).bind(numbers.finish()))
            .await?;
        let open = |row: &sqlx::mysql::MySqlRow| {
            Ok((
                row.try_get(0)?,
                format!("{}{}", rejects::DISCARDED, row.try_get::<String, _>(1)?),
            ))
        };
        rows.iter().map(open).collect()
    }
}

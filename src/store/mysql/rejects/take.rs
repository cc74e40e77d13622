//! The transaction that takes rejects: it adds them to their rows, or discards them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::write::{NOW, PAUSE, fitting, pause, short, statements};
use crate::store::mysql::add::{self, Cause, Refused};
use crate::store::mysql::families;
use crate::store::mysql::fault;
use crate::store::mysql::json::{self, I64, ID, INPUT, U64, hex};
use crate::store::mysql::session::{Session, UnitOfWork};
use crate::store::mysql::statement::Statement;
use crate::store::mysql::target::Target;
use crate::store::{FamilyNumber, Registration};

/// The maximum number of rejects in a transaction: some may take several statements each.
pub const PAGE: usize = 500;

/// The rejects of a family that have the ids in a statement's JSON.
pub const BY_ID: &str = "counterfoil_rejects AS r FORCE INDEX (PRIMARY) \
     ON r.family = ? AND r.id = UNHEX(counterfoil_input.id)";

/// The rejects of a family that a transaction takes.
#[derive(Clone, Debug)]
pub enum Selection {
    /// The page of those whose retry became due last.
    DueLast,
    /// The page of those whose retry became due first.
    DueFirst,
    /// A page of those with ids from this one on.
    From(Vec<u8>),
    /// Those of these ids.
    Ids(Vec<String>),
}

/// A transaction that takes rejects of a family: it adds them to their rows, or discards them.
/// Leaves out rejects that another transaction has locked.
pub struct RejectTransaction {
    /// The family's number.
    pub family: FamilyNumber,
    /// The rows to add them to; `None` to discard them.
    pub retry: Option<(Registration, Arc<Target>)>,
    pub which: Selection,
}

/// The effect of a [`RejectTransaction`].
#[derive(Default)]
pub struct RejectOutcome {
    /// The ids of the rejects that exist no longer, with their deltas.
    pub gone: Vec<(Vec<u8>, i128)>,
    pub refused: u64,
    pub left: u64,
    /// The last id of a full page.
    pub last: Option<Vec<u8>>,
}

/// A reject in a [`RejectTransaction`].
struct LockedReject {
    id: Vec<u8>,
    delta: i128,
    retries: u64,
}

impl LockedReject {
    /// Returns the part of the sum that one statement adds.
    fn part(&self) -> i64 {
        let part = self.delta.clamp(i64::MIN.into(), i64::MAX.into());
        i64::try_from(part).unwrap_or_default()
    }
}

impl UnitOfWork for RejectTransaction {
    type Output = RejectOutcome;

    /// After a lock timeout other work goes first, and the retry is made later.
    fn is_repeated(error: &sqlx::Error) -> bool {
        fault::is_conflict(error) && !fault::is_locked(error)
    }

    async fn run(&self, transaction: &mut Session) -> Result<RejectOutcome, sqlx::Error> {
        // The lock also orders this transaction and the begin of a recount. Either `note` finds the
        // run, or the run begins later and reads values with these rejects.
        match &self.retry {
            Some((family, _)) => {
                families::refuse_unregistered(transaction, family, families::SHARED).await?;
            }
            None => {
                let lock = Statement::new(format!(
                    "SELECT CAST(number AS UNSIGNED) FROM counterfoil_families WHERE number = ? {}",
                    families::SHARED
                ));
                transaction.fetch::<(u64,)>(lock.bind(self.family)).await?;
            }
        }
        let rejects: Vec<_> = transaction
            .fetch(self.select())
            .await?
            .into_iter()
            .map(|(id, delta, retries): (_, String, _)| LockedReject {
                id,
                delta: parsed(&delta),
                retries,
            })
            .collect();
        let (refused, locked) = self.add(transaction, &rejects).await?;
        let mut taken = RejectOutcome::default();
        if rejects.len() == PAGE {
            taken.last = rejects.last().map(|reject| reject.id.clone());
        }
        let (mut stay, mut noted) = (Vec::new(), Vec::new());
        for (index, reject) in rejects.into_iter().enumerate() {
            let (mut added, mut retries, mut wait) = (0, reject.retries, PAUSE);
            let mut reason = String::new();
            if let Some(refusal) = refused.get(&index) {
                taken.refused += 1;
                retries += 1;
                wait = pause(refusal, retries);
                // The id may have been cut to fit its column, and is now refused for another
                // reason. The original reason stays, because it was about the whole id.
                if refusal.cause != Cause::Never {
                    reason = short(&refusal.reason);
                }
            } else if locked.contains(&index) {
                taken.left += 1;
            } else {
                noted.push((hex(&reject.id),));
                added = reject.part();
                if self.retry.is_none() || i128::from(added) == reject.delta {
                    taken.gone.push((reject.id, reject.delta));
                    continue;
                }
                taken.left += 1;
            }
            stay.push((retries, wait.as_secs(), added, hex(reject.id), hex(reason)));
        }
        self.delete(transaction, &taken.gone).await?;
        self.keep(transaction, &stay).await?;
        self.note(transaction, noted).await?;
        Ok(taken)
    }
}

impl RejectTransaction {
    /// Returns the statement that locks and reads the rejects.
    fn select(&self) -> Statement {
        match &self.which {
            Selection::DueLast => select_due("DESC").bind(self.family),
            Selection::DueFirst => select_due("ASC").bind(self.family),
            Selection::From(first) => select(&format!(
                "counterfoil_rejects AS r FORCE INDEX (PRIMARY) WHERE r.family = ? AND r.id >= ? \
                 ORDER BY r.id LIMIT {PAGE}"
            ))
            .bind(self.family)
            .bind(&first[..]),
            Selection::Ids(ids) => {
                let ids = ids.iter().map(|id| (hex(fitting(id.as_bytes())),));
                let input = json::derived_table([("id", ID)]);
                select(&format!("{input} STRAIGHT_JOIN {BY_ID}"))
                    .bind_rows(ids)
                    .bind(self.family)
            }
        }
    }

    /// Adds the rejects to their rows. Returns those that are refused again, and those whose rows are
    /// locked.
    async fn add(
        &self,
        transaction: &mut Session,
        rejects: &[LockedReject],
    ) -> Result<(Refused, BTreeSet<usize>), sqlx::Error> {
        let mut refused = Refused::new();
        let Some((family, target)) = &self.retry else {
            return Ok((refused, BTreeSet::new()));
        };
        let deltas = rejects
            .iter()
            .enumerate()
            // a sum of 0 has nothing to add
            .filter(|(_, reject)| reject.delta != 0)
            .map(|(index, reject)| (index, &*reject.id, reject.part()));
        let locked = add::add_unlocked(transaction, family, target, deltas, &mut refused).await?;
        Ok((refused, locked))
    }

    async fn delete(
        &self,
        transaction: &mut Session,
        gone: &[(Vec<u8>, i128)],
    ) -> Result<(), sqlx::Error> {
        if gone.is_empty() {
            return Ok(());
        }
        let delete = Statement::new(format!(
            "DELETE r FROM {} STRAIGHT_JOIN {BY_ID}",
            json::table([("id", ID)])
        ))
        .bind_rows(gone.iter().map(|(id, _)| (hex(id),)))
        .bind(self.family);
        let deleted = transaction.execute(delete).await?;
        json::check_all(gone.len(), deleted)
    }

    /// Writes the rejects that stay: their retries, the pause until the next one, the part that was
    /// added, the id, and the new reason, if any.
    async fn keep(
        &self,
        transaction: &mut Session,
        stay: &[(u64, u64, i64, String, String)],
    ) -> Result<(), sqlx::Error> {
        let columns = [
            ("retries", U64),
            ("pause", U64),
            ("added", I64),
            ("id", ID),
            ("reason", json::REASON),
        ];
        let statement = Statement::new(format!(
            "UPDATE {} STRAIGHT_JOIN {BY_ID} SET r.delta = r.delta - {INPUT}.added, \
             r.reason = IF({INPUT}.reason = '', r.reason, CONVERT(UNHEX({INPUT}.reason) USING utf8mb4)), \
             r.last_at = IF({INPUT}.reason = '', r.last_at, {NOW}), \
             r.retry_at = IF({INPUT}.pause = 0, NULL, {NOW} + INTERVAL {INPUT}.pause SECOND), \
             r.retries = {INPUT}.retries",
            json::table(columns)
        ));
        for rows in statements(stay, |row| row.3.len() + row.4.len()) {
            let update = statement.clone().bind_rows(rows).bind(self.family);
            transaction.execute(update).await?;
        }
        Ok(())
    }

    /// Notes the ids in the run of a recount, which may have read values without these rejects: it
    /// leaves them out.
    async fn note(
        &self,
        transaction: &mut Session,
        ids: Vec<(String,)>,
    ) -> Result<(), sqlx::Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let insert = Statement::new(format!(
            "INSERT INTO counterfoil_drift (family, run, id, value_before, row_count, value_after, delta, note) \
             SELECT c.family, c.run, UNHEX({INPUT}.id), 0, 0, 0, 0, '' FROM counterfoil_recounts AS c STRAIGHT_JOIN {} \
             WHERE c.family = ? AND c.finished_at IS NULL AND c.holder <> 0 \
             ON DUPLICATE KEY UPDATE counterfoil_drift.delta = counterfoil_drift.delta",
            json::table([("id", ID)])
        ))
        .bind_rows(ids)
        .bind(self.family);
        transaction.execute(insert).await.map(drop)
    }
}

/// Returns the statement that locks and reads the rejects of a FROM clause.
fn select(from: &str) -> Statement {
    Statement::new(format!(
        "SELECT r.id, CAST(r.delta AS CHAR), CAST(r.retries AS UNSIGNED) FROM {from} \
         FOR UPDATE SKIP LOCKED"
    ))
}

/// Returns the statement that locks and reads a page of a family's due rejects, in that order.
fn select_due(order: &str) -> Statement {
    select(&format!(
        "counterfoil_rejects AS r FORCE INDEX (due) WHERE r.family = ? AND r.retry_at <= {NOW} \
         ORDER BY r.retry_at {order} LIMIT {PAGE}"
    ))
}

/// Returns the number of a `DECIMAL(40)`. The few that are beyond i128 become its bound.
pub fn parsed(digits: &str) -> i128 {
    let bound = if digits.starts_with('-') {
        i128::MIN
    } else {
        i128::MAX
    };
    digits.parse().unwrap_or(bound)
}

//! The deletion of families, and of records that only tell what happened: rejects that are done,
//! and former recounts.

use std::time::Duration;

use super::MysqlStore;
use super::fault;
use super::session::{Session, UnitOfWork};
use super::statement::Statement;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;

/// The maximum number of rows that a transaction deletes.
const ROWS: u64 = 10_000;

/// The numbers of records that [`MysqlStore::purge`] deletes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Rejects that were applied or discarded.
    pub rejects: u64,
    /// Recounts that ended. The last one of each family is kept.
    pub recounts: u64,
    /// The differences that these recounts found.
    pub drift: u64,
}

/// Ends the use of a family's number, unless rejects of it are open. No batch of the family is
/// applied from then on.
struct Unregister(Family, u64);

impl UnitOfWork for Unregister {
    type Output = ();

    async fn run(&self, transaction: &mut Session) -> Result<(), sqlx::Error> {
        // waits for batches that are being applied, which may leave rejects
        const LOCK: &str = "SELECT number FROM counterfoil_families WHERE number = ? FOR UPDATE";
        const MARK: &str = "UPDATE counterfoil_families SET state = 'removing' WHERE number = ?";
        let by_number = |text| Statement::once(text).bind(self.1);
        transaction.fetch::<()>(by_number(LOCK)).await?;
        for (open,) in transaction.fetch(count(OPEN_REJECTS, &[self.1])).await? {
            refuse_open(&self.0, open).map_err(fault::from_own)?;
        }
        transaction.execute(by_number(MARK)).await.map(drop)
    }
}

const OPEN_REJECTS: &str = "counterfoil_rejects WHERE applied_at IS NULL AND family = ?";

fn refuse_open(family: &Family, open: u64) -> Result<()> {
    if open == 0 {
        return Ok(());
    }
    let why = format!(
        "{family}: {open} reject(s) open, whose hits no row has; apply or discard them first"
    );
    Err(Error::new(ErrorKind::Busy, why))
}

const OLD_REJECTS: &str =
    "counterfoil_rejects WHERE applied_at < CURRENT_TIMESTAMP(3) - INTERVAL ? SECOND";

impl MysqlStore {
    /// The default of [`keep_rejects`](Self::keep_rejects).
    pub const REJECTS_KEPT: Duration = Duration::from_hours(90 * 24);

    /// Sets how long reconcilers keep rejects after they were applied or discarded. Defaults to 90
    /// days.
    #[must_use]
    pub fn keep_rejects(mut self, time: Duration) -> Self {
        self.rejects_kept = time;
        self
    }

    /// Deletes records that are older than `age`, in transactions of up to 10,000 rows. Rejects
    /// that are open and the values of counters stay.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): some records may be deleted already. Call again.
    pub async fn purge(&self, age: Duration) -> Result<Purged> {
        self.old_records(age, true).await
    }

    /// Returns what [`purge`](Self::purge) would delete.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn purgeable(&self, age: Duration) -> Result<Purged> {
        self.old_records(age, false).await
    }

    /// Deletes or counts the records that are older than `age`.
    async fn old_records(&self, age: Duration, deletes: bool) -> Result<Purged> {
        // the last recount of each family is kept
        const RECOUNTS: &str = "SELECT family, run FROM counterfoil_recounts AS r \
             WHERE finished_at < CURRENT_TIMESTAMP(3) - INTERVAL ? SECOND \
             AND run < (SELECT MAX(run) FROM counterfoil_recounts AS l WHERE l.family = r.family)";
        let rows = async |from: &str, numbers: &[u64]| {
            if deletes {
                self.delete(from, numbers).await
            } else {
                self.count(from, numbers).await
            }
        };
        let age = age.as_secs();
        let mut old = Purged {
            rejects: rows(OLD_REJECTS, &[age]).await?,
            ..Purged::default()
        };
        let recounts = Statement::once(RECOUNTS).bind(age);
        let recounts = self.primary.read("recounts were not read", recounts);
        for (family, run) in recounts.await? {
            let of_run = [family, run];
            old.drift += rows("counterfoil_drift WHERE family = ? AND run = ?", &of_run).await?;
            old.recounts +=
                rows("counterfoil_recounts WHERE family = ? AND run = ?", &of_run).await?;
        }
        Ok(old)
    }

    /// Returns whether a removal of the family was interrupted while it deleted rows. Otherwise it
    /// refuses a family with open rejects.
    pub(crate) async fn is_removing(&self, family: &Family, number: u64) -> Result<bool> {
        let removing = "counterfoil_families WHERE state = 'removing' AND number = ?";
        if self.count(removing, &[number]).await? > 0 {
            return Ok(true);
        }
        let open = self.count(OPEN_REJECTS, &[number]).await?;
        refuse_open(family, open).map(|()| false)
    }

    /// Deletes the rows of a family from counterfoil's tables, except its own row, which is marked
    /// as removed, and those of the ledger: a Redis that is restored to a state before the removal
    /// has batches that they must refuse. An interrupted call can be repeated.
    pub(crate) async fn remove(&self, family: &Family, number: u64) -> Result<()> {
        const MARK: &str = "UPDATE counterfoil_families SET state = 'removed' WHERE number = ?";
        let failed = "the family was not removed";
        let unregister = Unregister(family.clone(), number);
        self.primary.transact(failed, unregister).await?;
        for table in ["values", "rejects", "recounts", "drift"] {
            self.delete(&format!("counterfoil_{table} WHERE family = ?"), &[number])
                .await?;
        }
        let mark = Statement::once(MARK).bind(number);
        self.primary.transact(failed, mark).await.map(drop)
    }

    /// Deletes rejects that were done long ago, as far as this user may.
    pub(super) async fn expire_rejects(&self) {
        if let Err(error) = self
            .delete(OLD_REJECTS, &[self.rejects_kept.as_secs()])
            .await
        {
            tracing::debug!(error = %format_args!("{error:#}"), "deleting old rejects failed");
        }
    }

    /// Deletes the rows with these numbers.
    async fn delete(&self, from: &str, numbers: &[u64]) -> Result<u64> {
        let delete = bind(format!("DELETE FROM {from} LIMIT {ROWS}"), numbers);
        let mut deleted = 0;
        loop {
            let delete = delete.clone();
            let rows = self.primary.transact("old records stay", delete).await?;
            deleted += rows;
            if rows < ROWS {
                return Ok(deleted);
            }
        }
    }

    async fn count(&self, from: &str, numbers: &[u64]) -> Result<u64> {
        let count = self
            .primary
            .read_one("records were not counted", count(from, numbers));
        let (rows,) = count.await?;
        Ok(rows)
    }
}

fn count(from: &str, numbers: &[u64]) -> Statement {
    bind(
        format!("SELECT CAST(COUNT(*) AS UNSIGNED) FROM {from}"),
        numbers,
    )
}

fn bind(text: String, numbers: &[u64]) -> Statement {
    let numbers = numbers.iter();
    numbers.fold(Statement::once(text), |statement, number| {
        statement.bind(*number)
    })
}

//! The deletion of families, and of records that only tell what happened: rejects that are done, and
//! former recounts.

use std::time::Duration;

use super::MysqlStore;
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

/// Ends the use of a family's number, unless rejects of it are open: returns how many. No batch of
/// the family is applied from then on.
struct Unregister(u64);

impl UnitOfWork for Unregister {
    type Output = u64;

    async fn run(&self, transaction: &mut Session) -> Result<u64, sqlx::Error> {
        // waits for batches that are being applied, which may leave rejects
        const LOCK: &str = "SELECT number FROM counterfoil_families WHERE number = ? FOR UPDATE";
        const MARK: &str = "UPDATE counterfoil_families SET state = 'removing' WHERE number = ?";
        let by_number = |text| Statement::once(text).bind(self.0);
        transaction.fetch::<()>(by_number(LOCK)).await?;
        let open = transaction.fetch(by_number(OPEN_REJECTS)).await?;
        let open = open.first().map_or(0, |(open,)| *open);
        if open == 0 {
            transaction.execute(by_number(MARK)).await?;
        }
        Ok(open)
    }
}

const OPEN_REJECTS: &str = "SELECT CAST(COUNT(*) AS UNSIGNED) FROM counterfoil_rejects \
     WHERE applied_at IS NULL AND family = ?";

fn refuse_open(family: &Family, open: u64) -> Result<()> {
    let open = match open {
        0 => return Ok(()),
        1 => "1 reject is".to_owned(),
        open => format!("{open} rejects are"),
    };
    let why = format!("{family}: {open} open, whose hits no row has; apply or discard them first");
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

    /// Deletes records that are older than `age`, in transactions of up to 10,000 rows. Rejects that
    /// are open and the values of counters stay.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): some records may be deleted already. Call again.
    pub async fn purge(&self, age: Duration) -> Result<Purged> {
        let mut purged = Purged {
            rejects: self.delete_old_rejects(age).await?,
            ..Purged::default()
        };
        for (family, run) in self.old_recounts(age).await? {
            let bind = |delete: Statement| delete.bind(family).bind(run);
            let drift = "counterfoil_drift WHERE family = ? AND run = ?";
            purged.drift += self.delete(drift, bind).await?;
            let recount = "counterfoil_recounts WHERE family = ? AND run = ?";
            purged.recounts += self.delete(recount, bind).await?;
        }
        Ok(purged)
    }

    /// Returns what [`purge`](Self::purge) would delete.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn purgeable(&self, age: Duration) -> Result<Purged> {
        const FAILED: &str = "old records were not counted";
        let count =
            |from: &str| Statement::once(format!("SELECT CAST(COUNT(*) AS UNSIGNED) FROM {from}"));
        let rejects = count(OLD_REJECTS).bind(age.as_secs());
        let (rejects,) = self.primary.read_one(FAILED, rejects).await?;
        let recounts = self.old_recounts(age).await?;
        let mut drift = 0;
        for (family, run) in &recounts {
            let of_run = count("counterfoil_drift WHERE family = ? AND run = ?");
            let of_run = of_run.bind(*family).bind(*run);
            let (of_run,): (u64,) = self.primary.read_one(FAILED, of_run).await?;
            drift += of_run;
        }
        Ok(Purged {
            rejects,
            recounts: recounts.len() as u64,
            drift,
        })
    }

    /// Returns an error if rejects of the family are open.
    pub(crate) async fn refuse_open_rejects(&self, family: &Family, number: u64) -> Result<()> {
        let count = Statement::new(OPEN_REJECTS).bind(number);
        let count = self.primary.read_one("rejects were not read", count);
        let (open,) = count.await?;
        refuse_open(family, open)
    }

    /// Deletes the rows of a family from counterfoil's tables, except its own row, which is marked
    /// as removed, and those of the ledger: a Redis that is restored to a state before the removal
    /// has batches that they must refuse. An interrupted call can be repeated.
    pub(crate) async fn remove(&self, family: &Family, number: u64) -> Result<()> {
        const MARK: &str = "UPDATE counterfoil_families SET state = 'removed' WHERE number = ?";
        let failed = "the family was not removed";
        let open = self.primary.transact(failed, Unregister(number)).await?;
        refuse_open(family, open)?;
        let bind = |statement: Statement| statement.bind(number);
        for table in ["values", "rejects", "recounts", "drift"] {
            self.delete(&format!("counterfoil_{table} WHERE family = ?"), bind)
                .await?;
        }
        let mark = bind(Statement::once(MARK));
        self.primary.transact(failed, mark).await.map(drop)
    }

    /// Deletes rejects that were done long ago, as far as this user may.
    pub(super) async fn expire_rejects(&self) {
        if let Err(error) = self.delete_old_rejects(self.rejects_kept).await {
            tracing::debug!(error = %format_args!("{error:#}"), "deleting old rejects failed");
        }
    }

    async fn delete_old_rejects(&self, age: Duration) -> Result<u64> {
        let bind = |delete: Statement| delete.bind(age.as_secs());
        self.delete(OLD_REJECTS, bind).await
    }

    /// Returns the family and number of each recount that ended, except the last of each family.
    async fn old_recounts(&self, age: Duration) -> Result<Vec<(u64, u64)>> {
        const OLD: &str = "SELECT family, run FROM counterfoil_recounts AS r \
             WHERE finished_at < CURRENT_TIMESTAMP(3) - INTERVAL ? SECOND \
             AND run < (SELECT MAX(run) FROM counterfoil_recounts AS l WHERE l.family = r.family)";
        let select = Statement::once(OLD).bind(age.as_secs());
        self.primary.read("recounts were not read", select).await
    }

    async fn delete(&self, from: &str, bind: impl FnOnce(Statement) -> Statement) -> Result<u64> {
        let delete = Statement::once(format!("DELETE FROM {from} LIMIT {ROWS}"));
        let (delete, mut deleted) = (bind(delete), 0);
        loop {
            let delete = delete.clone();
            let rows = self.primary.transact("old records stay", delete).await?;
            deleted += rows;
            if rows < ROWS {
                return Ok(deleted);
            }
        }
    }
}

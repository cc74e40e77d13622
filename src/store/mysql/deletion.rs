//! The deletion of families, and of the records of former recounts.

use std::time::Duration;

use super::MysqlStore;
use super::fault;
use super::session::{Session, UnitOfWork};
use super::statement::Statement;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::store::FamilyNumber;

/// The maximum number of rows that a transaction deletes.
const ROWS: u64 = 10_000;

/// The numbers of records that [`MysqlStore::purge`] deletes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Recounts that ended. The last one of each family is kept.
    pub recounts: u64,
    /// The differences that these recounts found.
    pub drift: u64,
}

/// Ends the use of a family's number, unless it has rejects. No batch of the family is
/// applied from then on.
struct Unregister(Family, FamilyNumber);

impl UnitOfWork for Unregister {
    type Output = ();

    async fn run(&self, transaction: &mut Session) -> Result<(), sqlx::Error> {
        // waits for batches that are being applied, which may leave rejects
        const LOCK: &str = "SELECT number FROM counterfoil_families WHERE number = ? FOR UPDATE";
        const MARK: &str = "UPDATE counterfoil_families SET state = 'removing' WHERE number = ?";
        let by_number = |text| Statement::once(text).bind(self.1);
        transaction.fetch::<()>(by_number(LOCK)).await?;
        for (rejects,) in transaction.fetch(count(REJECTS, &[self.1])).await? {
            refuse_rejects(&self.0, rejects).map_err(fault::from_own)?;
        }
        transaction.execute(by_number(MARK)).await.map(drop)
    }
}

const REJECTS: &str = "counterfoil_rejects WHERE family = ?";

fn refuse_rejects(family: &Family, rejects: u64) -> Result<()> {
    if rejects == 0 {
        return Ok(());
    }
    let why = format!(
        "{family}: {rejects} reject(s), whose hits no row has; apply or discard them first"
    );
    Err(Error::new(ErrorKind::Busy, why))
}

impl MysqlStore {
    /// Deletes the records of recounts that are older than `age`, in transactions of up to 10,000
    /// rows.
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
        let rows = async |from: &str, numbers: &[FamilyNumber]| {
            if deletes {
                self.delete(from, numbers).await
            } else {
                self.count(from, numbers).await
            }
        };
        let mut old = Purged::default();
        let recounts = Statement::once(RECOUNTS).bind(age.as_secs());
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
    /// refuses a family with rejects.
    pub(crate) async fn is_removing(&self, family: &Family, number: FamilyNumber) -> Result<bool> {
        let removing = "counterfoil_families WHERE state = 'removing' AND number = ?";
        if self.count(removing, &[number]).await? > 0 {
            return Ok(true);
        }
        let rejects = self.count(REJECTS, &[number]).await?;
        refuse_rejects(family, rejects).map(|()| false)
    }

    /// Deletes the rows of a family from counterfoil's tables, except its own row, which is marked
    /// as removed, and those of the ledger: a Redis that is restored to a state before the removal
    /// has batches that they must refuse. An interrupted call can be repeated.
    pub(crate) async fn remove(&self, family: &Family, number: FamilyNumber) -> Result<()> {
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

    /// Deletes the rows with these numbers.
    async fn delete(&self, from: &str, numbers: &[FamilyNumber]) -> Result<u64> {
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

    async fn count(&self, from: &str, numbers: &[FamilyNumber]) -> Result<u64> {
        let count = self
            .primary
            .read_one("records were not counted", count(from, numbers));
        let (rows,) = count.await?;
        Ok(rows)
    }
}

fn count(from: &str, numbers: &[FamilyNumber]) -> Statement {
    bind(
        format!("SELECT CAST(COUNT(*) AS UNSIGNED) FROM {from}"),
        numbers,
    )
}

fn bind(text: String, numbers: &[FamilyNumber]) -> Statement {
    let numbers = numbers.iter();
    numbers.fold(Statement::once(text), |statement, number| {
        statement.bind(*number)
    })
}

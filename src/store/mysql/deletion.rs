//! The deletion of families, and of the records of former recounts.

use std::time::Duration;

use super::fault;
use super::session::{Database, Session, UnitOfWork};
use super::statement::Statement;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::store::FamilyNumber;

/// The maximum number of rows that a transaction deletes.
const ROWS: u64 = 10_000;

/// The numbers of records that [`MysqlStore::purge`](super::MysqlStore::purge) deletes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgeSummary {
    /// Recounts that ended. The last one of each family is kept.
    pub recounts: u64,
    /// The differences that these recounts found.
    pub drift: u64,
}

/// Ends the use of a family's number, unless it has rejects. No batch of the family is
/// applied from then on.
struct RemovalTransaction(Family, FamilyNumber);

impl UnitOfWork for RemovalTransaction {
    type Output = ();

    async fn run(&self, transaction: &mut Session) -> Result<(), sqlx::Error> {
        // the lock waits for batches that are being applied, because they may leave rejects
        const LOCK: &str = "SELECT number FROM counterfoil_families WHERE number = ? FOR UPDATE";
        const MARK: &str = "UPDATE counterfoil_families SET state = 'removing' WHERE number = ?";
        let by_number = |text| Statement::once(text).bind(self.1);
        transaction.fetch::<()>(by_number(LOCK)).await?;
        for (rejects,) in transaction.fetch(select_count(REJECTS, &[self.1])).await? {
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

/// Deletes the records of recounts that are older than `age`, or only counts them.
pub async fn old_records(
    database: &Database,
    age: Duration,
    deletes: bool,
) -> Result<PurgeSummary> {
    // the last recount of each family is kept
    const RECOUNTS: &str = "SELECT family, run FROM counterfoil_recounts AS r \
         WHERE finished_at < CURRENT_TIMESTAMP(3) - INTERVAL ? SECOND \
         AND run < (SELECT MAX(run) FROM counterfoil_recounts AS l WHERE l.family = r.family)";
    const DRIFT: &str = "counterfoil_drift WHERE family = ? AND run = ?";
    const RECOUNT: &str = "counterfoil_recounts WHERE family = ? AND run = ?";
    let mut old = PurgeSummary::default();
    let select = Statement::once(RECOUNTS).bind(age.as_secs());
    for (family, run) in database.read("recounts were not read", select).await? {
        let numbers = [family, run];
        if deletes {
            old.drift += delete(database, DRIFT, &numbers).await?;
            old.recounts += delete(database, RECOUNT, &numbers).await?;
        } else {
            old.drift += count(database, DRIFT, &numbers).await?;
            old.recounts += count(database, RECOUNT, &numbers).await?;
        }
    }
    Ok(old)
}

/// Returns whether a removal of the family was interrupted while it deleted rows. Otherwise it
/// refuses a family with rejects.
pub async fn was_interrupted(
    database: &Database,
    family: &Family,
    number: FamilyNumber,
) -> Result<bool> {
    let removing = "counterfoil_families WHERE state = 'removing' AND number = ?";
    if count(database, removing, &[number]).await? > 0 {
        return Ok(true);
    }
    let rejects = count(database, REJECTS, &[number]).await?;
    refuse_rejects(family, rejects).map(|()| false)
}

/// Deletes the rows of a family from counterfoil's tables, except its own row, which is marked as
/// removed, and those of the ledger: a Redis that is restored to a state before the removal has
/// batches that they must refuse. An interrupted call can be repeated.
pub async fn remove(database: &Database, family: &Family, number: FamilyNumber) -> Result<()> {
    const MARK: &str = "UPDATE counterfoil_families SET state = 'removed' WHERE number = ?";
    let failed = "the family was not removed";
    let unregister = RemovalTransaction(family.clone(), number);
    database.transact(failed, unregister).await?;
    for table in ["values", "rejects", "recounts", "drift"] {
        let rows = format!("counterfoil_{table} WHERE family = ?");
        delete(database, &rows, &[number]).await?;
    }
    let mark = Statement::once(MARK).bind(number);
    database.transact(failed, mark).await.map(drop)
}

/// Deletes the rows with these numbers.
async fn delete(database: &Database, from: &str, numbers: &[FamilyNumber]) -> Result<u64> {
    let statement = bind(format!("DELETE FROM {from} LIMIT {ROWS}"), numbers);
    let mut deleted = 0;
    loop {
        let rows = database
            .transact("old records stay", statement.clone())
            .await?;
        deleted += rows;
        if rows < ROWS {
            return Ok(deleted);
        }
    }
}

/// Counts the rows with these numbers.
async fn count(database: &Database, from: &str, numbers: &[FamilyNumber]) -> Result<u64> {
    let failed = "records were not counted";
    let (rows,) = database
        .read_one(failed, select_count(from, numbers))
        .await?;
    Ok(rows)
}

/// Returns the SELECT that counts the rows with these numbers.
fn select_count(from: &str, numbers: &[FamilyNumber]) -> Statement {
    bind(
        format!("SELECT CAST(COUNT(*) AS UNSIGNED) FROM {from}"),
        numbers,
    )
}

fn bind(text: String, numbers: &[FamilyNumber]) -> Statement {
    numbers
        .iter()
        .fold(Statement::once(text), |statement, number| {
            statement.bind(*number)
        })
}

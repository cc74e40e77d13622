//! All families at a glance, for operators: one statement per table, for any number of families.

use std::collections::HashMap;
use std::time::SystemTime;

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::MysqlStore;
use super::fault::store;
use super::rejects::{text, time};
use super::session::detached;
use crate::error::Result;

/// The state of a family in the database. Times are by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overview {
    /// The family's namespace.
    pub namespace: String,
    /// The family's name.
    pub family: String,
    /// The time when the last part of a batch was applied, in whole seconds; `None` if none was.
    pub last_saved: Option<SystemTime>,
    /// The number of open rejects.
    pub rejects: u64,
    /// The latest run of its recounts; `None` if there was none.
    pub recount: Option<RecountRun>,
}

/// A run of a recount as it is recorded, finished or in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecountRun {
    /// The number of the run within the family, as [`MysqlStore::drift`] takes it.
    pub run: u64,
    /// The number of counters that were compared with their rows.
    pub checked: u64,
    /// The number of these counters with a proven difference.
    pub drifted: u64,
    /// The time when the run began.
    pub started: SystemTime,
    /// The time when the run last recorded its progress.
    pub touched: SystemTime,
    /// The time when the run ended; `None` if it is in progress or was abandoned.
    pub finished: Option<SystemTime>,
}

const UNREAD: &str = "the overview was not read";

impl MysqlStore {
    /// Returns the state of every registered family, in the order of registration, by four
    /// statements for any number of families. They do not read one snapshot.
    ///
    /// All rejects are scanned, including those that were applied. With millions of them add a key
    /// on `counterfoil_rejects (applied_at, family)`, which is not part of the schema.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn overview(&self) -> Result<Vec<Overview>> {
        let mysql = self.clone();
        detached(async move { mysql.look_over().await.map_err(store(UNREAD)) }).await
    }

    async fn look_over(&self) -> Result<Vec<Overview>, sqlx::Error> {
        const FAMILIES: &str =
            "SELECT number, namespace, name FROM counterfoil_families ORDER BY number";
        // converts each row before taking the latest, so that the session's time zone has no effect
        const SAVED: &str = "SELECT family, CAST(MAX(UNIX_TIMESTAMP(applied_at)) * 1000 AS UNSIGNED) \
             FROM counterfoil_ledger GROUP BY family";
        const REJECTS: &str = "SELECT family, CAST(COUNT(*) AS UNSIGNED) FROM counterfoil_rejects \
             WHERE applied_at IS NULL GROUP BY family";
        const RECOUNTS: &str = "SELECT r.family, r.run, r.checked, r.drifted, \
             CAST(UNIX_TIMESTAMP(r.started_at) * 1000 AS UNSIGNED), \
             CAST(UNIX_TIMESTAMP(r.touched_at) * 1000 AS UNSIGNED), \
             CAST(UNIX_TIMESTAMP(r.finished_at) * 1000 AS UNSIGNED) \
             FROM (SELECT family, MAX(run) AS run FROM counterfoil_recounts GROUP BY family) AS latest \
             STRAIGHT_JOIN counterfoil_recounts AS r ON r.family = latest.family AND r.run = latest.run";
        let families = self.primary.fetch(|| sqlx::query(FAMILIES)).await?;
        let mut saved = self
            .by_family(SAVED, |row| row.try_get(1).map(time))
            .await?;
        let mut rejects = self
            .by_family(REJECTS, |row| row.try_get::<u64, _>(1))
            .await?;
        let mut recounts = self.by_family(RECOUNTS, recount).await?;
        let overview = |row: &MySqlRow| {
            let number: u64 = row.try_get(0)?;
            Ok(Overview {
                namespace: text(row, 1)?,
                family: text(row, 2)?,
                last_saved: saved.remove(&number),
                rejects: rejects.remove(&number).unwrap_or(0),
                recount: recounts.remove(&number),
            })
        };
        families.iter().map(overview).collect()
    }

    /// Returns the statement's row of each family, whose number is the first column.
    async fn by_family<T>(
        &self,
        statement: &'static str,
        read: impl Fn(&MySqlRow) -> Result<T, sqlx::Error>,
    ) -> Result<HashMap<u64, T>, sqlx::Error> {
        let rows = self.primary.fetch(|| sqlx::query(statement)).await?;
        rows.iter()
            .map(|row| Ok((row.try_get(0)?, read(row)?)))
            .collect()
    }
}

fn recount(row: &MySqlRow) -> Result<RecountRun, sqlx::Error> {
    Ok(RecountRun {
        run: row.try_get(1)?,
        checked: row.try_get(2)?,
        drifted: row.try_get(3)?,
        started: time(row.try_get(4)?),
        touched: time(row.try_get(5)?),
        finished: row.try_get::<Option<u64>, _>(6)?.map(time),
    })
}

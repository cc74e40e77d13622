//! All families at a glance, for operators: one statement per table, for any number of families.

use std::collections::HashMap;
use std::time::SystemTime;

use super::MysqlStore;
use super::families::NOT_REMOVED;
use super::statement::{Statement, text, time, unix_ms};
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

impl MysqlStore {
    /// Returns the state of every registered family, in the order of registration, by
    /// the same statements for any number of families. They do not read one snapshot.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn overview(&self) -> Result<Vec<Overview>> {
        const UNREAD: &str = "the overview was not read";
        let families = format!(
            "SELECT number, namespace, name FROM counterfoil_families WHERE {NOT_REMOVED} ORDER BY number"
        );
        // converts each row before taking the latest, so that the session's time zone has no effect
        let saved = "SELECT family, CAST(MAX(UNIX_TIMESTAMP(applied_at)) * 1000 AS UNSIGNED) \
             FROM counterfoil_ledger GROUP BY family";
        let rejects = "SELECT family, CAST(COUNT(*) AS UNSIGNED) FROM counterfoil_rejects \
             WHERE applied_at IS NULL GROUP BY family";
        let recounts = format!(
            "SELECT r.family, r.run, r.checked, r.drifted, {}, {}, {} \
             FROM (SELECT family, MAX(run) AS run FROM counterfoil_recounts GROUP BY family) AS latest \
             STRAIGHT_JOIN counterfoil_recounts AS r ON r.family = latest.family AND r.run = latest.run",
            unix_ms("r.started_at"),
            unix_ms("r.touched_at"),
            unix_ms("r.finished_at")
        );
        let families = self.primary.read(UNREAD, Statement::new(families)).await?;
        let saved = self.primary.read(UNREAD, Statement::new(saved)).await?;
        let rejects = self.primary.read(UNREAD, Statement::new(rejects)).await?;
        let recounts = self.primary.read(UNREAD, Statement::new(recounts)).await?;
        let mut saved: HashMap<u64, u64> = saved.into_iter().collect();
        let mut rejects: HashMap<u64, u64> = rejects.into_iter().collect();
        let mut recounts: HashMap<u64, RecountRun> = recounts
            .into_iter()
            .map(
                |(family, run, checked, drifted, started, touched, finished)| {
                    let finished: Option<u64> = finished;
                    let run = RecountRun {
                        run,
                        checked,
                        drifted,
                        started: time(started),
                        touched: time(touched),
                        finished: finished.map(time),
                    };
                    (family, run)
                },
            )
            .collect();
        let overview = |(number, namespace, family)| Overview {
            namespace: text(namespace),
            family: text(family),
            last_saved: saved.remove(&number).map(time),
            rejects: rejects.remove(&number).unwrap_or(0),
            recount: recounts.remove(&number),
        };
        Ok(families.into_iter().map(overview).collect())
    }
}

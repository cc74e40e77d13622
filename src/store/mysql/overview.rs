//! All families at a glance, for operators: one statement for any number of them.

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
    /// The number of rejects.
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
    /// Returns the state of every registered family, in the order of registration, by one statement
    /// for any number of families.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn overview(&self) -> Result<Vec<Overview>> {
        let select = Statement::new(format!(
            "SELECT f.namespace, f.name, \
             (SELECT MAX({}) FROM counterfoil_ledger AS l WHERE l.family = f.number), \
             (SELECT CAST(COUNT(*) AS UNSIGNED) FROM counterfoil_rejects AS o WHERE o.family = f.number), \
             r.run, r.checked, r.drifted, {}, {}, {} \
             FROM counterfoil_families AS f LEFT JOIN counterfoil_recounts AS r ON r.family = f.number \
             AND r.run = (SELECT MAX(run) FROM counterfoil_recounts AS a WHERE a.family = f.number) \
             WHERE {NOT_REMOVED} ORDER BY f.number",
            unix_ms("l.applied_at"),
            unix_ms("r.started_at"),
            unix_ms("r.touched_at"),
            unix_ms("r.finished_at")
        ));
        let rows = self.primary.read("the overview was not read", select);
        let overview = |(
            namespace,
            family,
            saved,
            rejects,
            run,
            checked,
            drifted,
            started,
            touched,
            finished,
        )| {
            let [saved, run, checked, drifted]: [Option<u64>; 4] = [saved, run, checked, drifted];
            let [started, touched, finished] =
                [started, touched, finished].map(|at: Option<u64>| at.map(time));
            let recount = || {
                Some(RecountRun {
                    run: run?,
                    checked: checked?,
                    drifted: drifted?,
                    started: started?,
                    touched: touched?,
                    finished,
                })
            };
            Overview {
                namespace: text(namespace),
                family: text(family),
                last_saved: saved.map(time),
                rejects,
                recount: recount(),
            }
        };
        Ok(rows.await?.into_iter().map(overview).collect())
    }
}

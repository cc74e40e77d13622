//! All families at a glance, for operators: one statement for any number of them.

use std::time::SystemTime;

use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, Row};

use super::families::NOT_REMOVED;
use super::session::Database;
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
    /// The number of the run within the family, as [`MysqlStore::drift`](super::MysqlStore::drift) takes it.
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

/// Reads the state of every registered family, in the order of registration.
pub async fn read(database: &Database) -> Result<Vec<Overview>> {
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
    let rows: Vec<OverviewRow> = database.read("the overview was not read", select).await?;
    Ok(rows.into_iter().map(|OverviewRow(state)| state).collect())
}

/// A row of the statement of [`read`].
struct OverviewRow(Overview);

impl FromRow<'_, MySqlRow> for OverviewRow {
    fn from_row(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        Ok(OverviewRow(Overview {
            namespace: text(row.try_get(0)?),
            family: text(row.try_get(1)?),
            last_saved: row.try_get::<Option<u64>, _>(2)?.map(time),
            rejects: row.try_get(3)?,
            recount: match row.try_get(4)? {
                None => None,
                Some(run) => Some(RecountRun {
                    run,
                    checked: row.try_get(5)?,
                    drifted: row.try_get(6)?,
                    started: time(row.try_get(7)?),
                    touched: time(row.try_get(8)?),
                    finished: row.try_get::<Option<u64>, _>(9)?.map(time),
                }),
            },
        }))
    }
}

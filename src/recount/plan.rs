//! The settings of a recount.

use std::collections::HashSet;
use std::time::Duration;

use serde::Deserialize;
use sqlx::MySqlPool;

/// The treatment of a counter that differs from its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// A note in `counterfoil_drift`, without a correction.
    Report,
    /// A correction of its row by the proven difference, and a note.
    #[default]
    Correct,
}

/// The counters to recount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RecountIds {
    /// The counters of the family's table. Rows that never had a counter are not found.
    #[default]
    Counters,
    /// The ids that have rows. Counters whose rows are all gone are not found.
    Source,
    /// The counters of the table and the ids that have rows.
    Both,
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub replica: Option<MySqlPool>,
    pub ids: RecountIds,
    pub mode: Mode,
    pub rows_are_deleted: bool,
    pub at_most: u64,
    pub leave_out: HashSet<String>,
    pub leave_out_prefixes: Vec<String>,
    pub largest: i64,
    pub ids_per_second: u32,
    pub pause: Duration,
    pub timeout: Duration,
    pub lease: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            replica: None,
            ids: RecountIds::default(),
            mode: Mode::default(),
            rows_are_deleted: false,
            at_most: u64::MAX,
            leave_out: HashSet::new(),
            leave_out_prefixes: Vec::new(),
            largest: i64::MAX,
            ids_per_second: 3_000,
            pause: Duration::ZERO,
            timeout: Duration::from_secs(30),
            lease: Duration::from_mins(1),
        }
    }
}

//! What a recount is to do.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::MySqlPool;

/// What is done about a counter that differs from its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// It is noted in `counterfoil_drift`, and nothing is changed.
    Report,
    /// What is proven to be missing or too much is added to its row, and noted.
    #[default]
    Correct,
}

/// Which counters are recounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecountIds {
    /// Those of the family's table. Rows whose counter was never made are not found.
    #[default]
    Counters,
    /// Those that have rows. Counters whose rows are all gone are not found.
    Source,
    /// All of them.
    Both,
}

/// What a run does.
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
            lease: Duration::from_secs(60),
        }
    }
}

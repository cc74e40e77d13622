//! The settings of a recount, and its progress.

use std::collections::HashSet;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::handle::Handle;
use crate::connection::backoff::Retries;
use crate::error::Result;
use crate::family::Family;
use crate::store::mysql::{MysqlStore, Rows, Source};

/// The time for which a step is retried while a server is unreachable.
pub(super) const AWAY: Duration = Duration::from_mins(1);

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
    pub rows: Rows,
    pub replica: Option<MysqlStore>,
    pub ids: RecountIds,
    pub mode: Mode,
    pub at_most: u64,
    pub leave_out: HashSet<String>,
    pub leave_out_prefixes: Vec<String>,
    pub largest: i64,
    pub ids_per_second: u32,
    pub pause: Duration,
    pub timeout: Duration,
    pub lease: Duration,
}

impl Plan {
    pub fn new(rows: Rows) -> Self {
        Plan {
            rows,
            replica: None,
            ids: RecountIds::default(),
            mode: Mode::default(),
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

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecountProgress {
    /// The number of the run among those of the family, as [`MysqlStore::drift`] takes it.
    pub run: u64,
    /// Counters that were compared with their rows, including those before the run was taken over.
    pub checked: u64,
    /// The compared counters that differ by a proven amount.
    pub drifted: u64,
    /// Counters that were corrected upwards.
    pub raised: u64,
    /// Counters that were corrected downwards.
    pub lowered: u64,
    /// Counters that differ but were only noted; their notes give the reason.
    pub only_noted: u64,
    /// Counters that changed while they were compared. They are left for the next run.
    pub busy: u64,
    /// The approximate number of all counters, 0 if it is unknown.
    pub about: u64,
}

/// A configured recount.
#[derive(Debug)]
pub struct Recounting {
    pub(super) handle: Handle,
    pub(super) mysql: MysqlStore,
    pub(super) source: Source,
    pub(super) within: Duration,
    pub(super) plan: Plan,
    pub(super) progress: watch::Sender<RecountProgress>,
}

impl Recounting {
    pub(crate) fn family(&self) -> &Family {
        self.handle.family()
    }

    /// Returns its name in the log.
    pub(super) fn name(&self) -> String {
        format!("recount of {}", self.family())
    }

    pub(super) fn lease(&self) -> Duration {
        self.plan.lease + self.plan.timeout + self.plan.pause
    }

    /// Returns the longest lag of the rows.
    pub(super) fn lag(&self) -> Duration {
        match self.plan.replica {
            Some(_) => self.within,
            None => Duration::ZERO,
        }
    }

    /// Repeats a step while a server is unreachable, for up to a minute.
    pub(super) async fn repeated<T, F>(&self, mut step: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let (until, mut retries) = (Instant::now() + AWAY, Retries::default());
        loop {
            match step().await {
                Err(error) if Instant::now() < until => {
                    retries.wait_out(self.name(), error).await?;
                }
                result => {
                    retries.succeeded();
                    return result;
                }
            }
        }
    }
}

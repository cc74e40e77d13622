//! The builder of a recount.

use std::future::pending;
use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::sync::watch;

use crate::client::counterfoil::Counterfoil;
use crate::client::handle::Handle;
use crate::client::open::Recountable;
use crate::error::{Error, Result};
use crate::metrics;
use crate::recount::recounter::Recounter;
use crate::recount::recounting::{Mode, Plan, RecountIds, RecountProgress, Recounting};
use crate::store::mysql::{MysqlStore, Rows, Source};
use crate::writer::LONGEST;

/// A recount being configured. [`start`](Self::start) or [`run_once`](Self::run_once) begins it.
#[derive(Clone, Debug)]
#[must_use = "a recount is begun by start() or run_once()"]
pub struct RecountBuilder {
    handle: Handle,
    source: Option<Source>,
    within: Option<Duration>,
    every: Option<RangeInclusive<Duration>>,
    plan: Plan,
}

impl Counterfoil {
    /// Compares the counters of a family with the rows that they count, and corrects them while
    /// counting continues. For an application that may die between a row and its count, or count
    /// twice. Only proven differences are added: no counter is set to a value, or lowered below its
    /// rows. Hits in flight are unaffected (docs/protocol.md, section 9).
    ///
    /// `rows` states whether rows are also deleted or changed, which decides the proof.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use counterfoil::{BufferedCounters, Counterfoil, recount::{Rows, Source}};
    /// # async fn example(counterfoil: Counterfoil, saves: BufferedCounters) -> counterfoil::Result<()> {
    /// const HOUR: Duration = Duration::from_secs(3600);
    /// let recounter = counterfoil
    ///     .recount(&saves, Rows::Added)
    ///     .source(Source::sql("SELECT user_id, COUNT(*) FROM saves WHERE user_id IN (?) GROUP BY user_id"))
    ///     .within(Duration::from_secs(30))
    ///     .every(3 * HOUR..=6 * HOUR)
    ///     .start()?;
    /// # recounter.shutdown().await }
    /// ```
    pub fn recount(&self, counters: &impl Recountable, rows: Rows) -> RecountBuilder {
        RecountBuilder {
            handle: counters.of_recount().clone(),
            source: None,
            within: None,
            every: None,
            plan: Plan::new(rows),
        }
    }
}

impl RecountBuilder {
    /// Sets the source of the rows. Required.
    pub fn source(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets a time longer than the application ever takes from the commit of a row to its count.
    /// Required. A row that is counted later is taken for missing, and then counts twice.
    pub fn within(mut self, time: Duration) -> Self {
        // a year: still in the range of an `Instant`
        self.within = Some(time.min(365 * LONGEST));
        self
    }

    /// Sets the time from the start of a run to the start of the next one, chosen at random from
    /// this range. Runs of all processes count. Required for [`start`](Self::start).
    pub fn every(mut self, times: RangeInclusive<Duration>) -> Self {
        self.every = Some(times);
        self
    }

    /// Counts the rows on the server of that store, a replica. Its lag is part of
    /// [`within`](Self::within). If the server reports the lag to this user (REPLICATION CLIENT, with
    /// MariaDB SLAVE MONITOR), the recount waits while the replica lags by more, behind any of its
    /// sources. Counters above their rows are counted again after `within`, when the replica has
    /// every row that was counted before. A [function](Source::function) that reads a replica needs
    /// this setting too.
    pub fn replica(mut self, replica: MysqlStore) -> Self {
        self.plan.replica = Some(replica);
        self
    }

    /// Selects the counters to recount. Defaults to those of the family's table.
    pub fn ids(mut self, ids: RecountIds) -> Self {
        self.plan.ids = ids;
        self
    }

    /// Sets whether differences are corrected or only reported. Defaults to [`Mode::Correct`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.plan.mode = mode;
        self
    }

    /// Limits corrections to this difference: a larger one is only noted.
    pub fn at_most(mut self, difference: u64) -> Self {
        self.plan.at_most = difference;
        self
    }

    /// Leaves out these ids.
    pub fn leave_out(mut self, ids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.plan.leave_out = ids.into_iter().map(Into::into).collect();
        self
    }

    /// Leaves out the ids that begin with one of these prefixes.
    pub fn leave_out_prefixes(
        mut self,
        prefixes: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.plan.leave_out_prefixes = prefixes.into_iter().map(Into::into).collect();
        self
    }

    /// Leaves out counters above this value: their rows take long to count.
    pub fn largest_count(mut self, value: u64) -> Self {
        self.plan.largest = i64::try_from(value).unwrap_or(i64::MAX);
        self
    }

    /// Limits the recount to this many ids per second, and so its load on the servers. Defaults to
    /// 3,000.
    pub fn ids_per_second(mut self, ids: u32) -> Self {
        self.plan.ids_per_second = ids;
        self
    }

    /// Sets a pause after every page of 1,000 ids.
    pub fn pause(mut self, time: Duration) -> Self {
        self.plan.pause = time.min(LONGEST);
        self
    }

    /// Limits the time of one count of the rows of 1,000 ids. Defaults to 30 s.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.plan.timeout = time.min(LONGEST);
        self
    }

    /// Sets how long a run must be untouched, beyond [`timeout`](Self::timeout) and
    /// [`pause`](Self::pause), before another process continues it. Defaults to 60 s. The lease is
    /// an optimization: correctness never depends on it.
    pub fn lease(mut self, time: Duration) -> Self {
        self.plan.lease = time.min(LONGEST);
        self
    }

    /// Recounts the family now, and returns at the end. That takes [`within`](Self::within), or
    /// twice that if [rows are also deleted](Rows::AddedAndDeleted) and a [`replica`](Self::replica)
    /// counts them, plus the time for counting the rows. If an abandoned run exists, it is finished
    /// from its last position instead of a new one: call this again for a full run.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the source cannot be queried, or returned
    /// something other than row counts; [`Busy`](crate::ErrorKind::Busy): another process works on
    /// a run of this family; [`Redis`](crate::ErrorKind::Redis),
    /// [`Store`](crate::ErrorKind::Store): a server was unreachable for a minute. Corrections made
    /// so far remain, and the next process to begin a run continues this one.
    pub async fn run_once(self) -> Result<RecountProgress> {
        self.run_until(pending())
            .await?
            .ok_or_else(|| Error::corrupt("a recount that nothing stops was stopped"))
    }

    /// Recounts the family now as [`run_once`](Self::run_once) does, and returns `None` if `stop`
    /// completes first. The next process to begin a run then continues this one at once. Without
    /// it, for example if the future of `run_once` is dropped, the run is held for the
    /// [lease](Self::lease).
    ///
    /// # Errors
    /// Those of [`run_once`](Self::run_once).
    pub async fn run_until(
        self,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<RecountProgress>> {
        self.checked()?.run_now(stop).await
    }

    /// Recounts the family repeatedly, on the current tokio runtime. If several processes do this,
    /// one works at a time. If it dies, another one continues.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): a setting is missing or not allowed.
    pub fn start(self) -> Result<Recounter> {
        match &self.every {
            Some(every) if !every.is_empty() && !every.start().is_zero() => {
                let every = every.clone();
                Ok(Recounter::start(self.checked()?, every))
            }
            _ => Err(self.wrong("every() is required and must not be empty")),
        }
    }

    /// Returns the single steps of a run.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn steps(self) -> Result<Recounting> {
        self.checked()
    }

    fn checked(self) -> Result<Recounting> {
        let Some(within) = self.within else {
            return Err(self.wrong("within() is required"));
        };
        let Some(source) = self.source.clone() else {
            return Err(self.wrong("source() is required"));
        };
        source.check(self.handle.family())?;
        if self.plan.ids != RecountIds::Counters && !source.lists_ids() {
            return Err(self.wrong("ids() requires Source::table, the only source that lists ids"));
        }
        if self.plan.ids_per_second == 0 || self.plan.timeout.is_zero() {
            return Err(self.wrong("ids_per_second() and timeout() must be greater than 0"));
        }
        let mysql = self.handle.shared.mysql()?.clone();
        metrics::begin_recount(&self.handle.opened.label);
        Ok(Recounting {
            handle: self.handle,
            mysql,
            source,
            within,
            plan: self.plan,
            progress: watch::Sender::default(),
        })
    }

    fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!("{}: recount: {what}", self.handle.family()))
    }
}

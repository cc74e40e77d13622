//! A recount from its settings.

use std::ops::RangeInclusive;
use std::time::Duration;

use sqlx::MySqlPool;

use crate::client::counterfoil::Counterfoil;
use crate::client::handle::Handle;
use crate::client::open::Recountable;
use crate::error::{Error, Result};
use crate::recount::plan::{Mode, Plan, RecountIds};
use crate::recount::recounter::Recounter;
use crate::recount::run::{Recounted, Recounting};
use crate::store::mysql::Source;

/// A recount being configured; [`start`](Self::start) or [`run_once`](Self::run_once) makes it.
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
    /// Compares the counters of a family with the rows that they stand for, and corrects them, while everything counts: for an
    /// application that may die between a row and the count of it, or count twice. No counter is ever set to a value or
    /// lower than its rows say, and what is on its way stays so (docs/protocol.md, section 9).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use counterfoil::{BufferedCounters, Counterfoil, Source};
    /// # async fn example(counterfoil: Counterfoil, saves: BufferedCounters) -> counterfoil::Result<()> {
    /// const HOUR: Duration = Duration::from_secs(3600);
    /// let recounter = counterfoil
    ///     .recount(&saves)
    ///     .source(Source::sql("SELECT user_id, COUNT(*) FROM saves WHERE user_id IN (?) GROUP BY user_id"))
    ///     .within(Duration::from_secs(30))
    ///     .every(3 * HOUR..=6 * HOUR)
    ///     .start()?;
    /// # recounter.shutdown().await }
    /// ```
    pub fn recount(&self, counters: &impl Recountable) -> RecountBuilder {
        RecountBuilder {
            handle: counters.of_recount().clone(),
            source: None,
            within: None,
            every: None,
            plan: Plan::default(),
        }
    }
}

impl RecountBuilder {
    /// Where the rows are. Has to be given.
    pub fn source(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    /// Longer than the application ever takes from the commit of a row to the count of it. Has to be given: what is
    /// counted later than that is taken for missing, and then counts twice.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = Some(time);
        self
    }

    /// How long after the begin of a run the next one begins, at random between the two, whichever process makes it. For
    /// [`start`](Self::start).
    pub fn every(mut self, times: RangeInclusive<Duration>) -> Self {
        self.every = Some(times);
        self
    }

    /// Counts the rows on a copy of the database. Its lag is part of [`within`](Self::within): where the server tells it to
    /// this user (REPLICATION CLIENT, with MariaDB SLAVE MONITOR), a copy that is behind by more is waited for.
    pub fn replica(mut self, pool: MySqlPool) -> Self {
        self.plan.replica = Some(pool);
        self
    }

    /// Which counters are recounted: those of the family's table unless said otherwise.
    pub fn ids(mut self, ids: RecountIds) -> Self {
        self.plan.ids = ids;
        self
    }

    /// Whether what is found is corrected, which it is unless said otherwise.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.plan.mode = mode;
        self
    }

    /// The careful way, for rows that are also deleted, as likes that are taken back: a counter is corrected only if neither it
    /// nor its rows moved meanwhile. Others are looked at three times in a run, and are then left for the next one.
    pub fn rows_are_deleted(mut self, deleted: bool) -> Self {
        self.plan.rows_are_deleted = deleted;
        self
    }

    /// What differs by more is only noted.
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
    pub fn leave_out_prefixes(mut self, prefixes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.plan.leave_out_prefixes = prefixes.into_iter().map(Into::into).collect();
        self
    }

    /// Leaves out counters that stand higher: their rows are the ones that take long to count.
    pub fn largest_count(mut self, value: u64) -> Self {
        self.plan.largest = i64::try_from(value).unwrap_or(i64::MAX);
        self
    }

    /// At most so many ids a second, 3,000 unless said otherwise: what a recount takes from others.
    pub fn ids_per_second(mut self, ids: u32) -> Self {
        self.plan.ids_per_second = ids;
        self
    }

    /// A pause after every page of 1,000 ids.
    pub fn pause(mut self, time: Duration) -> Self {
        self.plan.pause = time;
        self
    }

    /// How long one count of the rows of 1,000 ids may take; 30 s unless said otherwise.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.plan.timeout = time;
        self
    }

    /// How long a run is left alone that nobody touches, beyond [`timeout`](Self::timeout) and [`pause`](Self::pause), before
    /// another process goes on with it; 60 s unless said otherwise. It saves work: correctness never depends on it.
    pub fn lease(mut self, time: Duration) -> Self {
        self.plan.lease = time;
        self
    }

    /// Recounts the whole family now, and returns when that is done: after [`within`](Self::within), and as long as the
    /// counting takes. A run that somebody began and left is finished in place of a new one, from where it was
    /// left: call it once more for a whole one.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the source cannot be asked, or what it returned is no number of
    /// rows; [`Busy`](crate::ErrorKind::Busy): another process works on a run of this family;
    /// [`Redis`](crate::ErrorKind::Redis), [`Store`](crate::ErrorKind::Store): one was away for a minute. What was corrected by
    /// then stays, and the run is gone on with by whoever begins one next.
    pub async fn run_once(self) -> Result<Recounted> {
        self.checked()?.run_now().await
    }

    /// Recounts the family again and again, on the current tokio runtime. Of several processes that do so one works at a
    /// time; where it dies another one goes on.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): something is not given, or not allowed.
    pub fn start(self) -> Result<Recounter> {
        let Some(every) = self.every.clone().filter(|every| !every.is_empty() && !every.start().is_zero()) else {
            return Err(self.wrong("every() is not given, or empty"));
        };
        Ok(Recounter::start(self.checked()?, every))
    }

    /// The single steps of a run.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn steps(self) -> Result<Recounting> {
        self.checked()
    }

    fn checked(self) -> Result<Recounting> {
        let Some(within) = self.within else { return Err(self.wrong("within() is not given")) };
        let Some(source) = self.source.clone() else { return Err(self.wrong("source() is not given")) };
        source.check(self.handle.family())?;
        if self.plan.ids != RecountIds::Counters && !source.lists_ids() {
            return Err(self.wrong("only a table tells which ids have rows: ids() is for Source::table"));
        }
        if self.plan.ids_per_second == 0 || self.plan.timeout.is_zero() {
            return Err(self.wrong("ids_per_second() and timeout() are more than 0"));
        }
        Recounting::new(self.handle, source, within, self.plan)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!("{}: a recount: {what}", self.handle.family()))
    }
}

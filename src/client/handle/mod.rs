//! The common part of the handles of all kinds.

pub mod exact;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::admin::backlog::Backlog;
use crate::connection::backoff::Backoff;
use crate::connection::outage::is_outage;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::calendar::{Calendar, Precision, unix_seconds};
use crate::process::family::OpenFamily;
use crate::process::shared::Shared;
use crate::scripts::counting::{PairResult, Update};
use crate::scripts::keys::Keys;
use crate::scripts::partition::Partition;
use crate::store::Registration;
use crate::writer::{Deadline, LONGEST, Request, WriteOptions, Writer};

/// The extra time of a whole read after its deadline. The wait for the database ends at the
/// deadline, and its error is more specific than that of the whole read.
pub const LAST_MOMENT: Duration = Duration::from_millis(20);

/// A family in use. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Handle {
    pub shared: Arc<Shared>,
    pub opened: Arc<OpenFamily>,
    pub writer: Arc<Writer>,
    pub timeouts: Timeouts,
}

/// The time limits of calls, including retries.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub write: Duration,
    pub read: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            write: Duration::from_secs(1),
            read: Duration::from_millis(500),
        }
    }
}

/// The start and the deadline of a read with its retries.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    began: Instant,
    pub deadline: Instant,
}

impl Handle {
    /// Returns the configuration.
    pub fn family(&self) -> &Family {
        &self.opened.family
    }

    /// Refuses an id that can have no row, or a name or page whose kept ids can have none.
    pub fn check_given(&self, id: &str) -> Result<()> {
        self.opened.check_given(id)
    }

    /// Returns the ids, if each can have a row.
    pub fn check_all_given<I: AsRef<str>>(
        &self,
        ids: impl IntoIterator<Item = I>,
    ) -> Result<Vec<I>> {
        let checked = |id: I| self.check_given(id.as_ref()).map(|()| id);
        ids.into_iter().map(checked).collect()
    }

    /// Returns the family as registered in the database.
    pub async fn registered(&self) -> Result<Arc<Registration>> {
        self.shared.registered(&self.opened).await
    }

    /// Counts one hit, and waits for room if `wait` is set.
    pub async fn add(&self, key: &[u8], delta: i64, wait: bool) -> Result<PairResult> {
        let options = WriteOptions {
            wait,
            ..self.write_deadline().into()
        };
        let update = Update::Add(delta);
        self.writer.change(key, update, None, options).await
    }

    /// Returns the time limits of a counting call that begins now.
    pub fn write_deadline(&self) -> Deadline {
        Deadline::within(self.timeouts.write)
    }

    /// Returns the generation in which Redis remembers the request if it is made now.
    pub async fn request_epoch(&self, request: &str, id: &str) -> Result<String> {
        let request = Request::new(&self.opened, request, id, 0)?;
        let number = request.partition(self.family());
        let epoch = |wait| self.ask(number, wait, self.writer.request_epoch(request));
        self.repeating(epoch).await
    }

    /// Counts the hits that are not refused already, and returns the outcome of each, in their
    /// order.
    pub async fn add_many(&self, hits: Vec<Result<(&[u8], i64)>>) -> Vec<Result<PairResult>> {
        let checked: Vec<_> = hits
            .iter()
            .filter_map(|hit| hit.as_ref().ok().copied())
            .collect();
        let options = self.write_deadline().into();
        let mut results = self.writer.add_many(&checked, options).await.into_iter();
        let mut next = || {
            results
                .next()
                .unwrap_or_else(|| Err(Error::corrupt("a hit of many has no result")))
        };
        hits.into_iter()
            .map(|hit| hit.and_then(|_| next()))
            .collect()
    }

    /// Groups the indexes of row ids by the partitions of each: its own, or all of a wide family. A
    /// group fits into one read.
    pub fn by_partition_of_row(&self, ids: &[&str]) -> Vec<(u32, Vec<usize>)> {
        let indexes = ids.iter().enumerate().flat_map(|(index, id)| {
            let partitions = self.family().partitions_of_row(id);
            partitions.map(move |partition| (partition, index))
        });
        by_partition(indexes, Partition::READ_IDS)
    }

    /// Returns the starts of all slices that overlap the range. A range with too many of them is an
    /// error, which calls them `slices`.
    pub fn starts(
        &self,
        calendar: &Calendar,
        precision: Precision,
        range: &Range<SystemTime>,
        slices: &str,
    ) -> Result<Vec<i64>> {
        let (Range { start, end }, most) = (unix_seconds(range), Family::MAX_RANGE);
        let starts = calendar.starts(precision, start, end, most)?;
        starts.ok_or_else(|| {
            let family = self.family();
            let range = format!("{family}: {start}..{end} in Unix time");
            Error::invalid(format!("{range} has more than {most} {slices}"))
        })
    }

    pub fn partition(&self, number: u32) -> Partition {
        self.shared.partition(self.family(), number)
    }

    /// Makes a read whose script compares this process's settings with those at the home of the
    /// partition's calls. The read returns `None` if they differ, or if Redis lost them. This
    /// process then asks for the settings again, and the error is retryable.
    pub async fn read_of_home<T, F>(&self, number: u32, read: impl FnOnce(Keys) -> F) -> Result<T>
    where
        F: Future<Output = Result<Option<T>>>,
    {
        let home = self.shared.home(self.family(), number);
        if let Some(read) = read(home).await? {
            return Ok(read);
        }
        self.writer.route().renew(number).await?;
        let what = format!("{}: its windows in Redis are others", self.family());
        Err(Error::redis(what))
    }

    pub async fn backlog(&self) -> Result<Backlog> {
        self.shared.backlog(self.family()).await
    }

    /// Retries a read with a retryable error, until the read timeout. `read` receives the limits of
    /// its waits. A read that has not ended [`LAST_MOMENT`] after its deadline fails with the error
    /// for a silent Redis.
    pub async fn repeating<T, F>(&self, mut read: impl FnMut(Wait) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let began = Instant::now();
        let deadline = began + self.timeouts.read.min(LONGEST);
        let wait = Wait { began, deadline };
        let (mut pause, mut known) = (Backoff::default(), None);
        loop {
            let late = |_| Err(self.late(ErrorKind::Redis, self.timeouts.read));
            let done = timeout_at(deadline + LAST_MOMENT, read(wait)).await;
            match done.unwrap_or_else(late) {
                Err(error) if error.is_retryable() && !is_outage(&error) => {
                    let now = Instant::now();
                    if now >= deadline {
                        // the last attempt may have had no time, so the error before it says more
                        return Err(known.unwrap_or(error));
                    }
                    known = Some(error);
                    sleep_until(deadline.min(now + pause.next())).await;
                }
                result => return result,
            }
        }
    }

    /// Returns the reply of Redis to a read of this partition, or an error at the end of the read's
    /// time. During an outage it fails at once, without asking Redis.
    pub async fn ask<T>(
        &self,
        number: u32,
        wait: Wait,
        asked: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let route = self.writer.route();
        route.outage(number).check(self.family()).await?;
        let late = |_| Err(self.late(ErrorKind::Redis, self.timeouts.read));
        let asked = route.outage(number).heard(asked);
        let reply = timeout_at(wait.deadline + LAST_MOMENT, asked).await;
        let reply = reply.unwrap_or_else(late);
        if let Err(error) = &reply {
            route.failed(number, wait.began, error);
        }
        reply
    }

    /// Returns the database's reply, or an error at the deadline.
    pub async fn stored_by<T>(
        &self,
        deadline: Instant,
        asked: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timeout_at(deadline, asked)
            .await
            .unwrap_or_else(|_| Err(self.late(ErrorKind::Store, self.timeouts.read)))
    }

    /// Returns the error for a server that did not reply within the limit.
    pub fn late(&self, kind: ErrorKind, limit: Duration) -> Error {
        let family = self.family();
        let server = match kind {
            ErrorKind::Store => "the database",
            _ => "Redis",
        };
        let late = format!("{family}: no reply from {server} within {limit:?}");
        Error::new(kind, late)
    }
}

/// Groups items by their partitions, in groups of `most` items at most.
pub fn by_partition<T: Clone>(
    items: impl IntoIterator<Item = (u32, T)>,
    most: usize,
) -> Vec<(u32, Vec<T>)> {
    let mut partitions: BTreeMap<u32, Vec<T>> = BTreeMap::new();
    for (partition, item) in items {
        partitions.entry(partition).or_default().push(item);
    }
    let mut groups = Vec::new();
    for (partition, items) in partitions {
        groups.extend(items.chunks(most).map(|some| (partition, some.to_vec())));
    }
    groups
}

pub fn borrowed_ids(ids: &[impl AsRef<str>]) -> Vec<&str> {
    ids.iter().map(AsRef::as_ref).collect()
}

/// The methods that the handles of all kinds share.
macro_rules! handle_methods {
    ($handle:tt) => {
        /// Sets the time limit of a counting call by this handle and its clones, including retries
        /// and reads of the database; defaults to 1 s.
        #[must_use]
        pub fn write_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.$handle.timeouts.write = timeout;
            self
        }

        /// Sets the time limit of a read by this handle and its clones, including retries; defaults
        /// to 0.5 s.
        #[must_use]
        pub fn read_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.$handle.timeouts.read = timeout;
            self
        }

        /// Returns the configuration.
        pub fn family(&self) -> &crate::family::Family {
            self.$handle.family()
        }

        /// Returns the family's backlog: what waits in Redis for the database, from all processes.
        /// It needs neither a reconciler nor the database. It sets no gauge:
        /// [`Counterfoil::backlogs`](crate::Counterfoil::backlogs) does, because it sees all
        /// families of a name.
        ///
        /// # Errors
        /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
        pub async fn backlog(&self) -> crate::error::Result<crate::admin::backlog::Backlog> {
            self.$handle.backlog().await
        }
    };
}
pub(crate) use handle_methods;

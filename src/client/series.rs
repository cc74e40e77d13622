//! The handle of a series family: counting and reading.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::Stream;
use futures_util::future::try_join_all;

use crate::client::handle::{Handle, borrowed_ids, by_partition, handle_methods};
use crate::client::open::FamilyHandle;
use crate::client::outcome::Outcome;
use crate::client::pages::{self, PAGE};
use crate::error::{Error, Result};
use crate::family::calendar::{Precision, time_at};
use crate::family::kind::{Kind, Window, Windows, timed};
use crate::scripts::counting::PairResult;
use crate::scripts::partition::Partition;
use crate::writer::Recorded;

/// One slice of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slice {
    /// The start of the slice.
    pub start: SystemTime,
    /// The sum of its hits.
    pub count: i64,
}

/// The series of one open family: named counters, each at all precisions of the family
/// (docs/protocol.md, section 5). Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Series {
    pub(super) handle: Handle,
    windows: Arc<Windows>,
}

impl FamilyHandle for Series {
    fn of(handle: Handle) -> Result<Self> {
        let Kind::Series(windows) = &handle.family().kind else {
            return Err(handle.family().is_not("series"));
        };
        Ok(Series {
            windows: windows.clone(),
            handle,
        })
    }
}

impl Series {
    handle_methods!(handle);

    /// Counts `n` for the series `name`, of 1 to 200 bytes, in the current slice of every
    /// precision. Returns `n` as the value when Redis has counted it. The Redis server's clock alone
    /// determines the current slices. Callers share calls as for
    /// [`BufferedCounters::add`](crate::BufferedCounters::add).
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the name is not allowed, or `n` is 0 or
    /// beyond i64. [`Redis`](crate::ErrorKind::Redis): not counted; the call may be retried.
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): counted once or not at all. The reply
    /// was lost, and could not be requested again within the [write timeout](Self::write_timeout).
    pub async fn add(&self, name: &str, n: u64) -> Result<Outcome> {
        self.count(name, n, None).await
    }

    /// Counts a hit that happened at this time, for queues, logs and imports. It counts in the
    /// slices of that time: in each window that still has it, and in what is
    /// [kept](crate::FamilyBuilder::keep), up to the family's
    /// [`late`](crate::FamilyBuilder::late). A time up to a minute ahead counts as now. Any other
    /// time is refused as [`Outcome::BadTime`].
    ///
    /// # Errors
    /// Those of [`add`](Self::add).
    pub async fn add_at(&self, name: &str, n: u64, at: SystemTime) -> Result<Outcome> {
        self.count(name, n, Some(unix_millis(at))).await
    }

    async fn count(&self, name: &str, n: u64, at_ms: Option<u64>) -> Result<Outcome> {
        let amount = self.checked(name, n)?;
        let key = timed::key(name, at_ms);
        let result = self.handle.add(&key, amount, true).await?;
        self.outcome(name, amount, result)
    }

    /// Counts many names at once, and returns the outcome of each, in their order. A name that is
    /// not allowed fails alone.
    ///
    /// # Errors
    /// Each outcome may have the errors of [`add`](Self::add).
    pub async fn add_many(
        &self,
        hits: impl IntoIterator<Item = (impl AsRef<str>, u64)>,
    ) -> Vec<Result<Outcome>> {
        let hits: Vec<_> = hits.into_iter().collect();
        let keys: Vec<_> = hits
            .iter()
            .map(|(name, _)| timed::key(name.as_ref(), None))
            .collect();
        let checked = hits
            .iter()
            .zip(&keys)
            .map(|((name, n), key)| self.checked(name.as_ref(), *n).map(|n| (key.as_slice(), n)));
        let results = self.handle.add_many(checked.collect()).await;
        results
            .into_iter()
            .zip(&hits)
            .map(|(result, (name, n))| self.outcome(name.as_ref(), *n as i64, result?))
            .collect()
    }

    /// Counts `n` without waiting for Redis: the hit is summed in this process and sent within a
    /// few milliseconds. It counts in the slices that are current on arrival. Unsent hits are lost
    /// when the process is killed; call [`flush`](Self::flush) before it ends.
    ///
    /// # Errors
    /// See [`BufferedCounters::record`](crate::BufferedCounters::record).
    pub fn record(&self, name: &str, n: u64) -> Result<()> {
        let amount = self.checked(name, n)?;
        self.handle.writer.record(&timed::key(name, None), amount)
    }

    /// Counts a hit that happened at this time, as [`add_at`](Self::add_at) does, but without
    /// waiting for Redis, like [`record`](Self::record).
    ///
    /// # Errors
    /// See [`BufferedCounters::record`](crate::BufferedCounters::record).
    pub fn record_at(&self, name: &str, n: u64, at: SystemTime) -> Result<()> {
        let amount = self.checked(name, n)?;
        let key = timed::key(name, Some(unix_millis(at)));
        self.handle.writer.record(&key, amount)
    }

    /// Waits until Redis has counted or refused everything that was recorded before the call, and
    /// returns the outcome.
    ///
    /// # Errors
    /// See [`BufferedCounters::flush`](crate::BufferedCounters::flush).
    pub async fn flush(&self) -> Result<Recorded> {
        self.handle.writer.flush().await
    }

    /// Returns the window of a precision: all its slices in order, with 0 where nothing was
    /// counted. The last one is the current slice by the Redis server's clock. The call reads Redis
    /// alone: after Redis has lost its memory, the window holds only later hits.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the family has no such precision.
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
    pub async fn get(&self, name: &str, precision: Precision) -> Result<Vec<Slice>> {
        let mut series = self.get_many(&[name], precision).await?;
        Ok(series.pop().unwrap_or_default())
    }

    /// Returns the windows of many series, in the order of their names.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub async fn get_many(
        &self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        precision: Precision,
    ) -> Result<Vec<Vec<Slice>>> {
        let names: Vec<_> = names.into_iter().collect();
        let windows = self.windows_of(&borrowed_ids(&names), precision).await?;
        let slices = |window: Vec<_>| window.into_iter().map(slice).collect();
        Ok(windows.into_iter().map(slices).collect())
    }

    /// Returns the windows with their starts in Unix seconds.
    async fn windows_of(
        &self,
        names: &[&str],
        precision: Precision,
    ) -> Result<Vec<Vec<(i64, i64)>>> {
        self.window(precision)?;
        names.iter().try_for_each(|name| self.check_name(name))?;
        let indexes = names
            .iter()
            .enumerate()
            .map(|(index, name)| (self.family().partition_of(name), index));
        let groups = by_partition(indexes, Partition::WINDOWS);
        let reads = groups.into_iter().map(|(number, some)| async move {
            let some_names: Vec<_> = some.iter().map(|index| names[*index]).collect();
            let partition = &self.handle.partition(number);
            let windows = |home| partition.windows(home, precision, &some_names);
            let ask = |wait| {
                let reading = self.handle.read_of_home(number, windows);
                self.handle.ask(number, wait, reading)
            };
            Ok::<_, Error>((some, self.handle.repeating(ask).await?))
        });
        let mut series = vec![Vec::new(); names.len()];
        for (some, (starts, counts)) in try_join_all(reads).await? {
            for (index, counts) in some.into_iter().zip(counts) {
                series[index] = starts.iter().copied().zip(counts).collect();
            }
        }
        Ok(series)
    }

    /// Returns all slices that overlap `range`, in order, with 0 where nothing was counted: up to
    /// [`Family::MAX_RANGE`](crate::Family::MAX_RANGE).
    ///
    /// Slices of a [kept](crate::FamilyBuilder::keep) precision are exact, however old they
    /// are, and whether they are in Redis, on their way or in the database. If Redis loses its
    /// memory, only hits that were not yet in the database are missing. For other precisions only
    /// the window in Redis is available.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the family has no such precision, the
    /// range has too many slices, or it begins before the window of a precision that is not kept.
    /// [`Redis`](crate::ErrorKind::Redis) or [`Store`](crate::ErrorKind::Store) if that server is
    /// unreachable.
    pub async fn get_range(
        &self,
        name: &str,
        precision: Precision,
        range: Range<SystemTime>,
    ) -> Result<Vec<Slice>> {
        let window = self.window(precision)?;
        self.check_name(name)?;
        let calendar = &self.windows.calendar;
        let slices = format!("slices of {precision}");
        let starts = self.handle.starts(calendar, precision, &range, &slices)?;
        if window.kept {
            self.kept(name, precision, &starts).await
        } else {
            self.part_of_window(name, precision, &starts).await
        }
    }

    /// Returns up to `limit` names that begin with `prefix` and follow `after` in byte order,
    /// ascending. Pass the last one as `after` for the next page. A name that has nothing left in
    /// any window is not included.
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
    pub async fn names(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>> {
        let pages = (0..self.family().partitions())
            .map(|number| self.names_of(number, prefix, after, limit));
        let names: BTreeSet<_> = try_join_all(pages).await?.into_iter().flatten().collect();
        Ok(names.into_iter().take(limit).collect())
    }

    /// Returns all names that begin with `prefix`, like [`names`](Self::names), as a stream that
    /// reads page by page. It ends after an error.
    ///
    /// # Errors
    /// See [`names`](Self::names).
    pub fn names_all(
        &self,
        prefix: &str,
    ) -> impl Stream<Item = Result<String>> + Send + Unpin + use<> {
        let (series, prefix) = (self.clone(), prefix.to_owned());
        let page = move |after: Option<String>| {
            let (series, prefix) = (series.clone(), prefix.clone());
            async move { series.names(&prefix, after.as_deref(), PAGE).await }
        };
        pages::all(page, String::as_str)
    }

    /// Returns the first names of one partition after `after`.
    async fn names_of(
        &self,
        number: u32,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>> {
        let partition = self.handle.partition(number);
        // The script takes only an `after` with the prefix. Any other one comes before all names
        // with the prefix, or after all of them.
        let mut after = match after.unwrap_or_default() {
            after if after.starts_with(prefix) => after.as_bytes().to_vec(),
            after if after > prefix => return Ok(Vec::new()),
            _ => Vec::new(),
        };
        let mut names = Vec::new();
        while names.len() < limit {
            let ask = |wait| {
                let reading = partition.names(prefix, &after, limit.min(PAGE));
                self.handle.ask(number, wait, reading)
            };
            let (page, last) = self.handle.repeating(ask).await?;
            names.extend(page);
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
        Ok(names)
    }

    /// Reads slices of a kept precision.
    async fn kept(&self, name: &str, precision: Precision, starts: &[i64]) -> Result<Vec<Slice>> {
        let ids = starts
            .iter()
            .map(|start| self.windows.kept_id(precision, *start, name))
            .collect::<Result<Vec<_>>>()?;
        let counts = self.handle.exact(&borrowed_ids(&ids)).await?;
        Ok(starts.iter().copied().zip(counts).map(slice).collect())
    }

    /// Reads slices of the window in Redis.
    async fn part_of_window(
        &self,
        name: &str,
        precision: Precision,
        starts: &[i64],
    ) -> Result<Vec<Slice>> {
        let mut windows = self.windows_of(&[name], precision).await?;
        let window = windows.pop().unwrap_or_default();
        let first = window.first().map_or(0, |(start, _)| *start);
        if let Some(early) = starts.first().filter(|start| **start < first) {
            let family = self.family();
            return Err(Error::invalid(format!(
                "{family}: slices of {precision} are not kept, and exist from {first} on in Unix time, not from {early}"
            )));
        }
        Ok(filled(starts, window).into_iter().map(slice).collect())
    }

    fn window(&self, precision: Precision) -> Result<&Window> {
        let absent = || Error::invalid(format!("{}: has no slices of {precision}", self.family()));
        self.windows.of(precision).ok_or_else(absent)
    }

    fn checked(&self, name: &str, n: u64) -> Result<i64> {
        self.check_name(name)?;
        match i64::try_from(n) {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(Error::invalid(format!(
                "{}: {n} for {name:?} is not in the range 1 to {}",
                self.family(),
                i64::MAX
            ))),
        }
    }

    /// Returns the outcome of a hit. The script returns no sums: the value is what was added.
    fn outcome(&self, name: &str, n: i64, result: PairResult) -> Result<Outcome> {
        Ok(match Outcome::of(result, self.family(), name)? {
            Outcome::Counted(_) => Outcome::Counted(n),
            refused => refused,
        })
    }

    /// Refuses a name that is too long, or that cannot be in a row of the family's table.
    fn check_name(&self, name: &str) -> Result<()> {
        self.handle.check_given(name)
    }
}

/// Converts a start in Unix seconds and its count.
fn slice((start, count): (i64, i64)) -> Slice {
    Slice {
        start: time_at(start),
        count,
    }
}

/// Returns the counts at the given starts, with 0 for a start without one.
fn filled(starts: &[i64], counts: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    let mut slices: Vec<_> = starts.iter().map(|&start| (start, 0)).collect();
    for (start, count) in counts {
        if let Ok(index) = starts.binary_search(&start) {
            slices[index].1 = count;
        }
    }
    slices
}

/// Returns a time in Unix milliseconds, or 0 for a time before 1970.
fn unix_millis(at: SystemTime) -> u64 {
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

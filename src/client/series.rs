//! A family of series in use: counting and reading.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::Stream;
use futures_util::future::try_join_all;

use crate::client::handle::{Handle, handle_methods};
use crate::client::open::OpenFamily;
use crate::client::pages::{self, PAGE};
use crate::error::{Error, Result};
use crate::family::calendar::{Precision, time_at, unix_seconds};
use crate::family::{Family, Kind, SeriesFamily, Window, Windows};
use crate::scripts::partition::PairResult;
use crate::scripts::partition::Partition;
use crate::scripts::series::seconds;
use crate::writer::Recorded;

/// One slice of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slice {
    /// When it begins.
    pub start: SystemTime,
    /// What was counted in it.
    pub count: i64,
}

/// What became of one hit on a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a hit that was refused is not counted"]
pub enum SeriesAdded {
    /// It is counted in the current slice of every precision.
    Counted,
    /// Not counted in any: the sum of a slice would leave the signed 64-bit range.
    OutOfRange,
}

/// The series of one open family: named counters, each at all of the family's precisions (docs/protocol.md, section 5). Cloning is
/// cheap.
#[derive(Clone, Debug)]
pub struct Series {
    handle: Handle,
    windows: Arc<Windows>,
}

impl OpenFamily for SeriesFamily {
    type Handle = Series;

    fn in_use(self, handle: Handle) -> Result<Series> {
        let Kind::Series(windows) = &handle.family().kind else { return Err(handle.family().is_not("series")) };
        Ok(Series { windows: windows.clone(), handle })
    }
}

impl Series {
    handle_methods!(handle);

    /// Counts `n` for the series of that name, of 1 to 200 bytes, in the current slice of every precision, and returns
    /// when Redis has done it. What the current slices are is up to the Redis server's clock alone. Callers share calls as
    /// they do for [`BufferedCounters::add`](crate::BufferedCounters::add).
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the name is not allowed, or `n` is 0 or beyond i64.
    /// [`Redis`](crate::ErrorKind::Redis): not counted; may be called again.
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): counted once or not at all, the reply was lost and could
    /// not be asked for again within the [write timeout](Self::write_timeout).
    pub async fn add(&self, name: &str, n: u64) -> Result<SeriesAdded> {
        let n = self.checked(name, n)?;
        let added = self.handle.writer.add(name.as_bytes(), n, self.handle.timeout, true).await?;
        self.added(name, added)
    }

    /// Counts many names at once, and returns what became of each, in their order. One that is not allowed is refused by
    /// itself.
    ///
    /// # Errors
    /// For each as for [`add`](Self::add).
    pub async fn add_many(&self, hits: impl IntoIterator<Item = (impl AsRef<str>, u64)>) -> Vec<Result<SeriesAdded>> {
        let hits: Vec<_> = hits.into_iter().collect();
        let checked = hits.iter().map(|(name, n)| {
            let name = name.as_ref();
            self.checked(name, *n).map(|n| (name.as_bytes(), n))
        });
        let results = self.handle.add_many(checked.collect()).await;
        results.into_iter().zip(&hits).map(|(result, (name, _))| self.added(name.as_ref(), result?)).collect()
    }

    /// Counts `n` without waiting for Redis: summed in this process, and sent within a few milliseconds, when it counts in
    /// the slices that are the current ones then. What was not sent yet is lost when the process is killed;
    /// [`flush`](Self::flush) before.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), [`Busy`](crate::ErrorKind::Busy): as for
    /// [`BufferedCounters::record`](crate::BufferedCounters::record).
    pub fn record(&self, name: &str, n: u64) -> Result<()> {
        self.handle.writer.record(name.as_bytes(), self.checked(name, n)?)
    }

    /// Returns when Redis has counted, or refused, everything that was recorded before the call: with what became of it.
    ///
    /// # Errors
    /// As for [`BufferedCounters::flush`](crate::BufferedCounters::flush).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn flush(&self) -> Result<Recorded> {
        self.handle.writer.flush().await
    }

    /// The window of that precision: every slice of it, in order, with 0 where nothing was counted; the last one is the
    /// current one by the Redis server's clock. It asks Redis alone: after Redis lost its memory it holds what was
    /// counted since.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the family has no such precision.
    /// [`Redis`](crate::ErrorKind::Redis) where it cannot be asked.
    pub async fn get(&self, name: &str, precision: Precision) -> Result<Vec<Slice>> {
        Ok(self.get_many(&[name], precision).await?.pop().unwrap_or_default())
    }

    /// The windows of many series, in the order of their names.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_many(
        &self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        precision: Precision,
    ) -> Result<Vec<Vec<Slice>>> {
        let names: Vec<_> = names.into_iter().collect();
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let windows = self.windows_of(&names, precision).await?.into_iter();
        Ok(windows.map(|window| window.into_iter().map(slice).collect()).collect())
    }

    /// The windows with their starts in Unix seconds.
    async fn windows_of(&self, names: &[&str], precision: Precision) -> Result<Vec<Vec<(i64, i64)>>> {
        let window = self.window(precision)?;
        names.iter().try_for_each(|name| self.check_name(name))?;
        let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (place, name) in names.iter().enumerate() {
            places.entry(self.family().partition_of(name)).or_default().push(place);
        }
        let chunks =
            places.iter().flat_map(|(number, places)| places.chunks(Partition::WINDOWS).map(|some| (*number, some)));
        let reads = chunks.map(|(number, some)| {
            let some_names: Vec<_> = some.iter().map(|place| names[*place]).collect();
            let partition = self.handle.partition(number);
            async move {
                Ok::<_, Error>((some, self.handle.repeating(|_| partition.windows(precision, &some_names)).await?))
            }
        });
        let mut series = vec![Vec::new(); names.len()];
        for (some, (now, counts)) in try_join_all(reads).await? {
            let starts = self.windows.calendar.window(precision, window.slices, seconds(now))?;
            for (place, counts) in some.iter().zip(counts) {
                series[*place] = filled(&starts, counts);
            }
        }
        Ok(series)
    }

    /// All slices with any part of the time given, in order, with 0 where nothing was counted: up to
    /// [`Family::MAX_RANGE`] of them.
    ///
    /// Slices of a precision that is [kept](crate::SeriesFamilyBuilder::keep) are exact wherever they are by now, in Redis,
    /// on their way or in the database, however long ago they were, and also after Redis lost its memory (but for what it
    /// lost that was not yet in the database). Of the other precisions there is the window in Redis.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the family has no such precision, the range has too many
    /// slices, or it begins before the window of a precision that is not kept. [`Redis`](crate::ErrorKind::Redis) or
    /// [`Store`](crate::ErrorKind::Store) where one of the two cannot be asked.
    pub async fn get_range(&self, name: &str, precision: Precision, range: Range<SystemTime>) -> Result<Vec<Slice>> {
        let window = self.window(precision)?;
        self.check_name(name)?;
        let Range { start, end } = unix_seconds(&range);
        let starts = self.windows.calendar.starts(precision, start, end, Family::MAX_RANGE)?;
        let Some(starts) = starts else {
            let family = self.family();
            let most = Family::MAX_RANGE;
            let message = format!("{family}: {start}..{end} in Unix time has more than {most} slices of {precision}");
            return Err(Error::invalid(message));
        };
        if window.kept {
            self.kept(name, precision, &starts).await
        } else {
            self.part_of_window(name, precision, &starts).await
        }
    }

    /// Up to `limit` names that begin with `prefix` and come after `after` in byte order, ascending; pass the last one as
    /// `after` for the next page. Those of which nothing is in any window any more are not among them.
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) where it cannot be asked.
    pub async fn names(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let pages = (0..self.family().partitions()).map(|number| self.names_of(number, prefix, after, limit));
        let names: BTreeSet<_> = try_join_all(pages).await?.into_iter().flatten().collect();
        Ok(names.into_iter().take(limit).collect())
    }

    /// All names that begin with `prefix`, in the same way, as a stream that asks for one page after the other. After an
    /// error it ends.
    ///
    /// # Errors
    /// As for [`names`](Self::names).
    pub fn names_all(&self, prefix: &str) -> impl Stream<Item = Result<String>> + Send + Unpin + use<> {
        let (series, prefix) = (self.clone(), prefix.to_owned());
        let page = move |after: Option<String>| {
            let (series, prefix) = (series.clone(), prefix.clone());
            async move { series.names(&prefix, after.as_deref(), PAGE).await }
        };
        pages::all(page, String::as_str)
    }

    /// The first names of one partition.
    async fn names_of(&self, number: u32, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let partition = self.handle.partition(number);
        let (mut names, mut after) = (Vec::new(), after.unwrap_or_default().as_bytes().to_vec());
        while names.len() < limit {
            let page = |_| partition.names(prefix, &after, limit.min(PAGE));
            let (page, last) = self.handle.repeating(page).await?;
            names.extend(page);
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
        Ok(names)
    }

    /// Slices of a precision that is kept.
    async fn kept(&self, name: &str, precision: Precision, starts: &[i64]) -> Result<Vec<Slice>> {
        let ids =
            starts.iter().map(|start| self.windows.kept_id(precision, *start, name)).collect::<Result<Vec<_>>>()?;
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let counts = self.handle.exact(&ids).await?;
        Ok(starts.iter().zip(counts).map(|(&start, count)| slice((start, count))).collect())
    }

    /// Slices of the window.
    async fn part_of_window(&self, name: &str, precision: Precision, starts: &[i64]) -> Result<Vec<Slice>> {
        let window = self.windows_of(&[name], precision).await?.pop().unwrap_or_default();
        let first = window.first().map_or(0, |(start, _)| *start);
        if let Some(early) = starts.first().filter(|start| **start < first) {
            let family = self.family();
            return Err(Error::invalid(format!(
                "{family}: the slices of {precision} go back to {first} in Unix time, not to {early}, and they are not kept"
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
            _ => Err(Error::invalid(format!("{}: {n} for {name:?} is not 1 to {}", self.family(), i64::MAX))),
        }
    }

    /// Refuses a name that is too long, or that is no row of the family's table.
    fn check_name(&self, name: &str) -> Result<()> {
        let kept = self.windows.kept().map(|window| self.windows.kept_id(window.precision, 0, name));
        self.family().check_name("name", name, kept)
    }

    fn added(&self, name: &str, result: PairResult) -> Result<SeriesAdded> {
        match result {
            PairResult::Counted(_) => Ok(SeriesAdded::Counted),
            PairResult::OutOfRange(_) => Ok(SeriesAdded::OutOfRange),
            other => Err(other.corrupt(self.family(), name)),
        }
    }
}

/// A start in Unix seconds and what was counted.
fn slice((start, count): (i64, i64)) -> Slice {
    Slice { start: time_at(start), count }
}

/// The counts at their starts, and 0 where there is none.
fn filled(starts: &[i64], counts: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    let mut slices: Vec<_> = starts.iter().map(|&start| (start, 0)).collect();
    for (start, count) in counts {
        if let Ok(place) = starts.binary_search(&start) {
            slices[place].1 = count;
        }
    }
    slices
}

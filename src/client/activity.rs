//! The handle of an activity family: counting views, and reading the current activity.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::try_join_all;
use moka::future::Cache;
use tokio::time::timeout;

use crate::client::handle::{Handle, LAST_MOMENT, borrowed_ids, by_partition, handle_methods};
use crate::client::open::FamilyHandle;
use crate::client::outcome::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::family::calendar::{Calendar, Precision, time_at};
use crate::family::kind::visit;
use crate::family::kind::{Kind, SlidingWindow};
use crate::scripts::partition::activity::CellSums;
use crate::writer::Recorded;

/// The activity on a page within the family's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The number of views.
    pub views: u64,
    /// The number of distinct visitors.
    pub visitors: u64,
}

/// The activity on a page within one minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minute {
    /// The start of the minute.
    pub start: SystemTime,
    /// The number of views.
    pub views: i64,
    /// The number of distinct visitors.
    pub visitors: u64,
}

/// The activity on the pages of one open family (docs/protocol.md, section 5). Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Activity {
    pub(super) handle: Handle,
    sliding: SlidingWindow,
    /// The cached results; `None` if results are not cached.
    recent: Option<Cache<String, Now>>,
}

/// The maximum number of pages with a cached result.
const RECENT: u64 = 10_000;
/// The number of stripes in one read.
const STRIPES: usize = 100;

impl FamilyHandle for Activity {
    fn of(handle: Handle) -> Result<Self> {
        let Kind::Activity(sliding) = handle.family().kind else {
            return Err(handle.family().is_not("activity"));
        };
        let activity = Activity {
            handle,
            sliding,
            recent: None,
        };
        Ok(activity.cache_for(Duration::from_secs(1)))
    }
}

impl Activity {
    handle_methods!(handle);

    /// Sets how long this handle and its clones return a cached result of [`now`](Self::now)
    /// without asking Redis. Defaults to 1 s, at most a day; zero disables the cache.
    #[must_use]
    pub fn cache_for(mut self, time: Duration) -> Self {
        let time = time.min(Duration::from_secs(86_400));
        let cache = Cache::builder().time_to_live(time).max_capacity(RECENT);
        self.recent = (!time.is_zero()).then(|| cache.build());
        self
    }

    /// Counts a view of the page, of 1 to 200 bytes, by a visitor, of 1 to 255 bytes of any kind.
    /// The Redis server's clock determines the time of the view. Callers share calls as for
    /// [`BufferedCounters::add`](crate::BufferedCounters::add).
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the page or the visitor is not allowed.
    /// [`Redis`](crate::ErrorKind::Redis): not counted; the call may be retried.
    /// [`Busy`](crate::ErrorKind::Busy): not counted, because as many ids of kept minutes wait for
    /// the database as the family's `max_pending` allows.
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): counted once or not at all. The reply
    /// was lost, and could not be requested again within the [write timeout](Self::write_timeout).
    pub async fn touch(&self, page: &str, visitor: impl AsRef<[u8]>) -> Result<()> {
        self.check_page(page)?;
        self.family().check_visitor(visitor.as_ref())?;
        let key = visit::key(page, visitor.as_ref());
        let result = self.handle.add(&key, 1, true).await?;
        match Outcome::of(result, self.family(), page)? {
            Outcome::Counted(_) => Ok(()),
            refused => {
                let family = self.family();
                let what = format!("{family}: not counted, what is kept of {page:?}: {refused:?}");
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// Counts a view without waiting for Redis: it is sent within a few milliseconds, and has the
    /// time of its arrival. Unsent views are lost when the process is killed; call
    /// [`flush`](Self::flush) before it ends.
    ///
    /// # Errors
    /// See [`BufferedCounters::record`](crate::BufferedCounters::record).
    pub fn record(&self, page: &str, visitor: impl AsRef<[u8]>) -> Result<()> {
        self.check_page(page)?;
        self.family().check_visitor(visitor.as_ref())?;
        let key = visit::key(page, visitor.as_ref());
        self.handle.writer.record(&key, 1)
    }

    /// Waits until Redis has counted or refused everything that was recorded before the call, and
    /// returns the outcome.
    ///
    /// # Errors
    /// See [`BufferedCounters::flush`](crate::BufferedCounters::flush).
    pub async fn flush(&self) -> Result<Recorded> {
        self.handle.writer.flush().await
    }

    /// Returns the page's views and distinct visitors within the window; zeros for a page without
    /// views. The handle [caches](Self::cache_for) the result, and concurrent callers share one
    /// read of Redis.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the page is not allowed.
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
    pub async fn now(&self, page: &str) -> Result<Now> {
        self.check_page(page)?;
        let Some(recent) = &self.recent else {
            return self.ask(page).await;
        };
        let (handle, limit) = (&self.handle, self.handle.timeouts.read);
        let now = recent.try_get_with_by_ref(page, self.ask(page));
        match timeout(limit.saturating_add(LAST_MOMENT), now).await {
            Ok(now) => now.map_err(Arc::unwrap_or_clone),
            // Concurrent callers share one read, which one of them drives. That caller may have a
            // longer limit, or may not be polled, so each of the others ends its wait itself.
            Err(_) => Err(handle.late(ErrorKind::Redis, limit)),
        }
    }

    /// Returns the minutes that overlap `range`, in order, with zeros for minutes without views: up
    /// to [`Family::MAX_RANGE`](crate::Family::MAX_RANGE). They are exact, whether they are in
    /// Redis, on their way or in the database.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the family keeps no minutes, the page is
    /// not allowed, or the range is too long. [`Redis`](crate::ErrorKind::Redis) or
    /// [`Store`](crate::ErrorKind::Store) if that server is unreachable.
    pub async fn minutes(&self, page: &str, range: Range<SystemTime>) -> Result<Vec<Minute>> {
        self.check_page(page)?;
        let family = self.family();
        if !self.sliding.keep_minutes {
            return Err(Error::invalid(format!("{family}: no minutes are kept")));
        }
        let calendar = Calendar::utc();
        let starts = self
            .handle
            .starts(&calendar, Precision::MINUTE, &range, "minutes")?;
        let ids: Vec<_> = starts
            .iter()
            .flat_map(|start| kept_ids(*start, page))
            .collect();
        let counts = self.handle.exact(&borrowed_ids(&ids)).await?;
        let minute = |(&start, two): (&i64, &[i64])| Minute {
            start: time_at(start),
            views: two[0],
            visitors: u64::try_from(two[1]).unwrap_or(0),
        };
        Ok(starts
            .iter()
            .zip(counts.chunks_exact(2))
            .map(minute)
            .collect())
    }

    /// Reads all stripes of the page from Redis, and sums them.
    async fn ask(&self, page: &str) -> Result<Now> {
        let (sliding, partitions) = (&self.sliding, self.family().partitions());
        let stripes = (0..sliding.stripes).map(|stripe| {
            let home = sliding.partition_of(page.as_bytes(), stripe, partitions);
            (home, stripe)
        });
        let groups = by_partition(stripes, STRIPES);
        let reads = groups.into_iter().map(|(number, some)| async move {
            let partition = &self.handle.partition(number);
            let sums = |home| partition.seen(home, sliding, page, &some);
            let ask = |wait| {
                let reading = self.handle.read_of_home(number, sums);
                self.handle.ask(number, wait, reading)
            };
            self.handle.repeating(ask).await
        });
        let cells: Vec<CellSums> = try_join_all(reads).await?.into_iter().flatten().collect();
        Ok(Now {
            views: cells.iter().map(|cell| cell.views).sum(),
            visitors: cells.iter().map(|cell| cell.visitors).sum(),
        })
    }

    /// Refuses a page that is too long, or that cannot be in a row of the family's table.
    fn check_page(&self, page: &str) -> Result<()> {
        self.handle.check_given(page)
    }
}

/// Returns the ids under which a minute's views and visitors are kept.
fn kept_ids(minute: i64, page: &str) -> [String; 2] {
    ["views", "visitors"].map(|what| format!("{what}/{minute}/{page}"))
}

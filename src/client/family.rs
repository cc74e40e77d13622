//! The configuration of a family by the application, whose type determines the handle.

use std::marker::PhantomData;
use std::time::Duration;

use crate::client::activity::Activity;
use crate::client::buffered::BufferedCounters;
use crate::client::cached::CachedCounters;
use crate::client::series::Series;
use crate::client::visitors::Visitors;
use crate::error::Result;
use crate::family::calendar::Precision;
use crate::family::settings::{FamilySettings, KindName};
use crate::family::table::Table;
use crate::family::time::Time;
use crate::family::{Durability, Family};

/// A [`Family`] being configured. [`Counterfoil::open`](crate::Counterfoil::open) checks it, and
/// returns the handle `H`.
///
/// ```
/// use std::time::Duration;
/// use counterfoil::{CachedCounters, Family, FamilyBuilder, KeyType, Table};
///
/// let votes: FamilyBuilder<CachedCounters> = Family::cached("forum", "votes")
///     .table(Table::update("item").key("id", KeyType::Unsigned).value("vote_count"))
///     .sync_time(Duration::from_secs(2))
///     .min(0);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a family is configured for Counterfoil::open, or for build()"]
pub struct FamilyBuilder<H> {
    namespace: String,
    name: String,
    settings: FamilySettings,
    handle: PhantomData<fn() -> H>,
}

/// Starts the configuration of a family. Namespace and name are of `[a-z0-9_.-]{1,64}`.
impl Family {
    /// Configures buffered counters: deltas are summed in Redis and reach the database in batches.
    pub fn buffered(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> FamilyBuilder<BufferedCounters> {
        FamilyBuilder::new(namespace, name, KindName::Buffered)
    }

    /// Configures cached counters. The value stays in Redis while it is used, and each increment
    /// returns it. Increments reach the row like those of a buffered counter (docs/protocol.md,
    /// section 4).
    pub fn cached(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> FamilyBuilder<CachedCounters> {
        FamilyBuilder::new(namespace, name, KindName::Cached)
    }

    /// Configures series: named counters at several precisions at once. Redis holds the last slices
    /// of each precision (docs/protocol.md, section 5).
    ///
    /// ```
    /// use counterfoil::{Family, Precision};
    ///
    /// let hits = Family::series("shop", "hits")
    ///     .windows([(Precision::MINUTE, 120), (Precision::Day, 400)])
    ///     .time_zone("Europe/Berlin")
    ///     .keep([Precision::Day]);
    /// ```
    pub fn series(namespace: impl Into<String>, name: impl Into<String>) -> FamilyBuilder<Series> {
        FamilyBuilder::new(namespace, name, KindName::Series)
    }

    /// Configures activity: views and distinct visitors of pages over the last minutes
    /// (docs/protocol.md, section 5).
    ///
    /// ```
    /// use std::time::Duration;
    /// use counterfoil::Family;
    ///
    /// let online = Family::activity("forum", "online")
    ///     .window(Duration::from_secs(600), Duration::from_secs(3))
    ///     .stripes(4);
    /// ```
    pub fn activity(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> FamilyBuilder<Activity> {
        FamilyBuilder::new(namespace, name, KindName::Activity)
    }

    /// Configures the visitors of a scope and day, such as those of a shop. Each counts once, and
    /// the ids are `SCOPE/DAY` (docs/protocol.md, sections 3 and 5).
    ///
    /// ```
    /// use counterfoil::{Family, KeyType, Table};
    ///
    /// let table = Table::upsert("visitors").key("store_id", KeyType::Unsigned).key("day", KeyType::Date);
    /// let visitors = Family::visitors("shop", "visitors").table(table.value("count"));
    /// ```
    pub fn visitors(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> FamilyBuilder<Visitors> {
        FamilyBuilder::new(namespace, name, KindName::Visitors)
    }
}

/// The settings of all kinds.
impl<H> FamilyBuilder<H> {
    fn new(namespace: impl Into<String>, name: impl Into<String>, kind: KindName) -> Self {
        FamilyBuilder {
            namespace: namespace.into(),
            name: name.into(),
            settings: FamilySettings {
                kind,
                ..FamilySettings::default()
            },
            handle: PhantomData,
        }
    }

    /// Returns the family.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the family and the invalid setting.
    pub fn build(&self) -> Result<Family> {
        Family::new(&self.namespace, &self.name, &self.settings)
    }

    /// Sets the number of partitions: 1 to [`Family::MAX_PARTITIONS`], defaults to 4. Only
    /// [`reconfigure`](crate::Counterfoil::reconfigure) changes it later. In a cluster a call
    /// concerns one partition, so more of them spread a busy family over more nodes. On one Redis a
    /// call counts in all of them (buffered, cached), so fewer cost less. Each partition that was
    /// ever counted into keeps a hash of about 150 bytes in Redis.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.settings.partitions = Some(partitions);
        self
    }

    /// Sets when hits on their way to the database count as durable in Redis. Defaults to
    /// [`Durability::Settle`] with 2.5 s.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.settings.durability = Some(durability);
        self
    }

    /// Keeps the values in a table of the application instead of counterfoil's own. Its key columns
    /// take the segments of the ids, also of the ids of [kept slices](FamilyBuilder::keep), of
    /// [kept minutes](FamilyBuilder::keep_minutes) and of visitors (`SCOPE/DAY`). For cached
    /// counters, [`Table::upsert`] creates missing rows, and [`Table::update`] refuses increments
    /// without a row ([`Outcome::NoRow`](crate::Outcome::NoRow)).
    pub fn table(mut self, table: Table) -> Self {
        self.settings.table = Some(table);
        self
    }

    /// Sets the longest time until counted hits are on their way to the database. Defaults to 60 s,
    /// and for cached counters to 2 s: one save of a counter covers all increments within this
    /// time. The [settle time](Durability::Settle) comes on top. A reconciler in another process
    /// than the writer notices hits within a quarter of this time.
    pub fn sync_time(mut self, time: Duration) -> Self {
        self.settings.sync_time = Some(Time(time));
        self
    }
}

impl FamilyBuilder<BufferedCounters> {
    /// Lets increments go to any partition, which spreads one hot counter over all of them. A read
    /// sums over all.
    pub fn wide(mut self, wide: bool) -> Self {
        self.settings.wide = Some(wide);
        self
    }

    /// Syncs a partition to the database after this many hits, even before the
    /// [sync time](Self::sync_time) is over. Its first hit after a pause is synced at once.
    /// Defaults to 50.
    pub fn sync_hits(mut self, hits: u64) -> Self {
        self.settings.sync_hits = Some(hits);
        self
    }

    /// Limits the distinct ids that wait in one partition's buffer. Beyond it, a hit on a further
    /// id returns [`Outcome::Full`](crate::Outcome::Full). Defaults to 1,000,000.
    pub fn max_pending(mut self, ids: u64) -> Self {
        self.settings.max_pending = Some(ids);
        self
    }

    /// Sets how long Redis remembers a request at least ([`add_once`](crate::BufferedCounters::add_once)).
    /// It may be up to twice as long. Defaults to 1 h, from 1 min to 30 days. A request takes about
    /// 50 bytes beside its name and id. A deploy may change the setting.
    pub fn remember_requests(mut self, time: Duration) -> Self {
        self.settings.remember_requests = Some(Time(time));
        self
    }
}

impl FamilyBuilder<CachedCounters> {
    /// Sets how long a counter stays in Redis after it was read from the database or last saved; it
    /// may stay up to a quarter longer. Then the reconciler deletes it, and the next use reads it
    /// from the database. Defaults to 10 min.
    pub fn retain(mut self, time: Duration) -> Self {
        self.settings.retain = Some(Time(time));
        self
    }

    /// Refuses increments that lead below this value, such as a stock below 0. An upward increment
    /// passes even below it. The bound must be a value of the column, and smaller than 2^53 in
    /// magnitude, as all values of cached counters are. Defaults to the lowest value of the column.
    /// Every process must use the same bounds, or is refused;
    /// [`reconfigure`](crate::Counterfoil::reconfigure) changes them.
    pub fn min(mut self, value: i64) -> Self {
        self.settings.min = Some(value);
        self
    }

    /// Refuses increments that lead above this value. A downward increment passes even above it.
    /// The limits on the bound are those of [`min`](Self::min), and every process must use the same
    /// one.
    pub fn max(mut self, value: i64) -> Self {
        self.settings.max = Some(value);
        self
    }

    /// Sets how long Redis remembers a request at least ([`incr_once`](crate::CachedCounters::incr_once)).
    /// It may be up to twice as long. Defaults to 1 h, from 1 min to 30 days. A request takes about
    /// 50 bytes beside its name and id. A deploy may change the setting.
    pub fn remember_requests(mut self, time: Duration) -> Self {
        self.settings.remember_requests = Some(Time(time));
        self
    }
}

impl FamilyBuilder<Series> {
    /// Sets the precisions, each with its number of slices in Redis, including the current one: 1
    /// to [`Family::MAX_SLICES`]. Defaults to [`Precision::DEFAULT`] with 120 each. Redis keeps up
    /// to 512 slices in a compact list; more take several times the memory. Windows may change with
    /// a deploy; while old and new processes run, Redis holds the shorter one. The time zone is
    /// fixed for the life of the family, even without days and months.
    pub fn windows(mut self, windows: impl IntoIterator<Item = (Precision, u32)>) -> Self {
        self.settings.windows = Some(windows.into_iter().collect());
        self
    }

    /// Sets the time zone of days and months, by its name in the IANA database, such as
    /// `Europe/Berlin`. Defaults to UTC. Fixed for the life of the family.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.settings.time_zone = Some(name.into());
        self
    }

    /// Sets the precisions whose slices the database keeps for good. Defaults to none. Fixed for
    /// the life of the family. A hit is on its way to the database at once, so a row has its
    /// current number within the [sync time](Self::sync_time).
    ///
    /// The row of a slice has the id `PRECISION/SLICE/NAME`, such as `60s/1410134400/site`, or
    /// `SLICE/NAME` if one precision is kept. `SLICE` is its start in Unix seconds, or the date of
    /// its first day: `2014-09-08/site`.
    pub fn keep(mut self, precisions: impl IntoIterator<Item = Precision>) -> Self {
        self.settings.keep = Some(precisions.into_iter().collect());
        self
    }

    /// Sets the age up to which a hit that [brings its own time](Series::add_at) counts in
    /// [kept](Self::keep) slices that have left the window. Defaults to 7 days, at most a year.
    pub fn late(mut self, time: Duration) -> Self {
        self.settings.late = Some(Time(time));
        self
    }
}

/// The methods of the kinds that keep slices or minutes.
macro_rules! kept_methods {
    ($kind:ty) => {
        impl FamilyBuilder<$kind> {
            /// Syncs a partition to the database after this many hits, even before the
            /// [sync time](Self::sync_time) is over. By default time alone decides, so that a slice
            /// costs one row per sync time.
            pub fn sync_hits(mut self, hits: u64) -> Self {
                self.settings.sync_hits = Some(hits);
                self
            }

            /// Limits the distinct ids that wait in one partition's buffer. Beyond it, a hit that
            /// would keep a further id is refused. Defaults to 1,000,000.
            pub fn max_pending(mut self, ids: u64) -> Self {
                self.settings.max_pending = Some(ids);
                self
            }
        }
    };
}

kept_methods!(Series);
kept_methods!(Activity);

impl FamilyBuilder<Activity> {
    /// Sets the length of the window, and of the layers in which it slides; it has up to
    /// [`Family::MAX_LAYERS`] of them. Defaults to 10 min in layers of 3 s: a result covers the
    /// last 9:57 to 10:00 minutes. The number of layers may change with a deploy; while old and new
    /// processes run, Redis holds the shorter window. The length of a layer is fixed for the life
    /// of the family.
    pub fn window(mut self, window: Duration, layer: Duration) -> Self {
        self.settings.window = Some(Time(window));
        self.settings.layer = Some(Time(layer));
        self
    }

    /// Spreads each page over this many stripes by the CRC-32 of the visitor, and the stripes over
    /// the partitions. Defaults to 1, at most [`Family::MAX_STRIPES`]. It is for pages that are
    /// hotter than one Redis can take. Fixed for the life of the family.
    pub fn stripes(mut self, width: u32) -> Self {
        self.settings.stripes = Some(width);
        self
    }

    /// Keeps the views and the visitors of each minute in the database. Off by default.
    ///
    /// Their rows have the ids `views/MINUTE/PAGE` and `visitors/MINUTE/PAGE`, with the minute's
    /// start in Unix seconds.
    pub fn keep_minutes(mut self, keep: bool) -> Self {
        self.settings.keep_minutes = Some(keep);
        self
    }
}

impl FamilyBuilder<Visitors> {
    /// Sets how long visitors are remembered after the last new visitor of the scope and day.
    /// Defaults to 3 days, at most a year. A later visit counts again.
    pub fn remember(mut self, time: Duration) -> Self {
        self.settings.remember = Some(Time(time));
        self
    }

    /// Syncs a partition to the database after this many new visitors, even before the
    /// [sync time](Self::sync_time) is over. Defaults to 50.
    pub fn sync_hits(mut self, visitors: u64) -> Self {
        self.settings.sync_hits = Some(visitors);
        self
    }
}

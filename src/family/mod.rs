//! A family: a named group of counters with one configuration, checked once, when it is built.

pub mod calendar;
pub mod day;
pub mod table;
pub mod visit;

/// What the builders of all kinds take alike.
macro_rules! common_settings {
    () => {
        /// Into how many partitions the family is cut: 1 to [`Family::MAX_PARTITIONS`], 4 unless said otherwise. Changed
        /// by [`reconfigure`](crate::Counterfoil::reconfigure) alone. In a cluster a call is about one partition: more of them spread a busy family over
        /// more nodes. On one Redis a call counts in all of them (buffered, cached), and fewer make less work.
        /// Each one that was ever counted into keeps a hash of about 150 bytes in Redis.
        pub fn partitions(mut self, partitions: u32) -> Self {
            self.family.partitions = partitions;
            self
        }

        /// When what is on its way to the database counts as durable in Redis; [`Durability::Settle`] with 2.5 s unless
        /// said otherwise.
        pub fn durability(mut self, durability: Durability) -> Self {
            self.family.durability = durability;
            self
        }

        /// With what the database keeps of every kind.
        fn with_common(mut self, kept: &Settings<'_>) -> Result<Self, String> {
            self.family.partitions = kept.small("partitions")?;
            self.family.durability = kept.durability()?;
            self.family.table = kept.table()?;
            Ok(self)
        }
    };
}

/// What the families of all kinds share: they are types of their own around a [`Family`].
macro_rules! family_of_kind {
    ($name:ident) => {
        impl $name {
            /// What it has in common with every family.
            pub fn family(&self) -> &Family {
                &self.family
            }
        }

        impl crate::family::Sealed for $name {
            fn common(&self) -> &Family {
                &self.family
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.family.fmt(f)
            }
        }
    };
}

mod activity;
mod any;
mod buffered;
mod cached;
mod series;
mod settings;
mod visitors;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

pub use self::activity::{ActivityFamily, ActivityFamilyBuilder, Counting, Sliding};
pub use self::any::AnyFamily;
use self::buffered::Buffered;
pub use self::buffered::{BufferedFamily, BufferedFamilyBuilder};
pub use self::cached::{CachedFamily, CachedFamilyBuilder, Retention};
pub use self::series::{SeriesFamily, SeriesFamilyBuilder, Window, Windows};
use self::settings::Settings;
pub use self::visitors::{Remember, VisitorsFamily, VisitorsFamilyBuilder};
use crate::error::{Error, Result};
use crate::family::calendar::Precision;
use crate::family::table::{Missing, Table};

/// A named group of counters of one kind with one configuration, in one namespace (docs/protocol.md, section 2).
///
/// ```
/// use std::time::Duration;
/// use counterfoil::Family;
/// # fn main() -> counterfoil::Result<()> {
/// let views = Family::buffered("shop-12345", "product_views")
///     .partitions(4)
///     .sync_after(50, Duration::from_secs(60))
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) partitions: u32,
    pub(crate) wide: bool,
    pub(crate) durability: Durability,
    pub(crate) table: Option<Table>,
    pub(crate) sync_hits: u64,
    /// How soon what was counted is on its way to the database.
    pub(crate) sync_time: Duration,
    pub(crate) max_pending: u64,
    pub(crate) kind: Kind,
}

/// A family of some kind. Keeps other crates from having kinds of their own.
pub trait Sealed {
    fn common(&self) -> &Family;
}

/// How a family counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By deltas that are summed in Redis (docs/protocol.md, section 3).
    Buffered(Buffered),
    /// By values that stay in Redis for as long as they are used (docs/protocol.md, section 4).
    Cached(Retention),
    /// In slices of time; what is kept of them goes the buffered way once they are over (docs/protocol.md, section 5).
    Series(Arc<Windows>),
    /// In layers of time, with the visitors; finished minutes may be kept likewise.
    Activity(Sliding),
    /// Each visitor of an id once, who is remembered for so long; the sums go the buffered way.
    Visitors(Remember),
}

/// What a kind decides: all of it is in the file of the kind.
pub(crate) trait OfKind {
    /// As its scripts' names begin, and as it is kept in the database.
    fn name(&self) -> &'static str;

    /// How the names of all scripts begin that its families are used with.
    fn scripts(&self) -> &'static [&'static str];

    /// Its own settings, for the database to keep.
    fn settings(&self) -> Value;

    /// What of them all processes must agree on, in one line.
    fn describe(&self) -> String {
        String::new()
    }

    /// Whether it has slices that are handed on to the database once they are over.
    fn keeps_slices(&self) -> bool {
        false
    }

    /// Whether it counts with keys that have a time to live: windows, their names, and visitors. What is to reach the
    /// database never has one.
    fn has_expiring_keys(&self) -> bool {
        false
    }

    /// Whether its script takes several partitions that lie on one node.
    fn spans_partitions(&self) -> bool {
        false
    }

    /// How many pairs a call carries: few enough for the script to stay below a millisecond.
    fn pairs_a_call(&self) -> usize {
        400
    }

    /// The partition of the family that a hit on this key counts in: an id, a series' name, or a visit. `None` for any.
    fn home_of(&self, family: &Family, key: &[u8]) -> Option<u32> {
        (!family.wide).then(|| family.partition_by(key))
    }

    /// The key whose partition a row's id belongs to.
    fn key_of_row<'id>(&self, id: &'id str) -> &'id str {
        id
    }
}

impl Kind {
    fn own(&self) -> &dyn OfKind {
        match self {
            Kind::Buffered(buffered) => buffered,
            Kind::Cached(retention) => retention,
            Kind::Series(windows) => &**windows,
            Kind::Activity(sliding) => sliding,
            Kind::Visitors(remember) => remember,
        }
    }

    /// The family of the kind so named, with the settings that the database keeps: all of them, and those of its kind.
    fn read(kind: &str, namespace: &str, name: &str, all: &Settings<'_>, own: &Settings<'_>) -> Result<Family, String> {
        match kind {
            "buffered" => BufferedFamily::read(namespace, name, all).map(|built| built.family),
            "cached" => CachedFamily::read(namespace, name, all, own).map(|built| built.family),
            "series" => SeriesFamily::read(namespace, name, all, own).map(|built| built.family),
            "activity" => ActivityFamily::read(namespace, name, all, own).map(|built| built.family),
            "visitors" => VisitorsFamily::read(namespace, name, all, own).map(|built| built.family),
            other => Err(format!("the kind {other:?}")),
        }
    }
}

/// When a rotation counts as durable: the database never runs ahead of what Redis would still know after a crash
/// (docs/protocol.md, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// This long after it, by the Redis server's clock; a busy partition's hits are in the database after about twice
    /// this time, since one batch waits at a time. For `appendfsync everysec` (2.5 s is enough: Redis itself
    /// stops writing when an fsync takes longer than 2 s), and for replicas whose lag stays below it.
    Settle(Duration),
    /// At once. For `appendfsync always`, and for a Redis without any persistence, which forgets everything in a
    /// crash and so cannot go back to an older state.
    Immediate,
}

impl Durability {
    pub(crate) fn settle(self) -> Duration {
        match self {
            Durability::Settle(time) => time,
            Durability::Immediate => Duration::ZERO,
        }
    }
}

impl Default for Durability {
    /// 2.5 s.
    fn default() -> Self {
        Durability::Settle(Duration::from_millis(2500))
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Settle(time) => write!(f, "settle {} ms", time.as_millis()),
            Durability::Immediate => f.write_str("immediate"),
        }
    }
}

impl Family {
    /// The largest number of partitions of a family.
    pub const MAX_PARTITIONS: u32 = 4096;

    fn new(namespace: String, name: String, sync_time: Duration, kind: Kind) -> Self {
        Family {
            namespace,
            name,
            partitions: 4,
            wide: false,
            durability: Durability::default(),
            table: None,
            sync_hits: 50,
            sync_time,
            max_pending: 1_000_000,
            kind,
        }
    }

    /// The application or tenant that the family belongs to.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The family's name within its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of partitions.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Whether an increment may go to any partition.
    pub fn is_wide(&self) -> bool {
        self.wide
    }

    /// When a rotation counts as durable.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The application's table that holds the values; `None` for counterfoil's own.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// What separates the segments of an id, as its table says; `/` without one.
    pub fn separator(&self) -> char {
        self.table.as_ref().map_or('/', |table| table.separator)
    }

    /// How long the slices of a series are, in each of its windows; none of other kinds.
    pub fn precisions(&self) -> Vec<Precision> {
        match &self.kind {
            Kind::Series(series) => series.windows.iter().map(|window| window.precision).collect(),
            _ => Vec::new(),
        }
    }

    /// What every process must agree on, as (what, value) pairs in the words in which it is kept in the database and
    /// named in an error. When to sync and how much may be pending is not part of it: those may change with a deploy.
    pub fn identity(&self) -> [(&'static str, String); 6] {
        [
            ("kind", self.kind().to_owned()),
            ("partitions", self.partitions.to_string()),
            ("wide", self.wide.to_string()),
            ("durability", self.durability.to_string()),
            ("table", self.table.as_ref().map_or("own".to_owned(), Table::describe)),
            ("shape", self.kind.own().describe()),
        ]
    }

    /// The kind's name, as the scripts' names begin and as it is kept in the database: `buffered`, `cached`, `series`,
    /// `activity` or `visitors`.
    pub fn kind(&self) -> &'static str {
        self.kind.own().name()
    }

    /// How the names of the scripts begin that it is used with.
    pub(crate) fn scripts(&self) -> &'static [&'static str] {
        self.kind.own().scripts()
    }

    /// Whether it has slices that are handed on to the database once they are over.
    pub(crate) fn keeps_slices(&self) -> bool {
        self.kind.own().keeps_slices()
    }

    /// Whether it counts with keys that have a time to live.
    pub(crate) fn has_expiring_keys(&self) -> bool {
        self.kind.own().has_expiring_keys()
    }

    /// How its counters stay in Redis, if it is a cached one.
    pub(crate) fn retention(&self) -> Option<&Retention> {
        match &self.kind {
            Kind::Cached(retention) => Some(retention),
            _ => None,
        }
    }

    /// Whether it is of cached counters: all other kinds go the buffered way.
    pub(crate) fn is_cached(&self) -> bool {
        self.retention().is_some()
    }

    /// The error for who takes it for another kind.
    pub(crate) fn is_not(&self, kind: &str) -> Error {
        Error::invalid(format!("{self}: is of the kind {}, not {kind}", self.kind()))
    }

    /// Whether a counter without a row gets one.
    pub(crate) fn makes_rows(&self) -> bool {
        self.table.as_ref().is_none_or(|table| table.missing == Missing::Insert)
    }

    /// Refuses an id that the family cannot count: empty, over 255 bytes, or not a row of its table.
    pub fn check_id(&self, id: &str) -> Result<()> {
        if id.is_empty() || id.len() > 255 {
            return Err(Error::invalid(format!("{self}: id {id:?} has {} bytes, allowed are 1 to 255", id.len())));
        }
        match &self.table {
            Some(table) => table.split(id).map(drop).map_err(|wrong| Error::invalid(format!("{self}: {wrong}"))),
            None => Ok(()),
        }
    }

    /// Refuses the name of a series, or a page: over 200 bytes, with which the ids under which its slices are kept fit into
    /// 255, or with kept ids that are no rows of its table. These are looked at only where there is a table.
    pub(crate) fn check_name(
        &self,
        what: &str,
        name: &str,
        mut kept_ids: impl Iterator<Item = Result<String>>,
    ) -> Result<()> {
        const MOST: usize = 200;
        if name.is_empty() || name.len() > MOST {
            let wrong = format!("{self}: {what} {name:?} has {} bytes, allowed are 1 to {MOST}", name.len());
            return Err(Error::invalid(wrong));
        }
        match &self.table {
            Some(_) => kept_ids.try_for_each(|id| self.check_id(&id?)),
            None => Ok(()),
        }
    }

    /// Refuses a visitor that is empty or too long.
    pub(crate) fn check_visitor(&self, visitor: &[u8]) -> Result<()> {
        match visitor.len() {
            1..=255 => Ok(()),
            length => Err(Error::invalid(format!("{self}: a visitor of {length} bytes, allowed are 1 to 255"))),
        }
    }

    /// The ids, if the family can count all of them.
    pub(crate) fn check_ids<'id>(&self, ids: &'id [impl AsRef<str>]) -> Result<Vec<&'id str>> {
        ids.iter().map(|id| self.check_id(id.as_ref()).map(|()| id.as_ref())).collect()
    }

    /// The partition that the id belongs to (docs/protocol.md, section 2): IEEE CRC-32 of its bytes, modulo
    /// the partitions.
    pub fn partition_of(&self, id: &str) -> u32 {
        self.partition_by(id.as_bytes())
    }

    /// The same for bytes of any kind.
    pub(crate) fn partition_by(&self, bytes: &[u8]) -> u32 {
        crc32fast::hash(bytes) % self.partitions
    }

    /// Whether a sync is due in a partition with so many hits since its last rotation, these included: with the first one,
    /// and when there are enough.
    pub(crate) fn is_due(&self, hits: u64, total: i64) -> bool {
        u64::try_from(total).is_ok_and(|total| total == hits || total >= self.sync_hits)
    }

    /// How many pairs a call carries.
    pub(crate) fn pairs_a_call(&self) -> usize {
        self.kind.own().pairs_a_call()
    }

    /// Whether its script takes several partitions that lie on one node.
    pub(crate) fn spans_partitions(&self) -> bool {
        self.kind.own().spans_partitions()
    }

    /// The partition that a hit on this key counts in: an id, a series' name, or a visit. `None` for any.
    pub(crate) fn home_of(&self, key: &[u8]) -> Option<u32> {
        self.kind.own().home_of(self, key)
    }

    /// The partitions in which a row's id may have anything pending.
    pub(crate) fn partitions_of_row(&self, id: &str) -> std::ops::Range<u32> {
        if self.wide {
            return 0..self.partitions;
        }
        let own = self.partition_of(self.kind.own().key_of_row(id));
        own..own + 1
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The checks of every kind.
impl Family {
    fn check(&self) -> Result<()> {
        for (what, name) in [("namespace", &self.namespace), ("family", &self.name)] {
            if !is_name(name) {
                return Err(Error::invalid(format!("{what} {name:?} is not of [a-z0-9_.-]{{1,64}}")));
            }
        }
        if !(1..=Family::MAX_PARTITIONS).contains(&self.partitions) {
            let wrong = format!("{} is not 1 to {}", self.partitions, Family::MAX_PARTITIONS);
            return Err(self.refused("partitions", wrong));
        }
        if let Durability::Settle(settle) = self.durability {
            self.check_time("settle", settle)?;
        }
        self.table.as_ref().map_or(Ok(()), Table::check)
    }

    /// When a family that goes the buffered way is brought to the database.
    fn check_sync(&self) -> Result<()> {
        if self.sync_hits == 0 {
            return Err(self.refused("sync_after", "0 hits: at least 1"));
        }
        self.check_time("sync_after", self.sync_time)
    }

    /// The table of a family that keeps slices of time, or does not.
    fn check_slices_table(&self, keeps: bool) -> Result<()> {
        match &self.table {
            Some(_) if !keeps => Err(self.refused("table", "is given, and nothing is kept")),
            Some(table) if table.separator != '/' => Err(self.refused("table", "has a separator that is not '/'")),
            _ => Ok(()),
        }
    }

    fn check_time(&self, setting: &str, time: Duration) -> Result<()> {
        if (Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&time) {
            Ok(())
        } else {
            Err(self.refused(setting, format!("{time:?} is not 1 ms to a day")))
        }
    }

    fn refused(&self, setting: &str, wrong: impl fmt::Display) -> Error {
        Error::invalid(format!("{self}: {setting} {wrong}"))
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::table::KeyType;

    #[test]
    fn partition_is_the_ieee_crc32() {
        // the check value of CRC-32/ISO-HDLC
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
        let family = Family::buffered("shop", "views").partitions(16).build().expect("valid").family;
        assert_eq!(family.partition_of("123456789"), 0xcbf4_3926 % 16);
    }

    #[test]
    fn an_id_has_1_to_255_bytes() {
        let family = Family::buffered("shop", "views").build().expect("valid").family;
        assert!(family.check_id("").is_err());
        assert!(family.check_id(&"é".repeat(128)).is_err());
        assert!(family.check_id(&"e".repeat(255)).is_ok());
    }

    #[test]
    fn what_is_needed_to_read_a_family_is_told() {
        let windows = [(Precision::MINUTE, 5), (Precision::Day, 3)];
        let series = Family::series("n", "f").windows(windows).build().expect("valid");
        assert_eq!(series.family().precisions(), [Precision::MINUTE, Precision::Day]);
        let table = Table::upsert("t").key("id", KeyType::Unsigned).key("day", KeyType::Date).value("n").separator(':');
        let visitors = Family::visitors("n", "f").table(table).build().expect("valid");
        assert_eq!((visitors.family().separator(), visitors.family().precisions()), (':', vec![]));
        assert_eq!(series.family().separator(), '/');
    }
}

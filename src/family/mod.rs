//! A family: a named group of counters with one configuration, which is checked once, when it is
//! built.

pub mod calendar;
pub mod day;
pub mod ids;
pub mod table;
pub mod visit;

/// The settings that the builders of all kinds share.
macro_rules! common_settings {
    () => {
        /// Sets the number of partitions: 1 to [`Family::MAX_PARTITIONS`], defaults to 4. Only
        /// [`reconfigure`](crate::Counterfoil::reconfigure) changes it later. In a cluster a call
        /// concerns one partition, so more of them spread a busy family over more nodes. On one
        /// Redis a call counts in all of them (buffered, cached), so fewer cost less. Each
        /// partition that was ever counted into keeps a hash of about 150 bytes in Redis.
        pub fn partitions(mut self, partitions: u32) -> Self {
            self.family.partitions = partitions;
            self
        }

        /// Sets when hits on their way to the database count as durable in Redis. Defaults to
        /// [`Durability::Settle`] with 2.5 s.
        pub fn durability(mut self, durability: Durability) -> Self {
            self.family.durability = durability;
            self
        }

        /// Applies the stored settings that every kind has.
        fn with_common(mut self, kept: &Settings<'_>) -> Result<Self, String> {
            self.family.partitions = kept.small("partitions")?;
            self.family.durability = kept.durability()?;
            self.family.table = kept.table()?;
            Ok(self)
        }
    };
}

/// The methods that the families of all kinds share: each is a type of its own around a [`Family`].
macro_rules! family_of_kind {
    ($name:ident) => {
        impl $name {
            /// Returns the part that all kinds of families have.
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

/// A named group of counters of one kind with one configuration, in one namespace
/// (docs/protocol.md, section 2).
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
    /// The longest time until counted hits are on their way to the database.
    pub(crate) sync_time: Duration,
    pub(crate) max_pending: u64,
    pub(crate) kind: Kind,
}

/// A family of any kind. Other crates cannot add kinds.
pub trait Sealed {
    fn common(&self) -> &Family;
}

/// The kind of a family, which decides how it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Deltas that are summed in Redis (docs/protocol.md, section 3).
    Buffered(Buffered),
    /// Values that stay in Redis while they are used (docs/protocol.md, section 4).
    Cached(Retention),
    /// Slices of time. Kept slices become buffered deltas once they are over (docs/protocol.md,
    /// section 5).
    Series(Arc<Windows>),
    /// Layers of time, with the visitors. Finished minutes may be kept like slices.
    Activity(Sliding),
    /// Visitors, each counted once for an id and remembered for a time. The sums become buffered
    /// deltas.
    Visitors(Remember),
}

/// The decisions of a kind, all of them in the file of the kind.
pub(crate) trait OfKind {
    /// Returns the kind's name, with which its scripts begin, and which the database stores.
    fn name(&self) -> &'static str;

    /// Returns the prefixes of the names of all scripts that its families use.
    fn scripts(&self) -> &'static [&'static str];

    /// Returns the settings of this kind alone, for the database to store.
    fn settings(&self) -> Value;

    /// Returns the ones of these settings on which all processes must agree, in one line.
    fn describe(&self) -> String {
        String::new()
    }

    /// Returns true if it has slices that move to the buffers once they are over.
    fn keeps_slices(&self) -> bool {
        false
    }

    /// Returns true if it counts with keys that expire: windows, their names, and visitors. Hits on
    /// their way to the database never expire.
    fn has_expiring_keys(&self) -> bool {
        false
    }

    /// Returns true if its script takes several partitions that lie on one node.
    fn spans_partitions(&self) -> bool {
        false
    }

    /// Returns the number of pairs in a call: few enough for the script to stay below a
    /// millisecond.
    fn pairs_a_call(&self) -> usize {
        400
    }

    /// Returns the partition that counts a hit on this key (an id, a series' name, or a visit), or
    /// `None` for any.
    fn home_of(&self, family: &Family, key: &[u8]) -> Option<u32> {
        (!family.wide).then(|| family.partition_by(key))
    }

    /// Returns the key whose partition a row's id belongs to.
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

    /// Returns the family of the named kind with stored settings: those of every kind, and its own.
    fn read(
        kind: &str,
        namespace: &str,
        name: &str,
        all: &Settings<'_>,
        own: &Settings<'_>,
    ) -> Result<Family, String> {
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

/// The rule for when a rotation counts as durable. Because of it, the database never contains more
/// than Redis still has after a crash (docs/protocol.md, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// This time after the rotation, by the Redis server's clock. For `appendfsync everysec` (2.5 s
    /// is enough: Redis itself stops writing when an fsync takes longer than 2 s), and for replicas
    /// whose lag stays below it. A busy partition's hits reach the database after about twice this
    /// time, since one batch waits at a time.
    Settle(Duration),
    /// At once. For `appendfsync always`, and for a Redis without any persistence, which loses
    /// everything in a crash and so cannot return to an older state.
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
    /// Returns [`Durability::Settle`] with 2.5 s.
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

    /// Returns the application or tenant that the family belongs to.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the family's name within its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Returns true if an increment may go to any partition.
    pub fn is_wide(&self) -> bool {
        self.wide
    }

    /// Returns when a rotation counts as durable.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Returns the application's table that holds the values, or `None` for counterfoil's own.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// Returns the separator of an id's segments in its table; `/` without a table.
    pub fn separator(&self) -> char {
        self.table.as_ref().map_or('/', |table| table.separator)
    }

    /// Returns the slice length of each window of a series; nothing for other kinds.
    pub fn precisions(&self) -> Vec<Precision> {
        match &self.kind {
            Kind::Series(series) => series
                .windows
                .iter()
                .map(|window| window.precision)
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the settings on which every process must agree, as (setting, value) pairs in the
    /// words of the database and of errors. Sync times and the pending limit are not among them,
    /// since a deploy may change them.
    pub fn identity(&self) -> [(&'static str, String); 6] {
        [
            ("kind", self.kind().to_owned()),
            ("partitions", self.partitions.to_string()),
            ("wide", self.wide.to_string()),
            ("durability", self.durability.to_string()),
            (
                "table",
                self.table
                    .as_ref()
                    .map_or("own".to_owned(), Table::describe),
            ),
            ("shape", self.kind.own().describe()),
        ]
    }

    /// Returns the kind's name, with which its scripts begin, and which the database stores:
    /// `buffered`, `cached`, `series`, `activity` or `visitors`.
    pub fn kind(&self) -> &'static str {
        self.kind.own().name()
    }

    /// Returns the prefixes of the names of the scripts that it uses.
    pub(crate) fn scripts(&self) -> &'static [&'static str] {
        self.kind.own().scripts()
    }

    /// Returns true if it has slices that move to the buffers once they are over.
    pub(crate) fn keeps_slices(&self) -> bool {
        self.kind.own().keeps_slices()
    }

    /// Returns true if it counts with keys that expire.
    pub(crate) fn has_expiring_keys(&self) -> bool {
        self.kind.own().has_expiring_keys()
    }

    /// Returns how its counters stay in Redis, if it is a cached family.
    pub(crate) fn retention(&self) -> Option<&Retention> {
        match &self.kind {
            Kind::Cached(retention) => Some(retention),
            _ => None,
        }
    }

    /// Returns true for cached counters. All other kinds reach the database like buffered ones.
    pub(crate) fn is_cached(&self) -> bool {
        self.retention().is_some()
    }

    /// Returns the error for a caller that takes it for another kind.
    pub(crate) fn is_not(&self, kind: &str) -> Error {
        Error::invalid(format!(
            "{self}: is of the kind {}, not {kind}",
            self.kind()
        ))
    }

    /// Returns true if a counter without a row gets one.
    pub(crate) fn makes_rows(&self) -> bool {
        self.table
            .as_ref()
            .is_none_or(|table| table.missing == Missing::Insert)
    }

    /// Refuses an id that the family cannot count: empty, over 255 bytes, or not a row of its
    /// table.
    pub fn check_id(&self, id: &str) -> Result<()> {
        if id.is_empty() || id.len() > 255 {
            return Err(Error::invalid(format!(
                "{self}: id {id:?} has {} bytes, allowed are 1 to 255",
                id.len()
            )));
        }
        match &self.table {
            Some(table) => table
                .split(id)
                .map(drop)
                .map_err(|wrong| Error::invalid(format!("{self}: {wrong}"))),
            None => Ok(()),
        }
    }

    /// Refuses the name of a series or page that is empty or over 200 bytes, so that the ids of its
    /// kept slices fit into 255. With a table, also refuses a name whose kept ids are not rows of
    /// it.
    pub(crate) fn check_name(
        &self,
        what: &str,
        name: &str,
        mut kept_ids: impl Iterator<Item = Result<String>>,
    ) -> Result<()> {
        const MOST: usize = 200;
        if name.is_empty() || name.len() > MOST {
            let wrong = format!(
                "{self}: {what} {name:?} has {} bytes, allowed are 1 to {MOST}",
                name.len()
            );
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
            length => Err(Error::invalid(format!(
                "{self}: a visitor of {length} bytes, allowed are 1 to 255"
            ))),
        }
    }

    /// Returns the ids, if the family can count all of them.
    pub(crate) fn check_ids<'id>(&self, ids: &'id [impl AsRef<str>]) -> Result<Vec<&'id str>> {
        ids.iter()
            .map(|id| self.check_id(id.as_ref()).map(|()| id.as_ref()))
            .collect()
    }

    /// Returns the partition of the id (docs/protocol.md, section 2): the IEEE CRC-32 of its bytes,
    /// modulo the number of partitions.
    pub fn partition_of(&self, id: &str) -> u32 {
        self.partition_by(id.as_bytes())
    }

    /// Returns the partition of any bytes.
    pub(crate) fn partition_by(&self, bytes: &[u8]) -> u32 {
        crc32fast::hash(bytes) % self.partitions
    }

    /// Returns true if a sync is due in a partition: `hits` are the first since its last rotation,
    /// or `total`, which includes them, is enough.
    pub(crate) fn is_due(&self, hits: u64, total: i64) -> bool {
        u64::try_from(total).is_ok_and(|total| total == hits || total >= self.sync_hits)
    }

    /// Returns the number of pairs in a call.
    pub(crate) fn pairs_a_call(&self) -> usize {
        self.kind.own().pairs_a_call()
    }

    /// Returns true if its script takes several partitions that lie on one node.
    pub(crate) fn spans_partitions(&self) -> bool {
        self.kind.own().spans_partitions()
    }

    /// Returns the partition that counts a hit on this key (an id, a series' name, or a visit), or
    /// `None` for any.
    pub(crate) fn home_of(&self, key: &[u8]) -> Option<u32> {
        self.kind.own().home_of(self, key)
    }

    /// Returns the partitions in which a row's id may have anything pending.
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
                return Err(Error::invalid(format!(
                    "{what} {name:?} is not of [a-z0-9_.-]{{1,64}}"
                )));
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

    /// Checks the sync settings of a family with buffered hits.
    fn check_sync(&self) -> Result<()> {
        if self.sync_hits == 0 {
            return Err(self.refused("sync_after", "0 hits: at least 1"));
        }
        self.check_time("sync_after", self.sync_time)
    }

    /// Refuses a table for a family that keeps no slices, and one with a separator other than `/`.
    fn check_slices_table(&self, keeps: bool) -> Result<()> {
        match &self.table {
            Some(_) if !keeps => Err(self.refused("table", "is given, and nothing is kept")),
            Some(table) if table.separator != '/' => {
                Err(self.refused("table", "has a separator that is not '/'"))
            }
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
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
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
        let family = Family::buffered("shop", "views")
            .partitions(16)
            .build()
            .expect("valid")
            .family;
        assert_eq!(family.partition_of("123456789"), 0xcbf4_3926 % 16);
    }

    #[test]
    fn an_id_has_1_to_255_bytes() {
        let family = Family::buffered("shop", "views")
            .build()
            .expect("valid")
            .family;
        assert!(family.check_id("").is_err());
        assert!(family.check_id(&"é".repeat(128)).is_err());
        assert!(family.check_id(&"e".repeat(255)).is_ok());
    }

    #[test]
    fn what_is_needed_to_read_a_family_is_told() {
        let windows = [(Precision::MINUTE, 5), (Precision::Day, 3)];
        let series = Family::series("n", "f")
            .windows(windows)
            .build()
            .expect("valid");
        assert_eq!(
            series.family().precisions(),
            [Precision::MINUTE, Precision::Day]
        );
        let table = Table::upsert("t")
            .key("id", KeyType::Unsigned)
            .key("day", KeyType::Date)
            .value("n")
            .separator(':');
        let visitors = Family::visitors("n", "f")
            .table(table)
            .build()
            .expect("valid");
        assert_eq!(
            (
                visitors.family().separator(),
                visitors.family().precisions()
            ),
            (':', vec![])
        );
        assert_eq!(series.family().separator(), '/');
    }
}

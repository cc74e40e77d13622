//! A family: a named group of counters with one configuration, which is checked once, when it is
//! built.

pub mod calendar;
pub mod day;
pub mod ids;
pub mod kind;
pub mod row_id;
pub mod settings;
pub mod table;
pub mod time;
mod validate;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use self::kind::Kind;
use self::time::{TextVisitor, Time};
use crate::error::{Error, Result};
use crate::family::row_id::Columns;
use crate::family::table::Table;
use crate::testing::ablation::{self, Guard};

/// A named group of counters of one kind with one configuration, in one namespace
/// (docs/protocol.md, section 2). [`Counterfoil::open`](crate::Counterfoil::open) takes its
/// [builder](crate::FamilyBuilder).
///
/// ```
/// use std::time::Duration;
/// use counterfoil::Family;
/// # fn main() -> counterfoil::Result<()> {
/// let views = Family::buffered("shop-12345", "product_views")
///     .sync_hits(50)
///     .sync_time(Duration::from_secs(60))
///     .build()?;
/// assert_eq!(views.partitions(), 4);
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
    pub(crate) remember_requests: Duration,
    pub(crate) kind: Kind,
}

/// The rule for when a rotation counts as durable. Because of it, the database never contains more
/// than Redis still has after a crash (docs/protocol.md, section 6).
///
/// It is written as `immediate`, or as the time to settle: `2.5s`.
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
    /// Returns the time that a batch waits, zero for [`Immediate`](Durability::Immediate).
    pub fn settle(self) -> Duration {
        match self {
            Durability::Settle(time) if !ablation::is_out(Guard::Settle) => time,
            _ => Duration::ZERO,
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
            Durability::Settle(time) => Time(*time).fmt(f),
            Durability::Immediate => f.write_str(IMMEDIATE),
        }
    }
}

/// The written form of [`Durability::Immediate`].
const IMMEDIATE: &str = "immediate";

impl Serialize for Durability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Durability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor {
            expected: "\"immediate\", or a time such as \"2.5s\"",
            parse: |text| match text {
                IMMEDIATE => Some(Durability::Immediate),
                time => time.parse().ok().map(|Time(time)| Durability::Settle(time)),
            },
        })
    }
}

impl Family {
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

    /// Returns the time after which a reconciler brings hits to the database, at the latest.
    pub fn sync_time(&self) -> Duration {
        self.sync_time
    }

    /// Returns the maximum number of ids that wait in a partition. Redis refuses further ids.
    pub fn max_pending(&self) -> u64 {
        self.max_pending
    }

    /// Returns the time for which Redis remembers a request, at least.
    pub fn remember_requests(&self) -> Duration {
        self.remember_requests
    }

    /// Returns true if the application can name a request for a hit.
    pub(crate) fn takes_requests(&self) -> bool {
        matches!(self.kind, Kind::Buffered | Kind::Cached(_))
    }

    /// Returns the separator of an id's segments in its table; `/` without a table.
    pub fn separator(&self) -> char {
        self.table.as_ref().map_or('/', |table| table.separator)
    }

    /// Returns the settings on which every process must agree, as (setting, value) pairs in the
    /// words of the database and of errors. Sync times and the pending limit are not among them,
    /// since a deploy may change them.
    pub fn identity(&self) -> [(&'static str, String); 6] {
        let table = self.table.as_ref();
        [
            ("kind", self.kind().to_owned()),
            ("partitions", self.partitions.to_string()),
            ("wide", self.wide.to_string()),
            ("durability", self.durability.to_string()),
            ("table", table.map_or("own".to_owned(), Table::describe)),
            ("shape", self.shape()),
        ]
    }

    /// Returns the settings of the [identity](Self::identity) in which the families differ, each
    /// with the own and the other value.
    pub fn differences(
        &self,
        other: &Family,
    ) -> impl Iterator<Item = (&'static str, String, String)> + use<> {
        self.identity()
            .into_iter()
            .zip(other.identity())
            .map(|((setting, own), (_, other))| (setting, own, other))
            .filter(|(_, own, other)| own != other)
    }

    /// Returns whether this setting of the identity can change while the counters stay where they
    /// are: the durability, and the bounds of cached counters.
    pub fn moves_nothing(&self, setting: &str) -> bool {
        setting == "durability" || (setting == "shape" && self.is_cached())
    }

    /// Returns the error for a caller that takes it for another kind.
    pub(crate) fn is_not(&self, kind: &str) -> Error {
        self.invalid(format_args!("is of the kind {}, not {kind}", self.kind()))
    }

    /// Returns true if a counter without a row gets one.
    pub(crate) fn makes_rows(&self) -> bool {
        self.table
            .as_ref()
            .is_none_or(|table| table.missing.inserts())
    }

    /// Returns true if a delta is dropped that has no row, or whose row has no parent.
    pub(crate) fn drops_without_row(&self) -> bool {
        self.table
            .as_ref()
            .is_some_and(|table| table.missing.drops())
    }

    /// Refuses an id that the family cannot count: empty, over 255 bytes, or not a row of its
    /// table.
    pub fn check_id(&self, id: &str) -> Result<()> {
        self.row_ids()
            .check(id)
            .map_err(|wrong| self.invalid(format_args!("id {id:?}: {wrong}")))
    }

    /// Refuses an id that can have no row, or a name or page whose kept ids can have none. Without
    /// the columns it checks what the description of the table says.
    pub(crate) fn check_given(&self, id: &str, columns: Option<&Columns>) -> Result<()> {
        self.given_ids(columns)
            .check(id)
            .map_err(|wrong| self.invalid(format_args!("id {id:?}: {wrong}")))
    }

    /// Refuses a visitor that is empty or too long.
    pub(crate) fn check_visitor(&self, visitor: &[u8]) -> Result<()> {
        self.check_length("a visitor", visitor.len(), 255)
    }

    fn check_length(&self, what: impl fmt::Display, length: usize, most: usize) -> Result<()> {
        if (1..=most).contains(&length) {
            return Ok(());
        }
        let wrong = format_args!("{what} has {length} bytes, allowed are 1 to {most}");
        Err(self.invalid(wrong))
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

    /// Returns the error for an invalid setting.
    fn refused(&self, setting: impl fmt::Display, wrong: impl fmt::Display) -> Error {
        self.invalid(format_args!("{setting} {wrong}"))
    }

    fn invalid(&self, wrong: impl fmt::Display) -> Error {
        Error::invalid(format!("{self}: {wrong}"))
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

//! A family: a named group of counters with one configuration, checked once, when it is built.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::table::{Missing, Table};

/// A named group of counters of one kind with one configuration, in one namespace (PROTOCOL section 2).
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

/// How a family counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By deltas that are summed in Redis (PROTOCOL section 3).
    Buffered,
    /// By values that stay in Redis for as long as they are used (PROTOCOL section 4).
    Cached(Stay),
}

/// How a cached family's counters stay in Redis. When they are saved is the family's `sync_time`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    /// How long after the last increment.
    pub(crate) retain: Duration,
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
}

/// A [`Family`] of cached counters: a type of its own, since they are counted and read by other calls than buffered ones.
///
/// ```
/// use std::time::Duration;
/// use counterfoil::{Family, KeyType, Table};
/// # fn main() -> counterfoil::Result<()> {
/// let votes = Family::cached("forum", "votes")
///     .table(Table::update("item").key("id", KeyType::Unsigned).value("vote_count"))
///     .save_after(Duration::from_secs(2))
///     .min(0)
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedFamily {
    pub(crate) family: Family,
    pub(crate) stay: Stay,
}

/// When a rotation counts as durable: the database never runs ahead of what Redis would still know after a crash
/// (PROTOCOL section 6).
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

    /// Starts the configuration of a family of buffered counters: deltas are summed in Redis and reach the database
    /// in batches. Namespace and name are of `[a-z0-9_.-]{1,64}`.
    pub fn buffered(namespace: impl Into<String>, name: impl Into<String>) -> FamilyBuilder {
        FamilyBuilder(Family::new(namespace.into(), name.into(), Duration::from_secs(60), Kind::Buffered))
    }

    /// Starts the configuration of a family of cached counters: the value lives in Redis for as long as it is used, comes
    /// back with each increment, and is saved as a whole (PROTOCOL section 4). Namespace and name are of
    /// `[a-z0-9_.-]{1,64}`.
    pub fn cached(namespace: impl Into<String>, name: impl Into<String>) -> CachedFamilyBuilder {
        let stay = Stay { retain: Duration::from_secs(600), min: None, max: None };
        let family = Family::new(namespace.into(), name.into(), Duration::from_secs(2), Kind::Cached(stay.clone()));
        CachedFamilyBuilder { family, stay }
    }

    fn new(namespace: String, name: String, sync_time: Duration, kind: Kind) -> Self {
        Family {
            namespace,
            name,
            partitions: 8,
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

    /// The number of partitions, fixed for the life of the family.
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

    /// What every process must agree on, as (what, value) pairs in the words in which it is kept in the database and
    /// named in an error. When to sync and how much may be pending is not part of it: those may change with a deploy.
    pub fn identity(&self) -> [(&'static str, String); 5] {
        [
            ("kind", self.kind_name().to_owned()),
            ("partitions", self.partitions.to_string()),
            ("wide", self.wide.to_string()),
            ("durability", self.durability.to_string()),
            ("table", self.table.as_ref().map_or("own".to_owned(), Table::describe)),
        ]
    }

    /// The kind's name, as the scripts' names begin and as it is kept in the database.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Buffered => "buffered",
            Kind::Cached(_) => "cached",
        }
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

    /// The ids, if the family can count all of them.
    pub(crate) fn check_ids<'id>(&self, ids: &'id [impl AsRef<str>]) -> Result<Vec<&'id str>> {
        ids.iter().map(|id| self.check_id(id.as_ref()).map(|()| id.as_ref())).collect()
    }

    /// The partition that the id belongs to (PROTOCOL section 2: IEEE CRC-32 of its bytes, modulo the partitions).
    pub fn partition_of(&self, id: &str) -> u32 {
        crc32fast::hash(id.as_bytes()) % self.partitions
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A [`Family`] being configured; [`build`](Self::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a family is made by build()"]
pub struct FamilyBuilder(Family);

impl FamilyBuilder {
    /// Into how many partitions the family is cut: 1 to [`Family::MAX_PARTITIONS`], 8 unless said otherwise. Fixed for
    /// the life of the family. More partitions spread a busy family over more Redis Cluster nodes; each one that was
    /// ever counted into keeps a hash of about 150 bytes in Redis.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.0.partitions = partitions;
        self
    }

    /// Lets increments go to any partition, which spreads one hot counter over all of them; a read sums over all.
    pub fn wide(mut self, wide: bool) -> Self {
        self.0.wide = wide;
        self
    }

    /// A partition is brought to the database at its first hit, then after so many hits or this time, whichever
    /// comes first: 50 hits and 60 s unless said otherwise. Add the [settle time](Durability::Settle). A reconciler in
    /// another process than the writer notices it within a quarter of this time.
    pub fn sync_after(mut self, hits: u64, time: Duration) -> Self {
        (self.0.sync_hits, self.0.sync_time) = (hits, time);
        self
    }

    /// When a rotation counts as durable; [`Durability::Settle`] with 2.5 s unless said otherwise.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.0.durability = durability;
        self
    }

    /// How many distinct ids may wait in one partition's buffer; beyond it a hit on a further id is answered
    /// [`Added::Full`](crate::Added::Full). 1,000,000 unless said otherwise.
    pub fn max_pending(mut self, ids: u64) -> Self {
        self.0.max_pending = ids;
        self
    }

    /// Keeps the values in a table of the application instead of counterfoil's own.
    pub fn table(mut self, table: Table) -> Self {
        self.0.table = Some(table);
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting.
    pub fn build(self) -> Result<Family> {
        let family = self.0;
        family.check()?;
        if family.sync_hits == 0 {
            return Err(family.refused("sync_after", "0 hits: at least 1"));
        }
        family.check_time("sync_after", family.sync_time)?;
        if family.max_pending == 0 {
            return Err(family.refused("max_pending", "0: at least 1"));
        }
        Ok(family)
    }
}

/// A [`CachedFamily`] being configured; [`build`](Self::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a family is made by build()"]
pub struct CachedFamilyBuilder {
    family: Family,
    stay: Stay,
}

impl CachedFamilyBuilder {
    /// As for [a buffered family](FamilyBuilder::partitions). A call carries the increments of one partition: where one
    /// Redis holds them all, two or four partitions make larger calls than eight; with one, Redis waits for the client.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.family.partitions = partitions;
        self
    }

    /// When a claim counts as durable; [`Durability::Settle`] with 2.5 s unless said otherwise.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.family.durability = durability;
        self
    }

    /// Keeps the values in a table of the application: [`Table::upsert`] creates rows that do not exist yet,
    /// [`Table::update`] refuses their increments ([`Changed::NoRow`](crate::Changed::NoRow)). Counterfoil's own table
    /// unless said otherwise.
    pub fn table(mut self, table: Table) -> Self {
        self.family.table = Some(table);
        self
    }

    /// A counter is saved this long after its first increment that is not saved yet, so many increments make one save:
    /// 2 s unless said otherwise. Add the [settle time](Durability::Settle).
    pub fn save_after(mut self, time: Duration) -> Self {
        self.family.sync_time = time;
        self
    }

    /// A counter stays in Redis for this long after its last increment, then it is deleted, and read from the database
    /// when it is asked for again: 10 min unless said otherwise.
    pub fn retain(mut self, time: Duration) -> Self {
        self.stay.retain = time;
        self
    }

    /// Refuses increments that lead below this value, such as a stock below 0; one that leads up is let through also
    /// from below it.
    pub fn min(mut self, value: i64) -> Self {
        self.stay.min = Some(value);
        self
    }

    /// Refuses increments that lead above this value; one that leads down is let through also from above it.
    pub fn max(mut self, value: i64) -> Self {
        self.stay.max = Some(value);
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting.
    pub fn build(self) -> Result<CachedFamily> {
        let CachedFamilyBuilder { mut family, stay } = self;
        family.check()?;
        family.check_time("save_after", family.sync_time)?;
        family.check_time("retain", stay.retain)?;
        if let (Some(min), Some(max)) = (stay.min, stay.max)
            && min > max
        {
            return Err(family.refused("min", format!("{min} is above max {max}")));
        }
        family.kind = Kind::Cached(stay.clone());
        Ok(CachedFamily { family, stay })
    }
}

impl CachedFamily {
    /// What it has in common with every family.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// How its counters stay in Redis, as single steps take it.
    #[cfg(feature = "test-hooks")]
    pub fn stay(&self) -> &Stay {
        &self.stay
    }
}

impl fmt::Display for CachedFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.family.fmt(f)
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

    fn check_time(&self, setting: &str, time: Duration) -> Result<()> {
        match (Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&time) {
            true => Ok(()),
            false => Err(self.refused(setting, format!("{time:?} is not 1 ms to a day"))),
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

    #[test]
    fn partition_is_the_ieee_crc32() {
        // the check value of CRC-32/ISO-HDLC
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
        let family = Family::buffered("shop", "views").partitions(16).build().expect("valid");
        assert_eq!(family.partition_of("123456789"), 0xcbf4_3926 % 16);
    }

    #[test]
    fn a_wrong_setting_is_named() {
        let wrong = |builder: FamilyBuilder| builder.build().expect_err("refused").to_string();
        let ok = || Family::buffered("shop", "views");
        assert!(wrong(Family::buffered("Shop", "views")).contains("namespace \"Shop\""));
        assert!(wrong(Family::buffered("shop", "v/iews")).contains("family \"v/iews\""));
        assert!(wrong(Family::buffered("", "views")).contains("namespace"));
        assert!(wrong(Family::buffered("s".repeat(65), "views")).contains("namespace"));
        assert!(wrong(ok().partitions(0)).contains("partitions 0"));
        assert!(wrong(ok().sync_after(0, Duration::from_secs(1))).contains("sync_after"));
        assert!(wrong(ok().sync_after(1, Duration::ZERO)).contains("sync_after"));
        assert!(wrong(ok().durability(Durability::Settle(Duration::ZERO))).contains("settle"));
        assert!(wrong(ok().max_pending(0)).contains("max_pending"));
    }

    #[test]
    fn a_wrong_setting_of_a_cached_family_is_named() {
        let wrong = |builder: CachedFamilyBuilder| builder.build().expect_err("refused").to_string();
        let ok = || Family::cached("shop", "votes");
        assert!(wrong(Family::cached("Shop", "votes")).contains("namespace \"Shop\""));
        assert!(wrong(ok().partitions(5000)).contains("partitions 5000"));
        assert!(wrong(ok().save_after(Duration::ZERO)).contains("save_after"));
        assert!(wrong(ok().retain(Duration::from_secs(90_000))).contains("retain"));
        assert!(wrong(ok().min(2).max(1)).contains("min 2"));
        assert!(ok().min(1).max(1).build().is_ok());
    }

    #[test]
    fn an_id_has_1_to_255_bytes() {
        let family = Family::buffered("shop", "views").build().expect("valid");
        assert!(family.check_id("").is_err());
        assert!(family.check_id(&"é".repeat(128)).is_err());
        assert!(family.check_id(&"e".repeat(255)).is_ok());
    }
}

//! One partition of a family in one Redis, and what is the same for all kinds. The calls of each kind are in
//! [`buffered`](crate::scripts::buffered), [`cached`](crate::scripts::cached) and so on.

use std::fmt;
use std::time::Duration;

use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::bundle::{self, Arg, Reply, arg, made};
use crate::scripts::keys::Keys;
use crate::testing::simulated;

/// One partition of a family in one Redis.
#[derive(Clone, Debug)]
pub struct Partition {
    pub(crate) redis: Connection,
    pub(crate) keys: Keys,
    /// Empty for the server's clock; tests say what time it is.
    pub(crate) now_ms: String,
}

/// What a counting script did.
#[derive(Debug, PartialEq, Eq)]
pub enum Counted {
    /// Executed now, or before.
    Executed {
        /// What became of each pair.
        results: Vec<PairResult>,
        /// The partitions, by their place in the call, in which a sync is due.
        due: Vec<usize>,
        /// It was executed before: what is pending may contain later hits, or lack those that are on their way.
        repeated: bool,
    },
    /// Redis does not know the epoch: nothing was done now, and what was done before is not known.
    Expired,
    /// The caller has made a later call: nothing was done now, and what was done before is not known. A late repeat, or
    /// two processes share the caller's name.
    Passed,
}

/// The right to seed a counter, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    /// 16 hexadecimal digits, as it travels to Redis.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What became of one pair of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairResult {
    /// What is pending for a buffered counter, the value of a cached one.
    Counted(i64),
    /// Not counted: it would leave i64 or the bounds. With the value as it was, where the kind knows it.
    OutOfRange(i64),
    /// Not counted: too many ids are pending.
    Full,
    /// Not counted: the counter has to be seeded.
    Missing(Ticket),
    /// Counted: the visitor's first visit.
    First,
    /// A visitor who has been counted before.
    Again,
    /// Not counted: a key of its partition holds another type.
    WrongType,
    /// Not changed: somebody else wrote what is no integer.
    NoInteger,
    /// Not counted: the id is empty or longer than 255 bytes.
    BadId,
}

impl PairResult {
    /// The error for what no caller of this kind is told unless somebody else wrote the keys.
    pub(crate) fn corrupt(self, family: &Family, id: &str) -> Error {
        let tag = format!("cf1:{{{family}/{}}}", family.partition_of(id));
        Error::corrupt(match self {
            PairResult::WrongType => format!("{id:?} was not counted: {tag}:buffer or {tag}:meta holds another type"),
            PairResult::BadId => format!("{id:?} was not counted: it has {} bytes, allowed are 1 to 255", id.len()),
            PairResult::NoInteger => format!(
                "{id:?} was not changed: {tag}:base, buffer or batch holds another value than an integer for it"
            ),
            other => format!("{family}: {other:?} came for {id:?}"),
        })
    }
}

/// What a call does to one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds.
    Add(i64),
    /// Makes it the value; cached counters only.
    Set(i64),
}

impl Change {
    /// What is added, or set.
    pub(crate) fn amount(self) -> i64 {
        match self {
            Change::Add(amount) | Change::Set(amount) => amount,
        }
    }

    /// As a script takes what is added, or "=" and what is set.
    pub(crate) fn delta<'a>(self) -> Arg<'a> {
        match self {
            Change::Add(1) => arg("1"),
            Change::Add(delta) => made(delta),
            Change::Set(value) => made(format_args!("={value}")),
        }
    }
}

/// What a call carries for one partition.
#[derive(Debug)]
pub struct Part<'a> {
    /// Where it counts.
    pub partition: &'a Partition,
    /// How many hits its pairs stand for.
    pub hits: u64,
    /// Ids and what happens to them.
    pub pairs: &'a [(&'a [u8], Change)],
}

impl Partition {
    /// The partition of that number. Nothing is sent.
    pub fn new(redis: impl Into<Connection>, family: &Family, partition: u32) -> Self {
        Partition { redis: redis.into(), keys: Keys::new(family, partition), now_ms: String::new() }
    }

    /// The same partition at a time that the caller says.
    #[cfg(feature = "test-hooks")]
    pub fn at(mut self, now_ms: u64) -> Self {
        self.now_ms = now_ms.to_string();
        self
    }

    /// Its keys: the home of a fence.
    #[cfg(feature = "test-hooks")]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// What a script is told of the time where a caller's clock has no say: nothing, but in tests.
    pub(crate) fn time(&self) -> Arg<'_> {
        simulated::time().map_or_else(|| arg(&self.now_ms), made)
    }
}

/// Whether any of the partitions has this key. In a cluster they lie in one slot.
pub async fn any_exists(redis: &Connection, partitions: &[Partition], key: fn(&Keys) -> String) -> Result<bool> {
    let keys: Vec<_> = partitions.iter().map(|one| key(&one.keys)).collect();
    bundle::read::<u64>(redis, "EXISTS", &keys, &[]).await.map(|existing| existing > 0)
}

pub(crate) fn expect_ok(reply: &Reply) -> Result<()> {
    if reply.status() == "OK" { Ok(()) } else { Err(reply.misshapen()) }
}

pub(crate) fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

/// A random text that a script makes names of, together with the time.
pub fn salt() -> Result<String> {
    random().map(|number| format!("{number:016x}"))
}

/// A random number for callers and owners.
pub fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| {
        Error::new(ErrorKind::Unsafe, "the operating system has no random numbers").with_source(error.to_string())
    })
}

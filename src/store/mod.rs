//! The database behind the counters, as the reconciler and the readers see it.

pub mod memory;
pub mod mysql;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::finding::Finding;

/// A family that a store knows, with the number that the store gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The configuration.
    pub family: Family,
    /// The store's short name for it.
    pub number: u64,
}

/// The random number that a partition's batches carry until Redis loses its memory (docs/protocol.md, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    /// 16 hexadecimal digits, as it travels to Redis.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Deltas that were cut off a partition's buffer together, and that reach the database together, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The family.
    pub family: Arc<Registered>,
    /// The partition.
    pub partition: u32,
    /// With `seq`, the batch's id within its partition.
    pub incarnation: Incarnation,
    /// Counts up from 1 within an incarnation.
    pub seq: u64,
    /// Each id once.
    pub deltas: Vec<(String, i64)>,
    /// What was counted, in another language, for ids that are not UTF-8: it goes to the rejects.
    pub foreign: Vec<(Vec<u8>, i64)>,
}

/// What a transaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Batches that were new to the ledger.
    pub batches: u64,
    /// Batches that the ledger had already, and that were left out.
    pub repeated: u64,
    /// Deltas added to rows.
    pub rows: u64,
    /// Deltas that went to the rejects.
    pub rejected: u64,
}

/// Who wrote a cached counter's row last, and which of its writes it was (docs/protocol.md, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The random number of one stay in Redis, from a counter's seeding to its deletion.
    pub lineage: u64,
    /// Counts its claims up from 1; 0 for none.
    pub n: u64,
}

impl fmt::Display for Version {
    /// `LINEAGE:N`, as it travels to Redis: 16 hexadecimal digits and a decimal number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.lineage, self.n)
    }
}

/// A cached counter's row as of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// `None` where there is no row.
    pub value: Option<i64>,
    /// `None` as long as no save wrote it.
    pub version: Option<Version>,
}

/// A cached counter's value on its way to its row: to be written only where the row is as it was last known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// The counter, as it is in Redis: what was seeded in another language may be no UTF-8, and is refused.
    pub id: Vec<u8>,
    /// Its partition.
    pub partition: u32,
    /// The row as last known.
    pub known: Row,
    /// What is to be written.
    pub value: i64,
    /// With it.
    pub version: Version,
}

/// What became of a [`Save`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Saved {
    /// The row has the version, written now or before.
    Done,
    /// Nothing was written: the row is another one than was known.
    Conflict(Row),
    /// The same, and the difference is what recounts have added.
    Recounted(Row),
    /// There is no row, and rows are the application's to make: what would have been added is in the rejects, and the
    /// version is kept as if it had been written.
    NoRow,
    /// The database refuses the value, the row holds a number that is no i64, or the id is no row's: what would have
    /// been added is in the rejects, once however often the save is handed in, and nothing else was written.
    Refused,
}

/// Which copy of the database serves a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// A replica where the store has one; it may be behind.
    Nearest,
    /// The one that is written.
    Primary,
}

/// Values and ledger as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The value of each id asked for, in that order; `None` where there is no row.
    pub values: Vec<Option<i64>>,
    /// For each (partition, incarnation) asked for, in that order, the last batch applied; 0 where there is none.
    pub ledger: Vec<u64>,
}

/// A database that keeps values and a ledger: [`MysqlStore`](crate::MysqlStore), or one of your own.
///
/// What makes the counters exact is [`apply`](Store::apply): ledger and values move in **one** transaction, and a batch
/// that the ledger has is never added again (docs/protocol.md, section 3).
///
/// Its futures may be dropped half-way, at a shutdown: what must not be cut off there runs in a task of its own.
pub trait Store: Send + Sync + 'static {
    /// Makes the family known and returns the store's number for it.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) naming the setting where the family is known with another
    /// [identity](Family::identity) or its table is not as it says; [`Store`](crate::ErrorKind::Store) where the
    /// database cannot be reached.
    fn register(&self, family: &Family) -> impl Future<Output = Result<u64>> + Send;

    /// All families that are registered, with the [settings](Family::settings) that each was opened with last; in the place
    /// of one whose settings are not understood, what is wrong with them.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) where the database cannot be reached; [`Mismatch`](crate::ErrorKind::Mismatch)
    /// from a store that does not list families: no reconciler serves [all](crate::ReconcilerBuilder::all) of them.
    fn families(&self) -> impl Future<Output = Result<Vec<Result<Registered>>>> + Send {
        let cannot = "this store does not list its families";
        std::future::ready(Err(Error::new(ErrorKind::Mismatch, cannot)))
    }

    /// Makes `after` the configuration of a registered family, if it is still `before` by its [identity](Family::identity).
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) where it is not, and from a store that cannot do it;
    /// [`Store`](crate::ErrorKind::Store) where the database cannot be reached.
    fn reconfigure(&self, before: &Family, after: &Family) -> impl Future<Output = Result<()>> + Send {
        let _ = after;
        let cannot = format!("{before}: this store does not change what a family is");
        std::future::ready(Err(Error::new(ErrorKind::Mismatch, cannot)))
    }

    /// In one transaction: advances the ledger row (family, partition, incarnation) of each batch to its `seq` if it
    /// stands lower, adds the deltas of those batches, and leaves the others out. A delta that the database refuses is
    /// kept as a reject, with its batch and the reason, in the same transaction.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): nothing was kept, or it is unknown whether the transaction was committed;
    /// in both cases the same batches are handed in again. [`Mismatch`](crate::ErrorKind::Mismatch): nothing was kept,
    /// and waiting does not mend it: a table, column or privilege is missing.
    fn apply(&self, batches: &[Batch]) -> impl Future<Output = Result<Applied>> + Send;

    /// Reads values and ledger as of one moment.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) where the database cannot be reached.
    fn read(
        &self,
        family: &Registered,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        from: ReadFrom,
    ) -> impl Future<Output = Result<Snapshot>> + Send;

    /// Up to `limit` ids that begin with `prefix` and come after `after` in byte order, ascending, with their values.
    ///
    /// # Errors
    /// As for [`read`](Store::read).
    fn list(
        &self,
        family: &Registered,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(String, i64)>>> + Send;

    /// Looks at the database and returns what should be known or changed before these families are kept in it.
    fn check(&self, families: &[Family]) -> impl Future<Output = Vec<Finding>> + Send {
        let _ = families;
        std::future::ready(Vec::new())
    }

    /// The rows of cached counters, in the order of the ids, as of one moment: from the database that is written, and
    /// begun after the call.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) where the database cannot be reached; [`Unsafe`](crate::ErrorKind::Unsafe)
    /// where the one that replies takes no writes, as a replica does; [`Range`](crate::ErrorKind::Range) for a value
    /// that is no i64; [`Mismatch`](crate::ErrorKind::Mismatch) from a store that keeps no cached counters.
    fn rows(&self, family: &Registered, ids: &[&str]) -> impl Future<Output = Result<Vec<Row>>> + Send {
        let _ = ids;
        std::future::ready(Err(no_cached(family)))
    }

    /// In one transaction, for each of the counters (each once): where the row's version is the save's, it was done
    /// before; where version and value are as known, writes value and version; anything else is a conflict. Returns what
    /// became of each, in their order.
    ///
    /// # Errors
    /// As for [`apply`](Store::apply): the same saves may be handed in again.
    fn save(&self, family: &Registered, saves: &[Save]) -> impl Future<Output = Result<Vec<Saved>>> + Send {
        let _ = saves;
        std::future::ready(Err(no_cached(family)))
    }
}

fn no_cached(family: &Registered) -> Error {
    Error::new(ErrorKind::Mismatch, format!("{}: this store keeps no cached counters", family.family))
}

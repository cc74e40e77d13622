//! The database behind the counters, as the reconciler and the readers see it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::check::Finding;
use crate::error::Result;
use crate::family::Family;

/// A family that a store knows, with the number that the store gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The configuration.
    pub family: Family,
    /// The store's short name for it.
    pub number: u64,
}

/// The random number that a partition's batches carry until Redis loses its memory (PROTOCOL section 3).
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

/// Which copy of the database answers a read.
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
/// that the ledger has is never added again (PROTOCOL section 3).
pub trait Store: Send + Sync + 'static {
    /// Makes the family known and answers the store's number for it.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) naming the setting where the family is known with another
    /// [identity](Family::identity) or its table is not as it says; [`Store`](crate::ErrorKind::Store) where the
    /// database cannot be reached.
    fn register(&self, family: &Family) -> impl Future<Output = Result<u64>> + Send;

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

    /// Looks at the database and answers what should be known or changed before these families are kept in it.
    fn check(&self, families: &[Family]) -> impl Future<Output = Vec<Finding>> + Send {
        let _ = families;
        std::future::ready(Vec::new())
    }
}

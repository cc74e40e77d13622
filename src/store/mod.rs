//! The database behind the counters: the trait for databases other than MySQL, and its types.

pub(crate) mod ledger;
pub(crate) mod memory;
pub(crate) mod mysql;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::family::Family;
pub use crate::family::ids::{BatchId, Incarnation, Nonce};
pub use crate::family::row_id::{Columns, Extent};
use crate::scripts::partition::settings::Destination;
use crate::store::ledger::LedgerKey;
use crate::store::mysql::MysqlStore;

/// The number that a store assigns to a family, and under which it keeps the family's ledger, rejects
/// and recounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FamilyNumber(pub u64);

impl fmt::Display for FamilyNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A family that is registered in a store. Two are equal if they are the same registration, whatever
/// is known of their columns.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The configuration.
    pub family: Family,
    /// The number that the store assigned to it.
    pub number: FamilyNumber,
    /// The id of the database, random and the same for all its families. A family in a Redis
    /// belongs to one database (docs/protocol.md, section 2). A store without an id, such as one in
    /// memory, is not checked.
    pub database: String,
    /// The columns of its table as the database defines them; `None` for a store's own table, and
    /// while they are unknown.
    pub columns: Option<Arc<Columns>>,
}

impl Registration {
    pub(crate) fn destination(&self) -> Destination<'_> {
        Destination {
            database: &self.database,
            columns: self.columns.as_deref(),
        }
    }
}

impl PartialEq for Registration {
    fn eq(&self, other: &Self) -> bool {
        (&self.family, self.number, &self.database)
            == (&other.family, other.number, &other.database)
    }
}

impl Eq for Registration {}

/// Deltas that were cut off a partition's buffer together. Each of them reaches the database once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The family.
    pub family: Arc<Registration>,
    /// The partition.
    pub partition: u32,
    /// The id within the partition.
    pub id: BatchId,
    /// Each id once with its delta, ascending by bytes. A client in another language may have
    /// counted ids that are not UTF-8: a store rejects them.
    pub deltas: Vec<(Vec<u8>, i64)>,
    /// `true` if Redis has released it and the ledger lacks it: the database was set back and lost
    /// it. It has no deltas left, and completes the ledger.
    pub is_lost: bool,
}

impl Batch {
    pub(crate) fn ledger_key(&self) -> LedgerKey {
        (self.family.number, self.partition, self.id.incarnation)
    }
}

/// The progress of a batch after [`Store::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The database holds the whole batch. The last of it was added by this call.
    Complete,
    /// The database holds the batch up to a position.
    Partial {
        /// The number of ids that are left for further calls.
        left: u64,
    },
    /// The batch was complete before the call, which added nothing of it.
    Repeated,
    /// The ledger proves that Redis was set back: nothing of the batch was added, and nothing of it
    /// ever will be (docs/protocol.md, section 3.9).
    SetBack,
}

/// The effect of one [`Store::apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReply {
    /// The progress of each batch, in the order in which the batches were given.
    pub progress: Vec<Progress>,
    /// The number of deltas that were added to rows.
    pub rows: u64,
    /// The number of deltas that went to the rejects.
    pub rejected: u64,
    /// The number of deltas without a row, or whose row has no parent, that were dropped, as
    /// [`Table::update_or_drop`](crate::Table::update_or_drop) and
    /// [`Table::upsert_or_drop`](crate::Table::upsert_or_drop) ask for.
    pub dropped: u64,
    /// The number of refused deltas that were lost, because there are as many rejects as the store
    /// keeps.
    pub lost: u64,
    /// The batches that found the ledger behind the batch before them, by their place in the given
    /// list, each with the number of batches that the database has lost. Empty unless it was set
    /// back (docs/protocol.md, section 3.9).
    pub database_set_back: Vec<(usize, u64)>,
}

/// A ledger row's content: the last batch of a partition and incarnation that reached the database,
/// and how far.
///
/// The default, with `seq` 0, stands for a row that does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The sequence number of the batch; 0 if there was none.
    pub seq: u64,
    /// The nonce of the batch.
    pub nonce: Nonce,
    /// The last id that was added, in the byte order of the batch's ids; `None` once the batch is
    /// complete.
    pub position: Option<Vec<u8>>,
}

/// The hits that were dropped from a partition because Redis was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedHits {
    /// The family's [number](Registration::number).
    pub family: FamilyNumber,
    /// The partition.
    pub partition: u32,
    /// The incarnation that ended.
    pub incarnation: Incarnation,
    /// The number of dropped hits.
    pub hits: u64,
    /// The number of ids that had them.
    pub ids: u64,
}

/// A row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    /// The family's [number](Registration::number).
    pub family: FamilyNumber,
    /// The partition.
    pub partition: u32,
    /// The incarnation.
    pub incarnation: Incarnation,
    /// The last batch.
    pub mark: Mark,
}

/// The copy of the database that serves a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// A replica if the store has one. It may lag behind.
    Nearest,
    /// The server that is written to.
    Primary,
}

/// Values and ledger as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The value of each id, in the order of the request; `None` if it has no row.
    pub values: Vec<Option<i64>>,
    /// The mark of each (partition, incarnation), in the order of the request.
    pub ledger: Vec<Mark>,
}

/// A database that keeps values and a ledger: [`MysqlStore`], or your own.
///
/// [`apply`](Store::apply) makes the counters exact: it changes ledger and values in **one**
/// transaction, and adds no delta that was added before according to the ledger's sequence number,
/// nonce and position (docs/protocol.md, section 3).
///
/// The caller may drop a future before it completes, for example at a shutdown. A store runs work
/// that must not be interrupted in a task of its own.
///
/// Implement it with the attribute `#[async_trait]` of the crate async-trait, which makes its
/// futures `Send`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Registers the family, and returns it with the store's number for it and the database's id.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) naming the setting if the family is registered with
    /// another [identity](Family::identity), or if its table differs from its description;
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    async fn register(&self, family: &Family) -> Result<Registration>;

    /// Registers a family again that the database may have lost, for example because it was
    /// restored to an older state. A family that was removed stays so. By default it is
    /// [registered](Self::register) like any other.
    ///
    /// # Errors
    /// See [`register`](Self::register); also [`Mismatch`](crate::ErrorKind::Mismatch) if the
    /// family was removed.
    async fn register_again(&self, known: &Registration) -> Result<Registration> {
        self.register(&known.family).await
    }

    /// Returns the columns of the family's table as the database defines them now; `None` for a
    /// store's own table. Ids that they cannot hold are refused before they count, and so is a change
    /// of a cached counter to a value that they cannot hold.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the table differs from its description;
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    async fn columns(&self, family: &Family) -> Result<Option<Arc<Columns>>> {
        let _ = family;
        Ok(None)
    }

    /// Returns all registered families by name, `NAMESPACE/FAMILY`, each with the
    /// [settings](Family::settings) of the process that opened it last, or the error in them.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable;
    /// [`Mismatch`](crate::ErrorKind::Mismatch) from a store that does not list families, so that
    /// no reconciler serves [all](crate::ReconcilerBuilder::all) of them.
    async fn families(&self) -> Result<Vec<(String, Result<Registration>)>> {
        Err(Error::mismatch("this store does not list its families"))
    }

    /// Returns the registered family of this name, `NAMESPACE/FAMILY`.
    ///
    /// # Errors
    /// Those of [`families`](Self::families), and that of the family's settings.
    async fn find(&self, name: &str) -> Result<Option<Registration>> {
        self.families()
            .await?
            .into_iter()
            .find(|(known, _)| known == name)
            .map(|(_, registered)| registered)
            .transpose()
    }

    /// Replaces the configuration of a registered family by `after` if its
    /// [identity](Family::identity) is still that of `before`.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if it is not, and from a store that does not
    /// reconfigure families; [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    async fn reconfigure(&self, before: &Family, after: &Family) -> Result<()> {
        let _ = after;
        let cannot = format!("{before}: this store does not reconfigure families");
        Err(Error::mismatch(cannot))
    }

    /// Adds the next deltas of the batches to their rows, in one transaction. The caller repeats
    /// the call until no batch is [partial](Progress::Partial).
    ///
    /// The transaction locks the ledger row (family, partition, incarnation) of each batch and
    /// compares its [`Mark`]:
    ///
    /// - A higher `seq`, or no row, begins the batch.
    /// - An equal `seq` and `nonce` continue the batch after `position`, or repeat it if it is
    ///   complete.
    /// - Anything else is a [set-back](Progress::SetBack).
    ///
    /// A batch that begins also shows whether the database was set back: Redis cuts a batch after it
    /// released the one before it, and that one was complete in the ledger. The store records the
    /// number of batches that the ledger lacks, in the same transaction, and returns it.
    ///
    /// Up to `max_rows` ids are taken, by default as many as the store considers a short
    /// transaction. The ledger advances to the last id taken, or to complete. A delta that the
    /// database refuses is kept as a reject with the reason, in the same transaction.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): nothing was kept, or it is unknown whether the
    /// transaction was committed; repeat the call in both cases.
    /// [`Busy`](crate::ErrorKind::Busy): the same, because another transaction has locked a row or
    /// table, or the server refused a statement: for example a table is full, read-only or damaged, or
    /// its trigger fails. The caller goes on with other families and repeats the call later.
    /// [`Mismatch`](crate::ErrorKind::Mismatch): nothing was kept, and the error is permanent: a
    /// table, column or privilege is missing, or the database does not have a family under its
    /// number. The caller then [registers it again](Self::register_again).
    async fn apply(&self, batches: &[Arc<Batch>], max_rows: Option<u64>) -> Result<ApplyReply>;

    /// Returns the ledger's rows of these families, from the server that is written to, in any
    /// order.
    ///
    /// A probe compares them with Redis afterwards to detect that Redis was set back
    /// (docs/protocol.md, section 3.9).
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    async fn ledger(&self, families: &[FamilyNumber]) -> Result<Vec<LedgerRow>>;

    /// Records that Redis was set back, and that a partition's hits were dropped, in the ledger row
    /// of the incarnation that ended. By default they are only in the log and in metrics.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    async fn record_dropped(&self, dropped: &DroppedHits) -> Result<()> {
        let _ = dropped;
        Ok(())
    }

    /// Reads values and ledger as of one moment.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable;
    /// [`Range`](crate::ErrorKind::Range) for a value that is not a valid i64;
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the family has another number since: the caller then
    /// [registers it again](Self::register_again).
    async fn read(
        &self,
        family: &Registration,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        from: ReadFrom,
    ) -> Result<Snapshot>;

    /// Returns up to `limit` ids that begin with `prefix` and come after `after` in byte order,
    /// ascending, with their values.
    ///
    /// # Errors
    /// See [`read`](Store::read).
    async fn list(
        &self,
        family: &Registration,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>>;

    /// Returns the values of cached counters, in the order of the ids; `None` for an id without a
    /// row. They are read from the server that is written to, after the call began. They seed
    /// counters in Redis (see docs/protocol.md, section 4).
    ///
    /// # Errors
    /// See [`read`](Store::read); also [`Unsafe`](crate::ErrorKind::Unsafe) if the server accepts
    /// no writes, because it may be a replica.
    async fn rows(&self, family: &Registration, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        Ok(self.read(family, ids, &[], ReadFrom::Primary).await?.values)
    }

    #[doc(hidden)]
    fn as_mysql(&self) -> Option<&MysqlStore> {
        None
    }
}

impl fmt::Debug for dyn Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

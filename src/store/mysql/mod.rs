//! MySQL and MariaDB: all SQL of the crate.

mod add;
mod apply;
mod check;
mod deletion;
mod families;
pub(crate) mod fault;
mod in_place;
mod json;
mod ledger;
mod list;
mod lookup;
mod operations;
pub(crate) mod options;
mod overview;
mod recount;
mod rejects;
pub(crate) mod schema;
pub(crate) mod session;
mod set_backs;
mod shape;
mod source;
pub(crate) mod statement;
pub(crate) mod target;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use moka::future::Cache;

pub use self::deletion::PurgeSummary;
pub(crate) use self::list::IdPage;
use self::options::IntoMysqlOptions;
pub use self::overview::{Overview, RecountRun};
pub(crate) use self::recount::{BeginAttempt, Cursor, Deviation, RunStart, RunState};
pub use self::recount::{Drift, Run};
pub use self::rejects::{Reject, RetrySummary};
use self::session::Database;
pub use self::set_backs::{Loss, SetBack};
use self::shape::Shape;
pub use self::source::{Rows, Source};
use self::target::Target;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::family::table::Table;
use crate::store::{
    ApplyReply, Batch, Columns, DroppedHits, FamilyNumber, Incarnation, LedgerRow, ReadFrom,
    Registration, Snapshot, Store,
};

/// A [`Store`] in MySQL (8.0.4 or later) or MariaDB (10.6 or later). Clones share one store.
///
/// It has connections of its own, up to five by default, whose sessions have fixed settings. A caller
/// may drop a future at any time: transactions are finished in tasks of their own, and connections
/// stay usable.
///
/// The definition of an application's table is read again every 10 s. Until then an `ALTER TABLE`
/// of a key column, a unique index, `AUTO_INCREMENT`, or `UNSIGNED` or `NULL` of the value column
/// is unnoticed, so stop the reconcilers for it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = counterfoil::MysqlStore::new("mysql://shop@localhost/shop")?;
/// store.create_tables().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MysqlStore {
    primary: Database,
    pub(crate) replica: Option<Database>,
    targets: Targets,
    /// `true` if missing tables of counterfoil's own are created before the first query for
    /// families.
    creates_tables: bool,
    has_tables: Arc<AtomicBool>,
    max_rejects: Arc<rejects::Limit>,
}

/// The default maximum number of connections.
const CONNECTIONS: u32 = 5;

/// The time for which the definition of a table counts as known.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// The targets by description; `None` is counterfoil's own table.
type Targets = Cache<Option<Table>, Arc<Target>>;

fn targets(known_for: Duration) -> Targets {
    Cache::builder().time_to_live(known_for).build()
}

impl MysqlStore {
    /// Creates a store in the database of these options, which must be on the server that is written
    /// to: of a URL, options of sqlx, or a pool of the application, whose connections are not used.
    /// It connects on first use, so an application starts even while the database is unreachable.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for an invalid URL, or options that name no
    /// database.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(options: impl IntoMysqlOptions) -> Result<Self> {
        Ok(MysqlStore {
            primary: Database::new(options::with_database(options)?, CONNECTIONS),
            replica: None,
            targets: targets(KNOWN_FOR),
            creates_tables: false,
            has_tables: Arc::default(),
            max_rejects: Arc::default(),
        })
    }

    /// Sets the maximum number of connections, before the first use; defaults to 5. A reconciler
    /// takes up to three for its flushes and one for its checks, and each exact read takes one.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn max_connections(mut self, connections: u32) -> Self {
        let options = self.primary.pool.connect_options();
        self.primary = Database {
            limit: self.primary.limit,
            ..Database::new((*options).clone(), connections.max(1))
        };
        self
    }

    /// Replaces the options of this store and its clones, for instance when a password is rotated.
    /// New connections use them. Existing ones stay until they are idle for 10 minutes, or returned
    /// after 30.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for an invalid URL, or options that name
    /// another database, or none.
    pub fn set_connect_options(&self, options: impl IntoMysqlOptions) -> Result<()> {
        let replacement = options::with_database(options)?;
        let pool = &self.primary.pool;
        if replacement.get_database() != pool.connect_options().get_database() {
            return Err(Error::invalid("a store stays in one database"));
        }
        pool.set_connect_options(replacement);
        Ok(())
    }

    /// Sets about how many rejects are kept, of all families together. Defaults to a million. If there
    /// are as many, a refused delta of an id without a reject is lost and counted in
    /// [`REJECTS_LOST`](crate::metrics::REJECTS_LOST), and [`check`](crate::Counterfoil::check) reports
    /// an error.
    #[must_use]
    pub fn max_rejects(mut self, most: u64) -> Self {
        self.max_rejects = Arc::new(rejects::Limit::new(most));
        self
    }

    /// Returns the pool, for tests.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    pub fn pool(&self) -> &sqlx::MySqlPool {
        &self.primary.pool
    }

    /// Sets the longest wait for a connection, and for a reply, for tests.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    #[must_use]
    pub fn waiting(mut self, limit: Duration) -> Self {
        let pool = self.primary.pool.options().clone().acquire_timeout(limit);
        let options = self.primary.pool.connect_options();
        self.primary.pool = pool.connect_lazy_with((*options).clone());
        self.primary.limit = limit;
        self
    }

    /// Sets how long the definition of a table counts as known, for tests.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    #[must_use]
    pub fn knowing(mut self, time: Duration) -> Self {
        self.targets = targets(time);
        self
    }

    /// Serves reads [from the nearest](ReadFrom::Nearest) server with the connections of the other
    /// store, whose server may lag behind the first one.
    #[must_use]
    pub fn with_replica(mut self, replica: MysqlStore) -> Self {
        self.replica = Some(replica.primary);
        self
    }

    /// Returns the statements, separated by `;`, that create counterfoil's tables unless they
    /// exist. Use them if your application creates tables by migrations.
    pub const fn schema() -> &'static str {
        schema::SCHEMA
    }

    /// Creates counterfoil's tables unless they exist. If none is missing, the database's user does
    /// not need CREATE.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store), or [`Mismatch`](crate::ErrorKind::Mismatch) if the user
    /// lacks the privilege, naming the table. Tables that were created before it remain: the
    /// database commits each immediately.
    pub async fn create_tables(&self) -> Result<()> {
        schema::ensure(&self.primary, true).await
    }

    /// Creates missing tables before the first query for families.
    pub(crate) fn creating_tables(mut self) -> Self {
        self.creates_tables = true;
        self
    }

    /// Creates or requires counterfoil's own tables, once.
    async fn ensure_tables(&self) -> Result<()> {
        if !self.has_tables.load(Ordering::Relaxed) {
            schema::ensure(&self.primary, self.creates_tables).await?;
            self.has_tables.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn register_with(&self, family: &Family, again: bool) -> Result<Registration> {
        self.ensure_tables().await?;
        let columns = self.columns(family).await?;
        family.check_bounds(columns.as_deref())?;
        if family.is_cached() {
            lookup::leave_replica(&self.primary).await?;
        }
        let registered = families::register(&self.primary, family, again).await?;
        Ok(Registration {
            columns,
            ..registered
        })
    }

    /// Returns a snapshot, unless the family has another number than that by which it was read. A
    /// replica, which may not have the family yet, and a partition without a ledger row do not prove it.
    async fn of_number(
        &self,
        family: &Registration,
        (snapshot, is_its): (Snapshot, bool),
    ) -> Result<Snapshot> {
        if !is_its {
            families::refuse_renumbered(&self.primary, family).await?;
        }
        Ok(snapshot)
    }

    /// Returns the number of statements that this store and its clones have sent, as the server
    /// counts them.
    pub fn statements(&self) -> u64 {
        [Some(&self.primary), self.replica.as_ref()]
            .into_iter()
            .flatten()
            .map(|database| database.sent.load(Ordering::Relaxed))
            .sum()
    }

    /// Returns the table of the family's values as it is defined now.
    pub(crate) async fn target_now(&self, family: &Family) -> Result<Arc<Target>> {
        self.targets.invalidate(&family.table).await;
        self.target(family).await
    }

    /// Returns the table of the family's values. Its definition may be some seconds old.
    pub(crate) async fn target(&self, family: &Family) -> Result<Arc<Target>> {
        self.targets
            .try_get_with_by_ref(&family.table, async {
                Ok(Arc::new(match &family.table {
                    Some(table) => {
                        Target::new(table, &Shape::learn(&self.primary, table).await?, false)
                    }
                    None => Target::own(),
                }))
            })
            .await
            .map_err(|error: Arc<Error>| (*error).clone())
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore")
            .field("replica", &self.replica.is_some())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MysqlStore {
    async fn register(&self, family: &Family) -> Result<Registration> {
        self.register_with(family, false).await
    }

    async fn register_again(&self, known: &Registration) -> Result<Registration> {
        self.register_with(&known.family, true).await
    }

    async fn columns(&self, family: &Family) -> Result<Option<Arc<Columns>>> {
        Ok(self.target(family).await?.definition.clone())
    }

    async fn families(&self) -> Result<Vec<(String, Result<Registration>)>> {
        if self.creates_tables {
            self.ensure_tables().await?;
        }
        families::list(&self.primary).await
    }

    async fn find(&self, name: &str) -> Result<Option<Registration>> {
        if self.creates_tables {
            self.ensure_tables().await?;
        }
        families::find(&self.primary, name).await
    }

    async fn reconfigure(&self, before: &Family, after: &Family) -> Result<()> {
        after.check_bounds(self.columns(after).await?.as_deref())?;
        families::reconfigure(&self.primary, before, after).await
    }

    async fn apply(&self, batches: &[Arc<Batch>], max_rows: Option<u64>) -> Result<ApplyReply> {
        apply::apply(self, batches, max_rows).await
    }

    async fn ledger(&self, families: &[FamilyNumber]) -> Result<Vec<LedgerRow>> {
        ledger::read(&self.primary, families).await
    }

    async fn record_dropped(&self, dropped: &DroppedHits) -> Result<()> {
        ledger::record_dropped(&self.primary, dropped).await
    }

    async fn read(
        &self,
        family: &Registration,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        from: ReadFrom,
    ) -> Result<Snapshot> {
        let replica = self.replica.as_ref();
        let database = match from {
            ReadFrom::Nearest => replica.unwrap_or(&self.primary),
            ReadFrom::Primary => &self.primary,
        };
        let target = self.target(&family.family).await?;
        let read = lookup::read(database, &target, family, ids, ledger, false).await?;
        self.of_number(family, read).await
    }

    async fn list(
        &self,
        family: &Registration,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        let target = self.target(&family.family).await?;
        let listed =
            list::ids_with_prefix(&self.primary, &target, family, prefix, after, limit).await?;
        if target.is_own {
            families::refuse_renumbered(&self.primary, family).await?;
        }
        Ok(listed)
    }

    async fn rows(&self, family: &Registration, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        let target = self.target(&family.family).await?;
        let read = lookup::read(&self.primary, &target, family, ids, &[], true).await?;
        Ok(self.of_number(family, read).await?.values)
    }

    fn as_mysql(&self) -> Option<&MysqlStore> {
        Some(self)
    }
}

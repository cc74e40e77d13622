//! MySQL and MariaDB: all SQL of the crate.

mod add;
mod apply;
mod families;
pub(crate) mod fault;
mod json;
mod ledger;
mod list;
mod lookup;
mod overview;
mod recount;
mod rejects;
pub(crate) mod schema;
pub(crate) mod session;
mod shape;
mod source;
pub(crate) mod statement;
pub(crate) mod target;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use sqlx::MySqlPool;

use self::fault::store;
pub(crate) use self::list::IdPage;
pub use self::overview::{Overview, RecountRun};
pub(crate) use self::recount::{Begun, Cursor, Drifted};
pub use self::recount::{Drift, Run};
pub use self::rejects::{Reject, Retried};
use self::session::{Database, Meter, detached, in_place};
use self::shape::Shape;
pub use self::source::Source;
use self::target::Target;
use crate::error::Result;
use crate::family::Family;
use crate::family::table::Table;
use crate::store::ledger::Unguarded;
use crate::store::{Applied, Batch, Incarnation, LedgerRow, ReadFrom, Registered, Snapshot, Store};

/// A [`Store`] in MySQL (8.0.4 or later) or MariaDB (10.6 or later). Clones share one store.
///
/// It uses the application's own pool and restores a connection's session: the isolation level, the
/// `sql_mode` and the safe updates that a transaction needs apply to that transaction only. A
/// caller may drop a future at any time: transactions are finished in tasks of their own, and
/// connections stay usable.
///
/// The definition of an application's table is read once and kept for the life of the store.
/// Restart the process after an `ALTER TABLE` that changes a key or the value column.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqlx::MySqlPool::connect("mysql://shop@localhost/shop").await?;
/// let store = counterfoil::MysqlStore::new(pool);
/// store.create_tables().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MysqlStore {
    pub(crate) primary: Database,
    pub(crate) replica: Option<Database>,
    /// The targets by description; `None` is counterfoil's own table.
    targets: Arc<RwLock<HashMap<Option<Table>, Arc<Target>>>>,
    own: Arc<OwnTables>,
}

/// The state of counterfoil's own tables.
#[derive(Default)]
struct OwnTables {
    /// `true` if the tables exist.
    are_there: AtomicBool,
    /// `true` if missing tables are created before the first query for families.
    creates: bool,
}

impl MysqlStore {
    /// Creates a store in the database of the pool's connections. It must be on the server that is
    /// written to.
    pub fn new(pool: MySqlPool) -> Self {
        MysqlStore {
            primary: Database {
                pool,
                meter: Meter::default(),
            },
            replica: None,
            targets: Arc::default(),
            own: Arc::default(),
        }
    }

    /// Serves reads [from the nearest](ReadFrom::Nearest) server with this pool, which may lag
    /// behind the first one.
    #[must_use]
    pub fn with_replica(mut self, pool: MySqlPool) -> Self {
        self.replica = Some(self.on(Some(&pool)));
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
        let database = self.primary.clone();
        detached(async move { schema::create(&database).await }).await
    }

    /// Creates missing tables before the first query for families.
    pub(crate) fn creating_tables(mut self) -> Self {
        self.own = Arc::new(OwnTables {
            creates: true,
            ..OwnTables::default()
        });
        self
    }

    /// Creates or requires counterfoil's own tables, once.
    async fn ensure_tables(&self) -> Result<()> {
        if !self.own.are_there.load(Ordering::Relaxed) {
            if self.own.creates {
                schema::create(&self.primary).await?;
            } else {
                schema::require(&self.primary).await?;
            }
            self.own.are_there.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the number of statements that this store and its clones have sent, as the server
    /// counts them.
    pub fn statements(&self) -> u64 {
        self.primary.meter.total()
    }

    /// Returns the server behind another pool, by default the primary.
    fn on(&self, pool: Option<&MySqlPool>) -> Database {
        Database {
            pool: pool.unwrap_or(&self.primary.pool).clone(),
            meter: self.primary.meter.clone(),
        }
    }

    /// Returns the table of the family's values. Its definition is read once.
    pub(crate) async fn target(&self, family: &Family) -> Result<Arc<Target>> {
        let known = self
            .targets
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&family.table)
            .cloned();
        if let Some(target) = known {
            return Ok(target);
        }
        let target = Arc::new(match &family.table {
            Some(table) => {
                Target::of_application(table, &Shape::learn(&self.primary, table).await?)
            }
            None => Target::own(),
        });
        let mut targets = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        targets.insert(family.table.clone(), Arc::clone(&target));
        Ok(target)
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
    async fn register(&self, family: &Family) -> Result<u64> {
        let (mysql, family) = (self.clone(), family.clone());
        detached(async move {
            mysql.ensure_tables().await?;
            mysql.target(&family).await?;
            if family.is_cached() {
                lookup::refuse_replica(&mysql.primary, &family).await?;
            }
            families::register(&mysql.primary, &family).await
        })
        .await
    }

    async fn families(&self) -> Result<Vec<Result<Registered>>> {
        let mysql = self.clone();
        detached(async move {
            if mysql.own.creates {
                mysql.ensure_tables().await?;
            }
            families::list(&mysql.primary).await
        })
        .await
    }

    async fn reconfigure(&self, before: &Family, after: &Family) -> Result<()> {
        let (mysql, before, after) = (self.clone(), before.clone(), after.clone());
        detached(async move { families::reconfigure(&mysql.primary, &before, &after).await }).await
    }

    async fn apply(&self, batches: &[Arc<Batch>], max_rows: Option<u64>) -> Result<Applied> {
        // read here, because the task may run on another thread
        let unguarded = Unguarded::here();
        let (mysql, batches) = (self.clone(), batches.to_vec());
        detached(async move { apply::apply(&mysql, &batches, max_rows, unguarded).await }).await
    }

    async fn ledger(&self, families: &[u64]) -> Result<Vec<LedgerRow>> {
        let (database, families) = (self.primary.clone(), families.to_vec());
        detached(async move {
            ledger::read(&database, &families)
                .await
                .map_err(store("the ledger was not read"))
        })
        .await
    }

    async fn read(
        &self,
        family: &Registered,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        from: ReadFrom,
    ) -> Result<Snapshot> {
        let mysql = self.clone();
        let (family, ledger) = (family.clone(), ledger.to_vec());
        let ids: Vec<_> = ids.iter().map(|&id| id.to_owned()).collect();
        in_place(async move {
            let target = mysql.target(&family.family).await?;
            let database = match from {
                ReadFrom::Nearest => mysql.replica.as_ref().unwrap_or(&mysql.primary),
                ReadFrom::Primary => &mysql.primary,
            };
            let (snapshot, _) = lookup::read(database, &target, &family, &ids, &ledger).await?;
            Ok(snapshot)
        })
        .await
    }

    async fn list(
        &self,
        family: &Registered,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        let (mysql, family) = (self.clone(), family.clone());
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        detached(async move {
            let target = mysql.target(&family.family).await?;
            list::list(
                &mysql.primary,
                &target,
                &family,
                &prefix,
                after.as_deref(),
                limit,
            )
            .await
        })
        .await
    }

    async fn rows(&self, family: &Registered, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        let (mysql, family) = (self.clone(), family.clone());
        let ids: Vec<_> = ids.iter().map(|&id| id.to_owned()).collect();
        in_place(async move {
            let target = mysql.target(&family.family).await?;
            let (snapshot, read_only) =
                lookup::read(&mysql.primary, &target, &family, &ids, &[]).await?;
            lookup::check_writable(&read_only, &family.family)?;
            Ok(snapshot.values)
        })
        .await
    }

    fn as_mysql(&self) -> Option<&MysqlStore> {
        Some(self)
    }
}

//! MySQL and MariaDB: all SQL of the crate.

mod add;
mod apply;
mod cached_statements;
mod compare_and_set;
mod discard;
mod families;
mod fault;
mod findings;
mod grants;
mod halves;
mod json;
mod ledger;
mod list;
mod overview;
mod parts;
mod point;
mod positions;
mod recount;
mod rejects;
mod retry;
mod rows;
mod schema;
mod session;
mod shape;
mod snapshot;
mod source;
mod statement;
mod swap;
mod target;
mod transact;
mod versions;
mod whole;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sqlx::MySqlPool;

use self::fault::store;
pub use self::grants::grants;
pub use self::overview::{Overview, RecountRun};
use self::point::Point;
pub use self::recount::Drift;
pub use self::recount::Run;
pub(crate) use self::recount::{Begun, Cursor, Drifted};
pub use self::rejects::Reject;
pub use self::retry::Retried;
use self::session::Meter;
use self::shape::Shape;
use self::snapshot::SnapshotRead;
pub(crate) use self::source::IdPage;
pub use self::source::Source;
use self::target::Target;
use self::whole::{detached, in_place};
use crate::error::Result;
use crate::family::Family;
use crate::family::table::Table;
use crate::finding::Finding;
use crate::store::{Applied, Batch, Incarnation, ReadFrom, Registered, Row, Save, Saved, Snapshot, Store};
use crate::testing::ablation::{self, Guard};

/// A [`Store`] in MySQL (8.0.4 or later) or MariaDB (10.6 or later). A clone is the same store.
///
/// It works on the application's own pool and leaves a connection's session as it found it: the isolation level, the
/// `sql_mode` and the safe updates that a transaction needs hold for that transaction only. What was begun is
/// finished, so a caller's future may be dropped at any moment: a transaction is never cut off half-way, and sqlx's
/// connections survive.
///
/// What it finds out about a table of the application's is kept for the life of the store: after an `ALTER TABLE` that
/// changes a key or the value column, start anew.
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
    primary: MySqlPool,
    replica: Option<MySqlPool>,
    meter: Meter,
    /// By description; `None` is counterfoil's own table.
    targets: Arc<RwLock<HashMap<Option<Table>, Arc<Target>>>>,
    own: Arc<OwnTables>,
}

/// What is known of counterfoil's own tables.
#[derive(Default)]
struct OwnTables {
    /// They were seen.
    are_there: AtomicBool,
    /// Those that are missing are created when the database is first asked for families.
    creates: bool,
}

impl MysqlStore {
    /// A store in the database that the pool's connections are in. It must be the one that is written.
    pub fn new(pool: MySqlPool) -> Self {
        MysqlStore {
            primary: pool,
            replica: None,
            meter: Meter::default(),
            targets: Arc::default(),
            own: Arc::default(),
        }
    }

    /// Serves reads [from the nearest](ReadFrom::Nearest) with this pool, which may be behind the first one.
    #[must_use]
    pub fn with_replica(mut self, pool: MySqlPool) -> Self {
        self.replica = Some(pool);
        self
    }

    /// The statements, separated by `;`, that create counterfoil's tables where they are not there yet; for those who
    /// create tables by migrations.
    pub const fn schema() -> &'static str {
        schema::SCHEMA
    }

    /// Creates those of counterfoil's tables that are not there yet, and adds the columns that those of an earlier version
    /// lack. Where nothing is missing, the database's user needs neither CREATE nor ALTER.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store), or [`Mismatch`](crate::ErrorKind::Mismatch) where the user may not, naming
    /// the table. Tables created before it stay: the database commits each at once.
    pub async fn create_tables(&self) -> Result<()> {
        let mysql = self.clone();
        detached(async move { schema::create(&mysql.primary, &mysql.meter).await }).await
    }

    /// Creates what is missing when the database is first asked for families.
    pub(crate) fn creating_tables(mut self) -> Self {
        self.own = Arc::new(OwnTables { creates: true, ..OwnTables::default() });
        self
    }

    /// Sees to counterfoil's own tables, once.
    async fn see_to_tables(&self) -> Result<()> {
        if !self.own.are_there.load(Ordering::Relaxed) {
            if self.own.creates {
                schema::create(&self.primary, &self.meter).await?;
            } else {
                schema::require(&self.primary, &self.meter).await?;
            }
            self.own.are_there.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Up to `limit` rejects with numbers above `after` (0 for the first page), ascending, but for those that were
    /// [applied](Self::retry_rejects) or [discarded](Self::discard_rejects) since.
    ///
    /// A number is given before its transaction is committed: one who follows the rejects may find a lower number a
    /// moment after a higher one.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) where the database cannot be reached.
    pub async fn rejects(&self, after: u64, limit: u64) -> Result<Vec<Reject>> {
        let mysql = self.clone();
        detached(async move {
            mysql.meter.sent(1);
            rejects::read(&mysql.primary, after, limit).await.map_err(store("rejects were not read"))
        })
        .await
    }

    /// The last `limit` of these, the newest first.
    ///
    /// # Errors
    /// As for [`rejects`](Self::rejects).
    pub async fn latest_rejects(&self, limit: u64) -> Result<Vec<Reject>> {
        let mysql = self.clone();
        detached(async move {
            mysql.meter.sent(1);
            rejects::latest(&mysql.primary, limit).await.map_err(store("rejects were not read"))
        })
        .await
    }

    /// Adds rejects of a family, given by their numbers, to their rows, once what they were refused for is mended, and
    /// returns what became of each, in the order of the numbers. Their rows stay, marked as applied. A delta that is
    /// refused again stays a reject with the new reason.
    ///
    /// Each counts once, whoever applies it again and how often: the row and the mark are written in one transaction, for up
    /// to 10,000 rejects. Any family but a cached one: there the value that was refused is still in Redis, and is
    /// saved by itself when its row takes it. (What was counted on a row of [`Table::update`] that was not there is
    /// left to the application: `incr` by the reject's delta once there is one.)
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): nothing of the last transaction was kept, or it is unknown; call again, nothing
    /// counts twice. [`Mismatch`](crate::ErrorKind::Mismatch) where the family or its table is another one;
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a family of cached counters.
    pub async fn retry_rejects(&self, family: &Family, numbers: &[u64]) -> Result<Vec<Retried>> {
        let (mysql, family, numbers) = (self.clone(), family.clone(), numbers.to_vec());
        detached(async move { retry::retry(&mysql, family, &numbers).await }).await
    }

    /// Gives up rejects of any family: each of these numbers that is open is marked as done without being added, and
    /// its reason, cut at 1024 characters, begins with `discarded: ` from now on. Returns the numbers of those,
    /// ascending: others are not there, or were applied or discarded before.
    ///
    /// Of this and [`retry_rejects`](Self::retry_rejects) at the same moment one wins each reject. What a cached
    /// counter counted is in Redis all the same, and is saved when its row takes it.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): up to 10,000 rejects share a transaction, and nothing of the last one was
    /// kept, or it is unknown; call again.
    pub async fn discard_rejects(&self, numbers: &[u64]) -> Result<Vec<u64>> {
        let (mysql, numbers) = (self.clone(), numbers.to_vec());
        detached(async move { discard::discard(&mysql, &numbers).await }).await
    }

    /// How many statements this store and its clones have sent, as the server counts them.
    pub fn statements(&self) -> u64 {
        self.meter.total()
    }

    /// The table that the family's values go to, found out about once.
    async fn target(&self, family: &Family) -> Result<Arc<Target>> {
        let known = self.targets.read().unwrap_or_else(PoisonError::into_inner).get(&family.table).cloned();
        if let Some(target) = known {
            return Ok(target);
        }
        let target = Arc::new(match &family.table {
            Some(table) => Target::new(table, &Shape::learn(&self.primary, &self.meter, table).await?),
            None => Target::own(),
        });
        let mut targets = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        targets.insert(family.table.clone(), Arc::clone(&target));
        Ok(target)
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore").field("replica", &self.replica.is_some()).finish_non_exhaustive()
    }
}

impl Store for MysqlStore {
    async fn register(&self, family: &Family) -> Result<u64> {
        let (mysql, family) = (self.clone(), family.clone());
        detached(async move {
            mysql.see_to_tables().await?;
            mysql.target(&family).await?;
            if family.is_cached() {
                rows::refuse_replica(&mysql.primary, &mysql.meter, &family).await?;
            }
            families::register(&mysql.primary, &mysql.meter, &family).await
        })
        .await
    }

    async fn families(&self) -> Result<Vec<Result<Registered>>> {
        let mysql = self.clone();
        detached(async move {
            if mysql.own.creates {
                mysql.see_to_tables().await?;
            }
            families::list(&mysql.primary, &mysql.meter).await
        })
        .await
    }

    async fn reconfigure(&self, before: &Family, after: &Family) -> Result<()> {
        let (mysql, before, after) = (self.clone(), before.clone(), after.clone());
        detached(async move { families::reconfigure(&mysql.primary, &mysql.meter, &before, &after).await }).await
    }

    async fn apply(&self, batches: &[Batch]) -> Result<Applied> {
        // the switch holds for this thread, the task may run on another
        let trusting = ablation::is_out(Guard::Ledger);
        let (mysql, batches) = (self.clone(), batches.to_vec());
        detached(async move { apply::apply(&mysql, &batches, trusting).await }).await
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
            let pool = match from {
                ReadFrom::Nearest => mysql.replica.as_ref().unwrap_or(&mysql.primary),
                ReadFrom::Primary => &mysql.primary,
            };
            match Point::new(&target, &family, &ids, &ledger) {
                Some(point) => point.send(pool, &mysql.meter).await,
                None => SnapshotRead::new(target, family, ids, &ledger).send(pool, &mysql.meter).await,
            }
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
            list::list(&mysql.primary, &mysql.meter, &target, &family, &prefix, after.as_deref(), limit).await
        })
        .await
    }

    async fn check(&self, families: &[Family]) -> Vec<Finding> {
        let (mysql, families) = (self.clone(), families.to_vec());
        let found = detached(async move { Ok(mysql.look(&families).await) }).await;
        found.unwrap_or_else(|error| vec![findings::unreachable(&error)])
    }

    async fn rows(&self, family: &Registered, ids: &[&str]) -> Result<Vec<Row>> {
        let (mysql, family) = (self.clone(), family.clone());
        let ids: Vec<_> = ids.iter().map(|&id| id.to_owned()).collect();
        in_place(async move {
            let target = mysql.target(&family.family).await?;
            rows::read(&mysql.primary, &mysql.meter, &target, &family, &ids).await
        })
        .await
    }

    async fn save(&self, family: &Registered, saves: &[Save]) -> Result<Vec<Saved>> {
        // the switch holds for this thread, the task may run on another
        let trusting = ablation::is_out(Guard::Version);
        let (mysql, family, saves) = (self.clone(), family.clone(), saves.to_vec());
        detached(async move { compare_and_set::save(&mysql, &family, &saves, trusting).await }).await
    }
}

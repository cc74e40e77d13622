//! Statements and transactions on the application's own pool, whatever state its sessions are in.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use sqlx::mysql::MySqlRow;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, FromRow, MySql, MySqlPool, Row as _};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::fault::{self, store};
use super::in_place::in_place;
use super::state::{self, STATE};
use super::statement::Statement;
use crate::error::{ErrorKind, Result};

/// A row of a reply, mostly a tuple.
pub trait Row: for<'r> FromRow<'r, MySqlRow> {}

impl<T: for<'r> FromRow<'r, MySqlRow>> Row for T {}

/// The connections to one server. Any future of a database may be dropped.
#[derive(Clone)]
pub struct Database {
    pub pool: MySqlPool,
    /// The number of statements sent.
    pub sent: Arc<AtomicU64>,
    /// The longest wait for a reply. A server that has vanished may leave its connections open.
    pub limit: Duration,
    /// The database of the first session, in which the names in statements are meant. A session in
    /// another one is closed: the application may have left it there.
    pub schema: Arc<OnceLock<String>>,
}

/// The first use of a session, which also learns the session's state.
enum First {
    /// The begin of a transaction.
    Begin,
    /// A SELECT, after the state.
    Read(Statement),
    /// A SELECT whose rows contain the state. If `writes`, the server must accept writes.
    LookUp { select: Statement, writes: bool },
}

impl Database {
    /// The default limit. A statement waits for a lock for a second, and a commit for a full disk
    /// for as long as it takes: the limit only closes its connection, and the commit is repeated.
    pub const LIMIT: Duration = Duration::from_secs(60);

    /// Reads the rows of a SELECT outside of a transaction. `failed` names the failure in the error
    /// message.
    pub async fn read<T: Row>(&self, failed: &'static str, select: Statement) -> Result<Vec<T>> {
        self.fetch(select).await.map_err(store(failed))
    }

    /// Reads the one row that such a SELECT always finds.
    pub async fn read_one<T: Row>(&self, failed: &'static str, select: Statement) -> Result<T> {
        self.read(failed, select)
            .await?
            .pop()
            .ok_or_else(|| store(failed)(sqlx::Error::RowNotFound))
    }

    /// Runs a SELECT outside of a transaction.
    pub async fn fetch<T: Row>(&self, select: Statement) -> Result<Vec<T>, sqlx::Error> {
        self.select(First::Read(select)).await
    }

    /// Runs a SELECT that also returns [`STATE`], which saves a round trip: as `text` of a row
    /// whose first column is 2. If `writes`, it fails on a server that accepts no writes.
    pub async fn look_up<T: Row>(
        &self,
        select: Statement,
        writes: bool,
    ) -> Result<Vec<T>, sqlx::Error> {
        self.select(First::LookUp { select, writes }).await
    }

    async fn select<T: Row>(&self, first: First) -> Result<Vec<T>, sqlx::Error> {
        let database = self.clone();
        let rows = in_place(async move { database.begin(first).await });
        let (_, rows) = rows.await?;
        rows.iter().map(T::from_row).collect()
    }

    /// Uses an idle connection without the ping of [`MySqlPool::acquire`]. If the connection turns
    /// out to be dead, or not to be fit, it does the same on another one.
    async fn begin(&self, first: First) -> Result<(Session, Vec<MySqlRow>), sqlx::Error> {
        let (mut others, mut idle) = (self.pool.size(), self.pool.try_acquire());
        loop {
            let is_tested = idle.is_none();
            let mut session = match idle.take() {
                Some(idle) => self.session(idle),
                None => self.tested().await?,
            };
            match session.first(&first).await {
                Ok(rows) => return Ok((session, rows)),
                Err(error) if fault::is_lost(&error) && !is_tested => {
                    tracing::debug!(error = %format_args!("{error:#}"), "an idle connection was dead");
                }
                // all others that the pool had may be unfit like it
                Err(error) if others > 0 && fault::own(&error).is_some() => {
                    tracing::debug!(error = %format_args!("{error:#}"), "a connection was closed");
                    others -= 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns a connection that was alive a moment ago.
    async fn tested(&self) -> Result<Session, sqlx::Error> {
        loop {
            let mut session = self.session(self.acquire().await?);
            if self.pool.options().get_test_before_acquire() || session.ping().await.is_ok() {
                return Ok(session);
            }
        }
    }

    /// Takes a connection from the pool. While the server refuses connections, the pool tries again
    /// until its time is over, and its error does not name the reason: one more attempt shows it.
    async fn acquire(&self) -> Result<PoolConnection<MySql>, sqlx::Error> {
        let acquired = self.pool.acquire().await;
        if let Err(sqlx::Error::PoolTimedOut) = acquired
            && let Ok(Err(error)) = timeout(REFUSAL, self.pool.connect_options().connect()).await
        {
            return Err(error);
        }
        acquired
    }

    fn session(&self, connection: PoolConnection<MySql>) -> Session {
        Session {
            connection,
            database: self.clone(),
            is_idle: true,
            is_open: false,
            is_spent: false,
        }
    }

    /// Closes the idle connections, which lead to a server that no longer accepts writes.
    fn leave(&self) {
        while let Some(mut idle) = self.pool.try_acquire() {
            idle.close_on_drop();
        }
    }

    /// Does the work and commits it. Repeats it if it conflicts with another transaction. `failed`
    /// names the failure in the error message.
    pub async fn transact<W: UnitOfWork>(
        &self,
        failed: impl Into<Cow<'static, str>>,
        work: W,
    ) -> Result<W::Output> {
        let done = self.run(work).await.map_err(store(failed));
        // for a transaction, a server that is read-only is one that is unavailable
        done.map_err(|error| match error.kind() {
            ErrorKind::Unsafe => error.with_kind(ErrorKind::Store),
            _ => error,
        })
    }

    /// Does the same, and returns the server's own error.
    ///
    /// It runs in a task of its own, which continues if the caller drops the future or does not
    /// poll it: a busy caller does not leave a transaction open.
    pub async fn run<W: UnitOfWork>(&self, work: W) -> Result<W::Output, sqlx::Error> {
        let database = self.clone();
        let done = tokio::spawn(async move { database.repeat_conflicts(&work).await }).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }

    async fn repeat_conflicts<W: UnitOfWork>(&self, work: &W) -> Result<W::Output, sqlx::Error> {
        let mut attempt = 1;
        loop {
            match self.transact_once(work).await {
                Err(error) if W::is_repeated(&error) && attempt < ATTEMPTS => {
                    tracing::debug!(attempt, error = %format_args!("{error:#}"), "retrying a transaction that conflicts with another one");
                    // random, so that the same two transactions do not conflict again
                    let random = getrandom::u32().unwrap_or(0) % 20_000;
                    tokio::time::sleep(Duration::from_micros((attempt * random).into())).await;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn transact_once<W: UnitOfWork>(&self, work: &W) -> Result<W::Output, sqlx::Error> {
        let (mut transaction, _) = self.begin(First::Begin).await?;
        let done = work.run(&mut transaction).await;
        // work that passed over the error of one row is committed, whatever its number
        if transaction.is_spent && done.is_err() {
            return done;
        }
        // after an error it is unknown whether the transaction was committed
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        let end = format!("{end} AND NO CHAIN NO RELEASE; {}", *RESTORE);
        let ended = transaction.packet(end, 2).await;
        transaction.is_open = ended.is_err();
        done.and_then(|done| ended.map(|_| done))
    }
}

/// The longest wait for the reason why a server refuses connections.
const REFUSAL: Duration = Duration::from_secs(1);

/// The maximum number of attempts of a transaction that conflicts with others.
const ATTEMPTS: u32 = 5;

/// The work within a transaction.
pub trait UnitOfWork: Send + Sync + 'static {
    /// The result of the work.
    type Output: Send + 'static;

    /// Returns whether the work is repeated at once after this error.
    fn is_repeated(error: &sqlx::Error) -> bool {
        fault::is_conflict(error)
    }

    /// Does the work. An error rolls all of it back.
    fn run(
        &self,
        transaction: &mut Session,
    ) -> impl Future<Output = Result<Self::Output, sqlx::Error>> + Send;
}

/// A statement alone. Returns the number of rows that it found.
impl UnitOfWork for Statement {
    type Output = u64;

    async fn run(&self, transaction: &mut Session) -> Result<u64, sqlx::Error> {
        transaction.execute(self.clone()).await
    }
}

/// The settings of a session that a transaction changes and restores:
///
/// - In our mode an out-of-range value is an error (without a strict mode MySQL clips it, which
///   loses counts), and 0 in an AUTO_INCREMENT column means 0. No setting of the session
///   (ANSI_QUOTES, MariaDB's ORACLE ...) changes the meaning of our statements.
/// - Safe updates would refuse an UPDATE whose rows come from a join.
/// - A row or table that another session has locked is waited for a second, not 50 s or a year:
///   meanwhile others wait for the locks of this transaction.
/// - If the process is suspended or cut off, the server rolls back after 10 s. A default of 8 hours
///   would hold the rows, and the application's own updates of them would fail after 50 s.
const SETTINGS: [(&str, &str); 5] = [
    (
        "sql_mode",
        "'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'",
    ),
    ("sql_safe_updates", "0"),
    ("innodb_lock_wait_timeout", "1"),
    ("lock_wait_timeout", "1"),
    ("wait_timeout", "10"),
];

/// The begin of a transaction, in one packet and so in one round trip:
///
/// - READ COMMITTED applies to the next transaction only. It locks hardly anything between rows, so
///   batches of different rows do not wait for each other. The statement is the same on MySQL and
///   MariaDB; the variable's name is not.
/// - READ WRITE, and NO CHAIN NO RELEASE at the end, are the defaults, which a session may change.
static BEGIN: LazyLock<String> = LazyLock::new(|| {
    let save = SETTINGS.map(|(name, _)| format!("@counterfoil_{name} = @@SESSION.{name}"));
    let set = SETTINGS.map(|(name, value)| format!("SESSION {name} = {value}"));
    format!(
        "SET {}, {}; SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ WRITE; ",
        save.join(", "),
        set.join(", ")
    )
});

/// The rest of the packet that ends a transaction.
static RESTORE: LazyLock<String> = LazyLock::new(|| {
    let restore = SETTINGS.map(|(name, _)| format!("SESSION {name} = @counterfoil_{name}"));
    format!("SET {}", restore.join(", "))
});

/// A session of the server, for a unit of work in a transaction. If it is dropped while a statement
/// runs or a transaction is open, or if it is spent, its connection is closed: the server rolls
/// back, and no session with changed settings returns to the pool.
pub struct Session {
    connection: PoolConnection<MySql>,
    database: Database,
    /// Set once the last statement has ended.
    is_idle: bool,
    /// Set from the begin of a transaction until its end has succeeded.
    is_open: bool,
    /// Set for good once the session is lost, or not fit.
    is_spent: bool,
}

impl Session {
    /// Runs a statement and returns the number of rows that it found, unchanged ones too, as sqlx
    /// requests it.
    pub async fn execute(&mut self, statement: Statement) -> Result<u64, sqlx::Error> {
        let limit = self.begin(1);
        let done = timeout(limit, statement.query().execute(&mut *self.connection)).await;
        Ok(self.ended(done)?.rows_affected())
    }

    pub async fn fetch<T: Row>(&mut self, select: Statement) -> Result<Vec<T>, sqlx::Error> {
        self.rows(select).await?.iter().map(T::from_row).collect()
    }

    async fn rows(&mut self, select: Statement) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let limit = self.begin(1);
        let rows = timeout(limit, select.query().fetch_all(&mut *self.connection)).await;
        self.ended(rows)
    }

    async fn first(&mut self, first: &First) -> Result<Vec<MySqlRow>, sqlx::Error> {
        match first {
            First::Begin => {
                self.is_open = true;
                // a user with further privileges may write where read_only is set, also on a
                // replica
                self.learn(&BEGIN, 3, true).await.map(|()| Vec::new())
            }
            First::Read(select) => {
                self.learn("", 0, false).await?;
                self.rows(select.clone()).await
            }
            First::LookUp { select, writes } => {
                let rows = self.rows(select.clone()).await?;
                // mostly the last one
                for row in rows.iter().rev() {
                    if row.try_get::<i64, _>(0)? == 2 {
                        self.check(row.try_get("text")?, *writes)?;
                        break;
                    }
                }
                Ok(rows)
            }
        }
    }

    /// Sends a packet of statements that return no rows, and learns the state of the session in the
    /// same round trip. A prepared statement would not show it.
    async fn learn(
        &mut self,
        packet: &str,
        statements: u64,
        writes: bool,
    ) -> Result<(), sqlx::Error> {
        let text = format!("{packet}SELECT {STATE}");
        let rows = self.packet(text, statements + 1).await?;
        match rows.first() {
            Some(row) => self.check(row.try_get(0)?, writes),
            None => Ok(()),
        }
    }

    /// Checks the state of the session.
    fn check(&mut self, state: String, writes: bool) -> Result<(), sqlx::Error> {
        let fits = state::check(&state, &self.database.schema, writes);
        self.is_spent |= fits.is_err();
        fits.map_err(fault::from_own)
    }

    /// Sends statements without parameters, and returns the rows of all.
    pub async fn packet(
        &mut self,
        text: String,
        statements: u64,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let limit = self.begin(statements);
        let packet = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *self.connection);
        let rows = timeout(limit, packet).await;
        self.ended(rows)
    }

    async fn ping(&mut self) -> Result<(), sqlx::Error> {
        let limit = self.begin(0);
        let done = timeout(limit, self.connection.ping()).await;
        let done = self.ended(done);
        // a connection that fails in any way does not return to the pool, where it is found again
        self.is_spent |= done.is_err();
        done
    }

    /// Notes that statements are sent. Returns the longest wait for their reply.
    fn begin(&mut self, statements: u64) -> Duration {
        self.database.sent.fetch_add(statements, Ordering::Relaxed);
        self.is_idle = false;
        self.database.limit
    }

    fn ended<T>(
        &mut self,
        done: Result<Result<T, sqlx::Error>, Elapsed>,
    ) -> Result<T, sqlx::Error> {
        let silent = |_| {
            let why = format!("no reply within {:?}", self.database.limit);
            Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
        };
        let done = done.unwrap_or_else(silent);
        self.is_idle = true;
        self.is_spent |= done.as_ref().is_err_and(fault::ends_session);
        if done.as_ref().is_err_and(fault::is_demoted) {
            self.database.leave();
        }
        done
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_idle || self.is_open || self.is_spent {
            self.connection.close_on_drop();
        }
    }
}

//! Statements and transactions on the store's own connections.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPoolOptions, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection, FromRow, MySql, MySqlPool, Row as _};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::fault::{self, store};
use super::in_place::in_place;
use super::statement::Statement;
use crate::error::{Error, ErrorKind, Result};

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
}

impl Database {
    /// The default limit. It is longer than a statement waits for a lock, which is a second. A
    /// commit waits for a full disk as long as it takes: the limit then closes its connection, and
    /// the transaction is repeated.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Creates up to `connections` connections, each on its first use.
    pub fn new(options: MySqlConnectOptions, connections: u32) -> Self {
        Database {
            pool: MySqlPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(ACQUIRE)
                .after_connect(|connection, _| Box::pin(pin(connection)))
                .connect_lazy_with(options),
            sent: Arc::default(),
            limit: Database::LIMIT,
        }
    }

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
        self.look_up(select, false).await
    }

    /// Runs a SELECT like [`fetch`](Self::fetch). If `writes`, the server must accept writes: the
    /// SELECT returns [`READ_ONLY`] as `text` of a row whose first column is 2, which saves a round
    /// trip.
    pub async fn look_up<T: Row>(
        &self,
        select: Statement,
        writes: bool,
    ) -> Result<Vec<T>, sqlx::Error> {
        let database = self.clone();
        let rows = in_place(async move { database.select(&select, writes).await }).await?;
        rows.iter().map(T::from_row).collect()
    }

    async fn select(&self, select: &Statement, writes: bool) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let mut attempts = self.attempts();
        loop {
            let mut session = self.session(&mut attempts).await?;
            match session.select(select.clone(), writes).await {
                Ok(rows) => return Ok(rows),
                Err(error) => attempts.take(error)?,
            }
        }
    }

    async fn begin(&self) -> Result<Session, sqlx::Error> {
        let mut attempts = self.attempts();
        loop {
            let mut session = self.session(&mut attempts).await?;
            match session.begin().await {
                Ok(()) => return Ok(session),
                Err(error) => attempts.take(error)?,
            }
        }
    }

    fn attempts(&self) -> Attempts {
        Attempts {
            is_first: true,
            is_tested: false,
            others: self.pool.size(),
        }
    }

    /// Takes a connection from the pool: for the first attempt an idle one, without the ping of
    /// [`MySqlPool::acquire`].
    async fn session(&self, attempts: &mut Attempts) -> Result<Session, sqlx::Error> {
        let idle = attempts.is_first.then(|| self.pool.try_acquire()).flatten();
        attempts.is_first = false;
        attempts.is_tested = idle.is_none();
        let connection = match idle {
            Some(idle) => idle,
            None => self.acquire().await?,
        };
        Ok(Session {
            connection,
            database: self.clone(),
            is_in_use: false,
        })
    }

    /// Takes a connection that was alive a moment ago. While the server refuses connections, the pool
    /// tries again until its time is over, and its error does not name the reason: one more attempt
    /// shows it.
    async fn acquire(&self) -> Result<PoolConnection<MySql>, sqlx::Error> {
        let acquired = self.pool.acquire().await;
        if let Err(sqlx::Error::PoolTimedOut) = acquired {
            let options = self.pool.connect_options();
            let again = async {
                let mut connection = MySqlConnection::connect_with(&options).await?;
                pin(&mut connection).await
            };
            if let Ok(Err(error)) = timeout(REFUSAL, again).await {
                return Err(error);
            }
        }
        acquired
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
        self.run(work)
            .await
            .map_err(store(failed))
            .map_err(|error| match error.kind() {
                // a transaction may succeed later: for it a server that is read-only counts as
                // unavailable
                ErrorKind::Unsafe => error.with_kind(ErrorKind::Store),
                _ => error,
            })
    }

    /// Does the work like [`transact`](Self::transact), and returns the server's own error.
    ///
    /// It runs in a task of its own, which continues if the caller drops the future or does not
    /// poll it: a busy caller does not leave a transaction open.
    pub async fn run<W: UnitOfWork>(&self, work: W) -> Result<W::Output, sqlx::Error> {
        let database = self.clone();
        tokio::spawn(async move { database.repeat_conflicts(&work).await })
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error).into()))
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
        let mut transaction = self.begin().await?;
        let done = work.run(&mut transaction).await;
        if done.as_ref().is_err_and(fault::ends_session) {
            return done;
        }
        // if COMMIT fails, it is unknown whether the transaction was committed
        let end = if done.is_ok() { COMMIT } else { ROLLBACK };
        let ended = transaction.end(end).await;
        done.and_then(|done| ended.map(|()| done))
    }
}

/// The attempts that are left for one use of a connection.
struct Attempts {
    is_first: bool,
    /// Set if the last connection was alive a moment before.
    is_tested: bool,
    /// The number of connections that may lead to a server that is read-only.
    others: u32,
}

impl Attempts {
    /// Takes one of the attempts, or returns the error of the last one.
    fn take(&mut self, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if fault::is_lost(&error) && !self.is_tested {
            tracing::debug!(error = %format_args!("{error:#}"), "an idle connection was dead");
        } else if fault::own(&error).is_some() && self.others > 0 {
            tracing::debug!(error = %format_args!("{error:#}"), "a connection was closed");
            self.others -= 1;
        } else {
            return Err(error);
        }
        Ok(())
    }
}

/// The longest wait for a connection, with TLS and the login.
const ACQUIRE: Duration = Duration::from_secs(4);

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

/// The settings of every session, whatever those of the server are:
///
/// - In our mode an out-of-range value is an error (without a strict mode MySQL clips it, which
///   loses counts), and 0 in an AUTO_INCREMENT column means 0. MySQL's default refuses a recount's
///   source without its GROUP BY; MariaDB's check for that refuses valid ones.
/// - Safe updates would refuse an UPDATE whose rows come from a join.
/// - A row or table that another session has locked is waited for a second, not 50 s or a year:
///   meanwhile others wait for the locks of this transaction.
/// - READ COMMITTED locks hardly anything between rows, so batches of different rows do not wait for
///   each other. The statement is the same on MySQL and MariaDB; the variable's name is not.
/// - Replies have no limit of rows: an id that a limited one lacks would pass for one without rows.
/// - Keys in TIMESTAMP columns are written and read in UTC, where each time occurs once.
const SETTINGS: &str = "SET SESSION sql_mode = CONCAT('STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,', \
     IF(VERSION() LIKE '%MariaDB%', 'NO_ENGINE_SUBSTITUTION', 'NO_ENGINE_SUBSTITUTION,ONLY_FULL_GROUP_BY')), \
     SESSION sql_safe_updates = 0, SESSION innodb_lock_wait_timeout = 1, SESSION lock_wait_timeout = 1, \
     SESSION autocommit = 1, SESSION completion_type = 'NO_CHAIN', \
     SESSION sql_select_limit = 18446744073709551615, SESSION time_zone = '+00:00'; \
     SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SET NAMES utf8mb4";

/// Gives a new connection its [`SETTINGS`].
async fn pin(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SETTINGS).execute(connection).await.map(drop)
}

/// `read_only` of the server as text: a number on most servers, a word on others. MySQL's
/// `super_read_only` sets it too.
pub const READ_ONLY: &str = "CAST(@@GLOBAL.read_only AS CHAR)";

// One packet, and so one round trip, begins a transaction, and one ends it. If the process is
// suspended or cut off meanwhile, the server rolls back after 10 s. With the default of 8 hours it
// would hold the rows, and the application's own updates of them would fail after 50 s. Between
// transactions a connection may be idle for longer.
const BEGIN: &str = "SET SESSION wait_timeout = 10; START TRANSACTION";
const COMMIT: &str = "COMMIT; SET SESSION wait_timeout = DEFAULT";
const ROLLBACK: &str = "ROLLBACK; SET SESSION wait_timeout = DEFAULT";

/// A session of the server, for a unit of work in a transaction. If it is dropped while a statement
/// runs or a transaction is open, its connection is closed: the server rolls back.
pub struct Session {
    connection: PoolConnection<MySql>,
    database: Database,
    /// Set while a transaction is open, or a SELECT outside of one runs.
    is_in_use: bool,
}

impl Session {
    /// Runs a statement and returns the number of rows that it found, unchanged ones too, as sqlx
    /// requests it.
    pub async fn execute(&mut self, statement: Statement) -> Result<u64, sqlx::Error> {
        let limit = self.sends(1);
        let done = timeout(limit, statement.query().execute(&mut *self.connection)).await;
        Ok(self.replied(done)?.rows_affected())
    }

    pub async fn fetch<T: Row>(&mut self, select: Statement) -> Result<Vec<T>, sqlx::Error> {
        self.rows(select).await?.iter().map(T::from_row).collect()
    }

    async fn rows(&mut self, select: Statement) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let limit = self.sends(1);
        let rows = timeout(limit, select.query().fetch_all(&mut *self.connection)).await;
        self.replied(rows)
    }

    /// Sends statements without parameters, and returns the rows of all.
    pub async fn packet(
        &mut self,
        text: String,
        statements: u64,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let limit = self.sends(statements);
        let packet = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *self.connection);
        let rows = timeout(limit, packet).await;
        self.replied(rows)
    }

    /// Runs a SELECT outside of a transaction.
    async fn select(
        &mut self,
        select: Statement,
        writes: bool,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let reply = self.rows(select).await;
        self.is_in_use = false;
        let rows = reply?;
        if writes {
            self.refuse_read_only(&rows)?;
        }
        Ok(rows)
    }

    async fn begin(&mut self) -> Result<(), sqlx::Error> {
        let begin = format!("{BEGIN}; SELECT 2, {READ_ONLY} AS text");
        let rows = self.packet(begin, 3).await?;
        // this check is needed, because a user with further privileges may write although read_only
        // is set, also on a replica
        self.refuse_read_only(&rows)
    }

    async fn end(&mut self, end: &str) -> Result<(), sqlx::Error> {
        self.packet(end.to_owned(), 2).await?;
        self.is_in_use = false;
        Ok(())
    }

    /// Refuses a server that accepts no writes: it may be a replica, whose rows may be older than
    /// batches applied before.
    fn refuse_read_only(&mut self, rows: &[MySqlRow]) -> Result<(), sqlx::Error> {
        // it is the last row of most replies
        for row in rows.iter().rev() {
            if row.try_get::<i64, _>(0)? == 2 {
                let read_only: String = row.try_get("text")?;
                if matches!(&*read_only, "0" | "OFF") {
                    return Ok(());
                }
                self.connection.close_on_drop();
                let why = format!(
                    "the server accepts no writes (read_only is {read_only}), as a replica does; connect to the primary"
                );
                return Err(fault::from_own(Error::new(ErrorKind::Unsafe, why)));
            }
        }
        Err(sqlx::Error::RowNotFound)
    }

    /// Notes that statements are sent. Returns the longest wait for their reply.
    fn sends(&mut self, statements: u64) -> Duration {
        self.database.sent.fetch_add(statements, Ordering::Relaxed);
        self.is_in_use = true;
        self.database.limit
    }

    fn replied<T>(
        &mut self,
        done: Result<Result<T, sqlx::Error>, Elapsed>,
    ) -> Result<T, sqlx::Error> {
        let reply = done.unwrap_or_else(|_| {
            let why = format!("no reply within {:?}", self.database.limit);
            Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
        });
        if reply.as_ref().is_err_and(fault::ends_session) {
            self.connection.close_on_drop();
        }
        if reply.as_ref().is_err_and(fault::is_demoted) {
            self.database.leave();
        }
        reply
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_in_use {
            self.connection.close_on_drop();
        }
    }
}

//! Statements and transactions on the application's own pool, whatever state its sessions are in.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::mysql::MySqlRow;
use sqlx::pool::PoolConnection;
use sqlx::{Connection, MySql, MySqlPool};
use tokio::runtime::Handle;

use super::fault::{self, store};
use super::statement::Statement;
use crate::error::{Error, ErrorKind, Result};

/// The counter of sent statements.
#[derive(Clone, Default)]
pub struct Meter(Arc<AtomicU64>);

impl Meter {
    pub fn sent(&self, statements: u64) {
        self.0.fetch_add(statements, Ordering::Relaxed);
    }

    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The connections to one server.
#[derive(Clone)]
pub struct Database {
    pub pool: MySqlPool,
    pub meter: Meter,
}

impl Database {
    /// Runs a SELECT outside of a transaction. It uses an idle connection without the ping of
    /// [`MySqlPool::acquire`]. If the connection turns out to be dead, it repeats the SELECT on a
    /// tested one.
    pub async fn fetch(&self, query: impl Fn() -> Statement) -> Result<Vec<MySqlRow>, sqlx::Error> {
        if let Some(mut idle) = self.pool.try_acquire() {
            self.meter.sent(1);
            match query().fetch_all(&mut *idle).await {
                Err(error) if fault::is_lost(&error) => {
                    tracing::debug!(error = %format_args!("{error:#}"), "an idle connection was dead");
                    idle.close_on_drop();
                }
                result => return result,
            }
        }
        let mut connection = self.tested().await?;
        self.meter.sent(1);
        query().fetch_all(&mut *connection).await
    }

    /// Runs such a SELECT and reads each row of its reply.
    pub async fn fetch_each<T>(
        &self,
        query: impl Fn() -> Statement,
        read: impl Fn(&MySqlRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, sqlx::Error> {
        self.fetch(query).await?.iter().map(read).collect()
    }

    /// Runs such a SELECT that always finds one row.
    pub async fn fetch_one(&self, query: impl Fn() -> Statement) -> Result<MySqlRow, sqlx::Error> {
        self.fetch(query)
            .await?
            .pop()
            .ok_or(sqlx::Error::RowNotFound)
    }

    /// Runs a statement in a transaction of its own and returns the number of rows that it found.
    pub async fn execute(&self, query: Statement) -> Result<u64, sqlx::Error> {
        self.meter.sent(1);
        Ok(query.execute(&self.pool).await?.rows_affected())
    }

    /// Returns a connection that was alive a moment ago.
    async fn tested(&self) -> Result<PoolConnection<MySql>, sqlx::Error> {
        loop {
            let mut connection = self.pool.acquire().await?;
            if self.pool.options().get_test_before_acquire() || connection.ping().await.is_ok() {
                return Ok(connection);
            }
            connection.close_on_drop();
        }
    }

    /// Does the work and commits it. Repeats it if it conflicts with another transaction. `failed`
    /// names the failure in the error message.
    pub async fn transact<W: UnitOfWork>(
        &self,
        failed: &'static str,
        work: &W,
    ) -> Result<W::Output> {
        let mut attempt = 1;
        loop {
            match self.transact_once(work).await {
                Err(error) if fault::is_conflict(&error) && attempt < ATTEMPTS => {
                    tracing::debug!(attempt, error = %format_args!("{error:#}"), "retrying a transaction that conflicts with another one");
                    // random, so that the same two transactions do not conflict again
                    let random = getrandom::u32().unwrap_or(0) % 20_000;
                    tokio::time::sleep(Duration::from_micros((attempt * random).into())).await;
                    attempt += 1;
                }
                result => return result.map_err(store(failed)),
            }
        }
    }

    async fn transact_once<W: UnitOfWork>(&self, work: &W) -> Result<W::Output, sqlx::Error> {
        let mut transaction = Transaction {
            connection: self.tested().await?,
            meter: self.meter.clone(),
            ended: false,
        };
        transaction.packet(BEGIN, 3).await?;
        let done = work.run(&mut transaction).await;
        // after an error it is unknown whether the transaction was committed
        let end = if done.is_ok() { COMMIT } else { ROLLBACK };
        let ended = transaction.packet(end, 2).await;
        transaction.ended = ended.is_ok();
        done.and_then(|done| ended.map(|()| done))
    }
}

/// The maximum number of attempts of a transaction that conflicts with others.
const ATTEMPTS: u32 = 5;

/// The work within a transaction.
pub trait UnitOfWork: Sync {
    /// The result of the work.
    type Output: Send;

    /// Does the work. An error rolls all of it back.
    fn run(
        &self,
        transaction: &mut Transaction,
    ) -> impl Future<Output = Result<Self::Output, sqlx::Error>> + Send;
}

/// The begin of a transaction, in one packet and so in one round trip:
///
/// - The session's own mode is saved for [`COMMIT`] and [`ROLLBACK`]. In ours an out-of-range value
///   is an error (without a strict mode MySQL clips it, which loses counts), and 0 in an
///   AUTO_INCREMENT column means 0. No setting of the session (ANSI_QUOTES, MariaDB's ORACLE ...)
///   changes the meaning of our statements.
/// - Safe updates would refuse an UPDATE whose rows come from a join.
/// - READ COMMITTED applies to the next transaction only. It locks hardly anything between rows, so
///   batches of different rows do not wait for each other. The statement is the same on MySQL and
///   MariaDB; the variable's name is not.
const BEGIN: &str = "SET @counterfoil_sql_mode = @@SESSION.sql_mode, \
     @counterfoil_safe_updates = @@SESSION.sql_safe_updates, \
     SESSION sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION', \
     SESSION sql_safe_updates = 0; \
     SET TRANSACTION ISOLATION LEVEL READ COMMITTED; \
     START TRANSACTION";

const COMMIT: &str = "COMMIT; \
     SET SESSION sql_mode = @counterfoil_sql_mode, SESSION sql_safe_updates = @counterfoil_safe_updates";

const ROLLBACK: &str = "ROLLBACK; \
     SET SESSION sql_mode = @counterfoil_sql_mode, SESSION sql_safe_updates = @counterfoil_safe_updates";

/// An open transaction. If it is dropped before it ended, or if its end failed, its connection is
/// closed: the server rolls back, and no session with changed settings returns to the pool.
pub struct Transaction {
    connection: PoolConnection<MySql>,
    meter: Meter,
    ended: bool,
}

impl Transaction {
    /// Runs a statement and returns the number of rows that it found, unchanged ones too, as sqlx
    /// requests it.
    pub async fn execute(&mut self, query: Statement) -> Result<u64, sqlx::Error> {
        self.meter.sent(1);
        Ok(query.execute(&mut *self.connection).await?.rows_affected())
    }

    pub async fn fetch(&mut self, query: Statement) -> Result<Vec<MySqlRow>, sqlx::Error> {
        self.meter.sent(1);
        query.fetch_all(&mut *self.connection).await
    }

    async fn packet(&mut self, text: &'static str, statements: u64) -> Result<(), sqlx::Error> {
        self.meter.sent(statements);
        sqlx::raw_sql(text)
            .execute(&mut *self.connection)
            .await
            .map(drop)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}

/// Runs the work in its own task, since a query that is dropped half-way breaks its connection. It
/// continues while the caller does not poll it, so a busy caller does not leave a transaction open.
/// Boxed, since an application's futures nest around it and rustc's recursion limit is 128.
pub fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> BoxFuture<'static, Result<T>> {
    let lost = |error| {
        Error::new(ErrorKind::Store, "the task of a database call ended early").with_source(error)
    };
    async move { tokio::spawn(work).await.map_err(lost)? }.boxed()
}

/// Runs the work in the caller's own task until the caller is dropped, which saves a read two task
/// switches.
pub fn in_place<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> InPlace<T> {
    InPlace(Some(work.boxed()))
}

pub struct InPlace<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Future for InPlace<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // taken while it is polled: after a panic nothing is left to do
        let Some(mut work) = self.0.take() else {
            return Poll::Pending;
        };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for InPlace<T> {
    fn drop(&mut self) {
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

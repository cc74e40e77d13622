//! A transaction on a connection that belongs to the application's pool, whatever state its session
//! is in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::mysql::{MySqlArguments, MySqlQueryResult, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::{Connection, MySql, MySqlPool};

use super::fault;
use super::statement::Statement;

/// The counter of sent statements.
#[derive(Clone, Default)]
pub(crate) struct Meter(Arc<AtomicU64>);

impl Meter {
    pub(crate) fn sent(&self, statements: u64) {
        self.0.fetch_add(statements, Ordering::Relaxed);
    }

    pub(super) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs a SELECT outside of a transaction. It uses an idle connection without the ping of
/// [`MySqlPool::acquire`]. If the connection turns out to be dead, it repeats the SELECT on a
/// tested one.
pub(super) async fn fetch(
    pool: &MySqlPool,
    meter: &Meter,
    query: impl Fn() -> Statement,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    if let Some(mut idle) = pool.try_acquire() {
        meter.sent(1);
        match query().fetch_all(&mut *idle).await {
            Err(error) if fault::is_lost(&error) => {
                tracing::debug!(error = %format_args!("{error:#}"), "an idle connection was dead");
                idle.close_on_drop();
            }
            result => return result,
        }
    }
    let mut connection = tried(pool).await?;
    meter.sent(1);
    query().fetch_all(&mut *connection).await
}

/// Runs such a SELECT that always finds one row.
pub(super) async fn fetch_one(
    pool: &MySqlPool,
    meter: &Meter,
    query: impl Fn() -> Statement,
) -> Result<MySqlRow, sqlx::Error> {
    fetch(pool, meter, query)
        .await?
        .pop()
        .ok_or(sqlx::Error::RowNotFound)
}

/// Returns a connection that was alive a moment ago.
async fn tried(pool: &MySqlPool) -> Result<PoolConnection<MySql>, sqlx::Error> {
    loop {
        let mut connection = pool.acquire().await?;
        if pool.options().get_test_before_acquire() || connection.ping().await.is_ok() {
            return Ok(connection);
        }
        connection.close_on_drop();
    }
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

/// An open transaction. If it is dropped without [`commit`](Self::commit) or
/// [`rollback`](Self::rollback), or after either failed, its connection is closed: the server rolls
/// back, and no half-way session returns to the pool.
pub(super) struct Transaction {
    connection: PoolConnection<MySql>,
    meter: Meter,
    ended: bool,
}

impl Transaction {
    pub(super) async fn begin(pool: &MySqlPool, meter: &Meter) -> Result<Self, sqlx::Error> {
        let connection = tried(pool).await?;
        let mut transaction = Transaction {
            connection,
            meter: meter.clone(),
            ended: false,
        };
        transaction.packet(BEGIN, 3).await?;
        Ok(transaction)
    }

    /// Runs a statement and returns the number of rows that it found, unchanged ones too, as sqlx
    /// requests it.
    pub(super) async fn execute(
        &mut self,
        query: Query<'_, MySql, MySqlArguments>,
    ) -> Result<u64, sqlx::Error> {
        self.meter.sent(1);
        query
            .execute(&mut *self.connection)
            .await
            .map(|result: MySqlQueryResult| result.rows_affected())
    }

    pub(super) async fn fetch(
        &mut self,
        query: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        self.meter.sent(1);
        query.fetch_all(&mut *self.connection).await
    }

    /// Commits the transaction. After an error it is unknown whether it was committed.
    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.packet(COMMIT, 2).await?;
        self.ended = true;
        Ok(())
    }

    /// Rolls the transaction back. If this fails, the connection is closed, which rolls back as
    /// well.
    pub(super) async fn rollback(mut self) {
        self.ended = self.packet(ROLLBACK, 2).await.is_ok();
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

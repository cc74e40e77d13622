//! A transaction from its start to its end, repeated if it conflicts with another one.

use std::future::Future;
use std::time::Duration;

use super::MysqlStore;
use super::fault::{is_conflict, store};
use super::session::Transaction;
use crate::error::Result;

/// The maximum number of attempts of a transaction that conflicts with others.
const ATTEMPTS: u32 = 5;

/// The work within a transaction.
pub(super) trait UnitOfWork: Sync {
    /// The result of the work.
    type Output: Send;

    /// Does the work. An error rolls all of it back.
    fn run(
        &self,
        transaction: &mut Transaction,
    ) -> impl Future<Output = Result<Self::Output, sqlx::Error>> + Send;
}

/// Does the work and commits it. `failed` names the failure in the error message.
pub(super) async fn transact<W: UnitOfWork>(
    mysql: &MysqlStore,
    failed: &'static str,
    work: &W,
) -> Result<W::Output> {
    let mut attempt = 1;
    loop {
        match once(mysql, work).await {
            Err(error) if is_conflict(&error) && attempt < ATTEMPTS => {
                tracing::debug!(attempt, error = %format_args!("{error:#}"), "a transaction conflicts with another one and starts again");
                tokio::time::sleep(pause(attempt)).await;
                attempt += 1;
            }
            result => return result.map_err(store(failed)),
        }
    }
}

/// Returns up to 20 ms more after each attempt, at random, so that the same two transactions do not
/// conflict again.
fn pause(attempt: u32) -> Duration {
    let random = getrandom::u32().unwrap_or(0) % 20_000;
    Duration::from_micros(u64::from(attempt * random))
}

async fn once<W: UnitOfWork>(mysql: &MysqlStore, work: &W) -> Result<W::Output, sqlx::Error> {
    let mut transaction = Transaction::begin(&mysql.primary, &mysql.meter).await?;
    match work.run(&mut transaction).await {
        Ok(done) => transaction.commit().await.map(|()| done),
        Err(error) => {
            transaction.rollback().await;
            Err(error)
        }
    }
}

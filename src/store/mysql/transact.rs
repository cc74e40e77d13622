//! A transaction from its start to its end, and again where it meets another one.

use std::future::Future;
use std::time::Duration;

use super::MysqlStore;
use super::fault::{is_conflict, store};
use super::session::Transaction;
use crate::error::Result;

/// How often a transaction is begun that meets others.
const ATTEMPTS: u32 = 5;

/// What is done within a transaction.
pub(super) trait UnitOfWork: Sync {
    /// What comes of it.
    type Output: Send;

    /// Nothing of it is kept where it returns an error.
    fn run(&self, transaction: &mut Transaction) -> impl Future<Output = Result<Self::Output, sqlx::Error>> + Send;
}

/// Does the work and commits it; `failed` says what it was that failed.
pub(super) async fn transact<W: UnitOfWork>(mysql: &MysqlStore, failed: &'static str, work: &W) -> Result<W::Output> {
    let mut attempt = 1;
    loop {
        match once(mysql, work).await {
            Err(error) if is_conflict(&error) && attempt < ATTEMPTS => {
                tracing::debug!(attempt, %error, "a transaction met another one and is begun again");
                tokio::time::sleep(pause(attempt)).await;
                attempt += 1;
            }
            result => return result.map_err(store(failed)),
        }
    }
}

/// Up to 20 ms longer after each attempt; random, so that two that met do not meet again.
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

//! The database of a case, which may be killed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use counterfoil::test_hooks::Pending;
use counterfoil::{Batch, MysqlStore, ReadFrom, Result, Store};
use proptest::test_runner::TestCaseError;
use sqlx::MySqlPool;
use testkit::MysqlServer;

use super::connect::Connect;
use super::stage::Stage;
use super::{Checked, Fate, failed};
use crate::support::database_on;

/// Where batches end: one in memory, which is fast and so tries more, or a real store.
#[derive(Clone)]
pub struct Database<'s, S> {
    pub store: S,
    /// The store's server, where it is killed now and then.
    mysql: Option<&'s Mortal>,
}

impl<S> Database<'_, S> {
    pub fn new(store: S) -> Self {
        Database { store, mysql: None }
    }
}

impl<'s> Database<'s, MysqlStore> {
    pub async fn mortal(mysql: &'s Mortal) -> Self {
        Database { store: MysqlStore::new(mysql.database().await), mysql: Some(mysql) }
    }
}

impl<S: Store + Clone> Database<'_, S> {
    pub async fn apply(&self, batch: Batch, fate: Fate) -> Checked {
        let store = self.store.clone();
        let applying = async move { store.apply(&[batch]).await };
        let applied = match self.mysql {
            Some(mysql) if fate == Fate::LostAfter => mysql.unheard(applying).await,
            _ => applying.await.map(drop),
        };
        applied.map_err(failed)
    }

    /// What there is of the id in the database, in the batch and in the buffer together.
    pub async fn total<C: Connect>(&self, stage: &Stage<'_, C>, id: &str) -> Result<i128, TestCaseError> {
        let number = stage.partition_of(id);
        let pending = stage.partition(number).read(&[id]).await.map_err(failed)?;
        Ok(self.totals(stage, (number, pending), &[id]).await?[0])
    }

    /// The same of ids of one partition, of which Redis has just said what is pending.
    pub async fn totals<C: Connect>(
        &self,
        stage: &Stage<'_, C>,
        (number, pending): (u32, Pending),
        ids: &[&str],
    ) -> Result<Vec<i128>, TestCaseError> {
        let mark: Vec<_> = pending.incarnation.map(|incarnation| (number, incarnation)).into_iter().collect();
        let snapshot = self.store.read(&stage.family, ids, &mark, ReadFrom::Primary).await.map_err(failed)?;
        let is_beside = pending.in_flight && snapshot.ledger.first().copied().unwrap_or(0) < pending.seq;
        let total = |(value, (batch, buffer)): (&Option<i64>, &(i64, i64))| {
            let beside = if is_beside { i128::from(*batch) } else { 0 };
            i128::from(value.unwrap_or(0)) + i128::from(*buffer) + beside
        };
        Ok(snapshot.values.iter().zip(&pending.deltas).map(total).collect())
    }
}

/// A MySQL that may be killed now and then while it is at something of which nobody hears.
pub struct Mortal {
    server: MysqlServer,
    one_in: Option<u64>,
    unheard: AtomicU64,
}

impl Mortal {
    /// Of so many things of which nobody hears one kills it.
    pub async fn one_in(one_in: u64) -> Self {
        Mortal { one_in: Some(one_in), ..Mortal::never().await }
    }

    /// Nothing kills it.
    pub async fn never() -> Self {
        Mortal { server: MysqlServer::start().await, one_in: None, unheard: AtomicU64::new(0) }
    }

    /// A database with counterfoil's tables.
    pub async fn database(&self) -> MySqlPool {
        database_on(&self.server).await
    }

    /// Does what is to be done, whose reply is lost. Now and then the server is killed meanwhile.
    pub async fn unheard<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<()> {
        let number = self.unheard.fetch_add(1, Ordering::Relaxed);
        if !self.one_in.is_some_and(|one_in| number.is_multiple_of(one_in)) {
            return work.await.map(drop);
        }
        let working = tokio::spawn(work);
        tokio::time::sleep(Duration::from_micros(number * 97 % 3000)).await;
        self.server.kill();
        self.server.start_again().await;
        let _either_way = working.await;
        Ok(())
    }
}

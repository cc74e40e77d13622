//! A store that lets a reader in only when the test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use counterfoil::{Applied, Batch, Family, Incarnation, ReadFrom, Registered, Result, Snapshot, Store};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

#[derive(Clone)]
pub struct Gated<S> {
    store: S,
    gate: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl<S> Gated<S> {
    pub fn new(store: S) -> Self {
        Gated { store, gate: Arc::new(Semaphore::new(0)), waiting: Arc::default() }
    }

    /// Lets the reader run until it asks the database, or ends.
    pub async fn reach<T>(&self, reader: &JoinHandle<T>) {
        while self.waiting.load(Ordering::SeqCst) == 0 && !reader.is_finished() {
            tokio::time::sleep(Duration::from_micros(20)).await;
        }
    }

    /// Lets one question of the reader through, and then the reader run until it asks again, or ends.
    pub async fn let_in<T>(&self, reader: &JoinHandle<T>) {
        self.gate.add_permits(1);
        // the permit is taken by the one that waits, which may then come back and wait again
        while self.gate.available_permits() > 0 && !reader.is_finished() {
            tokio::time::sleep(Duration::from_micros(20)).await;
        }
        self.reach(reader).await;
    }
}

impl<S: Store> Store for Gated<S> {
    async fn register(&self, family: &Family) -> Result<u64> {
        self.store.register(family).await
    }

    async fn apply(&self, batches: &[Batch]) -> Result<Applied> {
        self.store.apply(batches).await
    }

    async fn read(
        &self,
        family: &Registered,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        from: ReadFrom,
    ) -> Result<Snapshot> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.expect("never closed").forget();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.store.read(family, ids, ledger, from).await
    }

    async fn list(&self, _: &Registered, _: &str, _: Option<&str>, _: usize) -> Result<Vec<(String, i64)>> {
        unreachable!("nothing is listed here")
    }
}

//! A store that the test comes between: before values are read, and after rows of cached counters were.

use std::future::{Future, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use counterfoil::{Applied, Batch, Family, Incarnation, ReadFrom, Registered, Result, Row, Save, Saved};
use counterfoil::{Snapshot, Store};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// What comes between.
pub trait Between: Send + Sync + 'static {
    /// Values and ledger are read once it is over.
    fn before_read(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Makes of the rows that were read those that are seen.
    fn seen(&self, rows: Vec<Row>) -> impl Future<Output = Vec<Row>> + Send {
        ready(rows)
    }
}

#[derive(Clone)]
pub struct Wrapped<S, B> {
    pub store: S,
    pub between: B,
}

impl<S: Store, B: Between> Store for Wrapped<S, B> {
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
        self.between.before_read().await;
        self.store.read(family, ids, ledger, from).await
    }

    async fn list(
        &self,
        family: &Registered,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        self.store.list(family, prefix, after, limit).await
    }

    async fn rows(&self, family: &Registered, ids: &[&str]) -> Result<Vec<Row>> {
        let rows = self.store.rows(family, ids).await?;
        Ok(self.between.seen(rows).await)
    }

    async fn save(&self, family: &Registered, saves: &[Save]) -> Result<Vec<Saved>> {
        self.store.save(family, saves).await
    }
}

/// Lets a reader go on only when the test says so.
#[derive(Clone)]
pub struct Gate {
    permits: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl Between for Gate {
    async fn before_read(&self) {
        self.pass().await;
    }

    async fn seen(&self, rows: Vec<Row>) -> Vec<Row> {
        self.pass().await;
        rows
    }
}

impl Gate {
    pub fn new() -> Self {
        Gate { permits: Arc::new(Semaphore::new(0)), waiting: Arc::default() }
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.permits.acquire().await.expect("never closed").forget();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets the reader run until it comes to the gate, or ends.
    pub async fn reach<T>(&self, reader: &JoinHandle<T>) {
        while self.waiting.load(Ordering::SeqCst) == 0 && !reader.is_finished() {
            tokio::time::sleep(Duration::from_micros(20)).await;
        }
    }

    /// Lets the reader through once, and then run until it comes to the gate again, or ends.
    pub async fn let_in<T>(&self, reader: &JoinHandle<T>) {
        self.permits.add_permits(1);
        // the permit is taken by the one that waits, which may then come back and wait again
        while self.permits.available_permits() > 0 && !reader.is_finished() {
            tokio::time::sleep(Duration::from_micros(20)).await;
        }
        self.reach(reader).await;
    }

    /// Lets the reader through from now on, however often it comes.
    pub fn open(&self) {
        self.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

//! A store that a test intercepts: before values are read, and after rows of cached counters were
//! read.

use std::future::{Future, ready};

use async_trait::async_trait;
use counterfoil::store::Snapshot;
use tokio::sync::Semaphore;

use crate::support::*;

/// The test's code between a caller and its store.
pub trait Between: Send + Sync + 'static {
    /// Fails a registration of a family, as a database that is unreachable.
    fn before_register(&self) -> Result<()> {
        Ok(())
    }

    /// Runs before values and ledger are read.
    fn before_read(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Returns the values and the ledger that the caller receives, given those that were read in
    /// one snapshot.
    fn seen_at_once(&self, snapshot: Snapshot) -> impl Future<Output = Snapshot> + Send {
        ready(snapshot)
    }

    /// Returns the rows that the caller receives, given those that were read.
    fn seen(&self, rows: Vec<Option<i64>>) -> impl Future<Output = Vec<Option<i64>>> + Send {
        ready(rows)
    }
}

#[derive(Clone)]
pub struct Wrapped<S, B> {
    pub store: S,
    pub between: B,
}

#[async_trait]
impl<S: Store, B: Between> Store for Wrapped<S, B> {
    async fn register(&self, family: &Family) -> Result<Registration> {
        self.between.before_register()?;
        self.store.register(family).await
    }

    async fn apply(&self, batches: &[Arc<Batch>], max_rows: Option<u64>) -> Result<ApplyReply> {
        self.store.apply(batches, max_rows).await
    }

    async fn ledger(&self, families: &[FamilyNumber]) -> Result<Vec<LedgerRow>> {
        self.store.ledger(families).await
    }

    async fn read(
        &self,
        family: &Registration,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        from: ReadFrom,
    ) -> Result<Snapshot> {
        self.between.before_read().await;
        let snapshot = self.store.read(family, ids, ledger, from).await?;
        Ok(self.between.seen_at_once(snapshot).await)
    }

    async fn list(
        &self,
        family: &Registration,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        self.store.list(family, prefix, after, limit).await
    }

    async fn rows(&self, family: &Registration, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        Ok(self.between.seen(self.store.rows(family, ids).await?).await)
    }
}

/// Holds a reader until the test lets it continue.
#[derive(Clone)]
pub struct Gate {
    permits: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    passed: Arc<AtomicUsize>,
}

impl Between for Gate {
    async fn before_read(&self) {
        self.pass().await;
    }

    async fn seen(&self, rows: Vec<Option<i64>>) -> Vec<Option<i64>> {
        self.pass().await;
        rows
    }
}

impl Gate {
    pub fn new() -> Self {
        Gate {
            permits: Arc::new(Semaphore::new(0)),
            waiting: Arc::default(),
            passed: Arc::default(),
        }
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.permits.acquire().await.unwrap().forget();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.passed.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until the reader comes to the gate, or ends.
    pub async fn reach<T>(&self, reader: &JoinHandle<T>) {
        while self.waiting.load(Ordering::SeqCst) == 0 && !reader.is_finished() {
            tokio::time::sleep(Duration::from_micros(20)).await;
        }
    }

    /// Lets the reader through once, and waits until it comes to the gate again, or ends.
    pub async fn let_in<T>(&self, reader: &JoinHandle<T>) {
        let passed = self.passed.load(Ordering::SeqCst);
        if !reader.is_finished() {
            self.permits.add_permits(1);
        }
        while self.passed.load(Ordering::SeqCst) == passed && !reader.is_finished() {
            tokio::time::sleep(Duration::from_micros(20)).await;
        }
        self.reach(reader).await;
    }

    /// Lets the reader through any number of times.
    pub fn open(&self) {
        self.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

//! A store in memory that hands the rows of cached counters to the test before they are seen.

use counterfoil::{Applied, Batch, Family, Incarnation, MemoryStore, ReadFrom, Registered, Result, Row, Save, Saved};
use counterfoil::{Snapshot, Store};

#[derive(Clone)]
pub struct Rows<F> {
    pub store: MemoryStore,
    /// Makes of the rows that were read those that are seen.
    pub seen: F,
}

impl<F, R> Store for Rows<F>
where
    F: Fn(Vec<Row>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Vec<Row>> + Send,
{
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
        Ok((self.seen)(rows).await)
    }

    async fn save(&self, family: &Registered, saves: &[Save]) -> Result<Vec<Saved>> {
        self.store.save(family, saves).await
    }
}

//! The seeds of missing counters: one read of the database for all callers of this process that
//! miss the same counter at the same time.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;

use crate::client::handle::Handle;
use crate::error::Result;
use crate::metrics;
use crate::process::family::Opened;
use crate::process::shared::Shared;
use crate::reconciler::flush::Flusher;
use crate::scripts::partition::Ticket;

/// The rows that callers wait for, by id and ticket. A read begins after its ticket was issued, and
/// counterfoil writes nothing to the row before that ticket has seeded the counter
/// (docs/protocol.md, section 4.2).
#[derive(Clone, Debug)]
pub struct Seeding(Cache<(Box<str>, Ticket), Option<i64>>);

impl Default for Seeding {
    fn default() -> Self {
        // nothing is kept after the read: another program may write the row at any time
        Seeding(Cache::builder().time_to_live(Duration::ZERO).build())
    }
}

impl Seeding {
    /// Returns the row's value, or `None` without a row.
    pub async fn row(&self, handle: &Handle, id: &str, ticket: Ticket) -> Result<Option<i64>> {
        let (rows, key) = (self.0.clone(), (Box::from(id), ticket));
        let (shared, opened, id) = (handle.shared.clone(), handle.opened.clone(), id.to_owned());
        let read = async move {
            let row = rows.try_get_with(key, read(&shared, &opened, &id)).await;
            row.map_err(Arc::unwrap_or_clone)
        };
        // in a task: of callers that share a read, the first may not be polled
        handle.shared.run(handle.family(), read).await
    }
}

async fn read(shared: &Arc<Shared>, opened: &Opened, id: &str) -> Result<Option<i64>> {
    metrics::count(metrics::SEEDS, &opened.label, 1);
    let was_known = opened.known().is_some();
    let family = opened.registered(&*shared.store).await?;
    if !was_known {
        // the bounds in Redis may lack the range of the rows
        Flusher::new(shared.clone()).configure(&family).await?;
    }
    let rows = shared.store.rows(&family, &[id]).await?;
    Ok(rows.first().copied().flatten())
}

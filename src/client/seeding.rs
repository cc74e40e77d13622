//! The seeds of missing counters: one read of the database for all callers of this process that
//! miss the same counter.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use futures_util::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use tokio::runtime;

use crate::error::Result;
use crate::metrics;
use crate::process::family::OpenFamily;
use crate::process::shared;
use crate::reconciler::flusher::Flusher;
use crate::reconciler::upkeep;
use crate::scripts::counting::Ticket;

/// Each runtime has reads of its own, because the timers of a read end with the runtime that begins
/// it.
type ReadKey = (Box<str>, Ticket, Option<runtime::Id>);

/// The reads that callers hold.
#[derive(Debug, Default)]
pub struct Seeding {
    reads: Mutex<HashMap<ReadKey, Weak<RowRead>>>,
}

/// One read of a row, for all callers on a runtime with the same ticket. It began after the ticket
/// was issued, and counterfoil has not written to the row since, as long as the ticket has seeded
/// nothing (docs/protocol.md, section 4.2). A caller holds the read until Redis has the seed, so
/// that others that miss the counter meanwhile need no further read.
#[derive(Debug)]
pub struct RowRead {
    seeding: Arc<Seeding>,
    key: ReadKey,
    row: Shared<BoxFuture<'static, Result<Option<i64>>>>,
}

impl Seeding {
    /// Returns the read that another caller holds, or a new one.
    pub fn read(
        self: &Arc<Self>,
        shared: &Arc<shared::Shared>,
        opened: &Arc<OpenFamily>,
        id: &str,
        ticket: Ticket,
    ) -> Arc<RowRead> {
        let runtime = runtime::Handle::try_current().ok();
        let key = (Box::from(id), ticket, runtime.map(|runtime| runtime.id()));
        let mut reads = self.reads.lock();
        if let Some(read) = reads.get(&key).and_then(Weak::upgrade) {
            return read;
        }
        metrics::count(metrics::SEEDS, &opened.label, 1);
        let (shared, opened, id) = (shared.clone(), opened.clone(), id.to_owned());
        let row = async move {
            let was_known = opened.known().is_some();
            let family = shared.registered(&opened).await?;
            if !was_known {
                // The family was not registered until now, so its columns were unknown, and the
                // bounds in Redis may be wider than what a row can hold.
                upkeep::configure(&Flusher::new(shared.clone()), &family).await?;
            }
            let rows = shared.store.rows(&family, &[&id]).await;
            let rows = shared.or_renewed(&opened, &family, rows).await?;
            Ok(rows.first().copied().flatten())
        };
        let read = Arc::new(RowRead {
            seeding: self.clone(),
            key: key.clone(),
            row: row.boxed().shared(),
        });
        reads.insert(key, Arc::downgrade(&read));
        read
    }
}

impl RowRead {
    /// Returns the row's value, or `None` without a row. After an error the next caller reads the
    /// row again, even while others still hold this read.
    pub async fn row(&self) -> Result<Option<i64>> {
        let row = self.row.clone().await;
        if row.is_err() {
            self.forget();
        }
        row
    }

    fn forget(&self) {
        let mut reads = self.seeding.reads.lock();
        // a newer read may have replaced it
        if reads
            .get(&self.key)
            .is_some_and(|read| std::ptr::eq(read.as_ptr(), self))
        {
            reads.remove(&self.key);
        }
    }
}

impl Drop for RowRead {
    fn drop(&mut self) {
        self.forget();
    }
}

//! What missing counters are seeded with: one read of the database for all callers of this process who miss the same one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, FutureExt, Shared, WeakShared};

use crate::cached::Ticket;
use crate::error::{Error, Result};
use crate::shared::Shared as Pair;
use crate::store::{Registered, Row, Store};

type Read = BoxFuture<'static, Result<Row, Arc<Error>>>;
type Key = (Box<str>, Ticket);

/// Reads that are under way. A read may be joined by whoever has the same ticket, since it was begun after the ticket
/// was given (PROTOCOL section 4, seed).
#[derive(Debug, Default)]
pub struct Seeding {
    /// Weak, so that a read that nobody waits for any more is let go.
    reads: Mutex<HashMap<Key, WeakShared<Read>>>,
}

impl Seeding {
    /// The counter's row, read after the ticket was given.
    pub async fn row<C, S>(
        self: &Arc<Self>,
        pair: &Arc<Pair<C, S>>,
        family: &Arc<Registered>,
        id: &str,
        ticket: Ticket,
    ) -> Result<Row>
    where
        C: Send + Sync + 'static,
        S: Store,
    {
        let read = self.join((id.into(), ticket), |under_way| {
            let (pair, family) = (pair.clone(), family.clone());
            async move {
                let rows = pair.store.rows(&family, &[&under_way.key.0]).await.map_err(Arc::new)?;
                Ok(rows.first().copied().unwrap_or_default())
            }
            .boxed()
        });
        read.await.map_err(|error| error.again())
    }

    /// The read that is under way, or a new one.
    fn join(self: &Arc<Self>, key: Key, begin: impl FnOnce(UnderWay) -> Read) -> Shared<Read> {
        let mut reads = self.reads();
        if let Some(read) = reads.get(&key).and_then(WeakShared::upgrade) {
            return read;
        }
        let read = begin(UnderWay { seeding: self.clone(), key: key.clone() }).shared();
        if let Some(weak) = read.downgrade() {
            reads.insert(key, weak);
        }
        read
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<Key, WeakShared<Read>>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Part of a read: when that ends, in whatever way, nobody can join it any more.
struct UnderWay {
    seeding: Arc<Seeding>,
    key: Key,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.seeding.reads().remove(&self.key);
    }
}

//! What the handle of an open family consists of, whatever its kind.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::client::backlog::Backlog;
use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::partition::{PairResult, Partition};
use crate::store::Registered;
use crate::writer::Writer;
use crate::writer::opened::Opened;
use crate::writer::shared::{InUse, Shared};

/// Who waits for the database knows more than who waits for the whole read, and is left the time to say it.
const LAST_MOMENT: Duration = Duration::from_millis(20);

/// A family in use. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Handle {
    pub shared: Arc<Shared>,
    pub opened: Arc<Opened>,
    pub writer: Arc<Writer>,
    /// How long a call that fails is repeated before it is given up.
    pub timeout: Duration,
    /// How long a read takes at most, with its repeats.
    pub read_timeout: Duration,
}

/// How long what fails is repeated before it is given up.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub write: Duration,
    pub read: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let [write, read] = [Duration::from_secs(5); 2];
        Timeouts { write, read }
    }
}

impl Handle {
    /// The configuration.
    pub fn family(&self) -> &Family {
        &self.opened.family
    }
}

impl Handle {
    /// The family as the database knows it.
    pub async fn registered(&self) -> Result<&Arc<Registered>> {
        self.opened.registered(&*self.shared.store).await
    }
}

impl Handle {
    /// Of a family that the database has this number for, if it could be asked.
    pub fn new(shared: Arc<Shared>, family: Family, registered: Option<u64>, timeouts: Timeouts) -> Result<Self> {
        let in_use = shared.open(family, registered)?;
        Ok(Self::in_use(shared, in_use, timeouts))
    }

    /// Of a family as the database has it.
    pub fn served(shared: Arc<Shared>, registered: Arc<Registered>, timeouts: Timeouts) -> Result<Self> {
        let in_use = shared.serve(registered)?;
        Ok(Self::in_use(shared, in_use, timeouts))
    }

    fn in_use(shared: Arc<Shared>, (opened, writer): InUse, timeouts: Timeouts) -> Self {
        Handle { shared, opened, writer, timeout: timeouts.write, read_timeout: timeouts.read }
    }

    /// Counts many hits, but those that are refused beforehand, and returns what became of each, in their order.
    pub async fn add_many(&self, hits: Vec<Result<(&[u8], i64)>>) -> Vec<Result<PairResult>> {
        let checked: Vec<_> = hits.iter().filter_map(|hit| hit.as_ref().ok().copied()).collect();
        let mut results = self.writer.add_many(&checked, self.timeout).await.into_iter();
        let mut next = || results.next().unwrap_or_else(|| Err(Error::corrupt("a hit of many has no result")));
        hits.into_iter().map(|hit| hit.and_then(|_| next())).collect()
    }

    pub fn partition(&self, number: u32) -> Partition {
        self.shared.partition(self.family(), number)
    }

    pub async fn backlog(&self) -> Result<Backlog> {
        self.shared.backlog(self.family()).await
    }

    /// Repeats a read whose error may pass, until the read timeout has gone. It is told until when it may wait for the
    /// database; Redis is what it waits for if it takes longer.
    pub async fn repeating<T, F>(&self, mut read: impl FnMut(Instant) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let deadline = Instant::now() + self.read_timeout;
        let mut pause = Backoff::default();
        loop {
            let late = |_| Err(self.late(ErrorKind::Redis));
            match timeout_at(deadline + LAST_MOMENT, read(deadline)).await.unwrap_or_else(late) {
                Err(error) if error.is_retryable() => {
                    let wait = pause.next();
                    if Instant::now() + wait >= deadline {
                        return Err(error);
                    }
                    sleep(wait).await;
                }
                result => return result,
            }
        }
    }

    /// What the database replies until then.
    pub async fn stored_by<T>(&self, deadline: Instant, asked: impl Future<Output = Result<T>>) -> Result<T> {
        timeout_at(deadline, asked).await.unwrap_or_else(|_| Err(self.late(ErrorKind::Store)))
    }

    fn late(&self, kind: ErrorKind) -> Error {
        Error::new(kind, format!("{}: no reply within the read timeout, {:?}", self.family(), self.read_timeout))
    }
}

/// What the handles of all kinds offer alike.
macro_rules! handle_methods {
    ($handle:tt) => {
        /// How long a counting call of this handle and its clones is repeated where it fails, before it is given up; 5 s
        /// unless said otherwise. Reading the database is not part of it.
        #[must_use]
        pub fn write_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.$handle.timeout = timeout;
            self
        }

        /// How long a read of this handle and its clones is repeated where Redis or the database does not reply, before
        /// it is given up; 5 s unless said otherwise.
        #[must_use]
        pub fn read_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.$handle.read_timeout = timeout;
            self
        }

        /// The configuration.
        pub fn family(&self) -> &crate::family::Family {
            self.$handle.family()
        }

        /// What of the family waits in Redis for the database, whoever counted it; it needs neither a reconciler nor the
        /// database. No gauge is set: [`Counterfoil::backlogs`](crate::Counterfoil::backlogs) does that, which sees all
        /// families of a name.
        ///
        /// # Errors
        /// [`Redis`](crate::ErrorKind::Redis) where it cannot be asked.
        pub async fn backlog(&self) -> crate::error::Result<crate::client::backlog::Backlog> {
            self.$handle.backlog().await
        }
    };
}
pub(crate) use handle_methods;

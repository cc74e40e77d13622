//! The entry point: a Redis and a database that belong together.

mod backlogs;
pub mod builder;
mod check;
pub mod connect;
mod kept;
mod open;
mod reconfigure;
mod remove;
pub mod shutdown;

use std::sync::Arc;
use std::time::Duration;

use crate::client::handle::Timeouts;
use crate::connection::Connection;
use crate::error::Result;
use crate::process::shared::Shared;
use crate::reconciler::drain;
use crate::reconciler::flusher::Flusher;
use crate::reconciler::lifecycle::ReconcilerBuilder;
use crate::store::Store;
use crate::store::mysql::MysqlStore;

/// One Redis and one database that keep an application's counters together.
///
/// [`connect`](Self::connect) creates both connections. [`new`](Self::new) takes any [`Connection`]
/// and any [`Store`]. Replicas of Redis are never read.
///
/// An application with several pairs creates one of these for each. It can open families at any
/// time, even thousands of them. Clones share the pair.
#[derive(Clone, Debug)]
pub struct Counterfoil {
    pub(crate) shared: Arc<Shared>,
    pub(crate) timeouts: Timeouts,
}

impl Counterfoil {
    /// Combines a Redis and a database. It sends nothing yet. The pair belongs to the current runtime,
    /// which makes its calls: once that has ended, hits are refused as
    /// [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(redis: impl Into<Connection>, store: impl Store) -> Self {
        Counterfoil {
            shared: Arc::new(Shared::new(redis.into(), Arc::new(store))),
            timeouts: Timeouts::default(),
        }
    }

    /// Returns the connection to Redis.
    pub fn redis(&self) -> &Connection {
        &self.shared.redis
    }

    /// Returns the database.
    pub fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    /// Returns the database, for operations that only MySQL supports: tables, rejects, drift,
    /// overview.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) for any other store.
    pub fn mysql(&self) -> Result<&MysqlStore> {
        self.shared.mysql()
    }

    /// Sets whether families and reconcilers may use a Redis whose `maxmemory-policy` evicts what
    /// they need when memory is full. By default they are refused.
    #[must_use]
    pub fn allow_evicting(self, allow: bool) -> Self {
        self.shared.allow_evicting(allow);
        self
    }

    /// Sets the time limit of a counting call by handles that are opened afterwards; defaults to
    /// 1 s. Each handle can have [its own timeout](crate::BufferedCounters::write_timeout).
    #[must_use]
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.write = timeout;
        self
    }

    /// Sets the time limit of a read by handles that are opened afterwards, including retries;
    /// defaults to 0.5 s.
    #[must_use]
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.read = timeout;
        self
    }

    /// Configures a reconciler, which writes the pending hits of this pair's families to the
    /// database.
    pub fn reconciler(&self) -> ReconcilerBuilder {
        ReconcilerBuilder::new(self.shared.clone())
    }

    /// Returns when every hit that was acknowledged before the call is in the database. It covers
    /// the open families, and those that a reconciler of this pair found and
    /// [serves](ReconcilerBuilder::all). Windows, which expire, exist in Redis alone.
    ///
    /// The call needs no reconciler, and waits as long as Redis or the database is unreachable. A
    /// shutdown with a time limit calls [`shutdown`](Self::shutdown) instead. A value that the
    /// database refuses is kept as a reject, and not waited for.
    ///
    /// # Errors
    /// Permanent failures only: [`Corrupt`](crate::ErrorKind::Corrupt) keys in Redis.
    pub async fn drain(&self) -> Result<()> {
        drain::drain(&Flusher::new(self.shared.clone())).await
    }
}

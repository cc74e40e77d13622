//! The entry point: a Redis and a database that belong together.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::client::handle::{Handle, Timeouts};
use crate::client::open::OpenFamily;
use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::finding::Finding;
use crate::reconciler::flush::Flusher;
use crate::reconciler::lifecycle::ReconcilerBuilder;
use crate::reconciler::upkeep;
use crate::scripts::access;
use crate::scripts::check;
use crate::store::Store;
use crate::store::mysql::MysqlStore;
use crate::writer::shared::Shared;

/// How long the database is waited for when a family is opened.
const REGISTERING: Duration = Duration::from_secs(3);

/// One Redis and one database that keep an application's counters together.
///
/// [`connect`](Self::connect) creates both connections. [`new`](Self::new) takes any [`Connection`] and any [`Store`]. Replicas
/// of Redis are never read.
///
/// An application with several pairs creates one of these for each. It opens families while it runs, also thousands of
/// them. Clones share the pair.
#[derive(Clone, Debug)]
pub struct Counterfoil {
    pub(crate) shared: Arc<Shared>,
    pub(crate) timeouts: Timeouts,
}

impl Counterfoil {
    /// Combines a Redis and a database. Sends nothing yet.
    pub fn new(redis: impl Into<Connection>, store: impl Store) -> Self {
        Counterfoil { shared: Arc::new(Shared::new(redis.into(), Arc::new(store))), timeouts: Timeouts::default() }
    }

    /// The connection to Redis.
    pub fn redis(&self) -> &Connection {
        &self.shared.redis
    }

    /// The database.
    pub fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    /// The database, for what only MySQL supports: tables, rejects, drift, overview.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) on another store.
    pub fn mysql(&self) -> Result<&MysqlStore> {
        self.shared.mysql()
    }

    /// Opens families, and starts reconcilers, also on a Redis whose `maxmemory-policy` throws away what they need when
    /// memory is full. They are refused unless this is said.
    #[must_use]
    pub fn allow_evicting(self, allow: bool) -> Self {
        self.shared.allow_evicting(allow);
        self
    }

    /// How long a counting call is repeated where it fails, before it is given up, by the handles that are opened from now
    /// on; 5 s unless said otherwise. Each handle can have [its own](crate::BufferedCounters::write_timeout).
    #[must_use]
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.write = timeout;
        self
    }

    /// How long a read is repeated likewise; 5 s unless said otherwise.
    #[must_use]
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.read = timeout;
        self
    }

    /// Opens a family of any kind, whose type decides what comes back: [`BufferedCounters`](crate::BufferedCounters),
    /// [`CachedCounters`](crate::CachedCounters), [`Series`](crate::Series), [`Activity`](crate::Activity) or
    /// [`Visitors`](crate::Visitors).
    ///
    /// It registers the family with the database, or compares it with what the database knows of it, and writes its
    /// settings to Redis. While Redis is away the family is opened all the same, and a reconciler writes them later.
    ///
    /// A database that is away is waited for 3 s at most, and the family is opened all the same if Redis knows no other
    /// kind or number of partitions of it: hits count, and are brought to the database after it has registered the family.
    /// Where it then refuses that, hits stay in Redis until the configuration is mended, and each look logs the error.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) naming the setting in which the family is known differently, or what
    /// its table lacks; [`AccessDenied`](crate::ErrorKind::AccessDenied) naming what the user of Redis lacks;
    /// [`Unsafe`](crate::ErrorKind::Unsafe) on a Redis that throws away what the family needs when memory is full.
    pub async fn open<F: OpenFamily>(&self, family: F) -> Result<F::Handle> {
        let handle = self.handle(family.common().clone()).await?;
        family.in_use(handle)
    }

    /// What a handle of the family consists of.
    pub(crate) async fn handle(&self, family: Family) -> Result<Handle> {
        let is_there = unless_refused(self.shared.refuse_unsafe(&family).await)?;
        let registered = self.register(&family).await?;
        if is_there {
            let Shared { redis, topology, .. } = &*self.shared;
            let configured = match registered {
                Some(_) => upkeep::configure(redis, topology, &family).await,
                None => upkeep::begin_epochs(redis, topology, &family).await,
            };
            unless_refused(configured.map_err(|error| access::explain(&family, error)))?;
        }
        Handle::new(self.shared.clone(), family, registered, self.timeouts)
    }

    /// The database's number for the family; `None` where it is away.
    async fn register(&self, family: &Family) -> Result<Option<u64>> {
        let error = match timeout(REGISTERING, self.shared.store.register(family)).await {
            Ok(Ok(number)) => return Ok(Some(number)),
            Ok(Err(error)) if !error.is_retryable() => return Err(error),
            Ok(Err(error)) => error,
            Err(elapsed) => Error::new(ErrorKind::Store, "the database did not reply").with_source(elapsed),
        };
        tracing::warn!(%family, %error, "opened without the database: it is asked for the family when it is back");
        Ok(None)
    }

    /// Looks at the servers and returns what should be known or changed, the worst first. No findings is a good sign.
    pub async fn check(&self) -> Vec<Finding> {
        let families = self.shared.families();
        let mut findings = check::redis(&self.shared.redis, &families).await;
        findings.extend(access::findings(&self.shared.redis, &families).await);
        findings.extend(self.shared.store.check(&families).await);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Configures a reconciler, which brings what the families of this pair have pending to the database.
    pub fn reconciler(&self) -> ReconcilerBuilder {
        ReconcilerBuilder::new(self.shared.clone())
    }

    /// Returns when every hit on an open family, or one that a reconciler of this pair found and
    /// [serves](ReconcilerBuilder::all), that was acknowledged before the call is in the database, but for slices of
    /// series and minutes of activity that are kept and **not over**: those stay in Redis, which closes them when they are,
    /// and [`drain_all`](Self::drain_all) brings them too. What expires with its window is for Redis alone.
    ///
    /// It needs no reconciler, and waits as long as Redis or the database is away: a shutdown that has to end calls
    /// [`shutdown`](Self::shutdown). A value that the database refuses is kept as a reject, and not waited for.
    ///
    /// # Errors
    /// What no waiting mends: [`Corrupt`](crate::ErrorKind::Corrupt) keys in Redis.
    pub async fn drain(&self) -> Result<()> {
        self.drain_families(false).await
    }

    /// The same, and closes kept slices that are not over: for a Redis that is given up for good. What is counted into such
    /// a slice later is brought to the database when it is over, and added; the table shows a part of it until then.
    ///
    /// # Errors
    /// As for [`drain`](Self::drain).
    pub async fn drain_all(&self) -> Result<()> {
        self.drain_families(true).await
    }

    async fn drain_families(&self, closing_all: bool) -> Result<()> {
        Flusher::new(self.shared.clone()).closing_all(closing_all).drain(self.shared.opened()).await
    }
}

/// Whether Redis took it. One that is away refuses nothing: the first reconciler after it is back writes the settings.
fn unless_refused(taken: Result<()>) -> Result<bool> {
    match taken {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::Mismatch | ErrorKind::Unsafe) => {
            Err(error)
        }
        Err(error) => {
            tracing::warn!(%error, "the family is opened, and its settings are not yet in Redis");
            Ok(false)
        }
    }
}

//! A reconciler being configured, and one that runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::reconciler::registry::Scope;
use crate::reconciler::scheduler::{Scheduler, Steps};
use crate::scripts::check;
use crate::writer::shared::Shared;

/// Configures a [`Reconciler`]; made by [`Counterfoil::reconciler`](crate::Counterfoil::reconciler).
#[derive(Debug)]
#[must_use = "a reconciler runs after start()"]
pub struct ReconcilerBuilder {
    shared: Arc<Shared>,
    redis: Option<Connection>,
    lease: Option<Duration>,
    max_rows: Option<u64>,
    allow_evicting: bool,
    scope: Scope,
}

/// A running reconciler. Any number of them may run, in one process or many, beside the writers or alone: which of
/// them brings a batch to the database makes no difference, and neither does their death at any moment.
///
/// Dropping it stops it: what it holds is finished in the background, and nothing new is begun. So it is bound for as long
/// as it is to run, or told to [`detach`](Self::detach); [`shutdown`](Self::shutdown) stops it and waits.
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # async fn stops_at_once(counterfoil: counterfoil::Counterfoil) -> counterfoil::Result<()> {
/// counterfoil.reconciler().start().await?; // a warning: nothing would reach the database
/// # Ok(()) }
/// ```
/// ```no_run
/// # #![deny(unused_must_use)]
/// # async fn goes_on(counterfoil: counterfoil::Counterfoil) -> counterfoil::Result<()> {
/// counterfoil.reconciler().start().await?.detach();
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping a reconciler stops it: bind it, or call detach()"]
pub struct Reconciler {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl ReconcilerBuilder {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let (lease, allow_evicting) = (Some(Duration::from_secs(2)), shared.allows_evicting());
        ReconcilerBuilder { shared, redis: None, lease, max_rows: None, allow_evicting, scope: Scope::Opened }
    }

    /// A connection of its own, so that large fetches do not keep hits waiting.
    pub fn redis(mut self, redis: impl Into<Connection>) -> Self {
        self.redis = Some(redis.into());
        self
    }

    /// How long beyond the settle time other reconcilers leave a batch to this one: 2 s unless said otherwise, up to a
    /// minute; `None` for not at all. It saves work, and no count depends on it; what a reconciler held that was killed
    /// waits for so long until another one takes it over.
    pub fn lease(mut self, lease: Option<Duration>) -> Self {
        self.lease = lease;
        self
    }

    /// Limits the rows that one transaction changes, and so how long it holds their locks. Defaults to 500 where a table of the
    /// application is concerned, and to 10,000 in counterfoil's own. A larger batch is applied in parts.
    pub fn max_rows(mut self, rows: u64) -> Self {
        self.max_rows = Some(rows.max(1));
        self
    }

    /// Serves every family that is registered in the database, also those that this process never opens, with the settings
    /// that they were opened with last; new ones are looked for every 10 s. One that the process opens is served as it opens
    /// it. Without this, families that nobody opens in a process with a reconciler stay in Redis: they are named in the log.
    ///
    /// Left out, and named in the log, is a family that was last opened by a version whose settings this one does not
    /// understand.
    pub fn all(mut self) -> Self {
        self.scope = Scope::All;
        self
    }

    /// The same for the families of one namespace, or of several in as many calls.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.scope = self.scope.with(namespace.into());
        self
    }

    /// Starts also on a Redis that throws counts away when its memory is full; as the
    /// [pair](crate::Counterfoil::allow_evicting) unless said otherwise.
    pub fn allow_evicting(mut self, allow: bool) -> Self {
        self.allow_evicting = allow;
        self
    }

    /// Starts it on the current tokio runtime. It takes up what earlier reconcilers left at once, and families as they
    /// are opened. A warning is logged where Redis, once it has crashed, counts daily visitors again.
    ///
    /// # Errors
    /// [`Unsafe`](ErrorKind::Unsafe) on a Redis whose `maxmemory-policy` throws away what an open family needs;
    /// [`Redis`](ErrorKind::Redis) where it cannot be asked; [`AccessDenied`](ErrorKind::AccessDenied) where it may not be.
    pub async fn start(self) -> Result<Reconciler> {
        let redis = self.redis.unwrap_or_else(|| self.shared.redis.clone());
        let families = self.shared.families();
        match check::eviction(&redis, &families).await {
            Err(error) if error.kind() == ErrorKind::Unsafe && self.allow_evicting => {}
            looked => looked?,
        }
        check::warn_of_persistence(&redis, &families).await;
        let steps = Steps { redis, lease: self.lease, max_rows: self.max_rows };
        metrics::begin_reconciler();
        let (stop, stopping) = watch::channel(false);
        let scheduler = Scheduler::new(self.shared, steps, self.scope, stopping)?;
        Ok(Reconciler { stop, task: tokio::spawn(scheduler.run()) })
    }
}

impl Reconciler {
    /// Starts nothing new, finishes what it holds, and returns. That takes the settle time and a transaction, of which 2 s at
    /// most are waited for: a database that is away or silent holds nothing up. What it does not hold yet, also of hits
    /// that were counted long before, stays in Redis for the next reconciler;
    /// [`Counterfoil::shutdown`](crate::Counterfoil::shutdown) brings everything to the database.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) if it had ended before, by a panic.
    pub async fn shutdown(self) -> Result<()> {
        self.stop.send_replace(true);
        self.task.await.map_err(|error| Error::new(ErrorKind::Closed, "the reconciler had ended").with_source(error))
    }

    /// Lets it run until the tokio runtime ends, with nothing bound.
    pub fn detach(self) {
        // it stops when the sender is dropped
        std::mem::forget(self.stop);
    }
}

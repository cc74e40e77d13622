//! The builder of a reconciler, and the handle of a running one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::admin;
use crate::connection::Connection;
use crate::connection::failures::{Failure, Failures};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::process::shared::Shared;
use crate::process::tasks::Background;
use crate::reconciler::flusher::Flusher;
use crate::reconciler::registry::Scope;
use crate::reconciler::scheduler::Scheduler;
use crate::reconciler::step::Step;
use crate::scripts::random::random_name;

/// The builder of a [`Reconciler`], returned by
/// [`Counterfoil::reconciler`](crate::Counterfoil::reconciler).
#[derive(Debug)]
#[must_use = "a reconciler runs after start()"]
pub struct ReconcilerBuilder {
    flusher: Flusher,
    allow_evicting: bool,
    scope: Scope,
}

/// A running reconciler. Any number of them may run, in one process or many, with or without
/// writers beside them. Which of them flushes a batch makes no difference, and each may die at any
/// moment.
///
/// Dropping it stops it: it finishes what it holds in the background, and begins nothing new. Keep
/// it bound while it should run, or [`detach`](Self::detach) it. [`shutdown`](Self::shutdown) stops
/// it and waits.
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # async fn stops_immediately(counterfoil: counterfoil::Counterfoil) -> counterfoil::Result<()> {
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
    task: Background,
    shared: Arc<Shared>,
    failures: Arc<Mutex<Failures<Step>>>,
}

/// A step of a reconciler that fails at present, and is retried.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failing {
    /// The step: `flush`, `search for hits`, `upkeep`, `search for families`,
    /// `check of Redis` or `retry of rejects`.
    /// While one of the first two fails, hits of the family wait in Redis. They also wait while an
    /// upkeep fails because the database has other settings.
    pub step: &'static str,
    /// The family as `NAMESPACE/FAMILY`, if the step concerns one.
    pub family: Option<String>,
    /// The last error.
    pub error: Error,
    /// The time since the first failure.
    pub duration: Duration,
    /// The time since the last failure: the step may succeed when it is retried.
    pub idle: Duration,
}

impl Failing {
    /// Returns whether hits cannot reach the database meanwhile.
    pub fn blocks_hits(&self) -> bool {
        let has_other_settings =
            || self.step == "upkeep" && self.error.kind() == ErrorKind::Mismatch;
        ["flush", "search for hits"].contains(&self.step) || has_other_settings()
    }
}

impl ReconcilerBuilder {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        ReconcilerBuilder {
            allow_evicting: shared.allows_evicting(),
            flusher: Flusher {
                lease: Some(Duration::from_secs(2)),
                ..Flusher::new(shared)
            },
            scope: Scope::default(),
        }
    }

    /// Sets a separate connection, so that large fetches do not delay hits.
    pub fn redis(mut self, redis: impl Into<Connection>) -> Self {
        self.flusher.redis = redis.into();
        self
    }

    /// Sets how long, beyond the settle time, other reconcilers leave a batch to this one. Defaults
    /// to 2 s, at most a minute; `None` disables leases. Correctness never depends on them. If a
    /// reconciler is killed, its batches wait this long for another one.
    pub fn lease(mut self, lease: Option<Duration>) -> Self {
        self.flusher.lease = lease.map(|time| time.min(Duration::from_mins(1)));
        self
    }

    /// Limits the rows that one transaction changes, and so how long it holds their locks. Defaults
    /// to 500 for a table of the application, and to 10,000 for counterfoil's own. A larger batch
    /// is applied in parts.
    pub fn max_rows(mut self, rows: u64) -> Self {
        self.flusher.max_rows = Some(rows.max(1));
        self
    }

    /// Serves every family in the database with the settings of its last opening, and checks for
    /// new ones every 10 s. A family that this pair opens is served with the settings of the pair.
    /// Without this, a reconciler serves the families that its pair opens, a
    /// [`Counterfoil`](crate::Counterfoil) and its clones. Counts of others stay in Redis, and the
    /// log names these families.
    ///
    /// A family that was last opened by a version whose settings this one does not understand is
    /// left out, and named in the log.
    pub fn all(mut self) -> Self {
        self.scope.all = true;
        self
    }

    /// Serves every family of this namespace, like [`all`](Self::all). May be called for several
    /// namespaces.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.scope.namespaces.push(namespace.into());
        self
    }

    /// Starts even if Redis evicts counts when its memory is full. Defaults to the setting of the
    /// [pair](crate::Counterfoil::allow_evicting).
    pub fn allow_evicting(mut self, allow: bool) -> Self {
        self.allow_evicting = allow;
        self
    }

    /// Starts the reconciler on the current tokio runtime. It takes over the work of earlier
    /// reconcilers at once, and serves families as they are opened. It logs a warning if Redis
    /// would count daily visitors again after a crash.
    ///
    /// # Errors
    /// [`Unsafe`](ErrorKind::Unsafe) if `maxmemory-policy` evicts keys that an open family needs;
    /// [`Redis`](ErrorKind::Redis) if Redis cannot be queried;
    /// [`AccessDenied`](ErrorKind::AccessDenied) if Redis denies the query.
    pub async fn start(self) -> Result<Reconciler> {
        let mut flusher = self.flusher;
        let families = flusher.shared.families();
        match admin::redis::eviction(&flusher.redis, &families).await {
            Err(error) if error.kind() == ErrorKind::Unsafe && self.allow_evicting => {}
            looked => looked?,
        }
        admin::redis::warn_of_persistence(&flusher.redis, &families).await;
        flusher.owner = random_name()?;
        metrics::begin_reconciler();
        Ok(Reconciler {
            shared: flusher.shared.clone(),
            failures: flusher.failures.clone(),
            task: Background::start(|stop| {
                Scheduler::new(Flusher { stop, ..flusher }).run(self.scope)
            }),
        })
    }
}

impl Reconciler {
    /// Starts nothing new, finishes what it holds, and returns. That takes the settle time and a
    /// transaction. It waits 2 s at most for an unreachable or silent database. Hits that it does
    /// not hold yet, even old ones, stay in Redis for the next reconciler;
    /// [`Counterfoil::shutdown`](crate::Counterfoil::shutdown) brings everything to the database.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) if the reconciler had already ended by a panic.
    pub async fn shutdown(self) -> Result<()> {
        self.task.shutdown("the reconciler ended early").await
    }

    /// Lets the reconciler run without the handle until the tokio runtime ends.
    pub fn detach(self) {
        self.task.detach();
    }

    /// Returns whether it still runs. A panic ends it; then [start](ReconcilerBuilder::start)
    /// another one.
    pub fn is_running(&self) -> bool {
        self.task.is_running()
    }

    /// Returns the steps that fail at present: one for each step and family, the one that has
    /// failed for longest.
    pub fn failing(&self) -> Vec<Failing> {
        let failures = self.failures.lock();
        let mut failing: BTreeMap<_, Failure> = BTreeMap::new();
        for (step, failure) in failures.failing() {
            let known = failing
                .entry((step.name(), step.family()))
                .or_insert_with(|| failure.clone());
            known.since = known.since.min(failure.since);
            if failure.last > known.last {
                known.last = failure.last;
                known.error = failure.error.clone();
            }
        }
        let name = |number| Some(self.shared.family(number)?.family.to_string());
        let all = failing
            .into_iter()
            .map(|((step, number), failure)| Failing {
                step,
                family: number.and_then(name),
                duration: failure.since.elapsed(),
                idle: failure.last.elapsed(),
                error: failure.error,
            });
        all.collect()
    }
}

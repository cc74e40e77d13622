//! The entry point: a Redis and a database that belong together.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::timeout;

use crate::admin::{self, Finding, Severity, access};
use crate::client::family::FamilyBuilder;
use crate::client::handle::{Handle, Timeouts};
use crate::client::open::FamilyHandle;
use crate::connection::{Connection, each, try_each};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::family::Opened;
use crate::process::shared::{InUse, Shared};
use crate::reconciler::flush::Flusher;
use crate::reconciler::lifecycle::ReconcilerBuilder;
use crate::scripts::bundle::{self, Reply};
use crate::scripts::keys::WANTED;
use crate::scripts::partition::Partition;
use crate::store::mysql::MysqlStore;
use crate::store::{Registered, Store};

/// The time limit for registering a family when it is opened.
/// The longest reason of a refusal, in bytes.
const LONGEST_REASON: usize = 1000;

const REGISTERING: Duration = Duration::from_secs(3);

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

    /// Opens a family of any kind. Its type determines the handle:
    /// [`BufferedCounters`](crate::BufferedCounters), [`CachedCounters`](crate::CachedCounters),
    /// [`Series`](crate::Series), [`Activity`](crate::Activity) or [`Visitors`](crate::Visitors).
    ///
    /// The call registers the family with the database, or compares it with the registered one, and
    /// writes its settings to Redis. If Redis is unreachable, the family is opened anyway, and a
    /// reconciler writes the settings later.
    ///
    /// An unreachable database delays the call by at most 3 s. The family is then opened anyway,
    /// unless Redis knows it with another kind or number of partitions. Hits count, and reach the
    /// database after it has registered the family. If it refuses the family at that point, hits
    /// stay in Redis until the configuration is fixed, and each attempt logs the error.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) naming the setting in which the family differs from
    /// the known one, or what its table lacks. [`AccessDenied`](crate::ErrorKind::AccessDenied)
    /// naming what the Redis user lacks. [`Unsafe`](crate::ErrorKind::Unsafe) if Redis evicts what
    /// the family needs when memory is full. [`InvalidInput`](crate::ErrorKind::InvalidInput) if Redis
    /// is a cluster and the connection does not declare it.
    pub async fn open<H: FamilyHandle>(&self, family: FamilyBuilder<H>) -> Result<H> {
        H::of(self.handle(family.build()?).await?)
    }

    /// Opens a family, and returns the common part of its handle.
    pub(crate) async fn handle(&self, family: Family) -> Result<Handle> {
        let is_there = unless_refused(&family, self.shared.refuse_unsafe(&family).await)?;
        let registered = self.register(&family).await?;
        if is_there {
            let flusher = Flusher::new(self.shared.clone());
            let configured = match &registered {
                Some(known) => flusher.configure(known).await,
                None => flusher.begin_unregistered(&family).await,
            };
            unless_refused(
                &family,
                configured.map_err(|error| access::explain(&family, error)),
            )?;
            if registered.is_none() {
                self.announce(&family).await;
            }
        }
        Ok(self.in_use(self.shared.open(family, registered)?))
    }

    pub(crate) fn in_use(&self, (opened, writer): InUse) -> Handle {
        Handle {
            shared: self.shared.clone(),
            opened,
            writer,
            timeouts: self.timeouts,
        }
    }

    /// Announces a family that is not registered yet, so that a daemon with a pattern for it finds
    /// it. It is found later, too, so an error is of no consequence.
    async fn announce(&self, family: &Family) {
        let (redis, name) = (&self.shared.redis, [family.to_string()]);
        let announced = bundle::repeat_safe(redis, "family_want", &[WANTED], &name);
        if let Err(error) = announced.await {
            tracing::debug!(%family, error = %format_args!("{error:#}"), "was not announced");
        }
    }

    /// Takes the names of families that clients announced, as `NAMESPACE/FAMILY`, up to 10,000 at
    /// once. It is for the daemon, which configures those that it knows.
    #[doc(hidden)]
    pub async fn take_wanted(&self, most: usize) -> Result<Vec<String>> {
        let (redis, most) = (&self.shared.redis, [most.to_string()]);
        let mut taken = bundle::expect_ok(redis, "family_take", &[WANTED], &most).await?;
        taken.read_all(taken.left(), Reply::text)
    }

    /// Tells clients why a family is not configured, unless Redis knows it. It is for the daemon.
    #[doc(hidden)]
    pub async fn refuse(&self, family: &Family, reason: &str) -> Result<()> {
        let end = reason.floor_char_boundary(LONGEST_REASON);
        let homes = self.shared.homes(family);
        let refuse = async |(_, home): &(u32, Partition)| home.refuse(&reason[..end]).await;
        try_each(&homes, refuse).await.map(drop)
    }

    /// Registers the family; returns `None` if the database is unreachable.
    async fn register(&self, family: &Family) -> Result<Option<Registered>> {
        let register = self.shared.store.register(family);
        let error = match timeout(REGISTERING, register).await {
            Ok(Ok(registered)) => return Ok(Some(registered)),
            Ok(Err(error)) if !error.is_retryable() => return Err(error),
            Ok(Err(error)) => error,
            Err(elapsed) => Error::store("the database did not reply").with_source(elapsed),
        };
        tracing::warn!(%family, error = %format_args!("{error:#}"), "opened without the database, which will register the family when it has recovered");
        Ok(None)
    }

    /// Checks both servers, and returns what should be known or changed, the most severe first. No
    /// findings is a good sign.
    pub async fn check(&self) -> Vec<Finding> {
        self.check_with(&[]).await
    }

    /// Does the same, and checks Redis also for families that are not open.
    #[doc(hidden)]
    pub async fn check_with(&self, others: &[Family]) -> Vec<Finding> {
        let families = self.shared.families();
        let redis = async {
            let all = [&families[..], others].concat();
            let mut findings = admin::redis::findings(&self.shared.redis, &all).await;
            findings.extend(access::findings(&self.shared.redis, &all).await);
            findings.extend(self.database_findings().await);
            findings
        };
        let mysql = async {
            match self.shared.store.as_mysql() {
                Some(mysql) => mysql.check(&families).await,
                None => Vec::new(),
            }
        };
        let (mut findings, of_mysql) = join(redis, mysql).await;
        findings.extend(of_mysql);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Returns a finding for each family that Redis refuses to this process: its hits go to another
    /// database, or it has other partitions.
    async fn database_findings(&self) -> Vec<Finding> {
        let opened = self.shared.opened();
        let look = async |opened: &Arc<Opened>| {
            let home = self.shared.partition(&opened.family, 0);
            let known = opened.known();
            let database = known.as_ref().map_or("", |known| &known.database);
            let asked = home.epoch(&opened.family, database).await;
            let refusal = asked
                .err()
                .filter(|error| error.kind() == ErrorKind::Mismatch)?;
            let advice = "This process counts and stores nothing in it meanwhile: see \"Two databases\" or \"Changing a family\" in the operations manual";
            let subject = format!("family {}", opened.family);
            Some(Finding::new(
                Severity::Error,
                subject,
                refusal.to_string(),
                advice,
            ))
        };
        each(&opened, look).await.into_iter().flatten().collect()
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
        Flusher::new(self.shared.clone()).drain().await
    }
}

/// Returns whether Redis accepted the settings, or the error if it refused them. An unreachable
/// Redis refuses nothing: the first reconciler after its recovery writes them.
fn unless_refused(family: &Family, taken: Result<()>) -> Result<bool> {
    match taken {
        Ok(()) => Ok(true),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::AccessDenied
                    | ErrorKind::InvalidInput
                    | ErrorKind::Mismatch
                    | ErrorKind::Unsafe
            ) =>
        {
            Err(error)
        }
        Err(error) => {
            tracing::warn!(%family, error = %format_args!("{error:#}"), "opened the family, but its settings are not in Redis yet");
            Ok(false)
        }
    }
}

//! Families are opened, and the daemon learns which ones clients want.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::admin::access;
use crate::client::any::AnyCounters;
use crate::client::counterfoil::Counterfoil;
use crate::client::family::FamilyBuilder;
use crate::client::handle::Handle;
use crate::client::open::FamilyHandle;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::shared::InUse;
use crate::process::tasks::try_each;
use crate::reconciler::flusher::Flusher;
use crate::reconciler::upkeep;
use crate::scripts::bundle::{self, Reply};
use crate::scripts::keys::WANTED;
use crate::scripts::partition::Partition;
use crate::store::Registration;

/// The longest reason of a refusal, in bytes.
const LONGEST_REASON: usize = 1000;
/// The maximum number of names of families that Redis holds, and the daemon takes at once.
const MAX_WANTED: usize = 10_000;
/// The time limit for registering a family when it is opened.
const REGISTERING: Duration = Duration::from_secs(3);

impl Counterfoil {
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

    /// Opens a family whose kind is known at run time only, such as from a configuration file, like
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn open_any(&self, family: Family) -> Result<AnyCounters> {
        FamilyHandle::of(self.handle(family).await?)
    }

    /// Returns the handle of the family of this name, if this process has it in use. Its settings
    /// are those in use, which may differ from the given ones.
    #[doc(hidden)]
    pub fn find_open(&self, family: &Family) -> Option<Result<AnyCounters>> {
        let in_use = self.shared.in_use(family)?;
        Some(FamilyHandle::of(self.in_use(in_use)))
    }

    /// Opens a family as [registered](crate::Store::families) in the database, and writes nothing:
    /// neither its settings nor an epoch. It is for tools that inspect families of other processes.
    /// A program that knows the configuration calls [`open`](Self::open).
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) after [`shutdown`](Self::shutdown).
    pub fn open_registered(&self, registered: Registration) -> Result<AnyCounters> {
        FamilyHandle::of(self.in_use(self.shared.serve(Arc::new(registered))?))
    }

    /// Opens a family, and returns the common part of its handle.
    pub(crate) async fn handle(&self, family: Family) -> Result<Handle> {
        let is_there = unless_refused(&family, self.shared.refuse_unsafe(&family).await)?;
        let registered = self.register(&family).await?;
        if is_there {
            let flusher = Flusher::new(self.shared.clone());
            let configured = match &registered {
                Some(known) => upkeep::configure(&flusher, known).await,
                None => upkeep::begin_unregistered(&flusher, &family).await,
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
    /// it. The daemon also finds the family once the database has registered it, so an error is
    /// only logged.
    async fn announce(&self, family: &Family) {
        let (redis, name) = (&self.shared.redis, [family.to_string()]);
        let announced = bundle::repeat_safe(redis, "family_want", &[WANTED], &name);
        if let Err(error) = announced.await {
            tracing::debug!(%family, error = %format_args!("{error:#}"), "was not announced");
        }
    }

    /// Registers the family; returns `None` if the database is unreachable.
    async fn register(&self, family: &Family) -> Result<Option<Registration>> {
        let register = self.shared.register(family);
        let error = match timeout(REGISTERING, register).await {
            Ok(Ok(registered)) => return Ok(Some(registered)),
            Ok(Err(error)) if !error.is_retryable() => return Err(error),
            Ok(Err(error)) => error,
            Err(elapsed) => Error::store("the database did not reply").with_source(elapsed),
        };
        tracing::warn!(%family, error = %format_args!("{error:#}"), "opened without the database, which will register the family when it has recovered");
        Ok(None)
    }

    /// Takes the names of families that clients announced, as `NAMESPACE/FAMILY`. It is for the
    /// daemon, which configures those that it knows.
    #[doc(hidden)]
    pub async fn take_wanted(&self) -> Result<Vec<String>> {
        let (redis, most) = (&self.shared.redis, [MAX_WANTED.to_string()]);
        let mut taken = bundle::expect_ok(redis, "family_take", &[WANTED], &most).await?;
        taken.read_all(taken.left(), Reply::text)
    }

    /// Tells clients why a family is not configured, unless Redis knows it. It is for the daemon.
    #[doc(hidden)]
    pub async fn refuse(&self, family: &Family, reason: &str) -> Result<()> {
        let end = reason.floor_char_boundary(LONGEST_REASON);
        let homes = self.shared.homes(family);
        let refuse = async |(_, home): &(Range<u32>, Partition)| home.refuse(&reason[..end]).await;
        try_each(&homes, refuse).await.map(drop)
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

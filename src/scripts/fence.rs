//! The fence by epochs (docs/protocol.md, section 3.2), which makes a call safe to repeat from any
//! process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::bundle::{self, Arg, Call, borrowed, owned};
use crate::scripts::keys::{Key, Keys};
use crate::scripts::partition::{Partition, random, salt};
use crate::testing::ablation::{self, Guard};

/// The time for which new calls name an epoch. Redis remembers it for at least 30 s more, for
/// repeats.
const FRESH: Duration = Duration::from_secs(30);

/// The idempotency key of a call, and the partition that remembers it.
#[derive(Clone, Copy, Debug)]
pub struct Fence<'a> {
    /// The partition that remembers the caller, on the node that executes the call.
    pub home: &'a Keys,
    /// The caller's random name. A caller has one call in flight.
    pub caller: &'a str,
    /// The call's number, higher than that of the caller's last one.
    pub n: u64,
    /// The epoch that the call names, as Redis returned it.
    pub epoch: &'a str,
}

impl<'a> Fence<'a> {
    /// Returns the leading keys and arguments of every counting script.
    pub(crate) fn begin(&self, now: Arg<'a>) -> (Vec<Key>, Vec<Arg<'a>>) {
        let args = vec![
            borrowed(self.caller()),
            owned(self.n),
            borrowed(self.epoch),
            now,
        ];
        (self.home.fence().to_vec(), args)
    }

    /// Writes the leading arguments of every counting script.
    pub(crate) fn write_args(&self, call: &mut Call, now_ms: &str) {
        call.arg(self.caller())
            .arg(self.n)
            .arg(self.epoch)
            .arg(now_ms);
    }

    fn caller(&self) -> &'a str {
        if ablation::is_out(Guard::Fence) {
            ""
        } else {
            self.caller
        }
    }
}

/// An idempotent producer: Redis executes each of its calls once, however often it arrives.
#[derive(Clone, Debug)]
pub struct Caller {
    pub name: Arc<str>,
    /// The number of the caller's last call.
    pub n: u64,
}

/// A generator of unique names for callers.
#[derive(Debug)]
pub struct Names {
    random: u64,
    given: AtomicU64,
}

impl Names {
    pub fn new() -> Result<Self> {
        Ok(Names {
            random: random()?,
            given: AtomicU64::new(0),
        })
    }

    pub fn caller(&self) -> Caller {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        Caller {
            name: format!("{:016x}-{number}", self.random).into(),
            n: 0,
        }
    }
}

/// The names of the current epoch and the previous one, which are equal if there was none before.
#[derive(Clone, Debug)]
pub struct Epochs {
    pub now: Arc<str>,
    /// The previous epoch. A call that names it is looked up in both memories, and known for at
    /// least a whole epoch.
    pub before: Arc<str>,
}

impl Epochs {
    pub fn knows(&self, epoch: &str) -> bool {
        *self.now == *epoch || *self.before == *epoch
    }
}

/// A home partition, and the epochs that it last returned.
#[derive(Debug)]
pub struct Home {
    partition: Partition,
    number: u32,
    topology: Arc<Topology>,
    known: Mutex<Option<(Epochs, Instant)>>,
}

impl Home {
    pub fn new(partition: Partition, number: u32, topology: Arc<Topology>) -> Self {
        Home {
            partition,
            number,
            topology,
            known: Mutex::default(),
        }
    }

    pub fn keys(&self) -> &Keys {
        &self.partition.keys
    }

    /// Returns the epochs for a new call, read from Redis if the known ones are older than
    /// [`FRESH`]. Configures the family again if Redis lost its data.
    pub async fn epochs(&self, family: &Family) -> Result<Epochs> {
        let asked = Instant::now();
        if let Some((epochs, at)) = &*self.known()
            && asked - *at < FRESH
        {
            return Ok(epochs.clone());
        }
        let epochs = match self.partition.epochs(family).await? {
            Some(epochs) => epochs,
            None => {
                tracing::warn!(%family, home = self.number, "Redis does not know the family: configuring it");
                let partitions = self
                    .topology
                    .partitions_of(self.number, family.partitions());
                self.partition.configure(family, partitions).await?;
                let emptied = || {
                    Error::new(
                        ErrorKind::Redis,
                        format!("{family}: Redis has just lost its memory"),
                    )
                };
                self.partition.epochs(family).await?.ok_or_else(emptied)?
            }
        };
        *self.known() = Some((epochs.clone(), asked));
        Ok(epochs)
    }

    /// Forgets the known epochs if this is one of them, because Redis no longer knows it.
    pub fn forget(&self, epoch: &str) {
        self.known().take_if(|(known, _)| known.knows(epoch));
    }

    fn known(&self) -> MutexGuard<'_, Option<(Epochs, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Partition {
    /// Returns a fence without a caller: a repeated call counts again.
    #[cfg(feature = "test-hooks")]
    pub fn unfenced(&self) -> Fence<'_> {
        Fence {
            home: &self.keys,
            caller: "",
            n: 0,
            epoch: "",
        }
    }

    /// Returns the epochs of the calls whose home this partition is. `None` if the family was never
    /// configured in this Redis, or Redis lost its data.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) if the family is of another kind, or has another number of
    /// partitions.
    pub async fn epochs(&self, family: &Family) -> Result<Option<Epochs>> {
        let args = [
            borrowed(family.kind()),
            owned(family.partitions()),
            self.time(),
        ];
        let mut reply =
            bundle::repeat_safe(&self.redis, "family_epoch", &self.keys.fence(), &args).await?;
        match reply.status() {
            "OK" => Ok(Some(Epochs {
                now: reply.text()?.into(),
                before: reply.text()?.into(),
            })),
            "UNCONFIGURED" => Ok(None),
            "MISMATCH" => Err(Error::new(
                ErrorKind::Mismatch,
                format!(
                    "{family} is {} with {} partitions, not {} with {}",
                    reply.text()?,
                    reply.text()?,
                    family.kind(),
                    family.partitions()
                ),
            )),
            _ => Err(reply.unexpected_reply()),
        }
    }

    /// Writes the family's settings beside the epoch, so that Redis refuses a caller configured
    /// with a different partition count. Gives an incarnation to each partition whose home this is.
    pub async fn configure(
        &self,
        family: &Family,
        partitions: impl IntoIterator<Item = u32>,
    ) -> Result<()> {
        let metas = partitions
            .into_iter()
            .map(|number| Keys::new(family, number).meta());
        let keys: Vec<_> = std::iter::once(self.keys.calls()).chain(metas).collect();
        let args = [
            owned(salt()?),
            self.time(),
            borrowed(family.kind()),
            owned(family.partitions()),
            owned(family.max_pending),
            owned(family.settings()),
        ];
        bundle::expect_ok(&self.redis, "family_configure", &keys, &args)
            .await
            .map(drop)
    }
}

//! The fence by epochs (docs/protocol.md, section 3.2), which makes a call safe to repeat from any
//! process.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use crate::connection::outage::Outage;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::calendar::Precision;
use crate::family::row_id::Columns;
use crate::scripts::bundle::{self, Arg, borrowed, owned};
use crate::scripts::keys::{Key, Keys};
use crate::scripts::partition::{Partition, random, salt};
use crate::testing::ablation::{self, Guard};

/// The time for which new calls name an epoch. Redis remembers it for at least 30 s more, for
/// repeats.
const FRESH: Duration = Duration::from_secs(30);

/// The longest step from a caller's number to its next.
const LONGEST_STEP: u64 = 1 << 20;

/// The last number that another one may follow. Scripts take numbers up to 2^53.
const LAST: u64 = (1 << 53) - LONGEST_STEP;

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
        let caller = if ablation::is_out(Guard::Fence) {
            ""
        } else {
            self.caller
        };
        let args = [borrowed(caller), owned(self.n), borrowed(self.epoch), now];
        (self.home.fence().into(), args.into())
    }
}

/// An idempotent producer: Redis executes each of its calls once, however often it arrives.
#[derive(Clone, Debug)]
pub struct Caller {
    pub name: Arc<str>,
    /// The number of the caller's last call.
    pub n: u64,
}

/// The callers of a writer that have no call in flight.
///
/// Two copies of a process have the same names, and with equal numbers Redis would take the calls
/// of one for repeats of the other's. So a writer begins with new names in a new process, which a
/// fork makes, and a caller's numbers grow by random steps of the operating system, which differ in
/// machines that were resumed from one snapshot.
#[derive(Debug, Default)]
pub struct Callers {
    idle: Vec<Caller>,
    /// The process that drew the names.
    process: u32,
}

impl Callers {
    /// Returns a caller with the number of its next call.
    pub fn take(&mut self) -> Result<Caller> {
        let process = std::process::id();
        if process != self.process {
            let idle = Vec::new();
            *self = Callers { idle, process };
        }
        let mut caller = match self.idle.pop() {
            Some(caller) => caller,
            None => Caller {
                name: salt()?.into(),
                n: 0,
            },
        };
        caller.n += if ablation::is_out(Guard::Step) {
            1
        } else {
            1 + random()? % LONGEST_STEP
        };
        Ok(caller)
    }

    /// Takes back a caller whose call was counted, for the next one.
    pub fn give_back(&mut self, caller: Caller) {
        if caller.n <= LAST {
            self.idle.push(caller);
        }
    }
}

/// The names that calls carry.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// The current epoch.
    pub now: Arc<str>,
    /// The current generation of requests; empty for a kind without requests.
    pub generation: Arc<str>,
    /// The labels of the family's windows, if it is a series.
    pub labels: Arc<[Precision]>,
}

/// What a process needs of the description that an epoch comes with.
#[derive(Default, Deserialize)]
struct Described {
    #[serde(default)]
    labels: Vec<Precision>,
}

/// Where a family's hits go, as far as it is known.
#[derive(Clone, Debug)]
pub struct Destination<'a> {
    /// The id of the database; empty while it is unknown.
    pub database: &'a str,
    /// The columns of the rows, if they are known.
    pub columns: Option<&'a Columns>,
}

impl Destination<'_> {
    /// That of a family which no database has registered yet.
    pub const UNKNOWN: Destination<'static> = Destination {
        database: "",
        columns: None,
    };
}

/// A home partition, and the epoch that it last returned.
#[derive(Debug)]
pub struct Home {
    partition: Partition,
    number: u32,
    topology: Arc<Topology>,
    known: Mutex<Option<(Epoch, Instant)>>,
    /// The labels that it last returned.
    labels: Mutex<Arc<[Precision]>>,
    /// That of its node, in a cluster.
    outage: Arc<Outage>,
}

impl Home {
    pub fn new(partition: Partition, number: u32, topology: Arc<Topology>) -> Self {
        Home {
            partition,
            number,
            topology,
            known: Mutex::default(),
            labels: Mutex::new([].into()),
            outage: Arc::default(),
        }
    }

    pub fn keys(&self) -> &Keys {
        &self.partition.keys
    }

    /// Returns the epoch for a new call, read from Redis if the known one is older than [`FRESH`].
    /// Configures the family again if Redis lost its data.
    pub async fn epoch(&self, family: &Family, to: &Destination<'_>) -> Result<Epoch> {
        let asked = Instant::now();
        if let Some((epoch, at)) = &*self.known.lock()
            && asked - *at < FRESH
        {
            return Ok(epoch.clone());
        }
        let database = to.database;
        let epoch = match self.partition.epoch(family, database).await? {
            Some(epoch) => epoch,
            None => {
                tracing::warn!(%family, home = self.number, "Redis does not know the family: configuring it");
                let partitions = self
                    .topology
                    .partitions_of(self.number, family.partitions());
                self.partition.configure(family, to, partitions).await?;
                let emptied = || {
                    Error::new(
                        ErrorKind::Redis,
                        format!("{family}: Redis has just lost its memory"),
                    )
                };
                self.partition
                    .epoch(family, database)
                    .await?
                    .ok_or_else(emptied)?
            }
        };
        *self.labels.lock() = epoch.labels.clone();
        *self.known.lock() = Some((epoch.clone(), asked));
        Ok(epoch)
    }

    pub fn outage(&self) -> &Arc<Outage> {
        self.topology.outage().unwrap_or(&self.outage)
    }

    /// Returns the labels of the windows in Redis, which the keys of a series' call name. They are
    /// known once an epoch is.
    pub fn labels(&self) -> Arc<[Precision]> {
        self.labels.lock().clone()
    }

    /// Forgets the known epoch if it is this one, because Redis no longer knows it.
    pub fn forget(&self, epoch: &str) {
        self.known.lock().take_if(|(known, _)| *known.now == *epoch);
    }

    /// Forgets the known epoch: the next call asks Redis.
    pub fn forget_known(&self) {
        self.known.lock().take();
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

    /// Returns the epoch of the calls whose home this partition is. `None` if the family was never
    /// configured in this Redis, or Redis lost its data.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) if the family is of another kind, has another number of
    /// partitions, or belongs to another database.
    pub async fn epoch(&self, family: &Family, database: &str) -> Result<Option<Epoch>> {
        let args = [
            borrowed(family.kind()),
            owned(family.partitions()),
            borrowed(database),
            self.time(),
        ];
        let mut reply =
            bundle::repeat_safe(&self.redis, "family_epoch", &self.keys.home(), &args).await?;
        match reply.status() {
            "OK" => {
                let (now, generation) = (reply.text()?.into(), reply.text()?.into());
                let _kind_and_partitions = (reply.text()?, reply.text()?);
                let description = reply.text()?;
                // one that this version cannot read has no labels, and so no calls fit it
                let described: Described = serde_json::from_str(&description).unwrap_or_default();
                Ok(Some(Epoch {
                    now,
                    generation,
                    labels: described.labels.into(),
                }))
            }
            "UNCONFIGURED" => Ok(None),
            "MISMATCH" => {
                let (kind, partitions) = (reply.text()?, reply.number::<u32>()?);
                let (own_kind, own_partitions) = (family.kind(), family.partitions());
                if kind == own_kind && partitions == own_partitions {
                    return Err(other_database(family, &reply.text()?, database));
                }
                Err(Error::mismatch(format!(
                    "{family} is {kind} with {partitions} partitions, not {own_kind} with {own_partitions}"
                )))
            }
            _ => Err(reply.unexpected_reply()),
        }
    }

    /// Writes the family's settings beside the epoch, so that Redis refuses a caller configured
    /// with a different partition count or another database. Gives an incarnation to each partition
    /// whose home this is. The settings depend on the columns of the family's table, if they are
    /// known.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) if the family belongs to another database.
    pub async fn configure(
        &self,
        family: &Family,
        to: &Destination<'_>,
        partitions: impl IntoIterator<Item = u32>,
    ) -> Result<()> {
        // first, so that whoever finds the family configured can count
        self.write_calendars(family).await?;
        let metas = partitions
            .into_iter()
            .map(|number| Keys::new(family, number).meta());
        let keys: Vec<_> = std::iter::once(self.keys.calls()).chain(metas).collect();
        let mut args = vec![
            owned(salt()?),
            self.time(),
            borrowed(family.kind()),
            owned(family.partitions()),
            borrowed(to.database),
            owned(family.description(to.columns)),
        ];
        for (name, value) in family.script_settings(to.columns) {
            args.extend([borrowed(name), owned(value)]);
        }
        let mut reply = bundle::repeat_safe(&self.redis, "family_configure", &keys, &args).await?;
        if reply.is_ok_or("MISMATCH")? {
            Ok(())
        } else {
            Err(other_database(family, &reply.text()?, to.database))
        }
    }

    /// Leaves the reason why the family is not configured for clients, unless it is.
    pub async fn refuse(&self, reason: &str) -> Result<()> {
        let (keys, args) = ([self.keys.calls()], [borrowed(reason)]);
        let reply = bundle::repeat_safe(&self.redis, "family_refuse", &keys, &args).await?;
        reply.is_ok_or("CONFIGURED").map(drop)
    }

    /// Deletes keys of the family like [`remove`](Self::remove), with what is pending, if its hits
    /// went to another database than this one. Returns whether they did.
    pub async fn adopt(&self, keys: &[Key], database: &str) -> Result<bool> {
        let calls = self.keys.calls();
        let keys: Vec<_> = std::iter::once(&calls).chain(keys).collect();
        let args = [borrowed(database)];
        let reply = bundle::repeat_safe(&self.redis, "family_adopt", &keys, &args).await?;
        reply.is_ok_or("OWN")
    }

    /// Deletes keys of the family, of this home and of the partitions whose calls it remembers, unless
    /// one of the `pending` keys exists or the last epoch is younger than `unused`.
    pub async fn remove(&self, pending: &[Key], keys: &[Key], unused: Duration) -> Result<Removal> {
        let calls = self.keys.calls();
        let keys: Vec<_> = std::iter::once(&calls).chain(pending).chain(keys).collect();
        let args = [owned(pending.len()), owned(unused.as_millis()), self.time()];
        let mut reply = bundle::repeat_safe(&self.redis, "family_remove", &keys, &args).await?;
        match reply.status() {
            "OK" => Ok(Removal::Removed),
            "PENDING" => Ok(Removal::Pending),
            "USED" => Ok(Removal::Used(Duration::from_millis(reply.number()?))),
            _ => Err(reply.unexpected_reply()),
        }
    }
}

/// The outcome of a removal of keys.
#[derive(Debug)]
pub enum Removal {
    /// The keys are removed.
    Removed,
    /// Hits wait. Nothing was done.
    Pending,
    /// The last epoch began so long ago. Nothing was done.
    Used(Duration),
}

/// Returns the error for a process whose database is not the one that the family's hits go to.
pub(crate) fn other_database(family: &Family, known: &str, own: &str) -> Error {
    Error::mismatch(format!(
        "{family}: its hits in this Redis go to the database {known:?}, and this process has {own:?}. Use another Redis \
         or namespace, or see \"Two databases\" in the operations manual"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_draws_new_names() {
        let mut callers = Callers::default();
        let own = callers.take().unwrap();
        callers.give_back(own.clone());
        let next = callers.take().unwrap();
        assert!(next.name == own.name && next.n > own.n);
        callers.give_back(next);
        // as if another process had drawn them
        callers.process += 1;
        assert_ne!(callers.take().unwrap().name, own.name);
    }
}

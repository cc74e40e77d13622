//! Changes to settings that all processes must agree on, for a family that has nothing pending
//! where that matters.

use crate::client::counterfoil::Counterfoil;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::tasks::try_each;
use crate::reconciler::flusher::Flusher;
use crate::reconciler::upkeep;
use crate::scripts::partition::Partition;
use crate::scripts::partition::cached::DeleteOutcome;
use crate::store::Registration;

impl Counterfoil {
    /// Changes the partitions, the durability, or the bounds of cached counters of a registered
    /// family to those of `family`.
    ///
    /// The number of partitions can change for buffered and cached families that have nothing
    /// pending in Redis. Stop the processes that count in the family or read it,
    /// [`drain`](Self::drain) it, call this, and start them with the new settings. From this call
    /// on, processes with the old number are refused as [`Mismatch`](ErrorKind::Mismatch); a value
    /// that one of them reads may lack hits. A new durability applies
    /// to processes that open the family afterwards; all others keep the old one until they are
    /// restarted. New bounds apply to the next change that any process makes.
    ///
    /// A call that fails may be retried.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) naming what cannot be changed, or that no such
    /// family is registered; [`Busy`](ErrorKind::Busy) if the number of partitions differs and
    /// something is pending: nothing was changed.
    pub async fn reconfigure(&self, family: &Family) -> Result<()> {
        let mut registered = self.known(family).await?;
        registered.columns = self.shared.store.columns(family).await?;
        let known = &registered.family;
        refuse_unchangeable(known, family)?;
        let changed = Registration {
            family: family.clone(),
            ..registered.clone()
        };
        if known.partitions() == family.partitions() {
            self.shared.store.reconfigure(known, family).await?;
            if family.is_cached() {
                self.configure_redis(known, &changed).await?;
            }
            return Ok(());
        }
        self.refuse_pending(known).await?;
        let emptied = async {
            self.refuse_pending(known).await?;
            self.drop_bases(known, family).await
        };
        // From here on nothing is counted: Redis refuses callers with the old number, and the
        // database refuses to register the family with the new one.
        self.configure_redis(known, &changed).await?;
        if let Err(pending) = emptied.await {
            self.configure_redis(family, &registered).await?;
            return Err(pending);
        }
        self.shared.store.reconfigure(known, family).await?;
        // a reconciler with the old number may have restored it in Redis before the database had
        // the new one
        self.configure_redis(known, &changed).await
    }

    /// Checks whether [`reconfigure`](Self::reconfigure) can change these settings, and changes
    /// nothing. It does not check what is pending.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput), as [`reconfigure`](Self::reconfigure).
    pub async fn check_reconfiguration(&self, family: &Family) -> Result<()> {
        refuse_unchangeable(&self.known(family).await?.family, family)
    }

    /// Returns the family as it is registered.
    pub(super) async fn known(&self, family: &Family) -> Result<Registration> {
        let found = self.shared.store.find(&family.to_string()).await?;
        found.ok_or_else(|| Error::invalid(format!("{family} is not registered")))
    }

    async fn refuse_pending(&self, family: &Family) -> Result<()> {
        let numbers = 0..family.partitions();
        let partitions = numbers.map(|number| self.shared.partition(family, number));
        let partitions: Vec<_> = partitions.collect();
        if !try_each(&partitions, Partition::has_pending)
            .await?
            .contains(&true)
        {
            return Ok(());
        }
        Err(pending(family))
    }

    /// Deletes the cached counters of the family from Redis, because an id may belong to another
    /// partition under the new number. A reconciler with the old number may have restored that
    /// number meanwhile, and hits may have counted since: a counter with pending hits is an error.
    /// A process with a former number may have left counters beyond the old partitions, so the new
    /// ones are searched too.
    async fn drop_bases(&self, before: &Family, family: &Family) -> Result<()> {
        if !family.is_cached() {
            return Ok(());
        }
        for number in 0..before.partitions().max(family.partitions()) {
            let (partition, mut next) = (self.shared.partition(family, number), Some(0));
            let home = self.shared.home(family, number);
            while let Some(cursor) = next {
                let (deleted, cursor) = partition.delete_any(&home, cursor).await?;
                if deleted
                    .iter()
                    .any(|deleted| *deleted != DeleteOutcome::Done)
                {
                    return Err(pending(family));
                }
                next = (cursor > 0).then_some(cursor);
            }
        }
        Ok(())
    }

    /// Writes the family's settings to the homes of its calls, and to its former homes.
    async fn configure_redis(&self, before: &Family, registered: &Registration) -> Result<()> {
        let (family, to) = (&registered.family, &registered.destination());
        let flusher = Flusher::new(self.shared.clone());
        upkeep::configure(&flusher, registered).await?;
        let beyond: Vec<_> = (family.partitions()..before.partitions()).collect();
        let configure = async |number: &u32| {
            let partition = self.shared.partition(family, *number);
            partition.configure(family, to, [*number]).await
        };
        try_each(&beyond, configure).await.map(drop)
    }
}

fn pending(family: &Family) -> Error {
    let pending = format!("{family}: hits are pending; drain the family first");
    Error::new(ErrorKind::Busy, pending)
}

fn refuse_unchangeable(known: &Family, family: &Family) -> Result<()> {
    for (setting, before, _) in known.differences(family) {
        if setting != "partitions" && !known.moves_nothing(setting) {
            return Err(Error::invalid(format!(
                "{family}: {setting} cannot be changed from {before:?}"
            )));
        }
    }
    if known.has_expiring_keys() && known.partitions() != family.partitions() {
        let wrong =
            "the partitions hold windows or known visitors; open a family with another name";
        return Err(Error::invalid(format!("{family}: {wrong}")));
    }
    Ok(())
}

//! The upkeep of a family: its settings in Redis, new epochs so that Redis forgets old callers, and
//! the search for partitions beyond the family's number (docs/protocol.md, sections 3.2 and 8).

use crate::connection::try_each;
use crate::error::{ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::process::family::Opened;
use crate::process::work::{FamilySlot, PartitionId};
use crate::reconciler::flush::Flusher;
use crate::scripts::fence::Destination;
use crate::scripts::partition::Partition;
use crate::store::Registered;

/// The end of the search for strays: one script names some hundred keys where it may take several
/// partitions.
pub const LAST: u32 = 256;

impl Flusher {
    /// Performs the upkeep that a family needs once a minute. With `finds_strays` it returns the
    /// partitions beyond the family's number in which hits wait.
    pub async fn upkeep(&self, family: FamilySlot, finds_strays: bool) -> Result<Vec<PartitionId>> {
        let Some(opened) = self.shared.family(family) else {
            return Ok(Vec::new());
        };
        match self.begin_epochs(&opened).await {
            // the database has the current configuration
            Err(error) if error.kind() == ErrorKind::Mismatch => {
                self.configure_anew(&opened).await?;
            }
            begun => begun?,
        }
        if !finds_strays {
            return Ok(Vec::new());
        }
        self.strays(&opened).await
    }

    /// Begins new epochs where they are due, and writes the family's settings. The database did not
    /// confirm the settings, so this first compares them with those in Redis.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) if Redis has another kind, number of partitions or
    /// database.
    pub async fn begin_epochs(&self, opened: &Opened) -> Result<()> {
        let store = &*self.shared.store;
        let registered = opened.registered_now(store).await?;
        let (family, database) = (&registered.family, &registered.database);
        let homes = self.shared.homes(family);
        let epochs = try_each(&homes, |(_, home)| home.epoch(family, database)).await?;
        if epochs.iter().all(Option::is_some) {
            return self.configure(&registered).await;
        }
        // a database that was made anew may have taken over the family, or emptied Redis
        match self.configure_anew(opened).await {
            // the database is not there: what is known of it is written
            Err(error) if matches!(error.kind(), ErrorKind::Store | ErrorKind::Busy) => {
                self.configure(&registered).await
            }
            configured => configured,
        }
    }

    /// Registers the family again, and writes the settings that the database then has.
    async fn configure_anew(&self, opened: &Opened) -> Result<()> {
        let store = &*self.shared.store;
        let known = opened.registered(store).await?;
        opened.renew(store, &known).await?;
        let registered = opened.registered_now(store).await?;
        self.configure(&registered).await
    }

    /// Begins new epochs where they are due, for a family that no database has registered yet. Writes
    /// its settings only to homes without any: others have those that a database has accepted.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) if Redis has another kind or number of partitions.
    pub async fn begin_unregistered(&self, family: &Family) -> Result<()> {
        let begin = async |(number, home): &(u32, Partition)| {
            if home.epoch(family, "").await?.is_some() {
                return Ok(());
            }
            let topology = &self.shared.topology;
            let partitions = topology.partitions_of(*number, family.partitions());
            let to = &Destination::UNKNOWN;
            home.configure(family, to, partitions).await
        };
        let homes = self.shared.homes(family);
        try_each(&homes, begin).await.map(drop)
    }

    /// Writes the family's settings, incarnations and database to every home of its calls. The
    /// database has accepted these settings.
    pub async fn configure(&self, registered: &Registered) -> Result<()> {
        let (family, to) = (&registered.family, &registered.destination());
        let configure = async |(number, home): &(u32, Partition)| {
            let topology = &self.shared.topology;
            let partitions = topology.partitions_of(*number, family.partitions());
            home.configure(family, to, partitions).await
        };
        let homes = self.shared.homes(family);
        try_each(&homes, configure).await.map(drop)
    }

    /// Returns the partitions beyond the family's number in which clients with a different
    /// partition count have counted. Redis refuses these clients from here on; their counts go to
    /// the database like any batch.
    pub async fn strays(&self, opened: &Opened) -> Result<Vec<PartitionId>> {
        let registered = opened.registered(&*self.shared.store).await?;
        let (family, to) = (&registered.family, &registered.destination());
        let beyond = family.partitions()..LAST;
        let beyond = beyond.map(|number| (number, self.partition(family, number)));
        let mut strays: Vec<_> = beyond.collect();
        let keys = strays.iter().flat_map(|(_, one)| one.keys.pending());
        if !self.has_any(keys).await? {
            return Ok(Vec::new());
        }
        let is_used = async |(_, one): &(u32, Partition)| one.has_pending().await;
        let mut are_used = try_each(&strays, is_used).await?.into_iter();
        strays.retain(|_| are_used.next() == Some(true));
        for (number, stray) in &strays {
            tracing::error!(%family, partition = number, "a client configured with a different partition count has counted hits");
            metrics::count(metrics::STRAYS, &family.name, 1);
            stray.configure(family, to, [*number]).await?;
        }
        Ok(strays
            .into_iter()
            .map(|(number, _)| (opened.slot, number))
            .collect())
    }
}

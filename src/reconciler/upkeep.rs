//! The upkeep of a family: its settings in Redis, new epochs so that Redis forgets old callers, and
//! the search for partitions beyond the family's number (docs/protocol.md, sections 3.2 and 8).

use crate::connection::topology::Topology;
use crate::connection::{Connection, each, try_each};
use crate::error::{ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::process::family::Opened;
use crate::process::shared::Shared;
use crate::reconciler::flush::{Flusher, PartitionId};
use crate::scripts::bundle;
use crate::scripts::keys::Key;
use crate::scripts::partition::Partition;
use crate::store::Registered;

/// The end of the search for strays: one script names some hundred keys where it may take several
/// partitions.
pub const LAST: u32 = 256;

/// Writes the family's settings, incarnations and database to every home of its calls. The database
/// has accepted these settings.
pub async fn configure(
    shared: &Shared,
    redis: &Connection,
    family: &Family,
    database: &str,
) -> Result<()> {
    let configure = || configure_homes(redis, &shared.topology, family, database);
    shared.by_topology(configure).await
}

async fn configure_homes(
    redis: &Connection,
    topology: &Topology,
    family: &Family,
    database: &str,
) -> Result<()> {
    let configure = async |(number, home): &(u32, Partition)| {
        let partitions = topology.partitions_of(*number, family.partitions());
        home.configure(family, database, partitions).await
    };
    let homes = homes(redis, topology, family);
    try_each(&homes, configure).await.map(drop)
}

/// Begins new epochs where they are due, and writes the family's settings. The database did not
/// confirm the settings, so this first compares them with those in Redis.
///
/// # Errors
/// [`Mismatch`](crate::ErrorKind::Mismatch) if Redis has another kind, number of partitions or
/// database.
pub async fn begin_epochs(
    shared: &Shared,
    redis: &Connection,
    family: &Family,
    database: &str,
) -> Result<()> {
    let homes = homes(redis, &shared.topology, family);
    try_each(&homes, |(_, home)| home.epochs(family, database)).await?;
    configure(shared, redis, family, database).await
}

fn homes(redis: &Connection, topology: &Topology, family: &Family) -> Vec<(u32, Partition)> {
    let home = |number| (number, Partition::new(redis.clone(), family, number));
    topology.homes(family.partitions()).map(home).collect()
}

/// Returns the partitions beyond the family's number in which clients with a different partition
/// count have counted. Redis refuses these clients from here on; their counts go to the database
/// like any batch.
async fn strays(
    redis: &Connection,
    topology: &Topology,
    family: &Family,
    database: &str,
) -> Result<Vec<u32>> {
    let partition = |number| (number, Partition::new(redis.clone(), family, number));
    let beyond: Vec<_> = (family.partitions()..LAST).map(partition).collect();
    if !topology.is_cluster() {
        let keys = beyond.iter().flat_map(|(_, one)| used_keys(family, one));
        if !bundle::any_exists(redis, &keys.collect::<Vec<_>>()).await? {
            return Ok(Vec::new());
        }
    }
    let is_used = async |(_, one): &(u32, Partition)| {
        bundle::any_exists(redis, &used_keys(family, one)).await
    };
    let mut are_used = try_each(&beyond, is_used).await?.into_iter();
    let mut strays = beyond;
    strays.retain(|_| are_used.next() == Some(true));
    for (number, stray) in &strays {
        tracing::error!(%family, partition = number, "a client configured with a different partition count has counted hits");
        metrics::count(metrics::STRAYS, &family.name, 1);
        stray.configure(family, database, [*number]).await?;
    }
    if family.keeps_slices() {
        for closed in each(&strays, |(_, stray)| stray.close_slices()).await {
            closed?;
        }
    }
    Ok(strays.iter().map(|(number, _)| *number).collect())
}

/// Returns the keys of which at least one exists if hits wait for the database.
fn used_keys(family: &Family, partition: &Partition) -> Vec<Key> {
    let keys = &partition.keys;
    let mut used = keys.pending().to_vec();
    if family.keeps_slices() {
        used.push(keys.schedule());
    }
    used
}

impl Flusher {
    /// Performs the upkeep that a family needs once a minute. With `finds_strays` it returns the
    /// partitions beyond the family's number in which hits wait.
    pub async fn upkeep(&self, number: u64, finds_strays: bool) -> Result<Vec<PartitionId>> {
        let Some(opened) = self.shared.family(number) else {
            return Ok(Vec::new());
        };
        let (shared, redis) = (&self.shared, &self.redis);
        let registered = opened.registered(&*shared.store).await?;
        let Registered {
            family, database, ..
        } = &*registered;
        match begin_epochs(shared, redis, family, database).await {
            // the database has the current configuration
            Err(error) if error.kind() == ErrorKind::Mismatch => {
                opened.renew(&*shared.store, &registered).await?;
                configure(shared, redis, family, database).await?;
            }
            begun => begun?,
        }
        if !finds_strays {
            return Ok(Vec::new());
        }
        self.strays(&opened).await
    }

    /// Returns the partitions beyond the family's number in which hits wait.
    pub async fn strays(&self, opened: &Opened) -> Result<Vec<PartitionId>> {
        let Shared {
            topology, store, ..
        } = &*self.shared;
        let registered = opened.registered(&**store).await?;
        let Registered {
            family, database, ..
        } = &*registered;
        let strays = strays(&self.redis, topology, family, database).await?;
        let strays = strays.into_iter();
        Ok(strays.map(|partition| (opened.number, partition)).collect())
    }
}

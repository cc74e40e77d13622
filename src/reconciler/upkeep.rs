//! The upkeep of a family: its settings in Redis, new epochs so that Redis forgets old callers, and
//! the search for partitions beyond the family's number (docs/protocol.md, sections 3.2 and 8).

use futures_util::future::{join_all, try_join_all};

use crate::connection::Connection;
use crate::connection::topology::Topology;
use crate::error::{ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::process::shared::Shared;
use crate::reconciler::flush::{Flusher, PartitionId};
use crate::scripts::bundle;
use crate::scripts::keys::Key;
use crate::scripts::partition::Partition;

/// The number of concurrent calls to Redis.
const CALLS: usize = 64;
/// The end of the search for strays: one script names some hundred keys where it may take several
/// partitions.
const LAST: u32 = 256;

/// Writes the family's settings and incarnations to every home of its calls. The database has
/// accepted these settings.
pub async fn configure(redis: &Connection, topology: &Topology, family: &Family) -> Result<()> {
    match configure_homes(redis, topology, family).await {
        Err(error) if bundle::crosses_slots(&error) && !topology.is_cluster() => {
            topology.found_cluster();
            configure_homes(redis, topology, family).await
        }
        configured => configured,
    }
}

async fn configure_homes(redis: &Connection, topology: &Topology, family: &Family) -> Result<()> {
    for some in homes(redis, topology, family).chunks(CALLS) {
        let configures = some.iter().map(|(number, home)| {
            let partitions = topology.partitions_of(*number, family.partitions());
            home.configure(family, partitions)
        });
        try_join_all(configures).await?;
    }
    Ok(())
}

/// Begins new epochs where they are due, and writes the family's settings. The database did not
/// confirm the settings, so this first compares them with those in Redis.
///
/// # Errors
/// [`Mismatch`](crate::ErrorKind::Mismatch) if Redis has another kind or number of partitions.
pub async fn begin_epochs(redis: &Connection, topology: &Topology, family: &Family) -> Result<()> {
    for some in homes(redis, topology, family).chunks(CALLS) {
        try_join_all(some.iter().map(|(_, home)| home.epochs(family))).await?;
    }
    configure(redis, topology, family).await
}

fn homes(redis: &Connection, topology: &Topology, family: &Family) -> Vec<(u32, Partition)> {
    let home = |number| (number, Partition::new(redis.clone(), family, number));
    topology.homes(family.partitions()).map(home).collect()
}

/// Returns the partitions beyond the family's number in which clients with a different partition
/// count have counted. Redis refuses these clients from here on; their counts go to the database
/// like any batch.
pub async fn strays(redis: &Connection, topology: &Topology, family: &Family) -> Result<Vec<u32>> {
    let beyond: Vec<_> = (family.partitions()..LAST).collect();
    let partition = |number: &u32| Partition::new(redis.clone(), family, *number);
    let mut found = Vec::new();
    for some in beyond.chunks(if topology.is_cluster() {
        CALLS
    } else {
        LAST as usize
    }) {
        let some: Vec<_> = some.iter().map(partition).zip(some).collect();
        if !topology.is_cluster() {
            let keys: Vec<_> = some
                .iter()
                .flat_map(|(stray, _)| used_keys(family, stray))
                .collect();
            if !bundle::any_exists(redis, &keys).await? {
                continue;
            }
        }
        let looks = some.iter().map(|(stray, number)| async move {
            let is_used = bundle::any_exists(redis, &used_keys(family, stray)).await?;
            Ok::<_, crate::Error>(is_used.then_some((stray, **number)))
        });
        for (stray, number) in try_join_all(looks).await?.into_iter().flatten() {
            tracing::error!(%family, partition = number, "a client configured with a different partition count has counted hits");
            ::metrics::counter!(metrics::STRAYS, "family" => family.name.clone()).increment(1);
            stray.configure(family, [number]).await?;
            found.push(number);
        }
    }
    if family.keeps_slices() {
        let closes = found
            .iter()
            .map(|number| async move { partition(number).close_slices().await });
        join_all(closes)
            .await
            .into_iter()
            .try_for_each(|closed| closed.map(drop))?;
    }
    Ok(found)
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
    /// Performs the upkeep that a family needs once a minute. With `look` it returns the partitions
    /// beyond the family's number in which hits wait.
    pub async fn upkeep(&self, number: u64, finds_strays: bool) -> Result<Vec<PartitionId>> {
        let Some(opened) = self.shared.family(number) else {
            return Ok(Vec::new());
        };
        let Shared {
            topology, store, ..
        } = &*self.shared;
        let family = &opened.registered(&**store).await?.family;
        match begin_epochs(&self.redis, topology, family).await {
            // the database has the current configuration
            Err(error) if error.kind() == ErrorKind::Mismatch => {
                store.register(family).await?;
                configure(&self.redis, topology, family).await?;
            }
            begun => begun?,
        }
        if !finds_strays {
            return Ok(Vec::new());
        }
        let strays = strays(&self.redis, topology, family).await?;
        Ok(strays
            .into_iter()
            .map(|partition| (number, partition))
            .collect())
    }
}

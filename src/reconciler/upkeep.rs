//! The upkeep of a family: its settings in Redis, new epochs so that Redis forgets old callers, and
//! the search for partitions beyond the family's number (docs/protocol.md, sections 3.2 and 8).

use std::ops::Range;

use crate::error::{ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::process::family::OpenFamily;
use crate::process::tasks::try_each;
use crate::process::work::{FamilySlot, PartitionId};
use crate::reconciler::flusher::Flusher;
use crate::scripts::partition::Partition;
use crate::scripts::partition::settings::Destination;
use crate::store::Registration;

/// The partition number at which the search for strays ends. On one server a single call names the
/// keys of all partitions up to it, which are some hundred.
pub const LAST: u32 = 256;

/// Performs the upkeep that a family needs once a minute. With `finds_strays` it returns the
/// partitions beyond the family's number in which hits wait.
pub async fn upkeep(
    flusher: &Flusher,
    family: FamilySlot,
    finds_strays: bool,
) -> Result<Vec<PartitionId>> {
    let Some(opened) = flusher.shared.family(family) else {
        return Ok(Vec::new());
    };
    match begin_epochs(flusher, &opened).await {
        // Redis has other settings than this process knows: the database has the current ones
        Err(error) if error.kind() == ErrorKind::Mismatch => {
            configure_anew(flusher, &opened).await?;
        }
        begun => begun?,
    }
    if !finds_strays {
        return Ok(Vec::new());
    }
    strays(flusher, &opened).await
}

/// Begins new epochs where they are due, and writes the family's settings. The database did not
/// confirm the settings, so this first compares them with those in Redis.
///
/// # Errors
/// [`Mismatch`](ErrorKind::Mismatch) if Redis has another kind, number of partitions or
/// database.
pub async fn begin_epochs(flusher: &Flusher, opened: &OpenFamily) -> Result<()> {
    let registered = flusher.shared.registered_now(opened).await?;
    let (family, database) = (&registered.family, &registered.database);
    let homes = flusher.shared.homes(family);
    let epochs = try_each(&homes, |(_, home)| home.epoch(family, database)).await?;
    if epochs.iter().all(Option::is_some) && refresh(flusher, &registered).await? {
        return Ok(());
    }
    // Redis has lost the settings. It was emptied, or a database that was made anew took over
    // the family, which deletes them. So the family is registered again first.
    match configure_anew(flusher, opened).await {
        // the database is unreachable: the known settings are written
        Err(error) if matches!(error.kind(), ErrorKind::Store | ErrorKind::Busy) => {
            configure(flusher, &registered).await
        }
        configured => configured,
    }
}

/// Registers the family again, and writes the settings that the database then has.
async fn configure_anew(flusher: &Flusher, opened: &OpenFamily) -> Result<()> {
    let shared = &flusher.shared;
    let known = shared.registered(opened).await?;
    shared.renew(opened, &known).await?;
    let registered = shared.registered_now(opened).await?;
    configure(flusher, &registered).await
}

/// Begins new epochs where they are due, for a family that no database has registered yet. Writes
/// its settings only to homes without any: others have those that a database has accepted.
///
/// # Errors
/// [`Mismatch`](ErrorKind::Mismatch) if Redis has another kind or number of partitions.
pub async fn begin_unregistered(flusher: &Flusher, family: &Family) -> Result<()> {
    let begin = async |(partitions, home): &(Range<u32>, Partition)| {
        if home.epoch(family, "").await?.is_some() {
            return Ok(());
        }
        let to = &Destination::UNKNOWN;
        home.configure(family, to, partitions.clone()).await
    };
    let homes = flusher.shared.homes(family);
    try_each(&homes, begin).await.map(drop)
}

/// Writes the family's settings, incarnations and database to every home of its calls. The
/// database has accepted these settings.
pub async fn configure(flusher: &Flusher, registered: &Registration) -> Result<()> {
    let (family, to) = (&registered.family, &registered.destination());
    let configure = async |(partitions, home): &(Range<u32>, Partition)| {
        home.configure(family, to, partitions.clone()).await
    };
    let homes = flusher.shared.homes(family);
    try_each(&homes, configure).await.map(drop)
}

/// Writes the family's settings to the homes where it is configured already. Returns whether
/// it is in all.
async fn refresh(flusher: &Flusher, registered: &Registration) -> Result<bool> {
    let (family, to) = (&registered.family, &registered.destination());
    let refresh = async |(partitions, home): &(Range<u32>, Partition)| {
        home.refresh(family, to, partitions.clone()).await
    };
    let homes = flusher.shared.homes(family);
    let refreshed = try_each(&homes, refresh).await?;
    Ok(!refreshed.contains(&false))
}

/// Returns the partitions beyond the family's number in which clients with a different
/// partition count have counted. Redis refuses these clients from here on; their counts go to
/// the database like any batch.
pub async fn strays(flusher: &Flusher, opened: &OpenFamily) -> Result<Vec<PartitionId>> {
    let registered = flusher.shared.registered(opened).await?;
    let (family, to) = (&registered.family, &registered.destination());
    let mut strays: Vec<_> = (family.partitions()..LAST)
        .map(|number| (number, flusher.partition(family, number)))
        .collect();
    let keys = strays.iter().flat_map(|(_, one)| one.keys.pending());
    if !flusher.has_any(keys).await? {
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
        .map(|(number, _)| opened.partition(number))
        .collect())
}

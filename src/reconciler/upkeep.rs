//! What a reconciler does for a family now and then: it writes the settings beside the epoch, begins a new epoch so that
//! Redis forgets old callers, and looks for partitions that the family does not have (docs/protocol.md, sections
//! 3.2 and 3.8).

use futures_util::future::{join_all, try_join_all};
use redis::aio::ConnectionLike;

use crate::connection::topology::Topology;
use crate::error::Result;
use crate::family::Family;
use crate::metrics;
use crate::scripts::bundle;
use crate::scripts::partition::Partition;

/// How many calls to Redis are under way at a time.
const CALLS: usize = 64;
/// Strays are looked for up to this partition: one script of some hundred keys where it may take several partitions.
const LAST: u32 = 256;

/// Writes what the family is to every home of its calls. Done when it is opened as well.
pub async fn configure<C>(redis: &C, topology: &Topology, family: &Family) -> Result<()>
where
    C: ConnectionLike + Clone + 'static,
{
    for homes in homes(redis, topology, family).chunks(CALLS) {
        try_join_all(homes.iter().map(|home| home.configure(family))).await?;
    }
    Ok(())
}

/// The same where the database was not asked just now whether the family is so: what Redis knows of it is compared first.
/// Begins new epochs where it is time.
///
/// # Errors
/// [`Mismatch`](crate::ErrorKind::Mismatch) where Redis knows another kind or number of partitions.
pub async fn begin_epochs<C>(redis: &C, topology: &Topology, family: &Family) -> Result<()>
where
    C: ConnectionLike + Clone + 'static,
{
    for homes in homes(redis, topology, family).chunks(CALLS) {
        try_join_all(homes.iter().map(|home| home.epoch(family))).await?;
    }
    configure(redis, topology, family).await
}

fn homes<C>(redis: &C, topology: &Topology, family: &Family) -> Vec<Partition<C>>
where
    C: ConnectionLike + Clone + 'static,
{
    let homes = if topology.is_cluster() { 0..family.partitions() } else { 0..1 };
    homes.map(|home| Partition::new(redis.clone(), family, home)).collect()
}

/// The partitions beyond the family's number in which somebody counted who believed in another number. Their callers are
/// refused from now on; what is there goes to the database like any batch.
pub async fn strays<C>(redis: &C, topology: &Topology, family: &Family) -> Result<Vec<u32>>
where
    C: ConnectionLike + Clone + 'static,
{
    let beyond: Vec<_> = (family.partitions()..LAST).collect();
    let partition = |number: &u32| Partition::new(redis.clone(), family, *number);
    let mut found = Vec::new();
    for some in beyond.chunks(if topology.is_cluster() { CALLS } else { LAST as usize }) {
        let some: Vec<_> = some.iter().map(partition).zip(some).collect();
        if !topology.is_cluster() {
            let keys: Vec<_> = some.iter().flat_map(|(stray, _)| used_keys(family, stray)).collect();
            if bundle::read::<_, u64>(redis, "EXISTS", &keys, &[]).await? == 0 {
                continue;
            }
        }
        let looks = some.iter().map(|(stray, number)| async move {
            let used = bundle::read::<_, u64>(redis, "EXISTS", &used_keys(family, stray), &[]).await?;
            Ok::<_, crate::Error>((used > 0).then_some((stray, **number)))
        });
        for (stray, number) in try_join_all(looks).await?.into_iter().flatten() {
            tracing::error!(%family, partition = number, "hits of somebody who believes in another number of partitions");
            ::metrics::counter!(metrics::STRAYS, "family" => family.name.clone()).increment(1);
            stray.configure(family).await?;
            found.push(number);
        }
    }
    if family.keeps_slices() {
        let closes = found.iter().map(|number| async move { partition(number).close_slices().await });
        join_all(closes).await.into_iter().try_for_each(|closed| closed.map(drop))?;
    }
    Ok(found)
}

/// The keys of which one is there where something waits for the database.
fn used_keys<C>(family: &Family, partition: &Partition<C>) -> Vec<String> {
    let keys = &partition.keys;
    match (family.is_cached(), family.keeps_slices()) {
        (true, _) => vec![keys.schedule()],
        (_, true) => vec![keys.buffer(), keys.batch(), keys.schedule()],
        _ => vec![keys.buffer(), keys.batch()],
    }
}

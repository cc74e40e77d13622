//! The detection of a Redis that was set back to an older state, and its new start
//! (docs/protocol.md, section 3.9).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};

use crate::connection::Connection;
use crate::error::Result;
use crate::metrics;
use crate::process::family::Opened;
use crate::process::shared::Shared;
use crate::scripts::buffered::{LastCut, last_cuts};
use crate::scripts::partition::Partition;
use crate::store::{LedgerRow, Mark};
use crate::testing::ablation::{self, Guard};

/// The number of families whose ledger one statement reads.
const FAMILIES: usize = 1_000;
/// The number of partitions that one call reads on one server.
const PARTITIONS: usize = 500;
/// The number of concurrent calls.
const CALLS: usize = 16;

/// Compares the ledger with Redis, and begins anew where Redis is behind. Reads the ledger first,
/// because everything in it was cut in Redis before. Returns the number of partitions that began
/// anew.
///
/// Families that the database has not registered yet are left out.
#[tracing::instrument(level = "debug", skip_all, fields(families = families.len()))]
pub async fn probe(shared: &Shared, redis: &Connection, families: &[Arc<Opened>]) -> Result<usize> {
    let mut reset = 0;
    for some in families.chunks(FAMILIES) {
        reset += probe_some(shared, redis, some).await?;
    }
    Ok(reset)
}

async fn probe_some(
    shared: &Shared,
    redis: &Connection,
    families: &[Arc<Opened>],
) -> Result<usize> {
    let registered = families
        .iter()
        .filter_map(|opened| Some((opened.known()?.number, opened)));
    let by_number: HashMap<_, _> = registered.collect();
    let numbers: Vec<_> = by_number.keys().copied().collect();
    if numbers.is_empty() {
        return Ok(0);
    }
    let key = |row: LedgerRow| ((row.family, row.partition, row.incarnation), row.mark);
    let ledger = shared.store.ledger(&numbers).await?.into_iter();
    let marks: BTreeMap<_, _> = ledger.map(key).collect();
    let mut partitions: Vec<_> = marks.keys().map(|key| (key.0, key.1)).collect();
    partitions.dedup();
    let is_cluster = shared.topology.is_cluster();
    let size = if is_cluster { 1 } else { PARTITIONS };
    let mut reset = 0;
    for chunk in partitions.chunks(size * CALLS) {
        let looks = chunk.chunks(size).map(async |few| {
            let asked = few.iter().map(|(family, number)| {
                Partition::new(redis.clone(), &by_number[family].family, *number)
            });
            last_cuts(redis, &asked.collect::<Vec<_>>()).await
        });
        let cuts = try_join_all(looks).await?.into_iter().flatten();
        let behind = chunk.iter().zip(cuts).filter(|((family, partition), cut)| {
            let key = cut.incarnation.map(|it| (*family, *partition, it));
            let mark = key.and_then(|key| marks.get(&key));
            mark.is_some_and(|mark| is_behind(cut, mark))
        });
        let resets = behind.map(|((family, partition), cut)| {
            begin_anew(shared, redis, by_number[family], *partition, cut)
        });
        for outcome in join_all(resets).await {
            outcome?;
            reset += 1;
        }
    }
    Ok(reset)
}

/// Returns true if Redis is behind the ledger of its incarnation.
fn is_behind(cut: &LastCut, mark: &Mark) -> bool {
    let is_other = cut.nonce != Some(mark.nonce) && !ablation::is_out(Guard::Nonce);
    cut.seq < mark.seq || (cut.seq == mark.seq && mark.seq > 0 && is_other)
}

/// Drops the partition's pending hits and starts a new incarnation, if its last cut is still the
/// one that proves that Redis was set back.
pub async fn begin_anew(
    shared: &Shared,
    redis: &Connection,
    opened: &Opened,
    partition: u32,
    proven: LastCut,
) -> Result<()> {
    let family = &opened.family;
    let home = Partition::new(redis.clone(), family, shared.topology.home_of(partition));
    let own = Partition::new(redis.clone(), family, partition);
    if let Some(dropped) = own.reset(family, &home.keys, proven).await? {
        let (hits, ids) = (dropped.hits, dropped.ids);
        metrics::count(metrics::SET_BACK, &opened.label, 1);
        metrics::count(metrics::DROPPED, &opened.label, hits);
        tracing::error!(%family, partition, hits, ids, "Redis was set back to an older state: pending hits were dropped");
    }
    Ok(())
}

//! The detection of a server that was set back to an older state (docs/protocol.md, section 3.9).
//! If Redis was, the affected partitions begin anew. If the database was, its ledger is completed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::error::Result;
use crate::metrics;
use crate::process::family::OpenFamily;
use crate::process::tasks::each;
use crate::reconciler::flusher::Flusher;
use crate::scripts::partition::buffered::{self as scripts, LastCut, ReadReply, last_cuts};
use crate::scripts::partition::settings::check_database;
use crate::store::{Batch, DroppedHits, FamilyNumber, LedgerRow, Mark};
use crate::testing::ablation::{self, Guard};

/// The number of families whose ledger one statement reads.
const FAMILIES: usize = 1_000;
/// The number of partitions that one call reads on one server.
const PARTITIONS: usize = 500;

/// Compares the ledger with Redis, begins anew where Redis is behind, and completes the ledger
/// where it lacks what Redis has released. Reads the ledger first, because everything in it was
/// cut in Redis before. Returns the number of partitions that began anew.
///
/// Families that the database has not registered yet are left out.
///
/// # Errors
/// [`Mismatch`](crate::ErrorKind::Mismatch) if a family in this Redis belongs to another database,
/// whose batches this ledger does not have.
#[tracing::instrument(level = "debug", skip_all, fields(families = families.len()))]
pub async fn probe(flusher: &Flusher, families: &[Arc<OpenFamily>]) -> Result<usize> {
    let mut reset = 0;
    for some in families.chunks(FAMILIES) {
        reset += probe_some(flusher, some).await?;
    }
    Ok(reset)
}

async fn probe_some(flusher: &Flusher, families: &[Arc<OpenFamily>]) -> Result<usize> {
    let registered = families.iter().filter_map(|opened| {
        let known = opened.known()?;
        Some((known.number, (opened, known)))
    });
    let by_number: HashMap<_, _> = registered.collect();
    let numbers: Vec<_> = by_number.keys().copied().collect();
    if numbers.is_empty() {
        return Ok(0);
    }
    let rows = flusher.shared.store.ledger(&numbers).await?;
    let marks: BTreeMap<_, _> = rows
        .into_iter()
        .map(|row: LedgerRow| ((row.family, row.partition, row.incarnation), row.mark))
        .collect();
    // the ledger also has partitions from before their number was reduced
    let mut known: BTreeSet<_> = marks.keys().map(|key| (key.0, key.1)).collect();
    for (family, (opened, _)) in &by_number {
        known.extend((0..opened.family.partitions()).map(|partition| (*family, partition)));
    }
    let partitions = Vec::from_iter(known);
    let read_cuts = async |some: &[(FamilyNumber, u32)]| {
        let partitions: Vec<_> = some
            .iter()
            .map(|(family, number)| flusher.partition(&by_number[family].0.family, *number))
            .collect();
        last_cuts(&flusher.redis, &partitions).await
    };
    let cuts = flusher
        .shared
        .by_group(&partitions, PARTITIONS, read_cuts)
        .await?;
    let mut found = Vec::new();
    for (&(family, partition), (cut, database)) in partitions.iter().zip(cuts.into_iter().flatten())
    {
        let (opened, known) = &by_number[&family];
        check_database(&opened.family, &database, &known.database)?;
        let Some(incarnation) = cut.incarnation else {
            continue;
        };
        let mark = marks
            .get(&(family, partition, incarnation))
            .cloned()
            .unwrap_or_default();
        let is_redis_behind = is_behind(&cut, &mark);
        if is_redis_behind || lacks(&mark, &cut) {
            found.push(SetBack {
                opened,
                partition,
                cut,
                is_redis_behind,
            });
        }
    }
    let mended = each(&found, async |one: &SetBack| mend(flusher, one).await).await;
    let lost = found
        .iter()
        .zip(&mended)
        .filter_map(|(one, lost)| Some((&**one.opened, *lost.as_ref().ok()?)));
    report_lost(lost.filter(|(_, lost)| *lost > 0));
    mended.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(found.iter().filter(|one| one.is_redis_behind).count())
}

/// A partition in which Redis and the ledger disagree.
struct SetBack<'o> {
    opened: &'o Arc<OpenFamily>,
    partition: u32,
    cut: LastCut,
    /// Redis was set back. If not, the database was.
    is_redis_behind: bool,
}

/// Begins anew, or completes the ledger. Returns the number of batches that the database has lost.
async fn mend(flusher: &Flusher, found: &SetBack<'_>) -> Result<u64> {
    let SetBack {
        opened, partition, ..
    } = *found;
    if found.is_redis_behind {
        begin_anew(flusher, opened, partition, found.cut).await?;
        return Ok(0);
    }
    complete(flusher, opened, partition).await
}

/// Records the last batch of the partition as lost, if Redis has released it and the ledger lacks
/// it: the database was set back. Without the record, exact reads and recounts would wait for the
/// partition's next batch. Returns the number of batches that the database has lost.
async fn complete(flusher: &Flusher, opened: &OpenFamily, partition: u32) -> Result<u64> {
    let own = flusher.partition(&opened.family, partition);
    let ReadReply {
        last, in_flight, ..
    } = own.read(&["-"]).await?;
    let family = opened.known().filter(|_| !in_flight);
    let (Some(family), Some(id)) = (family, last.batch()) else {
        return Ok(0);
    };
    // This fails if another database has taken over the family in this Redis. The batch may be
    // in that one.
    let home = flusher.shared.topology.home_of(partition);
    flusher
        .partition(&opened.family, home)
        .epoch(&opened.family, &family.database)
        .await?;
    let released = Batch {
        family,
        partition,
        id,
        deltas: Vec::new(),
        is_lost: true,
    };
    let applied = flusher
        .shared
        .store
        .apply(&[Arc::new(released)], None)
        .await?;
    Ok(applied.database_set_back.iter().map(|(_, lost)| lost).sum())
}

/// Drops the partition's pending hits and starts a new incarnation, if its last cut is still
/// the one that proves that Redis was set back.
pub async fn begin_anew(
    flusher: &Flusher,
    opened: &OpenFamily,
    partition: u32,
    proven: LastCut,
) -> Result<()> {
    let family = &opened.family;
    let home = flusher.partition(family, flusher.shared.topology.home_of(partition));
    let own = flusher.partition(family, partition);
    if let Some(dropped) = own.reset(family, &home.keys, proven).await? {
        let (hits, ids) = (dropped.hits, dropped.ids);
        metrics::count(metrics::SET_BACK, &opened.label, 1);
        metrics::count(metrics::DROPPED, &opened.label, hits);
        tracing::error!(%family, partition, hits, ids, "Redis was set back to an older state: pending hits were dropped");
        record_dropped(flusher, opened, partition, proven, dropped).await;
    }
    Ok(())
}

/// Records dropped hits in the database, for operators. The log and the metrics have them already.
async fn record_dropped(
    flusher: &Flusher,
    opened: &OpenFamily,
    partition: u32,
    proven: LastCut,
    dropped: scripts::ResetReply,
) {
    let (Some(registered), Some(incarnation)) = (opened.known(), proven.incarnation) else {
        return;
    };
    let dropped = DroppedHits {
        family: registered.number,
        partition,
        incarnation,
        hits: dropped.hits,
        ids: dropped.ids,
    };
    if let Err(error) = flusher.shared.store.record_dropped(&dropped).await {
        let family = &opened.family;
        tracing::warn!(%family, partition, error = %format_args!("{error:#}"), "dropped hits were not recorded in the database");
    }
}

/// Reports the batches that the database has lost, each given as the family of a partition and the
/// number of its batches.
pub fn report_lost<'o>(lost: impl Iterator<Item = (&'o OpenFamily, u64)>) {
    let mut families: BTreeMap<_, (&OpenFamily, u64, u64)> = BTreeMap::new();
    for (opened, batches) in lost {
        let name = opened.family.to_string();
        let (_, partitions, sum) = families.entry(name).or_insert((opened, 0, 0));
        (*partitions, *sum) = (*partitions + 1, *sum + batches);
    }
    for (family, (opened, partitions, batches)) in families {
        metrics::count(metrics::DATABASE_SET_BACK, &opened.label, partitions);
        metrics::count(metrics::LOST_BATCHES, &opened.label, batches);
        tracing::error!(
            %family,
            partitions,
            batches,
            "the database was set back to an older state: hits that it had are lost"
        );
    }
}

/// Returns true if the ledger lacks the last cut, or a part of it.
fn lacks(mark: &Mark, cut: &LastCut) -> bool {
    mark.seq < cut.seq || (mark.seq == cut.seq && mark.position.is_some())
}

/// Returns true if Redis is behind the ledger of its incarnation.
fn is_behind(cut: &LastCut, mark: &Mark) -> bool {
    let is_other = cut.nonce != Some(mark.nonce) && !ablation::is_out(Guard::Nonce);
    cut.seq < mark.seq || (cut.seq == mark.seq && mark.seq > 0 && is_other)
}

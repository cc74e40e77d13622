//! The detection of a Redis that was set back to an older state, and its new start; and of a
//! database that was (docs/protocol.md, section 3.9).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::connection::each;
use crate::error::Result;
use crate::metrics;
use crate::process::family::Opened;
use crate::reconciler::flush::Flusher;
use crate::scripts::buffered::{LastCut, Pending, last_cuts};
use crate::store::{Batch, FamilyNumber, LedgerRow, Mark, Progress};
use crate::testing::ablation::{self, Guard};

/// The number of families whose ledger one statement reads.
const FAMILIES: usize = 1_000;
/// The number of partitions that one call reads on one server.
const PARTITIONS: usize = 500;

impl Flusher {
    /// Compares the ledger with Redis, begins anew where Redis is behind, and completes the ledger
    /// where it lacks what Redis has released. Reads the ledger first, because everything in it was
    /// cut in Redis before. Returns the number of partitions that began anew.
    ///
    /// Families that the database has not registered yet are left out.
    #[tracing::instrument(level = "debug", skip_all, fields(families = families.len()))]
    pub async fn probe(&self, families: &[Arc<Opened>]) -> Result<usize> {
        let mut reset = 0;
        for some in families.chunks(FAMILIES) {
            reset += self.probe_some(some).await?;
        }
        Ok(reset)
    }

    async fn probe_some(&self, families: &[Arc<Opened>]) -> Result<usize> {
        let registered = families
            .iter()
            .filter_map(|opened| Some((opened.known()?.number, opened)));
        let by_number: HashMap<_, _> = registered.collect();
        let numbers: Vec<_> = by_number.keys().copied().collect();
        if numbers.is_empty() {
            return Ok(0);
        }
        let key = |row: LedgerRow| ((row.family, row.partition, row.incarnation), row.mark);
        let ledger = self.shared.store.ledger(&numbers).await?.into_iter();
        let marks: BTreeMap<_, _> = ledger.map(key).collect();
        let all = by_number.iter().flat_map(|(family, opened)| {
            let partitions = 0..opened.family.partitions();
            partitions.map(|partition| (*family, partition))
        });
        // the ledger also has those from before a change of their number
        let partitions: BTreeSet<_> = marks.keys().map(|key| (key.0, key.1)).chain(all).collect();
        let partitions: Vec<_> = partitions.into_iter().collect();
        let read = async |some: &[(FamilyNumber, u32)]| {
            let partition = |(family, number): &(FamilyNumber, u32)| {
                let opened = by_number[family];
                self.partition(&opened.family, *number)
            };
            let some: Vec<_> = some.iter().map(partition).collect();
            last_cuts(&self.redis, &some).await
        };
        let cuts = self.shared.by_group(&partitions, PARTITIONS, read).await?;
        let mut found = Vec::new();
        for (id, cut) in partitions.iter().zip(cuts.into_iter().flatten()) {
            let Some(incarnation) = cut.incarnation else {
                continue;
            };
            let mark = marks
                .get(&(id.0, id.1, incarnation))
                .cloned()
                .unwrap_or_default();
            let is_behind = is_behind(&cut, &mark);
            if is_behind || lacks(&mark, &cut) {
                found.push((id, cut, is_behind));
            }
        }
        let mend = async |((family, partition), cut, is_behind): &(
            &(FamilyNumber, u32),
            LastCut,
            bool,
        )| {
            let opened = by_number[family];
            if *is_behind {
                self.begin_anew(opened, *partition, *cut).await
            } else {
                self.complete(opened, *partition).await
            }
        };
        each(&found, mend)
            .await
            .into_iter()
            .collect::<Result<()>>()?;
        Ok(found.iter().filter(|(.., is_behind)| *is_behind).count())
    }

    /// Records the last batch of the partition as complete, if Redis has released it and the ledger
    /// lacks it: the database was set back. Without the record, exact reads and recounts would wait
    /// for the partition's next batch.
    async fn complete(&self, opened: &Opened, partition: u32) -> Result<()> {
        let own = self.partition(&opened.family, partition);
        let Pending {
            last, in_flight, ..
        } = own.read(&["-"]).await?;
        let family = opened.known().filter(|_| !in_flight);
        let (Some(family), Some(id)) = (family, last.batch()) else {
            return Ok(());
        };
        // the batch may be another database's, which took over this Redis
        let home = self.shared.topology.home_of(partition);
        self.partition(&opened.family, home)
            .epoch(&opened.family, &family.database)
            .await?;
        let released = Batch {
            family,
            partition,
            id,
            deltas: Vec::new(),
        };
        let applied = self.shared.store.apply(&[Arc::new(released)], None).await?;
        if applied.progress == [Progress::Complete] {
            let family = &opened.family;
            metrics::count(metrics::DATABASE_SET_BACK, &opened.label, 1);
            tracing::error!(%family, partition, "the database was set back to an older state: hits that it had are lost");
        }
        Ok(())
    }

    /// Drops the partition's pending hits and starts a new incarnation, if its last cut is still
    /// the one that proves that Redis was set back.
    pub async fn begin_anew(&self, opened: &Opened, partition: u32, proven: LastCut) -> Result<()> {
        let family = &opened.family;
        let home = self.partition(family, self.shared.topology.home_of(partition));
        let own = self.partition(family, partition);
        if let Some(dropped) = own.reset(family, &home.keys, proven).await? {
            let (hits, ids) = (dropped.hits, dropped.ids);
            metrics::count(metrics::SET_BACK, &opened.label, 1);
            metrics::count(metrics::DROPPED, &opened.label, hits);
            tracing::error!(%family, partition, hits, ids, "Redis was set back to an older state: pending hits were dropped");
        }
        Ok(())
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

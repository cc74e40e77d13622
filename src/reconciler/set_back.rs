//! The detection of a Redis that was set back to an older state, and its new start
//! (docs/protocol.md, section 3.9).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::connection::each;
use crate::error::Result;
use crate::metrics;
use crate::process::family::Opened;
use crate::reconciler::flush::Flusher;
use crate::scripts::buffered::{LastCut, last_cuts};
use crate::store::{LedgerRow, Mark};
use crate::testing::ablation::{self, Guard};

/// The number of families whose ledger one statement reads.
const FAMILIES: usize = 1_000;
/// The number of partitions that one call reads on one server.
const PARTITIONS: usize = 500;

impl Flusher {
    /// Compares the ledger with Redis, and begins anew where Redis is behind. Reads the ledger
    /// first, because everything in it was cut in Redis before. Returns the number of partitions
    /// that began anew.
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
        let mut partitions: Vec<_> = marks.keys().map(|key| (key.0, key.1)).collect();
        partitions.dedup();
        let read = async |some: &[(u64, u32)]| {
            let partition = |(family, number): &(u64, u32)| {
                let opened = by_number[family];
                self.partition(&opened.family, *number)
            };
            let some: Vec<_> = some.iter().map(partition).collect();
            last_cuts(&self.redis, &some).await
        };
        let cuts = self.shared.by_group(&partitions, PARTITIONS, read).await?;
        let behind = partitions.iter().zip(cuts.into_iter().flatten());
        let behind = behind.filter(|((family, partition), cut)| {
            let key = cut.incarnation.map(|it| (*family, *partition, it));
            let mark = key.and_then(|key| marks.get(&key));
            mark.is_some_and(|mark| is_behind(cut, mark))
        });
        let behind: Vec<_> = behind.collect();
        let reset = async |((family, partition), cut): &(&(u64, u32), LastCut)| {
            self.begin_anew(by_number[family], *partition, *cut).await
        };
        for outcome in each(&behind, reset).await {
            outcome?;
        }
        Ok(behind.len())
    }

    /// Drops the partition's pending hits and starts a new incarnation, if its last cut is still
    /// the one that proves that Redis was set back.
    pub(super) async fn begin_anew(
        &self,
        opened: &Opened,
        partition: u32,
        proven: LastCut,
    ) -> Result<()> {
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

/// Returns true if Redis is behind the ledger of its incarnation.
fn is_behind(cut: &LastCut, mark: &Mark) -> bool {
    let is_other = cut.nonce != Some(mark.nonce) && !ablation::is_out(Guard::Nonce);
    cut.seq < mark.seq || (cut.seq == mark.seq && mark.seq > 0 && is_other)
}

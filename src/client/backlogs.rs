//! The backlogs of families: many idle ones in a few calls, or a single one.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use crate::admin::backlog::{self, Backlog};
use crate::client::counterfoil::Counterfoil;
use crate::error::Result;
use crate::family::Family;
use crate::metrics;
use crate::process::shared::Shared;
use crate::scripts::bundle;
use crate::scripts::keys::Keys;

/// The size and number of the calls to Redis.
#[derive(Clone, Copy)]
struct Pace {
    /// The number of partitions that one call reads.
    partitions: usize,
    /// The number of concurrent calls.
    calls: usize,
}

/// A few calls of a fraction of a millisecond each, because the server has other clients.
const NODE: Pace = Pace {
    partitions: 100,
    calls: 4,
};
/// One partition a call, because a call cannot read several slots.
const CLUSTER: Pace = Pace {
    partitions: 1,
    calls: 64,
};

impl Counterfoil {
    /// Returns the backlog of every family in use, in the order in which they were opened, or found
    /// and [served](crate::ReconcilerBuilder::all). It needs neither a reconciler nor the database.
    /// Unless Redis is a cluster, one call reads 100 partitions, so thousands of families take
    /// little time.
    ///
    /// It sets the gauges [`BACKLOG_IDS`](crate::metrics::BACKLOG_IDS) and
    /// [`BACKLOG_SECONDS`](crate::metrics::BACKLOG_SECONDS), each over the families of a name in
    /// all namespaces.
    ///
    /// A family whose keys are [`Corrupt`](crate::ErrorKind::Corrupt), or to whose keys Redis [denies
    /// access](crate::ErrorKind::AccessDenied), has that error instead of a backlog.
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable; no gauge is set then.
    pub async fn backlogs(&self) -> Result<Vec<(Family, Result<Backlog>)>> {
        let found = self.backlogs_of(self.shared.families()).await?;
        measure(&found);
        Ok(found)
    }

    /// Returns the backlog of these families, which need not be open, in their order. It sets no
    /// gauge.
    ///
    /// # Errors
    /// Those of [`backlogs`](Self::backlogs).
    pub async fn backlogs_of(
        &self,
        families: Vec<Family>,
    ) -> Result<Vec<(Family, Result<Backlog>)>> {
        let backlogs = self.shared.backlogs_bisected(&families).await?;
        Ok(families.into_iter().zip(backlogs).collect())
    }
}

/// Sets the gauges. Labels have no namespaces, so families of one name are combined: the sum of
/// their ids, and the age of the oldest hit.
fn measure(found: &[(Family, Result<Backlog>)]) {
    let mut by_name: BTreeMap<&str, Backlog> = BTreeMap::new();
    for (family, backlog) in found {
        if let Ok(backlog) = backlog {
            let all = by_name.entry(family.name()).or_default();
            *all = all.join(*backlog);
        }
    }
    for (name, all) in by_name {
        let seconds = all.oldest.map_or(0.0, |oldest| oldest.as_secs_f64());
        ::metrics::gauge!(metrics::BACKLOG_IDS, "family" => name.to_owned()).set(all.ids as f64);
        ::metrics::gauge!(metrics::BACKLOG_SECONDS, "family" => name.to_owned()).set(seconds);
    }
}

impl Shared {
    /// Reads the families together. If one of them cannot be read, it reads each half by itself, so
    /// that the error is reported for that family alone.
    async fn backlogs_bisected(&self, families: &[Family]) -> Result<Vec<Result<Backlog>>> {
        let (few, error) = match self.backlogs(families).await {
            Ok(backlogs) => return Ok(backlogs.into_iter().map(Ok).collect()),
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => (families.len() < 2, error),
        };
        if few {
            return Ok(vec![Err(error)]);
        }
        let (first, second) = families.split_at(families.len() / 2);
        let mut backlogs = Box::pin(self.backlogs_bisected(first)).await?;
        backlogs.extend(Box::pin(self.backlogs_bisected(second)).await?);
        Ok(backlogs)
    }

    /// Returns the backlog of all partitions of the family.
    pub async fn backlog(&self, family: &Family) -> Result<Backlog> {
        let found = self.backlogs(std::slice::from_ref(family)).await?;
        Ok(found.into_iter().fold(Backlog::default(), Backlog::join))
    }

    /// Returns the backlog of each of these families.
    async fn backlogs(&self, families: &[Family]) -> Result<Vec<Backlog>> {
        if !self.topology.is_cluster() {
            match self.read(families, NODE).await {
                Err(error) if bundle::crosses_slots(&error) => self.topology.found_cluster(),
                looked => return looked,
            }
        }
        self.read(families, CLUSTER).await
    }

    async fn read(&self, families: &[Family], pace: Pace) -> Result<Vec<Backlog>> {
        let mut all = Vec::new();
        for (index, family) in families.iter().enumerate() {
            all.extend((0..family.partitions()).map(|number| (index, Keys::new(family, number))));
        }
        let mut backlogs = vec![Backlog::default(); families.len()];
        for some in all.chunks(pace.partitions * pace.calls) {
            let calls = some.chunks(pace.partitions).map(async |few| {
                let keys: Vec<_> = few.iter().map(|(_, keys)| keys).collect();
                backlog::of_partitions(&self.redis, &keys).await
            });
            let found = try_join_all(calls).await?.into_iter().flatten();
            for ((index, _), more) in some.iter().zip(found) {
                backlogs[*index] = backlogs[*index].join(more);
            }
        }
        Ok(backlogs)
    }
}

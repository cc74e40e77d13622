//! The backlogs of families: many idle ones in a few calls, or a single one.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use crate::admin::backlog::{self, Backlog};
use crate::client::counterfoil::Counterfoil;
use crate::connection::bisected;
use crate::error::Result;
use crate::family::Family;
use crate::metrics;
use crate::process::shared::Shared;
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
    /// Returns the backlog of each family, or the error of one that cannot be read.
    async fn backlogs_bisected(&self, families: &[Family]) -> Result<Vec<Result<Backlog>>> {
        let read = |some| self.backlogs(some);
        let mut all = Vec::with_capacity(families.len());
        for (_, backlogs) in bisected(families, |error| !error.is_retryable(), read).await? {
            match backlogs {
                Ok(backlogs) => all.extend(backlogs.into_iter().map(Ok)),
                Err(error) => all.push(Err(error)),
            }
        }
        Ok(all)
    }

    /// Returns the backlog of all partitions of the family.
    pub async fn backlog(&self, family: &Family) -> Result<Backlog> {
        let found = self.backlogs(std::slice::from_ref(family)).await?;
        Ok(found.into_iter().fold(Backlog::default(), Backlog::join))
    }

    /// Returns the backlog of each of these families.
    async fn backlogs(&self, families: &[Family]) -> Result<Vec<Backlog>> {
        self.by_topology(|| self.read(families)).await
    }

    async fn read(&self, families: &[Family]) -> Result<Vec<Backlog>> {
        let is_cluster = self.topology.is_cluster();
        let pace = if is_cluster { CLUSTER } else { NODE };
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

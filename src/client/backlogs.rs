//! The backlogs of families: many idle ones in a few calls, or a single one.

use std::collections::BTreeMap;

use crate::admin::backlog::{self, Backlog};
use crate::client::counterfoil::Counterfoil;
use crate::connection::bisected;
use crate::error::Result;
use crate::family::Family;
use crate::metrics;
use crate::process::shared::Shared;
use crate::scripts::keys::Keys;

/// The number of partitions that one call reads on one server, in a fraction of a millisecond.
const PARTITIONS: usize = 100;

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
        let read = |some| self.shared.backlogs(some);
        let mut all = Vec::with_capacity(families.len());
        // one that cannot be read does not hide the others
        for (_, backlogs) in bisected(&families, |error| !error.is_retryable(), read).await? {
            match backlogs {
                Ok(backlogs) => all.extend(backlogs.into_iter().map(Ok)),
                Err(error) => all.push(Err(error)),
            }
        }
        Ok(families.into_iter().zip(all).collect())
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
    /// Returns the backlog of all partitions of the family.
    pub async fn backlog(&self, family: &Family) -> Result<Backlog> {
        let found = self.backlogs(std::slice::from_ref(family)).await?;
        Ok(found.into_iter().fold(Backlog::default(), Backlog::join))
    }

    /// Returns the backlog of each of these families.
    async fn backlogs(&self, families: &[Family]) -> Result<Vec<Backlog>> {
        let mut all = Vec::new();
        for (index, family) in families.iter().enumerate() {
            all.extend((0..family.partitions()).map(|number| (index, Keys::new(family, number))));
        }
        let read = async |some: &[(usize, Keys)]| {
            let keys: Vec<_> = some.iter().map(|(_, keys)| keys).collect();
            backlog::of_partitions(&self.redis, &keys).await
        };
        let found = self.by_group(&all, PARTITIONS, read).await?;
        let mut backlogs = vec![Backlog::default(); families.len()];
        for ((index, _), more) in all.iter().zip(found.into_iter().flatten()) {
            backlogs[*index] = backlogs[*index].join(more);
        }
        Ok(backlogs)
    }
}

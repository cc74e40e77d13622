//! The backlogs of families: many idle ones in a few calls, or a single one.

use std::collections::BTreeMap;

use crate::admin::backlog::Backlog;
use crate::client::counterfoil::Counterfoil;
use crate::error::Result;
use crate::family::Family;
use crate::metrics;
use crate::process::tasks::bisected;

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
        // a family that cannot be read, such as one with a corrupt key, does not hide the others
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

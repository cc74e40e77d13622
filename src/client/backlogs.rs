//! The backlogs of families: of many that are idle in a few calls, and of one in the same way.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use redis::aio::ConnectionLike;

use crate::client::backlog::{self, Backlog};
use crate::client::counterfoil::Counterfoil;
use crate::error::{ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::scripts::bundle;
use crate::scripts::keys::Keys;
use crate::store::Store;
use crate::writer::shared::Shared;

/// How Redis is asked.
#[derive(Clone, Copy)]
struct Pace {
    /// How many partitions one call looks at.
    partitions: usize,
    /// How many calls are under way at a time.
    calls: usize,
}

/// Calls that take a fraction of a millisecond each, and few of them: the server has others to serve.
const NODE: Pace = Pace { partitions: 100, calls: 4 };
/// No call can look at partitions of several slots.
const CLUSTER: Pace = Pace { partitions: 1, calls: 64 };

impl<C, S> Counterfoil<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// What of every family in use waits in Redis for the database, in the order in which they were opened, or found
    /// and [served](crate::ReconcilerBuilder::all); it needs neither a reconciler nor the database. Where Redis is no
    /// cluster one call looks at 100 partitions, so that thousands of idle families take little. Cached counters that
    /// are in Redis are looked through one by one.
    ///
    /// It sets the gauges [`BACKLOG_IDS`](crate::metrics::BACKLOG_IDS) and
    /// [`BACKLOG_SECONDS`](crate::metrics::BACKLOG_SECONDS), each over the families of a name in all namespaces.
    ///
    /// A family whose keys are [`Corrupt`](ErrorKind::Corrupt) has that error in the place of its backlog.
    ///
    /// # Errors
    /// [`Redis`](ErrorKind::Redis) where it cannot be asked; no gauge is set then.
    pub async fn backlogs(&self) -> Result<Vec<(Family, Result<Backlog>)>> {
        let families = self.shared.families();
        let backlogs = match self.shared.backlogs(&families).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => self.one_by_one(&families).await?,
            looked => looked?.into_iter().map(Ok).collect(),
        };
        let found: Vec<_> = families.into_iter().zip(backlogs).collect();
        measure(found.iter().filter_map(|(family, backlog)| Some((family, *backlog.as_ref().ok()?))));
        Ok(found)
    }

    /// So that what is wrong with one family is told of that one.
    async fn one_by_one(&self, families: &[Family]) -> Result<Vec<Result<Backlog>>> {
        let mut backlogs = Vec::with_capacity(families.len());
        for family in families {
            match self.shared.backlog(family).await {
                Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                looked => backlogs.push(looked),
            }
        }
        Ok(backlogs)
    }
}

/// Labels have no namespaces, so the families of a name are one: the sum of their ids, and the oldest of their hits.
fn measure<'a>(found: impl Iterator<Item = (&'a Family, Backlog)>) {
    let mut by_name: BTreeMap<&str, Backlog> = BTreeMap::new();
    for (family, backlog) in found {
        let all = by_name.entry(family.name()).or_default();
        *all = all.join(backlog);
    }
    for (name, all) in by_name {
        let seconds = all.oldest.map_or(0.0, |oldest| oldest.as_secs_f64());
        ::metrics::gauge!(metrics::BACKLOG_IDS, "family" => name.to_owned()).set(all.ids as f64);
        ::metrics::gauge!(metrics::BACKLOG_SECONDS, "family" => name.to_owned()).set(seconds);
    }
}

/// A partition of the family at that place.
struct One<'a> {
    place: usize,
    family: &'a Family,
    keys: Keys,
}

impl<C, S> Shared<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// The backlog of all partitions of the family.
    pub async fn backlog(&self, family: &Family) -> Result<Backlog> {
        let found = self.backlogs(std::slice::from_ref(family)).await?;
        Ok(found.into_iter().fold(Backlog::default(), Backlog::join))
    }

    /// The same of each of these families.
    async fn backlogs(&self, families: &[Family]) -> Result<Vec<Backlog>> {
        if !self.topology.is_cluster() {
            match self.look(families, NODE).await {
                Err(error) if bundle::crosses_slots(&error) => self.topology.found_cluster(),
                looked => return looked,
            }
        }
        self.look(families, CLUSTER).await
    }

    async fn look(&self, families: &[Family], pace: Pace) -> Result<Vec<Backlog>> {
        let all = families.iter().enumerate().flat_map(|(place, family)| partitions_of(place, family));
        let (cached, buffered): (Vec<_>, Vec<_>) = all.partition(|one| one.family.is_cached());
        let pending = ask(&buffered, pace, |keys| backlog::uncut_and_cut(&self.redis, keys)).await?;
        let pending = buffered.iter().map(|one| one.place).zip(pending);
        let mut backlogs = vec![Backlog::default(); families.len()];
        for (place, more) in pending.chain(self.unsaved(&cached, pace).await?) {
            backlogs[place] = backlogs[place].join(more);
        }
        Ok(backlogs)
    }

    /// What each of the partitions with cached counters has, with the family's place.
    async fn unsaved(&self, partitions: &[One<'_>], pace: Pace) -> Result<Vec<(usize, Backlog)>> {
        let (filled, mut found) = (self.filled(partitions, pace).await?, Vec::new());
        for some in filled.chunks(pace.calls) {
            let looks = some.iter().map(async |one| {
                let backlog = backlog::unsaved(&self.redis, &one.keys, one.family.sync_time).await?;
                Ok((one.place, backlog))
            });
            found.extend(try_join_all(looks).await?);
        }
        Ok(found)
    }

    /// Those that may hold cached counters: all of them where to ask takes as many calls as to look.
    async fn filled<'a>(&self, partitions: &'a [One<'a>], pace: Pace) -> Result<Vec<&'a One<'a>>> {
        if pace.partitions == 1 {
            return Ok(partitions.iter().collect());
        }
        let sizes = ask(partitions, pace, |keys| backlog::scheduled(&self.redis, keys)).await?;
        Ok(partitions.iter().zip(sizes).filter_map(|(one, size)| (size > 0).then_some(one)).collect())
    }
}

fn partitions_of(place: usize, family: &Family) -> impl Iterator<Item = One<'_>> {
    (0..family.partitions()).map(move |number| One { place, family, keys: Keys::new(family, number) })
}

/// Makes the call for as many partitions at a time as one takes, and returns what is said of each, in their order.
async fn ask<'a, T, F>(partitions: &'a [One<'a>], pace: Pace, call: impl Fn(Vec<&'a Keys>) -> F) -> Result<Vec<T>>
where
    F: Future<Output = Result<Vec<T>>>,
{
    let mut found = Vec::with_capacity(partitions.len());
    for some in partitions.chunks(pace.partitions * pace.calls) {
        let calls = some.chunks(pace.partitions).map(|few| call(few.iter().map(|one| &one.keys).collect()));
        found.extend(try_join_all(calls).await?.into_iter().flatten());
    }
    Ok(found)
}

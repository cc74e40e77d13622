//! A site that counts with all kinds.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil::{
    Activity, BufferedCounters, CachedCounters, Day, Family, Outcome, Precision, Series, Visitors,
};
use sqlx::MySqlPool;

use super::journal::{Counter, Hit, now};
use super::persistence::Persistence;
use crate::Result;
use crate::families::{NAMESPACE, Pair, Place};
use crate::zipf::Random;

/// The families. Jobs are requests that are made again until their outcome is known.
pub const FAMILIES: [&str; 6] = ["views", "votes", "hits", "active", "visitors", "jobs"];
pub const VIEWS: usize = 0;
const VOTES: usize = 1;
pub const SERIES: usize = 2;
const ACTIVITY: usize = 3;
const VISITORS: usize = 4;
pub const JOBS: usize = 5;
/// The families whose counters have one value each.
pub const READABLE: [usize; 3] = [VIEWS, VOTES, JOBS];
/// The number of counters of each family at a time.
const IDS: u64 = 10;
/// The time for which a counter is used, in ms. A hit that is doubled cannot hide behind one that a
/// crash loses, unless both are counted in the same time.
const USED: u64 = 250;

const SYNC_TIME: Duration = Duration::from_millis(200);
/// The time that a saved vote stays in Redis: far too short for an application.
const RETAIN: Duration = Duration::from_millis(50);
/// The time within which a call ends.
const TIMEOUT: Duration = Duration::from_secs(2);

pub struct Site {
    pub pair: Pair,
    views: BufferedCounters,
    votes: CachedCounters,
    hits: Series,
    active: Activity,
    visitors: Visitors,
    jobs: BufferedCounters,
}

impl Site {
    pub async fn open(place: &Place, persistence: Persistence) -> counterfoil::Result<Self> {
        let pair = connect(place).await?.write_timeout(TIMEOUT);
        macro_rules! open {
            ($family:expr) => {{
                let family = $family.durability(persistence.durability());
                pair.open(family.sync_time(SYNC_TIME)).await?
            }};
        }
        let [views, votes, hits, active, visitors, jobs] = FAMILIES;
        let hits = Family::series(NAMESPACE, hits).keep([Precision::SECOND]);
        Ok(Site {
            views: open!(Family::buffered(NAMESPACE, views)),
            votes: open!(Family::cached(NAMESPACE, votes).retain(RETAIN)),
            hits: open!(hits.windows([(Precision::SECOND, 120)])),
            active: open!(Family::activity(NAMESPACE, active).keep_minutes(true)),
            visitors: open!(Family::visitors(NAMESPACE, visitors)),
            jobs: open!(Family::buffered(NAMESPACE, jobs)),
            pair,
        })
    }

    /// Counts hits of one family. Returns of each whether it was counted.
    pub async fn count(&self, hits: &[Hit]) -> Vec<counterfoil::Result<bool>> {
        let ids = || hits.iter().map(|hit| hit.id.to_string());
        // no other hit has its name, so only an earlier attempt may have counted it before
        let is_counted =
            |outcome| matches!(outcome, Outcome::Counted(_) | Outcome::CountedBefore(_));
        let all = |outcomes: Vec<counterfoil::Result<Outcome>>| {
            let outcomes = outcomes.into_iter();
            outcomes.map(|outcome| outcome.map(is_counted)).collect()
        };
        let (id, name) = (hits[0].id.to_string(), &hits[0].name);
        let one = match hits[0].family {
            VIEWS => return all(self.views.add_many(ids().map(|id| (id, 1))).await),
            VOTES => self.votes.incr(&id, 1).await.map(is_counted),
            SERIES => return all(self.hits.add_many(ids().map(|id| (id, 1))).await),
            ACTIVITY => self.active.touch(&id, name).await.map(|()| true),
            VISITORS => {
                let visit = self.visitors.first_visit(&id, Day::today(), name).await;
                visit.map(is_counted)
            }
            _ => self.jobs.add_once(name, &id, 1).await.map(is_counted),
        };
        vec![one]
    }

    /// Returns the values of counters of one of the [`READABLE`] families.
    pub async fn values(&self, family: usize, ids: &[u64]) -> counterfoil::Result<Vec<i64>> {
        let ids = ids.iter().map(u64::to_string);
        match family {
            VIEWS => self.views.get_many(ids).await,
            VOTES => self.votes.get_many(ids).await,
            _ => self.jobs.get_many(ids).await,
        }
    }
}

/// Draws a counter's id.
pub fn draw_id(random: &mut Random) -> u64 {
    now() / USED * IDS + random.below(IDS)
}

/// Connects to the servers, of which Redis may be a cluster.
pub async fn connect(place: &Place) -> counterfoil::Result<Pair> {
    let Place { redis, mysql } = place;
    match redis.split(',').collect::<Vec<_>>()[..] {
        [one] => Pair::connect(one, mysql).await,
        ref nodes => Pair::connect_cluster(nodes.iter().copied(), mysql).await,
    }
}

/// Returns the hits in MySQL. Ids are `SECOND/ID` of a series, `views/MINUTE/ID` of an activity, and
/// `ID/DAY` of visitors.
pub async fn stored(mysql: &MySqlPool) -> Result<BTreeMap<Counter, i64>> {
    let rows: Vec<(String, u64, i64)> = sqlx::query_as(
        "SELECT CAST(f.name AS CHAR), \
           CAST(SUBSTRING_INDEX(v.id, '/', IF(f.name = 'visitors', 1, -1)) AS UNSIGNED), \
           CAST(SUM(v.value) AS SIGNED) \
         FROM counterfoil_values AS v JOIN counterfoil_families AS f ON f.number = v.family \
         WHERE NOT (f.name = 'active' AND v.id LIKE 'visitors/%') GROUP BY 1, 2",
    )
    .fetch_all(mysql)
    .await?;
    rows.into_iter()
        .map(|(name, id, value)| {
            let family = FAMILIES.iter().position(|family| *family == name);
            let family = family.ok_or_else(|| format!("a family {name} in MySQL"))?;
            Ok(((family, id), value))
        })
        .collect()
}

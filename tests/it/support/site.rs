//! A site that counts with all kinds, under load.

use std::sync::atomic::AtomicI64;

use crate::support::*;

/// The families in the namespace `test`.
pub const NAMES: [&str; 5] = ["views", "votes", "hits", "site", "people"];
/// The number of ids of each kind.
const IDS: u64 = 7;
/// The number of tasks of each kind.
const TASKS: usize = 4;
const TODAY: &str = "2026-11-23";

/// The outcomes of the calls of one kind.
#[derive(Default)]
pub struct Tally {
    acknowledged: AtomicI64,
    unknown: AtomicI64,
    refused: AtomicI64,
}

impl Tally {
    /// Notes the result of a call. Returns false if it was refused.
    fn count<T>(&self, result: Result<T>, is_counted: impl Fn(&T) -> bool) -> bool {
        let (number, is_reply) = match result {
            Ok(done) if is_counted(&done) => (&self.acknowledged, true),
            Ok(_) => return true,
            Err(error) if error.outcome_unknown() => (&self.unknown, true),
            Err(_) => (&self.refused, false),
        };
        number.fetch_add(1, Ordering::Relaxed);
        is_reply
    }

    pub fn acknowledged(&self) -> i64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    pub fn most(&self) -> i64 {
        self.acknowledged() + self.unknown.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
pub struct Handles {
    views: BufferedCounters,
    votes: CachedCounters,
    hits: Series,
    site: Activity,
    people: Visitors,
}

/// Returns the id of a call. Many calls in a row use the same id. Meanwhile the cached counters of
/// the other ids leave Redis, and are seeded again later.
fn id(number: u64) -> String {
    format!("id/{}", number / 80 % IDS)
}

impl Handles {
    pub async fn open(
        counterfoil: &Counterfoil,
        durability: Durability,
        partitions: u32,
        timeout: Duration,
    ) -> Result<Self> {
        let windows = [(Precision::SECOND, 300), (Precision::Day, 3)];
        let views = Family::buffered("test", "views").sync_hits(1);
        let votes = Family::cached("test", "votes").retain(millis(20));
        let hits = Family::series("test", "hits").windows(windows);
        let site = Family::activity("test", "site").keep_minutes(true);
        let people = Family::visitors("test", "people").sync_hits(1);
        macro_rules! open {
            ($family:expr) => {{
                let family = $family.durability(durability).partitions(partitions);
                let opened = counterfoil.open(family.sync_time(millis(50))).await?;
                opened.write_timeout(timeout)
            }};
        }
        Ok(Handles {
            views: open!(views),
            votes: open!(votes),
            hits: open!(hits.keep([Precision::SECOND])),
            site: open!(site).cache_for(Duration::ZERO),
            people: open!(people),
        })
    }

    /// Makes one call of the kind. Returns false if it was refused.
    async fn call(&self, kind: usize, number: u64, site: &Site) -> bool {
        let (id, tally, visitor) = (id(number), &site.tallies[kind], number.to_be_bytes());
        let is_counted = |outcome: &Outcome| outcome.counted().is_some();
        match kind {
            0 => tally.count(self.views.add(&id, 1).await, |_| true),
            1 => {
                let vote = self.votes.incr(&id, 1).await;
                if let Ok(Counted(value)) = vote {
                    site.votes.lock().unwrap().push((id, value));
                }
                tally.count(vote, is_counted)
            }
            2 => tally.count(self.hits.add(&id, 1).await, |_| true),
            3 => tally.count(self.site.touch(&id, visitor).await, |()| true),
            _ => {
                let visit = self.people.first_visit(&id, day(TODAY), visitor);
                tally.count(visit.await, is_counted)
            }
        }
    }

    /// Returns the sum of the values that each kind shows.
    async fn shown(&self) -> [i64; 5] {
        let ids: Vec<_> = (0..IDS).map(|number| id(number * 80)).collect();
        let days = self.hits.get_many(&ids, Precision::Day).await.unwrap();
        let (mut views, mut visitors) = (0, 0);
        for id in &ids {
            let now = self.site.now(id).await.unwrap();
            views += now.views.cast_signed();
            visitors += now.visitors.cast_signed();
        }
        assert_eq!(visitors, views, "each view is another visitor's");
        let people = ids.iter().map(|id| (id, day(TODAY)));
        [
            self.views.get_many(&ids).await.unwrap().iter().sum(),
            self.votes.get_many(&ids).await.unwrap().iter().sum(),
            days.iter().map(|window| sum(window)).sum(),
            views,
            self.people.get_many(people).await.unwrap().iter().sum(),
        ]
    }
}

pub struct Site {
    pool: MySqlPool,
    pub tallies: [Tally; 5],
    /// The ids of votes, each with the value in its reply.
    votes: Mutex<Vec<(String, i64)>>,
}

impl Site {
    /// Starts the load. Its rows arrive in this database.
    pub fn start(handles: &Handles, pool: &MySqlPool) -> (Arc<Self>, Load<()>) {
        let site = Arc::new(Site {
            pool: pool.clone(),
            tallies: Default::default(),
            votes: Mutex::default(),
        });
        let load = Load::start(NAMES.len() * TASKS, |task, stop| {
            let (handles, site) = (handles.clone(), site.clone());
            let (kind, mut number) = (task / TASKS, (task % TASKS) as u64);
            async move {
                while !stop.is_set() {
                    let is_reply = handles.call(kind, number, &site).await;
                    pause(if is_reply { 1 } else { 5 }).await;
                    number += TASKS as u64;
                }
            }
        });
        (site, load)
    }

    /// Returns the sum of a family's rows; for activity, of its views.
    pub async fn stored(&self, kind: usize) -> i64 {
        self.sum(kind, "NOT LIKE 'visitors/%'").await
    }

    async fn sum(&self, kind: usize, ids: &str) -> i64 {
        let sum = format!(
            "SELECT SUM(v.value) FROM counterfoil_values AS v JOIN counterfoil_families AS f \
             ON f.number = v.family WHERE f.name = '{}' AND v.id {ids}",
            NAMES[kind]
        );
        number(&self.pool, &sum).await.unwrap_or(0)
    }

    /// Checks that the rows, and what the kinds show, have each acknowledged hit once. Returns the
    /// number of refused calls.
    pub async fn is_exact(&self, handles: &Handles) -> i64 {
        let shown = handles.shown().await;
        let mut refused = 0;
        for (kind, tally) in self.tallies.iter().enumerate() {
            let acknowledged = tally.acknowledged();
            assert_eq!(
                (self.stored(kind).await, shown[kind], tally.most()),
                (acknowledged, acknowledged, acknowledged),
                "{}: stored, shown, and the most",
                NAMES[kind]
            );
            assert!(acknowledged > 200, "{}: {acknowledged}", NAMES[kind]);
            refused += tally.refused.load(Ordering::Relaxed);
        }
        let visitors = self.sum(3, "LIKE 'visitors/%'").await;
        assert_eq!(visitors, shown[3], "each view is another visitor's");
        let mut votes = BTreeMap::<_, Vec<_>>::new();
        for (id, value) in self.votes.lock().unwrap().drain(..) {
            votes.entry(id).or_default().push(value);
        }
        for (id, mut values) in votes {
            values.sort_unstable();
            assert!(
                values.iter().copied().eq(1..=values.len() as i64),
                "{id}: {values:?}"
            );
        }
        refused
    }
}

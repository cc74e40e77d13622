//! Distinct hits: each has its own id, so its value is the number of times it was counted.

use super::load::Load;

use crate::support::*;

const WRITERS: usize = 8;

/// Writers that count until they are stopped.
pub struct Hits {
    begun: Arc<AtomicU64>,
    load: Load<Vec<Hit>>,
}

/// One call with its outcome.
#[derive(Clone, Debug)]
pub struct Hit {
    pub id: String,
    pub asked: Instant,
    pub told: Instant,
    pub outcome: HitOutcome,
    /// The result of a later exact read, if there was one and it succeeded.
    pub read: Option<i64>,
}

/// For each crash, the start and the end of the time whose hits it may have taken back.
pub type Crashes = Vec<(Instant, Instant)>;

impl Hit {
    /// Returns whether one of the crashes may have taken the hit back.
    pub fn is_taken_back(&self, crashes: &Crashes) -> bool {
        let mut crashes = crashes.iter();
        crashes.any(|(kept, died)| self.told >= *kept && self.asked <= *died)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HitOutcome {
    Acknowledged,
    /// Definitely not counted, with the reason.
    Refused(String),
    Unknown,
}

impl Hits {
    pub fn on(counters: &BufferedCounters) -> Self {
        let begun = Arc::new(AtomicU64::new(0));
        let load = Load::start(WRITERS, |_, stop| {
            let (counters, begun) = (counters.clone(), begun.clone());
            async move {
                let mut hits: Vec<Hit> = vec![];
                while !stop.is_set() {
                    let id = format!("hit/{}", begun.fetch_add(1, Ordering::Relaxed));
                    let asked = Instant::now();
                    let outcome = match counters.add(&id, 1).await {
                        Ok(added) => {
                            assert!(matches!(added, Counted(_)), "{added:?}");
                            HitOutcome::Acknowledged
                        }
                        // the caller never repeats a hit, not even one of unknown outcome
                        Err(error) if error.is_retryable() => {
                            HitOutcome::Refused(format!("{error:#}"))
                        }
                        Err(error) if error.outcome_unknown() => HitOutcome::Unknown,
                        Err(error) => panic!("{error}"),
                    };
                    hits.push(Hit {
                        id,
                        asked,
                        told: Instant::now(),
                        outcome,
                        read: None,
                    });
                    // reads an earlier hit, which may be on its way to the database at this moment
                    if let Some(earlier) = hits.len().checked_sub(20)
                        && hits.len().is_multiple_of(5)
                    {
                        hits[earlier].read = counters.get(&hits[earlier].id).await.ok();
                    }
                    // limits the hits, so that the test does not wait for the database
                    pause(1).await;
                }
                hits
            }
        });
        Hits { begun, load }
    }

    /// Waits until this number of further hits has begun, however slow the machine is.
    pub async fn more(&self, hits: u64) {
        let goal = self.begun.load(Ordering::Relaxed) + hits;
        let come = async {
            while self.begun.load(Ordering::Relaxed) < goal {
                pause(5).await;
            }
        };
        timeout(secs(30), come).await.unwrap();
    }

    /// Stops the writers after their current calls, and returns all hits.
    pub async fn end(self) -> Vec<Hit> {
        self.load.end().await.concat()
    }
}

/// The outcomes of the hits, compared with the database after a drain.
#[derive(Debug, Default)]
pub struct Reckoning {
    pub acknowledged: usize,
    pub unknown: usize,
    /// Hits of unknown outcome that were counted.
    pub unknown_counted: usize,
    pub refused: usize,
    /// Hits that were reported as not counted, but were counted.
    pub refused_counted: Vec<Hit>,
    /// Acknowledged hits that are missing.
    pub lost: Vec<Hit>,
    /// Hits that were counted more than once.
    pub doubled: Vec<Hit>,
    pub read: usize,
    /// Acknowledged hits that were read as a value other than 1.
    pub misread: Vec<Hit>,
}

impl Reckoning {
    pub async fn of(hits: &[Hit], pool: &MySqlPool) -> Self {
        let query = "SELECT CAST(id AS CHAR), value FROM counterfoil_values WHERE id LIKE 'hit/%'";
        let stored: Vec<(String, i64)> = sqlx::query_as(query).fetch_all(pool).await.expect(query);
        let stored: HashMap<_, _> = stored.into_iter().collect();
        let mut reckoning = Reckoning::default();
        for hit in hits {
            let value = stored.get(&hit.id).copied().unwrap_or(0);
            reckoning.read += usize::from(hit.read.is_some());
            let number = match &hit.outcome {
                HitOutcome::Acknowledged => &mut reckoning.acknowledged,
                HitOutcome::Unknown => &mut reckoning.unknown,
                HitOutcome::Refused(_) => &mut reckoning.refused,
            };
            *number += 1;
            if hit.outcome == HitOutcome::Acknowledged && hit.read.is_some_and(|read| read != 1) {
                reckoning.misread.push(hit.clone());
            }
            let wrong = match &hit.outcome {
                _ if value > 1 => &mut reckoning.doubled,
                HitOutcome::Acknowledged if value == 0 => &mut reckoning.lost,
                HitOutcome::Refused(_) if value == 1 => &mut reckoning.refused_counted,
                HitOutcome::Unknown => {
                    reckoning.unknown_counted += usize::from(value == 1);
                    continue;
                }
                _ => continue,
            };
            wrong.push(hit.clone());
        }
        let Reckoning {
            acknowledged,
            refused,
            unknown,
            unknown_counted,
            read,
            ..
        } = &reckoning;
        println!(
            "{acknowledged} hits acknowledged, {refused} refused, {unknown} unknown of which {unknown_counted} were counted; {} lost, {} doubled; {} of {read} misread",
            reckoning.lost.len(),
            reckoning.doubled.len(),
            reckoning.misread.len(),
        );
        reckoning
    }

    /// Asserts that every outcome is as reported.
    pub fn is_exact(&self) {
        assert!(
            self.acknowledged > 100 && self.read > 3,
            "little was tried: {self:?}"
        );
        for (what, hits) in [
            ("lost", &self.lost),
            ("doubled", &self.doubled),
            ("misread", &self.misread),
            ("refused and counted", &self.refused_counted),
        ] {
            let (many, first) = (hits.len(), hits.iter().take(5).collect::<Vec<_>>());
            assert_eq!(many, 0, "hits {what}: {first:?}");
        }
    }
}

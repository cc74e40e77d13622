//! The sides that hit, the ids that they hit, and the load of many tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis::aio::MultiplexedConnection;

use super::process;
use super::servers::{Counters, Scripts, redis_cpu};

/// One side of a comparison, which counts hits. Each task has a clone.
pub trait Side: Clone + Send + 'static {
    /// Counts 1 for the id and returns when the hit is acknowledged.
    fn hit(&mut self, id: &str) -> impl Future<Output = ()> + Send;

    /// Completes the remaining work after the last hit. The measured time includes it.
    fn finish(self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// `add().await`.
#[derive(Clone)]
pub struct Acked(pub Counters);

impl Side for Acked {
    async fn hit(&mut self, id: &str) {
        let added = self.0.add(id, 1).await.unwrap();
        assert!(
            matches!(added, counterfoil::Outcome::Counted { .. }),
            "{id} was not counted: {added:?}"
        );
    }
}

/// The alternative without counterfoil: one HINCRBY per hit on one hash, over one multiplexed
/// connection.
#[derive(Clone)]
pub struct Plain {
    pub redis: MultiplexedConnection,
    pub hash: &'static str,
}

impl Side for Plain {
    async fn hit(&mut self, id: &str) {
        let _: i64 = redis::cmd("HINCRBY")
            .arg(self.hash)
            .arg(id)
            .arg(1)
            .query_async(&mut self.redis)
            .await
            .unwrap();
    }
}

/// The length of a sequence: long enough that no task wraps around in a round, short enough to draw
/// quickly.
const DRAWS: usize = 1 << 20;

/// A sequence of ids, the same in every run.
#[derive(Clone)]
pub struct Ids {
    names: Arc<[String]>,
    draws: Arc<[u32]>,
}

impl Ids {
    /// Draws the k-th id 1/k as often as the first one, like the pages of a site.
    pub fn zipf(ids: u32) -> Self {
        let weights = WeightedIndex::new((1..=ids).map(|rank| 1.0 / f64::from(rank))).unwrap();
        let draws = SmallRng::seed_from_u64(1).sample_iter(weights).take(DRAWS);
        Ids {
            names: names(ids),
            draws: draws.map(|place| place as u32).collect(),
        }
    }

    /// Draws all ids equally often.
    pub fn even(ids: u32) -> Self {
        let mut random = SmallRng::seed_from_u64(1);
        Ids {
            names: names(ids),
            draws: (0..DRAWS).map(|_| random.random_range(0..ids)).collect(),
        }
    }

    /// Draws all ids equally often, with names stored in the order of the draws. Looking up a name
    /// then costs the same for any number of ids.
    pub fn in_order(ids: u32) -> Self {
        let mut random = SmallRng::seed_from_u64(1);
        let names = (0..DRAWS).map(|_| format!("page/{}", random.random_range(0..ids)));
        Ids {
            names: names.collect(),
            draws: (0..DRAWS as u32).collect(),
        }
    }

    /// Returns the endless sequence, from a different start for each task.
    pub fn of_task(&self, task: usize, tasks: usize) -> impl Iterator<Item = &str> {
        let start = DRAWS / tasks * task;
        let places = self.draws[start..].iter().chain(self.draws.iter().cycle());
        places.map(|&place| self.names[place as usize].as_str())
    }
}

fn names(ids: u32) -> Arc<[String]> {
    (0..ids).map(|number| format!("page/{number}")).collect()
}

/// The result of one side in one round.
pub struct Load {
    pub hits: f64,
    pub seconds: f64,
    /// CPU seconds that Redis used.
    pub redis_cpu: f64,
    /// CPU seconds that this process used.
    pub own_cpu: f64,
    /// The script calls of the round.
    pub scripts: Scripts,
}

impl Load {
    pub fn per_second(&self) -> f64 {
        self.hits / self.seconds
    }

    pub fn us_per_hit(&self) -> f64 {
        1e6 / self.per_second()
    }

    pub fn redis_cpu_per_hit(&self) -> f64 {
        self.redis_cpu / self.hits
    }

    /// Lets `tasks` tasks hit one id after the other for `time`. Each task waits for its hit before
    /// the next one. Then finishes the side.
    pub async fn run<S: Side>(
        side: &S,
        ids: &Ids,
        tasks: usize,
        time: Duration,
        probe: &mut MultiplexedConnection,
    ) -> Load {
        let (own, cpu, scripts) = (
            process::cpu(std::process::id()),
            redis_cpu(probe).await,
            Scripts::so_far(probe).await,
        );
        let started = Instant::now();
        let over = over_after(time);
        let hitting: Vec<_> = (0..tasks)
            .map(|task| {
                let (mut side, ids, over) = (side.clone(), ids.clone(), over.clone());
                tokio::spawn(async move {
                    let mut hits = 0u64;
                    for id in ids.of_task(task, tasks) {
                        side.hit(id).await;
                        hits += 1;
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    hits
                })
            })
            .collect();
        let mut hits = 0;
        for task in hitting {
            hits += task.await.unwrap();
        }
        side.clone().finish().await;
        let seconds = started.elapsed().as_secs_f64();
        let scripts = Scripts::so_far(probe).await.since(scripts);
        let own_cpu = process::cpu(std::process::id()) - own;
        Load {
            hits: hits as f64,
            seconds,
            redis_cpu: redis_cpu(probe).await - cpu,
            own_cpu,
            scripts,
        }
    }
}

/// Returns a flag that a separate thread sets after `time`. The runtime may be too busy to poll its
/// timers.
pub fn over_after(time: Duration) -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    let flag = over.clone();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        flag.store(true, Ordering::Relaxed);
    });
    over
}

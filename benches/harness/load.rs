//! Many tasks that hit for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

use crate::ids::Ids;
use crate::servers::{Scripts, redis_cpu};
use crate::sides::Side;

/// What one side did in one round.
pub struct Load {
    pub hits: f64,
    pub seconds: f64,
    /// Seconds of CPU that Redis took for it.
    pub redis_cpu: f64,
    /// What it did with scripts.
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
}

/// Lets so many tasks hit one id after the other for so long, each waiting for its last hit before the next one, and
/// then whoever counts finish.
pub async fn run<S: Side>(
    side: &S,
    ids: &Ids,
    tasks: usize,
    time: Duration,
    probe: &mut MultiplexedConnection,
) -> Load {
    let (cpu, scripts) = (redis_cpu(probe).await, Scripts::so_far(probe).await);
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
    Load { hits: hits as f64, seconds, redis_cpu: redis_cpu(probe).await - cpu, scripts }
}

/// A flag that comes up after so long, from a thread of its own: the runtime may be too busy to look at its timers.
pub fn over_after(time: Duration) -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    let flag = over.clone();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        flag.store(true, Ordering::Relaxed);
    });
    over
}

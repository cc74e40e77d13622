//! The write path of a family (docs/protocol.md, section 3): fenced calls, each with all hits that
//! arrived while others were in flight. This is group commit: no hit waits for a timer, and calls
//! grow with the load.

mod call;
mod commit;
mod deadline;
mod driver;
mod group;
mod queue;
mod recorder;
mod request;
mod send;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use self::driver::Driver;
use self::group::Group;
use self::queue::Queue;
pub use self::recorder::Recorded;
use self::recorder::Recorder;
pub use self::request::{Progress, Request};
use crate::connection::Connection;
use crate::connection::backoff::{Backoff, wait_out};
use crate::connection::topology::Topology;
use crate::error::{Error, Result};
use crate::process::family::Opened;
use crate::process::work::Work;
use crate::scripts::cached::Seed;
use crate::scripts::partition::{PairResult, Update, random};
use crate::writer::deadline::WriteOptions;

/// The number of a wide family's partitions among which the least busy one is chosen.
const CANDIDATES: u32 = 8;

/// The interval at which calls in flight are checked while a shutdown waits for them.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The writer of one family, which counts its hits.
#[derive(Debug)]
pub struct Writer {
    queue: Arc<Queue>,
    /// The partition where the search for the least busy one of a wide family begins.
    turn: AtomicU32,
    recorder: Recorder,
}

/// One of many hits, or several hits that are summed.
#[derive(Clone, Copy)]
struct Hit<'a> {
    partition: u32,
    id: &'a [u8],
    delta: i64,
    hits: u64,
}

/// The outcome of one hit.
type HitResult = Result<PairResult>;

impl Writer {
    /// Creates a writer that accepts hits until `closed` is set.
    pub fn new(
        redis: Connection,
        opened: Arc<Opened>,
        topology: Arc<Topology>,
        work: Arc<Work>,
        closed: Arc<AtomicBool>,
    ) -> Result<Self> {
        // random, so that not all processes begin with the same partition
        let turn = AtomicU32::new(random()? as u32);
        let queue = Arc::new(Queue::new(redis, opened, topology, work, closed)?);
        Ok(Writer {
            queue,
            turn,
            recorder: Recorder::new(),
        })
    }

    /// Counts one hit. Without `wait`, returns an error if too many others already wait.
    pub async fn add(&self, id: &[u8], delta: i64, timeout: Duration, wait: bool) -> HitResult {
        self.change(id, Update::Add(delta), None, timeout, wait)
            .await
    }

    /// Applies a change to one counter. If a seed is given, a missing counter is seeded first.
    pub async fn change(
        &self,
        id: &[u8],
        change: Update,
        seed: Option<Seed>,
        timeout: Duration,
        wait: bool,
    ) -> HitResult {
        let options = WriteOptions {
            timeout,
            wait,
            accepted_before_close: false,
        };
        let partition = self.partition_for(id);
        let push = |group: &mut Group| {
            self.queue.has_room_for(group, 1).then(|| {
                if let Some(seed) = seed {
                    group.push_seed(partition, id, seed);
                }
                match change {
                    Update::Add(delta) => group.push(partition, id, delta, 1),
                    Update::Set(value) => group.push_set(partition, id, value),
                }
            })
        };
        let (call, position) = self.queue.count((partition, false), options, push).await?;
        match (call.own(position)?, change) {
            (None, Update::Add(delta)) => {
                Box::pin(self.add_alone(
                    &Hit {
                        partition,
                        id,
                        delta,
                        hits: 1,
                    },
                    options,
                ))
                .await
            }
            (result, _) => {
                result.ok_or_else(|| Error::corrupt("a value to set was merged with other hits"))
            }
        }
    }

    /// Counts a hit, or a sum of hits, that was refused as part of a larger sum.
    async fn add_alone(&self, hit: &Hit<'_>, options: WriteOptions) -> HitResult {
        let Hit {
            partition,
            id,
            delta,
            hits,
        } = *hit;
        let push = |group: &mut Group| {
            self.queue
                .has_room_for(group, 1)
                .then(|| group.push_alone(partition, id, delta, hits))
        };
        let (call, position) = self
            .queue
            .count(
                (partition, false),
                WriteOptions {
                    wait: true,
                    ..options
                },
                push,
            )
            .await?;
        call.own(position)?
            .ok_or_else(|| Error::corrupt("a hit retried alone was merged with other hits"))
    }

    /// Counts many hits and returns the outcome of each. Hits that fit into one call go together,
    /// and each call fails on its own.
    pub async fn add_many(&self, hits: &[(&[u8], i64)], timeout: Duration) -> Vec<HitResult> {
        let all = hits.iter().map(|(id, delta)| Hit {
            partition: self.partition_for(id),
            id,
            delta: *delta,
            hits: 1,
        });
        self.add_all(
            &all.collect::<Vec<_>>(),
            WriteOptions {
                timeout,
                wait: true,
                accepted_before_close: false,
            },
        )
        .await
    }

    async fn add_all(&self, hits: &[Hit<'_>], options: WriteOptions) -> Vec<HitResult> {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let spans = self.queue.spans_partitions();
        for (index, hit) in hits.iter().enumerate() {
            groups
                .entry(if spans { 0 } else { hit.partition })
                .or_default()
                .push(index);
        }
        let chunks: Vec<_> = groups
            .values()
            .flat_map(|indexes| indexes.chunks(self.chunk()))
            .collect();
        let results = join_all(
            chunks
                .iter()
                .map(|indexes| self.add_some(indexes, hits, options)),
        )
        .await;
        let mut results: Vec<_> = chunks
            .into_iter()
            .flatten()
            .zip(results.into_iter().flatten())
            .collect();
        results.sort_unstable_by_key(|(index, _)| **index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    async fn add_some(
        &self,
        indexes: &[usize],
        hits: &[Hit<'_>],
        options: WriteOptions,
    ) -> Vec<HitResult> {
        let some = || indexes.iter().map(|index| &hits[*index]);
        let push = |group: &mut Group| {
            let fits = self.queue.has_room_for(group, indexes.len());
            let push = |hit: &Hit<'_>| group.push(hit.partition, hit.id, hit.delta, hit.hits);
            fits.then(|| some().map(push).collect::<Vec<_>>())
        };
        let partition = hits[indexes[0]].partition;
        let mixed = some().any(|hit| hit.partition != partition);
        let (call, positions) = match self.queue.count((partition, mixed), options, push).await {
            Ok(counted) => counted,
            Err(error) if mixed && error.is_retryable() && !self.queue.spans_partitions() => {
                return Box::pin(self.add_all(&some().copied().collect::<Vec<_>>(), options)).await;
            }
            Err(error) => return indexes.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut results = Vec::with_capacity(indexes.len());
        for (position, hit) in positions.into_iter().zip(some()) {
            results.push(match call.own(position) {
                Ok(Some(result)) => Ok(result),
                Ok(None) => self.add_alone(hit, options).await,
                Err(error) => Err(error),
            });
        }
        results
    }

    /// Counts a hit in this process, and makes sure that it is sent soon.
    pub fn record(self: &Arc<Self>, id: &[u8], delta: i64) -> Result<()> {
        let family = self.queue.family();
        let partition = family
            .home_of(id)
            .unwrap_or_else(|| family.partition_by(id));
        self.recorder.record(&self.queue, partition, id, delta)?;
        Recorder::begin(self);
        Ok(())
    }

    /// Sends the recorded hits and returns their outcome.
    pub async fn flush(self: &Arc<Self>) -> Result<Recorded> {
        Recorder::send_now(self.clone()).await?;
        Ok(self.recorded_outcome())
    }

    /// Returns the outcome of the recorded hits since the last call.
    pub fn recorded_outcome(&self) -> Recorded {
        self.recorder.outcome()
    }

    /// Sends a closed writer's recorded hits and waits for its calls in flight, however long Redis
    /// is unreachable.
    pub async fn finish(self: &Arc<Self>) -> Result<()> {
        let (mut pause, mut result) = (Backoff::default(), Ok(()));
        while let Err(error) = Recorder::send_now(self.clone()).await {
            // lost hits are reported at the end; the others are kept and sent again
            result = result.and(wait_out(error, &mut pause).await);
        }
        while !self.queue.is_idle() {
            Driver::spawn(&self.queue, self.queue.check_slow(None));
            sleep(IDLE_CHECK_INTERVAL).await;
        }
        result
    }

    /// Returns the number of recorded hits that are not known to be counted.
    pub fn recorded(&self) -> u64 {
        self.recorder.hits()
    }

    /// Returns how many hits of one caller go together. They must fit beside the hits of others.
    fn chunk(&self) -> usize {
        self.queue.family().pairs_a_call().div_ceil(2)
    }

    /// Returns the partition that counts this id: its own, or the least busy one of a wide family.
    fn partition_for(&self, id: &[u8]) -> u32 {
        let family = self.queue.family();
        if let Some(home) = family.home_of(id) {
            return home;
        }
        // the same partition as before while nothing waits there, so that fewer partitions are
        // synced to the database
        let count = family.partitions();
        let last = self.turn.load(Ordering::Relaxed) % count;
        if self.queue.waiting(last) == 0 {
            return last;
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let candidates = (0..count.min(CANDIDATES)).map(|step| first.wrapping_add(step) % count);
        candidates
            .min_by_key(|number| self.queue.waiting(*number))
            .unwrap_or(0)
    }
}

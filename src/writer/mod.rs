//! The write path of a family (docs/protocol.md, section 3): fenced calls, each with all hits that
//! arrived while others were in flight. This is group commit: no hit waits for a timer, and calls
//! grow with the load.

mod call;
mod deadline;
mod driver;
mod group;
mod queue;
mod recorder;
mod request;
mod route;
mod send;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep, timeout_at};

use self::call::{Call, Delivery, ExecutedCall, was_not_executed};
use self::deadline::LAST_MOMENT;
pub use self::deadline::{Deadline, LONGEST, WriteOptions};
use self::group::{Group, Hit, Position};
use self::queue::{Place, Queue};
pub use self::recorder::Recorded;
use self::recorder::Recorder;
pub use self::request::{Request, RequestState};
pub use self::route::Route;
use crate::connection::backoff::Retries;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::runtime::PairRuntime;
use crate::scripts::counting::{PairResult, Seed, Update};
use crate::scripts::random::random;

/// The number of a wide family's partitions among which the least busy one is chosen.
const CANDIDATES: u32 = 8;

/// The number of parts of many hits that are sent, or wait for room, at a time. It is more than the
/// queue has in flight.
const CHUNKS: usize = 8;

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

/// The outcome of one hit.
type HitResult = Result<PairResult>;

impl Writer {
    /// Creates a writer that accepts hits until `closed` is set. Its tasks run on this runtime.
    pub fn new(route: Route, runtime: Arc<PairRuntime>, closed: Arc<AtomicBool>) -> Result<Self> {
        Ok(Writer {
            queue: Arc::new(Queue::new(route, runtime, closed)),
            // random, so that not all processes begin with the same partition
            turn: AtomicU32::new(random()? as u32),
            recorder: Recorder::default(),
        })
    }

    pub fn route(&self) -> &Route {
        &self.queue.route
    }

    fn family(&self) -> &Family {
        self.queue.route.family()
    }

    /// Applies a change to one counter. If a seed is given, a missing counter is seeded first.
    pub async fn change(
        &self,
        id: &[u8],
        update: Update,
        seed: Option<Seed>,
        options: WriteOptions,
    ) -> HitResult {
        let hit = Hit {
            partition: self.partition_for(id),
            id,
            update,
            hits: 1,
            seed,
            request: None,
        };
        match self.count_one(&hit, options, Group::push).await? {
            Some(result) => Ok(result),
            None => Box::pin(self.add_alone(&hit, options)).await,
        }
    }

    /// Counts a hit, or a sum of hits, that was refused as part of a larger sum.
    async fn add_alone(&self, hit: &Hit<'_>, options: WriteOptions) -> HitResult {
        let waiting = WriteOptions {
            wait: true,
            ..options
        };
        let counted = self.count_one(hit, waiting, Group::push_alone).await?;
        counted.ok_or_else(|| Error::corrupt("a hit retried alone was merged with other hits"))
    }

    async fn count_one(
        &self,
        hit: &Hit<'_>,
        options: WriteOptions,
        push: fn(&mut Group, &Hit<'_>) -> Position,
    ) -> Result<Option<PairResult>> {
        let push_it = |group: &mut Group| push(group, hit);
        self.count(hit.partition, 1, options, push_it, ExecutedCall::own)
            .await
    }

    /// Counts many hits and returns the outcome of each. Hits that fit into one call go together,
    /// and each call fails on its own. All of them have the same time.
    pub async fn add_many(&self, hits: &[(&[u8], i64)], options: WriteOptions) -> Vec<HitResult> {
        let all = hits.iter().map(|(id, delta)| Hit {
            partition: self.partition_for(id),
            id,
            update: Update::Add(*delta),
            hits: 1,
            seed: None,
            request: None,
        });
        self.add_all(&all.collect::<Vec<_>>(), options).await
    }

    async fn add_all(&self, hits: &[Hit<'_>], options: WriteOptions) -> Vec<HitResult> {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let spans = self.queue.route.spans_partitions();
        for (index, hit) in hits.iter().enumerate() {
            let group = if spans { 0 } else { hit.partition };
            groups.entry(group).or_default().push(index);
        }
        // half of a call at most, so that the hits of one caller fit beside those of others
        let most = self.family().pairs_a_call().div_ceil(2);
        let calls = groups.values().map(|all| {
            let chunks = all.chunks(most);
            let calls = chunks.map(|indexes| self.add_some(indexes, hits, options));
            // few at a time: the others would only wait for room
            stream::iter(calls.collect::<Vec<_>>())
                .buffered(CHUNKS)
                .collect::<Vec<_>>()
        });
        let results = join_all(calls).await.into_iter().flatten().flatten();
        let mut by_index: Vec<_> = groups.values().flatten().zip(results).collect();
        by_index.sort_unstable_by_key(|(index, _)| **index);
        by_index.into_iter().map(|(_, result)| result).collect()
    }

    async fn add_some(
        &self,
        indexes: &[usize],
        hits: &[Hit<'_>],
        options: WriteOptions,
    ) -> Vec<HitResult> {
        let some = || indexes.iter().map(|index| &hits[*index]);
        let push = |group: &mut Group| some().map(|hit| group.push(hit)).collect::<Vec<_>>();
        let own = |executed: &ExecutedCall, positions: Vec<_>| {
            let positions = positions.into_iter();
            positions
                .map(|position| executed.own(position))
                .collect::<Vec<_>>()
        };
        let partition = hits[indexes[0]].partition;
        let counted = self.count(partition, indexes.len(), options, push, own);
        let summed = match counted.await {
            Ok(summed) => summed,
            Err(error) => return indexes.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut results = Vec::with_capacity(indexes.len());
        for (result, hit) in summed.into_iter().zip(some()) {
            results.push(match result {
                Some(result) => Ok(result),
                None => self.add_alone(hit, options).await,
            });
        }
        results
    }

    /// Counts the hits that `push` adds to a group, waits until Redis has done so, and returns what
    /// `own` finds at their positions. A full group is an error unless `options.wait` is set, and so
    /// is a deadline that leaves no time for a call. `pairs` is the number of hits.
    async fn count<T, R>(
        &self,
        partition: u32,
        pairs: usize,
        options: WriteOptions,
        mut push: impl FnMut(&mut Group) -> T,
        own: impl FnOnce(&ExecutedCall, T) -> R,
    ) -> Result<R> {
        let (queue, deadline) = (&self.queue, options.deadline);
        queue.route.outage(partition).check(self.family()).await?;
        loop {
            let (call, positions) = match queue.join(partition, pairs, &options, &mut push)? {
                Place::Alone(caller, outside) => {
                    let (call, mut group) = (Arc::new(Call::default()), Group::default());
                    let positions = push(&mut group);
                    let sending = Delivery::new(group, caller, deadline);
                    // boxed, because most callers wait for a driver and need no room for this
                    Box::pin(send::make(queue, sending, &call, Some(outside))).await;
                    (call, positions)
                }
                Place::In {
                    call,
                    positions,
                    starts_driver,
                } => {
                    if starts_driver {
                        driver::spawn(queue);
                    }
                    wait_for_end(queue, &call, deadline.reply_by).await;
                    (call, positions)
                }
                Place::Full(room) if options.wait => {
                    let what = "not counted: too many hits were waiting for Redis";
                    let late = |_| queue.route.error(ErrorKind::Redis, what);
                    Box::pin(timeout_at(deadline.reply_by, room))
                        .await
                        .map_err(late)?;
                    continue;
                }
                Place::Full(_) => {
                    let what = "too many hits are waiting for Redis";
                    return Err(queue.route.error(ErrorKind::Busy, what));
                }
            };
            match call.outcome() {
                Some(Ok(executed)) => return Ok(own(executed, positions)),
                Some(Err(error))
                    if was_not_executed(error) && Instant::now() < deadline.start_by => {}
                Some(Err(error)) => {
                    queue.route.failed(partition, deadline.began, error);
                    return Err(error.clone());
                }
                None => {
                    let what = "Redis did not reply in time";
                    return Err(queue.route.error(ErrorKind::OutcomeUnknown, what));
                }
            }
        }
    }

    /// Counts a hit in this process, and makes sure that it is sent soon.
    pub fn record(self: &Arc<Self>, id: &[u8], delta: i64) -> Result<()> {
        self.recorder.record(&self.queue, id, delta)?;
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
    /// is unreachable, unless the runtime has ended.
    pub async fn finish(self: &Arc<Self>) -> Result<()> {
        let (mut retries, mut result) = (Retries::default(), Ok(()));
        while let Err(error) = Recorder::send_now(self.clone()).await {
            if error.kind() == ErrorKind::Closed {
                return result.and(Err(error));
            }
            // lost hits are reported at the end; the others are kept and sent again
            result = result.and(retries.wait_out("sending recorded hits", error).await);
        }
        while !self.queue.is_idle() {
            sleep(IDLE_CHECK_INTERVAL).await;
        }
        result
    }

    /// Returns the number of recorded hits that are not known to be counted.
    pub fn recorded(&self) -> u64 {
        self.recorder.hits()
    }

    /// Returns the partition that counts this id: its own, or the least busy one of a wide family.
    fn partition_for(&self, id: &[u8]) -> u32 {
        if let Some(home) = self.family().home_of(id) {
            return home;
        }
        // the same partition as before while nothing waits there, so that fewer partitions are
        // synced to the database
        let count = self.family().partitions();
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

/// Waits for the end of a call, at most until shortly after the deadline. At the deadline the
/// driver gives up with a more precise outcome.
async fn wait_for_end(queue: &Queue, call: &Arc<Call>, reply_by: Instant) {
    // The drivers wake callers to check the time. Those on another runtime may not be driven, so
    // this caller has a timer of its own.
    let is_elsewhere = queue.runtime.is_elsewhere();
    let (mut limit, mut waker) = (reply_by, None);
    while limit <= reply_by + LAST_MOMENT {
        if is_elsewhere {
            let _ = Box::pin(timeout_at(limit, call.woken(&mut waker))).await;
        } else {
            call.woken(&mut waker).await;
        }
        if call.outcome().is_some() {
            return;
        }
        if Instant::now() >= limit {
            queue.dismiss(call);
            limit += LAST_MOMENT;
        }
    }
}

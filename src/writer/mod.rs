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
mod send;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep, timeout_at};

use self::call::{Call, CallOutcome, Sending};
pub use self::deadline::{Deadline, LONGEST};
use self::deadline::{LAST_MOMENT, Limit, WriteOptions};
use self::driver::Driver;
use self::group::{Group, Hit};
use self::queue::{Joined, Member, Outside, Queue};
pub use self::recorder::Recorded;
use self::recorder::Recorder;
pub use self::request::{Progress, Request};
use crate::connection::Connection;
use crate::connection::backoff::Retries;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::process::family::Opened;
use crate::process::work::Work;
use crate::scripts::cached::Seed;
use crate::scripts::partition::{PairResult, Update, random};

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
    /// Set once a task notices the end of the runtime.
    is_watched: OnceLock<()>,
    /// The partition where the search for the least busy one of a wide family begins.
    turn: AtomicU32,
    recorder: Recorder,
}

/// The outcome of one hit.
type HitResult = Result<PairResult>;

impl Writer {
    /// Creates a writer that accepts hits until `closed` is set. Its tasks run on the current
    /// runtime.
    pub fn new(
        redis: Connection,
        opened: Arc<Opened>,
        topology: Arc<Topology>,
        work: Arc<Work>,
        closed: Arc<AtomicBool>,
    ) -> Result<Self> {
        Ok(Writer {
            is_watched: OnceLock::new(),
            // random, so that not all processes begin with the same partition
            turn: AtomicU32::new(random()? as u32),
            queue: Arc::new(Queue::new(redis, opened, topology, work, closed)?),
            recorder: Recorder::default(),
        })
    }

    /// Returns whether the writer no longer counts, because its runtime has ended.
    pub fn has_ended(&self) -> bool {
        self.queue.has_ended()
    }

    /// Counts one hit. Without `wait`, returns an error if too many others already wait.
    pub async fn add(&self, id: &[u8], delta: i64, timeout: Duration, wait: bool) -> HitResult {
        let options = WriteOptions {
            limit: Limit::Within(timeout),
            wait,
            accepted_before_close: false,
        };
        self.count_one(id, Update::Add(delta), None, options).await
    }

    /// Applies a change to one counter. If a seed is given, a missing counter is seeded first.
    pub async fn change(
        &self,
        id: &[u8],
        update: Update,
        seed: Option<Seed>,
        deadline: Deadline,
    ) -> HitResult {
        let options = WriteOptions {
            limit: Limit::By(deadline),
            wait: true,
            accepted_before_close: false,
        };
        self.count_one(id, update, seed, options).await
    }

    async fn count_one(
        &self,
        id: &[u8],
        update: Update,
        seed: Option<Seed>,
        mut options: WriteOptions,
    ) -> HitResult {
        let hit = Hit {
            partition: self.partition_for(id),
            id,
            update,
            hits: 1,
            seed,
        };
        let one = (hit.partition, 1, false);
        let push = |group: &mut Group| group.push(&hit);
        let (call, position) = self.count(one, &mut options, push).await?;
        match call.own(position)? {
            Some(result) => Ok(result),
            None => Box::pin(self.add_alone(&hit, options)).await,
        }
    }

    /// Counts a hit, or a sum of hits, that was refused as part of a larger sum.
    async fn add_alone(&self, hit: &Hit<'_>, options: WriteOptions) -> HitResult {
        let mut options = WriteOptions {
            wait: true,
            ..options
        };
        let one = (hit.partition, 1, false);
        let push = |group: &mut Group| group.push_alone(hit);
        let (call, position) = self.count(one, &mut options, push).await?;
        call.own(position)?
            .ok_or_else(|| Error::corrupt("a hit retried alone was merged with other hits"))
    }

    /// Counts many hits and returns the outcome of each. Hits that fit into one call go together,
    /// and each call fails on its own. All of them have the same time.
    pub async fn add_many(&self, hits: &[(&[u8], i64)], timeout: Duration) -> Vec<HitResult> {
        let all = hits.iter().map(|(id, delta)| Hit {
            partition: self.partition_for(id),
            id,
            update: Update::Add(*delta),
            hits: 1,
            seed: None,
        });
        let options = WriteOptions {
            limit: Limit::Within(timeout),
            wait: true,
            accepted_before_close: false,
        };
        self.add_all(&all.collect::<Vec<_>>(), options).await
    }

    async fn add_all(&self, hits: &[Hit<'_>], mut options: WriteOptions) -> Vec<HitResult> {
        options.limit = Limit::By(options.limit.deadline(Instant::now()));
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let spans = self.queue.spans_partitions();
        for (index, hit) in hits.iter().enumerate() {
            let group = if spans { 0 } else { hit.partition };
            groups.entry(group).or_default().push(index);
        }
        let results = groups.values().map(|all| {
            let chunks = all.chunks(self.chunk());
            let calls = chunks.map(|indexes| self.add_some(indexes, hits, options));
            // few at a time: the others would only wait for room
            stream::iter(calls.collect::<Vec<_>>())
                .buffered(CHUNKS)
                .collect::<Vec<_>>()
        });
        let results = join_all(results).await.into_iter().flatten().flatten();
        let mut results: Vec<_> = groups.values().flatten().zip(results).collect();
        results.sort_unstable_by_key(|(index, _)| **index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    async fn add_some(
        &self,
        indexes: &[usize],
        hits: &[Hit<'_>],
        mut options: WriteOptions,
    ) -> Vec<HitResult> {
        let some = || indexes.iter().map(|index| &hits[*index]);
        let push = |group: &mut Group| some().map(|hit| group.push(hit)).collect::<Vec<_>>();
        let partition = hits[indexes[0]].partition;
        let is_mixed = some().any(|hit| hit.partition != partition);
        let counted = self
            .count((partition, indexes.len(), is_mixed), &mut options, push)
            .await;
        let (call, positions) = match counted {
            Ok(counted) => counted,
            // the server turned out to be a cluster
            Err(error) if is_mixed && error.is_retryable() && !self.queue.spans_partitions() => {
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

    /// Has a task notice the end of the runtime.
    fn watch_runtime(&self) {
        self.is_watched
            .get_or_init(|| Driver::watch_runtime(&self.queue));
    }

    /// Counts the hits that `push` adds to a group, and waits until Redis has done so. Returns the
    /// call with its outcome, and the hits' positions in it. A full group is an error unless
    /// `options.wait` is set, and so is a deadline that leaves no time for a call. `pairs` is the
    /// number of hits; if they are mixed, of several partitions, they are refused once the server
    /// turns out to be a cluster.
    async fn count<T>(
        &self,
        (partition, pairs, is_mixed): (u32, usize, bool),
        options: &mut WriteOptions,
        mut push: impl FnMut(&mut Group) -> T,
    ) -> Result<(Arc<Call>, T)> {
        let queue = &self.queue;
        self.watch_runtime();
        loop {
            if let Limit::By(Deadline { start_by, .. }) = options.limit
                && Instant::now() >= start_by
            {
                return Err(queue.refusal("not counted: no time was left for a call"));
            }
            if is_mixed && !queue.spans_partitions() {
                let what = "not counted: the partitions are on different cluster nodes";
                return Err(queue.error(ErrorKind::Redis, what));
            }
            let joined = queue.join(partition, pairs, *options, &mut push)?;
            let (call, positions, start_by) = match joined {
                Joined::Alone(positions, sending, outside) => {
                    let deadline = sending.deadline;
                    options.limit = Limit::By(deadline);
                    // boxed, because most callers wait for the driver and need no room for this
                    let call = Box::pin(send_alone(queue, sending, outside)).await;
                    (Arc::new(call), positions, deadline.start_by)
                }
                Joined::Member(Member {
                    positions,
                    call,
                    deadline,
                    starts_driver,
                }) => {
                    if starts_driver {
                        Driver::spawn(queue);
                    }
                    options.limit = Limit::By(deadline);
                    wait_for_end(queue, &call, deadline.reply_by).await?;
                    (call, positions, deadline.start_by)
                }
                Joined::Full(call) if options.wait => {
                    let deadline = options.limit.deadline(Instant::now());
                    options.limit = Limit::By(deadline);
                    Box::pin(queue.wait_for_room(&call, deadline.reply_by)).await?;
                    continue;
                }
                Joined::Full(_) => {
                    let what = "too many hits are waiting for Redis";
                    return Err(queue.error(ErrorKind::Busy, what));
                }
            };
            match call.outcome() {
                Some(CallOutcome::NotExecuted(_)) if Instant::now() < start_by => {}
                Some(CallOutcome::NotExecuted(error) | CallOutcome::Failed(error)) => {
                    return Err(error.clone());
                }
                _ => return Ok((call, positions)),
            }
        }
    }

    /// Counts a hit in this process, and makes sure that it is sent soon.
    pub fn record(self: &Arc<Self>, id: &[u8], delta: i64) -> Result<()> {
        let family = self.queue.family();
        let home = family.home_of(id);
        let hit = Hit {
            partition: home.unwrap_or_else(|| family.partition_by(id)),
            id,
            update: Update::Add(delta),
            hits: 1,
            seed: None,
        };
        self.watch_runtime();
        self.recorder.record(&self.queue, &hit)?;
        Recorder::begin(self);
        Ok(())
    }

    /// Sends the recorded hits and returns their outcome.
    pub async fn flush(self: &Arc<Self>) -> Result<Recorded> {
        Recorder::send_now(self.clone()).await?;
        Ok(self.recorded_outcome())
    }

    /// Adds the cause to errors if it is that the runtime of the writer's tasks is not driven, and
    /// probably also of the connections.
    pub async fn explain<'e>(&self, errors: impl IntoIterator<Item = &'e mut Error>) {
        let is_late = |error: &&mut Error| error.is_retryable() || error.outcome_unknown();
        let late: Vec<_> = errors.into_iter().filter(is_late).collect();
        if late.is_empty() || !self.queue.is_elsewhere() || self.queue.is_driven().await {
            return;
        }
        for error in late {
            let what = "the runtime on which the family was opened is not driven";
            *error = self
                .queue
                .error(error.kind(), what)
                .with_source(error.clone());
        }
    }

    /// Returns the outcome of the recorded hits since the last call.
    pub fn recorded_outcome(&self) -> Recorded {
        self.recorder.outcome()
    }

    /// Sends a closed writer's recorded hits and waits for its calls in flight, however long Redis
    /// is unreachable.
    pub async fn finish(self: &Arc<Self>) -> Result<()> {
        let (mut retries, mut result) = (Retries::default(), Ok(()));
        while let Err(error) = Recorder::send_now(self.clone()).await {
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

/// Ends the task that watches the runtime.
impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.dropped.notify_one();
    }
}

/// Makes a lone caller's call. Others wait neither for it nor for the pause after a refusal.
async fn send_alone(queue: &Queue, mut sending: Box<Sending>, outside: Outside) -> Call {
    let outcome = sending.make(queue).await;
    let pause = queue.ended(*sending, &outcome);
    drop(outside);
    if let Some(pause) = pause {
        sleep(pause).await;
    }
    Call::from(outcome)
}

/// Waits for the end of a call, at most until shortly after the deadline.
async fn wait_for_end(queue: &Queue, call: &Arc<Call>, reply_by: Instant) -> Result<()> {
    let mut waker = None;
    let mut end = poll_fn(|cx| poll_end(queue, cx, call, &mut waker, reply_by));
    if !queue.is_elsewhere() {
        return end.await;
    }
    // the runtime whose tasks check the time may not be driven
    let timed = async {
        for time in [reply_by, reply_by + LAST_MOMENT] {
            if let Ok(ended) = timeout_at(time, &mut end).await {
                return ended;
            }
        }
        end.await
    };
    Box::pin(timed).await
}

/// Polls the end of a call. At the deadline the driver gives up with a more precise outcome.
/// `waker` is the index of the caller's waker.
fn poll_end(
    queue: &Queue,
    cx: &mut Context<'_>,
    call: &Arc<Call>,
    waker: &mut Option<usize>,
    reply_by: Instant,
) -> Poll<Result<()>> {
    let is_woken = waker.is_some();
    if call.outcome().is_none() {
        call.listen(cx.waker(), waker);
        if is_woken && Instant::now() >= reply_by {
            queue.dismiss(call);
        }
    }
    match call.outcome() {
        Some(_) => Poll::Ready(Ok(())),
        None if is_woken && Instant::now() >= reply_by + LAST_MOMENT => {
            let what = "Redis did not reply in time";
            Poll::Ready(Err(queue.error(ErrorKind::OutcomeUnknown, what)))
        }
        None => Poll::Pending,
    }
}

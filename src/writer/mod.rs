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
use tokio::time::{Instant, sleep};

use self::call::{Call, CallOutcome, Sending};
use self::deadline::{Deadline, LAST_MOMENT, WriteOptions};
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
        self.change(id, Update::Add(delta), None, timeout, wait)
            .await
    }

    /// Applies a change to one counter. If a seed is given, a missing counter is seeded first.
    pub async fn change(
        &self,
        id: &[u8],
        update: Update,
        seed: Option<Seed>,
        timeout: Duration,
        wait: bool,
    ) -> HitResult {
        let options = WriteOptions {
            timeout,
            wait,
            accepted_before_close: false,
        };
        let hit = Hit {
            partition: self.partition_for(id),
            id,
            update,
            hits: 1,
            seed,
        };
        let push = |group: &mut Group| group.push(&hit);
        let (call, position) = self.count((hit.partition, 1, false), options, push).await?;
        match call.own(position)? {
            Some(result) => Ok(result),
            None => Box::pin(self.add_alone(&hit, options)).await,
        }
    }

    /// Counts a hit, or a sum of hits, that was refused as part of a larger sum.
    async fn add_alone(&self, hit: &Hit<'_>, options: WriteOptions) -> HitResult {
        let options = WriteOptions {
            wait: true,
            ..options
        };
        let push = |group: &mut Group| group.push_alone(hit);
        let (call, position) = self.count((hit.partition, 1, false), options, push).await?;
        call.own(position)?
            .ok_or_else(|| Error::corrupt("a hit retried alone was merged with other hits"))
    }

    /// Counts many hits and returns the outcome of each. Hits that fit into one call go together,
    /// and each call fails on its own.
    pub async fn add_many(&self, hits: &[(&[u8], i64)], timeout: Duration) -> Vec<HitResult> {
        let all = hits.iter().map(|(id, delta)| Hit {
            partition: self.partition_for(id),
            id,
            update: Update::Add(*delta),
            hits: 1,
            seed: None,
        });
        let options = WriteOptions {
            timeout,
            wait: true,
            accepted_before_close: false,
        };
        self.add_all(&all.collect::<Vec<_>>(), options).await
    }

    async fn add_all(&self, hits: &[Hit<'_>], options: WriteOptions) -> Vec<HitResult> {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let spans = self.queue.spans_partitions();
        for (index, hit) in hits.iter().enumerate() {
            let group = if spans { 0 } else { hit.partition };
            groups.entry(group).or_default().push(index);
        }
        let chunks = groups.values();
        let chunks: Vec<_> = chunks.flat_map(|all| all.chunks(self.chunk())).collect();
        let calls = chunks
            .iter()
            .map(|indexes| self.add_some(indexes, hits, options));
        let results = join_all(calls).await.into_iter().flatten();
        let mut results: Vec<_> = chunks.into_iter().flatten().zip(results).collect();
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
        let push = |group: &mut Group| some().map(|hit| group.push(hit)).collect::<Vec<_>>();
        let partition = hits[indexes[0]].partition;
        let is_mixed = some().any(|hit| hit.partition != partition);
        let counted = self
            .count((partition, indexes.len(), is_mixed), options, push)
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
    /// `options.wait` is set. `pairs` is the number of hits; if they are mixed, of several
    /// partitions, they are refused once the server turns out to be a cluster.
    async fn count<T>(
        &self,
        (partition, pairs, is_mixed): (u32, usize, bool),
        options: WriteOptions,
        mut push: impl FnMut(&mut Group) -> T,
    ) -> Result<(Arc<Call>, T)> {
        let queue = &self.queue;
        self.watch_runtime();
        let mut deadline = None;
        loop {
            if is_mixed && !queue.spans_partitions() {
                let what = "not counted: the partitions are on different cluster nodes";
                return Err(queue.error(ErrorKind::Redis, what));
            }
            let joined = queue.join(partition, pairs, options, deadline, &mut push)?;
            let (call, positions, start_by) = match joined {
                Joined::Alone(positions, sending, outside) => {
                    let start_by = deadline.get_or_insert(sending.deadline).start_by;
                    // boxed, because most callers wait for the driver and need no room for this
                    let call = Box::pin(send_alone(queue, sending, outside)).await;
                    (Arc::new(call), positions, start_by)
                }
                Joined::Member(Member {
                    positions,
                    call,
                    deadline: own,
                    starts_driver,
                }) => {
                    if starts_driver {
                        Driver::spawn(queue);
                    }
                    let Deadline { reply_by, start_by } = *deadline.get_or_insert(own);
                    let mut waker = None;
                    poll_fn(|cx| poll_end(queue, cx, &call, &mut waker, reply_by)).await?;
                    (call, positions, start_by)
                }
                Joined::Full(call) if options.wait => {
                    let new = || Deadline::new(Instant::now(), options.timeout);
                    let reply_by = deadline.get_or_insert_with(new).reply_by;
                    Box::pin(queue.wait_for_room(&call, reply_by)).await?;
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

/// Waits for the end of a call, at most until shortly after the deadline. At the deadline the
/// driver gives up with a more precise outcome. `waker` is the index of the caller's waker.
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

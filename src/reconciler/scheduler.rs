//! The scheduler: starts searches, rotations and flushes, and limits how much runs at a time.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::Instrument;

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::process::tasks::unless_stopped;
use crate::process::work::{FamilySlot, PartitionId, WorkItem};
use crate::reconciler::flush::{self, FlushOutcome, HeldBatch, RotateOutcome};
use crate::reconciler::flusher::Flusher;
use crate::reconciler::registry::{self, Scope};
use crate::reconciler::rejects;
use crate::reconciler::schedule::Schedule;
use crate::reconciler::server_watch;
use crate::reconciler::step::{Step, caught};
use crate::reconciler::sweep::{self, SweepResult};
use crate::reconciler::upkeep;
use crate::scripts::partition::buffered::Cut;

/// The interval of measurements of the oldest hit in flight, and of the search for families whose
/// announcement another reconciler of this process received.
const MEASURE: Duration = Duration::from_secs(1);
/// The number of partitions that one task rotates.
const ROTATE: usize = 256;
/// The number of checks within a family's sync time for hits of other processes, which cannot wake
/// this one.
const CHECKS: u32 = 4;
/// The interval of each family's upkeep.
const UPKEEP: Duration = Duration::from_mins(1);
/// The interval, in rounds of upkeep, of the search for partitions that the family does not have.
const STRAYS: u32 = 10;
/// The number of concurrent upkeeps. It is low because a search for strays names some hundred keys.
const UPKEEPS: usize = 16;
/// The pause after a permanent error, such as a missing table.
const MEND: Duration = Duration::from_secs(30);

/// The number of concurrent flushes: one fetches while two are in the database, and a family that is
/// being flushed leaves the last one to others.
const FLUSHES: usize = 4;

/// The result of a task of the scheduler.
enum TaskResult {
    Sweep(Vec<SweepResult>),
    Rotation(Vec<(PartitionId, Result<RotateOutcome>)>),
    /// A flush, by its number.
    Flush(u64, Vec<(PartitionId, Result<FlushOutcome>)>),
    Upkeep(FamilySlot, Result<Vec<PartitionId>>),
}

/// A flush that runs.
struct Flush {
    families: BTreeSet<FamilySlot>,
    oldest_hit: Instant,
}

/// The scheduler, which decides when each partition and family is checked.
pub struct Scheduler {
    flusher: Arc<Flusher>,
    finishing: bool,
    schedule: Schedule,
    /// Partitions that are being rotated, held or flushed; `true` if they became due meanwhile.
    busy: HashMap<PartitionId, bool>,
    /// Batches that are not durable yet or wait for a flush.
    held: Vec<HeldBatch>,
    tasks: JoinSet<TaskResult>,
    /// The flushes by number.
    flushing: HashMap<u64, Flush>,
    /// The number of flushes that were started.
    flushes: u64,
    backoffs: HashMap<WorkItem, Backoff>,
    /// The number of upkeeps that succeeded of each family that it serves.
    upkeeps: HashMap<FamilySlot, u32>,
    /// The permits of concurrent upkeeps.
    permits: Arc<Semaphore>,
}

impl Scheduler {
    pub fn new(flusher: Flusher) -> Self {
        Scheduler {
            flusher: Arc::new(flusher),
            finishing: false,
            schedule: Schedule::default(),
            busy: HashMap::new(),
            held: Vec::new(),
            tasks: JoinSet::new(),
            flushing: HashMap::new(),
            flushes: 0,
            backoffs: HashMap::new(),
            upkeeps: HashMap::new(),
            permits: Arc::new(Semaphore::new(UPKEEPS)),
        }
    }

    /// Runs until it is stopped, and finishes what it holds.
    pub async fn run(mut self, scope: Scope) {
        let mut beside = JoinSet::new();
        beside.spawn(registry::serve_families(self.flusher.clone(), scope).in_current_span());
        beside.spawn(server_watch::watch_servers(self.flusher.clone()).in_current_span());
        beside.spawn(rejects::retry_rejects(self.flusher.clone()).in_current_span());
        let shared = self.flusher.shared.clone();
        let mut stopping = self.flusher.stop.clone();
        let mut measure = interval(MEASURE);
        measure.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if !self.finishing {
                self.start_what_is_due();
            }
            self.start_flushes();
            self.measure_waiting();
            if self.finishing && self.tasks.is_empty() && self.held.is_empty() {
                break;
            }
            let next = self.next_time();
            tokio::select! {
                announced = shared.work.take(), if !self.finishing => {
                    announced.into_iter().for_each(|what| self.schedule.check(what, Duration::ZERO));
                }
                Some(Ok(finished)) = self.tasks.join_next() => self.finished(finished),
                _ = measure.tick() => self.take_up_families(),
                () = sleep_until(next) => {}
                // an error means that the handle was dropped
                asked = stopping.wait_for(|&stop| stop), if !self.finishing => {
                    let held = self.held.len();
                    if asked.is_ok() || shared.is_closed() {
                        tracing::info!(held, "the reconciler was shut down");
                    } else {
                        tracing::warn!(held, "the reconciler was dropped and stops");
                    }
                    self.finishing = true;
                    beside.abort_all();
                }
            }
        }
        beside.shutdown().await;
    }

    /// Checks the partitions at once.
    fn check_now(&mut self, partitions: Vec<PartitionId>) {
        for id in partitions {
            self.schedule.check(WorkItem::Due(id), Duration::ZERO);
        }
    }

    /// Returns the time of the next check or flush.
    fn next_time(&self) -> Instant {
        let checked = self.schedule.next().filter(|_| !self.finishing);
        let may_flush = self.may_flush(Instant::now());
        let waiting = self.held.iter().filter(|held| may_flush(held.id.family));
        let flushed = waiting
            .map(HeldBatch::flush_at)
            .min()
            .filter(|_| self.flushing.len() < FLUSHES);
        checked
            .into_iter()
            .chain(flushed)
            .min()
            .unwrap_or_else(|| Instant::now() + MEASURE)
    }

    /// Records the age of the oldest hit in flight, which grows while the database is unreachable.
    fn measure_waiting(&self) {
        let oldest = self
            .held
            .iter()
            .map(HeldBatch::oldest_hit)
            .chain(self.flushing.values().map(|flush| flush.oldest_hit))
            .min();
        ::metrics::gauge!(metrics::WAITING_SECONDS)
            .set(oldest.map_or(0.0, |oldest| oldest.elapsed().as_secs_f64()));
    }

    fn start_what_is_due(&mut self) {
        let now = Instant::now();
        let (mut families, mut due) = (Vec::new(), Vec::new());
        while let Some(what) = self.schedule.pop_due(now) {
            match what {
                WorkItem::Family(slot) => families.extend(self.flusher.shared.family(slot)),
                WorkItem::Upkeep(slot) => self.start_upkeep(slot),
                WorkItem::Due(id) => match self.busy.entry(id) {
                    Entry::Occupied(mut busy) => *busy.get_mut() = true,
                    Entry::Vacant(free) => {
                        due.push(*free.key());
                        free.insert(false);
                    }
                },
            }
        }
        if !families.is_empty() {
            let flusher = self.flusher.clone();
            let swept = async move { sweep::sweep(&flusher, &families, false).await };
            self.spawn(swept.map(TaskResult::Sweep));
        }
        for some in due.chunks(ROTATE) {
            let (flusher, some) = (self.flusher.clone(), some.to_vec());
            let rotated = async move { flush::rotate(&flusher, &some, Cut::WhenDue).await };
            self.spawn(rotated.map(TaskResult::Rotation));
        }
    }

    fn spawn(&mut self, task: impl Future<Output = TaskResult> + Send + 'static) {
        self.tasks.spawn(task.in_current_span());
    }

    /// Starts the upkeep of the family.
    fn start_upkeep(&mut self, family: FamilySlot) {
        let finds_strays = self
            .upkeeps
            .entry(family)
            .or_default()
            .is_multiple_of(STRAYS);
        let (flusher, permits) = (self.flusher.clone(), self.permits.clone());
        self.spawn(async move {
            let _permit = permits.acquire().await;
            // boxed, so that thousands of waiting tasks stay small
            let strays = Box::pin(upkeep::upkeep(&flusher, family, finds_strays));
            let strays = unless_stopped(&flusher.stop, Duration::ZERO, caught(strays));
            TaskResult::Upkeep(family, strays.await)
        });
    }

    /// Starts flushes of durable batches, each up to the number of ids that one flush takes.
    fn start_flushes(&mut self) {
        let now = Instant::now();
        while self.flushing.len() < FLUSHES {
            let may_flush = self.may_flush(now);
            let is_due = |held: &HeldBatch| held.flush_at() <= now && may_flush(held.id.family);
            if !self.held.iter().any(is_due) {
                break;
            }
            let taken = flush::next_flush(&mut self.held, may_flush);
            let ids: Vec<_> = taken.iter().map(|held| held.id).collect();
            self.flushes += 1;
            let number = self.flushes;
            let flush = Flush {
                families: ids.iter().map(|id| id.family).collect(),
                oldest_hit: taken.iter().map(HeldBatch::oldest_hit).min().unwrap_or(now),
            };
            self.flushing.insert(number, flush);
            let flusher = self.flusher.clone();
            self.spawn(async move {
                let ended = caught(flush::flush(&flusher, taken).map(Ok)).await;
                let all = ended.unwrap_or_else(|error| {
                    let failed = |id| (id, Err(error.clone()));
                    ids.into_iter().map(failed).collect()
                });
                TaskResult::Flush(number, all)
            });
        }
    }

    /// Returns whether a family may begin a flush. A family that is being flushed may begin another
    /// one only if no other family waits and one more slot stays free.
    fn may_flush(&self, now: Instant) -> impl Fn(FamilySlot) -> bool + use<> {
        let flushed = self.flushing.values().flat_map(|flush| &flush.families);
        let flushed: BTreeSet<_> = flushed.copied().collect();
        let is_other =
            |held: &HeldBatch| held.flush_at() <= now && !flushed.contains(&held.id.family);
        let is_left = self.flushing.len() + 1 < FLUSHES && !self.held.iter().any(is_other);
        move |family| is_left || !flushed.contains(&family)
    }

    fn finished(&mut self, finished: TaskResult) {
        match finished {
            // a stop ends searches and upkeeps, which is not a failure
            TaskResult::Sweep(_) | TaskResult::Upkeep(..) if self.finishing => {}
            TaskResult::Sweep(all) => all.into_iter().for_each(|swept| self.swept(swept)),
            TaskResult::Rotation(all) => {
                for (id, rotated) in all {
                    self.rotated(id, rotated);
                }
            }
            TaskResult::Flush(number, all) => {
                self.flushing.remove(&number);
                for (id, end) in all {
                    self.flushed(id, end);
                }
            }
            TaskResult::Upkeep(family, strays) => self.kept(family, strays),
        }
    }

    /// Takes up the families in use that it does not serve yet: another reconciler of this process
    /// received their announcement.
    fn take_up_families(&mut self) {
        for opened in self.flusher.shared.opened() {
            if !self.upkeeps.contains_key(&opened.slot) {
                for what in [WorkItem::Family, WorkItem::Upkeep] {
                    self.schedule.check(what(opened.slot), Duration::ZERO);
                }
            }
        }
    }

    fn swept(&mut self, swept: SweepResult) {
        self.check_now(swept.pending);
        let interval = self.check_interval(swept.family);
        let what = WorkItem::Family(swept.family);
        self.check_again(what, swept.result.map(|()| interval));
    }

    fn kept(&mut self, family: FamilySlot, strays: Result<Vec<PartitionId>>) {
        let interval = strays.map(|strays| {
            *self.upkeeps.entry(family).or_default() += 1;
            self.check_now(strays);
            UPKEEP
        });
        self.check_again(WorkItem::Upkeep(family), interval);
    }

    /// Schedules the next check after an interval, or after a pause if this one failed.
    fn check_again(&mut self, what: WorkItem, interval: Result<Duration>) {
        if interval.is_ok() {
            self.succeeded(what);
        }
        let after = interval.unwrap_or_else(|error| self.pause(what, &error));
        self.schedule.check(what, after);
    }

    /// Returns the interval of searches for hits of the family.
    fn check_interval(&self, family: FamilySlot) -> Duration {
        let opened = self.flusher.shared.family(family);
        opened.map_or(UPKEEP, |opened| opened.family.sync_time / CHECKS)
    }

    fn rotated(&mut self, id: PartitionId, rotated: Result<RotateOutcome>) {
        match rotated {
            Ok(RotateOutcome::Batch(mut held)) => {
                held.failed_before = self.backoffs.contains_key(&WorkItem::Due(id));
                self.held.push(held);
            }
            Ok(RotateOutcome::Early(time)) => {
                self.free(id, Some(time.min(self.check_interval(id.family))));
            }
            Ok(RotateOutcome::Leased(time)) => {
                self.succeeded(WorkItem::Due(id));
                self.rest(id, time);
            }
            Ok(RotateOutcome::Nothing) => self.free(id, None),
            Err(error) => self.failed(id, &error),
        }
    }

    fn flushed(&mut self, id: PartitionId, end: Result<FlushOutcome>) {
        match end {
            Ok(FlushOutcome::Done) => self.free(id, None),
            Ok(FlushOutcome::Waits(held)) => self.held.push(held),
            Err(error) => {
                let concerns_one = error.kind() == ErrorKind::Busy;
                if self.finishing && error.is_retryable() && !concerns_one {
                    // a server is unreachable: the next reconciler takes over the held batches
                    self.held.clear();
                }
                self.failed(id, &error);
            }
        }
    }

    /// Lets a partition that succeeded be rotated again: at once if it became due meanwhile, else
    /// after this time at the latest. Without a time it waits until a hit makes a sync due, or
    /// until the search of its family finds hits.
    fn free(&mut self, id: PartitionId, after: Option<Duration>) {
        self.succeeded(WorkItem::Due(id));
        if self.busy.remove(&id) == Some(true) {
            self.schedule.check(WorkItem::Due(id), Duration::ZERO);
        } else if let Some(after) = after {
            self.schedule.check(WorkItem::Due(id), after);
        }
    }

    fn failed(&mut self, id: PartitionId, error: &Error) {
        let pause = self.pause(WorkItem::Due(id), error);
        self.rest(id, pause);
    }

    /// Lets the partition be rotated again after this time, and not before, even if it becomes due.
    fn rest(&mut self, id: PartitionId, time: Duration) {
        self.busy.remove(&id);
        self.schedule.check_not_before(WorkItem::Due(id), time);
    }

    fn succeeded(&mut self, what: WorkItem) {
        self.backoffs.remove(&what);
        self.flusher.succeeded(Step::Work(what));
    }

    /// Returns the pause after this failure, and notes it for the log.
    fn pause(&mut self, what: WorkItem, error: &Error) -> Duration {
        self.flusher.failed(Step::Work(what), error);
        let panicked = error.kind() == ErrorKind::Closed;
        if !error.is_retryable() && !panicked {
            return MEND;
        }
        metrics::retried("reconcile");
        self.backoffs.entry(what).or_default().next()
    }
}

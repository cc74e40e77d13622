//! The scheduler: starts checks, rotations and flushes, and limits how much runs at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::connection::backoff::{Backoff, unless_stopped};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::process::shared::Shared;
use crate::process::work::Announced;
use crate::reconciler::flush::{Flushed, Flusher, Held, PartitionId, Rotated, Step, Swept};
use crate::reconciler::registry::{self, Listing, Registry, Scope};
use crate::reconciler::rejects::{self, Rejects};
use crate::reconciler::schedule::Schedule;
use crate::reconciler::server_watch::ServerWatch;
use crate::scripts::buffered::Cut;

/// The longest interval between measurements of the oldest hit in flight.
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
/// The number of concurrent upkeeps: a search names some hundred keys.
const UPKEEPS: usize = 16;
/// Longer than any wait: the partition is checked again when it becomes due, or with its family.
const NEVER: Duration = Duration::MAX;
/// The pause after a permanent error, such as a missing table.
const MEND: Duration = Duration::from_secs(30);

/// The number of concurrent flushes: one fetches while two are in the database.
const FLUSHES: usize = 3;

/// The result of a task of the scheduler.
enum Finished {
    Swept(Vec<Swept>),
    Rotated(Vec<(PartitionId, Result<Rotated>)>),
    Flushed(Vec<(PartitionId, Flushed)>),
    Watched(Result<ServerWatch>),
    Kept(u64, Result<Vec<PartitionId>>),
    Listed(Listing),
    Retried(Result<(u64, Result<()>)>),
}

/// The scheduler, which decides when each partition and family is checked.
pub struct Scheduler {
    flusher: Arc<Flusher>,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
    finishing: bool,
    schedule: Schedule,
    /// Partitions that are being rotated, held or flushed.
    busy: HashSet<PartitionId>,
    /// Busy partitions that became due in the meantime.
    again: HashSet<PartitionId>,
    /// Batches that are not durable yet or wait for a flush.
    held: Vec<Held>,
    tasks: JoinSet<Finished>,
    /// The families of each search for hits.
    sweeping: HashMap<Id, Vec<u64>>,
    rotating: HashMap<Id, Vec<PartitionId>>,
    /// The partitions of each flush, with the time of the oldest hit.
    flushing: HashMap<Id, (Vec<PartitionId>, Instant)>,
    backoffs: HashMap<Announced, Backoff>,
    upkeep: HashMap<u64, Upkeep>,
    /// The permits of concurrent upkeeps.
    upkeeps: Arc<Semaphore>,
    registry: Registry,
    rejects: Rejects,
    watch: ServerWatch,
    /// The check of Redis that is under way.
    watching: Option<Id>,
    /// The retry of rejects that is under way.
    retrying: Option<Id>,
}

/// The upkeep of a family.
struct Upkeep {
    next: Instant,
    /// The number of rounds that succeeded.
    rounds: u32,
    backoff: Backoff,
}

/// Returns the error of a task that panicked. It has no id of the task, so that the same panic has
/// the same text.
fn panicked(error: JoinError) -> Error {
    let message = error.try_into_panic().ok().and_then(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
    });
    let message = message.unwrap_or_default();
    let message = format!("a task of the reconciler panicked: {message}");
    Error::new(ErrorKind::Closed, message)
}

fn due((family, partition): PartitionId) -> Announced {
    Announced::Due(family, partition)
}

impl Scheduler {
    pub fn new(flusher: Flusher, scope: Scope, stopping: watch::Receiver<bool>) -> Self {
        Scheduler {
            shared: flusher.shared.clone(),
            flusher: Arc::new(flusher),
            stopping,
            finishing: false,
            schedule: Schedule::default(),
            busy: HashSet::new(),
            again: HashSet::new(),
            held: Vec::new(),
            tasks: JoinSet::new(),
            sweeping: HashMap::new(),
            rotating: HashMap::new(),
            flushing: HashMap::new(),
            backoffs: HashMap::new(),
            upkeep: HashMap::new(),
            upkeeps: Arc::new(Semaphore::new(UPKEEPS)),
            registry: Registry::new(scope),
            rejects: Rejects::new(),
            watch: ServerWatch::new(),
            watching: None,
            retrying: None,
        }
    }

    pub async fn run(mut self) {
        let shared = self.shared.clone();
        let mut stopping = self.stopping.clone();
        self.take_up_families();
        loop {
            if !self.finishing {
                self.start_listing();
                self.start_watching();
                self.start_retrying_rejects();
                self.start_what_is_due();
            }
            self.start_flushes();
            self.measure_waiting();
            if self.finishing && self.tasks.is_empty() && self.held.is_empty() {
                return;
            }
            let next = self.next_time();
            tokio::select! {
                announced = shared.work.take(), if !self.finishing => {
                    announced.into_iter().for_each(|what| self.schedule.check(what, Duration::ZERO));
                }
                Some(done) = self.tasks.join_next_with_id() => self.finished(done),
                () = sleep_until(next) => {}
                // an error means that the handle was dropped
                asked = stopping.wait_for(|&stop| stop), if !self.finishing => {
                    let held = self.held.len();
                    if asked.is_ok() {
                        tracing::info!(held, "the reconciler was shut down");
                    } else {
                        tracing::warn!(held, "the reconciler was dropped and stops");
                    }
                    self.finishing = true;
                }
            }
        }
    }

    /// Checks the partitions at once.
    fn check_now(&mut self, partitions: Vec<PartitionId>) {
        for id in partitions {
            self.schedule.check(due(id), Duration::ZERO);
        }
    }

    fn next_time(&self) -> Instant {
        let far = Instant::now() + Duration::from_hours(1);
        let checks = [
            self.registry.next_check(),
            self.watch.next_check(),
            self.rejects.next_retry(),
        ];
        let timed = self.schedule.next().into_iter().chain(checks).min();
        let timed = timed.filter(|_| !self.finishing);
        let gathered = if self.flushing.len() < FLUSHES {
            self.held.iter().map(Held::flush_at).min()
        } else {
            None
        };
        let measured =
            (!self.held.is_empty() || !self.flushing.is_empty()).then(|| Instant::now() + MEASURE);
        timed
            .into_iter()
            .chain(gathered)
            .chain(measured)
            .min()
            .unwrap_or(far)
    }

    /// Records the age of the oldest hit in flight, which grows while the database is unreachable.
    fn measure_waiting(&self) {
        let flushing = self.flushing.values().map(|(_, oldest)| *oldest);
        let oldest = self.held.iter().map(Held::oldest_hit).chain(flushing).min();
        ::metrics::gauge!(metrics::WAITING_SECONDS)
            .set(oldest.map_or(0.0, |oldest| oldest.elapsed().as_secs_f64()));
    }

    fn start_listing(&mut self) {
        if self.registry.begin_check() {
            let (shared, stop) = (self.shared.clone(), self.stopping.clone());
            let check = async move {
                unless_stopped(&stop, Duration::ZERO, registry::list(&*shared.store)).await
            };
            self.tasks
                .spawn(async move { Finished::Listed(check.await) });
        }
    }

    /// Starts a check that Redis has not lost or reverted its state.
    fn start_watching(&mut self) {
        if let Some(watch) = self.watch.begin() {
            let (flusher, stop) = (self.flusher.clone(), self.stopping.clone());
            let check = async move {
                let checked = watch.check(&flusher.shared, &flusher.redis);
                unless_stopped(&stop, Duration::ZERO, checked).await
            };
            // boxed to keep the other tasks small
            let task = self
                .tasks
                .spawn(async move { Finished::Watched(Box::pin(check).await) });
            self.watching = Some(task.id());
        }
    }

    fn start_retrying_rejects(&mut self) {
        if let Some(after) = self.rejects.begin() {
            let (shared, stop) = (self.shared.clone(), self.stopping.clone());
            let retry = async move {
                let retry = rejects::retry(&shared, after);
                unless_stopped(&stop, Duration::ZERO, retry).await
            };
            let task = self
                .tasks
                .spawn(async move { Finished::Retried(Box::pin(retry).await) });
            self.retrying = Some(task.id());
        }
    }

    fn listed(&mut self, found: Listing) {
        if self.finishing {
            return;
        }
        self.note(Step::Listing, &found);
        let found = found.unwrap_or_default();
        for taken in self.registry.serve_found(&self.shared, found) {
            match taken {
                Ok(number) => self
                    .schedule
                    .check(Announced::Family(number), Duration::ZERO),
                Err(error) => {
                    tracing::error!(error = %format_args!("{error:#}"), "a family is not served");
                }
            }
        }
    }

    fn start_what_is_due(&mut self) {
        let now = Instant::now();
        let (mut families, mut due) = (Vec::new(), Vec::new());
        while let Some(what) = self.schedule.pop_due(now) {
            match what {
                Announced::Family(number) => families.push(number),
                Announced::Due(number, partition) => {
                    let id = (number, partition);
                    if self.busy.insert(id) {
                        due.push(id);
                    } else {
                        self.again.insert(id);
                    }
                }
            }
        }
        self.start_checks(families);
        for some in due.chunks(ROTATE) {
            let (flusher, some) = (self.flusher.clone(), some.to_vec());
            let partitions = some.clone();
            let task = self.tasks.spawn(async move {
                Finished::Rotated(flusher.rotate(&partitions, Cut::WhenDue).await)
            });
            self.rotating.insert(task.id(), some);
        }
    }

    /// Starts a search of these families for hits that other processes counted.
    fn start_checks(&mut self, numbers: Vec<u64>) {
        let mut families = Vec::new();
        for number in numbers {
            let Some(opened) = self.shared.family(number) else {
                continue;
            };
            if !self.upkeep.contains_key(&number) {
                self.watch.probe_soon();
            }
            self.keep_up(number);
            families.push(opened);
        }
        if !families.is_empty() {
            let numbers = families.iter().map(|opened| opened.number).collect();
            let flusher = self.flusher.clone();
            let task = self
                .tasks
                .spawn(async move { Finished::Swept(flusher.sweep(families).await) });
            self.sweeping.insert(task.id(), numbers);
        }
    }

    /// Starts flushes of durable batches, each up to the number of ids that one flush takes.
    fn start_flushes(&mut self) {
        let now = Instant::now();
        while self.flushing.len() < FLUSHES && self.held.iter().any(|held| held.flush_at() <= now) {
            let taken = self.flusher.next_flush(&mut self.held);
            let ids = taken.iter().map(|held| held.id).collect();
            let oldest = taken.iter().map(Held::oldest_hit).min().unwrap_or(now);
            let (flusher, stop) = (self.flusher.clone(), self.stopping.clone());
            let task = self
                .tasks
                .spawn(async move { Finished::Flushed(flusher.flush(taken, &stop).await) });
            self.flushing.insert(task.id(), (ids, oldest));
        }
    }

    fn finished(&mut self, done: Result<(Id, Finished), JoinError>) {
        let id = match &done {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let concerned = self
            .rotating
            .remove(&id)
            .or_else(|| self.flushing.remove(&id).map(|(ids, _)| ids));
        let swept = self.sweeping.remove(&id);
        match done.map(|(_, done)| done) {
            Ok(Finished::Swept(all)) => {
                all.into_iter().for_each(|swept| self.swept(swept));
            }
            Ok(Finished::Rotated(all)) => {
                for (id, rotated) in all {
                    self.rotated(id, rotated);
                }
            }
            Ok(Finished::Flushed(all)) => {
                for (id, end) in all {
                    self.flushed(id, end);
                }
            }
            Ok(Finished::Watched(checked)) => self.watched(checked),
            Ok(Finished::Kept(number, strays)) => self.kept(number, strays),
            Ok(Finished::Listed(found)) => self.listed(found),
            Ok(Finished::Retried(retried)) => self.retried(retried),
            Err(error) => {
                let error = panicked(error);
                tracing::error!(error = %format_args!("{error:#}"), "a task of the reconciler ended early, will retry");
                if self.watching == Some(id) {
                    self.watched(Err(error.clone()));
                }
                if self.retrying == Some(id) {
                    self.retried(Err(error.clone()));
                }
                for id in concerned.into_iter().flatten() {
                    let pause = self.pause(due(id), &error);
                    self.rest(id, pause);
                }
                for family in swept.into_iter().flatten() {
                    self.swept(Swept {
                        family,
                        pending: Vec::new(),
                        result: Err(error.clone()),
                    });
                }
            }
        }
    }

    fn watched(&mut self, checked: Result<ServerWatch>) {
        self.note(Step::Servers, &checked);
        self.watch.end(checked);
        self.take_up_families();
    }

    /// Takes up the families in use that it does not serve yet: another reconciler of this process
    /// received their announcement.
    fn take_up_families(&mut self) {
        for opened in self.shared.opened() {
            if !self.upkeep.contains_key(&opened.number) {
                self.schedule
                    .check(Announced::Family(opened.number), Duration::ZERO);
            }
        }
    }

    fn retried(&mut self, retried: Result<(u64, Result<()>)>) {
        let after = retried.as_ref().ok().map(|(after, _)| *after);
        self.note(Step::Rejects, &retried.and_then(|(_, closed)| closed));
        self.rejects.end(after);
    }

    fn swept(&mut self, swept: Swept) {
        let what = Announced::Family(swept.family);
        self.check_now(swept.pending);
        match swept.result {
            Ok(()) => {
                self.succeeded(what);
                self.sweep_again(swept.family);
            }
            Err(error) => {
                let pause = self.pause(what, &error);
                self.schedule.check(what, pause);
            }
        }
    }

    /// Schedules the family's next search for hits.
    fn sweep_again(&mut self, number: u64) {
        if let Some(opened) = self.shared.family(number) {
            let pause = opened.family.sync_time / CHECKS;
            self.schedule.check(Announced::Family(number), pause);
        }
    }

    fn rotated(&mut self, id: PartitionId, rotated: Result<Rotated>) {
        if matches!(
            rotated,
            Ok(Rotated::Early(_) | Rotated::Leased(_) | Rotated::Nothing)
        ) {
            self.succeeded(due(id));
        }
        match rotated {
            Ok(Rotated::Held(mut held)) => {
                held.failed_before = self.backoffs.contains_key(&due(id));
                self.held.push(held);
            }
            Ok(Rotated::Early(time)) => {
                let sync_time = self
                    .shared
                    .family(id.0)
                    .map_or(time, |opened| opened.family.sync_time);
                self.free(id, time.min(sync_time / CHECKS));
            }
            Ok(Rotated::Leased(time)) => self.rest(id, time),
            Ok(Rotated::Nothing) => self.free(id, NEVER),
            Err(error) => {
                let pause = self.pause(due(id), &error);
                self.rest(id, pause);
            }
        }
    }

    fn flushed(&mut self, id: PartitionId, end: Flushed) {
        let what = due(id);
        match end {
            Ok(()) => {
                self.succeeded(what);
                self.free(id, NEVER);
            }
            Err(error) => {
                if self.finishing && error.is_retryable() {
                    // a server is unreachable: the next reconciler takes over the held batches
                    self.held.clear();
                }
                let pause = self.pause(what, &error);
                self.rest(id, pause);
            }
        }
    }

    /// Lets the partition be rotated again: at once if it became due meanwhile, else after this
    /// time at the latest.
    fn free(&mut self, id: PartitionId, after: Duration) {
        self.busy.remove(&id);
        let after = if self.again.remove(&id) {
            Duration::ZERO
        } else {
            after
        };
        if after < NEVER {
            self.schedule.check(due(id), after);
        }
    }

    /// Lets the partition be rotated again after this time, and not before, even if it becomes due.
    fn rest(&mut self, id: PartitionId, time: Duration) {
        self.busy.remove(&id);
        self.again.remove(&id);
        self.schedule.check_not_before(due(id), time);
    }

    fn keep_up(&mut self, number: u64) {
        let now = Instant::now();
        let upkeep = self.upkeep.entry(number).or_insert_with(|| Upkeep {
            next: now,
            rounds: 0,
            backoff: Backoff::default(),
        });
        if now < upkeep.next {
            return;
        }
        upkeep.next = now + UPKEEP;
        let flusher = self.flusher.clone();
        let finds_strays = upkeep.rounds.is_multiple_of(STRAYS);
        let turns = self.upkeeps.clone();
        self.tasks.spawn(async move {
            let _turn = turns.acquire().await;
            // boxed, so that thousands of waiting tasks stay small
            Finished::Kept(number, Box::pin(flusher.upkeep(number, finds_strays)).await)
        });
    }

    fn kept(&mut self, number: u64, strays: Result<Vec<PartitionId>>) {
        self.note(Step::Upkeep(number), &strays);
        if let Some(upkeep) = self.upkeep.get_mut(&number) {
            match &strays {
                Ok(_) => {
                    upkeep.rounds += 1;
                    upkeep.backoff = Backoff::default();
                }
                Err(error) if error.is_retryable() => {
                    upkeep.next = Instant::now() + upkeep.backoff.next();
                }
                Err(_) => upkeep.next = Instant::now() + MEND,
            }
        }
        if let Ok(strays) = strays {
            self.check_now(strays);
        }
    }

    /// Notes for the log if the step failed or succeeded.
    fn note<T>(&self, step: Step, result: &Result<T>) {
        match result {
            Ok(_) => self.flusher.failures.lock().succeeded(&step),
            Err(error) => self.flusher.failed(step, error),
        }
    }

    fn succeeded(&mut self, what: Announced) {
        self.backoffs.remove(&what);
        self.flusher.failures.lock().succeeded(&Step::Work(what));
    }

    /// Returns the pause after this failure, and notes it for the log.
    fn pause(&mut self, what: Announced, error: &Error) -> Duration {
        self.flusher.failed(Step::Work(what), error);
        let panicked = error.kind() == ErrorKind::Closed;
        if !error.is_retryable() && !panicked {
            return MEND;
        }
        metrics::retried("reconcile");
        self.backoffs.entry(what).or_default().next()
    }
}

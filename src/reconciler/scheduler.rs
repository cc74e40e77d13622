//! When which partition or family is looked at, and what is done at a time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::connection::Connection;
use crate::connection::backoff::{Backoff, unless_stopped};
use crate::error::{Error, Result};
use crate::metrics;
use crate::reconciler::flush::{Flushed, Flusher, Held, PartitionId, Rotated};
use crate::reconciler::registry::{self, Look, Registry, Scope};
use crate::reconciler::server_watch::ServerWatch;
use crate::writer::opened::Announced;
use crate::writer::shared::Shared;

/// How often the age of what is on its way is measured, at least.
const MEASURE: Duration = Duration::from_secs(1);
/// How many partitions one task rotates.
const ROTATE: usize = 256;
/// How often within a family's sync time it is looked at for what other processes counted: they cannot wake this one.
const LOOKS: u32 = 4;
/// How often each family gets its upkeep.
const UPKEEP: Duration = Duration::from_secs(60);
/// In every how many rounds of upkeep partitions are looked for that the family does not have.
const STRAYS: u32 = 10;
/// How many families get it at a time: each look names some hundred keys.
const UPKEEPS: usize = 16;
/// Longer than any time to wait: a partition that is looked at again when it is due, or with its family.
const NEVER: Duration = Duration::MAX;
/// After something that no waiting mends, such as a table that is gone.
const MEND: Duration = Duration::from_secs(30);

/// How many flushes run at a time: one fetches while two are in the database.
const FLUSHES: usize = 3;

/// What a task of the scheduler ends with.
enum Finished {
    Swept(Vec<(u64, Result<Vec<PartitionId>>)>),
    Rotated(Vec<(PartitionId, Result<Rotated>)>),
    Flushed(Vec<(PartitionId, Flushed)>),
    Watched(Result<ServerWatch>),
    Kept(u64, Result<Vec<PartitionId>>),
    Listed(Look),
}

/// How partitions are flushed.
pub struct Steps {
    pub redis: Connection,
    pub lease: Option<Duration>,
    pub max_rows: Option<u64>,
}

/// Decides when which partition or family is looked at.
pub struct Scheduler {
    flusher: Arc<Flusher>,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
    finishing: bool,
    /// When to look at what.
    times: BTreeSet<(Instant, Announced)>,
    /// The same the other way round.
    planned: HashMap<Announced, Instant>,
    /// What is not to be looked at before.
    resting: HashMap<Announced, Instant>,
    /// Partitions that are being rotated, held or flushed.
    busy: HashSet<PartitionId>,
    /// Those of them that became due meanwhile.
    again: HashSet<PartitionId>,
    /// Batches that wait to be durable.
    held: Vec<Held>,
    tasks: JoinSet<Finished>,
    rotating: HashMap<Id, Vec<PartitionId>>,
    /// With the time of the oldest hit in it.
    flushing: HashMap<Id, (Vec<PartitionId>, Instant)>,
    failures: HashMap<Announced, Backoff>,
    /// When each family had its upkeep last, and how often it has had it.
    kept: HashMap<u64, (Instant, u32)>,
    /// The turns of those that get it.
    upkeeps: Arc<Semaphore>,
    registry: Registry,
    watch: ServerWatch,
    /// The look at Redis that is under way.
    watching: Option<Id>,
}

impl Steps {
    fn flusher(&self, shared: &Arc<Shared>) -> Result<Flusher> {
        let flusher = Flusher::new(shared.clone()).over(self.redis.clone()).max_rows(self.max_rows);
        match self.lease {
            Some(lease) => flusher.leasing(lease),
            None => Ok(flusher),
        }
    }
}

impl Scheduler {
    pub fn new(shared: Arc<Shared>, steps: Steps, scope: Scope, stopping: watch::Receiver<bool>) -> Result<Self> {
        Ok(Scheduler {
            flusher: Arc::new(steps.flusher(&shared)?),
            shared,
            stopping,
            finishing: false,
            times: BTreeSet::new(),
            planned: HashMap::new(),
            resting: HashMap::new(),
            busy: HashSet::new(),
            again: HashSet::new(),
            held: Vec::new(),
            tasks: JoinSet::new(),
            rotating: HashMap::new(),
            flushing: HashMap::new(),
            failures: HashMap::new(),
            kept: HashMap::new(),
            upkeeps: Arc::new(Semaphore::new(UPKEEPS)),
            registry: Registry::new(scope),
            watch: ServerWatch::new(),
            watching: None,
        })
    }

    pub async fn run(mut self) {
        let shared = self.shared.clone();
        let mut stopping = self.stopping.clone();
        for opened in shared.opened() {
            self.look_at(Announced::Family(opened.number), Duration::ZERO);
        }
        loop {
            self.start_listing();
            self.start_watching();
            self.start_what_is_due();
            self.start_flushes();
            self.measure_waiting();
            let next = self.next_time();
            tokio::select! {
                announced = shared.work.take() => {
                    announced.into_iter().for_each(|what| self.look_at(what, Duration::ZERO));
                }
                Some(done) = self.tasks.join_next_with_id() => self.finished(done),
                () = sleep_until(next) => {}
                // an error means that the handle was dropped
                asked = stopping.wait_for(|&stop| stop) => {
                    let held = self.held.len();
                    if asked.is_ok() {
                        tracing::info!(held, "the reconciler was shut down")
                    } else {
                        tracing::warn!(held, "the reconciler was dropped, and so it stops")
                    }
                    break;
                }
            }
        }
        self.finishing = true;
        loop {
            self.start_flushes();
            self.measure_waiting();
            let next = self.next_time();
            if self.tasks.is_empty() && self.held.is_empty() {
                return;
            }
            tokio::select! {
                Some(done) = self.tasks.join_next_with_id() => self.finished(done),
                () = sleep_until(next) => {}
            }
        }
    }

    /// Plans a look, unless an earlier one is planned.
    fn look_at(&mut self, what: Announced, after: Duration) {
        let mut time = Instant::now() + after;
        if let Some(rested) = self.resting.get(&what) {
            time = time.max(*rested);
        }
        match self.planned.insert(what, time) {
            Some(earlier) if earlier <= time => {
                self.planned.insert(what, earlier);
                return;
            }
            Some(later) => self.times.remove(&(later, what)),
            None => false,
        };
        self.times.insert((time, what));
    }

    fn next_time(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3600);
        let timed = self.times.first().map(|(time, _)| *time).into_iter().chain([self.registry.next_look()]);
        let timed = timed.chain([self.watch.next_look()]).min();
        let timed = timed.filter(|_| !self.finishing);
        let gathered = if self.flushing.len() < FLUSHES { self.held.iter().map(Held::flush_at).min() } else { None };
        let measured = (!self.held.is_empty() || !self.flushing.is_empty()).then(|| Instant::now() + MEASURE);
        timed.into_iter().chain(gathered).chain(measured).min().unwrap_or(far)
    }

    /// Says how old the oldest hit on its way is, which grows for as long as the database is away.
    fn measure_waiting(&self) {
        let flushing = self.flushing.values().map(|(_, oldest)| *oldest);
        let oldest = self.held.iter().map(Held::oldest_hit).chain(flushing).min();
        ::metrics::gauge!(metrics::WAITING_SECONDS).set(oldest.map_or(0.0, |oldest| oldest.elapsed().as_secs_f64()));
    }

    fn start_listing(&mut self) {
        if self.registry.begin_look() {
            let (shared, stop) = (self.shared.clone(), self.stopping.clone());
            let look = async move { unless_stopped(&stop, Duration::ZERO, registry::look(&*shared.store)).await };
            self.tasks.spawn(async move { Finished::Listed(look.await) });
        }
    }

    /// Looks whether Redis still has what it had.
    fn start_watching(&mut self) {
        if let Some(watch) = self.watch.begin() {
            let (flusher, stop) = (self.flusher.clone(), self.stopping.clone());
            let look = async move {
                let look = watch.look(&flusher.shared, &flusher.redis);
                unless_stopped(&stop, Duration::ZERO, look).await
            };
            // boxed, so that the other tasks need no more room for it
            let task = self.tasks.spawn(async move { Finished::Watched(Box::pin(look).await) });
            self.watching = Some(task.id());
        }
    }

    fn listed(&mut self, found: Look) {
        if self.finishing {
            return;
        }
        for taken in self.registry.take_in(&self.shared, found) {
            match taken {
                Ok(number) => self.look_at(Announced::Family(number), Duration::ZERO),
                Err(error) => tracing::error!(%error, "a family is not served"),
            }
        }
    }

    fn start_what_is_due(&mut self) {
        let now = Instant::now();
        let (mut families, mut due) = (Vec::new(), Vec::new());
        while let Some(&(time, what)) = self.times.first().filter(|(time, _)| *time <= now) {
            self.times.remove(&(time, what));
            self.planned.remove(&what);
            self.resting.remove(&what);
            match what {
                Announced::Family(number) => families.push(number),
                Announced::Due(number, partition) if self.busy.insert((number, partition)) => {
                    due.push((number, partition));
                }
                Announced::Due(number, partition) => {
                    self.again.insert((number, partition));
                }
            }
        }
        self.start_looks(families);
        for some in due.chunks(ROTATE) {
            let (flusher, some) = (self.flusher.clone(), some.to_vec());
            let partitions = some.clone();
            let task = self.tasks.spawn(async move { Finished::Rotated(flusher.rotate(&partitions, true).await) });
            self.rotating.insert(task.id(), some);
        }
    }

    /// Searches for what writers elsewhere left in these families.
    fn start_looks(&mut self, numbers: Vec<u64>) {
        let mut families = Vec::new();
        for number in numbers {
            let Some(opened) = self.shared.family(number) else { continue };
            if !self.kept.contains_key(&number) {
                self.watch.probe_soon();
            }
            self.keep_up(number);
            families.push(opened);
        }
        if !families.is_empty() {
            let flusher = self.flusher.clone();
            self.tasks.spawn(async move { Finished::Swept(flusher.sweep(families).await) });
        }
    }

    /// Flushes the batches that are durable together, up to the number of ids that one flush takes.
    fn start_flushes(&mut self) {
        let now = Instant::now();
        while self.flushing.len() < FLUSHES && self.held.iter().any(|held| held.flush_at() <= now) {
            let taken = self.flusher.next_flush(&mut self.held);
            let ids = taken.iter().map(|held| held.id).collect();
            let oldest = taken.iter().map(Held::oldest_hit).min().unwrap_or(now);
            let (flusher, stop) = (self.flusher.clone(), self.stopping.clone());
            let task = self.tasks.spawn(async move { Finished::Flushed(flusher.flush(taken, &stop).await) });
            self.flushing.insert(task.id(), (ids, oldest));
        }
    }

    fn finished(&mut self, done: Result<(Id, Finished), tokio::task::JoinError>) {
        let id = match &done {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let concerned = self.rotating.remove(&id).or_else(|| self.flushing.remove(&id).map(|(ids, _)| ids));
        match done.map(|(_, done)| done) {
            Ok(Finished::Swept(all)) => all.into_iter().for_each(|(number, found)| self.swept(number, found)),
            Ok(Finished::Rotated(all)) => all.into_iter().for_each(|(id, rotated)| self.rotated(id, rotated)),
            Ok(Finished::Flushed(all)) => all.into_iter().for_each(|(id, end)| self.flushed(id, end)),
            Ok(Finished::Watched(look)) => self.watch.end(look),
            Ok(Finished::Kept(number, strays)) => self.kept(number, strays),
            Ok(Finished::Listed(found)) => self.listed(found),
            Err(error) => {
                tracing::error!(%error, "a step of the reconciler ended, and is tried again");
                if self.watching == Some(id) {
                    self.watch.end(Err(Error::corrupt("a look at Redis ended early")));
                }
                concerned.into_iter().flatten().for_each(|id| self.rest(id, MEND));
            }
        }
    }

    fn swept(&mut self, number: u64, found: Result<Vec<PartitionId>>) {
        let what = Announced::Family(number);
        match found {
            Ok(found) => {
                self.failures.remove(&what);
                found.into_iter().for_each(|(number, partition)| {
                    self.look_at(Announced::Due(number, partition), Duration::ZERO);
                });
                if let Some(opened) = self.shared.family(number) {
                    self.look_at(what, opened.family.sync_time / LOOKS);
                }
            }
            Err(error) => {
                let pause = self.pause(what, &error);
                self.look_at(what, pause);
            }
        }
    }

    fn rotated(&mut self, id: PartitionId, rotated: Result<Rotated>) {
        match rotated {
            Ok(Rotated::Held(held)) => self.held.push(held),
            Ok(Rotated::Early(time)) => {
                let sync_time = self.shared.family(id.0).map_or(time, |opened| opened.family.sync_time);
                self.free(id, time.min(sync_time / LOOKS));
            }
            Ok(Rotated::Leased(time)) => self.rest(id, time),
            Ok(Rotated::Nothing) => self.free(id, NEVER),
            Err(error) => {
                let pause = self.pause(Announced::Due(id.0, id.1), &error);
                self.rest(id, pause);
            }
        }
    }

    fn flushed(&mut self, id: PartitionId, end: Flushed) {
        let what = Announced::Due(id.0, id.1);
        match end {
            Flushed::Done | Flushed::Stale => {
                self.failures.remove(&what);
                self.free(id, NEVER);
            }
            Flushed::Failed(error) => {
                if self.finishing && error.is_retryable() {
                    // a server is away: what is held is for the next reconciler
                    self.held.clear();
                }
                let pause = self.pause(what, &error);
                self.rest(id, pause);
            }
        }
    }

    /// Lets the partition be rotated again: at once if it became due meanwhile, else after this time at the latest.
    fn free(&mut self, id: PartitionId, after: Duration) {
        self.busy.remove(&id);
        match self.again.remove(&id) {
            true => self.look_at(Announced::Due(id.0, id.1), Duration::ZERO),
            false if after < NEVER => self.look_at(Announced::Due(id.0, id.1), after),
            false => {}
        }
    }

    /// Lets the partition be rotated again after this time, and not before, whatever becomes due.
    fn rest(&mut self, id: PartitionId, time: Duration) {
        self.busy.remove(&id);
        self.again.remove(&id);
        let what = Announced::Due(id.0, id.1);
        self.resting.insert(what, Instant::now() + time);
        self.look_at(what, time);
    }

    fn keep_up(&mut self, number: u64) {
        let now = Instant::now();
        let (due, rounds) = self.kept.get(&number).map_or((now, 0), |(last, rounds)| (*last + UPKEEP, *rounds));
        if now < due {
            return;
        }
        self.kept.insert(number, (now, rounds + 1));
        let flusher = self.flusher.clone();
        let look = rounds % STRAYS == 0;
        let turns = self.upkeeps.clone();
        self.tasks.spawn(async move {
            let _turn = turns.acquire().await;
            // boxed, so that thousands that wait for their turn take no room
            Finished::Kept(number, Box::pin(flusher.upkeep(number, look)).await)
        });
    }

    fn kept(&mut self, number: u64, strays: Result<Vec<PartitionId>>) {
        match strays {
            Ok(strays) => strays.into_iter().for_each(|(number, partition)| {
                self.look_at(Announced::Due(number, partition), Duration::ZERO);
            }),
            Err(error) => {
                let family = self.called(Announced::Family(number));
                tracing::warn!(family, %error, "the family's upkeep failed, and is tried again");
                self.kept.remove(&number);
            }
        }
    }

    /// What logs call it: a family, or one of its partitions.
    fn called(&self, what: Announced) -> String {
        let (Announced::Family(number) | Announced::Due(number, _)) = what;
        let family = self.shared.family(number).map_or_else(String::new, |opened| opened.family.to_string());
        match what {
            Announced::Family(_) => family,
            Announced::Due(_, partition) => format!("{family}/{partition}"),
        }
    }

    /// How long to wait after this failure.
    fn pause(&mut self, what: Announced, error: &Error) -> Duration {
        if !error.is_retryable() {
            tracing::error!(what = self.called(what), %error, "this will not mend by itself");
            return MEND;
        }
        let pause = self.failures.entry(what).or_default().next();
        tracing::warn!(what = self.called(what), %error, ?pause, "waiting");
        metrics::retried("reconcile");
        pause
    }
}

//! The queue of a family: hits gather while calls are in flight, and leave together in the next
//! call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::Connection;
use crate::connection::backoff::Backoff;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::family::{Opened, SHUT_DOWN};
use crate::process::work::Work;
use crate::scripts::fence::{Callers, Epochs, Home};
use crate::scripts::partition::Partition;
use crate::writer::call::{Call, CallOutcome, Sending};
use crate::writer::deadline::{Deadline, SLOW, WriteOptions};
use crate::writer::group::Group;

/// The limit of calls in flight where each stays in one partition: low, so that each call carries
/// more.
const PARTITION_CALLS: usize = 4;
/// The limit of calls in flight to one node: hits gather for one while the other is in flight.
const NODE_CALLS: usize = 2;
/// The longest pause after refusals by Redis.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The reason why hits are refused once no task is left to send them.
const RUNTIME_ENDED: &str = "the runtime on which the family was opened has ended";

/// The hits of one family on their way to Redis.
#[derive(Debug)]
pub struct Queue {
    pub opened: Arc<Opened>,
    pub topology: Arc<Topology>,
    pub work: Arc<Work>,
    /// Set when the queue no longer accepts hits.
    closed: Arc<AtomicBool>,
    pub redis: Connection,
    partitions: Box<[OnceLock<Partition>]>,
    homes: Box<[OnceLock<Home>]>,
    state: Mutex<State>,
    /// Notified when a full group has left.
    room: Notify,
    /// Set when the runtime of the writer's tasks has ended.
    has_ended: AtomicBool,
    /// Notified when the writer is dropped.
    pub dropped: Notify,
    /// The runtime of the writer's tasks.
    pub runtime: Handle,
}

#[derive(Debug, Default)]
struct State {
    /// By partition if each call stays in one; otherwise all in the first entry.
    gathering: Vec<Gathering>,
    /// The entries of `gathering` that wait for a driver.
    ready: VecDeque<usize>,
    /// The number of drivers.
    drivers: usize,
    /// The drivers' calls in flight.
    in_flight: Vec<InFlight>,
    /// The deadline of the lone caller's call, while there is one.
    lone: Option<Instant>,
    /// The number of requests in flight.
    requests: usize,
    callers: Callers,
    refusals: Backoff,
    /// The reason why Redis refused the last call, if it did.
    refusal: Option<Error>,
}

/// A driver's call in flight.
#[derive(Debug)]
struct InFlight {
    call: Arc<Call>,
    slot: usize,
    since: Instant,
    /// Set when the call takes long. It no longer holds up other slots.
    is_slow: bool,
}

/// Hits that gather for a call.
#[derive(Debug)]
struct Gathering {
    group: Group,
    call: Arc<Call>,
    /// The arrival of the first hit, or a later time check: a cheap estimate of the current time.
    at: Instant,
    /// The latest time limits of its callers.
    deadline: Deadline,
}

/// The result of adding hits to a group.
pub enum Joined<T> {
    /// Nothing else is in flight: the caller makes the call itself.
    Alone(T, Box<Sending>, Outside),
    /// A driver makes the call.
    Member(Member<T>),
    /// The group gathered for this call has no room.
    Full(Arc<Call>),
}

/// Hits that have joined a call.
pub struct Member<T> {
    pub positions: T,
    pub call: Arc<Call>,
    pub deadline: Deadline,
    /// Set if one more driver must be spawned. It is already counted.
    pub starts_driver: bool,
}

/// A call outside the queue: a lone caller's, or a request. It is in flight until this is dropped.
pub struct Outside {
    queue: Arc<Queue>,
    is_lone: bool,
}

impl Queue {
    pub fn new(
        redis: Connection,
        opened: Arc<Opened>,
        topology: Arc<Topology>,
        work: Arc<Work>,
        closed: Arc<AtomicBool>,
    ) -> Result<Self> {
        let partitions = 0..opened.family.partitions();
        let outside = |error| {
            let message = "a family is opened outside of a tokio runtime";
            Error::new(ErrorKind::InvalidInput, message).with_source(error)
        };
        Ok(Queue {
            runtime: Handle::try_current().map_err(outside)?,
            partitions: partitions.clone().map(|_| OnceLock::new()).collect(),
            homes: partitions.map(|_| OnceLock::new()).collect(),
            state: Mutex::default(),
            room: Notify::new(),
            has_ended: AtomicBool::new(false),
            dropped: Notify::new(),
            opened,
            topology,
            work,
            closed,
            redis,
        })
    }

    pub fn family(&self) -> &Family {
        &self.opened.family
    }

    pub fn partition(&self, number: u32) -> &Partition {
        self.partitions[number as usize]
            .get_or_init(|| Partition::new(self.redis.clone(), self.family(), number))
    }

    /// Returns the home of calls to this partition.
    pub fn home(&self, partition: u32) -> &Home {
        let home = self.topology.home_of(partition);
        self.homes[home as usize].get_or_init(|| {
            let partition = self.partition(home).clone();
            Home::new(partition, home, self.topology.clone())
        })
    }

    /// Returns the epochs for a new call with this home.
    pub async fn epochs(&self, home: &Home) -> Result<Epochs> {
        home.epochs(self.family(), self.opened.database()).await
    }

    /// Returns the epochs that Redis knows now.
    pub async fn new_epochs(&self, home: &Home) -> Result<Epochs> {
        home.forget_known();
        self.epochs(home).await
    }

    pub fn error(&self, kind: ErrorKind, what: &'static str) -> Error {
        Error::new(kind, format!("{}: {what}", self.family()))
    }

    fn closed(&self, why: &'static str) -> Error {
        let family = self.family();
        Error::new(ErrorKind::Closed, format!("{family}: not counted: {why}"))
    }

    /// Returns an error if no task is left to send hits.
    fn check_runtime(&self) -> Result<()> {
        if self.has_ended() {
            Err(self.closed(RUNTIME_ENDED))
        } else {
            Ok(())
        }
    }

    /// Returns an error if the queue no longer accepts hits.
    pub fn check_open(&self) -> Result<()> {
        self.check_runtime()?;
        if self.closed.load(Ordering::Relaxed) {
            Err(self.closed(SHUT_DOWN))
        } else {
            Ok(())
        }
    }

    /// Returns whether no hit is gathered or in flight. Stays `true` after closing, except for hits
    /// recorded before. A lone caller that is not polled counts until its deadline.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.requests == 0
            && state.lone.is_none_or(|by| by < Instant::now())
            && (state.drivers == 0 || self.has_ended())
    }

    /// Accepts a request.
    pub fn take_request(self: &Arc<Self>) -> Result<Outside> {
        let mut state = self.state.lock();
        self.check_open()?;
        state.requests += 1;
        Ok(Outside {
            queue: self.clone(),
            is_lone: false,
        })
    }

    /// Returns whether a call may carry hits of several partitions.
    pub fn spans_partitions(&self) -> bool {
        self.family().spans_partitions() && !self.topology.is_cluster()
    }

    /// Returns the slot where hits of this partition gather.
    fn slot_of(&self, partition: u32) -> usize {
        if self.spans_partitions() {
            0
        } else {
            partition as usize
        }
    }

    /// Returns the number of pairs that wait for a call to this partition.
    pub fn waiting(&self, partition: u32) -> usize {
        self.state
            .lock()
            .gathering
            .get(self.slot_of(partition))
            .map_or(0, |gathering| gathering.group.len())
    }

    /// Adds hits to a group if it has room for their number of pairs.
    pub fn join<T>(
        self: &Arc<Self>,
        partition: u32,
        pairs: usize,
        options: WriteOptions,
        push: impl FnOnce(&mut Group) -> T,
    ) -> Result<Joined<T>> {
        let slot = self.slot_of(partition);
        let mut guard = self.state.lock();
        // under the lock, so that a later check for idleness sees all accepted hits
        if options.accepted_before_close {
            self.check_runtime()?;
        } else {
            self.check_open()?;
        }
        let state = &mut *guard;
        if state.drivers == 0 && state.lone.is_none() {
            let now = Instant::now();
            let deadline = options.limit.deadline(now);
            state.lone = Some(deadline.reply_by);
            let caller = state.callers.take()?;
            drop(guard);
            let outside = Outside {
                queue: self.clone(),
                is_lone: true,
            };
            let mut group = Group::default();
            let positions = push(&mut group);
            let sending = Box::new(Sending::new(group, caller, deadline));
            return Ok(Joined::Alone(positions, sending, outside));
        }
        if state.gathering.len() <= slot {
            state.gathering.resize_with(slot + 1, Gathering::default);
        }
        let gathering = &mut state.gathering[slot];
        let is_first = gathering.group.is_empty();
        if is_first {
            *gathering = Gathering {
                group: std::mem::take(&mut gathering.group),
                ..Gathering::default()
            };
            state.ready.push_back(slot);
        } else if !gathering
            .group
            .has_room_for(pairs, self.family().pairs_a_call())
        {
            return Ok(Joined::Full(gathering.call.clone()));
        }
        let positions = push(&mut gathering.group);
        let deadline = options.limit.deadline(gathering.at);
        gathering.deadline = gathering.deadline.or(deadline);
        let call = gathering.call.clone();
        Ok(Joined::Member(Member {
            positions,
            call,
            deadline,
            starts_driver: is_first && self.takes_driver(state),
        }))
    }

    /// Counts one more driver if a call may start.
    fn takes_driver(&self, state: &mut State) -> bool {
        let most = if self.spans_partitions() {
            NODE_CALLS
        } else {
            let slow = state.in_flight.iter().filter(|one| one.is_slow);
            PARTITION_CALLS + slow.count()
        };
        let is_useful = state.drivers < most && self.startable(state).is_some();
        state.drivers += usize::from(is_useful);
        is_useful
    }

    /// Returns the place in `ready` of the next slot that may start a call.
    fn startable(&self, state: &State) -> Option<usize> {
        let spans = self.spans_partitions();
        let may_start = |slot| spans || state.in_flight.iter().all(|one| one.slot != slot);
        state.ready.iter().position(|slot| may_start(*slot))
    }

    /// Returns the next call for a driver, whose last one has ended. Without one, the driver is no
    /// longer counted and must exit.
    pub fn next(&self, last: Option<&Arc<Call>>) -> Option<(Arc<Call>, Sending)> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(last) = last {
            state.in_flight.retain(|one| !Arc::ptr_eq(&one.call, last));
        }
        while let Some(at) = self.startable(state) {
            let slot = state.ready.remove(at)?;
            let (now, gathering) = (Instant::now(), &mut state.gathering[slot]);
            if now >= gathering.deadline.start_by {
                self.fail_unsent(state, slot);
                continue;
            }
            let next = Group::with_capacity(gathering.group.len());
            let group = std::mem::replace(&mut gathering.group, next);
            let (call, deadline) = (gathering.call.clone(), gathering.deadline);
            let caller = match state.callers.take() {
                Ok(caller) => caller,
                Err(error) => {
                    call.end(CallOutcome::Failed(error));
                    continue;
                }
            };
            let sending = Sending::new(group, caller, deadline);
            state.in_flight.push(InFlight {
                call: call.clone(),
                slot,
                since: now,
                is_slow: false,
            });
            self.room.notify_waiters();
            return Some((call, sending));
        }
        state.drivers -= 1;
        None
    }

    /// Ends a call, and takes back its caller. If Redis refused the call, returns the pause
    /// before the next one.
    pub fn ended(&self, sending: Sending, outcome: &CallOutcome) -> Option<Duration> {
        let mut state = self.state.lock();
        // a call that failed may still arrive, and its connection may be lost
        if sending.met_error || !matches!(outcome, CallOutcome::Counted { .. }) {
            state.callers.forget();
        } else {
            state.callers.give_back(sending.caller);
        }
        if let CallOutcome::NotExecuted(refusal) = outcome {
            state.refusal = Some(refusal.clone());
            return Some(state.refusals.next().min(LONGEST_PAUSE));
        }
        if state.refusal.is_some() {
            (state.refusals, state.refusal) = (Backoff::default(), None);
        }
        None
    }

    /// Ends a call of which nothing was sent, so that its callers retry.
    pub fn dismiss(&self, call: &Arc<Call>) {
        let mut state = self.state.lock();
        let is_its = |one: &Gathering| Arc::ptr_eq(&one.call, call);
        if let Some(slot) = state.gathering.iter().position(is_its) {
            self.fail_unsent(&mut state, slot);
        }
    }

    fn fail_unsent(&self, state: &mut State, slot: usize) {
        let Gathering { group, call, .. } = &mut state.gathering[slot];
        if !group.is_empty() {
            *group = Group::default();
            let silence = "not counted: Redis has not replied to earlier calls";
            let refusal = state.refusal.clone();
            let refusal = refusal.unwrap_or_else(|| self.error(ErrorKind::Redis, silence));
            call.end(CallOutcome::NotExecuted(refusal));
            self.room.notify_waiters();
        }
        state.ready.retain(|ready| *ready != slot);
    }

    /// Returns the reason why Redis refused the last call, or else this one.
    pub fn refusal(&self, otherwise: &'static str) -> Error {
        let refusal = self.state.lock().refusal.clone();
        refusal.unwrap_or_else(|| self.error(ErrorKind::Redis, otherwise))
    }

    /// Waits until nothing gathers for this call any more, at most until the deadline.
    pub async fn wait_for_room(&self, full: &Arc<Call>, reply_by: Instant) -> Result<()> {
        let late = || {
            let what = "not counted: too many hits were waiting for Redis";
            self.error(ErrorKind::Redis, what)
        };
        let room = self.room.notified();
        let is_full = |one: &Gathering| Arc::ptr_eq(&one.call, full) && !one.group.is_empty();
        if !self.state.lock().gathering.iter().any(is_full) {
            return Ok(());
        }
        timeout_at(reply_by, room).await.map_err(|_| late())
    }

    /// Wakes the callers of slow calls and of gathering hits, so that they check the time. Lets other
    /// slots continue beside slow calls. Returns whether one more driver must be spawned.
    #[must_use]
    pub fn check_time(&self) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let now = Instant::now();
        for one in &mut state.in_flight {
            one.is_slow = now - one.since >= SLOW;
            if one.is_slow {
                one.call.wake();
            }
        }
        for slot in &state.ready {
            state.gathering[*slot].at = now;
            state.gathering[*slot].call.wake();
        }
        self.takes_driver(state)
    }

    /// Fails all gathering hits and all later ones, because the runtime of the drivers has
    /// ended.
    pub fn end(&self) {
        let mut state = self.state.lock();
        self.has_ended.store(true, Ordering::Relaxed);
        for Gathering { group, call, .. } in state.gathering.drain(..) {
            // without hits the call is in flight, or has ended
            if !group.is_empty() {
                call.end(CallOutcome::Failed(self.closed(RUNTIME_ENDED)));
            }
        }
        state.ready.clear();
        self.room.notify_waiters();
    }

    /// Returns whether the runtime of the writer's tasks has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Returns whether the caller is not on the runtime of the writer's tasks.
    pub fn is_elsewhere(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() != self.runtime.id())
    }

    /// Returns whether the runtime of the writer's tasks runs a task soon.
    pub async fn is_driven(&self) -> bool {
        timeout(SLOW, self.runtime.spawn(async {})).await.is_ok()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        if self.is_lone {
            state.lone = None;
        } else {
            state.requests -= 1;
        }
    }
}

impl Default for Gathering {
    fn default() -> Self {
        let at = Instant::now();
        Gathering {
            group: Group::default(),
            call: Arc::default(),
            at,
            deadline: Deadline::new(at, Duration::ZERO),
        }
    }
}

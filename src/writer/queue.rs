//! The queue of a family: hits gather while calls are in flight, and leave together in the next
//! call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::connection::backoff::Backoff;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::family::{Opened, SHUT_DOWN};
use crate::process::work::Work;
use crate::scripts::fence::{Caller, Home, Names};
use crate::scripts::partition::Partition;
use crate::writer::call::{Call, CallOutcome, Sending};
use crate::writer::deadline::{Deadline, SLOW, WriteOptions};
use crate::writer::group::Group;

/// The limit of calls in flight where each stays in one partition: low, so that each call carries
/// more.
const PARTITION_CALLS: usize = 4;
/// The limit of calls in flight to one node: hits gather for one while the other is in flight.
const NODE_CALLS: usize = 2;
/// The time after which a call is lost: whatever makes it is no longer polled, or would have
/// checked the time.
const LOST: Duration = SLOW.saturating_mul(3);
/// The longest pause after refusals by Redis.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The hits of one family on their way to Redis.
#[derive(Debug)]
pub struct Queue {
    pub opened: Arc<Opened>,
    pub topology: Arc<Topology>,
    pub work: Arc<Work>,
    /// Set when the queue no longer accepts hits.
    closed: Arc<AtomicBool>,
    pub redis: Connection,
    homes: Box<[OnceLock<Home>]>,
    names: Names,
    state: Mutex<State>,
    /// Notified when a full group has left.
    room: Notify,
    /// Set when a driver exited with its runtime and perhaps no other has taken over.
    lacks_driver: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By partition if each call stays in one; otherwise all in the first entry.
    gathering: Vec<Gathering>,
    /// The entries of `gathering` that wait for their turn.
    ready: VecDeque<usize>,
    in_flight: Vec<InFlight>,
    /// Calls whose driver exited with its runtime.
    orphaned: Vec<Sending>,
    drivers: usize,
    /// The runtime of the drivers.
    runtime: Option<Handle>,
    /// Callers without a call in flight.
    idle: Vec<Caller>,
    refusals: Backoff,
    /// The reason why Redis refused the last call, if it did.
    refusal: Option<Error>,
    /// The number of hits in flight in calls of their own.
    alone: usize,
}

/// A hit in flight in a call of its own.
pub struct Alone<'q>(&'q Queue);

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

/// A call in flight.
#[derive(Debug)]
struct InFlight {
    call: Arc<Call>,
    slot: usize,
    since: Instant,
    reply_by: Instant,
    slow: bool,
    /// The last time check of the driver or leader that makes the call.
    seen: Instant,
    /// Set when the call is apparently no longer polled. A lost call does not hold up others.
    lost: bool,
}

/// The result of adding hits to a group.
pub enum Joined<T> {
    Member(Member<T>),
    /// The group gathered for this call has no room.
    Full(Arc<Call>),
}

/// Hits that have joined a call.
pub struct Member<T> {
    pub positions: T,
    pub call: Arc<Call>,
    pub deadline: Deadline,
    pub turn: Turn,
}

/// The first call of a new driver, if one may start.
pub type Start = Option<Box<Sending>>;

/// The next step of the hits' caller.
pub enum Turn {
    /// No other call is ahead: the caller makes the call itself.
    Leads(Box<Sending>),
    /// The caller waits, and first starts a driver if one is missing.
    Waits(Option<Start>),
}

impl Queue {
    pub fn new(
        redis: Connection,
        opened: Arc<Opened>,
        topology: Arc<Topology>,
        work: Arc<Work>,
        closed: Arc<AtomicBool>,
    ) -> Result<Self> {
        let names = Names::new()?;
        let homes = (0..opened.family.partitions())
            .map(|_| OnceLock::new())
            .collect();
        let state = Mutex::new(State {
            runtime: Handle::try_current().ok(),
            ..State::default()
        });
        let (room, lacks_driver) = (Notify::new(), AtomicBool::new(false));
        Ok(Queue {
            opened,
            topology,
            work,
            closed,
            redis,
            homes,
            names,
            state,
            room,
            lacks_driver,
        })
    }

    pub fn family(&self) -> &Family {
        &self.opened.family
    }

    pub fn partition(&self, number: u32) -> Partition {
        Partition::new(self.redis.clone(), self.family(), number)
    }

    /// Returns an error if the queue no longer accepts hits.
    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            Err(Error::new(
                ErrorKind::Closed,
                format!("{}: not counted: {SHUT_DOWN}", self.family()),
            ))
        } else {
            Ok(())
        }
    }

    /// Returns whether no hit is gathered or in flight. Stays `true` after closing, except for hits
    /// recorded before.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        let none_gathers = || {
            state
                .gathering
                .iter()
                .all(|gathering| gathering.group.is_empty())
        };
        state.alone == 0 && !state.in_flight.iter().any(InFlight::is_open) && none_gathers()
    }

    /// Accepts a hit that goes in a call of its own. It is in flight until the returned guard is
    /// dropped.
    pub fn take_alone(&self) -> Result<Alone<'_>> {
        let mut state = self.state();
        self.check_open()?;
        state.alone += 1;
        Ok(Alone(self))
    }

    /// Returns the home of calls to this partition.
    pub fn home(&self, partition: u32) -> &Home {
        let home = self.topology.home_of(partition);
        self.homes[home as usize]
            .get_or_init(|| Home::new(self.partition(home), home, self.topology.clone()))
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
        self.state()
            .gathering
            .get(self.slot_of(partition))
            .map_or(0, |gathering| gathering.group.len())
    }

    /// Returns whether the group has room for `pairs` more pairs.
    pub fn has_room_for(&self, group: &Group, pairs: usize) -> bool {
        group.has_room_for(pairs, self.family().pairs_a_call())
    }

    /// Adds hits to a group if it has room.
    pub fn join<T>(
        &self,
        partition: u32,
        options: WriteOptions,
        deadline: Option<Deadline>,
        push: &mut impl FnMut(&mut Group) -> Option<T>,
    ) -> Result<Joined<T>> {
        let slot = self.slot_of(partition);
        let mut guard = self.state();
        // under the lock, so that a later check for idleness sees all accepted hits
        if !options.accepted_before_close {
            self.check_open()?;
        }
        let state = &mut *guard;
        if state.gathering.len() <= slot {
            state.gathering.resize_with(slot + 1, Gathering::new);
        }
        let gathering = &mut state.gathering[slot];
        let is_first = gathering.group.is_empty();
        if is_first {
            *gathering = Gathering {
                group: std::mem::take(&mut gathering.group),
                ..Gathering::new()
            };
        }
        let call = gathering.call.clone();
        let Some(positions) = push(&mut gathering.group) else {
            return Ok(Joined::Full(call));
        };
        let deadline = deadline.unwrap_or_else(|| Deadline::new(gathering.at, options.timeout));
        gathering.deadline = gathering.deadline.or(deadline);
        let turn = if is_first {
            self.begin(state, slot)
        } else {
            Turn::Waits(None)
        };
        Ok(Joined::Member(Member {
            positions,
            call,
            deadline,
            turn,
        }))
    }

    /// Returns the turn of a call's first caller.
    fn begin(&self, state: &mut State, slot: usize) -> Turn {
        if state.ready.is_empty() && self.may_start(state, slot) {
            return Turn::Leads(self.dispatch(state, slot));
        }
        state.ready.push_back(slot);
        let next = self.take_next(state);
        Turn::Waits((next.is_some() || state.drivers == 0).then_some(next))
    }

    fn take_next(&self, state: &mut State) -> Option<Box<Sending>> {
        self.take_orphaned(state).or_else(|| self.take_ready(state))
    }

    fn take_orphaned(&self, state: &mut State) -> Option<Box<Sending>> {
        let at = state
            .orphaned
            .iter()
            .position(|one| self.may_start(state, one.slot))?;
        let sending = Box::new(state.orphaned.swap_remove(at));
        state.in_flight.push(InFlight::new(&sending));
        Some(sending)
    }

    fn take_ready(&self, state: &mut State) -> Option<Box<Sending>> {
        loop {
            let at = state
                .ready
                .iter()
                .position(|slot| self.may_start(state, *slot))?;
            let slot = state.ready.remove(at)?;
            if Instant::now() >= state.gathering[slot].deadline.start_by {
                self.fail_unsent(state, slot);
            } else if !state.gathering[slot].group.is_empty() {
                return Some(self.dispatch(state, slot));
            }
        }
    }

    /// Takes the gathered hits as a call in flight.
    fn dispatch(&self, state: &mut State, slot: usize) -> Box<Sending> {
        let Gathering {
            group,
            call,
            deadline,
            ..
        } = &mut state.gathering[slot];
        let next = Group::with_capacity(group.len());
        let mut caller = state.idle.pop().unwrap_or_else(|| self.names.caller());
        caller.n += 1;
        let sending = Sending::new(
            call.clone(),
            std::mem::replace(group, next),
            caller,
            *deadline,
            slot,
        );
        state.in_flight.push(InFlight::new(&sending));
        self.room.notify_waiters();
        Box::new(sending)
    }

    fn may_start(&self, state: &State, slot: usize) -> bool {
        let (most, to_one) = if self.spans_partitions() {
            (NODE_CALLS, NODE_CALLS)
        } else {
            (PARTITION_CALLS, 1)
        };
        let in_flight = || state.in_flight.iter().filter(|one| !one.lost);
        let quick = in_flight()
            .filter(|one| !one.slow || one.slot == slot)
            .count();
        quick < most && in_flight().filter(|one| one.slot == slot).count() < to_one
    }

    /// Removes a call that has ended. Returns the next call that may start.
    pub fn finish(&self, ended: Sending) -> Option<Box<Sending>> {
        let mut state = self.state();
        state
            .in_flight
            .retain(|one| !Arc::ptr_eq(&one.call, &ended.call));
        // a call of unknown outcome may still arrive, and a caller has one call in flight
        if matches!(
            ended.call.outcome(),
            Some(CallOutcome::Counted { .. } | CallOutcome::NotExecuted(_))
        ) {
            state.idle.push(ended.caller);
        }
        self.take_next(&mut state)
    }

    /// Registers one more driver. Returns its runtime: the family's or, once that has ended, the
    /// current one.
    pub fn register_driver(&self) -> Option<Handle> {
        let mut state = self.state();
        state.drivers += 1;
        state.runtime = state.runtime.take().or_else(|| Handle::try_current().ok());
        state.runtime.clone()
    }

    /// Deregisters a driver without a call and returns `true`, or `false` for the last driver while
    /// hits wait.
    pub fn exit_driver(&self) -> bool {
        let mut state = self.state();
        let may_exit = state.drivers > 1 || state.ready.is_empty() && state.orphaned.is_empty();
        state.drivers -= usize::from(may_exit);
        may_exit
    }

    /// Deregisters a driver that exits with its runtime, and wakes the waiting callers, which start
    /// another one.
    pub fn orphan(&self, sending: Option<Box<Sending>>) {
        let mut state = self.state();
        state.drivers -= 1;
        state.runtime = None;
        if let Some(sending) = sending {
            state
                .in_flight
                .retain(|one| !Arc::ptr_eq(&one.call, &sending.call));
            if sending.call.outcome().is_none() {
                state.orphaned.push(*sending);
            }
        }
        self.lacks_driver.store(true, Ordering::Release);
        state.orphaned.iter().for_each(|one| one.call.wake());
        state.wake_ready();
    }

    /// Returns the start of a driver that replaces one that exited with its runtime, if there is
    /// one.
    pub fn replace_driver(&self) -> Option<Start> {
        if !self.lacks_driver.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state();
        self.lacks_driver
            .swap(false, Ordering::AcqRel)
            .then(|| self.take_next(&mut state))
    }

    /// Records that Redis refused a call. Returns the pause before the next one.
    pub fn refused(&self, call: &Arc<Call>, refusal: Error) -> Duration {
        let mut guard = self.state();
        let state = &mut *guard;
        state.refusal = Some(refusal);
        // others need not wait until this one is retried
        state
            .in_flight
            .iter_mut()
            .filter(|one| Arc::ptr_eq(&one.call, call))
            .for_each(|one| one.slow = true);
        state.refusals.next().min(LONGEST_PAUSE)
    }

    /// Records that Redis accepted a call.
    pub fn accepted(&self) {
        let mut state = self.state();
        if state.refusal.is_some() {
            (state.refusals, state.refusal) = (Backoff::default(), None);
        }
    }

    /// Ends a call of which nothing was sent, so that its callers retry.
    pub fn dismiss(&self, call: &Arc<Call>) {
        let mut state = self.state();
        if let Some(slot) = state
            .gathering
            .iter()
            .position(|one| Arc::ptr_eq(&one.call, call))
        {
            self.fail_unsent(&mut state, slot);
        }
    }

    fn fail_unsent(&self, state: &mut State, slot: usize) {
        let Gathering { group, call, .. } = &mut state.gathering[slot];
        if !group.is_empty() {
            *group = Group::default();
            let silence = || {
                self.error(
                    ErrorKind::Redis,
                    "not counted: Redis has not replied to earlier calls",
                )
            };
            call.end(CallOutcome::NotExecuted(
                state.refusal.as_ref().map_or_else(silence, Error::clone),
            ));
            self.room.notify_waiters();
        }
        state.ready.retain(|ready| *ready != slot);
    }

    /// Waits until nothing gathers for this call any more, at most until the deadline.
    pub async fn wait_for_room(&self, full: &Arc<Call>, reply_by: Instant) -> Result<()> {
        let late = || {
            self.error(
                ErrorKind::Redis,
                "not counted: too many hits were waiting for Redis",
            )
        };
        let room = self.room.notified();
        let is_full = |one: &Gathering| Arc::ptr_eq(&one.call, full) && !one.group.is_empty();
        if !self.state().gathering.iter().any(is_full) {
            return Ok(());
        }
        timeout_at(reply_by, room).await.map_err(|_| late())
    }

    /// Checks for slow calls, on behalf of the task that makes `own`. Wakes the callers of slow
    /// calls to check the time, and lets other partitions continue. Returns the drivers to start.
    pub fn check_slow(&self, own: Option<&Arc<Call>>) -> Vec<Start> {
        let mut guard = self.state();
        let state = &mut *guard;
        let now = Instant::now();
        for one in &mut state.in_flight {
            if own.is_some_and(|own| Arc::ptr_eq(own, &one.call)) {
                one.seen = now;
            }
            one.lost = now - one.seen >= LOST;
            if now - one.since >= SLOW {
                one.slow = true;
                one.call.wake();
            }
        }
        let started = std::iter::from_fn(|| self.take_next(state))
            .map(Some)
            .collect();
        state
            .ready
            .iter()
            .for_each(|slot| state.gathering[*slot].at = now);
        state.wake_ready();
        started
    }

    pub fn error(&self, kind: ErrorKind, what: &'static str) -> Error {
        Error::new(kind, format!("{}: {what}", self.family()))
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state().alone -= 1;
    }
}

impl State {
    fn wake_ready(&self) {
        self.ready
            .iter()
            .for_each(|slot| self.gathering[*slot].call.wake());
    }
}

impl InFlight {
    fn new(sending: &Sending) -> Self {
        let (call, slot, now) = (sending.call.clone(), sending.slot, Instant::now());
        InFlight {
            call,
            slot,
            since: now,
            reply_by: sending.deadline.reply_by,
            slow: false,
            seen: now,
            lost: false,
        }
    }

    /// Returns whether the call may still be executed, whatever its callers have received.
    fn is_open(&self) -> bool {
        self.call.outcome().is_none() && (!self.lost || Instant::now() < self.reply_by)
    }
}

impl Gathering {
    fn new() -> Self {
        let at = Instant::now();
        Gathering {
            group: Group::default(),
            call: Arc::default(),
            at,
            deadline: Deadline::new(at, Duration::ZERO),
        }
    }
}

//! Hits gather while calls are under way, and go together into the next one: whose turn it is, and who makes which call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::connection::backoff::Backoff;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::fence::{Caller, Home, Names};
use crate::scripts::partition::Partition;
use crate::writer::call::{Call, Outcome};
use crate::writer::group::Group;
use crate::writer::opened::{Opened, SHUT_DOWN, Work};
use crate::writer::terms::Terms;
use crate::writer::terms::Until;

/// A call that takes longer does not hold up other partitions any more, and those who wait for it look at the time.
pub const SLOW: Duration = Duration::from_millis(50);
/// How many calls to one partition at a time are under way, where a call stays in one: few, so that each carries more.
const PARTITION_CALLS: usize = 4;
/// How many calls to one node: hits gather for the one while the other is out.
const NODE_CALLS: usize = 2;
/// How long a call that nobody makes any more may be taken over.
const LEFT: Duration = Duration::from_secs(10);
/// However often Redis refused, it is asked again after so long.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The hits of one family on their way to Redis.
#[derive(Debug)]
pub struct Queue<C> {
    pub opened: Arc<Opened>,
    pub topology: Arc<Topology>,
    pub work: Arc<Work>,
    /// Hits are not taken any more.
    closed: Arc<AtomicBool>,
    redis: C,
    homes: Box<[OnceLock<Home<C>>]>,
    names: Names,
    state: Mutex<State>,
    /// Notified when a full group has gone.
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By partition where a call stays in one; else all in the first.
    gathering: Vec<Gathering>,
    /// Those of them that wait for a call to end.
    ready: VecDeque<usize>,
    under_way: Vec<UnderWay>,
    calls: u64,
    /// Callers without a call in flight.
    idle: Vec<Caller>,
    refusals: Backoff,
    /// Why Redis did not take the last call, if it did not.
    refusal: Option<Error>,
    watched: bool,
    /// How many hits are under way in calls of their own.
    alone: usize,
}

/// A hit under way in a call of its own.
pub struct Alone<'q, C>(&'q Queue<C>);

/// Hits, and the call for which they gather.
#[derive(Debug)]
struct Gathering {
    group: Group,
    call: Arc<Call>,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    to: usize,
    call: Arc<Call>,
    caller: Caller,
    since: Instant,
    /// Made by one of its callers only, who may stop polling at any moment.
    by_caller: bool,
    slow: bool,
    /// The task that made it has ended with its runtime, and nobody else has gone on.
    left: bool,
}

/// A call that is to be made now.
#[derive(Debug)]
pub struct Started {
    pub number: u64,
    pub call: Arc<Call>,
    pub caller: Caller,
    /// By its first hit's caller itself, who may stop polling at any moment.
    pub by_caller: bool,
}

/// Hits that have joined a call.
pub enum Joined<T> {
    /// The call is gathered for or waits for its turn. Whether the caller is to see to it that calls are looked after.
    Waits { positions: T, call: Arc<Call>, waker: usize, watch: bool },
    /// The caller is the first, and makes the call itself.
    Leads { positions: T, started: Started },
    /// There is no room in what is gathered for this call.
    Full(Arc<Call>),
    /// Hits are not taken any more.
    Closed(Error),
}

impl<C> Queue<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub fn new(
        redis: C,
        opened: Arc<Opened>,
        topology: Arc<Topology>,
        work: Arc<Work>,
        closed: Arc<AtomicBool>,
    ) -> Result<Self> {
        let names = Names::new()?;
        let homes = (0..opened.family.partitions()).map(|_| OnceLock::new()).collect();
        Ok(Queue { opened, topology, work, closed, redis, homes, names, state: Mutex::default(), room: Notify::new() })
    }

    pub fn family(&self) -> &Family {
        &self.opened.family
    }

    pub fn partition(&self, number: u32) -> Partition<C> {
        Partition::new(self.redis.clone(), self.family(), number)
    }

    /// An error once hits are not taken any more.
    pub fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Closed, format!("{}: not counted: {SHUT_DOWN}", self.family()))),
            false => Ok(()),
        }
    }

    /// Whether no hit is gathered or under way: stays so once it is closed, but for what was recorded before.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        let none_gathers = || state.gathering.iter().all(|gathering| gathering.group.is_empty());
        state.alone == 0 && state.under_way.iter().all(|one| one.left) && none_gathers()
    }

    /// Takes a hit that goes in a call of its own, and is under way until what is returned is dropped.
    pub fn take_alone(&self) -> Result<Alone<'_, C>> {
        let mut state = self.state();
        self.check_open()?;
        state.alone += 1;
        Ok(Alone(self))
    }

    /// The home of calls to this partition.
    pub fn home(&self, partition: u32) -> &Home<C> {
        let home = self.topology.home_of(partition);
        self.homes[home as usize].get_or_init(|| Home::new(self.partition(home)))
    }

    /// Whether a call carries hits of several partitions.
    pub fn spans_partitions(&self) -> bool {
        self.family().spans_partitions() && !self.topology.is_cluster()
    }

    /// Where hits of this partition gather.
    fn place_of(&self, partition: u32) -> usize {
        if self.spans_partitions() { 0 } else { partition as usize }
    }

    /// How many ids wait for a call to this partition.
    pub fn waiting(&self, partition: u32) -> usize {
        self.state().gathering.get(self.place_of(partition)).map_or(0, |gathering| gathering.group.len())
    }

    /// Whether the group takes so many more pairs.
    pub fn has_room_for(&self, group: &Group, pairs: usize) -> bool {
        group.has_room_for(pairs, self.family().pairs_a_call())
    }

    /// Puts hits into a group where there is room.
    pub fn join<T>(
        &self,
        partition: u32,
        waker: &Waker,
        terms: Terms,
        until: Option<Until>,
        push: &mut impl FnMut(&mut Group) -> Option<T>,
    ) -> Joined<T> {
        let to = self.place_of(partition);
        let mut guard = self.state();
        // under the lock, so that whoever finds it idle afterwards knows of all that were taken
        if let (false, Err(error)) = (terms.taken, self.check_open()) {
            return Joined::Closed(error);
        }
        let state = &mut *guard;
        if state.gathering.len() <= to {
            state.gathering.resize_with(to + 1, Gathering::new);
        }
        let Gathering { group, call } = &mut state.gathering[to];
        let is_first = group.is_empty();
        if is_first {
            *call = Arc::new(Call::new());
        }
        let Some(positions) = push(group) else { return Joined::Full(call.clone()) };
        group.wait_until(until.unwrap_or_else(|| call.until(terms.timeout)));
        if is_first {
            if state.ready.is_empty() && self.may_start(state, to) {
                return Joined::Leads { positions, started: self.take_off(state, to, true) };
            }
            state.ready.push_back(to);
        }
        let call = state.gathering[to].call.clone();
        let waker = call.wake(waker);
        Joined::Waits { positions, call, waker, watch: state.begin_watch() }
    }

    /// Goes on for a task that has ended with its runtime: the call, if nobody makes it, and whether the caller is to see to
    /// it that calls are looked after.
    pub fn take_over(&self, call: &Arc<Call>) -> (Option<Started>, bool) {
        if call.outcome().is_some() {
            return (None, false);
        }
        let mut state = self.state();
        let watch = state.begin_watch();
        let left = state.under_way.iter_mut().find(|one| one.left && Arc::ptr_eq(&one.call, call));
        // by a task: who waits for it has less time perhaps than others
        let started = left.map(|one| {
            (one.left, one.since) = (false, Instant::now());
            one.started_by_task()
        });
        (started, watch)
    }

    /// The task that made the call ends with its runtime: others who wait for it go on. False if it has ended.
    pub fn leave(&self, number: u64) -> bool {
        let mut state = self.state();
        let one = state.under_way.iter_mut().find(|one| one.number == number && one.call.outcome().is_none());
        one.is_some_and(|one| {
            one.left = true;
            one.call.remind();
            true
        })
    }

    fn may_start(&self, state: &State, to: usize) -> bool {
        let (most, to_one) = if self.spans_partitions() { (NODE_CALLS, NODE_CALLS) } else { (PARTITION_CALLS, 1) };
        let under_way = || state.under_way.iter().filter(|one| !one.left);
        let quick = under_way().filter(|one| !one.slow || one.to == to).count();
        quick < most && under_way().filter(|one| one.to == to).count() < to_one
    }

    fn take_off(&self, state: &mut State, to: usize, by_caller: bool) -> Started {
        let Gathering { group, call } = &mut state.gathering[to];
        let call = call.clone();
        let next = Group::with_capacity(group.len());
        call.carry(std::mem::replace(group, next));
        self.room.notify_waiters();
        let mut caller = state.idle.pop().unwrap_or_else(|| self.names.caller());
        caller.n += 1;
        state.calls += 1;
        let (number, since) = (state.calls, Instant::now());
        state.under_way.retain(|one| {
            let is_over = one.left && since - one.since >= LEFT;
            if is_over {
                one.call.end(Outcome::Failed(self.error(ErrorKind::OutcomeUnknown, "the call was given up")));
            }
            !is_over
        });
        let started = Started { number, call: call.clone(), caller: caller.clone(), by_caller };
        state.under_way.push(UnderWay { number, to, call, caller, since, by_caller, slow: false, left: false });
        started
    }

    /// The next call whose turn it is.
    fn next(&self, state: &mut State) -> Option<Started> {
        loop {
            let at = state.ready.iter().position(|to| self.may_start(state, *to))?;
            let to = state.ready.remove(at)?;
            if state.gathering[to].group.until().is_some_and(|until| Instant::now() >= until.begin) {
                self.send_away(state, to);
            }
            if !state.gathering[to].group.is_empty() {
                return Some(self.take_off(state, to, false));
            }
        }
    }

    /// Makes room for another call in place of this one, and returns the one whose turn it is.
    pub fn finish(&self, number: u64) -> Option<Started> {
        let mut guard = self.state();
        let state = &mut *guard;
        let ended = state.under_way.iter().position(|one| one.number == number);
        if let Some(UnderWay { call, caller, .. }) = ended.map(|at| state.under_way.swap_remove(at)) {
            // a call whose outcome is unknown may still arrive, and must not be taken for one before the next
            if matches!(call.outcome(), Some(Outcome::Counted { .. } | Outcome::NotExecuted(_))) {
                state.idle.push(caller);
            }
        }
        self.next(state)
    }

    /// Redis did not take a call. Returns how long to wait.
    pub fn refused(&self, number: u64, refusal: Error) -> Duration {
        let mut guard = self.state();
        let state = &mut *guard;
        state.refusal = Some(refusal);
        // others need not wait until this one is tried again
        state.under_way.iter_mut().filter(|one| one.number == number).for_each(|one| one.slow = true);
        state.refusals.next().min(LONGEST_PAUSE)
    }

    /// Redis took a call.
    pub fn accepted(&self) {
        let mut state = self.state();
        if state.refusal.is_some() {
            (state.refusals, state.refusal) = (Backoff::default(), None);
        }
    }

    /// Lets those who wait for a call that cannot be made look at the time and come again.
    fn send_away(&self, state: &mut State, to: usize) {
        let Gathering { group, call } = &mut state.gathering[to];
        if !group.is_empty() {
            *group = Group::default();
            let silence = || self.error(ErrorKind::Redis, "not counted: Redis has not replied to the calls before");
            call.end(Outcome::NotExecuted(state.refusal.as_ref().map_or_else(silence, Error::again)));
            self.room.notify_waiters();
        }
        state.ready.retain(|ready| *ready != to);
    }

    /// Returns when nothing is gathered for this call any more.
    pub async fn wait_for_room(&self, full: &Call, deadline: Instant) -> Result<()> {
        let late = || self.error(ErrorKind::Redis, "not counted: too many hits were waiting for Redis");
        let room = self.room.notified();
        tokio::pin!(room);
        room.as_mut().enable();
        if full.group().is_some() || full.outcome().is_some() {
            return Ok(());
        }
        timeout_at(deadline, room).await.map_err(|_| late())
    }

    /// Looks after slow calls: one that only its caller makes is to be made by a task as well, those who wait look at the time,
    /// and what cannot be sent behind a slow call is sent away. Returns what is to be made, and whether there is anything
    /// left to watch.
    pub fn look(&self) -> (Vec<Started>, bool) {
        let mut guard = self.state();
        let state = &mut *guard;
        let now = Instant::now();
        // whoever made it may rest a moment after a refusal, or never come back
        state.under_way.retain(|one| one.call.outcome().is_none() || now - one.since < SLOW + LONGEST_PAUSE);
        let mut started = Vec::new();
        for one in state.under_way.iter_mut().filter(|one| now - one.since >= SLOW) {
            one.slow = true;
            one.call.remind();
            let is_left = std::mem::take(&mut one.by_caller) | std::mem::take(&mut one.left);
            if is_left && one.call.outcome().is_none() {
                started.push(one.started_by_task());
            }
        }
        started.extend(std::iter::from_fn(|| self.next(state)));
        if state.under_way.iter().any(|one| one.slow) {
            for to in Vec::from(std::mem::take(&mut state.ready)) {
                self.send_away(state, to);
            }
        }
        let goes_on = !state.under_way.is_empty() || !state.ready.is_empty();
        state.watched &= goes_on;
        (started, goes_on)
    }

    /// Nobody looks after calls any more: those who wait see to it that somebody does.
    pub fn end_watch(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.watched) {
            let gathering = state.gathering.iter().map(|gathering| &gathering.call);
            state.under_way.iter().map(|one| &one.call).chain(gathering).for_each(|call| call.remind());
        }
    }

    pub fn error(&self, kind: ErrorKind, what: &'static str) -> Error {
        Error::new(kind, format!("{}: {what}", self.family()))
    }
}

impl<C> Queue<C> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Drop for Alone<'_, C> {
    fn drop(&mut self) {
        self.0.state().alone -= 1;
    }
}

impl State {
    /// Whether somebody has to begin to look after calls, and can.
    fn begin_watch(&mut self) -> bool {
        let begins = !self.watched && Handle::try_current().is_ok();
        self.watched |= begins;
        begins
    }
}

impl UnderWay {
    fn started_by_task(&self) -> Started {
        Started { number: self.number, call: self.call.clone(), caller: self.caller.clone(), by_caller: false }
    }
}

impl Gathering {
    fn new() -> Self {
        Gathering { group: Group::default(), call: Arc::new(Call::new()) }
    }
}

//! The queue of a family: hits gather while calls are in flight, and leave together in the next
//! call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use indexmap::IndexMap;
use parking_lot::Mutex;
use scopeguard::ScopeGuard;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::process::family::SHUT_DOWN;
use crate::process::runtime::PairRuntime;
use crate::scripts::fence::{Caller, Callers};
use crate::writer::call::{Call, Delivery, ExecutedCall, was_not_executed};
use crate::writer::deadline::{Deadline, WriteOptions};
use crate::writer::group::Group;
use crate::writer::route::Route;

/// The limit of calls in flight where each stays in one partition: low, so that each call carries
/// more.
const PARTITION_CALLS: usize = 4;
/// The limit of calls in flight to one node: hits gather for one while the other is in flight.
const NODE_CALLS: usize = 2;
/// The longest pause after refusals by Redis.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The reason why hits are refused once no task can send them.
const RUNTIME_ENDED: &str = "the runtime of the pair has ended";

/// The reason why hits are not sent, unless Redis gave another.
const UNSENT: &str = "not counted: no call could be made in time";

/// The hits of one family on their way to Redis.
#[derive(Debug)]
pub struct Queue {
    pub route: Route,
    pub runtime: Arc<PairRuntime>,
    state: Mutex<State>,
    /// Notified when a group has left.
    room: Notify,
    /// Set when the queue no longer accepts hits.
    closed: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    /// The hits that wait for a driver, the oldest first: by partition if each call stays in one,
    /// otherwise all in slot 0.
    gathering: IndexMap<u32, OpenCall, DefaultHashBuilder>,
    /// The number of drivers.
    drivers: usize,
    /// The drivers' calls in flight.
    in_flight: Vec<InFlight>,
    /// The deadline of the lone caller's call, while there is one.
    lone: Option<Instant>,
    callers: Callers,
    refusals: Backoff,
    /// The reason why Redis refused the last call, if it did.
    refusal: Option<Error>,
}

/// Hits that gather for a call.
#[derive(Debug)]
struct OpenCall {
    group: Group,
    call: Arc<Call>,
    /// The latest time limits of its callers.
    deadline: Deadline,
}

/// A driver's call in flight.
#[derive(Debug)]
struct InFlight {
    call: Arc<Call>,
    slot: u32,
    /// Set when the call takes long. It no longer holds up other slots.
    is_slow: bool,
}

/// The place of hits in the queue.
pub enum Place<'q, T> {
    /// Nothing else is in flight: the caller makes the call itself.
    Alone(Caller, Outside),
    /// They leave with this call of a driver, each at its position in the group.
    In {
        call: Arc<Call>,
        positions: T,
        /// Set if one more driver must be spawned. It is already counted.
        starts_driver: bool,
    },
    /// The group that gathers has no room. This completes when that group has left, and so has made
    /// room.
    Full(Notified<'q>),
}

/// The lone caller's call, outside the queue. It is in flight until this is dropped.
pub struct Outside {
    queue: Arc<Queue>,
}

impl Queue {
    /// Creates a queue that accepts hits until `closed` is set.
    pub fn new(route: Route, runtime: Arc<PairRuntime>, closed: Arc<AtomicBool>) -> Self {
        Queue {
            route,
            runtime,
            state: Mutex::default(),
            room: Notify::new(),
            closed,
        }
    }

    /// Spawns a task on the runtime of the pair. The queue ends with a task that is dropped before
    /// its end: then that runtime has ended.
    pub fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let unless_done = scopeguard::guard(self.clone(), |queue| queue.end());
        self.runtime.spawn(async move {
            task.await;
            drop(ScopeGuard::into_inner(unless_done));
        });
    }

    fn closed(&self, why: &str) -> Error {
        let what = format!("not counted: {why}");
        self.route.error(ErrorKind::Closed, &what)
    }

    /// Returns the error of hits that no task can send.
    pub fn runtime_ended(&self) -> Error {
        self.closed(RUNTIME_ENDED)
    }

    /// Returns an error if the runtime has ended.
    fn check_runtime(&self) -> Result<()> {
        if self.runtime.has_ended() {
            Err(self.runtime_ended())
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
        let is_over = |end: Option<Instant>| end.is_none_or(|end| end < Instant::now());
        is_over(state.lone) && (state.drivers == 0 || self.runtime.has_ended())
    }

    /// Returns the slot where hits of this partition gather.
    fn slot_of(&self, partition: u32) -> u32 {
        if self.route.spans_partitions() {
            0
        } else {
            partition
        }
    }

    /// Returns the number of pairs that wait for a call to this partition.
    pub fn waiting(&self, partition: u32) -> usize {
        let slot = self.slot_of(partition);
        let state = self.state.lock();
        let gathering = state.gathering.get(&slot);
        gathering.map_or(0, |gathering| gathering.group.len())
    }

    /// Adds hits to the group of their partition if it has room for their number of pairs. `push`
    /// adds them, unless the caller is alone.
    pub fn join<T>(
        self: &Arc<Self>,
        partition: u32,
        pairs: usize,
        options: &WriteOptions,
        push: impl FnOnce(&mut Group) -> T,
    ) -> Result<Place<'_, T>> {
        let mut guard = self.state.lock();
        // under the lock, so that a later check for idleness sees all accepted hits
        if options.accepted_before_close {
            self.check_runtime()?;
        } else {
            self.check_open()?;
        }
        let state = &mut *guard;
        if state.drivers == 0 && state.lone.is_none() {
            if Instant::now() >= options.deadline.start_by {
                return Err(self.unsent(state));
            }
            let caller = state.callers.take()?;
            state.lone = Some(options.deadline.reply_by);
            let outside = Outside {
                queue: self.clone(),
            };
            return Ok(Place::Alone(caller, outside));
        }
        let most = self.route.family().pairs_a_call();
        let slot = self.slot_of(partition);
        let gathering = state.gathering.entry(slot).or_insert_with(|| OpenCall {
            group: Group::with_capacity(most),
            call: Arc::default(),
            deadline: options.deadline,
        });
        let is_first = gathering.group.is_empty();
        if !gathering.group.has_room_for(pairs, most) {
            return Ok(Place::Full(self.room.notified()));
        }
        let positions = push(&mut gathering.group);
        gathering.deadline = gathering.deadline.or(options.deadline);
        Ok(Place::In {
            call: gathering.call.clone(),
            positions,
            starts_driver: is_first && self.takes_driver(state),
        })
    }

    /// Counts one more driver if a call may start.
    fn takes_driver(&self, state: &mut State) -> bool {
        let most = if self.route.spans_partitions() {
            NODE_CALLS
        } else {
            let slow = state.in_flight.iter().filter(|one| one.is_slow);
            PARTITION_CALLS + slow.count()
        };
        let is_useful = state.drivers < most && self.startable(state).is_some();
        state.drivers += usize::from(is_useful);
        is_useful
    }

    /// Returns the place of the next group that may start a call.
    fn startable(&self, state: &State) -> Option<usize> {
        let spans = self.route.spans_partitions();
        let may_start = |slot| spans || state.in_flight.iter().all(|one| one.slot != slot);
        state.gathering.keys().position(|slot| may_start(*slot))
    }

    /// Returns the next call for a driver, whose last one has ended. Without one, the driver is no
    /// longer counted and must exit.
    pub fn next(&self, last: Option<&Arc<Call>>) -> Option<(Arc<Call>, Delivery)> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(last) = last {
            state.in_flight.retain(|one| !Arc::ptr_eq(&one.call, last));
        }
        while let Some(at) = self.startable(state) {
            let (slot, gathering) = state.gathering.shift_remove_index(at)?;
            let OpenCall {
                group,
                call,
                deadline,
            } = gathering;
            self.room.notify_waiters();
            if Instant::now() >= deadline.start_by {
                call.end(Err(self.unsent(state)));
                continue;
            }
            let caller = match state.callers.take() {
                Ok(caller) => caller,
                Err(error) => {
                    call.end(Err(error));
                    continue;
                }
            };
            state.in_flight.push(InFlight {
                call: call.clone(),
                slot,
                is_slow: false,
            });
            return Some((call, Delivery::new(group, caller, deadline)));
        }
        // the number is 0 already if the queue has ended meanwhile
        state.drivers = state.drivers.saturating_sub(1);
        None
    }

    /// Takes back the caller of a call that has ended. If Redis refused the call, returns the pause
    /// before the next one.
    pub fn ended(&self, sending: Delivery, outcome: &Result<ExecutedCall>) -> Option<Duration> {
        let mut state = self.state.lock();
        match outcome {
            // A caller is used again only if its call was counted. After an error its call may
            // still arrive, or another process may have the same name.
            Ok(_) => state.callers.give_back(sending.caller),
            Err(refusal) if was_not_executed(refusal) => {
                state.refusal = Some(refusal.clone());
                return Some(state.refusals.next().min(LONGEST_PAUSE));
            }
            Err(_) => {}
        }
        if state.refusal.is_some() {
            (state.refusals, state.refusal) = (Backoff::default(), None);
        }
        None
    }

    /// Ends a call of which nothing was sent, so that its callers retry.
    pub fn dismiss(&self, call: &Arc<Call>) {
        let mut state = self.state.lock();
        let is_its = |one: &OpenCall| Arc::ptr_eq(&one.call, call);
        if let Some(at) = state.gathering.values().position(is_its) {
            state.gathering.shift_remove_index(at);
            self.room.notify_waiters();
            call.end(Err(self.unsent(&state)));
        }
    }

    /// Returns the error for hits that were not sent in time: why Redis refused the last call, or
    /// else that there was no time.
    fn unsent(&self, state: &State) -> Error {
        let refusal = state.refusal.clone();
        refusal.unwrap_or_else(|| self.route.error(ErrorKind::Redis, UNSENT))
    }

    /// Wakes the callers of a slow call and of gathering hits, so that they check the time. Lets
    /// other slots continue beside the call. Returns whether one more driver must be spawned.
    #[must_use]
    pub fn check_time(&self, slow: &Arc<Call>) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        slow.wake();
        for one in &mut state.in_flight {
            one.is_slow |= Arc::ptr_eq(&one.call, slow);
        }
        for gathering in state.gathering.values() {
            gathering.call.wake();
        }
        self.takes_driver(state)
    }

    /// Fails all hits on their way and all later ones, because the runtime has ended.
    fn end(&self) {
        let mut state = self.state.lock();
        state.drivers = 0;
        for (_, gathering) in state.gathering.drain(..) {
            gathering.call.end(Err(self.runtime_ended()));
        }
        for one in state.in_flight.drain(..) {
            let what = "the runtime that made the call has ended";
            let unknown = self.route.error(ErrorKind::OutcomeUnknown, what);
            one.call.end(Err(unknown));
        }
        self.room.notify_waiters();
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.queue.state.lock().lone = None;
    }
}

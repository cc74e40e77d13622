//! Requests: a hit with a name from the application, which any process may request again, also in a
//! later epoch, and which counts once.
//!
//! A request for a buffered counter is one call. One for a cached counter that misses is followed by
//! the next call, with a ticket. [`fence`](crate::fence) shows the calls of callers with random
//! names, and [`cached`](crate::cached) what a seed does to values.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use crate::terms::{Hits, Name, next_name};

/// The model of one request, the processes that make it, and its home partition.
#[derive(Clone, Debug)]
pub struct Requests {
    /// The counter is a cached one, which is not in Redis at first.
    pub cached: bool,
    /// The application stored the epoch before it first made the request.
    pub since: bool,
    /// No call arrives more than once.
    pub sends_once: bool,
    /// A crash empties Redis instead of taking it back to its last fsync.
    pub emptied: bool,
    /// The number of times that each process makes the request.
    pub attempts: Vec<u8>,
    /// The number of epochs that begin after the first.
    pub epochs: u8,
    /// The number of times that the cached counter is deleted.
    pub deletions: u8,
    /// The number of times that Redis crashes.
    pub crashes: u8,
    /// The guard that is left out.
    pub mistake: Option<Mistake>,
}

/// A guard of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A call names the current epoch, so that Redis looks it up in one memory.
    NameCurrentEpoch,
    /// An attempt goes on, although what it did first may be forgotten.
    OutliveEpochs,
    /// A request that begins again forgets that a later call may have been executed.
    ForgetDoubt,
    /// Redis executes a call whose predecessor it does not know as missed.
    AcceptGaps,
    /// The request is made, although the epoch that the application stored has ended.
    IgnoreSince,
    /// EXPIRED counts as proof that no arrival was executed.
    ExpiredIsProof,
}

/// Redis, the database, the processes and their calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    redis: Redis,
    saved: Redis,
    database: Hits,
    processes: Vec<Process>,
    /// The calls that may still arrive, and how often.
    sent: BTreeMap<Call, u8>,
    /// The attempts that counted the hit, each with the number of epochs that had begun.
    counted_by: BTreeMap<Attempt, u8>,
    /// The hit counted again where it must not.
    doubled: bool,
    /// A process was told that the hit counted.
    acknowledged: bool,
    /// A crash took the hit from Redis.
    lost: bool,
    /// The attempts that were reported as not counted.
    denied: BTreeSet<Attempt>,
    crashes: u8,
    deletions: u8,
    epochs: u8,
    /// The last name that was given out, to epochs and tickets.
    names: Name,
}

/// An epoch, and the number of epochs that had begun before it.
type Since = (Name, u8);

/// A process, and the number of its attempt.
type Attempt = (usize, u8);

/// A call as its copies arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    attempt: Attempt,
    /// The number of epochs before the first send of the attempt that may have been executed.
    began: u8,
    n: u8,
    epoch: Name,
    /// The ticket of the seed that precedes it in the same pipeline; 0 without one.
    ticket: Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Epochs {
    now: Name,
    before: Name,
}

impl Epochs {
    fn knows(self, epoch: Name) -> bool {
        self.now == epoch || self.before == epoch
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    /// The epochs that it received last; none make it ask.
    epochs: Option<Epochs>,
    /// The number of its latest attempt.
    attempt: u8,
    /// The state of the attempt, until it ends.
    progress: Option<Progress>,
}

/// The progress of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Progress {
    /// The number of its last call that is known to have been executed.
    n: u8,
    /// The ticket of the last miss; 0 without one.
    ticket: Name,
    /// The number of a call that may have been executed.
    doubt: Option<u8>,
    /// The current epoch of its first send that may have been executed, or the one that the
    /// application stored.
    since: Option<Since>,
    waiting: Option<Waiting>,
}

/// A call that a process awaits the reply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    call: Call,
    /// The attempt's `doubt` and `since` before it was sent.
    before: (Option<u8>, Option<Since>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Redis {
    epochs: Epochs,
    /// The request's last call in the current epoch, and in the previous one.
    memory: Option<Last>,
    previous_memory: Option<Last>,
    /// Whether the counter is in Redis.
    has_base: bool,
    /// The ticket of the counter's miss; 0 without one.
    ticket: Name,
    /// The hits that are not in the database yet.
    counted: Hits,
}

/// A call and its stored result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Last {
    n: u8,
    result: Result,
}

/// The result of an executed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Result {
    Counted,
    /// The counter is missing, and has this ticket.
    Missed(Name),
}

/// The reply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// The result of this arrival, or of the first one.
    Executed(Result),
    /// A call before the request's last one.
    Passed,
    Expired,
}

/// A step of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A process sends the next call of its attempt, or of a new one, or finds that it must not. It
    /// no longer waits for the reply to an earlier call, which may still arrive.
    Send(usize),
    /// A process asks for the epochs first, and then sends.
    AskAndSend(usize),
    /// A call arrives, and its process receives the reply.
    Arrive(Call),
    /// A call arrives, and the reply is lost or no process waits for it.
    ArriveUnanswered(Call),
    /// The time of an attempt is over.
    End(usize),
    /// The current epoch becomes the previous one.
    BeginEpoch,
    /// A cached counter without pending hits is deleted.
    Delete,
    /// Redis makes its state durable.
    Save,
    /// Redis crashes and returns.
    Crash,
    /// The hits that are durable move to the database.
    Store,
}

const HIT: u8 = 0;
const FIRST_EPOCH: Name = 1;

impl Requests {
    /// Returns a small model: two processes, of which one makes the request twice.
    pub fn new(cached: bool) -> Self {
        Self {
            cached,
            since: true,
            sends_once: false,
            emptied: false,
            attempts: vec![2, 1],
            epochs: 2,
            deletions: u8::from(cached),
            crashes: 0,
            mistake: None,
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Sends the next call of a process, unless Redis may have forgotten the request.
    fn send(&self, state: &mut State, number: usize) -> Option<()> {
        let process = &mut state.processes[number];
        let epochs = process.epochs?;
        let mut progress = process.progress.take().unwrap_or_else(|| {
            process.attempt += 1;
            let is_stored = self.since && !self.makes(Mistake::IgnoreSince);
            Progress {
                since: is_stored.then_some((FIRST_EPOCH, 0)),
                ..Progress::default()
            }
        });
        if progress
            .since
            .is_some_and(|(epoch, _)| !epochs.knows(epoch))
        {
            // it asks first; the outcome is unknown if the epoch has ended
            return (epochs == state.redis.epochs).then_some(());
        }
        let before = (progress.doubt, progress.since);
        let since = *progress.since.get_or_insert((epochs.now, state.epochs));
        if self.makes(Mistake::OutliveEpochs) {
            progress.since = before.1;
        }
        let call = Call {
            attempt: (number, process.attempt),
            began: since.1,
            n: progress.n + 1,
            epoch: if self.makes(Mistake::NameCurrentEpoch) {
                epochs.now
            } else {
                epochs.before
            },
            ticket: progress.ticket,
        };
        progress.waiting = Some(Waiting { call, before });
        progress.doubt.get_or_insert(call.n);
        process.progress = Some(progress);
        let arrivals = if self.sends_once { 1 } else { 2 };
        state.sent.insert(call, arrivals);
        Some(())
    }

    /// Returns the reply of Redis to a call that arrives, `None` if the call is executed.
    fn refusal(&self, redis: &Redis, call: Call) -> Option<Reply> {
        if !redis.epochs.knows(call.epoch) {
            return Some(Reply::Expired);
        }
        let is_previous = call.epoch == redis.epochs.before;
        let previous = redis.previous_memory.filter(|_| is_previous);
        let last = redis.memory.into_iter().chain(previous);
        let last = last.max_by_key(|last| last.n);
        let last_n = last.map_or(0, |last| last.n);
        match last {
            _ if call.n > last_n && self.makes(Mistake::AcceptGaps) => None,
            Some(last)
                if call.n == last_n || (call.n > last_n && last.result == Result::Counted) =>
            {
                Some(Reply::Executed(last.result))
            }
            _ if call.n < last_n => Some(Reply::Passed),
            _ if call.n == last_n + 1 => None,
            _ => Some(Reply::Expired),
        }
    }

    /// Lets a call arrive and returns the reply.
    fn arrive(&self, state: &mut State, call: Call) -> Reply {
        let redis = &mut state.redis;
        if call.ticket != 0 && call.ticket == redis.ticket && !redis.has_base {
            (redis.has_base, redis.ticket) = (true, 0);
        }
        if let Some(left) = state.sent.get_mut(&call) {
            *left -= 1;
        }
        if let Some(refusal) = self.refusal(redis, call) {
            return refusal;
        }
        let result = if self.cached && !redis.has_base {
            if redis.ticket == 0 {
                redis.ticket = next_name(&mut state.names);
            }
            Result::Missed(redis.ticket)
        } else {
            if (state.database + redis.counted).contains(HIT) {
                let is_promised = |(by, epochs): (&Attempt, &u8)| {
                    self.since
                        || *by == call.attempt
                        || call.began <= *epochs
                        || state.epochs < epochs + 2
                };
                state.doubled |= state.counted_by.iter().any(is_promised);
            }
            state.counted_by.insert(call.attempt, state.epochs);
            redis.counted = redis.counted + Hits::one(HIT);
            state.lost = false;
            Result::Counted
        };
        redis.memory = Some(Last { n: call.n, result });
        Reply::Executed(result)
    }

    /// Gives a process the reply to the call that it waits for.
    fn receive(&self, state: &mut State, number: usize, reply: Reply) -> Option<()> {
        let process = &mut state.processes[number];
        let mut progress = process.progress.take()?;
        let Waiting { before, .. } = progress.waiting.take()?;
        let next = |progress: Progress, ticket| Progress {
            n: progress.n + 1,
            ticket,
            // a later call may have been executed before the request began again
            doubt: before
                .0
                .filter(|n| *n > progress.n + 1 && !self.makes(Mistake::ForgetDoubt)),
            ..progress
        };
        process.progress = match reply {
            Reply::Executed(Result::Counted) => {
                state.acknowledged = true;
                None
            }
            Reply::Executed(Result::Missed(ticket)) => Some(next(progress, ticket)),
            Reply::Passed => {
                let ticket = progress.ticket;
                Some(next(progress, ticket))
            }
            Reply::Expired => {
                process.epochs = None;
                progress.n = 0;
                if self.sends_once || self.makes(Mistake::ExpiredIsProof) {
                    (progress.doubt, progress.since) = before;
                }
                Some(progress)
            }
        };
        Some(())
    }

    fn crash(&self, state: &mut State) {
        let before = state.redis.counted;
        state.redis = if self.emptied {
            Redis::new(next_name(&mut state.names))
        } else {
            state.saved.clone()
        };
        let remains = state.redis.counted + state.database;
        if before.contains(HIT) && !remains.contains(HIT) {
            state.lost = true;
            state.counted_by.clear();
        }
        state.crashes += 1;
    }

    /// Forgets calls whose arrival changes nothing: none waits for them, and their epoch has ended.
    fn forget_late(&self, state: &mut State) {
        let may_return = state.crashes < self.crashes && !self.emptied;
        let State {
            redis,
            saved,
            processes,
            sent,
            ..
        } = state;
        sent.retain(|call, left| {
            let is_known = redis.epochs.knows(call.epoch)
                || (may_return && saved.epochs.knows(call.epoch))
                || processes[call.attempt.0].waits_for(*call);
            *left > 0 && is_known
        });
    }

    fn durable(&self, state: &State) -> Hits {
        if self.emptied || state.crashes == self.crashes {
            state.redis.counted
        } else {
            state.redis.counted.among(state.saved.counted)
        }
    }

    /// Returns whether a call can arrive that receives such a reply.
    fn has_arrival(&self, state: &State, kind: impl Fn(&Call, Option<Reply>) -> bool) -> bool {
        let mut calls = state.sent.keys();
        calls.any(|call| kind(call, self.refusal(&state.redis, *call)))
    }
}

impl Process {
    fn waits_for(&self, call: Call) -> bool {
        let waiting = self.progress.as_ref().and_then(|progress| progress.waiting);
        waiting.is_some_and(|waiting| waiting.call == call)
    }
}

impl Redis {
    fn new(epoch: Name) -> Self {
        Self {
            epochs: Epochs {
                now: epoch,
                before: epoch,
            },
            memory: None,
            previous_memory: None,
            has_base: false,
            ticket: 0,
            counted: Hits::default(),
        }
    }
}

impl Model for Requests {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let process = Process {
            epochs: None,
            attempt: 0,
            progress: None,
        };
        vec![State {
            redis: Redis::new(FIRST_EPOCH),
            saved: Redis::new(FIRST_EPOCH),
            database: Hits::default(),
            processes: vec![process; self.attempts.len()],
            sent: BTreeMap::new(),
            counted_by: BTreeMap::new(),
            doubled: false,
            acknowledged: false,
            lost: false,
            denied: BTreeSet::new(),
            crashes: 0,
            deletions: 0,
            epochs: 0,
            names: FIRST_EPOCH,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (number, process) in state.processes.iter().enumerate() {
            if process.progress.is_some() {
                steps.push(Step::End(number));
            } else if process.attempt == self.attempts[number] {
                continue;
            }
            if process.epochs.is_some() {
                steps.push(Step::Send(number));
            }
            if process.epochs != Some(state.redis.epochs) {
                steps.push(Step::AskAndSend(number));
            }
        }
        for call in state.sent.keys() {
            steps.push(Step::ArriveUnanswered(*call));
            if state.processes[call.attempt.0].waits_for(*call) {
                steps.push(Step::Arrive(*call));
            }
        }
        if state.epochs < self.epochs {
            steps.push(Step::BeginEpoch);
        }
        let is_deletable =
            state.redis.counted.is_empty() && (state.redis.has_base || state.redis.ticket != 0);
        if is_deletable && state.deletions < self.deletions {
            steps.push(Step::Delete);
        }
        if state.crashes < self.crashes {
            steps.push(Step::Crash);
            if !self.emptied && state.saved != state.redis {
                steps.push(Step::Save);
            }
        }
        if !self.durable(state).is_empty() {
            steps.push(Step::Store);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Send(number) => self.send(&mut state, number)?,
            Step::AskAndSend(number) => {
                state.processes[number].epochs = Some(state.redis.epochs);
                self.send(&mut state, number)?;
            }
            Step::Arrive(call) => {
                let reply = self.arrive(&mut state, call);
                self.receive(&mut state, call.attempt.0, reply)?;
            }
            Step::ArriveUnanswered(call) => {
                self.arrive(&mut state, call);
            }
            Step::End(number) => {
                let process = &mut state.processes[number];
                if process.progress.take()?.doubt.is_none() {
                    state.denied.insert((number, process.attempt));
                }
            }
            Step::BeginEpoch => {
                state.epochs += 1;
                let redis = &mut state.redis;
                redis.epochs.before = redis.epochs.now;
                redis.epochs.now = next_name(&mut state.names);
                redis.previous_memory = redis.memory.take();
            }
            Step::Delete => {
                state.deletions += 1;
                (state.redis.has_base, state.redis.ticket) = (false, 0);
            }
            Step::Save => state.saved = state.redis.clone(),
            Step::Crash => self.crash(&mut state),
            Step::Store => {
                let durable = self.durable(&state);
                state.database = state.database + durable;
                state.redis.counted = state.redis.counted.without(durable);
                state.saved.counted = state.saved.counted.without(durable);
            }
        }
        self.forget_late(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("a request counts once", |_, state: &State| !state.doubled),
            Property::always("an acknowledged request was counted", |_, state: &State| {
                let counted = state.database + state.redis.counted;
                !state.acknowledged || state.lost || counted.contains(HIT)
            }),
            Property::always(
                "no attempt counts that was reported as not counted",
                |model: &Self, state: &State| {
                    // a crash forgets misses, and a copy of a call that missed may count after it
                    let is_exempt = model.cached && state.crashes > 0;
                    let mut counted = state.counted_by.keys();
                    is_exempt || !counted.any(|attempt| state.denied.contains(attempt))
                },
            ),
            Property::sometimes(
                "another process receives the outcome in the next epoch",
                |model: &Self, state: &State| {
                    model.has_arrival(state, |call, reply| {
                        !state.counted_by.contains_key(&call.attempt)
                            && state.redis.memory.is_none()
                            && reply == Some(Reply::Executed(Result::Counted))
                    })
                },
            ),
            Property::sometimes("the request is in the database", |_, state: &State| {
                state.acknowledged && state.database == Hits::one(HIT)
            }),
        ];
        if self.emptied || self.epochs > 1 {
            properties.push(Property::sometimes(
                "a call arrives too late",
                |model: &Self, state: &State| {
                    model.has_arrival(state, |_, reply| reply == Some(Reply::Expired))
                },
            ));
        }
        if self.cached {
            properties.push(Property::sometimes(
                "a process passes over calls of another one",
                |model: &Self, state: &State| {
                    model.has_arrival(state, |_, reply| reply == Some(Reply::Passed))
                },
            ));
        }
        properties
    }
}

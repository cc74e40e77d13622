//! Requests: a pair of a call with a name from the application, which any process may request again,
//! minutes or hours later, and which is decided once.
//!
//! Redis stores the decision in two memories, of the current generation and the one before, and a
//! call names the generation that its process knew. The calls here have no fence: the memories and
//! the generation alone must keep a late copy from counting. [`fence`](crate::fence) shows the calls
//! themselves, and [`cached`](crate::cached) what a seed does to values.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use crate::terms::{Crash, Hits, Name, next_name};

/// The model of one request, the processes that make it, and its home partition.
#[derive(Clone, Debug)]
pub struct Requests {
    /// The counter is a cached one, which is not in Redis at first.
    pub cached: bool,
    /// The counter's bounds refuse the hit at first.
    pub refused: bool,
    /// The application stored the generation before it first made the request.
    pub since: bool,
    /// No call arrives more than once.
    pub sends_once: bool,
    /// The state in which Redis returns after a crash.
    pub crash: Crash,
    /// The number of times that each process makes the request.
    pub attempts: Vec<u8>,
    /// The number of generations that begin after the first, at any time.
    pub generations: u8,
    /// The number of times that the cached counter is deleted.
    pub deletions: u8,
    /// The number of times that Redis crashes.
    pub crashes: u8,
    /// The number of batches that reach the database.
    pub batches: u8,
    /// The guard that is left out.
    pub mistake: Option<Mistake>,
}

/// A guard of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A call names no generation, so that Redis executes it whenever it arrives.
    NoGeneration,
    /// Redis looks a request up in the current memory only.
    OneMemory,
    /// The application makes the request in the current generation, not in the one that it stored.
    IgnoreSince,
    /// EXPIRED counts as proof that no arrival was executed.
    ExpiredIsProof,
    /// A reset after a set-back keeps the names of the generations.
    ResetKeepsNames,
    /// A reset after a set-back keeps the decisions.
    ResetKeepsDecisions,
    /// A refusal by the bounds is not stored.
    RefusalNotStored,
    /// A miss is stored.
    MissStored,
    /// The process that asks makes the name of a generation, which can return.
    NamesOfCallers,
}

/// Redis, the database, the processes and their calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    redis: Redis,
    saved: Redis,
    database: Hits,
    /// The number of batches in the database.
    ledger: u8,
    processes: Vec<Process>,
    /// The calls that may still arrive, and how often.
    sent: BTreeMap<Call, u8>,
    /// The decision with which the hit in the database was counted.
    stored: Decided,
    /// The database contains the hit twice, although an earlier decision should have kept it from
    /// counting again.
    doubled: bool,
    /// Redis made another decision than before, on which the application may have acted.
    changed: bool,
    /// A process was notified that the hit counted, but no hit exists.
    invented: bool,
    /// A call was not executed although its counter was there.
    stuck: bool,
    /// A process was notified that the hit counted.
    acknowledged: bool,
    /// The attempts that were reported as not counted.
    denied: BTreeSet<Attempt>,
    crashes: u8,
    deletions: u8,
    generations: u8,
    /// The time, counted in generations.
    time: Time,
    /// The last name that was given out.
    names: Name,
}

/// A time, counted in generations: one passes when a generation begins, and two when Redis loses
/// both memories at once, or a reset makes them unknown. So Redis may remember a decision until the
/// time is two higher.
type Time = u8;

/// The decisions that no crash has reverted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Decided {
    /// The latest decision, and the time at which it was made.
    last: Option<(Decision, Time)>,
    /// The attempts that counted the hit.
    counted_by: BTreeSet<Attempt>,
}

/// A generation, and the time at which its process received it.
type Generation = (Name, Time);

/// A process, and the number of its attempt.
type Attempt = (usize, u8);

/// A call as its copies arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    attempt: Attempt,
    generation: Generation,
    /// A seed of the counter precedes it in the same pipeline.
    seeds: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    /// The generation that it received last; none makes it ask.
    known: Option<Generation>,
    /// The number of its latest attempt.
    attempt: u8,
    /// The state of the attempt, until it ends.
    progress: Option<Progress>,
}

/// The progress of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Progress {
    /// The generation that its calls name.
    generation: Option<Generation>,
    /// The last call missed the counter.
    missed: bool,
    /// A call may have been executed.
    in_doubt: bool,
    /// The call whose reply it awaits, and whether an earlier call of the attempt may have been
    /// executed.
    waiting: Option<(Call, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Redis {
    /// The current generation and the one before; 0 is none.
    now: Name,
    before: Name,
    memory: Memory,
    previous_memory: Memory,
    decided: Decided,
    /// The counter is in Redis.
    has_base: bool,
    /// The bounds refuse the hit.
    refuses: bool,
    /// The hits that are not in the database yet.
    pending: Hits,
    /// One of them is in the database, too, or was pending before, although an earlier decision
    /// should have kept it from counting again.
    doubles: bool,
    /// The number of the last batch.
    seq: u8,
}

/// The memory of a generation: the request, as it was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Memory {
    decision: Option<Decision>,
    /// The decision is from before the last reset.
    is_outdated: bool,
}

/// The stored outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Decision {
    Counted,
    Refused,
    /// Only with [`Mistake::MissStored`].
    Missed,
}

/// The reply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// The decision of this arrival, or of an earlier one.
    Decided(Decision),
    /// The counter is not in Redis.
    Missed,
    Expired,
}

/// A step of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A process sends the call of its attempt, or of a new one. It no longer waits for the reply to
    /// an earlier call, which may still arrive.
    Send(usize),
    /// A process asks for the generation first, and then sends.
    AskAndSend(usize),
    /// A call arrives, and its process receives the reply.
    Arrive(Call),
    /// A call arrives, and the reply is lost or no process waits for it.
    ArriveUnanswered(Call),
    /// The time of an attempt is over.
    End(usize),
    /// The current generation becomes the one before.
    BeginGeneration,
    /// A cached counter without pending hits is deleted.
    Delete,
    /// The bounds no longer refuse the hit.
    Refill,
    /// Redis makes its state durable, or takes a snapshot.
    Save,
    /// Redis crashes and returns.
    Crash,
    /// A batch with what is pending, of this counter and of others, moves to the database.
    Store,
    /// A reconciler resets the partition, because the ledger is ahead of it.
    Reset,
}

const HIT: u8 = 0;
const FIRST_GENERATION: Name = 1;

impl Requests {
    /// Returns a small model: two processes, of which one makes the request twice.
    pub fn new(cached: bool) -> Self {
        Self {
            cached,
            refused: false,
            since: true,
            sends_once: false,
            crash: Crash::ToLastFsync,
            attempts: vec![2, 1],
            generations: 2,
            deletions: u8::from(cached),
            crashes: 0,
            batches: 1,
            mistake: None,
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Sends the call of a process.
    fn send(&self, state: &mut State, number: usize) -> Option<()> {
        let process = &mut state.processes[number];
        let known = process.known?;
        let mut progress = process.progress.take().unwrap_or_else(|| {
            process.attempt += 1;
            let is_stored = self.since && !self.makes(Mistake::IgnoreSince);
            Progress {
                generation: is_stored.then_some((FIRST_GENERATION, 0)),
                ..Progress::default()
            }
        });
        let call = Call {
            attempt: (number, process.attempt),
            generation: *progress.generation.get_or_insert(known),
            seeds: progress.missed,
        };
        progress.waiting = Some((call, progress.in_doubt));
        progress.in_doubt = true;
        process.progress = Some(progress);
        let arrivals = if self.sends_once { 1 } else { 2 };
        state.sent.insert(call, arrivals);
        Some(())
    }

    /// Returns the reply of Redis to a call that arrives, `None` if it must be executed.
    fn known_reply(&self, redis: &Redis, call: Call) -> Option<Reply> {
        let (generation, _) = call.generation;
        if !redis.knows(generation) && !self.makes(Mistake::NoGeneration) {
            return Some(Reply::Expired);
        }
        let previous = (!self.makes(Mistake::OneMemory)).then_some(redis.previous_memory);
        let mut memories = [redis.memory].into_iter().chain(previous);
        let found = memories.find(|one| one.decision.is_some())?;
        if found.is_outdated {
            return Some(Reply::Expired);
        }
        found.decision.map(Reply::Decided)
    }

    /// Lets a call arrive and returns the reply.
    fn arrive(&self, state: &mut State, call: Call) -> Reply {
        if let Some(left) = state.sent.get_mut(&call) {
            *left -= 1;
        }
        let time = state.time;
        let redis = &mut state.redis;
        redis.has_base |= call.seeds;
        if let Some(reply) = self.known_reply(redis, call) {
            state.stuck |= redis.has_base && reply == Reply::Decided(Decision::Missed);
            return reply;
        }
        let decision = if self.cached && !redis.has_base {
            if !self.makes(Mistake::MissStored) {
                return Reply::Missed;
            }
            Decision::Missed
        } else if redis.refuses {
            Decision::Refused
        } else {
            Decision::Counted
        };
        // An earlier decision must hold for this call in three cases: the application stored the
        // generation before its first request; the process received the generation, which the call
        // names, before the decision; or at most one generation has begun since the decision.
        let (_, asked) = call.generation;
        let earlier: Vec<_> = [&redis.decided, &state.stored]
            .into_iter()
            .filter_map(|decided| decided.last)
            .filter(|(_, at)| self.since || asked <= *at || time <= at + 1)
            .collect();
        if decision == Decision::Counted {
            let is_counted = (state.database + redis.pending).contains(HIT);
            redis.doubles |= is_counted && !earlier.is_empty();
            redis.pending = redis.pending.union(Hits::one(HIT));
            redis.decided.counted_by.insert(call.attempt);
        }
        state.changed |= earlier
            .into_iter()
            .any(|(other, _)| other != decision && other != Decision::Missed);
        if decision != Decision::Missed {
            redis.decided.last = Some((decision, time));
        }
        if decision != Decision::Refused || !self.makes(Mistake::RefusalNotStored) {
            redis.memory = Memory {
                decision: Some(decision),
                is_outdated: false,
            };
        }
        Reply::Decided(decision)
    }

    /// Gives a process the reply to the call that it waits for.
    fn receive(&self, state: &mut State, number: usize, reply: Reply) -> Option<()> {
        let has_hit = (state.database + state.redis.pending).contains(HIT);
        let process = &mut state.processes[number];
        let mut progress = process.progress.take()?;
        let (_, was_in_doubt) = progress.waiting.take()?;
        // The model has no fence, so a copy of the call may have arrived before this one. Only a
        // connection that never resends rules that out.
        progress.in_doubt = was_in_doubt || !self.sends_once;
        process.progress = match reply {
            Reply::Decided(Decision::Counted) => {
                state.acknowledged = true;
                state.invented |= !has_hit;
                None
            }
            Reply::Decided(Decision::Refused) => None,
            Reply::Missed | Reply::Decided(Decision::Missed) => {
                progress.missed = true;
                Some(progress)
            }
            Reply::Expired => {
                progress.in_doubt &= !self.makes(Mistake::ExpiredIsProof);
                process.known = None;
                // EXPIRED means that Redis no longer knows decisions of the generation. If the
                // application stored the generation, or an earlier call that may have been executed
                // named it, that may include the decision on this request. A call in a newer
                // generation could then count it twice, so the attempt ends.
                if self.since || progress.in_doubt {
                    if !progress.in_doubt {
                        state.denied.insert((number, process.attempt));
                    }
                    None
                } else {
                    progress.generation = None;
                    Some(progress)
                }
            }
        };
        Some(())
    }

    fn begin_generation(&self, state: &mut State) {
        state.generations += 1;
        state.time += 1;
        let redis = &mut state.redis;
        redis.before = redis.now;
        redis.now = next_name(&mut state.names);
        redis.previous_memory = std::mem::take(&mut redis.memory);
    }

    fn crash(&self, state: &mut State) {
        state.crashes += 1;
        state.redis = match self.crash {
            Crash::ToLastFsync | Crash::SetBack => state.saved.clone(),
            Crash::Emptied => {
                state.time += 2;
                let name = if self.makes(Mistake::NamesOfCallers) {
                    FIRST_GENERATION
                } else {
                    next_name(&mut state.names)
                };
                Redis {
                    seq: state.ledger,
                    ..Redis::new(name, state.redis.refuses)
                }
            }
        };
    }

    /// Drops what is pending, because the database may have it.
    fn reset(&self, state: &mut State) {
        state.time += 2;
        let redis = &mut state.redis;
        (redis.pending, redis.doubles, redis.has_base) = (Hits::default(), false, false);
        redis.seq = state.ledger;
        if !self.makes(Mistake::ResetKeepsNames) {
            (redis.now, redis.before) = (next_name(&mut state.names), 0);
        }
        if !self.makes(Mistake::ResetKeepsDecisions) {
            redis.memory.is_outdated = true;
            redis.previous_memory.is_outdated = true;
        }
        redis.decided = Decided::default();
    }

    /// Forgets calls whose arrival changes nothing, so that fewer states differ: no process waits
    /// for them, and their generation has ended.
    fn forget_late(&self, state: &mut State) {
        let may_return = state.crashes < self.crashes;
        let is_unnamed = self.makes(Mistake::NoGeneration) || self.makes(Mistake::NamesOfCallers);
        let State {
            redis,
            saved,
            processes,
            sent,
            ..
        } = state;
        sent.retain(|call, left| {
            let (generation, _) = call.generation;
            let is_known = redis.knows(generation)
                || is_unnamed
                || (may_return && saved.knows(generation))
                || processes[call.attempt.0].waits_for(*call);
            *left > 0 && is_known
        });
    }

    /// Returns the pending hits that a batch may take to the database.
    fn durable(&self, state: &State) -> Hits {
        let waits = self.crash == Crash::ToLastFsync && state.crashes < self.crashes;
        if waits {
            state.redis.pending.among(state.saved.pending)
        } else {
            state.redis.pending
        }
    }

    /// Returns whether a call can arrive that receives such a reply without being executed.
    fn has_arrival(&self, state: &State, kind: impl Fn(&Call, Option<Reply>) -> bool) -> bool {
        let mut calls = state.sent.keys();
        calls.any(|call| kind(call, self.known_reply(&state.redis, *call)))
    }
}

impl State {
    /// Returns whether the ledger proves that Redis was set back.
    fn is_set_back(&self) -> bool {
        self.redis.seq < self.ledger
    }
}

impl Process {
    fn waits_for(&self, call: Call) -> bool {
        let waiting = self.progress.as_ref().and_then(|progress| progress.waiting);
        waiting.is_some_and(|(waiting, _)| waiting == call)
    }
}

impl Redis {
    fn new(generation: Name, refuses: bool) -> Self {
        Self {
            now: generation,
            before: 0,
            memory: Memory::default(),
            previous_memory: Memory::default(),
            decided: Decided::default(),
            has_base: false,
            refuses,
            pending: Hits::default(),
            doubles: false,
            seq: 0,
        }
    }

    fn knows(&self, generation: Name) -> bool {
        self.now == generation || self.before == generation
    }
}

impl Model for Requests {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let process = Process {
            known: None,
            attempt: 0,
            progress: None,
        };
        vec![State {
            redis: Redis::new(FIRST_GENERATION, self.refused),
            saved: Redis::new(FIRST_GENERATION, self.refused),
            database: Hits::default(),
            ledger: 0,
            processes: vec![process; self.attempts.len()],
            sent: BTreeMap::new(),
            stored: Decided::default(),
            doubled: false,
            changed: false,
            invented: false,
            stuck: false,
            acknowledged: false,
            denied: BTreeSet::new(),
            crashes: 0,
            deletions: 0,
            generations: 0,
            time: 0,
            names: FIRST_GENERATION,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let current = (state.redis.now, state.time);
        for (number, process) in state.processes.iter().enumerate() {
            if process.progress.is_some() {
                steps.push(Step::End(number));
            } else if process.attempt == self.attempts[number] {
                continue;
            }
            if process.known.is_some() {
                steps.push(Step::Send(number));
            }
            if process.known != Some(current) {
                steps.push(Step::AskAndSend(number));
            }
        }
        for call in state.sent.keys() {
            steps.push(Step::ArriveUnanswered(*call));
            if state.processes[call.attempt.0].waits_for(*call) {
                steps.push(Step::Arrive(*call));
            }
        }
        if state.generations < self.generations {
            steps.push(Step::BeginGeneration);
        }
        let is_deletable = state.redis.pending.is_empty() && state.redis.has_base;
        if is_deletable && state.deletions < self.deletions {
            steps.push(Step::Delete);
        }
        if state.redis.refuses {
            steps.push(Step::Refill);
        }
        if state.crashes < self.crashes {
            steps.push(Step::Crash);
            if self.crash != Crash::Emptied && state.saved != state.redis {
                steps.push(Step::Save);
            }
        }
        if state.is_set_back() {
            steps.push(Step::Reset);
        } else if state.ledger < self.batches {
            steps.push(Step::Store);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Send(number) => self.send(&mut state, number)?,
            Step::AskAndSend(number) => {
                state.processes[number].known = Some((state.redis.now, state.time));
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
                if !process.progress.take()?.in_doubt {
                    state.denied.insert((number, process.attempt));
                }
            }
            Step::BeginGeneration => self.begin_generation(&mut state),
            Step::Delete => {
                state.deletions += 1;
                state.redis.has_base = false;
            }
            Step::Refill => state.redis.refuses = false,
            Step::Save => state.saved = state.redis.clone(),
            Step::Crash => self.crash(&mut state),
            Step::Store => {
                let durable = self.durable(&state);
                state.doubled |= state.redis.doubles && !durable.is_empty();
                if durable.contains(HIT) {
                    state.stored = state.redis.decided.clone();
                }
                state.database = state.database.union(durable);
                state.ledger += 1;
                state.redis.seq = state.ledger;
                state.redis.pending = state.redis.pending.without(durable);
                if self.crash == Crash::ToLastFsync {
                    // A batch reaches the database only after its cut is durable. So the saved
                    // state has the cut as well, and these hits are not pending in it.
                    state.saved.pending = state.saved.pending.without(durable);
                    state.saved.seq = state.ledger;
                }
            }
            Step::Reset => self.reset(&mut state),
        }
        self.forget_late(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("a request counts once", |_, state: &State| {
                !state.doubled && (state.is_set_back() || !state.redis.doubles)
            }),
            Property::always("a request is decided once", |_, state: &State| {
                !state.changed
            }),
            Property::always("no reply invents a hit", |_, state: &State| !state.invented),
            Property::always(
                "a missed request is executed after its seed",
                |_, state: &State| !state.stuck,
            ),
            Property::always(
                "no attempt counts that was reported as not counted",
                |_, state: &State| {
                    [&state.stored, &state.redis.decided]
                        .into_iter()
                        .all(|decided| decided.counted_by.is_disjoint(&state.denied))
                },
            ),
            Property::sometimes("the request is in the database", |_, state: &State| {
                state.acknowledged && state.database.contains(HIT)
            }),
        ];
        if self.generations > 0 {
            properties.push(Property::sometimes(
                "another process receives the decision in the next generation",
                |model: &Self, state: &State| {
                    model.has_arrival(state, |call, reply| {
                        !state.redis.decided.counted_by.contains(&call.attempt)
                            && !state.stored.counted_by.contains(&call.attempt)
                            && state.redis.memory.decision.is_none()
                            && reply == Some(Reply::Decided(Decision::Counted))
                    })
                },
            ));
        }
        if self.generations > 1 {
            properties.push(Property::sometimes(
                "a call arrives too late",
                |model: &Self, state: &State| {
                    model.has_arrival(state, |_, reply| reply == Some(Reply::Expired))
                },
            ));
        }
        if self.refused {
            properties.push(Property::sometimes(
                "a refusal stays although the hit would fit",
                |model: &Self, state: &State| {
                    let refused = Some(Reply::Decided(Decision::Refused));
                    !state.redis.refuses && model.has_arrival(state, |_, reply| reply == refused)
                },
            ));
        }
        if self.crash == Crash::SetBack && self.crashes > 0 {
            properties.push(Property::sometimes(
                "a request from before a reset is of unknown outcome",
                |model: &Self, state: &State| {
                    model.has_arrival(state, |call, reply| {
                        reply == Some(Reply::Expired)
                            && state.redis.memory.is_outdated
                            && (model.since || state.redis.knows(call.generation.0))
                    })
                },
            ));
        }
        properties
    }
}

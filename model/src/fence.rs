//! The fence by epochs: a call may arrive any number of times, at any time and in any order, and
//! executes once.
//!
//! The hits that Redis has counted move to the database in one step here; [`deltas`](crate::deltas)
//! shows the steps in between.

use std::collections::BTreeMap;

use stateright::{Model, Property};

use crate::terms::{Hit, Hits, Name, next_name};

/// The model of one home partition and its callers.
#[derive(Clone, Debug)]
pub struct Fence {
    /// A crash empties Redis instead of taking it back to its last fsync.
    pub emptied: bool,
    /// The callers are copies of one machine, and have one name. Their numbers differ.
    pub copies: bool,
    /// The number of calls that each caller makes. Each call counts one hit.
    pub calls: Vec<u8>,
    /// The maximum number of times that each call arrives.
    pub arrivals: u8,
    /// The number of epochs that begin after the first.
    pub epochs: u8,
    /// The number of times that Redis crashes.
    pub crashes: u8,
    /// The guard that is left out.
    pub mistake: Option<Mistake>,
}

/// A guard of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Redis remembers no calls.
    RememberNothing,
    /// Redis compares a call of the previous epoch with the memory of the current epoch alone.
    ForgetPreviousEpoch,
    /// A call of an ended epoch is compared with the current memory instead of being refused.
    AcceptAnyEpoch,
    /// Redis adopts an unknown epoch from the call.
    EpochFromCaller,
    /// An emptied Redis begins with the name of its first epoch again.
    SameNameWhenEmptied,
    /// A caller treats EXPIRED as success.
    ExpiredIsSuccess,
    /// A caller makes its next call while one is without an outcome.
    TwoCallsInFlight,
    /// The numbers of copies are equal.
    EqualNumbers,
}

/// Redis, the database, the callers and their calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    redis: Redis,
    saved: Redis,
    database: Hits,
    callers: Vec<Caller>,
    /// The calls that were made.
    sent: BTreeMap<Call, Sent>,
    /// The calls whose caller received a reply that means success.
    acknowledged: Hits,
    /// The hits that a crash took from Redis.
    lost: Hits,
    crashes: u8,
    /// The epochs that began by the clock.
    epochs: u8,
    /// The last name that was given out.
    names: Name,
}

/// An idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// The caller's name.
    pub caller: usize,
    /// The place of the call among those of its caller, from 1.
    pub number: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sent {
    epoch: Name,
    arrivals_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Caller {
    /// The latest epoch that the caller has received; 0 makes it ask.
    epoch: Name,
    /// The number of its latest call.
    made: u8,
    /// The calls that it awaits a reply to.
    waiting: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Redis {
    epoch: Name,
    previous_epoch: Name,
    /// The number of the last call under each name in the current epoch, and in the previous one.
    memory: BTreeMap<usize, u8>,
    previous_memory: BTreeMap<usize, u8>,
    /// The hits that are not in the database yet.
    counted: Hits,
}

/// The reply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Ok,
    /// The caller's last call again.
    Duplicate,
    /// A call before the caller's last one.
    Late,
    Expired,
}

/// A step of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A caller asks for the epoch.
    AskForEpoch(usize),
    /// A caller makes its next call.
    Send(usize),
    /// A call arrives and its caller receives the reply.
    Arrive(Call),
    /// A call arrives, and the reply is lost or no caller waits for it.
    ArriveUnanswered(Call),
    /// A caller stops waiting. The call may still arrive.
    GiveUp(Call),
    /// The current epoch becomes the previous one.
    BeginEpoch,
    /// Redis makes its state durable.
    Save,
    /// Redis crashes and returns.
    Crash,
    /// The hits that are durable move to the database.
    Store,
}

impl Fence {
    /// Returns a small model: a caller that makes two calls, one that makes a single call, and one
    /// crash.
    pub fn new(emptied: bool) -> Self {
        Self {
            emptied,
            copies: false,
            calls: vec![2, 1],
            arrivals: 2,
            epochs: 1,
            crashes: 1,
            mistake: None,
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn hit(&self, call: Call) -> Hit {
        self.calls[..call.caller].iter().sum::<u8>() + call.number - 1
    }

    /// Returns the name and the number that a call carries.
    fn key(&self, call: Call) -> (usize, u8) {
        if !self.copies {
            (call.caller, call.number)
        } else if self.makes(Mistake::EqualNumbers) {
            (0, call.number)
        } else {
            // Copies take steps of equal size from different starts, so no two make calls with
            // equal numbers. Callers take random steps, to the same effect.
            let copies = self.calls.len() as u8;
            (0, call.number * copies + call.caller as u8)
        }
    }

    /// Returns the reply of Redis to a call that names `epoch`.
    fn reply(&self, redis: &Redis, call: Call, epoch: Name) -> Reply {
        let (name, number) = self.key(call);
        let last = |memory: &BTreeMap<usize, u8>| memory.get(&name).copied().unwrap_or(0);
        let is_previous = epoch == redis.previous_epoch;
        let is_known = epoch == redis.epoch || is_previous;
        if !is_known
            && !self.makes(Mistake::AcceptAnyEpoch)
            && !self.makes(Mistake::EpochFromCaller)
        {
            return Reply::Expired;
        }
        let mut known = last(&redis.memory);
        if is_previous && !self.makes(Mistake::ForgetPreviousEpoch) {
            known = known.max(last(&redis.previous_memory));
        }
        match number {
            _ if self.makes(Mistake::RememberNothing) => Reply::Ok,
            number if number > known => Reply::Ok,
            number if number == known => Reply::Duplicate,
            _ => Reply::Late,
        }
    }

    /// Lets a call arrive and returns the reply.
    fn arrive(&self, state: &mut State, call: Call) -> Option<Reply> {
        let sent = state.sent.get_mut(&call)?;
        sent.arrivals_left -= 1;
        let epoch = sent.epoch;
        let reply = self.reply(&state.redis, call, epoch);
        if reply == Reply::Ok {
            let redis = &mut state.redis;
            if self.makes(Mistake::EpochFromCaller) && epoch != redis.previous_epoch {
                redis.epoch = epoch;
            }
            let (name, number) = self.key(call);
            redis.memory.insert(name, number);
            let hit = Hits::one(self.hit(call));
            redis.counted = redis.counted + hit;
            state.lost = state.lost.without(hit);
        }
        Some(reply)
    }

    fn after_crash(&self, state: &State) -> Redis {
        if self.emptied {
            let is_same = self.makes(Mistake::SameNameWhenEmptied);
            Redis::new(if is_same {
                FIRST_EPOCH
            } else {
                state.names + 1
            })
        } else {
            state.saved.clone()
        }
    }

    fn durable(&self, state: &State) -> Hits {
        let Redis { counted, .. } = state.redis;
        if self.emptied {
            counted
        } else {
            counted.without(counted.without(state.saved.counted))
        }
    }

    /// Returns whether a call can arrive whose epoch and reply are of this `kind`.
    fn has_repeat(&self, state: &State, kind: impl Fn(Name, Reply) -> bool) -> bool {
        state.sent.iter().any(|(call, sent)| {
            sent.arrivals_left > 0 && kind(sent.epoch, self.reply(&state.redis, *call, sent.epoch))
        })
    }
}

const FIRST_EPOCH: Name = 1;

impl Redis {
    fn new(epoch: Name) -> Self {
        Self {
            epoch,
            previous_epoch: 0,
            memory: BTreeMap::new(),
            previous_memory: BTreeMap::new(),
            counted: Hits::default(),
        }
    }
}

impl Model for Fence {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            redis: Redis::new(FIRST_EPOCH),
            saved: Redis::new(FIRST_EPOCH),
            database: Hits::default(),
            callers: vec![
                Caller {
                    epoch: FIRST_EPOCH,
                    made: 0,
                    waiting: Vec::new()
                };
                self.calls.len()
            ],
            sent: BTreeMap::new(),
            acknowledged: Hits::default(),
            lost: Hits::default(),
            crashes: 0,
            epochs: 0,
            names: FIRST_EPOCH,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (number, caller) in state.callers.iter().enumerate() {
            let may_call = caller.waiting.is_empty() || self.makes(Mistake::TwoCallsInFlight);
            if may_call && caller.made < self.calls[number] {
                steps.push(if caller.epoch == 0 {
                    Step::AskForEpoch(number)
                } else {
                    Step::Send(number)
                });
            }
        }
        for (call, sent) in &state.sent {
            let is_awaited = state.callers[call.caller].waiting.contains(&call.number);
            if sent.arrivals_left > 0 {
                steps.push(Step::ArriveUnanswered(*call));
                if is_awaited {
                    steps.push(Step::Arrive(*call));
                }
            }
            if is_awaited {
                steps.push(Step::GiveUp(*call));
            }
        }
        if state.epochs < self.epochs {
            steps.push(Step::BeginEpoch);
        }
        if !self.emptied && state.saved != state.redis {
            steps.push(Step::Save);
        }
        if state.crashes < self.crashes {
            steps.push(Step::Crash);
        }
        if !self.durable(state).is_empty() {
            steps.push(Step::Store);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::AskForEpoch(caller) => state.callers[caller].epoch = state.redis.epoch,
            Step::Send(number) => {
                let caller = &mut state.callers[number];
                caller.made += 1;
                caller.waiting.push(caller.made);
                let sent = Sent {
                    epoch: caller.epoch,
                    arrivals_left: self.arrivals,
                };
                state.sent.insert(
                    Call {
                        caller: number,
                        number: caller.made,
                    },
                    sent,
                );
            }
            Step::Arrive(call) => {
                let reply = self.arrive(&mut state, call)?;
                let caller = &mut state.callers[call.caller];
                caller.waiting.retain(|number| *number != call.number);
                caller.epoch = state.redis.epoch;
                let is_success = match reply {
                    Reply::Ok | Reply::Duplicate => true,
                    Reply::Late => false,
                    Reply::Expired => self.makes(Mistake::ExpiredIsSuccess),
                };
                if is_success {
                    state.acknowledged = state.acknowledged.union(Hits::one(self.hit(call)));
                }
            }
            Step::ArriveUnanswered(call) => {
                self.arrive(&mut state, call)?;
            }
            Step::GiveUp(call) => {
                let caller = &mut state.callers[call.caller];
                caller.waiting.retain(|number| *number != call.number);
                caller.epoch = 0;
            }
            Step::BeginEpoch => {
                state.epochs += 1;
                state.redis.previous_epoch = state.redis.epoch;
                state.redis.epoch = next_name(&mut state.names);
                state.redis.previous_memory = std::mem::take(&mut state.redis.memory);
            }
            Step::Save => state.saved = state.redis.clone(),
            Step::Crash => {
                let before = state.redis.counted;
                state.redis = self.after_crash(&state);
                state.names = state.names.max(state.redis.epoch);
                state.lost = state
                    .lost
                    .union(before)
                    .without(state.redis.counted)
                    .without(state.database);
                state.crashes += 1;
            }
            Step::Store => {
                let durable = self.durable(&state);
                state.database = state.database + durable;
                state.redis.counted = state.redis.counted.without(durable);
                state.saved.counted = state.saved.counted.without(durable);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("no call is counted twice", |_, state: &State| {
                !(state.database + state.redis.counted).has_repeats()
            }),
            Property::always("an acknowledged call was counted", |_, state: &State| {
                state
                    .database
                    .union(state.redis.counted)
                    .union(state.lost)
                    .contains_all(state.acknowledged)
            }),
            Property::always(
                "no caller waits for a call that is refused as late",
                |model: &Self, state: &State| {
                    // A copy may wait for such a call, because the number of another copy can be
                    // higher under the same name. The outcome of its call is then unknown.
                    model.copies
                        || state.sent.iter().all(|(call, sent)| {
                            let is_awaited =
                                state.callers[call.caller].waiting.contains(&call.number);
                            !is_awaited
                                || model.reply(&state.redis, *call, sent.epoch) != Reply::Late
                        })
                },
            ),
            Property::sometimes(
                "a repeat is refused by the memory of its epoch",
                |model: &Self, state: &State| {
                    model.has_repeat(state, |epoch, reply| {
                        epoch == state.redis.epoch && reply == Reply::Duplicate
                    })
                },
            ),
            Property::sometimes(
                "a repeat is refused by the memory of the previous epoch",
                |model: &Self, state: &State| {
                    model.has_repeat(state, |epoch, reply| {
                        epoch == state.redis.previous_epoch && reply == Reply::Duplicate
                    })
                },
            ),
            Property::sometimes(
                "a repeat is refused as late",
                |model: &Self, state: &State| {
                    model.has_repeat(state, |_, reply| reply == Reply::Late)
                },
            ),
            Property::sometimes(
                "a call of an ended epoch is refused",
                |model: &Self, state: &State| {
                    model.has_repeat(state, |_, reply| reply == Reply::Expired)
                },
            ),
            Property::sometimes(
                "every call is acknowledged and in the database",
                |model: &Self, state: &State| {
                    let all = Hits::first(model.calls.iter().sum());
                    state.database == all && state.acknowledged == all
                },
            ),
        ];
        if !self.emptied {
            properties.push(Property::sometimes(
                "a repeat brings back what a crash took",
                |model: &Self, state: &State| {
                    state.sent.iter().any(|(call, sent)| {
                        state.lost.contains(model.hit(*call))
                            && sent.arrivals_left > 0
                            && model.reply(&state.redis, *call, sent.epoch) == Reply::Ok
                    })
                },
            ));
        }
        properties
    }
}

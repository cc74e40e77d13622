//! Cached counters: the value is in Redis as base + batch + buffer, and reaches the row as deltas.
//!
//! All hits are on one counter. The base is the row as it was when the counter was seeded or last
//! saved. Parts, exact reads, repeated calls and the probe are left to [`deltas`](crate::deltas).

use stateright::{Model, Property};

use crate::terms::{BatchId, Crash, Database, Hit, Hits, Name, Verdict, next_name};

/// The model of one cached counter.
#[derive(Clone, Debug)]
pub struct Cached {
    /// The state in which Redis returns after a crash.
    pub crash: Crash,
    /// The number of hits that are made.
    pub hits: u8,
    /// The number of clients that count.
    pub clients: usize,
    /// The number of workers that bring batches to the database, without a lease.
    pub workers: usize,
    /// The number of times that Redis crashes.
    pub crashes: u8,
    /// Another application adds to the row once.
    pub outside_writer: bool,
    /// The guard that is left out.
    pub mistake: Option<Mistake>,
}

/// A guard of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A seed is accepted with any ticket.
    AcceptAnyTicket,
    /// A counter is deleted while its buffer or batch is not empty.
    DeletePending,
    /// A save adds the batch to the base instead of using the row as read back.
    SaveWithoutReadingBack,
    /// A save does not check that its batch is the current one.
    SaveAnyBatch,
    /// A partition that begins anew keeps its base or ticket.
    KeepEntryWhenBeginningAnew,
    /// A worker fetches a batch whose rotation is not durable yet.
    FetchBeforeDurable,
    /// A worker adds every batch that it fetched, whatever the ledger says.
    IgnoreLedger,
}

/// The counter in Redis and in the database, its clients and its workers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    redis: Redis,
    saved: Redis,
    database: Database,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    /// The hits that clients have begun to count.
    calls: u8,
    acknowledged: Hits,
    /// The hits that a crash took from Redis before they were stored.
    lost: Hits,
    /// The hits that were reported as dropped when the partition began anew, and were not stored
    /// then.
    dropped: Hits,
    crashes: u8,
    /// The last name that was given out.
    names: Name,
    /// A save left a value that differs from the row, although it had read the row as it is.
    saved_wrong_value: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Redis {
    entry: Entry,
    buffer: Hits,
    batch: Option<Hits>,
    last_cut: BatchId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Missing,
    Ticket(Name),
    Base(Hits),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Idle,
    Counting { hit: Hit },
    Missed { hit: Hit, ticket: Name },
    ReadRow { hit: Hit, ticket: Name, row: Hits },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Worker {
    Idle,
    Fetched { id: BatchId, batch: Hits },
    Applied { id: BatchId },
    ReadBack { id: BatchId, row: Hits },
}

/// A step of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A client begins to count the next hit.
    ClientBegins(usize),
    /// A client counts if there is a base, and receives a ticket if not.
    ClientIncrements(usize),
    /// A client reads the row for its ticket.
    ClientReadsRow(usize),
    /// A client counts, with the row it read as a seed.
    ClientSeeds(usize),
    /// A counter is deleted at the end of its retention.
    Delete,
    /// Another application adds to the row.
    OutsideWrite,
    /// Redis makes its state durable.
    Save,
    /// Redis crashes and returns.
    Crash,
    /// A worker renames the buffer to a batch.
    WorkerCuts(usize),
    /// A worker fetches the batch.
    WorkerFetches(usize),
    /// A worker adds its batch to the row, unless the ledger has it.
    WorkerApplies(usize),
    /// A worker whose batch is behind the ledger makes the partition begin anew, if Redis still has
    /// that batch.
    WorkerBeginsAnew(usize),
    /// A worker reads the row back.
    WorkerReadsBack(usize),
    /// A worker saves the counter: the row becomes the base, and the batch is dropped.
    WorkerSaves(usize),
    /// A worker dies and another takes its place.
    WorkerDies(usize),
}

/// The hit that the outside writer adds to the row.
const OUTSIDE: Hit = Hits::CAPACITY - 1;

impl Cached {
    /// Returns a small model: two hits by two clients, one worker and one crash.
    pub fn new(crash: Crash) -> Self {
        Self {
            crash,
            hits: 2,
            clients: 2,
            workers: 1,
            crashes: 1,
            outside_writer: false,
            mistake: None,
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn after_crash(&self, state: &State) -> Redis {
        if self.crash == Crash::Emptied {
            Redis::new(state.names + 1)
        } else {
            state.saved.clone()
        }
    }

    fn is_durable(&self, state: &State) -> bool {
        self.crash != Crash::ToLastFsync || state.saved.last_cut == state.redis.last_cut
    }

    fn verdict(&self, state: &State, id: BatchId) -> Verdict {
        if self.makes(Mistake::IgnoreLedger) {
            Verdict::New
        } else {
            state.database.ledger.row(id.incarnation).verdict(id)
        }
    }

    fn crash(&self, state: &mut State) {
        let before = state.redis.pending();
        state.redis = self.after_crash(state);
        state.names = state.names.max(state.redis.last_cut.incarnation);
        if self.crash == Crash::Emptied {
            state.saved = state.redis.clone();
        }
        let after = state.redis.pending();
        state.lost = state
            .lost
            .union(before.without(state.database.rows))
            .without(after);
        state.dropped = state.dropped.without(after);
        state.crashes += 1;
    }

    /// Drops what is not in the database and starts a new incarnation, if the partition is still as
    /// `seen`.
    fn begin_anew(&self, state: &mut State, seen: BatchId) {
        if state.redis.last_cut != seen {
            return;
        }
        state.dropped = state
            .dropped
            .union(state.redis.pending().without(state.database.rows));
        let entry = state.redis.entry;
        state.redis = Redis::new(next_name(&mut state.names));
        if self.makes(Mistake::KeepEntryWhenBeginningAnew) {
            state.redis.entry = entry;
        }
    }
}

impl State {
    /// Returns the value that a client sees, if there is a base.
    fn value(&self) -> Option<Hits> {
        match self.redis.entry {
            Entry::Base(base) => {
                Some(base + self.redis.batch.unwrap_or_default() + self.redis.buffer)
            }
            _ => None,
        }
    }

    fn is_set_back(&self) -> bool {
        self.database.ledger.proves_set_back(self.redis.last_cut)
    }

    fn count(&mut self, client: usize, hit: Hit) {
        self.redis.buffer = self.redis.buffer + Hits::one(hit);
        self.acknowledged = self.acknowledged.union(Hits::one(hit));
        self.clients[client] = Client::Idle;
    }
}

impl Redis {
    fn new(incarnation: Name) -> Self {
        let last_cut = BatchId {
            incarnation,
            ..BatchId::default()
        };
        Self {
            entry: Entry::Missing,
            buffer: Hits::default(),
            batch: None,
            last_cut,
        }
    }

    fn pending(&self) -> Hits {
        self.buffer.union(self.batch.unwrap_or_default())
    }
}

impl Model for Cached {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            redis: Redis::new(1),
            saved: Redis::new(1),
            database: Database::default(),
            clients: vec![Client::Idle; self.clients],
            workers: vec![Worker::Idle; self.workers],
            calls: 0,
            acknowledged: Hits::default(),
            lost: Hits::default(),
            dropped: Hits::default(),
            crashes: 0,
            names: 1,
            saved_wrong_value: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let redis = &state.redis;
        for (number, client) in state.clients.iter().enumerate() {
            match client {
                Client::Idle if state.calls < self.hits => steps.push(Step::ClientBegins(number)),
                Client::Idle => {}
                Client::Counting { .. } => steps.push(Step::ClientIncrements(number)),
                Client::Missed { .. } => steps.push(Step::ClientReadsRow(number)),
                Client::ReadRow { .. } => steps.push(Step::ClientSeeds(number)),
            }
        }
        let is_idle = redis.buffer.is_empty() && redis.batch.is_none();
        if matches!(redis.entry, Entry::Base(_)) && (is_idle || self.makes(Mistake::DeletePending))
        {
            steps.push(Step::Delete);
        }
        if self.outside_writer && !state.database.rows.contains(OUTSIDE) {
            steps.push(Step::OutsideWrite);
        }
        if self.crash != Crash::Emptied && state.saved != *redis {
            steps.push(Step::Save);
        }
        if state.crashes < self.crashes && self.after_crash(state) != *redis {
            steps.push(Step::Crash);
        }
        for (number, worker) in state.workers.iter().enumerate() {
            match worker {
                Worker::Idle if redis.batch.is_none() => {
                    if !redis.buffer.is_empty() {
                        steps.push(Step::WorkerCuts(number));
                    }
                    continue;
                }
                Worker::Idle => {
                    if self.is_durable(state) || self.makes(Mistake::FetchBeforeDurable) {
                        steps.push(Step::WorkerFetches(number));
                    }
                    continue;
                }
                Worker::Fetched { id, .. } => steps.push(match self.verdict(state, *id) {
                    Verdict::Behind => Step::WorkerBeginsAnew(number),
                    _ => Step::WorkerApplies(number),
                }),
                Worker::Applied { .. } => steps.push(Step::WorkerReadsBack(number)),
                Worker::ReadBack { .. } => steps.push(Step::WorkerSaves(number)),
            }
            steps.push(Step::WorkerDies(number));
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::ClientBegins(client) => {
                state.clients[client] = Client::Counting { hit: state.calls };
                state.calls += 1;
            }
            Step::ClientIncrements(client) => {
                let Client::Counting { hit } = state.clients[client] else {
                    return None;
                };
                let ticket = match state.redis.entry {
                    Entry::Base(_) => {
                        state.count(client, hit);
                        return Some(state);
                    }
                    Entry::Ticket(ticket) => ticket,
                    Entry::Missing => next_name(&mut state.names),
                };
                state.redis.entry = Entry::Ticket(ticket);
                state.clients[client] = Client::Missed { hit, ticket };
            }
            Step::ClientReadsRow(client) => {
                let Client::Missed { hit, ticket } = state.clients[client] else {
                    return None;
                };
                state.clients[client] = Client::ReadRow {
                    hit,
                    ticket,
                    row: state.database.rows,
                };
            }
            Step::ClientSeeds(client) => {
                let Client::ReadRow { hit, ticket, row } = state.clients[client] else {
                    return None;
                };
                match state.redis.entry {
                    Entry::Base(_) => state.count(client, hit),
                    entry
                        if entry == Entry::Ticket(ticket)
                            || self.makes(Mistake::AcceptAnyTicket) =>
                    {
                        state.redis.entry = Entry::Base(row);
                        state.count(client, hit);
                    }
                    _ => state.clients[client] = Client::Counting { hit },
                }
            }
            Step::Delete => state.redis.entry = Entry::Missing,
            Step::OutsideWrite => state.database.rows = state.database.rows + Hits::one(OUTSIDE),
            Step::Save => state.saved = state.redis.clone(),
            Step::Crash => self.crash(&mut state),
            Step::WorkerCuts(_) => {
                let redis = &mut state.redis;
                redis.batch = Some(std::mem::take(&mut redis.buffer));
                redis.last_cut.seq += 1;
                redis.last_cut.nonce = next_name(&mut state.names);
            }
            Step::WorkerFetches(worker) => {
                state.workers[worker] = Worker::Fetched {
                    id: state.redis.last_cut,
                    batch: state.redis.batch?,
                };
            }
            Step::WorkerApplies(worker) => {
                let Worker::Fetched { id, batch } = state.workers[worker] else {
                    return None;
                };
                if self.verdict(&state, id) == Verdict::New {
                    state.database.rows = state.database.rows + batch;
                    state.database.ledger.advance(id, None);
                }
                state.workers[worker] = Worker::Applied { id };
            }
            Step::WorkerBeginsAnew(worker) => {
                let Worker::Fetched { id, .. } = state.workers[worker] else {
                    return None;
                };
                state.workers[worker] = Worker::Idle;
                self.begin_anew(&mut state, id);
            }
            Step::WorkerReadsBack(worker) => {
                let Worker::Applied { id } = state.workers[worker] else {
                    return None;
                };
                state.workers[worker] = Worker::ReadBack {
                    id,
                    row: state.database.rows,
                };
            }
            Step::WorkerSaves(worker) => {
                let Worker::ReadBack { id, row } = state.workers[worker] else {
                    return None;
                };
                state.workers[worker] = Worker::Idle;
                let is_current = state.redis.last_cut == id || self.makes(Mistake::SaveAnyBatch);
                if let Some(batch) = state.redis.batch.filter(|_| is_current) {
                    if let Entry::Base(base) = state.redis.entry {
                        let is_read = !self.makes(Mistake::SaveWithoutReadingBack);
                        state.redis.entry = Entry::Base(if is_read { row } else { base + batch });
                    }
                    state.redis.batch = None;
                    let expected = state.database.rows + state.redis.buffer;
                    state.saved_wrong_value |= row == state.database.rows
                        && state.value().is_some_and(|value| value != expected);
                }
            }
            Step::WorkerDies(worker) => state.workers[worker] = Worker::Idle,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("no hit is stored twice", |_, state: &State| {
                !state.database.rows.has_repeats()
            }),
            Property::always(
                "no acknowledged hit is lost without a report",
                |_, state: &State| {
                    let there = state.database.rows.union(state.redis.pending());
                    there
                        .union(state.lost)
                        .union(state.dropped)
                        .contains_all(state.acknowledged)
                },
            ),
            Property::always(
                "no stored hit is pending, unless the ledger proves that Redis was set back",
                |_, state: &State| {
                    let Redis {
                        batch,
                        buffer,
                        last_cut,
                        ..
                    } = state.redis;
                    let is_applied = state
                        .database
                        .ledger
                        .row(last_cut.incarnation)
                        .verdict(last_cut)
                        == Verdict::Same;
                    let batch = if is_applied {
                        Hits::default()
                    } else {
                        batch.unwrap_or_default()
                    };
                    !(state.database.rows + batch + buffer).has_repeats() || state.is_set_back()
                },
            ),
            Property::always(
                "a value contains every hit acknowledged before it",
                |_, state: &State| {
                    let expected = state
                        .acknowledged
                        .without(state.lost)
                        .without(state.dropped);
                    state
                        .value()
                        .is_none_or(|value| value.contains_all(expected))
                        || state.is_set_back()
                },
            ),
            Property::always("a value contains no hit twice", |_, state: &State| {
                state.value().is_none_or(|value| !value.has_repeats()) || state.is_set_back()
            }),
            Property::always(
                "a save brings the value up to date with the row",
                |_, state: &State| !state.saved_wrong_value,
            ),
            Property::sometimes("a deleted counter is seeded again", |_, state: &State| {
                state.crashes == 0
                    && state.clients.iter().any(|client| match client {
                        Client::ReadRow { ticket, row, .. } => {
                            row.contains(0) && state.redis.entry == Entry::Ticket(*ticket)
                        }
                        _ => false,
                    })
            }),
            Property::sometimes("a seed comes too late", |_, state: &State| {
                state.clients.iter().any(|client| match client {
                    Client::ReadRow { ticket, .. } => state.redis.entry != Entry::Ticket(*ticket),
                    _ => false,
                })
            }),
            Property::sometimes(
                "a save finds newer hits in the buffer",
                |_, state: &State| {
                    !state.redis.buffer.is_empty()
                        && state.workers.iter().any(|worker| match worker {
                            Worker::ReadBack { id, .. } => *id == state.redis.last_cut,
                            _ => false,
                        })
                },
            ),
            Property::sometimes(
                "everything is stored at the end",
                |model: &Self, state: &State| {
                    state.redis.pending().is_empty()
                        && state.database.rows.contains_all(Hits::first(model.hits))
                },
            ),
        ];
        if self.clients > 1 {
            properties.push(Property::sometimes(
                "two misses share a ticket",
                |_, state: &State| {
                    let tickets = state.clients.iter().filter_map(|client| match client {
                        Client::Missed { ticket, .. } => Some(ticket),
                        _ => None,
                    });
                    tickets.clone().count() > 1
                        && tickets
                            .clone()
                            .all(|ticket| Entry::Ticket(*ticket) == state.redis.entry)
                },
            ));
        }
        if self.outside_writer {
            properties.push(Property::sometimes(
                "a save brings in the hit of the outside writer",
                |_, state: &State| {
                    state
                        .workers
                        .iter()
                        .any(|worker| match (worker, state.redis.entry) {
                            (Worker::ReadBack { id, row }, Entry::Base(base)) => {
                                *id == state.redis.last_cut
                                    && row.contains(OUTSIDE)
                                    && !base.contains(OUTSIDE)
                            }
                            _ => false,
                        })
                },
            ));
        }
        if self.crash == Crash::SetBack {
            properties.push(Property::sometimes(
                "the partition begins anew",
                |_, state: &State| !state.dropped.is_empty(),
            ));
        } else {
            properties.push(Property::always(
                "Redis is never behind the ledger, unless it was set back",
                |_, state: &State| !state.is_set_back(),
            ));
        }
        properties
    }
}

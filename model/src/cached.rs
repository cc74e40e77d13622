//! Cached counters: the value is in Redis as base + batch + buffer, and reaches the row as deltas.
//!
//! The counters are in one partition, and hits alternate between them. A base is the row as it was
//! when the counter was seeded or last saved. Applying in parts, exact reads, repeated calls and the
//! probe are left to [`deltas`](crate::deltas).

use std::ops::Add;

use stateright::{Model, Property};

use crate::terms::{BatchId, Crash, Database, Hit, Hits, Name, Verdict, next_name};

/// The model of cached counters.
#[derive(Clone, Debug)]
pub struct Cached {
    /// The state in which Redis returns after a crash.
    pub crash: Crash,
    /// The number of counters. A worker saves one after the other.
    pub counters: usize,
    /// The number of hits that are made.
    pub hits: u8,
    /// The number of clients that count.
    pub clients: usize,
    /// The number of workers that bring batches to the database, without a lease.
    pub workers: usize,
    /// The number of times that Redis crashes.
    pub crashes: u8,
    /// The number of tickets that end before they have seeded a counter.
    pub expiries: u8,
    /// Another application adds to the first counter's row once.
    pub outside_writer: bool,
    /// A bound refuses a second hit on the first counter until its value has what the other
    /// application adds: a stock that is sold out until it is refilled.
    pub sold_out: bool,
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
    /// A save also marks a counter that another worker has marked.
    MarkTwice,
    /// A hit is refused although the base is old and nothing is pending.
    RefuseFromOldRow,
    /// The row is read again before a refusal although hits are pending.
    ReadAgainWhilePending,
    /// A partition that begins anew keeps its bases and tickets.
    KeepEntryWhenBeginningAnew,
    /// A worker fetches a batch whose rotation is not durable yet.
    FetchBeforeDurable,
    /// A worker adds every batch that it fetched, whatever the ledger says.
    IgnoreLedger,
}

/// The counters in Redis and in the database, their clients and workers.
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
    expiries: u8,
    /// The last name that was given out.
    names: Name,
    /// A save left a value other than the row plus the buffer, although the row had not changed
    /// since the worker read it.
    saved_wrong_value: bool,
    /// A save replaced a base by an older row.
    saved_old_row: bool,
    /// The row has had what the other application added for more than a second.
    is_refilled: bool,
    /// A hit was refused although the row had long been refilled and nothing was pending.
    refused_wrongly: bool,
    /// A client has read the row again before it was refused.
    has_read_again: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Redis {
    entries: Vec<Entry>,
    buffer: Hits,
    batch: Option<Hits>,
    last_cut: BatchId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Missing,
    Ticket(Name),
    Base {
        row: Hits,
        /// It was seeded or saved more than a second ago.
        is_old: bool,
    },
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
    Fetched {
        id: BatchId,
        batch: Hits,
    },
    Applied {
        id: BatchId,
    },
    /// It has read the rows, and saves this counter next.
    ReadBack {
        id: BatchId,
        rows: Hits,
        counter: usize,
    },
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
    /// A second passes.
    Wait,
    /// A counter is deleted at the end of its retention, or its ticket ends.
    Delete(usize),
    /// Another application adds to a row.
    OutsideWrite,
    /// Redis makes its state durable.
    Save,
    /// Redis crashes and returns.
    Crash,
    /// A worker renames the buffer to a batch.
    WorkerCuts(usize),
    /// A worker fetches the batch.
    WorkerFetches(usize),
    /// A worker adds its batch to the rows, unless the ledger has it.
    WorkerApplies(usize),
    /// A worker whose batch is behind the ledger makes the partition begin anew, if Redis still has
    /// that batch.
    WorkerBeginsAnew(usize),
    /// A worker reads the rows back.
    WorkerReadsBack(usize),
    /// A worker saves a counter: the row becomes the base, and the counter leaves the batch.
    WorkerSaves(usize),
    /// A worker dies and another takes its place.
    WorkerDies(usize),
}

/// The hit that the outside writer adds. Hits belong to the counters in turn, so this even number
/// belongs to the first of one or two counters.
const OUTSIDE: Hit = Hits::CAPACITY - 2;

impl Cached {
    /// Returns a small model: two hits on one counter by two clients, one worker and one crash.
    pub fn new(crash: Crash) -> Self {
        Self {
            crash,
            counters: 1,
            hits: 2,
            clients: 2,
            workers: 1,
            crashes: 1,
            expiries: 0,
            outside_writer: false,
            sold_out: false,
            mistake: None,
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn after_crash(&self, state: &State) -> Redis {
        if self.crash == Crash::Emptied {
            Redis::new(state.names + 1, self.counters)
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
        let anew = Redis::new(next_name(&mut state.names), self.counters);
        let before = std::mem::replace(&mut state.redis, anew);
        if self.makes(Mistake::KeepEntryWhenBeginningAnew) {
            state.redis.entries = before.entries;
        }
    }

    /// Saves a counter, if the batch is still the one that was read back. Returns whether a part of
    /// the batch is left.
    fn save_counter(&self, state: &mut State, id: BatchId, rows: Hits, counter: usize) -> bool {
        let is_current = state.redis.last_cut == id || self.makes(Mistake::SaveAnyBatch);
        let Some(batch) = state.redis.batch.filter(|_| is_current) else {
            return false;
        };
        let (own, row) = (self.of(batch, counter), self.of(rows, counter));
        let is_skipped = own.is_empty() && !self.makes(Mistake::MarkTwice);
        if let (Entry::Base { row: base, .. }, false) = (state.redis.entries[counter], is_skipped) {
            let is_read = !self.makes(Mistake::SaveWithoutReadingBack);
            let saved = if is_read { row } else { base + own };
            state.redis.entries[counter] = Entry::fresh(saved);
            state.saved_old_row |= base.contains(OUTSIDE) && !saved.contains(OUTSIDE);
        }
        let left = batch.without(own);
        state.redis.batch = Some(left).filter(|left| !left.is_empty());
        let stored = self.of(state.database.rows, counter);
        let expected = stored + self.of(state.redis.buffer, counter);
        let value = self.value(state, counter);
        state.saved_wrong_value |=
            !is_skipped && row == stored && value.is_some_and(|value| value != expected);
        !left.is_empty()
    }

    fn counter(&self, hit: Hit) -> usize {
        usize::from(hit) % self.counters
    }

    /// Returns the hits of a counter.
    fn of(&self, hits: Hits, counter: usize) -> Hits {
        let own = hits
            .iter()
            .filter(|hit| self.counter(*hit) == counter)
            .map(Hits::one)
            .fold(Hits::default(), Add::add);
        hits.among(own)
    }

    /// Returns the value that a client sees, if there is a base.
    fn value(&self, state: &State, counter: usize) -> Option<Hits> {
        let Redis { batch, buffer, .. } = state.redis;
        match state.redis.entries[counter] {
            Entry::Base { row, .. } => {
                Some(row + self.of(batch.unwrap_or_default(), counter) + self.of(buffer, counter))
            }
            _ => None,
        }
    }

    /// Counts a hit on a counter with a base, unless a bound refuses it. A refusal needs a recent
    /// row, because the other application may have changed it. So an old base is replaced by a
    /// ticket, and the client reads the row first. A base with pending hits stays, because the row
    /// lacks these hits; their save brings the current row.
    fn count_within_bounds(&self, state: &mut State, client: usize, hit: Hit) {
        let counter = self.counter(hit);
        let value = self.value(state, counter).unwrap_or_default();
        if !self.sold_out || counter > 0 || value.is_empty() || value.contains(OUTSIDE) {
            state.count(client, hit);
            return;
        }
        let is_idle = self.of(state.redis.pending(), counter).is_empty();
        let is_old = matches!(
            state.redis.entries[counter],
            Entry::Base { is_old: true, .. }
        );
        let reads_again = is_old && (is_idle || self.makes(Mistake::ReadAgainWhilePending));
        if reads_again && !self.makes(Mistake::RefuseFromOldRow) {
            let ticket = next_name(&mut state.names);
            state.redis.entries[counter] = Entry::Ticket(ticket);
            state.has_read_again = true;
            state.clients[client] = Client::Missed { hit, ticket };
            return;
        }
        state.refused_wrongly |= is_idle && is_old && state.is_refilled;
        state.clients[client] = Client::Idle;
    }

    /// Returns whether a client is about to seed a counter under a condition on the counter's entry,
    /// the client's ticket and its row.
    fn any_seed(&self, state: &State, condition: impl Fn(Entry, Name, Hits) -> bool) -> bool {
        state.clients.iter().any(|client| match *client {
            Client::ReadRow { hit, ticket, row } => {
                condition(state.redis.entries[self.counter(hit)], ticket, row)
            }
            _ => false,
        })
    }

    /// Returns whether the values of all counters with a base fulfill a condition.
    fn all_values(&self, state: &State, condition: impl Fn(usize, Hits) -> bool) -> bool {
        (0..self.counters).all(|counter| {
            self.value(state, counter)
                .is_none_or(|value| condition(counter, value))
        })
    }
}

impl State {
    fn is_set_back(&self) -> bool {
        self.database.ledger.proves_set_back(self.redis.last_cut)
    }

    fn count(&mut self, client: usize, hit: Hit) {
        self.redis.buffer = self.redis.buffer + Hits::one(hit);
        self.acknowledged = self.acknowledged.union(Hits::one(hit));
        self.clients[client] = Client::Idle;
    }
}

impl Entry {
    /// Returns the base of a counter that was just seeded or saved.
    fn fresh(row: Hits) -> Self {
        Entry::Base { row, is_old: false }
    }
}

impl Redis {
    fn new(incarnation: Name, counters: usize) -> Self {
        let last_cut = BatchId {
            incarnation,
            ..BatchId::default()
        };
        Self {
            entries: vec![Entry::Missing; counters],
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
            redis: Redis::new(1, self.counters),
            saved: Redis::new(1, self.counters),
            database: Database::default(),
            clients: vec![Client::Idle; self.clients],
            workers: vec![Worker::Idle; self.workers],
            calls: 0,
            acknowledged: Hits::default(),
            lost: Hits::default(),
            dropped: Hits::default(),
            crashes: 0,
            expiries: 0,
            names: 1,
            saved_wrong_value: false,
            saved_old_row: false,
            is_refilled: false,
            refused_wrongly: false,
            has_read_again: false,
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
        for (counter, entry) in redis.entries.iter().enumerate() {
            let is_idle = self.of(redis.pending(), counter).is_empty();
            let is_due = match entry {
                Entry::Missing => false,
                Entry::Ticket(_) => state.expiries < self.expiries,
                Entry::Base { .. } => true,
            };
            if is_due && (is_idle || self.makes(Mistake::DeletePending)) {
                steps.push(Step::Delete(counter));
            }
        }
        let is_fresh = |entry: &Entry| matches!(entry, Entry::Base { is_old: false, .. });
        if self.sold_out && redis.entries.iter().any(is_fresh) {
            steps.push(Step::Wait);
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
                let counter = self.counter(hit);
                let ticket = match state.redis.entries[counter] {
                    Entry::Base { .. } => {
                        self.count_within_bounds(&mut state, client, hit);
                        return Some(state);
                    }
                    Entry::Ticket(ticket) => ticket,
                    Entry::Missing => next_name(&mut state.names),
                };
                state.redis.entries[counter] = Entry::Ticket(ticket);
                state.clients[client] = Client::Missed { hit, ticket };
            }
            Step::ClientReadsRow(client) => {
                let Client::Missed { hit, ticket } = state.clients[client] else {
                    return None;
                };
                state.clients[client] = Client::ReadRow {
                    hit,
                    ticket,
                    row: self.of(state.database.rows, self.counter(hit)),
                };
            }
            Step::ClientSeeds(client) => {
                let Client::ReadRow { hit, ticket, row } = state.clients[client] else {
                    return None;
                };
                let counter = self.counter(hit);
                match state.redis.entries[counter] {
                    Entry::Base { .. } => self.count_within_bounds(&mut state, client, hit),
                    entry
                        if entry == Entry::Ticket(ticket)
                            || self.makes(Mistake::AcceptAnyTicket) =>
                    {
                        state.redis.entries[counter] = Entry::fresh(row);
                        self.count_within_bounds(&mut state, client, hit);
                    }
                    _ => state.clients[client] = Client::Counting { hit },
                }
            }
            Step::Wait => {
                for entry in &mut state.redis.entries {
                    if let Entry::Base { is_old, .. } = entry {
                        *is_old = true;
                    }
                }
                state.is_refilled = state.database.rows.contains(OUTSIDE);
            }
            Step::Delete(counter) => {
                let entry = std::mem::replace(&mut state.redis.entries[counter], Entry::Missing);
                state.expiries += u8::from(matches!(entry, Entry::Ticket(_)));
            }
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
                    rows: state.database.rows,
                    counter: 0,
                };
            }
            Step::WorkerSaves(worker) => {
                let Worker::ReadBack { id, rows, counter } = state.workers[worker] else {
                    return None;
                };
                let is_left = self.save_counter(&mut state, id, rows, counter);
                let next = counter + 1;
                state.workers[worker] = if is_left && next < self.counters {
                    Worker::ReadBack {
                        id,
                        rows,
                        counter: next,
                    }
                } else {
                    Worker::Idle
                };
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
                |model: &Self, state: &State| {
                    let expected = state
                        .acknowledged
                        .without(state.lost)
                        .without(state.dropped);
                    state.is_set_back()
                        || model.all_values(state, |counter, value| {
                            value.contains_all(model.of(expected, counter))
                        })
                },
            ),
            Property::always(
                "a value contains no hit twice",
                |model: &Self, state: &State| {
                    state.is_set_back() || model.all_values(state, |_, value| !value.has_repeats())
                },
            ),
            Property::always(
                "a save brings the value up to date with the row",
                |_, state: &State| !state.saved_wrong_value,
            ),
            Property::always(
                "a save does not bring back an older row",
                |_, state: &State| !state.saved_old_row,
            ),
            Property::always(
                "a refusal is not based on an old row",
                |_, state: &State| !state.refused_wrongly,
            ),
            Property::sometimes(
                "a deleted counter is seeded again",
                |model: &Self, state: &State| {
                    state.crashes == 0
                        && model.any_seed(state, |entry, ticket, row| {
                            row.contains(0) && entry == Entry::Ticket(ticket)
                        })
                },
            ),
            Property::sometimes("a seed comes too late", |model: &Self, state: &State| {
                model.any_seed(state, |entry, ticket, _| entry != Entry::Ticket(ticket))
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
                    state.redis.entries.iter().any(|entry| {
                        let sharing = tickets
                            .clone()
                            .filter(|ticket| *entry == Entry::Ticket(**ticket));
                        sharing.count() > 1
                    })
                },
            ));
        }
        if self.counters > 1 && self.workers > 1 {
            properties.push(Property::sometimes(
                "a worker takes over a batch of which a part is saved",
                |_, state: &State| {
                    let Redis {
                        batch, last_cut, ..
                    } = state.redis;
                    let saves_last = |worker: &Worker| match worker {
                        Worker::ReadBack { id, counter, .. } => *id == last_cut && *counter > 0,
                        _ => false,
                    };
                    let has_fetched = |worker: &Worker| match worker {
                        Worker::Fetched { id, batch: rest } => {
                            *id == last_cut && Some(*rest) == batch
                        }
                        _ => false,
                    };
                    state.workers.iter().any(saves_last) && state.workers.iter().any(has_fetched)
                },
            ));
        }
        if self.expiries > 0 {
            properties.push(Property::sometimes(
                "a ticket ends before its seed",
                |model: &Self, state: &State| {
                    state.expiries > 0
                        && model.any_seed(state, |entry, _, _| entry == Entry::Missing)
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
                        .any(|worker| match (worker, state.redis.entries[0]) {
                            (Worker::ReadBack { id, rows, .. }, Entry::Base { row: base, .. }) => {
                                *id == state.redis.last_cut
                                    && rows.contains(OUTSIDE)
                                    && !base.contains(OUTSIDE)
                            }
                            _ => false,
                        })
                },
            ));
        }
        if self.sold_out {
            properties.push(Property::sometimes(
                "a hit counts after the row was read again",
                |_, state: &State| state.has_read_again && !state.acknowledged.is_empty(),
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

//! The path of a delta: buffer, batch, ledger and row, exact reads on the way, and a Redis or a
//! database that was set back.
//!
//! Each hit counts on a counter of its own, so the number of a hit is also the id by which a batch
//! is sorted.

use std::collections::BTreeMap;

use stateright::{Model, Property};

use crate::terms::{BatchId, Crash, Database, Hit, Hits, LedgerRow, Name, Verdict, next_name};

/// The model of one partition.
#[derive(Clone, Debug)]
pub struct Deltas {
    /// The state in which Redis returns after a crash.
    pub crash: Crash,
    /// The number of hits that are made.
    pub hits: u8,
    /// The number of workers that bring batches to the database, without a lease.
    pub workers: usize,
    /// The number of times that Redis crashes.
    pub crashes: u8,
    /// The step that gives the partition its incarnation.
    pub incarnation: Incarnation,
    /// Each call that made a hit may arrive a second time.
    pub repeats: bool,
    /// A transaction adds one id of a batch instead of all of them.
    pub parts: bool,
    /// A reader asks for exact values.
    pub reader: bool,
    /// The reader may ask the database before Redis.
    pub database_first: bool,
    /// The reader may ask a replica of the database, which lags.
    pub replica: bool,
    /// The number of times that the replica takes the place of the database.
    pub failovers: u8,
    /// A reconciler probes for a Redis or a database that was set back.
    pub probe: bool,
    /// The guard that is left out.
    pub mistake: Option<Mistake>,
}

/// The step that gives a partition its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incarnation {
    /// The family is configured, before any caller receives the epoch.
    Configuration,
    /// The first hit, as in an unconfigured partition. Safe unless Redis is set back and calls are
    /// repeated.
    FirstHit,
    /// The first cut.
    FirstCut,
}

/// A guard of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A worker fetches a batch whose rotation is not durable yet.
    FetchBeforeDurable,
    /// A worker adds every batch that it fetched, whatever the ledger says.
    IgnoreLedger,
    /// A batch with the same seq is treated as the same batch, whatever its nonce.
    IgnoreNonce,
    /// A worker begins at the first id of a batch, whatever the position in the ledger.
    IgnorePosition,
    /// A worker releases a batch after its first part.
    ReleaseBeforeComplete,
    /// A release compares the seq but not the nonce.
    ReleaseWithoutNonce,
    /// A partition begins anew even if it has changed since the proof.
    BeginAnewUnconditionally,
    /// A partition begins anew but keeps its epoch.
    KeepEpoch,
    /// The probe completes the ledger although the batch is still in Redis.
    CompleteInFlight,
    /// A worker does not report that the ledger is behind the batch before its own.
    ApplyWithoutReport,
    /// A reader treats a batch that is partly applied as applied.
    ReadPartAsWhole,
    /// A reader treats a batch that is partly applied as not applied.
    ReadPartAsNothing,
    /// A reader does not start again when the ledger is past the batch that it saw in Redis.
    ReadPastNewerBatch,
    /// A reader does not compare the nonce of the ledger.
    ReadWithoutNonce,
    /// A reader does not check again an incarnation that has no ledger row.
    ReadWithoutRecheck,
    /// A reader keeps what it read from the database before a crash of Redis.
    ReadAcrossCrash,
    /// A reader asks a replica although no batch of the incarnation was released.
    ReadReplicaBeforeRelease,
    /// A reader takes a replica that lacks released batches for one that has them.
    ReadReplicaBehind,
}

/// The partition, the database, the workers and the readers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    redis: Redis,
    saved: Redis,
    database: Database,
    /// The replica of the database.
    replica: Database,
    workers: Vec<Worker>,
    probe: Option<(Name, LedgerRow)>,
    /// The batch that the probe found released, and not in the ledger.
    released: Option<BatchId>,
    reader: Reader,
    /// The calls made so far; each executes once in Redis and is acknowledged at once.
    calls: u8,
    /// The calls that may arrive again, with the epoch that they name.
    repeats: BTreeMap<Hit, Name>,
    /// The hits that may be missing: those that a crash took from Redis before they were stored,
    /// and those whose loss from the database was reported or can no longer be proven.
    lost: Hits,
    /// The hits that a failover took from the database, and that were not reported yet.
    missing: Hits,
    /// The hits that were reported as dropped when the partition began anew, and were not stored
    /// then.
    dropped: Hits,
    crashes: u8,
    failovers: u8,
    /// The last name that was given out.
    names: Name,
    wrong: Wrong,
}

/// The partition in Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Redis {
    buffer: Hits,
    batch: Option<Hits>,
    last_cut: BatchId,
    /// 0 until the family is configured; no call executes before.
    epoch: Name,
    /// The calls of this epoch, kept only where calls may arrive again.
    remembered: Hits,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Worker {
    Idle,
    /// Holds the content of a batch; `left` is the part that the worker has not processed.
    Fetched {
        id: BatchId,
        batch: Hits,
        left: Hits,
    },
    Complete {
        id: BatchId,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Reader {
    Idle,
    /// Has read the rows and the ledger before Redis, for the incarnation that it guesses.
    AskedDatabaseFirst {
        incarnation: Name,
        database: Database,
        crashes: u8,
        expected: Hits,
    },
    /// Has read Redis; `expected` holds the hits that were acknowledged before.
    AskedRedis {
        buffer: Hits,
        batch: Option<Hits>,
        last_cut: BatchId,
        expected: Hits,
    },
    /// Has a value from a ledger without a row for the incarnation.
    AskedDatabase {
        incarnation: Name,
        value: Hits,
        expected: Hits,
    },
}

/// Violations that only the step itself can show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Wrong {
    dropped_without_proof: bool,
    reported_without_failover: bool,
    read_misses: bool,
    read_repeats: bool,
}

/// A step of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The family is configured, and callers receive the epoch.
    Configure,
    /// The next call executes.
    Call,
    /// A call arrives a second time.
    CallAgain(Hit),
    /// Redis makes its state durable.
    Save,
    /// Redis crashes and returns.
    Crash,
    /// The probe reads the ledger row of the incarnation.
    ProbeReadsLedger,
    /// The probe reads Redis and compares.
    ProbeReadsRedis,
    /// The probe applies an empty batch in place of one that was released.
    ProbeCompletes,
    /// The reader reads the rows and the ledger before Redis.
    ReaderAsksDatabaseFirst,
    /// The reader reads what is pending.
    ReaderAsksRedis,
    /// The reader reads the rows and the ledger.
    ReaderAsksDatabase,
    /// The reader reads them from the replica.
    ReaderAsksReplica,
    /// The replica receives everything that the database has.
    Replicate,
    /// The replica takes the place of the database.
    FailOver,
    /// The reader checks the incarnation again.
    ReaderChecksIncarnation,
    /// A worker renames the buffer to a batch.
    WorkerCuts(usize),
    /// A worker fetches the batch.
    WorkerFetches(usize),
    /// A worker runs one transaction over its batch.
    WorkerApplies(usize),
    /// A worker whose batch is behind the ledger makes the partition begin anew, if Redis still has
    /// that batch.
    WorkerBeginsAnew(usize),
    /// A worker releases its batch.
    WorkerReleases(usize),
    /// A worker dies and another takes its place.
    WorkerDies(usize),
}

impl Deltas {
    /// Returns a small model: two hits, one worker and one crash, with a reader and a probe.
    pub fn new(crash: Crash) -> Self {
        Self {
            crash,
            hits: 2,
            workers: 1,
            crashes: 1,
            incarnation: Incarnation::Configuration,
            repeats: false,
            parts: true,
            reader: true,
            database_first: false,
            replica: false,
            failovers: 0,
            probe: true,
            mistake: None,
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn after_crash(&self, state: &State) -> Redis {
        if self.crash == Crash::Emptied {
            Redis::default()
        } else {
            state.saved.clone()
        }
    }

    fn is_durable(&self, state: &State) -> bool {
        self.crash != Crash::ToLastFsync || state.saved.last_cut == state.redis.last_cut
    }

    /// Returns the ledger row for a batch, as a worker sees it.
    fn ledger_row(&self, state: &State, id: BatchId) -> LedgerRow {
        let row = state.database.ledger.row(id.incarnation);
        if self.makes(Mistake::IgnoreLedger) {
            LedgerRow::default()
        } else if self.makes(Mistake::IgnoreNonce) && row.seq == id.seq {
            LedgerRow {
                nonce: id.nonce,
                ..row
            }
        } else {
            row
        }
    }

    /// Returns whether a worker holds a batch of this `kind` that is behind the ledger.
    fn is_behind(&self, state: &State, kind: impl Fn(BatchId) -> bool) -> bool {
        state.workers.iter().any(|worker| match worker {
            Worker::Fetched { id, .. } => {
                kind(*id) && self.ledger_row(state, *id).verdict(*id) == Verdict::Behind
            }
            _ => false,
        })
    }

    fn execute(&self, state: &mut State, hit: Hit) {
        let redis = &mut state.redis;
        if redis.last_cut.incarnation == 0 && self.incarnation == Incarnation::FirstHit {
            redis.last_cut.incarnation = next_name(&mut state.names);
        }
        redis.buffer = redis.buffer + Hits::one(hit);
        if self.repeats {
            redis.remembered = redis.remembered.union(Hits::one(hit));
        }
        // A hit that is counted again is neither lost nor dropped any longer.
        state.lost = state.lost.without(Hits::one(hit));
        state.missing = state.missing.without(Hits::one(hit));
        state.dropped = state.dropped.without(Hits::one(hit));
    }

    fn crash(&self, state: &mut State) {
        let before = state.redis.pending();
        state.redis = self.after_crash(state);
        // Hits that are pending again must reach the database or be reported once more.
        let after = state.redis.pending();
        state.lost = state
            .lost
            .union(before.without(state.database.rows))
            .without(after);
        state.dropped = state.dropped.without(after);
        state.lost = state.lost.union(state.reported());
        if self.crash != Crash::ToLastFsync {
            // With its memory of the last cut, Redis has lost the proof that the database had these
            // hits. No report of their loss is expected any more.
            state.lost = state.lost.union(std::mem::take(&mut state.missing));
        }
        state.crashes += 1;
    }

    /// Drops what is pending and starts a new incarnation, if the partition is still as `seen`.
    fn begin_anew(&self, state: &mut State, seen: BatchId) {
        if state.redis.last_cut != seen && !self.makes(Mistake::BeginAnewUnconditionally) {
            return;
        }
        let pending = state.redis.pending();
        // The worker saw the proof in the ledger when it decided on this step. A failover may have
        // set that ledger back since, so the proof is looked for only without failovers.
        let proven =
            state.failovers > 0 || state.database.ledger.proves_set_back(state.redis.last_cut);
        state.wrong.dropped_without_proof |= !pending.is_empty() && !proven;
        state.dropped = state.dropped.union(pending.without(state.database.rows));
        let last_cut = BatchId {
            incarnation: next_name(&mut state.names),
            ..BatchId::default()
        };
        let (epoch, remembered) = if self.makes(Mistake::KeepEpoch) {
            (state.redis.epoch, state.redis.remembered)
        } else {
            (next_name(&mut state.names), Hits::default())
        };
        state.redis = Redis {
            last_cut,
            epoch,
            remembered,
            ..Redis::default()
        };
    }

    /// Runs one transaction of a worker: adds the next ids and advances the ledger.
    fn apply(&self, state: &mut State, worker: usize) {
        let Worker::Fetched { id, batch, left } = state.workers[worker] else {
            return;
        };
        let row = self.ledger_row(state, id);
        let is_stored = |hit: &Hit| match row.verdict(id) {
            Verdict::Same => row
                .position
                .is_none_or(|position| !self.makes(Mistake::IgnorePosition) && *hit <= position),
            _ => false,
        };
        let unapplied = if self.makes(Mistake::IgnoreLedger) {
            left
        } else {
            batch
        };
        let to_add: Vec<Hit> = unapplied.iter().filter(|hit| !is_stored(hit)).collect();
        let part = if self.parts {
            &to_add[..to_add.len().min(1)]
        } else {
            &to_add[..]
        };
        if row.is_behind_before(id) && !self.makes(Mistake::ApplyWithoutReport) {
            state.report();
        }
        let mut left = Hits::default();
        if let Some(last) = part.last() {
            for hit in part {
                state.database.rows = state.database.rows + Hits::one(*hit);
            }
            let is_complete = batch.last() == Some(*last);
            state
                .database
                .ledger
                .advance(id, if is_complete { None } else { Some(*last) });
            left = to_add[part.len()..]
                .iter()
                .fold(left, |left, hit| left + Hits::one(*hit));
        }
        state.workers[worker] = if left.is_empty() || self.makes(Mistake::ReleaseBeforeComplete) {
            Worker::Complete { id }
        } else {
            Worker::Fetched { id, batch, left }
        };
    }

    /// The database loses what the replica lacks.
    fn fail_over(&self, state: &mut State) {
        let before = std::mem::replace(&mut state.database, state.replica.clone());
        let lost = before.rows.without(state.database.rows);
        self.lose(state, lost.without(state.redis.pending()));
        state.failovers += 1;
    }

    /// Notes hits that the database lost. Redis can prove the loss, so it must be reported, unless
    /// Redis may have lost memory, too.
    fn lose(&self, state: &mut State, hits: Hits) {
        let has_proof = self.crash == Crash::ToLastFsync || state.crashes == 0;
        let unreported = hits.without(state.lost);
        let noted = if has_proof {
            &mut state.missing
        } else {
            &mut state.lost
        };
        *noted = noted.union(unreported);
    }

    /// Completes the ledger for a batch that Redis has released, and reports its hits as lost.
    fn complete(state: &mut State, id: BatchId) {
        let row = state.database.ledger.row(id.incarnation);
        if !row.lacks(id) || row.verdict(id) == Verdict::Behind {
            return;
        }
        state.database.ledger.advance(id, None);
        state.report();
        state.lost = state.lost.union(state.reported());
    }

    /// Returns whether the reader may ask the replica: once a batch of the incarnation was
    /// released. From then on the ledger has a row of the incarnation, and a replica without it is
    /// known to lag.
    fn may_ask_replica(&self, state: &State) -> bool {
        let Reader::AskedRedis {
            batch, last_cut, ..
        } = state.reader
        else {
            return false;
        };
        let is_released = last_cut.seq > u8::from(batch.is_some());
        self.replica && (is_released || self.makes(Mistake::ReadReplicaBeforeRelease))
    }

    fn ask_redis(&self, state: &mut State) {
        let Redis {
            buffer,
            batch,
            last_cut,
            ..
        } = state.redis;
        let before = std::mem::replace(&mut state.reader, Reader::Idle);
        let expected = match before {
            Reader::AskedDatabaseFirst { expected, .. } => expected,
            _ => state.acknowledged(),
        };
        state.reader = Reader::AskedRedis {
            buffer,
            batch,
            last_cut,
            expected,
        };
        if let Reader::AskedDatabaseFirst {
            incarnation,
            database,
            crashes,
            ..
        } = before
        {
            let is_same_run = crashes == state.crashes || self.makes(Mistake::ReadAcrossCrash);
            if is_same_run && incarnation == last_cut.incarnation {
                self.combine(state, &database);
            }
        }
    }

    /// Adds what the reader found pending to what the database has.
    fn combine(&self, state: &mut State, database: &Database) {
        let Reader::AskedRedis {
            buffer,
            batch,
            last_cut,
            expected,
        } = state.reader
        else {
            return;
        };
        let row = database.ledger.row(last_cut.incarnation);
        let is_newer = row.seq > last_cut.seq && !self.makes(Mistake::ReadPastNewerBatch);
        let is_other = row.seq == last_cut.seq && row.nonce != last_cut.nonce;
        let is_before = row.seq + 1 == last_cut.seq && row.position.is_none();
        let is_behind = match batch {
            Some(_) => row.seq < last_cut.seq && !is_before,
            None => row.lacks(last_cut),
        };
        let is_replica_behind = is_behind && !self.makes(Mistake::ReadReplicaBehind);
        state.reader = Reader::Idle;
        if is_newer || is_replica_behind || (is_other && !self.makes(Mistake::ReadWithoutNonce)) {
            return;
        }
        let is_part = row.seq == last_cut.seq && row.position.is_some();
        let is_stored = |hit: Hit| match row.position {
            _ if row.seq < last_cut.seq => false,
            _ if is_part && self.makes(Mistake::ReadPartAsWhole) => true,
            _ if is_part && self.makes(Mistake::ReadPartAsNothing) => false,
            Some(position) if row.seq == last_cut.seq => hit <= position,
            _ => true,
        };
        let pending = batch
            .unwrap_or_default()
            .iter()
            .filter(|hit| !is_stored(*hit))
            .map(Hits::one);
        let value = pending.fold(database.rows + buffer, |value, hit| value + hit);
        if database.ledger.has_row(last_cut.incarnation) || self.makes(Mistake::ReadWithoutRecheck)
        {
            state.finish_read(value, expected);
        } else {
            state.reader = Reader::AskedDatabase {
                incarnation: last_cut.incarnation,
                value,
                expected,
            };
        }
    }
}

impl State {
    /// Returns the pending hits that the database does not have according to its ledger.
    fn not_stored(&self) -> Hits {
        let id = self.redis.last_cut;
        let row = self.database.ledger.row(id.incarnation);
        let batch = self.redis.batch.unwrap_or_default();
        batch
            .iter()
            .filter(|hit| !row.has_stored(id, *hit))
            .map(Hits::one)
            .fold(self.redis.buffer, |sum, hit| sum + hit)
    }

    /// Returns the hits of the batch that the database has according to its ledger, but lacks. They
    /// were reported as lost when the ledger was completed for the released batch. Redis was set
    /// back since, too, and has the batch again.
    fn reported(&self) -> Hits {
        let batch = self.redis.batch.unwrap_or_default();
        batch.without(self.not_stored()).without(self.database.rows)
    }

    /// Reports that the database was set back.
    fn report(&mut self) {
        self.wrong.reported_without_failover |= self.failovers == 0;
        self.lost = self.lost.union(std::mem::take(&mut self.missing));
    }

    /// Returns whether Redis has released a batch that the ledger lacks, or lacks a part of.
    fn shows_database_set_back(&self) -> bool {
        let row = self.database.ledger.row(self.redis.last_cut.incarnation);
        match self.redis.batch {
            Some(_) => row.is_behind_before(self.redis.last_cut),
            None => row.lacks(self.redis.last_cut),
        }
    }

    fn acknowledged(&self) -> Hits {
        Hits::first(self.calls)
            .without(self.lost)
            .without(self.dropped)
    }

    fn finish_read(&mut self, value: Hits, expected: Hits) {
        let still_expected = expected.without(self.lost).without(self.dropped);
        self.wrong.read_misses |= !value.contains_all(still_expected);
        self.wrong.read_repeats |= value.has_repeats();
    }
}

impl Redis {
    fn pending(&self) -> Hits {
        self.buffer.union(self.batch.unwrap_or_default())
    }
}

impl Model for Deltas {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            redis: Redis::default(),
            saved: Redis::default(),
            database: Database::default(),
            replica: Database::default(),
            workers: vec![Worker::Idle; self.workers],
            probe: None,
            released: None,
            reader: Reader::Idle,
            calls: 0,
            repeats: BTreeMap::new(),
            lost: Hits::default(),
            missing: Hits::default(),
            dropped: Hits::default(),
            crashes: 0,
            failovers: 0,
            names: 0,
            wrong: Wrong::default(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let redis = &state.redis;
        if redis.epoch == 0 {
            steps.push(Step::Configure);
        } else if state.calls < self.hits {
            steps.push(Step::Call);
        }
        steps.extend(state.repeats.keys().map(|hit| Step::CallAgain(*hit)));
        if self.crash != Crash::Emptied && state.saved != *redis {
            steps.push(Step::Save);
        }
        if state.crashes < self.crashes && self.after_crash(state) != *redis {
            steps.push(Step::Crash);
        }
        if self.probe {
            match (state.probe, state.released) {
                (_, Some(_)) => steps.push(Step::ProbeCompletes),
                (Some(_), _) => steps.push(Step::ProbeReadsRedis),
                _ if redis.last_cut.seq > 0
                    || state.database.ledger.has_row(redis.last_cut.incarnation) =>
                {
                    steps.push(Step::ProbeReadsLedger)
                }
                _ => {}
            }
        }
        if self.replica && state.replica != state.database {
            steps.push(Step::Replicate);
            if state.failovers < self.failovers {
                steps.push(Step::FailOver);
            }
        }
        if self.may_ask_replica(state) {
            steps.push(Step::ReaderAsksReplica);
        }
        if self.reader {
            if state.reader == Reader::Idle && self.database_first {
                steps.push(Step::ReaderAsksDatabaseFirst);
            }
            steps.push(match state.reader {
                Reader::Idle | Reader::AskedDatabaseFirst { .. } => Step::ReaderAsksRedis,
                Reader::AskedRedis { .. } => Step::ReaderAsksDatabase,
                Reader::AskedDatabase { .. } => Step::ReaderChecksIncarnation,
            });
        }
        for (number, worker) in state.workers.iter().enumerate() {
            match worker {
                Worker::Idle if redis.batch.is_none() => {
                    if !redis.buffer.is_empty() {
                        steps.push(Step::WorkerCuts(number));
                    }
                }
                Worker::Idle => {
                    if self.is_durable(state) || self.makes(Mistake::FetchBeforeDurable) {
                        steps.push(Step::WorkerFetches(number));
                    }
                }
                Worker::Fetched { id, .. } => {
                    steps.push(match self.ledger_row(state, *id).verdict(*id) {
                        Verdict::Behind => Step::WorkerBeginsAnew(number),
                        _ => Step::WorkerApplies(number),
                    });
                    steps.push(Step::WorkerDies(number));
                }
                Worker::Complete { .. } => {
                    steps.push(Step::WorkerReleases(number));
                    steps.push(Step::WorkerDies(number));
                }
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Configure => {
                if self.incarnation == Incarnation::Configuration {
                    state.redis.last_cut.incarnation = next_name(&mut state.names);
                }
                state.redis.epoch = next_name(&mut state.names);
            }
            Step::Call => {
                let hit = state.calls;
                state.calls += 1;
                self.execute(&mut state, hit);
                if self.repeats {
                    state.repeats.insert(hit, state.redis.epoch);
                }
            }
            Step::CallAgain(hit) => {
                let epoch = state.repeats.remove(&hit);
                if epoch == Some(state.redis.epoch) && !state.redis.remembered.contains(hit) {
                    self.execute(&mut state, hit);
                }
            }
            Step::Save => state.saved = state.redis.clone(),
            Step::Crash => self.crash(&mut state),
            Step::ProbeReadsLedger => {
                let incarnation = state.redis.last_cut.incarnation;
                state.probe = Some((incarnation, state.database.ledger.row(incarnation)));
            }
            Step::ProbeReadsRedis => {
                let (incarnation, row) = state.probe.take()?;
                let last_cut = state.redis.last_cut;
                let is_released =
                    state.redis.batch.is_none() || self.makes(Mistake::CompleteInFlight);
                if last_cut.incarnation == incarnation {
                    if row.proves_set_back(last_cut) {
                        self.begin_anew(&mut state, last_cut);
                    } else if is_released && row.lacks(last_cut) {
                        state.released = Some(last_cut);
                    }
                }
            }
            Step::ProbeCompletes => {
                let id = state.released.take()?;
                Self::complete(&mut state, id);
            }
            Step::FailOver => self.fail_over(&mut state),
            Step::ReaderAsksDatabaseFirst => {
                state.reader = Reader::AskedDatabaseFirst {
                    incarnation: state.redis.last_cut.incarnation,
                    database: state.database.clone(),
                    crashes: state.crashes,
                    expected: state.acknowledged(),
                };
            }
            Step::ReaderAsksRedis => self.ask_redis(&mut state),
            Step::Replicate => state.replica = state.database.clone(),
            Step::ReaderAsksReplica => {
                let replica = state.replica.clone();
                self.combine(&mut state, &replica);
            }
            Step::ReaderAsksDatabase => {
                let database = state.database.clone();
                self.combine(&mut state, &database);
            }
            Step::ReaderChecksIncarnation => {
                let Reader::AskedDatabase {
                    incarnation,
                    value,
                    expected,
                } = state.reader
                else {
                    return None;
                };
                state.reader = Reader::Idle;
                if state.redis.last_cut.incarnation == incarnation {
                    state.finish_read(value, expected);
                }
            }
            Step::WorkerCuts(_) => {
                let redis = &mut state.redis;
                if redis.last_cut.incarnation == 0 {
                    redis.last_cut.incarnation = next_name(&mut state.names);
                }
                redis.batch = Some(std::mem::take(&mut redis.buffer));
                redis.last_cut.seq += 1;
                redis.last_cut.nonce = next_name(&mut state.names);
            }
            Step::WorkerFetches(worker) => {
                let batch = state.redis.batch?;
                state.workers[worker] = Worker::Fetched {
                    id: state.redis.last_cut,
                    batch,
                    left: batch,
                };
            }
            Step::WorkerApplies(worker) => self.apply(&mut state, worker),
            Step::WorkerBeginsAnew(worker) => {
                let Worker::Fetched { id, .. } = state.workers[worker] else {
                    return None;
                };
                state.workers[worker] = Worker::Idle;
                self.begin_anew(&mut state, id);
            }
            Step::WorkerReleases(worker) => {
                let Worker::Complete { mut id } = state.workers[worker] else {
                    return None;
                };
                state.workers[worker] = Worker::Idle;
                if self.makes(Mistake::ReleaseWithoutNonce) {
                    id.nonce = state.redis.last_cut.nonce;
                }
                if state.redis.last_cut == id {
                    let batch = state.redis.batch.take().unwrap_or_default();
                    // A failover after the last part of the batch may have taken hits of it from
                    // the database. The worker does not know, and releases them.
                    if state.failovers > 0 {
                        let lost = batch.without(state.database.rows);
                        self.lose(&mut state, lost);
                    }
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
                        .union(state.missing)
                        .union(state.dropped)
                        .contains_all(Hits::first(state.calls))
                },
            ),
            Property::always(
                "no stored hit is pending, unless the ledger proves that Redis was set back",
                |_, state: &State| {
                    let sum = state.database.rows + state.not_stored();
                    !sum.has_repeats()
                        || state.database.ledger.proves_set_back(state.redis.last_cut)
                },
            ),
            Property::always(
                "nothing is dropped without proof that Redis was set back",
                |_, state: &State| !state.wrong.dropped_without_proof,
            ),
            Property::always(
                "a database that lost a batch is always reported",
                |_, state: &State| {
                    let there = state.database.rows.union(state.not_stored());
                    state.missing.without(there).is_empty() || state.shows_database_set_back()
                },
            ),
            Property::always(
                "only a database that was set back is reported",
                |_, state: &State| !state.wrong.reported_without_failover,
            ),
            Property::sometimes(
                "everything is stored at the end",
                |model: &Self, state: &State| {
                    state.calls == model.hits
                        && state.redis.pending().is_empty()
                        && state.database.rows == Hits::first(model.hits)
                },
            ),
        ];
        if self.crash == Crash::SetBack {
            properties.extend([
                Property::sometimes("a partition begins anew", |_, state: &State| {
                    !state.dropped.is_empty()
                }),
                Property::sometimes(
                    "a worker finds that Redis was set back",
                    |model: &Self, state: &State| {
                        model.is_behind(state, |id| id == state.redis.last_cut)
                    },
                ),
            ]);
        } else {
            properties.push(Property::always(
                "Redis is never behind the ledger, unless it was set back",
                |_, state: &State| !state.database.ledger.proves_set_back(state.redis.last_cut),
            ));
        }
        if self.workers > 1 {
            properties.push(Property::sometimes(
                "a late worker finds the ledger past its batch",
                |model: &Self, state| model.is_behind(state, |id| id != state.redis.last_cut),
            ));
        }
        if self.parts {
            properties.push(Property::sometimes(
                "a batch is applied in several parts",
                |_, state: &State| {
                    state
                        .database
                        .ledger
                        .row(state.redis.last_cut.incarnation)
                        .position
                        .is_some()
                },
            ));
            properties.push(Property::sometimes(
                "a worker continues a batch that another began",
                |_, state: &State| {
                    state.workers.iter().any(|worker| match worker {
                        Worker::Fetched { id, left, .. } => {
                            let row = state.database.ledger.row(id.incarnation);
                            row.verdict(*id) == Verdict::Same
                                && row.position.is_some_and(|position| left.contains(position))
                        }
                        _ => false,
                    })
                },
            ));
        }
        if self.repeats {
            properties.push(Property::sometimes(
                "a repeat is refused as remembered",
                |_, state: &State| {
                    let Redis {
                        epoch, remembered, ..
                    } = state.redis;
                    state
                        .repeats
                        .iter()
                        .any(|(hit, named)| *named == epoch && remembered.contains(*hit))
                },
            ));
            properties.push(Property::sometimes(
                "a repeat is refused because its epoch ended",
                |_, state: &State| {
                    state
                        .repeats
                        .values()
                        .any(|named| *named != state.redis.epoch)
                },
            ));
        }
        if self.repeats && self.crash != Crash::Emptied {
            properties.push(Property::sometimes(
                "a repeat brings back what a crash took",
                |_, state: &State| {
                    let Redis {
                        epoch, remembered, ..
                    } = state.redis;
                    state
                        .repeats
                        .iter()
                        .any(|(hit, named)| *named == epoch && !remembered.contains(*hit))
                },
            ));
        }
        if self.probe && self.crash == Crash::SetBack {
            properties.push(Property::sometimes(
                "the probe finds that Redis was set back while no batch is in flight",
                |_, state: &State| {
                    let last_cut = state.redis.last_cut;
                    let is_proof = |(incarnation, row): (Name, LedgerRow)| {
                        incarnation == last_cut.incarnation && row.proves_set_back(last_cut)
                    };
                    state.redis.batch.is_none() && state.probe.is_some_and(is_proof)
                },
            ));
        }
        if self.failovers > 0 {
            properties.push(Property::sometimes(
                "the probe finds that the database was set back",
                |_, state: &State| {
                    state.released.is_some_and(|id| {
                        let row = state.database.ledger.row(id.incarnation);
                        row.lacks(id) && !state.missing.is_empty()
                    })
                },
            ));
        }
        if self.failovers > 0 {
            properties.push(Property::sometimes(
                "a worker finds that the database was set back",
                |_, state: &State| {
                    state.workers.iter().any(|worker| match worker {
                        Worker::Fetched { id, .. } => {
                            let row = state.database.ledger.row(id.incarnation);
                            row.is_behind_before(*id) && !state.missing.is_empty()
                        }
                        _ => false,
                    })
                },
            ));
        }
        if self.replica && self.reader {
            properties.push(Property::sometimes(
                "a reader asks a replica that lacks the last batch",
                |model: &Self, state: &State| match state.reader {
                    Reader::AskedRedis { last_cut, .. } => {
                        let row = state.replica.ledger.row(last_cut.incarnation);
                        model.may_ask_replica(state) && row.seq + 1 < last_cut.seq
                    }
                    _ => false,
                },
            ));
        }
        if self.reader {
            properties.extend([
                Property::always(
                    "a value read contains every hit acknowledged before it",
                    |_, state: &State| !state.wrong.read_misses,
                ),
                Property::always("a value read contains no hit twice", |_, state: &State| {
                    !state.wrong.read_repeats
                }),
                Property::sometimes("a reader starts again", |_, state: &State| {
                    match state.reader {
                        Reader::AskedRedis { last_cut, .. } => {
                            state.database.ledger.row(last_cut.incarnation).seq > last_cut.seq
                        }
                        _ => false,
                    }
                }),
                Property::sometimes(
                    "a reader checks an incarnation again",
                    |_, state: &State| matches!(state.reader, Reader::AskedDatabase { .. }),
                ),
            ]);
        }
        properties
    }
}

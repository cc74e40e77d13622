//! Interleavings of writers, reconcilers and a reader as explicit steps. proptest picks their
//! order, their deaths, lost replies, and when Redis forgets its scripts or crashes. The invariants
//! of docs/protocol.md, section 1, are checked after every step and at the end. Redis is real. The
//! database is real in one test; the others use the plain reference, which is faster and so tries
//! more cases.
//!
//! Every increment is a token: the k-th of a case adds 4^k. In base 4, each digit of a value is the
//! number of times that it contains that increment.
//!
//! The test controls the time.

use std::time::Duration;

use crate::support::between::{Gate, Wrapped};
use crate::support::interleaving::buffered::{
    Given, Kind, breaks, breaks_in_the_real_database, exact, exact_in_the_real_database,
};
use crate::support::interleaving::connect::Lasting;
use crate::support::interleaving::database::Database;
use crate::support::interleaving::hunt::{Case, runtime};
use crate::support::interleaving::reader::Reader;
use crate::support::interleaving::stage::{Gone, Stage};
use crate::support::interleaving::token::{State, delta, digit, fault};
use crate::support::interleaving::workers::{WORKERS, Work, Workers};
use crate::support::interleaving::writer::{Key, Writer, turn_epoch};
use crate::support::interleaving::{
    Checked, Crashes, Fate, Mishap, PARTITIONS, SETTLE, failed, fate,
};
use counterfoil::store::Registered;
use counterfoil::test_hooks::{Counted, Guard, PairResult, Partition, PartitionCall, Update};
use counterfoil::{BufferedCounters, Counterfoil, Durability, Family, MemoryStore, Store};
use proptest::option;
use proptest::prelude::*;
use testkit::RedisServer;

const IDS: [&str; 4] = ["a", "b", "c", "page/é"];
const WRITERS: usize = 3;
/// The most increments of a case: an i64 cannot hold 4^31 twice.
const TOKENS: usize = 31;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The writer counts one for each id in one call, or repeats its call whose reply is missing.
    Write {
        writer: usize,
        ids: (usize, Option<usize>),
        fate: Fate,
    },
    /// An earlier call arrives again, from any sender and at any time.
    Echo {
        call: usize,
    },
    /// The writer's epoch is old: it requests the epoch before its next call.
    Ask {
        writer: usize,
    },
    TurnEpoch,
    /// The writer dies with its call in flight, and another one takes its place.
    WriterDies {
        writer: usize,
    },
    Work(Work),
    WorkerDies {
        worker: usize,
    },
    /// A reader begins to read all ids, up to its database query.
    ReadBegins,
    /// The reader's database query runs.
    ReadGoesOn,
    Tick {
        ms: u64,
    },
    Mishap(Mishap),
}

#[derive(Clone, Copy, Debug)]
struct Increment {
    id: usize,
    state: State,
}

/// One call for all partitions of the node, with its increments.
#[derive(Clone, Debug)]
struct Call {
    tokens: Vec<usize>,
}

struct World<'s, S> {
    stage: Stage<'s, Lasting>,
    database: Database<'s, S>,
    /// The reader's counters, which are held before each database query.
    counters: BufferedCounters,
    gate: Gate,
    writers: Vec<Writer<Call>>,
    /// Every call that was sent.
    sent: Vec<(Key, Call)>,
    workers: Workers,
    reader: Option<Reader<Vec<i64>>>,
    tokens: Vec<Increment>,
}

impl<'s, S: Store + Clone> World<'s, S> {
    async fn new(given: Given<'s, S>) -> Self {
        let Given {
            server,
            crashes,
            name,
            database,
        } = given;
        let buffered = Family::buffered(name, "hits")
            .partitions(PARTITIONS)
            .durability(Durability::Settle(Duration::from_millis(SETTLE)));
        let family = buffered.build().expect("a valid family");
        let number = database.store.register(&family).await.expect("registered");
        let mut stage =
            Stage::<Lasting>::new(server, crashes, Registered { family, number }, 1_000_000).await;
        let gate = Gate::new();
        let store = Wrapped {
            store: database.store.clone(),
            between: gate.clone(),
        };
        let counterfoil = Counterfoil::new(stage.redis.clone(), store);
        World {
            counters: counterfoil.open(buffered).await.expect("opened"),
            gate,
            database,
            writers: (0..WRITERS)
                .map(|_| Writer::new(stage.new_name()))
                .collect(),
            sent: Vec::new(),
            workers: Workers::default(),
            reader: None,
            tokens: Vec::new(),
            stage,
        }
    }

    async fn write(&mut self, number: usize, ids: (usize, Option<usize>), fate: Fate) -> Checked {
        let writer = &mut self.writers[number];
        let ids = std::iter::once(ids.0).chain(ids.1);
        if writer.open.is_none() && self.tokens.len() + 1 < TOKENS {
            let first = self.tokens.len();
            self.tokens.extend(ids.map(|id| Increment {
                id,
                state: State::InDoubt,
            }));
            writer.begin(Call {
                tokens: (first..self.tokens.len()).collect(),
            });
        }
        let Some(call) = writer.open.clone() else {
            return Ok(());
        };
        let key = writer.key(&self.stage, &self.stage.partition(0)).await?;
        self.sent.push((key.clone(), call.clone()));
        if fate == Fate::LostBefore {
            return Ok(());
        }
        let reply = self.arrive(&key, &call).await?;
        let at = self.stage.note_length();
        match (reply, fate) {
            (_, Fate::LostAfter) => {}
            (Counted::Executed { results, .. }, _) => {
                self.writers[number].open = None;
                for (token, result) in call.tokens.into_iter().zip(results) {
                    self.tokens[token].state = match result {
                        PairResult::Counted(_) => State::Acknowledged { at },
                        _ => State::Refused,
                    };
                }
            }
            // the caller receives an error: the outcome is unknown
            (Counted::Expired, _) => self.writers[number] = Writer::new(self.stage.new_name()),
            (Counted::Passed, _) => return Err(failed("PASSED: the writer made no later call")),
        }
        Ok(())
    }

    /// Delivers the call to Redis.
    async fn arrive(&self, key: &Key, call: &Call) -> Result<Counted, TestCaseError> {
        let pair = |token: &usize| (IDS[self.tokens[*token].id], Update::Add(delta(*token)));
        let pairs: Vec<_> = call
            .tokens
            .iter()
            .map(pair)
            .map(|(id, change)| (id.as_bytes(), change))
            .collect();
        let partitions = call
            .tokens
            .iter()
            .map(|token| self.stage.partition_of(IDS[self.tokens[*token].id]));
        let partitions: Vec<_> = partitions
            .map(|number| self.stage.partition(number))
            .collect();
        let part = |(partition, pair)| PartitionCall {
            partition,
            hits: 1,
            pairs: std::slice::from_ref(pair),
        };
        let parts: Vec<_> = partitions.iter().zip(&pairs).map(part).collect();
        let home = self.stage.partition(0);
        Partition::add_to(&self.stage.family.family, key.fence(&home), &parts)
            .await
            .map_err(failed)
    }

    async fn echo(&mut self, call: usize) -> Checked {
        if let Some((key, call)) = self.sent.get(call % self.sent.len().max(1)).cloned() {
            self.arrive(&key, &call).await?;
        }
        Ok(())
    }

    async fn read_begins(&mut self) {
        if self.reader.is_some() {
            return;
        }
        let counters = self.counters.clone();
        let before = self
            .tokens
            .iter()
            .map(|token| token.state.is_acknowledged())
            .collect();
        let read = async move { counters.get_many(&IDS).await };
        self.reader = Some(Reader::begin(self.gate.clone(), read, before).await);
    }

    async fn read_goes_on(&mut self) -> Checked {
        let Some(seen) = Reader::go_on(&mut self.reader).await? else {
            return Ok(());
        };
        for (number, token) in self.tokens.iter().enumerate() {
            let value = seen.found[token.id];
            let times = digit(value.into(), number);
            if fault(times, seen.bounds(number, token.state)).is_some() {
                return Err(failed(format!(
                    "TORN READ: increment {number} ({token:?}) is {times} times in {value}"
                )));
            }
        }
        Ok(())
    }

    fn forget(&mut self, gone: &Gone) {
        self.tokens
            .iter_mut()
            .for_each(|token| token.state.forget(gone));
        if let Some(reader) = &mut self.reader {
            reader.has_crashed = true;
        }
    }
}

impl<S: Store + Clone> Case for World<'_, S> {
    type Step = Step;

    async fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Write { writer, ids, fate } => self.write(writer, ids, fate).await?,
            Step::Echo { call } => self.echo(call).await?,
            Step::Ask { writer } => self.writers[writer].ask(),
            Step::TurnEpoch => turn_epoch(&mut self.stage, 0).await?,
            Step::WriterDies { writer } => {
                self.writers[writer] = Writer::new(self.stage.new_name())
            }
            Step::Work(work) => self.workers.step(work, &self.stage, &self.database).await?,
            Step::WorkerDies { worker } => self.workers.die(worker),
            Step::ReadBegins => self.read_begins().await,
            Step::ReadGoesOn => self.read_goes_on().await?,
            Step::Tick { ms } => self.stage.pass(ms),
            Step::Mishap(mishap) => {
                if let Some(gone) = self.stage.suffer(mishap).await? {
                    self.forget(&gone);
                }
            }
        }
        self.stage.note_length();
        Ok(())
    }

    /// Checks docs/protocol.md, section 1: each acknowledged increment is in the sum once, no other
    /// twice.
    async fn check(&self) -> Checked {
        let mut totals = Vec::new();
        for id in IDS {
            totals.push(self.database.total(&self.stage, id).await?);
        }
        for (number, token) in self.tokens.iter().enumerate() {
            let total = totals[token.id];
            let times = digit(total, number);
            if let Some(word) = fault(times, token.state.bounds()) {
                return Err(failed(format!(
                    "{word}: increment {number} ({token:?}) is {times} times in {total}"
                )));
            }
        }
        Ok(())
    }

    /// Ends every call and brings everything to the database.
    async fn finish(&mut self) -> Checked {
        while self.reader.is_some() {
            self.read_goes_on().await?;
        }
        for number in 0..WRITERS {
            if self.writers[number].open.is_some() {
                self.write(number, (0, None), Fate::Delivered).await?;
            }
        }
        for partition in 0..PARTITIONS {
            self.workers
                .drain(partition, &mut self.stage, &self.database)
                .await?;
        }
        self.check().await?;
        self.stage.expect_nothing_pending().await
    }
}

/// Buffered counters.
struct Buffered;

impl Kind for Buffered {
    type Step = Step;

    fn step(crashes: Crashes) -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (0..WRITERS, (0..IDS.len(), option::of(0..IDS.len())), fate())
                .prop_map(|(writer, ids, fate)| Step::Write { writer, ids, fate }),
            4 => (0..1000usize).prop_map(|call| Step::Echo { call }),
            2 => (0..WRITERS).prop_map(|writer| Step::Ask { writer }),
            1 => Just(Step::TurnEpoch),
            1 => (0..WRITERS).prop_map(|writer| Step::WriterDies { writer }),
            16 => Work::any().prop_map(Step::Work),
            1 => (0..WORKERS).prop_map(|worker| Step::WorkerDies { worker }),
            4 => Just(Step::ReadBegins),
            6 => Just(Step::ReadGoesOn),
            5 => prop_oneof![Just(100), Just(600), Just(1000), Just(1500)].prop_map(|ms| Step::Tick { ms }),
            1 => Just(Step::Mishap(Mishap::ScriptFlush)),
            1 => crashes.mishap().prop_map(Step::Mishap),
        ]
    }

    async fn play<S: Store + Clone>(given: Given<'_, S>, steps: Vec<Step>) -> Checked {
        World::new(given).await.play(steps).await
    }
}

#[test]
fn exact_without_crashes_of_redis() {
    exact::<Buffered>(Crashes::None, 200);
}

#[test]
fn exact_when_redis_goes_back_to_its_last_fsync() {
    exact::<Buffered>(Crashes::BackToTheLastFsync, 80);
}

#[test]
fn exact_when_redis_is_emptied() {
    exact::<Buffered>(Crashes::Empty, 200);
}

#[test]
fn exact_with_the_real_database() {
    exact_in_the_real_database::<Buffered>(8, 75);
}

const fn write(writer: usize, id: usize) -> Step {
    Step::Write {
        writer,
        ids: (id, None),
        fate: Fate::Delivered,
    }
}

const fn work(worker: usize, partition: u32) -> Step {
    Step::Work(Work::delivered(worker, partition))
}

/// Replays steps that an earlier version got wrong.
fn replay(crashes: Crashes, steps: &[Step]) {
    runtime().block_on(async {
        let server = RedisServer::start(crashes.options()).await;
        let database = Database::new(MemoryStore::new());
        let given = Given {
            server: &server,
            crashes,
            name: "regression".to_owned(),
            database,
        };
        World::new(given)
            .await
            .play(steps.iter().copied())
            .await
            .expect("exact");
    });
}

/// A partition without an incarnation was read, and its batch was cut and applied. Redis was
/// emptied before the reader's second read: again there was no incarnation, and the value had the
/// batch twice.
#[test]
fn a_batch_that_comes_and_goes_between_two_looks_is_seen() {
    let [one, other] = [work(0, 1), work(1, 0)];
    let tick = Step::Tick { ms: SETTLE };
    let begin = [
        write(0, 0),
        Step::ReadBegins,
        one,
        other,
        tick,
        one,
        other,
        one,
        other,
    ];
    replay(
        Crashes::Empty,
        &[
            &begin[..],
            &[Step::Mishap(Mishap::Emptied), Step::ReadGoesOn, write(0, 0)],
        ]
        .concat(),
    );
}

/// The reader gave the partition an incarnation. A crash took it back and left the hits, which
/// reached the database under another one before the reader's query.
#[test]
fn an_incarnation_that_a_crash_takes_back_is_not_compared_with() {
    let [one, other] = [work(0, 1), work(1, 0)];
    let (tick, crash) = (
        Step::Tick { ms: SETTLE },
        Step::Mishap(Mishap::Crash { kept: 0 }),
    );
    let begin = [
        write(0, 0),
        tick,
        Step::ReadBegins,
        crash,
        one,
        other,
        tick,
        one,
        other,
        one,
        other,
    ];
    replay(
        Crashes::BackToTheLastFsync,
        &[&begin[..], &[Step::ReadGoesOn, write(0, 0)]].concat(),
    );
}

#[test]
fn without_the_fence_a_repeat_counts_twice() {
    for guard in [
        Guard::Fence,
        Guard::NoMemory,
        Guard::OneMemory,
        Guard::AnyEpoch,
    ] {
        breaks::<Buffered>(guard, Crashes::None, &["DOUBLE", "TORN"]);
    }
}

#[test]
fn without_settle_a_crash_loses_what_was_durable() {
    breaks::<Buffered>(
        Guard::Settle,
        Crashes::BackToTheLastFsync,
        &["LOST", "DROPPED"],
    );
}

#[test]
fn without_an_incarnation_from_the_start_a_reader_sees_a_batch_twice() {
    breaks::<Buffered>(Guard::Incarnation, Crashes::Empty, &["TORN READ"]);
}

#[test]
fn without_the_comparison_a_reader_sees_a_batch_twice() {
    breaks::<Buffered>(Guard::Comparison, Crashes::None, &["TORN READ"]);
}

#[test]
fn without_ledger_or_position_a_part_counts_twice() {
    for guard in [Guard::Ledger, Guard::Position] {
        breaks::<Buffered>(guard, Crashes::None, &["DOUBLE", "TORN"]);
        breaks_in_the_real_database::<Buffered>(guard, &["DOUBLE", "TORN"]);
    }
}

//! Interleavings of series whose slices are kept. Writers, closers, reconcilers and a reader are
//! explicit steps, on a clock that also steps back. proptest picks their order, their deaths, lost
//! replies and crashes of Redis. After every step each acknowledged hit is in its slice once
//! (docs/protocol.md, sections 1 and 5).
//!
//! Every hit is a token: the k-th of a case adds 4^k. In base 4, each digit of a slice is the
//! number of times that it contains that hit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::between::{Gate, Wrapped};
use crate::support::interleaving::buffered::{
    Given, Kind, breaks, breaks_in_the_real_database, exact, exact_in_the_real_database,
};
use crate::support::interleaving::connect::Lasting;
use crate::support::interleaving::database::Database;
use crate::support::interleaving::hunt::Case;
use crate::support::interleaving::reader::Reader;
use crate::support::interleaving::stage::{Gone, Stage};
use crate::support::interleaving::token::{State, delta, digit, fault};
use crate::support::interleaving::workers::{WORKERS, Work, Workers};
use crate::support::interleaving::writer::{Key, Writer, turn_epoch};
use crate::support::interleaving::{
    Checked, Crashes, Fate, Mishap, PARTITIONS, SETTLE, failed, fate,
};
use crate::support::times;
use counterfoil::store::Registered;
use counterfoil::test_hooks::{Counted, Guard, PairResult, ServerClock, windows};
use counterfoil::{
    Counterfoil, Durability, Family, FamilyBuilder, Precision, Series, Slice, Store,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

/// The first time in Unix milliseconds, five seconds before a day begins in Berlin.
const START: u64 = 1_414_364_395_000;
const NAMES: [&str; 2] = ["a", "page/é"];
const WRITERS: usize = 3;
/// The number of hits. Each adds a power of 4, and their sum must stay far within i64.
const TOKENS: usize = 25;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The writer counts one for the name, or repeats its call whose reply is missing.
    Write {
        writer: usize,
        name: usize,
        fate: Fate,
    },
    /// An earlier call arrives again, from any sender and at any time.
    Echo {
        call: usize,
    },
    TurnEpoch,
    /// The writer dies with its call in flight, and another one takes its place.
    WriterDies {
        writer: usize,
    },
    /// Slices that are over move to the buffer.
    Close {
        partition: u32,
    },
    Work(Work),
    WorkerDies {
        worker: usize,
    },
    /// A reader begins to read all slices of a name.
    ReadBegins {
        name: usize,
    },
    /// The reader's database query runs.
    ReadGoesOn,
    Tick {
        ms: u64,
    },
    /// The server's clock is set back.
    SetBack {
        ms: u64,
    },
    Mishap(Mishap),
}

#[derive(Clone, Debug)]
struct Token {
    name: usize,
    state: State,
    /// The slices that were current at an execution of its call.
    slices: BTreeSet<i64>,
}

struct World<'s, S> {
    stage: Stage<'s, Lasting>,
    database: Database<'s, S>,
    series: FamilyBuilder<Series>,
    /// The writers' estimate of the server's clock.
    clock: ServerClock,
    /// The writers, each with the token of its open call.
    writers: Vec<Writer<usize>>,
    /// Every call that was sent.
    sent: Vec<(Key, usize)>,
    workers: Workers,
    /// The reader, with the name that it reads.
    reader: Option<Reader<(usize, Vec<Slice>)>>,
    tokens: Vec<Token>,
}

impl<'s, S: Store + Clone> World<'s, S> {
    async fn new(given: Given<'s, S>) -> Self {
        let Given {
            server,
            crashes,
            name,
            database,
        } = given;
        let series = Family::series(name, "hits")
            .windows([(Precision::SECOND, 3), (Precision::Day, 2)])
            .time_zone("Europe/Berlin")
            .keep([Precision::SECOND])
            .partitions(PARTITIONS)
            .durability(Durability::Settle(Duration::from_millis(SETTLE)));
        let family = series.build().expect("a valid family");
        let number = database.store.register(&family).await.expect("registered");
        let mut stage = Stage::new(server, crashes, Registered { family, number }, START).await;
        World {
            database,
            series,
            clock: ServerClock::default(),
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

    async fn close(&self, partition: u32) -> Checked {
        self.stage
            .partition(partition)
            .close_slices()
            .await
            .map(drop)
            .map_err(failed)
    }

    async fn write(&mut self, number: usize, name: usize, fate: Fate) -> Checked {
        let writer = &mut self.writers[number];
        if writer.open.is_none() && self.tokens.len() < TOKENS {
            writer.begin(self.tokens.len());
            self.tokens.push(Token {
                name,
                state: State::InDoubt,
                slices: BTreeSet::new(),
            });
        }
        let Some(token) = writer.open else {
            return Ok(());
        };
        let key = writer.key(&self.stage, &self.stage.partition(0)).await?;
        self.sent.push((key.clone(), token));
        if fate == Fate::LostBefore {
            return Ok(());
        }
        let added = self.arrive(&key, token).await?;
        let at = self.stage.note_length();
        match (added, fate) {
            (_, Fate::LostAfter) => {}
            (Counted::Executed { results, .. }, _)
                if matches!(results[..], [PairResult::Counted(_)]) =>
            {
                self.writers[number].open = None;
                self.tokens[token].state = State::Acknowledged { at };
            }
            (Counted::Executed { results, .. }, _) => {
                return Err(failed(format!("REFUSED: {results:?}")));
            }
            // the caller receives an error: the outcome is unknown
            (Counted::Expired, _) => self.writers[number] = Writer::new(self.stage.new_name()),
            (Counted::Passed, _) => return Err(failed("PASSED: the writer made no later call")),
        }
        Ok(())
    }

    /// Delivers the call to Redis.
    async fn arrive(&mut self, key: &Key, token: usize) -> Result<Counted, TestCaseError> {
        self.tokens[token]
            .slices
            .insert((self.stage.now / 1000).cast_signed());
        let name = NAMES[self.tokens[token].name];
        let (partition, home) = (
            self.stage.partition(self.stage.partition_of(name)),
            self.stage.partition(0),
        );
        let pair = (name.as_bytes(), delta(token));
        partition
            .add_to_series(
                windows(&self.stage.family.family).expect("a series"),
                &self.clock,
                key.fence(&home),
                [pair],
            )
            .await
            .map_err(failed)
    }

    async fn echo(&mut self, call: usize) -> Checked {
        if let Some((key, token)) = self.sent.get(call % self.sent.len().max(1)).cloned() {
            self.arrive(&key, token).await?;
        }
        Ok(())
    }

    async fn read_begins(&mut self, name: usize) {
        if self.reader.is_some() {
            return;
        }
        let gate = Gate::new();
        let store = Wrapped {
            store: self.database.store.clone(),
            between: gate.clone(),
        };
        let counterfoil = Counterfoil::new(self.stage.redis.clone(), store);
        let series = counterfoil
            .open(self.series.clone())
            .await
            .expect("the family is known");
        let range = times(self.all_times());
        let read = async move {
            Ok((
                name,
                series
                    .get_range(NAMES[name], Precision::SECOND, range)
                    .await?,
            ))
        };
        let before = self
            .tokens
            .iter()
            .map(|token| token.state.is_acknowledged())
            .collect();
        self.reader = Some(Reader::begin(gate, read, before).await);
    }

    async fn read_goes_on(&mut self) -> Checked {
        let Some(seen) = Reader::go_on(&mut self.reader).await? else {
            return Ok(());
        };
        let (name, slices) = &seen.found;
        for (number, token) in self
            .tokens
            .iter()
            .enumerate()
            .filter(|(_, token)| token.name == *name)
        {
            let times = slices
                .iter()
                .map(|slice| digit(slice.count.into(), number))
                .sum();
            if fault(times, seen.bounds(number, token.state)).is_some() {
                return Err(failed(format!(
                    "TORN READ: hit {number} ({token:?}) is {times} times in {slices:?}"
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

    /// Returns the range of all times of possible hits, in Unix seconds.
    fn all_times(&self) -> std::ops::Range<i64> {
        let slices: BTreeSet<_> = self
            .tokens
            .iter()
            .flat_map(|token| &token.slices)
            .copied()
            .collect();
        let first = slices.first().copied().unwrap_or(0);
        first - 1..slices.last().copied().unwrap_or(first) + 2
    }

    /// Returns the values, stored and pending, of the name's possible slices by their kept ids.
    async fn slices_of(&self, name: usize) -> Result<BTreeMap<String, i128>, TestCaseError> {
        let tokens = self.tokens.iter().filter(|token| token.name == name);
        let slices: BTreeSet<_> = tokens.flat_map(|token| &token.slices).collect();
        let ids: Vec<_> = slices
            .iter()
            .map(|slice| format!("{slice}/{}", NAMES[name]))
            .collect();
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let id_refs: Vec<_> = ids.iter().map(String::as_str).collect();
        let number = self.stage.partition_of(NAMES[name]);
        let pending = self
            .stage
            .partition(number)
            .read_with_slices(&id_refs)
            .await
            .map_err(failed)?;
        let totals = self
            .database
            .totals(&self.stage, (number, pending), &id_refs)
            .await?;
        Ok(ids.iter().cloned().zip(totals).collect())
    }

    /// Returns the values of all possible slices.
    async fn slices(&self) -> Result<BTreeMap<String, i128>, TestCaseError> {
        let mut all = BTreeMap::new();
        for name in 0..NAMES.len() {
            all.extend(self.slices_of(name).await?);
        }
        Ok(all)
    }

    /// Checks that the rows hold everything.
    async fn check_rows(&self) -> Checked {
        let expected: BTreeMap<_, _> = self
            .slices()
            .await?
            .into_iter()
            .filter(|(_, value)| *value != 0)
            .collect();
        let stored = self
            .database
            .store
            .list(&self.stage.family, "", None, 10_000)
            .await
            .map_err(failed)?;
        let stored: BTreeMap<_, _> = stored
            .into_iter()
            .map(|(id, value)| (id, i128::from(value)))
            .collect();
        if stored == expected {
            Ok(())
        } else {
            Err(failed(format!("ROWS: {stored:?}, not {expected:?}")))
        }
    }

    async fn expect_nothing_open(&self) -> Checked {
        let keys: Vec<_> = (0..PARTITIONS)
            .map(|partition| self.stage.key(partition, "open"))
            .collect();
        let open: u64 = redis::cmd("EXISTS")
            .arg(&keys)
            .query_async(&mut self.stage.redis.clone())
            .await
            .map_err(failed)?;
        if open == 0 {
            Ok(())
        } else {
            Err(failed(format!(
                "WEDGED: slices of {open} partitions are still open"
            )))
        }
    }
}

impl<S: Store + Clone> Case for World<'_, S> {
    type Step = Step;

    async fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Write { writer, name, fate } => self.write(writer, name, fate).await?,
            Step::Echo { call } => self.echo(call).await?,
            Step::TurnEpoch => turn_epoch(&mut self.stage, 0).await?,
            Step::WriterDies { writer } => {
                self.writers[writer] = Writer::new(self.stage.new_name())
            }
            Step::Close { partition } => self.close(partition).await?,
            Step::Work(work) => self.workers.step(work, &self.stage, &self.database).await?,
            Step::WorkerDies { worker } => self.workers.die(worker),
            Step::ReadBegins { name } => self.read_begins(name).await,
            Step::ReadGoesOn => self.read_goes_on().await?,
            Step::Tick { ms } => self.stage.pass(ms),
            Step::SetBack { ms } => self.stage.set_back(ms),
            Step::Mishap(mishap) => {
                if let Some(gone) = self.stage.suffer(mishap).await? {
                    self.forget(&gone);
                }
            }
        }
        self.stage.note_length();
        Ok(())
    }

    /// Checks that each acknowledged hit is once in one of its slices, and no other hit twice.
    async fn check(&self) -> Checked {
        let all = self.slices().await?;
        for (number, token) in self.tokens.iter().enumerate() {
            let in_its_own = token
                .slices
                .iter()
                .map(|slice| digit(all[&format!("{slice}/{}", NAMES[token.name])], number));
            let (its_own, anywhere): (u8, u8) = (
                in_its_own.sum(),
                all.values().map(|value| digit(*value, number)).sum(),
            );
            let least = u8::from(token.state.is_acknowledged());
            let word = match (its_own, anywhere) {
                (_, 2..) => "DOUBLE",
                (its_own, _) if its_own < least => "LOST",
                (0, 1) => "MISPLACED",
                _ => continue,
            };
            return Err(failed(format!(
                "{word}: hit {number}, {token:?}, in {all:?}"
            )));
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
                self.write(number, 0, Fate::Delivered).await?;
            }
        }
        // slices from before a step back of the clock are over too
        self.stage.pass(100_000);
        for partition in 0..PARTITIONS {
            self.close(partition).await?;
            self.workers
                .drain(partition, &mut self.stage, &self.database)
                .await?;
        }
        self.check().await?;
        self.check_rows().await?;
        self.stage.expect_nothing_pending().await?;
        self.expect_nothing_open().await
    }
}

/// Series whose slices are kept.
struct Slices;

impl Kind for Slices {
    type Step = Step;

    fn step(crashes: Crashes) -> impl Strategy<Value = Step> {
        prop_oneof![
            10 => (0..WRITERS, 0..NAMES.len(), fate()).prop_map(|(writer, name, fate)| Step::Write { writer, name, fate }),
            1 => (0..WRITERS).prop_map(|writer| Step::WriterDies { writer }),
            3 => (0..1000usize).prop_map(|call| Step::Echo { call }),
            1 => Just(Step::TurnEpoch),
            6 => (0..PARTITIONS).prop_map(|partition| Step::Close { partition }),
            14 => Work::any().prop_map(Step::Work),
            1 => (0..WORKERS).prop_map(|worker| Step::WorkerDies { worker }),
            4 => (0..NAMES.len()).prop_map(|name| Step::ReadBegins { name }),
            6 => Just(Step::ReadGoesOn),
            7 => prop_oneof![Just(100), Just(600), Just(1000), Just(1500)].prop_map(|ms| Step::Tick { ms }),
            1 => prop_oneof![Just(300), Just(2500)].prop_map(|ms| Step::SetBack { ms }),
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
    exact::<Slices>(Crashes::None, 50);
}

#[test]
fn exact_when_redis_goes_back_to_its_last_fsync() {
    exact::<Slices>(Crashes::BackToTheLastFsync, 30);
}

#[test]
fn exact_when_redis_is_emptied() {
    exact::<Slices>(Crashes::Empty, 50);
}

#[test]
fn exact_with_the_real_database() {
    exact_in_the_real_database::<Slices>(2, 50);
}

#[test]
fn without_the_handover_a_slice_is_in_two_places() {
    breaks::<Slices>(Guard::Handover, Crashes::None, &["DOUBLE", "TORN"]);
}

#[test]
fn without_the_fence_a_repeat_counts_twice() {
    breaks::<Slices>(Guard::Fence, Crashes::None, &["DOUBLE", "TORN"]);
}

#[test]
fn without_settle_a_crash_loses_what_was_durable() {
    breaks::<Slices>(
        Guard::Settle,
        Crashes::BackToTheLastFsync,
        &["LOST", "DROPPED"],
    );
}

#[test]
fn without_the_comparison_a_reader_sees_a_batch_twice() {
    breaks::<Slices>(Guard::Comparison, Crashes::None, &["TORN READ"]);
}

#[test]
fn without_the_ledger_a_batch_counts_twice() {
    breaks_in_the_real_database::<Slices>(Guard::Ledger, &["DOUBLE", "TORN"]);
}

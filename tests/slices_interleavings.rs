//! The interleavings of series whose slices are kept: writers, closers, reconcilers and a reader as explicit steps on a
//! clock that also steps back. proptest picks their order, where they die, which replies are lost and when Redis crashes;
//! after every step each acknowledged hit is in its slice once (PROTOCOL sections 1 and 5).
//!
//! Every hit is a token: the k-th of a case adds 4^k, so that in base 4 each digit of a slice says how often that hit is
//! in it.
#![allow(missing_docs)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use counterfoil::test_hooks::{
    Cut, CutBatch, Fence, FetchReply, Guard, Partition, RotateReply, SeriesReply, ServerClock,
};
use counterfoil::{
    Batch, Counterfoil, Durability, Family, Incarnation, MysqlStore, Precision, ReadFrom, Registered, Result,
    SeriesFamily, Slice, Store,
};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError};
use redis::aio::MultiplexedConnection;
use support::gated::Gated;
use support::interleaving::{
    Checked, Crashes, Fate, Lengths, cases, connect, digit, expect_failure, failed, fate, hunt, runtime,
};
use support::reference::Reference;
use testkit::{MysqlServer, RedisServer};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

const SETTLE: u64 = 1000;
/// In Unix milliseconds: five seconds later a day begins in Berlin.
const START: u64 = 1_414_364_395_000;
const NAMES: [&str; 2] = ["a", "page/é"];
const PARTITIONS: u32 = 2;
const WRITERS: usize = 3;
const WORKERS: usize = 2;
/// A hit adds a power of 4, and all of them together must stay far within i64.
const TOKENS: usize = 25;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The writer counts one for the name, or, if a reply is missing, asks for it again.
    Write {
        writer: usize,
        name: usize,
        fate: Fate,
    },
    /// The writer dies with its call in the air, and another takes its place.
    WriterDies {
        writer: usize,
    },
    /// Slices that are over are handed on to the buffer.
    Close {
        partition: u32,
    },
    /// The worker's next step: rotate, fetch, apply, release.
    Work {
        worker: usize,
        partition: u32,
        fate: Fate,
    },
    WorkerDies {
        worker: usize,
    },
    /// Somebody reads all slices of a name.
    ReadBegins {
        name: usize,
    },
    /// The reader's question to the database goes through.
    ReadGoesOn,
    Tick {
        ms: u64,
    },
    /// The server's clock is set back.
    SetBack {
        ms: u64,
    },
    ScriptFlush,
    /// Redis comes back with its file cut back to this share of what is not durable.
    Crash {
        kept: u8,
    },
    /// Redis comes back empty.
    Emptied,
}

fn step(crashes: Crashes) -> impl Strategy<Value = Step> {
    let crash = match crashes {
        Crashes::BackToTheLastFsync => any::<u8>().prop_map(|kept| Step::Crash { kept }).boxed(),
        Crashes::Empty => Just(Step::Emptied).boxed(),
        Crashes::None => Just(Step::ScriptFlush).boxed(),
    };
    prop_oneof![
        10 => (0..WRITERS, 0..NAMES.len(), fate()).prop_map(|(writer, name, fate)| Step::Write { writer, name, fate }),
        1 => (0..WRITERS).prop_map(|writer| Step::WriterDies { writer }),
        6 => (0..PARTITIONS).prop_map(|partition| Step::Close { partition }),
        14 => (0..WORKERS, 0..PARTITIONS, fate())
            .prop_map(|(worker, partition, fate)| Step::Work { worker, partition, fate }),
        1 => (0..WORKERS).prop_map(|worker| Step::WorkerDies { worker }),
        4 => (0..NAMES.len()).prop_map(|name| Step::ReadBegins { name }),
        6 => Just(Step::ReadGoesOn),
        7 => prop_oneof![Just(100), Just(600), Just(1000), Just(1500)].prop_map(|ms| Step::Tick { ms }),
        1 => prop_oneof![Just(300), Just(2500)].prop_map(|ms| Step::SetBack { ms }),
        1 => Just(Step::ScriptFlush),
        1 => crash,
    ]
}

/// What the test knows of a hit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// It may be counted or not.
    InDoubt,
    /// Redis acknowledged it; its effect was in the append-only file at this length.
    Acknowledged { at: u64 },
    /// Redis acknowledged it and forgot it in a crash before it was durable: it may be in the database or not.
    Forgotten,
}

#[derive(Clone, Debug)]
struct Token {
    name: usize,
    state: State,
    /// The slices that were the current ones whenever its call was executed.
    slices: BTreeSet<i64>,
}

impl Token {
    fn is_acknowledged(&self) -> bool {
        matches!(self.state, State::Acknowledged { .. })
    }
}

#[derive(Debug)]
struct Writer {
    producer: String,
    seq: u64,
    registered: bool,
    /// The call whose reply is missing.
    open: Option<Call>,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    token: usize,
    repeat: bool,
}

#[derive(Debug)]
enum Worker {
    Idle,
    Holds(u32, CutBatch),
    Fetched(u32, CutBatch, Vec<(String, i64)>),
    Applied(u32, CutBatch),
}

struct Reader<S> {
    task: JoinHandle<Result<Vec<Slice>>>,
    store: Gated<S>,
    name: usize,
    /// The hits that were acknowledged before it began.
    before: Vec<bool>,
    crashed: bool,
}

struct World<'s, S> {
    server: &'s RedisServer,
    redis: MultiplexedConnection,
    store: S,
    series: SeriesFamily,
    family: Arc<Registered>,
    /// What the writers believe of the server's clock.
    clock: ServerClock,
    crashes: Crashes,
    /// By the server's clock.
    now: u64,
    /// The same, but for the steps back.
    elapsed: u64,
    lengths: Lengths,
    writers: Vec<Writer>,
    workers: Vec<Worker>,
    reader: Option<Reader<S>>,
    tokens: Vec<Token>,
    names: u64,
}

impl<'s, S: Store + Clone> World<'s, S> {
    async fn new(server: &'s RedisServer, store: S, name: String, crashes: Crashes) -> Self {
        let mut redis = connect(server).await;
        redis::cmd("FLUSHALL").exec_async(&mut redis).await.expect("FLUSHALL");
        let series = Family::series(name, "hits")
            .windows([(Precision::SECOND, 3), (Precision::Day, 2)])
            .time_zone("Europe/Berlin")
            .keep([Precision::SECOND])
            .partitions(PARTITIONS)
            .durability(Durability::Settle(Duration::from_millis(SETTLE)))
            .build()
            .expect("a valid family");
        let family = series.family().clone();
        let number = store.register(&family).await.expect("registered");
        let mut world = World {
            server,
            redis,
            store,
            series,
            family: Arc::new(Registered { family, number }),
            clock: ServerClock::default(),
            crashes,
            now: START,
            elapsed: START,
            lengths: Lengths::new(SETTLE),
            writers: Vec::new(),
            workers: (0..WORKERS).map(|_| Worker::Idle).collect(),
            reader: None,
            tokens: Vec::new(),
            names: 0,
        };
        world.writers = (0..WRITERS).map(|_| world.new_writer()).collect();
        world.note_length();
        world
    }

    fn new_writer(&mut self) -> Writer {
        self.names += 1;
        Writer { producer: format!("writer-{}", self.names), seq: 0, registered: false, open: None }
    }

    fn partition(&self, number: u32) -> Partition<MultiplexedConnection> {
        Partition::new(self.redis.clone(), &self.family.family, number).at(self.now)
    }

    fn partition_of(&self, name: usize) -> u32 {
        self.family.family.partition_of(NAMES[name])
    }

    fn note_length(&mut self) -> u64 {
        if self.crashes != Crashes::BackToTheLastFsync {
            return 0;
        }
        let length = self.server.aof_len();
        self.lengths.note(self.elapsed, length);
        length
    }

    async fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Write { writer, name, fate } => self.write(writer, name, fate).await?,
            Step::WriterDies { writer } => self.writers[writer] = self.new_writer(),
            Step::Close { partition } => drop(self.partition(partition).close_slices().await.map_err(failed)?),
            Step::Work { worker, partition, fate } => self.work(worker, partition, fate).await?,
            Step::WorkerDies { worker } => self.workers[worker] = Worker::Idle,
            Step::ReadBegins { name } => self.read_begins(name).await,
            Step::ReadGoesOn => self.read_goes_on().await?,
            Step::Tick { ms } => {
                self.now += ms;
                self.elapsed += ms;
            }
            Step::SetBack { ms } => self.now -= ms,
            Step::ScriptFlush => {
                redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut self.redis).await.map_err(failed)?;
            }
            Step::Crash { kept } => self.crash(kept).await,
            Step::Emptied => {
                redis::cmd("FLUSHALL").exec_async(&mut self.redis).await.map_err(failed)?;
                self.forget(|_| true);
            }
        }
        self.note_length();
        Ok(())
    }

    async fn write(&mut self, number: usize, name: usize, fate: Fate) -> Checked {
        let call = match self.writers[number].open {
            Some(call) => call,
            None if self.tokens.len() == TOKENS => return Ok(()),
            None => {
                self.tokens.push(Token { name, state: State::InDoubt, slices: BTreeSet::new() });
                self.writers[number].seq += 1;
                Call { token: self.tokens.len() - 1, repeat: false }
            }
        };
        self.register(number).await?;
        self.writers[number].open = Some(Call { repeat: true, ..call });
        if fate == Fate::LostBefore {
            return Ok(());
        }
        let token = &mut self.tokens[call.token];
        token.slices.insert((self.now / 1000).cast_signed());
        let n = 4i64.pow(u32::try_from(call.token).expect("few tokens"));
        let pair = (NAMES[token.name].as_bytes(), n);
        let partition = self.partition(self.partition_of(self.tokens[call.token].name));
        let writer = &self.writers[number];
        let fence = Fence { producer: &writer.producer, seq: writer.seq, repeat: call.repeat };
        let added = partition.add_to_series(self.series.windows(), &self.clock, Some(fence), [pair]).await;
        let added = added.map_err(failed)?;
        let at = self.note_length();
        match (added, fate) {
            (_, Fate::LostAfter) => {}
            (SeriesReply::Executed(counted), _) if counted == [true] => {
                self.writers[number].open = None;
                self.tokens[call.token].state = State::Acknowledged { at };
            }
            (SeriesReply::Executed(counted), _) => return Err(failed(format!("REFUSED: {counted:?}"))),
            // the caller is told that the outcome is unknown
            (SeriesReply::Unknown, _) => self.writers[number] = self.new_writer(),
        }
        Ok(())
    }

    async fn register(&mut self, number: usize) -> Checked {
        // one producer for both partitions is fine as long as it has one call in flight
        for partition in 0..PARTITIONS {
            if !self.writers[number].registered {
                self.partition(partition).register(&self.writers[number].producer).await.map_err(failed)?;
            }
        }
        self.writers[number].registered = true;
        Ok(())
    }

    async fn work(&mut self, number: usize, partition: u32, fate: Fate) -> Checked {
        let worker = std::mem::replace(&mut self.workers[number], Worker::Idle);
        if fate == Fate::LostBefore {
            self.workers[number] = worker;
            return Ok(());
        }
        let is_lost = fate == Fate::LostAfter;
        self.workers[number] = match worker {
            Worker::Idle => {
                self.names += 1;
                let rotated = self.partition(partition).rotate(Incarnation(self.names), None, Cut::Now).await;
                match rotated.map_err(failed)? {
                    RotateReply::Batch(cut) if !is_lost => Worker::Holds(partition, cut),
                    _ => Worker::Idle,
                }
            }
            Worker::Holds(partition, cut) => {
                let settle = Duration::from_millis(SETTLE);
                match self.partition(partition).fetch(&cut, settle, 10).await.map_err(failed)? {
                    FetchReply::Deltas(deltas) if !is_lost => Worker::Fetched(partition, cut, deltas),
                    FetchReply::Stale => Worker::Idle,
                    _ => Worker::Holds(partition, cut),
                }
            }
            Worker::Fetched(partition, cut, deltas) => {
                let batch = Batch {
                    family: self.family.clone(),
                    partition,
                    incarnation: cut.incarnation,
                    seq: cut.seq,
                    deltas: deltas.clone(),
                };
                let _ = self.store.apply(&[batch]).await.map_err(failed)?;
                if is_lost { Worker::Fetched(partition, cut, deltas) } else { Worker::Applied(partition, cut) }
            }
            Worker::Applied(partition, cut) => {
                self.partition(partition).release(&cut).await.map_err(failed)?;
                if is_lost { Worker::Applied(partition, cut) } else { Worker::Idle }
            }
        };
        Ok(())
    }

    async fn read_begins(&mut self, name: usize) {
        if self.reader.is_some() {
            return;
        }
        let store = Gated::new(self.store.clone());
        let series = Counterfoil::new(self.redis.clone(), store.clone()).open_series(self.series.clone()).await;
        let series = series.expect("the family is known");
        let range = self.all_times();
        let task = tokio::spawn(async move { series.get_range(NAMES[name], Precision::SECOND, range).await });
        store.reach(&task).await;
        let before = self.tokens.iter().map(Token::is_acknowledged).collect();
        self.reader = Some(Reader { task, store, name, before, crashed: false });
    }

    async fn read_goes_on(&mut self) -> Checked {
        let Some(reader) = self.reader.take() else { return Ok(()) };
        reader.store.let_in(&reader.task).await;
        if !reader.task.is_finished() {
            self.reader = Some(reader);
            return Ok(());
        }
        let slices = match reader.task.await.map_err(failed)? {
            Ok(slices) => slices,
            Err(_) if reader.crashed => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let its_own = |(_, token): &(usize, &Token)| token.name == reader.name;
        for (number, token) in self.tokens.iter().enumerate().filter(its_own) {
            let times: u8 = slices.iter().map(|slice| digit(slice.count.into(), number)).sum();
            let was_acknowledged = reader.before.get(number) == Some(&true);
            let least = u8::from(was_acknowledged && token.state != State::Forgotten && !reader.crashed);
            if times < least || times > 1 {
                return Err(failed(format!("TORN READ: hit {number} ({token:?}) is {times} times in {slices:?}")));
            }
        }
        Ok(())
    }

    async fn crash(&mut self, kept: u8) {
        let left = self.lengths.left(kept);
        self.server.kill();
        self.server.cut_aof(left);
        self.server.start_again().await;
        self.redis = connect(self.server).await;
        self.forget(|at| at > left);
        self.lengths.restart(self.elapsed, self.server.aof_len());
    }

    /// After a crash: what was counted at a length of the file that is not there any more may be gone.
    fn forget(&mut self, gone: impl Fn(u64) -> bool) {
        for token in &mut self.tokens {
            if matches!(token.state, State::Acknowledged { at } if gone(at)) {
                token.state = State::Forgotten;
            }
        }
        if let Some(reader) = &mut self.reader {
            reader.crashed = true;
        }
    }

    /// All times at which anything can have been counted, in Unix seconds.
    fn all_times(&self) -> std::ops::Range<i64> {
        let slices: BTreeSet<_> = self.tokens.iter().flat_map(|token| &token.slices).copied().collect();
        let first = slices.first().copied().unwrap_or(0);
        first - 1..slices.last().copied().unwrap_or(first) + 2
    }

    /// What slices of the name hold that anything can be in, by their kept ids: in the database, and not yet.
    async fn slices_of(&self, name: usize) -> Result<BTreeMap<String, i128>, TestCaseError> {
        let tokens = self.tokens.iter().filter(|token| token.name == name);
        let slices: BTreeSet<_> = tokens.flat_map(|token| &token.slices).collect();
        let ids: Vec<_> = slices.iter().map(|slice| format!("{slice}/{}", NAMES[name])).collect();
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let id_refs: Vec<_> = ids.iter().map(String::as_str).collect();
        let number = self.partition_of(name);
        let pending = self.partition(number).read_with_slices(&id_refs).await.map_err(failed)?;
        let mark: Vec<_> = pending.incarnation.map(|incarnation| (number, incarnation)).into_iter().collect();
        let snapshot = self.store.read(&self.family, &id_refs, &mark, ReadFrom::Primary).await.map_err(failed)?;
        let is_beside = pending.in_flight && snapshot.ledger.first().copied().unwrap_or(0) < pending.seq;
        let totals = snapshot.values.iter().zip(&pending.deltas).map(|(value, (batch, buffer))| {
            let beside = if is_beside { i128::from(*batch) } else { 0 };
            i128::from(value.unwrap_or(0)) + i128::from(*buffer) + beside
        });
        Ok(ids.iter().cloned().zip(totals).collect())
    }

    /// Every acknowledged hit is in a slice of its own once, no other twice. Answers what all slices hold.
    async fn check(&self) -> Result<BTreeMap<String, i128>, TestCaseError> {
        let mut all = BTreeMap::new();
        for name in 0..NAMES.len() {
            all.extend(self.slices_of(name).await?);
        }
        for (number, token) in self.tokens.iter().enumerate() {
            let in_its_own =
                token.slices.iter().map(|slice| digit(all[&format!("{slice}/{}", NAMES[token.name])], number));
            let (its_own, anywhere): (u8, u8) =
                (in_its_own.sum(), all.values().map(|value| digit(*value, number)).sum());
            let least = u8::from(token.is_acknowledged());
            let word = match (its_own, anywhere) {
                (_, 2..) => "DOUBLE",
                (its_own, _) if its_own < least => "LOST",
                (0, 1) => "MISPLACED",
                _ => continue,
            };
            return Err(failed(format!("{word}: hit {number}, {token:?}, in {all:?}")));
        }
        Ok(all)
    }

    /// Ends every call and brings everything to the database.
    async fn finish(&mut self) -> Checked {
        while self.reader.is_some() {
            self.read_goes_on().await?;
        }
        for number in 0..WRITERS {
            if self.writers[number].open.is_some() {
                self.write(number, 0, Fate::Answered).await?;
            }
        }
        // also what was counted before the clock stepped back is over
        self.now += 100_000;
        self.elapsed += 100_000;
        for partition in 0..PARTITIONS {
            self.partition(partition).close_slices().await.map_err(failed)?;
            // one batch may be there, and the buffer behind it; then the workers' own
            for _ in 0..16 {
                for worker in 0..WORKERS {
                    self.now += SETTLE;
                    self.work(worker, partition, Fate::Answered).await?;
                }
            }
            self.is_empty(partition).await?;
        }
        let expected: BTreeMap<_, _> = self.check().await?.into_iter().filter(|(_, value)| *value != 0).collect();
        let stored = self.store.list(&self.family, "", None, 10_000).await.map_err(failed)?;
        let stored: BTreeMap<_, _> = stored.into_iter().map(|(id, value)| (id, i128::from(value))).collect();
        if stored == expected { Ok(()) } else { Err(failed(format!("ROWS: {stored:?}, not {expected:?}"))) }
    }

    async fn is_empty(&self, number: u32) -> Checked {
        let open = format!("cf1:{{{}/{number}}}:open", self.family.family);
        let is_open: bool =
            redis::cmd("EXISTS").arg(&open).query_async(&mut self.redis.clone()).await.map_err(failed)?;
        match is_open || self.partition(number).has_pending().await.map_err(failed)? {
            true => Err(failed(format!("WEDGED: partition {number} is not empty"))),
            false => Ok(()),
        }
    }
}

/// Runs random cases against the store.
fn hunt_in<S: Store + Clone>(
    runtime: &Runtime,
    store: &S,
    crashes: Crashes,
    cases: u32,
    guard: Option<Guard>,
) -> Result<(), TestError<Vec<Step>>> {
    let steps = proptest::collection::vec(step(crashes), 10..70);
    hunt(runtime, (crashes, cases, guard), steps, |server, name, steps| {
        runtime.block_on(async {
            let mut world = World::new(server, store.clone(), name, crashes).await;
            for step in steps {
                world.step(step).await?;
                let _ = world.check().await?;
            }
            world.finish().await
        })
    })
}

fn exact(crashes: Crashes, default: u32) {
    if let Err(error) = hunt_in(&runtime(), &Reference::default(), crashes, cases(default), None) {
        panic!("{error}");
    }
}

#[test]
fn exact_without_crashes_of_redis() {
    exact(Crashes::None, 80);
}

#[test]
fn exact_when_redis_goes_back_to_its_last_fsync() {
    exact(Crashes::BackToTheLastFsync, 50);
}

#[test]
fn exact_when_redis_is_emptied() {
    exact(Crashes::Empty, 80);
}

/// Takes the guard out and expects the failure that it prevents.
fn breaks<S: Store + Clone>(runtime: &Runtime, store: &S, guard: Guard, crashes: Crashes, expected: &[&str]) {
    expect_failure(hunt_in(runtime, store, crashes, 2000, Some(guard)), guard, expected);
}

#[test]
fn without_the_handover_a_slice_is_in_two_places() {
    breaks(&runtime(), &Reference::default(), Guard::Handover, Crashes::None, &["DOUBLE", "TORN"]);
}

#[test]
fn without_the_producer_fence_a_repeat_counts_twice() {
    breaks(&runtime(), &Reference::default(), Guard::ProducerFence, Crashes::None, &["DOUBLE", "TORN"]);
}

#[test]
fn without_settle_a_crash_counts_twice() {
    breaks(&runtime(), &Reference::default(), Guard::Settle, Crashes::BackToTheLastFsync, &["DOUBLE", "TORN"]);
}

#[test]
fn without_the_comparison_a_reader_sees_a_batch_twice() {
    breaks(&runtime(), &Reference::default(), Guard::Comparison, Crashes::None, &["TORN READ"]);
}

#[test]
fn without_the_ledger_a_batch_counts_twice() {
    let runtime = runtime();
    let server = runtime.block_on(MysqlServer::start());
    let store = runtime.block_on(async {
        let store = MysqlStore::new(server.database("interleavings").await.1);
        store.create_tables().await.expect("tables");
        store
    });
    breaks(&runtime, &store, Guard::Ledger, Crashes::None, &["DOUBLE", "TORN"]);
}

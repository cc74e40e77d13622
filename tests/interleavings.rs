//! HOUSE test 4: writers, reconcilers and a reader as explicit steps. proptest picks their order, where they die, which
//! replies are lost, when Redis forgets its scripts and when it crashes; the invariants of PROTOCOL section 1 are
//! checked after every step and at the end. The Redis is a real one; the database is a real one in one test and the
//! plain reference in the others, which is faster and so tries more.
//!
//! Every increment is a token: the k-th of a case adds 4^k, so that in base 4 each digit of a value says how often that
//! increment is in it.
//!
//! Time is the test's own.
#![allow(missing_docs)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use counterfoil::test_hooks::{AddReply, Cut, CutBatch, Fence, FetchReply, Guard, Partition, RotateReply};
use counterfoil::{
    Added, Batch, Counterfoil, Durability, Family, Incarnation, MysqlStore, ReadFrom, Registered, Result, Store,
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
const IDS: [&str; 3] = ["a", "b", "page/é"];
const PARTITIONS: u32 = 2;
const WRITERS: usize = 3;
const WORKERS: usize = 2;
/// 4^31 is the first that does not fit.
const TOKENS: usize = 31;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The writer counts one for the id, or, if a reply is missing, asks for it again.
    Write {
        writer: usize,
        id: usize,
        fate: Fate,
    },
    /// The writer dies with its call in the air, and another takes its place.
    WriterDies {
        writer: usize,
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
    /// Both workers do what they can until nothing is left: a quiet time.
    ReadBegins,
    /// The reader's question to the database goes through.
    ReadGoesOn,
    Tick {
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
        12 => (0..WRITERS, 0..IDS.len(), fate()).prop_map(|(writer, id, fate)| Step::Write { writer, id, fate }),
        1 => (0..WRITERS).prop_map(|writer| Step::WriterDies { writer }),
        16 => (0..WORKERS, 0..PARTITIONS, fate())
            .prop_map(|(worker, partition, fate)| Step::Work { worker, partition, fate }),
        1 => (0..WORKERS).prop_map(|worker| Step::WorkerDies { worker }),
        4 => Just(Step::ReadBegins),
        6 => Just(Step::ReadGoesOn),
        5 => prop_oneof![Just(100), Just(600), Just(1000), Just(1500)].prop_map(|ms| Step::Tick { ms }),
        1 => Just(Step::ScriptFlush),
        1 => crash,
    ]
}

/// What the test knows of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    /// It may be counted or not.
    InDoubt,
    /// Redis acknowledged it; its effect was in the append-only file at this length.
    Acknowledged { at: u64 },
    /// Redis acknowledged it and forgot it in a crash before it was durable: it may be in the database or not.
    Forgotten,
    /// It was surely not counted.
    Refused,
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
    id: usize,
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
    task: JoinHandle<Result<Vec<i64>>>,
    store: Gated<S>,
    /// What was acknowledged before it began.
    before: Vec<Token>,
    crashed: bool,
}

struct World<'s, S> {
    server: &'s RedisServer,
    /// Where the database is a real one, which is killed now and then while it commits.
    mysql: Option<&'s MysqlServer>,
    redis: MultiplexedConnection,
    store: S,
    family: Arc<Registered>,
    crashes: Crashes,
    now: u64,
    lengths: Lengths,
    writers: Vec<Writer>,
    workers: Vec<Worker>,
    reader: Option<Reader<S>>,
    tokens: Vec<(usize, Token)>,
    names: u64,
}

impl<'s, S: Store + Clone> World<'s, S> {
    async fn new(
        (server, mysql): (&'s RedisServer, Option<&'s MysqlServer>),
        store: S,
        name: String,
        crashes: Crashes,
    ) -> Self {
        let mut redis = connect(server).await;
        redis::cmd("FLUSHALL").exec_async(&mut redis).await.expect("FLUSHALL");
        let family = Family::buffered(name, "hits")
            .partitions(PARTITIONS)
            .durability(Durability::Settle(Duration::from_millis(SETTLE)))
            .build()
            .expect("a valid family");
        let number = store.register(&family).await.expect("registered");
        let mut world = World {
            server,
            mysql,
            redis,
            store,
            family: Arc::new(Registered { family, number }),
            crashes,
            now: 1_000_000,
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

    fn note_length(&mut self) -> u64 {
        if self.crashes != Crashes::BackToTheLastFsync {
            return 0;
        }
        let length = self.server.aof_len();
        self.lengths.note(self.now, length);
        length
    }

    async fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Write { writer, id, fate } => self.write(writer, id, fate).await?,
            Step::WriterDies { writer } => self.writers[writer] = self.new_writer(),
            Step::Work { worker, partition, fate } => self.work(worker, partition, fate).await?,
            Step::WorkerDies { worker } => self.workers[worker] = Worker::Idle,
            Step::ReadBegins => self.read_begins().await,
            Step::ReadGoesOn => self.read_goes_on().await?,
            Step::Tick { ms } => self.now += ms,
            Step::ScriptFlush => {
                redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut self.redis).await.map_err(failed)?;
            }
            Step::Crash { kept } => self.crash(kept).await,
            Step::Emptied => {
                redis::cmd("FLUSHALL").exec_async(&mut self.redis).await.map_err(failed)?;
                redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut self.redis).await.map_err(failed)?;
                self.forget(|_| true);
            }
        }
        self.note_length();
        Ok(())
    }

    async fn write(&mut self, number: usize, id: usize, fate: Fate) -> Checked {
        let call = match self.writers[number].open {
            Some(call) => call,
            None if self.tokens.len() == TOKENS => return Ok(()),
            None => {
                self.tokens.push((id, Token::InDoubt));
                self.writers[number].seq += 1;
                Call { token: self.tokens.len() - 1, id, repeat: false }
            }
        };
        self.writers[number].open = Some(call);
        let partition = self.partition(self.family.family.partition_of(IDS[call.id]));
        let writer = &mut self.writers[number];
        if !writer.registered {
            // one producer for both partitions is fine as long as it has one call in flight
            for number in 0..PARTITIONS {
                let partition = Partition::new(self.redis.clone(), &self.family.family, number).at(self.now);
                partition.register(&writer.producer).await.map_err(failed)?;
            }
            writer.registered = true;
        }
        if matches!(fate, Fate::LostBefore) {
            writer.open = Some(Call { repeat: true, ..call });
            return Ok(());
        }
        let fence = Fence { producer: &writer.producer, seq: writer.seq, repeat: call.repeat };
        let pair = (IDS[call.id], 4i64.pow(u32::try_from(call.token).expect("few tokens")));
        let reply = partition.add(&self.family.family, Some(fence), 1, [pair]).await.map_err(failed)?;
        let at = self.note_length();
        let writer = &mut self.writers[number];
        match (reply, fate) {
            (_, Fate::LostAfter) => writer.open = Some(Call { repeat: true, ..call }),
            (AddReply::Counted { added, .. }, _) => {
                writer.open = None;
                self.tokens[call.token].1 = match added[..] {
                    [Added::Counted { .. }] => Token::Acknowledged { at },
                    _ => Token::Refused,
                };
            }
            // the caller is told that the outcome is unknown
            (AddReply::Unknown, _) => {
                self.writers[number] = self.new_writer();
            }
        }
        Ok(())
    }

    async fn work(&mut self, number: usize, partition: u32, fate: Fate) -> Checked {
        let worker = std::mem::replace(&mut self.workers[number], Worker::Idle);
        if matches!(fate, Fate::LostBefore) {
            self.workers[number] = worker;
            return Ok(());
        }
        let lost = matches!(fate, Fate::LostAfter);
        let settle = Duration::from_millis(SETTLE);
        self.workers[number] = match worker {
            Worker::Idle => {
                self.names += 1;
                let rotated = self.partition(partition).rotate(Incarnation(self.names), None, Cut::Now).await;
                match rotated.map_err(failed)? {
                    RotateReply::Batch(cut) if !lost => Worker::Holds(partition, cut),
                    _ => Worker::Idle,
                }
            }
            Worker::Holds(partition, cut) => {
                match self.partition(partition).fetch(&cut, settle, 10).await.map_err(failed)? {
                    FetchReply::Deltas(deltas) if !lost => Worker::Fetched(partition, cut, deltas),
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
                match self.mysql {
                    Some(mysql) if lost && self.names.is_multiple_of(8) => self.kill_while_applying(mysql, batch).await,
                    _ => drop(self.store.apply(&[batch]).await.map_err(failed)?),
                }
                // whether the database committed or not, the answer got lost
                if lost { Worker::Fetched(partition, cut, deltas) } else { Worker::Applied(partition, cut) }
            }
            Worker::Applied(partition, cut) => {
                self.partition(partition).release(&cut).await.map_err(failed)?;
                if lost { Worker::Applied(partition, cut) } else { Worker::Idle }
            }
        };
        Ok(())
    }

    async fn kill_while_applying(&self, mysql: &MysqlServer, batch: Batch) {
        let store = self.store.clone();
        let applying = tokio::spawn(async move { store.apply(&[batch]).await });
        tokio::time::sleep(Duration::from_micros(self.names * 97 % 3000)).await;
        mysql.kill();
        mysql.start_again().await;
        let _either_way = applying.await;
    }

    async fn read_begins(&mut self) {
        if self.reader.is_some() {
            return;
        }
        let store = Gated::new(self.store.clone());
        let counters = Counterfoil::new(self.redis.clone(), store.clone()).open(self.family.family.clone()).await;
        let counters = counters.expect("the family is known");
        let task = tokio::spawn(async move { counters.get_many(&IDS).await });
        let before = self.tokens.iter().map(|(_, token)| *token).collect();
        store.reach(&task).await;
        self.reader = Some(Reader { task, store, before, crashed: false });
    }

    async fn read_goes_on(&mut self) -> Checked {
        let Some(reader) = self.reader.take() else { return Ok(()) };
        reader.store.let_in(&reader.task).await;
        if !reader.task.is_finished() {
            self.reader = Some(reader);
            return Ok(());
        }
        let values = match reader.task.await.map_err(failed)? {
            Ok(values) => values,
            Err(_) if reader.crashed => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        for (token, &(id, state)) in self.tokens.iter().enumerate() {
            let times = digit(values[id].into(), token);
            let acknowledged = matches!(reader.before.get(token), Some(Token::Acknowledged { .. }));
            let least = u8::from(acknowledged && state != Token::Forgotten && !reader.crashed);
            if times < least || times > 1 {
                return Err(failed(format!(
                    "TORN READ: increment {token} of {} ({state:?}) is {times} times in {}",
                    IDS[id], values[id]
                )));
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
        self.lengths.restart(self.now, self.server.aof_len());
    }

    /// After a crash: what was counted at a length of the file that is not there any more may be gone.
    fn forget(&mut self, gone: impl Fn(u64) -> bool) {
        for (_, token) in &mut self.tokens {
            if matches!(token, Token::Acknowledged { at } if gone(*at)) {
                *token = Token::Forgotten;
            }
        }
        if let Some(reader) = &mut self.reader {
            reader.crashed = true;
        }
    }

    /// What is in the database, and what is not yet.
    async fn totals(&self) -> Result<Vec<i128>, TestCaseError> {
        let pending = {
            let mut all = Vec::new();
            for id in IDS {
                let number = self.family.family.partition_of(id);
                all.push((number, self.partition(number).read(&[id]).await.map_err(failed)?));
            }
            all
        };
        let mut totals = Vec::new();
        for (id, (number, pending)) in IDS.iter().zip(pending) {
            let mark: Vec<_> = pending.incarnation.map(|incarnation| (number, incarnation)).into_iter().collect();
            let snapshot = self.store.read(&self.family, &[id], &mark, ReadFrom::Primary).await.map_err(failed)?;
            let (batch, buffer) = pending.deltas[0];
            let ledger = snapshot.ledger.first().copied().unwrap_or(0);
            let in_flight = pending.in_flight && ledger < pending.seq;
            totals.push(
                i128::from(snapshot.values[0].unwrap_or(0))
                    + i128::from(buffer)
                    + if in_flight { i128::from(batch) } else { 0 },
            );
        }
        Ok(totals)
    }

    /// PROTOCOL section 1: every acknowledged increment is in the sum once, no other twice.
    async fn check(&self) -> Checked {
        let totals = self.totals().await?;
        for (token, &(id, state)) in self.tokens.iter().enumerate() {
            let times = digit(totals[id], token);
            let (least, most) = match state {
                Token::Acknowledged { .. } => (1, 1),
                Token::InDoubt | Token::Forgotten => (0, 1),
                Token::Refused => (0, 0),
            };
            if times < least || times > most {
                let word = if times < least { "LOST" } else { "DOUBLE" };
                return Err(failed(format!(
                    "{word}: increment {token} of {} ({state:?}) is {times} times in {}",
                    IDS[id], totals[id]
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
                self.write(number, 0, Fate::Answered).await?;
            }
        }
        for partition in 0..PARTITIONS {
            // one batch may be there, and the buffer behind it; then the workers' own
            for _ in 0..16 {
                for worker in 0..WORKERS {
                    self.now += SETTLE;
                    self.work(worker, partition, Fate::Answered).await?;
                }
            }
        }
        self.check().await?;
        for id in IDS {
            let partition = self.partition(self.family.family.partition_of(id));
            if partition.has_pending().await.map_err(failed)? {
                return Err(failed(format!("WEDGED: {id} is still pending")));
            }
        }
        Ok(())
    }
}

/// Runs random cases against the store.
fn hunt_in<S: Store + Clone>(
    runtime: &Runtime,
    (store, mysql): (&S, Option<&MysqlServer>),
    crashes: Crashes,
    cases: u32,
    guard: Option<Guard>,
) -> Result<(), TestError<Vec<Step>>> {
    let steps = proptest::collection::vec(step(crashes), 10..70);
    hunt(runtime, (crashes, cases, guard), steps, |server, name, steps| {
        runtime.block_on(async {
            let mut world = World::new((server, mysql), store.clone(), name, crashes).await;
            for step in steps {
                world.step(step).await?;
                world.check().await?;
            }
            world.finish().await
        })
    })
}

fn exact(crashes: Crashes, default: u32) {
    if let Err(error) = hunt_in(&runtime(), (&Reference::default(), None), crashes, cases(default), None) {
        panic!("{error}");
    }
}

#[test]
fn exact_without_crashes_of_redis() {
    exact(Crashes::None, 1500);
}

#[test]
fn exact_when_redis_goes_back_to_its_last_fsync() {
    exact(Crashes::BackToTheLastFsync, 1000);
}

#[test]
fn exact_when_redis_is_emptied() {
    exact(Crashes::Empty, 1500);
}

#[test]
fn exact_with_the_real_database() {
    let runtime = runtime();
    let server = runtime.block_on(MysqlServer::start());
    let store = runtime.block_on(mysql(&server));
    for crashes in [Crashes::None, Crashes::BackToTheLastFsync, Crashes::Empty] {
        if let Err(error) = hunt_in(&runtime, (&store, Some(&server)), crashes, cases(300) / 3 + 1, None) {
            panic!("{error}");
        }
    }
}

async fn mysql(server: &MysqlServer) -> MysqlStore {
    let (_, pool) = server.database("interleavings").await;
    let store = MysqlStore::new(pool);
    store.create_tables().await.expect("tables");
    store
}

const fn write(writer: usize, id: usize) -> Step {
    Step::Write { writer, id, fate: Fate::Answered }
}

const fn work(worker: usize, partition: u32) -> Step {
    Step::Work { worker, partition, fate: Fate::Answered }
}

/// Runs what an earlier version got wrong.
fn replay(crashes: Crashes, steps: &[Step]) {
    runtime().block_on(async {
        let server = RedisServer::start(crashes.options()).await;
        let store = Reference::default();
        let mut world = World::new((&server, None), store, "regression".to_owned(), crashes).await;
        for step in steps {
            world.step(*step).await.expect("exact");
            world.check().await.expect("exact");
        }
        world.finish().await.expect("exact");
    });
}

/// A partition that had no incarnation was read, its batch was cut and applied, and Redis was emptied before the reader
/// looked again, so that it had none again and the value had the batch twice.
#[test]
fn a_batch_that_comes_and_goes_between_two_looks_is_seen() {
    let [one, other] = [work(0, 1), work(1, 0)];
    let tick = Step::Tick { ms: SETTLE };
    let begin = [write(0, 0), Step::ReadBegins, one, other, tick, one, other, one, other];
    replay(Crashes::Empty, &[&begin[..], &[Step::Emptied, Step::ReadGoesOn, write(0, 0)]].concat());
}

/// The reader gave the partition an incarnation, a crash took that back and left the hits, and they reached the
/// database under another one before the reader asked it.
#[test]
fn an_incarnation_that_a_crash_takes_back_is_not_compared_with() {
    let [one, other] = [work(0, 1), work(1, 0)];
    let tick = Step::Tick { ms: SETTLE };
    let begin =
        [write(0, 0), tick, Step::ReadBegins, Step::Crash { kept: 0 }, one, other, tick, one, other, one, other];
    replay(Crashes::BackToTheLastFsync, &[&begin[..], &[Step::ReadGoesOn, write(0, 0)]].concat());
}

/// Takes the guard out and expects the failure that it prevents.
fn breaks<S: Store + Clone>(runtime: &Runtime, store: &S, guard: Guard, crashes: Crashes, expected: &[&str]) {
    expect_failure(hunt_in(runtime, (store, None), crashes, 2000, Some(guard)), guard, expected);
}

#[test]
fn without_the_producer_fence_a_repeat_counts_twice() {
    breaks(&runtime(), &Reference::default(), Guard::ProducerFence, Crashes::None, &["DOUBLE"]);
}

#[test]
fn without_settle_a_crash_counts_twice() {
    breaks(&runtime(), &Reference::default(), Guard::Settle, Crashes::BackToTheLastFsync, &["DOUBLE", "TORN"]);
}

#[test]
fn without_incarnations_an_emptied_redis_loses() {
    breaks(&runtime(), &Reference::default(), Guard::Incarnation, Crashes::Empty, &["LOST", "TORN"]);
}

#[test]
fn without_the_comparison_a_reader_sees_a_batch_twice() {
    breaks(&runtime(), &Reference::default(), Guard::Comparison, Crashes::None, &["TORN READ"]);
}

#[test]
fn without_the_ledger_a_batch_counts_twice() {
    let runtime = runtime();
    let server = runtime.block_on(MysqlServer::start());
    let store = runtime.block_on(mysql(&server));
    breaks(&runtime, &store, Guard::Ledger, Crashes::None, &["DOUBLE", "TORN"]);
}

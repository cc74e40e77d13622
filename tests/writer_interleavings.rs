//! The interleavings of the buffered kind through the writer: callers as futures that are polled, left alone and dropped
//! in random order, over a connection of which each call waits until the test says what becomes of it, on a clock that
//! only the test moves. The invariants are those of PROTOCOL section 1, and that nobody waits for ever.
//!
//! Every increment is a token: the k-th of a case adds 4^k, so that in base 4 each digit of a value says how often that
//! increment is in it.
#![allow(missing_docs)]

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use counterfoil::test_hooks::{Cut, CutBatch, FetchReply, Guard, Partition, RotateReply};
use counterfoil::{
    Added, Batch, Counterfoil, Counters, Durability, Family, Incarnation, ReadFrom, Registered, Result, Store,
};
use proptest::prelude::*;
use proptest::test_runner::TestError;
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisError, RedisFuture, RedisResult, Value};
use support::interleaving::{Checked, Crashes, Direct, Lengths, cases, digit, expect_failure, failed, hunt, runtime};
use support::reference::Reference;
use testkit::{RedisOptions, RedisServer};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::Instant;

const SETTLE: u64 = 1000;
const IDS: [&str; 3] = ["a", "b", "page/é"];
const PARTITIONS: u32 = 2;
const WORKERS: usize = 2;
/// 4^31 is the first that does not fit.
const TOKENS: usize = 31;
const PATIENCE: Duration = Duration::from_secs(2);
/// By how much a caller may be late: the writer looks at the time every 50 ms.
const LATE: Duration = Duration::from_millis(300);

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// Redis says that it cannot take it now.
    Refused,
    /// The connection died before the call arrived.
    LostBefore,
    /// The connection died between execution and reply.
    LostAfter,
    /// The connection died, and the call arrives later all the same.
    Delayed,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A caller comes, and does nothing yet.
    Add {
        id: usize,
    },
    Poll {
        caller: usize,
    },
    Drop {
        caller: usize,
    },
    /// One of the calls that wait arrives, or does not.
    Call {
        which: usize,
        fate: Fate,
    },
    /// What the writer does by itself goes on.
    Turn,
    /// The worker's next step: rotate, fetch, apply, release.
    Work {
        worker: usize,
        partition: u32,
        lost: bool,
    },
    WorkerDies {
        worker: usize,
    },
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
    let fate = prop_oneof![
        8 => Just(Fate::Answered),
        1 => Just(Fate::Refused),
        1 => Just(Fate::LostBefore),
        2 => Just(Fate::LostAfter),
        1 => Just(Fate::Delayed),
    ];
    prop_oneof![
        8 => (0..IDS.len()).prop_map(|id| Step::Add { id }),
        16 => any::<usize>().prop_map(|caller| Step::Poll { caller }),
        1 => any::<usize>().prop_map(|caller| Step::Drop { caller }),
        16 => (any::<usize>(), fate).prop_map(|(which, fate)| Step::Call { which, fate }),
        12 => Just(Step::Turn),
        10 => (0..WORKERS, 0..PARTITIONS, any::<u8>())
            .prop_map(|(worker, partition, lost)| Step::Work { worker, partition, lost: lost < 50 }),
        1 => (0..WORKERS).prop_map(|worker| Step::WorkerDies { worker }),
        8 => prop_oneof![3 => Just(6), 4 => Just(60), 1 => Just(700), 1 => Just(2100)].prop_map(|ms| Step::Tick { ms }),
        1 => Just(Step::ScriptFlush),
        2 => crash,
    ]
}

/// The writer's connection: calls wait until the test lets them go.
#[derive(Clone, Default)]
struct Line(Arc<Mutex<Vec<Sent>>>);

struct Sent {
    cmd: Cmd,
    /// `None` once whoever sent it was told that the connection is gone.
    reply: Option<oneshot::Sender<RedisResult<Value>>>,
}

impl Line {
    fn calls(&self) -> std::sync::MutexGuard<'_, Vec<Sent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionLike for Line {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let (reply, answer) = oneshot::channel();
        self.calls().push(Sent { cmd: cmd.clone(), reply: Some(reply) });
        Box::pin(async { answer.await.unwrap_or_else(|_| Err(gone())) })
    }

    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("nothing is pipelined")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

fn gone() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

/// What the test knows of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    /// It may be counted or not.
    InDoubt,
    Acknowledged,
    /// It was acknowledged, and a crash took it back before it was durable: it may be in the database or not.
    Forgotten,
    /// Its caller was told that it is surely not counted.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct Increment {
    id: usize,
    state: Token,
    /// The length of the append-only file with its effect.
    executed_at: Option<u64>,
}

struct Caller {
    token: usize,
    /// How many batches were cut, and how often Redis had crashed, when it came.
    came: u64,
    future: Pin<Box<dyn Future<Output = Result<Added>>>>,
}

#[derive(Debug)]
enum Worker {
    Idle,
    Holds(u32, CutBatch),
    Fetched(u32, CutBatch, Vec<(String, i64)>),
    Applied(u32, CutBatch),
}

struct World<'s> {
    server: &'s RedisServer,
    redis: Direct,
    line: Line,
    store: Reference,
    family: Arc<Registered>,
    counters: Counters<Line, Reference>,
    crashes: Crashes,
    now: u64,
    lengths: Lengths,
    callers: Vec<Caller>,
    workers: Vec<Worker>,
    tokens: Vec<Increment>,
    /// How many batches were cut and how often Redis crashed.
    cuts: u64,
    names: u64,
}

impl<'s> World<'s> {
    async fn new(server: &'s RedisServer, name: String, crashes: Crashes) -> Self {
        let (redis, line, store) = (Direct::to(server), Line::default(), Reference::default());
        redis.run(&redis::cmd("FLUSHALL")).expect("FLUSHALL");
        let family = Family::buffered(name, "hits")
            .partitions(PARTITIONS)
            .durability(match crashes {
                // what knows nothing after a crash cannot go back to an older state
                Crashes::Empty => Durability::Immediate,
                _ => Durability::Settle(Duration::from_millis(SETTLE)),
            })
            .build()
            .expect("a valid family");
        // whether the line resends is asked before
        let counterfoil = Counterfoil::new(line.clone(), store.clone());
        let mut open = std::pin::pin!(counterfoil.open(family.clone()));
        let counters = loop {
            match poll(open.as_mut()) {
                Poll::Ready(counters) => break counters.expect("opened").write_timeout(PATIENCE),
                Poll::Pending => {
                    let sent = line.calls().pop().expect("it waits for a call");
                    let _ = sent.reply.map(|reply| reply.send(redis.run(&sent.cmd)));
                }
            }
        };
        let number = store.register(&family).await.expect("registered");
        let mut world = World {
            server,
            redis,
            line,
            store,
            family: Arc::new(Registered { family, number }),
            counters,
            crashes,
            now: 1_000_000,
            lengths: Lengths::new(SETTLE),
            callers: Vec::new(),
            workers: (0..WORKERS).map(|_| Worker::Idle).collect(),
            tokens: Vec::new(),
            cuts: 0,
            names: 0,
        };
        world.note_length();
        world
    }

    fn partition(&self, number: u32) -> Partition<Direct> {
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
        let at = |which: usize, many: usize| (many > 0).then(|| which % many);
        match step {
            Step::Add { id } if self.tokens.len() < TOKENS => self.comes(id),
            Step::Add { .. } => {}
            Step::Poll { caller } => {
                if let Some(caller) = at(caller, self.callers.len()) {
                    self.poll(caller)?;
                }
            }
            Step::Drop { caller } => {
                if let Some(caller) = at(caller, self.callers.len()) {
                    drop(self.callers.swap_remove(caller));
                }
            }
            Step::Call { which, fate } => {
                let which = at(which, self.line.calls().len());
                if let Some(which) = which {
                    self.call(which, fate)?;
                }
            }
            Step::Turn => turn().await,
            Step::Work { worker, partition, lost } => self.work(worker, partition, lost).await?,
            Step::WorkerDies { worker } => self.workers[worker] = Worker::Idle,
            Step::Tick { ms } => self.tick(ms).await,
            Step::ScriptFlush => drop(self.redis.run(redis::cmd("SCRIPT").arg("FLUSH")).map_err(failed)?),
            Step::Crash { kept } => self.crash(kept),
            Step::Emptied => {
                self.disconnect();
                self.redis.run(&redis::cmd("FLUSHALL")).map_err(failed)?;
                self.redis.run(redis::cmd("SCRIPT").arg("FLUSH")).map_err(failed)?;
                self.forget(|_| true);
            }
        }
        self.note_length();
        Ok(())
    }

    async fn tick(&mut self, ms: u64) {
        self.now += ms;
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn comes(&mut self, id: usize) {
        let token = self.tokens.len();
        self.tokens.push(Increment { id, state: Token::InDoubt, executed_at: None });
        let counters = self.counters.clone();
        let future = Box::pin(async move { counters.add(IDS[id], 4i64.pow(token as u32)).await });
        self.callers.push(Caller { token, came: self.cuts, future });
    }

    /// Lets a caller go on; what it is told has to be true from now on.
    fn poll(&mut self, number: usize) -> Checked {
        let Poll::Ready(told) = poll(self.callers[number].future.as_mut()) else { return Ok(()) };
        let Caller { token, came, .. } = self.callers.swap_remove(number);
        let increment = &mut self.tokens[token];
        match told {
            Ok(Added::Counted { pending }) => {
                increment.state = match increment.state {
                    Token::Forgotten => Token::Forgotten,
                    _ => Token::Acknowledged,
                };
                let pending = i128::from(pending);
                let twice = (0..TOKENS).find(|token| digit(pending, *token) > 1);
                if let Some(twice) = twice {
                    return Err(failed(format!(
                        "DOUBLE: increment {twice} in {pending:#x}, told to increment {token}"
                    )));
                }
                // a repeat is told what is pending by then, which may be the next batch's
                if digit(pending, token) == 0 && came == self.cuts {
                    return Err(failed(format!("WRONG VALUE: {pending:#x} was told to increment {token}")));
                }
            }
            Ok(refused) => return Err(failed(format!("{refused:?}"))),
            Err(error) if error.is_retryable() => increment.state = Token::Refused,
            Err(error) if error.outcome_unknown() => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }

    fn call(&mut self, which: usize, fate: Fate) -> Checked {
        let mut sent = self.line.calls().remove(which);
        let mut tell = |answer| drop(sent.reply.take().map(|reply| reply.send(answer)));
        match fate {
            Fate::Answered => {
                let answer = self.execute(&sent.cmd);
                tell(answer);
            }
            Fate::Refused => {
                let loading = redis::make_extension_error("LOADING".to_owned(), Some("the test says so".to_owned()));
                tell(Err(loading));
            }
            Fate::LostBefore => tell(Err(gone())),
            Fate::LostAfter => {
                let _ = self.execute(&sent.cmd);
                tell(Err(gone()));
            }
            Fate::Delayed => {
                tell(Err(gone()));
                self.line.calls().push(sent);
            }
        }
        Ok(())
    }

    /// Executes a call, and notes which increments it counted.
    fn execute(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let answer = self.redis.run(cmd);
        let at = self.note_length();
        let is_ok =
            matches!(&answer, Ok(Value::Array(words)) if matches!(&words[0], Value::BulkString(word) if word == b"OK"));
        let args: Vec<_> = cmd.args_iter().collect();
        let text = |place: usize| match args.get(place) {
            Some(redis::Arg::Simple(bytes)) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => "",
        };
        if is_ok && text(5).ends_with(":producers") {
            for place in (15..args.len()).step_by(2) {
                let sum: i64 = text(place).parse().expect("a delta");
                let counted = (0..self.tokens.len()).filter(|token| digit(sum.into(), *token) > 0).collect::<Vec<_>>();
                counted.into_iter().for_each(|token| self.tokens[token].executed_at = Some(at));
            }
        }
        answer
    }

    async fn work(&mut self, number: usize, partition: u32, lost: bool) -> Checked {
        let worker = std::mem::replace(&mut self.workers[number], Worker::Idle);
        let settle = match self.crashes {
            Crashes::Empty => Duration::ZERO,
            _ => Duration::from_millis(SETTLE),
        };
        self.workers[number] = match worker {
            Worker::Idle => {
                self.names += 1;
                let rotated = self.partition(partition).rotate(Incarnation(self.names), None, Cut::Now).await;
                match rotated.map_err(failed)? {
                    RotateReply::Batch(cut) => {
                        self.cuts += u64::from(cut.fresh);
                        if lost { Worker::Idle } else { Worker::Holds(partition, cut) }
                    }
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
                let (incarnation, seq) = (cut.incarnation, cut.seq);
                let batch = Batch { family: self.family.clone(), partition, incarnation, seq, deltas: deltas.clone() };
                self.store.apply(&[batch]).await.map_err(failed)?;
                if lost { Worker::Fetched(partition, cut, deltas) } else { Worker::Applied(partition, cut) }
            }
            Worker::Applied(partition, cut) => {
                self.partition(partition).release(&cut).await.map_err(failed)?;
                if lost { Worker::Applied(partition, cut) } else { Worker::Idle }
            }
        };
        Ok(())
    }

    /// What was sent to a Redis that is gone does not reach the one that comes.
    fn disconnect(&mut self) {
        let calls = std::mem::take(&mut *self.line.calls());
        calls.into_iter().filter_map(|sent| sent.reply).for_each(|reply| drop(reply.send(Err(gone()))));
        self.cuts += 1;
    }

    fn crash(&mut self, kept: u8) {
        self.disconnect();
        let left = self.lengths.left(kept);
        self.server.kill();
        self.server.cut_aof(left);
        start_again(self.server);
        self.redis = Direct::to(self.server);
        self.forget(|at| at > left);
        self.lengths.restart(self.now, self.server.aof_len());
    }

    /// After a crash: what was counted at a length of the file that is not there any more may be gone.
    fn forget(&mut self, gone: impl Fn(u64) -> bool) {
        for increment in &mut self.tokens {
            if increment.executed_at.is_some_and(&gone) && increment.state != Token::Refused {
                // also where its caller is told only later that it was counted
                increment.state = Token::Forgotten;
            }
        }
    }

    /// PROTOCOL section 1: every acknowledged increment is in the sum once, no other twice.
    async fn check(&self) -> Checked {
        for (id, name) in IDS.iter().enumerate() {
            let number = self.family.family.partition_of(name);
            let pending = self.partition(number).read(&[name]).await.map_err(failed)?;
            let mark: Vec<_> = pending.incarnation.map(|incarnation| (number, incarnation)).into_iter().collect();
            let snapshot = self.store.read(&self.family, &[name], &mark, ReadFrom::Primary).await.map_err(failed)?;
            let (batch, buffer) = pending.deltas[0];
            let in_flight = pending.in_flight && snapshot.ledger.first().copied().unwrap_or(0) < pending.seq;
            let batch = if in_flight { i128::from(batch) } else { 0 };
            let total = i128::from(snapshot.values[0].unwrap_or(0)) + i128::from(buffer) + batch;
            for (token, increment) in self.tokens.iter().enumerate().filter(|(_, increment)| increment.id == id) {
                let times = digit(total, token);
                let (least, most) = match increment.state {
                    Token::Acknowledged => (1, 1),
                    Token::InDoubt | Token::Forgotten => (0, 1),
                    Token::Refused => (0, 0),
                };
                if times < least || times > most {
                    let word = if times < least { "LOST" } else { "DOUBLE" };
                    return Err(failed(format!(
                        "{word}: increment {token} ({increment:?}) is {times} times in {total:#x}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Redis answers everything: all callers end in time, a further one is counted, and everything reaches the database.
    async fn finish(&mut self) -> Checked {
        if self.tokens.len() < TOKENS {
            self.comes(0);
        }
        let began = Instant::now();
        while !self.callers.is_empty() {
            while !self.line.calls().is_empty() {
                self.call(0, Fate::Answered)?;
                turn().await;
            }
            for caller in (0..self.callers.len()).rev() {
                self.poll(caller)?;
            }
            self.check().await?;
            if self.line.calls().is_empty() && !self.callers.is_empty() {
                self.tick(5).await;
            }
            if began.elapsed() > PATIENCE + LATE {
                return Err(failed(format!("WEDGED: {} callers still wait", self.callers.len())));
            }
        }
        while !self.line.calls().is_empty() {
            self.call(0, Fate::Answered)?;
            turn().await;
        }
        for partition in 0..PARTITIONS {
            // one batch may be there, and the buffer behind it; then the workers' own
            for _ in 0..16 {
                for worker in 0..WORKERS {
                    self.now += SETTLE;
                    self.work(worker, partition, false).await?;
                }
            }
        }
        self.check().await?;
        for id in IDS {
            if self.partition(self.family.family.partition_of(id)).has_pending().await.map_err(failed)? {
                return Err(failed(format!("WEDGED: {id} is still pending")));
            }
        }
        Ok(())
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// On a clock that goes by itself.
fn start_again(server: &RedisServer) {
    let start = || runtime().block_on(server.start_again());
    std::thread::scope(|scope| scope.spawn(start).join()).expect("it starts");
}

/// Lets the tasks of the writer run until they wait for something.
async fn turn() {
    for _ in 0..6 {
        yield_now().await;
    }
}

/// A runtime on a clock that only the test moves.
fn paused() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

/// Runs random cases.
fn hunt_in(crashes: Crashes, cases: u32, guard: Option<Guard>) -> Result<(), TestError<Vec<Step>>> {
    let steps = proptest::collection::vec(step(crashes), 20..120);
    hunt(&runtime(), (crashes, cases, guard), steps, |server, name, steps| {
        paused().block_on(async {
            let mut world = World::new(server, name, crashes).await;
            for step in steps {
                world.step(step).await?;
                world.check().await?;
            }
            world.finish().await
        })
    })
}

fn exact(crashes: Crashes, default: u32) {
    if let Err(error) = hunt_in(crashes, cases(default), None) {
        panic!("{error}");
    }
}

#[test]
fn exact_without_crashes_of_redis() {
    exact(Crashes::None, 300);
}

#[test]
fn exact_when_redis_goes_back_to_its_last_fsync() {
    exact(Crashes::BackToTheLastFsync, 80);
}

#[test]
fn exact_when_redis_is_emptied() {
    exact(Crashes::Empty, 300);
}

/// A case by itself, with one increment told before, so that the producer and the scripts are known.
fn replay(crashes: Crashes, steps: &[Step]) {
    let first = [Step::Poll { caller: 0 }, ANSWERED, Step::Turn].repeat(8);
    let steps = [&[Step::Add { id: 0 }], &first[..], steps].concat();
    let server = runtime().block_on(RedisServer::start(RedisOptions::volatile()));
    paused().block_on(async {
        let mut world = World::new(&server, "regression".to_owned(), crashes).await;
        for step in steps {
            world.step(step).await.expect("exact");
            world.check().await.expect("exact");
        }
        world.finish().await.expect("exact");
    });
}

const ANSWERED: Step = Step::Call { which: 0, fate: Fate::Answered };

/// A leader was not polled for a while and was replaced; then it saw that its own send had been refused, and said that
/// the call was not executed, which its successor's was.
#[test]
fn a_leader_that_was_replaced_knows_only_what_became_of_its_own_send() {
    let (first, second) = (Step::Poll { caller: 0 }, Step::Poll { caller: 1 });
    let refused = Step::Call { which: 0, fate: Fate::Refused };
    let begin = [Step::Add { id: 0 }, first, Step::Add { id: 0 }, second, Step::Tick { ms: 60 }, Step::Turn];
    replay(Crashes::None, &[&begin[..], &[refused, first, ANSWERED, Step::Turn, first, ANSWERED, Step::Turn]].concat());
}

/// A leader that was replaced came back after its successor's call was in the database and Redis had lost its memory,
/// saw that Redis had not known the script by its hash, and sent the whole of it.
#[test]
fn a_leader_that_was_replaced_sends_nothing_any_more() {
    let (first, second) = (Step::Poll { caller: 0 }, Step::Poll { caller: 1 });
    let work = [0, 1].map(|number| Step::Work { worker: number as usize, partition: number, lost: false });
    let begin = [Step::ScriptFlush, Step::Add { id: 0 }, first, ANSWERED, Step::Add { id: 0 }, second];
    let succeed = [Step::Tick { ms: 60 }, Step::Turn, ANSWERED, Step::Turn, ANSWERED, Step::Turn];
    let end = [&work.repeat(3)[..], &[Step::Emptied, first, ANSWERED]].concat();
    replay(Crashes::Empty, &[&begin[..], &succeed, &end].concat());
}

/// A call was executed, its reply was lost, its hits reached the database, and Redis lost its memory before it was asked
/// again.
#[test]
fn a_repeat_says_that_it_is_one() {
    let (poll, work) = (Step::Poll { caller: 0 }, Step::Work { worker: 0, partition: 0, lost: false });
    let other = Step::Work { worker: 1, partition: 1, lost: false };
    let lost = Step::Call { which: 0, fate: Fate::LostAfter };
    let begin = [Step::Add { id: 0 }, poll, lost, work, other, work, other, work, other, Step::Emptied, poll];
    replay(Crashes::Empty, &[&begin[..], &[Step::Tick { ms: 6 }, poll]].concat());
}

#[test]
fn without_the_producer_fence_a_repeat_counts_twice() {
    let guard = Guard::ProducerFence;
    expect_failure(hunt_in(Crashes::None, 2000, Some(guard)), guard, &["DOUBLE"]);
}

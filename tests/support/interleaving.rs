//! What the interleaving tests share: the fates of calls, crashes of a real Redis, and the hunt for an order of steps
//! that breaks something.
//!
//! A crash of Redis that loses the last writes is its append-only file cut back, before the restart, to a length that it
//! had within the settle time. It is cut between two commands: a tail torn within a script's writes is Redis's to drop,
//! see ARCHITECTURE.md.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{Debug, Display};
use std::ops::RangeFrom;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use counterfoil::test_hooks::{Fence, Guard, Partition, take_out};
use counterfoil::{Durability, Registered};
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use redis::aio::{self, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionLike as _, FromRedisValue, Pipeline, RedisFuture, RedisResult, Value,
};
use testkit::{RedisOptions, RedisServer};
use tokio::runtime::Runtime;

/// How long a rotation takes to be durable, in ms.
pub const SETTLE: u64 = 1000;
pub const PARTITIONS: u32 = 2;

pub type Checked = Result<(), TestCaseError>;

pub fn failed(what: impl Display) -> TestCaseError {
    TestCaseError::fail(what.to_string())
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Answered,
    /// The connection died before the call arrived.
    LostBefore,
    /// The connection died between execution and reply.
    LostAfter,
}

pub fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![6 => Just(Fate::Answered), 1 => Just(Fate::LostBefore), 2 => Just(Fate::LostAfter)]
}

/// How Redis keeps what it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Crashes {
    BackToTheLastFsync,
    Empty,
    None,
}

impl Crashes {
    pub fn options(self) -> RedisOptions {
        match self {
            Crashes::BackToTheLastFsync => RedisOptions::aof("no"),
            Crashes::Empty | Crashes::None => RedisOptions::volatile(),
        }
    }

    /// The least that is safe: what knows nothing after a crash cannot go back to an older state.
    pub fn durability(self) -> Durability {
        match self {
            Crashes::Empty => Durability::Immediate,
            Crashes::BackToTheLastFsync | Crashes::None => Durability::Settle(Duration::from_millis(SETTLE)),
        }
    }

    /// A crash of that kind.
    pub fn mishap(self) -> BoxedStrategy<Mishap> {
        match self {
            Crashes::BackToTheLastFsync => any::<u8>().prop_map(|kept| Mishap::Crash { kept }).boxed(),
            Crashes::Empty => Just(Mishap::Emptied).boxed(),
            Crashes::None => Just(Mishap::ScriptFlush).boxed(),
        }
    }
}

/// What befalls Redis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mishap {
    ScriptFlush,
    /// It comes back with its file cut back to this share of what is not durable.
    Crash {
        kept: u8,
    },
    /// It comes back empty.
    Emptied,
}

/// The lengths of the append-only file with effects that are not there any more.
pub type Gone = RangeFrom<u64>;

/// Lengths of the append-only file over time, the oldest first: that of one settle time ago is durable.
#[derive(Debug)]
pub struct Lengths {
    settle: u64,
    noted: VecDeque<(u64, u64)>,
}

impl Lengths {
    pub fn new(settle: u64) -> Self {
        Lengths { settle, noted: VecDeque::new() }
    }

    /// Notes how long the file is now.
    pub fn note(&mut self, now: u64, length: u64) {
        self.noted.push_back((now, length));
        // the newest that is durable, and what came after it
        while self.noted.get(1).is_some_and(|(time, _)| time + self.settle <= now) {
            self.noted.pop_front();
        }
    }

    /// The length that is left when a crash keeps this share of what is not durable.
    pub fn left(&self, kept: u8) -> u64 {
        self.noted[(self.noted.len() - 1) * usize::from(kept) / 255].1
    }

    /// Redis has started again with a file of this length, all of which is durable.
    pub fn restart(&mut self, now: u64, length: u64) {
        self.noted.clear();
        self.noted.push_back((now.saturating_sub(self.settle), length));
    }
}

/// Where a case happens: a Redis that may lose its memory, a family in it, and the time.
pub struct Stage<'s, C> {
    server: &'s RedisServer,
    pub redis: C,
    pub family: Arc<Registered>,
    crashes: Crashes,
    /// By the server's clock, in ms.
    pub now: u64,
    /// The same, but for its steps back.
    elapsed: u64,
    lengths: Lengths,
    names: u64,
}

impl<'s, C: Connect> Stage<'s, C> {
    /// Begins with an empty Redis.
    pub async fn new(server: &'s RedisServer, crashes: Crashes, family: Registered, now: u64) -> Self {
        let (redis, family, lengths) = (C::to(server).await, Arc::new(family), Lengths::new(SETTLE));
        let mut stage = Stage { server, redis, family, crashes, now, elapsed: now, lengths, names: 0 };
        stage.run("FLUSHALL").await.expect("FLUSHALL");
        stage.note_length();
        stage
    }

    pub fn partition(&self, number: u32) -> Partition<C> {
        Partition::new(self.redis.clone(), &self.family.family, number).at(self.now)
    }

    pub fn partition_of(&self, id: &str) -> u32 {
        self.family.family.partition_of(id)
    }

    /// A key of the partition, as it stands in Redis.
    pub fn key(&self, partition: u32, kind: &str) -> String {
        format!("cf1:{{{}/{partition}}}:{kind}", self.family.family)
    }

    /// A number that nobody else in this case has.
    pub fn new_name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.elapsed += ms;
    }

    /// The server's clock is set back.
    pub fn set_back(&mut self, ms: u64) {
        self.now -= ms;
    }

    /// How long the append-only file is; 0 where none is needed.
    pub fn note_length(&mut self) -> u64 {
        if self.crashes != Crashes::BackToTheLastFsync {
            return 0;
        }
        let length = self.server.aof_len();
        self.lengths.note(self.elapsed, length);
        length
    }

    /// Answers what Redis forgot, if it forgot anything that was counted.
    pub async fn suffer(&mut self, mishap: Mishap) -> Result<Option<Gone>, TestCaseError> {
        match mishap {
            Mishap::ScriptFlush => {
                self.run("SCRIPT FLUSH").await?;
                Ok(None)
            }
            Mishap::Crash { kept } => Ok(Some(self.crash(kept).await)),
            Mishap::Emptied => {
                self.run("FLUSHALL").await?;
                self.run("SCRIPT FLUSH").await?;
                Ok(Some(0..))
            }
        }
    }

    async fn crash(&mut self, kept: u8) -> Gone {
        let left = self.lengths.left(kept);
        self.server.kill();
        self.server.cut_aof(left);
        start_again(self.server);
        self.redis = C::to(self.server).await;
        self.lengths.restart(self.elapsed, self.server.aof_len());
        left + 1..
    }

    async fn run(&self, words: &str) -> Checked {
        let mut cmd = Cmd::new();
        for word in words.split(' ') {
            cmd.arg(word);
        }
        cmd.exec_async(&mut self.redis.clone()).await.map_err(failed)
    }

    /// Nothing waits for the database any more.
    pub async fn expect_nothing_pending(&self) -> Checked {
        for number in 0..PARTITIONS {
            if self.partition(number).has_pending().await.map_err(failed)? {
                return Err(failed(format!("WEDGED: partition {number} is not empty")));
            }
        }
        Ok(())
    }
}

/// A case under way.
pub trait Case {
    type Step;

    async fn step(&mut self, step: Self::Step) -> Checked;

    /// What has to be so after every step.
    async fn check(&self) -> Checked;

    /// Ends whatever is under way; nothing may be left of it.
    async fn finish(&mut self) -> Checked;

    async fn play(&mut self, steps: impl IntoIterator<Item = Self::Step>) -> Checked {
        for step in steps {
            self.step(step).await?;
            self.check().await?;
        }
        self.finish().await
    }
}

/// On a clock that goes by itself, which the test's own may not.
fn start_again(server: &RedisServer) {
    let start = || runtime().block_on(server.start_again());
    std::thread::scope(|scope| scope.spawn(start).join()).expect("it starts");
}

/// Somebody who counts, one call at a time.
#[derive(Debug)]
pub struct Writer<Call> {
    producer: String,
    seq: u64,
    is_registered: bool,
    /// The call whose reply is missing.
    pub open: Option<Call>,
}

impl<Call> Writer<Call> {
    pub fn new(name: u64) -> Self {
        Writer { producer: format!("writer-{name}"), seq: 0, is_registered: false, open: None }
    }

    pub fn begin(&mut self, call: Call) {
        self.seq += 1;
        self.open = Some(call);
    }

    pub async fn register<C: Connect>(&mut self, stage: &Stage<'_, C>) -> Checked {
        if !self.is_registered {
            // one producer for all partitions is fine as long as it has one call in flight
            for number in 0..PARTITIONS {
                stage.partition(number).register(&self.producer).await.map_err(failed)?;
            }
            self.is_registered = true;
        }
        Ok(())
    }

    pub fn fence(&self, repeat: bool) -> Fence<'_> {
        Fence { producer: &self.producer, seq: self.seq, repeat }
    }
}

/// What the increment of that number adds.
pub fn delta(token: usize) -> i64 {
    4i64.pow(u32::try_from(token).expect("few tokens"))
}

/// How often the increment of that number is in the value: the k-th of a case adds 4^k.
pub fn digit(value: i128, token: usize) -> u8 {
    u8::try_from((value >> (2 * token)) & 3).expect("two bits")
}

/// The word for an increment that is in a value less often than it has to be, or more often than it may.
pub fn fault(times: u8, (least, most): (u8, u8)) -> Option<&'static str> {
    match times {
        times if times < least => Some("LOST"),
        times if times > most => Some("DOUBLE"),
        _ => None,
    }
}

/// How a test is connected to its Redis.
pub trait Connect: aio::ConnectionLike + Clone + 'static {
    async fn to(server: &RedisServer) -> Self;
}

impl Connect for MultiplexedConnection {
    async fn to(server: &RedisServer) -> Self {
        // on a busy machine an answer may take long
        let patience = Some(Duration::from_secs(20));
        let patient = AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
        let connection = server.client().get_multiplexed_async_connection_with_config(&patient).await;
        connection.expect("a connection to the private Redis")
    }
}

impl Connect for Direct {
    async fn to(server: &RedisServer) -> Self {
        let connection = server.client().get_connection().expect("a connection to the private Redis");
        Direct(Arc::new(Mutex::new(connection)))
    }
}

/// One connection to Redis: whatever is sent is answered before anything else happens.
#[derive(Clone)]
pub struct Direct(Arc<Mutex<redis::Connection>>);

impl Direct {
    pub fn run(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.connection().req_command(cmd)
    }

    pub fn run_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> RedisResult<T> {
        pipeline.query(&mut *self.connection())
    }

    fn connection(&self) -> MutexGuard<'_, redis::Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl aio::ConnectionLike for Direct {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async { self.run(cmd) })
    }

    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("nothing is pipelined")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// How many cases are tried.
pub fn cases(default: u32) -> u32 {
    match std::env::var("COUNTERFOIL_CASES") {
        Ok(cases) => cases.parse().expect("COUNTERFOIL_CASES is a number"),
        Err(_) => default,
    }
}

/// Numbers the cases of the whole program, so that no two share a family.
static CASE: AtomicUsize = AtomicUsize::new(0);

/// Runs random cases, with a guard taken out or not. A case is given a Redis and a name that no other case has.
pub fn hunt<T: Debug>(
    servers: &Runtime,
    (crashes, cases, guard): (Crashes, u32, Option<Guard>),
    steps: impl Strategy<Value = T>,
    run: impl Fn(&RedisServer, String, T) -> Checked,
) -> Result<(), TestError<T>> {
    take_out(guard);
    let start = || Rc::new(servers.block_on(RedisServer::start(crashes.options())));
    let server = RefCell::new(start());
    // a failure that is expected need not be made small
    let max_shrink_iters = if guard.is_some() { 50 } else { 500 };
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
    // without a guard the failure has to come every time
    let mut runner = match guard {
        Some(_) => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
        None => TestRunner::new(config),
    };
    let case = AtomicUsize::new(0);
    let outcome = runner.run(&steps, |steps| {
        // a crash loads the file of all cases so far, so now and then it begins anew
        if case.fetch_add(1, Ordering::Relaxed) % 200 == 199 {
            server.replace(start());
        }
        let server = server.borrow().clone();
        run(&server, format!("case-{}", CASE.fetch_add(1, Ordering::Relaxed)), steps)
    });
    take_out(None);
    println!("{} cases, {crashes:?}, without {guard:?}", case.load(Ordering::Relaxed));
    outcome
}

/// Expects that no case failed.
pub fn expect_exact<T: Debug>(outcome: Result<(), TestError<T>>) {
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Expects the failure that the guard prevents.
pub fn expect_failure<T: Debug>(outcome: Result<(), TestError<T>>, guard: Guard, expected: &[&str]) {
    match outcome {
        Err(TestError::Fail(reason, steps)) => {
            let reason = reason.to_string();
            assert!(expected.iter().any(|word| reason.contains(word)), "{reason}");
            println!("without {guard:?}: {reason}, after {steps:?}");
        }
        other => panic!("without {guard:?} nothing failed: {other:?}"),
    }
}

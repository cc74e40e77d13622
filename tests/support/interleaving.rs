//! What the interleaving tests share: the fates of calls, crashes of a real Redis, and the hunt for an order of steps
//! that breaks something.
//!
//! A crash of Redis that loses the last writes is its append-only file cut back, before the restart, to a length that it
//! had within the settle time. It is cut between two commands: a tail torn within a script's writes is Redis's to drop,
//! see ARCHITECTURE.md.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{Debug, Display};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use counterfoil::test_hooks::{Guard, take_out};
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use redis::aio::{self, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionLike as _, FromRedisValue, Pipeline, RedisFuture, RedisResult, Value,
};
use testkit::{RedisOptions, RedisServer};
use tokio::runtime::Runtime;

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
}

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

/// How often the increment of that number is in the value: the k-th of a case adds 4^k.
pub fn digit(value: i128, token: usize) -> u8 {
    u8::try_from((value >> (2 * token)) & 3).expect("two bits")
}

/// One connection to Redis: whatever is sent is answered before anything else happens.
#[derive(Clone)]
pub struct Direct(Arc<Mutex<redis::Connection>>);

impl Direct {
    pub fn to(server: &RedisServer) -> Self {
        let connection = server.client().get_connection().expect("a connection to the private Redis");
        Direct(Arc::new(Mutex::new(connection)))
    }

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

pub async fn connect(server: &RedisServer) -> MultiplexedConnection {
    // on a busy machine an answer may take long
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(20)));
    let connection = server.client().get_multiplexed_async_connection_with_config(&patient).await;
    connection.expect("a connection to the private Redis")
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

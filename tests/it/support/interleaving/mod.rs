//! What the interleaving tests share: the fates of calls, crashes of a real Redis, and the hunt for an order of steps
//! that breaks something.
//!
//! A crash of Redis that loses the last writes is its append-only file cut back, before the restart, to a length that it
//! had within the settle time. It is cut between two commands: a tail torn within a script's writes is Redis's to drop,
//! see docs/operations.md.

pub mod buffered;
pub mod connect;
pub mod database;
pub mod hunt;
pub mod reader;
pub mod stage;
pub mod token;
pub mod workers;
pub mod writer;

use std::fmt::Display;
use std::time::Duration;

use counterfoil::Durability;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use proptest::test_runner::TestCaseError;
use testkit::RedisOptions;

/// How long a rotation takes to be durable, in ms.
pub const SETTLE: u64 = 1000;
pub const PARTITIONS: u32 = 2;

pub type Checked = Result<(), TestCaseError>;

pub type Failed = TestCaseError;

pub fn failed(what: impl Display) -> TestCaseError {
    TestCaseError::fail(what.to_string())
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Delivered,
    /// The connection died before the call arrived.
    LostBefore,
    /// The connection died between execution and reply.
    LostAfter,
}

pub fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![6 => Just(Fate::Delivered), 1 => Just(Fate::LostBefore), 2 => Just(Fate::LostAfter)]
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

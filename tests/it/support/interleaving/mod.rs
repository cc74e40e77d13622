//! The shared parts of the interleaving tests: the fates of calls, crashes of a real Redis, and the
//! hunt for an order of steps that breaks an invariant.
//!
//! A crash of Redis that loses the last writes cuts its append-only file back, before the restart,
//! to a length from within the settle time. The cut is between two commands: Redis itself drops a
//! tail that is torn within a script's writes, see docs/operations.md.

pub mod connect;
pub mod database;
pub mod hunt;
pub mod kind;
pub mod reader;
pub mod stage;
pub mod token;
pub mod workers;
pub mod world;
pub mod writer;

pub use connect::*;
pub use database::*;
pub use hunt::*;
pub use kind::*;
pub use reader::*;
pub use stage::*;
pub use token::*;
pub use workers::*;
pub use world::*;
pub use writer::*;

use crate::support::*;
use std::fmt::Display;

/// The time in ms until a rotation is durable.
pub const SETTLE: u64 = 1000;
pub const PARTITIONS: u32 = 2;

pub type Checked<T = ()> = Result<T, TestCaseError>;

pub fn failed(what: impl Display) -> TestCaseError {
    TestCaseError::fail(what.to_string())
}

/// The fate of a call.
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

/// The crashes of Redis, which determine its persistence.
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

    /// Returns the weakest safe durability: a Redis that is empty after a crash cannot return to an
    /// older state.
    pub fn durability(self) -> Durability {
        match self {
            Crashes::Empty => Durability::Immediate,
            Crashes::BackToTheLastFsync | Crashes::None => Durability::Settle(millis(SETTLE)),
        }
    }

    /// Draws a crash of this kind.
    pub fn mishap(self) -> BoxedStrategy<Mishap> {
        match self {
            Crashes::BackToTheLastFsync => {
                any::<u8>().prop_map(|kept| Mishap::Crash { kept }).boxed()
            }
            Crashes::Empty => Just(Mishap::Emptied).boxed(),
            Crashes::None => Just(Mishap::ScriptFlush).boxed(),
        }
    }
}

/// An accident of Redis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mishap {
    ScriptFlush,
    /// Redis restarts with its file cut back to this share of what is not durable.
    Crash {
        kept: u8,
    },
    /// Redis loses all its data.
    Emptied,
}

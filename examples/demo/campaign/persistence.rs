//! The persistence of Redis, which decides what a crash loses.

use std::fmt;

use clap::ValueEnum;
use counterfoil::Durability;
use testkit::RedisOptions;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Persistence {
    /// Every write is in the append-only file before its reply
    Always,
    /// A crash loses the last seconds of the append-only file
    Everysec,
    /// A replica takes over that lacks the last seconds
    Replica,
    /// A crash returns to the last snapshot
    Snapshots,
    /// A crash loses everything
    Nothing,
    /// In a cluster, a replica takes over that lacks the last seconds of one node
    Cluster,
}

impl Persistence {
    pub fn options(self) -> RedisOptions {
        match self {
            Self::Always => RedisOptions::aof("always"),
            // the campaign cuts the file, so that it knows which writes a crash loses
            Self::Everysec => RedisOptions::aof("no"),
            Self::Replica => RedisOptions::volatile().tcp(),
            Self::Snapshots => RedisOptions::volatile().arg("save", "2 1"),
            Self::Nothing | Self::Cluster => RedisOptions::volatile(),
        }
    }

    /// Returns whether the clock of the server may step: without a settle time, which it measures.
    pub fn may_step(self) -> bool {
        self.durability() == Durability::Immediate
    }

    pub fn durability(self) -> Durability {
        match self {
            Self::Everysec | Self::Replica | Self::Cluster => Durability::default(),
            _ => Durability::Immediate,
        }
    }
}

impl fmt::Display for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value()
            .map_or(Ok(()), |value| f.pad(value.get_name()))
    }
}

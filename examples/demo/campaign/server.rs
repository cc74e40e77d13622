//! A Redis behind a network, its persistence, and its crashes.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::ValueEnum;
use counterfoil::Durability;
use testkit::{Proxy, RedisOptions, RedisServer};
use tokio::time::sleep;

use super::journal::{Ms, now};
use crate::Result;
use crate::zipf::Random;

/// The most that a crash reverts, in ms: less than the settle time.
const REVERTED: u64 = 2_000;
/// The longest time that a write takes to a replica that works, in ms.
const REPLICATED: u64 = 200;

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
}

impl Persistence {
    fn options(self) -> RedisOptions {
        match self {
            Self::Always => RedisOptions::aof("always"),
            // the campaign cuts the file, so that it knows which writes a crash loses
            Self::Everysec => RedisOptions::aof("no"),
            Self::Replica => RedisOptions::volatile().tcp(),
            Self::Snapshots => RedisOptions::volatile().arg("save", "2 1"),
            Self::Nothing => RedisOptions::volatile(),
        }
    }

    pub fn durability(self) -> Durability {
        match self {
            Self::Everysec | Self::Replica => Durability::default(),
            _ => Durability::Immediate,
        }
    }

    /// Returns whether a crash forgets requests whose hits MySQL has. Such a request must not be
    /// repeated.
    pub fn forgets_requests(self) -> bool {
        matches!(self, Self::Snapshots | Self::Nothing)
    }
}

impl fmt::Display for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value()
            .map_or(Ok(()), |value| f.pad(value.get_name()))
    }
}

/// The primary, its replica if it has one, and the network in front of them.
pub struct Redis {
    persistence: Persistence,
    pub server: RedisServer,
    replica: Option<RedisServer>,
    pub proxy: Proxy,
}

impl Redis {
    pub async fn start(persistence: Persistence) -> Self {
        let server = RedisServer::start(persistence.options()).await;
        let proxy = Proxy::to(&server);
        let mut redis = Redis {
            persistence,
            server,
            replica: None,
            proxy,
        };
        if persistence == Persistence::Replica {
            redis.start_replica().await;
        }
        redis
    }

    async fn start_replica(&mut self) {
        let replica = RedisServer::start(self.persistence.options()).await;
        replica.replica_of(&self.server).await;
        self.replica = Some(replica);
    }

    /// Crashes the server, and starts it again or promotes its replica. Returns the time whose hits
    /// may be lost, if any.
    pub async fn crash(&mut self, random: &mut Random) -> Result<Option<RangeInclusive<Ms>>> {
        let start = now();
        let revert = Duration::from_millis(random.below(REVERTED));
        if let Some(replica) = self.replica.take() {
            replica.pause();
            sleep(revert).await;
            self.server.kill();
            let killed = now();
            replica.resume();
            replica.run::<()>("REPLICAOF NO ONE").await?;
            self.proxy.redirect(&replica);
            self.server = replica;
            self.start_replica().await;
            return Ok(Some(start - REPLICATED..=killed));
        }
        if self.persistence == Persistence::Everysec {
            let length = self.server.aof_len();
            sleep(revert).await;
            self.server.kill();
            self.server.cut_aof(length);
        } else {
            self.server.kill();
        }
        let killed = now();
        self.server.start_again().await;
        Ok(match self.persistence {
            Persistence::Always => None,
            Persistence::Everysec => Some(start..=killed),
            _ => Some(0..=Ms::MAX),
        })
    }
}

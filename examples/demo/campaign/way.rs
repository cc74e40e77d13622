//! The ways to count: the library's, and those that applications use without it.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use sqlx::MySqlPool;

use super::hand::{self, Hand};
use super::journal::{Counter, Hit};
use super::persistence::Persistence;
use super::site::{self, SAVES, Site, VIEWS};
use crate::Result;
use crate::families::{Place, patiently};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Count with the library, in all kinds
    Library,
    /// HINCRBY; a worker renames the hash, adds it to MySQL in a transaction, and deletes it
    Rename,
    /// HINCRBY; a worker takes the hash out of Redis, and adds it to MySQL in a transaction
    Take,
    /// INCR of a key for each counter; a job takes each key by GETDEL, and adds it to MySQL
    Getdel,
    /// INCR of a key for each counter; a job adds the values to MySQL in a transaction, and subtracts
    /// what it added by DECRBY
    Decrby,
    /// INCR of a value that Redis took from MySQL; a job writes the values that changed back
    Dirty,
    /// LPUSH of a job for each hit; workers take one at a time, add it to MySQL, and remove it, and
    /// repeat those of dead workers
    Jobs,
}

/// The means of a process that counts.
pub enum Means {
    Library(Box<Site>),
    ByHand(Hand),
}

impl Way {
    pub async fn open(self, place: &Place, persistence: Persistence) -> Result<Means> {
        if self == Way::Library {
            let site = patiently(async || Site::open(place, persistence).await).await?;
            return Ok(Means::Library(Box::new(site)));
        }
        Ok(Means::ByHand(Hand::connect(self, place).await?))
    }

    /// Returns whether it counts in such a Redis.
    pub fn takes(self, persistence: Persistence) -> bool {
        self == Way::Library || persistence != Persistence::Cluster
    }

    /// Returns the role in which this program writes to MySQL, with its options.
    pub fn role(self, persistence: Persistence) -> [String; 2] {
        match self {
            Way::Library => [
                "serve-process".to_owned(),
                format!("--persistence={persistence}"),
            ],
            way => ["by-hand-process".to_owned(), format!("--way={way}")],
        }
    }

    /// Returns the number of families that it counts.
    pub fn families(self) -> usize {
        if self == Way::Library {
            site::FAMILIES.len()
        } else {
            VIEWS + 1
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value()
            .map_or(Ok(()), |way| f.write_str(way.get_name()))
    }
}

impl Means {
    /// Counts hits of one family. Returns of each whether it was counted, and `None` if that is
    /// unknown.
    pub async fn count(&self, hits: &[Hit]) -> Vec<Option<bool>> {
        let site = match self {
            Means::Library(site) => site,
            Means::ByHand(hand) => return hand.count(hits).await,
        };
        let outcomes = site.count(hits).await.into_iter();
        let known = outcomes.map(|outcome| match outcome {
            Ok(true) => Some(true),
            // a recount counts its row
            _ if hits[0].family == SAVES => None,
            Ok(false) => Some(false),
            Err(error) if error.outcome_unknown() => None,
            Err(_) => Some(false),
        });
        known.collect()
    }

    /// Moves everything to MySQL.
    pub async fn drain(&self) -> Result<()> {
        match self {
            Means::Library(site) => Ok(site.pair.drain().await?),
            Means::ByHand(hand) => hand.drain().await,
        }
    }

    /// Returns the hits in MySQL.
    pub async fn stored(&self, mysql: &MySqlPool) -> Result<BTreeMap<Counter, i64>> {
        match self {
            Means::Library(_) => site::stored(mysql).await,
            Means::ByHand(_) => hand::stored(mysql).await,
        }
    }
}

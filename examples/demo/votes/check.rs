//! Whether the table and the values returned are what the votes cast make them.

use std::collections::BTreeMap;

use super::ballot::Ballot;
use super::told::{Outcomes, Told};

/// All items.
pub struct Checked {
    items: Vec<Item>,
}

/// One item, as it was voted for, returned and stored.
pub struct Item {
    pub id: u32,
    pub cast: u64,
    pub stored: Option<i64>,
    /// Ascending.
    values: Vec<i64>,
    unknown: u64,
}

impl Checked {
    pub fn new(ballot: &Ballot, mut told: Told, stored: &BTreeMap<u32, i64>) -> Self {
        let mut cast = vec![0; ballot.items as usize];
        ballot.votes().for_each(|item| cast[item as usize - 1] += 1);
        let item = |(id, cast)| Item::new(id, cast, stored.get(&id).copied(), told.take(id));
        Checked { items: (1..).zip(cast).map(item).collect() }
    }

    pub fn is_exact(&self) -> bool {
        self.miscounted().next().is_none() && self.mistold().next().is_none()
    }

    pub fn items(&self) -> usize {
        self.items.len()
    }

    /// Items that got a vote.
    pub fn voted_for(&self) -> usize {
        self.items.iter().filter(|item| item.cast > 0).count()
    }

    pub fn values(&self) -> usize {
        self.items.iter().map(|item| item.values.len()).sum()
    }

    /// Votes whose outcome is unknown.
    pub fn unknown(&self) -> u64 {
        self.items.iter().map(|item| item.unknown).sum()
    }

    /// Items whose number in the table is wrong.
    pub fn miscounted(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| !item.is_counted())
    }

    /// Items of which a wrong value was returned.
    pub fn mistold(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.wrong_values().is_some())
    }
}

impl Item {
    fn new(id: u32, cast: u64, stored: Option<i64>, Outcomes { mut values, unknown }: Outcomes) -> Self {
        values.sort_unstable();
        Item { id, cast, stored, values, unknown }
    }

    /// Whether the table has all votes, but for those of unknown outcome, which it may have.
    fn is_counted(&self) -> bool {
        let stored = self.stored.and_then(|stored| u64::try_from(stored).ok());
        stored.is_some_and(|stored| (self.cast - self.unknown.min(self.cast)..=self.cast).contains(&stored))
    }

    /// What is wrong with the values: each vote's has to be another one, and together they are 1, 2, 3 ... up to the
    /// number of votes, but for as many as there are votes of unknown outcome.
    pub fn wrong_values(&self) -> Option<String> {
        let returned = self.values.len() as u64 + self.unknown;
        if returned != self.cast {
            return Some(format!("{returned} votes returned of {}", self.cast));
        }
        if let Some(twice) = self.values.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("{} was returned twice", twice[0]));
        }
        let of_no_vote = |value: &&i64| !u64::try_from(**value).is_ok_and(|value| (1..=self.cast).contains(&value));
        self.values.iter().find(of_no_vote).map(|value| format!("{value} was returned, of {} votes", self.cast))
    }
}

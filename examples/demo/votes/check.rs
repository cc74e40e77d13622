//! The comparison of the table and the returned values with the votes cast.

use std::collections::BTreeMap;

use super::ballot::Ballot;
use super::told::{Outcomes, Told};

/// All items.
pub struct Checked {
    items: Vec<Item>,
}

/// One item with its votes cast, its returned values and its stored value.
pub struct Item {
    pub id: u32,
    pub cast: u64,
    pub stored: Option<i64>,
    /// The returned values in ascending order.
    values: Vec<i64>,
    unknown: u64,
}

impl Checked {
    pub fn new(ballot: &Ballot, mut told: Told, stored: &BTreeMap<u32, i64>) -> Self {
        let mut cast = vec![0; ballot.items as usize];
        ballot.votes().for_each(|item| cast[item as usize - 1] += 1);
        let item = |(id, cast)| Item::new(id, cast, stored.get(&id).copied(), told.take(id));
        Checked {
            items: (1..).zip(cast).map(item).collect(),
        }
    }

    pub fn is_exact(&self) -> bool {
        self.miscounted().next().is_none() && self.mistold().next().is_none()
    }

    pub fn items(&self) -> usize {
        self.items.len()
    }

    /// Returns the number of items with at least one vote.
    pub fn voted_for(&self) -> usize {
        self.items.iter().filter(|item| item.cast > 0).count()
    }

    pub fn values(&self) -> usize {
        self.items.iter().map(|item| item.values.len()).sum()
    }

    /// Returns the number of votes with an unknown outcome.
    pub fn unknown(&self) -> u64 {
        self.items.iter().map(|item| item.unknown).sum()
    }

    /// Returns the items whose number in the table is wrong.
    pub fn miscounted(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| !item.is_counted())
    }

    /// Returns the items for which a wrong value was returned.
    pub fn mistold(&self) -> impl Iterator<Item = &Item> {
        self.items
            .iter()
            .filter(|item| item.wrong_values().is_some())
    }
}

impl Item {
    fn new(
        id: u32,
        cast: u64,
        stored: Option<i64>,
        Outcomes {
            mut values,
            unknown,
        }: Outcomes,
    ) -> Self {
        values.sort_unstable();
        Item {
            id,
            cast,
            stored,
            values,
            unknown,
        }
    }

    /// Returns whether the table has all votes. Votes with an unknown outcome may be missing.
    fn is_counted(&self) -> bool {
        let stored = self.stored.and_then(|stored| u64::try_from(stored).ok());
        stored.is_some_and(|stored| {
            (self.cast - self.unknown.min(self.cast)..=self.cast).contains(&stored)
        })
    }

    /// Describes what is wrong with the values, if anything. They must be distinct, and be the
    /// numbers from 1 to the votes cast. One number may be missing for each vote with an unknown
    /// outcome.
    pub fn wrong_values(&self) -> Option<String> {
        let returned = self.values.len() as u64 + self.unknown;
        if returned != self.cast {
            return Some(format!("{returned} votes returned of {}", self.cast));
        }
        if let Some(twice) = self.values.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("{} was returned twice", twice[0]));
        }
        let of_no_vote = |value: &&i64| {
            !u64::try_from(**value).is_ok_and(|value| (1..=self.cast).contains(&value))
        };
        self.values
            .iter()
            .find(of_no_vote)
            .map(|value| format!("{value} was returned, of {} votes", self.cast))
    }
}

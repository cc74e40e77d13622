//! What an application acknowledged.

use std::collections::BTreeMap;
use std::fmt;

/// The number of a sample's products, which have the ids from 1 on.
pub const PRODUCTS: i64 = 20;

#[derive(Clone, Copy, Default)]
pub struct Told {
    pub counted: i64,
    pub unknown: i64,
}

#[derive(Default)]
pub struct Journal {
    told: BTreeMap<(&'static str, i64), Told>,
    /// Rows that were added, moved or deleted.
    rows: i64,
    not_counted: i64,
    left_out: i64,
}

/// The outcome of a request.
pub enum Outcome {
    Counted,
    /// A repeat of a visitor.
    LeftOut,
    NotCounted,
    Unknown,
}

impl Journal {
    pub fn note(&mut self, family: &'static str, product: i64, outcome: &Outcome) {
        let told = self.told.entry((family, product)).or_default();
        match outcome {
            Outcome::Counted => told.counted += 1,
            Outcome::Unknown => told.unknown += 1,
            Outcome::LeftOut => self.left_out += 1,
            Outcome::NotCounted => self.not_counted += 1,
        }
    }

    pub fn note_row(&mut self) {
        self.rows += 1;
    }

    pub fn merge(&mut self, other: Journal) {
        for (key, Told { counted, unknown }) in other.told {
            let told = self.told.entry(key).or_default();
            told.counted += counted;
            told.unknown += unknown;
        }
        self.rows += other.rows;
        self.not_counted += other.not_counted;
        self.left_out += other.left_out;
    }

    pub fn told(&self, family: &'static str, product: i64) -> Told {
        self.told
            .get(&(family, product))
            .copied()
            .unwrap_or_default()
    }

    pub fn unknown(&self) -> i64 {
        self.told.values().map(|told| told.unknown).sum()
    }
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted: i64 = self.told.values().map(|told| told.counted).sum();
        write!(
            f,
            "{counted} views and visits counted, {} repeats left out, {} not counted, {} unknown, {} rows changed",
            self.left_out,
            self.not_counted,
            self.unknown(),
            self.rows
        )
    }
}

//! The counts that Redis confirmed to clients, which must be in MySQL at the end.

use std::collections::BTreeMap;

/// The counts that Redis confirmed to clients.
#[derive(Default)]
pub struct Journal {
    /// The sums by family and id.
    pub sums: BTreeMap<String, BTreeMap<String, i64>>,
    /// The number of calls with an unknown outcome.
    pub unknown: u64,
    /// The number of calls that were not counted, as the client reported.
    pub refused: u64,
}

impl Journal {
    pub fn count(&mut self, family: &str, id: &str, delta: i64) {
        let sums = self.sums.entry(family.to_owned()).or_default();
        *sums.entry(id.to_owned()).or_default() += delta;
    }

    pub fn of(&self, family: &str, id: &str) -> i64 {
        let sums = self.sums.get(family);
        sums.and_then(|sums| sums.get(id)).copied().unwrap_or(0)
    }

    pub fn hits(&self) -> i64 {
        self.sums
            .values()
            .flat_map(BTreeMap::values)
            .map(|sum| sum.abs())
            .sum()
    }

    pub fn merge(&mut self, other: Journal) {
        self.unknown += other.unknown;
        self.refused += other.refused;
        for (family, sums) in other.sums {
            for (id, sum) in sums {
                self.count(&family, &id, sum);
            }
        }
    }
}

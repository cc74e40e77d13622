//! A comparison of the confirmed counts with the values in MySQL.

use std::collections::{BTreeMap, BTreeSet};

use crate::journal::Journal;
use crate::stored::Stored;

const DIFFERENCES: usize = 20;

/// The counters by family, each with its confirmed and its stored count.
pub struct Checked(BTreeMap<String, Vec<Counter>>);

struct Counter {
    id: String,
    told: i64,
    stored: i64,
}

impl Checked {
    /// Compares the counters that the clients changed, and all that MySQL had before or after.
    pub fn new(told: &Journal, before: &Stored, after: &Stored) -> Self {
        let counted = told
            .sums
            .iter()
            .flat_map(|(family, sums)| sums.keys().map(|id| (family.clone(), id.clone())));
        let keys: BTreeSet<_> = counted
            .chain(before.0.keys().cloned())
            .chain(after.0.keys().cloned())
            .collect();
        let mut families: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for key in keys {
            let (told, stored) = (told.of(&key.0, &key.1), after.of(&key) - before.of(&key));
            let (family, id) = key;
            families
                .entry(family)
                .or_default()
                .push(Counter { id, told, stored });
        }
        Checked(families)
    }

    pub fn is_exact(&self) -> bool {
        self.different().next().is_none()
    }

    /// Prints a table of the families, the verdict and the first differences.
    pub fn print(&self) {
        println!(
            "{:<18} {:>6} {:>9} {:>9} {:>11}",
            "family", "ids", "told", "in MySQL", "differences"
        );
        for (family, counters) in &self.0 {
            let sum = |value: fn(&Counter) -> i64| counters.iter().map(value).sum::<i64>();
            let (told, stored) = (sum(|counter| counter.told), sum(|counter| counter.stored));
            let different = counters.iter().filter(|counter| counter.differs()).count();
            println!(
                "{family:<18} {:>6} {told:>9} {stored:>9} {different:>11}",
                counters.len()
            );
        }
        println!("exact: {}", if self.is_exact() { "yes" } else { "no" });
        for (family, Counter { id, told, stored }) in self.different().take(DIFFERENCES) {
            println!("{family} {id}: told {told}, in MySQL {stored}");
        }
    }

    fn different(&self) -> impl Iterator<Item = (&String, &Counter)> {
        let counters = self
            .0
            .iter()
            .flat_map(|(family, counters)| counters.iter().map(move |one| (family, one)));
        counters.filter(|(_, counter)| counter.differs())
    }
}

impl Counter {
    fn differs(&self) -> bool {
        self.told != self.stored
    }
}

//! The summary of all rounds.

use std::collections::BTreeMap;

use super::fault::Fault;
use super::persistence::Persistence;
use super::round::Outcome;

/// The sums of the rounds, by persistence.
#[derive(Default)]
pub struct Summary(BTreeMap<Persistence, (u64, Outcome)>);

impl Summary {
    pub fn add(&mut self, more: Outcome) {
        let Some((rounds, sum)) = self.0.get_mut(&more.persistence) else {
            self.0.insert(more.persistence, (1, more));
            return;
        };
        *rounds += 1;
        for (fault, times) in more.faults {
            *sum.faults.entry(fault).or_default() += times;
        }
        sum.acknowledged += more.acknowledged;
        sum.unknown += more.unknown;
        sum.crashed += more.crashed;
        sum.lost += more.lost;
        sum.doubled += more.doubled;
        sum.reads.checked += more.reads.checked;
        sum.reads.wrong += more.reads.wrong;
    }

    /// Returns whether no hit was doubled, none lost but in a crash of Redis, and no value wrong.
    pub fn is_exact(&self) -> bool {
        let mut sums = self.0.values();
        sums.all(|(_, sum)| sum.lost == 0 && sum.doubled == 0 && sum.reads.wrong == 0)
    }

    pub fn print(&self) {
        let mut faults = BTreeMap::<Fault, u64>::new();
        println!();
        println!(
            "| a crash of Redis | rounds | faults | acknowledged | unknown | lost in a crash \
             | lost otherwise | doubled | values read | wrong |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|");
        for (persistence, (rounds, sum)) in &self.0 {
            for (fault, times) in &sum.faults {
                *faults.entry(*fault).or_default() += times;
            }
            let (times, figures) = (sum.faults.values().sum::<u64>(), sum.figures().join(" | "));
            println!("| {persistence} | {rounds} | {times} | {figures} |");
        }
        println!();
        for (fault, times) in faults {
            println!("{times:>5} x  {}", fault.name());
        }
        println!("exact: {}", if self.is_exact() { "yes" } else { "no" });
    }
}

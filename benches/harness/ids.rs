//! Which ids are hit, drawn before anything is timed.

use std::sync::Arc;

use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Long enough for no task to come around in a round, short enough to be made at once.
const DRAWS: usize = 1 << 20;

/// A sequence of ids, the same in every run.
#[derive(Clone)]
pub struct Ids {
    names: Arc<[String]>,
    draws: Arc<[u32]>,
}

impl Ids {
    /// The k-th id is drawn k times more seldom than the first one, as pages are.
    pub fn zipf(ids: u32) -> Self {
        let weights = WeightedIndex::new((1..=ids).map(|rank| 1.0 / f64::from(rank))).unwrap();
        let draws = SmallRng::seed_from_u64(1).sample_iter(weights).take(DRAWS);
        Ids { names: names(ids), draws: draws.map(|place| place as u32).collect() }
    }

    /// All ids are drawn alike.
    pub fn even(ids: u32) -> Self {
        let mut random = SmallRng::seed_from_u64(1);
        Ids { names: names(ids), draws: (0..DRAWS).map(|_| random.random_range(0..ids)).collect() }
    }

    /// Likewise, named in the order in which they are drawn: to look a name up costs the same however many ids there are.
    pub fn in_order(ids: u32) -> Self {
        let mut random = SmallRng::seed_from_u64(1);
        let names = (0..DRAWS).map(|_| format!("page/{}", random.random_range(0..ids)));
        Ids { names: names.collect(), draws: (0..DRAWS as u32).collect() }
    }

    /// The sequence without end, from a place of its own for each task.
    pub fn of_task(&self, task: usize, tasks: usize) -> impl Iterator<Item = &str> {
        let start = DRAWS / tasks * task;
        let places = self.draws[start..].iter().chain(self.draws.iter().cycle());
        places.map(|&place| self.names[place as usize].as_str())
    }
}

fn names(ids: u32) -> Arc<[String]> {
    (0..ids).map(|number| format!("page/{number}")).collect()
}

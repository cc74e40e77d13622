//! Totals of counted hits, which never decrease while the process lives.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use crate::daemon::live::Live;
use crate::status::FamilyStatus;

/// The families of one name in one pair, in all namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Named {
    pub pair: String,
    pub family: String,
}

/// The total of each name, including counts that Redis has forgotten since.
#[derive(Debug, Default)]
pub struct Totals(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    /// The last count in Redis, by pair and NAMESPACE/FAMILY.
    last: HashMap<(String, String), u64>,
    totals: BTreeMap<Named, u64>,
}

impl Totals {
    /// Adds the new hits of all pairs, and returns the totals.
    pub fn observe(&self, live: &Live) -> BTreeMap<Named, u64> {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // read under the lock, so that no caller adds an older state after a newer one
        for pair in live.pairs.iter() {
            let view = pair.view.borrow().clone();
            view.families
                .iter()
                .for_each(|family| sums.add(&view.name, &family.status));
        }
        sums.totals.clone()
    }
}

impl Sums {
    /// Adds the hits since the last count. A lower count means that Redis started again at 0.
    fn add(&mut self, pair: &str, status: &FamilyStatus) {
        let Some(counted) = status.counted else {
            return;
        };
        let last = self
            .last
            .insert((pair.to_owned(), status.name()), counted)
            .unwrap_or(0);
        let more = if counted < last {
            counted
        } else {
            counted - last
        };
        let named = Named {
            pair: pair.to_owned(),
            family: status.family.clone(),
        };
        *self.totals.entry(named).or_default() += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::{family, live};

    #[test]
    fn a_redis_that_forgot_what_was_counted_takes_nothing_away() {
        let (totals, live) = (Totals::default(), live("main"));
        let named = Named {
            pair: "main".to_owned(),
            family: "views".to_owned(),
        };
        for (first, second, sum) in [
            (5, 0, 5),
            (7, 10, 17),
            (7, 10, 17),
            (2, 11, 20),
            (3, 11, 21),
        ] {
            live.pairs[0].view.send_modify(|view| {
                let families = [("shop-1", first), ("shop-2", second)];
                let families = families.map(|(namespace, counted)| {
                    let mut family = family(namespace, "views");
                    family.status.counted = Some(counted);
                    family
                });
                std::sync::Arc::make_mut(view).families = families.into();
            });
            assert_eq!(totals.observe(&live)[&named], sum);
        }
    }
}

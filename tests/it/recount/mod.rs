//! The comparison of counters with the rows that they count, and their correction.

mod api;
mod deleted;
mod faults;
mod interleavings;

use counterfoil::recount::{RecountBuilder, Recountable, Source};

use crate::support::*;

const WITHIN: Duration = millis(20);

impl Pair {
    /// Recounts the rows of `saves` by `user_id`, which are counted at once.
    fn recount(&self, counters: &impl Recountable) -> RecountBuilder {
        self.counterfoil
            .recount(counters)
            .source(saves())
            .within(WITHIN)
    }
}

fn saves() -> Source {
    Source::table("saves", ["user_id"])
}

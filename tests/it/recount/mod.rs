//! The comparison of counters with the rows that they count, and their correction.

mod api;
mod deleted;
mod faults;
mod interleavings;
mod rejected;
mod replica;

use counterfoil::recount::{RecountBuilder, Recountable, Rows, Source};
use counterfoil::test_hooks::{Difference, Recounting, Run};

use crate::support::*;

const WITHIN: Duration = millis(20);

impl Pair {
    /// Recounts the rows of `saves` by `user_id`, which are only added and counted at once.
    fn recount(&self, counters: &impl Recountable) -> RecountBuilder {
        self.recount_of(counters, Rows::Added)
    }

    fn recount_of(&self, counters: &impl Recountable, rows: Rows) -> RecountBuilder {
        self.counterfoil
            .recount(counters, rows)
            .source(saves())
            .within(WITHIN)
    }
}

fn saves() -> Source {
    Source::table("saves", ["user_id"])
}

impl Pair {
    /// Creates the table `saves` with a row for each of these users.
    async fn saves(&self, users: &[u64]) {
        let columns =
            "event INT AUTO_INCREMENT PRIMARY KEY, user_id BIGINT NOT NULL, KEY (user_id)";
        self.sql(&format!("CREATE TABLE saves ({columns})")).await;
        for user in users {
            let insert = format!("INSERT INTO saves (user_id) VALUES ({user})");
            self.sql(&insert).await;
        }
    }
}

/// Takes a run, and measures the difference of the counter.
async fn measured(steps: &Recounting, id: &str) -> (Run, Difference) {
    let run = steps.take().await.unwrap().unwrap();
    let before = steps.before(vec![id.to_owned()], None).await.unwrap();
    let page = steps.count(before).await.unwrap();
    (run, steps.after(&page).await.unwrap())
}

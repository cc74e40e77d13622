//! The comparison of counters with the rows that they count, and their correction.

mod api;
mod deleted;
mod faults;
mod interleavings;
mod rejected;
mod replica;

use counterfoil::recount::{RecountBuilder, Recountable, Source};
use counterfoil::test_hooks::{Before, Difference, Page, Recounting, Run};
use proptest::test_runner::Config;

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

/// A recounter after its last step.
enum At {
    Idle,
    Begun(Run),
    Before(Run, Before),
    /// The rows are counted; these events' counts may still arrive.
    Counted(Run, Page, Vec<u64>),
    After(Run, Difference),
}

impl At {
    /// Takes the next step up to the difference. `coming` are the events that are not counted yet.
    /// The wait is longer than the application's time between a row and its count.
    async fn next(
        self,
        recounting: &Recounting,
        ids: Vec<String>,
        coming: Vec<u64>,
        waits: bool,
    ) -> Self {
        match self {
            At::Idle => recounting.take().await.unwrap().map_or(At::Idle, At::Begun),
            At::Begun(run) => {
                let cuts = recounting.cuts().await.unwrap();
                At::Before(run, recounting.before(ids, cuts).await.unwrap())
            }
            At::Before(run, before) => {
                At::Counted(run, recounting.count(before).await.unwrap(), coming)
            }
            At::Counted(_, _, ref due) if waits && due.iter().any(|one| coming.contains(one)) => {
                self
            }
            At::Counted(run, page, _) => At::After(run, recounting.after(&page).await.unwrap()),
            At::After(..) => self,
        }
    }
}

/// Plays random steps, none of which may go wrong.
fn exact<S: Debug>(
    steps: impl Strategy<Value = Vec<S>>,
    play: impl Fn(&[S]) -> Result<(), String>,
) {
    let mut runner = TestRunner::new(Config {
        max_shrink_iters: 200,
        ..random::config(random::cases(12))
    });
    let result = runner.run(&steps, |steps| play(&steps).map_err(TestCaseError::fail));
    take_out(None);
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Checks that the steps go wrong without this, and only then.
fn breaks<G: Debug + Copy, S>(
    play: impl Fn(Option<G>, &[S]) -> Result<(), String>,
    without: G,
    steps: &[S],
) {
    let broken = play(Some(without), steps);
    take_out(None);
    assert!(broken.is_err(), "{without:?} is not missed");
    play(None, steps).unwrap();
}

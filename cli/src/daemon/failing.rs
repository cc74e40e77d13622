//! The steps of a reconciler that fail: for the view, as findings, and in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use counterfoil::admin::{Finding, Severity};
use counterfoil::{ErrorKind, Failing};

use crate::status::unix_now;
use crate::view::{FailingView, FindingView, Refusal};

/// The time from which a step counts as failing. Locks and deadlocks are often shorter.
const FAILING: Duration = Duration::from_secs(3);
/// The step of the applications that fails while Redis accepts no hits.
pub const COUNTING: &str = "counting";
/// The maximum number of names in a line.
const MAX_NAMES: usize = 10;

/// The errors that were logged, and did not end since.
#[derive(Debug, Default)]
pub struct FailingLog(BTreeSet<String>);

impl FailingLog {
    /// Logs each new error once, with the families that it concerns, and the end of all errors.
    pub fn log(&mut self, pair: &str, failing: &[FailingView]) {
        let by_error = by_error(failing);
        for (error, of_error) in &by_error {
            if self.0.insert((*error).to_owned()) {
                let (server, steps) = (of_error[0].server, steps(of_error));
                let families = names(of_error);
                tracing::error!(pair, server, steps, families, error, "fails, will retry");
            }
        }
        let was_failing = !self.0.is_empty();
        self.0.retain(|error| by_error.contains_key(error.as_str()));
        if was_failing && self.0.is_empty() {
            tracing::info!(pair, "nothing fails any more");
        }
    }
}

/// Returns the steps that have failed for a while. Those that are `known` keep their time.
pub fn views(failing: Vec<Failing>, known: &[FailingView]) -> Vec<FailingView> {
    let now = unix_now();
    let since = |one: &Failing| {
        let known = known.iter();
        let mut same = known.filter(|known| (known.step, &known.family) == (one.step, &one.family));
        let before = now.saturating_sub(one.duration.as_secs());
        same.next().map_or(before, |same| same.since)
    };
    let failing = failing.into_iter().filter(|one| one.duration >= FAILING);
    let view = |one: Failing| FailingView {
        step: one.step,
        blocks_hits: one.blocks_hits(),
        server: match one.error.kind() {
            ErrorKind::Store | ErrorKind::Mismatch | ErrorKind::Busy => "mysql",
            // a panic
            ErrorKind::Closed => "daemon",
            _ => "redis",
        },
        error: format!("{:#}", one.error),
        since: since(&one),
        family: one.family,
    };
    failing.map(view).collect()
}

/// Returns whether the same steps fail.
pub fn are_same(some: &[FailingView], others: &[FailingView]) -> bool {
    let step = |one: &FailingView| (one.step, one.family.clone());
    some.iter().map(step).eq(others.iter().map(step))
}

/// Returns the view of a Redis that refuses hits.
pub fn counting(refusal: Refusal) -> FailingView {
    FailingView {
        step: COUNTING,
        family: None,
        server: "redis",
        error: refusal.text().to_owned(),
        since: unix_now(),
        blocks_hits: refusal == Refusal::Replica,
    }
}

/// Returns a finding for each error, except those that `check` reports as well.
pub fn findings(failing: &[FailingView]) -> Vec<FindingView> {
    let finding = |(error, of_error): (&str, Vec<&FailingView>)| {
        let subject = format!("{} of {}", steps(&of_error), names(&of_error));
        let advice = match of_error.iter().any(|one| one.blocks_hits) {
            true => {
                "Hits wait in Redis meanwhile. `counterfoil check` names missing privileges, tables and columns"
            }
            false => "The step is retried until it succeeds",
        };
        let since = of_error.iter().map(|one| one.since).min();
        FindingView {
            finding: Finding::new(Severity::Error, subject, error.to_owned(), advice),
            since: since.unwrap_or_default(),
        }
    };
    let by_error = by_error(failing).into_iter();
    let new = by_error.filter(|(_, of_error)| of_error[0].step != COUNTING);
    new.map(finding).collect()
}

fn by_error(failing: &[FailingView]) -> BTreeMap<&str, Vec<&FailingView>> {
    let mut by_error: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for one in failing {
        by_error.entry(one.error.as_str()).or_default().push(one);
    }
    by_error
}

fn steps(failing: &[&FailingView]) -> String {
    let steps: BTreeSet<_> = failing.iter().map(|one| one.step).collect();
    steps.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns the names of the families, the first of them if there are many.
fn names(failing: &[&FailingView]) -> String {
    let names: BTreeSet<_> = failing
        .iter()
        .map(|one| one.family.as_deref().unwrap_or("the pair"))
        .collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    let names: Vec<_> = names.into_iter().take(MAX_NAMES).collect();
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

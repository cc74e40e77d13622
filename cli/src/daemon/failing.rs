//! The steps of a reconciler that fail: for the view, as findings, and in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use counterfoil::admin::{Finding, Severity};
use counterfoil::{ErrorKind, Failing};

use crate::status::unix_now;
use crate::view::{FailingView, FindingView, PairView};

/// The time from which a step counts as failing. Locks and deadlocks are often shorter.
const FAILING: Duration = Duration::from_secs(3);
/// The step of the applications that fails while Redis refuses hits.
const COUNTING: &str = "counting";
/// The maximum number of names in a line.
const MAX_NAMES: usize = 10;

/// Returns the steps that have failed for a while, and that of the applications if Redis refuses
/// hits.
/// Those that the view knows keep their time.
pub fn views(failing: Vec<Failing>, view: &PairView) -> Vec<FailingView> {
    let now = unix_now();
    let failing = failing.into_iter().filter(|one| one.duration >= FAILING);
    let failing = failing.map(|one| FailingView {
        step: one.step,
        blocks_hits: one.blocks_hits(),
        server: match one.error.kind() {
            ErrorKind::Store | ErrorKind::Mismatch | ErrorKind::Busy => "mysql",
            // a panic
            ErrorKind::Closed => "daemon",
            _ => "redis",
        },
        error: format!("{:#}", one.error),
        since: now.saturating_sub(one.duration.as_secs()),
        family: one.family,
    });
    let refusal = view.redis.refusal.iter().filter(|_| view.redis.up);
    let counting = refusal.map(|refusal| FailingView {
        step: COUNTING,
        family: None,
        server: "redis",
        error: refusal.message.clone(),
        since: now,
        blocks_hits: false,
    });
    let mut views: Vec<_> = failing.chain(counting).collect();
    for one in &mut views {
        let mut known = view.reconciler.failing.iter();
        if let Some(known) = known.find(|known| known.is_same_step(one)) {
            one.since = known.since;
        }
    }
    views
}

/// Returns the steps by their errors.
fn by_error(failing: &[FailingView]) -> BTreeMap<&str, Vec<&FailingView>> {
    let mut by_error: BTreeMap<_, Vec<&FailingView>> = BTreeMap::new();
    for one in failing {
        by_error.entry(one.error.as_str()).or_default().push(one);
    }
    by_error
}

/// Returns the steps and the families that fail with one error, the first of them if there are many.
fn subject(failing: &[&FailingView]) -> String {
    let steps = failing.iter().map(|one| one.step);
    let families = failing.iter().map(|one| one.family.as_deref());
    let families = families.map(|name| name.unwrap_or("the pair"));
    let [steps, mut families] =
        [BTreeSet::from_iter(steps), BTreeSet::from_iter(families)].map(Vec::from_iter);
    let more = families.len().saturating_sub(MAX_NAMES);
    families.truncate(MAX_NAMES);
    let (steps, families) = (steps.join(", "), families.join(", "));
    match more {
        0 => format!("{steps} of {families}"),
        more => format!("{steps} of {families} and {more} more"),
    }
}

/// Returns a finding for each error, except those that `check` reports as well.
pub fn findings(failing: &[FailingView]) -> Vec<FindingView> {
    let new = by_error(failing).into_iter();
    let new = new.filter(|(_, failing)| failing[0].step != COUNTING);
    let finding = |(error, failing): (&str, Vec<&FailingView>)| {
        let advice = if failing.iter().any(|one| one.blocks_hits) {
            "Hits wait in Redis meanwhile. `counterfoil check` names missing privileges, tables and columns"
        } else {
            "The step is retried until it succeeds"
        };
        let since = failing.iter().map(|one| one.since).min();
        FindingView {
            finding: Finding::new(Severity::Error, subject(&failing), error, advice),
            since: since.unwrap_or_default(),
        }
    };
    new.map(finding).collect()
}

/// The errors that were logged, and did not end since.
#[derive(Default)]
pub struct FailingLog(BTreeSet<String>);

impl FailingLog {
    /// Logs each new error once, with the steps and families that it concerns, and the end of all
    /// errors.
    pub fn log(&mut self, pair: &str, failing: &[FailingView]) {
        let by_error = by_error(failing);
        let was_failing = !self.0.is_empty();
        self.0.retain(|error| by_error.contains_key(error.as_str()));
        for (error, failing) in by_error {
            if self.0.insert(error.to_owned()) {
                let (server, step) = (failing[0].server, subject(&failing));
                tracing::error!(pair, server, step, error, "fails, will retry");
            }
        }
        if was_failing && self.0.is_empty() {
            tracing::info!(pair, "nothing fails any more");
        }
    }
}

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

/// Steps that fail with the same error.
struct Group<'f> {
    first: &'f FailingView,
    steps: String,
    /// The names of the families, the first of them if there are many.
    families: String,
    blocks_hits: bool,
    since: u64,
}

/// Returns the steps by their errors.
fn groups(failing: &[FailingView]) -> BTreeMap<&str, Group<'_>> {
    let mut by_error: BTreeMap<_, Vec<&FailingView>> = BTreeMap::new();
    for one in failing {
        by_error.entry(one.error.as_str()).or_default().push(one);
    }
    let mut groups = BTreeMap::new();
    for (error, failing) in by_error {
        let steps: BTreeSet<_> = failing.iter().map(|one| one.step).collect();
        let families = failing.iter().map(|one| one.family.as_deref());
        let families: BTreeSet<_> = families.map(|name| name.unwrap_or("the pair")).collect();
        let more = families.len().saturating_sub(MAX_NAMES);
        let first: Vec<_> = families.into_iter().take(MAX_NAMES).collect();
        let group = Group {
            first: failing[0],
            steps: Vec::from_iter(steps).join(", "),
            families: match more {
                0 => first.join(", "),
                more => format!("{} and {more} more", first.join(", ")),
            },
            blocks_hits: failing.iter().any(|one| one.blocks_hits),
            since: failing
                .iter()
                .map(|one| one.since)
                .min()
                .unwrap_or_default(),
        };
        groups.insert(error, group);
    }
    groups
}

/// Returns a finding for each error, except those that `check` reports as well.
pub fn findings(failing: &[FailingView]) -> Vec<FindingView> {
    let groups = groups(failing).into_iter();
    let new = groups.filter(|(_, group)| group.first.step != COUNTING);
    let finding = |(error, group): (&str, Group<'_>)| {
        let advice = if group.blocks_hits {
            "Hits wait in Redis meanwhile. `counterfoil check` names missing privileges, tables and columns"
        } else {
            "The step is retried until it succeeds"
        };
        let subject = format!("{} of {}", group.steps, group.families);
        FindingView {
            finding: Finding::new(Severity::Error, subject, error.to_owned(), advice),
            since: group.since,
        }
    };
    new.map(finding).collect()
}

/// The errors that were logged, and did not end since.
#[derive(Default)]
pub struct FailingLog(BTreeSet<String>);

impl FailingLog {
    /// Logs each new error once, with the families that it concerns, and the end of all errors.
    pub fn log(&mut self, pair: &str, failing: &[FailingView]) {
        let groups = groups(failing);
        let was_failing = !self.0.is_empty();
        self.0.retain(|error| groups.contains_key(error.as_str()));
        for (error, group) in groups {
            if self.0.insert(error.to_owned()) {
                let (server, steps, families) = (group.first.server, group.steps, group.families);
                tracing::error!(pair, server, steps, families, error, "fails, will retry");
            }
        }
        if was_failing && self.0.is_empty() {
            tracing::info!(pair, "nothing fails any more");
        }
    }
}

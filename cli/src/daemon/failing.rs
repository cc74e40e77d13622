//! The steps of a reconciler that fail: for the view, and in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use counterfoil::{ErrorKind, Failing};

use crate::reason::{LoggedReasons, Reason};
use crate::status::unix_now;
use crate::view::{COUNTING, FailingView, PairView, by_error, subject};

/// The time for which a step must have failed to count as failing. Locks and deadlocks often end
/// sooner.
const FAILING: Duration = Duration::from_secs(3);

/// Returns the steps of the reconciler that have failed for a while, and the step of the
/// applications if Redis refuses hits. A step that the view has already keeps the time of its first
/// failure. A step that failed before the servers were up, and was not retried since, is left out:
/// its retry may succeed.
pub fn views(failing: Vec<Failing>, view: &PairView, up_for: Option<Duration>) -> Vec<FailingView> {
    let now = unix_now();
    let mut views = Vec::new();
    for one in failing {
        let is_current = up_for.is_none_or(|up_for| one.idle <= up_for);
        if one.duration < FAILING || !is_current {
            continue;
        }
        views.push(FailingView {
            step: one.step,
            blocks_hits: one.blocks_hits(),
            server: match one.error.kind() {
                ErrorKind::Store | ErrorKind::Mismatch | ErrorKind::Busy => "mysql",
                // a task of the reconciler panicked
                ErrorKind::Closed => "daemon",
                _ => "redis",
            },
            since: now.saturating_sub(one.duration.as_secs()),
            family: one.family,
            error: one.error.into(),
        });
    }
    if let Some(refusal) = view.redis.refusal.as_ref().filter(|_| view.redis.up) {
        views.push(FailingView {
            step: COUNTING,
            family: None,
            server: "redis",
            error: Reason::of_finding(refusal),
            since: now,
            blocks_hits: false,
        });
    }
    for one in &mut views {
        let mut known = view.reconciler.failing.iter();
        if let Some(known) = known.find(|known| known.is_same_step(one)) {
            one.since = known.since;
        }
    }
    views
}

/// The steps that fail, each with the kinds of errors that were logged.
#[derive(Default)]
pub struct FailingLog(BTreeMap<(&'static str, Option<String>), LoggedReasons>);

impl FailingLog {
    /// Logs each new kind of error of a step once, together with the other steps and families that
    /// have the same error, and the end of all errors.
    pub fn log(&mut self, pair: &str, failing: &[FailingView]) {
        let was_failing = !self.0.is_empty();
        let key = |one: &FailingView| (one.step, one.family.clone());
        let keys: BTreeSet<_> = failing.iter().map(key).collect();
        self.0.retain(|step, _| keys.contains(step));
        for (error, mut steps) in by_error(failing) {
            steps.retain(|one| self.0.entry(key(one)).or_default().note(&one.error));
            if let Some(first) = steps.first() {
                let (server, step) = (first.server, subject(&steps));
                tracing::error!(pair, server, step, error, "fails, will retry");
            }
        }
        if was_failing && self.0.is_empty() {
            tracing::info!(pair, "nothing fails any more");
        }
    }
}

//! The steps of a reconciler that fail: for the view, and in the log.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil::{ErrorKind, Failing};

use crate::status::unix_now;
use crate::view::{COUNTING, FailingView, PairView, by_error, subject};

/// The time from which a step counts as failing. Locks and deadlocks are often shorter.
const FAILING: Duration = Duration::from_secs(3);

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

//! Rejects in the log: each once, at most ten a minute.

use std::time::{Duration, Instant};

use counterfoil::admin::Reject;

const MAX_PER_MINUTE: u32 = 10;

/// The rejects that were logged.
#[derive(Debug, Default)]
pub struct RejectLog {
    /// `None` before the first read: older rejects are only on the page.
    last: Option<u64>,
    /// The beginning of the current minute.
    since: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

impl RejectLog {
    /// Logs the new rejects of `latest`, which has the newest first.
    pub fn log(&mut self, pair: &str, latest: &[Reject]) {
        let newest = latest.first().map_or(0, |reject| reject.number);
        let Some(last) = self.last.replace(newest.max(self.last.unwrap_or(0))) else {
            return;
        };
        let minute = Duration::from_secs(60);
        if self.since.is_none_or(|since| since.elapsed() >= minute) {
            if self.suppressed > 0 {
                let rejects = self.suppressed;
                tracing::error!(pair, rejects, "further rejects in the last minute");
            }
            (self.since, self.logged, self.suppressed) = (Some(Instant::now()), 0, 0);
        }
        for reject in latest.iter().rev().filter(|reject| reject.number > last) {
            if self.logged == MAX_PER_MINUTE {
                self.suppressed += 1;
                continue;
            }
            self.logged += 1;
            tracing::error!(
                pair,
                number = reject.number,
                family = format!("{}/{}", reject.namespace, reject.family),
                id = reject.id,
                delta = reject.delta,
                reason = reject.reason,
                "a row refused a change"
            );
        }
    }
}

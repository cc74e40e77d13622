//! Rejects in the log: each once, at most ten a minute.

use std::time::{Duration, Instant};

use counterfoil::admin::Reject;

const A_MINUTE: u32 = 10;

/// The rejects that were logged.
#[derive(Debug)]
pub struct Told {
    /// `None` before the first read: older rejects are only on the page.
    last: Option<u64>,
    since: Instant,
    told: u32,
    untold: u64,
}

impl Default for Told {
    fn default() -> Self {
        Told {
            last: None,
            since: Instant::now(),
            told: 0,
            untold: 0,
        }
    }
}

impl Told {
    /// Logs the new rejects of `latest`, which has the newest first.
    pub fn tell(&mut self, pair: &str, latest: &[Reject]) {
        let newest = latest.first().map_or(0, |reject| reject.number);
        let Some(last) = self.last.replace(newest.max(self.last.unwrap_or(0))) else {
            return;
        };
        if self.since.elapsed() >= Duration::from_secs(60) {
            if self.untold > 0 {
                tracing::error!(
                    pair,
                    rejects = self.untold,
                    "more were refused by their rows in the last minute"
                );
            }
            (self.since, self.told, self.untold) = (Instant::now(), 0, 0);
        }
        for reject in latest.iter().rev().filter(|reject| reject.number > last) {
            if self.told == A_MINUTE {
                self.untold += 1;
                continue;
            }
            self.told += 1;
            let Reject {
                number,
                namespace,
                family,
                id,
                delta,
                reason,
                ..
            } = reject;
            tracing::error!(
                pair,
                number,
                family = format!("{namespace}/{family}"),
                id,
                delta,
                reason,
                "refused by its row"
            );
        }
    }
}

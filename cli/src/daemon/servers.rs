//! The availability of a pair's two servers. Each change, and each new kind of reason, is logged
//! once.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::latency::Replies;
use crate::limits::ticks;
use crate::probe::Probe;
use crate::reason::Reason;
use crate::state::PairState;
use crate::status::unix_now;
use crate::view::{PairView, ServerView};

/// The interval between checks of the servers.
const INTERVAL: Duration = Duration::from_secs(2);
/// The time limit of a server's reply.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A server of a pair.
#[derive(Clone, Copy)]
pub struct Server {
    name: &'static str,
    of_pair: fn(&mut PairView) -> &mut ServerView,
}

pub const REDIS: Server = Server {
    name: "redis",
    of_pair: |pair| &mut pair.redis,
};
pub const MYSQL: Server = Server {
    name: "mysql",
    of_pair: |pair| &mut pair.mysql,
};

impl Server {
    /// Records and publishes the result of a check: what the server reports of itself, or the
    /// reason why it is unavailable. A change is logged, with the number of waiting families.
    pub fn record(
        self,
        state: &PairState,
        result: Result<ServerView, Reason>,
        families_waiting: usize,
    ) {
        let (pair, server, now) = (state.name.as_str(), self.name, unix_now());
        state.update(|pair_view| {
            let view = (self.of_pair)(pair_view);
            let was_known = view.is_known();
            let is_changed = !was_known || view.up != result.is_ok();
            let down_seconds = now.saturating_sub(view.since);
            let since = if is_changed { now } else { view.since };
            let before = mem::take(view);
            *view = match result {
                Ok(found) => {
                    let version = &found.version;
                    if is_changed && was_known {
                        tracing::info!(
                            pair,
                            server,
                            version,
                            down_seconds,
                            families_waiting,
                            "available again"
                        );
                    } else if is_changed {
                        tracing::info!(pair, server, version, "available");
                    }
                    ServerView {
                        up: true,
                        since,
                        refuses: before.refuses,
                        ..found
                    }
                }
                Err(reason) => {
                    let mut logged = before.logged;
                    if logged.note(&reason) {
                        let why = reason.text.as_str();
                        tracing::error!(pair, server, why, families_waiting, "unavailable");
                    }
                    ServerView {
                        since,
                        version: before.version,
                        why: Some(reason),
                        logged,
                        ..ServerView::default()
                    }
                }
            };
        });
    }

    /// Checks the server periodically. Never returns.
    pub async fn watch(self, state: Arc<PairState>, mut probe: Probe) {
        let (mut ticks, mut replies) = (ticks(INTERVAL), Replies::default());
        loop {
            ticks.tick().await;
            // counted before the check, for the log: if the check detects a recovery, the waiting
            // hits are saved at once, and afterwards no family would be waiting
            let view = state.view.borrow().clone();
            let waiting = view.families.iter().filter(|one| one.pending > 0).count();
            let result = probe.ask(TIMEOUT).await.map(|(found, took)| ServerView {
                latency: Some(replies.add(took)),
                ..found
            });
            self.record(&state, result, waiting);
        }
    }
}

//! The availability of a pair's two servers. Each change, and each new reason, is logged once.

use std::error::Error;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use counterfoil::Connection;
use counterfoil::admin::RedisState;
use counterfoil::sqlx::{self, MySqlPool};

use crate::limits::{no_reply, ticks, with_timeout};
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
    /// Records and publishes the result of a check: the description of the server by itself. A change
    /// is logged, with the number of waiting families.
    pub fn record(
        self,
        state: &PairState,
        result: Result<ServerView, String>,
        families_waiting: usize,
    ) {
        let (pair, server, now) = (state.name.as_str(), self.name, unix_now());
        state.update(|view| {
            let view = (self.of_pair)(view);
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
                Err(why) => {
                    if is_changed || before.why.as_ref() != Some(&why) {
                        tracing::error!(pair, server, why, families_waiting, "unavailable");
                    }
                    ServerView {
                        since,
                        version: before.version,
                        why: Some(why),
                        ..ServerView::default()
                    }
                }
            };
        });
    }

    /// Checks the server periodically. Never returns.
    pub async fn watch<F>(self, state: Arc<PairState>, check: impl Fn() -> F)
    where
        F: Future<Output = Result<ServerView, String>>,
    {
        let mut ticks = ticks(INTERVAL);
        loop {
            ticks.tick().await;
            // counted before the check: waiting hits are saved as soon as a server recovers
            let view = state.view.borrow().clone();
            let waiting = view.families.iter();
            let waiting = waiting.filter(|one| one.pending > 0).count();
            let checked = with_timeout(TIMEOUT, check()).await;
            self.record(&state, checked, waiting);
        }
    }
}

pub async fn check_redis(redis: Connection) -> Result<ServerView, String> {
    let state = RedisState::read(&redis).await.map_err(|error| {
        let why = error
            .source()
            .map_or_else(|| error.to_string(), |source| source.to_string());
        // other words for the same reason would be logged as a change
        if why.ends_with("timed out") {
            no_reply(TIMEOUT)
        } else {
            why
        }
    })?;
    Ok(ServerView {
        version: Some(state.version),
        memory_bytes: Some(state.memory_bytes),
        refusal: state.refusal,
        ..ServerView::default()
    })
}

pub async fn check_mysql(pool: MySqlPool) -> Result<ServerView, String> {
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(&pool)
        .await
        .map_err(|error| format!("{error:#}"))?;
    let version = match version.split_once("-MariaDB") {
        Some((number, _)) => format!("MariaDB {number}"),
        None => format!("MySQL {version}"),
    };
    Ok(ServerView {
        version: Some(version),
        ..ServerView::default()
    })
}

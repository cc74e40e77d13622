//! The availability of a pair's two servers. Each change is logged once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::Connection;
use counterfoil::redis::{InfoDict, Value, cmd};
use counterfoil::sqlx::{self, MySqlPool};
use futures_util::future::join;
use tokio::sync::watch;

use super::state::PairState;
use crate::poll::{ticks, with_timeout};
use crate::status::unix_now;
use crate::view::ServerView;

/// The interval between checks of the servers.
const INTERVAL: Duration = Duration::from_secs(2);
/// The time limit of a server's reply.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A server and its last known state.
#[derive(Debug)]
pub struct Server {
    pair: String,
    /// `redis` or `mysql`.
    name: &'static str,
    view: ServerView,
    /// The time of the last change, `None` before the first check.
    changed: Option<Instant>,
}

/// A server's description of itself.
pub struct Description {
    /// The name and version.
    version: String,
    memory_bytes: Option<u64>,
}

impl Server {
    pub fn new(pair: &str, name: &'static str) -> Self {
        Server {
            pair: pair.to_owned(),
            name,
            view: ServerView::default(),
            changed: None,
        }
    }

    /// Records the result of a check. A change is logged, with the number of waiting families.
    pub fn record(
        &mut self,
        result: Result<Description, String>,
        families_waiting: usize,
    ) -> ServerView {
        let (pair, server) = (self.pair.as_str(), self.name);
        let is_changed = self.changed.is_none() || self.view.up != result.is_ok();
        if is_changed {
            let before = self.changed.replace(Instant::now());
            match (&result, before) {
                (Ok(Description { version, .. }), None) => {
                    tracing::info!(pair, server, version, "available");
                }
                (Ok(Description { version, .. }), Some(before)) => {
                    let down_seconds = before.elapsed().as_secs();
                    tracing::info!(
                        pair,
                        server,
                        version,
                        down_seconds,
                        families_waiting,
                        "available again"
                    );
                }
                (Err(why), _) => {
                    tracing::error!(pair, server, why, families_waiting, "unavailable");
                }
            }
            self.view.since = unix_now();
        }
        self.view.up = result.is_ok();
        match result {
            Ok(description) => {
                self.view.version = Some(description.version);
                self.view.memory_bytes = description.memory_bytes;
                self.view.why = None;
            }
            Err(why) => {
                self.view.memory_bytes = None;
                self.view.why = Some(why);
            }
        }
        self.view.clone()
    }
}

/// Checks both servers periodically, publishes their state, and sets `both_up` if both are up.
pub async fn watch(
    (mut redis, mut mysql): (Server, Server),
    (connection, pool): (Connection, MySqlPool),
    state: Arc<PairState>,
    both_up: watch::Sender<bool>,
) {
    let mut ticks = ticks(INTERVAL);
    loop {
        ticks.tick().await;
        // counted before the check: waiting hits are saved as soon as a server recovers
        let view = state.view.borrow().clone();
        let waiting = view.families.iter();
        let waiting = waiting.filter(|one| one.status.pending > 0).count();
        let checks = join(
            with_timeout(TIMEOUT, check_redis(&connection)),
            with_timeout(TIMEOUT, check_mysql(&pool)),
        );
        let (of_redis, of_mysql) = checks.await;
        let redis = redis.record(of_redis, waiting);
        let mysql = mysql.record(of_mysql, waiting);
        both_up.send_replace(redis.up && mysql.up);
        state.update(|view| (view.redis, view.mysql) = (redis, mysql));
    }
}

async fn check_redis(redis: &Connection) -> Result<Description, String> {
    let info = cmd("INFO")
        .query_async::<Value>(&mut redis.clone())
        .await
        .map_err(|error| format!("{error:#}"))?;
    let nodes: Vec<_> = texts(&info)
        .iter()
        .map(|text| InfoDict::new(text))
        .collect();
    let first = nodes.first().ok_or("the reply to INFO is not a text")?;
    let version = [("Valkey", "valkey_version"), ("Redis", "redis_version")]
        .into_iter()
        .find_map(|(name, field)| Some(format!("{name} {}", first.get::<String>(field)?)))
        .ok_or("the reply to INFO has no version")?;
    Ok(Description {
        version,
        memory_bytes: nodes
            .iter()
            .map(|node| node.get::<u64>("used_memory"))
            .sum(),
    })
}

/// Returns the texts in a reply, one for each node of a cluster.
fn texts(reply: &Value) -> Vec<String> {
    match reply {
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::VerbatimString { text, .. } => vec![text.clone()],
        Value::Map(nodes) => nodes.iter().flat_map(|(_, reply)| texts(reply)).collect(),
        Value::Array(replies) => replies.iter().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

async fn check_mysql(pool: &MySqlPool) -> Result<Description, String> {
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(pool)
        .await
        .map_err(|error| format!("{error:#}"))?;
    let version = match version.split_once("-MariaDB") {
        Some((number, _)) => format!("MariaDB {number}"),
        None => format!("MySQL {version}"),
    };
    Ok(Description {
        version,
        memory_bytes: None,
    })
}

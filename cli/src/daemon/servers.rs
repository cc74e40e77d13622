//! The availability of a pair's two servers. Each change is logged once.

use counterfoil::Connection;
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::redis::{Value, cmd};
use counterfoil::sqlx::{self, MySqlPool};
use futures_util::future::join;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::live::LivePair;
use crate::status::now;
use crate::view::ServerView;

/// The interval between checks of the servers.
const LOOK: Duration = Duration::from_secs(2);
/// The time limit of a server's reply.
const REPLY: Duration = Duration::from_secs(3);

/// A server and its last known state.
#[derive(Debug)]
pub struct Server {
    pair: String,
    /// `redis` or `mysql`.
    name: &'static str,
    /// `None` before the first check.
    seen: Option<ServerView>,
    changed: Instant,
}

impl Server {
    pub fn new(pair: &str, name: &'static str) -> Self {
        Server {
            pair: pair.to_owned(),
            name,
            seen: None,
            changed: Instant::now(),
        }
    }

    /// Records the result of a check. A change is logged, with the number of waiting families.
    pub fn found(&mut self, look: Result<Found, String>, families_waiting: usize) -> ServerView {
        let (pair, server) = (self.pair.as_str(), self.name);
        let was_up = self.seen.as_ref().map(|seen| seen.up);
        let is_up = look.is_ok();
        if was_up != Some(is_up) {
            let seconds = self.changed.elapsed().as_secs();
            match (&look, was_up) {
                (Ok(Found { version, .. }), None) => tracing::info!(pair, server, version, "there"),
                (Ok(Found { version, .. }), Some(_)) => {
                    tracing::info!(
                        pair,
                        server,
                        version,
                        away_seconds = seconds,
                        families_waiting,
                        "back"
                    );
                }
                (Err(why), _) => tracing::error!(pair, server, why, families_waiting, "away"),
            }
            self.changed = Instant::now();
        }
        let since = self
            .seen
            .as_ref()
            .filter(|_| was_up == Some(is_up))
            .map_or_else(now, |seen| seen.since);
        let before = self.seen.take().and_then(|seen| seen.version);
        let view = match look {
            Ok(Found {
                version,
                memory_bytes,
            }) => ServerView {
                up: true,
                since,
                version: Some(version),
                memory_bytes,
                why: None,
            },
            Err(why) => ServerView {
                up: false,
                since,
                version: before,
                memory_bytes: None,
                why: Some(why),
            },
        };
        self.seen = Some(view.clone());
        view
    }
}

/// Checks both servers periodically, publishes their state, and sets `both` if both are up.
pub async fn watch(
    (mut redis, mut mysql): (Server, Server),
    (connection, probe): (Connection, MySqlPool),
    live: Arc<LivePair>,
    both: watch::Sender<bool>,
) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        // counted before the check: waiting hits are saved as soon as a server recovers
        let waiting = live
            .view
            .borrow()
            .families
            .iter()
            .filter(|family| family.status.pending > 0)
            .count();
        let (found_redis, found_mysql) =
            join(look_at_redis(&connection), look_at_mysql(&probe)).await;
        let views = (
            redis.found(found_redis, waiting),
            mysql.found(found_mysql, waiting),
        );
        both.send_replace(views.0.up && views.1.up);
        live.show(|view| (view.redis, view.mysql) = views);
    }
}

/// A server's description of itself.
pub struct Found {
    /// The name and version.
    version: String,
    memory_bytes: Option<u64>,
}

async fn look_at_redis(redis: &Connection) -> Result<Found, String> {
    let mut redis = redis.clone();
    let info = timeout(REPLY, cmd("INFO").query_async::<Value>(&mut redis)).await;
    let info = info
        .map_err(|_| no_reply())?
        .map_err(|error| error.to_string())?;
    let nodes = texts(&info);
    let field = |node: &String, name: &str| {
        node.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::to_owned)
    };
    let first = nodes.first().ok_or("INFO is not what a Redis replies")?;
    let valkey = field(first, "valkey_version").map(|version| format!("Valkey {version}"));
    let version =
        valkey.or_else(|| field(first, "redis_version").map(|version| format!("Redis {version}")));
    let version = version.ok_or("INFO has no version")?;
    let memory = nodes
        .iter()
        .map(|node| field(node, "used_memory")?.trim().parse::<u64>().ok());
    Ok(Found {
        version,
        memory_bytes: memory.sum(),
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

async fn look_at_mysql(pool: &MySqlPool) -> Result<Found, String> {
    let asked = sqlx::query_scalar::<_, String>("SELECT VERSION()").fetch_one(pool);
    let version = timeout(REPLY, asked)
        .await
        .map_err(|_| no_reply())?
        .map_err(|error| error.to_string())?;
    let version = match version.split_once("-MariaDB") {
        Some((number, _)) => format!("MariaDB {number}"),
        None => format!("MySQL {version}"),
    };
    Ok(Found {
        version,
        memory_bytes: None,
    })
}

fn no_reply() -> String {
    format!("no reply within {} s", REPLY.as_secs())
}

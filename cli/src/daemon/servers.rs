//! The availability of a pair's two servers. Each change, and each new reason, is logged once.

use std::sync::Arc;
use std::time::Duration;

use counterfoil::Connection;
use counterfoil::redis::{InfoDict, RedisError, Value, cmd};
use counterfoil::sqlx::{self, MySqlPool};

use super::state::PairState;
use crate::poll::{no_reply, ticks, with_timeout};
use crate::status::unix_now;
use crate::view::{PairView, Refusal, ServerView};

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

/// A server's description of itself.
pub struct Description {
    /// The name and version.
    version: String,
    memory_bytes: Option<u64>,
    /// The reason why a node refuses hits.
    refusal: Option<Refusal>,
}

impl Server {
    /// Records and publishes the result of a check. A change is logged, with the number of waiting
    /// families.
    pub fn record(
        self,
        state: &PairState,
        result: Result<Description, String>,
        families_waiting: usize,
    ) {
        let (pair, server, now) = (state.name.as_str(), self.name, unix_now());
        state.update(|view| {
            let view = (self.of_pair)(view);
            let was_known = view.is_known();
            let is_changed = !was_known || view.up != result.is_ok();
            let down_seconds = now.saturating_sub(view.since);
            if is_changed {
                view.since = now;
            }
            view.up = result.is_ok();
            match result {
                Ok(Description {
                    version,
                    memory_bytes,
                    refusal,
                }) => {
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
                    view.version = Some(version);
                    view.memory_bytes = memory_bytes;
                    view.refusal = refusal;
                    view.why = None;
                }
                Err(why) => {
                    if is_changed || view.why.as_ref() != Some(&why) {
                        tracing::error!(pair, server, why, families_waiting, "unavailable");
                    }
                    view.memory_bytes = None;
                    view.why = Some(why);
                }
            }
        });
    }

    /// Checks the server periodically. Never returns.
    pub async fn watch<F>(self, state: Arc<PairState>, check: impl Fn() -> F)
    where
        F: Future<Output = Result<Description, String>>,
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

pub async fn check_redis(mut redis: Connection) -> Result<Description, String> {
    let info = cmd("INFO")
        .query_async::<Value>(&mut redis)
        .await
        .map_err(|error| reason(&error))?;
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
        refusal: refusal(&nodes),
    })
}

/// Returns why the server, or a primary of the cluster, refuses hits. The client of a cluster may
/// not have noticed yet that a node is no longer a primary.
fn refusal(nodes: &[InfoDict]) -> Option<Refusal> {
    let is_primary = |node: &&InfoDict| {
        let role = node.get::<String>("role");
        role.is_none_or(|role| role == "master")
    };
    let is_full = |node: &InfoDict| {
        let number = |field| node.get::<u64>(field).unwrap_or(0);
        let limit = number("maxmemory");
        // with another policy Redis mostly evicts keys; the check finds where it cannot
        let policy = node.get::<String>("maxmemory_policy");
        let evicts = policy.is_some_and(|policy| policy != "noeviction");
        limit > 0 && number("used_memory") >= limit && !evicts
    };
    let mut primaries = nodes.iter().filter(is_primary).peekable();
    if primaries.peek().is_none() {
        return Some(Refusal::Replica);
    }
    primaries.any(is_full).then_some(Refusal::MemoryFull)
}

/// Returns why Redis did not reply. Other words for the same reason would be logged as a change.
fn reason(error: &RedisError) -> String {
    let text = error
        .detail()
        .map_or_else(|| format!("{error:#}"), str::to_owned);
    if error.is_timeout() || text == "timed out" {
        no_reply(TIMEOUT)
    } else {
        text
    }
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

pub async fn check_mysql(pool: MySqlPool) -> Result<Description, String> {
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(&pool)
        .await
        .map_err(|error| format!("{error:#}"))?;
    let version = match version.split_once("-MariaDB") {
        Some((number, _)) => format!("MariaDB {number}"),
        None => format!("MySQL {version}"),
    };
    Ok(Description {
        version,
        memory_bytes: None,
        refusal: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_former_primary_nor_an_evicting_server_refuses_hits() {
        let refused = |nodes: &[&str]| {
            let nodes: Vec<_> = nodes.iter().map(|text| InfoDict::new(text)).collect();
            refusal(&nodes)
        };
        let (primary, replica) = ("role:master\r\n", "role:slave\r\n");
        let full = "role:master\r\nmaxmemory:9\r\nused_memory:9\r\n";
        assert!(refused(&[replica, primary]).is_none());
        assert!(matches!(refused(&[replica]), Some(Refusal::Replica)));
        assert!(matches!(
            refused(&[primary, full]),
            Some(Refusal::MemoryFull)
        ));
        let evicting = format!("{full}maxmemory_policy:volatile-lru\r\n");
        assert!(refused(&[&evicting]).is_none());
    }
}

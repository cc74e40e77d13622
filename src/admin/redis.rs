//! Start-up checks: the problems found on the Redis servers, and advice on each (docs/protocol.md,
//! section 6).

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Cmd, FromRedisValue, Value};

use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::kind::Kind;
use crate::finding::{Finding, Severity, clock, version_numbers, warn_of};
use crate::scripts::bundle;

/// Refuses a `maxmemory-policy` that evicts counts: any that evicts all keys, and, for families
/// whose keys expire, any that evicts expiring keys.
pub(crate) async fn eviction(redis: &Connection, families: &[Family]) -> Result<()> {
    for (_, node) in info(redis, "memory").await? {
        let policy = node.get("maxmemory_policy");
        if let Some(loss) = policy.and_then(|policy| evicts(policy, families)) {
            let message =
                format!("Redis has maxmemory-policy {loss}: set noeviction, or allow_evicting");
            return Err(Error::new(ErrorKind::Unsafe, message));
        }
    }
    Ok(())
}

/// Returns the policy and what it evicts of these families when memory is full, if anything.
fn evicts(policy: &str, families: &[Family]) -> Option<String> {
    if policy.starts_with("allkeys-") {
        return Some(format!("{policy}, which evicts counts when memory is full"));
    }
    let family = families
        .iter()
        .find(|family| policy.starts_with("volatile-") && family.has_expiring_keys())?;
    Some(format!(
        "{policy}, which evicts windows and known visitors of the family {family} when memory is full: what is \
         shown is too low, and visitors are counted again"
    ))
}

/// Checks Redis; in a cluster, each primary.
pub(crate) async fn findings(redis: &Connection, families: &[Family]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let started = SystemTime::now();
    let nodes = match info(redis, "default").await {
        Ok(nodes) => nodes,
        Err(error) => {
            let advice = match error.kind() {
                ErrorKind::AccessDenied => {
                    "Give the connection a user and password that Redis accepts, with +info."
                }
                _ => "Check that the server runs and that the connection points to it.",
            };
            let message = format!("{error:#}");
            return vec![Finding::error("redis", message, advice)];
        }
    };
    let asked = started..SystemTime::now();
    let fsync = config(redis, "appendfsync").await;
    let save = config(redis, "save").await;
    for (name, node) in nodes.iter().filter(is_primary) {
        let subject = format!("redis {name}");
        let server = subject.trim_end();
        let found = [
            of_server(name, node),
            memory(node, families),
            full(node),
            refusal(node, true),
            persistence(
                setting(node, "aof_enabled") == "1",
                value_of(&fsync, name),
                value_of(&save, name),
                families,
            ),
        ];
        for mut finding in found.into_iter().flatten() {
            finding.subject = format!("{server} {}", finding.subject);
            findings.push(finding);
        }
        // only Redis 7.0 and later report their time
        if let Ok(micros) = setting(node, "server_time_usec").parse() {
            let time = UNIX_EPOCH + Duration::from_micros(micros);
            let effect = "hits count in the slices and days of its clock";
            findings.extend(clock::finding(server, time, &asked, effect));
        }
    }
    findings
}

fn setting<'n>(node: &'n Info, name: &str) -> &'n str {
    node.get(name).map_or("", String::as_str)
}

/// Returns a finding if the connection does not lead to a primary that works. A connection without
/// cluster support reaches the slots of one node only.
fn of_server(name: &str, node: &Info) -> Option<Finding> {
    let (version, role) = (setting(node, "redis_version"), setting(node, "role"));
    let (subject, message, advice) = if version_numbers(version) < [6, 2, 0] {
        (
            "version",
            format!("the server is version {version:?}, the scripts need 6.2"),
            "Update Redis, or use Valkey.",
        )
    } else if role != "master" {
        (
            "role",
            format!("the server is a {role}, which accepts no writes"),
            "Connect to the primary.",
        )
    } else if name.is_empty() && setting(node, "cluster_enabled") == "1" {
        let message =
            "the server is a node of a Redis Cluster, and the connection is not one to a cluster";
        let advice = "Connect with Counterfoil::connect_cluster; set `cluster` of the daemon.";
        ("cluster", message.to_owned(), advice)
    } else {
        return None;
    };
    Some(Finding::error(subject, message, advice))
}

fn memory(node: &Info, families: &[Family]) -> Option<Finding> {
    let message = match setting(node, "maxmemory_policy") {
        "" => "the server does not show it".to_owned(),
        policy => evicts(policy, families)?,
    };
    let limit = if setting(node, "maxmemory") == "0" {
        " There is no memory limit yet, so nothing has been evicted so far."
    } else {
        ""
    };
    let advice = format!(
        "Set maxmemory-policy noeviction, or keep the counters in a Redis of their own.{limit}"
    );
    Some(Finding::error("maxmemory-policy", message, advice))
}

/// Returns a finding if the memory is full, and Redis has no key that it may evict.
fn full(node: &Info) -> Option<Finding> {
    let [used, limit] =
        ["used_memory", "maxmemory"].map(|name| setting(node, name).parse::<u64>().ok());
    let (used, limit) = (used?, limit.filter(|limit| *limit > 0)?);
    let policy = setting(node, "maxmemory_policy");
    let has_expiring =
        |(name, keys): (&String, &String)| name.starts_with("db") && !keys.contains("expires=0,");
    let evicts = policy.starts_with("allkeys-")
        || (policy.starts_with("volatile-") && node.iter().any(has_expiring));
    let message = format!("Redis has reached maxmemory, {limit} bytes, and refuses hits");
    let advice = "Raise maxmemory, or find out why hits do not reach the database.";
    (used >= limit && !evicts).then(|| Finding::error("maxmemory", message, advice))
}

/// Returns another reason why Redis refuses all writes; if `perhaps`, also one that depends on a
/// setting which INFO does not show.
fn refusal(node: &Info, perhaps: bool) -> Option<Finding> {
    const REASONS: [(&str, &str, &str, &str); 3] = [
        (
            "rdb_last_bgsave_status",
            "err",
            "the last snapshot failed: Redis refuses hits, unless stop-writes-on-bgsave-error is no",
            "The log of Redis has the reason, such as a full disk. Then run BGSAVE.",
        ),
        (
            "aof_last_write_status",
            "err",
            "the last write to the append-only file failed: Redis refuses hits",
            "The log of Redis has the reason, such as a full disk.",
        ),
        (
            "min_slaves_good_slaves",
            "0",
            "min-replicas-to-write is set, and no replica is near enough: Redis refuses hits",
            "Check the replicas, and the network between the servers.",
        ),
    ];
    let (_, _, message, advice) = *REASONS
        .iter()
        .skip(usize::from(!perhaps))
        .find(|(name, value, ..)| setting(node, name) == *value)?;
    Some(Finding::error("writes", message, advice))
}

/// Applies the durability table of docs/protocol.md, section 6.
fn persistence(
    aof: bool,
    fsync: Option<&str>,
    save: Option<&str>,
    families: &[Family],
) -> Option<Finding> {
    // Redis itself delays writes when an fsync takes longer than 2 s
    let mut hasty = families
        .iter()
        .filter(|family| family.durability().settle() < Duration::from_secs(2));
    let (severity, message, advice) = if !aof {
        let setting = appendonly(fsync, hasty.next().is_some());
        without_aof(save, families, setting)
    } else if fsync == Some("always") {
        return None;
    } else if let Some(family) = hasty.next() {
        let advice = if fsync == Some("no") {
            "Set appendfsync always, or everysec and give the family durability = \"2.5s\"."
        } else {
            "Give the family durability = \"2.5s\", or set appendfsync always."
        };
        (
            Severity::Warning,
            format!(
                "appendfsync is {}, and the durability of family {family} is {}: after a crash of the machine Redis can be \
                 behind the database, and hits are dropped until that is detected",
                fsync.unwrap_or("not visible"),
                family.durability()
            ),
            advice.to_owned(),
        )
    } else if let Some(fsync) = fsync {
        let (severity, lost, or) = match fsync {
            "everysec" => (Severity::Info, "up to the last 2 s of", ""),
            _ => (
                Severity::Warning,
                "an unknown number of",
                ", or everysec to lose at most 2 s",
            ),
        };
        (
            severity,
            format!("with appendfsync {fsync} a crash of the machine loses {lost} hits"),
            format!("No hit counts twice. Set appendfsync always to lose none{or}."),
        )
    } else {
        (
            Severity::Info,
            "appendfsync was not checked: the Redis user may not read it, as is safest".to_owned(),
            "CONFIG GET appendfsync shows it to an administrator: with everysec a crash of the machine loses at most the last \
             2 s of hits, and with always none."
                .to_owned(),
        )
    };
    Some(Finding::new(severity, "persistence", message, advice))
}

/// Returns the settings of an append-only file of which no other finding warns.
fn appendonly(fsync: Option<&str>, has_hasty: bool) -> &'static str {
    match (fsync, has_hasty) {
        (Some("always"), _) => "appendonly yes",
        (_, true) => {
            "appendonly yes with appendfsync always, or with everysec and durability = \"2.5s\" of the families"
        }
        (Some("no"), false) => "appendonly yes with appendfsync everysec",
        (_, false) => "appendonly yes",
    }
}

/// Returns the severity, message and advice for a Redis without an append-only file. `setting` would
/// give it one.
fn without_aof(
    save: Option<&str>,
    families: &[Family],
    setting: &str,
) -> (Severity, String, String) {
    let (with, loses) = match save {
        Some("") => ("without persistence", "what is not yet in the database"),
        Some(_) => ("with RDB snapshots only", LOSES),
        None => ("without appendonly", LOSES),
    };
    if let Some(family) = families
        .iter()
        .find(|family| matches!(family.kind, Kind::Visitors(_)))
    {
        return (
            Severity::Error,
            format!("{with} a crash of Redis forgets known visitors: {family} counts them again"),
            format!("Set {setting}."),
        );
    }
    (
        Severity::Warning,
        format!("{with} a crash of Redis loses {loses}"),
        format!(
            "No hit counts twice, but for requests (add_once, incr_once) that Redis forgot and the application \
             repeats. If neither may happen, set {setting}."
        ),
    )
}

/// The loss when Redis restarts with an older state after a crash.
const LOSES: &str =
    "the hits since the last flush to the database, and those until a reconciler has detected it";

/// Logs a warning if Redis would count known visitors again after a crash.
pub(crate) async fn warn_of_persistence(redis: &Connection, families: &[Family]) {
    warn_of(&findings(redis, families).await, |found| {
        found.severity == Severity::Error && found.subject.ends_with("persistence")
    });
}

/// Returns the run id of each server by its address, or by "" if the connection has one server. The
/// map is empty if a cluster connection asks an arbitrary node.
pub(crate) async fn run_ids(redis: &Connection) -> Result<BTreeMap<String, String>> {
    let nodes = info(redis, "server").await?.into_iter();
    let mut ids: BTreeMap<_, _> = nodes
        .filter_map(|(node, mut info)| Some((node, info.remove("run_id")?)))
        .collect();
    if redis.is_cluster() {
        ids.remove("");
    }
    Ok(ids)
}

/// The state of a Redis server, or of the nodes of a cluster, as they describe it themselves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisState {
    /// The name and version: `Valkey 9.1.2`. In a cluster, those of one node.
    pub version: String,
    /// The memory that all nodes have allocated.
    pub memory_bytes: u64,
    /// The finding about a primary that refuses hits, for example because its memory is full.
    pub refusal: Option<Finding>,
}

impl RedisState {
    /// Reads the state by INFO.
    ///
    /// # Errors
    /// [`Redis`](ErrorKind::Redis) if Redis is unreachable; [`AccessDenied`](ErrorKind::AccessDenied)
    /// without `+info`.
    pub async fn read(redis: &Connection) -> Result<Self> {
        RedisState::of(&info(redis, "default").await?)
    }

    fn of(nodes: &[(String, Info)]) -> Result<Self> {
        let version = nodes.first().and_then(|(_, node)| {
            [("valkey_version", "Valkey"), ("redis_version", "Redis")]
                .iter()
                .find_map(|(field, name)| Some(format!("{name} {}", node.get(*field)?)))
        });
        let used = nodes.iter().filter_map(|(_, node)| node.get("used_memory"));
        let mut primaries = nodes.iter().filter(is_primary);
        Ok(RedisState {
            version: version.ok_or_else(|| Error::redis("the reply to INFO has no version"))?,
            memory_bytes: used.filter_map(|bytes| bytes.parse::<u64>().ok()).sum(),
            refusal: primaries.find_map(|(_, node)| full(node).or_else(|| refusal(node, false))),
        })
    }
}

/// Returns false for a former primary of a cluster, which its client may not have noticed yet.
fn is_primary((name, node): &&(String, Info)) -> bool {
    name.is_empty() || node.get("role").is_none_or(|role| role == "master")
}

type Info = HashMap<String, String>;

/// Returns a section of INFO of each node by its address, or by "" for a single server.
async fn info(redis: &Connection, section: &str) -> Result<Vec<(String, Info)>> {
    let reply = bundle::query(redis, ::redis::cmd("INFO").arg(section)).await?;
    Ok(nodes(reply)
        .into_iter()
        .filter_map(|(node, reply)| Some((node, parse_info(&text(reply)?))))
        .collect())
}

fn parse_info(text: &str) -> Info {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// Returns a setting that INFO does not show, by node.
async fn config(redis: &Connection, name: &str) -> HashMap<String, String> {
    let Ok(reply) = each_primary(redis, ::redis::cmd("CONFIG").arg("GET").arg(name)).await else {
        return HashMap::new();
    };
    nodes(reply)
        .into_iter()
        .filter_map(|(node, reply)| {
            let mut settings = HashMap::<String, String>::from_redis_value(reply).ok()?;
            Some((node, settings.remove(name)?))
        })
        .collect()
}

/// Returns the value at the node, or at the one server that was asked; `None` if the server does
/// not show it.
fn value_of<'s>(setting: &'s HashMap<String, String>, node: &str) -> Option<&'s str> {
    setting
        .get(node)
        .or_else(|| setting.get(""))
        .map(String::as_str)
}

/// Returns the replies of all primaries. By default, a cluster connection sends the command to one
/// arbitrary node.
async fn each_primary(redis: &Connection, command: &Cmd) -> Result<Value> {
    #[cfg(feature = "cluster")]
    if let Some(cluster) = redis.as_cluster() {
        use ::redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo};
        let everywhere = RoutingInfo::MultiNode((
            MultipleNodeRoutingInfo::AllMasters,
            Some(ResponsePolicy::Special),
        ));
        return cluster
            .current()
            .route_command(command.clone(), everywhere)
            .await
            .map_err(|error| {
                Error::redis("a node of the cluster did not reply").with_source(error)
            });
    }
    bundle::query(redis, command).await
}

/// Splits a reply by node. A cluster connection returns a map from addresses to replies, others the
/// only node's reply.
fn nodes(reply: Value) -> Vec<(String, Value)> {
    match reply {
        Value::Map(pairs) if pairs.iter().all(|(node, _)| is_address(node)) => pairs
            .into_iter()
            .filter_map(|(node, reply)| Some((text(node)?, reply)))
            .collect(),
        reply => vec![(String::new(), reply)],
    }
}

fn is_address(value: &Value) -> bool {
    matches!(value, Value::BulkString(bytes) if bytes.contains(&b':'))
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Durability;

    fn info(text: &str) -> Info {
        let pairs = text
            .split_whitespace()
            .filter_map(|pair| pair.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        pairs.collect()
    }

    #[test]
    fn a_full_memory_refuses_hits_unless_keys_are_evicted() {
        let is_found = |policy: &str, keys: &str| {
            let memory = "used_memory:9 maxmemory:9 maxmemory_policy:";
            full(&info(&format!("{memory}{policy} db0:{keys}"))).is_some()
        };
        let (lasting, expiring) = ("keys=2,expires=0,avg_ttl=0", "keys=2,expires=1,avg_ttl=9");
        assert!(is_found("noeviction", expiring));
        assert!(is_found("volatile-lru", lasting));
        assert!(!is_found("volatile-lru", expiring));
        assert!(!is_found("allkeys-lru", lasting));
    }

    #[test]
    fn no_advice_about_persistence_leads_to_another_warning() {
        let advice = |aof, fsync, settle| {
            let durability = Durability::Settle(Duration::from_millis(settle));
            let family = Family::buffered("shop", "views").durability(durability);
            persistence(aof, fsync, Some(""), &[family.build().unwrap()])
                .filter(|found| found.severity > Severity::Info)
                .map(|found| found.advice)
        };
        for fsync in [Some("always"), Some("everysec"), Some("no"), None] {
            for (aof, settle) in [(true, 2500), (true, 1), (false, 2500), (false, 1)] {
                let Some(given) = advice(aof, fsync, settle) else {
                    continue;
                };
                let names = |words: &str| given.contains(words);
                let fsync = if names("everysec") {
                    Some("everysec")
                } else {
                    fsync
                };
                let settle = if names("2.5s") { 2500 } else { settle };
                assert_eq!(advice(true, fsync, settle), None, "{given}");
                if names("appendfsync always") {
                    assert_eq!(advice(true, Some("always"), 1), None, "{given}");
                }
            }
        }
    }

    #[test]
    fn the_state_is_that_of_all_nodes_and_a_former_primary_refuses_no_hits() {
        let full = "redis_version:7.0.15 used_memory:9 maxmemory:9 maxmemory_policy:volatile-lru";
        let of = |text: &str, roles: [&str; 2]| {
            let node = |role| ("node:1".to_owned(), info(&format!("{text} role:{role}")));
            RedisState::of(&roles.map(node)).unwrap()
        };
        let state = of(full, ["slave", "slave"]);
        assert_eq!((&*state.version, state.memory_bytes), ("Redis 7.0.15", 18));
        assert!(state.refusal.is_none());
        let alone = "redis_version:7.0.15 min_slaves_good_slaves:0";
        for (text, expected) in [
            (
                full,
                "Redis has reached maxmemory, 9 bytes, and refuses hits",
            ),
            (
                alone,
                "min-replicas-to-write is set, and no replica is near enough: Redis refuses hits",
            ),
        ] {
            let refusal = of(text, ["slave", "master"]).refusal.unwrap();
            assert_eq!(refusal.message, expected);
        }
        let of_valkey = info("redis_version:7.2.4 valkey_version:9.1.2");
        let valkey = RedisState::of(&[(String::new(), of_valkey)]).unwrap();
        assert_eq!(valkey.version, "Valkey 9.1.2");
        assert!(RedisState::of(&[]).is_err());
    }
}

//! Start-up checks: what a look at the servers found, and what to do about it (PROTOCOL section 6).

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use redis::Value;
use redis::aio::ConnectionLike;

use crate::error::Result;
use crate::family::Family;
use crate::script;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Counts can be lost in a crash of a server or machine; never doubled.
    Warning,
    /// It will not work, or counts can be lost in daily operation, or doubled.
    Error,
}

/// One thing that the start-up checks noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at: `redis maxmemory-policy`, `mysql table visitors`.
    pub subject: String,
    /// What was found.
    pub message: String,
    /// What to do about it, in a sentence.
    pub advice: String,
}

impl Finding {
    pub(crate) fn new(
        severity: Severity,
        subject: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Finding { severity, subject: subject.into(), message: message.into(), advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}: {}. {}", self.subject, self.message, self.advice)
    }
}

/// The `maxmemory-policy`, if it is one that throws counts away. The `volatile-` policies only evict keys that have a
/// time to live, and no key of counterfoil's has one.
pub(crate) async fn evicting_policy<C: ConnectionLike + Clone + 'static>(redis: &C) -> Result<Option<String>> {
    let evicting = |info: Info| info.get("maxmemory_policy").filter(|policy| policy.starts_with("allkeys-")).cloned();
    Ok(info(redis, "memory").await?.into_iter().find_map(evicting))
}

/// Looks at Redis.
pub(crate) async fn redis<C: ConnectionLike + Clone + 'static>(redis: &C, families: &[Family]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sections = async {
        let mut nodes = info(redis, "server").await?;
        for section in ["memory", "persistence", "replication"] {
            for (node, more) in nodes.iter_mut().zip(info(redis, section).await?) {
                node.extend(more);
            }
        }
        Ok::<_, crate::Error>(nodes)
    };
    let nodes = match sections.await {
        Ok(nodes) => nodes,
        Err(error) => {
            let advice = "See that the server runs and that the connection points to it.";
            return vec![Finding::new(Severity::Error, "redis", error.to_string(), advice)];
        }
    };
    for node in &nodes {
        let setting = |name: &str| node.get(name).map_or("", String::as_str);
        findings.extend(version(setting("redis_version")));
        findings.extend(memory(setting("maxmemory_policy"), setting("maxmemory")));
        findings.extend(role(setting("role")));
        let fsync = config(redis, "appendfsync").await;
        let save = config(redis, "save").await;
        let snapshots = save.is_none_or(|save| !save.is_empty());
        findings.extend(persistence(setting("aof_enabled") == "1", fsync.as_deref(), snapshots, families));
    }
    findings
}

fn version(version: &str) -> Option<Finding> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    (number < (6, 2)).then(|| {
        let message = format!("the server is version {version:?}, the scripts need 6.2");
        Finding::new(Severity::Error, "redis version", message, "Update Redis, or use Valkey.")
    })
}

fn memory(policy: &str, limit: &str) -> Option<Finding> {
    let message = match policy {
        policy if policy.starts_with("allkeys-") => format!("{policy} throws counts away when memory is full"),
        "" => "the server does not say it".to_owned(),
        _ => return None,
    };
    let limit = if limit == "0" { " There is no memory limit yet, so nothing is thrown away so far." } else { "" };
    let advice = format!("Set maxmemory-policy noeviction, or keep the counters in a Redis of their own.{limit}");
    Some(Finding::new(Severity::Error, "redis maxmemory-policy", message, advice))
}

fn role(role: &str) -> Option<Finding> {
    (role != "master").then(|| {
        let message = format!("the server is a {role}, which takes no writes");
        Finding::new(Severity::Error, "redis role", message, "Connect to the primary.")
    })
}

/// The durability table of PROTOCOL section 6.
fn persistence(aof: bool, fsync: Option<&str>, snapshots: bool, families: &[Family]) -> Option<Finding> {
    let subject = "redis persistence";
    // Redis itself holds writes back when an fsync takes longer than 2 s
    let hasty = families.iter().find(|family| family.durability().settle() < Duration::from_secs(2));
    match (aof, fsync) {
        (true, Some("always")) => None,
        (true, fsync) => {
            if let Some(family) = hasty {
                let message = format!(
                    "appendfsync is {}, and the durability of family {family} is {}: a crash of the machine can double \
                     counts",
                    fsync.unwrap_or("not to be seen"),
                    family.durability()
                );
                let advice = "Give the family Durability::Settle with 2.5 s, or set appendfsync always.";
                return Some(Finding::new(Severity::Error, subject, message, advice));
            }
            match fsync {
                Some("everysec") => {
                    let message = "with appendfsync everysec a crash of the machine loses up to the last 2 s of hits";
                    let advice = "Nothing is ever doubled. If no hit may be lost, set appendfsync always.";
                    Some(Finding::new(Severity::Info, subject, message, advice))
                }
                Some(other) => {
                    let message =
                        format!("with appendfsync {other} nobody knows what a crash of the machine takes back");
                    let advice = "Set appendfsync everysec or always: counts can be doubled.";
                    Some(Finding::new(Severity::Error, subject, message, advice))
                }
                None => {
                    let message = "the server does not show its appendfsync";
                    let advice = "See that it is everysec or always.";
                    Some(Finding::new(Severity::Warning, subject, message, advice))
                }
            }
        }
        (false, _) if snapshots => {
            let message = "with RDB snapshots only, a crash takes Redis back to the last snapshot: counts since then are \
                           lost, and batches that reached the database since then are counted twice";
            let advice =
                "Set appendonly yes; or switch snapshots off too (save \"\") if losing what is pending is fine.";
            Some(Finding::new(Severity::Error, subject, message, advice))
        }
        (false, _) => {
            let message = "without persistence a crash of Redis loses what is not yet in the database";
            let advice = "Nothing is ever doubled. If no hit may be lost, set appendonly yes.";
            Some(Finding::new(Severity::Warning, subject, message, advice))
        }
    }
}

type Info = HashMap<String, String>;

/// A section of INFO, of each node that answers.
async fn info<C: ConnectionLike + Clone + 'static>(redis: &C, section: &str) -> Result<Vec<Info>> {
    let mut command = ::redis::cmd("INFO");
    command.arg(section);
    let answer: Value = script::query(redis, &command).await?;
    let mut texts = Vec::new();
    collect_texts(answer, &mut texts);
    let parse = |text: String| {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
    };
    // a cluster connection answers pairs of node and text
    Ok(texts.into_iter().filter(|text| text.contains('\n')).map(parse).collect())
}

fn collect_texts(value: Value, texts: &mut Vec<String>) {
    match value {
        Value::BulkString(bytes) => texts.push(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => texts.push(text),
        Value::Array(values) => values.into_iter().for_each(|value| collect_texts(value, texts)),
        Value::Map(pairs) => pairs.into_iter().for_each(|(_, value)| collect_texts(value, texts)),
        _ => {}
    }
}

/// A setting that INFO does not show; `None` where the server does not show it either.
async fn config<C: ConnectionLike + Clone + 'static>(redis: &C, name: &str) -> Option<String> {
    let mut command = ::redis::cmd("CONFIG");
    command.arg("GET").arg(name);
    let mut found: HashMap<String, String> = script::query(redis, &command).await.ok()?;
    found.remove(name)
}

//! The search of Redis for families, by commands: for all while MySQL is unavailable, and for those
//! with hits that wait for the database.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil::Connection;
use counterfoil::redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use counterfoil::redis::{Cmd, RedisResult, Value, cmd, from_redis_value};
use tokio::time::sleep;

/// The key that the first call in a family creates (docs/protocol.md, section 2).
const CALLS: &str = "calls";
/// The keys of which one exists in a partition while hits wait.
const WAITING: [&str; 2] = ["buffer", "batch"];
/// The approximate number of keys that one call checks, in a fraction of a millisecond.
const COUNT: u32 = 1000;
/// The pause between two calls, which gives other clients their turn.
const PAUSE: Duration = Duration::from_millis(5);

/// A primary of a cluster, or the only server.
pub type Node = Option<(String, u16)>;

/// Returns the servers that hold keys.
pub async fn nodes(redis: &Connection) -> RedisResult<Vec<Node>> {
    let Some(cluster) = redis.as_cluster() else {
        return Ok(vec![None]);
    };
    let slots: Vec<Vec<Value>> = cmd("CLUSTER")
        .arg("SLOTS")
        .query_async(&mut cluster.current())
        .await?;
    let primary = |range: Vec<Value>| {
        let node: Vec<Value> = from_redis_value(range.into_iter().nth(2)?).ok()?;
        let mut node = node.into_iter();
        Some((
            from_redis_value(node.next()?).ok()?,
            from_redis_value(node.next()?).ok()?,
        ))
    };
    let primaries = slots
        .into_iter()
        .filter_map(primary)
        .collect::<BTreeSet<_>>();
    Ok(primaries.into_iter().map(Some).collect())
}

/// Sends the command to `node`.
pub async fn ask(redis: &Connection, node: &Node, command: Cmd) -> RedisResult<Value> {
    match (redis.as_cluster(), node.clone()) {
        (Some(cluster), Some((host, port))) => {
            let route = SingleNodeRoutingInfo::ByAddress { host, port };
            let mut cluster = cluster.current();
            cluster
                .route_command(command, RoutingInfo::SingleNode(route))
                .await
        }
        _ => command.query_async(&mut redis.clone()).await,
    }
}

/// Returns the families with counts in Redis, by NAMESPACE/FAMILY.
pub async fn families(redis: &Connection) -> RedisResult<BTreeSet<String>> {
    search(redis, "cf1:{*}:calls", &[CALLS]).await
}

/// Returns the families with hits that wait for the database, by NAMESPACE/FAMILY.
pub async fn waiting(redis: &Connection) -> RedisResult<BTreeSet<String>> {
    search(redis, "cf1:{*}:*", &WAITING).await
}

/// Returns the families with a key of one of these names.
async fn search(
    redis: &Connection,
    pattern: &str,
    names: &[&str],
) -> RedisResult<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for node in nodes(redis).await? {
        let mut cursor = "0".to_owned();
        loop {
            let mut command = cmd("SCAN");
            command
                .arg(&cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(COUNT);
            let page: (String, Vec<Vec<u8>>) = from_redis_value(ask(redis, &node, command).await?)?;
            found.extend(page.1.iter().filter_map(|key| family_of(key, names)));
            cursor = page.0;
            if cursor == "0" {
                break;
            }
            sleep(PAUSE).await;
        }
    }
    Ok(found)
}

/// Returns NAMESPACE/FAMILY of a key `cf1:{NAMESPACE/FAMILY/PARTITION}:NAME` with one of the names.
fn family_of(key: &[u8], names: &[&str]) -> Option<String> {
    let key = std::str::from_utf8(key).ok()?.strip_prefix("cf1:{")?;
    let (partition, name) = key.split_once("}:")?;
    let (family, _number) = partition.rsplit_once('/')?;
    if !names.contains(&name) {
        return None;
    }
    (family.matches('/').count() == 1).then(|| family.to_owned())
}

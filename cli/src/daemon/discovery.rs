//! Namespaces that applications count in, found in Redis: what a family named `shop-*/views` stands for.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil::Primary;
use counterfoil::redis::cluster_async::ClusterConnection;
use counterfoil::redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use counterfoil::redis::{Cmd, RedisResult, Value, cmd, from_redis_value};
use tokio::time::sleep;

/// The key that the first call in a family makes (docs/protocol.md, section 2).
const CALLS: &str = "cf1:{*}:calls";
/// About how many keys a call looks at: a fraction of a millisecond.
const COUNT: u32 = 1000;
/// Between two calls, so that others come in between.
const PAUSE: Duration = Duration::from_millis(5);

/// Where keys are looked for: each node knows its own.
pub trait Nodes: Send + Sync {
    /// What a node is known by.
    type Node: Send + Sync;

    fn nodes(&self) -> impl Future<Output = RedisResult<Vec<Self::Node>>> + Send;

    fn ask(&self, node: &Self::Node, command: Cmd) -> impl Future<Output = RedisResult<Value>> + Send;
}

impl Nodes for Primary {
    type Node = ();

    async fn nodes(&self) -> RedisResult<Vec<()>> {
        Ok(vec![()])
    }

    async fn ask(&self, (): &(), command: Cmd) -> RedisResult<Value> {
        command.query_async(&mut self.clone()).await
    }
}

impl Nodes for ClusterConnection {
    type Node = (String, u16);

    /// Those that hold slots.
    async fn nodes(&self) -> RedisResult<Vec<(String, u16)>> {
        let slots: Vec<Vec<Value>> = cmd("CLUSTER").arg("SLOTS").query_async(&mut self.clone()).await?;
        let primary = |range: Vec<Value>| {
            let node: Vec<Value> = from_redis_value(range.into_iter().nth(2)?).ok()?;
            let mut node = node.into_iter();
            Some((from_redis_value(node.next()?).ok()?, from_redis_value(node.next()?).ok()?))
        };
        Ok(slots.into_iter().filter_map(primary).collect::<BTreeSet<_>>().into_iter().collect())
    }

    async fn ask(&self, (host, port): &(String, u16), command: Cmd) -> RedisResult<Value> {
        let route = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port };
        self.clone().route_command(command, RoutingInfo::SingleNode(route)).await
    }
}

/// The namespaces and families that anything was counted in.
pub async fn families(redis: &impl Nodes) -> RedisResult<BTreeSet<(String, String)>> {
    let mut found = BTreeSet::new();
    for node in redis.nodes().await? {
        let mut cursor = "0".to_owned();
        loop {
            let mut command = cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(CALLS).arg("COUNT").arg(COUNT);
            let page: (String, Vec<Vec<u8>>) = from_redis_value(redis.ask(&node, command).await?)?;
            found.extend(page.1.iter().filter_map(|key| family_of(key)));
            cursor = page.0;
            if cursor == "0" {
                break;
            }
            sleep(PAUSE).await;
        }
    }
    Ok(found)
}

/// `cf1:{NAMESPACE/FAMILY/PARTITION}:calls`
fn family_of(key: &[u8]) -> Option<(String, String)> {
    let tag = std::str::from_utf8(key).ok()?.strip_prefix("cf1:{")?.strip_suffix("}:calls")?;
    let mut parts = tag.split('/');
    let found = (parts.next()?.to_owned(), parts.next()?.to_owned());
    parts.next().filter(|_| parts.next().is_none())?;
    Some(found)
}

//! Commands on a cluster.

use counterfoil::admin::Script;
use testkit::{RedisCluster, RedisOptions};

use super::FAMILIES;
use crate::support::Site;

#[tokio::test]
async fn commands_reach_all_primaries_of_a_cluster() {
    let cluster = RedisCluster::start(RedisOptions::aof("always")).await;
    let site = Site::new().await;
    let (nodes, mysql) = (cluster.urls(), &site.mysql_url);
    let pair = format!(
        "listen = \"127.0.0.1:0\"\n[pair.main]\ncluster = {nodes:?}\nmysql = {mysql:?}\ndurability = \"immediate\"\n"
    );
    site.write(&format!("{pair}{FAMILIES}"));
    site.printed(&["scripts", "load"]).await;
    for node in cluster.primaries().await {
        for script in Script::all() {
            let asked = cluster
                .node(node)
                .run::<Vec<bool>>(&format!("SCRIPT EXISTS {}", script.sha1))
                .await;
            assert_eq!(
                asked.expect("asked"),
                [true],
                "{} on node {node}",
                script.name
            );
        }
    }
    for id in 0..12 {
        site.printed(&["add", "shop/views", &id.to_string()]).await;
        site.printed(&["add", "tenant-3/views", &id.to_string()])
            .await;
    }
    assert_eq!(
        site.json(0, &["status"]).await[0]["families"][0]["pending"],
        12
    );
    assert_eq!(
        site.printed(&["list", "shop/views"]).await.lines().count(),
        12
    );
    site.printed(&["drain"]).await;
    assert_eq!(
        site.number("SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values")
            .await,
        24
    );
    assert!(
        site.printed(&["acl", "daemon"])
            .await
            .contains("+cluster|slots")
    );

    // while a node is dead, the log has the daemon's messages and not those of each attempt
    let daemon = site.daemon().await;
    daemon.logs(&["started"]).await;
    let primary = cluster.primaries().await[0];
    let replica = cluster.replica_of(primary).await;
    cluster.node(replica).kill();
    cluster.node(primary).kill();
    daemon.logs(&["fails, will retry"]).await;
    assert_eq!(daemon.lines(&["redis::"]), 0, "{}", daemon.log());
}

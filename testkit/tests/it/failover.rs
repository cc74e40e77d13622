//! Tests of failover: replicas, sentinels and clusters.

use std::time::Duration;

use testkit::{RedisCluster, RedisOptions, RedisServer, Sentinel};

#[tokio::test]
async fn a_sentinel_promotes_the_replica() {
    let options = RedisOptions::volatile().tcp();
    let (primary, replica) = tokio::join!(
        RedisServer::start(options.clone()),
        RedisServer::start(options)
    );
    primary.run::<()>("SET key kept").await.unwrap();
    replica.replica_of(&primary).await;
    assert!(primary.is_primary().await && !replica.is_primary().await);
    assert_eq!(replica.run::<String>("GET key").await.unwrap(), "kept");
    let sentinel = Sentinel::start(&primary).await;
    assert_eq!(sentinel.primary_url().await, primary.tcp_url());
    primary.kill();
    sentinel.wait_promoted(&replica).await;
    replica.run::<()>("SET key changed").await.unwrap();
}

/// Returns the slot of a key, as the cluster reports it.
async fn slot(cluster: &RedisCluster, key: &str) -> u16 {
    cluster
        .node(0)
        .run(&format!("CLUSTER KEYSLOT {key}"))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_cluster_starts_moves_slots_and_fails_over() {
    let cluster =
        RedisCluster::start(RedisOptions::aof("always").arg("cluster-require-full-coverage", "no"))
            .await;
    assert_eq!(cluster.urls().len(), cluster.size());
    assert_eq!(cluster.primaries().await, [0, 1, 2]);
    let coverage: Vec<String> = cluster
        .node(4)
        .run("CONFIG GET cluster-require-full-coverage")
        .await
        .unwrap();
    assert_eq!(coverage[1], "no");

    // two keys of one slot move
    let at = slot(&cluster, "{page}").await;
    let from = cluster.primary_of_slot(at).await;
    let to = (from + 1) % 3;
    for key in ["{page}:a", "{page}:b"] {
        cluster
            .node(from)
            .run::<()>(&format!("SET {key} kept"))
            .await
            .unwrap();
    }
    let moving = cluster.move_slots(at..=at, to, Duration::from_millis(300));
    let half_moved = async {
        let both = "MGET {page}:a {page}:b";
        while cluster.node(from).run::<Vec<String>>(both).await.is_ok() {}
        cluster
            .node(from)
            .run::<Vec<String>>(both)
            .await
            .unwrap_err()
    };
    let ((), refused) = tokio::join!(moving, half_moved);
    // Redis 6 redirects the client to the other node, which then replies TRYAGAIN
    assert!(
        matches!(refused.code(), Some("TRYAGAIN" | "ASK")),
        "{refused}"
    );
    assert_eq!(cluster.primary_of_slot(at).await, to);
    assert_eq!(
        cluster
            .node(to)
            .run::<String>("GET {page}:a")
            .await
            .unwrap(),
        "kept"
    );
    cluster.wait_until_ok().await;

    // a failover without loss
    let replica = cluster.replica_of(to).await;
    assert_eq!(replica, to + 3);
    cluster.failover(replica).await;
    assert_eq!(cluster.primary_of_slot(at).await, replica);
    cluster.wait_until_ok().await;
    assert_eq!(cluster.replica_of(replica).await, to);

    // a failover after a kill; the killed node returns as a replica
    cluster.node(replica).kill();
    cluster.wait_promoted(to).await;
    assert_eq!(
        cluster
            .node(to)
            .run::<String>("GET {page}:b")
            .await
            .unwrap(),
        "kept"
    );
    cluster.node(replica).start_again().await;
    cluster.wait_until_ok().await;
    assert_eq!(cluster.primary_of_slot(at).await, to);
    assert_eq!(cluster.replica_of(to).await, replica);
}

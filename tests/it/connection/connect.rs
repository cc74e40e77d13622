//! The connections that an application can pass in: refused ones, their calls, and their recovery.

use std::os::unix::fs::symlink;

use super::{Clustered, builder, connect};
use counterfoil::admin::Finding;
use counterfoil::test_hooks::Partition;
use redis::Value;
use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;
use redis::cluster_read_routing::RandomReplicaStrategy;

use crate::support::*;

/// Starts a cluster, and opens a family in it.
async fn clustered(options: RedisOptions) -> (Clustered, BufferedCounters) {
    let rig = Clustered::start(options).await;
    let views = rig.open(family("views").partitions(12)).await;
    (rig, views)
}

/// Repeats a hit until it is counted. Returns the time that it took.
async fn count_until_counted(counters: &BufferedCounters, id: &str) -> Duration {
    let started = Instant::now();
    loop {
        match counters.add(id, 1).await {
            Ok(Counted(_)) => return started.elapsed(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(started.elapsed() < secs(40), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn the_builder_creates_tables_only_on_request_and_needs_both_servers() {
    let (server, mysql) = (new_redis().await, mysql().await);
    let (redis, url) = (server.url(), mysql.url(&mysql.database("shop").await.0));
    let builder = Counterfoil::builder;
    let bare = builder().redis(&*redis).mysql(&url).connect().await;
    refused(bare.unwrap().open(family("views")).await, Mismatch, "");
    for (half, missing) in [
        (builder().redis(&*redis), "mysql is required"),
        (builder().mysql(&url), "redis is required"),
        (builder().redis("http://localhost").mysql(&url), "Redis URL"),
    ] {
        refused(half.connect().await, InvalidInput, missing);
    }
}

#[tokio::test]
async fn a_cluster_is_checked_node_by_node() {
    let rig = Clustered::start(RedisOptions::aof("everysec")).await;
    let _views = rig.open(Family::buffered("shop", "views")).await;
    let findings = rig.counterfoil.check().await;
    has_no_errors(&findings);
    let persistence = findings.iter().map(|finding| &finding.subject);
    assert_eq!(
        persistence
            .filter(|subject| subject.ends_with("persistence"))
            .count(),
        3,
        "{findings:?}"
    );
    // one node has other settings
    let other = rig.cluster.node(1);
    for setting in ["maxmemory-policy allkeys-lru", "appendfsync no"] {
        let set = format!("CONFIG SET {setting}");
        other.does(&set).await;
    }
    let findings = rig.counterfoil.check().await;
    let is_bad = |finding: &&Finding| {
        finding.severity > Severity::Info && finding.subject.starts_with("redis")
    };
    let bad: Vec<_> = findings.iter().filter(is_bad).collect();
    assert_eq!(bad.len(), 2, "{findings:?}");
    let address = format!("127.0.0.1:{}", other.port());
    assert!(
        bad.iter().all(|finding| finding.subject.contains(&address)),
        "{bad:?}"
    );
    refused(rig.counterfoil.reconciler().start().await, Unsafe, "");
    // a connection that sees a third of the cluster
    let findings = rig.over(rig.cluster.node(0).manager().await).check().await;
    assert!(
        findings
            .iter()
            .any(|finding| finding.subject == "redis cluster"),
        "{findings:?}"
    );
}

#[tokio::test]
async fn a_check_names_a_primary_whose_replicas_are_missing() {
    let plain = Plain::new().await;
    has_no_errors(&plain.check().await);
    plain.redis.does("CONFIG SET min-replicas-to-write 1").await;
    let findings = plain.check().await;
    assert_found(
        &findings,
        Severity::Error,
        &["redis writes", "min-replicas"],
    );
}

#[tokio::test]
async fn replicas_are_not_read_even_by_a_client_that_would() {
    const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let rig = Clustered::start(RedisOptions::volatile()).await;
    let send = async |redis: &mut Cluster, command: &str| {
        for key in KEYS {
            let _: u64 = cmd(command).arg(key).query_async(redis).await.unwrap();
        }
    };
    // a cluster does not list a replica without data
    let first = connect(builder(&rig.cluster)).await;
    eventually("all slots have a replica", async || {
        send(&mut first.clone(), "INCR").await;
        let mut slots = vec![];
        for primary in 0..3 {
            slots.extend::<Vec<Vec<Value>>>(
                rig.cluster
                    .node(primary)
                    .run("CLUSTER SLOTS")
                    .await
                    .unwrap(),
            );
        }
        slots.iter().all(|slot| slot.len() == 4)
    })
    .await;
    let mut redis =
        connect(builder(&rig.cluster).read_routing_strategy(RandomReplicaStrategy)).await;
    let counterfoil = rig.over(redis.clone());
    let views = family("views").partitions(12);
    let views = counterfoil.opened(views).await;
    for number in 0..50 {
        let id = format!("page/{number}");
        views.count(&id, 1).await;
        assert_eq!(views.value(&id).await, 1);
    }
    assert_eq!(views.list("page/", None, 100).await.unwrap().len(), 50);
    counterfoil.drained().await;
    assert_eq!(rig.stored("%").await, 50);
    let calls = async || {
        let mut calls = 0;
        for replica in 3..6 {
            for command in ["eval", "evalsha", "exists", "hscan"] {
                calls += crate::support::calls(rig.cluster.node(replica), command).await;
            }
        }
        calls
    };
    assert_eq!(calls().await, 0);
    // only a plain command goes there
    send(&mut redis, "EXISTS").await;
    assert!(calls().await > 0);
}

#[tokio::test]
async fn scripts_are_loaded_again_while_a_replica_is_unreachable() {
    let (rig, views) = clustered(RedisOptions::volatile()).await;
    rig.cluster.node(3).kill();
    for number in 0..50 {
        if number % 10 == 0 {
            for primary in 0..3 {
                let flush = rig.cluster.node(primary).run::<()>("SCRIPT FLUSH");
                flush.await.unwrap();
            }
        }
        views.count(&format!("page/{number}"), 1).await;
    }
    rig.drain().await;
    assert_eq!(rig.stored("%").await, 50);
}

#[tokio::test]
async fn a_primary_that_is_silent_is_replaced() {
    let (rig, views) = clustered(RedisOptions::volatile()).await;
    let ids = pages(50);
    for id in &ids {
        views.count(id, 1).await;
    }
    // a call waits less than the connection does for a reply
    let views = views.write_timeout(millis(200));
    let replica = rig.cluster.replica_of(0).await;
    rig.cluster.node(0).pause();
    let took = join_all(ids.iter().map(|id| count_until_counted(&views, id))).await;
    assert!(took.iter().all(|took| *took < secs(20)));
    rig.cluster.wait_promoted(replica).await;
    rig.cluster.node(0).resume();
}

/// Connections break while a node sends MOVED, until the redis crate's cluster connection waits for
/// a lock of its own: no call over it has a reply any more.
#[tokio::test]
async fn a_cluster_connection_that_stops_for_good_is_replaced() {
    let rig = Clustered::start(RedisOptions::volatile()).await;
    let redis = connect(builder(&rig.cluster)).await;
    let views = rig.over(redis.clone()).opened(family("views")).await;
    let stopping = redis.current();
    let send = async |command: &Cmd| -> RedisResult<Value> {
        command.query_async(&mut stopping.clone()).await
    };
    let answers = async || {
        let moved = "return redis.error_reply('MOVED to another node')";
        let replies = (0..64).map(async |key| {
            let _ = send(cmd("EVAL").arg(moved).arg(0)).await;
            send(cmd("EXISTS").arg(key)).await
        });
        join_all(replies).await.iter().any(Result::is_ok)
    };
    let started = Instant::now();
    while answers().await || answers().await {
        assert!(started.elapsed() < secs(60), "it does not stop");
        for node in 0..3 {
            rig.cluster.node(node).does("CLIENT KILL TYPE normal").await;
        }
    }
    assert!(count_until_counted(&views, "page").await < secs(10));
    assert_eq!(views.value("page").await, 1);
}

#[tokio::test]
async fn sentinel_names_the_new_primary() {
    for silently in [false, true] {
        let (first, second) = two().await;
        let (sentinel, pair) = (Sentinel::start(&first).await, Pair::new().await);
        let url = sentinel.url();
        let redis = Primary::connect_sentinel([url.as_str()], "redis://primary");
        let counterfoil = pair.over(redis.await.unwrap());
        let views = counterfoil.opened(family("views")).await;
        views.count("page", 1).await;
        if silently {
            first.pause();
            // Sentinel names it, until it has noticed; connecting to it would take the whole time
            let timeouts = PrimaryTimeouts {
                connect: secs(20),
                ..PrimaryTimeouts::default()
            };
            let sentinels = [url.as_str()];
            let redis = Primary::connect_sentinel_with(sentinels, "redis://primary", timeouts);
            redis.await.unwrap();
        } else {
            first.kill()
        }
        count_until_counted(&views, "page").await;
        assert!(second.is_primary().await);
        if silently {
            first.resume();
        }
    }
    for (sentinels, kind) in [
        (vec!["redis://127.0.0.1:1"], ErrorKind::Redis),
        (vec![], InvalidInput),
    ] {
        assert_eq!(
            Primary::connect_sentinel(sentinels, "redis://primary")
                .await
                .unwrap_err()
                .kind(),
            kind
        );
    }
}

/// Sentinel demotes a primary that it replaced only some ten seconds later.
#[tokio::test]
async fn a_primary_that_sentinel_replaced_is_left_although_it_accepts_writes() {
    let ((first, second), (third, _fourth)) = tokio::join!(two(), two());
    let (sentinel, late) = (Sentinel::start(&first).await, Sentinel::start(&third).await);
    let (url, plain) = (sentinel.url(), Plain::new().await);
    let redis = Primary::connect_sentinel([url.as_str()], "redis://primary").await;
    let views = plain.over(redis.unwrap()).opened(family("views")).await;
    views.count("page", 1).await;
    sentinel.fail_over().await;
    sentinel.wait_promoted(&second).await;
    eventually("hits reach the new primary", async || {
        views.count("page", 1).await;
        calls(&second, "evalsha").await > 0
    })
    .await;
    assert!(first.is_primary().await, "it was left when it was demoted");

    // a Sentinel that is silent, for longer than a primary may be
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sentinels = [
        format!("redis://{}", silent.local_addr().unwrap()),
        url.clone(),
    ];
    let short = PrimaryTimeouts {
        connect: millis(200),
        response: millis(200),
    };
    let redis = Primary::connect_sentinel_with(sentinels, "redis://primary", short);
    redis.await.unwrap();

    // a Sentinel that has not heard of the failover
    for sentinels in [[late.url(), url.clone()], [url, late.url()]] {
        let redis = Primary::connect_sentinel(sentinels, "redis://primary").await;
        let info: String = cmd("INFO").query_async(&mut redis.unwrap()).await.unwrap();
        let port = format!("tcp_port:{}\r", second.port());
        assert!(info.contains(&port), "{info}");
    }
}

/// Starts a primary and its replica.
async fn two() -> (RedisServer, RedisServer) {
    let first = RedisServer::start(RedisOptions::volatile().tcp()).await;
    let second = RedisServer::start(RedisOptions::volatile().tcp()).await;
    second.replica_of(&first).await;
    (first, second)
}

/// Waits until the replica has one of these keys, and promotes it.
async fn promote(replica: &RedisServer, keys: &str) {
    eventually("the replica has it", async || {
        let found: Vec<String> = replica.run(&format!("KEYS {keys}")).await.unwrap();
        !found.is_empty()
    })
    .await;
    replica.does("REPLICAOF NO ONE").await;
}

/// A name that moves from one server to another.
struct Name(tempfile::TempDir);

impl Name {
    fn of(server: &RedisServer) -> Name {
        let name = Name(tempfile::tempdir_in("/tmp").unwrap());
        symlink(server.socket(), name.path()).unwrap();
        name
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("redis.sock")
    }

    fn move_to(&self, server: &RedisServer) {
        fs::remove_file(self.path()).unwrap();
        symlink(server.socket(), self.path()).unwrap();
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.path().display())
    }
}

/// The replica is promoted and the old primary demoted, as in a manual failover.
#[tokio::test]
async fn a_name_moves_with_a_failover() {
    let ((first, second), pair) = (two().await, Pair::new().await);
    let name = Name::of(&first);
    let counterfoil = pair.over(Primary::connect(name.url()).await.unwrap());
    let views = counterfoil.opened(family("views")).await;
    views.count("page", 1).await;
    promote(&second, "*:buffer").await;
    name.move_to(&second);
    first.replica_of(&second).await;
    let took = count_until_counted(&views, "page").await;
    assert_eq!(views.value("page").await, 2);
    counterfoil.drained().await;
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(2)]);
    assert!(took < secs(2), "{took:?}");
}

/// Nothing is refused there that would show that the server is a replica now.
#[tokio::test]
async fn a_process_that_only_reads_leaves_a_demoted_server() {
    let ((first, second), plain) = (two().await, Plain::new().await);
    let name = Name::of(&first);
    let rules = acl_rules(&[votes().build().unwrap()], Role::Reconciler).join(" ");
    for server in [&first, &second] {
        let user = format!("ACL SETUSER app on >secret {rules}");
        server.does(&user).await;
    }
    let opened = async || {
        let url = format!("{}?user=app&pass=secret", name.url());
        let redis = Primary::connect(url).await.unwrap();
        plain.over(redis).opened(votes()).await
    };
    let (counting, reading) = (opened().await, opened().await);
    counting.count("item", 1).await;
    assert_eq!(reading.value("item").await, 1);
    promote(&second, "*:base").await;
    name.move_to(&second);
    // it does not reach its primary, and so stays as it is
    first.does("REPLICAOF 127.0.0.1 1").await;
    counting.count("item", 1).await;
    eventually("the new value", async || reading.value("item").await == 2).await;
}

/// A connection sends a number of commands to one server, and all later ones to another.
#[tokio::test]
async fn a_failover_between_two_pages_of_a_batch_loses_none_of_it() {
    let (first, second) = two().await;
    let mut servers = vec![];
    for server in [&first, &second] {
        servers.push(
            server
                .client()
                .get_multiplexed_async_connection()
                .await
                .unwrap(),
        );
    }
    let left = Arc::new(AtomicUsize::new(1000));
    let moving = custom({
        let left = left.clone();
        move |cmd| {
            let order = Ordering::Relaxed;
            let mut server = servers[usize::from(
                left.fetch_update(order, order, |left| left.checked_sub(1))
                    .is_err(),
            )]
            .clone();
            async move { server.req_packed_command(&cmd).await }
        }
    });
    let family = family("views").partitions(1).build().unwrap();
    let partition = Partition::new(moving, &family, 0);
    let ids = pages(2000);
    for ids in ids.chunks(1000) {
        partition
            .add(
                &family,
                partition.unfenced(),
                1000,
                ids.iter().map(|id| (id.as_str(), 1)),
            )
            .await
            .unwrap();
    }
    let RotateReply::Batch(batch) = partition.rotate(&family, "", None, Cut::Now).await.unwrap()
    else {
        panic!("there is a batch")
    };
    promote(&second, "*:batch").await;
    for calls in 1..10 {
        left.store(calls, Ordering::Relaxed);
        match partition
            .fetch(batch.id, Duration::ZERO, 100)
            .await
            .unwrap()
        {
            FetchReply::Deltas(deltas) => assert_eq!(deltas.len(), 2000, "after {calls} calls"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_replica_is_not_connected_to() {
    let (_first, second) = two().await;
    refused(
        Primary::connect(second.tcp_url()).await,
        ErrorKind::Redis,
        "replica",
    );
}

#[tokio::test]
async fn a_server_that_is_silent_is_left() {
    // also if calls wait less than the connection does for a reply
    for limit in [secs(5), millis(200)] {
        let ((first, second), pair) = (two().await, Pair::new().await);
        let name = Name::of(&first);
        let views = pair
            .over(Primary::connect(name.url()).await.unwrap())
            .opened(family("views"))
            .await;
        views.count("page", 1).await;
        promote(&second, "*:buffer").await;
        first.pause();
        name.move_to(&second);
        let took = count_until_counted(&views.write_timeout(limit), "page").await;
        assert!(took < secs(5), "{took:?}");
        first.resume();
    }
}

#[tokio::test]
async fn an_unreachable_cluster_is_named_as_such() {
    let nowhere = ClusterClient::builder(["redis://127.0.0.1:1"]).build();
    refused(
        Cluster::connect(nowhere.unwrap()).await,
        ErrorKind::Redis,
        "is unreachable",
    );
}

#[tokio::test]
async fn an_unreachable_redis_counts_nothing() {
    let pair = Pair::new().await;
    let views = pair
        .over(Primary::connect(pair.redis.url()).await.unwrap())
        .opened(family("views"))
        .await;
    let views = views.write_timeout(millis(500));
    views.count("page", 1).await;
    pair.redis.kill();
    // a call over the broken connection may have arrived
    let _ = views.add("page", 1).await.unwrap_err();
    let error = views.add("page", 1).await.unwrap_err();
    assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
}

/// A server that is too busy to connect within a second, and then to reply. Other limits suit other
/// servers.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_limits_of_a_busy_server() {
    let redis = new_redis().await;
    let proxy = Proxy::to(&redis);
    proxy.delay_replies(millis(1100));
    Primary::connect(proxy.url()).await.unwrap();
    let pair = async |connect, response| {
        let timeouts = PrimaryTimeouts { connect, response };
        let pair = Counterfoil::builder().redis(proxy.url());
        let pair = pair
            .redis_timeouts(timeouts)
            .mysql("mysql://nobody@127.0.0.1:1/none");
        pair.start_without_mysql(true).connect().await
    };
    let impatient = pair(millis(300), secs(9)).await;
    refused(impatient, ErrorKind::Redis, "timed out");
    let patient = pair(secs(9), secs(9)).await.unwrap();
    let ping = async |pair: &Counterfoil| -> RedisResult<String> {
        cmd("PING").query_async(&mut pair.redis().clone()).await
    };
    proxy.delay_replies(millis(2500));
    assert_eq!(ping(&patient).await.unwrap(), "PONG");
    proxy.delay_replies(Duration::ZERO);
    let impatient = pair(secs(9), secs(1)).await.unwrap();
    assert_eq!(ping(&impatient).await.unwrap(), "PONG");
    proxy.delay_replies(millis(2500));
    let late = ping(&impatient).await.unwrap_err();
    assert!(late.is_timeout(), "{late}");
}

#[tokio::test]
async fn a_url_with_an_unknown_parameter_is_refused() {
    let redis = new_redis().await;
    for (url, words) in [
        (
            "mysql://nobody@127.0.0.1:1/none?ssl-mod=REQUIRED",
            "unknown parameter \"ssl-mod\"",
        ),
        (
            "mysql://nobody@127.0.0.1:1/none?charset=utf8mb4&x=y#z",
            "unknown parameter \"x\"",
        ),
        // a password with a question mark
        (
            "mysql://nobody:1?ret@127.0.0.1/none",
            "unknown parameter \"\"",
        ),
        ("postgres://nobody@127.0.0.1:1/none", "not mysql://"),
        // nothing would ever reach the database
        ("mysql://nobody@127.0.0.1:1", "name no database"),
        (
            "mysql://nobody@127.0.0.1:1/?ssl-mode=DISABLED",
            "name no database",
        ),
    ] {
        let pair = Counterfoil::builder().redis(redis.url()).mysql(url);
        refused(pair.connect().await, InvalidInput, words);
        refused(MysqlStore::new(url), InvalidInput, words);
    }
    let known = "mysql://nobody@127.0.0.1:1/none?sslmode=DISABLED&charset=utf8mb4";
    MysqlStore::new(known).unwrap();
    let options =
        counterfoil::IntoMysqlOptions::into_mysql_options("mysql://nobody@[::1]:1/none").unwrap();
    assert_eq!(options.get_host(), "::1");
}

#[tokio::test]
async fn a_database_that_never_replies_is_reported() {
    let redis = new_redis().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let started = Instant::now();
    let pair = Counterfoil::builder().redis(redis.url());
    let pair = pair.mysql(format!("mysql://nobody@127.0.0.1:{port}/none"));
    refused(pair.connect().await, ErrorKind::Store, "deadline");
    assert!(started.elapsed() < secs(8), "{:?}", started.elapsed());
}

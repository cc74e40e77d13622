//! The connections that an application can pass in: refused ones, their calls, and their recovery.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Pair, eventually, family};
use counterfoil::admin::{Finding, Severity};
use counterfoil::test_hooks::{Cut, FetchReply, Partition, RotateReply};
use counterfoil::{
    BufferedCounters, Connection, Counterfoil, ErrorKind, Family, MysqlStore, Outcome, Primary,
    cluster_settings,
};
use futures_util::future::join_all;
use redis::aio::{
    ConnectionLike, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection,
};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_read_routing::RandomReplicaStrategy;
use redis::{Cmd, Pipeline, RedisFuture, Value};
use testkit::{Held, MysqlServer, Proxy, RedisCluster, RedisOptions, RedisServer, Sentinel};
use tokio::time::sleep;

const OWN: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";

fn builder(cluster: &RedisCluster) -> ClusterClientBuilder {
    ClusterClient::builder(cluster.urls())
}

async fn connect(cluster: &RedisCluster) -> ClusterConnection {
    cluster_settings(builder(cluster))
        .build()
        .unwrap()
        .get_async_connection()
        .await
        .unwrap()
}

fn pair_of(redis: impl Into<Connection>, pair: &Pair) -> Counterfoil {
    Counterfoil::new(redis, MysqlStore::new(pair.pool.clone()))
}

/// Repeats a hit until one is counted. Returns the time that it took, and the number of counted
/// hits.
async fn count_until_counted(counters: &BufferedCounters, id: &str) -> (Duration, i64) {
    let started = Instant::now();
    loop {
        match counters.add(id, 1).await {
            Ok(Outcome::Counted(_)) => return (started.elapsed(), 1),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                eprintln!("{:?}: {error:?}", started.elapsed());
                assert!(started.elapsed() < Duration::from_secs(40), "{error}");
            }
        }
    }
}

/// A client may resend a call any number of times: the scripts recognize a repeat.
#[tokio::test]
async fn a_client_may_resend() {
    let (cluster, pair) = (
        RedisCluster::start(RedisOptions::volatile()).await,
        Pair::new().await,
    );
    for (round, settings) in [
        builder(&cluster),
        builder(&cluster).retries(1),
        cluster_settings(builder(&cluster)),
    ]
    .into_iter()
    .enumerate()
    {
        let counterfoil = pair_of(
            settings
                .build()
                .unwrap()
                .get_async_connection()
                .await
                .unwrap(),
            &pair,
        );
        let views = counterfoil.open(family("views")).await.unwrap();
        for number in 0..20 {
            assert_eq!(
                views.add(&format!("page/{number}"), 1).await.unwrap(),
                Outcome::Counted(1)
            );
        }
        counterfoil.drain().await.unwrap();
        assert_eq!(pair.number(OWN).await, 20 * (round as i64 + 1));
    }
}

/// Only the refusal of keys in several slots shows that this connection leads to a cluster.
#[tokio::test]
async fn a_cluster_is_found_out() {
    let (cluster, pair) = (
        RedisCluster::start(RedisOptions::volatile()).await,
        Pair::new().await,
    );
    let counterfoil = pair_of(Wrapped(connect(&cluster).await), &pair);
    let views = counterfoil.open(family("views")).await.unwrap();
    let hits: Vec<_> = (0..100)
        .map(|number| (format!("page/{number}"), 1))
        .collect();
    for added in views.add_many(hits.clone()).await {
        assert_eq!(added.unwrap(), Outcome::Counted(1));
    }
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 100);
}

/// A call for several partitions is executed and its reply is lost. When it is repeated, no node
/// accepts it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_becomes_a_cluster_in_the_middle_of_a_call_counts_once() {
    let pair = Pair::with(RedisOptions::aof("always").tcp()).await;
    let proxy = Proxy::to(&pair.redis);
    let views = pair_of(proxy.manager().await, &pair)
        .open(family("views"))
        .await
        .unwrap();
    let hits: Vec<_> = (0..20)
        .map(|number| (format!("page/{number}"), 1))
        .collect();
    // from here on the epoch is known
    assert_eq!(views.add("page", 1).await.unwrap(), Outcome::Counted(1));
    let mut redis = pair.redis.manager().await;
    let mut executed = async || {
        let mut ask = redis::pipe();
        for partition in 0..4 {
            ask.hlen(format!("cf1:{{test/views/{partition}}}:buffer"));
        }
        ask.query_async::<Vec<usize>>(&mut redis)
            .await
            .unwrap()
            .iter()
            .sum::<usize>()
            == 1 + hits.len()
    };
    proxy.delay_replies(Duration::from_secs(2));
    let counting = tokio::spawn({
        let (views, hits) = (views.clone(), hits.clone());
        async move { views.add_many(hits).await }
    });
    while !executed().await {
        sleep(Duration::from_millis(5)).await;
    }
    proxy.black_hole();
    pair.redis.start_again_as_cluster().await;
    proxy.delay_replies(Duration::ZERO);
    proxy.heal(Held::Lost);
    for added in counting.await.unwrap() {
        assert_eq!(added.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    }
    eventually("the cluster takes calls", || async {
        pair.redis
            .run::<String>("CLUSTER INFO")
            .await
            .unwrap()
            .contains("cluster_state:ok")
    })
    .await;
    for added in views.add_many(hits.clone()).await {
        assert_eq!(added.unwrap(), Outcome::Counted(2));
    }
}

/// A connection type of the application.
#[derive(Clone)]
struct Wrapped(ClusterConnection);

impl From<Wrapped> for counterfoil::Connection {
    fn from(connection: Wrapped) -> Self {
        counterfoil::Connection::custom(connection)
    }
}

impl ConnectionLike for Wrapped {
    fn req_packed_command<'a>(
        &'a mut self,
        cmd: &'a redis::Cmd,
    ) -> redis::RedisFuture<'a, redis::Value> {
        self.0.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> redis::RedisFuture<'a, Vec<redis::Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

#[tokio::test]
async fn the_builder_creates_tables_only_where_it_is_told_to() {
    let (redis, mysql) = (
        RedisServer::start(RedisOptions::volatile()).await,
        MysqlServer::start().await,
    );
    let (database, _) = mysql.database("shop").await;
    let builder = || {
        Counterfoil::builder()
            .redis(redis.url())
            .mysql(mysql.url(&database))
    };
    let views = || family("views");
    let bare = builder().connect().await.unwrap();
    assert_eq!(
        bare.open(views()).await.unwrap_err().kind(),
        ErrorKind::Mismatch
    );
    let counterfoil = builder().create_tables(true).connect().await.unwrap();
    let counters = counterfoil.open(views()).await.unwrap();
    assert_eq!(counters.add("a", 1).await.unwrap(), Outcome::Counted(1));
    bare.open(views()).await.unwrap();

    for (half, missing) in [
        (
            Counterfoil::builder().redis(redis.url()),
            "mysql is required",
        ),
        (
            Counterfoil::builder().mysql(mysql.url(&database)),
            "redis is required",
        ),
        (builder().redis("http://localhost"), "Redis URL"),
    ] {
        let error = half.connect().await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && format!("{error:#}").contains(missing),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_cluster_is_looked_at_node_by_node() {
    let (cluster, pair) = (
        RedisCluster::start(RedisOptions::aof("everysec")).await,
        Pair::new().await,
    );
    let counterfoil = pair_of(connect(&cluster).await, &pair);
    let _ = counterfoil
        .open(Family::buffered("shop", "views"))
        .await
        .unwrap();
    let findings = counterfoil.check().await;
    assert!(
        findings
            .iter()
            .all(|finding| finding.severity < Severity::Error),
        "{findings:?}"
    );
    let persistence = findings
        .iter()
        .filter(|finding| finding.subject.ends_with("persistence"))
        .count();
    assert_eq!(persistence, 3, "{findings:?}");
    // one node has other settings
    let other = cluster.node(1);
    let _: () = other
        .run("CONFIG SET maxmemory-policy allkeys-lru")
        .await
        .unwrap();
    let _: () = other.run("CONFIG SET appendfsync no").await.unwrap();
    let findings = counterfoil.check().await;
    let is_bad = |finding: &&Finding| {
        finding.severity > Severity::Info && finding.subject.starts_with("redis")
    };
    let bad: Vec<_> = findings.iter().filter(is_bad).collect();
    assert_eq!(bad.len(), 2, "{findings:?}");
    assert!(
        bad.iter().all(|finding| finding
            .subject
            .contains(&format!("127.0.0.1:{}", other.port()))),
        "{bad:?}"
    );
    let error = counterfoil.reconciler().start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsafe);
    // a connection that sees a third of the cluster
    let alone = pair_of(cluster.node(0).manager().await, &pair);
    let findings = alone.check().await;
    assert!(
        findings
            .iter()
            .any(|finding| finding.subject == "redis cluster"),
        "{findings:?}"
    );
    let _: () = other
        .run("CONFIG SET maxmemory-policy noeviction")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_drain_does_not_overlook_a_node_that_is_away() {
    let options = RedisOptions::aof("always").arg("cluster-require-full-coverage", "no");
    let (cluster, pair) = (RedisCluster::start(options).await, Pair::new().await);
    let counterfoil = pair_of(connect(&cluster).await, &pair);
    let views = counterfoil
        .open(family("views").partitions(12))
        .await
        .unwrap();
    // the only pending hit is on the first node
    let mut number = 0;
    while cluster
        .node(0)
        .run::<Vec<String>>("KEYS *:buffer")
        .await
        .unwrap()
        .is_empty()
    {
        counterfoil.drain().await.unwrap();
        number += 1;
        let _ = views.add(&format!("page/{number}"), 1).await.unwrap();
    }
    let replica = cluster.replica_of(0).await;
    cluster.node(replica).kill();
    cluster.node(0).kill();
    let away = views.clone().write_timeout(Duration::from_secs(1));
    let error = away.add(&format!("page/{number}"), 0).await.unwrap_err();
    assert!(error.is_retryable() || error.outcome_unknown(), "{error}");
    let drain = tokio::spawn({
        let counterfoil = counterfoil.clone();
        async move { counterfoil.drain().await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!drain.is_finished(), "the hit is not in the database");
    cluster.node(0).start_again().await;
    drain.await.unwrap().unwrap();
    assert_eq!(pair.number(OWN).await, number);
}

#[tokio::test]
async fn replicas_are_not_read_even_by_a_client_that_would() {
    let (cluster, pair) = (
        RedisCluster::start(RedisOptions::volatile()).await,
        Pair::new().await,
    );
    // a cluster does not list a replica without data
    let first = connect(&cluster).await;
    eventually("all slots have a replica", async || {
        for key in ["a", "b", "c", "d", "e", "f"] {
            let _: u64 = redis::cmd("INCR")
                .arg(key)
                .query_async(&mut first.clone())
                .await
                .unwrap();
        }
        let mut slots = Vec::new();
        for primary in 0..3 {
            slots.extend(
                cluster
                    .node(primary)
                    .run::<Vec<Vec<Value>>>("CLUSTER SLOTS")
                    .await
                    .unwrap(),
            );
        }
        slots.iter().all(|slot| slot.len() == 4)
    })
    .await;
    let reading = cluster_settings(builder(&cluster))
        .read_routing_strategy(RandomReplicaStrategy)
        .build()
        .unwrap();
    let mut redis = reading.get_async_connection().await.unwrap();
    let counterfoil = pair_of(redis.clone(), &pair);
    let views = counterfoil
        .open(family("views").partitions(12))
        .await
        .unwrap();
    for number in 0..50 {
        let _ = views.add(&format!("page/{number}"), 1).await.unwrap();
        assert_eq!(views.get(&format!("page/{number}")).await.unwrap(), 1);
    }
    assert_eq!(views.list("page/", None, 100).await.unwrap().len(), 50);
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 50);
    let asked = async || {
        let mut asked = 0;
        for replica in 3..6 {
            let stats: String = cluster
                .node(replica)
                .run("INFO commandstats")
                .await
                .unwrap();
            asked += ["eval", "evalsha", "exists", "hscan"]
                .map(|name| stats.matches(&format!("cmdstat_{name}:")).count())
                .iter()
                .sum::<usize>();
        }
        asked
    };
    assert_eq!(asked().await, 0);
    // only a plain command goes there
    for key in ["a", "b", "c", "d", "e", "f"] {
        let _: u64 = redis::cmd("EXISTS")
            .arg(key)
            .query_async(&mut redis)
            .await
            .unwrap();
    }
    assert!(asked().await > 0);
}

#[tokio::test]
async fn scripts_come_back_while_a_replica_is_away() {
    let (cluster, pair) = (
        RedisCluster::start(RedisOptions::volatile()).await,
        Pair::new().await,
    );
    let counterfoil = pair_of(connect(&cluster).await, &pair);
    let views = counterfoil
        .open(family("views").partitions(12))
        .await
        .unwrap();
    cluster.node(3).kill();
    for number in 0..50 {
        if number % 10 == 0 {
            for primary in 0..3 {
                let _: () = cluster.node(primary).run("SCRIPT FLUSH").await.unwrap();
            }
        }
        let _ = views.add(&format!("page/{number}"), 1).await.unwrap();
    }
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 50);
}

#[tokio::test]
async fn a_slot_that_moves_holds_calls_up_and_loses_nothing() {
    let (cluster, pair) = (
        RedisCluster::start(RedisOptions::volatile()).await,
        Pair::new().await,
    );
    let counterfoil = pair_of(connect(&cluster).await, &pair);
    let views = counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let _ = views.add("page", 1).await.unwrap();
    let slot: u16 = cluster
        .node(0)
        .run("CLUSTER KEYSLOT cf1:{test/views/0}:meta")
        .await
        .unwrap();
    let load = tokio::spawn({
        let views = views.clone();
        async move {
            let (mut counted, mut slowest, started) = (0, Duration::ZERO, Instant::now());
            while started.elapsed() < Duration::from_secs(4) {
                let (took, hits) = count_until_counted(&views, "page").await;
                (counted, slowest) = (counted + hits, slowest.max(took));
            }
            (counted, slowest)
        }
    });
    let from = cluster.primary_of_slot(slot).await;
    for to in [(from + 1) % 3, (from + 2) % 3, from] {
        cluster
            .move_slots(slot..=slot, to, Duration::from_millis(300))
            .await;
    }
    let (counted, slowest) = load.await.unwrap();
    eprintln!("{counted} hits while a slot moved three times, the slowest took {slowest:?}");
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, counted + 1);
}

#[tokio::test]
async fn a_primary_that_is_silent_is_replaced() {
    let (cluster, pair) = (
        RedisCluster::start(RedisOptions::volatile()).await,
        Pair::new().await,
    );
    let counterfoil = pair_of(connect(&cluster).await, &pair);
    let views = counterfoil
        .open(family("views").partitions(12))
        .await
        .unwrap();
    for number in 0..50 {
        let _ = views.add(&format!("page/{number}"), 1).await.unwrap();
    }
    let (replica, paused) = (cluster.replica_of(0).await, Instant::now());
    cluster.node(0).pause();
    let ids: Vec<_> = (0..50).map(|number| format!("page/{number}")).collect();
    let took = join_all(ids.iter().map(|id| count_until_counted(&views, id))).await;
    eprintln!("silent: all went on after {:?}", paused.elapsed());
    assert!(took.iter().all(|(took, _)| *took < Duration::from_secs(20)));
    cluster.wait_promoted(replica).await;
    cluster.node(0).resume();
}

#[tokio::test]
async fn sentinel_names_the_new_primary() {
    for silently in [false, true] {
        let (first, second) = two().await;
        let (sentinel, pair) = (Sentinel::start(&first).await, Pair::new().await);
        let redis = Primary::connect_sentinel([sentinel.url().as_str()], "redis://primary")
            .await
            .unwrap();
        let counterfoil = pair_of(redis, &pair);
        let views = counterfoil.open(family("views")).await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
        let died = Instant::now();
        if silently {
            first.pause()
        } else {
            first.kill()
        }
        let (took, _) = count_until_counted(&views, "page").await;
        assert!(second.is_primary().await);
        eprintln!(
            "sentinel, silently {silently}: counting again {took:?} after, {:?}",
            died.elapsed()
        );
        if silently {
            first.resume();
        }
    }
    let error = Primary::connect_sentinel(["redis://127.0.0.1:1"], "redis://primary")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redis);
    let error = Primary::connect_sentinel([], "redis://primary")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Starts a primary and its replica.
async fn two() -> (RedisServer, RedisServer) {
    let first = RedisServer::start(RedisOptions::volatile().tcp()).await;
    let second = RedisServer::start(RedisOptions::volatile().tcp()).await;
    second.replica_of(&first).await;
    (first, second)
}

/// A name that moves from one server to another.
struct Name(tempfile::TempDir);

impl Name {
    fn of(server: &RedisServer) -> Name {
        let name = Name(tempfile::tempdir_in("/tmp").unwrap());
        symlink(server.socket(), name.0.path().join("redis.sock")).unwrap();
        name
    }

    fn move_to(&self, server: &RedisServer) {
        std::fs::remove_file(self.0.path().join("redis.sock")).unwrap();
        symlink(server.socket(), self.0.path().join("redis.sock")).unwrap();
    }

    fn url(&self) -> String {
        format!(
            "redis+unix://{}",
            self.0.path().join("redis.sock").display()
        )
    }
}

/// Promotes the replica and demotes the old primary, as in a manual failover. Returns the time
/// until a hit counts.
async fn fail_over<C: Into<Connection>>(connect: impl AsyncFn(&str) -> C) -> Duration {
    let ((first, second), pair) = (two().await, Pair::new().await);
    let name = Name::of(&first);
    let counterfoil = pair_of(connect(&name.url()).await, &pair);
    let views = counterfoil.open(family("views")).await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    eventually("the replica has it", async || {
        second.run::<u64>("DBSIZE").await.unwrap() > 1
    })
    .await;
    let _: () = second.run("REPLICAOF NO ONE").await.unwrap();
    name.move_to(&second);
    first.replica_of(&second).await;
    let (took, _) = count_until_counted(&views, "page").await;
    assert_eq!(views.get("page").await.unwrap(), 2);
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 2);
    took
}

#[tokio::test]
async fn a_name_moves_with_a_failover() {
    let ours = fail_over(async |url| Primary::connect(url).await.unwrap()).await;
    let manager = fail_over(async |url| {
        let client = redis::Client::open(url).unwrap();
        ConnectionManager::new_with_config(client, ConnectionManagerConfig::new())
            .await
            .unwrap()
    });
    let manager = manager.await;
    eprintln!("counting again: primary {ours:?}, manager {manager:?}");
    assert!(ours.max(manager) < Duration::from_secs(2));
}

/// A connection that sends a number of commands to one server, and all later ones to another.
#[derive(Clone)]
struct Moving {
    servers: [MultiplexedConnection; 2],
    left: Arc<AtomicUsize>,
}

impl Moving {
    /// Returns the server for the next command.
    fn server(&mut self) -> &mut MultiplexedConnection {
        let left = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        &mut self.servers[usize::from(left.is_err())]
    }
}

impl From<Moving> for counterfoil::Connection {
    fn from(connection: Moving) -> Self {
        counterfoil::Connection::custom(connection)
    }
}

impl ConnectionLike for Moving {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.server().req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        at: usize,
        n: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.server().req_packed_commands(pipe, at, n)
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[tokio::test]
async fn a_failover_between_two_pages_of_a_batch_loses_none_of_it() {
    let (first, second) = two().await;
    let servers = [&first, &second]
        .map(|server| async { server.client().get_multiplexed_async_connection().await });
    let [one, two] = servers;
    let moving = Moving {
        servers: [one.await.unwrap(), two.await.unwrap()],
        left: Arc::new(AtomicUsize::new(1000)),
    };
    let family = family("views").partitions(1).build().unwrap().clone();
    let partition = Partition::new(moving.clone(), &family, 0);
    let ids: Vec<_> = (0..2000).map(|number| format!("page/{number}")).collect();
    let pairs: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
    for pairs in pairs.chunks(1000) {
        partition
            .add(&family, partition.unfenced(), 1000, pairs.iter().copied())
            .await
            .unwrap();
    }
    let RotateReply::Batch(batch) = partition.rotate(None, Cut::Now).await.unwrap() else {
        panic!("there is a batch")
    };
    eventually("the replica has it", async || {
        second
            .run::<u64>("EXISTS cf1:{test/views/0}:batch")
            .await
            .unwrap()
            > 0
    })
    .await;
    let _: () = second.run("REPLICAOF NO ONE").await.unwrap();
    for calls in 1..10 {
        moving.left.store(calls, Ordering::Relaxed);
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
    let error = Primary::connect(second.tcp_url()).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Redis && format!("{error:#}").contains("replica"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_is_silent_is_left() {
    let ((first, second), pair) = (two().await, Pair::new().await);
    let name = Name::of(&first);
    let views = pair_of(Primary::connect(name.url()).await.unwrap(), &pair);
    let views = views.open(family("views")).await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    eventually("the replica has it", async || {
        second.run::<u64>("DBSIZE").await.unwrap() > 1
    })
    .await;
    first.pause();
    let _: () = second.run("REPLICAOF NO ONE").await.unwrap();
    name.move_to(&second);
    let (took, _) = count_until_counted(&views, "page").await;
    eprintln!("silent and moved: {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    first.resume();
}

#[tokio::test]
async fn a_redis_that_is_away_counted_nothing() {
    let pair = Pair::new().await;
    let views = pair_of(Primary::connect(pair.redis.url()).await.unwrap(), &pair);
    let views = views
        .open(family("views"))
        .await
        .unwrap()
        .write_timeout(Duration::from_millis(500));
    let _ = views.add("page", 1).await.unwrap();
    pair.redis.kill();
    // a call over the broken connection may have arrived
    let _ = views.add("page", 1).await.unwrap_err();
    let error = views.add("page", 1).await.unwrap_err();
    assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
}

//! The connections that an application can hand in: which are refused, what their failures mean, and how they come back.
#![allow(missing_docs)]

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use counterfoil::{Added, Counterfoil, ErrorKind, MysqlStore, cluster_settings};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{Value, cmd};
use support::{Pair, eventually, family};
use testkit::{RedisOptions, RedisServer};

/// A server that listens on a port, too.
struct Node {
    server: RedisServer,
    port: u16,
    bus: u16,
}

impl Node {
    async fn start(options: RedisOptions) -> Node {
        let (port, bus) = (free_port(), 0);
        let options = options.arg("port", port.to_string()).arg("bind", "127.0.0.1");
        Node { server: RedisServer::start(options).await, port, bus }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    async fn ask<T: redis::FromRedisValue>(&self, words: &str) -> T {
        let mut redis = self.server.client().get_multiplexed_async_connection().await.unwrap();
        let mut words = words.split_whitespace();
        let mut command = cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query_async(&mut redis).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Primaries, each with so many replicas.
struct Cluster {
    primaries: Vec<Node>,
    replicas: Vec<Node>,
}

impl Cluster {
    async fn start(primaries: usize, replicas: usize) -> Cluster {
        let mut cluster = Cluster { primaries: Vec::new(), replicas: Vec::new() };
        for number in 0..primaries + replicas {
            let free = free_port();
            let options = RedisOptions::volatile()
                .arg("cluster-enabled", "yes")
                .arg("cluster-node-timeout", "1000")
                .arg("cluster-replica-validity-factor", "0")
                .arg("repl-diskless-sync-delay", "0")
                .arg("cluster-port", free.to_string());
            let node = Node { bus: free, ..Node::start(options).await };
            if number < primaries { cluster.primaries.push(node) } else { cluster.replicas.push(node) }
        }
        for (number, node) in cluster.primaries.iter().enumerate() {
            let (from, to) = (16384 * number / primaries, 16384 * (number + 1) / primaries - 1);
            let _: () = node.ask(&format!("CLUSTER ADDSLOTSRANGE {from} {to}")).await;
            let _: () = node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await;
        }
        let first = &cluster.primaries[0];
        for node in cluster.nodes().skip(1) {
            let _: () = node.ask(&format!("CLUSTER MEET 127.0.0.1 {} {}", first.port, first.bus)).await;
        }
        for node in cluster.nodes() {
            let known = async || node.ask::<String>("CLUSTER NODES").await.lines().count() == primaries + replicas;
            eventually("all nodes know each other", known).await;
        }
        for (number, node) in cluster.replicas.iter().enumerate() {
            let id: String = cluster.primaries[number % primaries].ask("CLUSTER MYID").await;
            let _: () = node.ask(&format!("CLUSTER REPLICATE {id}")).await;
        }
        cluster.settled().await;
        cluster
    }

    async fn settled(&self) {
        for node in self.nodes() {
            eventually("the cluster is up", async || {
                node.ask::<String>("CLUSTER INFO").await.contains("cluster_state:ok")
            })
            .await;
        }
        for node in &self.replicas {
            eventually("a replica is in step", async || {
                node.ask::<String>("INFO replication").await.contains("master_link_status:up")
            })
            .await;
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.primaries.iter().chain(&self.replicas)
    }

    fn builder(&self) -> redis::cluster::ClusterClientBuilder {
        ClusterClient::builder(self.nodes().map(Node::url))
    }

    async fn connect(&self) -> ClusterConnection {
        cluster_settings(self.builder()).build().unwrap().get_async_connection().await.unwrap()
    }
}

async fn on(redis: ClusterConnection, pair: &Pair) -> Counterfoil<ClusterConnection> {
    Counterfoil::new(redis, MysqlStore::new(pair.pool.clone()))
}

#[tokio::test]
async fn a_client_that_resends_is_refused() {
    let (cluster, pair) = (Cluster::start(3, 0).await, Pair::new().await);
    let views = || family("views").build().unwrap();
    let resending = cluster.builder().build().unwrap().get_async_connection().await.unwrap();
    let started = Instant::now();
    let error = on(resending, &pair).await.open(views()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsafe);
    assert!(error.to_string().contains("retries(0)"), "{error}");
    eprintln!("refused after {:?}", started.elapsed());
    let once = cluster.builder().retries(1).response_timeout(Duration::from_secs(1)).build().unwrap();
    let error = on(once.get_async_connection().await.unwrap(), &pair).await.open(views()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsafe);
    let started = Instant::now();
    let counterfoil = on(cluster.connect().await, &pair).await;
    let views = counterfoil.open(views()).await.unwrap();
    eprintln!("taken after {:?}", started.elapsed());
    for number in 0..20 {
        assert_eq!(views.add(&format!("page/{number}"), 1).await.unwrap(), Added::Counted { pending: 1 });
    }
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number("SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values").await, 20);
}

/// Facts about the redis crate that the crate rests on.
#[tokio::test]
async fn facts() {
    let cluster = Cluster::start(3, 3).await;
    let mut redis = cluster.connect().await;
    let script = |text: &str| {
        let mut command = cmd("EVAL");
        command.arg(text).arg(1).arg("{a}x");
        command
    };
    for code in ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY", "MASTERDOWN", "OOM"] {
        let started = Instant::now();
        let answer: redis::RedisResult<Value> =
            script(&format!("return redis.error_reply('{code} x')")).query_async(&mut redis).await;
        let error = answer.unwrap_err();
        eprintln!("{code}: {:?} {:?} {:?}", error.kind(), error.code(), started.elapsed());
    }
    // a killed primary
    let slot: u16 = cluster.primaries[0].ask("CLUSTER KEYSLOT a").await;
    let owner = usize::from(slot) * 3 / 16384;
    eprintln!("slot {slot} owner {owner}");
    cluster.primaries[owner].server.kill();
    let killed = Instant::now();
    let mut last = String::new();
    loop {
        let started = Instant::now();
        let answer: redis::RedisResult<Value> =
            script("return redis.call('INCR', KEYS[1])").query_async(&mut redis).await;
        let text = match &answer {
            Ok(_) => "ok".to_owned(),
            Err(error) => format!("{:?} {:?} {error}", error.kind(), error.code()),
        };
        if text != last {
            eprintln!("{:?} (took {:?}): {text}", killed.elapsed(), started.elapsed());
            last = text;
        }
        if answer.is_ok() || killed.elapsed() > Duration::from_secs(20) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

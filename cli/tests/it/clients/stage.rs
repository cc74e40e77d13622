//! The servers and the daemon on which a client plays its scenarios.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use counterfoil::admin::Script;
use counterfoil::redis::{self, FromRedisValue, cluster_async::ClusterConnection};
use counterfoil::sqlx::{AssertSqlSafe, query_as};
use serde::Deserialize;
use serde_json::{Value, json};
use testkit::{Fate, Held, Proxy, RedisCluster, RedisOptions};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use super::scenario::{Connections, Event, folder};
use crate::client::get;
use crate::support::{Daemon, Site, eventually};

/// The time limit of Redis for the test itself, on a busy machine.
const REPLY: Duration = Duration::from_secs(10);

/// The families in tables of the application, and the columns with id and value.
const TABLES: [(&str, &str); 7] = [
    ("store_days", "SELECT CONCAT(store_id, '/', day), hits"),
    (
        "files",
        "SELECT LOWER(INSERT(INSERT(INSERT(INSERT(HEX(id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')), downloads",
    ),
    (
        "stock",
        "SELECT CAST(id AS CHAR), CAST(n AS SIGNED) - CAST(n_before AS SIGNED)",
    ),
    ("words", "SELECT CONVERT(word USING utf8mb4), n"),
    (
        "visits",
        "SELECT CONVERT(CONCAT(scope, '|', day) USING utf8mb4), n",
    ),
    (
        "visits_by_text",
        "SELECT CONVERT(CONCAT(scope, '/', day) USING utf8mb4), n",
    ),
    (
        "paths",
        "SELECT CONVERT(CONCAT(store_id, '/', path) USING utf8mb4), n",
    ),
];

/// The family that no namespace declares by name: its clients announce it.
const ANNOUNCED: &str = "announced";

/// A Redis or a cluster, a database, and a daemon that serves the families of some namespaces.
pub struct Stage {
    pub site: Site,
    pub daemon: Daemon,
    pub servers: Servers,
    namespaces: Namespaces,
}

/// The names of families, by namespace.
pub type Namespaces = BTreeMap<String, BTreeSet<String>>;

/// The Redis in which the client counts.
pub enum Servers {
    /// A server behind a network that fails on demand.
    Single(Proxy),
    Cluster(Arc<RedisCluster>),
}

impl Stage {
    /// Starts a server, and a daemon with families in these namespaces.
    pub async fn single(namespaces: Namespaces) -> Self {
        let site = Site::new().await;
        site.configure(&declarations(&namespaces));
        let servers = Servers::Single(Proxy::to(&site.redis));
        Self::of(site, servers, namespaces).await
    }

    /// Starts a daemon with families in these namespaces, beside a cluster that all stages share.
    pub async fn cluster(namespaces: Namespaces) -> Self {
        static CLUSTER: OnceCell<Arc<RedisCluster>> = OnceCell::const_new();
        let cluster = CLUSTER
            .get_or_init(async || Arc::new(RedisCluster::start(RedisOptions::volatile()).await));
        let (site, cluster) = tokio::join!(Site::new(), cluster);
        let (nodes, mysql) = (cluster.urls(), &site.mysql_url);
        site.write(&format!(
            "listen = \"127.0.0.1:0\"\n[pair.main]\ncluster = {nodes:?}\nmysql = {mysql:?}\n\
             durability = \"immediate\"\n{}",
            declarations(&namespaces)
        ));
        Self::of(site, Servers::Cluster(cluster.clone()), namespaces).await
    }

    async fn of(site: Site, servers: Servers, namespaces: Namespaces) -> Self {
        let has_tables =
            |names: &BTreeSet<String>| TABLES.iter().any(|(name, _)| names.contains(*name));
        let tables = fs::read_to_string(folder().join("tables.sql")).expect("the tables");
        for (namespace, _) in namespaces.iter().filter(|(_, names)| has_tables(names)) {
            site.sql(&tables.replace("NAMESPACE", namespace)).await;
        }
        let daemon = site.daemon().await;
        Stage {
            site,
            daemon,
            servers,
            namespaces,
        }
    }

    /// Returns the address for a client.
    pub fn address(&self) -> (&'static str, Value) {
        match &self.servers {
            Servers::Single(proxy) => ("socket", json!(proxy.socket())),
            Servers::Cluster(cluster) => {
                let nodes = cluster.urls().into_iter();
                let nodes = nodes.map(|url| url.trim_start_matches("redis://").to_owned());
                ("nodes", json!(nodes.collect::<Vec<_>>()))
            }
        }
    }

    /// Sends a command to Redis, and returns the reply, or nothing while it is down.
    pub async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> Option<T> {
        match &self.servers {
            Servers::Single(_) => {
                let config = redis::AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(REPLY))
                    .set_response_timeout(Some(REPLY));
                let client = self.site.redis.client();
                let connection = client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await;
                command.query_async(&mut connection.ok()?).await.ok()
            }
            Servers::Cluster(cluster) => {
                let client = redis::cluster::ClusterClient::builder(cluster.urls())
                    .connection_timeout(REPLY)
                    .response_timeout(REPLY);
                let client = client.build().expect("a client");
                let connection: Result<ClusterConnection, _> = client.get_async_connection().await;
                command.query_async(&mut connection.ok()?).await.ok()
            }
        }
    }

    /// Waits until the families can be counted in, and holds what they count in Redis.
    pub async fn configured(&self, namespace: &str) {
        eventually("the daemon configures the families", async || {
            for family in self.families(namespace) {
                let mut command = redis::cmd("HEXISTS");
                // a scenario may name the epoch, which must have begun
                command
                    .arg(family.key(namespace, 0, "calls"))
                    .arg("=began_at");
                if self.ask(&command).await != Some(true) {
                    return false;
                }
            }
            true
        })
        .await;
        eventually("the daemon reads values", async || {
            let state = get(
                &self.daemon,
                &format!("/api/v1/families?family={namespace}/"),
            )
            .await;
            let known = state.json()["total"].as_u64();
            known.is_some_and(|known| known >= self.families(namespace).len() as u64)
        })
        .await;
        for family in self.families(namespace) {
            for partition in 0..family.partitions {
                let keys = ["buffer", "batch", "meta"];
                let keys = keys.map(|name| family.key(namespace, partition, name));
                let an_hour = "3600000";
                let hold = ["salt", "", "0", "1", an_hour, an_hour, "", ""];
                let held = self.eval("buffered_rotate", &keys, &hold).await;
                held.expect("Redis replies");
            }
        }
    }

    /// Returns the families of a namespace.
    fn families(&self, namespace: &str) -> Vec<Family> {
        let names = &self.namespaces[namespace];
        let mut families = Family::all();
        families.retain(|family| names.contains(family.short_name()));
        families.retain(|family| family.short_name() != ANNOUNCED);
        families
    }

    async fn eval(&self, script: &str, keys: &[String], args: &[&str]) -> Option<redis::Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(script_of(script).source);
        self.ask(command.arg(keys.len()).arg(keys).arg(args)).await
    }

    /// Returns what a family has pending.
    pub async fn pending(&self, namespace: &str, family: &str) -> BTreeMap<String, i64> {
        let mut pending = BTreeMap::new();
        for partition in 0..4 {
            for name in ["buffer", "batch"] {
                let key = format!("cf1:{{{namespace}/{family}/{partition}}}:{name}");
                let hash: Option<BTreeMap<String, i64>> =
                    self.ask(redis::cmd("HGETALL").arg(key)).await;
                for (id, delta) in hash.expect("Redis replies") {
                    *pending.entry(id).or_insert(0) += delta;
                }
            }
        }
        pending
    }

    /// Returns how many callers a family knows, and how many calls they made at least: the numbers of
    /// a caller's calls grow by at most 2^20.
    pub async fn callers(&self, namespace: &str, family: &str) -> (usize, u64) {
        let (mut callers, mut calls) = (0, 0);
        for name in ["calls", "calls_before"] {
            let key = format!("cf1:{{{namespace}/{family}/0}}:{name}");
            let hash: Option<BTreeMap<String, String>> =
                self.ask(redis::cmd("HGETALL").arg(key)).await;
            for (caller, last) in hash.expect("Redis replies") {
                if !caller.starts_with('=') {
                    let n = last.split(' ').next().expect("a word");
                    callers += 1;
                    calls += n.parse::<u64>().expect("a number").div_ceil(1 << 20);
                }
            }
        }
        (callers, calls)
    }

    /// Saves everything to MySQL.
    pub async fn save(&self) {
        let drained = self.site.run(&["drain"]).await;
        assert_eq!(drained.code, 0, "{drained:?}");
    }

    /// Returns what MySQL has of a family.
    pub async fn saved(&self, namespace: &str, family: &str) -> BTreeMap<String, i64> {
        let in_table = TABLES.iter().find(|(name, _)| *name == family);
        let rows = match in_table {
            Some((_, select)) => format!("{select} FROM `{family}-{namespace}`"),
            None => format!(
                "SELECT CAST(v.id AS CHAR), CAST(v.value AS SIGNED) FROM counterfoil_values v JOIN counterfoil_families f \
                 ON v.family = f.number WHERE f.namespace = '{namespace}' AND f.name = '{family}'"
            ),
        };
        let rows = query_as(AssertSqlSafe(rows)).fetch_all(&self.site.pool);
        let rows: Result<Vec<(String, i64)>, _> = rows.await;
        rows.expect("MySQL replies").into_iter().collect()
    }

    /// Disturbs a call of a script.
    pub fn disturb(&self, script: &str, fate: Fate) {
        let Servers::Single(proxy) = &self.servers else {
            panic!("the network of a cluster is not disturbed");
        };
        let script = script_of(script);
        // as EVALSHA, and as EVAL with the source
        proxy.disturb(
            [
                script.sha1.to_owned(),
                format!("-- {}, revision", script.name),
            ],
            fate,
        );
    }

    /// Holds or frees all connections of the client.
    pub fn connections(&self, what: Connections) {
        let Servers::Single(proxy) = &self.servers else {
            return;
        };
        match what {
            Connections::Hold => proxy.black_hole(),
            Connections::Free => {
                proxy.delay_replies(Duration::ZERO);
                proxy.calm();
                proxy.heal(Held::Lost);
            }
        }
    }

    /// Undoes what a scenario left that ended early.
    pub async fn recover(&self) {
        if matches!(self.servers, Servers::Cluster(_)) {
            return;
        }
        self.connections(Connections::Free);
        if self.site.redis.is_up() {
            self.site.redis.resume();
        } else {
            self.site.redis.start_again().await;
        }
        for setting in ["maxmemory", "min-replicas-to-write"] {
            let mut accept = redis::cmd("CONFIG");
            accept.arg("SET").arg(setting).arg(0);
            self.ask::<redis::Value>(&accept).await;
        }
    }

    /// Brings an event about. Returns what goes on meanwhile.
    pub async fn event(&self, event: Event, namespace: &str) -> Option<JoinHandle<()>> {
        let redis = &self.site.redis;
        match event {
            // everything that was acknowledged is in MySQL, also that of other scenarios
            Event::Kill => {
                self.save().await;
                redis.kill();
            }
            Event::Empty => {
                self.save().await;
                self.ask::<()>(&redis::cmd("FLUSHALL")).await;
                self.configured(namespace).await;
            }
            Event::Emptied => {
                self.save().await;
                self.ask::<()>(&redis::cmd("FLUSHALL")).await;
            }
            Event::Start => {
                redis.start_again().await;
                self.configured(namespace).await;
            }
            Event::Suspend => redis.pause(),
            Event::Resume => redis.resume(),
            Event::Forget => {
                for family in self.families(namespace) {
                    self.forget(&family, namespace).await;
                }
            }
            Event::Copied => {
                for family in self.families(namespace) {
                    self.count_elsewhere(&family, namespace).await;
                }
            }
            Event::MoveSlots => return Some(self.move_slots(namespace).await),
        }
        None
    }

    /// Notes a next call of each caller.
    async fn count_elsewhere(&self, family: &Family, namespace: &str) {
        let key = family.key(namespace, 0, "calls");
        let fields: Option<Vec<String>> = self.ask(redis::cmd("HKEYS").arg(&key)).await;
        let fields = fields.expect("Redis replies").into_iter();
        for caller in fields.filter(|field| !field.starts_with('=')) {
            let mut next = redis::cmd("HINCRBY");
            next.arg(&key).arg(&caller).arg(1);
            self.ask::<i64>(&next).await.expect("Redis replies");
        }
    }

    /// Begins two epochs.
    async fn forget(&self, family: &Family, namespace: &str) {
        let keys = ["calls", "calls_before", "requests", "requests_before"];
        let keys = keys.map(|name| family.key(namespace, 0, name));
        for _ in 0..2 {
            let mut long_ago = redis::cmd("HSET");
            long_ago.arg(&keys[0]).arg("=began_at").arg(0);
            self.ask::<i64>(&long_ago).await.expect("Redis replies");
            let asked = self.eval("family_epoch", &keys, &[""; 4]).await;
            asked.expect("Redis replies");
        }
    }

    /// Moves the slots of the family `views`, key by key, to the next primary.
    async fn move_slots(&self, namespace: &str) -> JoinHandle<()> {
        let Servers::Cluster(cluster) = &self.servers else {
            panic!("a single server has no slots");
        };
        let mut slots = vec![];
        for partition in 0..4 {
            let key = format!("cf1:{{{namespace}/views/{partition}}}:calls");
            let asked = cluster
                .node(0)
                .run::<u16>(&format!("CLUSTER KEYSLOT {key}"))
                .await;
            slots.push(asked.expect("a slot"));
        }
        let cluster = cluster.clone();
        tokio::spawn(async move {
            for slot in slots {
                let primaries = cluster.primaries().await;
                let from = cluster.primary_of_slot(slot).await;
                let at = primaries
                    .iter()
                    .position(|node| *node == from)
                    .expect("a primary");
                let to = primaries[(at + 1) % primaries.len()];
                cluster
                    .move_slots(slot..=slot, to, Duration::from_millis(50))
                    .await;
            }
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of the daemon:\n{}", self.daemon.log());
        }
    }
}

fn script_of(name: &str) -> &'static Script {
    let script = Script::all().find(|script| script.name == name);
    script.unwrap_or_else(|| panic!("no script is named {name}"))
}

/// Returns the declarations of the families in all namespaces.
fn declarations(namespaces: &Namespaces) -> String {
    let mut declarations = String::new();
    for (namespace, names) in namespaces {
        for family in family_file().split("\n\n") {
            let name = family
                .lines()
                .find_map(|line| line.strip_prefix("name = \"NAMESPACE/"));
            let name = name.map(|name| name.trim_end_matches('"'));
            if name.is_some_and(|name| names.contains(name)) {
                // of no other namespace: a shared cluster has those of all packages
                let tenants = format!("*{}", &namespace[1..]);
                let is_announced = name == Some(ANNOUNCED);
                let namespace = if is_announced { &tenants } else { namespace };
                declarations += &family.replace("NAMESPACE", namespace);
                declarations.push('\n');
            }
        }
    }
    declarations
}

fn family_file() -> String {
    fs::read_to_string(folder().join("families.toml")).expect("the families")
}

/// Returns the names of all families.
pub fn family_names() -> BTreeSet<String> {
    let families = Family::all().into_iter();
    families
        .map(|family| family.short_name().to_owned())
        .collect()
}

/// A family of the scenarios.
#[derive(Debug, Deserialize)]
struct Family {
    name: String,
    partitions: u32,
}

impl Family {
    fn all() -> Vec<Self> {
        #[derive(Deserialize)]
        struct File {
            family: Vec<Family>,
        }
        let file: File = toml::from_str(&family_file()).expect("families");
        file.family
    }

    fn short_name(&self) -> &str {
        self.name.trim_start_matches("NAMESPACE/")
    }

    fn key(&self, namespace: &str, partition: u32, name: &str) -> String {
        let family = self.name.replace("NAMESPACE", namespace);
        format!("cf1:{{{family}/{partition}}}:{name}")
    }
}

/// Returns the library that sets a process's clock off.
pub fn faketime() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok);
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    libraries.find(|library| library.exists())
}

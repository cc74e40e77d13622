//! The alerts, the dashboard and the scrape configuration, checked by Prometheus if it is installed.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use counterfoil::{BufferedCounters, Counterfoil, Durability, Family, MysqlStore};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{Certificates, MysqlServer, RedisOptions, RedisServer};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use url::Url;

use crate::client::address;
use crate::http::{KINDS, application, views};
use crate::support::{Daemon, Site, eventually};

/// A family that is saved at once and recounted.
const LIKES: &str = r#"
[[family]]
name = "shop/likes"
kind = "buffered"
sync_hits = 1
sync_time = "50ms"

[family.recount]
rows = "added"
table = "likes"
keys = ["item"]
within = "100ms"
every = "1h"
ids = "both"
"#;

/// The sources that name metrics: those of the daemon, and those of the library.
const NAMES: [&str; 2] = [
    include_str!("../../src/metrics.rs"),
    include_str!("../../../src/metrics.rs"),
];
const RULES: &str = include_str!("../../prometheus/rules.yml");
const DASHBOARD: &str = include_str!("../../grafana/counterfoil.json");

/// Runs a program of Prometheus in the folder of the rules. Returns `None` if it is not installed.
async fn run(program: &str, args: &[&str]) -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("prometheus");
    let mut command = Command::new(program);
    let Ok(ended) = command.args(args).current_dir(folder).output().await else {
        eprintln!("{program} is not installed (Debian's package prometheus has it): skipped");
        return None;
    };
    let text = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    assert!(ended.status.success(), "{program} {args:?}: {text}");
    Some(text)
}

/// Replaces what the text must contain.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} in {text}");
    text.replace(from, to)
}

/// A running Prometheus.
struct Prometheus {
    url: Url,
    _process: Child,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it with the example of its configuration, for these daemons.
    async fn start(daemons: &[&Daemon], token: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("token"), token).expect("written");
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("prometheus/rules.yml");
        let targets: Vec<_> = daemons.iter().map(|daemon| address(daemon)).collect();
        let mut example = include_str!("../../prometheus/prometheus.yml").to_owned();
        for (from, to) in [
            ("- rules.yml", format!("- {}", rules.display())),
            ("/etc/prometheus/counterfoil-token", path("token")),
            (
                r#"["10.0.0.8:9292", "10.0.0.9:9292"]"#,
                format!("{targets:?}"),
            ),
            ("scrape_interval: 15s", "scrape_interval: 200ms".to_owned()),
        ] {
            example = replaced(&example, from, &to);
        }
        example += "\nglobal:\n  evaluation_interval: 200ms\n";
        fs::write(path("prometheus.yml"), example).expect("written");
        let mut process = Command::new("prometheus")
            .arg(format!("--config.file={}", path("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", path("data")))
            .arg("--web.listen-address=127.0.0.1:0")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let mut log = BufReader::new(process.stderr.take().expect("piped")).lines();
        let mut read = String::new();
        let listens = loop {
            let line = timeout(Duration::from_secs(20), log.next_line()).await;
            let Ok(Ok(Some(line))) = line else {
                panic!("it does not listen: {read}");
            };
            let address = line.rsplit_once("address=");
            if let Some((_, address)) = address.filter(|_| line.contains("Listening on")) {
                break address.to_owned();
            }
            read = read + &line + "\n";
        };
        // it may write more
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Self {
            url: Url::parse(&format!("http://{listens}")).expect("a URL"),
            _process: process,
            _folder: folder,
        }
    }

    /// Returns the data of a reply of the API.
    async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let mut url = self.url.join(&format!("/api/v1/{path}")).expect("a URL");
        url.query_pairs_mut().extend_pairs(parameters);
        let addresses = url.socket_addrs(|| None).expect("an address");
        let mut stream = TcpStream::connect(&*addresses).await.expect("it listens");
        // a reply of HTTP/1.0 has no chunks, and ends with the connection
        let request = format!(
            "GET {}?{} HTTP/1.0\r\n\r\n",
            url.path(),
            url.query().unwrap_or("")
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.expect("a reply");
        let (head, body) = reply.split_once("\r\n\r\n").expect("HTTP");
        // it is not ready before it has read its files
        if head.contains(" 503 ") {
            return Value::Null;
        }
        let mut body: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["status"], "success", "{path} {parameters:?}: {body}");
        body["data"].take()
    }

    /// Returns the labels of the series with a number.
    async fn query(&self, expression: &str) -> Vec<Value> {
        let mut data = self.get("query", &[("query", expression)]).await;
        let series = data["result"].as_array_mut().map(std::mem::take);
        let is_number = |series: &Value| series["value"][1] != "NaN";
        let numbers = series.into_iter().flatten().filter(is_number);
        numbers.map(|mut series| series["metric"].take()).collect()
    }
}

/// A query of the dashboard.
struct Query {
    expression: String,
    legend: String,
}

impl Query {
    /// Returns the query with these values of the dashboard's variables.
    fn of(&self, pair: &str, family: &str) -> String {
        let expression = self.expression.replace("$pair", pair);
        let expression = expression.replace("$family", family);
        expression.replace("$__rate_interval", "1m")
    }

    fn shows(&self, label: &str) -> bool {
        self.legend.contains(&format!("{{{{{label}}}}}"))
    }
}

fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).expect("JSON")
}

fn queries(dashboard: &Value) -> Vec<Query> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let query = |target: &Value| Query {
        expression: text(&target["expr"]),
        legend: text(&target["legendFormat"]),
    };
    targets.map(query).collect()
}

/// Counts in families of several kinds.
async fn count(counting: &Counterfoil, likes: &BufferedCounters) {
    let _ = likes.add("a", 1).await.expect("counted");
    let views = counting.open(views()).await.expect("opened");
    let _ = views.add("page", 1).await.expect("counted");
    let stock = Family::cached("shop", "stock").durability(Durability::Immediate);
    let stock = counting.open(stock).await.expect("opened");
    let _ = stock.incr("shelf", 1).await.expect("counted");
    let readers = Family::activity("shop", "readers").durability(Durability::Immediate);
    let readers = counting.open(readers).await.expect("opened");
    readers.touch("front", "somebody").await.expect("counted");
}

#[tokio::test]
async fn the_alerts_fire_in_each_outage_and_not_before() {
    if let Some(tested) = run("promtool", &["test", "rules", "rules.test.yml"]).await {
        assert!(tested.contains("SUCCESS"), "{tested}");
    }
}

#[test]
fn the_dashboard_shows_what_alerts_tell_of() {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let shown = DASHBOARD;
    let shown: Vec<_> = shown.split(|c| !is_name(c)).collect();
    let rules = RULES.lines();
    let expressions = rules.filter_map(|line| line.trim().strip_prefix("expr: "));
    for expression in expressions.filter(|expression| !expression.contains("absent")) {
        let mut words = expression.split(|c| !is_name(c));
        let metric = words.find(|word| word.starts_with("counterfoil_"));
        assert!(shown.contains(&metric.expect("a metric")), "{expression}");
    }
}

#[tokio::test]
async fn the_dashboard_shows_two_daemons_that_are_well_and_no_alert_is_active() {
    if run("prometheus", &["--version"]).await.is_none() {
        return;
    }
    let certificates = Certificates::issue();
    let redis = RedisServer::start(RedisOptions::volatile().tls(&certificates)).await;
    let mysql = MysqlServer::start().await;
    let (database, pool) = mysql.database("dashboard").await;
    let site = Site::of(redis, pool, mysql.url(&database));
    let tables = MysqlStore::new(&site.pool).expect("a store");
    tables.create_tables().await.expect("counterfoil's tables");
    for setting in ["CONFIG SET appendfsync always", "CONFIG SET appendonly yes"] {
        site.redis.run::<()>(setting).await.expect("set");
    }
    site.sql("CREATE TABLE likes (item VARCHAR(20) COLLATE utf8mb4_bin, KEY (item))")
        .await;
    let path = site.configure(&format!("{KINDS}{LIKES}"));
    let configuration = fs::read_to_string(&path).expect("read");
    let url = format!("rediss://localhost:{}", site.redis.port());
    let ca = certificates.file("ca.pem");
    let cert = certificates.file("client.pem");
    let key = certificates.file("client.key");
    let tls =
        format!("redis = {url:?}\nredis_ca = {ca:?}\nredis_cert = {cert:?}\nredis_key = {key:?}\n");
    let plain = format!("redis = {:?}\n", site.redis.url());
    let configuration = replaced(&configuration, &plain, &tls);
    site.write(&format!("token = \"secret\"\n{configuration}"));
    let recounted = site.run(&["recount", "shop/likes"]).await;
    assert_eq!(recounted.code, 0, "{recounted:?}");
    let daemons = [site.daemon().await, site.daemon().await];
    let prometheus = Prometheus::start(&[&daemons[0], &daemons[1]], "secret").await;

    let counting = application(&site).await;
    let likes = Family::buffered("shop", "likes")
        .durability(Durability::Immediate)
        .sync_hits(1)
        .sync_time(Duration::from_millis(50));
    let likes = counting.open(likes).await.expect("opened");
    let dashboard = dashboard();
    for query in queries(&dashboard) {
        let expression = query.of(".*", ".*");
        eventually(&expression, async || {
            count(&counting, &likes).await;
            !prometheus.query(&expression).await.is_empty()
        })
        .await;
        for labels in prometheus.query(&expression).await {
            // a line for each daemon would show the same hits twice
            assert!(labels.get("instance").is_none(), "{expression}: {labels}");
            for label in ["pair", "family", "server", "severity", "what", "figures"] {
                let has = labels.get(label).is_some();
                assert_eq!(has, query.shows(label), "{expression}: {label}");
            }
        }
        for (label, of_none) in [
            ("pair", query.of("none", ".*")),
            ("family", query.of(".*", "none")),
        ] {
            let others = prometheus.query(&of_none).await;
            assert!(!query.shows(label) || others.is_empty(), "{of_none}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().expect("a list");
    for variable in &variables[1..] {
        let values = variable["query"]["query"].as_str().expect("a text");
        let values = values.strip_prefix("label_values(").expect("labels");
        let (series, label) = values.rsplit_once(", ").expect("a label");
        let matching = [("match[]", &*series.replace("$pair", ".*"))];
        let label = label.trim_end_matches(')');
        assert_eq!(variable["name"], label);
        let path = format!("label/{label}/values");
        let values = prometheus.get(&path, &matching).await;
        assert!(!values.as_array().expect("values").is_empty());
    }
    no_alert_is_active(&prometheus).await;
}

async fn no_alert_is_active(prometheus: &Prometheus) {
    let checked = r#"count(counterfoil_last_look_timestamp_seconds{figures="check"}) == 2"#;
    eventually("both daemons have checked", async || {
        !prometheus.query(checked).await.is_empty()
    })
    .await;
    let mut loaded = Value::Null;
    eventually("the rules are evaluated", async || {
        loaded = prometheus.get("rules", &[]).await["groups"][0]["rules"].take();
        let rules = loaded.as_array().expect("rules");
        rules.iter().all(|rule| rule["health"] == "ok")
    })
    .await;
    let rules = loaded.as_array().expect("rules");
    let written = RULES;
    assert_eq!(rules.len(), written.matches("- alert:").count());
    for rule in rules {
        let active = prometheus.query(rule["query"].as_str().expect("a query"));
        assert_eq!(active.await, Vec::<Value>::new(), "{rule}");
        assert_eq!(rule["state"], "inactive", "{rule}");
    }
}

/// Returns the names in a text that begin with `counterfoil_`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let starts = text.match_indices("counterfoil_");
    starts.filter_map(move |(at, _)| text[at..].split(is_end).next())
}

#[test]
fn dashboard_and_alerts_use_existing_metrics() {
    for text in [DASHBOARD, RULES] {
        for name in names(text) {
            let parts = ["_bucket", "_sum", "_count"];
            let series = parts.iter().find_map(|part| name.strip_suffix(part));
            let quoted = format!("\"{}\"", series.unwrap_or(name));
            let is_measured = NAMES.iter().any(|source| source.contains(&quoted));
            assert!(is_measured, "{name} is not measured");
        }
        assert!(names(text).count() > 10);
    }
}

#[test]
fn no_metric_of_the_daemon_is_one_of_the_library() {
    let [of_daemon, of_library] = NAMES;
    for name in names(of_daemon) {
        let quoted = format!("\"{name}\"");
        assert!(!of_library.contains(&quoted), "{name} is the library's");
    }
}

#[test]
fn the_manual_has_every_alert() {
    let manual = include_str!("../../../docs/operations.md");
    let mut alerts = Vec::new();
    for line in RULES.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            alerts.push(format!("| {name} | "));
        } else if let (Some(expr), Some(row)) = (line.strip_prefix("expr: "), alerts.last_mut()) {
            *row += &format!("`{}` |", expr.replace('|', "\\|"));
        }
    }
    assert!(alerts.len() > 10, "{alerts:?}");
    for row in &alerts {
        assert!(manual.contains(row.as_str()), "operations.md lacks {row}");
    }
    let rows = manual
        .lines()
        .filter(|line| line.starts_with("| Counterfoil"));
    assert_eq!(rows.count(), alerts.len());
}

//! The example's service as deployed: a separate process that is terminated while it is busy.

// the test reads with it too
#[path = "../../examples/service/counts.rs"]
mod counts;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, io};

use counterfoil::{Counterfoil, MysqlStore, Precision};
use counts::Counts;
use sqlx::MySqlPool;
use testkit::{MysqlServer, RedisOptions, RedisServer};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{OnceCell, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{eventually, times};

/// Returns the path of the program, and builds it if its sources have changed.
async fn program() -> &'static str {
    static PROGRAM: OnceCell<String> = OnceCell::const_new();
    let build = || async {
        if let Some(program) = built() {
            return program;
        }
        let args = [
            "build",
            "--example",
            "service",
            "--message-format=json",
            "--manifest-path",
        ];
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let mut cargo = Command::new(env!("CARGO"));
        // cargo's variables for this test's package would rerun some build scripts
        for (name, _) in env::vars() {
            if ["CARGO_PKG_", "CARGO_MANIFEST_"]
                .iter()
                .any(|part| name.starts_with(part))
            {
                cargo.env_remove(name);
            }
        }
        let built = cargo
            .args(args)
            .arg(manifest)
            .output()
            .await
            .expect("cargo runs");
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let lines = String::from_utf8(built.stdout).expect("text");
        let messages = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let mut programs = messages.filter(|message| message["target"]["name"] == "service");
        programs
            .find_map(|message| message["executable"].as_str().map(str::to_owned))
            .expect("the example's program")
    };
    PROGRAM.get_or_init(build).await
}

/// Returns the program that cargo built along with this test, unless a source has changed since.
fn built() -> Option<String> {
    fn newest(path: &Path) -> SystemTime {
        let own = path
            .metadata()
            .and_then(|of| of.modified())
            .expect("a source");
        let below = path
            .read_dir()
            .into_iter()
            .flatten()
            .map(|entry| newest(&entry.expect("a source").path()));
        below.fold(own, SystemTime::max)
    }
    let program = env::current_exe()
        .ok()?
        .parent()?
        .parent()?
        .join("examples/service");
    let made = program.metadata().ok()?.modified().ok()?;
    let sources = ["examples/service", "src", "lua", "Cargo.toml", "Cargo.lock"];
    let is_newer =
        |source: &&str| newest(&Path::new(env!("CARGO_MANIFEST_DIR")).join(source)) > made;
    (!sources.iter().any(is_newer)).then(|| program.display().to_string())
}

struct Service {
    process: Child,
    address: SocketAddr,
    log: JoinHandle<String>,
}

impl Service {
    /// Starts the service with this number of seconds for its shutdown.
    async fn start(redis: &RedisServer, mysql: &str, shutdown: &str) -> Self {
        let mut command = Command::new(program().await);
        command
            .env("REDIS_URL", redis.url())
            .env("MYSQL_URL", mysql)
            .env("LISTEN", "127.0.0.1:0");
        command
            .env("SHUTDOWN_SECONDS", shutdown)
            .env("NO_COLOR", "1");
        let mut process = command
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let address = loop {
            let line = lines
                .next_line()
                .await
                .expect("text")
                .expect("it listens before it ends");
            if let Some((_, address)) = line.split_once("listening address=") {
                break address.trim().parse().expect("an address");
            }
        };
        let log = tokio::spawn(async move {
            let mut log = String::new();
            while let Ok(Some(line)) = lines.next_line().await {
                log += &line;
                log.push('\n');
            }
            log
        });
        Service {
            process,
            address,
            log,
        }
    }

    fn terminate(&self) {
        let pid = self.process.id().expect("it runs").to_string();
        let sent = std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .expect("kill runs");
        assert!(sent.success());
    }

    /// Waits for the end of the process. Returns its exit status and its log.
    async fn ended(mut self) -> (ExitStatus, String) {
        let status = tokio::time::timeout(Duration::from_secs(40), self.process.wait())
            .await
            .expect("it ends");
        (
            status.expect("its status"),
            self.log.await.expect("its log"),
        )
    }
}

/// Sends one request on its own connection. Returns status and body, `None` if the connection is
/// refused.
async fn request(address: SocketAddr, line: &str) -> Option<io::Result<(u16, String)>> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let exchange = async {
        stream
            .write_all(
                format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
            )
            .await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        let (head, body) = reply
            .split_once("\r\n\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
    };
    Some(exchange.await)
}

async fn told(address: SocketAddr, line: &str) -> (u16, String) {
    request(address, line)
        .await
        .expect("connected")
        .expect("a reply")
}

/// Starts a Redis, and a database with all tables.
async fn servers() -> (RedisServer, MysqlServer, String, MySqlPool) {
    let (redis, mysql) = (
        RedisServer::start(RedisOptions::aof("everysec")).await,
        MysqlServer::start().await,
    );
    let (database, pool) = mysql.database("shop").await;
    MysqlStore::new(pool.clone())
        .create_tables()
        .await
        .expect("counterfoil's tables");
    sqlx::raw_sql(include_str!("../../examples/service/schema.sql"))
        .execute(&pool)
        .await
        .expect("the service's tables");
    let url = mysql.url(&database);
    (redis, mysql, url, pool)
}

/// The successful requests by path, without the visitor.
#[derive(Debug, Default)]
struct Told {
    counted: BTreeMap<String, i64>,
    votes: BTreeMap<String, Vec<i64>>,
    first_visits: BTreeMap<String, i64>,
    /// Requests whose connection broke before the reply.
    cut: u64,
}

const KINDS: [&str; 5] = ["views", "votes", "visitors", "downloads", "readers"];

impl Told {
    /// Counts with all kinds for as long as the service accepts connections.
    async fn client(address: SocketAddr, client: u64, progress: watch::Sender<u64>) -> Self {
        let mut told = Told::default();
        for n in 0.. {
            let (kind, article) = (KINDS[n % 5], 1 + n / 5 % 3);
            let path = format!("articles/{article}/{kind}");
            // visitors return, also through another client
            let visitor = (n as u64 / 15 + client) % 50;
            let visitor = if matches!(kind, "visitors" | "readers") {
                format!("/{visitor}")
            } else {
                String::new()
            };
            match request(address, &format!("POST /{path}{visitor}")).await {
                None => break,
                Some(Err(_)) => told.cut += 1,
                Some(Ok((status, body))) => {
                    assert!((200..300).contains(&status), "{path}: {status}");
                    *told.counted.entry(path.clone()).or_default() += 1;
                    match kind {
                        "votes" => told
                            .votes
                            .entry(path)
                            .or_default()
                            .push(body.parse().expect("a number")),
                        "visitors" => {
                            *told.first_visits.entry(path).or_default() += i64::from(body == "true")
                        }
                        _ => {}
                    }
                }
            }
            progress.send_modify(|requests| *requests += 1);
        }
        told
    }

    fn join(&mut self, other: Told) {
        other
            .counted
            .into_iter()
            .for_each(|(path, n)| *self.counted.entry(path).or_default() += n);
        other
            .votes
            .into_iter()
            .for_each(|(path, votes)| self.votes.entry(path).or_default().extend(votes));
        other
            .first_visits
            .into_iter()
            .for_each(|(path, n)| *self.first_visits.entry(path).or_default() += n);
        self.cut += other.cut;
    }
}

async fn number(pool: &MySqlPool, sql: &'static str, article: i64) -> i64 {
    sqlx::query_scalar(sql)
        .bind(article)
        .fetch_one(pool)
        .await
        .expect(sql)
}

#[tokio::test]
async fn told_to_end_under_load_it_loses_and_doubles_nothing() {
    let (redis, _mysql, url, pool) = servers().await;
    let service = Service::start(&redis, &url, "20").await;
    assert_eq!(told(service.address, "GET /healthz").await.0, 200);
    assert_eq!(
        told(service.address, "POST /articles/4/votes").await.0,
        404,
        "no such article"
    );

    let (progress, mut requests) = watch::channel(0);
    let mut clients = JoinSet::new();
    (0..8).for_each(|client| {
        drop(clients.spawn(Told::client(service.address, client, progress.clone())))
    });
    requests
        .wait_for(|requests| *requests > 1000)
        .await
        .expect("clients");
    let metrics = told(service.address, "GET /metrics").await.1;
    for family in KINDS {
        let line = format!("counterfoil_hits_total{{family=\"{family}\"}} ");
        let hits = metrics
            .lines()
            .find_map(|metric| metric.strip_prefix(&line))
            .expect(&metrics);
        assert_ne!(hits, "0", "{family}");
    }
    service.terminate();
    let (status, log) = service.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("ended families_left=0"), "{log}");
    let mut all = Told::default();
    while let Some(client) = clients.join_next().await {
        all.join(client.expect("a client"));
    }

    // The process has ended: what is not in MySQL is in Redis.
    let counterfoil = Counterfoil::connect(&redis.url(), &url)
        .await
        .expect("connected");
    let counts = Counts::open(&counterfoil).await.expect("opened");
    for article in 1..=3 {
        let path = |kind| format!("articles/{article}/{kind}");
        let views = number(
            &pool,
            "SELECT views FROM article_views WHERE article = ?",
            article,
        )
        .await;
        assert_eq!(views, all.counted[&path("views")]);
        let votes = number(&pool, "SELECT votes FROM article WHERE id = ?", article).await;
        let mut told = all.votes[&path("votes")].clone();
        told.sort_unstable();
        assert_eq!(
            told,
            (1..=votes).collect::<Vec<_>>(),
            "each vote was told a number of its own"
        );
        let sql = "SELECT CAST(SUM(visitors) AS SIGNED) FROM article_visitors WHERE article = ?";
        assert_eq!(
            number(&pool, sql, article).await,
            all.first_visits[&path("visitors")]
        );

        let name = article.to_string();
        let now = jiff::Timestamp::now().as_second();
        let days = counts
            .downloads
            .get_range(&name, Precision::Day, times(now - 86_400..now + 1))
            .await
            .expect("read");
        assert_eq!(
            days.iter().map(|day| day.count).sum::<i64>(),
            all.counted[&path("downloads")]
        );
        assert_eq!(
            counts.downloads.backlog().await.expect("read").open,
            3,
            "the day is not over"
        );
        let views = counts.readers.now(&name).await.expect("read").views;
        assert_eq!(
            i64::try_from(views).expect("few"),
            all.counted[&path("readers")]
        );
        assert_eq!(
            counts
                .visitors
                .list(&format!("{name}/"), None, 9)
                .await
                .expect("read")
                .len(),
            1
        );
        assert_eq!(counts.votes.get(&name).await.expect("read"), votes);
        assert_eq!(counts.views.pending(&[&name]).await.expect("read"), [0]);
    }
    assert_eq!(
        number(
            &pool,
            "SELECT COUNT(*) FROM counterfoil_rejects WHERE delta <> ?",
            0
        )
        .await,
        0
    );
    println!(
        "{} requests counted, {} cut",
        all.counted.values().sum::<i64>(),
        all.cut
    );
}

#[tokio::test]
async fn it_starts_counts_and_ends_while_mysql_is_away() {
    let (redis, mysql, url, pool) = servers().await;
    mysql.kill();
    let service = Service::start(&redis, &url, "1").await;
    assert_eq!(told(service.address, "GET /healthz").await.0, 200);
    for _ in 0..3 {
        assert_eq!(told(service.address, "POST /articles/1/views").await.0, 202);
    }
    service.terminate();
    let (status, log) = service.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        log.contains("left family=site/views recorded=0 backlog=Some(Backlog { ids: 1"),
        "{log}"
    );

    mysql.start_again().await;
    let service = Service::start(&redis, &url, "20").await;
    let stored = || async {
        let views = sqlx::query_scalar("SELECT views FROM article_views WHERE article = 1");
        matches!(views.fetch_optional(&pool).await, Ok(Some(3_i64)))
    };
    eventually("the views that were left", stored).await;
    service.terminate();
    assert_eq!(service.ended().await.0.code(), Some(0));
}

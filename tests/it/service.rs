//! The example's service as deployed: a separate process that is terminated while it is busy.

// the test reads with it too
#[path = "../../examples/service/counts.rs"]
mod counts;

use std::net::SocketAddr;
use std::process::Stdio;
use std::{env, io};

use counts::Counts;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::support::*;

/// Returns the path of the program, which cargo builds along with this test.
fn program() -> PathBuf {
    let test = env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples/service");
    assert!(program.exists(), "cargo build --examples makes {program:?}");
    program
}

struct Service {
    process: Child,
    address: SocketAddr,
    log: JoinHandle<String>,
}

impl Service {
    /// Starts the service with this number of seconds for its shutdown.
    async fn start(redis: &RedisServer, mysql: &str, shutdown: &str) -> Self {
        let mut process = Command::new(program())
            .env("REDIS_URL", redis.url())
            .env("MYSQL_URL", mysql)
            .env("LISTEN", "127.0.0.1:0")
            .env("SHUTDOWN_SECONDS", shutdown)
            .env("NO_COLOR", "1")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if let Some((_, address)) = line.split_once("listening address=") {
                break address.trim().parse().unwrap();
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

    /// Terminates the process, and waits for its successful end. Returns its log.
    async fn terminate(mut self) -> String {
        testkit::signal(&self.process, "TERM");
        let status = timeout(secs(40), self.process.wait())
            .await
            .unwrap()
            .unwrap();
        let log = self.log.await.unwrap();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }
}

/// Sends one request on its own connection. Returns status and body, `None` if the connection is
/// refused.
async fn request(address: SocketAddr, line: &str) -> Option<io::Result<(u16, String)>> {
    request_with(address, line, "").await
}

async fn request_with(
    address: SocketAddr,
    line: &str,
    headers: &str,
) -> Option<io::Result<(u16, String)>> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let exchange = async {
        let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        let (head, body) = reply
            .split_once("\r\n\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((
            head.split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok())
                .ok_or(io::ErrorKind::InvalidData)?,
            body.to_owned(),
        ))
    };
    Some(exchange.await)
}

/// Returns the body of a reply with this status.
async fn expect(status: u16, address: SocketAddr, line: &str) -> String {
    let reply = request(address, line).await.unwrap();
    let (found, body) = reply.unwrap();
    assert_eq!(found, status, "{line}");
    body
}

/// Starts a Redis, and creates a database with all tables.
async fn servers(mysql: &MysqlServer) -> (RedisServer, String, MySqlPool) {
    let redis = RedisServer::start(RedisOptions::aof("everysec")).await;
    let (database, pool) = mysql.database("shop").await;
    MysqlStore::new(&pool)
        .unwrap()
        .create_tables()
        .await
        .unwrap();
    sqlx::raw_sql(include_str!("../../examples/service/schema.sql"))
        .execute(&pool)
        .await
        .unwrap();
    (redis, mysql.url(&database), pool)
}

/// The successful requests by path, without the visitor.
#[derive(Debug, Default)]
struct Counted {
    /// Requests, or first visits.
    counted: BTreeMap<String, i64>,
    /// The value in the reply to each vote.
    votes: BTreeMap<String, Vec<i64>>,
    /// Requests whose connection broke before the reply.
    cut: u64,
}

const KINDS: [&str; 5] = ["views", "votes", "visitors", "downloads", "readers"];

impl Counted {
    /// Counts with all kinds for as long as the service accepts connections.
    async fn client(address: SocketAddr, client: u64, progress: watch::Sender<u64>) -> Self {
        let mut all = Counted::default();
        for n in 0.. {
            let (kind, article) = (KINDS[n % 5], 1 + n / 5 % 3);
            let path = format!("articles/{article}/{kind}");
            // visitors return, also through another client
            let visitor = match kind {
                "visitors" | "readers" => format!("/{}", (n as u64 / 15 + client) % 50),
                _ => String::new(),
            };
            match request(address, &format!("POST /{path}{visitor}")).await {
                None => break,
                Some(Err(_)) => all.cut += 1,
                Some(Ok((status, body))) => {
                    assert!((200..300).contains(&status), "{path}: {status}");
                    if kind == "votes" {
                        all.votes
                            .entry(path.clone())
                            .or_default()
                            .push(body.parse().unwrap());
                    }
                    let is_counted = kind != "visitors" || body == "true";
                    *all.counted.entry(path).or_default() += i64::from(is_counted);
                }
            }
            progress.send_modify(|requests| *requests += 1);
        }
        all
    }

    fn join(&mut self, other: Counted) {
        for (path, n) in other.counted {
            *self.counted.entry(path).or_default() += n;
        }
        for (path, votes) in other.votes {
            self.votes.entry(path).or_default().extend(votes);
        }
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
async fn terminated_under_load_it_loses_and_doubles_nothing() {
    let (redis, url, pool) = servers(mysql().await).await;
    let service = Service::start(&redis, &url, "20").await;
    let address = service.address;
    expect(200, address, "GET /healthz").await;
    // there is no such article
    expect(404, address, "POST /articles/4/votes").await;

    let (progress, mut requests) = watch::channel(0);
    let mut clients = JoinSet::new();
    for client in 0..8 {
        clients.spawn(Counted::client(address, client, progress.clone()));
    }
    drop(
        requests
            .wait_for(|requests| *requests > 1000)
            .await
            .unwrap(),
    );
    let metrics = expect(200, address, "GET /metrics").await;
    for family in KINDS {
        let line = format!("counterfoil_hits_total{{family=\"{family}\"}} ");
        assert_ne!(
            metrics
                .lines()
                .find_map(|metric| metric.strip_prefix(&line))
                .expect(&metrics),
            "0",
            "{family}"
        );
    }
    let log = service.terminate().await;
    assert!(log.contains("ended families_left=0"), "{log}");
    let mut all = Counted::default();
    while let Some(client) = clients.join_next().await {
        all.join(client.unwrap());
    }

    // The process has ended: what is not in MySQL is in Redis.
    let counts = Counts::open(&Counterfoil::connect(&redis.url(), &url).await.unwrap())
        .await
        .unwrap();
    for article in 1..=3 {
        let counted = |kind| all.counted[&format!("articles/{article}/{kind}")];
        let views = "SELECT views FROM article_views WHERE article = ?";
        assert_eq!(number(&pool, views, article).await, counted("views"));
        let votes = "SELECT votes FROM article WHERE id = ?";
        let votes = number(&pool, votes, article).await;
        let mut replies = all.votes[&format!("articles/{article}/votes")].clone();
        replies.sort_unstable();
        // each vote got a number of its own
        assert_eq!(replies, (1..=votes).collect::<Vec<_>>());
        let visitors =
            "SELECT CAST(SUM(visitors) AS SIGNED) FROM article_visitors WHERE article = ?";
        assert_eq!(number(&pool, visitors, article).await, counted("visitors"));

        let name = article.to_string();
        let now = jiff::Timestamp::now().as_second();
        let day = times(now - 86_400..now + 1);
        assert_eq!(
            sum(&counts
                .downloads
                .get_range(&name, Precision::Day, day)
                .await
                .unwrap()),
            counted("downloads")
        );
        let views = counts.readers.now(&name).await.unwrap().views;
        assert_eq!(views.cast_signed(), counted("readers"));
        assert_eq!(
            counts
                .visitors
                .list(&format!("{name}/"), None, 9)
                .await
                .unwrap()
                .len(),
            1
        );
        assert_eq!(counts.votes.value(&name).await, votes);
        assert_eq!(counts.views.pending(&[&name]).await.unwrap(), [0]);
    }
    let rejects = "SELECT COUNT(*) FROM counterfoil_rejects WHERE delta <> ?";
    assert_eq!(number(&pool, rejects, 0).await, 0);
}

#[tokio::test]
async fn a_page_counts_its_readers() {
    let (redis, url, _) = servers(mysql().await).await;
    let service = Service::start(&redis, &url, "20").await;
    let look = async |line: &str, headers: &str| {
        let reply = request_with(service.address, line, headers).await;
        reply.unwrap().unwrap()
    };
    let browser =
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n";
    let crawler =
        "User-Agent: Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)\r\n";
    let in_advance = format!("{browser}Sec-Purpose: prefetch\r\n");
    for (line, headers) in [
        ("GET /articles/2", ""),
        ("GET /articles/2", crawler),
        ("GET /articles/2", &in_advance),
        ("HEAD /articles/2", browser),
        ("GET /articles/4", browser),
        ("GET /articles/2", browser),
        ("GET /articles/2", browser),
    ] {
        let (status, _) = look(line, headers).await;
        assert_eq!(
            status,
            if line.ends_with('4') { 404 } else { 200 },
            "{line}"
        );
    }
    eventually("the views of readers", async || {
        let (_, list) = look("GET /articles", crawler).await;
        list.contains("Apples</a>: 0 views") && list.contains("Pears</a>: 2 views")
    })
    .await;
    let (_, article) = look("GET /articles/2", crawler).await;
    assert!(article.contains("<p>2 views</p>"), "{article}");
    service.terminate().await;
}

#[tokio::test]
async fn it_starts_counts_and_ends_while_mysql_is_unavailable() {
    let mysql = MysqlServer::start().await;
    let (redis, url, pool) = servers(&mysql).await;
    mysql.kill();
    let service = Service::start(&redis, &url, "1").await;
    expect(200, service.address, "GET /healthz").await;
    for _ in 0..3 {
        expect(202, service.address, "POST /articles/1/views").await;
    }
    let log = service.terminate().await;
    let left = "left family=site/views recorded=0 backlog=Some(Backlog { ids: 1";
    assert!(log.contains(left), "{log}");

    mysql.start_again().await;
    let service = Service::start(&redis, &url, "20").await;
    let stored = async || {
        matches!(
            sqlx::query_scalar("SELECT views FROM article_views WHERE article = 1")
                .fetch_optional(&pool)
                .await,
            Ok(Some(3_i64))
        )
    };
    eventually("the views that were left", stored).await;
    service.terminate().await;
}

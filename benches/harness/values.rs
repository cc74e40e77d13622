//! The time of a request for exact values by HTTP, beside a SELECT of the same rows by a driver.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, MySqlPool};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::daemon::{Daemon, program};
use crate::measuring::{Bench, Pending, alternate, median};

/// The ids in all, which callers read one slice after the other.
const IDS: usize = 50_000;
const SIZES: [usize; 3] = [1, 50, 1000];
const CALLERS: [usize; 2] = [1, 50];

/// One caller, which makes a request for values after the other.
trait Caller {
    /// Returns the sum of the values, or `None` if the request was refused because of the load.
    async fn read(&mut self, ids: &[String]) -> Option<i64>;
}

/// A caller of the daemon, with a connection of its own that stays open.
struct ByHttp {
    stream: BufReader<TcpStream>,
    family: String,
}

impl Caller for ByHttp {
    async fn read(&mut self, ids: &[String]) -> Option<i64> {
        let list = json!({"family": self.family, "ids": ids}).to_string();
        let length = list.len();
        let request = format!(
            "POST /api/v1/values HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{list}"
        );
        self.stream.write_all(request.as_bytes()).await.unwrap();
        let (mut line, mut status, mut length) = (String::new(), String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert_ne!(self.stream.read_line(&mut line).await.unwrap(), 0);
            if status.is_empty() {
                status.clone_from(&line);
            }
            if let Some(digits) = line.strip_prefix("content-length: ") {
                length = digits.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        if status.contains(" 503 ") {
            return None;
        }
        let reply: Value = serde_json::from_slice(&body).unwrap();
        let values = reply["values"].as_array().unwrap();
        Some(values.iter().map(|value| value.as_i64().unwrap()).sum())
    }
}

/// A caller of MySQL, which has as many connections as the daemon.
struct BySelect(MySqlPool);

impl Caller for BySelect {
    async fn read(&mut self, ids: &[String]) -> Option<i64> {
        let places = vec!["?"; ids.len()].join(", ");
        let select =
            format!("SELECT value FROM counterfoil_values WHERE family = 1 AND id IN ({places})");
        let select = sqlx::query_scalar(AssertSqlSafe(select));
        let select = ids.iter().fold(select, |select, id| select.bind(id));
        let values: Vec<i64> = select.fetch_all(&self.0).await.unwrap();
        Some(values.iter().sum())
    }
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&["daemon_values"]) {
        return;
    }
    let Some(program) = program() else {
        return println!("daemon_values: skipped, the program is not built");
    };
    let stage = Pending::set(bench).await;
    let ids: Vec<_> = (0..IDS).map(|number| format!("page/{number}")).collect();
    // each id has 1 in the database, and 1 more that may still wait in Redis
    stage.fill(ids.iter().cloned()).await;
    stage.flush().await;
    stage.fill(ids.iter().cloned()).await;
    let database: String = sqlx::query_scalar("SELECT DATABASE()")
        .fetch_one(&stage.pool)
        .await
        .unwrap();
    let mysql = bench.servers.mysql().await.url(&database);
    let daemon = Daemon::start(&program, &stage.redis.url(), &mysql);
    let pool = MySqlPoolOptions::new().max_connections(10);
    let pool = pool.connect(&mysql).await.unwrap();
    let family = stage.counters.family().to_string();
    // it opens the family, and saves what waits
    sleep(Duration::from_secs(10)).await;
    for callers in CALLERS {
        for size in SIZES {
            let time = bench.time();
            let by_http = async || {
                let connected = (0..callers).map(|_| by_http(daemon.address(), &family));
                latency(join_all(connected).await, &ids, size, time).await
            };
            let by_select = async || {
                let connected = (0..callers).map(|_| BySelect(pool.clone()));
                latency(connected.collect(), &ids, size, time).await
            };
            let rounds = alternate(bench.rounds(), by_http, by_select).await;
            let name = format!("daemon_values_{size}_ids_{callers}_callers");
            bench.absolute(format!("{name}_ms"), median(rounds.ours));
            bench.absolute(format!("{name}_select_ms"), median(rounds.theirs));
        }
    }
}

async fn by_http(address: SocketAddr, family: &str) -> ByHttp {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    ByHttp {
        stream: BufReader::new(stream),
        family: family.to_owned(),
    }
}

/// Returns the median time of a request in milliseconds, while all callers make requests.
async fn latency<C: Caller>(callers: Vec<C>, ids: &[String], size: usize, time: Duration) -> f64 {
    let started = Instant::now();
    let read = |(number, mut caller): (usize, C)| async move {
        let mut millis = Vec::new();
        let slices = ids.chunks_exact(size).cycle().skip(number * 7);
        for some in slices.take_while(|_| started.elapsed() < time) {
            let asked = Instant::now();
            match caller.read(some).await {
                Some(sum) => {
                    assert!((size as i64..=2 * size as i64).contains(&sum), "{sum}");
                    millis.push(asked.elapsed().as_secs_f64() * 1e3);
                }
                // as a client does
                None => sleep(Duration::from_secs(1)).await,
            }
        }
        millis
    };
    let read = callers.into_iter().enumerate().map(read);
    let millis = join_all(read).await.concat();
    median(millis)
}

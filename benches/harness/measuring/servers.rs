//! The servers under measurement: private ones, the same kind of process for both sides.

use std::time::Duration;

use counterfoil::Counterfoil;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use sqlx::{Connection, MySqlConnection};
use testkit::{MysqlServer, RedisServer};
use tokio::sync::OnceCell;

/// The measured pair, on the same kind of connection as the other side.
pub type Pair = Counterfoil;
pub type Counters = counterfoil::BufferedCounters;

/// The servers that all measurements share. They start on first use and stop with the run.
#[derive(Default)]
pub struct Servers {
    mysql: OnceCell<MysqlServer>,
}

impl Servers {
    pub async fn mysql(&self) -> &MysqlServer {
        self.mysql.get_or_init(start_mysql).await
    }
}

/// Starts a MySQL with production settings: room for all the rows that are written, and each commit
/// on the disk. The latter is the server's default, but not the testkit's.
async fn start_mysql() -> MysqlServer {
    let mysql = MysqlServer::start().await;
    let mut connection = MySqlConnection::connect(&mysql.url("")).await.unwrap();
    const SET: &str = "SET GLOBAL innodb_buffer_pool_size = 1073741824, GLOBAL innodb_flush_log_at_trx_commit = 1";
    sqlx::raw_sql(SET).execute(&mut connection).await.unwrap();
    mysql
}

/// Opens a multiplexed connection with a long timeout, since a noisy machine must not end a
/// measurement.
pub async fn connect(redis: &RedisServer) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
    redis
        .client()
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

/// Returns the CPU seconds that Redis has used.
pub async fn redis_cpu(redis: &mut MultiplexedConnection) -> f64 {
    let info = info(redis, "cpu").await;
    ["used_cpu_user:", "used_cpu_sys:"]
        .iter()
        .map(|name| number_after(&info, name))
        .sum()
}

/// The number of script calls in Redis, and the seconds that they took.
#[derive(Clone, Copy)]
pub struct Scripts {
    pub calls: f64,
    pub seconds: f64,
}

impl Scripts {
    pub async fn so_far(redis: &mut MultiplexedConnection) -> Self {
        let info = info(redis, "commandstats").await;
        // "cmdstat_evalsha:calls=12,usec=345,usec_per_call=28.75,..."
        let evalsha = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:"))
            .unwrap_or("calls=0,usec=0");
        let micros = evalsha
            .split(',')
            .nth(1)
            .map_or(f64::NAN, |usec| number_after(usec, "usec="));
        Scripts {
            calls: number_after(evalsha, "calls="),
            seconds: micros / 1e6,
        }
    }

    /// Returns the mean time of a call in microseconds.
    pub fn mean_us(self) -> f64 {
        self.seconds * 1e6 / self.calls
    }

    pub fn since(self, before: Self) -> Self {
        Scripts {
            calls: self.calls - before.calls,
            seconds: self.seconds - before.seconds,
        }
    }
}

pub async fn info(redis: &mut MultiplexedConnection, section: &str) -> String {
    redis::cmd("INFO")
        .arg(section)
        .query_async(redis)
        .await
        .unwrap()
}

/// Returns the number after `name` in Redis's INFO, or NaN if there is none.
pub fn number_after(info: &str, name: &str) -> f64 {
    let text = info.lines().find_map(|line| line.strip_prefix(name));
    let digits = text.and_then(|text| text.split([',', '\r']).next());
    digits
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(f64::NAN)
}

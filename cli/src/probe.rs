//! Questions to the servers of a pair, which show that they are up and how fast they reply.

use std::error::Error;
use std::time::{Duration, Instant};

use counterfoil::Connection;
use counterfoil::admin::RedisState;
use counterfoil::sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use counterfoil::sqlx::{self, ConnectOptions};
use tokio::time::timeout;

use crate::latency::{Latency, Replies};
use crate::limits::TIMEOUT;
use crate::reason::Reason;
use crate::view::ServerView;

/// A server of a pair, to ask repeatedly.
pub enum Probe {
    Redis(Connection),
    Mysql(Box<Mysql>),
}

/// A connection of its own to MySQL. A pool would repeat a refused connection until its own time
/// limit, and hide the reason.
pub struct Mysql {
    options: MySqlConnectOptions,
    connection: Option<MySqlConnection>,
}

impl Probe {
    pub fn mysql(options: MySqlConnectOptions) -> Self {
        let connection = None;
        Probe::Mysql(Box::new(Mysql {
            options,
            connection,
        }))
    }

    /// Returns the state of the server and the time that its reply took. An error is the server's own,
    /// unless it does not reply within the limit.
    pub async fn ask(&mut self, limit: Duration) -> Result<(ServerView, Duration), Reason> {
        let replied = timeout(limit, async {
            match self {
                Probe::Redis(redis) => ask_redis(redis, limit).await,
                Probe::Mysql(mysql) => Ok(mysql.ask().await?),
            }
        })
        .await;
        replied.unwrap_or_else(|_| Err(Reason::silence(limit)))
    }
}

/// Measures how long a few replies of the server take, one after the other.
pub async fn measure_latency(mut probe: Probe) -> Result<Latency, Reason> {
    let mut replies = Replies::default();
    loop {
        let (_, took) = probe.ask(TIMEOUT).await?;
        let latency = replies.add(took);
        if replies.are_enough() {
            return Ok(latency);
        }
    }
}

async fn ask_redis(redis: &Connection, limit: Duration) -> Result<(ServerView, Duration), Reason> {
    let asked = Instant::now();
    let state = RedisState::read(redis).await.map_err(|error| {
        let own = error.source();
        // the connection has a time limit of its own, which may be the first to end
        if error.code().as_deref() == Some("TimedOut") {
            return Reason::silence(limit);
        }
        let text = own.map_or_else(|| error.to_string(), |own| own.to_string());
        Reason::new(text, &error)
    })?;
    let found = ServerView {
        version: Some(state.version),
        memory_bytes: Some(state.memory_bytes),
        refusal: state.refusal,
        ..ServerView::default()
    };
    Ok((found, asked.elapsed()))
}

impl Mysql {
    async fn ask(&mut self) -> Result<(ServerView, Duration), sqlx::Error> {
        // the server may have closed the connection since the last probe
        if let Some(connection) = self.connection.take()
            && let Ok(reply) = self.ask_over(connection).await
        {
            return Ok(reply);
        }
        let connection = self.options.connect().await?;
        self.ask_over(connection).await
    }

    async fn ask_over(
        &mut self,
        mut connection: MySqlConnection,
    ) -> Result<(ServerView, Duration), sqlx::Error> {
        let asked = Instant::now();
        let version: String = sqlx::query_scalar("SELECT VERSION()")
            .fetch_one(&mut connection)
            .await?;
        let took = asked.elapsed();
        self.connection = Some(connection);
        let product = match version.split_once("-MariaDB") {
            Some((number, _)) => format!("MariaDB {number}"),
            None => format!("MySQL {version}"),
        };
        let found = ServerView {
            version: Some(product),
            ..ServerView::default()
        };
        Ok((found, took))
    }
}

//! The disturbances of writers and reconcilers while they work.

use std::fmt;
use std::time::Duration;

use redis::aio::ConnectionManager;
use sqlx::{AssertSqlSafe, MySqlPool};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::reconcilers::Reconcilers;
use crate::servers::Servers;

/// The longest wait for a running statement to cut.
const WATCH: Duration = Duration::from_millis(150);

/// The source of disturbances. It takes the kinds in turn.
pub struct Disturber {
    redis: ConnectionManager,
    mysql: MySqlPool,
    pub reconcilers: Reconcilers,
    pub done: Disturbances,
}

/// The disturbances so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disturbances {
    /// Reconcilers killed by SIGKILL.
    pub kills: u64,
    /// Calls of SCRIPT FLUSH.
    pub flushes: u64,
    /// Times that Redis closed all connections.
    pub redis_cuts: u64,
    /// Times that MySQL closed all connections.
    pub mysql_cuts: u64,
    /// Commands sent to Redis for the disturbances.
    pub commands: u64,
    /// Statements sent to MySQL for the disturbances.
    pub statements: u64,
}

impl Disturbances {
    fn strikes(&self) -> u64 {
        self.kills + self.flushes + self.redis_cuts + self.mysql_cuts
    }
}

impl fmt::Display for Disturbances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Disturbances {
            kills,
            flushes,
            redis_cuts,
            mysql_cuts,
            ..
        } = self;
        write!(
            f,
            "kills {kills}, script flushes {flushes}, Redis cuts {redis_cuts}, MySQL cuts {mysql_cuts}"
        )
    }
}

impl Disturber {
    pub fn new(servers: &Servers, reconcilers: Reconcilers) -> Self {
        let (redis, mysql) = (servers.redis.clone(), servers.mysql.clone());
        Disturber {
            redis,
            mysql,
            reconcilers,
            done: Disturbances::default(),
        }
    }

    pub async fn strike(&mut self) -> Result<()> {
        match self.done.strikes() % 4 {
            0 => self.kill_a_reconciler().await,
            1 => self.flush_scripts().await,
            2 => self.cut_redis().await,
            _ => self.cut_mysql().await,
        }
    }

    async fn kill_a_reconciler(&mut self) -> Result<()> {
        self.done.kills += 1;
        self.reconcilers.kill_one().await
    }

    async fn flush_scripts(&mut self) -> Result<()> {
        self.done.flushes += 1;
        self.done.commands += 1;
        Ok(redis::cmd("SCRIPT")
            .arg("FLUSH")
            .exec_async(&mut self.redis)
            .await?)
    }

    /// Closes the Redis connections of all other clients.
    async fn cut_redis(&mut self) -> Result<()> {
        self.done.redis_cuts += 1;
        self.done.commands += 1;
        Ok(redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal"])
            .exec_async(&mut self.redis)
            .await?)
    }

    async fn cut_mysql(&mut self) -> Result<()> {
        self.done.mysql_cuts += 1;
        self.done.statements += cut_mysql(&self.mysql).await?;
        Ok(())
    }
}

/// Closes the MySQL connections of all other clients, if possible while one of them runs a
/// statement. Returns the number of statements that it took.
pub async fn cut_mysql(mysql: &MySqlPool) -> Result<u64> {
    let (deadline, mut statements) = (Instant::now() + WATCH, 2);
    while connections(mysql, "COMMAND <> 'Sleep'").await?.is_empty() && Instant::now() < deadline {
        statements += 1;
        sleep(Duration::from_millis(1)).await;
    }
    for connection in connections(mysql, "TRUE").await? {
        statements += 1;
        // an error means that the connection has already closed
        let _ = sqlx::raw_sql(AssertSqlSafe(format!("KILL {connection}")))
            .execute(mysql)
            .await;
    }
    Ok(statements)
}

async fn connections(mysql: &MySqlPool, which: &str) -> Result<Vec<String>> {
    let select = format!(
        "SELECT CAST(ID AS CHAR) FROM information_schema.PROCESSLIST \
         WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND {which}"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(select))
        .fetch_all(mysql)
        .await?)
}

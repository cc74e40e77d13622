//! The numbers of commands and statements that the servers report.

use std::ops::Sub;

use redis::aio::ConnectionManager;
use sqlx::MySqlPool;

use crate::Result;
use crate::servers::Servers;

/// The commands that the scripts call. Redis counts them like a client's commands; the demo's
/// clients send none of them themselves.
const IN_SCRIPTS: [&str; 23] = [
    "time",
    "hget",
    "hmget",
    "hset",
    "hsetnx",
    "hlen",
    "hexists",
    "hincrby",
    "hdel",
    "hscan",
    "hkeys",
    "pexpire",
    "pttl",
    "rename",
    "unlink",
    "sadd",
    "srem",
    "smismember",
    "zadd",
    "zcard",
    "zrem",
    "zrange",
    "zrangebyscore",
];

/// Counts since the servers were started.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Commands that clients sent to Redis.
    pub commands: u64,
    /// Commands among them that called a script.
    pub evalsha: u64,
    /// Statements that clients sent to MySQL.
    pub statements: u64,
}

impl Meter {
    pub async fn read(servers: &Servers) -> Result<Self> {
        let calls = calls(servers.redis.clone()).await?;
        let of = |wanted: &dyn Fn(&str) -> bool| {
            calls
                .iter()
                .filter(|(name, _)| wanted(name))
                .map(|(_, calls)| calls)
                .sum()
        };
        Ok(Meter {
            commands: of(&|name| !IN_SCRIPTS.contains(&name)),
            evalsha: of(&|name| name == "evalsha"),
            statements: statements(&servers.mysql).await?,
        })
    }
}

impl Sub for Meter {
    type Output = Meter;

    fn sub(self, earlier: Meter) -> Meter {
        Meter {
            commands: self.commands - earlier.commands,
            evalsha: self.evalsha - earlier.evalsha,
            statements: self.statements - earlier.statements,
        }
    }
}

/// Reads the calls of each command from lines like `cmdstat_evalsha:calls=5,usec=...`.
async fn calls(mut redis: ConnectionManager) -> Result<Vec<(String, u64)>> {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut redis)
        .await?;
    let call = |line: &str| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), stats.split(',').next()?.parse().ok()?))
    };
    Ok(info.lines().filter_map(call).collect())
}

async fn statements(mysql: &MySqlPool) -> Result<u64> {
    let (_, questions): (String, String) = sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Questions'")
        .fetch_one(mysql)
        .await?;
    Ok(questions.parse()?)
}

//! How it is recounted: as the library does, or in one of the ways that people have without it.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use counterfoil::{BufferedCounters, ErrorKind, RecountBuilder, RecountIds, Source};
use redis::aio::ConnectionManager;
use sqlx::{Connection, MySqlConnection, MySqlPool};
use tokio::time::sleep;

use super::saves::{self, PARTITIONS};
use crate::Result;
use crate::families::{NAMESPACE, Pair, Place};

/// Far longer than a writer ever takes from a row to the count of it.
pub const WITHIN: Duration = Duration::from_secs(1);
/// How long what a killed recounter held waits for another one: the lease and the timeout.
const LEASE: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// As the library does
    Proven,
    /// The number of rows is written over the stored value
    Overwrite,
    /// What waits in Redis is deleted, and the number of rows written
    Reset,
    /// Rows less value is added at once
    NoWait,
}

impl Way {
    /// As arguments of a process.
    pub fn args(self, users: u32) -> Vec<String> {
        vec![format!("--way={self}"), format!("--users={users}")]
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |way| f.write_str(way.get_name()))
    }
}

/// The recount of the library.
pub fn proven(pair: &Pair, saves: &BufferedCounters) -> RecountBuilder {
    let recount = pair.recount(saves).source(Source::table("saves", ["user_id"])).ids(RecountIds::Both);
    recount.within(WITHIN).timeout(TIMEOUT).lease(LEASE)
}

/// Recounts when nothing else happens.
pub async fn quiet(way: Way, place: &Place, pair: &Pair, saves: &BufferedCounters, users: u32) -> Result<()> {
    if way != Way::Proven {
        return Naive::new(way, place, saves, users).await?.recount().await;
    }
    // a run that was left is finished first, and may have looked at some before
    for _ in 0..2 {
        loop {
            match proven(pair, saves).run_once().await {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Busy => sleep(LEASE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// A recount of another way.
pub struct Naive {
    way: Way,
    saves: BufferedCounters,
    users: u32,
    redis: ConnectionManager,
    mysql: MySqlPool,
    url: String,
}

impl Naive {
    pub async fn new(way: Way, place: &Place, saves: &BufferedCounters, users: u32) -> Result<Self> {
        let redis = ConnectionManager::new(redis::Client::open(&*place.redis)?).await?;
        let mysql = MySqlPool::connect_lazy(&place.mysql)?;
        Ok(Naive { way, saves: saves.clone(), users, redis, mysql, url: place.mysql.clone() })
    }

    /// One recounter at a time, as with the library.
    pub async fn recount(&self) -> Result<()> {
        let mut lock = MySqlConnection::connect(&self.url).await?;
        let got: Option<i64> = sqlx::query_scalar("SELECT GET_LOCK('recount', 0)").fetch_one(&mut lock).await?;
        if got != Some(1) {
            return Ok(());
        }
        match self.way {
            Way::Proven => return Err("the library does that".into()),
            Way::Overwrite => self.overwrite().await?,
            Way::Reset => {
                self.reset().await?;
                self.overwrite().await?;
            }
            Way::NoWait => self.add_difference().await?,
        }
        Ok(lock.close().await?)
    }

    async fn overwrite(&self) -> Result<()> {
        const WRITE: &str = "INSERT INTO counterfoil_values (family, id, value) \
             SELECT (SELECT number FROM counterfoil_families WHERE name = 'saves'), user_id, COUNT(*) \
             FROM saves GROUP BY user_id ON DUPLICATE KEY UPDATE value = VALUES(value)";
        sqlx::query(WRITE).execute(&self.mysql).await?;
        Ok(())
    }

    async fn reset(&self) -> Result<()> {
        let buffers: Vec<_> =
            (0..PARTITIONS).map(|number| format!("cf1:{{{NAMESPACE}/saves/{number}}}:buffer")).collect();
        redis::cmd("DEL").arg(buffers).exec_async(&mut self.redis.clone()).await?;
        Ok(())
    }

    async fn add_difference(&self) -> Result<()> {
        let values = self.saves.get_many(saves::ids(self.users)).await?;
        let rows = saves::rows(&self.mysql).await?;
        for (user, value) in (1..).zip(values) {
            let difference = rows.get(&user).copied().unwrap_or(0) - value;
            if difference != 0 {
                let _ = self.saves.add(&user.to_string(), difference).await?;
            }
        }
        Ok(())
    }
}

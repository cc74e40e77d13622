//! The ways to recount: the library's, and those that applications use without it.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use counterfoil::recount::{RecountBuilder, RecountIds, Rows, Source};
use counterfoil::{BufferedCounters, ErrorKind};
use redis::aio::ConnectionManager;
use sqlx::{Connection, MySqlConnection, MySqlPool};
use tokio::time::sleep;

use super::saves::{self, PARTITIONS};
use crate::Result;
use crate::families::{NAMESPACE, Pair, Place};

/// The time within which a row is counted: far longer than a writer takes from inserting it to
/// counting it.
pub const WITHIN: Duration = Duration::from_secs(1);
/// The lease and the timeout, which delay the takeover from a killed recounter.
const LEASE: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Recount with the library
    Proven,
    /// Overwrite the stored value with the number of rows
    Overwrite,
    /// Delete the pending counts in Redis, then write the number of rows
    Reset,
    /// Add the number of rows minus the value at once
    NoWait,
}

impl Way {
    /// Returns the command-line arguments of a recounter.
    pub fn args(self, users: u32) -> Vec<String> {
        vec![format!("--way={self}"), format!("--users={users}")]
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value()
            .map_or(Ok(()), |way| f.write_str(way.get_name()))
    }
}

/// Returns the recount of the library.
pub fn proven(pair: &Pair, saves: &BufferedCounters) -> RecountBuilder {
    let recount = pair
        .recount(saves, Rows::Added)
        .source(Source::table("saves", ["user_id"]))
        .ids(RecountIds::Both);
    recount.within(WITHIN).timeout(TIMEOUT).lease(LEASE)
}

/// Recounts while nothing else runs.
pub async fn quiet(
    way: Way,
    place: &Place,
    pair: &Pair,
    saves: &BufferedCounters,
    users: u32,
) -> Result<()> {
    if way != Way::Proven {
        return Naive::new(way, place, saves, users).await?.recount().await;
    }
    // the first run may continue an abandoned one, which checked some ids earlier
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

/// A recount without the library.
pub struct Naive {
    way: Way,
    saves: BufferedCounters,
    users: u32,
    redis: ConnectionManager,
    mysql: MySqlPool,
    url: String,
}

impl Naive {
    pub async fn new(
        way: Way,
        place: &Place,
        saves: &BufferedCounters,
        users: u32,
    ) -> Result<Self> {
        let redis = ConnectionManager::new(redis::Client::open(&*place.redis)?).await?;
        let mysql = MySqlPool::connect_lazy(&place.mysql)?;
        Ok(Naive {
            way,
            saves: saves.clone(),
            users,
            redis,
            mysql,
            url: place.mysql.clone(),
        })
    }

    /// Recounts once. A lock admits one recounter at a time, as in the library.
    pub async fn recount(&self) -> Result<()> {
        let mut lock = MySqlConnection::connect(&self.url).await?;
        let got: Option<i64> = sqlx::query_scalar("SELECT GET_LOCK('recount', 0)")
            .fetch_one(&mut lock)
            .await?;
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
        let buffers: Vec<_> = (0..PARTITIONS)
            .map(|number| format!("cf1:{{{NAMESPACE}/saves/{number}}}:buffer"))
            .collect();
        redis::cmd("DEL")
            .arg(buffers)
            .exec_async(&mut self.redis.clone())
            .await?;
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

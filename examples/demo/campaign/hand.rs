//! Counters made by hand: hits wait in Redis until worker processes write them to a table. Each way
//! has a module, with the count of a hit first and the work of a worker after it.

mod client;
mod decrby;
mod dirty;
mod getdel;
mod jobs;
mod lock;
mod rename;
mod take;

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{ErrorKind, Pipeline};
use sqlx::MySqlPool;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use self::client::Client;
use super::journal::{Counter, Hit, now};
use super::site::VIEWS;
use super::way::Way;
use crate::child::{self, Report};
use crate::families::Place;
use crate::{Result, reconciler};

const SAVE_EVERY: Duration = Duration::from_millis(200);
/// The pause after a failure.
const RETRY: Duration = Duration::from_millis(20);

/// Adds hits to a row.
const ADD: &str = "INSERT INTO views VALUES (?, ?) ON DUPLICATE KEY UPDATE hits = hits + ?";
/// Replaces the hits of a row.
const REPLACE: &str = "INSERT INTO views VALUES (?, ?) ON DUPLICATE KEY UPDATE hits = ?";

pub struct Hand {
    way: Way,
    redis: Client,
    mysql: MySqlPool,
    /// A name that no other process has.
    worker: String,
}

impl Hand {
    pub async fn connect(way: Way, place: &Place) -> Result<Self> {
        Ok(Hand {
            way,
            redis: Client::connect(&place.redis).await?,
            mysql: MySqlPool::connect_lazy(&place.mysql)?,
            worker: format!("{}-{}", std::process::id(), now()),
        })
    }

    /// Counts all hits or none. Returns of each whether it was counted, and `None` if that is
    /// unknown.
    pub async fn count(&self, hits: &[Hit]) -> Vec<Option<bool>> {
        let outcome = match self.commands(hits).await {
            Ok(commands) => self.send(&commands).await,
            // so far nothing was counted
            Err(_) => Some(false),
        };
        vec![outcome; hits.len()]
    }

    /// Returns the commands that count, after everything that comes before them.
    async fn commands(&self, hits: &[Hit]) -> Result<Pipeline> {
        let redis = &mut self.redis.clone();
        Ok(match self.way {
            Way::Library => return Err("the library does that".into()),
            Way::Rename => rename::count(hits),
            Way::Take => take::count(hits),
            Way::Getdel => getdel::count(hits),
            Way::Decrby => decrby::count(hits),
            Way::Dirty => dirty::count(hits, redis, &self.mysql).await?,
            Way::Jobs => jobs::count(hits, redis).await?,
        })
    }

    async fn send(&self, commands: &Pipeline) -> Option<bool> {
        match commands.exec_async(&mut self.redis.clone()).await {
            Ok(()) => Some(true),
            Err(error) => match error.kind() {
                // Redis refused them
                ErrorKind::Server(_) | ErrorKind::Extension => Some(false),
                _ => None,
            },
        }
    }

    /// Saves everything once the other workers have ended.
    pub async fn drain(&self) -> Result<()> {
        // what an interrupted save left, and what was counted since
        for _ in 0..2 {
            // a server may be unavailable, and a dead worker may have the lock until it expires
            while !matches!(self.save().await, Ok(true)) {
                sleep(RETRY).await;
            }
        }
        Ok(())
    }

    /// Writes what waits to MySQL. Returns `false` if it must wait for another worker.
    async fn save(&self) -> Result<bool> {
        let (redis, mysql) = (&mut self.redis.clone(), &self.mysql);
        if self.way == Way::Jobs {
            return jobs::work(redis, mysql, &self.worker).await;
        }
        let save = async {
            let redis = &mut self.redis.clone();
            match self.way {
                Way::Rename => rename::save(redis, mysql).await,
                Way::Take => take::save(redis, mysql).await,
                Way::Getdel => getdel::save(redis, mysql).await,
                Way::Decrby => decrby::save(redis, mysql).await,
                Way::Dirty => dirty::save(redis, mysql).await,
                Way::Library | Way::Jobs => Err("it needs no lock".into()),
            }
        };
        lock::with_lock(redis, &self.worker, save).await
    }
}

/// Writes rows in a transaction.
async fn write(mysql: &MySqlPool, statement: &'static str, rows: &[(u64, i64)]) -> Result<()> {
    let mut transaction = mysql.begin().await?;
    for (id, hits) in rows {
        sqlx::query(statement)
            .bind(id)
            .bind(hits)
            .bind(hits)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Saves what was counted by hand until this process receives SIGTERM or is killed.
pub async fn run(args: reconciler::Args, way: Way) -> Result<()> {
    let _no_orders = child::orders();
    let mut stop = signal(SignalKind::terminate())?;
    let hand = Hand::connect(way, &args.place).await?;
    child::report(&Report::Ready)?;
    loop {
        tokio::select! {
            () = sleep(SAVE_EVERY) => {}
            _ = stop.recv() => return Ok(()),
        }
        // the next one saves what a failed one left
        let _ = hand.save().await;
    }
}

/// Creates the table of counters made by hand.
pub async fn create_table(mysql: &MySqlPool) -> Result<()> {
    let create = "CREATE TABLE views (id BIGINT UNSIGNED PRIMARY KEY, hits BIGINT NOT NULL)";
    sqlx::raw_sql(create).execute(mysql).await?;
    Ok(())
}

/// Returns the hits in the table.
pub async fn stored(mysql: &MySqlPool) -> Result<BTreeMap<Counter, i64>> {
    let select = sqlx::query_as("SELECT id, hits FROM views");
    let rows: Vec<(u64, i64)> = select.fetch_all(mysql).await?;
    let rows = rows.into_iter();
    Ok(rows.map(|(id, hits)| ((VIEWS, id), hits)).collect())
}

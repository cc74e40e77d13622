//! Counters made by hand: a hash in Redis, which workers add to a table.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::ConnectionManager;
use sqlx::MySqlPool;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::journal::{Counter, Hit};
use super::site::VIEWS;
use super::way::Way;
use crate::child::{self, Report};
use crate::families::Place;
use crate::{Result, reconciler};

const PENDING: &str = "views";
const SAVING: &str = "views:saving";
const LOCK: &str = "views:lock";
/// The time for which a worker alone saves.
const LOCKED: u64 = 5;
const SAVE_EVERY: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_millis(20);
/// The time within which a client library repeats a command.
const REPEATED: Duration = Duration::from_secs(2);

pub struct Hand {
    way: Way,
    redis: ConnectionManager,
    mysql: MySqlPool,
}

impl Hand {
    pub async fn connect(way: Way, place: &Place) -> Result<Self> {
        let redis = redis::Client::open(&*place.redis)?;
        let redis = loop {
            match redis.get_connection_manager().await {
                Ok(redis) => break redis,
                Err(_) => sleep(RETRY).await,
            }
        };
        let mysql = MySqlPool::connect_lazy(&place.mysql)?;
        Ok(Hand { way, redis, mysql })
    }

    pub async fn count(&self, hits: &[Hit]) -> Vec<Option<bool>> {
        let mut pipe = redis::pipe();
        for hit in hits {
            pipe.hincr(PENDING, hit.id, 1);
        }
        let start = Instant::now();
        let outcome = loop {
            match pipe.exec_async(&mut self.redis.clone()).await {
                Ok(()) => break Some(true),
                // as most client libraries do
                Err(error) if error.is_io_error() || error.is_timeout() => {}
                Err(_) => break Some(false),
            }
            if start.elapsed() > REPEATED {
                break None;
            }
            sleep(RETRY).await;
        };
        vec![outcome; hits.len()]
    }

    /// Adds everything to MySQL once no worker saves any more.
    pub async fn drain(&self) -> Result<()> {
        sleep(Duration::from_secs(LOCKED)).await;
        // what an interrupted save left, and what was counted since
        for _ in 0..2 {
            // the connection may be that of a server that crashed
            while self.save().await.is_err() {
                sleep(RETRY).await;
            }
        }
        Ok(())
    }

    /// Adds what is pending to MySQL, unless another worker does.
    async fn save(&self) -> Result<()> {
        let mut redis = self.redis.clone();
        let lock = redis::cmd("SET")
            .arg(LOCK)
            .arg(&["1", "NX", "EX"])
            .arg(LOCKED)
            .to_owned();
        let is_locked: Option<String> = lock.query_async(&mut redis).await?;
        if is_locked.is_none() {
            return Ok(());
        }
        let pending: HashMap<u64, i64> = if self.way == Way::Take {
            let mut take = redis::pipe();
            take.atomic().hgetall(PENDING).del(PENDING).ignore();
            let (pending,) = take.query_async(&mut redis).await?;
            pending
        } else {
            // there is nothing to rename if nothing was counted, or if the last save was interrupted
            let _: redis::RedisResult<bool> = redis.rename_nx(PENDING, SAVING).await;
            redis.hgetall(SAVING).await?
        };
        let mut transaction = self.mysql.begin().await?;
        for (id, hits) in pending {
            sqlx::query("INSERT INTO views VALUES (?, ?) ON DUPLICATE KEY UPDATE hits = hits + ?")
                .bind(id)
                .bind(hits)
                .bind(hits)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        let _: () = redis.del(&[SAVING, LOCK]).await?;
        Ok(())
    }
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

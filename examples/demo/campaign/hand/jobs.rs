//! Each hit is a job in a queue. A worker moves a job to a list of its own, adds it, and removes it
//! from the list. The jobs of a worker without a heartbeat go back to the queue.
//!
//! This is the reliable fetch of Sidekiq, as the gems gitlab-sidekiq-fetcher and sidekiq-power-fetch
//! implement it, and the reliable queue of the documentation of LMOVE.

use std::time::Duration;

use futures_util::future::join_all;
use redis::{AsyncCommands, Direction, Pipeline, RedisResult};
use sqlx::MySqlPool;
use tokio::time::sleep;

use super::client::Client;
use super::{ADD, SAVE_EVERY};
use crate::Result;
use crate::campaign::journal::Hit;

const QUEUE: &str = "queue:views";
const WORKING: &str = "working:queue:views:";
/// The number of threads of a worker: Sidekiq's default.
const THREADS: usize = 5;
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// The time after its last heartbeat when a worker is taken for dead, in seconds.
const DEAD_AFTER: u64 = 5;
/// The most waiting jobs: writers count far faster than workers add one hit at a time.
const MOST: usize = 2_000;

/// Counts once the queue is short enough.
pub async fn count(hits: &[Hit], redis: &mut Client) -> Result<Pipeline> {
    while redis.llen::<_, usize>(QUEUE).await? > MOST {
        sleep(SAVE_EVERY).await;
    }
    let job = |hit: &Hit| format!("{} {}", hit.id, hit.name);
    let jobs: Vec<_> = hits.iter().map(job).collect();
    let mut commands = redis::pipe();
    commands.lpush(QUEUE, jobs).ignore();
    Ok(commands)
}

/// Works until the queue is empty. Returns whether no other worker has jobs.
pub async fn work(redis: &mut Client, mysql: &MySqlPool, worker: &str) -> Result<bool> {
    beat(redis.clone(), worker).await?;
    let is_alone = recover(redis, worker).await?;
    let threads = (0..THREADS).map(|_| work_in_turn(redis.clone(), mysql, worker));
    let beats = async {
        loop {
            sleep(BEAT_EVERY).await;
            // the next one may arrive
            let _ = beat(redis.clone(), worker).await;
        }
    };
    tokio::select! {
        // each thread ends by itself: a job that was interrupted would be done twice
        ended = join_all(threads) => ended.into_iter().collect::<Result<()>>()?,
        () = beats => {}
    }
    Ok(is_alone)
}

/// Does one job after the other. A job that fails stays in the list, and is repeated.
async fn work_in_turn(mut redis: Client, mysql: &MySqlPool, worker: &str) -> Result<()> {
    let list = format!("{WORKING}{worker}");
    loop {
        let job: Option<String> = redis
            .lmove(QUEUE, &list, Direction::Right, Direction::Left)
            .await?;
        let Some(job) = job else {
            return Ok(());
        };
        perform(&job, mysql).await?;
        let _: i64 = redis.lrem(&list, 1, job).await?;
    }
}

async fn perform(job: &str, mysql: &MySqlPool) -> Result<()> {
    let id: u64 = job.split(' ').next().unwrap_or_default().parse()?;
    sqlx::query(ADD)
        .bind(id)
        .bind(1)
        .bind(1)
        .execute(mysql)
        .await?;
    Ok(())
}

async fn beat(mut redis: Client, worker: &str) -> RedisResult<()> {
    redis.set_ex(heartbeat(worker), 1, DEAD_AFTER).await
}

fn heartbeat(worker: &str) -> String {
    format!("heartbeat:{worker}")
}

/// Puts the jobs of dead workers back into the queue, and those of this one, which has no threads
/// yet. Returns whether no other worker has jobs.
async fn recover(redis: &mut Client, worker: &str) -> Result<bool> {
    let (mut lists, mut is_alone) = (Vec::new(), true);
    let mut found = redis.scan_match::<_, String>(format!("{WORKING}*")).await?;
    while let Some(list) = found.next_item().await {
        lists.push(list?);
    }
    drop(found);
    for list in lists {
        let owner = list.strip_prefix(WORKING).unwrap_or_default();
        if owner != worker && redis.exists(heartbeat(owner)).await? {
            is_alone = false;
            continue;
        }
        loop {
            let back = redis.lmove(&list, QUEUE, Direction::Left, Direction::Right);
            let job: Option<String> = back.await?;
            if job.is_none() {
                break;
            }
        }
    }
    Ok(is_alone)
}

//! Redis has the value of a counter, which it gets from the row when it is first counted. A job
//! writes the values that changed back to their rows: a write-behind cache.
//!
//! The question "How to store counters on Redis while minimizing potential data loss" on Stack
//! Exchange describes it.

use std::collections::BTreeSet;

use redis::{AsyncCommands, Pipeline};
use sqlx::MySqlPool;

use super::client::Client;
use super::{REPLACE, write};
use crate::Result;
use crate::campaign::journal::Hit;

const DIRTY: &str = "views:dirty";
/// The most counters that a job writes.
const BATCH: u64 = 10_000;

fn key(id: u64) -> String {
    format!("views:{id}")
}

pub async fn count(hits: &[Hit], redis: &mut Client, mysql: &MySqlPool) -> Result<Pipeline> {
    let ids: BTreeSet<u64> = hits.iter().map(|hit| hit.id).collect();
    let keys: Vec<_> = ids.iter().map(|id| key(*id)).collect();
    let values: Vec<Option<i64>> = redis.mget(keys).await?;
    let mut commands = redis::pipe();
    commands.atomic();
    for (id, value) in ids.into_iter().zip(values) {
        if value.is_none() {
            let select = sqlx::query_scalar("SELECT hits FROM views WHERE id = ?").bind(id);
            let stored: Option<i64> = select.fetch_optional(mysql).await?;
            commands.set_nx(key(id), stored.unwrap_or(0)).ignore();
        }
        commands.sadd(DIRTY, id).ignore();
    }
    for hit in hits {
        commands.cmd("INCR").arg(key(hit.id)).ignore();
    }
    Ok(commands)
}

pub async fn save(redis: &mut Client, mysql: &MySqlPool) -> Result<()> {
    // before their values are read: a counter that changes from now on is dirty again
    let mut pop = redis::cmd("SPOP");
    let ids: Vec<u64> = pop.arg(DIRTY).arg(BATCH).query_async(redis).await?;
    if ids.is_empty() {
        return Ok(());
    }
    let written = write_back(&ids, redis, mysql).await;
    if written.is_err() {
        let _: () = redis.sadd(DIRTY, ids).await?;
    }
    written
}

async fn write_back(ids: &[u64], redis: &mut Client, mysql: &MySqlPool) -> Result<()> {
    let keys: Vec<_> = ids.iter().map(|id| key(*id)).collect();
    let values: Vec<Option<i64>> = redis.mget(keys).await?;
    let rows = ids.iter().zip(values);
    let rows: Vec<_> = rows.filter_map(|(id, value)| Some((*id, value?))).collect();
    write(mysql, REPLACE, &rows).await
}

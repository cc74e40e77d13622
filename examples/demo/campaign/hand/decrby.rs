//! A job adds the value of each counter, and subtracts from it what was added, so that hits in
//! between stay.

use std::collections::BTreeSet;

use redis::{AsyncCommands, Pipeline};
use sqlx::MySqlPool;

use super::client::Client;
use super::{ADD, write};
use crate::Result;
use crate::campaign::journal::Hit;

const PREFIX: &str = "views:";

fn key(id: u64) -> String {
    format!("{PREFIX}{id}")
}

pub fn count(hits: &[Hit]) -> Pipeline {
    let mut commands = redis::pipe();
    commands.atomic();
    for hit in hits {
        commands.cmd("INCR").arg(key(hit.id)).ignore();
    }
    commands
}

pub async fn save(redis: &mut Client, mysql: &MySqlPool) -> Result<()> {
    let pending = pending(redis).await?;
    // in one transaction, and before anything is subtracted: a failure leaves the values in Redis
    write(mysql, ADD, &pending).await?;
    let mut subtract = redis::pipe();
    subtract.atomic();
    for (id, hits) in pending {
        subtract.decr(key(id), hits).ignore();
    }
    Ok(subtract.exec_async(redis).await?)
}

/// Returns the counters above zero. To delete the others would lose a hit that arrives meanwhile.
async fn pending(redis: &mut Client) -> Result<Vec<(u64, i64)>> {
    let mut ids = BTreeSet::new();
    let mut found = redis.scan_match::<_, String>(format!("{PREFIX}*")).await?;
    while let Some(key) = found.next_item().await {
        ids.insert(key?.trim_start_matches(PREFIX).parse::<u64>()?);
    }
    drop(found);
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<_> = ids.iter().map(|id| key(*id)).collect();
    let values: Vec<Option<i64>> = redis.mget(keys).await?;
    let pending = ids.into_iter().zip(values);
    Ok(pending
        .filter_map(|(id, hits)| Some((id, hits.filter(|hits| *hits > 0)?)))
        .collect())
}

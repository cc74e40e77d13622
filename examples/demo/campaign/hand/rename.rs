//! A hash is renamed, added and deleted. If the worker dies in between, the next one adds it.
//!
//! GitLab moves each counter to a second key in the same way, and deletes that key before the
//! transaction commits (`lib/gitlab/counters/buffered_counter.rb`).

use redis::{AsyncCommands, Pipeline, RedisResult};
use sqlx::MySqlPool;

use super::client::Client;
use super::{ADD, write};
use crate::Result;
use crate::campaign::journal::Hit;

const PENDING: &str = "views";
const SAVING: &str = "views:saving";

pub fn count(hits: &[Hit]) -> Pipeline {
    let mut commands = redis::pipe();
    commands.atomic();
    for hit in hits {
        commands.hincr(PENDING, hit.id, 1).ignore();
    }
    commands
}

pub async fn save(redis: &mut Client, mysql: &MySqlPool) -> Result<()> {
    // there is nothing to rename if nothing was counted, or if the last save was interrupted
    let _: RedisResult<bool> = redis.rename_nx(PENDING, SAVING).await;
    let pending: Vec<(u64, i64)> = redis.hgetall(SAVING).await?;
    write(mysql, ADD, &pending).await?;
    let _: () = redis.del(SAVING).await?;
    Ok(())
}

//! A hash is read and deleted in one step, and then added.

use redis::Pipeline;
use sqlx::MySqlPool;

use super::client::Client;
use super::{ADD, write};
use crate::Result;
use crate::campaign::journal::Hit;

const PENDING: &str = "views";

pub fn count(hits: &[Hit]) -> Pipeline {
    let mut commands = redis::pipe();
    commands.atomic();
    for hit in hits {
        commands.hincr(PENDING, hit.id, 1).ignore();
    }
    commands
}

pub async fn save(redis: &mut Client, mysql: &MySqlPool) -> Result<()> {
    let mut take = redis::pipe();
    take.atomic().hgetall(PENDING).del(PENDING).ignore();
    let (pending,): (Vec<(u64, i64)>,) = take.query_async(redis).await?;
    write(mysql, ADD, &pending).await
}

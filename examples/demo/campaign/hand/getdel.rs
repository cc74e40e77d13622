//! A job takes the key of each counter that was touched, and adds it.
//!
//! Discourse does so under a lock (`app/models/concerns/cached_counting.rb`, a script of HGET and
//! HDEL), and XenForo's add-on RedisViewCounter in a cron job (`Repository/ContentView.php`, a script
//! of GET and DEL). Wanelo's gem counter-cache sends GET and then DEL, which also loses hits that
//! arrive in between.

use redis::{AsyncCommands, Pipeline};
use sqlx::MySqlPool;

use super::client::Client;
use super::{ADD, write};
use crate::Result;
use crate::campaign::journal::Hit;

const TOUCHED: &str = "views:touched";

fn key(id: u64) -> String {
    format!("views:{id}")
}

pub fn count(hits: &[Hit]) -> Pipeline {
    let mut commands = redis::pipe();
    commands.atomic();
    for hit in hits {
        commands.cmd("INCR").arg(key(hit.id)).ignore();
        commands.sadd(TOUCHED, hit.id).ignore();
    }
    commands
}

pub async fn save(redis: &mut Client, mysql: &MySqlPool) -> Result<()> {
    let touched: Vec<u64> = redis.smembers(TOUCHED).await?;
    for id in touched {
        let mut take = redis::pipe();
        take.atomic().srem(TOUCHED, id).ignore().get_del(key(id));
        let (hits,): (Option<i64>,) = take.query_async(redis).await?;
        if let Some(hits) = hits {
            write(mysql, ADD, &[(id, hits)]).await?;
        }
    }
    Ok(())
}

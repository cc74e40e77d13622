//! The lock of the workers, of whom one at a time saves.

use redis::RedisResult;

use super::client::Client;
use crate::Result;

const LOCK: &str = "lock:views";
/// The time after which the lock of a worker that died expires, in seconds.
const EXPIRES: u64 = 5;
/// Deletes the lock unless it has expired, and is another worker's.
const UNLOCK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end";

/// Does the work unless another worker has the lock. Returns whether it was done.
pub async fn with_lock(
    redis: &mut Client,
    worker: &str,
    work: impl Future<Output = Result<()>>,
) -> Result<bool> {
    let is_locked: Option<String> = redis::cmd("SET")
        .arg(LOCK)
        .arg(worker)
        .arg("NX")
        .arg("EX")
        .arg(EXPIRES)
        .query_async(redis)
        .await?;
    if is_locked.is_none() {
        return Ok(false);
    }
    let done = work.await;
    let mut unlock = redis::cmd("EVAL");
    unlock.arg(UNLOCK).arg(1).arg(LOCK).arg(worker);
    // a lock that is left expires
    let _: RedisResult<()> = unlock.query_async(redis).await;
    done.map(|()| true)
}

//! A client of Redis that repeats commands after a lost connection, as redis-py, redis-rb, go-redis
//! and ioredis do by default.

use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value};
use tokio::time::{Instant, sleep};

use super::RETRY;
use crate::Result;

/// The time within which a command is repeated.
const REPEATED: Duration = Duration::from_secs(2);
/// The time within which Redis replies: the default of go-redis, and of Sidekiq.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The longest pause before another attempt to connect.
const RECONNECT: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub struct Client(ConnectionManager);

impl Client {
    pub async fn connect(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(TIMEOUT))
            .set_max_delay(RECONNECT);
        loop {
            let connected = client.get_connection_manager_with_config(config.clone());
            match connected.await {
                Ok(redis) => return Ok(Client(redis)),
                Err(_) => sleep(RETRY).await,
            }
        }
    }
}

impl ConnectionLike for Client {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let redis = &self.0;
        Box::pin(repeat(move || {
            let mut redis = redis.clone();
            async move { redis.send_packed_command(cmd).await }
        }))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let redis = &self.0;
        Box::pin(repeat(move || {
            let mut redis = redis.clone();
            async move {
                let sent = redis.send_packed_commands(pipeline, offset, count);
                sent.await?.into_iter().map(Value::extract_error).collect()
            }
        }))
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

/// Repeats a call until its outcome is known, or the time is over.
async fn repeat<T, F>(call: impl Fn() -> F) -> RedisResult<T>
where
    F: Future<Output = RedisResult<T>>,
{
    let (start, mut lost) = (Instant::now(), None);
    loop {
        match call().await {
            Ok(reply) => return Ok(reply),
            Err(error) if error.is_io_error() && start.elapsed() < REPEATED => lost = Some(error),
            // one that was lost may have been executed
            Err(error) => return Err(lost.unwrap_or(error)),
        }
        sleep(RETRY).await;
    }
}

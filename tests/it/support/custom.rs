//! A connection of a type that counterfoil does not know.

use redis::aio::ConnectionLike;
use redis::{Pipeline, RedisFuture, Value};

use crate::support::*;

/// A connection whose commands a function executes.
#[derive(Clone)]
struct Custom<F>(F);

/// A connection that may resend.
pub const RESENDS: CustomConnection = CustomConnection {
    resends: true,
    is_cluster: false,
};

/// Returns a connection whose commands the function executes. It may resend.
pub fn custom<F, Reply>(execute: F) -> Connection
where
    F: Fn(Cmd) -> Reply + Clone + Send + Sync + 'static,
    Reply: Future<Output = RedisResult<Value>> + Send + 'static,
{
    Connection::custom(Custom(execute), RESENDS)
}

/// Returns a connection whose commands the function executes once.
pub fn custom_once<F, Reply>(execute: F) -> Connection
where
    F: Fn(Cmd) -> Reply + Clone + Send + Sync + 'static,
    Reply: Future<Output = RedisResult<Value>> + Send + 'static,
{
    Connection::custom(Custom(execute), CustomConnection::default())
}

/// Returns a connection on which each command first waits for the function, which may fail it.
pub async fn interposed<F, Before>(redis: &RedisServer, before: F) -> Connection
where
    F: Fn(&Cmd) -> Before + Clone + Send + Sync + 'static,
    Before: Future<Output = RedisResult<()>> + Send + 'static,
{
    let redis = redis.manager().await;
    custom(move |cmd| {
        let (mut redis, before) = (redis.clone(), before(&cmd));
        async move {
            before.await?;
            redis.req_packed_command(&cmd).await
        }
    })
}

/// Returns whether the command contains the text.
pub fn mentions(cmd: &Cmd, text: &str) -> bool {
    String::from_utf8_lossy(&cmd.get_packed_command()).contains(text)
}

/// Returns a connection that loses every n-th call: its reply, or by turns its reply and the call
/// itself.
pub async fn lossy(redis: &RedisServer, every: u64, replies_only: bool) -> Connection {
    let (redis, calls) = (redis.manager().await, Arc::new(AtomicU64::new(1)));
    custom(move |cmd| {
        let (mut redis, call) = (redis.clone(), calls.fetch_add(1, Ordering::Relaxed));
        async move {
            if !call.is_multiple_of(every) {
                return redis.req_packed_command(&cmd).await;
            }
            if replies_only || !(call / every).is_multiple_of(2) {
                drop(redis.req_packed_command(&cmd).await);
            }
            Err(cut_off())
        }
    })
}

/// Returns the error of a connection that broke.
pub fn cut_off() -> redis::RedisError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

impl<F, Reply> ConnectionLike for Custom<F>
where
    F: Fn(Cmd) -> Reply + Send + Sync,
    Reply: Future<Output = RedisResult<Value>> + Send + 'static,
{
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin((self.0)(cmd.clone()))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("counterfoil sends no pipelines")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

//! How a test is connected to its Redis.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{self, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionLike as _, FromRedisValue, Pipeline, RedisFuture, RedisResult, Value,
};
use testkit::RedisServer;

pub trait Connect: aio::ConnectionLike + Clone + 'static {
    async fn to(server: &RedisServer) -> Self;
}

impl Connect for MultiplexedConnection {
    async fn to(server: &RedisServer) -> Self {
        // on a busy machine an answer may take long
        let patience = Some(Duration::from_secs(20));
        let patient = AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
        let connection = server.client().get_multiplexed_async_connection_with_config(&patient).await;
        connection.expect("a connection to the private Redis")
    }
}

impl Connect for Direct {
    async fn to(server: &RedisServer) -> Self {
        let connection = server.client().get_connection().expect("a connection to the private Redis");
        Direct(Arc::new(Mutex::new(connection)))
    }
}

/// One connection to Redis: whatever is sent is answered before anything else happens.
#[derive(Clone)]
pub struct Direct(Arc<Mutex<redis::Connection>>);

impl Direct {
    pub fn run(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.connection().req_command(cmd)
    }

    pub fn run_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> RedisResult<T> {
        pipeline.query(&mut *self.connection())
    }

    fn connection(&self) -> MutexGuard<'_, redis::Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl aio::ConnectionLike for Direct {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async { self.run(cmd) })
    }

    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("nothing is pipelined")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

//! The connections of a test to its Redis.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{self, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionLike as _, FromRedisValue, Pipeline, RedisFuture,
    RedisResult, Value,
};
use testkit::RedisServer;

pub trait Connect: aio::ConnectionLike + Into<counterfoil::Connection> + Clone + 'static {
    async fn to(server: &RedisServer) -> Self;

    /// Connects again to a restarted server.
    async fn again(&mut self, server: &RedisServer) {
        *self = Self::to(server).await;
    }
}

/// A connection whose clones recover with it, like those of a `ConnectionManager`. A reader
/// continues after a crash of Redis, and does not have to wait for its timeout.
#[derive(Clone)]
pub struct Lasting(Arc<Mutex<MultiplexedConnection>>);

impl Lasting {
    async fn connect(server: &RedisServer) -> MultiplexedConnection {
        // on a busy machine a reply may take long
        let limit = Some(Duration::from_secs(20));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(limit)
            .set_response_timeout(limit);
        let connection = server
            .client()
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        connection.expect("a connection to the private Redis")
    }

    fn connection(&self) -> MutexGuard<'_, MultiplexedConnection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connect for Lasting {
    async fn to(server: &RedisServer) -> Self {
        Lasting(Arc::new(Mutex::new(Self::connect(server).await)))
    }

    async fn again(&mut self, server: &RedisServer) {
        let connection = Self::connect(server).await;
        *self.connection() = connection;
    }
}

impl From<Lasting> for counterfoil::Connection {
    fn from(connection: Lasting) -> Self {
        counterfoil::Connection::custom(connection)
    }
}

impl aio::ConnectionLike for Lasting {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.connection().clone();
        Box::pin(async move { connection.req_packed_command(cmd).await })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        at: usize,
        n: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let mut connection = self.connection().clone();
        Box::pin(async move { connection.req_packed_commands(pipe, at, n).await })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl Connect for Direct {
    async fn to(server: &RedisServer) -> Self {
        let connection = server
            .client()
            .get_connection()
            .expect("a connection to the private Redis");
        Direct(Arc::new(Mutex::new(connection)))
    }
}

/// One connection to Redis: every call receives its reply before anything else happens.
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

impl From<Direct> for counterfoil::Connection {
    fn from(connection: Direct) -> Self {
        counterfoil::Connection::custom(connection)
    }
}

impl aio::ConnectionLike for Direct {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async { self.run(cmd) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("nothing is pipelined")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

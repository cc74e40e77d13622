//! The connections of a test to its Redis.

use redis::aio::{self};
use redis::{ConnectionLike as _, Pipeline, RedisFuture, Value};

use crate::support::*;

pub trait Connect: aio::ConnectionLike + Into<counterfoil::Connection> + Clone + 'static {
    async fn to(server: &RedisServer) -> Self;

    /// Connects again to a restarted server.
    async fn again(&mut self, server: &RedisServer) {
        *self = Self::to(server).await;
    }
}

/// A connection for cases with a reader, which continues after a crash of Redis, because all clones
/// connect again.
impl Connect for ConnectionManager {
    async fn to(server: &RedisServer) -> Self {
        // on a busy machine a reply may take long
        let limit = Some(secs(20));
        ConnectionManager::new_with_config(
            server.client(),
            ConnectionManagerConfig::new()
                .set_connection_timeout(limit)
                .set_response_timeout(limit)
                .set_min_delay(millis(2))
                .set_max_delay(millis(50)),
        )
        .await
        .unwrap()
    }

    async fn again(&mut self, _: &RedisServer) {
        while cmd("PING").exec_async(self).await.is_err() {
            pause(1).await;
        }
    }
}

impl Connect for Direct {
    async fn to(server: &RedisServer) -> Self {
        Direct(Arc::new(Mutex::new(
            server.client().get_connection().unwrap(),
        )))
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
        counterfoil::Connection::custom(connection, RESENDS)
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

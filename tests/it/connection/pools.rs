//! An application's pool as a connection. The guide has an example for deadpool-redis.

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use counterfoil::{Connection, Counterfoil, MemoryStore};
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};
use testkit::{RedisOptions, RedisServer};

use crate::support::{counted, family};

#[derive(Clone)]
struct Pooled(Pool<RedisConnectionManager>);

impl ConnectionLike for Pooled {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async {
            self.0
                .get()
                .await
                .map_err(std::io::Error::other)?
                .req_packed_command(cmd)
                .await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let mut connection = self.0.get().await.map_err(std::io::Error::other)?;
            connection.req_packed_commands(pipe, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[tokio::test]
async fn a_pool_counts_and_flushes() {
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    let manager = RedisConnectionManager::new(redis.url()).unwrap();
    let pool = Pool::builder().max_size(3).build(manager).await.unwrap();
    let connection = Connection::custom(Pooled(pool)).sending_once();
    let counterfoil = Counterfoil::new(connection, MemoryStore::new());
    let views = counterfoil.open(family("views")).await.unwrap();
    let adding = (0..100).map(|_| views.add("page", 1));
    let mut pending: Vec<_> = futures_util::future::join_all(adding)
        .await
        .into_iter()
        .map(|added| counted(added.unwrap()))
        .collect();
    pending.sort_unstable();
    assert_eq!(pending, (1..=100).collect::<Vec<_>>());
    counterfoil.drain().await.unwrap();
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(100)]);
}

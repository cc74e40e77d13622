//! An application's pool as a connection. The guide has an example for deadpool-redis.

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use redis::aio::ConnectionLike;

use crate::support::*;

#[tokio::test]
async fn a_pool_counts_and_flushes() {
    let redis = new_redis().await;
    let pool = Pool::builder()
        .max_size(3)
        .build(RedisConnectionManager::new(redis.url()).unwrap())
        .await
        .unwrap();
    let counterfoil = Counterfoil::new(
        custom(move |cmd| {
            let pool = pool.clone();
            async move {
                pool.get()
                    .await
                    .map_err(std::io::Error::other)?
                    .req_packed_command(&cmd)
                    .await
            }
        })
        .sending_once(),
        MemoryStore::new(),
    );
    let views = counterfoil.opened(family("views")).await;
    let mut pending =
        futures_util::future::join_all((0..100).map(|_| views.count("page", 1))).await;
    pending.sort_unstable();
    assert_eq!(pending, (1..=100).collect::<Vec<_>>());
    counterfoil.drained().await;
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(100)]);
}

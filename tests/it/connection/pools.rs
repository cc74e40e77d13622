//! An application's pool as a connection. The guide has a program for one.

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use redis::aio::ConnectionLike;

use crate::support::*;

/// The number of calls in flight, and the most so far.
#[derive(Clone, Default)]
struct InFlight(Arc<(AtomicUsize, AtomicUsize)>);

impl InFlight {
    fn enter(&self) {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the most since the last call.
    fn take_most(&self) -> usize {
        self.0.1.swap(0, Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_pool_counts_and_flushes_with_few_connections() {
    let redis = new_redis().await;
    let pool = Pool::builder()
        .max_size(3)
        .build(RedisConnectionManager::new(redis.url()).unwrap())
        .await
        .unwrap();
    let in_flight = InFlight::default();
    let calls = in_flight.clone();
    let counterfoil = Counterfoil::new(
        custom_once(move |cmd| {
            let (pool, calls) = (pool.clone(), calls.clone());
            async move {
                calls.enter();
                let mut connection = pool.get().await.map_err(std::io::Error::other)?;
                let reply = connection.req_packed_command(&cmd).await;
                calls.leave();
                reply
            }
        }),
        MemoryStore::new(),
    );
    let views = counterfoil.opened(family("views")).await;
    in_flight.take_most();
    let mut pending = join_all((0..100).map(|_| views.count("page", 1))).await;
    for _ in 0..20 {
        join_all((0..100).map(|number| views.count(PAGES[number % 5], 0))).await;
    }
    let counting = in_flight.take_most();
    join_all((0..10).map(|_| views.value("page"))).await;
    let reading = in_flight.take_most();
    pending.sort_unstable();
    assert_eq!(pending, (1..=100).collect::<Vec<_>>());
    counterfoil.drained().await;
    let draining = in_flight.take_most();
    println!(
        "calls in flight: {counting} of writers, {reading} of 10 reads, {draining} of a drain"
    );
    assert!(counting <= 3 && reading <= 10 && draining <= 4);
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(100)]);
}

const PAGES: [&str; 5] = ["page", "a", "b", "c", "d"];

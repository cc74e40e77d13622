//! One pair on many runtimes, as tests share it. A runtime that ends takes nothing with it that
//! others need.

use std::thread;
use std::time::Duration;

use crate::support::{Plain, counted, family};
use counterfoil::{Counterfoil, MemoryStore, MysqlStore, Outcome, Primary};
use testkit::{MysqlServer, RedisOptions, RedisServer};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

const THREADS: i64 = 4;
const ROUNDS: i64 = 60;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_pair_outlives_the_runtimes_that_use_it() {
    let home = runtime();
    let (redis, mysql) = home.block_on(async {
        (
            RedisServer::start(RedisOptions::volatile()).await,
            MysqlServer::start().await,
        )
    });
    let (database, pool) = home.block_on(mysql.database("test"));
    home.block_on(MysqlStore::new(pool).create_tables())
        .unwrap();
    // the runtime that connects ends first
    let views = runtime().block_on(async {
        let pair = Counterfoil::connect(&redis.url(), &mysql.url(&database))
            .await
            .unwrap();
        pair.open(family("views")).await.unwrap()
    });
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let views = views.clone();
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    runtime().block_on(async {
                        let adds: Vec<_> = (0..8)
                            .map(|_| {
                                tokio::spawn({
                                    let views = views.clone();
                                    async move { views.add("page", 1).await }
                                })
                            })
                            .collect();
                        for add in adds {
                            let added = add.await.unwrap();
                            assert!(
                                matches!(added, Ok(Outcome::Counted(_))),
                                "{thread}, {round}: {added:?}"
                            );
                        }
                        let stored = views.stored(&["page"]).await;
                        assert!(stored.is_ok(), "{thread}, {round}: {stored:?}");
                    });
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    // the connection has ended with its runtime, which one read may notice
    let value = home.block_on(async {
        match views.get("page").await {
            Err(error) if error.is_retryable() => views.get("page").await,
            value => value,
        }
    });
    assert_eq!(value.unwrap(), 8 * THREADS * ROUNDS);
}

/// A thread that blocks on each hit polls nothing in between, and its timers end with its runtime.
#[test]
fn threads_with_runtimes_of_their_own_share_calls() {
    const EACH: i64 = 250;
    let home = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let plain = home.block_on(Plain::new());
    let views = home.block_on(plain.open(family("views")));
    let threads: Vec<_> = (0..2 * THREADS)
        .map(|_| {
            let views = views.clone();
            thread::spawn(move || {
                let own = runtime();
                let told = (0..EACH).map(|_| counted(own.block_on(views.add("page", 1)).unwrap()));
                told.collect::<Vec<_>>()
            })
        })
        .collect();
    let mut told: Vec<_> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    told.sort_unstable();
    assert!(
        told.into_iter().eq(1..=2 * THREADS * EACH),
        "each hit is told its own value"
    );
}

/// A search for the primary ends with its runtime. The next call begins it again.
#[test]
fn a_search_ends_with_its_runtime() {
    let home = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let redis = home.block_on(RedisServer::start(RedisOptions::volatile()));
    let doomed = runtime();
    let views = doomed.block_on(async {
        let pair = Counterfoil::new(
            Primary::connect(redis.url()).await.unwrap(),
            MemoryStore::new(),
        );
        pair.open(family("views")).await.unwrap()
    });
    let _: () = home.block_on(redis.run("CLIENT KILL TYPE normal")).unwrap();
    redis.pause();
    let waited =
        doomed.block_on(async { timeout(Duration::from_millis(200), views.add("page", 1)).await });
    assert!(waited.is_err(), "the search takes long: {waited:?}");
    drop(doomed);
    redis.resume();
    assert!(matches!(
        home.block_on(views.add("page", 1)),
        Ok(Outcome::Counted(_))
    ));
}

/// Paused time jumps to the time limit of a waiting call. A call on a runtime with real time is not
/// affected.
#[tokio::test(start_paused = true)]
async fn time_that_is_paused_stays_with_its_own_runtime() {
    let home = thread::spawn(|| {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    })
    .join()
    .unwrap();
    let counted = home.spawn(async {
        let plain = Plain::new().await;
        let views = plain.open(family("views")).await;
        for _ in 0..100 {
            let _ = views.add("page", 1).await.unwrap();
        }
        views.get("page").await.unwrap()
    });
    let began = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(began.elapsed() >= Duration::from_secs(3600));
    assert_eq!(counted.await.unwrap(), 100);
    home.shutdown_background();
}

//! The time until the library detects that Redis was set back. Redis has its default snapshots and
//! no append-only file, and is killed under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use counterfoil::{Counterfoil, Durability, Family, MysqlStore};
use redis::aio::ConnectionManager;
use testkit::{RedisOptions, RedisServer};
use tokio::time::sleep;

use crate::measuring::{Bench, median};

const NAMES: [&str; 4] = [
    "set_back_hits_median",
    "set_back_hits_max",
    "set_back_seconds_median",
    "set_back_seconds_max",
];
const TASKS: usize = 64;
const PARTITIONS: u32 = 4;

/// The hits and seconds from the restart of Redis until its last partition has a new incarnation.
struct Detection {
    hits: f64,
    seconds: f64,
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&NAMES) {
        return;
    }
    // Redis's default snapshot rules
    let redis =
        RedisServer::start(RedisOptions::volatile().arg("save", "3600 1 300 100 60 10000")).await;
    let (_, pool) = bench.servers.mysql().await.database("bench").await;
    let store = MysqlStore::new(&pool).unwrap();
    store.create_tables().await.unwrap();
    let pair = Counterfoil::new(redis.manager().await, store);
    let family = Family::buffered("bench", "views")
        .partitions(PARTITIONS)
        .durability(Durability::Immediate);
    let views = pair
        .open(family.sync_hits(50).sync_time(Duration::from_millis(200)))
        .await
        .unwrap();
    let reconciler = pair.reconciler().start().await.unwrap();
    let (counted, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (views, counted, stop) = (views.clone(), counted.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match views.add(&format!("page/{task}"), 1).await {
                        Ok(_) => _ = counted.fetch_add(1, Ordering::Relaxed),
                        Err(_) => sleep(Duration::from_millis(1)).await,
                    }
                }
            })
        })
        .collect();
    let mut found = Vec::new();
    for _ in 0..bench.size(20, 5) {
        found.push(set_back(&redis, &counted).await);
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    reconciler.shutdown().await.unwrap();
    let [hits, seconds] =
        [|one: &Detection| one.hits, |one: &Detection| one.seconds].map(|of| found.iter().map(of));
    bench.absolute(NAMES[0], median(hits.clone()));
    bench.absolute(NAMES[1], hits.fold(0.0, f64::max));
    bench.absolute(NAMES[2], median(seconds.clone()));
    bench.absolute(NAMES[3], seconds.fold(0.0, f64::max));
}

/// Kills and restarts Redis a while after a snapshot, and waits until each partition has a new
/// incarnation.
async fn set_back(redis: &RedisServer, counted: &AtomicU64) -> Detection {
    let _: () = redis.run("SAVE").await.unwrap();
    sleep(Duration::from_millis(1_500)).await;
    redis.kill();
    redis.start_again().await;
    let (started, before) = (Instant::now(), counted.load(Ordering::Relaxed));
    let mut connection = redis.manager().await;
    let first = incarnations(&mut connection).await;
    while incarnations(&mut connection)
        .await
        .iter()
        .zip(&first)
        .any(|(now, then)| now == then)
    {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "the set-back is not detected"
        );
        sleep(Duration::from_millis(1)).await;
    }
    let hits = (counted.load(Ordering::Relaxed) - before) as f64;
    Detection {
        hits,
        seconds: started.elapsed().as_secs_f64(),
    }
}

async fn incarnations(redis: &mut ConnectionManager) -> Vec<String> {
    let mut pipe = redis::pipe();
    for partition in 0..PARTITIONS {
        pipe.hget(
            format!("cf1:{{bench/views/{partition}}}:meta"),
            "incarnation",
        );
    }
    pipe.query_async(redis).await.unwrap()
}

//! Tests of a Redis whose disk is full.

use std::time::{Duration, Instant};

use redis::RedisResult;
use testkit::{RedisOptions, RedisServer};

/// Starts a server, or returns `None` if this machine cannot mount a disk.
async fn start(options: RedisOptions) -> Option<RedisServer> {
    match RedisServer::start_with_disk(options).await {
        Ok(server) => Some(server),
        Err(why) => {
            println!("skipped, because this machine cannot mount a disk: {why}");
            None
        }
    }
}

/// Increments `n` until the outcome is as expected. Returns the number of increments that were
/// acknowledged.
async fn until(server: &RedisServer, expected: impl Fn(&RedisResult<i64>) -> bool) -> i64 {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut acknowledged = 0;
    loop {
        let outcome = server.run::<i64>("INCR n").await;
        acknowledged += i64::from(outcome.is_ok());
        if expected(&outcome) {
            return acknowledged;
        }
        assert!(Instant::now() < deadline, "20 s later: {outcome:?}");
    }
}

fn is_refused(outcome: &RedisResult<i64>) -> bool {
    outcome.as_ref().is_err_and(|e| e.code() == Some("MISCONF"))
}

async fn refuses_and_recovers(options: RedisOptions, has_snapshots: bool) {
    let Some(server) = start(options).await else {
        return;
    };
    let disk = server.disk().unwrap();
    let mut counted = until(&server, RedisResult::is_ok).await;
    for _ in 0..2 {
        let start = Instant::now();
        disk.fill();
        println!("full after {:?}", start.elapsed());
        counted += until(&server, is_refused).await;
        println!("refused after {:?}", start.elapsed());
        assert_eq!(server.run::<i64>("GET n").await.unwrap(), counted);
        let start = Instant::now();
        disk.free();
        println!("free after {:?}", start.elapsed());
        counted += until(&server, RedisResult::is_ok).await;
        println!("accepted after {:?}", start.elapsed());
    }
    if has_snapshots {
        return;
    }
    let restarted = async || {
        server.kill();
        server.start_again().await;
        server.run::<i64>("GET n").await.unwrap()
    };
    assert_eq!(restarted().await, counted);
    // the last acknowledged write did not fit
    disk.fill();
    counted += until(&server, is_refused).await;
    assert_eq!(restarted().await, counted - 1);
}

#[tokio::test]
async fn redis_with_an_append_only_file_refuses_writes() {
    refuses_and_recovers(RedisOptions::aof("everysec"), false).await;
    refuses_and_recovers(RedisOptions::aof("no"), false).await;
}

#[tokio::test]
async fn redis_with_snapshots_refuses_writes() {
    refuses_and_recovers(RedisOptions::volatile().arg("save", "1 1"), true).await;
}

#[tokio::test]
async fn redis_that_writes_before_it_replies_ends() {
    let Some(server) = start(RedisOptions::aof("always")).await else {
        return;
    };
    let disk = server.disk().unwrap();
    let mut acknowledged = until(&server, RedisResult::is_ok).await;
    disk.fill();
    acknowledged += until(&server, RedisResult::is_err).await;
    let deadline = Instant::now() + Duration::from_secs(5);
    while server.is_up() {
        assert!(Instant::now() < deadline, "it still runs");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    disk.free();
    server.start_again().await;
    assert_eq!(server.run::<i64>("GET n").await.unwrap(), acknowledged);
}

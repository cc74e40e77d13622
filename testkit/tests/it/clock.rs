//! Tests of a server whose clock steps.

use std::time::{Duration, Instant, SystemTime};

use testkit::{RedisOptions, RedisServer};

/// Returns by how many seconds the server's clock is ahead.
async fn ahead(server: &RedisServer) -> f64 {
    let (seconds, micros): (f64, f64) = server.run("TIME").await.unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    seconds + micros / 1e6 - now.unwrap().as_secs_f64()
}

#[tokio::test]
async fn the_clock_of_a_redis_steps() {
    let options = match RedisOptions::aof("no").clock() {
        Ok(options) => options,
        Err(why) => return println!("skipped, because no clock can step here: {why}"),
    };
    let server = RedisServer::start(options).await;
    assert!(server.has_clock());
    let is_ahead = async |by: f64| {
        let start = Instant::now();
        let mut found = ahead(&server).await;
        // Valkey reads the clock once in a millisecond
        while (found - by).abs() > 0.5 {
            assert!(start.elapsed().as_secs() < 2, "{found} instead of {by}");
            found = ahead(&server).await;
        }
        println!("{by} s ahead after {:?}", start.elapsed());
    };
    is_ahead(0.0).await;
    let expires = |key, seconds| format!("SET {key} 1 EX {seconds}");
    server.run::<()>(&expires("soon", 60)).await.unwrap();
    server.run::<()>(&expires("later", 200)).await.unwrap();

    server.step_clock_forward(Duration::from_millis(100_250));
    is_ahead(100.25).await;
    let ttl = async |key| server.run::<i64>(&format!("TTL {key}")).await.unwrap();
    assert_eq!(ttl("soon").await, -2);
    assert!((95..=100).contains(&ttl("later").await));

    server.step_clock_back(Duration::from_secs(3_700));
    is_ahead(-3_599.75).await;
    assert!((3_795..=3_800).contains(&ttl("later").await));

    // the clock of a machine, not of a process
    server.kill();
    server.step_clock_back(Duration::from_secs(1));
    server.start_again().await;
    is_ahead(-3_600.75).await;
}

#[tokio::test]
async fn a_clock_that_went_back_keeps_no_core_busy() {
    let Ok(options) = RedisOptions::volatile().clock() else {
        return;
    };
    let server = RedisServer::start(options).await;
    server.step_clock_back(Duration::from_secs(3_600));
    let used = async || {
        let told: String = server.run("INFO cpu").await.unwrap();
        let figure = |name| {
            let line = told.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().parse::<f64>().unwrap()
        };
        figure("used_cpu_sys:") + figure("used_cpu_user:")
    };
    let before = used().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = used().await - before;
    assert!(busy < 0.3, "{busy} s of a second");
}

//! Tests that the network fails on demand, at the exact byte.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::ConnectionManager;
use testkit::{Held, Proxy, RedisOptions, RedisServer};

/// `INCR n` on the wire (21 bytes), and its reply (4 bytes).
const REQUEST: &str = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
const REPLY: &str = ":1\r\n";

async fn incr(redis: &mut ConnectionManager) -> redis::RedisResult<i64> {
    redis.incr("n", 1).await
}

/// Waits until the connection is back.
async fn reconnected(redis: &mut ConnectionManager) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while redis::cmd("PING").query_async::<()>(redis).await.is_err() {
        assert!(Instant::now() < deadline, "not back after 5 s");
    }
}

#[tokio::test]
async fn bytes_are_counted() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let proxy = Proxy::to(&server);
    let mut redis = proxy.manager().await;
    let (requests, replies) = (proxy.request_bytes(), proxy.reply_bytes());
    redis::cmd("INCR")
        .arg("n")
        .query_async::<i64>(&mut redis)
        .await
        .unwrap();
    assert_eq!(proxy.request_bytes() - requests, REQUEST.len());
    assert_eq!(proxy.reply_bytes() - replies, REPLY.len());
}

#[tokio::test]
async fn a_request_is_cut_at_the_byte() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let proxy = Proxy::to(&server);
    let mut redis = proxy.manager().await;
    let incr = redis::cmd("INCR").arg("n").to_owned();
    for bytes in 0..REQUEST.len() {
        reconnected(&mut redis).await;
        proxy.cut_requests_after(bytes);
        incr.query_async::<i64>(&mut redis).await.unwrap_err();
        assert!(!proxy.call_off());
    }
    // none of these requests was executed
    let mut direct = server.manager().await;
    assert_eq!(direct.get::<_, Option<i64>>("n").await.unwrap(), None);
    // a complete request is executed, some time after the connection was cut
    reconnected(&mut redis).await;
    proxy.cut_requests_after(REQUEST.len());
    let _ = incr.query_async::<i64>(&mut redis).await;
    assert!(!proxy.call_off());
    let deadline = Instant::now() + Duration::from_secs(5);
    while direct.get::<_, Option<i64>>("n").await.unwrap() != Some(1) {
        assert!(Instant::now() < deadline, "the request did not arrive");
    }
    // with the cut one byte later, the request succeeds
    reconnected(&mut redis).await;
    proxy.cut_requests_after(REQUEST.len() + 1);
    assert_eq!(incr.query_async::<i64>(&mut redis).await.unwrap(), 2);
    assert!(proxy.call_off());
}

#[tokio::test]
async fn a_reply_is_cut_at_the_byte_and_the_request_executed() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let (proxy, mut direct) = (Proxy::to(&server), server.manager().await);
    let mut redis = proxy.manager().await;
    for bytes in 0..=REPLY.len() {
        reconnected(&mut redis).await;
        let before: i64 = direct
            .get::<_, Option<i64>>("n")
            .await
            .unwrap()
            .unwrap_or(0);
        proxy.cut_replies_after(bytes);
        assert_eq!(
            incr(&mut redis).await.is_ok(),
            bytes == REPLY.len(),
            "cut after {bytes}"
        );
        assert_eq!(direct.get::<_, i64>("n").await.unwrap(), before + 1);
        assert!(!proxy.call_off());
    }
}

#[tokio::test]
async fn what_a_black_hole_held_arrives_late() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let (proxy, mut direct) = (Proxy::to(&server), server.manager().await);
    let mut redis = proxy.manager().await;
    let config =
        redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_millis(20)));
    let mut impatient = proxy
        .client()
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap();
    proxy.black_hole();
    // one client gives up and closes its connection, and one waits
    impatient.incr::<_, _, i64>("n", 1).await.unwrap_err();
    drop(impatient);
    let reply = tokio::spawn(async move { incr(&mut redis).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!reply.is_finished());
    assert_eq!(direct.get::<_, Option<i64>>("n").await.unwrap(), None);
    proxy.heal(Held::Delivered);
    reply.await.unwrap().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while direct.get::<_, i64>("n").await.unwrap() < 2 {
        assert!(
            Instant::now() < deadline,
            "the first of the two did not arrive"
        );
    }
}

#[tokio::test]
async fn a_new_connection_gets_no_reply_in_a_black_hole() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let (proxy, client) = (Proxy::to(&server), server.client());
    proxy.black_hole();
    let config =
        redis::AsyncConnectionConfig::new().set_connection_timeout(Some(Duration::from_millis(50)));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap();
    assert!(
        proxy
            .client()
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap_err()
            .is_timeout()
    );
    proxy.heal(Held::Delivered);
    proxy
        .client()
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_a_black_hole_held_may_be_lost() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let proxy = Proxy::to(&server);
    let mut redis = proxy.manager().await;
    proxy.black_hole();
    let mut asking = redis.clone();
    let reply = tokio::spawn(async move { incr(&mut asking).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.heal(Held::Lost);
    reply.await.unwrap().unwrap_err();
    reconnected(&mut redis).await;
    assert_eq!(incr(&mut redis).await.unwrap(), 1);
}

#[tokio::test]
async fn replies_are_delayed() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let proxy = Proxy::to(&server);
    let mut redis = proxy.manager().await;
    proxy.delay_replies(Duration::from_millis(80));
    let asked = Instant::now();
    assert_eq!(incr(&mut redis).await.unwrap(), 1);
    assert!(asked.elapsed() >= Duration::from_millis(80));
    proxy.delay_replies(Duration::ZERO);
    let asked = Instant::now();
    assert_eq!(incr(&mut redis).await.unwrap(), 2);
    assert!(asked.elapsed() < Duration::from_millis(80));
}

#[tokio::test]
async fn a_server_that_is_down_is_down_behind_it() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let proxy = Proxy::to(&server);
    let mut redis = proxy.manager().await;
    server.kill();
    incr(&mut redis).await.unwrap_err();
    server.start_again().await;
    reconnected(&mut redis).await;
    assert_eq!(incr(&mut redis).await.unwrap(), 1);
}

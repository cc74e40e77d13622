//! Tests that the network fails on demand, at the exact byte.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::ConnectionManager;
use testkit::{Proxy, RedisOptions, RedisServer};

/// `INCR n` on the wire (21 bytes), and its reply (4 bytes).
const REQUEST: &str = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
const REPLY: &str = ":1\r\n";

/// Waits until the connection is back.
async fn reconnected(redis: &mut ConnectionManager) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while redis::cmd("PING").query_async::<()>(redis).await.is_err() {
        assert!(Instant::now() < deadline, "not back after 5 s");
    }
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
            redis.incr::<_, _, i64>("n", 1).await.is_ok(),
            bytes == REPLY.len(),
            "cut after {bytes}"
        );
        assert_eq!(direct.get::<_, i64>("n").await.unwrap(), before + 1);
        assert!(!proxy.call_off());
    }
}

#[tokio::test]
async fn a_call_is_awaited() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let proxy = Proxy::to(&server);
    let mut redis = proxy.manager().await;
    let mut arrives = proxy.await_call(|call| testkit::contains(call, b"awaited"));
    redis.set::<_, _, ()>("another", 1).await.unwrap();
    arrives.try_recv().unwrap_err();
    redis.set::<_, _, ()>("awaited", 1).await.unwrap();
    arrives.try_recv().unwrap();
}

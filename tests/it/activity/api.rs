//! Activity on real servers: current views and visitors, and the kept minutes.

use crate::support::*;

fn family(name: &str) -> FamilyBuilder<Activity> {
    Family::activity("test", name)
        .at_once()
        .sync_time(millis(200))
}

#[tokio::test]
async fn visitors_are_counted_once_in_all_stripes() {
    let pair = Pair::new().await;
    let online = pair.open(family("striped").stripes(3)).await;
    let touch = |view: u32| online.touch("/", (view % 500).to_be_bytes());
    try_join_all((0..2_000).map(touch)).await.unwrap();
    let now = online.now("/").await.unwrap();
    assert_eq!((now.views, now.visitors), (2_000, 500));
    assert_eq!(online.now("/nobody").await.unwrap().visitors, 0);
}

#[tokio::test]
async fn a_result_is_returned_again_for_a_while() {
    let (pair, online) = Pair::of(family("cached")).await;
    let online = online.cache_for(secs(1));
    online.touch("/", "a").await.unwrap();
    let calls = async || calls(&pair.redis, "evalsha").await;
    online.now("/").await.unwrap();
    let before = calls().await;
    online.touch("/", "b").await.unwrap();
    for now in join_all((0..100).map(|_| online.now("/"))).await {
        assert_eq!(now.unwrap().views, 1);
    }
    // the touch, and no question
    assert_eq!(calls().await, before + 1);
    pause(1_100).await;
    for now in join_all((0..100).map(|_| online.now("/"))).await {
        assert_eq!(now.unwrap().views, 2);
    }
    // callers share the question
    assert_eq!(calls().await, before + 2);
}

/// A caller asks Redis for others too, and is not polled while it waits for the reply.
#[tokio::test]
async fn a_read_that_stands_still_holds_up_no_other_for_longer_than_its_limit() {
    let (pair, online) = Pair::of(family("online")).await;
    pair.redis.pause();
    let mut asking = std::pin::pin!(online.now("/"));
    timeout(millis(50), &mut asking).await.unwrap_err();
    pair.redis.resume();
    let impatient = online.clone().read_timeout(millis(200));
    let now = timeout(secs(10), impatient.now("/")).await;
    refused(now.expect("a limit"), ErrorKind::Redis, "within 200ms");
    assert_eq!(asking.await.unwrap().views, 0);
    assert_eq!(impatient.now("/").await.unwrap().views, 0);
}

#[tokio::test]
async fn minutes_are_kept_as_timestamps() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE minutes (what VARBINARY(8), minute TIMESTAMP NOT NULL DEFAULT '2000-01-01', page VARBINARY(99), \
         n INT NOT NULL, PRIMARY KEY (page, what, minute))",
    )
    .await;
    let keys = [("what", Text), ("minute", DateTime), ("page", Text)];
    let table = keyed(Table::upsert("minutes"), keys);
    let online = pair
        .open(family("minutes").keep_minutes(true).table(table))
        .await;
    for visitor in ["a", "b", "b"] {
        online.touch("/", visitor).await.unwrap();
    }
    pair.drain().await;
    let (seconds, _): (i64, i64) = pair.redis.run("TIME").await.unwrap();
    let minutes = online
        .minutes("/", times(seconds - 600..seconds + 60))
        .await;
    let minutes = minutes.unwrap();
    assert_eq!(minutes.iter().map(|minute| minute.views).sum::<i64>(), 3);
    let stored = "SELECT SUM(n) FROM minutes WHERE what = 'views' AND SECOND(minute) = 0 \
         AND minute > CURRENT_TIMESTAMP - INTERVAL 10 MINUTE";
    assert_eq!(pair.number(stored).await, 3);
}

#[tokio::test]
async fn a_wrong_touch_is_refused_by_name() {
    let (pair, online) = Pair::of(family("refused")).await;
    for (page, visitor, what) in [
        ("", vec![1], "it has 0 bytes"),
        ("/", vec![], "0 bytes"),
        ("/", vec![7; 256], "256 bytes"),
    ] {
        refused(online.touch(page, visitor).await, InvalidInput, what);
    }
    let error = online.minutes("/", times(0..60)).await;
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("no minutes are kept"), "{error}");
    online.touch("/", vec![7; 255]).await.unwrap();
    assert_eq!(online.now("/").await.unwrap().views, 1);
    refused(
        pair.counterfoil.open(family("refused").stripes(2)).await,
        Mismatch,
        "stripes = 2",
    );
}

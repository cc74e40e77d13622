//! Activity on real servers: current views and visitors, and the kept minutes.

use std::time::Duration;

use crate::support::{Pair, pause, times};
use counterfoil::{Activity, Counting, Durability, ErrorKind, Family, FamilyBuilder, VisitorCount};
use futures_util::future::{join_all, try_join_all};

type OnMysql = Activity;

fn family(name: &str) -> FamilyBuilder<Activity> {
    Family::activity("test", name)
        .durability(Durability::Immediate)
        .sync_time(Duration::from_millis(200))
}

async fn open(pair: &Pair, family: FamilyBuilder<Activity>) -> OnMysql {
    pair.counterfoil.open(family).await.expect("opened")
}

/// Counts 2,000 views by 500 visitors.
async fn touch(online: &OnMysql, page: &str) {
    let visitor = |view: u32| (view % 500).to_be_bytes();
    try_join_all((0..2_000).map(|view| online.touch(page, visitor(view))))
        .await
        .unwrap();
}

#[tokio::test]
async fn views_and_distinct_visitors_of_the_window() {
    let pair = Pair::new().await;
    for (name, stripes) in [("plain", 1), ("striped", 15)] {
        let online = open(&pair, family(name).stripes(stripes)).await;
        touch(&online, "/").await;
        online.touch("/other", b"\xff\x00").await.unwrap();
        let now = online.now("/").await.unwrap();
        assert_eq!((now.views, now.visitors), (2_000, VisitorCount::Exact(500)));
        let now = online.now("/other").await.unwrap();
        assert_eq!((now.views, now.visitors), (1, VisitorCount::Exact(1)));
        let nobody = online.now("/nobody").await.unwrap();
        assert_eq!((nobody.views, nobody.visitors), (0, VisitorCount::Exact(0)));
    }
}

#[tokio::test]
async fn an_estimate_says_what_it_is() {
    let pair = Pair::new().await;
    let online = open(
        &pair,
        family("estimated")
            .stripes(3)
            .visitors(Counting::HyperLogLog),
    )
    .await;
    touch(&online, "/").await;
    let now = online.now("/").await.unwrap();
    assert_eq!(now.views, 2_000);
    let VisitorCount::Estimated {
        count,
        standard_error,
    } = now.visitors
    else {
        panic!("{now:?}")
    };
    // within five standard errors
    assert!(
        (480..=520).contains(&count) && standard_error < 0.0082,
        "{now:?}"
    );
    assert_eq!(online.now("/nobody").await.unwrap().visitors.count(), 0);
}

/// Data expires even if no caller reads it.
#[tokio::test]
async fn what_left_the_window_expires() {
    let pair = Pair::new().await;
    for counting in [Counting::Exact, Counting::HyperLogLog] {
        let window = family(&format!("{counting:?}").to_lowercase()).visitors(counting);
        let online = open(
            &pair,
            window.window(Duration::from_millis(100), Duration::from_millis(10)),
        )
        .await;
        touch(&online, "/").await;
        let is_left = async || {
            let keys: Vec<String> = pair.redis.run("KEYS *").await.unwrap();
            let lasting = [":calls", ":calls_before", ":meta"];
            keys.iter()
                .any(|key| !lasting.iter().any(|end| key.ends_with(end)))
        };
        let gone = async {
            while is_left().await {
                pause(10).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone)
            .await
            .expect("nothing stays");
        let now = online.now("/").await.unwrap();
        assert_eq!((now.views, now.visitors.count()), (0, 0));
    }
}

#[tokio::test]
async fn a_result_is_returned_again_for_a_while() {
    let pair = Pair::new().await;
    let online = open(&pair, family("cached")).await;
    let online = online.cache_for(Duration::from_secs(3));
    online.touch("/", "a").await.unwrap();
    let calls = async || {
        let info: String = pair.redis.run("INFO commandstats").await.unwrap();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="))
            .unwrap()
            .to_owned();
        line.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    online.now("/").await.unwrap();
    let before = calls().await;
    online.touch("/", "b").await.unwrap();
    for now in join_all((0..100).map(|_| online.now("/"))).await {
        assert_eq!(now.unwrap().views, 1);
    }
    assert_eq!(calls().await, before + 1, "the touch, and no question");
    pause(3_100).await;
    for now in join_all((0..100).map(|_| online.now("/"))).await {
        assert_eq!(now.unwrap().views, 2);
    }
    assert_eq!(calls().await, before + 2, "callers share the question");
}

#[tokio::test]
async fn a_wrong_touch_is_refused_by_name() {
    let pair = Pair::new().await;
    let online = open(&pair, family("refused")).await;
    for (page, visitor, what) in [
        ("", vec![1], "page"),
        ("/", vec![], "0 bytes"),
        ("/", vec![7; 256], "256 bytes"),
    ] {
        let error = online.touch(page, visitor).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(format!("{error:#}").contains(what), "{error}");
    }
    assert!(
        online
            .minutes("/", times(0..60))
            .await
            .expect_err("refused")
            .to_string()
            .contains("no minutes are kept")
    );
    online.touch("/", vec![7; 255]).await.unwrap();
    assert_eq!(online.now("/").await.unwrap().views, 1);
    let narrower = pair.counterfoil.open(family("refused").stripes(2)).await;
    let error = narrower.expect_err("another width");
    assert!(
        error.kind() == ErrorKind::Mismatch && format!("{error:#}").contains("2 stripes"),
        "{error}"
    );
}

#[tokio::test]
async fn a_minute_is_read_before_it_is_over() {
    let pair = Pair::new().await;
    for counting in [Counting::Exact, Counting::HyperLogLog] {
        let minutes = family(&format!("{counting:?}").to_lowercase())
            .visitors(counting)
            .stripes(4)
            .keep_minutes(true);
        let online = open(&pair, minutes).await;
        let now: (i64, i64) = pair.redis.run("TIME").await.unwrap();
        touch(&online, "/").await;
        let read = online
            .minutes("/", times(now.0 - 60..now.0 + 60))
            .await
            .unwrap();
        assert_eq!(read.iter().map(|minute| minute.views).sum::<i64>(), 2_000);
        let visitors: u64 = read.iter().map(|minute| minute.visitors.count()).sum();
        // some visitors are in two minutes if the clock passed a full one
        assert!((480..=1_020).contains(&visitors), "{read:?}");
    }
}

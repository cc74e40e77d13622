//! Activity and unique visitors on real servers: who is here now, and what is kept of it.

use std::time::{Duration, SystemTime};

use crate::support::{Pair, day, pause, times};
use counterfoil::{
    Activity, ActivityFamilyBuilder, Counting, Day, Durability, ErrorKind, Family, KeyType, MysqlStore, Table, Visited,
    VisitorCount,
};
use futures_util::future::{join_all, try_join_all};
use redis::aio::ConnectionManager;

type OnMysql = Activity<ConnectionManager, MysqlStore>;

fn family(name: &str) -> ActivityFamilyBuilder {
    Family::activity("test", name)
        .durability(Durability::Immediate)
        .sync_after(Duration::from_millis(200))
        .cache_for(Duration::ZERO)
}

async fn open(pair: &Pair, family: ActivityFamilyBuilder) -> OnMysql {
    pair.counterfoil.open(family.build().expect("a valid family")).await.expect("opened")
}

/// 2,000 views by 500 visitors.
async fn touch(online: &OnMysql, page: &str) {
    let visitor = |view: u32| (view % 500).to_be_bytes();
    try_join_all((0..2_000).map(|view| online.touch(page, visitor(view)))).await.unwrap();
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
    let online = open(&pair, family("estimated").stripes(3).visitors(Counting::HyperLogLog)).await;
    touch(&online, "/").await;
    let now = online.now("/").await.unwrap();
    assert_eq!(now.views, 2_000);
    let VisitorCount::Estimated { count, standard_error } = now.visitors else { panic!("{now:?}") };
    // five times the standard error
    assert!((480..=520).contains(&count) && standard_error < 0.0082, "{now:?}");
    assert_eq!(online.now("/nobody").await.unwrap().visitors.count(), 0);
}

/// Without anybody who comes and looks.
#[tokio::test]
async fn what_left_the_window_expires() {
    let pair = Pair::new().await;
    for counting in [Counting::Exact, Counting::HyperLogLog] {
        let window = family(&format!("{counting:?}").to_lowercase()).visitors(counting);
        let online = open(&pair, window.window(Duration::from_millis(100), Duration::from_millis(10))).await;
        touch(&online, "/").await;
        let is_left = async || {
            let keys: Vec<String> = pair.redis.run("KEYS *").await.unwrap();
            let fence = [":epochs", ":calls", ":calls_before"];
            keys.iter().any(|key| !fence.iter().any(|end| key.ends_with(end)))
        };
        let gone = async {
            while is_left().await {
                pause(10).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone).await.expect("nothing stays");
        let now = online.now("/").await.unwrap();
        assert_eq!((now.views, now.visitors.count()), (0, 0));
    }
}

#[tokio::test]
async fn answers_are_given_again_for_a_while() {
    let pair = Pair::new().await;
    let online = open(&pair, family("cached").cache_for(Duration::from_secs(3))).await;
    online.touch("/", "a").await.unwrap();
    let calls = async || {
        let info: String = pair.redis.run("INFO commandstats").await.unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap().to_owned();
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
    for (page, visitor, what) in [("", vec![1], "page"), ("/", vec![], "0 bytes"), ("/", vec![7; 256], "256 bytes")] {
        let error = online.touch(page, visitor).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(what), "{error}");
    }
    assert!(online.minutes("/", times(0..60)).await.expect_err("refused").to_string().contains("no minutes are kept"));
    online.touch("/", vec![7; 255]).await.unwrap();
    assert_eq!(online.now("/").await.unwrap().views, 1);
    let narrower = pair.counterfoil.open(family("refused").stripes(2).build().unwrap()).await;
    let error = narrower.expect_err("another width");
    assert!(error.kind() == ErrorKind::Mismatch && error.to_string().contains("2 stripes"), "{error}");
}

#[tokio::test]
async fn a_minute_is_read_before_it_is_over() {
    let pair = Pair::new().await;
    for counting in [Counting::Exact, Counting::HyperLogLog] {
        let minutes = family(&format!("{counting:?}").to_lowercase()).visitors(counting).stripes(4).keep_minutes(true);
        let online = open(&pair, minutes).await;
        let now: (i64, i64) = pair.redis.run("TIME").await.unwrap();
        touch(&online, "/").await;
        let read = online.minutes("/", times(now.0 - 60..now.0 + 60)).await.unwrap();
        assert_eq!(read.iter().map(|minute| minute.views).sum::<i64>(), 2_000);
        let visitors: u64 = read.iter().map(|minute| minute.visitors.count()).sum();
        // some are in two minutes, where the clock passed a full one
        assert!((480..=1_020).contains(&visitors), "{read:?}");
    }
}

#[tokio::test]
async fn a_visitor_of_a_day_counts_once() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE visitors (store_id INT UNSIGNED, day DATE, count INT UNSIGNED NOT NULL, PRIMARY KEY (store_id, day))")
        .await;
    let table = Table::upsert("visitors").key("store_id", KeyType::Unsigned).key("day", KeyType::Date).value("count");
    let daily = Family::visitors("test", "daily").table(table).durability(Durability::Immediate).build().unwrap();
    let daily = pair.counterfoil.open(daily).await.unwrap();
    let visits = (0..1_000u32).map(|visit| daily.first_visit("12345", day("2014-09-20"), (visit % 250).to_be_bytes()));
    let firsts = join_all(visits).await.into_iter().filter(|told| *told.as_ref().unwrap() == Visited::Counted).count();
    assert_eq!(firsts, 250);
    assert_eq!(daily.first_visit("12345", day("2014-09-21"), 0u32.to_be_bytes()).await.unwrap(), Visited::Counted);
    assert_eq!(daily.get("12345", day("2014-09-20")).await.unwrap(), 250);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        daily.first_visit("12345", day("2014-09-20"), 0u32.to_be_bytes()).await.unwrap(),
        Visited::CountedBefore
    );
    assert_eq!(pair.number("SELECT CAST(count AS SIGNED) FROM visitors WHERE day = '2014-09-20'").await, 250);
    let listed = daily.list("12345/", None, 10).await.unwrap();
    assert_eq!(listed, [("12345/2014-09-20".to_owned(), 250), ("12345/2014-09-21".to_owned(), 1)]);
    let error = daily.first_visit("no number", day("2014-09-20"), "a").await.expect_err("no such shop");
    assert!(error.to_string().contains("no number"), "{error}");
    let midnight = SystemTime::UNIX_EPOCH + Duration::from_secs(1_411_171_200);
    assert_eq!(daily.get("12345", Day::of(midnight).unwrap()).await.unwrap(), 250);
}

/// With a table, whose last column is the day, and without.
#[tokio::test]
async fn a_scope_and_a_day_are_one_counter_and_no_other_pair_is() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE days (scope VARBINARY(99), day VARBINARY(99), count INT NOT NULL, PRIMARY KEY (scope, day))",
    )
    .await;
    let table = Table::upsert("days").key("scope", KeyType::Text).key("day", KeyType::Text).value("count");
    let own = Family::visitors("test", "own").durability(Durability::Immediate).build().unwrap();
    let tabled = Family::visitors("test", "tabled").durability(Durability::Immediate).table(table).build().unwrap();
    let day = day("2014-09-20");
    let own = pair.counterfoil.open(own).await.unwrap();
    let tabled = pair.counterfoil.open(tabled).await.unwrap();
    for (visitors, scope) in [(&own, "7/8"), (&own, "7"), (&tabled, "7")] {
        assert_eq!(visitors.first_visit(scope, day, "a").await.unwrap(), Visited::Counted);
        assert_eq!(visitors.get_many([(scope, day)]).await.unwrap(), [1]);
    }
    // the table would take 8/2014-09-20 for the day
    let error = tabled.first_visit("7/8", day, "a").await.expect_err("taken for another one");
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("'/'"), "{error}");
    assert_eq!(tabled.get("7/8", day).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    pair.counterfoil.drain().await.unwrap();
    let kept = "SELECT CAST(count AS SIGNED) FROM days WHERE scope = '7' AND day = '2014-09-20'";
    assert_eq!(pair.number(kept).await, 1);
}

#[tokio::test]
async fn a_visit_that_is_refused_says_why() {
    let pair = Pair::new().await;
    let daily = Family::visitors("test", "daily").partitions(1).durability(Durability::Immediate).build().unwrap();
    let daily = pair.counterfoil.open(daily).await.unwrap();
    let full = format!("HSET cf1:{{test/daily/0}}:buffer shop/2014-09-20 {}", i64::MAX);
    pair.redis.run::<()>(&full).await.unwrap();
    assert_eq!(daily.first_visit("shop", day("2014-09-20"), "visitor").await.unwrap(), Visited::OutOfRange);
    assert_eq!(daily.first_visit("shop", day("2014-09-21"), "visitor").await.unwrap(), Visited::Counted);
}

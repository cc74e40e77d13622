//! Series on real servers, from the hit to the chart and to the rows of slices that are over.

use std::time::Duration;

use crate::support::{Pair, Plain, pause, times, unix};
use counterfoil::{
    Durability, ErrorKind, Family, FamilyBuilder, KeyType, Outcome, Precision, Recorded, Series,
    Slice, Table,
};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;

type OnMysql = Series;

fn family(name: &str) -> FamilyBuilder<Series> {
    Family::series("test", name)
        .durability(Durability::Immediate)
        .sync_time(Duration::from_millis(200))
}

async fn open(pair: &Pair, family: FamilyBuilder<Series>) -> OnMysql {
    pair.counterfoil.open(family).await.expect("opened")
}

fn sum(slices: &[Slice]) -> i64 {
    slices.iter().map(|slice| slice.count).sum()
}

/// Returns the server's time in whole seconds.
async fn server_time(pair: &Pair) -> i64 {
    let time: (i64, i64) = pair.redis.run("TIME").await.expect("TIME");
    time.0
}

#[tokio::test]
async fn a_hit_counts_in_the_current_slice_of_every_precision() {
    let pair = Pair::new().await;
    let hits = open(&pair, family("hits")).await;
    let _ = hits.add("site", 1).await.unwrap();
    let _ = hits.add("site", 41).await.unwrap();
    let now = server_time(&pair).await;
    for precision in Precision::DEFAULT {
        let window = hits.get("site", precision).await.unwrap();
        assert_eq!((window.len(), sum(&window)), (120, 42), "{precision}");
        let last = window.last().unwrap();
        assert!(
            unix(last.start) <= now + 1
                && (precision == Precision::SECOND || last.count > 0 || window[118].count > 0)
        );
        assert!(window.is_sorted());
    }
    assert_eq!(
        sum(&hits.get("elsewhere", Precision::HOUR).await.unwrap()),
        0
    );
    let many = hits
        .get_many(&["elsewhere", "site", "site"], Precision::Day)
        .await
        .unwrap();
    assert_eq!(
        many.iter().map(|window| sum(window)).collect::<Vec<_>>(),
        [0, 42, 42]
    );
}

#[tokio::test]
async fn callers_share_calls_and_none_is_lost() {
    let pair = Pair::new().await;
    let hits = open(&pair, family("hits")).await;
    let names: Vec<_> = (0..50).map(|number| format!("page/{number}")).collect();
    let added = try_join_all((0..2_000).map(|hit| hits.add(&names[hit % 50], 1)))
        .await
        .unwrap();
    assert_eq!(added, [Outcome::Counted(1); 2_000]);
    let many: Vec<_> = names.iter().map(|name| (name, 3)).collect();
    for done in hits.add_many(many).await {
        assert_eq!(done.unwrap(), Outcome::Counted(3));
    }
    (0..100).for_each(|hit| hits.record(&names[hit % 50], 2).unwrap());
    assert_eq!(hits.flush().await.unwrap(), Recorded::Counted);
    for window in hits.get_many(&names, Precision::Day).await.unwrap() {
        assert_eq!(sum(&window), 40 + 3 + 4);
    }
    assert_eq!(hits.names("page/4", None, 100).await.unwrap().len(), 11);
}

#[tokio::test]
async fn names_come_in_order_and_page_by_page() {
    let pair = Pair::new().await;
    let hits = open(&pair, family("hits")).await;
    let mut names: Vec<_> = (0..250).map(|number| format!("n{number}")).collect();
    let all: Vec<_> = names.iter().map(|name| (name, 1)).collect();
    assert!(
        hits.add_many(all)
            .await
            .into_iter()
            .all(|done| done.is_ok())
    );
    names.sort();
    let mut listed: Vec<String> = Vec::new();
    loop {
        let page = hits
            .names("", listed.last().map(String::as_str), 60)
            .await
            .unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 60);
        listed.extend(page);
    }
    assert_eq!(listed, names);
    assert_eq!(
        hits.names_all("n1").try_collect::<Vec<_>>().await.unwrap(),
        names[1..112]
    );
    assert_eq!(
        hits.names("n24", None, 3).await.unwrap(),
        ["n24", "n240", "n241"]
    );
    // a client in another language counted under a name that is not text, which ends the page
    let (mut redis, name, later) = (pair.redis.manager().await, b"n24\xff", 1e15);
    let key = |kind| format!("cf1:{{{}/0}}:{kind}", hits.family());
    redis::pipe()
        .zadd(key("names"), name, 0)
        .zadd(key("idle"), name, later)
        .exec_async(&mut redis)
        .await
        .unwrap();
    assert_eq!(hits.names("n24", None, 100).await.unwrap().len(), 11);
    assert_eq!(hits.names("n24", Some("n249"), 1).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn an_idle_series_vanishes_by_itself_and_so_does_its_name() {
    let pair = Pair::new().await;
    let hits = open(&pair, family("hits").windows([(Precision::SECOND, 2)])).await;
    let _ = hits.add("gone", 1).await.unwrap();
    assert_eq!(hits.names("", None, 10).await.unwrap(), ["gone"]);
    pause(3_600).await;
    assert_eq!(hits.names("", None, 10).await.unwrap(), [""; 0]);
    assert_eq!(sum(&hits.get("gone", Precision::SECOND).await.unwrap()), 0);
    let keys: Vec<String> = pair.redis.run("KEYS *").await.unwrap();
    // a partition keeps its incarnation, and its memory of callers until two epochs are over
    let lasting = [":calls", ":calls_before", ":meta"];
    assert!(
        keys.iter()
            .all(|key| lasting.iter().any(|end| key.ends_with(end))),
        "{keys:?}"
    );
}

#[tokio::test]
async fn slices_that_are_over_are_kept_once_each() {
    let pair = Pair::new().await;
    let windows = [(Precision::SECOND, 3), (Precision::MINUTE, 120)];
    let hits = open(
        &pair,
        family("hits").windows(windows).keep([Precision::SECOND]),
    )
    .await;
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let began = server_time(&pair).await;
    for hit in 0..60 {
        let _ = hits.add(["a", "b/c"][hit % 2], 1).await.unwrap();
        pause(80).await;
    }
    let now = server_time(&pair).await;
    // most hits have left Redis's window of three seconds
    let range = times(began..now + 1);
    for name in ["a", "b/c"] {
        let slices = hits
            .get_range(name, Precision::SECOND, range.clone())
            .await
            .unwrap();
        assert_eq!(sum(&slices), 30, "{slices:?}");
        assert!(
            slices
                .windows(2)
                .all(|two| two[0].start + Duration::from_secs(1) == two[1].start)
        );
    }
    pause(1_200).await;
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values")
            .await,
        60
    );
    for name in ["a", "b/c"] {
        assert_eq!(
            sum(&hits
                .get_range(name, Precision::SECOND, range.clone())
                .await
                .unwrap()),
            30
        );
    }
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn days_go_into_the_applications_own_table() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE page_days (day DATE, page VARBINARY(200), hits BIGINT UNSIGNED NOT NULL, PRIMARY KEY (day, page))")
        .await;
    let table = Table::upsert("page_days")
        .key("day", KeyType::Date)
        .key("page", KeyType::Text)
        .value("hits");
    let days = family("days")
        .keep([Precision::Day])
        .time_zone("Pacific/Auckland")
        .table(table);
    let hits = open(&pair, days).await;
    let _ = hits.add("/a/b", 7).await.unwrap();
    let today = hits
        .get("/a/b", Precision::Day)
        .await
        .unwrap()
        .pop()
        .unwrap();
    assert_eq!(today.count, 7);
    // the slice is not over, so it is not in the table, but a read includes it
    let range = today.start - Duration::from_secs(86_400)..today.start + Duration::from_secs(1);
    let read = hits
        .get_range("/a/b", Precision::Day, range.clone())
        .await
        .unwrap();
    assert_eq!((read.len(), sum(&read)), (2, 7));
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number("SELECT COUNT(*) FROM page_days").await, 0);
}

#[tokio::test]
async fn a_wrong_call_is_refused_by_name_and_nothing_is_counted() {
    let plain = Plain::new().await;
    let built = family("hits").windows([(Precision::MINUTE, 3), (Precision::HOUR, 3)]);
    let hits = plain.counterfoil.open(built).await.unwrap();
    let refused = async |what: &str, result: counterfoil::Result<()>| {
        let error = result.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(format!("{error:#}").contains(what), "{error}");
    };
    refused("0 bytes", hits.add("", 1).await.map(drop)).await;
    refused("201 bytes", hits.add(&"n".repeat(201), 1).await.map(drop)).await;
    refused("0 for \"a\"", hits.add("a", 0).await.map(drop)).await;
    refused(
        "18446744073709551615 for \"a\"",
        hits.add("a", u64::MAX).await.map(drop),
    )
    .await;
    refused(
        "0 for \"b\"",
        hits.add_many([("b", 0)]).await.remove(0).map(drop),
    )
    .await;
    refused(
        "no slices of day",
        hits.get("a", Precision::Day).await.map(drop),
    )
    .await;
    refused(
        "more than 10000 slices",
        hits.get_range("a", Precision::MINUTE, times(0..700_000))
            .await
            .map(drop),
    )
    .await;
    refused(
        "are not kept",
        hits.get_range("a", Precision::MINUTE, times(0..60))
            .await
            .map(drop),
    )
    .await;
    assert_eq!(sum(&hits.get("a", Precision::HOUR).await.unwrap()), 0);
    assert_eq!(hits.names("", None, 10).await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_slice_holds_an_i64_and_no_more() {
    let pair = Pair::new().await;
    let hits = open(
        &pair,
        family("hits")
            .windows([(Precision::Day, 3)])
            .keep([Precision::Day]),
    )
    .await;
    let half = i64::MAX as u64 / 2;
    let adds = try_join_all([hits.add("a", half), hits.add("a", half), hits.add("a", 1)]);
    let values = [half as i64, half as i64, 1];
    assert_eq!(adds.await.unwrap(), values.map(Outcome::Counted));
    assert_eq!(hits.add("a", 1).await.unwrap(), Outcome::OutOfRange(None));
    // other hits in the same call are counted
    let (full, other) = futures_util::future::join(hits.add("a", 7), hits.add("b", 7)).await;
    assert_eq!(
        (full.unwrap(), other.unwrap()),
        (Outcome::OutOfRange(None), Outcome::Counted(7))
    );
    assert_eq!(sum(&hits.get("a", Precision::Day).await.unwrap()), i64::MAX);
    assert_eq!(sum(&hits.get("b", Precision::Day).await.unwrap()), 7);
}

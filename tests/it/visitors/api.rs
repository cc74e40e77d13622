//! Visitors of a day on real servers. Each counts once, and the caller learns whether it was the
//! first visit.

use std::time::{Duration, SystemTime};

use crate::support::{Pair, day};
use counterfoil::{Day, Durability, ErrorKind, Family, KeyType, Outcome, Table};
use futures_util::future::join_all;

#[tokio::test]
async fn a_visitor_of_a_day_counts_once() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE visitors (store_id INT UNSIGNED, day DATE, count INT UNSIGNED NOT NULL, PRIMARY KEY (store_id, day))")
        .await;
    let table = Table::upsert("visitors")
        .key("store_id", KeyType::Unsigned)
        .key("day", KeyType::Date)
        .value("count");
    let daily = Family::visitors("test", "daily")
        .table(table)
        .durability(Durability::Immediate);
    let daily = pair.counterfoil.open(daily).await.unwrap();
    let visits = (0..1_000u32)
        .map(|visit| daily.first_visit("12345", day("2014-09-20"), (visit % 250).to_be_bytes()));
    let firsts = join_all(visits)
        .await
        .into_iter()
        .filter(|told| *told.as_ref().unwrap() == Outcome::Counted(1))
        .count();
    assert_eq!(firsts, 250);
    assert_eq!(
        daily
            .first_visit("12345", day("2014-09-21"), 0u32.to_be_bytes())
            .await
            .unwrap(),
        Outcome::Counted(1)
    );
    assert_eq!(daily.get("12345", day("2014-09-20")).await.unwrap(), 250);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        daily
            .first_visit("12345", day("2014-09-20"), 0u32.to_be_bytes())
            .await
            .unwrap(),
        Outcome::CountedBefore(0)
    );
    assert_eq!(
        pair.number("SELECT CAST(count AS SIGNED) FROM visitors WHERE day = '2014-09-20'")
            .await,
        250
    );
    let listed = daily.list("12345/", None, 10).await.unwrap();
    assert_eq!(
        listed,
        [
            ("12345/2014-09-20".to_owned(), 250),
            ("12345/2014-09-21".to_owned(), 1)
        ]
    );
    let error = daily
        .first_visit("no number", day("2014-09-20"), "a")
        .await
        .expect_err("no such shop");
    assert!(format!("{error:#}").contains("no number"), "{error}");
    let midnight = SystemTime::UNIX_EPOCH + Duration::from_secs(1_411_171_200);
    assert_eq!(
        daily
            .get("12345", Day::of(midnight).unwrap())
            .await
            .unwrap(),
        250
    );
}

/// One family has a table, whose last column is the day, and the other has none.
#[tokio::test]
async fn a_scope_and_a_day_are_one_counter_and_no_other_pair_is() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE days (scope VARBINARY(99), day VARBINARY(99), count INT NOT NULL, PRIMARY KEY (scope, day))",
    )
    .await;
    let table = Table::upsert("days")
        .key("scope", KeyType::Text)
        .key("day", KeyType::Text)
        .value("count");
    let own = Family::visitors("test", "own").durability(Durability::Immediate);
    let tabled = Family::visitors("test", "tabled")
        .durability(Durability::Immediate)
        .table(table);
    let day = day("2014-09-20");
    let own = pair.counterfoil.open(own).await.unwrap();
    let tabled = pair.counterfoil.open(tabled).await.unwrap();
    for (visitors, scope) in [(&own, "7/8"), (&own, "7"), (&tabled, "7")] {
        assert_eq!(
            visitors.first_visit(scope, day, "a").await.unwrap(),
            Outcome::Counted(1)
        );
        assert_eq!(visitors.get_many([(scope, day)]).await.unwrap(), [1]);
    }
    // the table would take 8/2014-09-20 for the day
    let error = tabled
        .first_visit("7/8", day, "a")
        .await
        .expect_err("taken for another one");
    assert!(
        error.kind() == ErrorKind::InvalidInput && format!("{error:#}").contains("'/'"),
        "{error}"
    );
    assert_eq!(
        tabled.get("7/8", day).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    pair.counterfoil.drain().await.unwrap();
    let kept = "SELECT CAST(count AS SIGNED) FROM days WHERE scope = '7' AND day = '2014-09-20'";
    assert_eq!(pair.number(kept).await, 1);
}

#[tokio::test]
async fn a_visit_that_is_refused_says_why() {
    let pair = Pair::new().await;
    let daily = Family::visitors("test", "daily")
        .partitions(1)
        .durability(Durability::Immediate);
    let daily = pair.counterfoil.open(daily).await.unwrap();
    let full = format!(
        "HSET cf1:{{test/daily/0}}:buffer shop/2014-09-20 {}",
        i64::MAX
    );
    pair.redis.run::<()>(&full).await.unwrap();
    assert_eq!(
        daily
            .first_visit("shop", day("2014-09-20"), "visitor")
            .await
            .unwrap(),
        Outcome::OutOfRange(None)
    );
    assert_eq!(
        daily
            .first_visit("shop", day("2014-09-21"), "visitor")
            .await
            .unwrap(),
        Outcome::Counted(1)
    );
}

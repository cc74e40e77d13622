//! Cached counters from the first increment to the row, as an application uses them.

use std::time::Duration;

use crate::support::{Pair, Plain, eventually};
use counterfoil::{
    CachedCounters, Counterfoil, Durability, ErrorKind, Family, FamilyBuilder, KeyType, MysqlStore,
    Outcome, Table,
};
use futures_util::future::{join_all, try_join_all};

/// Returns a family that is durable and due at once.
fn family(name: &str) -> FamilyBuilder<CachedCounters> {
    Family::cached("test", name)
        .partitions(4)
        .durability(Durability::Immediate)
        .sync_time(Duration::from_millis(20))
}

async fn open(plain: &Plain, family: FamilyBuilder<CachedCounters>) -> CachedCounters {
    plain.counterfoil.open(family).await.expect("opened")
}

type Cached = CachedCounters;

/// Creates the application's table with items 1 to 3, and opens the family.
async fn items(pair: &Pair, family: FamilyBuilder<CachedCounters>) -> Cached {
    pair.sql(
        "CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(50), vote_count INT NOT NULL DEFAULT 0); \
         INSERT INTO item (id, name) VALUES (1, 'one'), (2, 'two'), (3, 'three')",
    )
    .await;
    let table = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("vote_count");
    pair.counterfoil
        .open(family.table(table))
        .await
        .expect("opened")
}

async fn calls(pair: &Pair) -> u64 {
    let info: String = pair.redis.run("INFO commandstats").await.unwrap();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next())
        .map_or(0, |calls| calls.parse().expect("a number"))
}

fn value(changed: Outcome) -> i64 {
    changed.counted().unwrap_or_else(|| panic!("{changed:?}"))
}

#[tokio::test]
async fn the_value_comes_back_with_the_increment() {
    let plain = Plain::new().await;
    let votes = open(&plain, family("votes")).await;
    assert_eq!(votes.get("a").await.unwrap(), 0);
    assert_eq!(value(votes.incr("a", 1).await.unwrap()), 1);
    assert_eq!(value(votes.incr("a", 5).await.unwrap()), 6);
    assert_eq!(value(votes.incr("a", -2).await.unwrap()), 4);
    assert_eq!(votes.get("a").await.unwrap(), 4);
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [None]);
    plain.counterfoil.drain().await.unwrap();
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [Some(4)]);
    assert_eq!(value(votes.set("a", 100).await.unwrap()), 100);
    assert_eq!(value(votes.incr("a", 1).await.unwrap()), 101);
    plain.counterfoil.drain().await.unwrap();
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [Some(101)]);
}

#[tokio::test]
async fn bounds_refuse_and_return_the_value() {
    let plain = Plain::new().await;
    let stock = open(&plain, family("stock").min(0).max(10)).await;
    assert_eq!(
        stock.incr("a", -1).await.unwrap(),
        Outcome::OutOfRange(Some(0))
    );
    assert_eq!(value(stock.set("a", 3).await.unwrap()), 3);
    assert_eq!(
        stock.set("a", 11).await.unwrap(),
        Outcome::OutOfRange(Some(3))
    );
    // more in total than there are: the ones that fit are counted
    let buys = (0..8).map(|_| stock.incr("a", -1));
    let sold = try_join_all(buys).await.unwrap();
    let mut values: Vec<_> = sold
        .iter()
        .filter_map(|changed| changed.counted())
        .collect();
    values.sort();
    assert_eq!(values, [0, 1, 2]);
    assert!(
        sold.iter()
            .filter(|changed| changed.counted().is_none())
            .all(|changed| *changed == Outcome::OutOfRange(Some(0)))
    );
}

#[tokio::test]
async fn a_process_with_other_bounds_is_refused() {
    let pair = Pair::new().await;
    let stock = |bounds: fn(FamilyBuilder<CachedCounters>) -> FamilyBuilder<CachedCounters>| {
        bounds(family("stock"))
    };
    let opened = |family| async {
        let other = Counterfoil::new(
            pair.redis.manager().await,
            MysqlStore::new(pair.pool.clone()),
        );
        other.open(family).await
    };
    opened(stock(|family| family.min(0).max(10))).await.unwrap();
    opened(stock(|family| family.max(10).min(0))).await.unwrap();
    for other in [
        stock(|family| family),
        stock(|family| family.min(0)),
        stock(|family| family.min(0).max(11)),
    ] {
        let error = opened(other).await.expect_err("other bounds");
        assert!(
            error.kind() == ErrorKind::Mismatch && format!("{error:#}").contains("min 0, max 10"),
            "{error}"
        );
    }
    // the change that the documentation describes
    pair.sql("UPDATE counterfoil_families SET shape = 'min 0' WHERE namespace = 'test' AND name = 'stock'").await;
    opened(stock(|family| family.min(0))).await.unwrap();
}

#[tokio::test]
async fn a_reconciler_saves_deletes_and_the_counter_comes_back() {
    let plain = Plain::new().await;
    let votes = open(&plain, family("votes").retain(Duration::from_millis(50))).await;
    let reconciler = plain.counterfoil.reconciler().start().await.unwrap();
    for round in 1..=5 {
        assert_eq!(value(votes.incr("a", 1).await.unwrap()), round);
        eventually("it is saved", || async {
            votes.stored(&["a"]).await.unwrap() == [Some(round)]
        })
        .await;
        eventually("it is deleted", || async {
            plain
                .redis
                .run::<Vec<String>>("KEYS *base")
                .await
                .unwrap()
                .is_empty()
        })
        .await;
        assert_eq!(votes.get("a").await.unwrap(), round);
    }
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_application_s_own_column_is_counted_up() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes")).await;
    assert_eq!(value(votes.incr("1", 5).await.unwrap()), 5);
    assert_eq!(value(votes.incr("2", 1).await.unwrap()), 1);
    assert_eq!(votes.incr("4", 1).await.unwrap(), Outcome::NoRow);
    assert_eq!(
        votes.get_many(&["1", "2", "3", "4"]).await.unwrap(),
        [5, 1, 0, 0]
    );
    assert_eq!(
        votes.incr("01", 1).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await,
        5
    );
    assert_eq!(pair.number("SELECT COUNT(*) FROM item").await, 3);
    assert_eq!(
        pair.number("SELECT COUNT(*) FROM counterfoil_rejects")
            .await,
        0
    );
}

#[tokio::test]
async fn rows_that_do_not_exist_are_made_where_that_is_asked_for() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE likes (page VARBINARY(100) PRIMARY KEY, likes BIGINT)")
        .await;
    let table = Table::upsert("likes")
        .key("page", KeyType::Text)
        .value("likes");
    let likes = pair
        .counterfoil
        .open(family("likes").table(table))
        .await
        .unwrap();
    assert_eq!(value(likes.incr("a/b", 2).await.unwrap()), 2);
    // an id that was only read gets no row
    assert_eq!(likes.get("c").await.unwrap(), 0);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT likes FROM likes WHERE page = 'a/b'")
            .await,
        2
    );
    assert_eq!(pair.number("SELECT COUNT(*) FROM likes").await, 1);
}

#[tokio::test]
async fn many_increments_make_few_saves() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes").sync_time(Duration::from_millis(700))).await;
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    for _ in 0..200 {
        let _ = votes.incr("1", 1).await.unwrap();
    }
    eventually("it is saved", || async {
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await
            == 200
    })
    .await;
    // the first increment is saved at once
    let saves = pair
        .number("SELECT CAST(seq AS SIGNED) FROM counterfoil_ledger")
        .await;
    assert!(saves <= 3, "{saves} saves");
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_cold_start_asks_the_database_once() {
    let pair = Pair::new().await;
    let values = pair.counterfoil.open(family("values")).await.unwrap();
    pair.sql(
        "INSERT INTO counterfoil_values (family, id, value) \
         WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000) \
         SELECT 1, CONCAT('page/', n), n FROM numbers",
    )
    .await;
    let ids: Vec<_> = (1..=1000).map(|number| format!("page/{number}")).collect();
    // a script that Redis does not know yet is sent twice
    assert_eq!(
        value(values.incr("other", 1).await.unwrap()),
        values.get("other").await.unwrap()
    );
    let (statements, before) = (pair.mysql().statements(), calls(&pair).await);
    let all = values.get_many(&ids).await.unwrap();
    assert_eq!(all, (1..=1000).collect::<Vec<i64>>());
    assert_eq!(pair.mysql().statements() - statements, 1);
    // each partition takes a call that finds nothing, one that seeds and one that reads
    assert!(calls(&pair).await - before <= 12);
    let (statements, before) = (pair.mysql().statements(), calls(&pair).await);
    assert_eq!(values.get_many(&ids).await.unwrap(), all);
    assert_eq!(
        (
            pair.mysql().statements() - statements,
            calls(&pair).await - before
        ),
        (0, 4)
    );
}

#[tokio::test]
async fn concurrent_misses_of_an_id_ask_the_database_once() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes")).await;
    let statements = pair.mysql().statements();
    let values: Vec<_> = join_all((0..100).map(|_| votes.incr("1", 1))).await;
    let mut values: Vec<_> = values
        .into_iter()
        .map(|changed| value(changed.unwrap()))
        .collect();
    values.sort();
    assert_eq!(values, (1..=100).collect::<Vec<_>>());
    // misses during the first read join it; only later ones start a second read
    assert_eq!(pair.mysql().statements() - statements, 1);
}

#[tokio::test]
async fn a_family_of_another_kind_is_refused() {
    let pair = Pair::new().await;
    let _ = pair
        .counterfoil
        .open(crate::support::family("votes"))
        .await
        .unwrap();
    let refused = pair.counterfoil.open(family("votes")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Mismatch);
    assert!(refused.to_string().contains("kind"), "{refused}");
}

#[tokio::test]
async fn both_ends_of_i64_are_reached_and_not_passed() {
    let pair = Pair::new().await;
    let values = pair.counterfoil.open(family("values")).await.unwrap();
    for (id, end, beyond) in [("top", i64::MAX, 1), ("bottom", i64::MIN, -1)] {
        assert_eq!(value(values.set(id, end).await.unwrap()), end);
        assert_eq!(
            values.incr(id, beyond).await.unwrap(),
            Outcome::OutOfRange(Some(end))
        );
        // the difference does not fit in the row's delta
        assert_eq!(
            values.set(id, -2 * beyond).await.unwrap(),
            Outcome::OutOfRange(Some(end))
        );
        assert_eq!(value(values.incr(id, -beyond).await.unwrap()), end - beyond);
        assert_eq!(value(values.incr(id, beyond).await.unwrap()), end);
        pair.counterfoil.drain().await.unwrap();
        assert_eq!(values.stored(&[id]).await.unwrap(), [Some(end)]);
        assert_eq!(values.get(id).await.unwrap(), end);
        assert_eq!(
            values.incr(id, beyond).await.unwrap(),
            Outcome::OutOfRange(Some(end))
        );
    }
}

#[tokio::test]
async fn a_set_among_increments_overwrites_what_was_before_it() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes").sync_time(Duration::from_millis(1))).await;
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    for round in 1..=20 {
        let goal = round * 1000;
        let increments = (0..100).map(|_| votes.incr("1", 1));
        let (set, values) = tokio::join!(votes.set("1", goal), join_all(increments));
        assert_eq!(value(set.unwrap()), goal);
        let later = values
            .into_iter()
            .filter(|changed| value(*changed.as_ref().unwrap()) > goal)
            .count();
        assert_eq!(votes.get("1").await.unwrap(), goal + later as i64);
    }
    let last = votes.get("1").await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await,
        last
    );
    reconciler.shutdown().await.unwrap();
}

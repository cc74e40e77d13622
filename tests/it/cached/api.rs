//! Cached counters from the first increment to the row, as an application uses them.

use super::{family, items, row};

use crate::support::*;

#[tokio::test]
async fn bounds_refuse_and_return_the_value() {
    let (_plain, stock) = Plain::of(family("stock").min(0).max(10)).await;
    let refused = |value| OutOfRange(Some(value));
    assert_eq!(stock.incr("a", -1).await.unwrap(), refused(0));
    assert_eq!(counted(stock.set("a", 3).await.unwrap()), 3);
    assert_eq!(stock.set("a", 11).await.unwrap(), refused(3));
    // more in total than there are: the ones that fit are counted
    let mut sold = try_join_all((0..8).map(|_| stock.incr("a", -1)))
        .await
        .unwrap();
    sold.sort_by_key(|outcome| outcome.counted());
    let values = [0, 1, 2].map(Counted);
    assert_eq!(sold, [&[refused(0); 5][..], &values].concat());
}

#[tokio::test]
async fn a_process_with_other_bounds_or_another_kind_is_refused() {
    type Stock = FamilyBuilder<CachedCounters>;
    let pair = Pair::new().await;
    let open = async |bounds: fn(Stock) -> Stock| {
        pair.other()
            .await
            .open(bounds(family("stock")))
            .await
            .map(drop)
    };
    open(|family| family.min(0).max(10)).await.unwrap();
    open(|family| family.max(10).min(0)).await.unwrap();
    let others: [fn(Stock) -> Stock; 3] = [
        |family| family,
        |family| family.min(0),
        |family| family.min(0).max(11),
    ];
    for other in others {
        refused(open(other).await, Mismatch, "min = 0, max = 10");
    }
    // the change that the documentation describes
    pair.sql("UPDATE counterfoil_families SET shape = 'min = 0' WHERE namespace = 'test' AND name = 'stock'").await;
    open(|family| family.min(0)).await.unwrap();

    let _views = pair.open(crate::support::family("votes")).await;
    refused(
        pair.counterfoil.open(family("votes")).await,
        Mismatch,
        "kind",
    );
}

#[tokio::test]
async fn a_peek_is_exact_and_writes_nothing() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes")).await;
    pair.sql("UPDATE item SET vote_count = 7 * id").await;
    assert_eq!(votes.count("1", 5).await, 12);
    let changes = async || {
        let info: String = pair.redis.run("INFO persistence").await.unwrap();
        let changes = info.lines().find(|line| line.starts_with("rdb_changes"));
        changes.unwrap().to_owned()
    };
    let before = changes().await;
    let ids = ["1", "2", "3", "4", "2"];
    for _ in 0..2 {
        let found = votes.peek_many(ids).await.unwrap();
        assert_eq!(found, [12, 14, 21, 0, 14]);
    }
    assert_eq!(changes().await, before);
    refused(votes.peek_many(["01"]).await, InvalidInput, "");
    // a read that seeds
    assert_eq!(votes.get_many(&ids[..2]).await.unwrap(), [12, 14]);
    assert_ne!(changes().await, before);
    assert_eq!(votes.peek_many(["2"]).await.unwrap(), [14]);
}

#[tokio::test]
async fn many_increments_make_few_saves() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes").sync_time(millis(700))).await;
    let reconciler = pair.reconcile().await;
    for _ in 0..200 {
        votes.count("1", 1).await;
    }
    eventually("it is saved", || async { row(&pair, 1).await == 200 }).await;
    // the first increment is saved at once
    let saves = "SELECT CAST(seq AS SIGNED) FROM counterfoil_ledger";
    let saves = pair.number(saves).await;
    assert!(saves <= 3, "{saves} saves");
    reconciler.stop().await;
}

#[tokio::test]
async fn a_cold_start_queries_the_database_once() {
    let (pair, values) = Pair::of(family("values")).await;
    pair.sql(
        "INSERT INTO counterfoil_values (family, id, value) \
         WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000) \
         SELECT 1, CONCAT('page/', n), n FROM numbers",
    )
    .await;
    let ids: Vec<_> = (1..=1000).map(|number| format!("page/{number}")).collect();
    // a script that Redis does not know yet is sent twice
    let other = values.count("other", 1).await;
    assert_eq!(other, values.value("other").await);
    // each partition takes a call that finds nothing, one that seeds and one that reads
    for (statements, most_calls) in [(1, 12), (0, 4)] {
        let before = (
            pair.mysql().statements(),
            calls(&pair.redis, "evalsha").await,
        );
        assert_eq!(
            values.get_many(&ids).await.unwrap(),
            (1..=1000).collect::<Vec<i64>>()
        );
        assert_eq!(pair.mysql().statements() - before.0, statements);
        assert!(calls(&pair.redis, "evalsha").await - before.1 <= most_calls);
    }
}

#[tokio::test]
async fn concurrent_misses_of_an_id_query_the_database_once() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes")).await;
    let statements = pair.mysql().statements();
    let mut values = join_all((0..100).map(|_| votes.count("1", 1))).await;
    values.sort();
    assert_eq!(values, (1..=100).collect::<Vec<_>>());
    // misses during the first read join it; only later ones start a second read
    assert_eq!(pair.mysql().statements() - statements, 1);
}

#[tokio::test]
async fn both_ends_are_reached_and_not_passed() {
    let (pair, values) = Pair::of(family("values")).await;
    let most = (1 << 53) - 1;
    for (id, end, beyond) in [("top", most, 1), ("bottom", -most, -1)] {
        let refused = OutOfRange(Some(end));
        assert_eq!(counted(values.set(id, end).await.unwrap()), end);
        assert_eq!(values.incr(id, beyond).await.unwrap(), refused);
        assert_eq!(values.incr(id, i64::MAX).await.unwrap(), refused);
        assert_eq!(values.incr(id, i64::MIN).await.unwrap(), refused);
        assert_eq!(values.count(id, -beyond).await, end - beyond);
        assert_eq!(values.count(id, beyond).await, end);
        pair.drain().await;
        assert_eq!(values.stored(&[id]).await.unwrap(), [Some(end)]);
        assert_eq!(values.value(id).await, end);
        assert_eq!(values.incr(id, beyond).await.unwrap(), refused);
    }
}

#[tokio::test]
async fn a_row_beyond_what_a_counter_can_have_is_refused_until_it_is_back() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE big (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    let big = Table::upsert("big").key("id", KeyType::Unsigned).value("n");
    let values = pair.open(family("values").table(big)).await;
    assert_eq!(values.count("1", 1).await, 1);
    for beyond in [1_i64 << 53, -(1 << 53), i64::MAX] {
        pair.sql(&format!(
            "REPLACE INTO big VALUES (1, {beyond}), (2, {beyond})"
        ))
        .await;
        refused(values.incr("2", 1).await, ErrorKind::Range, "2^53");
        refused(values.get("2").await, ErrorKind::Range, "2^53");
        refused(values.peek_many(["1", "2"]).await, ErrorKind::Range, "2^53");
        // the save of the first counter finds it, too
        let _ = values.incr("1", 1).await;
        pair.drain().await;
        refused(values.get("1").await, ErrorKind::Range, "2^53");
        pair.sql("UPDATE big SET n = 7").await;
        assert_eq!(values.value("1").await, 7);
        assert_eq!(values.value("2").await, 7);
        pair.sql("DELETE FROM big WHERE id = 2").await;
        pair.redis.does("DEL cf1:{test/values/0}:base cf1:{test/values/1}:base cf1:{test/values/2}:base cf1:{test/values/3}:base").await;
    }
}

#[tokio::test]
async fn the_range_of_the_column_is_a_bound() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE stock (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, n INT UNSIGNED NOT NULL)",
    )
    .await;
    pair.sql("INSERT INTO stock VALUES (1, 1), (2, 4294967294)")
        .await;
    let table = || {
        Table::update("stock")
            .key("id", KeyType::Unsigned)
            .value("n")
    };
    let stock = pair.open(family("stock").table(table())).await;
    let mut sold = vec![];
    for _ in 0..5 {
        sold.push(stock.incr("1", -1).await.unwrap());
    }
    assert_eq!(sold[0], Counted(0));
    assert_eq!(sold[1..], [OutOfRange(Some(0)); 4]);
    assert_eq!(stock.count("2", 1).await, 4_294_967_295);
    assert_eq!(
        stock.incr("2", 1).await.unwrap(),
        OutOfRange(Some(4_294_967_295))
    );
    assert_eq!(stock.incr("3", 1).await.unwrap(), Outcome::NoRow);
    pair.drain().await;
    assert_eq!(
        pair.number("SELECT CAST(COUNT(*) AS SIGNED) FROM counterfoil_rejects")
            .await,
        0
    );

    for (bounded, column) in [
        (
            family("other").min(-1),
            "min -1 is not a value of column n, 0 to 4294967295",
        ),
        (family("other").max(1 << 32), "max 4294967296 is not"),
    ] {
        refused(
            pair.counterfoil.open(bounded.table(table())).await,
            Mismatch,
            column,
        );
    }
}

#[tokio::test]
async fn without_its_guard_a_stock_that_was_refilled_stays_sold_out() {
    take_out(Some(Guard::OldRow));
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes").min(0)).await;
    assert_eq!(votes.incr("1", -1).await.unwrap(), OutOfRange(Some(0)));
    pair.sql("UPDATE item SET vote_count = 10").await;
    tokio::time::sleep(millis(1500)).await;
    assert_eq!(votes.incr("1", -1).await.unwrap(), OutOfRange(Some(0)));
    take_out(None);
}

#[tokio::test]
async fn a_stock_that_was_refilled_is_sold_a_second_later() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes").min(0)).await;
    pair.sql("UPDATE item SET vote_count = 1").await;
    assert_eq!(votes.count("1", -1).await, 0);
    pair.drain().await;
    assert_eq!(votes.incr("1", -1).await.unwrap(), OutOfRange(Some(0)));
    pair.sql("UPDATE item SET vote_count = 10").await;
    let refilled = Instant::now();
    while votes.incr("1", -1).await.unwrap() == OutOfRange(Some(0)) {
        tokio::time::sleep(millis(20)).await;
    }
    assert!(refilled.elapsed() < secs(2), "{:?}", refilled.elapsed());
    assert_eq!(votes.value("1").await, 9);
    // a counter that stays sold out takes a row read a second, however many ask
    assert_eq!(counted(votes.set("1", 0).await.unwrap()), 0);
    pair.drain().await;
    let statements = pair.mysql().statements();
    let asked = Instant::now();
    while asked.elapsed() < millis(2500) {
        assert_eq!(votes.incr("1", -1).await.unwrap(), OutOfRange(Some(0)));
    }
    assert!(pair.mysql().statements() - statements <= 3);
}

#[tokio::test]
async fn a_set_among_increments_overwrites_what_was_before_it() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes").sync_time(millis(1))).await;
    let reconciler = pair.reconcile().await;
    let mut last = 0;
    for round in 1..=20 {
        let goal = round * 1000;
        let increments = (0..100).map(|_| votes.count("1", 1));
        let (set, values) = tokio::join!(votes.set("1", goal), join_all(increments));
        assert_eq!(counted(set.unwrap()), goal);
        let later = values.into_iter().filter(|value| *value > goal).count();
        last = goal + later as i64;
        assert_eq!(votes.value("1").await, last);
    }
    pair.drain().await;
    assert_eq!(row(&pair, 1).await, last);
    reconciler.stop().await;
}

/// Redis was emptied, and nothing has configured the family since: its rows have everything.
#[tokio::test]
async fn a_counter_of_an_emptied_redis_is_its_row() {
    let pair = Pair::new().await;
    let votes = items(&pair, family("votes")).await;
    votes.count("1", 5).await;
    pair.drain().await;
    pair.redis.does("FLUSHALL").await;
    assert_eq!(votes.value("1").await, 5);
    assert_eq!(votes.get_many(["1", "2", "9"]).await.unwrap(), [5, 0, 0]);
    let found = votes.find_many(["1", "9"]).await.unwrap();
    assert_eq!(found, [Some(5), None]);
    // a reader makes no ticket where no counter can be seeded
    assert_eq!(pair.command::<Vec<String>>("KEYS *").await, [""; 0]);
    assert_eq!(votes.count("1", 1).await, 6);
}

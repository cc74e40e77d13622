//! Families that a process serves or changes without having opened them, as registered in the
//! database.

use std::time::{Duration, SystemTime};

use crate::support::{Pair, counted, day, eventually, family, pause};
use counterfoil::{
    BufferedCounters, CachedCounters, Counterfoil, Counting, Durability, ErrorKind, Family,
    FamilyBuilder, KeyType, MysqlStore, Outcome, Precision, Series, Table,
};

const MOMENT: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3600);

/// Connects another process, which has opened nothing.
async fn another(pair: &Pair) -> Counterfoil {
    Counterfoil::new(
        pair.redis.manager().await,
        MysqlStore::new(pair.pool.clone()),
    )
}

/// Returns the sum of the family's values in the database.
async fn stored(pair: &Pair, name: &str) -> i64 {
    let sum = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values JOIN counterfoil_families \
               ON number = family WHERE name = ?";
    sqlx::query_scalar(sum)
        .bind(name)
        .fetch_one(&pair.pool)
        .await
        .unwrap()
}

async fn arrives(pair: &Pair, name: &str, sum: i64) {
    eventually(name, async || stored(pair, name).await == sum).await;
}

#[tokio::test]
async fn a_process_that_opened_nothing_serves_all_kinds() {
    let pair = Pair::new().await;
    let now = Durability::Immediate;
    pair.sql("CREATE TABLE gone (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    pair.sql(
        "CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL); INSERT INTO item VALUES (1, 0)",
    )
    .await;
    let gone = family("gone").table(Table::upsert("gone").key("id", KeyType::Signed).value("n"));
    let gone = pair.counterfoil.open(gone).await.unwrap();
    let views = pair
        .counterfoil
        .open(family("views").wide(true))
        .await
        .unwrap();
    let table = Table::update("item").key("id", KeyType::Signed).value("n");
    let votes = Family::cached("test", "votes")
        .durability(now)
        .sync_time(MOMENT)
        .max(2)
        .table(table);
    let votes = pair.counterfoil.open(votes).await.unwrap();
    let hits =
        Family::series("test", "hits").windows([(Precision::SECOND, 9), (Precision::Day, 3)]);
    let hits = hits
        .keep([Precision::SECOND])
        .durability(now)
        .sync_time(MOMENT)
        .time_zone("Europe/Berlin");
    let hits = pair.counterfoil.open(hits).await.unwrap();
    let online = Family::activity("test", "online")
        .durability(now)
        .keep_minutes(true)
        .stripes(3);
    let online = online.visitors(Counting::HyperLogLog);
    let online = pair.counterfoil.open(online).await.unwrap();
    let visitors = Family::visitors("test", "visitors").durability(now);
    let visitors = pair.counterfoil.open(visitors).await.unwrap();
    for number in 0..3 {
        let _ = gone.add("1", 1).await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
        let _ = votes.incr("1", 1).await.unwrap();
        let _ = hits.add("page", 1).await.unwrap();
        online.touch("page", "visitor").await.unwrap();
        let _ = visitors
            .first_visit("shop", day("2014-09-20"), format!("visitor {number}"))
            .await
            .unwrap();
    }
    pair.sql("DROP TABLE gone").await;

    let other = another(&pair).await;
    let _running = other.reconciler().all().start().await.unwrap();
    for name in ["views", "hits", "visitors"] {
        arrives(&pair, name, 3).await;
    }
    eventually("votes", async || {
        pair.number("SELECT CAST(n AS SIGNED) FROM item").await == 2
    })
    .await;
    assert_eq!(
        gone.pending(&["1"]).await.unwrap(),
        [3],
        "it waits by itself"
    );
    pair.sql("CREATE TABLE gone (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    other.drain_all().await.unwrap();
    let kept = stored(&pair, "online").await;
    assert!(
        (4..=5).contains(&kept),
        "3 views and the visitor, who counts again in another minute: {kept}"
    );
    assert_eq!(pair.number("SELECT CAST(n AS SIGNED) FROM gone").await, 3);
}

#[tokio::test]
async fn families_that_come_later_or_change_are_served_and_an_open_one_keeps_its_settings() {
    let pair = Pair::new().await;
    let opened = async |builder: FamilyBuilder<BufferedCounters>| {
        pair.counterfoil.open(builder).await.unwrap()
    };
    let other = another(&pair).await;
    let _own = other
        .open(family("own").sync_hits(1000).sync_time(MOMENT))
        .await
        .unwrap();
    let own = opened(family("own").sync_hits(1000).sync_time(HOUR)).await;
    let slow = opened(family("slow").sync_hits(1000).sync_time(HOUR)).await;
    let foreign = pair
        .counterfoil
        .open(Family::buffered("foreign", "foreign"))
        .await
        .unwrap();
    for views in [&own, &slow, &foreign] {
        let _ = views.add("page", 1).await.unwrap();
    }
    let _running = other.reconciler().namespace("test").start().await.unwrap();
    // the very first hit is due at once, the next ones are not
    arrives(&pair, "slow", 1).await;
    arrives(&pair, "own", 1).await;
    let _ = slow.add("page", 1).await.unwrap();
    let later = opened(family("later")).await;
    let _ = later.add("page", 1).await.unwrap();
    arrives(&pair, "later", 1).await;
    assert_eq!(stored(&pair, "slow").await, 1, "as it was opened");
    let _ = own.add("page", 1).await.unwrap();
    arrives(&pair, "own", 2).await;
    let _ = opened(family("slow").sync_hits(1).sync_time(MOMENT)).await;
    arrives(&pair, "slow", 2).await;
    assert_eq!(stored(&pair, "foreign").await, 0, "a namespace of others");
}

fn votes() -> FamilyBuilder<CachedCounters> {
    Family::cached("test", "votes").durability(Durability::Immediate)
}

#[tokio::test]
async fn partitions_change_once_nothing_is_pending() {
    let pair = Pair::new().await;
    let (of_4, of_16) = (family("views"), family("views").partitions(16));
    let before = pair.counterfoil.open(of_4.clone()).await.unwrap();
    let ids: Vec<_> = (0..40).map(|number| format!("page/{number}")).collect();
    for id in &ids {
        assert_eq!(counted(before.add(id, 1).await.unwrap()), 1);
    }
    let operator = another(&pair).await;
    let error = operator
        .reconfigure(&of_16.build().unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let _ = before.add("page/0", 1).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    operator.reconfigure(&of_16.build().unwrap()).await.unwrap();
    // Redis and the database refuse a client with the old number, and it does not restore that
    // number
    let error = before.add("page/0", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    let _old = pair.counterfoil.reconciler().start().await.unwrap();
    assert_eq!(
        pair.counterfoil
            .open(of_4.clone())
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Mismatch
    );
    pause(500).await;
    let home = "HGET cf1:{test/views/0}:calls =partitions";
    assert_eq!(pair.redis.run::<String>(home).await.unwrap(), "16");
    let after = operator.open(of_16.clone()).await.unwrap();
    for id in &ids {
        assert_eq!(counted(after.add(id, 1).await.unwrap()), 1);
    }
    operator.drain().await.unwrap();
    assert_eq!(stored(&pair, "views").await, 81);
    assert_eq!(after.get("page/0").await.unwrap(), 3);
    // and back
    operator.reconfigure(&of_4.build().unwrap()).await.unwrap();
    assert_eq!(
        after.add("page/0", 1).await.unwrap_err().kind(),
        ErrorKind::Mismatch
    );
    assert_eq!(counted(before.add("page/0", 1).await.unwrap()), 1);
}

/// A saved counter stays in its old partition. It must not be found there when that partition is
/// used again.
#[tokio::test]
async fn cached_counters_follow_their_partitions() {
    let pair = Pair::new().await;
    let ids: Vec<_> = (0..20).map(|number| format!("item/{number}")).collect();
    for (value, partitions) in [(1, 4), (2, 7), (3, 1), (4, 4)] {
        let votes = votes().partitions(partitions);
        if value > 1 {
            let error = pair
                .counterfoil
                .reconfigure(&votes.build().unwrap())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            pair.counterfoil.drain().await.unwrap();
            pair.counterfoil
                .reconfigure(&votes.build().unwrap())
                .await
                .unwrap();
        }
        let votes = pair.counterfoil.open(votes).await.unwrap();
        for id in &ids {
            assert_eq!(
                votes.incr(id, 1).await.unwrap().counted(),
                Some(value),
                "{id}"
            );
        }
    }
}

#[tokio::test]
async fn durability_and_bounds_change_at_any_time_and_nothing_else_does() {
    let pair = Pair::new().await;
    let at_once = family("views");
    let views = pair.counterfoil.open(at_once.clone()).await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    let settling = family("views").durability(Durability::Settle(MOMENT));
    pair.counterfoil
        .reconfigure(&settling.build().unwrap())
        .await
        .unwrap();
    assert_eq!(
        pair.counterfoil.open(at_once).await.unwrap_err().kind(),
        ErrorKind::Mismatch
    );
    let views = pair.counterfoil.open(settling).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(1)]);

    let bounded = votes().min(0);
    let _votes = pair.counterfoil.open(bounded).await.unwrap();
    let wider = votes().min(-2);
    assert_eq!(
        pair.counterfoil
            .open(wider.clone())
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Mismatch
    );
    pair.counterfoil
        .reconfigure(&wider.build().unwrap())
        .await
        .unwrap();
    let votes = pair.counterfoil.open(wider).await.unwrap();
    assert_eq!(votes.incr("item", -1).await.unwrap().counted(), Some(-1));

    let hits = |partitions| -> FamilyBuilder<Series> {
        Family::series("test", "hits").partitions(partitions)
    };
    let _hits = pair.counterfoil.open(hits(4)).await.unwrap();
    for (wrong, what) in [
        (
            family("views")
                .durability(Durability::Settle(MOMENT))
                .wide(true)
                .build()
                .unwrap(),
            "wide",
        ),
        (family("votes").build().unwrap(), "kind"),
        (hits(8).build().unwrap(), "another name"),
        (family("nobody").build().unwrap(), "not registered"),
    ] {
        let error = pair.counterfoil.reconfigure(&wrong).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && format!("{error:#}").contains(what),
            "{error}"
        );
    }
}

/// Kinds whose partitions hold windows or visitors change as docs/operations.md describes: a family
/// of another name uses the same table.
#[tokio::test]
async fn other_kinds_change_their_partitions_under_another_name() {
    let (pair, at_once) = (Pair::new().await, Durability::Immediate);
    pair.sql("CREATE TABLE page_days (day DATE, page VARBINARY(200), hits BIGINT NOT NULL, PRIMARY KEY (day, page))")
        .await;
    pair.sql("CREATE TABLE minutes (what VARBINARY(16), minute BIGINT, page VARBINARY(200), n BIGINT NOT NULL, PRIMARY KEY (what, minute, page))")
        .await;
    pair.sql("CREATE TABLE visitors (store INT UNSIGNED, day DATE, n BIGINT NOT NULL, PRIMARY KEY (store, day))").await;
    let open = async |name: &str, partitions: u32| {
        let days = Table::upsert("page_days")
            .key("day", KeyType::Date)
            .key("page", KeyType::Text)
            .value("hits");
        let hits = Family::series("test", format!("hits{name}"))
            .windows([(Precision::Day, 9)])
            .keep([Precision::Day]);
        let hits = hits.table(days).durability(at_once).partitions(partitions);
        let minutes = Table::upsert("minutes")
            .key("what", KeyType::Text)
            .key("minute", KeyType::Signed);
        let minutes = minutes.key("page", KeyType::Text).value("n");
        let online = Family::activity("test", format!("online{name}"))
            .keep_minutes(true)
            .table(minutes);
        let online = online.durability(at_once).partitions(partitions);
        let stores = Table::upsert("visitors")
            .key("store", KeyType::Unsigned)
            .key("day", KeyType::Date)
            .value("n");
        let visitors = Family::visitors("test", format!("visitors{name}")).table(stores);
        let visitors = visitors.durability(at_once).partitions(partitions);
        (
            pair.counterfoil.open(hits).await.unwrap(),
            pair.counterfoil.open(online).await.unwrap(),
            pair.counterfoil.open(visitors).await.unwrap(),
        )
    };
    let (old_hits, old_online, old_visitors) = open("", 4).await;
    let before = day("2014-09-20");
    for number in 0..30 {
        let _ = old_hits
            .add(&format!("page/{}", number % 5), 1)
            .await
            .unwrap();
        old_online
            .touch("page", format!("visitor {number}"))
            .await
            .unwrap();
        let _ = old_visitors
            .first_visit("1", before, format!("visitor {number}"))
            .await
            .unwrap();
    }
    pair.counterfoil.drain_all().await.unwrap();
    let (hits, online, visitors) = open("-9", 9).await;
    for number in 0..50 {
        let _ = hits.add(&format!("page/{}", number % 5), 1).await.unwrap();
        online
            .touch("page", format!("later visitor {number}"))
            .await
            .unwrap();
        // the day before is not over everywhere, and most visitors are already counted
        let visited = old_visitors
            .first_visit("1", before, format!("visitor {number}"))
            .await
            .unwrap();
        assert_eq!(
            visited,
            if number < 30 {
                Outcome::CountedBefore(0)
            } else {
                Outcome::Counted(1)
            }
        );
        let visited = visitors
            .first_visit("1", day("2014-09-21"), format!("visitor {number}"))
            .await
            .unwrap();
        assert_eq!(visited, Outcome::Counted(1));
    }
    pair.counterfoil.drain_all().await.unwrap();
    for (sum, expected) in [
        ("SELECT CAST(SUM(hits) AS SIGNED) FROM page_days", 80),
        (
            "SELECT CAST(SUM(n) AS SIGNED) FROM minutes WHERE what = 'views'",
            80,
        ),
        (
            "SELECT CAST(SUM(n) AS SIGNED) FROM minutes WHERE what = 'visitors'",
            80,
        ),
        (
            "SELECT CAST(n AS SIGNED) FROM visitors WHERE day = '2014-09-20'",
            50,
        ),
        (
            "SELECT CAST(n AS SIGNED) FROM visitors WHERE day = '2014-09-21'",
            50,
        ),
    ] {
        assert_eq!(pair.number(sum).await, expected, "{sum}");
    }
    let now = SystemTime::now();
    let two_days = now - Duration::from_secs(86_400)..now + Duration::from_secs(1);
    for page in 0..5 {
        let days = hits
            .get_range(&format!("page/{page}"), Precision::Day, two_days.clone())
            .await
            .unwrap();
        assert_eq!(
            days.iter().map(|day| day.count).sum::<i64>(),
            16,
            "with what the family before counted"
        );
    }
    assert_eq!(visitors.get("1", before).await.unwrap(), 50);
}

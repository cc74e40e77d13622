//! Metrics and logs, as the application's recorder and subscriber receive them.

use counterfoil::admin::Loss;
use counterfoil::metrics::{
    BACKLOG_IDS, BACKLOG_SECONDS, BATCHES, DATABASE_SET_BACK, DELETED, DROPPED, HITS, LAG_SECONDS,
    RECORDED, REFUSED, REJECTS, RETRIES, ROWS, SEEDS, SET_BACK, STRAYS, UNKNOWN, WAITING_SECONDS,
    describe,
};

use crate::support::*;

#[tokio::test]
async fn every_boundary_is_measured() {
    let metrics = Metrics::record();
    describe();
    let (mysql, pair) = Pair::on_own_mysql().await;
    pair.sql("CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    pair.sql("INSERT INTO item VALUES (1, 0)").await;
    let table = Table::update("item").key("id", Signed).value("n");
    let items = family("items").max_pending(2).partitions(1);
    let items = pair.open(items.table(table)).await;
    for id in ["1", "1", "2", "3"] {
        let _ = items.add(id, 1).await.unwrap();
    }
    // two ids fit, the third does not
    metrics.expect([(HITS, 3.0), (REFUSED, 1.0)]);

    let stored = async |n| {
        eventually("the flush", || async {
            pair.number("SELECT CAST(n AS SIGNED) FROM item").await == n
        })
        .await;
    };
    let reconciler = pair.reconcile().await;
    stored(2).await;
    reconciler.stop().await;
    metrics.expect([
        (BATCHES, 1.0),
        (ROWS, 1.0),
        (REJECTS, 1.0),
        (LAG_SECONDS, 1.0),
        (WAITING_SECONDS, 0.0),
    ]);

    // while the database is unavailable, the oldest hit ages
    let reconciler = pair.reconcile().await;
    mysql.kill();
    items.count("1", 1).await;
    metrics.is_above(0.5, WAITING_SECONDS).await;
    metrics.is_above(0.0, RETRIES).await;
    mysql.start_again().await;
    stored(3).await;
    reconciler.stop().await;
}

#[tokio::test]
async fn every_count_begins_at_0() {
    let metrics = Metrics::record();
    let (pair, _views) = Pair::of(family("views")).await;
    let _votes = pair.open(Family::cached("test", "votes")).await;
    metrics.expect(
        [
            HITS,
            REFUSED,
            UNKNOWN,
            RECORDED,
            STRAYS,
            SET_BACK,
            DROPPED,
            DATABASE_SET_BACK,
            SEEDS,
            DELETED,
            RETRIES,
        ]
        .map(|name| (name, 0.0)),
    );
    pair.reconcile().await.stop().await;
    metrics.expect([BATCHES, ROWS, REJECTS, RETRIES, WAITING_SECONDS].map(|name| (name, 0.0)));
}

#[tokio::test]
async fn a_reconciler_that_ends_is_logged() {
    let log = Log::begin();
    let (pair, views) = Pair::of(family("views")).await;
    drop(pair.reconcile().await);
    let warnings = || log.lines("WARN", "was dropped").len();
    eventually("a warning", || async { warnings() == 1 }).await;
    pair.reconcile().await.stop().await;
    assert_eq!(log.lines("INFO", "was shut down").len(), 1);
    // a detached reconciler continues
    pair.reconcile().await.detach();
    views.count("page", 1).await;
    eventually("the hit", || async { pair.number(VALUES).await == 1 }).await;
    assert_eq!(warnings(), 1);
}

const VALUES: &str = "SELECT COUNT(*) FROM counterfoil_values";

/// A reconciler of all namespaces, and one of some families, each log once the families that they
/// do not serve.
#[tokio::test]
async fn families_that_are_not_served_are_named() {
    let log = Log::begin();
    let pair = Pair::new().await;
    for name in ["later", "broken", "views"] {
        pair.open(family(name)).await.count("page", 1).await;
    }
    pair.sql("UPDATE counterfoil_families SET settings = '{\"format\":2}' WHERE name = 'later'")
        .await;
    pair.sql("UPDATE counterfoil_families SET settings = '{' WHERE name = 'broken'")
        .await;
    let all = pair.other().await.reconciler().all().start().await.unwrap();
    eventually("the one", || async { pair.number(VALUES).await == 1 }).await;
    let lines = log.lines("WARN", "not served");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in [
        "number=2",
        "test/later: invalid settings",
        "unknown field `format`",
        "test/broken: invalid settings",
    ] {
        assert!(lines[0].contains(part), "{part} is not in {lines:?}");
    }
    all.stop().await;
    let _running = pair.other().await.reconcile().await;
    let lines = || log.lines("WARN", "not served");
    eventually("a warning", || async { lines().len() == 2 }).await;
    assert!(lines()[1].contains("test/views"));
    pair.drain().await;
    assert_eq!(pair.number(VALUES).await, 3);
}

#[tokio::test]
async fn a_set_back_is_measured_and_logged() {
    let (log, metrics) = (Log::begin(), Metrics::record());
    let pair = Pair::new().await;
    let redis = pair.redis.manager().await;
    let views = pair.open(family("views").partitions(1)).await;
    let before = State::of(&redis, views.family()).await;
    views.count("page", 1).await;
    pair.drain().await;
    before.restore(&redis).await;
    for id in ["page", "page", "start"] {
        views.count(id, 1).await;
    }
    pair.drain().await;
    metrics.expect([(SET_BACK, 1.0), (DROPPED, 3.0)]);
    let line = &log.lines("ERROR", "Redis was set back to an older state")[0];
    for part in ["family=test/views", "partition=0", "hits=3", "ids=2"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let [found] = &pair.mysql().set_backs().await.unwrap()[..] else {
        panic!("not recorded")
    };
    assert_eq!(found.loss, Loss::Dropped { hits: 3, ids: 2 });
    metrics.expect([(DATABASE_SET_BACK, 0.0)]);
    views.count("page", 1).await;
    pair.drain().await;
    // a backup from before this batch
    pair.sql("DELETE FROM counterfoil_ledger").await;
    let reconciler = pair.reconcile().await;
    metrics.is_above(0.0, DATABASE_SET_BACK).await;
    reconciler.stop().await;
    let line = &log.lines("ERROR", "the database was set back")[0];
    assert!(line.contains("family=test/views"), "{line}");
}

#[tokio::test]
async fn cached_counters_are_measured_until_they_leave() {
    let metrics = Metrics::record();
    let pair = Pair::new().await;
    let moment = millis(10);
    let votes = votes().sync_time(moment).retain(moment);
    let votes = pair.open(votes.min(0)).await;
    for (id, delta) in [("a", 1), ("a", 1), ("b", 1), ("b", -2)] {
        let _ = votes.incr(id, delta).await.unwrap();
    }
    metrics.expect([(HITS, 3.0), (REFUSED, 1.0), (SEEDS, 2.0)]);
    let reconciler = pair.reconcile().await;
    let mut seen = (0.0, 0.0);
    eventually("both leave", || {
        let new = metrics.look();
        seen.0 += new.get(ROWS).unwrap_or(&0.0);
        seen.1 += new.get(DELETED).unwrap_or(&0.0);
        std::future::ready(seen.1 == 2.0)
    })
    .await;
    assert_eq!(seen.0, 2.0);
    reconciler.stop().await;
}

/// The label has no namespace, so the gauges are sums over all namespaces.
#[tokio::test]
async fn backlogs_are_measured_over_namespaces() {
    let metrics = Metrics::record();
    let pair = Pair::new().await;
    let open = async |tenant: &str| pair.open(Family::buffered(tenant, "views").at_once()).await;
    let (first, second) = (open("first").await, open("second").await);
    let _idle = open("third").await;
    first.count("a", 1).await;
    pause(100).await;
    second.count("a", 1).await;
    second.count("b", 1).await;
    assert_eq!(first.backlog().await.unwrap().ids, 1);
    // one handle knows of one namespace
    assert!(!metrics.look().contains_key(BACKLOG_IDS));
    let backlogs = pair.backlogs().await.unwrap();
    let oldest = |(_, backlog): (Family, Result<Backlog>)| backlog.unwrap().oldest;
    let ages: Vec<_> = backlogs.into_iter().map(oldest).collect();
    let (first, second) = (ages[0].unwrap(), ages[1].unwrap());
    metrics.expect([(BACKLOG_IDS, 3.0), (BACKLOG_SECONDS, first.as_secs_f64())]);
    assert!(first >= second + millis(100), "{ages:?}");
    pair.drain().await;
    let _ = pair.backlogs().await.unwrap();
    metrics.expect([(BACKLOG_IDS, 0.0), (BACKLOG_SECONDS, 0.0)]);
}

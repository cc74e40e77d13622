//! Metrics and logs, as the application's recorder and subscriber receive them.
#![allow(missing_docs)]

#[path = "it/support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::io;
use std::sync::Once;
use std::time::Duration;

use counterfoil::metrics::{
    BACKLOG_IDS, BACKLOG_SECONDS, BATCHES, DELETED, DROPPED, HITS, LAG_SECONDS, PENDING_IDS,
    RECORDED, REFUSED, REJECTS, RETRIES, ROWS, SEEDS, SET_BACK, STRAYS, UNKNOWN, WAITING_SECONDS,
    describe,
};
use counterfoil::{Counterfoil, Durability, Family, KeyType, MysqlStore, Table};
use metrics_util::debugging::DebuggingRecorder;
use support::state::State;
use support::{Pair, eventually, family, look};
use testkit::{MysqlServer, RedisOptions};

#[tokio::test]
async fn every_boundary_is_measured() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    // one thread runs the test and all its tasks
    let _installed = metrics::set_default_local_recorder(&recorder);
    describe();
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    pair.sql("CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    pair.sql("INSERT INTO item VALUES (1, 0)").await;
    let table = Table::update("item").key("id", KeyType::Signed).value("n");
    let items = pair
        .counterfoil
        .open(family("items").max_pending(2).partitions(1).table(table));
    let items = items.await.unwrap();
    for id in ["1", "1", "2", "3"] {
        let _ = items.add(id, 1).await.unwrap();
    }
    let seen = look(&snapshotter);
    assert_eq!(
        (seen[HITS], seen[REFUSED]),
        (3.0, 1.0),
        "two ids fit, the third does not"
    );

    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    eventually("the flush", || async {
        pair.number("SELECT CAST(n AS SIGNED) FROM item").await == 2
    })
    .await;
    reconciler.shutdown().await.unwrap();
    let seen = look(&snapshotter);
    for (name, expected) in [
        (BATCHES, 1.0),
        (ROWS, 1.0),
        (REJECTS, 1.0),
        (LAG_SECONDS, 1.0),
        (WAITING_SECONDS, 0.0),
    ] {
        assert_eq!(seen.get(name), Some(&expected), "{name} in {seen:?}");
    }

    let is_above = |least: f64, name: &str| {
        look(&snapshotter)
            .get(name)
            .is_some_and(|value| *value > least)
    };
    // while the database is unavailable, the oldest hit ages
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    mysql.kill();
    let _ = items.add("1", 1).await.unwrap();
    eventually("a hit that waits for half a second", || async {
        is_above(0.5, WAITING_SECONDS)
    })
    .await;
    eventually("a retry", || async { is_above(0.0, RETRIES) }).await;
    mysql.start_again().await;
    eventually("the hit", || async {
        pair.number("SELECT CAST(n AS SIGNED) FROM item").await == 3
    })
    .await;
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn every_count_is_there_from_the_start() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let pair = Pair::new().await;
    let _views = pair.counterfoil.open(family("views")).await.unwrap();
    let _votes = pair
        .counterfoil
        .open(Family::cached("test", "votes"))
        .await
        .unwrap();
    let seen = look(&snapshotter);
    for name in [
        HITS,
        REFUSED,
        UNKNOWN,
        RECORDED,
        PENDING_IDS,
        STRAYS,
        SET_BACK,
        DROPPED,
        SEEDS,
        DELETED,
        RETRIES,
    ] {
        assert_eq!(seen.get(name), Some(&0.0), "{name} in {seen:?}");
    }
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    reconciler.shutdown().await.unwrap();
    let seen = look(&snapshotter);
    for name in [BATCHES, ROWS, REJECTS, RETRIES, WAITING_SECONDS] {
        assert_eq!(seen.get(name), Some(&0.0), "{name} in {seen:?}");
    }
}

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The library's log of this thread, which runs the test and all its tasks. One subscriber serves
/// all threads: with one for each, a thread without any may disable an event for the others.
struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Begins an empty log.
    fn begin() -> Self {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(|| Log)
                .init()
        });
        LOG.take();
        Log
    }

    fn lines_with(&self, part: &str) -> Vec<String> {
        let log = LOG.with_borrow(|log| String::from_utf8(log.clone()).unwrap());
        log.lines()
            .filter(|line| line.contains(part))
            .map(str::to_owned)
            .collect()
    }
}

#[tokio::test]
async fn a_reconciler_that_ends_says_so() {
    let log = Log::begin();
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    drop(pair.counterfoil.reconciler().start().await.unwrap());
    eventually("a warning", || async {
        log.lines_with("WARN")
            .iter()
            .any(|line| line.contains("was dropped"))
    })
    .await;
    pair.counterfoil
        .reconciler()
        .start()
        .await
        .unwrap()
        .shutdown()
        .await
        .unwrap();
    assert_eq!(log.lines_with("was shut down").len(), 1);
    assert!(log.lines_with("was shut down")[0].contains("INFO"));
    // a detached reconciler continues
    pair.counterfoil
        .reconciler()
        .start()
        .await
        .unwrap()
        .detach();
    let _ = views.add("page", 1).await.unwrap();
    eventually("the hit", || async {
        pair.number("SELECT COUNT(*) FROM counterfoil_values").await == 1
    })
    .await;
    assert_eq!(log.lines_with("was dropped").len(), 1);
}

/// A reconciler of all namespaces, and one of some families, each log once the families that they
/// do not serve.
#[tokio::test]
async fn families_that_are_not_served_are_named() {
    let log = Log::begin();
    let pair = Pair::new().await;
    for name in ["later", "broken", "views"] {
        let views = pair.counterfoil.open(family(name)).await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
    }
    pair.sql("UPDATE counterfoil_families SET settings = '{\"format\":2}' WHERE name = 'later'")
        .await;
    pair.sql("UPDATE counterfoil_families SET settings = '{' WHERE name = 'broken'")
        .await;
    let other = Counterfoil::new(
        pair.redis.manager().await,
        MysqlStore::new(pair.pool.clone()),
    );
    let all = other.reconciler().all().start().await.unwrap();
    eventually("the one", || async {
        pair.number("SELECT COUNT(*) FROM counterfoil_values").await == 1
    })
    .await;
    let lines = log.lines_with("not served");
    assert!(
        lines.len() == 1 && lines[0].contains("WARN") && lines[0].contains("number=2"),
        "{lines:?}"
    );
    for part in [
        "test/later: invalid settings",
        "unknown field `format`",
        "test/broken: invalid settings",
    ] {
        assert!(lines[0].contains(part), "{part} is not in {lines:?}");
    }
    all.shutdown().await.unwrap();
    let other = Counterfoil::new(
        pair.redis.manager().await,
        MysqlStore::new(pair.pool.clone()),
    );
    let _running = other.reconciler().start().await.unwrap();
    eventually("a warning", || async {
        log.lines_with("not served").len() == 2
    })
    .await;
    assert!(log.lines_with("not served")[1].contains("test/views"));
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT COUNT(*) FROM counterfoil_values").await,
        3
    );
}

#[tokio::test]
async fn a_set_back_is_measured_and_logged() {
    let log = Log::begin();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _measuring = metrics::set_default_local_recorder(&recorder);
    let pair = Pair::new().await;
    let redis = pair.redis.manager().await;
    let views = pair
        .counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let before = State::of(&redis, views.family()).await;
    let _ = views.add("page", 1).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    before.restore(&redis).await;
    for id in ["page", "page", "start"] {
        let _ = views.add(id, 1).await.unwrap();
    }
    pair.counterfoil.drain().await.unwrap();
    let seen = look(&snapshotter);
    assert_eq!((seen[SET_BACK], seen[DROPPED]), (1.0, 3.0));
    let line = &log.lines_with("Redis was set back to an older state")[0];
    for part in [
        "ERROR",
        "family=test/views",
        "partition=0",
        "hits=3",
        "ids=2",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

#[tokio::test]
async fn cached_counters_come_and_go() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _measuring = metrics::set_default_local_recorder(&recorder);
    let pair = Pair::new().await;
    let moment = Duration::from_millis(10);
    let votes = Family::cached("test", "votes")
        .durability(Durability::Immediate)
        .sync_time(moment)
        .retain(moment);
    let votes = pair.counterfoil.open(votes.min(0)).await.unwrap();
    for (id, delta) in [("a", 1), ("a", 1), ("b", 1), ("b", -2)] {
        let _ = votes.incr(id, delta).await.unwrap();
    }
    let seen = look(&snapshotter);
    assert_eq!((seen[HITS], seen[REFUSED], seen[SEEDS]), (3.0, 1.0, 2.0));
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let mut seen = (0.0, 0.0);
    eventually("both leave", || {
        let new = look(&snapshotter);
        seen.0 += new.get(ROWS).unwrap_or(&0.0);
        seen.1 += new.get(DELETED).unwrap_or(&0.0);
        std::future::ready(seen.1 == 2.0)
    })
    .await;
    assert_eq!(seen.0, 2.0);
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn ids_of_a_drain_that_is_given_up_are_not_pending() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _measuring = metrics::set_default_local_recorder(&recorder);
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    for id in ["a", "b"] {
        let _ = views.add(id, 1).await.unwrap();
    }
    mysql.pause();
    tokio::select! {
        drained = pair.counterfoil.drain() => panic!("{drained:?}"),
        () = eventually("the write", || async { look(&snapshotter)[PENDING_IDS] == 2.0 }) => {}
    }
    // a reading contains the change since the previous one
    assert_eq!(look(&snapshotter)[PENDING_IDS], -2.0);
    mysql.resume();
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(look(&snapshotter)[PENDING_IDS], 0.0);
}

/// The label has no namespace, so the gauges are sums over all namespaces.
#[tokio::test]
async fn backlogs_are_measured_over_namespaces() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _measuring = metrics::set_default_local_recorder(&recorder);
    let pair = Pair::new().await;
    let open = async |tenant: &str| {
        let views = Family::buffered(tenant, "views").durability(Durability::Immediate);
        pair.counterfoil.open(views).await.unwrap()
    };
    let (first, second, _idle) = (
        open("first").await,
        open("second").await,
        open("third").await,
    );
    let _ = first.add("a", 1).await.unwrap();
    support::pause(100).await;
    let _ = (
        second.add("a", 1).await.unwrap(),
        second.add("b", 1).await.unwrap(),
    );
    assert_eq!(first.backlog().await.unwrap().ids, 1);
    assert!(
        !look(&snapshotter).contains_key(BACKLOG_IDS),
        "one handle knows of one namespace"
    );
    let backlogs = pair.counterfoil.backlogs().await.unwrap();
    let ages: Vec<_> = backlogs
        .iter()
        .map(|(_, backlog)| {
            backlog
                .as_ref()
                .unwrap()
                .oldest
                .map(|age| age.as_secs_f64())
        })
        .collect();
    let seen = look(&snapshotter);
    assert_eq!(
        (seen[BACKLOG_IDS], Some(seen[BACKLOG_SECONDS])),
        (3.0, ages[0]),
        "{ages:?}"
    );
    assert!(ages[0] >= ages[1].map(|age| age + 0.1), "{ages:?}");
    pair.counterfoil.drain().await.unwrap();
    let _ = pair.counterfoil.backlogs().await.unwrap();
    let seen = look(&snapshotter);
    assert_eq!((seen[BACKLOG_IDS], seen[BACKLOG_SECONDS]), (0.0, 0.0));
}

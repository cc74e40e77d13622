//! Faults under load, on real servers: replies are lost, servers killed and paused, and reconcilers
//! die. After each fault the database holds all acknowledged hits.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::hits::{Hit, Hits, Reckoning};
use crate::support::{Pair, eventually, family, look};
use counterfoil::metrics::{DROPPED, SET_BACK};
use counterfoil::{
    BufferedCounters, Counterfoil, Durability, ErrorKind, Family, MysqlStore, Shown,
};
use metrics_util::debugging::DebuggingRecorder;
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Cmd, Pipeline, RedisError, RedisFuture, Value};
use sqlx::mysql::MySqlPoolOptions;
use testkit::{MysqlServer, RedisOptions};
use tokio::task::JoinSet;

const OWN: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";

/// A connection that loses every n-th call, alternately before and after its execution.
#[derive(Clone)]
struct Lossy {
    inner: ConnectionManager,
    calls: Arc<AtomicU64>,
    every: u64,
}

impl From<Lossy> for counterfoil::Connection {
    fn from(connection: Lossy) -> Self {
        counterfoil::Connection::custom(connection)
    }
}

impl ConnectionLike for Lossy {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let lost =
                || RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
            match (
                call.is_multiple_of(self.every),
                (call / self.every).is_multiple_of(2),
            ) {
                (true, true) => Err(lost()),
                (true, false) => {
                    let _ = self.inner.req_packed_command(cmd).await?;
                    Err(lost())
                }
                _ => self.inner.req_packed_command(cmd).await,
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        at: usize,
        n: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(pipe, at, n)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

/// Writers that count until they are stopped, and then return the number of acknowledged hits.
struct Load {
    stop: Arc<AtomicBool>,
    writers: JoinSet<i64>,
}

impl Load {
    fn on(counters: &BufferedCounters) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = JoinSet::new();
        for writer in 0..8 {
            let (counters, stop) = (counters.clone(), stop.clone());
            writers.spawn(async move {
                let mut acknowledged = 0;
                while !stop.load(Ordering::Relaxed) {
                    match counters
                        .add(&format!("page/{}", (writer + acknowledged) % 11), 1)
                        .await
                    {
                        Ok(added) => {
                            assert!(
                                matches!(added, counterfoil::Outcome::Counted { .. }),
                                "{added:?}"
                            );
                            acknowledged += 1;
                        }
                        // definitely not counted
                        Err(error) if error.is_retryable() => {
                            tokio::time::sleep(Duration::from_millis(1)).await
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                acknowledged
            });
        }
        Load { stop, writers }
    }

    async fn end(self) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.join_all().await.iter().sum()
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_are_asked_for_again() {
    let pair = Pair::new().await;
    let lossy = Lossy {
        inner: pair.redis.manager().await,
        calls: Arc::default(),
        every: 7,
    };
    let counterfoil = Counterfoil::new(lossy, MysqlStore::new(pair.pool.clone()));
    let views = counterfoil.open(family("views")).await.unwrap();
    // the start makes a call too, which may be lost
    let mut started = counterfoil.reconciler().start().await;
    if started.is_err() {
        started = counterfoil.reconciler().start().await;
    }
    let load = Load::on(&views);
    pause(3000).await;
    let acknowledged = load.end().await;
    assert!(acknowledged > 1000, "{acknowledged} hits only");
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, acknowledged);
    started.unwrap().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_is_killed_in_the_middle_of_commits() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let load = Load::on(&views);
    for round in 0..8 {
        pause(200 + 37 * round).await;
        mysql.kill();
        pause(50).await;
        mysql.start_again().await;
    }
    let acknowledged = load.end().await;
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, acknowledged);
    reconciler.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_killed_and_comes_back_with_its_file() {
    let mysql = MysqlServer::start().await;
    // the file contains every acknowledged hit, so a killed process loses nothing
    let pair = Pair::on(RedisOptions::aof("always"), &mysql).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let load = Load::on(&views);
    for round in 0..10 {
        pause(150 + 31 * round).await;
        pair.redis.kill();
        pause(30).await;
        pair.redis.start_again().await;
    }
    let acknowledged = load.end().await;
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, acknowledged);
    reconciler.shutdown().await.unwrap();
}

/// The effect of machine crashes on a load.
#[derive(Debug)]
struct Losses {
    acknowledged: usize,
    doubled: i64,
    /// Lost hits from a time that a crash took back.
    forgotten: usize,
    /// Lost hits that were durable.
    wronged: usize,
}

/// The time that each crash takes back.
const TAKEN: Duration = Duration::from_millis(250);

/// Counts under crashes that take back the end of Redis's file. Every hit has its own id, so its
/// value is the number of times it was counted.
async fn crashes_that_take_back(durability: Durability) -> Losses {
    let pair = Pair::with(RedisOptions::aof("no")).await;
    let settling = family("views").durability(durability);
    let views = pair.counterfoil.open(settling).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let (next, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        let (views, next, stop) = (views.clone(), next.clone(), stop.clone());
        writers.spawn(async move {
            let mut acknowledged = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let hit = next.fetch_add(1, Ordering::Relaxed);
                let asked = Instant::now();
                // the caller never repeats a hit, not even one of unknown outcome
                if views.add(&format!("hit/{hit}"), 1).await.is_ok() {
                    acknowledged.push((hit, asked, Instant::now()));
                }
            }
            acknowledged
        });
    }
    let mut crashes = Vec::new();
    for _ in 0..8 {
        let started = Instant::now();
        let mut lengths = Vec::new();
        while started.elapsed() < Duration::from_millis(900) {
            lengths.push((Instant::now(), pair.redis.aof_len()));
            pause(5).await;
        }
        let now = Instant::now();
        let kept = lengths
            .iter()
            .rev()
            .find(|(time, _)| now - *time >= TAKEN)
            .unwrap();
        pair.redis.kill();
        crashes.push((kept.0, Instant::now()));
        pair.redis.cut_aof(kept.1);
        pair.redis.start_again().await;
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    pair.counterfoil.drain().await.unwrap();
    reconciler.shutdown().await.unwrap();

    let doubled = pair
        .number("SELECT COUNT(*) FROM counterfoil_values WHERE value > 1")
        .await;
    let stored: Vec<String> = sqlx::query_scalar("SELECT CAST(id AS CHAR) FROM counterfoil_values")
        .fetch_all(&pair.pool)
        .await
        .unwrap();
    let stored: HashSet<_> = stored.into_iter().collect();
    let taken_back = |asked: Instant, told: Instant| {
        crashes
            .iter()
            .any(|(kept, killed)| told >= *kept && asked <= *killed)
    };
    let lost: Vec<_> = acknowledged
        .iter()
        .filter(|(hit, ..)| !stored.contains(&format!("hit/{hit}")))
        .collect();
    let forgotten = lost
        .iter()
        .filter(|(_, asked, told)| taken_back(*asked, *told))
        .count();
    let losses = Losses {
        acknowledged: acknowledged.len(),
        doubled,
        forgotten,
        wronged: lost.len() - forgotten,
    };
    println!("{losses:?}");
    losses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_takes_back_what_was_not_durable_and_nothing_else() {
    let losses =
        crashes_that_take_back(Durability::Settle(TAKEN + Duration::from_millis(150))).await;
    assert_eq!((losses.doubled, losses.wronged), (0, 0), "{losses:?}");
    assert!(
        losses.forgotten > 0 && losses.acknowledged > 1000,
        "nothing was tried: {losses:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_that_takes_back_more_than_was_configured_loses_more_and_doubles_nothing() {
    let losses = crashes_that_take_back(Durability::Immediate).await;
    assert!(losses.doubled == 0 && losses.wronged > 0, "{losses:?}");
}

/// Redis keeps only snapshots, its default. Each restored snapshot is not the latest, so the
/// database is ahead.
#[tokio::test]
async fn a_redis_that_is_restored_from_older_snapshots_doubles_nothing() {
    const SNAPSHOTS: &str = "3600 1 300 100 60 10000";
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    // one thread runs the test and all its tasks
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (mut dropped, mut set_back) = (0.0, 0.0);
    let mut measure = || {
        let seen = look(&snapshotter);
        dropped += seen[DROPPED];
        set_back += seen[SET_BACK];
        (dropped, set_back)
    };
    let pair = Pair::with(RedisOptions::volatile().arg("save", SNAPSHOTS)).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let hits = Hits::on(&views);
    let snapshot = pair.redis.socket().with_file_name("dump.rdb");
    let mut crashes = Vec::new();
    for round in 1..=3 {
        hits.more(200).await;
        let saved = Instant::now();
        pair.redis.run::<()>("SAVE").await.unwrap();
        let older = std::fs::read(&snapshot).unwrap();
        hits.more(400).await;
        pair.redis.run::<()>("SAVE").await.unwrap();
        hits.more(100).await;
        pair.redis.kill();
        std::fs::write(&snapshot, older).unwrap();
        pair.redis.start_again().await;
        crashes.push((saved, Instant::now()));
        eventually("it is detected", || {
            std::future::ready(measure().1 >= f64::from(round))
        })
        .await;
    }
    hits.more(200).await;
    let hits = hits.end().await;
    pair.counterfoil.drain().await.unwrap();
    reconciler.shutdown().await.unwrap();

    let reckoning = Reckoning::of(&hits, &pair.pool).await;
    let is_taken_back = |hit: &&Hit| {
        crashes
            .iter()
            .any(|(saved, killed)| hit.told >= *saved && hit.asked <= *killed)
    };
    let taken_back = reckoning.lost.iter().filter(is_taken_back).count();
    let lost = reckoning.lost.len() - taken_back;
    let (dropped, set_back) = measure();
    println!(
        "{taken_back} hits taken back, {lost} lost besides, {dropped} dropped in {set_back} partitions"
    );
    assert!(
        reckoning.doubled.is_empty() && reckoning.refused_counted.is_empty(),
        "{reckoning:?}"
    );
    assert!(
        reckoning.misread.iter().all(|hit| hit.read == Some(0)),
        "{:?}",
        reckoning.misread
    );
    assert!(
        taken_back > 0 && reckoning.acknowledged > 1000,
        "little was tried: {reckoning:?}"
    );
    assert!(
        lost > 0 && lost as f64 <= dropped,
        "{lost} lost, {dropped} dropped"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_stands_still_longer_than_a_call_waits() {
    let pair = Pair::new().await;
    let impatient = redis::aio::ConnectionManagerConfig::new()
        .set_response_timeout(Some(Duration::from_millis(100)));
    let redis = ConnectionManager::new_with_config(pair.redis.client(), impatient)
        .await
        .unwrap();
    let counterfoil = Counterfoil::new(redis, MysqlStore::new(pair.pool.clone()));
    let views = counterfoil.open(family("views")).await.unwrap();
    let reconciler = counterfoil.reconciler().start().await.unwrap();
    let load = Load::on(&views);
    for _ in 0..5 {
        pause(200).await;
        pair.redis.pause();
        pause(350).await;
        pair.redis.resume();
    }
    let acknowledged = load.end().await;
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, acknowledged);
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_outcome_that_cannot_be_learnt_is_said_to_be_unknown() {
    let pair = Pair::new().await;
    let lossy = Lossy {
        inner: pair.redis.manager().await,
        calls: Arc::default(),
        every: 1,
    };
    lossy.calls.store(1, Ordering::Relaxed);
    let quick = Counterfoil::new(lossy.clone(), MysqlStore::new(pair.pool.clone()));
    let views = quick
        .write_timeout(Duration::from_millis(300))
        .open(family("views"))
        .await
        .unwrap();
    // a read can be repeated: its outcome is never unknown
    let error = views.get("page").await.unwrap_err();
    assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
    // nothing is counted before the writer knows the epoch
    let error = views.add("page", 1).await.unwrap_err();
    assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
    // Redis itself disappears with a call in flight
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    pair.redis.pause();
    let in_the_air = tokio::spawn({
        let views = views.clone();
        async move { views.add("page", 1).await }
    });
    pause(100).await;
    pair.redis.kill();
    // Redis restarts empty and does not know the epoch any more
    pair.redis.start_again().await;
    let error = in_the_air.await.unwrap().unwrap_err();
    assert!(error.outcome_unknown() && !error.is_retryable(), "{error}");
    // and the next hit counts
    let _ = views.add("page", 1).await.unwrap();
    assert_eq!(views.get("page").await.unwrap(), 1);
}

#[tokio::test]
async fn without_the_database_hits_go_on() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    eventually("the first hit", || async { pair.number(OWN).await == 1 }).await;
    mysql.kill();
    for _ in 0..100 {
        let _ = views.add("page", 1).await.unwrap();
    }
    assert!(views.pending(&["page"]).await.unwrap()[0] >= 100);
    let error = views.get("page").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.is_retryable());
    pause(500).await;
    mysql.start_again().await;
    eventually("the rest", || async { pair.number(OWN).await == 101 }).await;
    assert_eq!(views.get("page").await.unwrap(), 101);
    reconciler.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconcilers_that_die_anywhere_lose_nothing() {
    let pair = Pair::new().await;
    let settling = family("views").durability(Durability::Settle(Duration::from_millis(20)));
    let views = pair.counterfoil.open(settling.clone()).await.unwrap();
    let load = Load::on(&views);
    let (redis, pool) = (pair.redis.client(), pair.pool.connect_options());
    for round in 0..20 {
        // a runtime that is shut down drops its tasks at any point
        let doomed = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (redis, pool, family) = (redis.clone(), pool.clone(), settling.clone());
        doomed.spawn(async move {
            let store = MysqlStore::new(
                sqlx::MySqlPool::connect_with((*pool).clone())
                    .await
                    .unwrap(),
            );
            let counterfoil =
                Counterfoil::new(redis.get_connection_manager().await.unwrap(), store);
            let _views = counterfoil.open(family).await.unwrap();
            let _reconciler = counterfoil.reconciler().lease(None).start().await.unwrap();
            std::future::pending::<()>().await;
        });
        pause(60 + 17 * round).await;
        doomed.shutdown_background();
    }
    let acknowledged = load.end().await;
    assert!(pair.number(OWN).await > 0, "some of it got through");
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, acknowledged);
}

/// A worker that is stuck in a large batch dies, and another one continues. A trigger logs the
/// batch's position after each transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_batch_is_applied_in_short_transactions_by_one_worker_after_another() {
    const IDS: i64 = 20_000;
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE item (id VARBINARY(9) PRIMARY KEY, n BIGINT NOT NULL);
         CREATE TABLE parts (number INT AUTO_INCREMENT PRIMARY KEY, position VARBINARY(9) NULL);
         CREATE TRIGGER first BEFORE INSERT ON counterfoil_ledger FOR EACH ROW
             INSERT INTO parts (position) VALUES (NEW.position);
         CREATE TRIGGER further BEFORE UPDATE ON counterfoil_ledger FOR EACH ROW
             INSERT INTO parts (position) VALUES (NEW.position);
         INSERT INTO item VALUES ('10000', 0)",
    )
    .await;
    let table = counterfoil::Table::upsert("item")
        .key("id", counterfoil::KeyType::Text)
        .value("n");
    let family = family("items").partitions(1).table(table);
    let items = pair.counterfoil.open(family.clone()).await.unwrap();
    let ids: Vec<_> = (0..IDS).map(|id| format!("{id:05}")).collect();
    assert!(
        items
            .add_many(ids.iter().map(|id| (id, 7)))
            .await
            .into_iter()
            .all(|added| added.is_ok())
    );
    let stop = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn({
        let (items, stop) = (items.clone(), stop.clone());
        let ids: Vec<_> = ids.iter().step_by(499).cloned().collect();
        async move {
            let mut reads = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(items.get_many(&ids).await.unwrap(), vec![7; ids.len()]);
                reads += 1;
            }
            reads
        }
    });

    // locks a row of the middle part
    let mut other = pair.pool.begin().await.unwrap();
    sqlx::query("SELECT * FROM item WHERE id = '10000' FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    doomed.spawn({
        let (redis, pool) = (pair.redis.client(), pair.pool.connect_options());
        async move {
            let store = MysqlStore::new(
                sqlx::MySqlPool::connect_with((*pool).clone())
                    .await
                    .unwrap(),
            );
            let counterfoil =
                Counterfoil::new(redis.get_connection_manager().await.unwrap(), store);
            let _items = counterfoil.open(family).await.unwrap();
            let _reconciler = counterfoil.reconciler().lease(None).start().await.unwrap();
            std::future::pending::<()>().await;
        }
    });
    eventually("half of it", async || {
        pair.number("SELECT COUNT(*) FROM item WHERE n > 0").await == IDS / 2
    })
    .await;
    pause(100).await;
    doomed.shutdown_background();
    other.rollback().await.unwrap();
    pair.counterfoil.drain().await.unwrap();

    stop.store(true, Ordering::Relaxed);
    let reads = reading.await.unwrap();
    assert_eq!(
        pair.number("SELECT COUNT(*) FROM item WHERE n = 7").await,
        IDS
    );
    let log = "SELECT CAST(position AS CHAR) FROM parts ORDER BY number";
    let log: Vec<Option<String>> = sqlx::query_scalar(log).fetch_all(&pair.pool).await.unwrap();
    println!("{reads} reads while {} parts were applied", log.len());
    assert!(reads > 10);
    let ends = ids.chunks(500).map(|part| {
        part.last()
            .filter(|last| **last != ids[ids.len() - 1])
            .cloned()
    });
    assert_eq!(
        log,
        ends.collect::<Vec<_>>(),
        "each part of 500 rows once, and none after the last"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_gone_holds_up_only_its_own_family() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE doomed (id INT PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    let table = counterfoil::Table::upsert("doomed")
        .key("id", counterfoil::KeyType::Signed)
        .value("n");
    let doomed = pair
        .counterfoil
        .open(family("doomed").table(table))
        .await
        .unwrap();
    let healthy = Family::buffered("other-shop", "views").durability(Durability::Immediate);
    let healthy = pair.counterfoil.open(healthy).await.unwrap();
    pair.sql("RENAME TABLE doomed TO hidden").await;
    let _ = doomed.add("7", 1).await.unwrap();
    let _ = healthy.add("page", 1).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    eventually("the healthy family", || async {
        healthy.stored(&["page"]).await.unwrap() == [Some(1)]
    })
    .await;
    pair.sql("RENAME TABLE hidden TO doomed").await;
    // the reconciler checks again after half a minute, a drain at once
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number("SELECT n FROM doomed").await, 1);
    reconciler.shutdown().await.unwrap();
}

/// A connection that sends nothing while the gate is locked.
#[derive(Clone)]
struct Late {
    inner: ConnectionManager,
    gate: Arc<tokio::sync::RwLock<()>>,
}

impl From<Late> for counterfoil::Connection {
    fn from(connection: Late) -> Self {
        counterfoil::Connection::custom(connection)
    }
}

impl ConnectionLike for Late {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            drop(self.gate.read().await);
            self.inner.req_packed_command(cmd).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        at: usize,
        n: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(pipe, at, n)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

/// An exact read queries both servers at once. Here the database replies first, and hits arrive
/// before Redis replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_is_exact_although_the_database_was_asked_first() {
    let pair = Pair::new().await;
    let writer = pair.counterfoil.open(family("views")).await.unwrap();
    let store = MysqlStore::new(pair.pool.clone());
    let late = Late {
        inner: pair.redis.manager().await,
        gate: Arc::default(),
    };
    let reader = Counterfoil::new(late.clone(), store.clone())
        .open(family("views"))
        .await
        .unwrap();
    let mut total = 0;
    // the number of hits counted and drained before the read, and during it
    for [counted, drained, counted_then, drained_then] in [
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 0, 0, 1],
        [0, 0, 1, 1],
        [1, 1, 1, 0],
        [1, 0, 1, 2],
        [0, 0, 0, 0],
        [1, 0, 1, 1],
    ] {
        let change = async |counted, drained| {
            for _ in 0..counted {
                let _ = writer.add("page", 1).await.unwrap();
            }
            for _ in 0..drained {
                pair.counterfoil.drain().await.unwrap();
                let _ = writer.add("page", 1).await.unwrap();
            }
            counted + drained
        };
        total += change(counted, drained).await;
        assert_eq!(reader.get("page").await.unwrap(), total);
        let closed = late.gate.write().await;
        let asked = store.statements();
        let reading = tokio::spawn({
            let reader = reader.clone();
            async move { reader.get("page").await.unwrap() }
        });
        eventually("the database is asked", async || store.statements() > asked).await;
        pause(50).await;
        total += change(counted_then, drained_then).await;
        drop(closed);
        assert_eq!(reading.await.unwrap(), total);
    }
}

#[tokio::test]
async fn a_read_survives_an_idle_connection_that_was_closed() {
    let pair = Pair::new().await;
    for tested in [true, false] {
        let options = MySqlPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(tested);
        let pool = options
            .connect_with((*pair.pool.connect_options()).clone())
            .await
            .unwrap();
        let counterfoil =
            Counterfoil::new(pair.redis.manager().await, MysqlStore::new(pool.clone()));
        let views = counterfoil.open(family("views")).await.unwrap();
        for _ in 0..3 {
            let before = views.get("page").await.unwrap();
            let idle: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()")
                .fetch_one(&pool)
                .await
                .unwrap();
            let kill = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {idle}")));
            pause(50).await;
            kill.execute(&pair.pool).await.unwrap();
            pause(50).await;
            let _ = views.add("page", 1).await.unwrap();
            assert_eq!(views.get("page").await.unwrap(), before + 1, "{tested}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_outlast_a_redis_that_starts_again() {
    let pair = Pair::with(RedisOptions::aof("always")).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let _ = views.add("page", 3).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn({
        let (views, stop) = (views.clone(), stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(views.get("page").await.unwrap(), 3);
                assert_eq!(views.pending(&["page"]).await.unwrap(), [3]);
                assert_eq!(views.list("", None, 10).await.unwrap().len(), 1);
            }
        }
    });
    for _ in 0..5 {
        pause(100).await;
        pair.redis.start_again().await;
    }
    pause(100).await;
    stop.store(true, Ordering::Relaxed);
    reading.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_may_show_what_is_stored() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let votes = Family::cached("test", "votes").durability(Durability::Immediate);
    let votes = pair.counterfoil.open(votes).await.unwrap();
    let _ = (
        views.add("page", 3).await.unwrap(),
        votes.incr("page", 3).await.unwrap(),
    );
    pair.counterfoil.drain().await.unwrap();
    let _ = (
        views.add("page", 1).await.unwrap(),
        votes.incr("page", 1).await.unwrap(),
    );
    let (ids, within) = (["page", "none"], Duration::from_millis(200));
    let exact = Shown {
        values: vec![4, 0],
        exact: true,
    };
    assert_eq!(
        views
            .get_or_stored(&ids, Duration::from_secs(5))
            .await
            .unwrap(),
        exact
    );
    assert_eq!(
        votes
            .get_or_stored(&ids, Duration::from_secs(5))
            .await
            .unwrap(),
        exact
    );
    pair.redis.pause();
    let stored = Shown {
        values: vec![3, 0],
        exact: false,
    };
    assert_eq!(views.get_or_stored(&ids, within).await.unwrap(), stored);
    assert_eq!(votes.get_or_stored(&ids, within).await.unwrap(), stored);
    let (asked, impatient) = (Instant::now(), views.clone().read_timeout(within));
    assert_eq!(
        impatient.get("page").await.unwrap_err().kind(),
        ErrorKind::Redis
    );
    assert!(
        asked.elapsed() < Duration::from_secs(4),
        "{:?}",
        asked.elapsed()
    );
    pair.redis.resume();
}

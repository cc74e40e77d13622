//! Faults under load, on real servers: replies are lost, servers killed and paused, and reconcilers
//! die. After each fault the database holds all acknowledged hits.

use counterfoil::ReadValues;

use crate::support::*;

/// The time that each crash takes back.
const TAKEN: Duration = millis(250);

/// Counts under crashes that take back the end of Redis's file. Returns the outcome, and the
/// number of lost hits that were durable.
async fn crashes_that_take_back(durability: Durability) -> (Reckoning, usize) {
    let pair = Pair::with(RedisOptions::aof("no")).await;
    let views = pair.open(family("views").durability(durability)).await;
    let reconciler = pair.reconcile().await;
    let hits = Hits::on(&views);
    let mut crashes = hits::Crashes::new();
    for _ in 0..8 {
        let started = Instant::now();
        let mut lengths = vec![];
        while started.elapsed() < millis(900) {
            lengths.push((Instant::now(), pair.redis.aof_len()));
            pause(5).await;
        }
        let now = Instant::now();
        let kept = lengths.iter().rfind(|(time, _)| now - *time >= TAKEN);
        let (kept, length) = kept.unwrap();
        pair.redis.kill();
        crashes.push((*kept, Instant::now()));
        pair.redis.cut_aof(*length);
        pair.redis.start_again().await;
    }
    let hits = hits.end().await;
    pair.drain().await;
    reconciler.stop().await;
    let reckoning = Reckoning::of(&hits, &pair.pool).await;
    let wronged = reckoning.lost.iter();
    let wronged = wronged.filter(|hit| !hit.is_taken_back(&crashes)).count();
    (reckoning, wronged)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_takes_back_what_was_not_durable_and_nothing_else() {
    let (found, wronged) = crashes_that_take_back(Durability::Settle(TAKEN + millis(150))).await;
    assert!(found.doubled.is_empty() && wronged == 0, "{found:?}");
    assert!(
        !found.lost.is_empty() && found.acknowledged > 1000,
        "little was tried: {found:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_that_takes_back_more_than_was_configured_loses_more_and_doubles_nothing() {
    let (found, wronged) = crashes_that_take_back(Durability::Immediate).await;
    assert!(found.doubled.is_empty() && wronged > 0, "{found:?}");
    assert!(
        found.refused_counted.is_empty() && found.misread.iter().all(|hit| hit.read == Some(0)),
        "{found:?}"
    );
}

#[tokio::test]
async fn no_outcome_is_unknown_before_the_epoch_is_known() {
    let pair = Pair::new().await;
    let views = pair
        .over(lossy(&pair.redis, 1, false).await)
        .write_timeout(millis(300))
        .opened(family("views"))
        .await;
    // a read can be repeated: its outcome is never unknown; and nothing is counted before the
    // writer knows the epoch
    for error in [
        views.get("page").await.unwrap_err(),
        views.add("page", 1).await.unwrap_err(),
    ] {
        assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
    }
}

fn open_all(counterfoil: Counterfoil) -> impl Future<Output = Result<Handles>> + Send {
    let settle = Durability::Settle(millis(20));
    async move { Handles::open(&counterfoil, settle, 2, secs(20)).await }
}

/// Networks break, the database is killed, scripts are forgotten and reconcilers die, under load of
/// all kinds.
#[tokio::test(flavor = "multi_thread")]
async fn all_kinds_are_exact_whatever_dies() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let proxy = Proxy::to(&pair.redis);
    let handles = open_all(pair.over(proxy.manager().await)).await.unwrap();
    let (site, load) = Site::start(&handles, &pair.pool);
    let mut random = random::numbers();
    for round in 0..10 {
        let open = |counterfoil| async { open_all(counterfoil).await.map(drop) };
        trouble::round(round, &mut random, (&pair, &proxy, &mysql), open).await;
    }
    load.end().await;
    let handles = open_all(pair.counterfoil.clone()).await.unwrap();
    pair.drain().await;
    site.is_exact(&handles).await;
}

fn items() -> FamilyBuilder<BufferedCounters> {
    let table = keyed(Table::upsert("item"), [("id", Text)]);
    family("items").partitions(1).table(table)
}

/// A worker that is stuck in a large batch dies, and another one continues. A trigger logs the
/// batch's position after each transaction.
#[tokio::test(flavor = "multi_thread")]
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
    let items = pair.open(self::items()).await;
    let ids: Vec<_> = (0..IDS).map(|id| format!("{id:05}")).collect();
    assert!(
        items
            .add_many(ids.iter().map(|id| (id, 7)))
            .await
            .iter()
            .all(Result::is_ok)
    );
    let reading = Load::start(1, |_, stop| {
        let items = items.clone();
        let ids: Vec<_> = ids.iter().step_by(499).cloned().collect();
        async move {
            let mut reads = 0;
            while !stop.is_set() {
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
    let (redis, pool) = (pair.redis.client(), pair.pool.connect_options());
    let open =
        |counterfoil: Counterfoil| async move { counterfoil.open(self::items()).await.map(drop) };
    let doomed = doomed(redis, pool, open);
    let half = "SELECT COUNT(*) FROM item WHERE n > 0";
    eventually("half of it", async || pair.number(half).await == IDS / 2).await;
    pause(100).await;
    doomed.shutdown_background();
    other.rollback().await.unwrap();
    pair.drain().await;

    let reads = reading.end().await[0];
    let all = "SELECT COUNT(*) FROM item WHERE n = 7";
    assert_eq!(pair.number(all).await, IDS);
    let log = "SELECT CAST(position AS CHAR) FROM parts ORDER BY number";
    let log: Vec<Option<String>> = sqlx::query_scalar(log).fetch_all(&pair.pool).await.unwrap();
    assert!(reads > 10);
    let ends = ids.chunks(500).map(|part| part.last().cloned());
    let mut ends: Vec<_> = ends.collect();
    *ends.last_mut().unwrap() = None;
    // each part of 500 rows once, and none after the last
    assert_eq!(log, ends);
}

/// The tables of some families cannot be written: here triggers write to tables that are full,
/// without a tablespace, read-only, or the trigger's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_fails_holds_up_only_its_own_family() {
    let pair = Pair::new().await;
    let mut of_failing = Vec::new();
    for (name, create_log, log) in [
        (
            "full",
            "SET max_heap_table_size = 16384;
             CREATE TABLE full_log (line CHAR(255)) ENGINE = MEMORY;
             SET max_heap_table_size = DEFAULT",
            "INSERT INTO full_log
             SELECT REPEAT('x', 255) FROM information_schema.COLUMNS LIMIT 200",
        ),
        (
            "discarded",
            "CREATE TABLE discarded_log (line CHAR(255));
             ALTER TABLE discarded_log DISCARD TABLESPACE",
            "INSERT INTO discarded_log VALUES ('x')",
        ),
        (
            "merged",
            "CREATE TABLE merged_log (line CHAR(255)) ENGINE = MERGE UNION = ()",
            "INSERT INTO merged_log VALUES ('x')",
        ),
        ("itself", "DO 0", "UPDATE itself SET n = 0"),
    ] {
        pair.sql(&format!(
            "CREATE TABLE {name} (id INT PRIMARY KEY, n BIGINT NOT NULL);
             {create_log};
             CREATE TRIGGER {name}_logs BEFORE INSERT ON {name} FOR EACH ROW {log}"
        ))
        .await;
        let table = keyed(Table::upsert(name), [("id", Signed)]);
        let counters = pair.open(family(name).table(table)).await;
        counters.count("7", 1).await;
        of_failing.push(counters);
    }
    let healthy = Family::buffered("other-shop", "views");
    let healthy = pair.open(healthy.at_once().sync_hits(1)).await;
    healthy.count("page", 1).await;
    let reconciler = pair.reconcile().await;
    pair.arrives(1).await;
    for (name, error) in [
        ("full", "'full_log' is full"),
        ("discarded", "discarded"),
        ("merged", "read only"),
        ("itself", "already used"),
    ] {
        fails(&reconciler, name, error).await;
    }
    healthy.count("page", 1).await;
    pair.arrives(2).await;
    for name in ["full", "discarded", "merged", "itself"] {
        pair.sql(&format!("DROP TRIGGER {name}_logs")).await;
        let stored = format!("SELECT n FROM {name}");
        eventually(name, async || pair.number(&stored).await == 1).await;
    }
    reconciler.stop().await;
}

/// An exact read queries both servers at once. Here the database replies first, and hits arrive
/// before Redis replies.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_exact_although_the_database_replies_first() {
    let (pair, writer) = Pair::of(family("views")).await;
    let proxy = Proxy::to(&pair.redis);
    let primary = Primary::connect(proxy.url()).await.unwrap();
    let store = MysqlStore::new(&pair.pool).unwrap();
    let reader = patient(Counterfoil::new(primary, store.clone()));
    let reader = reader.opened(family("views")).await;
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
                writer.count("page", 1).await;
            }
            for _ in 0..drained {
                pair.drain().await;
                writer.count("page", 1).await;
            }
            counted + drained
        };
        total += change(counted, drained).await;
        assert_eq!(reader.value("page").await, total);
        proxy.black_hole();
        let before = store.statements();
        let reading = tokio::spawn({
            let reader = reader.clone();
            async move { reader.value("page").await }
        });
        eventually("the query", async || store.statements() > before).await;
        pause(50).await;
        total += change(counted_then, drained_then).await;
        proxy.heal(Held::Delivered);
        assert_eq!(reading.await.unwrap(), total);
    }
}

#[tokio::test]
async fn a_read_survives_an_idle_connection_that_was_closed() {
    let pair = Pair::new().await;
    let store = MysqlStore::new(&pair.pool).unwrap().max_connections(1);
    let views = patient(Counterfoil::new(pair.redis.manager().await, store.clone()))
        .opened(family("views"))
        .await;
    for _ in 0..3 {
        let before = views.value("page").await;
        let idle = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(store.pool());
        let idle: u64 = idle.await.unwrap();
        let kill = sqlx::raw_sql(AssertSqlSafe(format!("KILL {idle}")));
        pause(50).await;
        kill.execute(&pair.pool).await.unwrap();
        pause(50).await;
        views.count("page", 1).await;
        assert_eq!(views.value("page").await, before + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_outlast_a_redis_that_starts_again() {
    let pair = Pair::with(RedisOptions::aof("always")).await;
    let views = pair.open(family("views")).await;
    views.count("page", 3).await;
    let reading = Load::start(1, |_, stop| {
        let views = views.clone();
        async move {
            while !stop.is_set() {
                assert_eq!(views.value("page").await, 3);
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
    reading.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_may_show_what_is_stored() {
    let pair = Pair::new().await;
    let (views, votes) = (pair.open(family("views")).await, pair.open(votes()).await);
    let count = async |n| (views.count("page", n).await, votes.count("page", n).await);
    count(3).await;
    pair.drain().await;
    count(1).await;
    let expect = async |limit, value, exact| {
        let ids = ["page", "none"];
        for shown in [
            views.get_or_stored(&ids, limit).await.unwrap(),
            votes.get_or_stored(&ids, limit).await.unwrap(),
        ] {
            let values = vec![value, 0];
            assert_eq!(shown, ReadValues { values, exact });
        }
    };
    expect(secs(5), 4, true).await;
    pair.redis.pause();
    let limit = millis(200);
    expect(limit, 3, false).await;
    refused(
        within(secs(4), views.clone().read_timeout(limit).get("page")).await,
        ErrorKind::Redis,
        "",
    );
    pair.redis.resume();
}

/// The field of no id, which a script sets and deletes again, holds no hits up where a crash left it.
#[tokio::test]
async fn a_field_that_half_a_script_left_holds_up_nothing() {
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    views.count("page", 3).await;
    let buffer = "cf1:{test/views/0}:buffer";
    let left = cmd("HSET").arg(&[buffer, "", &" ".repeat(256)]).to_owned();
    let mut redis = pair.redis.manager().await;
    left.exec_async(&mut redis).await.unwrap();
    pair.drain().await;
    assert_eq!((pair.stored().await, views.value("page").await), (3, 3));
}

/// The clock of Redis steps back while batches settle: their time to settle starts again.
#[tokio::test]
async fn batches_that_settle_anew_hold_up_no_other_family() {
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    let _running = pair.reconcile().await;
    let settle = 3000;
    for number in 0..4 {
        let slow = family(&format!("slow-{number}")).partitions(1);
        let slow = pair.open(slow.settle(settle)).await;
        slow.count("page", 1).await;
        eventually("the batch", async || pair.batches().await == number + 1).await;
        pair.redis
            .does(&format!(
                "HSET cf1:{{test/slow-{number}/0}}:meta rotated_at 9999999999999"
            ))
            .await;
        // each is flushed by itself
        pause(150).await;
    }
    let cut = Instant::now();
    pause(settle).await;
    assert_eq!(pair.stored().await, 0);
    views.count("page", 1).await;
    pair.arrives(1).await;
    assert!(cut.elapsed() < millis(settle + 1500), "{:?}", cut.elapsed());
    pair.arrives(5).await;
}

/// Another program deleted the id of a batch, and an operator sets the batch aside.
#[tokio::test]
async fn a_batch_without_its_id_waits_until_it_is_set_aside() {
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    views.count("page", 1).await;
    let [buffer, batch, meta] =
        ["buffer", "batch", "meta"].map(|kind| format!("cf1:{{test/views/0}}:{kind}"));
    pair.redis.does(&format!("RENAME {buffer} {batch}")).await;
    pair.redis.does(&format!("DEL {meta}")).await;
    views.count("page", 2).await;
    let drained = pair.counterfoil.drain().await;
    refused(drained, Corrupt, "docs/operations.md");
    pair.redis
        .does(&format!("RENAME {batch} kept:{{test/views/0}}"))
        .await;
    pair.drain().await;
    assert_eq!((pair.stored().await, views.value("page").await), (2, 2));
}

//! Cached counters under faults: other programs write rows, rows and servers disappear, and values
//! do not fit.

use std::pin::pin;

use counterfoil::store::Snapshot;

use super::{columns, items, items_in, row};

use crate::support::*;

fn family() -> FamilyBuilder<CachedCounters> {
    super::family("votes").partitions(2).retain(millis(100))
}

/// Returns a family whose batches settle first.
fn settling(ms: u64) -> FamilyBuilder<CachedCounters> {
    family().settle(ms)
}

/// Retries the only reject, and saves the counter. Returns its value in Redis, which is the one in
/// the row.
async fn retry_the_reject(pair: &Pair, votes: &CachedCounters) -> i64 {
    let mut retried = (0, 0, 1);
    // while a reconciler saves the row, it is locked
    while retried == (0, 0, 1) {
        retried = retry_all(pair.mysql(), votes.family()).await;
    }
    assert_eq!(retried, (1, 0, 0));
    expect_rejects(pair.mysql(), &[]).await;
    // the counter's next save shows the row
    votes.count("1", 0).await;
    pair.drain().await;
    let value = votes.value("1").await;
    assert_eq!(row(pair, 1).await, value);
    value
}

#[tokio::test]
async fn a_deleted_row_becomes_a_reject_that_counts_once_the_row_is_back() {
    let pair = Pair::new().await;
    let votes = items(&pair, family()).await;
    assert_eq!(votes.count("1", 5).await, 5);
    pair.drain().await;
    assert_eq!(votes.count("1", 7).await, 12);
    assert_eq!(votes.count("2", 1).await, 1);
    pair.sql("DELETE FROM item WHERE id = 1").await;
    pair.drain().await;
    expect_rejects(pair.mysql(), &[("1", 7, "no such row")]).await;
    assert_eq!(row(&pair, 2).await, 1);
    assert_eq!(votes.incr("1", 1).await.unwrap(), NoRow);
    assert_eq!(votes.value("1").await, 0);
    pair.sql("INSERT INTO item (id, vote_count) VALUES (1, 100)")
        .await;
    assert_eq!(votes.value("1").await, 100);
    assert_eq!(retry_the_reject(&pair, &votes).await, 107);
}

/// The row disappears while the counter is in use. Deltas behind the batch are rejected too, and
/// the value starts at 0.
#[tokio::test]
async fn a_counter_in_use_whose_row_is_gone_shows_what_waits() {
    let pair = Pair::new().await;
    let votes = items(&pair, settling(400)).await;
    assert_eq!(votes.count("1", 5).await, 5);
    let counterfoil = pair.counterfoil.clone();
    let draining = tokio::spawn(async move { counterfoil.drain().await });
    pause(200).await;
    pair.sql("DELETE FROM item WHERE id = 1").await;
    assert_eq!(votes.count("1", 2).await, 7);
    draining.await.unwrap().unwrap();
    assert_eq!(votes.count("1", 1).await, 3);
    pair.drain().await;
    // of two batches
    expect_rejects(pair.mysql(), &[("1", 5 + 3, "no such row")]).await;
    assert_eq!(votes.incr("1", 1).await.unwrap(), NoRow);
}

#[tokio::test]
async fn a_deleted_row_is_inserted_again_with_what_was_counted_since() {
    let pair = Pair::new().await;
    let votes = items_in(&pair, family(), Table::upsert("item")).await;
    assert_eq!(votes.count("1", 5).await, 5);
    pair.drain().await;
    assert_eq!(votes.count("1", 7).await, 12);
    pair.sql("DELETE FROM item WHERE id = 1").await;
    pair.drain().await;
    assert_eq!(row(&pair, 1).await, 7);
    assert_eq!(votes.value("1").await, 7);
    expect_rejects(pair.mysql(), &[]).await;
}

#[tokio::test]
async fn a_delta_that_the_column_cannot_hold_is_rejected_and_the_value_shows_the_row() {
    const LARGE: i64 = 2_000_000_000;
    const SET: i64 = 1_000_000_000;
    let pair = Pair::new().await;
    let votes = items(&pair, family()).await;
    assert_eq!(votes.count("1", LARGE).await, LARGE);
    // another program leaves no room in the column
    let set = format!("UPDATE item SET vote_count = {SET} WHERE id = 1");
    pair.sql(&set).await;
    let reconciler = pair.reconcile().await;
    assert_eq!(votes.count("2", 2).await, 2);
    eventually("the other one is saved, and this one rejected", || async {
        row(&pair, 2).await == 2 && !pair.mysql().latest_rejects(10).await.unwrap().is_empty()
    })
    .await;
    pair.drain().await;
    expect_rejects(pair.mysql(), &[("1", LARGE, "Out of range")]).await;
    assert_eq!(votes.count("1", 1).await, SET + 1);
    pair.sql("ALTER TABLE item MODIFY vote_count BIGINT NOT NULL DEFAULT 0")
        .await;
    assert_eq!(retry_the_reject(&pair, &votes).await, LARGE + SET + 1);
    reconciler.stop().await;
}

/// Another program writes a value that does not fit in an i64 while the counter is in use.
#[tokio::test]
async fn a_row_beyond_i64_holds_no_other_up() {
    let pair = Pair::new().await;
    let votes = items(&pair, family()).await;
    pair.sql("ALTER TABLE item MODIFY vote_count BIGINT UNSIGNED NOT NULL DEFAULT 0")
        .await;
    for round in 1..=3 {
        for id in ["1", "2", "3"] {
            if round == 1 || id != "1" {
                assert_eq!(votes.count(id, 1).await, round, "{id}");
            }
        }
        pair.sql("UPDATE item SET vote_count = 9223372036854775808 WHERE id = 1")
            .await;
        pair.drain().await;
        assert_eq!(votes.stored(["2", "3"]).await.unwrap(), [Some(round); 2]);
    }
    refused(votes.get("1").await, ErrorKind::Range, "");
    pair.sql("UPDATE item SET vote_count = 7 WHERE id = 1")
        .await;
    assert_eq!(votes.value("1").await, 7);
}

/// A caller that is no longer polled shares its read of the row with the others.
#[tokio::test]
async fn a_failed_read_of_a_row_is_not_used_again() {
    let pair = Pair::new().await;
    let votes = items(&pair, family()).await;
    votes.count("2", 1).await;
    pair.sql(
        "ALTER TABLE item MODIFY vote_count BIGINT UNSIGNED NOT NULL DEFAULT 0;
         UPDATE item SET vote_count = 9223372036854775808 WHERE id = 1",
    )
    .await;
    let mut locker = pair.pool.acquire().await.unwrap();
    let lock = sqlx::raw_sql("LOCK TABLES item WRITE");
    lock.execute(&mut *locker).await.unwrap();
    let mut first = pin!(votes.incr("1", 1));
    let reads = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
         WHERE STATE = 'Waiting for table metadata lock' AND DB = DATABASE()";
    while pair.number(reads).await == 0 {
        assert!(poll_once(first.as_mut()).is_none());
    }
    // from here on it is not polled
    locker.close().await.unwrap();
    refused(votes.incr("1", 1).await, ErrorKind::Range, "");
    pair.sql("UPDATE item SET vote_count = 7 WHERE id = 1")
        .await;
    assert_eq!(votes.count("1", 1).await, 8);
    refused(first.await, ErrorKind::Range, "");
}

/// The row leaves i64 with a batch, and more hits are pending.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_beyond_i64_is_not_shown_as_what_is_pending() {
    let pair = Pair::new().await;
    let votes = items(&pair, family()).await;
    assert_eq!(votes.count("1", 6).await, 6);
    pair.sql(
        "ALTER TABLE item MODIFY vote_count BIGINT UNSIGNED NOT NULL DEFAULT 0;
         UPDATE item SET vote_count = 9223372036854775807 WHERE id = 1;
         CREATE TRIGGER slow BEFORE UPDATE ON item FOR EACH ROW SET @slow = SLEEP(1)",
    )
    .await;
    let showing = async {
        sleeping(&pair.pool).await;
        assert_eq!(votes.count("1", 1).await, 7);
        loop {
            match votes.get("1").await {
                Ok(value) => assert_eq!(value, 7),
                Err(error) if error.kind() == ErrorKind::Range => break,
                Err(error) => panic!("{error:#}"),
            }
            pause(10).await;
        }
    };
    tokio::join!(pair.drain(), showing);
}

/// A client in another language counted for an id that is not text.
#[tokio::test]
async fn an_id_that_no_row_can_have_holds_no_other_up() {
    let pair = Pair::new().await;
    let votes = items(&pair, family()).await;
    let (mut redis, id) = (pair.redis.manager().await, b"\xff\xfe");
    let [base, buffer, batch] =
        ["base", "buffer", "batch"].map(|kind| format!("cf1:{{test/votes/0}}:{kind}"));
    let mut write = redis::pipe();
    write
        .hset(&base, id, "0000000000001 0")
        .hset(buffer, id, "5");
    write.exec_async(&mut redis).await.unwrap();
    let reconciler = pair.reconcile().await;
    for id in ["1", "2", "3"] {
        assert_eq!(votes.count(id, 1).await, 1);
    }
    eventually("the others are saved", || async {
        let saved = "SELECT COUNT(*) FROM item WHERE vote_count = 1";
        pair.number(saved).await == 3
    })
    .await;
    pair.drain().await;
    let rejects = pair.mysql().latest_rejects(10).await.unwrap();
    assert_eq!(rejects.len(), 1, "{rejects:?}");
    assert_eq!(
        (rejects[0].delta, &*rejects[0].reason),
        (5, "the id is not UTF-8")
    );
    let mut left = redis::pipe();
    let left = left.hexists(base, id).hexists(batch, id);
    let left: [bool; 2] = left.query_async(&mut redis).await.unwrap();
    assert_eq!(left, [false, false]);
    reconciler.stop().await;
}

#[tokio::test]
async fn a_database_that_takes_no_writes_is_refused() {
    let (_mysql, pair) = Pair::on_own_mysql().await;
    let votes = items(&pair, family()).await;
    pair.sql("SET GLOBAL read_only = 1").await;
    let family = family().table(columns(Table::update("item")));
    let opened = pair.other().await.open(family).await;
    for error in [
        votes.incr("1", 1).await.unwrap_err(),
        votes.get("1").await.unwrap_err(),
        votes.get_many(&["1", "2"]).await.unwrap_err(),
        opened.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Unsafe, "{error}");
    }
    pair.sql("SET GLOBAL read_only = 0").await;
    assert_eq!(votes.count("1", 1).await, 1);
}

/// A store whose next read comes from a copy that lacks the last batch, and does not report it.
#[derive(Clone, Default)]
struct Behind(Arc<Mutex<Option<Snapshot>>>);

impl Between for Behind {
    async fn seen_at_once(&self, snapshot: Snapshot) -> Snapshot {
        self.0.lock().unwrap().take().unwrap_or(snapshot)
    }

    async fn seen(&self, rows: Vec<Option<i64>>) -> Vec<Option<i64>> {
        let old = self.0.lock().unwrap().take();
        old.map_or(rows, |old| old.values)
    }
}

impl Behind {
    /// Returns this value and this mark at the next read.
    fn returns(&self, value: i64, mark: Mark) {
        *self.0.lock().unwrap() = Some(Snapshot {
            values: vec![Some(value)],
            ledger: vec![mark],
        });
    }

    fn has_returned(&self) -> bool {
        self.0.lock().unwrap().is_none()
    }

    /// Opens a family with such a store.
    async fn open() -> (RedisServer, Counterfoil, CachedCounters, Self) {
        let (redis, between) = (new_redis().await, Behind::default());
        let store = Wrapped {
            store: MemoryStore::new(),
            between: between.clone(),
        };
        let counterfoil = patient(Counterfoil::new(redis.manager().await, store));
        let votes = counterfoil.opened(family().partitions(1)).await;
        (redis, counterfoil, votes, between)
    }
}

#[tokio::test]
async fn rows_from_a_database_that_is_behind_cost_no_count() {
    let (redis, counterfoil, votes, behind) = Behind::open().await;
    for (hits, value) in [(5, 5), (10, 15)] {
        assert_eq!(votes.count("a", hits).await, value);
        counterfoil.drained().await;
    }
    redis.does("FLUSHALL").await;
    behind.returns(5, Mark::default());
    // the value is wrong until the next save
    assert_eq!(votes.count("a", 1).await, 6);
    assert!(behind.has_returned());
    counterfoil.drained().await;
    assert_eq!(votes.value("a").await, 16);
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [Some(16)]);
}

#[tokio::test]
async fn rows_that_lack_the_batch_are_read_back_again() {
    let (_redis, counterfoil, votes, behind) = Behind::open().await;
    votes.count("a", 5).await;
    counterfoil.drained().await;
    let first = Mark {
        seq: 1,
        ..Mark::default()
    };
    for (old, value) in [(Mark::default(), 15), (first, 25)] {
        votes.count("a", 10).await;
        behind.returns(5, old);
        counterfoil.drained().await;
        assert!(behind.has_returned());
        assert_eq!(votes.value("a").await, value);
    }
}

/// A counter whose row another program inserted after it was looked for.
#[tokio::test]
async fn a_read_says_why_redis_takes_no_row() {
    let pair = Pair::new().await;
    let votes = pair.open(votes()).await.read_timeout(secs(2));
    assert_eq!(votes.get("late").await.unwrap(), 0);
    let insert = "INSERT INTO counterfoil_values \
                  SELECT number, 'late', 7 FROM counterfoil_families WHERE name = 'votes'";
    pair.sql(insert).await;
    let _: () = pair.command("CONFIG SET maxmemory 1").await;
    let error = format!("{:#}", votes.get("late").await.unwrap_err());
    assert!(error.contains("OOM"), "{error}");
    let _: () = pair.command("CONFIG SET maxmemory 0").await;
    assert_eq!(votes.get("late").await.unwrap(), 7);
}

/// The field of no id, which a script sets and deletes again, where a crash left it. The second
/// batch consists of it.
#[tokio::test]
async fn a_field_that_half_a_script_left_holds_up_no_save() {
    let pair = Pair::new().await;
    let votes = items(&pair, family().partitions(1)).await;
    let leave = async || {
        let mut left = cmd("HSET");
        left.arg(&["cf1:{test/votes/0}:buffer", "", &" ".repeat(256)]);
        left.exec_async(&mut pair.redis.manager().await)
            .await
            .unwrap();
    };
    votes.count("1", 3).await;
    leave().await;
    within(secs(5), pair.drain()).await;
    assert_eq!((row(&pair, 1).await, pair.batches().await), (3, 0));
    leave().await;
    within(secs(5), pair.drain()).await;
    votes.count("1", 1).await;
    within(secs(5), pair.drain()).await;
    assert_eq!((row(&pair, 1).await, votes.value("1").await), (4, 4));
}

//! Cached counters under faults: other programs write rows, rows and servers disappear, and values
//! do not fit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::between::{Between, Wrapped};
use crate::support::{Pair, eventually, pause};
use counterfoil::admin::Retried;
use counterfoil::store::Registered;
use counterfoil::{
    CachedCounters, Counterfoil, Durability, ErrorKind, Family, FamilyBuilder, KeyType,
    MemoryStore, MysqlStore, Outcome, Store, Table,
};
use testkit::{MysqlServer, RedisOptions, RedisServer};

type Cached = CachedCounters;

fn family() -> FamilyBuilder<CachedCounters> {
    Family::cached("test", "votes")
        .partitions(2)
        .durability(Durability::Immediate)
        .sync_time(Duration::from_millis(20))
        .retain(Duration::from_millis(100))
}

const CREATE: &str = "CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, vote_count INT NOT NULL DEFAULT 0); \
     INSERT INTO item (id) VALUES (1), (2), (3)";

async fn votes(pair: &Pair, table: Table) -> Cached {
    let family = family().table(table.key("id", KeyType::Unsigned).value("vote_count"));
    pair.counterfoil.open(family).await.expect("opened")
}

fn value(changed: Outcome) -> i64 {
    changed.counted().unwrap_or_else(|| panic!("{changed:?}"))
}

/// Adds 0, so that the counter's next save shows the row.
async fn touch(votes: &Cached, id: &str) {
    assert!(matches!(
        votes.incr(id, 0).await.unwrap(),
        Outcome::Counted(_)
    ));
}

/// Retries the only reject.
async fn retry_the_reject(pair: &Pair, votes: &Cached) {
    let store = pair.mysql();
    let rejects = store.rejects(0, 10).await.unwrap();
    let numbers: Vec<_> = rejects.iter().map(|reject| reject.number).collect();
    assert_eq!(
        store.retry_rejects(votes.family(), &numbers).await.unwrap(),
        [Retried::Applied]
    );
    assert!(store.rejects(0, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn other_programs_add_all_the_time() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    let reconcilers = [
        pair.counterfoil.reconciler().start().await.unwrap(),
        pair.counterfoil.reconciler().start().await.unwrap(),
    ];
    let outside = async {
        for _ in 0..200 {
            pair.sql("UPDATE item SET vote_count = vote_count + 10000")
                .await;
            pause(2).await;
        }
    };
    let counting = async {
        for _ in 0..1000 {
            for id in ["1", "2", "3"] {
                let _ = votes.incr(id, 1).await.unwrap();
            }
            pause(1).await;
        }
    };
    tokio::join!(outside, counting);
    let ids = ["1", "2", "3"];
    for id in ids {
        touch(&votes, id).await;
    }
    pair.counterfoil.drain().await.unwrap();
    for reconciler in reconcilers {
        reconciler.shutdown().await.unwrap();
    }
    assert_eq!(
        pair.number("SELECT COUNT(*) FROM item WHERE vote_count = 2001000")
            .await,
        3
    );
    assert_eq!(votes.get_many(ids).await.unwrap(), [2_001_000; 3]);
}

#[tokio::test]
async fn a_value_that_another_program_writes_is_kept_and_shown_by_the_next_save() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    assert_eq!(value(votes.incr("1", 5).await.unwrap()), 5);
    pair.sql("UPDATE item SET vote_count = 1000 WHERE id = 1")
        .await;
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 6);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await,
        1006
    );
    assert_eq!(votes.get("1").await.unwrap(), 1006);
    pair.sql("UPDATE item SET vote_count = 3 WHERE id = 1")
        .await;
    // a set counts the difference from the value that it replaces
    assert_eq!(value(votes.set("1", 1016).await.unwrap()), 1016);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await,
        13
    );
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 14);
}

#[tokio::test]
async fn a_row_deleted_under_us_goes_to_the_rejects_and_counts_once_it_is_there_again() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    assert_eq!(value(votes.incr("1", 5).await.unwrap()), 5);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(value(votes.incr("1", 7).await.unwrap()), 12);
    assert_eq!(value(votes.incr("2", 1).await.unwrap()), 1);
    pair.sql("DELETE FROM item WHERE id = 1").await;
    pair.counterfoil.drain().await.unwrap();
    let rejects = pair.mysql().rejects(0, 10).await.unwrap();
    let rejects: Vec<_> = rejects
        .iter()
        .map(|reject| (&*reject.id, reject.delta, &*reject.reason))
        .collect();
    assert_eq!(rejects, [("1", 7, "no such row")]);
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 2")
            .await,
        1
    );
    assert_eq!(votes.incr("1", 1).await.unwrap(), Outcome::NoRow);
    assert_eq!(votes.get("1").await.unwrap(), 0);
    pair.sql("INSERT INTO item (id, vote_count) VALUES (1, 100)")
        .await;
    assert_eq!(votes.get("1").await.unwrap(), 100);
    retry_the_reject(&pair, &votes).await;
    touch(&votes, "1").await;
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        (
            votes.get("1").await.unwrap(),
            votes.stored(["1"]).await.unwrap()
        ),
        (107, vec![Some(107)])
    );
}

/// The row disappears while the counter is in use. Deltas behind the batch are rejected too, and
/// the value starts at 0.
#[tokio::test]
async fn a_counter_in_use_whose_row_is_gone_shows_what_waits() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let settle = Durability::Settle(Duration::from_millis(400));
    let table = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("vote_count");
    let votes = pair
        .counterfoil
        .open(family().table(table).durability(settle))
        .await
        .unwrap();
    assert_eq!(value(votes.incr("1", 5).await.unwrap()), 5);
    let counterfoil = pair.counterfoil.clone();
    let draining = tokio::spawn(async move { counterfoil.drain().await });
    pause(200).await;
    pair.sql("DELETE FROM item WHERE id = 1").await;
    assert_eq!(value(votes.incr("1", 2).await.unwrap()), 7);
    draining.await.unwrap().unwrap();
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 3);
    pair.counterfoil.drain().await.unwrap();
    let rejects = pair.mysql().rejects(0, 10).await.unwrap();
    let mut deltas: Vec<_> = rejects.iter().map(|reject| reject.delta).collect();
    deltas.sort_unstable();
    assert_eq!(deltas, [3, 5]);
    assert_eq!(votes.incr("1", 1).await.unwrap(), Outcome::NoRow);
}

#[tokio::test]
async fn a_row_deleted_under_us_is_made_again_with_what_was_counted_since() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::upsert("item")).await;
    assert_eq!(value(votes.incr("1", 5).await.unwrap()), 5);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(value(votes.incr("1", 7).await.unwrap()), 12);
    pair.sql("DELETE FROM item WHERE id = 1").await;
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await,
        7
    );
    assert_eq!(votes.get("1").await.unwrap(), 7);
    assert!(pair.mysql().rejects(0, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_delta_that_the_column_cannot_hold_is_rejected_and_the_value_shows_the_row() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    assert_eq!(
        value(votes.incr("1", 3_000_000_000).await.unwrap()),
        3_000_000_000
    );
    assert_eq!(value(votes.incr("2", 2).await.unwrap()), 2);
    eventually("the other one is saved", || async {
        pair.number("SELECT vote_count FROM item WHERE id = 2")
            .await
            == 2
    })
    .await;
    eventually("it is rejected", || async {
        !pair.mysql().rejects(0, 10).await.unwrap().is_empty()
    })
    .await;
    pair.counterfoil.drain().await.unwrap();
    let rejects = pair.mysql().rejects(0, 10).await.unwrap();
    assert_eq!(rejects.len(), 1, "{rejects:?}");
    assert_eq!((&*rejects[0].id, rejects[0].delta), ("1", 3_000_000_000));
    assert!(
        rejects[0].reason.contains("Out of range"),
        "{}",
        rejects[0].reason
    );
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 1);
    pair.sql("ALTER TABLE item MODIFY vote_count BIGINT NOT NULL DEFAULT 0")
        .await;
    retry_the_reject(&pair, &votes).await;
    touch(&votes, "1").await;
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await,
        3_000_000_001
    );
    assert_eq!(votes.get("1").await.unwrap(), 3_000_000_001);
    reconciler.shutdown().await.unwrap();
}

/// Another program writes a value that does not fit in an i64 while the counter is in use.
#[tokio::test]
async fn a_row_beyond_i64_holds_no_other_up() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, vote_count BIGINT UNSIGNED NOT NULL DEFAULT 0)").await;
    pair.sql("INSERT INTO item (id) VALUES (1), (2), (3)").await;
    let votes = votes(&pair, Table::update("item")).await;
    for round in 1..=3 {
        for id in ["1", "2", "3"] {
            assert!(
                round > 1 && id == "1" || value(votes.incr(id, 1).await.unwrap()) == round,
                "{id} in {round}"
            );
        }
        pair.sql("UPDATE item SET vote_count = 9223372036854775808 WHERE id = 1")
            .await;
        pair.counterfoil.drain().await.unwrap();
        assert_eq!(votes.stored(["2", "3"]).await.unwrap(), [Some(round); 2]);
    }
    assert_eq!(votes.get("1").await.unwrap_err().kind(), ErrorKind::Range);
    pair.sql("UPDATE item SET vote_count = 7 WHERE id = 1")
        .await;
    assert_eq!(votes.get("1").await.unwrap(), 7);
}

/// A client in another language counted for an id that is not text.
#[tokio::test]
async fn an_id_that_no_row_can_have_holds_no_other_up() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    let (mut redis, id, key) = (
        pair.redis.manager().await,
        b"\xff\xfe",
        "cf1:{test/votes/0}",
    );
    redis::pipe()
        .hset(format!("{key}:base"), id, "0000000000001 0")
        .hset(format!("{key}:buffer"), id, "5")
        .exec_async(&mut redis)
        .await
        .unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    for id in ["1", "2", "3"] {
        assert_eq!(value(votes.incr(id, 1).await.unwrap()), 1);
    }
    eventually("the others are saved", || async {
        pair.number("SELECT COUNT(*) FROM item WHERE vote_count = 1")
            .await
            == 3
    })
    .await;
    pair.counterfoil.drain().await.unwrap();
    let rejects = pair.mysql().rejects(0, 10).await.unwrap();
    let rejects: Vec<_> = rejects
        .iter()
        .map(|reject| (reject.delta, &*reject.reason))
        .collect();
    assert_eq!(rejects, [(5, "the id is not UTF-8")]);
    let left: Vec<bool> = redis::pipe()
        .hexists(format!("{key}:base"), id)
        .hexists(format!("{key}:batch"), id)
        .query_async(&mut redis)
        .await
        .unwrap();
    assert_eq!(left, [false, false]);
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_database_that_takes_no_writes_is_refused() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    pair.sql("SET GLOBAL read_only = 1").await;
    let refused = votes.incr("1", 1).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsafe, "{refused}");
    assert_eq!(votes.get("1").await.unwrap_err().kind(), ErrorKind::Unsafe);
    assert_eq!(
        votes.get_many(&["1", "2"]).await.unwrap_err().kind(),
        ErrorKind::Unsafe
    );
    let again = Counterfoil::new(
        pair.redis.manager().await,
        MysqlStore::new(pair.pool.clone()),
    );
    let family = family().table(
        Table::update("item")
            .key("id", KeyType::Unsigned)
            .value("vote_count"),
    );
    assert_eq!(
        again.open(family).await.unwrap_err().kind(),
        ErrorKind::Unsafe
    );
    pair.sql("SET GLOBAL read_only = 0").await;
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 1);
}

#[tokio::test]
async fn redis_emptied_between_cut_and_save_loses_what_was_not_saved_and_nothing_else() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let settle = Durability::Settle(Duration::from_millis(300));
    let table = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("vote_count");
    let family = family()
        .table(table)
        .durability(settle)
        .retain(Duration::from_secs(60));
    let votes = pair.counterfoil.open(family).await.unwrap();
    assert_eq!(value(votes.incr("1", 5).await.unwrap()), 5);
    pair.counterfoil.drain().await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    assert_eq!(value(votes.incr("1", 7).await.unwrap()), 12);
    pause(150).await;
    pair.redis.run::<()>("FLUSHALL").await.unwrap();
    assert_eq!(votes.get("1").await.unwrap(), 5);
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 6);
    pair.counterfoil.drain().await.unwrap();
    pause(500).await;
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await,
        6
    );
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn without_the_database_counters_in_redis_count_and_others_are_an_error() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 1);
    mysql.kill();
    for expected in 2..=50 {
        assert_eq!(value(votes.incr("1", 1).await.unwrap()), expected);
    }
    let missing = votes.incr("2", 1).await.unwrap_err();
    assert!(missing.is_retryable(), "{missing:?}");
    mysql.start_again().await;
    assert_eq!(value(votes.incr("2", 1).await.unwrap()), 1);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 1")
            .await,
        50
    );
    assert_eq!(
        pair.number("SELECT vote_count FROM item WHERE id = 2")
            .await,
        1
    );
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn keys_of_another_type_are_an_error_that_names_them() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    for partition in 0..2 {
        pair.redis
            .run::<()>(&format!("SET cf1:{{test/votes/{partition}}}:base x"))
            .await
            .unwrap();
    }
    let wrong = votes.incr("1", 1).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Corrupt);
    assert!(wrong.to_string().contains(":base"), "{wrong}");
    assert_eq!(votes.get("1").await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A store that returns old rows, like a replica that does not report its role.
#[derive(Clone, Default)]
struct Copied(Arc<Mutex<Option<Vec<Option<i64>>>>>);

impl Between for Copied {
    async fn seen(&self, rows: Vec<Option<i64>>) -> Vec<Option<i64>> {
        self.0.lock().unwrap().clone().unwrap_or(rows)
    }
}

#[tokio::test]
async fn rows_from_a_database_that_is_behind_cost_no_count() {
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    let store = Wrapped {
        store: MemoryStore::new(),
        between: Copied::default(),
    };
    let counterfoil = Counterfoil::new(redis.manager().await, store.clone());
    let votes = counterfoil.open(family()).await.unwrap();
    assert_eq!(value(votes.incr("a", 5).await.unwrap()), 5);
    counterfoil.drain().await.unwrap();
    let registered = Registered {
        family: votes.family().clone(),
        number: 0,
    };
    let behind = store.store.rows(&registered, &["a"]).await.unwrap();
    assert_eq!(value(votes.incr("a", 10).await.unwrap()), 15);
    counterfoil.drain().await.unwrap();
    redis.run::<()>("FLUSHALL").await.unwrap();
    *store.between.0.lock().unwrap() = Some(behind);
    // the value is wrong until the next save
    assert_eq!(value(votes.incr("a", 1).await.unwrap()), 6);
    *store.between.0.lock().unwrap() = None;
    counterfoil.drain().await.unwrap();
    assert_eq!(votes.get("a").await.unwrap(), 16);
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [Some(16)]);
}

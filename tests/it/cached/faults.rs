//! Cached counters on bad days: somebody else writes the rows, rows and servers come and go, values do not fit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::between::{Between, Wrapped};
use crate::support::{Pair, eventually, pause};
use counterfoil::{
    CachedCounters, CachedFamilyBuilder, Changed, Counterfoil, Durability, ErrorKind, Family, KeyType, MemoryStore,
    MysqlStore, Registered, Row, Store, Table,
};
use redis::aio::ConnectionManager;
use testkit::{MysqlServer, RedisOptions, RedisServer};

type Cached = CachedCounters<ConnectionManager, MysqlStore>;

fn family() -> CachedFamilyBuilder {
    Family::cached("test", "votes")
        .partitions(2)
        .durability(Durability::Immediate)
        .save_after(Duration::from_millis(20))
        .retain(Duration::from_millis(100))
}

const CREATE: &str = "CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, vote_count INT NOT NULL DEFAULT 0); \
     INSERT INTO item (id) VALUES (1), (2), (3)";

async fn votes(pair: &Pair, table: Table) -> Cached {
    let family = family().table(table.key("id", KeyType::Unsigned).value("vote_count"));
    pair.counterfoil.open(family.build().expect("a valid family")).await.expect("opened")
}

fn value(changed: Changed) -> i64 {
    changed.counted().unwrap_or_else(|| panic!("{changed:?}"))
}

#[tokio::test]
async fn somebody_else_writes_all_the_time() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    let reconcilers =
        [pair.counterfoil.reconciler().start().await.unwrap(), pair.counterfoil.reconciler().start().await.unwrap()];
    let outside = async {
        for _ in 0..200 {
            pair.sql("UPDATE item SET vote_count = vote_count + 10000").await;
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
    pair.counterfoil.drain().await.unwrap();
    for reconciler in reconcilers {
        reconciler.shutdown().await.unwrap();
    }
    assert_eq!(pair.number("SELECT COUNT(*) FROM item WHERE vote_count = 2001000").await, 3);
}

#[tokio::test]
async fn a_row_deleted_under_us_goes_to_the_rejects() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    assert_eq!(value(votes.incr("1", 5).await.unwrap()), 5);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(value(votes.incr("1", 7).await.unwrap()), 12);
    assert_eq!(value(votes.incr("2", 1).await.unwrap()), 1);
    pair.sql("DELETE FROM item WHERE id = 1").await;
    pair.counterfoil.drain().await.unwrap();
    let rejects = pair.counterfoil.store().rejects(0, 10).await.unwrap();
    let rejects: Vec<_> = rejects.iter().map(|reject| (&*reject.id, reject.delta, &*reject.reason)).collect();
    assert_eq!(rejects, [("1", 7, "no such row")]);
    assert_eq!(pair.number("SELECT vote_count FROM item WHERE id = 2").await, 1);
    // and the counter leaves in time, so that it is refused from then on
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    eventually("it is refused", || async {
        pause(150).await;
        votes.incr("1", 1).await.unwrap() == Changed::NoRow
    })
    .await;
    reconciler.shutdown().await.unwrap();
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
    assert_eq!(pair.number("SELECT vote_count FROM item WHERE id = 1").await, 7);
    assert_eq!(votes.get("1").await.unwrap(), 7);
    assert!(pair.counterfoil.store().rejects(0, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_value_that_the_column_cannot_hold_is_rejected_and_stays() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    assert_eq!(value(votes.incr("1", 3_000_000_000).await.unwrap()), 3_000_000_000);
    assert_eq!(value(votes.incr("2", 2).await.unwrap()), 2);
    eventually("the other one is saved", || async {
        pair.number("SELECT vote_count FROM item WHERE id = 2").await == 2
    })
    .await;
    eventually("it is rejected", || async { !pair.counterfoil.store().rejects(0, 10).await.unwrap().is_empty() }).await;
    // far beyond its stay, and looked at by others meanwhile
    pause(400).await;
    pair.counterfoil.drain().await.unwrap();
    let rejects = pair.counterfoil.store().rejects(0, 10).await.unwrap();
    assert_eq!(rejects.len(), 1, "{rejects:?}");
    assert_eq!((&*rejects[0].id, rejects[0].delta), ("1", 3_000_000_000));
    assert!(rejects[0].reason.contains("Out of range"), "{}", rejects[0].reason);
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 3_000_000_001);
    // the column is mended
    pair.sql("ALTER TABLE item MODIFY vote_count BIGINT NOT NULL DEFAULT 0").await;
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number("SELECT vote_count FROM item WHERE id = 1").await, 3_000_000_001);
    reconciler.shutdown().await.unwrap();
}

/// Somebody counted in another language for an id that is no text.
#[tokio::test]
async fn an_id_that_no_row_can_have_holds_no_other_up() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    let (mut redis, id, key) = (pair.redis.manager().await, b"\xff\xfe", "cf1:{test/votes/0}");
    redis::pipe()
        .hset(format!("{key}:values"), id, "5")
        .hset(format!("{key}:rows"), id, "- - 00000000000000ab 0 0")
        .zadd(format!("{key}:schedule"), id, 1)
        .exec_async(&mut redis)
        .await
        .unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    for id in ["1", "2", "3"] {
        assert_eq!(value(votes.incr(id, 1).await.unwrap()), 1);
    }
    eventually("the others are saved", || async {
        pair.number("SELECT COUNT(*) FROM item WHERE vote_count = 1").await == 3
    })
    .await;
    pair.counterfoil.drain().await.unwrap();
    let rejects = pair.counterfoil.store().rejects(0, 10).await.unwrap();
    let rejects: Vec<_> = rejects.iter().map(|reject| (reject.delta, &*reject.reason)).collect();
    assert_eq!(rejects, [(5, "the id is not UTF-8")]);
    // it is not lost either
    assert_eq!(
        redis::cmd("HGET").arg(format!("{key}:values")).arg(id).query_async::<i64>(&mut redis).await.unwrap(),
        5
    );
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
    assert_eq!(votes.get_many(&["1", "2"]).await.unwrap_err().kind(), ErrorKind::Unsafe);
    let again = Counterfoil::new(pair.redis.manager().await, MysqlStore::new(pair.pool.clone()));
    let family =
        family().table(Table::update("item").key("id", KeyType::Unsigned).value("vote_count")).build().unwrap();
    assert_eq!(again.open(family).await.unwrap_err().kind(), ErrorKind::Unsafe);
    pair.sql("SET GLOBAL read_only = 0").await;
    assert_eq!(value(votes.incr("1", 1).await.unwrap()), 1);
}

#[tokio::test]
async fn redis_emptied_between_claim_and_save_loses_what_was_not_saved_and_nothing_else() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let settle = Durability::Settle(Duration::from_millis(300));
    let table = Table::update("item").key("id", KeyType::Unsigned).value("vote_count");
    let family = family().table(table).durability(settle).retain(Duration::from_secs(60)).build().unwrap();
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
    assert_eq!(pair.number("SELECT vote_count FROM item WHERE id = 1").await, 6);
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn while_the_database_is_away_what_is_there_is_counted_and_what_is_not_is_an_error() {
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
    assert_eq!(pair.number("SELECT vote_count FROM item WHERE id = 1").await, 50);
    assert_eq!(pair.number("SELECT vote_count FROM item WHERE id = 2").await, 1);
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn keys_of_another_type_are_an_error_that_names_them() {
    let pair = Pair::new().await;
    pair.sql(CREATE).await;
    let votes = votes(&pair, Table::update("item")).await;
    for partition in 0..2 {
        pair.redis.run::<()>(&format!("SET cf1:{{test/votes/{partition}}}:values x")).await.unwrap();
    }
    let wrong = votes.incr("1", 1).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Corrupt);
    assert!(wrong.to_string().contains(":values"), "{wrong}");
    assert_eq!(votes.get("1").await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A copy of the rows that stands still, as on a replica that does not say that it is one; where there is none, the rows.
#[derive(Clone, Default)]
struct Copied(Arc<Mutex<Option<Vec<Row>>>>);

impl Between for Copied {
    async fn seen(&self, rows: Vec<Row>) -> Vec<Row> {
        self.0.lock().unwrap().clone().unwrap_or(rows)
    }
}

#[tokio::test]
async fn rows_from_a_database_that_is_behind_cost_no_count() {
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    let store = Wrapped { store: MemoryStore::new(), between: Copied::default() };
    let counterfoil = Counterfoil::new(redis.manager().await, store.clone());
    let votes = counterfoil.open(family().build().unwrap()).await.unwrap();
    assert_eq!(value(votes.incr("a", 5).await.unwrap()), 5);
    counterfoil.drain().await.unwrap();
    let registered = Registered { family: votes.family().clone(), number: 0 };
    let behind = store.store.rows(&registered, &["a"]).await.unwrap();
    assert_eq!(value(votes.incr("a", 10).await.unwrap()), 15);
    counterfoil.drain().await.unwrap();
    redis.run::<()>("FLUSHALL").await.unwrap();
    *store.between.0.lock().unwrap() = Some(behind);
    // seen wrong for as long as it is not saved: nobody can know
    assert_eq!(value(votes.incr("a", 1).await.unwrap()), 6);
    counterfoil.drain().await.unwrap();
    assert_eq!(votes.get("a").await.unwrap(), 16);
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [Some(16)]);
}

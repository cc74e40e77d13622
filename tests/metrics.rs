//! What is measured, as a recorder of the application sees it.
#![allow(missing_docs)]

mod support;

use counterfoil::metrics::{BATCHES, HITS, LAG_SECONDS, REFUSED, REJECTS, RETRIES, ROWS, WAITING_SECONDS, describe};
use metrics_util::debugging::DebuggingRecorder;
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
    pair.sql("CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL)").await;
    pair.sql("INSERT INTO item VALUES (1, 0)").await;
    let table = counterfoil::Table::update("item").key("id", counterfoil::KeyType::Signed).value("n");
    let items = pair.counterfoil.open(family("items").max_pending(2).partitions(1).table(table).build().unwrap());
    let items = items.await.unwrap();
    for id in ["1", "1", "2", "3"] {
        let _ = items.add(id, 1).await.unwrap();
    }
    let seen = look(&snapshotter);
    assert_eq!((seen[HITS], seen[REFUSED]), (3.0, 1.0), "two ids fit, the third does not");

    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    eventually("the flush", || async { pair.number("SELECT CAST(n AS SIGNED) FROM item").await == 2 }).await;
    reconciler.shutdown().await.unwrap();
    let seen = look(&snapshotter);
    for (name, expected) in [(BATCHES, 1.0), (ROWS, 1.0), (REJECTS, 1.0), (LAG_SECONDS, 1.0), (WAITING_SECONDS, 0.0)] {
        assert_eq!(seen.get(name), Some(&expected), "{name} in {seen:?}");
    }

    let is_above = |least: f64, name: &str| look(&snapshotter).get(name).is_some_and(|value| *value > least);
    // while the database is away the oldest hit grows older
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    mysql.kill();
    let _ = items.add("1", 1).await.unwrap();
    eventually("a hit that waits for half a second", || async { is_above(0.5, WAITING_SECONDS) }).await;
    eventually("a retry", || async { is_above(0.0, RETRIES) }).await;
    mysql.start_again().await;
    eventually("the hit", || async { pair.number("SELECT CAST(n AS SIGNED) FROM item").await == 3 }).await;
    reconciler.shutdown().await.unwrap();
}

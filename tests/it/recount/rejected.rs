//! Counters whose hits the database refused. These hits are in no value, and may still be applied.

use counterfoil::recount::RecountIds;
use counterfoil::test_hooks::{Guard, take_out};

use crate::support::*;

/// Creates user 7 with 4 rows, one of which was not counted.
async fn stage() -> (Pair, BufferedCounters) {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE user (id BIGINT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0)")
        .await;
    pair.saves(&[7; 4]).await;
    let users = Table::update("user").key("id", Unsigned).value("n");
    let counters = pair.open(family("saves").table(users)).await;
    counters.count("7", 3).await;
    (pair, counters)
}

const INSERT: &str = "INSERT INTO user (id) VALUES (7)";

async fn retry(pair: &Pair, counters: &BufferedCounters) {
    let retried = retry_all(pair.mysql(), counters.family()).await;
    assert_eq!(retried, (1, 0, 0));
}

#[tokio::test]
async fn a_counter_with_rejects_is_left_for_the_next_run() {
    let (pair, counters) = stage().await;
    pair.drain().await;
    pair.sql(INSERT).await;
    let recount = || pair.recount(&counters).ids(RecountIds::Both);
    assert_eq!(recount().run_once().await.unwrap().drifted, 0);
    assert_eq!(counters.value("7").await, 0);
    retry(&pair, &counters).await;
    assert_eq!(counters.value("7").await, 3);
    assert_eq!(recount().run_once().await.unwrap().raised, 1);
    assert_eq!(counters.value("7").await, 4);
}

/// Refuses the hits after the first read, and applies them after the second. Returns the value at the
/// end.
async fn applied_during_a_run(without: Option<Guard>) -> i64 {
    let (pair, counters) = stage().await;
    let recounting = pair.recount(&counters).steps().unwrap();
    let run = recounting.take().await.unwrap().unwrap();
    let before = recounting.before(vec!["7".to_owned()], None).await.unwrap();
    let page = recounting.count(before).await.unwrap();
    pair.drain().await;
    let difference = recounting.after(&page).await.unwrap();
    pair.sql(INSERT).await;
    retry(&pair, &counters).await;
    take_out(without);
    let corrected = recounting.settle(&run, &difference).await;
    take_out(None);
    assert!(corrected.unwrap());
    counters.value("7").await
}

#[tokio::test]
async fn rejects_that_are_applied_during_a_run_are_not_corrected_too() {
    assert_eq!(applied_during_a_run(Some(Guard::RecountRejects)).await, 7);
    assert_eq!(applied_during_a_run(None).await, 3);
}

//! The store in memory, as the tests of an application use it.

use std::sync::Arc;

use counterfoil::{
    Applied, Batch, Changed, Durability, ErrorKind, Family, Incarnation, KeyType, Registered, Store, Table,
};

use crate::support::kinds::{KINDS, OfKind};
use crate::support::{Plain, counted, eventually, family};

fn items() -> Table {
    Table::update("item").key("id", KeyType::Unsigned).value("n")
}

#[tokio::test]
async fn every_kind_counts_without_mysql() {
    let Plain { redis: _redis, counterfoil } = Plain::new().await;
    for kind in KINDS {
        let opened = OfKind::open(&counterfoil, kind).await.unwrap();
        opened.use_all().await.unwrap();
        let expected = if kind == "visitors" { 1 } else { 3 };
        assert_eq!(opened.shown().await.unwrap(), expected, "{kind}");
        counterfoil.drain_all().await.unwrap();
        assert_eq!(opened.shown().await.unwrap(), expected, "{kind}, drained");
        opened.hit().await.unwrap();
    }
    assert!(counterfoil.shutdown(std::time::Duration::from_secs(20)).await.unwrap().is_empty());
}

#[tokio::test]
async fn rows_of_a_table_that_is_only_updated_have_to_be_there() {
    let Plain { redis: _redis, counterfoil } = Plain::new().await;
    let votes = Family::cached("test", "votes").durability(Durability::Immediate).table(items()).build().unwrap();
    let votes = counterfoil.open(votes).await.unwrap();
    assert_eq!(votes.incr("7", 1).await.unwrap(), Changed::NoRow);
    counterfoil.store().set(votes.family(), "7", 40);
    assert_eq!(votes.incr("7", 1).await.unwrap(), Changed::Counted { value: 41 });
    counterfoil.drain().await.unwrap();
    assert_eq!(votes.stored(&["7", "8"]).await.unwrap(), [Some(41), None]);
    // what is written behind its back is kept
    counterfoil.store().set(votes.family(), "7", 100);
    assert_eq!(votes.incr("7", 1).await.unwrap(), Changed::Counted { value: 42 });
    counterfoil.drain().await.unwrap();
    assert_eq!(votes.get("7").await.unwrap(), 101);

    let views = counterfoil.open(family("views").table(items()).build().unwrap()).await.unwrap();
    counterfoil.store().set(views.family(), "7", 5);
    for id in ["7", "8"] {
        assert_eq!(counted(views.add(id, 1).await.unwrap()), 1);
    }
    let reconciler = counterfoil.reconciler().start().await.unwrap();
    eventually("both leave Redis", || async { views.pending(&["7", "8"]).await.unwrap() == [0, 0] }).await;
    reconciler.shutdown().await.unwrap();
    assert_eq!(views.stored(&["7", "8"]).await.unwrap(), [Some(6), None]);
}

#[tokio::test]
async fn a_batch_is_applied_once_and_what_no_row_takes_is_rejected() {
    let store = counterfoil::MemoryStore::new();
    let family = family("views").build().unwrap().family().clone();
    let number = store.register(&family).await.unwrap();
    assert_eq!(store.clone().register(&family).await.unwrap(), number, "a clone is the same database");
    let other = crate::support::family("views").partitions(8).build().unwrap();
    assert_eq!(store.register(other.family()).await.unwrap_err().kind(), ErrorKind::Mismatch);

    let family = Arc::new(Registered { family, number });
    let deltas = vec![("a".to_owned(), 2), ("full".to_owned(), 1)];
    let foreign = vec![(vec![0xff], 1)];
    let batch = Batch { family: family.clone(), partition: 0, incarnation: Incarnation(1), seq: 1, deltas, foreign };
    store.set(&family.family, "full", i64::MAX);
    let applied = store.apply(std::slice::from_ref(&batch)).await.unwrap();
    assert_eq!(applied, Applied { batches: 1, repeated: 0, rows: 1, rejected: 2 });
    let applied = store.apply(&[batch]).await.unwrap();
    assert_eq!(applied, Applied { batches: 0, repeated: 1, rows: 0, rejected: 0 });
    let listed = store.list(&family, "", None, 10).await.unwrap();
    assert_eq!(listed, [("a".to_owned(), 2), ("full".to_owned(), i64::MAX)]);
}

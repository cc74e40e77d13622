//! The store and the Redis in memory, as an application's tests use them.

use crate::mysql::{applied, batch, complete, keeps_the_contract};
use counterfoil::MemoryRedis;

use crate::support::*;

fn items() -> Table {
    Table::update("item").key("id", Unsigned).value("n")
}

async fn every_kind_counts(counterfoil: &Counterfoil) {
    for kind in KINDS {
        let opened = OfKind::open(counterfoil, kind).await.unwrap();
        opened.use_all().await.unwrap();
        let expected = if kind == "visitors" { 1 } else { 3 };
        assert_eq!(opened.shown().await.unwrap(), expected, "{kind}");
        counterfoil.drain().await.unwrap();
        assert_eq!(opened.shown().await.unwrap(), expected, "{kind}, drained");
        opened.hit().await.unwrap();
    }
    assert!(counterfoil.shutdown(secs(20)).await.unwrap().is_empty());
}

#[tokio::test]
async fn every_kind_counts_without_mysql() {
    every_kind_counts(&Plain::new().await.counterfoil).await;
}

#[tokio::test]
async fn every_kind_counts_without_servers() {
    every_kind_counts(&patient(Counterfoil::new(
        MemoryRedis::new(),
        MemoryStore::new(),
    )))
    .await;
}

/// Tasks on one thread, each counting without a pause, while a reconciler works beside them.
#[tokio::test]
async fn many_tasks_and_a_reconciler_without_servers() {
    const TASKS: i64 = 20;
    const HITS: i64 = 500;
    let (redis, store) = (MemoryRedis::new(), MemoryStore::new());
    let counterfoil = patient(Counterfoil::new(redis.clone(), store.clone()));
    let family = || family("views").durability(Durability::Settle(secs(60)));
    let views = counterfoil.opened(family()).await;
    let reconciler = counterfoil.reconcile().await;
    let tasks = (0..TASKS).map(|task| {
        let views = views.clone();
        tokio::spawn(async move {
            for hit in 0..HITS {
                views.count(&format!("{}", (task + hit) % 7), 1).await;
            }
        })
    });
    join_all(tasks).await.into_iter().for_each(Result::unwrap);
    let ids: Vec<_> = (0..7).map(|id| id.to_string()).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    // another process, with clones of both
    let other = patient(Counterfoil::new(redis, store));
    let values = other.opened(family()).await.get_many(&ids).await.unwrap();
    assert_eq!(values.iter().sum::<i64>(), TASKS * HITS);
    reconciler.stop().await;
    counterfoil.drained().await;
    let stored = views.stored(&ids).await.unwrap();
    assert_eq!(stored.into_iter().flatten().collect::<Vec<_>>(), values);
    has_no_errors(&counterfoil.check().await);
}

#[tokio::test]
async fn rows_of_a_table_that_is_only_updated_have_to_be_there() {
    let (plain, votes) = Plain::of(votes().table(items())).await;
    let (store, counterfoil) = (&plain.store, &plain.counterfoil);
    assert_eq!(votes.incr("7", 1).await.unwrap(), NoRow);
    store.set(votes.family(), "7", 40);
    assert_eq!(votes.incr("7", 1).await.unwrap(), Counted(41));
    counterfoil.drained().await;
    assert_eq!(votes.stored(&["7", "8"]).await.unwrap(), [Some(41), None]);
    // the store keeps another program's write
    store.set(votes.family(), "7", 100);
    assert_eq!(votes.incr("7", 1).await.unwrap(), Counted(42));
    counterfoil.drained().await;
    assert_eq!(votes.value("7").await, 101);

    let views = counterfoil.opened(family("views").table(items())).await;
    store.set(views.family(), "7", 5);
    for id in ["7", "8"] {
        assert_eq!(views.count(id, 1).await, 1);
    }
    let reconciler = counterfoil.reconcile().await;
    eventually("both leave Redis", || async {
        views.pending(&["7", "8"]).await.unwrap() == [0, 0]
    })
    .await;
    reconciler.stop().await;
    assert_eq!(views.stored(&["7", "8"]).await.unwrap(), [Some(6), None]);
}

/// A worker that opens no family itself serves those of another process.
#[tokio::test]
async fn a_worker_serves_registered_families() {
    let (redis, store) = (MemoryRedis::new(), MemoryStore::new());
    let counterfoil = patient(Counterfoil::new(redis.clone(), store.clone()));
    let views = counterfoil.opened(family("views")).await;
    let worker = patient(Counterfoil::new(redis, store));
    let reconciler = worker.reconciler().all().start().await.unwrap();
    views.count("page", 1).await;
    eventually("it is stored", || async {
        views.stored(&["page"]).await.unwrap() == [Some(1)]
    })
    .await;
    assert!(reconciler.failing().is_empty());
    reconciler.stop().await;
}

#[tokio::test]
async fn the_contract_of_a_store_is_kept() {
    let store = MemoryStore::new();
    let family = family("views").build().unwrap();
    let registered = store.register(&family).await.unwrap();
    // a clone is the same database
    assert_eq!(store.clone().register(&family).await.unwrap(), registered);
    let other = crate::support::family("views").partitions(8);
    refused(store.register(&other.build().unwrap()).await, Mismatch, "");
    keeps_the_contract(&store, &Arc::new(registered)).await;
}

#[tokio::test]
async fn a_delta_that_no_row_takes_holds_nothing_back() {
    let store = MemoryStore::new();
    let family = family("views").build().unwrap();
    let family = Arc::new(store.register(&family).await.unwrap());
    store.set(&family.family, "full", i64::MAX);
    let batches = [batch(&family, 0, 1, [("a", 2), ("full", 1)])];
    let sums = complete(&store, &batches, None).await.unwrap();
    assert_eq!(sums, applied(1, 0, 1, 1));
    assert_eq!(
        store.list(&family, "", None, 10).await.unwrap(),
        [("a".to_owned(), 2), ("full".to_owned(), i64::MAX)]
    );
}

//! The store in memory, as an application's tests use it.

use crate::mysql::{applied, batch, complete, keeps_the_contract};

use crate::support::*;

fn items() -> Table {
    Table::update("item").key("id", Unsigned).value("n")
}

#[tokio::test]
async fn every_kind_counts_without_mysql() {
    let Plain {
        redis: _redis,
        store: _,
        counterfoil,
    } = Plain::new().await;
    for kind in KINDS {
        let opened = OfKind::open(&counterfoil, kind).await.unwrap();
        opened.use_all().await.unwrap();
        let expected = if kind == "visitors" { 1 } else { 3 };
        assert_eq!(opened.shown().await.unwrap(), expected, "{kind}");
        counterfoil.drain_all().await.unwrap();
        assert_eq!(opened.shown().await.unwrap(), expected, "{kind}, drained");
        opened.hit().await.unwrap();
    }
    assert!(counterfoil.shutdown(secs(20)).await.unwrap().is_empty());
}

#[tokio::test]
async fn rows_of_a_table_that_is_only_updated_have_to_be_there() {
    let Plain {
        redis: _redis,
        store,
        counterfoil,
    } = Plain::new().await;
    let votes = votes().table(items());
    let votes = counterfoil.opened(votes).await;
    assert_eq!(votes.incr("7", 1).await.unwrap(), NoRow);
    store.set(votes.family(), "7", 40);
    assert_eq!(votes.incr("7", 1).await.unwrap(), Outcome::Counted(41));
    counterfoil.drained().await;
    assert_eq!(votes.stored(&["7", "8"]).await.unwrap(), [Some(41), None]);
    // the store keeps another program's write
    store.set(votes.family(), "7", 100);
    assert_eq!(votes.incr("7", 1).await.unwrap(), Outcome::Counted(42));
    counterfoil.drained().await;
    assert_eq!(votes.value("7").await, 101);

    let views = counterfoil.opened(family("views").table(items())).await;
    store.set(views.family(), "7", 5);
    for id in ["7", "8"] {
        assert_eq!(counted(views.add(id, 1).await.unwrap()), 1);
    }
    let reconciler = counterfoil.reconcile().await;
    eventually("both leave Redis", || async {
        views.pending(&["7", "8"]).await.unwrap() == [0, 0]
    })
    .await;
    reconciler.stop().await;
    assert_eq!(views.stored(&["7", "8"]).await.unwrap(), [Some(6), None]);
}

#[tokio::test]
async fn the_contract_of_a_store_is_kept() {
    let store = counterfoil::MemoryStore::new();
    let family = family("views").build().unwrap().clone();
    let registered = store.register(&family).await.unwrap();
    // a clone is the same database
    assert_eq!(store.clone().register(&family).await.unwrap(), registered);
    refused(
        store
            .register(
                &crate::support::family("views")
                    .partitions(8)
                    .build()
                    .unwrap(),
            )
            .await,
        Mismatch,
        "",
    );
    keeps_the_contract(&store, &Arc::new(registered)).await;
}

#[tokio::test]
async fn a_delta_that_no_row_takes_holds_nothing_back() {
    let store = counterfoil::MemoryStore::new();
    let family = family("views").build().unwrap().clone();
    let family = Arc::new(store.register(&family).await.unwrap());
    store.set(&family.family, "full", i64::MAX);
    assert_eq!(
        complete(
            &store,
            &[batch(&family, 0, 1, [("a", 2), ("full", 1)])],
            None,
        )
        .await
        .unwrap(),
        applied(1, 0, 1, 1)
    );
    assert_eq!(
        store.list(&family, "", None, 10).await.unwrap(),
        [("a".to_owned(), 2), ("full".to_owned(), i64::MAX)]
    );
}

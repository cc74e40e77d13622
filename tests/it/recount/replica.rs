//! Recounts with a replica that lags.

use counterfoil::recount::{Rows, Source};
use counterfoil::test_hooks::{CutBatch, Partition};

use super::{WITHIN, saves};
use crate::support::*;

/// Returns the rows of user 1 on a replica with this lag: the second of two rows was committed just
/// now.
fn lagging(lag: Duration) -> Source {
    let arrives = Instant::now() + lag;
    Source::function(move |_| async move {
        let rows = if Instant::now() < arrives { 1 } else { 2 };
        Ok(HashMap::from([("1".to_owned(), rows)]))
    })
}

#[tokio::test]
async fn a_counted_row_that_a_replica_lacks_is_not_taken_away() {
    for (rows, value, lowered) in [
        (Rows::Added, 2, 0),
        (Rows::Added, 3, 1),
        (Rows::AddedAndDeleted, 2, 0),
        (Rows::AddedAndDeleted, 3, 1),
    ] {
        let (pair, saves) = Pair::of(family("saves")).await;
        saves.count("1", value).await;
        pair.drain().await;
        let recount = pair.recount_of(&saves, rows);
        let recount = recount.replica(pair.mysql().clone()).within(millis(800));
        let done = recount.source(lagging(millis(700))).run_once().await;
        let done = done.unwrap();
        assert_eq!(saves.value("1").await, 2, "{value}, {rows:?}: {done:?}");
        assert_eq!((done.lowered, done.drifted), (lowered, lowered), "{done:?}");
    }
}

/// A batch of two cached counters is complete in MySQL, one of them is saved, and the replica lacks
/// the batch.
#[tokio::test]
async fn a_batch_that_is_partly_saved_is_not_counted_again() {
    let (pair, behind) = (Pair::new().await, Pair::new().await);
    pair.saves(&[1, 2]).await;
    behind.open(votes().partitions(1)).await;
    let store = MysqlStore::new(&pair.pool)
        .unwrap()
        .with_replica(behind.mysql().clone());
    let counterfoil = patient(Counterfoil::new(pair.redis.manager().await, store));
    let votes = counterfoil.opened(votes().partitions(1)).await;
    votes.count("1", 1).await;
    votes.count("2", 1).await;

    let family = pair.mysql().register(votes.family()).await.unwrap();
    let partition = Partition::new(pair.redis.manager().await, votes.family(), 0);
    let rotated = partition.rotate(votes.family(), &family.database, None, Cut::Now);
    let RotateReply::Batch(CutBatch { id, .. }) = rotated.await.unwrap() else {
        panic!("no batch")
    };
    let fetched = partition.fetch(id, Duration::ZERO, 10).await.unwrap();
    let FetchReply::Deltas(deltas) = fetched else {
        panic!("{fetched:?}")
    };
    let batch = Arc::new(Batch {
        family: Arc::new(family),
        partition: 0,
        id,
        deltas,
        is_lost: false,
    });
    pair.mysql().apply(&[batch], None).await.unwrap();
    let saved = partition.saved(id, &[(b"1", Some(1))]).await;
    assert_eq!(saved.unwrap(), Some(1));

    let recount = counterfoil
        .recount(&votes, Rows::Added)
        .source(saves())
        .within(WITHIN);
    let done = recount.run_once().await.unwrap();
    assert_eq!((done.checked, done.drifted), (2, 0), "{done:?}");
    assert_eq!(pair.stored().await, 2);
}

/// A correction adds to the value and leaves the ledger as it is, so the ledger does not show that
/// a replica lacks it.
#[tokio::test]
async fn a_correction_that_a_replica_lacks_is_not_made_again() {
    let (pair, behind) = (Pair::new().await, Pair::new().await);
    pair.saves(&[1, 1]).await;
    let users = || family("saves").partitions(1);
    let saves = pair.open(users()).await;
    saves.count("1", 1).await;
    pair.drain().await;
    // the copy has the batch, and receives nothing more
    behind.open(users()).await;
    let name = sqlx::query_scalar::<_, String>("SELECT DATABASE()").fetch_one(&pair.pool);
    let name = name.await.unwrap();
    for table in ["counterfoil_values", "counterfoil_ledger"] {
        let copy = format!("REPLACE INTO {table} SELECT * FROM `{name}`.{table}");
        behind.sql(&copy).await;
    }
    let store = MysqlStore::new(&pair.pool)
        .unwrap()
        .with_replica(behind.mysql().clone());
    let counterfoil = patient(Counterfoil::new(pair.redis.manager().await, store));
    let saves = counterfoil.opened(users()).await;
    for raised in [1, 0] {
        let recount = counterfoil
            .recount(&saves, Rows::Added)
            .source(super::saves());
        let done = recount.within(WITHIN).run_once().await.unwrap();
        assert_eq!(done.raised, raised, "{done:?}");
    }
    assert_eq!(pair.stored().await, 2);
}

//! The overview of families.

use counterfoil::admin::Overview;

use super::database::*;
use crate::support::*;

/// Returns the overview of the family `shop/NAME`.
async fn overview(db: &Db, name: &str) -> Overview {
    let found = db
        .store
        .overview()
        .await
        .unwrap()
        .into_iter()
        .find(|one| one.family == name)
        .unwrap();
    assert_eq!(found.namespace, "shop");
    found
}

/// Returns a time of the family's rows in a table.
async fn time(db: &Db, column: &str, table: &str, family: &Registration, row: &str) -> SystemTime {
    let number = family.number;
    let time = format!(
        "SELECT UNIX_TIMESTAMP({column}) * 1000 FROM counterfoil_{table} WHERE family = {number} AND {row}"
    );
    UNIX_EPOCH + millis(db.number(&time).await.cast_unsigned())
}

#[tokio::test]
async fn each_family_has_what_the_tables_have_of_it() {
    let db = Db::new().await;
    let small = db.numbers("small", "TINYINT").await;
    let other = db.family(Family::buffered("shop", "other")).await;
    db.family(Family::buffered("shop", "idle")).await;
    db.adds(&small, 1, [("1", 200), ("2", 200), ("3", 1)], (1, 2))
        .await;
    db.adds(&other, 1, [("a", 1)], (1, 0)).await;
    assert_eq!(
        db.add(&small, 1, 1, [("4", 200), ("3", 1)]).await,
        applied(1, 0, 1, 1)
    );
    db.run(&format!(
        "UPDATE counterfoil_ledger SET applied_at = '2020-02-02 20:20:20' WHERE family = {} AND partition_no = 0",
        small.number
    ))
    .await;

    let latest = time(&db, "applied_at", "ledger", &small, "partition_no = 1").await;
    let seen = overview(&db, "small").await;
    // the newest of the partitions
    assert_eq!((seen.last_saved, seen.rejects), (Some(latest), 3));
    let age = SystemTime::now().duration_since(latest).unwrap();
    assert!(age < secs(60), "{age:?}");
    assert_eq!(overview(&db, "other").await.rejects, 0);
    let idle = overview(&db, "idle").await;
    assert_eq!(
        (idle.last_saved, idle.rejects, idle.recount),
        (None, 0, None)
    );

    db.run("ALTER TABLE small MODIFY n SMALLINT NOT NULL").await;
    assert_eq!(db.retry(&small, &["1", "4"]).await, (2, 0, 0));
    assert_eq!(overview(&db, "small").await.rejects, 1);
}

#[tokio::test]
async fn the_latest_recount_is_shown_also_while_it_runs() {
    let db = Db::new().await;
    let views = db.views().await;
    db.family(Family::buffered("shop", "other")).await;
    let redis = new_redis().await;
    complete(&db.store, &[batch(&views, 0, 1, [("a", 2)])], None)
        .await
        .unwrap();
    for drifted in [1, 0] {
        assert_eq!(
            recounted(&db.store, &redis, views.family.name(), 5)
                .await
                .unwrap()
                .drifted,
            drifted
        );
    }
    let of_run = async |column, run| {
        let run = format!("run = {run}");
        time(&db, column, "recounts", &views, &run).await
    };
    let recount = overview(&db, "views").await.recount.unwrap();
    assert_eq!((recount.run, recount.checked, recount.drifted), (2, 1, 0));
    assert_eq!(recount.started, of_run("started_at", 2).await);
    assert_eq!(recount.finished, Some(of_run("finished_at", 2).await));

    db.run(&format!(
        "INSERT INTO counterfoil_recounts (family, run, holder, checked, drifted, started_at, touched_at) \
         VALUES ({}, 3, 7, 1000, 4, '2020-02-02 20:20:20.125', '2020-02-02 20:20:21.250')",
        views.number
    ))
    .await;
    let recount = overview(&db, "views").await.recount.unwrap();
    assert_eq!((recount.run, recount.finished), (3, None));
    assert_eq!((recount.checked, recount.drifted), (1000, 4));
    assert_eq!(
        recount.touched.duration_since(recount.started).unwrap(),
        millis(1125)
    );
    assert_eq!(recount.started, of_run("started_at", 3).await);
    assert_eq!(overview(&db, "other").await.recount, None);
}

/// Thousands of families take one statement.
#[tokio::test]
async fn many_families_take_one_statement() {
    let db = Db::new().await;
    db.run(&format!(
        "INSERT INTO counterfoil_families (namespace, name, kind, partitions, wide, durability, target, shape, settings, database_id) \
         WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000) \
         SELECT 'shop', CONCAT('family-', f.n), kind, partitions, wide, durability, target, shape, settings, database_id \
         FROM numbers AS f JOIN counterfoil_families WHERE number = {};
         INSERT INTO counterfoil_ledger (family, partition_no, incarnation, seq, nonce) \
         SELECT number, 0, 1, 1, 1 FROM counterfoil_families;
         INSERT INTO counterfoil_recounts (family, run, holder) SELECT number, 1, 0 FROM counterfoil_families",
        db.views().await.number
    ))
    .await;
    let before = db.store.statements();
    let all = db.store.overview().await.unwrap();
    assert_eq!(db.store.statements() - before, 1);
    assert_eq!((all.len(), &*all[0].family), (1001, "views"));
    let is_full = |one: &Overview| one.last_saved.is_some() && one.recount.is_some();
    assert!(all.iter().all(is_full));
}

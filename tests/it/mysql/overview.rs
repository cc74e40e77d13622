//! The overview of families.

use std::time::{Duration, SystemTime};

use counterfoil::admin::{Overview, Retried};
use counterfoil::{Family, KeyType, Table};

use super::buffered::{Db, applied, batch};

/// Returns the overview of the family `shop/NAME`.
async fn overview(db: &Db, name: &str) -> Overview {
    let all = db.store.overview().await.expect("an overview");
    let found = all
        .into_iter()
        .find(|one| one.family == name)
        .expect("registered");
    assert_eq!(found.namespace, "shop");
    found
}

/// Returns the only time of the query.
async fn time(db: &Db, sql: &str) -> SystemTime {
    let ms = db
        .number(&format!(
            "SELECT CAST(UNIX_TIMESTAMP(({sql})) * 1000 AS SIGNED)"
        ))
        .await;
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms.cast_unsigned())
}

#[tokio::test]
async fn each_family_has_what_the_tables_have_of_it() {
    let db = Db::new().await;
    db.run("CREATE TABLE small (id VARBINARY(255) PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let small = db
        .table(
            "small",
            Table::upsert("small").key("id", KeyType::Text).value("n"),
        )
        .await;
    let other = db.family(Family::buffered("shop", "other")).await;
    db.family(Family::buffered("shop", "idle")).await;
    assert_eq!(
        db.apply(&[batch(&small, 0, 1, &[("a", 200), ("b", 200), ("c", 1)])])
            .await,
        applied(1, 0, 1, 2)
    );
    assert_eq!(
        db.apply(&[batch(&other, 0, 1, &[("a", 1)])]).await,
        applied(1, 0, 1, 0)
    );
    assert_eq!(
        db.apply(&[batch(&small, 1, 1, &[("d", 200), ("c", 1)])])
            .await,
        applied(1, 0, 1, 1)
    );
    db.run(&format!(
        "UPDATE counterfoil_ledger SET applied_at = '2020-02-02 20:20:20' WHERE family = {} AND partition_no = 0",
        small.number
    ))
    .await;

    let latest = format!(
        "SELECT applied_at FROM counterfoil_ledger WHERE family = {} AND partition_no = 1",
        small.number
    );
    let seen = overview(&db, "small").await;
    assert_eq!(
        (seen.last_saved, seen.rejects),
        (Some(time(&db, &latest).await), 3),
        "the newest of the partitions"
    );
    assert!(
        SystemTime::now()
            .duration_since(seen.last_saved.unwrap())
            .unwrap()
            < Duration::from_secs(60)
    );
    assert_eq!(overview(&db, "other").await.rejects, 0);
    let idle = overview(&db, "idle").await;
    assert_eq!(
        (idle.last_saved, idle.rejects, idle.recount),
        (None, 0, None)
    );

    db.run("ALTER TABLE small MODIFY n SMALLINT NOT NULL").await;
    let numbers: Vec<_> = db
        .rejects()
        .await
        .iter()
        .map(|reject| reject.number)
        .collect();
    let again = db
        .store
        .retry_rejects(&small.family, &numbers[..2])
        .await
        .expect("retried");
    assert_eq!(again, [Retried::Applied; 2]);
    assert_eq!(overview(&db, "small").await.rejects, 1);
}

#[tokio::test]
async fn the_latest_recount_is_told_also_while_it_runs() {
    let db = Db::new().await;
    let views = db.family(Family::buffered("shop", "views")).await;
    db.family(Family::buffered("shop", "other")).await;
    for _ in 0..2 {
        db.store
            .correct_one(&views, "a", 5)
            .await
            .expect("recounted");
    }
    let of_run = |column: &str, run: u64| {
        format!(
            "SELECT {column} FROM counterfoil_recounts WHERE family = {} AND run = {run}",
            views.number
        )
    };
    let recount = overview(&db, "views").await.recount.expect("two runs");
    assert_eq!((recount.run, recount.checked, recount.drifted), (2, 1, 0));
    assert_eq!(recount.started, time(&db, &of_run("started_at", 2)).await);
    assert_eq!(
        recount.finished,
        Some(time(&db, &of_run("finished_at", 2)).await)
    );

    db.run(&format!(
        "INSERT INTO counterfoil_recounts (family, run, holder, checked, drifted, started_at, touched_at) \
         VALUES ({}, 3, 7, 1000, 4, '2020-02-02 20:20:20.125', '2020-02-02 20:20:21.250')",
        views.number
    ))
    .await;
    let recount = overview(&db, "views").await.recount.expect("three runs");
    assert_eq!(
        (
            recount.run,
            recount.checked,
            recount.drifted,
            recount.finished
        ),
        (3, 1000, 4, None)
    );
    assert_eq!(
        recount.touched.duration_since(recount.started).unwrap(),
        Duration::from_millis(1125)
    );
    assert_eq!(recount.started, time(&db, &of_run("started_at", 3)).await);
    assert_eq!(overview(&db, "other").await.recount, None);
}

/// Thousands of families take as many statements as one.
#[tokio::test]
async fn many_families_take_four_statements() {
    let db = Db::new().await;
    let views = db.family(Family::buffered("shop", "views")).await;
    db.run(&format!(
        "INSERT INTO counterfoil_families (namespace, name, kind, partitions, wide, durability, target, shape, settings) \
         WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000) \
         SELECT 'shop', CONCAT('family-', f.n), kind, partitions, wide, durability, target, shape, settings \
         FROM numbers AS f JOIN counterfoil_families WHERE number = {}",
        views.number
    ))
    .await;
    db.run(
        "INSERT INTO counterfoil_ledger (family, partition_no, incarnation, seq, nonce) \
         SELECT number, 0, 1, 1, 1 FROM counterfoil_families; \
         INSERT INTO counterfoil_recounts (family, run, holder) SELECT number, 1, 0 FROM counterfoil_families",
    )
    .await;
    let before = db.store.statements();
    let all = db.store.overview().await.expect("an overview");
    assert_eq!(db.store.statements() - before, 4);
    assert_eq!(all.len(), 1001);
    assert_eq!(all[0].family, "views");
    assert!(
        all.iter()
            .all(|one| one.last_saved.is_some() && one.recount.is_some())
    );
}

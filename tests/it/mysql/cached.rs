//! The rows that cached counters are seeded from, read from a real server.

use counterfoil::store::Registered;
use counterfoil::{ErrorKind, Family, KeyType, MysqlStore, Store, Table};
use sqlx::Row;
use sqlx::mysql::MySqlPoolOptions;
use testkit::MysqlServer;

use super::buffered::Db;

async fn rows(db: &Db, family: &Registered, ids: &[&str]) -> Vec<Option<i64>> {
    db.store.rows(family, ids).await.expect("rows")
}

#[tokio::test]
async fn rows_are_read_alone_and_together() {
    let db = Db::new().await;
    let own = db.family(Family::buffered("shop", "stock")).await;
    db.run("CREATE TABLE votes (id BIGINT UNSIGNED PRIMARY KEY, n INT NULL)")
        .await;
    let votes = db
        .table(
            "votes",
            Table::update("votes")
                .key("id", KeyType::Unsigned)
                .value("n"),
        )
        .await;
    assert_eq!(rows(&db, &own, &[]).await, []);
    assert_eq!(rows(&db, &own, &["a", "b"]).await, [None; 2]);
    db.run(&format!(
        "INSERT INTO counterfoil_values (family, id, value) \
         VALUES ({n}, 'a', {}), ({n}, 'A', {}), ({n}, 'é/ ', 7)",
        i64::MIN,
        i64::MAX,
        n = own.number
    ))
    .await;
    db.run("INSERT INTO votes VALUES (1, 5), (2, NULL), (3, -1)")
        .await;
    let cases = [
        (
            &own,
            ["a", "A", "é/ ", "b", "é/"],
            [Some(i64::MIN), Some(i64::MAX), Some(7), None, None],
        ),
        // NULL is 0, and an id that matches no row has none
        (
            &votes,
            ["1", "2", "4", "x", "3"],
            [Some(5), Some(0), None, None, Some(-1)],
        ),
    ];
    for (family, ids, expected) in cases {
        assert_eq!(rows(&db, family, &ids).await, expected);
        for (id, expected) in ids.iter().zip(expected) {
            assert_eq!(rows(&db, family, &[id]).await, [expected], "{id}");
        }
    }
}

#[tokio::test]
async fn a_value_beyond_i64_is_out_of_range() {
    let db = Db::new().await;
    db.run("CREATE TABLE big (id INT PRIMARY KEY, n BIGINT UNSIGNED NOT NULL)")
        .await;
    let big = db
        .table(
            "big",
            Table::upsert("big").key("id", KeyType::Signed).value("n"),
        )
        .await;
    db.run("INSERT INTO big VALUES (1, 9223372036854775808), (2, 9223372036854775807)")
        .await;
    for ids in [&["1"][..], &["1", "2"]] {
        let error = db.store.rows(&big, ids).await.expect_err("refused");
        assert!(
            error.kind() == ErrorKind::Range
                && format!("{error:#}").contains("9223372036854775808"),
            "{error}"
        );
    }
    assert_eq!(rows(&db, &big, &["2"]).await, [Some(i64::MAX)]);
}

#[tokio::test]
async fn a_database_that_takes_no_writes_seeds_nothing() {
    let server = MysqlServer::start().await;
    let (_, pool) = server.database("cached").await;
    let store = MysqlStore::new(pool.clone());
    store.create_tables().await.expect("created");
    let family = Family::cached("shop", "stock")
        .build()
        .expect("valid")
        .clone();
    let number = store.register(&family).await.expect("registered");
    let family = Registered { family, number };
    sqlx::raw_sql("SET GLOBAL read_only = 1")
        .execute(&pool)
        .await
        .expect("set");
    for ids in [&["a"][..], &["a", "b"]] {
        let error = store.rows(&family, ids).await.expect_err("refused");
        assert!(
            error.kind() == ErrorKind::Unsafe && format!("{error:#}").contains("accepts no writes"),
            "{error}"
        );
    }
    sqlx::raw_sql("SET GLOBAL read_only = 0")
        .execute(&pool)
        .await
        .expect("set");
    assert_eq!(store.rows(&family, &["a"]).await.expect("rows"), [None]);
}

/// The server looks up each row by its complete key.
#[tokio::test]
async fn rows_are_looked_up_and_not_scanned() {
    let db = Db::new().await;
    let own = db.family(Family::buffered("shop", "stock")).await;
    db.run("CREATE TABLE votes (id BIGINT UNSIGNED PRIMARY KEY, n INT NOT NULL)")
        .await;
    let votes = db
        .table(
            "votes",
            Table::upsert("votes")
                .key("id", KeyType::Unsigned)
                .value("n"),
        )
        .await;
    let numbers = "WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 999) \
         SELECT a.n * 1000 + b.n AS n FROM numbers AS a JOIN numbers AS b ON a.n < 50";
    db.run(&format!(
        "INSERT INTO votes SELECT n, 1 FROM ({numbers}) AS ids"
    ))
    .await;
    db.run(&format!(
        "INSERT INTO counterfoil_values (family, id, value) SELECT {}, n, 1 FROM ({numbers}) AS ids",
        own.number
    ))
    .await;
    db.run("ANALYZE TABLE counterfoil_values, votes").await;
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .connect_with((*db.pool.connect_options()).clone());
    let pool = pool.await.expect("connected");
    let store = MysqlStore::new(pool.clone());
    let walked = async || {
        let rows = sqlx::query("SHOW SESSION STATUS LIKE 'Handler_read%'")
            .fetch_all(&pool)
            .await
            .expect("status");
        // the given ids are in a temporary table, which is scanned
        let scanned = [
            "Handler_read_rnd_next",
            "Handler_read_next",
            "Handler_read_first",
            "Handler_read_last",
        ];
        let counts = rows
            .iter()
            .filter(|row| scanned.contains(&row.get::<String, _>(0).as_str()));
        counts
            .map(|row| row.get::<String, _>(1).parse::<u64>().expect("a number"))
            .sum::<u64>()
    };
    let ids: Vec<_> = (0..100).map(|id| (id * 500).to_string()).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    for family in [&own, &votes] {
        store.rows(family, &["1"]).await.expect("rows");
        let before = walked().await;
        assert_eq!(store.rows(family, &["7"]).await.expect("rows"), [Some(1)]);
        assert_eq!(
            store.rows(family, &ids).await.expect("rows"),
            [Some(1); 100]
        );
        let walked = walked().await - before;
        assert!(walked < 5_000, "{walked} rows were walked over");
    }
}

//! The check of a database: its findings name what is wrong.

use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

use super::database::*;
use crate::support::*;

#[tokio::test]
async fn what_is_wrong_with_the_database_is_found() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE votes (id INT PRIMARY KEY, n INT NOT NULL); CREATE TABLE days (id INT PRIMARY KEY, n INT NOT NULL);
         CREATE TABLE bad (id DOUBLE PRIMARY KEY, n INT NOT NULL)",
    )
    .await;
    let tables = [
        Table::update("votes"),
        Table::upsert("days"),
        Table::update("bad"),
    ];
    let families = tables.map(|table| {
        Family::buffered("shop", "family")
            .table(by_id(table, Signed))
            .build()
            .unwrap()
    });
    let good = db.store.check(&families[..2]).await;
    let severities: Vec<_> = good.iter().map(|found| found.severity).collect();
    // a setting of testkit
    assert_eq!(severities, [Severity::Warning], "{good:?}");
    assert_found(&good, Severity::Warning, &["flush_log"]);
    assert_found(
        &db.store.check(&families).await,
        Severity::Error,
        &["table bad", "id", "double"],
    );

    // a user with some privileges on the database, and some on tables
    let user = db
        .user(&[
            "SELECT ON *",
            "INSERT ON counterfoil_families",
            "UPDATE ON votes",
            "INSERT, UPDATE ON counterfoil_values",
        ])
        .await;
    let odd =
        "SET SESSION autocommit = 0; SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";
    let store = MysqlStore::new(db.connect(&user, odd).await);
    let found = store.check(&families[..2]).await;
    // ends its transaction
    drop(store);
    assert_found(&found, Severity::Warning, &["pool", "single"]);
    assert_found(&found, Severity::Error, &["autocommit"]);
    assert_found(&found, Severity::Error, &["isolation"]);
    for (table, privilege, is_missing) in [
        ("counterfoil_families", "SELECT", false),
        ("counterfoil_families", "INSERT", false),
        ("counterfoil_families", "UPDATE", true),
        ("votes", "UPDATE", false),
        ("votes", "INSERT", false),
        ("days", "INSERT", true),
    ] {
        let (table, privilege) = (
            format!("table {table}"),
            format!("no {privilege} privilege"),
        );
        assert_eq!(
            is_found(&found, Severity::Error, &[&table, &privilege]),
            is_missing,
            "{privilege} on {table}: {found:#?}"
        );
    }

    db.run("DROP TABLE counterfoil_ledger").await;
    assert_found(
        &db.store.check(&[]).await,
        Severity::Error,
        &["missing", "counterfoil_ledger"],
    );
    // a server of its own: other tests refuse one that accepts no writes
    let server = MysqlServer::start().await;
    let (_, pool) = server.database("read_only").await;
    MysqlStore::new(pool.clone()).create_tables().await.unwrap();
    let set = "CREATE USER plain@localhost; GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO plain@localhost; \
         SET GLOBAL read_only = 1";
    run_sql(&pool, set).await;
    // root may write nevertheless
    let plain = (*pool.connect_options()).clone().username("plain");
    let store = MysqlStore::new(MySqlPool::connect_with(plain).await.unwrap());
    let found = store.check(&[]).await;
    assert_found(&found, Severity::Error, &["read_only", "no writes"]);
    let of_tables = found
        .iter()
        .filter(|one| one.subject.starts_with("mysql table"));
    assert_eq!(of_tables.count(), 0, "{found:?}");
}

#[tokio::test]
async fn an_unreachable_database_is_a_finding_and_an_error() {
    let options = MySqlConnectOptions::new().socket("/nowhere/mysql.sock");
    let store = MysqlStore::new(
        MySqlPoolOptions::new()
            .acquire_timeout(millis(200))
            .connect_lazy_with(options),
    );
    let found = store.check(&[]).await;
    assert!(
        matches!(&found[..], [one] if one.severity == Severity::Error && one.subject == "mysql"),
        "{found:?}"
    );
    let expect_retryable = |error: Error| assert!(error.is_retryable(), "{error}");
    let family = views().build().unwrap();
    let registered = store.register(&family).await;
    expect_retryable(refused(registered, ErrorKind::Store, ""));
    let family = Registered {
        family,
        number: 1,
        database: String::new(),
        columns: None,
    };
    let batches = [batch(&family.into(), 0, 1, [("a", 1)])];
    let applied = store.apply(&batches, None).await;
    expect_retryable(refused(applied, ErrorKind::Store, ""));
}

#[tokio::test]
async fn families_that_share_a_column_are_found() {
    let db = Db::new().await;
    db.run("CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    let table = || by_id(Table::update("item"), Signed);
    let one = db.table("one", table()).await;
    let found = db.store.check(std::slice::from_ref(&one.family)).await;
    assert!(!is_found(&found, Severity::Info, &["item.n too"]));
    db.family(Family::buffered("other-shop", "two").table(table()))
        .await;
    let found = db.store.check(std::slice::from_ref(&one.family)).await;
    assert_found(
        &found,
        Severity::Info,
        &["shop/one", "item.n too: other-shop/two"],
    );
}

#[tokio::test]
async fn sessions_in_which_batches_may_not_arrive_are_found() {
    let db = Db::new().await;
    let off = db.session("SET SESSION autocommit = 0").await;
    let found = off.store.check(&[]).await;
    assert_found(&found, Severity::Error, &["mysql autocommit"]);
    let limited = db.session("SET SESSION sql_select_limit = 1000").await;
    let found = limited.store.check(&[]).await;
    assert_found(&found, Severity::Error, &["mysql sql_select_limit", "1000"]);
    if db.mariadb {
        for (mode, begin) in [
            ("ORACLE", "SET SESSION sql_mode = 'ORACLE'"),
            (
                "EMPTY_STRING_IS_NULL",
                "SET SESSION sql_mode = 'EMPTY_STRING_IS_NULL'",
            ),
        ] {
            let found = db.session(begin).await.store.check(&[]).await;
            assert_found(&found, Severity::Warning, &["mysql sql_mode", mode]);
        }
    }
}

#[tokio::test]
async fn safe_updates_are_no_fault_of_a_table() {
    let db = Db::new().await;
    let safe = db.session("SET SESSION sql_safe_updates = 1").await;
    has_no_errors(&safe.store.check(&[]).await);
}

/// The probe of a table waits for a lock for a second only, and restores the session.
#[tokio::test]
async fn a_check_that_is_dropped_leaves_no_setting_behind() {
    let db = Db::new().await;
    let one = db.session("DO 0").await;
    let mut other = db.pool.acquire().await.unwrap();
    let lock = "LOCK TABLES counterfoil_families WRITE";
    sqlx::raw_sql(lock).execute(&mut *other).await.unwrap();
    let check = timeout(millis(300), one.store.check(&[])).await;
    assert!(check.is_err(), "{check:?}");
    sqlx::raw_sql("UNLOCK TABLES")
        .execute(&mut *other)
        .await
        .unwrap();
    let waits = "SELECT @@innodb_lock_wait_timeout = @@GLOBAL.innodb_lock_wait_timeout \
                 AND @@lock_wait_timeout = @@GLOBAL.lock_wait_timeout";
    assert_eq!(one.number(waits).await, 1);
}

#[tokio::test]
async fn a_value_that_no_counter_has_is_found() {
    let db = Db::new().await;
    let family = db.numbers("big", "BIGINT UNSIGNED").await;
    let is_found = async || {
        let findings = db.store.check(std::slice::from_ref(&family.family)).await;
        is_found(&findings, Severity::Error, &["big", "9223372036854775807"])
    };
    db.run("INSERT INTO big VALUES (1, 9223372036854775807), (2, 9223372036854775808)")
        .await;
    assert!(is_found().await);
    let read = db.store.read(&family, &["2"], &[], ReadFrom::Primary).await;
    refused(read, ErrorKind::Range, "9223372036854775808");
    db.run("UPDATE big SET n = 7 WHERE id = 2").await;
    assert!(!is_found().await);
}

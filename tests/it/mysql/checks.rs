//! The check of a database: its findings name what is wrong.

use sqlx::mysql::MySqlConnectOptions;

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
    let found = db.store_of(&user).check(&families[..2]).await;
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
    MysqlStore::new(&pool)
        .unwrap()
        .create_tables()
        .await
        .unwrap();
    let set = "CREATE USER plain@localhost; GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO plain@localhost; \
         SET GLOBAL read_only = 1";
    run_sql(&pool, set).await;
    // root may write nevertheless
    let plain = (*pool.connect_options()).clone().username("plain");
    let store = MysqlStore::new(plain).unwrap();
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
    let store = MysqlStore::new(options.database("none")).unwrap();
    let found = store.check(&[]).await;
    assert!(
        matches!(&found[..], [one] if one.severity == Severity::Error && one.subject == "mysql"),
        "{found:?}"
    );
    let expect_retryable = |error: Error| assert!(error.is_retryable(), "{error}");
    let family = views().build().unwrap();
    let registered = store.register(&family).await;
    expect_retryable(refused(registered, ErrorKind::Store, ""));
    let family = Registration {
        family,
        number: FamilyNumber(1),
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

/// The user of a store is replaced by another one, as a rotated password is.
#[tokio::test]
async fn rotated_credentials_are_used_by_new_connections() {
    let db = Db::new().await;
    let user = db.user(&["ALL ON *"]).await;
    let store = db.store_of(&user);
    let views = store.register(&views().build().unwrap()).await.unwrap();
    let read = async || store.clone().rows(&views, &["a"]).await;
    assert_eq!(read().await.unwrap(), [None]);
    db.run(&format!("ALTER USER '{user}'@'localhost' ACCOUNT LOCK"))
        .await;
    let options = |database: &str| {
        let options = (*db.pool.connect_options()).clone();
        options.database(database)
    };
    refused(
        store.set_connect_options(options("mysql")),
        InvalidInput,
        "one database",
    );
    // the open connection stays
    assert_eq!(read().await.unwrap(), [None]);
    while let Some(idle) = store.pool().try_acquire() {
        idle.close().await.unwrap();
    }
    refused(read().await, ErrorKind::Store, "lock");
    store.set_connect_options(options(&db.name)).unwrap();
    assert_eq!(read().await.unwrap(), [None]);
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

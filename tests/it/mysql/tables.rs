//! Families and tables: what counterfoil registers, and what it refuses by name.

use super::database::*;
use crate::support::*;

#[tokio::test]
async fn a_family_has_one_number_and_one_identity() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    db.store.create_tables().await.unwrap();
    let registered = db.views().await;
    let tasks = (0..8).map(|_| {
        let store = db.store.clone();
        let family = Family::buffered("new", "new").build().unwrap();
        tokio::spawn(async move { store.register(&family).await })
    });
    let mut numbers = vec![];
    for task in tasks.collect::<Vec<_>>() {
        numbers.push(task.await.unwrap().unwrap().number);
    }
    assert_eq!(numbers, vec![numbers[0]; 8]);
    assert_ne!(numbers[0], registered.number);
    assert_eq!(
        db.family(views().sync_hits(1).sync_time(secs(1)).max_pending(7))
            .await
            .number,
        registered.number
    );
    assert_ne!(
        db.family(Family::buffered("shop2", "views")).await.number,
        registered.number
    );

    let at_once = views().at_once();
    let table = by_id(Table::upsert("t"), Signed);
    for (setting, known, builder) in [
        ("partitions", "\"4\"", views().partitions(8)),
        ("wide", "\"false\"", views().wide(true)),
        ("durability", "\"2.5s\"", at_once),
        ("table", "\"own\"", views().table(table)),
    ] {
        let message = db.mismatch(builder).await;
        for part in ["shop/views", setting, known] {
            assert!(message.contains(part), "{message} names no {part}");
        }
    }
}

#[tokio::test]
async fn a_database_without_tables_is_refused_with_what_to_do() {
    let db = Db::empty().await;
    let message = db.mismatch(views()).await;
    for part in [
        "counterfoil_families",
        "counterfoil_ledger",
        "create_tables(true)",
        "MysqlStore::schema()",
    ] {
        assert!(message.contains(part), "{message} names no {part}");
    }
    db.store.create_tables().await.unwrap();
    db.views().await;
}

#[tokio::test]
async fn tables_that_exist_need_no_privilege_to_create() {
    let db = Db::new().await;
    let store = db.store_of(&db.user(&["SELECT, INSERT, UPDATE ON *"]).await);
    store.create_tables().await.unwrap();
    db.run("DROP TABLE counterfoil_rejects").await;
    let error = refused(store.create_tables().await, Mismatch, "counterfoil_rejects");
    assert!(format!("{error:#}").contains("CREATE"), "{error}");
}

#[tokio::test]
async fn a_missing_table_is_refused_with_the_sql_that_creates_it() {
    let db = Db::new().await;
    let keys = [
        ("id", Unsigned),
        ("way", Signed),
        ("day", Date),
        ("name", Text),
    ];
    let table = keyed(Table::upsert(format!("{}.order", db.name)), keys);
    let message = db.mismatch(views().table(table.clone())).await;
    let (_, sql) = message.split_once(": CREATE").expect(&message);
    db.run(&format!("CREATE{sql}")).await;
    let (orders, id) = (db.table("orders", table).await, "7/-1/2014-09-20/a/b");
    db.adds(&orders, 1, [(id, 5)], (1, 0)).await;
    db.has(&orders, &[id], [Some(5)]).await;
}

/// The key columns of a family, with tables that it refuses: columns and options, and parts of the
/// message.
const REFUSED: [(Keys, &[(&str, &str)]); 7] = [
    (
        &[("id", Signed)],
        &[
            ("", "does not exist"),
            ("(id INT PRIMARY KEY, n INT) ENGINE=MyISAM", "MyISAM|InnoDB"),
            ("AS SELECT 1 AS id, 1 AS n", "VIEW"),
            ("(other INT PRIMARY KEY, n INT)", "no column id"),
            ("(id INT PRIMARY KEY, m INT)", "no column n"),
            (
                "(id INT UNSIGNED PRIMARY KEY, n INT)",
                "id is int unsigned|signed integer",
            ),
            ("(id INT PRIMARY KEY, n DOUBLE)", "n|double|integer"),
            ("(id INT, n INT, KEY (id))", "unique|(id)"),
            (
                "(id INT, day DATE, n INT, PRIMARY KEY (id, day))",
                "unique|(id)",
            ),
            (
                "(id INT PRIMARY KEY, n INT, title VARCHAR(9) NOT NULL)",
                "title|default",
            ),
            (
                "(id INT PRIMARY KEY, n INT, slug INT NOT NULL DEFAULT 0, UNIQUE by_slug (slug))",
                "by_slug",
            ),
            ("(id INT PRIMARY KEY, n INT, UNIQUE KEY by_n (n))", "by_n"),
            (
                "(id INT PRIMARY KEY, m INT, n INT AS (m + 1) STORED)",
                "n|generated",
            ),
        ],
    ),
    (
        &[("id", Unsigned)],
        &[
            ("(id DOUBLE PRIMARY KEY, n INT)", "id|double|integer"),
            (
                "(id DATETIME PRIMARY KEY, n INT)",
                "id is datetime|an integer, or KeyType::DateTime",
            ),
        ],
    ),
    (
        &[("hour", DateTime)],
        &[
            (
                "(hour BIGINT PRIMARY KEY, n INT)",
                "hour is bigint|DATETIME or TIMESTAMP",
            ),
            (
                "(hour DATE PRIMARY KEY, n INT)",
                "hour is date|DATETIME or TIMESTAMP",
            ),
            (
                "(hour VARCHAR(20) PRIMARY KEY, n INT)",
                "hour is varchar|DATETIME or TIMESTAMP",
            ),
            (
                "(hour TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP PRIMARY KEY, n INT)",
                "hour is ON UPDATE CURRENT_TIMESTAMP",
            ),
        ],
    ),
    (
        &[("id", Signed), ("day", Date)],
        &[
            (
                "(id INT, day TIMESTAMP NOT NULL DEFAULT '2000-01-01', n INT, PRIMARY KEY (id, day))",
                "day is timestamp|DATE or DATETIME",
            ),
            (
                "(id INT PRIMARY KEY, day DATE NULL, n INT)",
                "unique|(id, day)",
            ),
        ],
    ),
    (
        &[("id", Text)],
        &[
            (
                "(id VARBINARY(99) NOT NULL, n INT, UNIQUE (id(10)))",
                "unique|in full",
            ),
            (
                "(id VARCHAR(99) COLLATE FOLDING PRIMARY KEY, n INT)",
                "id|FOLDING|VARBINARY",
            ),
            (
                "(id VARCHAR(99) COLLATE utf8mb4_bin PRIMARY KEY, n INT)",
                "id|utf8mb4_bin",
            ),
            (
                "(id CHAR(99) COLLATE EXACT PRIMARY KEY, n INT)",
                "id|char|VARCHAR",
            ),
            (
                "(id CHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, n INT)",
                "char|KeyType::Char",
            ),
            ("(id BINARY(9) PRIMARY KEY, n INT)", "id|binary"),
        ],
    ),
    (
        &[("id", Char)],
        &[
            (
                "(id CHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)",
                "utf8mb4_general_ci|utf8mb4_bin",
            ),
            (
                "(id CHAR(9) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY, n INT)",
                "ascii_bin|utf8mb4_bin",
            ),
            (
                "(id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, n INT)",
                "varchar|CHAR",
            ),
        ],
    ),
    (
        &[("id", Uuid)],
        &[
            ("(id BINARY(20) PRIMARY KEY, n INT)", "binary|BINARY(16)"),
            (
                "(id VARBINARY(36) PRIMARY KEY, n INT)",
                "varbinary|BINARY(16)",
            ),
            ("(id CHAR(35) PRIMARY KEY, n INT)", "char|at least 36"),
        ],
    ),
];

#[tokio::test]
async fn a_table_that_could_lose_counts_is_refused_by_name() {
    let db = Db::new().await;
    let folding = if db.mariadb {
        "utf8mb4_general_nopad_ci"
    } else {
        "utf8mb4_0900_as_cs"
    };
    let collated = |text: &str| {
        text.replace("EXACT", db.exact())
            .replace("FOLDING", folding)
    };
    let all = REFUSED.iter();
    for (index, (keys, (columns, parts))) in all
        .flat_map(|(keys, tables)| tables.iter().map(move |table| (*keys, table)))
        .enumerate()
    {
        let name = format!("refused_{index}");
        let kind = if columns.starts_with("AS") {
            "VIEW"
        } else {
            "TABLE"
        };
        if !columns.is_empty() {
            let columns = collated(columns).replace(") COLLATE", ") CHARACTER SET utf8mb4 COLLATE");
            db.run(&format!("CREATE {kind} {name} {columns}")).await;
        }
        let table = keyed(Table::upsert(&name), keys.iter().copied());
        let message = db.mismatch(views().table(table)).await;
        for part in collated(parts).split('|').chain([&*name]) {
            assert!(
                message.contains(part),
                "{columns}: {message} names no {part}"
            );
        }
    }
    let families = "SELECT COUNT(*) FROM counterfoil_families";
    assert_eq!(db.number(families).await, 0);
}

#[tokio::test]
async fn tables_that_are_safe_are_accepted() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE t1 (pk INT AUTO_INCREMENT PRIMARY KEY, Day DATE, id INT, n INT, title VARCHAR(9), \
             made TIMESTAMP DEFAULT CURRENT_TIMESTAMP, twice INT AS (n * 2), slug VARCHAR(9) NULL, \
             UNIQUE (id, Day), UNIQUE (Day, id, title), UNIQUE (slug));
         CREATE TABLE t2 (id INT PRIMARY KEY, n INT, title VARCHAR(9) NOT NULL, slug INT NOT NULL, UNIQUE (slug))",
    )
    .await;
    let t1 = keyed(Table::upsert("t1"), [("day", Date), ("ID", Signed)]);
    let t1 = db.table("t1", t1).await;
    let ids = ["2014-09-20/1", "2014-09-21/1", "2014-09-22/1"];
    db.add(&t1, 0, 1, [(ids[0], 1), (ids[1], 2)]).await;
    db.add(&t1, 0, 2, [(ids[0], 1), (ids[2], 2)]).await;
    db.has(&t1, &ids, [Some(2); 3]).await;
    let t2 = || by_id(Table::update("t2"), Signed);
    db.table("t2", t2()).await;
    // the store caches a table's columns: another namespace with the same table does not read them
    // again
    let before = db.store.statements();
    db.family(Family::buffered("other", "t2").table(t2())).await;
    assert_eq!(db.store.statements() - before, 10);
}

/// A time with ON UPDATE CURRENT_TIMESTAMP shows the application's changes, not counterfoil's.
#[tokio::test]
async fn a_column_is_left_as_it_is() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL, \
             updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP);
         INSERT INTO item VALUES (1, 5, '2014-09-20 10:00:00')",
    )
    .await;
    let unchanged = "SELECT COUNT(*) FROM item WHERE updated_at = '2014-09-20 10:00:00'";
    for (seq, table) in [Table::update("item"), Table::upsert("item")]
        .into_iter()
        .enumerate()
    {
        let table = by_id(table, Signed).unchanged("updated_at");
        let family = db.table(&format!("family-{seq}"), table).await;
        db.add(&family, 0, 1, [("1", 1)]).await;
        assert_eq!(db.number(unchanged).await, 1);
    }
    assert_eq!(db.number("SELECT n FROM item").await, 7);
    let missing = by_id(Table::update("item"), Signed).unchanged("changed_at");
    let message = db.mismatch(views().table(missing)).await;
    assert!(message.contains("no column changed_at"), "{message}");
}

/// Ids that the new collation does not tell apart would be merged.
#[tokio::test]
async fn a_table_that_was_altered_is_refused() {
    let db = Db::new().await;
    let id = format!("id VARCHAR(99) COLLATE {}", db.exact());
    db.run(&format!(
        "CREATE TABLE t ({id} PRIMARY KEY, n INT NOT NULL)"
    ))
    .await;
    let family = db.table("t", by_id(Table::upsert("t"), Text)).await;
    let store = db.store.clone().knowing(millis(100));
    let apply = async |seq, id: &str| {
        store
            .apply(&[batch(&family, 0, seq, [(id, 5)])], None)
            .await
    };
    apply(1, "Ruby").await.unwrap();
    db.run("ALTER TABLE t MODIFY id VARCHAR(99) COLLATE utf8mb4_general_ci")
        .await;
    pause(150).await;
    refused(apply(2, "ruby").await, Mismatch, "utf8mb4_general_ci");
    db.run(&format!("ALTER TABLE t MODIFY {id}")).await;
    pause(150).await;
    apply(2, "ruby").await.unwrap();
    assert_eq!(db.number("SELECT COUNT(*) FROM t").await, 2);
}

#[tokio::test]
async fn a_check_finds_a_table_that_was_altered() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE t (id VARBINARY(99) PRIMARY KEY, n INT NOT NULL)")
        .await;
    let views = pair
        .open(family("views").table(by_id(Table::upsert("t"), Text)))
        .await;
    views.count("Ruby", 5).await;
    pair.drain().await;
    pair.sql("ALTER TABLE t MODIFY id VARCHAR(99) COLLATE utf8mb4_general_ci")
        .await;
    assert_found(&pair.check().await, Severity::Error, &["mysql table t"]);
    views.count("ruby", 5).await;
    refused(
        pair.counterfoil.drain().await,
        Mismatch,
        "utf8mb4_general_ci",
    );
    assert_eq!(pair.number("SELECT SUM(n) FROM t").await, 5);
}

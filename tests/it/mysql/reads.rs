//! Reads: exact values with the ledger, rows by every type of key, and listings.

use super::database::*;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_never_torn() {
    let db = Db::new().await;
    for family in [db.views().await, db.numbers("t", "BIGINT").await] {
        let writer = tokio::spawn({
            let (store, family) = (db.store.clone(), family.clone());
            async move {
                for seq in 1..=200 {
                    store
                        .apply(
                            &[batch(&family, 2, seq, [("1", 1), ("2", 1), ("3", 1)])],
                            None,
                        )
                        .await
                        .unwrap();
                }
            }
        });
        let mut last = 0;
        while last < 200 {
            let (ids, ledger) = (["3", "1", "2"], [(2, I1), (3, I1)]);
            let snapshot = db
                .store
                .read(&family, &ids, &ledger, ReadFrom::Nearest)
                .await
                .unwrap();
            let seq = snapshot.ledger[0].seq;
            assert_eq!(
                (snapshot.values, &snapshot.ledger[1]),
                (vec![(seq > 0).then_some(seq as i64); 3], &Mark::default())
            );
            assert!(seq >= last);
            last = seq;
        }
        writer.await.unwrap();
    }
}

/// Asserts that the store applies the batches although this statement of another transaction
/// holds locks.
async fn expect_no_wait(
    db: &Db,
    lock: &str,
    batches: &[Arc<counterfoil::store::Batch>],
    rows: u64,
) {
    let mut other = db.pool.begin().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(lock.to_owned()))
        .execute(&mut *other)
        .await
        .unwrap();
    assert_eq!(
        timeout(secs(20), complete(&db.store, batches, None))
            .await
            .unwrap()
            .unwrap(),
        applied(batches.len() as u64, 0, rows, 0)
    );
    other.rollback().await.unwrap();
}

/// The ledger is small, so a server would rather scan it, and wait for the locks of other flushes.
#[tokio::test]
async fn partitions_do_not_wait_for_each_other() {
    let db = Db::new().await;
    let views = db.views().await;
    db.apply(&[0, 1, 2, 3].map(|partition| batch(&views, partition, 1, [("a", 1)])))
        .await;
    let lock = [0, 3].map(|partition| {
        format!(
            "SELECT seq FROM counterfoil_ledger WHERE family = {} AND partition_no = {partition} \
             AND incarnation = {} FOR UPDATE",
            views.number, I1.0
        )
    });
    for partition in [1, 2] {
        expect_no_wait(
            &db,
            &lock.join(";"),
            &[batch(&views, partition, 2, [("b", 1)])],
            1,
        )
        .await;
    }
}

/// The server would rather scan a small table, and wait for the locks of the application's own
/// transactions.
#[tokio::test]
async fn rows_of_a_small_table_do_not_wait_for_each_other() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE few (pk INT PRIMARY KEY, id INT NOT NULL, n INT NOT NULL, UNIQUE KEY by_id (id));
         INSERT INTO few VALUES (11, 1, 0), (12, 2, 0), (13, 3, 0), (14, 4, 0); ANALYZE TABLE few",
    )
    .await;
    let few = db.table("few", by_id(Table::update("few"), Signed)).await;
    let lock = [11, 14].map(|pk| format!("SELECT n FROM few WHERE pk = {pk} FOR UPDATE"));
    expect_no_wait(
        &db,
        &lock.join(";"),
        &[batch(&few, 0, 1, [("2", 5), ("3", 7)])],
        2,
    )
    .await;
}

/// A scan would wait for a row that another transaction has locked, and that is not in the batch.
#[tokio::test]
async fn rows_of_a_large_table_do_not_wait_for_each_other() {
    let db = Db::new().await;
    let views = db.views().await;
    db.add(&views, 0, 1, many(5_000, 1)).await;
    db.run(
        "CREATE TABLE t (pk INT AUTO_INCREMENT PRIMARY KEY, id VARBINARY(99) NOT NULL UNIQUE, n INT NOT NULL);
         INSERT INTO t (id, n) SELECT id, 0 FROM counterfoil_values;
         ANALYZE TABLE t; ANALYZE TABLE counterfoil_values",
    )
    .await;
    let update = db.table("t", by_id(Table::update("t"), Text)).await;
    let lock = "UPDATE t SET n = 7 WHERE id = '4999'; \
                UPDATE counterfoil_values SET value = 7 WHERE id = '4999' AND family = 1";
    expect_no_wait(
        &db,
        lock,
        &[&update, &views].map(|family| batch(family, 0, 2, many(1000, 1))),
        2000,
    )
    .await;
}

/// UUIDs that are not in the order of their bytes.
const UUIDS: [&str; 4] = [
    "ffffffff-0000-4000-8000-000000000001",
    "00000000-0000-0000-0000-000000000000",
    "5d41402a-bc4b-4a76-b971-9d911017c592",
    "5d41402a-bc4b-4a76-b971-9d911017c593",
];

impl Db {
    /// Returns the columns that store UUIDs.
    fn uuid_columns(&self) -> Vec<&'static str> {
        let mut columns = vec![
            "BINARY(16)",
            "CHAR(36) CHARACTER SET ascii",
            "CHAR(40)",
            "VARCHAR(36) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
        ];
        columns.extend(self.mariadb.then_some("UUID"));
        columns
    }

    /// Returns the number of rows that this connection has read, including those of JSON_TABLE
    /// and of this query.
    async fn rows_read(&self) -> usize {
        sqlx::query("SHOW SESSION STATUS LIKE 'Handler_read%'")
            .fetch_all(&self.pool)
            .await
            .unwrap()
            .iter()
            .map(|row| row.get::<String, _>(1))
            .map(|count| count.parse::<usize>().unwrap())
            .sum()
    }

    /// Lists the ids page by page for each prefix, and compares with the known ids.
    pub async fn expect_listed(&self, family: &Registration, known: &[&str], prefixes: &[&str]) {
        let mut known = known.to_vec();
        known.sort();
        for prefix in prefixes {
            let expected: Vec<_> = known.iter().filter(|id| id.starts_with(prefix)).collect();
            for limit in [1, 2, 3, 100] {
                let listed = self.pages(family, prefix, limit).await;
                assert!(
                    listed.iter().eq(expected.iter().copied()),
                    "{}, {prefix:?} by {limit}: {listed:?}",
                    family.family
                );
            }
        }
    }
}

#[tokio::test]
async fn a_uuid_finds_its_row_in_every_column() {
    for (index, column) in Db::new().await.uuid_columns().into_iter().enumerate() {
        println!("{column}");
        let db = Db::new().await;
        db.run(&format!(
            "CREATE TABLE t (shop INT NOT NULL, id {column} NOT NULL, n INT NOT NULL, PRIMARY KEY (shop, id))"
        ))
        .await;
        let ids = UUIDS.map(|uuid| format!("7/{uuid}"));
        let ids = ids.each_ref().map(String::as_str);
        let in_schema = Table::update(format!("{}.t", db.name));
        for (round, table) in [(1, Table::upsert("t")), (2, in_schema)] {
            let name = format!("round{round}");
            if round == 2 {
                db.run("UPDATE t SET id = UPPER(id)").await;
            }
            let table = keyed(table, [("shop", Unsigned), ("id", Uuid)]);
            let family = db.table(&name, table).await;
            db.adds(&family, 1, ids.into_iter().zip(1..), (4, 0)).await;
            let values = [1, 2, 3, 4].map(|n| Some(n * round));
            for some in [0..4, 2..3, 1..3] {
                let (ids, values) = (&ids[some.clone()], &values[some]);
                db.has(&family, ids, values).await;
                assert_eq!(db.rows(&family, ids).await, values, "{column}");
            }
            db.expect_listed(
                &family,
                &ids,
                &["7/", "7/5d41402a-bc4b-4a76-b971-9d911017c59", ids[2]],
            )
            .await;
            has_no_errors(&db.store.check(std::slice::from_ref(&family.family)).await);
        }
        if index == 0 {
            let stored = "SELECT n FROM t WHERE id = X'5D41402ABC4B4A76B9719D911017C592'";
            // in the order of the text
            assert_eq!(db.number(stored).await, 6);
        }
    }
}

/// The server looks up each row by its complete key, in counterfoil's own table and by keys of
/// every type.
#[tokio::test]
async fn rows_are_looked_up_and_not_scanned() {
    let columns = Db::new()
        .await
        .uuid_columns()
        .into_iter()
        .map(|column| (column, Uuid))
        .chain([
            ("", Text),
            ("VARBINARY(99)", Text),
            ("BIGINT UNSIGNED", Unsigned),
            ("DATETIME", DateTime),
            ("TIMESTAMP", DateTime),
            ("DATETIME", Date),
            ("CHAR(36) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", Char),
        ]);
    for (column, kind) in columns {
        let db = Db::new().await;
        let family = if column.is_empty() {
            db.views().await
        } else {
            let columns = format!("id {column} NOT NULL UNIQUE, n INT NOT NULL");
            db.run(&format!(
                "CREATE TABLE t (pk INT AUTO_INCREMENT PRIMARY KEY, {columns})"
            ))
            .await;
            db.table("t", by_id(Table::upsert("t"), kind)).await
        };
        let id = |n: u64| match kind {
            Unsigned | DateTime => format!("{}", 1 + n),
            Date => {
                let day = UNIX_EPOCH + secs(86_400 * n);
                Day::of(day).unwrap().to_string()
            }
            _ => format!("{n:08x}-bc4b-4a76-b971-9d911017c592"),
        };
        db.add(&family, 0, 1, (0..5_000).map(|n| (id(n), 1))).await;
        let table = if column.is_empty() {
            "counterfoil_values"
        } else {
            "t"
        };
        db.run(&format!("ANALYZE TABLE {table}")).await;

        let alone = db.alone();
        let ids: Vec<_> = (0..100).map(|n| id(n * 50)).collect();
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        // 17 ledger rows, of which one exists
        let ledger: Vec<_> = (0..17).map(|partition| (partition, I1)).collect();
        for ids in [&ids[..1], &ids] {
            let expect_few = async |before, what| {
                let read = alone.rows_read().await - before;
                let many = ids.len();
                assert!(
                    read < 4 * many + 200,
                    "{column}, {what}: {read} rows for {many} ids"
                );
            };
            let before = alone.rows_read().await;
            let read = alone.store.read(&family, ids, &ledger, ReadFrom::Primary);
            assert_eq!(read.await.unwrap().values, vec![Some(1); ids.len()]);
            expect_few(before, "read").await;
            let before = alone.rows_read().await;
            assert_eq!(alone.rows(&family, ids).await, vec![Some(1); ids.len()]);
            expect_few(before, "rows").await;
        }
    }
}

#[tokio::test]
async fn a_char_column_keeps_apart_what_it_accepts() {
    for collation in ["utf8mb4_bin", Db::new().await.exact()] {
        println!("{collation}");
        let db = Db::new().await;
        db.run(&format!(
            "CREATE TABLE t (shop INT NOT NULL, id CHAR(9) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL, \
             n INT NOT NULL, PRIMARY KEY (shop, id))"
        ))
        .await;
        let table = keyed(Table::upsert("t"), [("shop", Unsigned), ("id", Char)]);
        let family = db.table("t", table).await;
        let ids = ["7/a", "7/A", "7/á", "7/ a", "7/a\t", "7/a b", "7/a/b", "7/"];
        // a client in another language can count the last one
        db.adds(
            &family,
            1,
            ids.into_iter().zip(1..).chain([("7/a ", 100)]),
            (8, 1),
        )
        .await;
        db.has(&family, &ids, [1, 2, 3, 4, 5, 6, 7, 8].map(Some))
            .await;
        db.expect_rejects(&[("7/a ", 100, "does not end in a space")])
            .await;
        refused(family.family.check_id("7/a "), InvalidInput, "column id");
        db.expect_listed(&family, &ids, &["7/"]).await;
    }
}

#[tokio::test]
async fn rows_are_read_alone_and_together() {
    let db = Db::new().await;
    let own = db.views().await;
    db.run("CREATE TABLE votes (id BIGINT UNSIGNED PRIMARY KEY, n INT NULL)")
        .await;
    let votes = db
        .table("votes", by_id(Table::update("votes"), Unsigned))
        .await;
    assert_eq!(db.rows(&own, &[]).await, []);
    assert_eq!(db.rows(&own, &["a", "b"]).await, [None; 2]);
    db.add(&own, 0, 1, [("a", i64::MIN), ("A", i64::MAX), ("é/ ", 7)])
        .await;
    db.run("INSERT INTO votes VALUES (1, 5), (2, NULL), (3, -1)")
        .await;
    for (family, ids, expected) in [
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
    ] {
        assert_eq!(db.rows(family, &ids).await, expected);
        for (id, expected) in ids.iter().zip(expected) {
            assert_eq!(db.rows(family, &[id]).await, [expected], "{id}");
        }
    }
}

#[tokio::test]
async fn counters_are_listed_page_by_page() {
    let db = Db::new().await;
    let views = db.views().await;
    let other = db.family(Family::buffered("shop", "other")).await;
    let ids = [
        "a",
        "a/",
        "a/1",
        "a/10",
        "a/2",
        "a\0",
        "b",
        "é",
        "éa",
        "\u{10ffff}",
        "\u{10ffff}\u{10ffff}",
    ];
    db.add(&views, 0, 1, ids.into_iter().zip(1..)).await;
    db.add(&other, 0, 1, [("a/3", 1)]).await;
    for (prefix, after, limit, expected) in [
        ("a/", Some("a/1"), 10, &[("a/10", 4), ("a/2", 5)][..]),
        ("", None, 0, &[]),
        ("a", Some("b"), 9, &[]),
        ("b", Some("a"), 9, &[("b", 7)]),
    ] {
        let listed = db.list(&views, prefix, after, limit).await;
        let listed: Vec<_> = listed.iter().map(|(id, value)| (&**id, *value)).collect();
        assert_eq!(listed, expected, "{prefix:?} after {after:?}");
    }
    db.expect_listed(
        &views,
        &ids,
        &["", "a", "a/", "a/1", "é", "\u{10ffff}", "x"],
    )
    .await;
}

/// Each row is a table's keys, some ids of its rows, and prefixes to list.
const LISTED: [(&str, Keys, &[&str], &[&str]); 3] = [
    (
        "days",
        &[("store", Unsigned), ("day", Date)],
        &[
            "7/2014-09-20",
            "7/2014-09-21",
            "7/2014-10-01",
            "70/2014-09-20",
            "8/2014-09-20",
            "12/2014-09-20",
        ],
        &[
            "",
            "7",
            "7/",
            "7/2014-09",
            "7/2014-09-20",
            "7/x",
            "07/",
            "x/",
            "1",
        ],
    ),
    (
        "tags",
        &[("store", Signed), ("tag", Text)],
        &["1/a", "1/a/b", "1/é", "1/", "-1/a", "10/a", "2/a"],
        &["", "1", "1/", "1/a", "1/a/", "-", "-1/", "+1/", "3/"],
    ),
    (
        "texts",
        &[("tag", Text)],
        &["a", "A", "é", "/", "a/b", "%"],
        &["", "a", "a/", "é"],
    ),
];

#[tokio::test]
async fn rows_of_the_applications_are_listed_as_ids() {
    let db = Db::new().await;
    db.run(&format!(
        "CREATE TABLE days (store INT(9) UNSIGNED ZEROFILL, day DATE, n INT, PRIMARY KEY (store, day));
         CREATE TABLE tags (store INT, tag VARBINARY(99), n INT NOT NULL DEFAULT 0, PRIMARY KEY (store, tag));
         CREATE TABLE texts (tag VARCHAR(99) CHARACTER SET utf8mb4 COLLATE {} PRIMARY KEY, n INT)",
        db.exact()
    ))
    .await;
    let mut families = vec![];
    for (name, keys, ids, prefixes) in LISTED {
        let table = keyed(Table::upsert(name), keys.iter().copied());
        let family = db.table(name, table).await;
        assert_eq!(
            db.add(&family, 0, 1, ids.iter().map(|id| (*id, 1)))
                .await
                .rejected,
            0,
            "{name}"
        );
        db.expect_listed(&family, ids, prefixes).await;
        families.push(family);
    }
    // the list skips rows that match no id, and a NULL counts as 0
    db.run("SET SESSION sql_mode = ''; INSERT INTO days VALUES (7, '0000-00-00', 1), (7, '2014-09-01', NULL)")
        .await;
    let expected = [("7/2014-09-01", 0), ("7/2014-09-20", 1)];
    assert_eq!(
        db.list(&families[0], "7/", None, 2).await,
        expected.map(|(id, value)| (id.to_owned(), value))
    );
}

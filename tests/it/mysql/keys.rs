//! Key columns that change some texts: UUIDs in each type of column that stores them, and CHAR.

use std::sync::Arc;

use counterfoil::admin::Severity;
use counterfoil::store::{ReadFrom, Registered};
use counterfoil::{ErrorKind, Family, KeyType, MysqlStore, Store, Table};
use sqlx::mysql::MySqlPoolOptions;

use super::buffered::{Db, I1, applied, batch, pages, rows_read};

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

    async fn keyed(&self, verb: Table, kind: KeyType) -> Arc<Registered> {
        self.table(
            "keyed",
            verb.key("shop", KeyType::Unsigned)
                .key("id", kind)
                .value("n"),
        )
        .await
    }
}

#[tokio::test]
async fn a_uuid_finds_its_row_in_every_column() {
    for (index, column) in Db::new().await.uuid_columns().into_iter().enumerate() {
        let db = Db::new().await;
        db.run(&format!(
            "CREATE TABLE t (shop INT NOT NULL, id {column} NOT NULL, n INT NOT NULL, PRIMARY KEY (shop, id))"
        ))
        .await;
        let ids = UUIDS.map(|uuid| format!("7/{uuid}"));
        let ids = ids.each_ref().map(String::as_str);
        for (round, verb) in [
            (1, Table::upsert("t")),
            (2, Table::update(format!("{}.t", db.name))),
        ] {
            let name = ["upsert", "update"][round - 1];
            let family = db
                .table(
                    name,
                    verb.key("shop", KeyType::Unsigned)
                        .key("id", KeyType::Uuid)
                        .value("n"),
                )
                .await;
            let deltas: Vec<_> = ids
                .iter()
                .zip(1..)
                .map(|(&id, delta)| (id, delta))
                .collect();
            assert_eq!(
                db.apply(&[batch(&family, 0, 1, &deltas)]).await,
                applied(1, 0, 4, 0),
                "{column}"
            );
            let round = round as i64;
            assert_eq!(
                db.values(&family, &ids).await,
                [1, 2, 3, 4].map(|n| Some(n * round)),
                "{column}"
            );
            assert_eq!(
                db.values(&family, &ids[2..3]).await,
                [Some(3 * round)],
                "{column}"
            );
            let rows = db.store.rows(&family, &ids[1..3]).await.expect("rows");
            assert_eq!(rows, [Some(2 * round), Some(3 * round)], "{column}");
            let mut sorted = ids;
            sorted.sort();
            assert_eq!(pages(&db, &family, "7/", 3).await, sorted, "{column}");
            assert_eq!(
                pages(&db, &family, "7/5d41402a-bc4b-4a76-b971-9d911017c59", 1).await,
                sorted[1..3],
                "{column}"
            );
            assert_eq!(pages(&db, &family, ids[2], 9).await, [ids[2]], "{column}");
            let findings = db.store.check(std::slice::from_ref(&family.family)).await;
            assert!(
                findings
                    .iter()
                    .all(|finding| finding.severity < Severity::Error),
                "{column}: {findings:?}"
            );
        }
        if index == 0 {
            let stored = "SELECT n FROM t WHERE id = X'5D41402ABC4B4A76B9719D911017C592'";
            assert_eq!(db.number(stored).await, 6, "in the order of the text");
        }
    }
}

#[tokio::test]
async fn rows_with_such_keys_are_looked_up_and_not_scanned() {
    let columns = Db::new()
        .await
        .uuid_columns()
        .into_iter()
        .map(|column| (column, KeyType::Uuid));
    for (column, kind) in columns.chain([(
        "CHAR(36) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        KeyType::Char,
    )]) {
        let db = Db::new().await;
        db.run(&format!(
            "CREATE TABLE t (id {column} PRIMARY KEY, n INT NOT NULL)"
        ))
        .await;
        let family = db
            .table("t", Table::upsert("t").key("id", kind).value("n"))
            .await;
        let ids: Vec<_> = (0..5_000)
            .map(|n| format!("{n:08x}-bc4b-4a76-b971-9d911017c592"))
            .collect();
        let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
        db.apply(&[batch(&family, 0, 1, &deltas)]).await;
        db.run("ANALYZE TABLE t").await;

        let options = (*db.pool.connect_options()).clone();
        let pool = MySqlPoolOptions::new()
            .max_connections(1)
            .connect_with(options)
            .await
            .expect("connected");
        let store = MysqlStore::new(pool.clone());
        let some: Vec<_> = ids[..100].iter().map(String::as_str).collect();
        for asked in [1, 100] {
            let before = rows_read(&pool).await;
            store
                .read(&family, &some[..asked], &[(0, I1)], ReadFrom::Primary)
                .await
                .expect("read");
            let read = rows_read(&pool).await - before;
            assert!(
                read < 4 * asked + 200,
                "{column}: {read} rows read for {asked} ids"
            );
        }
    }
}

#[tokio::test]
async fn a_char_column_keeps_apart_what_it_takes() {
    let db = Db::new().await;
    for collation in ["utf8mb4_bin", db.exact()] {
        let db = Db::new().await;
        db.run(&format!(
            "CREATE TABLE t (shop INT NOT NULL, id CHAR(9) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL, \
             n INT NOT NULL, PRIMARY KEY (shop, id))"
        ))
        .await;
        let family = db.keyed(Table::upsert("t"), KeyType::Char).await;
        let ids = ["7/a", "7/A", "7/á", "7/ a", "7/a\t", "7/a b", "7/a/b", "7/"];
        let deltas: Vec<_> = ids
            .iter()
            .zip(1..)
            .map(|(&id, delta)| (id, delta))
            .collect();
        // a client in another language can count such an id
        let deltas = [&deltas[..], &[("7/a ", 100)]].concat();
        assert_eq!(
            db.apply(&[batch(&family, 0, 1, &deltas)]).await,
            applied(1, 0, 8, 1),
            "{collation}"
        );
        assert_eq!(
            db.values(&family, &ids).await,
            [1, 2, 3, 4, 5, 6, 7, 8].map(Some),
            "{collation}"
        );
        assert!(
            db.rejects().await[0]
                .reason
                .contains("does not end in a space")
        );
        let error = family.family.check_id("7/a ").expect_err("no such id");
        assert!(
            error.kind() == ErrorKind::InvalidInput && format!("{error:#}").contains("column id"),
            "{error}"
        );

        let mut sorted = ids;
        sorted.sort();
        assert_eq!(pages(&db, &family, "7/", 3).await, sorted, "{collation}");
        let filled = MySqlPoolOptions::new()
            .max_connections(1)
            .after_connect(|connection, _| {
                let mode = sqlx::raw_sql("SET SESSION sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'")
                    .execute(connection);
                Box::pin(async move { mode.await.map(drop) })
            });
        let filled = filled
            .connect_with((*db.pool.connect_options()).clone())
            .await
            .expect("connected");
        let listed = MysqlStore::new(filled)
            .list(&family, "7/a", None, 1)
            .await
            .expect("listed");
        assert_eq!(listed, [("7/a".to_owned(), 1)], "{collation}");
    }
}

#[tokio::test]
async fn a_column_that_takes_two_ids_for_one_is_refused() {
    let db = Db::new().await;
    for (index, (column, kind, words)) in [
        (
            "CHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            KeyType::Char,
            ["utf8mb4_general_ci", "utf8mb4_bin"],
        ),
        (
            "CHAR(9) CHARACTER SET ascii COLLATE ascii_bin",
            KeyType::Char,
            ["ascii_bin", "utf8mb4_bin"],
        ),
        (
            "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            KeyType::Char,
            ["varchar", "CHAR"],
        ),
        (
            "CHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            KeyType::Text,
            ["char", "KeyType::Char"],
        ),
        ("BINARY(20)", KeyType::Uuid, ["binary", "BINARY(16)"]),
        ("VARBINARY(36)", KeyType::Uuid, ["varbinary", "BINARY(16)"]),
        ("CHAR(35)", KeyType::Uuid, ["char", "at least 36"]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("t{index}");
        db.run(&format!(
            "CREATE TABLE {name} (id {column} PRIMARY KEY, n INT NOT NULL)"
        ))
        .await;
        let message = db
            .mismatch(
                Family::buffered("shop", "bad")
                    .table(Table::upsert(&name).key("id", kind).value("n")),
            )
            .await;
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

//! Ids and values of every kind: each reaches its row unchanged, or is rejected with a reason.

use super::database::*;
use crate::support::*;

const ODD: [&str; 14] = [
    "a",
    "A",
    "a ",
    " a",
    "ä",
    "a\u{308}",
    "a\0",
    "\0",
    "'",
    "\"",
    "\\",
    "😀",
    "\u{10ffff}",
    "%_`; -- \n",
];

#[tokio::test]
async fn every_id_arrives_byte_by_byte() {
    let db = Db::new().await;
    db.run(&format!(
        "CREATE TABLE bytes (k VARBINARY(255) PRIMARY KEY, n BIGINT NOT NULL);
         CREATE TABLE chars (k VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {} PRIMARY KEY, n BIGINT NOT NULL);
         CREATE TABLE two (a VARBINARY(255), b VARBINARY(255), n BIGINT NOT NULL, PRIMARY KEY (a, b))",
        db.exact()
    ))
    .await;
    let by_k = |table| keyed(table, [("k", Text)]);
    let two = [("a", Text), ("b", Text)];
    let two = keyed(Table::upsert("two"), two).separator('é');
    let long = "é".repeat(127);
    let ids = [&ODD[..], &[&long]].concat();
    for (name, table, times) in [
        ("own", None, 1),
        ("bytes", Some(by_k(Table::upsert("bytes"))), 1),
        ("chars", Some(by_k(Table::upsert("chars"))), 1),
        ("bytes_update", Some(by_k(Table::update("bytes"))), 2),
        ("chars_update", Some(by_k(Table::update("chars"))), 2),
        ("two", Some(two), 1),
    ] {
        let family = match table {
            Some(table) => db.table(name, table).await,
            None => db.views().await,
        };
        let mut ids: Vec<_> = ids.iter().map(|id| id.to_string()).collect();
        if name == "two" {
            ids.pop();
            ids.iter_mut().for_each(|id| *id = format!("{id}é{id}"));
        }
        let all = ids.len() as u64;
        db.adds(&family, 1, ids.iter().zip(1..), (all, 0)).await;
        let of_ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let expected: Vec<_> = (1..=all as i64).map(|value| Some(times * value)).collect();
        db.has(&family, &of_ids, expected).await;
        ids.sort();
        assert_eq!(db.pages(&family, "", 100).await, ids, "{name}");
    }
    db.expect_rejects(&[]).await;
}

#[tokio::test]
async fn keys_of_every_type_find_their_row() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE visitors (store_id BIGINT UNSIGNED, delta_col INT, day DATE, n INT NOT NULL DEFAULT 0, \
         PRIMARY KEY (day, store_id, delta_col))",
    )
    .await;
    let keys = [("store_id", Unsigned), ("delta_col", Signed), ("day", Date)];
    let ids = [
        "0/-1/2014-09-20",
        "18446744073709551615/2147483647/9999-12-31",
        "7/-2147483648/1000-01-01",
    ];
    for (times, table) in [
        (1, Table::upsert("visitors")),
        (2, Table::update(format!("{}.visitors", db.name))),
    ] {
        let family = db.table(&format!("round{times}"), keyed(table, keys)).await;
        db.adds(&family, 1, ids.into_iter().zip(1..), (3, 0)).await;
        let asked = [ids[2], "07/1/2014-09-20", ids[0], ids[1], ids[0], "no", ""];
        let expected = [Some(3), None, Some(1), Some(2), Some(1), None, None];
        db.has(
            &family,
            &asked,
            expected.map(|value| value.map(|value| times * value)),
        )
        .await;
    }
}

/// The database's default is the character set of new columns, and that of text in a statement's
/// rows unless these have their own.
#[tokio::test]
async fn the_character_set_of_the_database_changes_nothing() {
    for charset in ["utf16", "utf32", "latin1"] {
        let db = Db::empty().await;
        let alter = format!("ALTER DATABASE {} CHARACTER SET {charset}", db.name);
        db.run(&alter).await;
        // a session takes it over when it begins
        let db = db.alone();
        db.store.create_tables().await.unwrap();
        let numbers = db.numbers("numbers", "INT").await;
        // two parts
        db.adds(&numbers, 1, many(501, 1), (501, 0)).await;
        let sum = db.number("SELECT SUM(n) FROM numbers").await;
        assert_eq!(sum, 501, "{charset}");
        db.run(
            "CREATE TABLE visits (page VARBINARY(99), day DATE, uuid CHAR(36), n INT NOT NULL, PRIMARY KEY (page, day, uuid))",
        )
        .await;
        let keys = [("page", Text), ("day", Date), ("uuid", Uuid)];
        let ids = ["a", "é"]
            .map(|page| format!("{page}/2014-09-20/0188b0c6-7b0a-7000-8000-000000000001"));
        for (value, table) in [(1, Table::upsert("visits")), (2, Table::update("visits"))] {
            let family = db
                .table(&format!("visits-{value}"), keyed(table, keys))
                .await;
            let deltas = ids.each_ref().map(|id| (id, 1));
            db.adds(&family, 1, deltas, (2, 0)).await;
            let ids = ids.each_ref().map(String::as_str);
            db.has(&family, &ids, [Some(value); 2]).await;
        }
        let missing = keyed(Table::update("visits"), keys);
        let missing = db.table("missing", missing).await;
        let id = ids[0].replacen('a', "ü", 1);
        db.adds(&missing, 1, [(&id, 5)], (0, 1)).await;
        db.expect_rejects(&[(&id, 5, "no such row")]).await;
    }
}

/// Statements of a server's operator, which its new sessions take over.
const OPERATORS: &str = "SET GLOBAL autocommit = 0, GLOBAL completion_type = 'CHAIN', GLOBAL sql_safe_updates = 1, \
     GLOBAL sql_select_limit = 1, GLOBAL init_connect = 'SET NAMES latin1'; \
     SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY";

#[tokio::test]
async fn the_settings_of_the_server_change_nothing() {
    let server = MysqlServer::start().await;
    let db = Db::on(&server).await;
    let mut modes = vec!["ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,IGNORE_SPACE"];
    if db.mariadb {
        modes.extend(["ORACLE", "EMPTY_STRING_IS_NULL"]);
    }
    for mode in modes {
        let db = Db::on(&server).await;
        db.store.create_tables().await.unwrap();
        let user = db.user(&["ALL ON *"]).await;
        db.run("CREATE TABLE small (id INT AUTO_INCREMENT PRIMARY KEY, n TINYINT NOT NULL)")
            .await;
        let mut normal = db.pool.acquire().await.unwrap();
        let odd = format!("SET GLOBAL sql_mode = '{mode}'; {OPERATORS}");
        let odd = sqlx::raw_sql(AssertSqlSafe(odd));
        odd.execute(&mut *normal).await.unwrap();
        let odd = Db {
            store: db.store_of(&user),
            ..db.alone()
        };
        // 0 is 0, and 200 is not clipped
        for (name, table, deltas, expected, value) in [
            (
                "small",
                Table::upsert("small"),
                [1, 200, 127],
                applied(1, 0, 2, 1),
                1,
            ),
            (
                "update",
                Table::update("small"),
                [1, 1, 1],
                applied(1, 0, 1, 2),
                2,
            ),
        ] {
            let family = odd.table(name, by_id(table, Unsigned)).await;
            let ids = ["0", "1", "2"];
            let deltas = ids.into_iter().zip(deltas);
            assert_eq!(odd.add(&family, 0, 1, deltas).await, expected, "{name}");
            odd.has(&family, &ids, [Some(value), None, Some(127)]).await;
        }
        let (views, id) = (odd.views().await, "😀'\"\\");
        odd.add(&views, 0, 1, [(id, 1), ("a", 2)]).await;
        let listed = [("a".to_owned(), 2), (id.to_owned(), 1)];
        assert_eq!(odd.list(&views, "", None, 9).await, listed);
        // counted for a session with the usual settings too
        let reset = "SET GLOBAL sql_mode = DEFAULT, GLOBAL autocommit = 1, GLOBAL completion_type = 'NO_CHAIN', \
             GLOBAL sql_safe_updates = 0, GLOBAL sql_select_limit = DEFAULT, GLOBAL init_connect = ''; \
             SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE";
        sqlx::raw_sql(reset).execute(&mut *normal).await.unwrap();
        db.has(&views, &[id], [Some(1)]).await;
        has_no_errors(&odd.store.check(&[]).await);
    }
}

/// Only within a transaction does the server end the session of a silent client after 10 s.
#[tokio::test]
async fn a_connection_may_be_idle_for_longer_than_a_transaction() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    db.run("CREATE TRIGGER shown BEFORE INSERT ON t FOR EACH ROW SET NEW.n = @@wait_timeout")
        .await;
    let alone = db.alone();
    let family = alone.table("t", by_id(Table::upsert("t"), Signed)).await;
    let is_usual = "SELECT @@wait_timeout = @@GLOBAL.wait_timeout";
    alone.adds(&family, 1, [("1", 1)], (1, 0)).await;
    assert_eq!(alone.number(is_usual).await, 1);
    alone.has(&family, &["1"], [Some(10)]).await;
    // rolled back
    let unknown = Registration {
        number: FamilyNumber(u64::MAX),
        ..(*family).clone()
    };
    let batch = batch(&Arc::new(unknown), 0, 1, [("1", 1)]);
    let refused_one = alone.store.apply(&[batch], None).await;
    refused(refused_one, Mismatch, "not registered");
    assert_eq!(alone.number(is_usual).await, 1);
}

#[tokio::test]
async fn a_row_out_of_range_does_not_hold_back_the_others() {
    let db = Db::new().await;
    let views = db.views().await;
    let ids = (0..500).map(|id| (format!("{id:03}"), i64::MAX));
    db.apply(&[
        batch(&views, 3, 1, [("007", i64::MAX)]),
        batch(&views, 4, 1, [("400", i64::MAX)]),
    ])
    .await;
    assert_eq!(
        db.add(&views, 5, 9, ids.clone()).await,
        applied(1, 0, 498, 2)
    );
    let full = "SELECT COUNT(*) FROM counterfoil_values WHERE value = 9223372036854775807";
    assert_eq!(db.number(full).await, 500);

    db.expect_rejects(&["007", "400"].map(|id| (id, i64::MAX, "out of range")))
        .await;
    let rejects = db.rejects().await;
    let one = &rejects[0];
    assert_eq!((&*one.namespace, &*one.family), ("shop", "views"));
    assert_eq!((one.first_at, one.retries), (one.last_at, 0));
    let age = one.first_at.elapsed().unwrap_or_default();
    let now = SystemTime::now();
    assert!(age < secs(60), "{:?} at {now:?}", one.first_at);
    let pages = async |family| {
        let page = async |after, limit| db.store.rejects(family, after, limit).await.unwrap();
        assert_eq!(page(Some(&*one.cursor), 10).await, rejects[1..]);
        assert_eq!(page(None, 1).await, rejects[..1]);
    };
    pages(None).await;
    pages(Some("shop/views")).await;
    let wrong = db.store.rejects(None, Some("7"), 1).await;
    refused(wrong, ErrorKind::InvalidInput, "not the cursor");

    assert_eq!(db.add(&views, 5, 9, ids).await, applied(0, 1, 0, 0));
    // not again
    assert_eq!(db.rejects().await.len(), 2);
}

#[tokio::test]
async fn what_the_schema_refuses_is_rejected_with_its_reason() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE parent (id INT PRIMARY KEY);
         INSERT INTO parent VALUES (1), (2);
         CREATE TABLE child (id INT PRIMARY KEY, n INT NOT NULL, FOREIGN KEY (id) REFERENCES parent (id));
         CREATE TABLE checked (id INT PRIMARY KEY, n INT NOT NULL, CONSTRAINT few CHECK (n <= 10));
         CREATE TABLE watched (id INT PRIMARY KEY, n INT NOT NULL);
         CREATE TRIGGER watch BEFORE INSERT ON watched FOR EACH ROW
             BEGIN IF NEW.id = 3 THEN SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'not the third'; END IF; END;
         CREATE TABLE parts (id INT PRIMARY KEY, n INT NOT NULL) PARTITION BY RANGE (id)
             (PARTITION few VALUES LESS THAN (3));
         CREATE TABLE short (id VARBINARY(2) PRIMARY KEY, n INT NOT NULL)",
    )
    .await;
    for (name, kind, bad, delta, reason) in [
        ("child", Signed, "3", 1, "foreign key"),
        ("checked", Signed, "3", 11, "few"),
        ("watched", Signed, "3", 1, "not the third"),
        ("parts", Signed, "3", 1, "partition"),
        ("short", Text, "333", 1, "too long"),
    ] {
        let family = db.table(name, by_id(Table::upsert(name), kind)).await;
        db.adds(&family, 1, [(bad, delta), ("1", 1), ("2", 1)], (2, 1))
            .await;
        db.has(&family, &["1", "2", bad], [Some(1), Some(1), None])
            .await;
        let rejects = format!("shop/{name}");
        let rejects = db.store.rejects(Some(&rejects), None, 10).await.unwrap();
        let [reject] = &rejects[..] else {
            panic!("{name}: {rejects:?}")
        };
        assert!(
            reject.reason.to_lowercase().contains(reason) && reject.id == bad,
            "{name}: {reject:?}"
        );
    }
}

#[tokio::test]
async fn an_id_that_matches_no_row_is_rejected_in_words() {
    let db = Db::new().await;
    let (family, views) = (db.numbers("t", "INT").await, db.views().await);
    let long = "é".repeat(200);
    assert_eq!(
        db.apply(&[
            batch(&family, 0, 1, [("07", 7), ("7", 1)]),
            batch(&views, 0, 1, [("", 1), (&long, 2), ("ok", 3)]),
        ])
        .await,
        applied(2, 0, 2, 3)
    );
    db.expect_rejects(&[
        ("07", 7, "leading zeros"),
        ("", 1, "0 bytes"),
        (&format!("{}\u{fffd}", "é".repeat(127)), 2, "400 bytes"),
    ])
    .await;
}

/// A VARCHAR drops spaces beyond its length, and reports no error.
#[tokio::test]
async fn an_id_with_spaces_beyond_its_column_counts_in_no_other_row() {
    let db = Db::new().await;
    db.run(&format!(
        "CREATE TABLE short (id VARCHAR(2) CHARACTER SET utf8mb4 COLLATE {} PRIMARY KEY, n INT NOT NULL)",
        db.exact()
    ))
    .await;
    let family = db.table("short", by_id(Table::upsert("short"), Text)).await;
    let deltas = [("ab", 1), ("ab ", 2), ("é ", 4), ("é  ", 8)];
    db.adds(&family, 1, deltas, (2, 2)).await;
    let expected = [Some(1), None, Some(4), None];
    db.has(&family, &deltas.map(|(id, _)| id), expected).await;
    db.expect_rejects(&[("ab ", 2, "too long"), ("é  ", 8, "too long")])
        .await;
}

#[tokio::test]
async fn an_update_rejects_rows_that_are_missing() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE items (id INT PRIMARY KEY, slug VARCHAR(9) NOT NULL, n INT NULL);
         INSERT INTO items VALUES (1, 'a', 10), (2, 'b', NULL), (4, 'd', 2147483647)",
    )
    .await;
    let votes = by_id(Table::update("items"), Unsigned);
    let votes = db.table("votes", votes).await;
    let beyond = "18446744073709551615";
    db.adds(
        &votes,
        1,
        [("1", -3), ("2", 5), ("3", 1), ("4", 1), (beyond, 1)],
        (2, 3),
    )
    .await;
    db.has(
        &votes,
        &["1", "2", "3", "4"],
        [Some(7), Some(5), None, Some(i64::from(i32::MAX))],
    )
    .await;
    let missing = "no such row";
    db.expect_rejects(&[(beyond, 1, missing), ("3", 1, missing), ("4", 1, "range")])
        .await;
}

#[tokio::test]
async fn an_unsigned_column_goes_down_but_not_below_zero() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE stock (id INT PRIMARY KEY, n INT UNSIGNED NOT NULL DEFAULT 0, big BIGINT UNSIGNED NOT NULL DEFAULT 0);
         INSERT INTO stock VALUES (1, 5, 9223372036854775808), (2, 5, 9223372036854775807), (3, 5, 0)",
    )
    .await;
    let table = || by_id(Table::upsert("stock"), Signed);
    let stock = db.table("stock", table()).await;
    db.adds(
        &stock,
        1,
        [("1", -5), ("2", -6), ("3", 2), ("4", -1), ("5", 4)],
        (3, 2),
    )
    .await;
    db.has(
        &stock,
        &["1", "2", "3", "4", "5"],
        [Some(0), Some(5), Some(7), None, Some(4)],
    )
    .await;
    let negative = "no such row, and n takes no negative number";
    db.expect_rejects(&[("2", -6, "out of range"), ("4", -1, negative)])
        .await;

    // a value beyond i64
    let big = db.table("big", table().value("big")).await;
    let (id, value) = ("\"1\"", "9223372036854775808");
    for (ids, text) in [(&["1"][..], value), (&["2", "1"], value), (&["2", "1"], id)] {
        refused(db.store.rows(&big, ids).await, ErrorKind::Range, text);
    }
    refused(
        db.store.list(&big, "", None, 9).await,
        ErrorKind::Range,
        value,
    );
    db.has(&big, &["2"], [Some(i64::MAX)]).await;
}

/// The INSERT of a delta alone is refused, but its row exists, and the sum fits.
#[tokio::test]
async fn a_row_that_exists_takes_each_delta_that_its_sum_allows() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE checked (id INT PRIMARY KEY, n INT NOT NULL, CONSTRAINT too_few CHECK (n >= 0));
         CREATE TABLE watched (id INT PRIMARY KEY, n INT NOT NULL);
         CREATE TRIGGER watch BEFORE INSERT ON watched FOR EACH ROW
             BEGIN IF NEW.n < 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too_few'; END IF; END;
         CREATE TRIGGER watch_too BEFORE UPDATE ON watched FOR EACH ROW
             BEGIN IF NEW.n < 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too_few'; END IF; END;
         INSERT INTO checked VALUES (1, 10), (2, 10), (3, 10);
         INSERT INTO watched VALUES (1, 10), (2, 10), (3, 10)",
    )
    .await;
    for name in ["checked", "watched"] {
        let table = by_id(Table::upsert(name), Signed);
        let family = Family::buffered("shop", name).table(table).wide(true);
        let family = db.family(family).await;
        let deltas = [("1", -3), ("2", -11), ("3", 1), ("4", -1), ("5", 4)];
        db.adds(&family, 1, deltas, (3, 2)).await;
        db.has(
            &family,
            &["1", "2", "3", "4", "5"],
            [Some(7), Some(10), Some(11), None, Some(4)],
        )
        .await;
        // the sum is refused without a row, and the positive delta creates the row
        let batches = [(1, -2), (2, 5), (3, -4)];
        let batches =
            batches.map(|(partition, delta)| batch(&family, partition, 1, [("6", delta)]));
        assert_eq!(db.apply(&batches).await, applied(3, 0, 2, 1), "{name}");
        db.has(&family, &["6"], [Some(3)]).await;
    }
    let few = [
        ("2", -11, "too_few"),
        ("4", -1, "too_few"),
        ("6", -4, "too_few"),
    ];
    db.expect_rejects(&[few, few].concat()).await;

    db.run(
        "CREATE TABLE narrow (id INT PRIMARY KEY, n TINYINT NOT NULL);
         INSERT INTO narrow VALUES (1, -100)",
    )
    .await;
    let narrow = db
        .table("narrow", by_id(Table::upsert("narrow"), Signed))
        .await;
    db.adds(&narrow, 1, [("1", 200), ("2", 200)], (1, 1)).await;
    db.has(&narrow, &["1", "2"], [Some(100), None]).await;
}

/// A reject whose row appeared meanwhile.
#[tokio::test]
async fn a_negative_reject_is_applied_once_its_row_exists() {
    let db = Db::new().await;
    let stock = db.numbers("stock", "INT").await;
    db.run("ALTER TABLE stock ADD CONSTRAINT too_few CHECK (n >= 0)")
        .await;
    db.adds(&stock, 1, [("1", -3)], (0, 1)).await;
    db.run("INSERT INTO stock VALUES (1, 10)").await;
    assert_eq!(db.retry(&stock, &["1"]).await, (1, 0, 0));
    db.has(&stock, &["1"], [Some(7)]).await;
}

/// Another transaction inserts the rows meanwhile.
#[tokio::test]
async fn a_row_that_appears_meanwhile_takes_its_delta() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE checked (id INT PRIMARY KEY, n INT NOT NULL, CONSTRAINT too_few CHECK (n >= 0));
         CREATE TABLE numbered (pk INT AUTO_INCREMENT PRIMARY KEY, \
             id INT NOT NULL, n INT NOT NULL, UNIQUE (id))",
    )
    .await;
    for name in ["checked", "numbered"] {
        let family = db.table(name, by_id(Table::upsert(name), Signed)).await;
        let mut other = db.pool.begin().await.unwrap();
        let insert = format!("INSERT INTO {name} (id, n) VALUES (2, 10)");
        sqlx::raw_sql(AssertSqlSafe(insert))
            .execute(&mut *other)
            .await
            .unwrap();
        let committed = async {
            pause(300).await;
            other.commit().await.unwrap();
        };
        let deltas = [("1", 1), ("2", -3), ("3", 1)];
        let (sums, ()) = tokio::join!(db.add(&family, 0, 1, deltas), committed);
        assert_eq!(sums, applied(1, 0, 3, 0), "{name}");
        db.has(&family, &["1", "2", "3"], [Some(1), Some(7), Some(1)])
            .await;
    }
    db.expect_rejects(&[]).await;
}

/// Rows numbered by the table itself: updates take no numbers, and if there are none left, no
/// other row takes the delta.
#[tokio::test]
async fn a_numbered_table_takes_a_number_for_each_new_row_only() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE numbered (pk TINYINT AUTO_INCREMENT PRIMARY KEY, \
             id INT NOT NULL, n INT NOT NULL, UNIQUE (id))",
    )
    .await;
    let numbered = db
        .table("numbered", by_id(Table::upsert("numbered"), Signed))
        .await;
    for seq in 1..=200 {
        db.add(&numbered, 0, seq, [("1", 1)]).await;
    }
    db.add(&numbered, 0, 201, [("2", 5)]).await;
    db.add(&numbered, 0, 202, [("1", 1), ("3", 7)]).await;
    db.has(&numbered, &["1", "2", "3"], [Some(201), Some(5), Some(7)])
        .await;
    db.expect_rejects(&[]).await;

    db.run("INSERT INTO numbered VALUES (127, 127, 0)").await;
    db.run("ALTER TABLE numbered AUTO_INCREMENT = 127").await;
    db.adds(&numbered, 203, [("1", 1), ("4", 1)], (1, 1)).await;
    db.has(&numbered, &["1", "127", "4"], [Some(202), Some(0), None])
        .await;
    db.expect_rejects(&[("4", 1, "")]).await;
}

#[tokio::test]
async fn one_counter_in_many_batches_is_one_row() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n INT UNSIGNED NOT NULL)")
        .await;
    let family = async |namespace, name, verb: fn(&'static str) -> Table, is_wide| {
        let table = by_id(verb("t"), Signed);
        let family = Family::buffered(namespace, name).table(table);
        db.family(family.wide(is_wide)).await
    };
    let one = family("one", "t", Table::upsert, true).await;
    let two = family("two", "t", Table::upsert, false).await;
    let update = family("two", "u", Table::update, true).await;
    let batches = (0..8).flat_map(|partition| {
        [&one, &two, &update].map(|family| batch(family, partition, 1, [("1", 1), ("2", 2)]))
    });
    // updates go before upserts, and find no row
    assert_eq!(
        db.apply(&batches.collect::<Vec<_>>()).await,
        applied(24, 0, 48 - 16, 16)
    );
    db.has(&one, &["1", "2"], [Some(16), Some(32)]).await;
    let batches = (0..8).map(|partition| batch(&update, partition, 2, [("1", 1), ("2", -1)]));
    let batches: Vec<_> = batches.collect();
    assert_eq!(db.apply(&batches).await, applied(8, 0, 16, 0));
    // each delta of a joined row
    db.has(&one, &["1", "2"], [Some(24), Some(24)]).await;

    // the sum is below zero without a row: the positive deltas create it
    assert_eq!(
        db.apply(&[(0, -7), (1, 3), (2, 2)].map(|(partition, delta)| batch(
            &one,
            partition,
            3,
            [("9", delta)]
        )))
        .await,
        applied(3, 0, 2, 1)
    );
    db.has(&one, &["9"], [Some(5)]).await;
    let rejects = db.rejects().await;
    let of_nine = rejects.iter().filter(|one| one.id == "9");
    assert_eq!(of_nine.map(|one| one.delta).collect::<Vec<_>>(), [-7]);
}

#[tokio::test]
async fn a_sum_that_leaves_the_range_goes_one_by_one() {
    let db = Db::new().await;
    let (wide, most) = (db.family(views().wide(true)).await, i64::MAX - 1);
    assert_eq!(
        db.apply(&[0, 1, 2].map(|partition| batch(&wide, partition, 1, [("a", most), ("b", 1)])))
            .await,
        applied(3, 0, 4, 2)
    );
    db.has(&wide, &["a", "b"], [Some(most), Some(3)]).await;
    let rejects = db.rejects().await;
    let sums: Vec<_> = rejects.iter().map(|one| (&*one.id, one.delta)).collect();
    assert_eq!(sums, [("a", 2 * i128::from(most))]);
}

/// Bulk inserts with parameters write most rows, in parts and statements of limited size, and a
/// statement with JSON writes the rest.
#[tokio::test]
async fn many_rows_of_any_bytes_of_which_one_is_out_of_range() {
    let db = Db::new().await;
    let views = db.views().await;
    let long = "é".repeat(127);
    let plain: Vec<_> = (0..25_000).map(|id| format!("id-{id}")).collect();
    let mut ids = [&ODD[..], &[&long]].concat();
    ids.extend(plain.iter().map(String::as_str));
    let add = async |seq, delta: i64, odd: i64, rejected| {
        let deltas = ids
            .iter()
            .map(|&id| (id, if id == "id-77" { odd } else { delta }));
        let rows = ids.len() as u64 - rejected;
        db.adds(&views, seq, deltas, (rows, rejected)).await;
        let value = delta + if seq == 2 { 3 } else { 0 };
        let expected = ids
            .iter()
            .map(|&id| Some(if id == "id-77" { i64::MAX } else { value }));
        assert!(
            db.values(&views, &ids).await.into_iter().eq(expected),
            "batch {seq}"
        );
    };
    add(1, 3, i64::MAX, 0).await;
    add(2, i64::MIN, 1, 1).await;
    db.expect_rejects(&[("id-77", 1, "out of range")]).await;
}

//! Times as keys: `DATETIME` in UTC or at an offset from it, and `TIMESTAMP`.

use super::database::*;
use crate::support::*;

/// 02:00 in Berlin, twice: the clocks went back on 2014-10-26.
const TWICE: [&str; 2] = ["1414281600/a/b", "1414285200/a/b"];
const HOURS: Keys = &[("hour", DateTime), ("page", Text)];

fn hours(table: Table, offset: Option<&str>) -> Table {
    let table = keyed(table, HOURS.iter().copied());
    match offset {
        Some(offset) => table.utc_offset(offset),
        None => table,
    }
}

/// Each row is a table with the type of its hours, their offset, and the hours as it stores them.
const STORED: [(&str, &str, Option<&str>, [&str; 2]); 5] = [
    (
        "utc",
        "DATETIME",
        None,
        ["2014-10-26 00:00:00", "2014-10-26 01:00:00"],
    ),
    (
        "fractions",
        "DATETIME(3)",
        None,
        ["2014-10-26 00:00:00.000", "2014-10-26 01:00:00.000"],
    ),
    (
        "ahead",
        "DATETIME",
        Some("+05:30"),
        ["2014-10-26 05:30:00", "2014-10-26 06:30:00"],
    ),
    (
        "behind",
        "DATETIME",
        Some("-03:00"),
        ["2014-10-25 21:00:00", "2014-10-25 22:00:00"],
    ),
    (
        "moments",
        "TIMESTAMP NOT NULL DEFAULT '2000-01-01 00:00:00'",
        None,
        ["2014-10-26 00:00:00", "2014-10-26 01:00:00"],
    ),
];

#[tokio::test]
async fn times_are_stored_as_the_column_has_them() {
    let db = Db::new().await;
    // the sessions of a store are in UTC, whatever its options say
    let options = (*db.pool.connect_options()).clone();
    let elsewhere = Db {
        store: MysqlStore::new(options.timezone("-08:00".to_owned())).unwrap(),
        ..db.alone()
    };
    for (name, column, offset, stored) in STORED {
        db.run(&format!(
            "CREATE TABLE {name} (page VARBINARY(99), hour {column}, n INT NOT NULL, PRIMARY KEY (page, hour))"
        ))
        .await;
        for (times, table) in [(1, Table::upsert(name)), (2, Table::update(name))] {
            let family = format!("{name}-{times}");
            let family = elsewhere.table(&family, hours(table, offset)).await;
            let deltas = TWICE.into_iter().zip(1..);
            elsewhere.adds(&family, 1, deltas, (2, 0)).await;
            let ids = [TWICE[0], "1414281601/a/b", TWICE[1]];
            let expected = [Some(times), None, Some(2 * times)];
            elsewhere.has(&family, &ids, expected).await;
            elsewhere.has(&family, &ids[2..], &expected[2..]).await;
        }
        let rows = format!("SELECT CAST(hour AS CHAR), n FROM {name} ORDER BY hour");
        let rows = sqlx::query_as(AssertSqlSafe(rows)).fetch_all(&db.pool);
        let rows: Vec<(String, i32)> = rows.await.unwrap();
        let expected = stored.map(str::to_owned).into_iter().zip([2, 4]);
        assert_eq!(rows, expected.collect::<Vec<_>>(), "{name}");
    }
}

#[tokio::test]
async fn times_are_listed_as_ids() {
    let db = Db::new().await;
    for (name, column, offset, _) in STORED {
        db.run(&format!(
            "CREATE TABLE {name} (hour {column}, page VARBINARY(99), n INT NOT NULL, PRIMARY KEY (hour, page))"
        ))
        .await;
        let family = db.table(name, hours(Table::upsert(name), offset)).await;
        let ids = ["1414281600/", "1414281600/a", TWICE[0], TWICE[1]];
        db.adds(&family, 1, ids.into_iter().zip(1..), (4, 0)).await;
        let prefixes = [
            "",
            "1414281600/",
            "1414281600/a/",
            "14142816",
            "1414281601/",
        ];
        db.expect_listed(&family, &ids, &prefixes).await;
    }
    // a time between two seconds is no id
    db.run("INSERT INTO fractions VALUES ('2014-10-26 00:00:00.5', 'a/b', 7)")
        .await;
    let fractions = hours(Table::upsert("fractions"), None);
    let fractions = db.table("fractions", fractions).await;
    let listed = db.pages(&fractions, "1414281600/", 2).await;
    assert_eq!(listed, ["1414281600/", "1414281600/a", TWICE[0]]);
}

/// A table with `DATETIME` for days has them at midnight.
#[tokio::test]
async fn days_are_midnights() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE daily (day DATETIME, page VARBINARY(99), n INT NOT NULL, PRIMARY KEY (day, page));
         INSERT INTO daily VALUES ('2014-10-26', 'a', 5), ('2014-10-26 12:00:00', 'a', 7)",
    )
    .await;
    let days = [("day", Date), ("page", Text)];
    for (times, table) in [(1, Table::upsert("daily")), (2, Table::update("daily"))] {
        let daily = db
            .table(&format!("daily-{times}"), keyed(table, days))
            .await;
        let ids = ["2014-10-26/a", "2014-10-27/a"];
        db.adds(&daily, 1, ids.into_iter().zip([1, 2]), (2, 0))
            .await;
        db.has(&daily, &ids, [Some(5 + times), Some(2 * times)])
            .await;
        db.expect_listed(&daily, &ids, &["", "2014-10-26/", "2014-10-2"])
            .await;
    }
    assert_eq!(db.number("SELECT COUNT(*) FROM daily").await, 3);
}

#[tokio::test]
async fn all_processes_have_the_same_offset() {
    let db = Db::new().await;
    db.run("CREATE TABLE hourly (hour DATETIME, page VARBINARY(99), n INT NOT NULL, PRIMARY KEY (hour, page))")
        .await;
    let table = |offset| views().table(hours(Table::upsert("hourly"), offset));
    db.family(table(None)).await;
    let message = db.mismatch(table(Some("+05:30"))).await;
    assert!(message.contains("/n+05:30"), "{message}");
    db.run("CREATE TABLE moments (hour TIMESTAMP NOT NULL DEFAULT '2000-01-01', page VARBINARY(99), n INT NOT NULL, PRIMARY KEY (hour, page))")
        .await;
    let moments = hours(Table::upsert("moments"), Some("+05:30"));
    let message = db.mismatch(views().table(moments)).await;
    assert!(
        message.contains("timestamp, which has no offset"),
        "{message}"
    );
}

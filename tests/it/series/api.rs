//! Series on real servers, from the hit to the chart and to the rows of slices that are over.

use counterfoil::Recorded;
use futures_util::TryStreamExt;

use crate::support::*;

fn family(name: &str) -> FamilyBuilder<Series> {
    Family::series("test", name)
        .at_once()
        .sync_time(millis(200))
}

/// Returns the server's time in whole seconds.
async fn server_time(pair: &Pair) -> i64 {
    let time: (i64, i64) = pair.redis.run("TIME").await.unwrap();
    time.0
}

#[tokio::test]
async fn a_hit_counts_in_the_current_slice_of_every_precision() {
    let (pair, hits) = Pair::of(family("hits")).await;
    hits.count("site", 1).await;
    hits.count("site", 41).await;
    let now = server_time(&pair).await;
    for precision in Precision::DEFAULT {
        let window = hits.get("site", precision).await.unwrap();
        assert_eq!((window.len(), sum(&window)), (120, 42), "{precision}");
        let last = window.last().unwrap();
        assert!(
            unix(last.start) <= now + 1
                && (precision == Precision::SECOND || last.count > 0 || window[118].count > 0)
        );
        assert!(window.is_sorted());
    }
    let sums: Vec<_> = hits
        .get_many(&["elsewhere", "site", "site"], Precision::Day)
        .await
        .unwrap()
        .iter()
        .map(|window| sum(window))
        .collect();
    assert_eq!(sums, [0, 42, 42]);
}

#[tokio::test]
async fn callers_share_calls_and_none_is_lost() {
    let (_pair, hits) = Pair::of(family("hits")).await;
    let names = pages(50);
    assert_eq!(
        try_join_all((0..2_000).map(|hit| hits.add(&names[hit % 50], 1)))
            .await
            .unwrap(),
        [Counted(1); 2_000]
    );
    for done in hits.add_many(names.iter().map(|name| (name, 3))).await {
        assert_eq!(done.unwrap(), Counted(3));
    }
    (0..100).for_each(|hit| hits.record(&names[hit % 50], 2).unwrap());
    assert_eq!(hits.flush().await.unwrap(), Recorded::Counted);
    for window in hits.get_many(&names, Precision::Day).await.unwrap() {
        assert_eq!(sum(&window), 40 + 3 + 4);
    }
    assert_eq!(hits.names("page/4", None, 100).await.unwrap().len(), 11);
}

#[tokio::test]
async fn names_come_in_order_and_page_by_page() {
    let (pair, hits) = Pair::of(family("hits")).await;
    let mut names: Vec<_> = (0..250).map(|number| format!("n{number}")).collect();
    for done in hits.add_many(names.iter().map(|name| (name, 1))).await {
        assert_eq!(done.unwrap(), Counted(1));
    }
    names.sort();
    let mut listed: Vec<String> = vec![];
    loop {
        let page = hits
            .names("", listed.last().map(String::as_str), 60)
            .await
            .unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 60);
        listed.extend(page);
    }
    assert_eq!(listed, names);
    let all: Vec<_> = hits.names_all("n1").try_collect().await.unwrap();
    assert_eq!(all, names[1..112]);
    let page = hits.names("n24", None, 3).await.unwrap();
    assert_eq!(page, ["n24", "n240", "n241"]);
    let after = async |after| hits.names("n24", Some(after), 3).await.unwrap();
    assert_eq!(after("m").await, page);
    assert_eq!(after("n25").await, [""; 0]);
    // a client in another language counted under a name that is not text, which ends the page
    let (mut redis, name) = (pair.redis.manager().await, b"n24\xff");
    let key = |kind| format!("cf1:{{{}/0}}:{kind}", hits.family());
    let mut write = redis::pipe();
    write
        .zadd(key("names"), name, 0)
        .zadd(key("idle"), name, 1e15);
    write.exec_async(&mut redis).await.unwrap();
    assert_eq!(hits.names("n24", None, 100).await.unwrap().len(), 11);
    assert_eq!(hits.names("n24", Some("n249"), 1).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_wrong_call_is_refused_by_name_and_nothing_is_counted() {
    let plain = Plain::new().await;
    let windows = [(Precision::MINUTE, 3), (Precision::HOUR, 3)];
    let hits = plain.open(family("hits").windows(windows)).await;
    let add = async |name: &str, n: u64| hits.add(name, n).await.map(drop);
    let range = async |seconds| {
        let read = hits.get_range("a", Precision::MINUTE, times(0..seconds));
        read.await.map(drop)
    };
    for (what, result) in [
        ("0 bytes", add("", 1).await),
        ("201 bytes", add(&"n".repeat(201), 1).await),
        ("0 for \"a\"", add("a", 0).await),
        ("18446744073709551615 for \"a\"", add("a", u64::MAX).await),
        (
            "0 for \"b\"",
            hits.add_many([("b", 0)]).await.remove(0).map(drop),
        ),
        (
            "no slices of day",
            hits.get("a", Precision::Day).await.map(drop),
        ),
        ("more than 10000 slices", range(700_000).await),
        ("are not kept", range(60).await),
    ] {
        refused(result, InvalidInput, what);
    }
    assert_eq!(sum(&hits.get("a", Precision::HOUR).await.unwrap()), 0);
    assert_eq!(hits.names("", None, 10).await.unwrap().len(), 0);
}

/// An hourly table that the application has filled until now, in the time of India.
#[tokio::test]
async fn hours_are_kept_in_a_table_that_exists() {
    const HOUR: i64 = 3600;
    let pair = Pair::new().await;
    let hour = server_time(&pair).await / HOUR * HOUR;
    pair.sql(&format!(
        "CREATE TABLE hourly (page VARBINARY(99), hour DATETIME, n INT NOT NULL, PRIMARY KEY (page, hour));
         INSERT INTO hourly VALUES ('/a', TIMESTAMP'1970-01-01 05:30:00' + INTERVAL {hour} SECOND, 5)"
    ))
    .await;
    let table = keyed(
        Table::upsert("hourly"),
        [("hour", DateTime), ("page", Text)],
    );
    let hits = family("hours")
        .windows([(Precision::HOUR, 3)])
        .keep([Precision::HOUR])
        .table(table.utc_offset("+05:30"));
    let hits = pair.open(hits).await;
    for (at, n) in [(hour, 3), (hour - 1, 2)] {
        let counted = hits
            .add_at("/a", n, UNIX_EPOCH + secs(at.cast_unsigned()))
            .await
            .unwrap();
        assert_eq!(counted, Counted(n.cast_signed()));
    }
    let read = async || {
        let hours = times(hour - 2 * HOUR..hour + HOUR);
        let hours = hits.get_range("/a", Precision::HOUR, hours).await.unwrap();
        hours.iter().map(|slice| slice.count).collect::<Vec<_>>()
    };
    assert_eq!(read().await, [0, 2, 8]);
    pair.drain().await;
    assert_eq!(read().await, [0, 2, 8]);
    let rows = "SELECT SUM(n) FROM hourly WHERE MINUTE(hour) = 30 AND SECOND(hour) = 0";
    assert_eq!(pair.number(rows).await, 10);
    assert_eq!(pair.number("SELECT COUNT(*) FROM hourly").await, 2);
}

/// Returns the block of SQL in the guide that begins with this text.
fn of_guide(start: &str) -> &'static str {
    let guide = include_str!("../../../docs/guide.md");
    let start = guide.find(&format!("```sql\n{start}")).expect(start);
    guide[start + 7..].split("```").next().unwrap()
}

/// The statements of the guide show what was counted up to now, and read only the key.
#[tokio::test]
async fn top_lists_are_one_statement_each() {
    let pair = Pair::new().await;
    pair.sql(of_guide("CREATE TABLE page_days")).await;
    pair.sql(
        "INSERT INTO page_days WITH RECURSIVE old (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM old WHERE n < 900) \
         SELECT DATE '2014-01-01' + INTERVAL n DAY, 'old', n FROM old",
    )
    .await;
    let days = Table::upsert("page_days")
        .key("day", Date)
        .key("page", Text)
        .value("hits");
    let windows = [(Precision::SECOND, 3), (Precision::Day, 2)];
    let hits = family("days").windows(windows).keep([Precision::Day]);
    let hits = pair.open(hits.table(days)).await;
    let now = SystemTime::now();
    hits.count("/a", 3).await;
    hits.count("/b", 1).await;
    for (page, n, days_ago) in [("/b", 5, 1), ("/a", 9, 8), ("/a", 9, 400)] {
        let at = now - secs(86_400) * days_ago;
        let expected = if days_ago == 1 {
            Counted(n)
        } else {
            Outcome::BadTime
        };
        let outcome = hits.add_at(page, n.cast_unsigned(), at).await.unwrap();
        assert_eq!(outcome, expected, "{days_ago} days ago");
    }
    pair.drain().await;
    let mut session = pair.pool.acquire().await.unwrap();
    let mut tops = vec![];
    let settings = "SET time_zone = '+00:00'";
    sqlx::query(settings).execute(&mut *session).await.unwrap();
    for statement in of_guide("-- most viewed today").split_terminator(";\n") {
        let rows: Vec<(Vec<u8>, String)> = sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "SELECT page, CAST(hits AS CHAR) FROM ({statement}) AS top"
        )))
        .fetch_all(&mut *session)
        .await
        .unwrap();
        let row = |(page, hits): (Vec<u8>, String)| (String::from_utf8(page).unwrap(), hits);
        tops.push(rows.into_iter().map(row).collect::<Vec<_>>());
        let explain = sqlx::AssertSqlSafe(format!("EXPLAIN FORMAT=TRADITIONAL {statement}"));
        let plan = sqlx::query(explain).fetch_one(&mut *session).await.unwrap();
        let key: Option<String> = sqlx::Row::get(&plan, "key");
        assert_eq!(key.as_deref(), Some("top"), "{statement}");
    }
    let top = |rows: &[(&str, &str)]| {
        let row = |(page, hits): &(&str, &str)| ((*page).to_owned(), (*hits).to_owned());
        rows.iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(tops[0], top(&[("/a", "3"), ("/b", "1")]));
    assert_eq!(tops[1], top(&[("/b", "6"), ("/a", "3")]));
    // yesterday may belong to another month
    let of_month = [
        top(&[("/b", "6"), ("/a", "3")]),
        top(&[("/a", "3"), ("/b", "1")]),
    ];
    assert!(of_month.contains(&tops[2]), "{tops:?}");
}

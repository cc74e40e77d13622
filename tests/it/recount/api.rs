//! The options of a recount, and its reports.

use counterfoil::metrics::{
    RECOUNT_BUSY, RECOUNT_CHECKED, RECOUNT_CORRECTED, RECOUNT_DRIFTED, RECOUNT_FINISHED,
};
use counterfoil::recount::{Mode, RecountBuilder, RecountIds, Rows, Source};

use super::{WITHIN, saves};
use crate::support::{self};

use crate::support::*;

const ROWS: [i64; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

/// Creates users 1 to 9. User n has n rows, and a counter that is off by `off(n)`.
async fn stage(off: impl Fn(i64) -> i64) -> (Pair, BufferedCounters) {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE saves (event BIGINT AUTO_INCREMENT PRIMARY KEY, user_id BIGINT NOT NULL, points INT, KEY (user_id));
         INSERT INTO saves (user_id, points) WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 9) \
             SELECT user.n, 2 FROM n AS user JOIN n AS row_ ON row_.n <= user.n",
    )
    .await;
    let saves = pair.open(family("saves")).await;
    for user in ROWS {
        if user + off(user) > 0 {
            saves.count(&user.to_string(), user + off(user)).await;
        }
    }
    (pair, saves)
}

/// Does the same, and brings everything to the database.
async fn drained(off: impl Fn(i64) -> i64) -> (Pair, BufferedCounters) {
    let (pair, saves) = stage(off).await;
    pair.drain().await;
    (pair, saves)
}

async fn values(saves: &BufferedCounters) -> Vec<i64> {
    saves
        .get_many(ROWS.map(|user| user.to_string()))
        .await
        .unwrap()
}

/// Runs the recount, and asserts these numbers of its report.
async fn expect(recount: RecountBuilder, expected: &[(&str, u64)]) {
    let done = recount.run_once().await.unwrap();
    let known = [
        ("run", done.run),
        ("checked", done.checked),
        ("drifted", done.drifted),
        ("raised", done.raised),
        ("lowered", done.lowered),
        ("only_noted", done.only_noted),
        ("busy", done.busy),
    ];
    for expected in expected {
        assert!(known.contains(expected), "{expected:?} in {done:?}");
    }
}

#[tokio::test]
async fn every_source_counts_the_same() {
    let by_sql = "SELECT user_id, COUNT(*) FROM saves WHERE user_id IN (?) GROUP BY user_id";
    let points = saves().sum("points");
    for (source, factor) in [
        (Some(Source::sql(by_sql)), 1),
        (Some(saves()), 1),
        (Some(points.filter("event % 2 = 0 OR event % 2 = 1")), 2),
        (None, 1),
    ] {
        let (pair, saves) = drained(|user| user % 3 - 1).await;
        let pool = pair.pool.clone();
        let by_function = Source::function(move |ids| {
            let pool = pool.clone();
            async move {
                let mut counts = HashMap::new();
                for id in ids {
                    let count = "SELECT COUNT(*) FROM saves WHERE user_id = ?";
                    let count = sqlx::query_scalar::<_, i64>(count).bind(&id);
                    counts.insert(id.clone(), count.fetch_one(&pool).await?);
                }
                Ok(counts)
            }
        });
        let what = format!("{source:?}");
        let recount = pair.recount(&saves).source(source.unwrap_or(by_function));
        let all = [("run", 1), ("checked", 9), ("busy", 0), ("only_noted", 0)];
        expect(recount.ids(RecountIds::Counters), &all).await;
        assert_eq!(
            values(&saves).await,
            ROWS.map(|rows| rows * factor),
            "{what}"
        );
    }
}

/// Corrects in pages. At first everything is still in Redis, and only counters in the database are
/// listed.
#[tokio::test]
async fn drift_is_noted_and_paged() {
    let (pair, saves) = stage(|user| if user == 9 { -9 } else { user % 2 }).await;
    expect(pair.recount(&saves), &[("run", 1), ("checked", 0)]).await;
    pair.drain().await;
    expect(
        pair.recount(&saves).mode(Mode::Report),
        &[
            ("run", 2),
            ("checked", 8),
            ("drifted", 4),
            ("only_noted", 4),
        ],
    )
    .await;
    expect(
        pair.recount(&saves).ids(RecountIds::Both),
        &[("run", 3), ("checked", 9), ("raised", 1), ("lowered", 4)],
    )
    .await;
    assert_eq!(values(&saves).await, ROWS);
    let drift = async |run, after, limit| {
        pair.mysql()
            .drift(saves.family(), run, after, limit)
            .await
            .unwrap()
    };
    let page = drift(3, None, 3).await;
    let page: Vec<_> = page.iter().map(|one| (&*one.id, one.delta)).collect();
    assert_eq!(page, [("1", -1), ("3", -1), ("5", -1)]);
    let rest = drift(3, Some("5"), 9).await;
    let [seven, nine] = &*rest else {
        panic!("{rest:?}")
    };
    assert_eq!((&*seven.id, &*seven.note), ("7", ""));
    assert_eq!(
        (seven.before, seven.rows, seven.after, seven.delta),
        (8, 7, 8, -1)
    );
    assert_eq!(
        (&*nine.id, nine.before, nine.rows, nine.delta),
        ("9", 0, 9, 9)
    );
    for one in drift(2, None, 9).await {
        assert_eq!((one.delta, &*one.note), (0, "reported only"), "{one:?}");
    }
}

#[tokio::test]
async fn counters_are_left_out_or_only_noted() {
    let (pair, saves) = drained(|user| user).await;
    let recount = pair.recount(&saves).leave_out(["1"]);
    let recount = recount.leave_out_prefixes(["2"]).largest_count(15);
    // 3 to 7 have 6 to 14, 8 and 9 have more; 6 and 7 are off by more than 5
    expect(
        recount.at_most(5),
        &[("checked", 5), ("lowered", 3), ("only_noted", 2)],
    )
    .await;
    assert_eq!(values(&saves).await, [2, 4, 3, 4, 5, 12, 14, 16, 18]);
}

#[tokio::test]
async fn what_moves_is_left_alone_where_rows_are_deleted() {
    let (pair, saves) = drained(|user| if user == 5 { 2 } else { 0 }).await;
    let counting = tokio::spawn({
        let saves = saves.clone();
        async move {
            loop {
                saves.count("5", 1).await;
                pause(2).await;
            }
        }
    });
    pause(20).await;
    let recount = || pair.recount_of(&saves, Rows::AddedAndDeleted);
    expect(recount(), &[("checked", 8), ("busy", 1), ("drifted", 0)]).await;
    counting.abort();
    let _ = counting.await;
    pause(20).await;
    expect(recount(), &[("checked", 9), ("busy", 0), ("lowered", 1)]).await;
    assert_eq!(values(&saves).await, ROWS);
}

/// The ids consist of several key columns of an application's table, in a wide family.
#[tokio::test]
async fn ids_of_several_columns_are_counted() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE visits (store_id INT UNSIGNED, day DATE, visitor INT, PRIMARY KEY (store_id, day, visitor));
         INSERT INTO visits VALUES (1, '2014-09-20', 0), (1, '2014-09-20', 1), (1, '2014-09-20', 2), \
             (1, '2014-09-21', 0), (2, '2014-09-20', 0), (2, '2014-09-20', 1), (10, '2014-09-20', 0), \
             (10, '2014-09-20', 1), (10, '2014-09-20', 2), (10, '2014-09-20', 3)",
    )
    .await;
    let table = pair.visitors_by_day().await;
    let visitors = pair.open(family("visitors").wide(true).table(table)).await;
    let ids = [
        "1/2014-09-20",
        "1/2014-09-21",
        "2/2014-09-20",
        "10/2014-09-20",
    ];
    for (id, count) in [(ids[0], 3), (ids[1], 2), (ids[3], 1)] {
        visitors.count(id, count).await;
    }
    pair.drain().await;
    let source = Source::table("visits", ["store_id", "day"]);
    expect(
        pair.recount(&visitors).source(source).ids(RecountIds::Both),
        &[("checked", 4), ("raised", 2), ("lowered", 1)],
    )
    .await;
    assert_eq!(visitors.get_many(ids).await.unwrap(), [3, 1, 2, 4]);
}

const BY_BYTES: &str = "SELECT CAST(CONVERT(tag USING utf8mb4) AS BINARY), COUNT(*) FROM saves \
     WHERE tag IN (?) AND CAST(CONVERT(tag USING utf8mb4) AS BINARY) IN (?) GROUP BY 1";

/// Rows of `Rust` and `rust` are two ids' rows, also if the column's collation takes them for equal
/// and only one of them has a counter.
#[tokio::test]
async fn ids_that_a_collation_folds_are_counted_apart() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE saves (tag VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, KEY (tag));
         INSERT INTO saves VALUES ('Rust'), ('rust'), ('rust'), ('café'), ('cafe'), ('cafe'), ('cafe'), ('Go'), ('go')",
    )
    .await;
    let saves = pair.open(family("saves")).await;
    for (tag, rows) in [
        ("Rust", 1),
        ("rust", 2),
        ("café", 1),
        ("cafe", 3),
        ("Go", 1),
    ] {
        saves.count(tag, rows).await;
    }
    pair.drain().await;
    let recount = |source| pair.recount(&saves).source(source);
    let tags = || Source::table("saves", ["tag"]);
    for source in [tags(), Source::sql(BY_BYTES)] {
        expect(recount(source), &[("checked", 5), ("drifted", 0)]).await;
    }
    // grouped by the collation, its rows are those of no one id
    let folded = "SELECT tag, COUNT(*) FROM saves WHERE tag IN (?) GROUP BY tag";
    let folded = recount(Source::sql(folded)).run_once().await;
    refused(folded, InvalidInput, "utf8mb4_general_ci");
    let both = recount(tags()).ids(RecountIds::Both);
    expect(both, &[("checked", 6), ("raised", 1), ("drifted", 1)]).await;
    assert_eq!(saves.value("go").await, 1);
}

/// The rows of the counters and their source have UUIDs in either case, which their collation folds.
#[tokio::test]
async fn uuids_in_upper_case_are_counted() {
    let pair = Pair::new().await;
    let column = "CHAR(36) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL";
    pair.sql(&format!(
        "CREATE TABLE user (id {column} PRIMARY KEY, saves INT NOT NULL);
         CREATE TABLE saves (user {column}, KEY (user));
         INSERT INTO user VALUES ('5D41402A-BC4B-4A76-B971-9D911017C592', 3), ('ffffffff-bc4b-4a76-b971-9d911017c592', 2);
         INSERT INTO saves VALUES ('5D41402A-BC4B-4A76-B971-9D911017C592'), ('5d41402a-bc4b-4a76-b971-9d911017c592'), \
             ('FFFFFFFF-BC4B-4A76-B971-9D911017C592')"
    ))
    .await;
    let table = Table::update("user").key("id", Uuid).value("saves");
    let saves = pair.open(family("saves").table(table)).await;
    let source = Source::table("saves", ["user"]);
    let recount = pair.recount(&saves).source(source).ids(RecountIds::Both);
    expect(recount, &[("checked", 2), ("lowered", 2)]).await;
    let listed = saves.list("", None, 9).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|(id, n)| (&id[..8], *n)).collect();
    assert_eq!(listed, [("5d41402a", 2), ("ffffffff", 1)]);
}

/// More ids than a page has, each in two spellings that the column takes for equal.
#[tokio::test]
async fn all_spellings_of_an_id_are_listed() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE saves (tag VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, KEY (tag));
         INSERT INTO saves WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 999) \
             SELECT CONCAT('tag', n) FROM n UNION ALL SELECT CONCAT('TAG', n) FROM n;
         INSERT INTO saves VALUES (NULL), ('zone'), ('Zone')",
    )
    .await;
    let saves = pair.open(family("saves")).await;
    let recount = pair.recount(&saves).source(Source::table("saves", ["tag"]));
    let recount = recount.ids(RecountIds::Source).ids_per_second(100_000);
    expect(recount, &[("checked", 2_002), ("raised", 2_002)]).await;
    assert_eq!(pair.stored().await, 2_002);
}

/// Columns of older tables cannot hold every id that has a counter.
#[tokio::test]
async fn an_id_that_the_source_cannot_hold_has_no_rows() {
    for charset in ["latin1", "utf8mb3"] {
        let pair = Pair::new().await;
        pair.sql(&format!(
            "CREATE TABLE saves (tag VARCHAR(40) CHARACTER SET {charset}, KEY (tag));
             INSERT INTO saves VALUES ('é'), ('é'), ('?'), ('ü')"
        ))
        .await;
        let saves = pair.open(family("saves")).await;
        let recount = |source| pair.recount(&saves).source(source);
        saves.count("é", 1).await;
        pair.drain().await;
        expect(recount(Source::sql(BY_BYTES)), &[("raised", 1)]).await;
        saves.count("😀", 1).await;
        pair.drain().await;
        let both = recount(Source::table("saves", ["tag"])).ids(RecountIds::Both);
        expect(both, &[("checked", 4), ("raised", 2), ("lowered", 1)]).await;
        let values = saves.get_many(["é", "?", "😀", "ü"]).await.unwrap();
        assert_eq!(values, [2, 1, 0, 1], "{charset}");
        let by_sql = recount(Source::sql(BY_BYTES)).run_once().await;
        refused(by_sql, InvalidInput, "collation");
    }
}

/// The columns of the source have other types than the keys of the counters. A comparison that finds
/// no row would lower all counters to 0.
#[tokio::test]
async fn keys_of_another_type_are_found_or_refused() {
    const UUID: &str = "5d41402a-bc4b-4a76-b971-9d911017c592";
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE event (item VARCHAR(20) CHARACTER SET ascii, uuid BINARY(16), at DATETIME, pad BINARY(20));
         INSERT INTO event SELECT '9007199254740993', UNHEX('5D41402ABC4B4A76B9719D911017C592'), '2014-09-20 10:00:00', \
             '9007199254740993';
         INSERT INTO event SELECT * FROM event;
         CREATE TABLE item (id BIGINT PRIMARY KEY, n INT NOT NULL);
         CREATE TABLE tag (id VARBINARY(99) PRIMARY KEY, n INT NOT NULL);
         CREATE TABLE user (id CHAR(36) PRIMARY KEY, n INT NOT NULL);
         CREATE TABLE daily (id DATE PRIMARY KEY, n INT NOT NULL)",
    )
    .await;
    for (name, kind, id, column, refused_with) in [
        ("item", Unsigned, "9007199254740993", "item", None),
        ("user", Uuid, UUID, "uuid", None),
        (
            "item",
            Unsigned,
            "9007199254740993",
            "at",
            Some("at is datetime|an integer"),
        ),
        (
            "tag",
            Text,
            "9007199254740993",
            "pad",
            Some("pad is binary|VARBINARY"),
        ),
        ("user", Uuid, UUID, "at", Some("at is datetime|UUID")),
        (
            "daily",
            Date,
            "2014-09-20",
            "at",
            Some("at is datetime|DATE"),
        ),
    ] {
        let counters = format!("{name}-{column}");
        let counters = pair
            .open(family(&counters).table(keyed(Table::upsert(name), [("id", kind)])))
            .await;
        counters.count(id, 3).await;
        pair.drain().await;
        let source = Source::table("event", [column]);
        let recount = pair.recount(&counters).source(source);
        if let Some(words) = refused_with {
            let recounted = recount.run_once().await;
            let error = refused(recounted, InvalidInput, "the source of a recount");
            let error = format!("{error:#}");
            assert!(words.split('|').all(|word| error.contains(word)), "{error}");
        } else {
            let recount = recount.ids(RecountIds::Both);
            expect(recount, &[("checked", 1), ("lowered", 1)]).await;
            assert_eq!(counters.value(id).await, 2, "{name}");
        }
    }
}

/// Counters by hour, in the time of India, and their visits: with the hour as a column, in that time or
/// as a TIMESTAMP, and without.
#[tokio::test]
async fn hours_are_recounted() {
    const HOUR: &str = "TIMESTAMPADD(HOUR, HOUR(at), DATE(at))";
    let pair = Pair::new().await;
    pair.sql(&format!(
        "CREATE TABLE hourly (store INT, hour DATETIME, n INT NOT NULL, PRIMARY KEY (store, hour));
         CREATE TABLE visits (store INT, at DATETIME, hour DATETIME AS ({HOUR}) STORED, KEY (store, hour));
         INSERT INTO visits (store, at) VALUES (7, '2014-10-26 05:30:00'), (7, '2014-10-26 05:59:59'), \
             (7, '2014-10-26 06:00:00'), (8, '2014-10-26 06:59:59');
         CREATE TABLE moments (store INT, moment TIMESTAMP NOT NULL DEFAULT '2000-01-01');
         INSERT INTO moments SELECT store, hour - INTERVAL 330 MINUTE FROM visits"
    ))
    .await;
    let hourly = keyed(
        Table::upsert("hourly"),
        [("store", Unsigned), ("hour", DateTime)],
    );
    let hourly = hourly.utc_offset("+05:30");
    let hourly = pair.open(family("hourly").table(hourly)).await;
    // 05:00 and 06:00 in India
    let ids = ["7/1414279800", "7/1414283400", "8/1414283400"];
    let sources = [
        Source::table("visits", ["store", "hour"]),
        Source::table("moments", ["store", "moment"]),
        Source::sql(format!(
            "SELECT store, {HOUR}, COUNT(*) FROM visits WHERE (store, {HOUR}) IN (?) GROUP BY 1, 2"
        )),
    ];
    for (index, source) in sources.into_iter().enumerate() {
        let lists_ids = index < 2;
        for (id, delta) in ids.into_iter().zip([3, 0, -1]) {
            hourly.count(id, delta).await;
        }
        pair.drain().await;
        let recount = pair.recount(&hourly).source(source);
        let recount = if lists_ids {
            recount.ids(RecountIds::Both)
        } else {
            recount
        };
        let done = recount.run_once().await.unwrap();
        let values = hourly.get_many(ids).await.unwrap();
        assert_eq!(values, [2, 1, 1], "{index}: {done:?}");
    }
    refused(
        pair.recount(&hourly)
            .source(Source::table("visits", ["store", "store"]))
            .run_once()
            .await,
        InvalidInput,
        "store is int, needed for DateTime is DATETIME or TIMESTAMP",
    );
}

/// sqlx makes `||` concatenate text unless the connection says otherwise.
#[tokio::test]
async fn a_filter_means_what_it_means_to_mysql() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE saves (user_id INT, is_deleted INT, is_hidden INT);
         INSERT INTO saves VALUES (1, 0, 1), (1, 1, 0), (1, 0, 0)",
    )
    .await;
    let options = pair.pool.connect_options();
    let url = support::mysql().await.url(options.get_database().unwrap());
    let store = MysqlStore::new(&url).unwrap();
    let counterfoil = patient(Counterfoil::new(pair.redis.manager().await, store));
    let users = counterfoil.opened(family("saves")).await;
    users.count("1", 2).await;
    counterfoil.drained().await;
    let hidden = saves().filter("is_deleted = 1 || is_hidden = 1");
    let recount = counterfoil
        .recount(&users, Rows::Added)
        .source(hidden)
        .within(WITHIN);
    expect(recount, &[("checked", 1), ("drifted", 0)]).await;
}

pub(super) fn of_items(durability: Durability) -> FamilyBuilder<CachedCounters> {
    let table = keyed(Table::update("item"), [("id", Unsigned)]);
    let votes = support::votes().table(table).durability(durability);
    votes.sync_time(millis(1))
}

/// Creates an item with five rows of votes, and opens a cached family with this durability.
pub(super) async fn votes(durability: Durability) -> (Pair, CachedCounters) {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE saves (user_id BIGINT NOT NULL, voter BIGINT, PRIMARY KEY (user_id, voter));
         CREATE TABLE item (id BIGINT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0);
         INSERT INTO item (id) VALUES (1);
         INSERT INTO saves VALUES (1, 1), (1, 2), (1, 3), (1, 4), (1, 5)",
    )
    .await;
    let votes = pair.open(of_items(durability)).await;
    votes.count("1", 3).await;
    (pair, votes)
}

pub(super) async fn shown_and_stored(votes: &CachedCounters) -> (i64, Vec<Option<i64>>) {
    (votes.value("1").await, votes.stored(["1"]).await.unwrap())
}

#[tokio::test]
async fn a_cached_counter_shows_its_correction_at_once() {
    let (pair, votes) = votes(Durability::Immediate).await;
    pair.drain().await;
    expect(pair.recount(&votes), &[("raised", 1)]).await;
    assert_eq!(shown_and_stored(&votes).await, (5, vec![Some(5)]));
    expect(pair.recount(&votes), &[("drifted", 0)]).await;
    pair.sql("INSERT INTO saves VALUES (1, 6)").await;
    votes.count("1", 1).await;
    // also beside what is not saved
    expect(pair.recount(&votes), &[("drifted", 0)]).await;
    pair.drain().await;
    assert_eq!(shown_and_stored(&votes).await, (6, vec![Some(6)]));
}

#[tokio::test]
async fn a_cached_counter_that_is_being_saved_shows_its_correction() {
    let (pair, votes) = votes(Durability::Settle(millis(700))).await;
    let counterfoil = pair.counterfoil.clone();
    let draining = tokio::spawn(async move { counterfoil.drain().await });
    eventually("it is cut", async || pair.batches().await == 1).await;
    expect(pair.recount(&votes), &[("raised", 1)]).await;
    assert_eq!(shown_and_stored(&votes).await, (5, vec![Some(5)]));
    draining.await.unwrap().unwrap();
}

#[tokio::test]
async fn it_runs_again_and_again_in_one_of_several_processes() {
    let (pair, saves) = drained(|_| 1).await;
    let every = millis(200);
    let start = |()| {
        let recount = pair.recount(&saves).every(every..=2 * every);
        recount.start().unwrap()
    };
    let recounters = [(); 3].map(start);
    let rows = async || values(&saves).await == ROWS;
    eventually("the correction", rows).await;
    saves.count("7", 5).await;
    pair.drain().await;
    eventually("the next correction", rows).await;
    assert!(recounters.iter().any(|one| one.progress().run > 0));
    for recounter in recounters {
        recounter.shutdown().await.unwrap();
    }
    // each run waits for the begin of the last one, which limits the runs in the elapsed time
    let runs = "SELECT COUNT(*) FROM counterfoil_recounts";
    let runs = pair.number(runs).await;
    let close = "SELECT COUNT(*) FROM counterfoil_recounts AS a JOIN counterfoil_recounts AS b ON b.run = a.run + 1 \
         AND TIMESTAMPDIFF(MICROSECOND, a.started_at, b.started_at) < 190000";
    assert!(runs >= 2);
    assert_eq!(pair.number(close).await, 0, "{runs} runs");
}

/// The database's clock stepped back by a day.
#[tokio::test]
async fn a_run_that_began_in_the_future_does_not_delay_the_next_one() {
    let (pair, saves) = drained(|_| 1).await;
    let every = millis(200);
    let recounter = pair.recount(&saves).every(every..=every).start().unwrap();
    let rows = async || values(&saves).await == ROWS;
    eventually("the correction", rows).await;
    pair.sql("UPDATE counterfoil_recounts SET started_at = started_at + INTERVAL 1 DAY")
        .await;
    saves.count("7", 5).await;
    pair.drain().await;
    eventually("the next correction", rows).await;
    recounter.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_is_missing_or_not_allowed_is_named() {
    let (pair, saves) = stage(|_| 0).await;
    let counterfoil = &pair.counterfoil;
    let from = |source| pair.recount(&saves).source(source);
    let table = |name, columns: &[&'static str]| Source::table(name, columns.iter().copied());
    let all = "SELECT user_id, COUNT(*) FROM saves GROUP BY user_id";
    let of_source = from(Source::sql("SELECT 1, 2 WHERE 1 IN (?)")).ids(RecountIds::Source);
    for (recount, text) in [
        (
            counterfoil.recount(&saves, Rows::Added).within(WITHIN),
            "source() is required",
        ),
        (
            counterfoil
                .recount(&saves, Rows::Added)
                .source(super::saves()),
            "within() is required",
        ),
        (pair.recount(&saves).ids_per_second(0), "ids_per_second()"),
        (from(Source::sql(all)), "one (?)"),
        (of_source, "requires Source::table"),
        (from(table("saves", &["user_id", "event"])), "2 key columns"),
        (from(table("sa`ves", &["user_id"])), "sa`ves"),
        (from(Source::sql("(?)").filter("TRUE")), "only a table"),
    ] {
        refused(recount.run_once().await, InvalidInput, text);
    }
    let error = pair.recount(&saves).start().unwrap_err();
    assert!(format!("{error:#}").contains("every()"), "{error}");
    assert!(
        pair.recount(&saves)
            .every(secs(3600)..=Duration::ZERO)
            .start()
            .is_err()
    );
}

#[tokio::test]
async fn the_metrics_report_a_run() {
    let metrics = Metrics::record();
    let (pair, saves) = drained(|user| user % 3 - 1).await;
    pair.recount(&saves).run_once().await.unwrap();
    let seen = metrics.look();
    let now = UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    for (metric, expected) in [
        (RECOUNT_CHECKED, 9.0),
        (RECOUNT_DRIFTED, 6.0),
        (RECOUNT_CORRECTED, 6.0),
        (RECOUNT_BUSY, 0.0),
    ] {
        assert_eq!(seen[metric], expected, "{metric}");
    }
    let age = now - seen[RECOUNT_FINISHED];
    assert!(age.abs() < 20.0, "{age}");
}

//! The options of a recount, and its reports.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use counterfoil::metrics::{
    RECOUNT_BUSY, RECOUNT_CHECKED, RECOUNT_CORRECTED, RECOUNT_DRIFTED, RECOUNT_FINISHED,
};
use counterfoil::recount::{Mode, RecountIds, Recounted, Source};
use counterfoil::{
    BufferedCounters, CachedCounters, Durability, ErrorKind, Family, KeyType, Table,
};
use metrics_util::debugging::DebuggingRecorder;

use crate::support::{Pair, eventually, family, look, pause};

const WITHIN: Duration = Duration::from_millis(20);

/// Creates users 1 to 9. User n has n rows, and a counter that is off by `off(n)`.
async fn stage(off: impl Fn(i64) -> i64) -> (Pair, BufferedCounters) {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE saves (event BIGINT AUTO_INCREMENT PRIMARY KEY, user_id BIGINT NOT NULL, points INT, KEY (user_id))")
        .await;
    let saves = pair.counterfoil.open(family("saves")).await.unwrap();
    for user in 1..=9 {
        for _ in 0..user {
            sqlx::query("INSERT INTO saves (user_id, points) VALUES (?, 2)")
                .bind(user)
                .execute(&pair.pool)
                .await
                .unwrap();
        }
        if user + off(user) > 0 {
            let _ = saves
                .add(&user.to_string(), user + off(user))
                .await
                .unwrap();
        }
    }
    (pair, saves)
}

async fn values(saves: &BufferedCounters) -> Vec<i64> {
    saves
        .get_many((1..=9).map(|user| user.to_string()))
        .await
        .unwrap()
}

fn table() -> Source {
    Source::table("saves", ["user_id"])
}

fn up_to_nine() -> Vec<i64> {
    (1..=9).collect()
}

#[tokio::test]
async fn every_source_counts_the_same() {
    let sources: [fn() -> Source; 4] = [
        || Source::sql("SELECT user_id, COUNT(*) FROM saves WHERE user_id IN (?) GROUP BY user_id"),
        table,
        || {
            Source::table("saves", ["user_id"])
                .sum("points")
                .filter("event % 2 = 0 OR event % 2 = 1")
        },
        || Source::function(|_| async { Err("replaced below".into()) }),
    ];
    for (number, source) in sources.into_iter().enumerate() {
        let (pair, saves) = stage(|user| user % 3 - 1).await;
        pair.counterfoil.drain().await.unwrap();
        let pool = pair.pool.clone();
        let source = match number {
            3 => Source::function(move |ids| {
                let pool = pool.clone();
                async move {
                    let mut counts = HashMap::new();
                    for id in ids {
                        let count = sqlx::query_scalar::<_, i64>(
                            "SELECT COUNT(*) FROM saves WHERE user_id = ?",
                        );
                        counts.insert(id.clone(), count.bind(&id).fetch_one(&pool).await?);
                    }
                    Ok(counts)
                }
            }),
            _ => source(),
        };
        let recount = pair
            .counterfoil
            .recount(&saves)
            .source(source)
            .within(WITHIN)
            .ids(RecountIds::Counters);
        let done = recount
            .run_once()
            .await
            .unwrap_or_else(|error| panic!("{number}: {error}"));
        let factor = if number == 2 { 2 } else { 1 };
        assert_eq!(
            values(&saves).await,
            up_to_nine()
                .iter()
                .map(|rows| rows * factor)
                .collect::<Vec<_>>(),
            "{number}"
        );
        assert_eq!(
            (done.run, done.checked, done.busy, done.only_noted),
            (1, 9, 0, 0),
            "{number}: {done:?}"
        );
    }
}

/// Corrects in pages. At first everything is still in Redis, and only counters in the database are
/// listed.
#[tokio::test]
async fn drift_is_noted_and_paged() {
    let (pair, saves) = stage(|user| if user == 9 { -9 } else { user % 2 }).await;
    let recount = || {
        pair.counterfoil
            .recount(&saves)
            .source(table())
            .within(WITHIN)
    };
    let nothing = recount().run_once().await.unwrap();
    assert_eq!((nothing.run, nothing.checked), (1, 0), "{nothing:?}");
    pair.counterfoil.drain().await.unwrap();
    let reported = recount().mode(Mode::Report).run_once().await.unwrap();
    assert_eq!(
        (
            reported.run,
            reported.checked,
            reported.drifted,
            reported.only_noted
        ),
        (2, 8, 4, 4),
        "{reported:?}"
    );
    let all = recount().ids(RecountIds::Both).run_once().await.unwrap();
    assert_eq!(
        (all.run, all.checked, all.raised, all.lowered),
        (3, 9, 1, 4),
        "{all:?}"
    );
    assert_eq!(values(&saves).await, up_to_nine());
    let store = pair.mysql();
    let page = store.drift(saves.family(), 3, None, 3).await.unwrap();
    assert_eq!(
        page.iter()
            .map(|one| (&*one.id, one.delta))
            .collect::<Vec<_>>(),
        [("1", -1), ("3", -1), ("5", -1)]
    );
    let rest = store.drift(saves.family(), 3, Some("5"), 9).await.unwrap();
    let [seven, nine] = &*rest else {
        panic!("{rest:?}")
    };
    assert_eq!(
        (
            &*seven.id,
            seven.before,
            seven.rows,
            seven.after,
            seven.delta,
            &*seven.note
        ),
        ("7", 8, 7, 8, -1, "")
    );
    assert_eq!(
        (&*nine.id, nine.before, nine.rows, nine.delta),
        ("9", 0, 9, 9)
    );
    let noted = store.drift(saves.family(), 2, None, 9).await.unwrap();
    assert!(
        noted
            .iter()
            .all(|one| one.delta == 0 && one.note == "reported only"),
        "{noted:?}"
    );
}

#[tokio::test]
async fn counters_are_left_out_or_only_noted() {
    let (pair, saves) = stage(|user| user).await;
    pair.counterfoil.drain().await.unwrap();
    let recount = pair
        .counterfoil
        .recount(&saves)
        .source(table())
        .within(WITHIN);
    let done = recount
        .leave_out(["1"])
        .leave_out_prefixes(["2"])
        .largest_count(15)
        .at_most(5)
        .run_once()
        .await
        .unwrap();
    // 3 to 7 have 6 to 14, 8 and 9 have more; 6 and 7 are off by more than 5
    assert_eq!(
        (done.checked, done.lowered, done.only_noted),
        (5, 3, 2),
        "{done:?}"
    );
    assert_eq!(values(&saves).await, [2, 4, 3, 4, 5, 12, 14, 16, 18]);
}

#[tokio::test]
async fn what_moves_is_left_alone_where_rows_are_deleted() {
    let (pair, saves) = stage(|user| if user == 5 { 2 } else { 0 }).await;
    pair.counterfoil.drain().await.unwrap();
    let counting = tokio::spawn({
        let saves = saves.clone();
        async move {
            loop {
                let _ = saves.add("5", 1).await.unwrap();
                pause(2).await;
            }
        }
    });
    pause(20).await;
    let recount = || {
        pair.counterfoil
            .recount(&saves)
            .source(table())
            .within(WITHIN)
            .rows_are_deleted(true)
    };
    let busy = recount().run_once().await.unwrap();
    assert_eq!(
        (busy.checked, busy.busy, busy.drifted),
        (8, 1, 0),
        "{busy:?}"
    );
    counting.abort();
    let _ = counting.await;
    pause(20).await;
    let done = recount().run_once().await.unwrap();
    assert_eq!(
        (done.checked, done.busy, done.lowered),
        (9, 0, 1),
        "{done:?}"
    );
    assert_eq!(values(&saves).await, up_to_nine());
}

/// The ids consist of several key columns of an application's table, in a wide family.
#[tokio::test]
async fn ids_of_several_columns_are_counted() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE visits (store_id INT UNSIGNED, day DATE, visitor INT, PRIMARY KEY (store_id, day, visitor))",
    )
    .await;
    pair.sql(
        "CREATE TABLE visitors (store_id INT UNSIGNED, day DATE, count INT NOT NULL, PRIMARY KEY (store_id, day))",
    )
    .await;
    for (store, day, visitors) in [
        (1, "2014-09-20", 3),
        (1, "2014-09-21", 1),
        (2, "2014-09-20", 2),
        (10, "2014-09-20", 4),
    ] {
        for visitor in 0..visitors {
            let insert = sqlx::query("INSERT INTO visits VALUES (?, ?, ?)")
                .bind(store)
                .bind(day)
                .bind(visitor);
            insert.execute(&pair.pool).await.unwrap();
        }
    }
    let target = Table::upsert("visitors")
        .key("store_id", KeyType::Unsigned)
        .key("day", KeyType::Date)
        .value("count");
    let counted = family("visitors").wide(true).table(target);
    let visitors = pair.counterfoil.open(counted).await.unwrap();
    for (id, count) in [
        ("1/2014-09-20", 3),
        ("1/2014-09-21", 2),
        ("10/2014-09-20", 1),
    ] {
        let _ = visitors.add(id, count).await.unwrap();
    }
    pair.counterfoil.drain().await.unwrap();
    let source = Source::table("visits", ["store_id", "day"]);
    let recount = pair
        .counterfoil
        .recount(&visitors)
        .source(source)
        .within(WITHIN)
        .ids(RecountIds::Both);
    let done = recount.run_once().await.unwrap();
    assert_eq!(
        (done.checked, done.raised, done.lowered),
        (4, 2, 1),
        "{done:?}"
    );
    let ids = [
        "1/2014-09-20",
        "1/2014-09-21",
        "2/2014-09-20",
        "10/2014-09-20",
    ];
    assert_eq!(visitors.get_many(ids).await.unwrap(), [3, 1, 2, 4]);
}

/// Creates an item with five rows of votes, and opens a cached family with this durability.
async fn votes(pair: &Pair, durability: Durability) -> CachedCounters {
    pair.sql("CREATE TABLE votes (item BIGINT NOT NULL, voter BIGINT, PRIMARY KEY (item, voter))")
        .await;
    pair.sql("CREATE TABLE item (id BIGINT PRIMARY KEY, votes BIGINT NOT NULL DEFAULT 0)")
        .await;
    pair.sql("INSERT INTO item (id) VALUES (1)").await;
    pair.sql("INSERT INTO votes VALUES (1, 1), (1, 2), (1, 3), (1, 4), (1, 5)")
        .await;
    let votes = Family::cached("test", "votes")
        .table(
            Table::update("item")
                .key("id", KeyType::Unsigned)
                .value("votes"),
        )
        .durability(durability)
        .sync_time(Duration::from_millis(1));
    pair.counterfoil.open(votes).await.unwrap()
}

#[tokio::test]
async fn a_cached_counter_shows_its_correction_at_once() {
    let pair = Pair::new().await;
    let votes = votes(&pair, Durability::Immediate).await;
    let _ = votes.incr("1", 3).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    let recount = || {
        pair.counterfoil
            .recount(&votes)
            .source(Source::table("votes", ["item"]))
            .within(WITHIN)
    };
    assert_eq!(recount().run_once().await.unwrap().raised, 1);
    assert_eq!(
        (
            votes.get("1").await.unwrap(),
            votes.stored(["1"]).await.unwrap()
        ),
        (5, vec![Some(5)])
    );
    assert_eq!(recount().run_once().await.unwrap().drifted, 0);
    pair.sql("INSERT INTO votes VALUES (1, 6)").await;
    let _ = votes.incr("1", 1).await.unwrap();
    assert_eq!(
        recount().run_once().await.unwrap().drifted,
        0,
        "also beside what is not saved"
    );
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        (
            votes.get("1").await.unwrap(),
            votes.stored(["1"]).await.unwrap()
        ),
        (6, vec![Some(6)])
    );
}

#[tokio::test]
async fn a_cached_counter_that_is_being_saved_shows_its_correction() {
    let pair = Pair::new().await;
    let votes = votes(&pair, Durability::Settle(Duration::from_millis(700))).await;
    let _ = votes.incr("1", 3).await.unwrap();
    let counterfoil = pair.counterfoil.clone();
    let draining = tokio::spawn(async move { counterfoil.drain().await });
    eventually("it is cut", async || {
        pair.redis
            .run::<Vec<String>>("KEYS *:batch")
            .await
            .unwrap()
            .len()
            == 1
    })
    .await;
    let recount = pair
        .counterfoil
        .recount(&votes)
        .source(Source::table("votes", ["item"]))
        .within(WITHIN);
    assert_eq!(recount.run_once().await.unwrap().raised, 1);
    assert_eq!(
        (
            votes.get("1").await.unwrap(),
            votes.stored(["1"]).await.unwrap()
        ),
        (5, vec![Some(5)])
    );
    draining.await.unwrap().unwrap();
}

#[tokio::test]
async fn it_runs_again_and_again_in_one_of_several_processes() {
    let (pair, saves) = stage(|_| 1).await;
    pair.counterfoil.drain().await.unwrap();
    let every = Duration::from_millis(200);
    let start = || {
        let recount = pair
            .counterfoil
            .recount(&saves)
            .source(table())
            .within(WITHIN);
        recount.every(every..=2 * every).start().unwrap()
    };
    let recounters = [start(), start(), start()];
    let rows = async || values(&saves).await == up_to_nine();
    eventually("the correction", rows).await;
    let _ = saves.add("7", 5).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    eventually("the next correction", rows).await;
    let known = |done: &Recounted| done.run > 0;
    assert!(
        recounters
            .iter()
            .map(|one| one.progress())
            .any(|done| known(&done))
    );
    for recounter in recounters {
        recounter.shutdown().await.unwrap();
    }
    // each run waits for the begin of the last one, which limits the runs in the elapsed time
    let runs = pair
        .number("SELECT COUNT(*) FROM counterfoil_recounts")
        .await;
    let apart = "SELECT COUNT(*) FROM counterfoil_recounts AS a JOIN counterfoil_recounts AS b ON b.run = a.run + 1 \
         AND TIMESTAMPDIFF(MICROSECOND, a.started_at, b.started_at) < 190000";
    assert!(runs >= 2);
    assert_eq!(pair.number(apart).await, 0, "{runs} runs");
}

#[tokio::test]
async fn what_is_missing_or_not_allowed_is_named() {
    let (pair, saves) = stage(|_| 0).await;
    let recount = || pair.counterfoil.recount(&saves);
    let sql = |text: &str| recount().source(Source::sql(text)).within(WITHIN);
    let hour = Duration::from_secs(3600);
    let wrong = [
        (
            recount().within(WITHIN).run_once().await,
            "source() is required",
        ),
        (
            recount().source(table()).run_once().await,
            "within() is required",
        ),
        (
            recount()
                .source(table())
                .within(WITHIN)
                .ids_per_second(0)
                .run_once()
                .await,
            "ids_per_second()",
        ),
        (
            sql("SELECT user_id, COUNT(*) FROM saves GROUP BY user_id")
                .run_once()
                .await,
            "one (?)",
        ),
        (
            sql("SELECT 1, 2 WHERE 1 IN (?)")
                .ids(RecountIds::Source)
                .run_once()
                .await,
            "requires Source::table",
        ),
        (
            recount()
                .source(Source::table("saves", ["user_id", "event"]))
                .within(WITHIN)
                .run_once()
                .await,
            "2 key columns",
        ),
        (
            recount()
                .source(Source::table("sa`ves", ["user_id"]))
                .within(WITHIN)
                .run_once()
                .await,
            "sa`ves",
        ),
        (
            recount()
                .source(Source::sql("(?)").filter("TRUE"))
                .within(WITHIN)
                .run_once()
                .await,
            "only a table",
        ),
    ];
    for (result, named) in wrong {
        let error = result.unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && format!("{error:#}").contains(named),
            "{named}: {error}"
        );
    }
    let error = recount()
        .source(table())
        .within(WITHIN)
        .start()
        .unwrap_err();
    assert!(format!("{error:#}").contains("every()"), "{error}");
    let backwards = recount()
        .source(table())
        .within(WITHIN)
        .every(hour..=Duration::ZERO);
    assert!(backwards.start().is_err());
}

#[tokio::test]
async fn the_metrics_tell_what_a_run_did() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (pair, saves) = stage(|user| user % 3 - 1).await;
    pair.counterfoil.drain().await.unwrap();
    let _ = pair
        .counterfoil
        .recount(&saves)
        .source(table())
        .within(WITHIN)
        .run_once()
        .await
        .unwrap();
    let seen = look(&snapshotter);
    let now = UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert_eq!(
        (
            seen[RECOUNT_CHECKED],
            seen[RECOUNT_DRIFTED],
            seen[RECOUNT_CORRECTED]
        ),
        (9.0, 6.0, 6.0),
        "{seen:?}"
    );
    assert!(
        seen[RECOUNT_BUSY] == 0.0 && (now - seen[RECOUNT_FINISHED]).abs() < 20.0,
        "{seen:?}"
    );
}

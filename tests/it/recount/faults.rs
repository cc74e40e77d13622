//! Bad input, unavailable servers, and recounters whose runs are taken over.

use counterfoil::recount::{RecountIds, Rows, Source};

use super::api::{of_items, shown_and_stored, votes};
use super::{WITHIN, measured};

use crate::support::*;

const MINUTE: Duration = secs(60);

/// Creates counter 1 with the value 3 and 5 rows.
async fn stage_on(pair: &Pair) -> BufferedCounters {
    pair.saves(&[1; 5]).await;
    let saves = pair.open(family("saves")).await;
    saves.count("1", 3).await;
    pair.drain().await;
    saves
}

async fn stage() -> (Pair, BufferedCounters) {
    let pair = Pair::new().await;
    let saves = stage_on(&pair).await;
    (pair, saves)
}

async fn on_own_mysql() -> (MysqlServer, Pair, BufferedCounters) {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let saves = stage_on(&pair).await;
    (mysql, pair, saves)
}

/// The counter's partition receives no further hit, and its row lacks what was counted since the
/// backup: one flush, or all of them.
#[tokio::test]
async fn a_database_that_was_set_back_is_recounted() {
    for before in [3, 0] {
        let (pair, saves) = Pair::of(family("saves")).await;
        pair.saves(&[1; 4]).await;
        if before > 0 {
            saves.count("1", before).await;
            pair.drain().await;
        }
        const OWN: [&str; 2] = ["counterfoil_values", "counterfoil_ledger"];
        for table in OWN {
            let backup = format!("CREATE TABLE backup_{table} AS SELECT * FROM {table}");
            pair.sql(&backup).await;
        }
        saves.count("1", 4 - before).await;
        pair.drain().await;
        for table in OWN {
            let restore =
                format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM backup_{table}");
            pair.sql(&restore).await;
        }
        assert_eq!(saves.value("1").await, before);
        let recount = pair.recount(&saves).ids(RecountIds::Both);
        let done = recount.run_once().await.unwrap();
        assert_eq!((done.checked, done.raised), (1, 1), "{before}: {done:?}");
        assert_eq!(saves.value("1").await, 4);
        saves.count("1", 1).await;
        pair.drain().await;
        assert_eq!(pair.stored().await, 5);
    }
}

/// Returns a source that finds this count for this id.
fn found(id: &'static str, count: i64) -> Source {
    Source::function(move |_| async move { Ok(HashMap::from([(id.to_owned(), count)])) })
}

#[tokio::test]
async fn what_a_source_must_not_return_is_an_error_before_anything_is_corrected() {
    let (pair, saves) = stage().await;
    let rows = |columns: &str, rest: &str| {
        let sql = format!("SELECT {columns} FROM saves WHERE user_id IN (?) {rest}");
        Source::sql(sql)
    };
    let counts = |count: &str| rows(&format!("user_id, {count}"), "GROUP BY user_id");
    let nowhere = "SELECT user_id, COUNT(*) FROM nowhere WHERE user_id IN (?) GROUP BY user_id";
    let is_mariadb = pair.number("SELECT VERSION() LIKE '%MariaDB%'").await == 1;
    let ungrouped = (rows("user_id, COUNT(*)", ""), "GROUP BY");
    let ungrouped = (!is_mariadb).then_some(ungrouped);
    let sources = [
        (rows("user_id, COUNT(*", ""), "syntax"),
        (rows("COUNT(*)", ""), "column"),
        (rows("user_id, event, 1", ""), "column"),
        (Source::sql(nowhere), "nowhere"),
        (rows("user_id, 1", ""), "was returned twice"),
        (rows("user_id + 1, 1", "GROUP BY 1"), "was not requested"),
        (rows("NULL, 1", "LIMIT 1"), "NULL"),
        (counts("NULL"), "NULL"),
        (counts("-1"), "below 0"),
        (counts("2.5"), "not a 64-bit integer"),
        (counts("'many'"), "not a 64-bit integer"),
        (counts("9223372036854775808"), "not a 64-bit integer"),
        (found("2", 1), "was not requested"),
        (found("1", -1), "below 0"),
    ];
    for (source, text) in sources.into_iter().chain(ungrouped) {
        let what = format!("{source:?}");
        refused(
            pair.recount(&saves).source(source).run_once().await,
            InvalidInput,
            text,
        );
        assert_eq!(saves.value("1").await, 3, "{what}");
    }
    // the run that all calls left is finished
    let decimal = counts("COUNT(*) * 1.000");
    let done = pair.recount(&saves).source(decimal).run_once().await;
    let done = done.unwrap();
    assert_eq!((done.run, done.raised), (1, 1), "{done:?}");
}

/// sqlx waits for a reply for good over a connection whose statement it refused.
#[tokio::test]
async fn a_source_with_a_further_parameter_leaves_the_pool_usable() {
    let (pair, _) = stage().await;
    let store = MysqlStore::new(&pair.pool).unwrap().max_connections(2);
    let client = patient(Counterfoil::new(pair.redis.manager().await, store.clone()));
    let saves = client.opened(family("saves")).await;
    for _ in 0..3 {
        let source = super::saves().filter("event > ?");
        let recount = client
            .recount(&saves, Rows::Added)
            .source(source)
            .within(WITHIN);
        let recounted = timeout(secs(10), recount.run_once()).await;
        let recounted = recounted.expect("not asked again");
        refused(recounted, InvalidInput, "parameters");
    }
    let both = try_join_all([store.pool().acquire(), store.pool().acquire()]).await;
    assert_eq!(both.expect("two connections").len(), 2);
}

/// The first count hangs, and the second one is in time.
#[tokio::test]
async fn a_source_that_is_slow_or_unavailable_is_asked_again() {
    let (pair, saves) = stage().await;
    let [slow, failed] = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
    let source = Source::function(move |_| {
        let (is_slow, fails) = (slow.swap(false, Ordering::Relaxed), failed.clone());
        async move {
            if is_slow {
                pause(60_000).await;
            }
            if fails.swap(false, Ordering::Relaxed) {
                return Err("unavailable".into());
            }
            Ok(HashMap::from([("1".to_owned(), 5)]))
        }
    });
    let recount = pair.recount(&saves).source(source);
    let recount = recount.timeout(millis(100));
    assert_eq!(recount.run_once().await.unwrap().raised, 1);
    let slow = Source::sql(
        "SELECT user_id, COUNT(*) FROM saves WHERE user_id IN (?) AND SLEEP(0.3) = 0 GROUP BY user_id",
    );
    let recount = pair.recount(&saves).source(slow);
    let stopped = timeout(secs(3), recount.timeout(millis(300)).run_once()).await;
    // it is asked again and again
    assert!(stopped.is_err());
}

#[tokio::test]
async fn a_database_that_is_killed_holds_a_run_up_and_is_corrected_once() {
    let (mysql, pair, saves) = on_own_mysql().await;
    let run = tokio::spawn(pair.recount(&saves).within(millis(500)).run_once());
    for _ in 0..4 {
        pause(200).await;
        mysql.kill();
        pause(100).await;
        mysql.start_again().await;
    }
    let done = run.await.unwrap().unwrap();
    assert_eq!((done.checked, done.drifted), (1, 1), "{done:?}");
    assert_eq!(saves.value("1").await, 5);
    let deltas: Vec<_> = pair
        .mysql()
        .drift(saves.family(), done.run, None, 9)
        .await
        .unwrap()
        .iter()
        .map(|one| one.delta)
        .collect();
    assert_eq!(deltas, [2]);
}

#[tokio::test]
async fn an_unavailable_redis_holds_a_run_up() {
    let (pair, saves) = stage().await;
    pair.redis.pause();
    let run = tokio::spawn(pair.recount(&saves).run_once());
    pause(500).await;
    assert!(!run.is_finished());
    pair.redis.resume();
    assert_eq!(run.await.unwrap().unwrap().raised, 1);
}

/// The number of runs that a recounter holds.
const HELD: &str = "SELECT COUNT(*) FROM counterfoil_recounts WHERE holder > 0";

#[tokio::test]
async fn a_second_run_is_refused_and_an_abandoned_one_is_continued() {
    let (pair, saves) = stage().await;
    let long = pair.recount(&saves).within(MINUTE);
    let first = long.clone().every(MINUTE..=MINUTE).start().unwrap();
    eventually("a run", async || pair.number(HELD).await == 1).await;
    refused(long.run_once().await, Busy, "");
    within(secs(5), first.shutdown()).await.unwrap();
    let done = pair.recount(&saves).run_once().await.unwrap();
    assert_eq!((done.run, done.checked, done.raised), (1, 1, 1), "{done:?}");
}

#[tokio::test]
async fn a_run_that_is_stopped_is_continued_at_once() {
    let (pair, saves) = stage().await;
    let long = pair.recount(&saves).within(MINUTE);
    let held = eventually("a run", async || pair.number(HELD).await == 1);
    let stopped = within(secs(5), long.run_until(held)).await.unwrap();
    assert_eq!(stopped, None);
    let done = pair.recount(&saves).run_once().await.unwrap();
    assert_eq!((done.run, done.checked, done.raised), (1, 1, 1), "{done:?}");
}

/// The old holder still waits when another one finishes its run, and then corrects nothing.
#[tokio::test]
async fn a_run_that_was_taken_over_corrects_nothing() {
    let (pair, saves) = stage().await;
    let steps = || pair.recount(&saves).steps().unwrap();
    let (old, new) = (steps(), steps());
    let (begun, difference) = measured(&old, "1").await;
    let (taken, same) = measured(&new, "1").await;
    assert!(new.settle(&taken, &same).await.unwrap());
    assert!(!old.settle(&begun, &difference).await.unwrap());
    // a run settles once, also for the same holder
    assert!(new.settle(&taken, &same).await.unwrap());
    assert_eq!(saves.value("1").await, 5);
    assert!(new.end(&taken).await.unwrap() && !old.end(&begun).await.unwrap());
}

/// It does not see what waits in partitions that it does not know.
#[tokio::test]
async fn a_process_with_a_former_number_of_partitions_corrects_nothing() {
    let pair = Pair::new().await;
    let [of_1, of_7] = [1, 7].map(|partitions| family("saves").partitions(partitions));
    let seven = of_7.clone().build().unwrap();
    let id = ids_of(&seven, 3, 1).remove(0);
    let former = pair.open(of_1).await;
    let row = id.clone();
    let source = Source::function(move |_| {
        let rows = HashMap::from([(row.clone(), 5)]);
        async { Ok(rows) }
    });
    let recount = pair
        .counterfoil
        .recount(&former, Rows::Added)
        .source(source);
    let recount = recount.within(WITHIN);
    let steps = recount.clone().steps().unwrap();
    let run = steps.take().await.unwrap().unwrap();
    let process = pair.other().await;
    process.reconfigure(&seven).await.unwrap();
    let saves = process.opened(of_7).await;
    saves.count(&id, 5).await;
    let before = steps.before(vec![id.clone()], None).await.unwrap();
    let page = steps.count(before).await.unwrap();
    let difference = steps.after(&page).await.unwrap();
    let corrected = steps.settle(&run, &difference).await;
    assert_eq!(saves.value(&id).await, 5);
    refused(corrected, Mismatch, "number of partitions");
    refused(recount.run_once().await, Mismatch, "number of partitions");
}

/// The correction of a cached counter is committed, and the reply to the commit is lost. The repeat
/// changes nothing in the database.
#[tokio::test]
async fn a_cached_counter_shows_a_correction_whose_commit_had_no_reply() {
    let (pair, votes) = votes(Durability::Immediate).await;
    pair.drain().await;
    let proxy = Arc::new(Proxy::to_unix(mysql().await.socket()));
    let options = (*pair.pool.connect_options()).clone();
    let store = MysqlStore::new(options.socket(proxy.socket())).unwrap();
    let other = patient(Counterfoil::new(pair.redis.manager().await, store));
    let cut = proxy.clone();
    let source = Source::function(move |_| {
        // the packet of the commit
        let commit = "COMMIT; ";
        cut.disturb([commit], testkit::Fate::ReplyLost { passed: 0 });
        async { Ok(HashMap::from([("1".to_owned(), 5)])) }
    });
    let recount = other
        .recount(
            &other.opened(of_items(Durability::Immediate)).await,
            Rows::Added,
        )
        .source(source);
    let done = recount.within(WITHIN).run_once().await.unwrap();
    assert_eq!((done.drifted, done.raised), (1, 1), "{done:?}");
    assert_eq!(shown_and_stored(&votes).await, (5, vec![Some(5)]));
    assert_eq!(proxy.calm(), 0);
}

/// A recounter dies after it committed the correction of a cached counter.
#[tokio::test]
async fn a_run_that_is_taken_over_shows_the_corrections_of_its_former_holder() {
    let (pair, votes) = votes(Durability::Immediate).await;
    pair.drain().await;
    let proxy = Proxy::to(&pair.redis);
    let other = pair.over(proxy.manager().await);
    let of_other = other.opened(of_items(Durability::Immediate)).await;
    let recount = other.recount(&of_other, Rows::Added).source(super::saves());
    let steps = recount.within(WITHIN).steps().unwrap();
    let (run, difference) = measured(&steps, "1").await;
    proxy.black_hole();
    let settling = timeout(millis(300), steps.settle(&run, &difference)).await;
    assert!(settling.is_err());
    proxy.heal(Held::Lost);
    assert_eq!(shown_and_stored(&votes).await, (3, vec![Some(5)]));
    let short = pair.recount(&votes).timeout(secs(1)).lease(Duration::ZERO);
    pause(1_100).await;
    let done = short.run_once().await.unwrap();
    assert_eq!((done.run, done.drifted), (1, 0), "{done:?}");
    assert_eq!(shown_and_stored(&votes).await, (5, vec![Some(5)]));
}

/// Opens a family that counts in the column `total` of the table `users`.
async fn of_users(pair: &Pair) -> BufferedCounters {
    let table = keyed(Table::update("users"), [("id", Unsigned)]);
    pair.open(family("saves").table(table.value("total"))).await
}

#[tokio::test]
async fn a_correction_that_the_database_refuses_is_noted() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE users (id INT PRIMARY KEY, total TINYINT UNSIGNED NOT NULL); INSERT INTO users VALUES (1, 0);
         CREATE TABLE saves (user_id INT NOT NULL, points INT NOT NULL, KEY (user_id));
         INSERT INTO saves VALUES (1, 300), (2, 1)",
    )
    .await;
    let saves = of_users(&pair).await;
    let done = pair
        .recount(&saves)
        .source(super::saves().sum("points"))
        .ids(RecountIds::Both)
        .run_once()
        .await
        .unwrap();
    assert_eq!(
        (done.checked, done.drifted, done.only_noted),
        (2, 2, 2),
        "{done:?}"
    );
    let noted = pair.mysql().drift(saves.family(), 1, None, 9);
    let noted = noted.await.unwrap();
    for (one, note) in noted.iter().zip(["range", "no such row"]) {
        assert!(one.note.contains(note) && one.delta == 0, "{one:?}");
    }
    assert_eq!(saves.value("1").await, 0);
}

#[tokio::test]
async fn a_counter_at_an_end_of_i64_stays_there() {
    let (pair, saves) = stage().await;
    saves.count("1", i64::MAX - 3).await;
    pair.drain().await;
    // the count of the source, and the expected corrections
    for (count, raised, lowered) in [(i64::MAX, 0, 0), (0, 0, 1), (i64::MAX, 1, 0)] {
        let done = pair
            .recount(&saves)
            .source(found("1", count))
            .run_once()
            .await
            .unwrap();
        assert_eq!((done.raised, done.lowered), (raised, lowered), "{count}");
        assert_eq!(done.drifted, raised + lowered, "{count}");
        assert_eq!(saves.value("1").await, count);
    }
}

/// A value in the application's table is outside i64.
#[tokio::test]
async fn a_value_outside_i64_does_not_block_others() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE users (id INT PRIMARY KEY, total BIGINT UNSIGNED NOT NULL);
         INSERT INTO users VALUES (1, 0), (2, 18446744073709551615), (3, 0), (4, 1)",
    )
    .await;
    pair.saves(&[1, 2, 3, 4]).await;
    let saves = of_users(&pair).await;
    let done = pair.recount(&saves).run_once().await.unwrap();
    assert_eq!((done.checked, done.raised), (3, 2), "{done:?}");
    assert_eq!(saves.get_many(["1", "3", "4"]).await.unwrap(), [1; 3]);
}

/// The server reports that it is a replica of another one, but receives nothing: its lag is
/// unknown.
#[tokio::test]
async fn a_replica_that_does_not_replicate_is_waited_for() {
    let (_mysql, pair, saves) = on_own_mysql().await;
    let (begin, end) = if pair.number("SELECT VERSION() LIKE '%MariaDB%'").await == 1 {
        (
            "CHANGE MASTER 'second' TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'",
            "RESET SLAVE 'second' ALL",
        )
    } else {
        (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'nobody'",
            "RESET REPLICA ALL",
        )
    };
    pair.sql(begin).await;
    let run = tokio::spawn(
        pair.recount(&saves)
            .replica(pair.mysql().clone())
            .run_once(),
    );
    pause(500).await;
    assert!(!run.is_finished());
    pair.sql(end).await;
    assert_eq!(run.await.unwrap().unwrap().raised, 1);
}

/// The application's table loses a column while the recount waits. The run fails by name, and
/// continues afterwards.
#[tokio::test]
async fn a_table_that_is_altered_fails_the_run_and_loses_nothing() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE users (id INT PRIMARY KEY, total INT NOT NULL); INSERT INTO users VALUES (1, 3)",
    )
    .await;
    pair.saves(&[1; 5]).await;
    let saves = of_users(&pair).await;
    let run = tokio::spawn(pair.recount(&saves).within(millis(500)).run_once());
    pause(200).await;
    pair.sql("ALTER TABLE users RENAME COLUMN total TO kept")
        .await;
    refused(run.await.unwrap(), Mismatch, "total");
    pair.sql("ALTER TABLE users RENAME COLUMN kept TO total")
        .await;
    let done = pair
        .recount(&saves)
        .within(WITHIN)
        .run_once()
        .await
        .unwrap();
    assert_eq!((done.run, done.raised), (1, 1));
    assert_eq!(saves.value("1").await, 5);
}

#[tokio::test]
async fn a_recounter_stops_at_once_also_while_a_server_is_silent() {
    let (mysql, pair, saves) = on_own_mysql().await;
    let start = async |rate| {
        let recount = pair.recount(&saves).within(MINUTE);
        let recount = recount.ids_per_second(rate).every(MINUTE..=MINUTE);
        let recounter = recount.start().unwrap();
        eventually("a run", async || pair.number(HELD).await == 1).await;
        recounter
    };
    let recounter = start(1).await;
    pair.redis.pause();
    pause(100).await;
    within(secs(2), recounter.shutdown()).await.unwrap();
    pair.redis.resume();
    // it is released
    assert_eq!(pair.number(HELD).await, 0);
    let recounter = start(5_000).await;
    mysql.pause();
    within(secs(4), recounter.shutdown()).await.unwrap();
    mysql.resume();
}

#[tokio::test]
async fn a_source_that_panics_is_asked_again() {
    let (pair, saves) = Pair::of(family("saves")).await;
    saves.count("1", 2).await;
    pair.drain().await;
    let asked = AtomicBool::new(false);
    let source = Source::function(move |_| {
        assert!(asked.swap(true, Ordering::Relaxed), "the first time");
        async { Ok(HashMap::from([("1".to_owned(), 5)])) }
    });
    let recount = pair.recount(&saves).source(source);
    let recount = recount.lease(millis(100)).timeout(millis(100));
    let recounter = recount.every(millis(200)..=millis(200)).start().unwrap();
    eventually("the panic", async || {
        let error = recounter.error().map(|error| error.to_string());
        error.is_some_and(|error| error.ends_with("a task panicked: the first time"))
    })
    .await;
    eventually("no error", async || recounter.error().is_none()).await;
    assert_eq!(saves.value("1").await, 5);
    recounter.shutdown().await.unwrap();
}

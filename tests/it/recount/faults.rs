//! Bad input, unavailable servers, and recounters whose runs are taken over.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use counterfoil::recount::Source;
use counterfoil::{BufferedCounters, ErrorKind, KeyType, Table};
use testkit::{MysqlServer, RedisOptions};

use crate::support::{Pair, eventually, family, pause};

const WITHIN: Duration = Duration::from_millis(20);

type Saves = BufferedCounters;

/// Creates counter 1 with the value 3 and 5 rows.
async fn stage(pair: &Pair) -> Saves {
    pair.sql("CREATE TABLE saves (event INT AUTO_INCREMENT PRIMARY KEY, user_id INT NOT NULL, KEY (user_id))").await;
    pair.sql("INSERT INTO saves (user_id) VALUES (1), (1), (1), (1), (1)")
        .await;
    let saves = pair.counterfoil.open(family("saves")).await.unwrap();
    let _ = saves.add("1", 3).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    saves
}

fn table() -> Source {
    Source::table("saves", ["user_id"])
}

#[tokio::test]
async fn what_a_source_must_not_return_is_an_error_before_anything_is_corrected() {
    let pair = Pair::new().await;
    let saves = stage(&pair).await;
    let counts = |count: &str| {
        format!("SELECT user_id, {count} FROM saves WHERE user_id IN (?) GROUP BY user_id")
    };
    for (text, named) in [
        (
            "SELECT user_id, COUNT(* FROM saves WHERE user_id IN (?)".to_owned(),
            "syntax",
        ),
        (
            "SELECT COUNT(*) FROM saves WHERE user_id IN (?)".to_owned(),
            "column",
        ),
        (
            "SELECT user_id, event, 1 FROM saves WHERE user_id IN (?)".to_owned(),
            "column",
        ),
        (
            "SELECT user_id, COUNT(*) FROM nowhere WHERE user_id IN (?) GROUP BY user_id"
                .to_owned(),
            "nowhere",
        ),
        (
            "SELECT user_id, 1 FROM saves WHERE user_id IN (?)".to_owned(),
            "was returned twice",
        ),
        (
            "SELECT user_id + 1, 1 FROM saves WHERE user_id IN (?) GROUP BY 1".to_owned(),
            "was not requested",
        ),
        (
            "SELECT NULL, 1 FROM saves WHERE user_id IN (?) LIMIT 1".to_owned(),
            "NULL",
        ),
        (counts("NULL"), "NULL"),
        (counts("-1"), "below 0"),
        (counts("2.5"), "not a 64-bit integer"),
        (counts("'many'"), "not a 64-bit integer"),
        (counts("9223372036854775808"), "not a 64-bit integer"),
    ] {
        let recount = pair
            .counterfoil
            .recount(&saves)
            .source(Source::sql(&*text))
            .within(WITHIN);
        let error = recount.run_once().await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && format!("{error:#}").contains(named),
            "{text}: {error:?}"
        );
        assert_eq!(saves.get("1").await.unwrap(), 3, "{text}");
    }
    let wrong = |id: &'static str, count| {
        Source::function(move |_| async move { Ok(HashMap::from([(id.to_owned(), count)])) })
    };
    for (source, named) in [
        (wrong("2", 1), "was not requested"),
        (wrong("1", -1), "below 0"),
    ] {
        let error = pair
            .counterfoil
            .recount(&saves)
            .source(source)
            .within(WITHIN)
            .run_once()
            .await
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && format!("{error:#}").contains(named),
            "{error:?}"
        );
    }
    // the run that all calls left is finished
    let done = pair
        .counterfoil
        .recount(&saves)
        .source(table())
        .within(WITHIN)
        .run_once()
        .await
        .unwrap();
    assert_eq!((done.run, done.raised), (1, 1), "{done:?}");
}

/// The first count hangs, and the second one is in time.
#[tokio::test]
async fn a_source_that_is_slow_or_away_is_asked_again() {
    let pair = Pair::new().await;
    let saves = stage(&pair).await;
    let (slow, failed) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicBool::new(true)),
    );
    let source = Source::function(move |_| {
        let (is_slow, fails) = (slow.swap(false, Ordering::Relaxed), failed.clone());
        async move {
            if is_slow {
                pause(60_000).await;
            }
            if fails.swap(false, Ordering::Relaxed) {
                return Err("away".into());
            }
            Ok(HashMap::from([("1".to_owned(), 5)]))
        }
    });
    let recount = pair
        .counterfoil
        .recount(&saves)
        .source(source)
        .within(WITHIN)
        .timeout(Duration::from_millis(100));
    assert_eq!(recount.run_once().await.unwrap().raised, 1);
    let slow = Source::sql(
        "SELECT user_id, COUNT(*) FROM saves WHERE user_id IN (?) AND SLEEP(0.3) = 0 GROUP BY user_id",
    );
    let recount = pair
        .counterfoil
        .recount(&saves)
        .source(slow)
        .within(WITHIN)
        .timeout(Duration::from_millis(300));
    let stopped = tokio::time::timeout(Duration::from_secs(3), recount.run_once()).await;
    assert!(stopped.is_err(), "it is asked again and again");
}

#[tokio::test]
async fn a_database_that_is_killed_holds_a_run_up_and_is_corrected_once() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let saves = stage(&pair).await;
    let recount = pair
        .counterfoil
        .recount(&saves)
        .source(table())
        .within(Duration::from_millis(500));
    let run = tokio::spawn(recount.run_once());
    for _ in 0..4 {
        pause(200).await;
        mysql.kill();
        pause(100).await;
        mysql.start_again().await;
    }
    let done = run.await.unwrap().unwrap();
    assert_eq!((done.checked, done.drifted), (1, 1), "{done:?}");
    assert_eq!(saves.get("1").await.unwrap(), 5);
    let noted = pair
        .mysql()
        .drift(saves.family(), done.run, None, 9)
        .await
        .unwrap();
    assert_eq!(noted.iter().map(|one| one.delta).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn redis_away_holds_a_run_up() {
    let pair = Pair::new().await;
    let saves = stage(&pair).await;
    pair.redis.pause();
    let run = tokio::spawn(
        pair.counterfoil
            .recount(&saves)
            .source(table())
            .within(WITHIN)
            .run_once(),
    );
    pause(500).await;
    assert!(!run.is_finished());
    pair.redis.resume();
    assert_eq!(run.await.unwrap().unwrap().raised, 1);
}

#[tokio::test]
async fn a_second_run_is_refused_and_one_that_was_left_is_gone_on_with() {
    let pair = Pair::new().await;
    let saves = stage(&pair).await;
    let long = pair
        .counterfoil
        .recount(&saves)
        .source(table())
        .within(Duration::from_secs(60));
    let hour = Duration::from_secs(3600);
    let first = long.clone().every(hour..=hour).start().unwrap();
    let began = async || {
        pair.number("SELECT COUNT(*) FROM counterfoil_recounts WHERE holder > 0")
            .await
            == 1
    };
    eventually("a run", began).await;
    let error = long.run_once().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let asked = Instant::now();
    first.shutdown().await.unwrap();
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
    let done = pair
        .counterfoil
        .recount(&saves)
        .source(table())
        .within(WITHIN)
        .run_once()
        .await
        .unwrap();
    assert_eq!((done.run, done.checked, done.raised), (1, 1, 1), "{done:?}");
}

/// The holder of the run died without leaving it.
#[tokio::test]
async fn a_run_whose_lease_has_ended_is_taken_over() {
    let pair = Pair::new().await;
    let saves = stage(&pair).await;
    let recount = pair
        .counterfoil
        .recount(&saves)
        .source(table())
        .within(WITHIN)
        .timeout(Duration::from_secs(1));
    let died = recount
        .clone()
        .steps()
        .unwrap()
        .take()
        .await
        .unwrap()
        .unwrap();
    let short = recount.lease(Duration::from_millis(100));
    let error = short.clone().run_once().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    pause(1_200).await;
    let done = short.run_once().await.unwrap();
    assert_eq!((done.run, done.raised), (1, 1), "{done:?} after {died:?}");
}

/// The old holder still waits when another one finishes its run, and then corrects nothing.
#[tokio::test]
async fn a_run_that_was_taken_over_corrects_nothing() {
    let pair = Pair::new().await;
    let saves = stage(&pair).await;
    let steps = || {
        pair.counterfoil
            .recount(&saves)
            .source(table())
            .within(WITHIN)
            .steps()
            .unwrap()
    };
    let (old, new) = (steps(), steps());
    let ids = || vec!["1".to_owned()];
    let begun = old.take().await.unwrap().unwrap();
    let measured = old.count(&old.before(ids()).await.unwrap()).await.unwrap();
    let difference = old.after(&measured).await.unwrap();
    let taken = new.take().await.unwrap().unwrap();
    let again = new.count(&new.before(ids()).await.unwrap()).await.unwrap();
    let same = new.after(&again).await.unwrap();
    assert!(new.settle(&taken, &same).await.unwrap());
    assert!(!old.settle(&begun, &difference).await.unwrap());
    // a run settles once, also for the same holder
    assert!(new.settle(&taken, &same).await.unwrap());
    assert_eq!(saves.get("1").await.unwrap(), 5);
    assert!(new.end(&taken).await.unwrap() && !old.end(&begun).await.unwrap());
}

#[tokio::test]
async fn a_correction_that_the_database_refuses_is_noted() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE users (id INT PRIMARY KEY, saves TINYINT UNSIGNED NOT NULL)")
        .await;
    pair.sql("INSERT INTO users VALUES (1, 0)").await;
    pair.sql("CREATE TABLE events (user_id INT NOT NULL, points INT NOT NULL, KEY (user_id))")
        .await;
    pair.sql("INSERT INTO events VALUES (1, 300), (2, 1)").await;
    let target = Table::update("users")
        .key("id", KeyType::Unsigned)
        .value("saves");
    let saves = pair
        .counterfoil
        .open(family("saves").table(target))
        .await
        .unwrap();
    let source = Source::table("events", ["user_id"]).sum("points");
    let recount = pair
        .counterfoil
        .recount(&saves)
        .source(source)
        .within(WITHIN);
    let done = recount
        .ids(counterfoil::recount::RecountIds::Both)
        .run_once()
        .await
        .unwrap();
    assert_eq!(
        (done.checked, done.drifted, done.only_noted),
        (2, 2, 2),
        "{done:?}"
    );
    let noted = pair
        .mysql()
        .drift(saves.family(), 1, None, 9)
        .await
        .unwrap();
    assert!(
        noted[0].note.contains("range") && noted[0].delta == 0,
        "{noted:?}"
    );
    assert_eq!((&*noted[1].note, noted[1].delta), ("no such row", 0));
    assert_eq!(saves.get("1").await.unwrap(), 0);
}

#[tokio::test]
async fn a_counter_at_an_end_of_i64_stays_there() {
    let pair = Pair::new().await;
    let saves = stage(&pair).await;
    let _ = saves.add("1", i64::MAX - 3).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    let source = |count: i64| {
        Source::function(move |_| async move { Ok(HashMap::from([("1".to_owned(), count)])) })
    };
    let run = async |count| {
        let recount = pair
            .counterfoil
            .recount(&saves)
            .source(source(count))
            .within(WITHIN);
        recount.run_once().await.unwrap()
    };
    assert_eq!(run(i64::MAX).await.drifted, 0);
    assert_eq!(run(0).await.lowered, 1);
    assert_eq!(
        (saves.get("1").await.unwrap(), run(i64::MAX).await.raised),
        (0, 1)
    );
    assert_eq!(saves.get("1").await.unwrap(), i64::MAX);
}

/// The server reports that it is a replica of another one, but receives nothing: its lag is
/// unknown.
#[tokio::test]
async fn a_replica_that_does_not_replicate_is_waited_for() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let saves = stage(&pair).await;
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(&pair.pool)
        .await
        .unwrap();
    let (begin, end) = if version.contains("MariaDB") {
        (
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'",
            "RESET SLAVE ALL",
        )
    } else {
        (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'nobody'",
            "RESET REPLICA ALL",
        )
    };
    pair.sql(begin).await;
    let recount = pair
        .counterfoil
        .recount(&saves)
        .source(table())
        .replica(pair.pool.clone())
        .within(WITHIN);
    let run = tokio::spawn(recount.run_once());
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
    pair.sql("CREATE TABLE users (id INT PRIMARY KEY, saves INT NOT NULL)")
        .await;
    pair.sql("INSERT INTO users VALUES (1, 3)").await;
    pair.sql("CREATE TABLE events (user_id INT NOT NULL, KEY (user_id))")
        .await;
    pair.sql("INSERT INTO events VALUES (1), (1), (1), (1), (1)")
        .await;
    let target = Table::update("users")
        .key("id", KeyType::Unsigned)
        .value("saves");
    let saves = pair
        .counterfoil
        .open(family("saves").table(target))
        .await
        .unwrap();
    let recount = |within| {
        pair.counterfoil
            .recount(&saves)
            .source(Source::table("events", ["user_id"]))
            .within(within)
    };
    let run = tokio::spawn(recount(Duration::from_millis(500)).run_once());
    pause(200).await;
    pair.sql("ALTER TABLE users RENAME COLUMN saves TO kept")
        .await;
    let error = run.await.unwrap().unwrap_err();
    assert!(
        error.kind() == ErrorKind::Mismatch && format!("{error:?}").contains("saves"),
        "{error:?}"
    );
    pair.sql("ALTER TABLE users RENAME COLUMN kept TO saves")
        .await;
    let done = recount(WITHIN).run_once().await.unwrap();
    assert_eq!(
        (done.run, done.raised, saves.get("1").await.unwrap()),
        (1, 1, 5)
    );
}

#[tokio::test]
async fn a_recounter_stops_at_once_also_while_a_server_is_silent() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let saves = stage(&pair).await;
    let hour = Duration::from_secs(3600);
    let start = |rate| {
        let recount = pair
            .counterfoil
            .recount(&saves)
            .source(table())
            .within(Duration::from_secs(60));
        recount
            .ids_per_second(rate)
            .every(hour..=hour)
            .start()
            .unwrap()
    };
    let recounter = start(1);
    let began = async || {
        pair.number("SELECT COUNT(*) FROM counterfoil_recounts WHERE holder > 0")
            .await
            == 1
    };
    eventually("a run", began).await;
    pair.redis.pause();
    pause(100).await;
    let asked = Instant::now();
    recounter.shutdown().await.unwrap();
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "{:?}",
        asked.elapsed()
    );
    pair.redis.resume();
    assert_eq!(
        pair.number("SELECT COUNT(*) FROM counterfoil_recounts WHERE holder > 0")
            .await,
        0,
        "it is left"
    );
    let recounter = start(5_000);
    eventually("the run again", began).await;
    mysql.pause();
    let asked = Instant::now();
    recounter.shutdown().await.unwrap();
    assert!(
        asked.elapsed() < Duration::from_secs(4),
        "{:?}",
        asked.elapsed()
    );
    mysql.resume();
}

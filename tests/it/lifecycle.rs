//! The life of a service, from its start to its shutdown.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::{Pair, Plain, day, eventually, family, pause, times};
use counterfoil::admin::Backlog;
use counterfoil::{Counterfoil, Durability, ErrorKind, Family, MysqlStore, Precision, Primary};
use testkit::{MysqlServer, RedisOptions, RedisServer};
use tokio::task::JoinSet;

const OWN: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";

/// The time limit of a shutdown without the database, including a second for a busy machine.
const SOON: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_reconciler_stops_soon_also_while_the_database_is_away_or_silent() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    for silent in [false, true] {
        let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
        if silent {
            mysql.pause()
        } else {
            mysql.kill()
        }
        let _ = views.add("page", 1).await.unwrap();
        pause(500).await;
        let began = Instant::now();
        reconciler.shutdown().await.unwrap();
        assert!(
            began.elapsed() < SOON,
            "silent: {silent}, it took {:?}",
            began.elapsed()
        );
        if silent {
            mysql.resume()
        } else {
            mysql.start_again().await
        }
    }
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 2);
}

#[tokio::test]
async fn a_backlog_is_read_where_no_reconciler_runs() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    assert_eq!(views.backlog().await.unwrap(), Backlog::default());
    let votes = Family::cached("test", "votes").durability(Durability::Immediate);
    let votes = pair.counterfoil.open(votes).await.unwrap();
    let hits = Family::series("test", "hits")
        .windows([(Precision::Day, 3)])
        .keep([Precision::Day]);
    let hits = pair.counterfoil.open(hits).await.unwrap();
    for id in ["a", "b", "c", "a"] {
        let _ = views.add(id, 1).await.unwrap();
        let _ = votes.incr(id, 1).await.unwrap();
        let _ = hits.add(id, 1).await.unwrap();
    }
    assert_eq!(votes.get("read only").await.unwrap(), 0);
    pause(300).await;
    for backlog in [
        views.backlog().await.unwrap(),
        votes.backlog().await.unwrap(),
    ] {
        assert_eq!((backlog.ids, backlog.open), (3, 0));
        let age = backlog.oldest.unwrap();
        assert!(
            Duration::from_millis(300) <= age && age < Duration::from_secs(20),
            "{age:?}"
        );
    }
    assert_eq!(
        hits.backlog().await.unwrap(),
        Backlog {
            open: 3,
            ..Backlog::default()
        }
    );
    pair.counterfoil.drain().await.unwrap();
    for backlog in [
        views.backlog().await.unwrap(),
        votes.backlog().await.unwrap(),
    ] {
        assert_eq!(
            backlog,
            Backlog {
                counted: 4,
                ..Backlog::default()
            }
        );
    }
    let _ = votes.incr("b", 1).await.unwrap();
    assert_eq!(votes.backlog().await.unwrap().ids, 1);
}

/// While the database is unavailable, a batch is as old as its hits.
#[tokio::test]
async fn a_backlog_grows_older_while_the_database_is_away() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let votes = Family::cached("test", "votes")
        .durability(Durability::Immediate)
        .sync_time(Duration::from_millis(20));
    let votes = pair.counterfoil.open(votes).await.unwrap();
    let _ = votes.incr("a", 1).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    mysql.kill();
    let _ = (
        views.add("a", 1).await.unwrap(),
        votes.incr("a", 1).await.unwrap(),
    );
    let _running = pair.counterfoil.reconciler().start().await.unwrap();
    let cut = async || {
        pair.redis
            .run::<Vec<String>>("KEYS *:batch")
            .await
            .unwrap()
            .len()
            == 2
    };
    eventually("the batches", cut).await;
    pause(700).await;
    let _ = views.add("b", 1).await.unwrap();
    for (backlog, ids) in [
        (views.backlog().await.unwrap(), 2),
        (votes.backlog().await.unwrap(), 1),
    ] {
        assert_eq!(backlog.ids, ids);
        assert!(
            backlog.oldest.unwrap() >= Duration::from_millis(600),
            "{backlog:?}"
        );
    }
}

/// Counted hits stay counted in the buffer, in a batch and in the database.
#[tokio::test]
async fn hits_are_counted_over_rotations_and_drains() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let (wide, at_once) = (family("wide").wide(true), Durability::Immediate);
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let wide = pair.counterfoil.open(wide).await.unwrap();
    let visitors = Family::visitors("test", "visitors").durability(at_once);
    let visitors = pair.counterfoil.open(visitors).await.unwrap();
    let hits = Family::series("test", "hits")
        .windows([(Precision::Day, 3)])
        .keep([Precision::Day]);
    let hits = pair
        .counterfoil
        .open(hits.durability(at_once))
        .await
        .unwrap();
    let online = Family::activity("test", "online").durability(at_once);
    let online = pair.counterfoil.open(online).await.unwrap();
    let votes = Family::cached("test", "votes").durability(at_once);
    let votes = pair.counterfoil.open(votes).await.unwrap();
    let count = async |round: u64| {
        for id in ["a", "b", "a"] {
            let _ = (
                views.add(id, -7).await.unwrap(),
                wide.add(id, 1).await.unwrap(),
            );
            let _ = (
                hits.add(id, 1).await.unwrap(),
                votes.incr(id, 1).await.unwrap(),
            );
            let _ = visitors
                .first_visit("shop", day("2014-09-20"), format!("{id} {round}"))
                .await
                .unwrap();
            online.touch("page", id).await.unwrap();
        }
    };
    let counted = async || {
        let (views, wide) = (
            views.backlog().await.unwrap().counted,
            wide.backlog().await.unwrap().counted,
        );
        let (visitors, hits) = (
            visitors.backlog().await.unwrap().counted,
            hits.backlog().await.unwrap().counted,
        );
        assert_eq!(online.backlog().await.unwrap().counted, 0);
        assert_eq!(votes.backlog().await.unwrap().counted, views);
        (views, wide, visitors, hits)
    };
    assert_eq!(counted().await, (0, 0, 0, 0));
    for round in 0..3 {
        count(round).await;
        assert_eq!(
            counted().await,
            (3 * round + 3, 3 * round + 3, 2 * round + 2, 2 * round)
        );
        pair.counterfoil.drain().await.unwrap();
        assert_eq!(
            counted().await,
            (3 * round + 3, 3 * round + 3, 2 * round + 2, 2 * round),
            "the day is not over"
        );
        pair.counterfoil.drain_all().await.unwrap();
        assert_eq!(
            counted().await,
            (3 * round + 3, 3 * round + 3, 2 * round + 2, 2 * round + 2)
        );
    }
    mysql.kill();
    count(3).await;
    let _running = pair.counterfoil.reconciler().start().await.unwrap();
    let cut = async || {
        !pair
            .redis
            .run::<Vec<String>>("KEYS cf1:{test/views/*}:batch")
            .await
            .unwrap()
            .is_empty()
    };
    eventually("a batch", cut).await;
    assert_eq!(counted().await, (12, 12, 8, 6));
    assert_eq!(views.backlog().await.unwrap().ids, 2);
}

/// One call reads a hundred partitions.
#[tokio::test]
async fn the_backlogs_of_idle_families_take_few_calls() {
    let plain = Plain::new().await;
    for tenant in 0..25 {
        let tenant = format!("tenant-{tenant}");
        let _ = plain
            .counterfoil
            .open(Family::buffered(&tenant, "views"))
            .await
            .unwrap();
        let _ = plain
            .counterfoil
            .open(Family::cached(&tenant, "votes"))
            .await
            .unwrap();
    }
    // the first time Redis does not know the script
    plain.counterfoil.backlogs().await.unwrap();
    let _: () = plain.redis.run("CONFIG RESETSTAT").await.unwrap();
    let counterfoil = plain.counterfoil.clone();
    let backlogs = tokio::spawn(async move { counterfoil.backlogs().await });
    assert_eq!(backlogs.await.unwrap().unwrap().len(), 50);
    let stats = plain
        .redis
        .run::<String>("INFO commandstats")
        .await
        .unwrap();
    let sent = stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"))
        .collect::<Vec<_>>();
    assert!(
        sent.len() == 1 && sent[0].starts_with("cmdstat_evalsha:calls=2,"),
        "{sent:?}"
    );
}

/// There are more partitions than one call reads, with and without content.
#[tokio::test]
async fn the_backlogs_of_all_families_are_those_of_each() {
    let pair = Pair::new().await;
    let at_once = Durability::Immediate;
    assert!(pair.counterfoil.backlogs().await.unwrap().is_empty());
    let mut expected = Vec::new();
    for tenant in ["a", "b"] {
        let views = Family::buffered(tenant, "views")
            .partitions(130)
            .durability(at_once);
        let views = pair.counterfoil.open(views).await.unwrap();
        let votes = Family::cached(tenant, "votes")
            .partitions(130)
            .durability(at_once);
        let votes = pair.counterfoil.open(votes).await.unwrap();
        let hits = Family::series(tenant, "hits")
            .windows([(Precision::Day, 3)])
            .keep([Precision::Day]);
        let hits = pair
            .counterfoil
            .open(hits.durability(at_once))
            .await
            .unwrap();
        let _idle = pair
            .counterfoil
            .open(Family::cached(tenant, "idle"))
            .await
            .unwrap();
        let many = if tenant == "a" { 40 } else { 3 };
        for number in 0..many {
            let id = format!("page/{number}");
            let _ = (
                views.add(&id, 1).await.unwrap(),
                views.add(&id, 1).await.unwrap(),
            );
            let _ = (
                votes.incr(&id, 1).await.unwrap(),
                hits.add(&id, 1).await.unwrap(),
            );
        }
        expected.extend([
            (format!("{tenant}/views"), (many, 0, 2 * many)),
            (format!("{tenant}/votes"), (many, 0, many)),
            (format!("{tenant}/hits"), (0, many, 0)),
            (format!("{tenant}/idle"), (0, 0, 0)),
        ]);
    }
    pause(50).await;
    let numbers = async || {
        let backlogs = pair.counterfoil.backlogs().await.unwrap();
        let backlogs: Vec<_> = backlogs
            .into_iter()
            .map(|(family, found)| (family, found.unwrap()))
            .collect();
        let has_age = |backlog: &Backlog| {
            backlog
                .oldest
                .is_some_and(|age| age >= Duration::from_millis(50))
        };
        assert!(
            backlogs
                .iter()
                .all(|(_, backlog)| has_age(backlog) == (backlog.ids > 0)),
            "{backlogs:?}"
        );
        let numbers = |backlog: Backlog| (backlog.ids, backlog.open, backlog.counted);
        backlogs
            .into_iter()
            .map(|(family, backlog)| (family.to_string(), numbers(backlog)))
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers().await, expected);
    pair.counterfoil.drain().await.unwrap();
    expected.iter_mut().for_each(|(_, (ids, ..))| *ids = 0);
    assert_eq!(numbers().await, expected);

    // another process, which serves families that it did not open
    let other = Counterfoil::new(
        pair.redis.manager().await,
        MysqlStore::new(pair.pool.clone()),
    );
    let _running = other.reconciler().namespace("b").start().await.unwrap();
    eventually("the families", async || {
        other.backlogs().await.unwrap().len() == 4
    })
    .await;
    let served = other.backlogs().await.unwrap();
    let of_views = served
        .iter()
        .find(|(family, _)| family.to_string() == "b/views")
        .unwrap();
    assert_eq!(
        *of_views.1.as_ref().unwrap(),
        Backlog {
            counted: 6,
            ..Backlog::default()
        }
    );

    // another program overwrote a family's buffer
    let _: () = pair
        .redis
        .run("SET cf1:{b/views/7}:buffer oops")
        .await
        .unwrap();
    let backlogs = pair.counterfoil.backlogs().await.unwrap();
    let broken: Vec<_> = backlogs
        .iter()
        .filter(|(_, found)| found.is_err())
        .map(|(family, _)| family.name())
        .collect();
    assert_eq!((backlogs.len(), broken), (8, vec!["views"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_brings_everything_to_the_database_and_takes_no_more() {
    let pair = Pair::new().await;
    let settling = family("views").durability(Durability::Settle(Duration::from_millis(300)));
    let views = pair.counterfoil.open(settling).await.unwrap();
    let votes = Family::cached("test", "votes").durability(Durability::Immediate);
    let votes = pair.counterfoil.open(votes).await.unwrap();
    // hits arrive all the time, until they are refused
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (views, votes) = (views.clone(), votes.clone());
        tasks.spawn(async move {
            let (mut hits, mut open) = (0, true);
            while open {
                let results = [
                    views.record("page", 1).map(|()| 1),
                    views.add("page", 1).await.map(|_| 1),
                    views.try_add("page", 1).await.map(|_| 1),
                    views.add_many([("page", 1)]).await.remove(0).map(|_| 1),
                    votes.incr("page", 1).await.map(|_| 1),
                ];
                for result in results {
                    match result {
                        Ok(hit) => hits += hit,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                            open = false;
                        }
                    }
                }
            }
            hits
        });
    }
    pause(300).await;
    let began = Instant::now();
    let remaining = pair
        .counterfoil
        .shutdown(Duration::from_secs(20))
        .await
        .unwrap();
    assert!(remaining.is_empty(), "{remaining:?}");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "it returns early: {:?}",
        began.elapsed()
    );
    let stored = pair.number(OWN).await;
    assert_eq!(stored, tasks.join_all().await.into_iter().sum::<i64>());
    // reads continue, and refused hits are not counted
    assert_eq!(
        views.get("page").await.unwrap() + votes.get("page").await.unwrap(),
        stored
    );
    let error = pair.counterfoil.open(family("later")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(
        pair.counterfoil
            .shutdown(Duration::from_secs(1))
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_shutdown_without_the_database_returns_in_time_and_tells_what_is_left() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let _idle = pair.counterfoil.open(family("idle")).await.unwrap();
    mysql.kill();
    let _ = (
        views.add("a", 1).await.unwrap(),
        views.add("b", 1).await.unwrap(),
    );
    views.record("c", 1).unwrap();
    let began = Instant::now();
    let remaining = pair
        .counterfoil
        .shutdown(Duration::from_secs(3))
        .await
        .unwrap();
    assert!(
        began.elapsed() < Duration::from_millis(3_500),
        "{:?}",
        began.elapsed()
    );
    let [one] = &*remaining else {
        panic!("{remaining:?}")
    };
    assert_eq!(
        (one.family.name(), one.recorded, one.backlog.unwrap().ids),
        ("views", 0, 3)
    );
    mysql.start_again().await;
    assert!(
        pair.counterfoil
            .shutdown(Duration::from_secs(20))
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(pair.number(OWN).await, 3);
}

#[tokio::test]
async fn a_shutdown_without_redis_tells_what_was_recorded() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    pair.redis.pause();
    for _ in 0..3 {
        views.record("page", 1).unwrap();
    }
    let began = Instant::now();
    let remaining = pair
        .counterfoil
        .shutdown(Duration::from_secs(3))
        .await
        .unwrap();
    assert!(
        began.elapsed() < Duration::from_millis(3_500),
        "{:?}",
        began.elapsed()
    );
    let [one] = &*remaining else {
        panic!("{remaining:?}")
    };
    assert_eq!((one.recorded, one.backlog), (3, None));
    pair.redis.resume();
    assert!(
        pair.counterfoil
            .shutdown(Duration::from_secs(20))
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(pair.number(OWN).await, 3);
}

#[tokio::test]
async fn a_shutdown_tells_which_recorded_hits_were_refused() {
    let pair = Pair::new().await;
    let views = pair
        .counterfoil
        .open(family("views").partitions(1).max_pending(1))
        .await
        .unwrap();
    let _ = views.add("page", i64::MAX).await.unwrap();
    for id in ["page", "other", "other"] {
        views.record(id, 1).unwrap();
    }
    let remaining = pair
        .counterfoil
        .shutdown(Duration::from_secs(20))
        .await
        .unwrap();
    let [one] = &*remaining else {
        panic!("{remaining:?}")
    };
    assert_eq!(
        (one.recorded, one.refused, one.backlog.unwrap().ids),
        (0, 3, 0)
    );
    assert!(
        pair.counterfoil
            .shutdown(Duration::from_secs(20))
            .await
            .unwrap()
            .is_empty(),
        "told once"
    );
    assert_eq!(pair.number(OWN).await, i64::MAX);
}

/// The next hit reopens a slice that was closed early. Its count is neither lost nor doubled.
#[tokio::test]
async fn a_drain_of_all_closes_slices_that_are_not_over() {
    let pair = Pair::new().await;
    let hits = Family::series("test", "hits")
        .windows([(Precision::Day, 3)])
        .keep([Precision::Day]);
    let hits = pair.counterfoil.open(hits).await.unwrap();
    let kept = Duration::from_secs(3);
    let online = Family::activity("test", "online")
        .window(Duration::from_secs(60), kept)
        .keep_minutes(true);
    let online = pair.counterfoil.open(online).await.unwrap();
    let open = async || {
        (
            hits.backlog().await.unwrap().open,
            online.backlog().await.unwrap().open > 0,
        )
    };
    let stored = |like: &'static str| {
        let sum = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values WHERE id LIKE ?";
        sqlx::query_scalar::<_, i64>(sum)
            .bind(like)
            .fetch_one(&pair.pool)
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs() as i64;
    for round in 1..=3 {
        let _ = hits.add("/", 5).await.unwrap();
        online.touch("/", "a visitor").await.unwrap();
        online.touch("/", format!("visitor {round}")).await.unwrap();
        pair.counterfoil.drain().await.unwrap();
        assert_eq!(open().await.0, 1, "a day is not over");
        assert_eq!(stored("20%/").await.unwrap(), 5 * (round - 1));
        pair.counterfoil.drain_all().await.unwrap();
        assert_eq!(open().await, (0, false));
        assert_eq!(stored("20%/").await.unwrap(), 5 * round);
        let days = hits
            .get_range("/", Precision::Day, times(now - 86_400..now + 1))
            .await;
        assert_eq!(
            days.unwrap().iter().map(|day| day.count).sum::<i64>(),
            5 * round
        );
    }
    assert_eq!(stored("views/%").await.unwrap(), 6);
    // each of the four visitors once; the first one again if a minute ended meanwhile
    assert!((4..=6).contains(&stored("visitors/%").await.unwrap()));
}

/// Families open and count while the database is unavailable from the start. The counts reach it
/// when it is up.
#[tokio::test]
async fn an_application_starts_without_the_database() {
    let mysql = MysqlServer::start().await;
    let (database, pool) = mysql.database("test").await;
    MysqlStore::new(pool.clone()).create_tables().await.unwrap();
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    mysql.kill();
    let pair = Counterfoil::new(
        redis.manager().await,
        MysqlStore::connect_lazy(&mysql.url(&database)).unwrap(),
    );
    let began = Instant::now();
    let views = pair.open(family("views")).await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    let hits = Family::series("test", "hits")
        .windows([(Precision::SECOND, 3)])
        .keep([Precision::SECOND]);
    let hits = pair.open(hits).await.unwrap();
    let _running = pair.reconciler().start().await.unwrap();
    for _ in 0..3 {
        let _ = views.add("page", 1).await.unwrap();
        let _ = hits.add("page", 1).await.unwrap();
    }
    assert_eq!(views.pending(&["page"]).await.unwrap(), [3]);
    mysql.start_again().await;
    let stored = async || {
        sqlx::query_scalar::<_, i64>(OWN)
            .fetch_one(&pool)
            .await
            .is_ok_and(|stored| stored == 6)
    };
    eventually("what was counted", stored).await;
    assert_eq!(views.get("page").await.unwrap(), 3);
    // a mismatch with the database's family is detected when the database is up, and the counts
    // stay in Redis
    mysql.kill();
    let other = pair.open(family("views").durability(Durability::Settle(Duration::from_secs(1))));
    let other = other.await.unwrap();
    let error = pair.open(family("views").partitions(8)).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Mismatch,
        "Redis knows its partitions: {error}"
    );
    let _ = other.add("page", 1).await.unwrap();
    mysql.start_again().await;
    eventually("the refusal", async || {
        other
            .get("page")
            .await
            .is_err_and(|error| error.kind() == ErrorKind::Mismatch)
    })
    .await;
    pause(300).await;
    assert_eq!(
        (
            views.pending(&["page"]).await.unwrap(),
            views.get("page").await.unwrap()
        ),
        (vec![1], 4)
    );
    let _ = pair.open(family("views")).await.unwrap();
    pair.drain().await.unwrap();
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(4)]);
}

#[tokio::test]
async fn a_builder_takes_a_connection_and_a_pool() {
    let mysql = MysqlServer::start().await;
    let limit = Duration::from_millis(200);
    for may_be_away in [false, true] {
        let redis = RedisServer::start(RedisOptions::volatile()).await;
        let (_, pool) = mysql.database("test").await;
        let connection = Primary::connect(redis.url()).await.unwrap();
        let builder = Counterfoil::builder()
            .connection(connection)
            .pool(pool)
            .create_tables(true);
        let builder = builder
            .start_without_mysql(may_be_away)
            .write_timeout(limit)
            .read_timeout(limit);
        let pair = builder.connect().await.unwrap();
        let views = pair.open(family("views")).await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
        assert_eq!(views.get("page").await.unwrap(), 1);
        redis.pause();
        let began = Instant::now();
        assert!(views.add("page", 1).await.is_err() && views.get("page").await.is_err());
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        redis.resume();
    }
}

#[tokio::test]
async fn a_builder_starts_without_the_database_where_it_is_told_to() {
    let mysql = MysqlServer::start().await;
    let (database, pool) = mysql.database("test").await;
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    let builder = |url: &str| {
        Counterfoil::builder()
            .redis(redis.url())
            .mysql(url)
            .create_tables(true)
    };
    let (url, elsewhere) = (mysql.url(&database), mysql.url("nowhere"));
    // a permanent error is reported at once
    for (wrong, kind) in [
        ("localhost/shop", ErrorKind::InvalidInput),
        (
            "mysql://localhost/shop?ssl-mode=NONE",
            ErrorKind::InvalidInput,
        ),
        (&*elsewhere, ErrorKind::Store),
    ] {
        let error = builder(wrong)
            .start_without_mysql(true)
            .connect()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    for silent in [false, true] {
        pool.close().await;
        if silent {
            mysql.pause()
        } else {
            mysql.kill();
            let error = builder(&url).connect().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        }
        let began = Instant::now();
        let pair = builder(&url)
            .start_without_mysql(true)
            .connect()
            .await
            .unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "silent: {silent}, {:?}",
            began.elapsed()
        );
        let views = pair.open(family("views")).await.unwrap();
        let votes = Family::cached("test", "votes").durability(Durability::Immediate);
        let votes = pair.open(votes).await.unwrap();
        let _running = pair.reconciler().all().start().await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
        if !silent {
            assert_eq!(
                votes.incr("item", 1).await.unwrap_err().kind(),
                ErrorKind::Store,
                "it has to be read first"
            );
        }
        if silent {
            mysql.resume()
        } else {
            mysql.start_again().await
        }
        // the tables are created when the database is up
        let stored = async || {
            views
                .stored(&["page"])
                .await
                .is_ok_and(|stored| stored == [Some(1 + i64::from(silent))])
        };
        eventually("what was counted", stored).await;
        assert_eq!(
            votes.incr("item", 1).await.unwrap().counted(),
            Some(1 + i64::from(silent))
        );
        pair.drain().await.unwrap();
        assert_eq!(
            votes.stored(&["item"]).await.unwrap(),
            [Some(1 + i64::from(silent))]
        );
    }
}

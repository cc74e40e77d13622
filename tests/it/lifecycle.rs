//! From start to shutdown: what a service does with a pair before it counts, and before it ends.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::{Pair, eventually, family, pause, times};
use counterfoil::{Backlog, Counterfoil, Durability, ErrorKind, Family, MysqlStore, Precision, Primary};
use testkit::{MysqlServer, RedisOptions, RedisServer};
use tokio::task::JoinSet;

const OWN: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";

/// How long a database is waited for by a reconciler that is to stop, and a second for what a busy machine takes.
const SOON: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_reconciler_stops_soon_also_while_the_database_is_away_or_silent() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views").build().unwrap()).await.unwrap();
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
        assert!(began.elapsed() < SOON, "silent: {silent}, it took {:?}", began.elapsed());
        if silent { mysql.resume() } else { mysql.start_again().await }
    }
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 2);
}

#[tokio::test]
async fn a_backlog_is_read_where_no_reconciler_runs() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views").build().unwrap()).await.unwrap();
    assert_eq!(views.backlog().await.unwrap(), Backlog::default());
    let votes = Family::cached("test", "votes").durability(Durability::Immediate).build().unwrap();
    let votes = pair.counterfoil.open(votes).await.unwrap();
    let hits = Family::series("test", "hits").windows([(Precision::Day, 3)]).keep([Precision::Day]).build().unwrap();
    let hits = pair.counterfoil.open(hits).await.unwrap();
    for id in ["a", "b", "c", "a"] {
        let _ = views.add(id, 1).await.unwrap();
        let _ = votes.incr(id, 1).await.unwrap();
        let _ = hits.add(id, 1).await.unwrap();
    }
    assert_eq!(votes.get("read only").await.unwrap(), 0);
    pause(300).await;
    for backlog in [views.backlog().await.unwrap(), votes.backlog().await.unwrap()] {
        assert_eq!((backlog.ids, backlog.open), (3, 0));
        let age = backlog.oldest.unwrap();
        assert!(Duration::from_millis(300) <= age && age < Duration::from_secs(20), "{age:?}");
    }
    assert_eq!(hits.backlog().await.unwrap(), Backlog { ids: 0, oldest: None, open: 3 });
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(views.backlog().await.unwrap(), Backlog::default());
    assert_eq!(votes.backlog().await.unwrap(), Backlog::default());
    let _ = votes.incr("b", 1).await.unwrap();
    assert_eq!(votes.backlog().await.unwrap().ids, 1);
}

/// A batch that was cut and a save that was begun are as old as their hits while the database is away.
#[tokio::test]
async fn a_backlog_grows_older_while_the_database_is_away() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views").build().unwrap()).await.unwrap();
    let votes = Family::cached("test", "votes").durability(Durability::Immediate).save_after(Duration::from_millis(20));
    let votes = pair.counterfoil.open(votes.build().unwrap()).await.unwrap();
    let _ = votes.incr("a", 1).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    mysql.kill();
    let _ = (views.add("a", 1).await.unwrap(), votes.incr("a", 1).await.unwrap());
    let _running = pair.counterfoil.reconciler().start().await.unwrap();
    let cut = async || pair.redis.run::<Vec<String>>("KEYS *:batch").await.unwrap().len() == 1;
    eventually("the batch", cut).await;
    pause(700).await;
    let _ = views.add("b", 1).await.unwrap();
    for (backlog, ids) in [(views.backlog().await.unwrap(), 2), (votes.backlog().await.unwrap(), 1)] {
        assert_eq!(backlog.ids, ids);
        assert!(backlog.oldest.unwrap() >= Duration::from_millis(600), "{backlog:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_brings_everything_to_the_database_and_takes_no_more() {
    let pair = Pair::new().await;
    let settling = family("views").durability(Durability::Settle(Duration::from_millis(300)));
    let views = pair.counterfoil.open(settling.build().unwrap()).await.unwrap();
    let votes = Family::cached("test", "votes").durability(Durability::Immediate).build().unwrap();
    let votes = pair.counterfoil.open(votes).await.unwrap();
    // hits that come all the time, until they are refused
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
    let remaining = pair.counterfoil.shutdown(Duration::from_secs(20)).await.unwrap();
    assert!(remaining.is_empty(), "{remaining:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "it returns early: {:?}", began.elapsed());
    let stored = pair.number(OWN).await;
    assert_eq!(stored, tasks.join_all().await.into_iter().sum::<i64>());
    // reading goes on, and what is refused is not counted
    assert_eq!(views.get("page").await.unwrap() + votes.get("page").await.unwrap(), stored);
    let error = pair.counterfoil.open(family("later").build().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(pair.counterfoil.shutdown(Duration::from_secs(1)).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_shutdown_without_the_database_returns_in_time_and_tells_what_is_left() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views").build().unwrap()).await.unwrap();
    let _idle = pair.counterfoil.open(family("idle").build().unwrap()).await.unwrap();
    mysql.kill();
    let _ = (views.add("a", 1).await.unwrap(), views.add("b", 1).await.unwrap());
    views.record("c", 1).unwrap();
    let began = Instant::now();
    let remaining = pair.counterfoil.shutdown(Duration::from_secs(3)).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(3_500), "{:?}", began.elapsed());
    let [one] = &*remaining else { panic!("{remaining:?}") };
    assert_eq!((one.family.name(), one.recorded, one.backlog.unwrap().ids), ("views", 0, 3));
    mysql.start_again().await;
    assert!(pair.counterfoil.shutdown(Duration::from_secs(20)).await.unwrap().is_empty());
    assert_eq!(pair.number(OWN).await, 3);
}

#[tokio::test]
async fn a_shutdown_without_redis_tells_what_was_recorded() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views").build().unwrap()).await.unwrap();
    pair.redis.pause();
    for _ in 0..3 {
        views.record("page", 1).unwrap();
    }
    let began = Instant::now();
    let remaining = pair.counterfoil.shutdown(Duration::from_secs(3)).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(3_500), "{:?}", began.elapsed());
    let [one] = &*remaining else { panic!("{remaining:?}") };
    assert_eq!((one.recorded, one.backlog), (3, None));
    pair.redis.resume();
    assert!(pair.counterfoil.shutdown(Duration::from_secs(20)).await.unwrap().is_empty());
    assert_eq!(pair.number(OWN).await, 3);
}

#[tokio::test]
async fn a_shutdown_tells_which_recorded_hits_were_refused() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views").partitions(1).max_pending(1).build().unwrap()).await.unwrap();
    let _ = views.add("page", i64::MAX).await.unwrap();
    for id in ["page", "other", "other"] {
        views.record(id, 1).unwrap();
    }
    let remaining = pair.counterfoil.shutdown(Duration::from_secs(20)).await.unwrap();
    let [one] = &*remaining else { panic!("{remaining:?}") };
    assert_eq!((one.recorded, one.refused, one.backlog.unwrap().ids), (0, 3, 0));
    assert!(pair.counterfoil.shutdown(Duration::from_secs(20)).await.unwrap().is_empty(), "told once");
    assert_eq!(pair.number(OWN).await, i64::MAX);
}

/// A slice that was closed early is opened by the next hit, and what that adds is neither lost nor doubled.
#[tokio::test]
async fn a_drain_of_all_closes_slices_that_are_not_over() {
    let pair = Pair::new().await;
    let hits = Family::series("test", "hits").windows([(Precision::Day, 3)]).keep([Precision::Day]).build().unwrap();
    let hits = pair.counterfoil.open(hits).await.unwrap();
    let kept = Duration::from_secs(3);
    let online = Family::activity("test", "online").window(Duration::from_secs(60), kept).keep_minutes(true);
    let online = pair.counterfoil.open(online.build().unwrap()).await.unwrap();
    let open = async || (hits.backlog().await.unwrap().open, online.backlog().await.unwrap().open > 0);
    let stored = |like: &'static str| {
        let sum = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values WHERE id LIKE ?";
        sqlx::query_scalar::<_, i64>(sum).bind(like).fetch_one(&pair.pool)
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
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
        let days = hits.get_range("/", Precision::Day, times(now - 86_400..now + 1)).await;
        assert_eq!(days.unwrap().iter().map(|day| day.count).sum::<i64>(), 5 * round);
    }
    assert_eq!(stored("views/%").await.unwrap(), 6);
    // each of the four once; the first one again if a minute ended meanwhile
    assert!((4..=6).contains(&stored("visitors/%").await.unwrap()));
}

/// Everything is opened, and counted, while the database is away from the start; it arrives when the database is there.
#[tokio::test]
async fn an_application_starts_without_the_database() {
    let mysql = MysqlServer::start().await;
    let (database, pool) = mysql.database("test").await;
    MysqlStore::new(pool.clone()).create_tables().await.unwrap();
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    mysql.kill();
    let pair = Counterfoil::new(redis.manager().await, MysqlStore::connect_lazy(&mysql.url(&database)).unwrap());
    let began = Instant::now();
    let views = pair.open(family("views").build().unwrap()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let hits = Family::series("test", "hits").windows([(Precision::SECOND, 3)]).keep([Precision::SECOND]);
    let hits = pair.open(hits.build().unwrap()).await.unwrap();
    let _running = pair.reconciler().start().await.unwrap();
    for _ in 0..3 {
        let _ = views.add("page", 1).await.unwrap();
        let _ = hits.add("page", 1).await.unwrap();
    }
    assert_eq!(views.pending(&["page"]).await.unwrap(), [3]);
    mysql.start_again().await;
    let stored = async || sqlx::query_scalar::<_, i64>(OWN).fetch_one(&pool).await.is_ok_and(|stored| stored == 6);
    eventually("what was counted", stored).await;
    assert_eq!(views.get("page").await.unwrap(), 3);
    // a family that the database knows in another way is found out then, and what was counted stays in Redis
    mysql.kill();
    let other = pair.open(family("views").durability(Durability::Settle(Duration::from_secs(1))).build().unwrap());
    let other = other.await.unwrap();
    let error = pair.open(family("views").partitions(8).build().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "Redis knows its partitions: {error}");
    let _ = other.add("page", 1).await.unwrap();
    mysql.start_again().await;
    eventually("the refusal", async || other.get("page").await.is_err_and(|error| error.kind() == ErrorKind::Mismatch))
        .await;
    pause(300).await;
    assert_eq!((views.pending(&["page"]).await.unwrap(), views.get("page").await.unwrap()), (vec![1], 4));
    let _ = pair.open(family("views").build().unwrap()).await.unwrap();
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
        let builder = Counterfoil::builder().connection(connection).pool(pool).create_tables(true);
        let builder = builder.start_without_mysql(may_be_away).write_timeout(limit).read_timeout(limit);
        let pair = builder.connect().await.unwrap();
        let views = pair.open(family("views").build().unwrap()).await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
        assert_eq!(views.get("page").await.unwrap(), 1);
        redis.pause();
        let began = Instant::now();
        assert!(views.add("page", 1).await.is_err() && views.get("page").await.is_err());
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        redis.resume();
    }
}

#[tokio::test]
async fn a_builder_starts_without_the_database_where_it_is_told_to() {
    let mysql = MysqlServer::start().await;
    let (database, pool) = mysql.database("test").await;
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    let builder = |url: &str| Counterfoil::builder().redis(redis.url()).mysql(url).create_tables(true);
    let (url, elsewhere) = (mysql.url(&database), mysql.url("nowhere"));
    // what waiting does not mend is told at once
    for (wrong, kind) in [
        ("localhost/shop", ErrorKind::InvalidInput),
        ("mysql://localhost/shop?ssl-mode=NONE", ErrorKind::InvalidInput),
        (&*elsewhere, ErrorKind::Store),
    ] {
        let error = builder(wrong).start_without_mysql(true).connect().await.unwrap_err();
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
        let pair = builder(&url).start_without_mysql(true).connect().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(4), "silent: {silent}, {:?}", began.elapsed());
        let views = pair.open(family("views").build().unwrap()).await.unwrap();
        let votes = Family::cached("test", "votes").durability(Durability::Immediate).build().unwrap();
        let votes = pair.open(votes).await.unwrap();
        let _running = pair.reconciler().all().start().await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
        if !silent {
            assert_eq!(votes.incr("item", 1).await.unwrap_err().kind(), ErrorKind::Store, "it has to be read first");
        }
        if silent {
            mysql.resume()
        } else {
            mysql.start_again().await
        }
        // the tables are created when it is back
        let stored = async || views.stored(&["page"]).await.is_ok_and(|stored| stored == [Some(1 + i64::from(silent))]);
        eventually("what was counted", stored).await;
        assert_eq!(votes.incr("item", 1).await.unwrap().counted(), Some(1 + i64::from(silent)));
        pair.drain().await.unwrap();
        assert_eq!(votes.stored(&["item"]).await.unwrap(), [Some(1 + i64::from(silent))]);
    }
}

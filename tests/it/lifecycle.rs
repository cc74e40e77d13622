//! From start to shutdown: what a service does with a pair before it counts, and before it ends.

use std::time::{Duration, Instant};

use crate::support::{Pair, eventually, family, pause};
use counterfoil::{Backlog, Durability, Family, Precision};
use testkit::{MysqlServer, RedisOptions};

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
    let votes = pair.counterfoil.open_cached(votes).await.unwrap();
    let hits = Family::series("test", "hits").windows([(Precision::Day, 3)]).keep([Precision::Day]).build().unwrap();
    let hits = pair.counterfoil.open_series(hits).await.unwrap();
    for id in ["a", "b", "c", "a"] {
        let _ = views.add(id, 1).await.unwrap();
        let _ = votes.incr(id, 1).await.unwrap();
        hits.add(id, 1).await.unwrap();
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
    let votes = pair.counterfoil.open_cached(votes.build().unwrap()).await.unwrap();
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

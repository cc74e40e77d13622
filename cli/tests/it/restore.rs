//! Servers that are set back, as docs/operations.md says: what is lost, and that the rest is exact.

use std::time::Duration;

use counterfoil::{Changed, Counterfoil, Durability, Family, KeyType, MysqlStore, Primary, Table};

use crate::support::{Daemon, Site, eventually};

const OWN: [&str; 4] = ["counterfoil_values", "counterfoil_versions", "counterfoil_ledger", "item"];

/// An application's counters of two kinds, and what MySQL has of them.
struct Counted {
    site: Site,
    views: counterfoil::BufferedCounters,
    votes: counterfoil::CachedCounters,
}

impl Counted {
    async fn new() -> Self {
        let site = Site::new().await;
        site.sql(
            "CREATE TABLE item (id INT UNSIGNED PRIMARY KEY, votes BIGINT NOT NULL); INSERT INTO item VALUES (1, 0)",
        )
        .await;
        site.configure("");
        let redis = Primary::connect(site.redis.url()).await.unwrap();
        let application = Counterfoil::new(redis, MysqlStore::new(site.pool.clone()));
        let now = Durability::Immediate;
        let views = Family::buffered("shop", "views").durability(now).sync_after(1, Duration::from_millis(50));
        let views = application.open(views.build().unwrap()).await.unwrap();
        let table = Table::update("item").key("id", KeyType::Unsigned).value("votes");
        let votes = Family::cached("shop", "votes").table(table).durability(now).save_after(Duration::from_millis(50));
        let votes = application.open(votes.build().unwrap()).await.unwrap();
        Counted { site, views, votes }
    }

    async fn count(&self, times: i64) {
        for _ in 0..times {
            let _ = self.views.add("page", 1).await.unwrap();
            assert!(matches!(self.votes.incr("1", 1).await.unwrap(), Changed::Counted { .. }));
        }
    }

    /// Five batches, each of one hit; returns the daemon that brought them, and the number of the first.
    async fn numbered(&self) -> (Daemon, String) {
        let daemon = self.site.daemon().await;
        let mut first = String::new();
        for round in 1..=5 {
            self.count(1).await;
            self.has(round, round).await;
            if round == 1 {
                first = self.site.redis.run(&format!("HGET {} seq", self.meta())).await.unwrap();
            }
        }
        (daemon, first)
    }

    /// Redis counts batches from there on: with numbers that MySQL has had.
    async fn set_back(&self, seq: &str) {
        eventually("nothing is on its way", async || self.views.backlog().await.unwrap().ids == 0).await;
        let _: i64 = self.site.redis.run(&format!("HSET {} seq {seq}", self.meta())).await.unwrap();
    }

    fn meta(&self) -> String {
        format!("cf1:{{shop/views/{}}}:meta", self.views.family().partition_of("page"))
    }

    async fn has(&self, views: i64, votes: i64) {
        eventually(&format!("{views} views, {votes} votes"), async || {
            self.site.number("SELECT value FROM counterfoil_values WHERE id = 'page'").await == views
                && self.site.number("SELECT votes FROM item").await == votes
        })
        .await;
        assert_eq!(self.views.get("page").await.unwrap(), views);
        assert_eq!(self.votes.get("1").await.unwrap(), votes);
    }
}

#[tokio::test]
async fn a_database_that_is_set_back_loses_what_came_after_the_backup_and_counts_on() {
    let counted = Counted::new().await;
    let daemon = counted.site.daemon().await;
    counted.count(10).await;
    counted.has(10, 10).await;
    for table in OWN {
        counted.site.sql(&format!("CREATE TABLE backup_{table} AS SELECT * FROM {table}")).await;
    }
    counted.count(5).await;
    counted.has(15, 15).await;
    daemon.signal("TERM");
    daemon.ended().await;

    for table in OWN {
        let back = format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM backup_{table}");
        counted.site.sql(&back).await;
    }
    let _daemon = counted.site.daemon().await;
    counted.count(2).await;
    counted.has(12, 12).await;
}

#[tokio::test]
async fn a_redis_that_is_emptied_loses_what_mysql_did_not_have_and_counts_on() {
    let counted = Counted::new().await;
    let _daemon = counted.site.daemon().await;
    counted.count(10).await;
    counted.has(10, 10).await;
    let _: () = counted.site.redis.run("FLUSHALL").await.unwrap();
    counted.count(3).await;
    counted.has(13, 13).await;
}

/// What is counted before the next flush is lost with what Redis forgot, and said so; what comes after it is exact.
#[tokio::test]
async fn a_redis_that_is_set_back_counts_on_from_the_next_flush() {
    let counted = Counted::new().await;
    let (_daemon, seq) = counted.numbered().await;
    counted.set_back(&seq).await;
    let _ = counted.views.add("page", 100).await.unwrap();
    eventually("the batch is gone", async || counted.views.backlog().await.unwrap().ids == 0).await;
    assert_eq!(counted.site.number("SELECT value FROM counterfoil_values WHERE id = 'page'").await, 5);
    counted.count(2).await;
    counted.has(7, 7).await;
}

/// How nothing of it is lost.
#[tokio::test]
async fn a_redis_from_a_backup_is_emptied_before_anybody_counts() {
    let counted = Counted::new().await;
    let (daemon, seq) = counted.numbered().await;
    daemon.signal("TERM");
    daemon.ended().await;
    counted.set_back(&seq).await;
    let keys: Vec<String> = counted.site.redis.run("KEYS cf1:*").await.unwrap();
    let _: i64 = counted.site.redis.run(&format!("UNLINK {}", keys.join(" "))).await.unwrap();
    let _daemon = counted.site.daemon().await;
    counted.count(2).await;
    counted.has(7, 7).await;
}

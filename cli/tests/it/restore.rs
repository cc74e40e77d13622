//! Servers restored from a backup as docs/operations.md describes: the loss is as documented, and
//! the rest is exact.

use std::time::Duration;

use counterfoil::{Counterfoil, Durability, Family, KeyType, MysqlStore, Outcome, Primary, Table};

use crate::client::get;
use crate::support::{Daemon, Site, eventually};

const OWN: [&str; 3] = ["counterfoil_values", "counterfoil_ledger", "item"];

/// An application's counters of two kinds, and its servers.
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
        let application = Counterfoil::new(redis, MysqlStore::new(&site.pool).unwrap());
        let now = Durability::Immediate;
        let views = Family::buffered("shop", "views")
            .durability(now)
            .sync_hits(1)
            .sync_time(Duration::from_millis(50));
        let views = application.open(views).await.unwrap();
        let table = Table::update("item")
            .key("id", KeyType::Unsigned)
            .value("votes");
        let votes = Family::cached("shop", "votes")
            .table(table)
            .durability(now)
            .sync_time(Duration::from_millis(50));
        let votes = application.open(votes).await.unwrap();
        Counted { site, views, votes }
    }

    async fn count(&self, times: i64) {
        for _ in 0..times {
            let _ = self.views.add("page", 1).await.unwrap();
            assert!(matches!(
                self.votes.incr("1", 1).await.unwrap(),
                Outcome::Counted(_)
            ));
        }
    }

    /// Counts ten hits of each kind that are in a backup of Redis, and then reach MySQL. Returns
    /// the daemon that saved them.
    async fn saved_after_backup(&self) -> Daemon {
        self.count(10).await;
        let _: () = self.site.redis.run("SAVE").await.unwrap();
        let daemon = self.site.daemon().await;
        self.has(10, 10).await;
        daemon
    }

    /// Kills Redis and restarts it with the backup.
    async fn restore_redis(&self) {
        self.site.redis.start_again().await;
    }

    /// Waits until both partitions were set back and lost this number of hits each, and checks the
    /// metrics.
    async fn began_anew(&self, daemon: &Daemon, hits: u32) {
        for family in ["shop/views", "shop/votes"] {
            daemon
                .logs(&[
                    "Redis was set back",
                    &format!("family={family}"),
                    &format!("hits={hits}"),
                ])
                .await;
        }
        let metrics = get(daemon, "/metrics").await.body;
        for family in ["views", "votes"] {
            for (metric, value) in [("set_back", 1), ("dropped_hits", hits)] {
                let sample = format!("counterfoil_{metric}_total{{family=\"{family}\"}} {value}\n");
                assert!(metrics.contains(&sample), "{sample}{metrics}");
            }
        }
    }

    /// Waits until the rows have these values.
    async fn has_rows(&self, views: i64, votes: i64) {
        eventually(&format!("{views} views, {votes} votes"), async || {
            self.site
                .number("SELECT value FROM counterfoil_values WHERE id = 'page'")
                .await
                == views
                && self.site.number("SELECT votes FROM item").await == votes
        })
        .await;
    }

    async fn has(&self, views: i64, votes: i64) {
        self.has_rows(views, votes).await;
        assert_eq!(self.views.get("page").await.unwrap(), views);
        assert_eq!(self.votes.get("1").await.unwrap(), votes);
    }
}

#[tokio::test]
async fn a_database_that_is_set_back_loses_what_came_after_the_backup_and_counts_on() {
    // between two batches, and in the middle of one
    for position in ["NULL", "'a'"] {
        set_back_database(position).await;
    }
}

/// Sets the database back to a state in which the last batches are applied up to a position.
async fn set_back_database(position: &str) {
    let counted = Counted::new().await;
    let daemon = counted.site.daemon().await;
    counted.count(10).await;
    counted.has(10, 10).await;
    for table in OWN {
        counted
            .site
            .sql(&format!(
                "CREATE TABLE backup_{table} AS SELECT * FROM {table}"
            ))
            .await;
    }
    let partial = format!("UPDATE backup_counterfoil_ledger SET position = {position}");
    counted.site.sql(&partial).await;
    counted.count(5).await;
    counted.has(15, 15).await;
    daemon.signal("TERM");
    daemon.ended().await;

    for table in OWN {
        let back = format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM backup_{table}");
        counted.site.sql(&back).await;
    }
    // also without further hits
    assert_eq!(counted.views.get("page").await.unwrap(), 10);
    let daemon = counted.site.daemon().await;
    let set_back = "the database was set back to an older state";
    daemon.logs(&[set_back, "family=shop/votes"]).await;
    counted.count(2).await;
    counted.has_rows(12, 12).await;
    // the value of a cached counter follows its row at the counter's next save
    eventually("the values", async || {
        counted.views.get("page").await.unwrap() == 12
            && counted.votes.get("1").await.unwrap() == 12
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_is_emptied_loses_what_mysql_did_not_have_and_counts_on() {
    let counted = Counted::new().await;
    let daemon = counted.site.daemon().await;
    counted.count(10).await;
    counted.has(10, 10).await;
    let _: () = counted.site.redis.run("FLUSHALL").await.unwrap();
    counted.count(3).await;
    counted.has(13, 13).await;
    // nothing counts meanwhile, so the daemon is the first to notice
    let _: () = counted.site.redis.run("FLUSHALL").await.unwrap();
    daemon.logs(&["does not know a family"]).await;
}

#[tokio::test]
async fn a_redis_from_a_backup_doubles_nothing_and_counts_on() {
    let counted = Counted::new().await;
    let daemon = counted.saved_after_backup().await;
    counted.count(3).await;
    counted.has(13, 13).await;
    counted.restore_redis().await;
    counted.began_anew(&daemon, 10).await;
    counted.has(13, 13).await;
    counted.count(2).await;
    counted.has(15, 15).await;
}

#[tokio::test]
async fn hits_between_the_restart_of_a_redis_from_a_backup_and_its_detection_are_reported() {
    let counted = Counted::new().await;
    let daemon = counted.saved_after_backup().await;
    daemon.signal("TERM");
    daemon.ended().await;
    counted.restore_redis().await;
    counted.count(2).await;
    let daemon = counted.site.daemon().await;
    counted.began_anew(&daemon, 12).await;
    counted.has(10, 10).await;
    counted.count(2).await;
    counted.has(12, 12).await;
}

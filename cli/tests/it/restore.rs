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

    /// Waits until every surface reports a set-back of this server with the loss of each family, and
    /// until it reports none after an operator has acknowledged it.
    async fn is_a_problem_until_acknowledged(&self, daemon: &Daemon, server: &str, lost: &[&str]) {
        let name = if server == "redis" { "Redis" } else { "MySQL" };
        let problem = format!("{name} was set back to an older state");
        eventually(&problem, async || {
            let state = get(daemon, "/api/v1/state").await.json();
            let problems = state["problems"].as_array().expect("problems");
            problems.iter().any(|one| {
                let why = one["why"].as_str().unwrap_or_default();
                one["problem"] == problem.as_str() && lost.iter().all(|lost| why.contains(lost))
            })
        })
        .await;
        let state = get(daemon, "/api/v1/state").await.json();
        assert_eq!(state["state"], "degraded");
        assert_eq!(state["pairs"][0]["set_backs"][0]["server"], server);
        assert!(get(daemon, "/").await.body.contains(&problem));
        let page = get(daemon, "/family?family=shop/views").await.body;
        assert!(
            page.contains("<strong>set back</strong>") && page.contains(&problem),
            "{page}"
        );
        let metrics = get(daemon, "/metrics").await.body;
        let gauge = format!(
            "counterfoil_open_set_backs{{pair=\"main\",family=\"views\",server=\"{server}\"}} 1\n"
        );
        assert!(metrics.contains(&gauge), "{metrics}");
        let status = self.site.run(&["status"]).await;
        assert!(
            status.code == 1 && status.out.contains(&problem),
            "{status:?}"
        );
        let listed = self.site.run(&["set-backs", "list"]).await;
        assert!(
            listed.code == 1 && listed.out.contains(server),
            "{listed:?}"
        );

        let acknowledged = self.site.run(&["set-backs", "acknowledge"]).await;
        assert_eq!((acknowledged.code, acknowledged.out), (0, listed.out));
        let status = self.site.run(&["status"]).await;
        assert!(!status.out.contains(&problem), "{status:?}");
        let listed = self.site.run(&["set-backs", "list"]).await;
        assert_eq!((listed.code, &*listed.out), (0, "no set-backs\n"));
        eventually("no problem", async || {
            !get(daemon, "/").await.body.contains(&problem)
        })
        .await;
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
    let lost = [" of shop/views", " of shop/votes"];
    counted
        .is_a_problem_until_acknowledged(&daemon, "mysql", &lost)
        .await;
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
    daemon
        .logs(&[
            "Redis does not know",
            "pair=\"main\"",
            "shop/views",
            "shop/votes",
        ])
        .await;
}

#[tokio::test]
async fn a_redis_from_a_backup_doubles_nothing_and_counts_on() {
    let counted = Counted::new().await;
    let daemon = counted.saved_after_backup().await;
    counted.count(3).await;
    counted.has(13, 13).await;
    counted.restore_redis().await;
    counted.began_anew(&daemon, 10).await;
    let lost = [
        "20 hits that waited were dropped",
        "10 of shop/views",
        "10 of shop/votes",
    ];
    counted
        .is_a_problem_until_acknowledged(&daemon, "redis", &lost)
        .await;
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

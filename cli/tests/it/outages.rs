//! Outages, and what each surface of the daemon says about them: status page, API, `status`,
//! metrics, readiness and log.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil::{BufferedCounters, Counterfoil, Durability, Family, MysqlStore};
use counterfoil::{redis, sqlx};
use futures_util::future::join;
use serde_json::{Value, json};
use testkit::{MysqlServer, RedisOptions, RedisServer};
use tokio::time::{sleep, timeout};

use crate::client::get;
use crate::http::{sample, scrape};
use crate::support::{Daemon, Site, eventually};

/// Two families in counterfoil's table, and one in each table of the application.
const FAMILIES: &str = r#"
[[family]]
name = "shop/views"
kind = "buffered"
sync_hits = 1
sync_time = "50ms"
[[family]]
name = "shop/denied"
kind = "buffered"
sync_hits = 1
sync_time = "50ms"
[[family]]
name = "shop/small"
kind = "buffered"
sync_hits = 1
sync_time = "50ms"
table = { name = "small", write = "upsert", keys = [["id", "text"]], value = "n" }
[[family]]
name = "shop/dropped"
kind = "buffered"
sync_hits = 1
sync_time = "50ms"
table = { name = "dropped", write = "upsert", keys = [["id", "text"]], value = "n" }
[[family]]
name = "shop/revoked"
kind = "buffered"
sync_hits = 1
sync_time = "50ms"
table = { name = "revoked", write = "upsert", keys = [["id", "text"]], value = "n" }
[[family]]
name = "shop/locked"
kind = "buffered"
sync_hits = 1
sync_time = "50ms"
table = { name = "locked", write = "upsert", keys = [["id", "text"]], value = "n" }
"#;

/// Enough ids for a table to grow.
const IDS: i64 = 500;

/// Counts the hits of families in counterfoil's table.
const VIEWS: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";
/// Counts the hits in the table `small`.
const SMALL: &str = "SELECT CAST(SUM(n) AS SIGNED) FROM small";

/// The time within which a surface tells of an outage.
const SOON: Duration = Duration::from_secs(15);

/// One pair of servers, and the daemon of a user with few privileges.
struct Stage {
    mysql: MysqlServer,
    site: Site,
    daemon: Daemon,
    /// A client that keeps its connection.
    writer: Counterfoil,
}

/// The texts and values by which the surfaces tell of an outage. A surface contains its text.
struct Says {
    outage: &'static str,
    page: &'static [&'static str],
    /// Where the state of the pair in the API has this value.
    api: (&'static str, Value),
    metric: (&'static str, &'static [(&'static str, &'static str)], f64),
    /// The body of `/readyz`.
    ready: &'static str,
    /// The exit code of `status`, and a part of its output.
    status: (i32, &'static str),
    /// The words of a line in the log.
    log: &'static [&'static str],
}

impl Stage {
    async fn begin() -> Self {
        Stage::on(MysqlServer::start().await).await
    }

    /// On a MySQL with a disk, or `None` if this machine cannot mount one.
    async fn with_disk(logs: bool) -> Option<Self> {
        match MysqlServer::start_with_disk(logs).await {
            Ok(mysql) => Some(Stage::on(mysql).await),
            Err(why) => {
                println!("skipped, because this machine cannot mount a disk: {why}");
                None
            }
        }
    }

    /// If MySQL has a disk, the table `small` is on it.
    async fn on(mysql: MysqlServer) -> Self {
        let redis = RedisServer::start(RedisOptions::volatile()).await;
        let (database, pool) = mysql.database("outages").await;
        MysqlStore::new(&pool)
            .unwrap()
            .create_tables()
            .await
            .expect("counterfoil's tables");
        let url = mysql.url(&database).replace("root@", "counterfoil@");
        let site = Site::of(redis, pool, url);
        site.sql("CREATE USER counterfoil@localhost").await;
        for table in ["small", "dropped", "revoked", "locked"] {
            let kind = if table == "small" {
                "TINYINT"
            } else {
                "BIGINT"
            };
            let place = match mysql.disk() {
                Some(disk) if table == "small" => {
                    format!("DATA DIRECTORY = '{}'", disk.dir().display())
                }
                _ => String::new(),
            };
            let create = format!(
                "CREATE TABLE {table} (id VARBINARY(64) PRIMARY KEY, n {kind} NOT NULL) {place}"
            );
            site.sql(&create).await;
        }
        site.configure(FAMILIES);
        for grant in site.run(&["grants", "daemon"]).await.out.lines() {
            if grant.starts_with("GRANT") {
                let grant = grant
                    .replace("`%`", "localhost")
                    .replace("'%'", "localhost");
                site.sql(&grant).await;
            }
        }
        let daemon = site.daemon().await;
        // where `status` finds the daemon
        site.listens_at(&daemon);
        let writer = site.writer().await;
        let stage = Stage {
            mysql,
            site,
            daemon,
            writer,
        };
        stage.is_well().await;
        stage
    }

    async fn family(&self, name: &str) -> BufferedCounters {
        let family = Family::buffered("shop", name)
            .durability(Durability::Immediate)
            .sync_hits(1)
            .sync_time(Duration::from_millis(50));
        // this process needs no database, and so no table
        self.writer.open(family).await.expect("opened")
    }

    async fn count(&self, name: &str, hits: i64) {
        let _ = self
            .family(name)
            .await
            .add("page", hits)
            .await
            .expect("counted");
    }

    /// Counts a hit for each of [`IDS`] long ids.
    async fn count_ids(&self, name: &str) {
        let family = self.family(name).await;
        for id in 0..IDS {
            let counted = family.add(&format!("{id:0>50}"), 1).await;
            let _ = counted.expect("counted");
        }
    }

    async fn page(&self) -> String {
        get(&self.daemon, "/").await.body
    }

    async fn is_well(&self) {
        eventually("all is well", async || {
            self.page()
                .await
                .contains("<strong>healthy</strong> 6 families are served")
                && get(&self.daemon, "/readyz").await.body == "ready\n"
        })
        .await;
    }

    /// Waits until a surface says what it should. Panics with the state and the log otherwise.
    async fn soon(&self, what: &str, is_so: impl AsyncFnMut() -> bool) {
        if timeout(SOON, eventually(what, is_so)).await.is_err() {
            let state = get(&self.daemon, "/api/v1/state").await.body;
            panic!("waited for {what}: {state}\n{}", self.daemon.log());
        }
    }

    /// Checks that all surfaces say this soon.
    async fn says(&self, says: Says) {
        let Says {
            outage,
            page,
            api,
            metric,
            ready,
            status,
            log,
        } = says;
        let surfaces = async {
            self.soon(&format!("{outage}: page with {page:?}"), async || {
                let shown = self.page().await;
                page.iter().all(|words| shown.contains(words))
            })
            .await;
            let (pointer, expected) = api;
            self.soon(&format!("{outage}: {pointer} is {expected}"), async || {
                let state = get(&self.daemon, "/api/v1/state").await.json();
                state["pairs"][0].pointer(pointer) == Some(&expected)
            })
            .await;
            let (name, labels, value) = metric;
            self.soon(&format!("{outage}: {name} {labels:?}"), async || {
                sample(&scrape(&self.daemon).await, name, labels) == Some(value)
            })
            .await;
            self.soon(&format!("{outage}: {ready}"), async || {
                get(&self.daemon, "/readyz").await.body == ready
            })
            .await;
            self.daemon.logs(log).await;
        };
        let expected = format!("{outage}: status with {status:?}");
        let printed = self.soon(&expected, async || {
            let printed = self.site.run(&["status"]).await;
            printed.code == status.0 && printed.out.contains(status.1)
        });
        join(surfaces, printed).await;
    }
}

#[tokio::test]
async fn every_surface_tells_of_an_outage() {
    let stage = Stage::begin().await;
    let Stage {
        mysql,
        site,
        daemon,
        ..
    } = &stage;
    stage.count("views", 1).await;

    site.sql("SET GLOBAL read_only = 1").await;
    stage.count("views", 1).await;
    stage
        .says(Says {
            outage: "MySQL is read-only",
            page: &[
                "<strong>degraded</strong>",
                "flush of shop/views",
                "mysql read_only",
                "failing",
            ],
            api: ("/reconciler/failing/0/family", json!("shop/views")),
            metric: ("counterfoil_server_failing", &[("server", "mysql")], 1.0),
            ready: "not ready: flush\n",
            status: (2, "error: mysql read_only"),
            log: &[
                "fails, will retry",
                "server=\"mysql\"",
                "shop/views",
                "accepts no writes",
            ],
        })
        .await;
    site.sql("SET GLOBAL read_only = 0").await;
    daemon.logs(&["nothing fails any more"]).await;

    mysql.kill();
    stage.count("views", 1).await;
    stage
        .says(Says {
            outage: "MySQL is stopped",
            page: &["<strong>down</strong>", "MySQL is unavailable"],
            api: ("/mysql/up", json!(false)),
            metric: ("counterfoil_server_up", &[("server", "mysql")], 0.0),
            ready: "not ready: mysql\n",
            status: (2, "shop/views"),
            // the reason is the server's own
            log: &["unavailable", "server=\"mysql\"", "(os error "],
        })
        .await;
    mysql.start_again().await;
    stage.is_well().await;

    let _: () = site.redis.run("CONFIG SET maxmemory 1").await.expect("set");
    stage
        .says(Says {
            outage: "Redis has reached maxmemory",
            page: &[
                "<strong>down</strong>",
                "Redis refuses hits",
                "has reached maxmemory",
            ],
            api: ("/reconciler/failing/0/step", json!("counting")),
            metric: ("counterfoil_server_failing", &[("server", "redis")], 1.0),
            ready: "ready\n",
            status: (2, "error: redis maxmemory"),
            log: &["fails, will retry", "server=\"redis\"", "maxmemory"],
        })
        .await;
    let _: () = site.redis.run("CONFIG SET maxmemory 0").await.expect("set");
    stage.is_well().await;

    let set = "CONFIG SET min-replicas-to-write 1";
    let _: () = site.redis.run(set).await.expect("set");
    stage
        .says(Says {
            outage: "Redis lacks a replica",
            page: &[
                "<strong>down</strong>",
                "Redis refuses hits",
                "no replica is near enough",
            ],
            api: ("/reconciler/failing/0/step", json!("counting")),
            metric: ("counterfoil_server_failing", &[("server", "redis")], 1.0),
            ready: "ready\n",
            status: (2, "error: redis writes"),
            log: &["fails, will retry", "server=\"redis\"", "no replica"],
        })
        .await;
    let set = "CONFIG SET min-replicas-to-write 0";
    let _: () = site.redis.run(set).await.expect("set");
    stage.is_well().await;

    let _: () = site.redis.run("REPLICAOF localhost 1").await.expect("set");
    stage
        .says(Says {
            outage: "Redis is a replica",
            page: &[
                "<strong>down</strong>",
                "Redis is unavailable",
                "the server is a replica",
            ],
            api: ("/redis/up", json!(false)),
            metric: ("counterfoil_server_up", &[("server", "redis")], 0.0),
            ready: "not ready: redis\n",
            status: (2, "replica"),
            log: &["unavailable", "server=\"redis\"", "the server is a replica"],
        })
        .await;
    let _: () = site.redis.run("REPLICAOF NO ONE").await.expect("set");
    stage.is_well().await;

    site.redis.pause();
    stage
        .says(Says {
            outage: "Redis is silent",
            page: &["<strong>down</strong>", "Redis is unavailable"],
            api: ("/redis/why", json!("no reply within 3 s")),
            metric: ("counterfoil_server_up", &[("server", "redis")], 0.0),
            ready: "not ready: redis\n",
            status: (2, "Redis is unavailable"),
            log: &["unavailable", "server=\"redis\"", "no reply within 3 s"],
        })
        .await;
    site.redis.resume();
    stage.is_well().await;

    site.redis.kill();
    stage
        .says(Says {
            outage: "Redis is stopped",
            page: &["<strong>down</strong>", "Redis is unavailable"],
            api: ("/redis/up", json!(false)),
            metric: ("counterfoil_server_up", &[("server", "redis")], 0.0),
            ready: "not ready: redis\n",
            status: (2, "Redis is unavailable"),
            log: &["unavailable", "server=\"redis\"", "refused"],
        })
        .await;
    stage
        .soon("the failing search", async || {
            let state = get(daemon, "/api/v1/state").await.json();
            state["pairs"][0]["reconciler"]["failing"][0]["server"] == "redis"
        })
        .await;
    // it does not reply, so it refuses nothing
    let (name, labels) = ("counterfoil_server_failing", [("server", "redis")]);
    assert_eq!(sample(&scrape(daemon).await, name, &labels), Some(0.0));
    site.redis.start_again().await;
    stage.is_well().await;

    changed_password_of_mysql(&stage).await;
    wrong_clock(&stage).await;
    outages_of_single_families(&stage).await;
    changed_password_of_redis(&stage).await;
}

/// The password of MySQL changes, and the connections end.
async fn changed_password_of_mysql(stage: &Stage) {
    let Stage { site, .. } = stage;
    site.sql("ALTER USER counterfoil@localhost IDENTIFIED BY 'other'")
        .await;
    site.end_sessions("counterfoil").await;
    stage
        .says(Says {
            outage: "the password of MySQL was changed",
            page: &[
                "<strong>down</strong>",
                "MySQL is unavailable",
                "Access denied",
            ],
            api: ("/mysql/up", json!(false)),
            metric: ("counterfoil_server_up", &[("server", "mysql")], 0.0),
            ready: "not ready: mysql\n",
            status: (2, "Access denied"),
            log: &["unavailable", "server=\"mysql\"", "Access denied"],
        })
        .await;
    site.sql("ALTER USER counterfoil@localhost IDENTIFIED BY ''")
        .await;
    stage.is_well().await;
}

/// The clock of MySQL, as the daemon's sessions see it, is wrong.
async fn wrong_clock(stage: &Stage) {
    let Stage { site, daemon, .. } = stage;
    site.sql("SET GLOBAL init_connect = 'SET timestamp = 1700000000'")
        .await;
    site.end_sessions("counterfoil").await;
    daemon.signal("HUP");
    let page = &["mysql clock", " s behind the one of this machine"];
    stage
        .soon("the clock on the page", async || {
            let shown = stage.page().await;
            page.iter().all(|words| shown.contains(words))
        })
        .await;
    let checked = site.run(&["check"]).await;
    assert!(checked.out.contains("warning: mysql clock"), "{checked:?}");
    site.sql("SET GLOBAL init_connect = ''").await;
    site.end_sessions("counterfoil").await;
    daemon.signal("HUP");
    stage
        .soon("the right clock", async || {
            !stage.page().await.contains("mysql clock")
        })
        .await;
    stage.is_well().await;
}

async fn outages_of_single_families(stage: &Stage) {
    let Stage { site, daemon, .. } = stage;
    stage.count("small", 1000).await;
    stage
        .says(Says {
            outage: "a column is too small",
            page: &["<strong>degraded</strong>", "shop/small has rejects"],
            api: ("/rejects/0/family", json!("shop/small")),
            metric: ("counterfoil_open_rejects", &[("family", "small")], 1.0),
            ready: "ready\n",
            status: (1, "rejects"),
            log: &["a row refused a change", "shop/small"],
        })
        .await;

    stage.count("denied", 1).await;
    stage.family("dropped").await;
    stage.family("revoked").await;
    let patterns = ["views", "small", "dropped", "revoked", "locked"]
        .map(|name| format!("~cf1:{{shop/{name}/*"));
    let allowed = format!("ACL SETUSER default resetkeys {}", patterns.join(" "));
    let _: () = site.redis.run(&allowed).await.expect("set");
    site.sql("DROP TABLE dropped").await;
    site.sql("REVOKE INSERT ON revoked FROM counterfoil@localhost")
        .await;
    let mut locking = site.pool.acquire().await.expect("a connection");
    let lock = sqlx::raw_sql("LOCK TABLES locked WRITE");
    lock.execute(&mut *locking).await.expect("locked");
    for name in ["dropped", "revoked", "locked"] {
        stage.count(name, 1).await;
    }
    for (outage, family, words) in [
        ("an ACL entry is missing", "denied", "permissions to access"),
        ("a table was dropped", "dropped", "doesn't exist"),
        ("a table is locked", "locked", "Lock wait timeout"),
        (
            "a privilege was revoked",
            "revoked",
            "INSERT command denied",
        ),
    ] {
        let failing = async || {
            let state = get(daemon, "/api/v1/state").await.json();
            let failing = state["pairs"][0]["reconciler"]["failing"]
                .as_array()
                .expect("failing")
                .clone();
            let name = format!("shop/{family}");
            failing
                .into_iter()
                .find(|one| one["family"] == name.as_str())
        };
        eventually(outage, async || failing().await.is_some()).await;
        let one = failing().await.expect("it fails");
        assert!(
            one["error"].as_str().expect("text").contains(words),
            "{outage}: {one}"
        );
        daemon
            .logs(&["fails, will retry", &format!("shop/{family}"), words])
            .await;
        let scrape = scrape(daemon).await;
        let labels = [("family", family)];
        assert_eq!(
            sample(&scrape, "counterfoil_families_failing", &labels),
            Some(1.0),
            "{outage}"
        );
    }
    stage
        .says(Says {
            outage: "four families wait",
            page: &[
                "shop/denied is broken",
                "permissions to access",
                "flush of shop/dropped",
                "INSERT command denied",
                "Lock wait timeout",
            ],
            api: ("/looks/families/stale", json!(false)),
            metric: ("counterfoil_families_broken", &[("family", "denied")], 1.0),
            ready: "not ready: flush\n",
            status: (2, "permissions to access"),
            log: &["fails, will retry", "search for hits", "shop/denied"],
        })
        .await;
    // a right that is missing in Redis needs another command than one that is missing in MySQL
    let state = get(daemon, "/api/v1/state").await.json();
    let problems = state["problems"].as_array().expect("problems").iter();
    let commands: BTreeSet<_> = problems
        .map(|one| (one["problem"].as_str(), one["command"].as_str()))
        .collect();
    for (problem, command) in [
        ("shop/denied is broken", "counterfoil acl daemon"),
        ("flush of shop/revoked", "counterfoil grants daemon"),
        ("flush of shop/dropped", "counterfoil check"),
    ] {
        let is_found = commands.contains(&(Some(problem), Some(command)));
        assert!(is_found, "{problem}: {commands:#?}");
    }
    let printed = site.run(&["status"]).await.out;
    for words in [
        "`counterfoil acl daemon`",
        "`counterfoil grants daemon`",
        "dropped",
        "no INSERT privilege",
        "locked",
        "Lock wait timeout",
        "Let a wanted ALTER TABLE finish",
    ] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    // the others are served and probed, and their figures are current
    let state = get(daemon, "/api/v1/state").await.body;
    assert!(!state.contains("check of Redis"), "{state}");
    let before = get(daemon, "/api/v1/state?family=shop/views").await.json();
    let seen = |state: &Value| {
        state["pairs"][0]["families"][0]["seen"]
            .as_u64()
            .expect("seen")
    };
    eventually("current figures", async || {
        seen(&get(daemon, "/api/v1/state?family=shop/views").await.json()) > seen(&before)
    })
    .await;
}

/// The password of Redis changes, and the connections end.
async fn changed_password_of_redis(stage: &Stage) {
    // a connection that stays
    let mut administrator = stage.site.redis.manager().await;
    let mut order = async |command: &str| {
        let mut words = command.split(' ');
        let mut order = redis::cmd(words.next().expect("a command"));
        order.arg(words.collect::<Vec<_>>());
        let done: redis::RedisResult<redis::Value> = order.query_async(&mut administrator).await;
        done.expect(command);
    };
    order("ACL SETUSER default resetpass >other").await;
    order("CLIENT KILL TYPE normal").await;
    stage
        .says(Says {
            outage: "the password of Redis was changed",
            page: &[
                "<strong>down</strong>",
                "Redis is unavailable",
                "Authentication required",
            ],
            api: ("/redis/up", json!(false)),
            metric: ("counterfoil_server_up", &[("server", "redis")], 0.0),
            ready: "not ready: redis\n",
            status: (2, "Redis is unavailable"),
            log: &["unavailable", "server=\"redis\"", "Authentication required"],
        })
        .await;
    order("ACL SETUSER default nopass").await;
    stage
        .soon("Redis is up again", async || {
            let state = get(&stage.daemon, "/api/v1/state").await.json();
            state["pairs"][0]["redis"]["up"] == true
        })
        .await;
}

/// Whoever moves MySQL tells the daemon where it is now, while the old one does not reply.
#[tokio::test]
async fn a_silent_mysql_does_not_delay_a_reload() {
    let stage = Stage::begin().await;
    let Stage { mysql, site, .. } = &stage;
    mysql.pause();
    // longer than the interval between reads of the overview
    sleep(Duration::from_secs(8)).await;
    let moved = site.mysql_url.replace("counterfoil@", "moved@");
    let file = site.folder().join("counterfoil.toml");
    let config = std::fs::read_to_string(&file).expect("the configuration");
    std::fs::write(&file, config.replace(&site.mysql_url, &moved)).expect("written");
    stage.daemon.signal("HUP");
    let reloaded = stage
        .daemon
        .logs(&["connecting with the reloaded settings"]);
    let in_time = timeout(SOON, reloaded).await;
    mysql.resume();
    in_time.expect("it reloads although MySQL is silent");
}

/// The disk of a table fills.
#[tokio::test]
async fn every_surface_tells_of_a_full_disk() {
    let Some(stage) = Stage::with_disk(false).await else {
        return;
    };
    let Stage { site, daemon, .. } = &stage;
    let disk = stage.mysql.disk().expect("a disk");
    disk.fill();
    stage.count_ids("small").await;
    stage.count("views", 1).await;
    eventually("a family of another disk", async || {
        site.number(VIEWS).await == 1
    })
    .await;
    stage
        .says(Says {
            outage: "the disk of a table is full",
            page: &[
                "<strong>degraded</strong>",
                "flush of shop/small",
                "The table 'small' is full",
            ],
            api: ("/reconciler/failing/0/family", json!("shop/small")),
            metric: ("counterfoil_families_failing", &[("family", "small")], 1.0),
            ready: "not ready: flush\n",
            // without the daemon it would count them as late after a minute
            status: (
                2,
                "the daemon reports error: flush of shop/small: batches were not written",
            ),
            log: &["fails, will retry", "shop/small", "is full"],
        })
        .await;
    let late = site.run(&["status", "--late", "1s"]).await;
    assert!(late.code == 2 && late.out.contains("late"), "{late:?}");
    stage.count("views", 1).await;
    eventually("a further hit", async || site.number(VIEWS).await == 2).await;
    disk.free();
    stage.is_well().await;
    daemon.logs(&["nothing fails any more"]).await;
    // those that were counted after the cut of the batch that failed come with the next batch
    eventually("all hits", async || site.number(SMALL).await == IDS).await;
}

/// The disk of the binary log fills. MariaDB then stops in a commit.
#[tokio::test]
async fn every_surface_tells_of_commits_that_wait_for_a_disk() {
    let Some(stage) = Stage::with_disk(true).await else {
        return;
    };
    let Stage { mysql, site, .. } = &stage;
    let disk = mysql.disk().expect("a disk");
    disk.fill();
    stage.count_ids("views").await;
    stage
        .says(Says {
            outage: "commits wait for a disk",
            page: &[
                "<strong>degraded</strong>",
                "flush of shop/views",
                "no reply within 5 s",
            ],
            api: ("/reconciler/failing/0/family", json!("shop/views")),
            metric: ("counterfoil_server_failing", &[("server", "mysql")], 1.0),
            ready: "not ready: flush\n",
            status: (
                2,
                "the daemon reports error: flush of shop/views: batches are not written yet",
            ),
            log: &["fails, will retry", "shop/views", "no reply within 5 s"],
        })
        .await;
    disk.free();
    // without a restart MariaDB continues within a minute
    mysql.start_again().await;
    stage.is_well().await;
    eventually("all hits", async || site.number(VIEWS).await == IDS).await;
}

/// A program that is not MySQL replies at its address, and sqlx panics on its greeting: in the task
/// of the pair that checks MySQL, and in those of the reconciler.
#[tokio::test]
async fn every_surface_tells_of_a_worker_that_panics() {
    let stage = Stage::begin().await;
    let Stage {
        mysql,
        site,
        daemon,
        ..
    } = &stage;
    let stranger = mysql.replaced();
    site.end_sessions("counterfoil").await;
    stage.count("views", 1).await;
    stage
        .says(Says {
            outage: "a worker panics",
            page: &[
                "<strong>down</strong>",
                "The reconciler does not run",
                "panicked",
            ],
            api: ("/reconciler/running", json!(false)),
            metric: ("counterfoil_reconciler_up", &[("pair", "main")], 0.0),
            ready: "not ready: flush\n",
            // the command panics as well
            status: (2, ""),
            log: &["the worker ended, will restart", "panicked"],
        })
        .await;
    daemon
        .logs_times(2, &["the worker ended, will restart"])
        .await;
    drop(stranger);
    stage.is_well().await;
    eventually("the hit", async || site.number(VIEWS).await == 1).await;
}

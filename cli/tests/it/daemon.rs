//! The daemon: its data in MySQL, and its behaviour as a server.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

use counterfoil::redis::cmd;
use counterfoil::sqlx;
use counterfoil::{Counterfoil, Durability, Family, KeyType, MysqlStore, Table};
use serde_json::json;
use testkit::MysqlServer;
use tokio::time::sleep;

use crate::client::get;
use crate::http::{sample, scrape};
use crate::support::{Daemon, Site, eventually};

const VIEWS: &str = "
[[family]]
name = \"shop/views\"
kind = \"buffered\"
sync_hits = 1
sync_time = \"50ms\"
";

const TENANTS: &str = "
[[family]]
name = \"shop-*/views\"
kind = \"buffered\"
table = { name = \"views\", write = \"upsert\", keys = [[\"store\", \"unsigned\"], [\"product\", \"text\"]], value = \"n\" }
sync_time = \"50ms\"
";

fn views() -> counterfoil::FamilyBuilder<counterfoil::BufferedCounters> {
    let sync = Duration::from_millis(50);
    Family::buffered("shop", "views")
        .durability(Durability::Immediate)
        .sync_hits(1)
        .sync_time(sync)
}

const ALL: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";

#[tokio::test]
async fn it_brings_to_mysql_what_others_count() {
    let site = Site::new().await;
    site.configure(VIEWS);
    let daemon = site.daemon().await;
    let views = site.writer().await.open(views()).await.unwrap();
    for _ in 0..100 {
        let _ = views.add("page", 1).await.unwrap();
    }
    eventually("the hits", async || site.number(ALL).await == 100).await;
    daemon.signal("TERM");
    let (status, log) = daemon.ended().await;
    assert!(status.success() && log.contains("shut down"), "{log}");
}

/// Returns whether Redis knows a family.
async fn is_configured(site: &Site, family: &str) -> bool {
    let known = format!("HEXISTS cf1:{{{family}/0}}:calls =kind");
    site.redis.run(&known).await.unwrap()
}

#[tokio::test]
async fn a_tenant_that_fits_a_pattern_is_configured_once_a_client_wants_it() {
    let site = Site::new().await;
    site.sql("CREATE TABLE views (store INT UNSIGNED, product VARBINARY(64), n BIGINT NOT NULL, PRIMARY KEY (store, product))")
        .await;
    site.configure(TENANTS);
    let daemon = site.daemon().await;
    for tenant in ["shop-1", "shop-22", "other"] {
        site.want(&format!("{tenant}/views")).await;
    }
    eventually("both tenants", async || {
        is_configured(&site, "shop-1/views").await && is_configured(&site, "shop-22/views").await
    })
    .await;
    daemon
        .logs(&["families that are not configured", "other/views"])
        .await;
    // a further announcement neither logs again nor disturbs a family that is open
    site.want("other/views").await;
    site.want("shop-1/views").await;
    let writer = site.writer().await;
    for (tenant, id) in [("shop-1", "1/shoe"), ("shop-22", "22/shoe")] {
        let table = Table::upsert("views")
            .key("store", KeyType::Unsigned)
            .key("product", KeyType::Text)
            .value("n");
        let family = Family::buffered(tenant, "views")
            .durability(Durability::Immediate)
            .table(table);
        let views = writer.open(family).await.unwrap();
        let _ = views.add(id, 5).await.unwrap();
    }
    eventually("the hits of both", async || {
        site.number("SELECT CAST(COALESCE(SUM(n), 0) AS SIGNED) FROM views WHERE store IN (1, 22)")
            .await
            == 10
    })
    .await;
    assert!(!is_configured(&site, "other/views").await);
    assert_eq!(
        daemon.lines(&["families that are not configured", "other/views"]),
        1
    );
}

/// Each locked table holds up a check for a second.
#[tokio::test]
async fn a_tenant_is_configured_while_a_check_waits() {
    let site = Site::new().await;
    let mut families = "[[family]]\nname = \"shop-*/views\"\nkind = \"buffered\"\n".to_owned();
    let mut locks = Vec::new();
    for number in 1..=6 {
        let table = format!("sales_{number}");
        site.sql(&format!(
            "CREATE TABLE {table} (id INT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0)"
        ))
        .await;
        families += &format!(
            "[[family]]\nname = \"shop/{table}\"\nkind = \"buffered\"\n\
             table = {{ name = \"{table}\", write = \"upsert\", keys = [[\"id\", \"signed\"]], value = \"n\" }}\n"
        );
        locks.push(format!("{table} WRITE"));
    }
    site.configure(&families);
    // an error has the daemon check every 5 s
    let _: () = site.redis.run("SET cf1:kept text").await.unwrap();
    let daemon = site.daemon().await;
    daemon.logs(&["fails, will retry", "kept families"]).await;
    let mut holder = site.pool.acquire().await.unwrap();
    let lock = format!("LOCK TABLES {}", locks.join(", "));
    let lock = sqlx::raw_sql(sqlx::AssertSqlSafe(lock));
    lock.execute(&mut *holder).await.unwrap();
    let waits = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                 WHERE INFO LIKE '%FROM `sales_1`%' AND ID <> CONNECTION_ID()";
    eventually("a check waits", async || site.number(waits).await > 0).await;
    site.want("shop-1/views").await;
    let announced = Instant::now();
    eventually("the tenant", async || {
        is_configured(&site, "shop-1/views").await
    })
    .await;
    let waited = announced.elapsed();
    assert!(waited < Duration::from_secs(2), "{waited:?}");
}

#[tokio::test]
async fn hostile_announcements_do_no_harm() {
    let site = Site::new().await;
    site.configure("[[family]]\nname = \"shop-*/views\"\nkind = \"buffered\"\n");
    let daemon = site.daemon().await;
    daemon.logs(&["started"]).await;
    let mut hostile = cmd("SADD");
    hostile.arg("cf1:wanted").arg("shop-1/views\nlevel=error");
    hostile.arg("shop-*/views").arg("shop-2/views/0").arg("");
    hostile
        .arg(b"\xff/\xff")
        .arg("../views")
        .arg("x".repeat(1 << 20));
    for number in 0..9_990 {
        hostile.arg(format!("other-{number}/views"));
    }
    hostile.arg("shop-3/views");
    let mut redis = site.redis.manager().await;
    hostile.exec_async(&mut redis).await.unwrap();
    eventually("all are taken", async || {
        site.redis.run::<u64>("EXISTS cf1:wanted").await.unwrap() == 0
    })
    .await;
    site.want("shop-4/views").await;
    eventually("the tenants", async || {
        is_configured(&site, "shop-3/views").await && is_configured(&site, "shop-4/views").await
    })
    .await;
    assert_eq!(
        site.number("SELECT COUNT(*) FROM counterfoil_families")
            .await,
        2
    );
    assert!(daemon.lines(&["families that are not configured"]) <= 2);
    assert!(daemon.log().len() < 100_000);
}

#[tokio::test]
async fn the_tenants_in_mysql_come_back_after_redis_was_emptied_without_a_daemon() {
    let site = Site::new().await;
    let tenants = "[[family]]\nname = \"shop-*/views\"\nkind = \"buffered\"\n";
    site.configure_pair("serve = \"declared\"", tenants);
    let daemon = site.daemon().await;
    site.want("shop-1/views").await;
    eventually("the tenant", async || {
        is_configured(&site, "shop-1/views").await
    })
    .await;
    drop(daemon);
    site.redis.run::<()>("FLUSHALL").await.unwrap();
    let daemon = site.daemon().await;
    eventually("the tenant again", async || {
        is_configured(&site, "shop-1/views").await
    })
    .await;
    // of one that another daemon has registered
    let other = Counterfoil::new(
        site.redis.manager().await,
        MysqlStore::new(&site.pool).unwrap(),
    );
    let family = Family::buffered("shop-2", "views").durability(Durability::Immediate);
    let views = other.open(family.sync_hits(1)).await.unwrap();
    let _ = views.add("page", 3).await.unwrap();
    eventually("the hits", async || site.number(ALL).await == 3).await;
    assert_eq!(daemon.lines(&["not served"]), 0);
}

/// A backup without a tenant was restored while no daemon ran. Redis knows the tenant, so no client announces
/// it.
#[tokio::test]
async fn the_hits_of_a_tenant_that_mysql_lost_arrive() {
    let site = Site::new().await;
    let tenants =
        "[[family]]\nname = \"shop-*/views\"\nkind = \"buffered\"\nsync_time = \"50ms\"\n";
    site.configure(tenants);
    let daemon = site.daemon().await;
    for tenant in ["shop-1/views", "shop-2/views"] {
        site.want(tenant).await;
        eventually("the tenant", async || is_configured(&site, tenant).await).await;
    }
    let writer = site.writer().await;
    let family = Family::buffered("shop-2", "views").durability(Durability::Immediate);
    let views = writer.open(family.clone()).await.unwrap();
    drop(daemon);
    let lose = "DELETE FROM counterfoil_families WHERE namespace = 'shop-2'";
    site.sql(lose).await;
    let _ = views.add("page", 3).await.unwrap();
    // members of another program do no harm
    let mut hostile = cmd("ZADD");
    hostile
        .arg("cf1:kept")
        .arg(0)
        .arg("shop-3/views\nlevel=error");
    hostile.arg(0).arg("other/views").arg(0).arg(b"\xff");
    let mut redis = site.redis.manager().await;
    hostile.exec_async(&mut redis).await.unwrap();
    // a daemon that drains serves the tenant, too
    let drained = site.run(&["drain"]).await;
    assert_eq!(drained.code, 0, "{drained:?}");
    assert_eq!(site.number(ALL).await, 3);
    site.sql(lose).await;
    let _ = views.add("page", 4).await.unwrap();
    let daemon = site.daemon().await;
    eventually("the hits", async || site.number(ALL).await == 7).await;
    assert_eq!(daemon.lines(&["not configured"]), 0);
    let families = "SELECT COUNT(*) FROM counterfoil_families";
    assert_eq!(site.number(families).await, 2);
}

/// A removed tenant is not served again.
#[tokio::test]
async fn a_tenant_that_was_removed_is_forgotten() {
    let site = Site::new().await;
    site.configure("[[family]]\nname = \"shop-*/views\"\nkind = \"buffered\"\n");
    let daemon = site.daemon().await;
    for tenant in ["shop-1/views", "shop-2/views"] {
        site.want(tenant).await;
        eventually("the tenant", async || is_configured(&site, tenant).await).await;
    }
    drop(daemon);
    let lose = "DELETE FROM counterfoil_families WHERE namespace = 'shop-2'";
    site.sql(lose).await;
    let unused = "HSET cf1:{shop-1/views/0}:calls =began_at 1000";
    let _: i64 = site.redis.run(unused).await.unwrap();
    site.printed(&["family", "remove", "shop-1/views", "--yes"])
        .await;
    let _daemon = site.daemon().await;
    let families = "SELECT COUNT(*) FROM counterfoil_families";
    eventually("the other one", async || site.number(families).await == 1).await;
    assert!(!is_configured(&site, "shop-1/views").await);
    let kept: Vec<String> = site.redis.run("ZRANGE cf1:kept 0 -1").await.unwrap();
    assert_eq!(kept, ["shop-2/views"]);
}

#[tokio::test]
async fn families_that_others_registered_are_served_or_named() {
    for (serve, is_served) in [
        ("\"all\"", true),
        ("[\"shop\"]", true),
        ("\"declared\"", false),
    ] {
        let site = Site::new().await;
        site.configure_pair(&format!("serve = {serve}"), "");
        let other = Counterfoil::new(
            site.redis.manager().await,
            MysqlStore::new(&site.pool).unwrap(),
        );
        let views = other.open(views()).await.unwrap();
        let _ = views.add("page", 3).await.unwrap();
        let daemon = site.daemon().await;
        if is_served {
            eventually("the hits", async || site.number(ALL).await == 3).await;
        } else {
            daemon.logs(&["not served", "shop/views"]).await;
            assert_eq!(site.number(ALL).await, 0);
        }
    }
}

#[tokio::test]
async fn the_metrics_and_the_drift_of_a_removed_family_end() {
    const RECOUNT: &str = "[family.recount]\nrows = \"added\"\ntable = \"hit\"\nkeys = [\"page\"]\nids = \"source\"\nwithin = \"100ms\"\nevery = \"1h\"\n";
    let site = Site::new().await;
    site.sql(
        "CREATE TABLE hit (page VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, KEY (page))",
    )
    .await;
    site.sql("INSERT INTO hit VALUES ('page')").await;
    site.configure(&format!("{VIEWS}{RECOUNT}"));
    site.printed(&["recount", "shop/views"]).await;
    site.printed(&["add", "shop/views", "page"]).await;
    site.configure_pair("serve = \"declared\"", "");
    let daemon = site.daemon().await;
    let waiting = async || {
        let labels = [("family", "views")];
        sample(&scrape(&daemon).await, "counterfoil_unsaved_ids", &labels)
    };
    eventually("the family", async || waiting().await == Some(1.0)).await;
    let drifted = async || {
        let state = get(&daemon, "/api/v1/state").await.json();
        state["pairs"][0]["drift"].as_array().map(Vec::len)
    };
    eventually("its drift", async || drifted().await == Some(1)).await;
    site.sql("UPDATE counterfoil_families SET state = 'removed'")
        .await;
    eventually("its end", async || {
        waiting().await.is_none() && drifted().await == Some(0)
    })
    .await;
}

#[tokio::test]
async fn it_waits_for_its_servers_and_tells_each_change_once() {
    let mysql = MysqlServer::start().await;
    let site = Site::on(&mysql).await;
    site.configure_pair("create_tables = true", VIEWS);
    mysql.kill();
    let daemon = site.daemon().await;
    daemon.logs(&["server=\"mysql\"", "unavailable"]).await;
    let writer = site.writer().await;
    let views = writer.open(views()).await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    mysql.start_again().await;
    eventually("the first hit", async || {
        is_there(&site).await && site.number(ALL).await == 1
    })
    .await;
    daemon
        .logs(&["server=\"mysql\"", "available again", "down_seconds"])
        .await;
    mysql.kill();
    daemon
        .logs_times(2, &["server=\"mysql\"", "unavailable", "why"])
        .await;
    let _ = views.add("page", 1).await.unwrap();
    let waits = async || {
        get(&daemon, "/api/v1/state").await.json()["pairs"][0]["families"][0]["pending"] == 1
    };
    eventually("the hit is seen to wait", waits).await;
    // longer than a check of a server that does not reply
    sleep(Duration::from_secs(6)).await;
    assert_eq!(daemon.lines(&["unavailable", "why"]), 2, "{}", daemon.log());
    mysql.start_again().await;
    eventually("the second hit", async || {
        is_there(&site).await && site.number(ALL).await == 2
    })
    .await;
    daemon
        .logs(&["server=\"mysql\"", "available again", "families_waiting=1"])
        .await;
}

async fn is_there(site: &Site) -> bool {
    let tables = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'counterfoil_values'";
    counterfoil::sqlx::query_scalar::<_, i64>(tables)
        .fetch_one(&site.pool)
        .await
        .is_ok_and(|there| there == 1)
}

/// Kills or stops the daemon at any moment while hits keep arriving.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_death_loses_or_doubles_a_hit() {
    let site = Site::new().await;
    site.configure(VIEWS);
    let views = site.writer().await.open(views()).await.unwrap();
    let counting = tokio::spawn({
        let views = views.clone();
        async move {
            let mut told = 0;
            let until = std::time::Instant::now() + Duration::from_secs(8);
            while std::time::Instant::now() < until {
                for page in 0..20 {
                    let _ = views.add(&format!("page/{page}"), 1).await.unwrap();
                    told += 1;
                }
            }
            told
        }
    });
    for round in 0..8 {
        let daemon = site.daemon().await;
        sleep(Duration::from_millis(300 + 97 * round)).await;
        daemon.signal(if round % 2 == 0 { "KILL" } else { "TERM" });
        let (status, log) = daemon.ended().await;
        assert_eq!(status.success(), round % 2 == 1, "{log}");
    }
    let told = counting.await.unwrap();
    let daemon = site.daemon().await;
    eventually("every hit", async || site.number(ALL).await == told).await;
    daemon.signal("TERM");
    daemon.ended().await;
    assert_eq!(site.number(ALL).await, told);
}

#[tokio::test]
async fn sighup_takes_up_new_families_and_a_wrong_file_changes_nothing() {
    let site = Site::new().await;
    site.configure_pair("serve = \"declared\"", "");
    let daemon = site.daemon().await;
    daemon.logs(&["started"]).await;
    let views = site.writer().await.open(views()).await.unwrap();
    let _ = views.add("page", 1).await.unwrap();

    site.configure_pair(
        "serve = \"declared\"",
        "[[family]]\nname = \"shop/views\"\nkind = \"bufered\"",
    );
    daemon.signal("HUP");
    daemon
        .logs(&["reload failed", "counterfoil.toml:9", "bufered"])
        .await;
    assert_eq!(site.number(ALL).await, 0);

    site.configure_pair("serve = \"declared\"", VIEWS);
    daemon.signal("HUP");
    eventually("the hit", async || site.number(ALL).await == 1).await;
}

#[tokio::test]
async fn a_refused_family_is_forgotten_when_it_is_not_described_any_more() {
    let site = Site::new().await;
    let table = "table = { name = \"item\", write = \"update\", keys = [[\"id\", \"unsigned\"]], value = \"n\" }";
    site.configure(&format!("{VIEWS}{table}"));
    let daemon = site.daemon().await;
    let refused =
        async || get(&daemon, "/api/v1/state").await.json()["pairs"][0]["refused"].clone();
    eventually("it is refused", async || {
        refused().await[0]["family"] == "shop/views"
    })
    .await;
    site.configure("");
    daemon.signal("HUP");
    eventually("nothing is refused", async || {
        refused().await == serde_json::json!([])
    })
    .await;
}

#[tokio::test]
async fn daemons_that_disagree_about_a_family_are_told_and_count_exactly() {
    let site = Site::new().await;
    site.configure(VIEWS);
    let first = site.daemon().await;
    first.logs(&["started"]).await;
    site.configure(&format!("{VIEWS}partitions = 9"));
    let second = site.daemon().await;
    second
        .logs(&[
            "not opened",
            "shop/views",
            "partitions is \\\"4\\\"",
            "\\\"9\\\"",
        ])
        .await;
    let views = site.writer().await.open(views()).await.unwrap();
    for _ in 0..50 {
        let _ = views.add("page", 1).await.unwrap();
    }
    eventually("the hits", async || site.number(ALL).await == 50).await;
}

/// Checks that an unavailable server of one pair does not affect the others.
#[tokio::test]
async fn several_pairs_are_served_by_one_daemon() {
    let (first, second, gone) = (Site::new().await, Site::new().await, Site::new().await);
    let pair = |name: &str, site: &Site| {
        let (redis, mysql) = (site.redis.url(), &site.mysql_url);
        format!("[pair.{name}]\nredis = {redis:?}\nmysql = {mysql:?}\ndurability = \"immediate\"\n")
    };
    let family = |pair: &str| format!("{VIEWS}pair = \"{pair}\"\n");
    let pairs = pair("first", &first) + &pair("second", &second) + &pair("gone", &gone);
    gone.redis.kill();
    let only = "[[family]]\nname = \"shop/only\"\nkind = \"buffered\"\npair = \"second\"\n";
    first.write(&format!(
        "listen = \"127.0.0.1:0\"\n{pairs}{}{}{only}",
        family("first"),
        family("second")
    ));
    let daemon = first.daemon().await;
    for (site, hits) in [(&first, 3), (&second, 5)] {
        let views = site.writer().await.open(views()).await.unwrap();
        let _ = views.add("page", hits).await.unwrap();
        eventually("the hits", async || site.number(ALL).await == hits).await;
    }
    daemon
        .logs(&["unavailable", "pair=\"gone\"", "server=\"redis\""])
        .await;
    let ready = get(&daemon, "/readyz").await;
    assert!(
        ready.status == 503 && ready.body == "not ready: redis\n",
        "{ready:?}"
    );
    for (pair, hits) in [("first", 3), ("second", 5)] {
        let path = format!("/api/v1/values?pair={pair}&family=shop/views&id=page");
        let is_known = async || get(&daemon, &path).await.status != 503;
        eventually("the families of MySQL", is_known).await;
        let values = get(&daemon, &path).await;
        assert_eq!(values.json()["values"][0], hits, "{values:?}");
    }
    // the pair of a family of one pair need not be named
    let values = get(&daemon, "/api/v1/values?family=shop/only&id=page").await;
    assert_eq!(values.json()["values"][0], 0, "{values:?}");
    eventually("the figures", async || {
        let page = get(&daemon, "/family?family=shop/only").await.body;
        let live = get(&daemon, "/family-live?family=shop/only").await.body;
        [page, live]
            .iter()
            .all(|body| body.contains("Counted by Redis"))
    })
    .await;
    let unclear = get(&daemon, "/api/v1/values?family=shop/views&id=page").await;
    assert_eq!(unclear.status, 400, "{unclear:?}");
    let unknown = get(&daemon, "/api/v1/values?family=shop/other&id=page").await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
    // its MySQL is checked although Redis was down from the start
    eventually("the healthy MySQL", async || {
        let state = get(&daemon, "/api/v1/state?pair=gone").await.json();
        let pair = &state["pairs"][0];
        pair["mysql"]["up"] == true && pair["redis"]["up"] == false
    })
    .await;
    let outcome = first.run(&["status"]).await;
    assert_eq!(outcome.code, 2, "{outcome:?}");
}

#[tokio::test]
async fn what_waits_is_brought_to_mysql_also_where_redis_has_no_memory_left() {
    let site = Site::new().await;
    site.configure(VIEWS);
    let views = site.writer().await.open(views()).await.unwrap();
    for page in 0..50 {
        let _ = views.add(&format!("page/{page}"), 1).await.unwrap();
    }
    let _: () = site.redis.run("CONFIG SET maxmemory 1").await.unwrap();
    let refused = views
        .clone()
        .write_timeout(Duration::from_millis(200))
        .add("page/1", 1)
        .await
        .unwrap_err();
    assert!(!refused.outcome_unknown(), "{refused}");
    let daemon = site.daemon().await;
    eventually("what waited", async || site.number(ALL).await == 50).await;
    let _: () = site.redis.run("CONFIG SET maxmemory 0").await.unwrap();
    let _ = views.add("page/1", 1).await.unwrap();
    eventually("what came later", async || site.number(ALL).await == 51).await;
    drop(daemon);
}

/// Waits for the first `check` on the present servers.
async fn has_checked(daemon: &Daemon) {
    eventually("a check", async || {
        let state = get(daemon, "/api/v1/state").await.json();
        state["pairs"][0]["looks"]["check"]["at"].is_number()
    })
    .await;
}

/// Neither the state nor a value is that of the former Redis.
#[tokio::test]
async fn a_reload_with_another_redis_leaves_the_former_one() {
    let site = Site::new().await;
    let text = fs::read_to_string(site.configure(VIEWS)).unwrap();
    let daemon = site.daemon().await;
    let value = async || get(&daemon, "/api/v1/values?family=shop/views&id=a").await;
    eventually("a value", async || value().await.status == 200).await;
    has_checked(&daemon).await;
    site.write(&text.replace(&site.redis.url(), "redis://127.0.0.1:1"));
    daemon.signal("HUP");
    daemon.logs(&["unavailable", "server=\"redis\""]).await;
    let state = get(&daemon, "/api/v1/state").await.json();
    let pair = &state["pairs"][0];
    assert_eq!(pair["reconciler"]["running"], false, "{state}");
    assert_eq!(pair["findings"], json!([]));
    assert_eq!(value().await.status, 503);
    let redis = format!("redis = {:?}", site.redis.url());
    site.write(&text.replace(&redis, "cluster = [\"redis://127.0.0.1:1\"]"));
    daemon.signal("HUP");
    daemon.logs(&["unavailable", "to the cluster"]).await;
    site.write(&text);
    daemon.signal("HUP");
    daemon.logs_times(2, &["started"]).await;
    eventually("a value", async || value().await.status == 200).await;
}

#[tokio::test]
async fn announcements_and_a_recount_that_fail_are_findings() {
    const FAMILIES: &str = "
[[family]]
name = \"shop-*/views\"
kind = \"buffered\"
[[family]]
name = \"shop/likes\"
kind = \"buffered\"
[family.recount]
rows = \"added\"
sql = \"SELECT item, COUNT(*) FROM likes WHERE item IN (?) GROUP BY item\"
within = \"100ms\"
every = \"200ms\"
";
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/likes", "a"]).await;
    for key in ["cf1:kept", "cf1:wanted"] {
        let spoil = format!("SET {key} text");
        let _: () = site.redis.run(&spoil).await.unwrap();
    }
    let daemon = site.daemon().await;
    let errors = async || {
        let state = get(&daemon, "/api/v1/state").await.json();
        let findings = state["pairs"][0]["findings"].as_array().unwrap().clone();
        let errors = findings.iter().filter(|one| one["severity"] == "error");
        Vec::from_iter(errors.map(|one| one["subject"].as_str().unwrap().to_owned()))
    };
    let all = [
        "announced families",
        "kept families",
        "recount of shop/likes",
    ];
    eventually("all findings", async || errors().await == all).await;
    let _: () = site.redis.run("DEL cf1:wanted cf1:kept").await.unwrap();
    site.sql("CREATE TABLE likes (item VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, KEY (item))")
        .await;
    eventually("the end of all", async || errors().await.is_empty()).await;
    for step in all {
        assert_eq!(daemon.lines(&["fails, will retry", step]), 1);
    }
}

#[tokio::test]
async fn a_family_that_was_refused_before_the_start_and_removed_is_forgotten() {
    let site = Site::new().await;
    site.configure(VIEWS);
    let set = async |policy: &str| {
        let set = format!("CONFIG SET maxmemory-policy {policy}");
        site.redis.run::<()>(&set).await.unwrap();
    };
    set("allkeys-lru").await;
    let daemon = site.daemon().await;
    daemon
        .logs(&["family was not opened", "shop/views", "allkeys-lru"])
        .await;
    daemon.logs(&["start failed", "allkeys-lru"]).await;
    site.configure("");
    daemon.signal("HUP");
    daemon.logs(&["reloaded the families"]).await;
    set("noeviction").await;
    has_checked(&daemon).await;
    let state = get(&daemon, "/api/v1/state").await.json();
    assert_eq!(state["pairs"][0]["refused"], json!([]));
}

#[tokio::test]
async fn a_port_in_use_is_told() {
    let site = Site::new().await;
    site.configure("");
    let daemon = site.daemon().await;
    let address = daemon.url("").replace("http://", "");
    site.write(&format!(
        "listen = {address:?}\n[pair.main]\nredis = {:?}\nmysql = {:?}\n",
        site.redis.url(),
        site.mysql_url
    ));
    let outcome = site.run(&["run"]).await;
    assert!(
        outcome.code == 1 && outcome.err.contains(&address) && outcome.err.contains("in use"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn systemd_is_told() {
    let site = Site::new().await;
    site.configure(VIEWS);
    let socket = site.folder().join("notify");
    let told = UnixDatagram::bind(&socket).unwrap();
    told.set_nonblocking(true).unwrap();
    let daemon = site
        .daemon_with(|command| {
            command
                .env("NOTIFY_SOCKET", &socket)
                .env("WATCHDOG_USEC", "200000")
        })
        .await;
    let mut all = String::new();
    let mut hears = async |words: &'static str| {
        eventually(words, async || {
            let mut buffer = [0; 4096];
            while let Ok(length) = told.recv(&mut buffer) {
                all += &String::from_utf8_lossy(&buffer[..length]);
                all.push('\n');
            }
            let heard = all.find(words);
            if let Some(at) = heard {
                all.drain(..at + words.len());
            }
            heard.is_some()
        })
        .await;
    };
    hears("READY=1").await;
    hears("STATUS=pair main: running").await;
    hears("WATCHDOG=1").await;
    hears("WATCHDOG=1").await;
    daemon.signal("HUP");
    hears("RELOADING=1").await;
    hears("READY=1").await;
    daemon.signal("TERM");
    hears("STOPPING=1").await;
    daemon.ended().await;
}

#[tokio::test]
async fn rejects_are_told_at_most_ten_a_minute() {
    let site = Site::new().await;
    site.sql("CREATE TABLE item (id INT UNSIGNED PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    let table = "table = { name = \"item\", write = \"update\", keys = [[\"id\", \"unsigned\"]], value = \"n\" }";
    site.configure(&format!("{VIEWS}{table}"));
    let daemon = site.daemon().await;
    let state = async || get(&daemon, "/api/v1/state").await.json()["pairs"][0].clone();
    eventually("the first read, which skips older rejects", async || {
        !state().await["looks"]["overview"]["at"].is_null()
    })
    .await;
    let table = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("n");
    let views = site
        .writer()
        .await
        .open(views().table(table))
        .await
        .unwrap();
    for id in 1..=15 {
        let _ = views.add(&id.to_string(), id).await.unwrap();
    }
    eventually("the rejects", async || {
        state().await["rejects"].as_array().map(Vec::len) == Some(15)
    })
    .await;
    daemon.signal("TERM");
    let (_, log) = daemon.ended().await;
    let mut refused = log
        .lines()
        .filter(|line| line.contains("a row refused a change"));
    assert_eq!(refused.clone().count(), 10, "{log}");
    assert!(refused.all(|line| line.contains("shop/views")), "{log}");
}

#[tokio::test]
async fn it_goes_on_when_nobody_reads_its_log() {
    let site = Site::new().await;
    site.configure(VIEWS);
    let mut shell = tokio::process::Command::new("sh");
    let program = format!("{} run 2>&1 | head -1", env!("CARGO_BIN_EXE_counterfoil"));
    let mut shell = shell
        .args(["-c", &program])
        .current_dir(site.folder())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let views = site.writer().await.open(views()).await.unwrap();
    for _ in 0..3 {
        let _ = views.add("page", 1).await.unwrap();
        sleep(Duration::from_millis(800)).await;
    }
    eventually("the hits", async || site.number(ALL).await == 3).await;
    let of_daemon = format!("{}/counterfoil.toml", site.folder().display());
    // the shell's child: found by its folder, where no other process runs
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        if std::fs::read_link(process.path().join("cwd"))
            .is_ok_and(|cwd| of_daemon.starts_with(cwd.to_str().unwrap()) && cwd == site.folder())
        {
            let pid = process.file_name();
            let _ = std::process::Command::new("kill")
                .args([std::ffi::OsStr::new("-TERM"), &pid])
                .status();
        }
    }
    shell.wait().await.unwrap();
}

#[tokio::test]
async fn what_a_server_refuses_is_told() {
    let site = Site::new().await;
    let wrong = site
        .mysql_url
        .replace("mysql://", "mysql://nobody:wrong@")
        .replace("nobody:wrong@root@", "nobody:wrong@");
    let redis = site.redis.url();
    site.write(&format!(
        "listen = \"127.0.0.1:0\"\n[pair.main]\nredis = {redis:?}\nmysql = {wrong:?}\n{VIEWS}"
    ));
    let daemon = site.daemon().await;
    daemon
        .logs(&["server=\"mysql\"", "unavailable", "Access denied"])
        .await;
    assert!(
        !daemon.log().contains("wrong@"),
        "no secrets: {}",
        daemon.log()
    );
}

#[tokio::test]
async fn a_mysql_may_have_an_ipv6_address() {
    let site = Site::new().await;
    let redis = site.redis.url();
    // nothing listens on port 1
    site.write(&format!(
        "listen = \"127.0.0.1:0\"\n[pair.main]\nredis = {redis:?}\nmysql = \"mysql://root@[::1]:1/shop\"\n"
    ));
    let daemon = site.daemon().await;
    daemon.logs(&["server=\"mysql\"", "unavailable"]).await;
    daemon.signal("HUP");
    daemon.logs(&["reloaded"]).await;
    assert_eq!(get(&daemon, "/healthz").await.status, 200);
    assert_eq!(daemon.lines(&["connecting with"]), 0);
}

#[tokio::test]
async fn a_missing_table_is_named_and_created_by_init() {
    let site = Site::new().await;
    site.sql("DROP TABLE counterfoil_rejects").await;
    site.configure(VIEWS);
    let daemon = site.daemon().await;
    daemon.logs(&["not opened", "counterfoil_rejects"]).await;
    drop(daemon);
    let outcome = site.run(&["init"]).await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let daemon = site.daemon().await;
    daemon.logs(&["started", "families=1"]).await;
}

//! status, check, init.

use std::fs;

use serde_json::json;

use super::FAMILIES;
use crate::support::{Site, eventually};

/// Returns the cells of the line of `shop/views`.
fn cells(status: &str) -> Vec<&str> {
    let mut lines = status.lines();
    let row = lines.find(|line| line.starts_with("shop/views"));
    row.expect("its line").split_whitespace().collect()
}

#[tokio::test]
async fn status_says_how_each_family_stands_and_ends_as_the_worst() {
    let site = Site::new().await;
    site.keeps_visitors().await;
    site.configure(&FAMILIES.replace("sync_time = \"1h\"", "sync_time = \"500ms\""));
    let nothing = site.printed(&["status"]).await;
    assert!(
        nothing.contains("shop/views is configured, but was never opened"),
        "{nothing}"
    );
    assert_eq!(
        site.number("SELECT COUNT(*) FROM counterfoil_families")
            .await,
        0,
        "status writes nothing"
    );
    assert_eq!(
        site.json(0, &["status"]).await[0]["never_opened"]
            .as_array()
            .map(Vec::len),
        Some(6)
    );

    // the family could not be opened
    let set = async |rule: &str| {
        let set = format!("ACL SETUSER default {rule}");
        site.redis.run::<()>(&set).await.expect("a rule");
    };
    set("-rename").await;
    for command in ["check", "status"] {
        let denied = site.ends_with(2, &[command]).await;
        assert!(denied.out.contains("lacks +rename"), "{denied:?}");
    }
    set("+rename").await;

    site.printed(&["add", "shop/views", "a", "3"]).await;
    let status = site.printed(&["status"]).await;
    let cells = cells(&status);
    assert_eq!(
        (cells[1], cells[2], cells.last()),
        ("buffered", "1", Some(&"ok")),
        "{status}"
    );
    eventually("it is late", async || {
        site.run(&["status", "--late", "10ms"]).await.code == 1
    })
    .await;
    // relative to the family's sync time
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a", "0"]).await;
    site.ends_with(0, &["status", "--late", "10ms"]).await;
    site.configure(&FAMILIES.replace("sync_time = \"1h\"", "sync_time = \"500ms\""));
    site.printed(&["add", "shop/views", "a", "0"]).await;
    let late = site.json(1, &["status", "--late", "10ms"]).await;
    let family = &late[0]["families"][0];
    assert_eq!(
        (&family["family"], &family["state"], &family["counted"]),
        (&json!("views"), &json!("late"), &json!(3))
    );
    assert!(
        family["oldest_seconds"].as_f64().expect("seconds") > 0.5,
        "{late}"
    );

    site.printed(&["drain"]).await;
    // without persistence, Redis would count known visitors again
    let unset = "CONFIG SET appendonly no";
    site.redis.run::<()>(unset).await.expect("set");
    let saved = site.json(2, &["status", "--late", "10ms"]).await;
    assert_eq!(saved[0]["problems"][0]["problem"], "redis persistence");
    assert!(
        saved[0]["families"][0]["last_saved"]
            .as_u64()
            .expect("Unix seconds")
            > 1_700_000_000,
        "{saved}"
    );
    let status = site.ends_with(2, &["status"]).await.out;
    assert!(
        status.contains(" ago ") && status.contains("pair main: error: redis persistence: "),
        "{status}"
    );
    // no family is ok beside an error of its pair
    assert_eq!(self::cells(&status).last(), Some(&"degraded"), "{status}");
    let _: () = site
        .redis
        .run("SET cf1:{shop/views/0}:buffer text")
        .await
        .expect("set");
    let broken = site.ends_with(2, &["status"]).await;
    let advice = "Stop the program that wrote the key";
    assert!(
        broken.out.contains("broken") && broken.out.contains(advice),
        "{broken:?}"
    );
    let unknown = site.ends_with(2, &["pending"]).await;
    assert!(
        unknown
            .out
            .contains("pair main: error: shop/views is broken: "),
        "{unknown:?}"
    );
}

/// Each row has the settings, whether `check` warns of them, and what it recommends, of which it does not
/// warn in another row.
#[tokio::test]
async fn check_recommends_no_persistence_that_it_warns_of() {
    let site = Site::new().await;
    let (redis, mysql) = (site.redis.url(), &site.mysql_url);
    for (appendonly, appendfsync, durability, is_warning, advice) in [
        (
            "no",
            "everysec",
            "immediate",
            true,
            "appendonly yes with appendfsync always, or with everysec and durability = \"2.5s\"",
        ),
        ("no", "everysec", "2.5s", true, "set appendonly yes."),
        (
            "yes",
            "no",
            "immediate",
            true,
            "Set appendfsync always, or everysec and give the family durability = \"2.5s\"",
        ),
        (
            "yes",
            "no",
            "2.5s",
            true,
            "appendfsync always to lose none, or everysec",
        ),
        (
            "yes",
            "everysec",
            "immediate",
            true,
            "durability = \"2.5s\", or set appendfsync always",
        ),
        (
            "yes",
            "everysec",
            "2.5s",
            false,
            "Set appendfsync always to lose none.",
        ),
        ("yes", "always", "immediate", false, ""),
    ] {
        let settings = [("appendonly", appendonly), ("appendfsync", appendfsync)];
        for (name, value) in settings {
            let set = format!("CONFIG SET {name} {value}");
            site.redis.run::<()>(&set).await.expect("set");
        }
        site.write(&format!(
            "[pair.main]\nredis = {redis:?}\nmysql = {mysql:?}\ndurability = {durability:?}\n\
             [[family]]\nname = \"shop/views\"\nkind = \"buffered\"\n"
        ));
        let checked = site.run(&["check"]).await.out;
        let mut lines = checked.lines();
        let found = lines.find(|line| line.contains("redis persistence"));
        let found = found.unwrap_or_default();
        assert!(
            found.contains("warning") == is_warning && found.contains(advice),
            "{settings:?} {durability}: {checked}"
        );
    }
}

#[tokio::test]
async fn status_warns_of_a_family_in_which_redis_refuses_hits() {
    let site = Site::new().await;
    site.configure(
        "[[family]]\nname = \"shop/views\"\nkind = \"buffered\"\npartitions = 1\nmax_pending = 1\n\
         sync_time = \"1h\"\nsync_hits = 1000000\n",
    );
    site.printed(&["add", "shop/views", "a"]).await;
    site.ends_with(1, &["add", "shop/views", "b"]).await;
    for command in ["status", "pending"] {
        let full = site.ends_with(1, &[command]).await.out;
        let remark = "pair main: warning: shop/views has reached max_pending. Redis refuses hits";
        assert!(full.contains(remark), "{full}");
    }
}

#[tokio::test]
async fn a_family_of_a_newer_version_is_named() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    for family in ["shop/views", "tenant-1/views"] {
        site.printed(&["add", family, "a"]).await;
    }
    site.sql(
        "UPDATE counterfoil_families SET settings = JSON_SET(settings, '$.newer', 1) WHERE namespace = 'shop'",
    )
    .await;
    site.configure("");
    for args in [
        &["drain"][..],
        &["status"],
        &["pending"],
        &["check"],
        &["get", "shop/views", "a"],
    ] {
        let named = site.ends_with(1, args).await;
        let why = "shop/views: invalid settings in the database: unknown field `newer`";
        assert!((named.err.clone() + &named.out).contains(why), "{named:?}");
    }
    // opened as configured
    site.configure(FAMILIES);
    site.printed(&["drain"]).await;
    assert_eq!(site.printed(&["get", "shop/views", "a"]).await, "a\t1\n");
}

#[tokio::test]
async fn drain_names_a_family_that_it_cannot_open_and_drains_the_others() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a"]).await;
    let without_table = "[[family]]\nname = \"shop/sold\"\nkind = \"buffered\"\ntable = \
                         { name = \"item\", write = \"update\", keys = [[\"id\", \"signed\"]], value = \"sold\" }\n";
    site.configure(&(FAMILIES.to_owned() + without_table));
    let drained = site.json(1, &["drain"]).await;
    let problem = &drained[0]["problems"][0];
    let problem = problem.as_str().unwrap_or_default();
    assert!(problem.starts_with("shop/sold: table item: "), "{drained}");
    let saved = "SELECT value FROM counterfoil_values WHERE id = 'a'";
    assert_eq!(site.number(saved).await, 1);
}

/// `status` also asks the daemon, with the token, and names one that does not reply.
#[tokio::test]
async fn status_names_a_daemon_that_does_not_tell_its_state() {
    let site = Site::new().await;
    let text = fs::read_to_string(site.configure("")).expect("the configuration");
    site.write(&format!("token = \"secret\"\n{text}"));
    let daemon = site.daemon().await;
    site.listens_at(&daemon);
    eventually("a daemon without errors", async || {
        site.json(0, &["status"]).await[0]["daemon"] == json!([])
    })
    .await;

    site.write(&text);
    site.listens_at(&daemon);
    let status = site.printed(&["status"]).await;
    let refused = "did not tell its state: it needs its token, which this command lacks";
    assert!(status.contains(refused), "{status}");

    daemon.signal("KILL");
    daemon.ended().await;
    // hits wait for it, which is a warning
    let status = site.ends_with(1, &["status"]).await.out;
    let gone = "did not tell its state: Connection refused";
    let advice = "Start it with `counterfoil run`";
    assert!(status.contains(gone) && status.contains(advice), "{status}");
    site.json(1, &["status"]).await;
}

#[tokio::test]
async fn a_daemon_serves_the_named_pair_and_status_names_the_others() {
    let site = Site::new().await;
    let (redis, mysql) = (site.redis.url(), &site.mysql_url);
    site.configure(&format!(
        "[pair.other]\nredis = {redis:?}\nmysql = {mysql:?}\n"
    ));
    let daemon = site.daemon_with(|run| run.args(["--pair", "main"])).await;
    site.listens_at(&daemon);
    eventually("a daemon without errors", async || {
        let status = site.json(0, &["status"]).await;
        (&status[0]["daemon"], &status[1]["daemon"]) == (&json!([]), &json!(null))
    })
    .await;
    let status = site.printed(&["status"]).await;
    let missing = "pair other: the daemon does not have it";
    assert!(status.contains(missing), "{status}");
}

#[tokio::test]
async fn check_names_what_differs_between_file_and_database() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a"]).await;
    site.configure("[[family]]\nname = \"shop/views\"\nkind = \"buffered\"\npartitions = 7\n");
    let check = site.ends_with(2, &["check"]).await;
    assert!(
        check
            .out
            .contains("error: family shop/views: partitions is 7 here"),
        "{check:?}"
    );
    // counting is refused too, with the reason
    assert!(
        site.ends_with(1, &["add", "shop/views", "a"])
            .await
            .err
            .contains("partitions")
    );
    assert_eq!(site.printed(&["get", "shop/views", "a"]).await, "a\t1\n");
}

#[tokio::test]
async fn init_makes_the_tables_and_check_misses_them_before() {
    let site = Site::without_tables().await;
    site.configure(FAMILIES);
    let missing = site.ends_with(2, &["check"]).await;
    assert!(missing.out.contains("counterfoil_families"), "{missing:?}");
    assert_eq!(site.ends_with(2, &["status"]).await.code, 2);
    assert!(
        site.printed(&["init", "--print"])
            .await
            .contains("CREATE TABLE IF NOT EXISTS counterfoil_families")
    );
    assert!(site.json(0, &["init", "--print"]).await["sql"].is_string());
    site.sql("CREATE USER reader@localhost; GRANT SELECT ON *.* TO reader@localhost")
        .await;
    site.sql("CREATE USER newcomer@localhost").await;
    for (user, why) in [
        ("reader", "command denied to user 'reader'"),
        (
            "newcomer",
            "Access denied for user 'newcomer'@'localhost' to database",
        ),
    ] {
        let mysql = site.mysql_url.replace("root@", &format!("{user}@"));
        let text = fs::read_to_string(site.configure(FAMILIES)).expect("written");
        site.write(&text.replace(&site.mysql_url, &mysql));
        let denied = site.ends_with(2, &["init"]).await;
        assert!(
            denied.err.contains(why) && denied.err.contains("`counterfoil init --print`"),
            "{denied:?}"
        );
    }
    site.configure(FAMILIES);
    for _ in 0..2 {
        assert_eq!(
            site.printed(&["init"]).await,
            "pair main: counterfoil's tables exist\n"
        );
    }
    assert_eq!(site.json(0, &["init"]).await, json!({ "pairs": ["main"] }));
    site.keeps_visitors().await;
    site.ends_with(0, &["status"]).await;
    site.printed(&["add", "shop/views", "a"]).await;
    // the families are durable at once, and the file is after a second
    let found = site.json(1, &["check"]).await;
    let findings = found[0]["findings"].as_array().expect("findings");
    assert!(
        findings
            .iter()
            .any(|finding| finding["subject"] == "redis persistence"),
        "{found}"
    );
    assert!(
        findings
            .iter()
            .all(|finding| finding["subject"] != "mysql tables"),
        "{found}"
    );
    let told = site.ends_with(1, &["check"]).await;
    assert!(
        told.out
            .starts_with("pair main: warning: redis persistence: "),
        "{told:?}"
    );
}

#[tokio::test]
async fn check_names_what_redis_would_lose_of_families_that_were_never_opened() {
    let site = Site::new().await;
    site.configure("[[family]]\nname = \"shop-*/daily\"\nkind = \"visitors\"\n");
    let policy = "CONFIG SET maxmemory-policy volatile-lru";
    site.redis.run::<()>(policy).await.expect("set");
    let checked = site.ends_with(2, &["check"]).await;
    for what in ["forgets known visitors", "volatile-lru, which evicts"] {
        assert!(checked.out.contains(what), "{checked:?}");
    }
}

#[tokio::test]
async fn a_family_of_several_pairs_is_found_in_the_pair_that_describes_it() {
    let site = Site::new().await;
    let (redis, mysql) = (site.redis.url(), &site.mysql_url);
    let pair = |name: &str| {
        format!("[pair.{name}]\nredis = {redis:?}\nmysql = {mysql:?}\ndurability = \"immediate\"\n")
    };
    let family = |pair: &str, name: &str| {
        format!("[[family]]\nname = \"{name}\"\nkind = \"buffered\"\npair = \"{pair}\"\n")
    };
    let of = [
        // no daemon runs
        "listen = \"off\"\n".to_owned(),
        pair("one"),
        pair("two"),
        family("one", "a/b"),
        family("two", "c/d"),
        family("one", "e/f"),
        family("two", "e/f"),
    ];
    site.write(&of.concat());
    site.printed(&["add", "c/d", "x", "2"]).await;
    assert_eq!(site.printed(&["get", "c/d", "x"]).await, "x\t2\n");
    let several = site.ends_with(3, &["add", "e/f", "x"]).await;
    assert!(
        several
            .err
            .contains("several pairs have family e/f: name one with --pair"),
        "{several:?}"
    );
    site.printed(&["add", "e/f", "x", "--pair", "two"]).await;
    assert!(
        site.ends_with(3, &["get", "g/h", "x"])
            .await
            .err
            .contains("name one with --pair")
    );
    assert_eq!(
        site.json(0, &["status"]).await.as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(
        site.json(0, &["status", "--pair", "two"]).await[0]["pair"],
        "two"
    );
}

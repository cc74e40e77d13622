//! acl, grants: the printed privileges are sufficient.

use std::collections::BTreeSet;

use testkit::MysqlServer;

use super::FAMILIES;
use crate::support::Site;

const MORE: &str = r#"
[[family]]
name = "forum/likes"
kind = "cached"
table = { name = "item", write = "update", keys = [["id", "signed"]], value = "likes" }

[family.recount]
rows = "added"
table = "other.likes"
keys = ["item"]
within = "1s"
every = "1h"

[[family]]
name = "forum/saves"
kind = "buffered"

[family.recount]
rows = "added"
sql = "SELECT item, COUNT(*) FROM saves WHERE item IN (?) GROUP BY item"
within = "1s"
every = "1h"
"#;

#[tokio::test]
async fn the_rules_are_for_the_roles_and_the_families_of_file_and_database() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "tenant-1/views", "a"]).await;
    site.configure("[[family]]\nname = \"shop/views\"\nkind = \"buffered\"\n");
    let rules = async |role: &str| {
        let acl = site.json(0, &["acl", role]).await;
        let lines = acl[0]["lines"].as_array().expect("rules").iter();
        lines
            .map(|rule| rule.as_str().expect("text").to_owned())
            .collect::<Vec<_>>()
    };
    let daemon = rules("daemon").await;
    let has = |rules: &[String], rule: &str| rules.iter().any(|other| other == rule);
    assert!(
        has(&daemon, "~cf1:{shop/views/*") && has(&daemon, "~cf1:{tenant-1/views/*"),
        "{daemon:?}"
    );
    assert!(
        has(&daemon, "+ping") && !has(&daemon, "+zcount"),
        "{daemon:?}"
    );
    // the first shows passwords, the second the keys of others
    assert!(
        !has(&daemon, "+config|get") && !has(&daemon, "+scan"),
        "{daemon:?}"
    );
    let reader = rules("reader").await;
    assert!(
        has(&reader, "+evalsha") && !has(&reader, "+hset") && !has(&reader, "+ping"),
        "{reader:?}"
    );
    let writer = rules("writer").await;
    assert!(writer.len() < daemon.len());
    let both: BTreeSet<_> = writer.into_iter().chain(reader).collect();
    let application = rules("application").await;
    assert_eq!(application.into_iter().collect::<BTreeSet<_>>(), both);
    site.configure(FAMILIES);
    let daemon = rules("daemon").await;
    assert!(has(&daemon, "~cf1:{tenant-*/views/*"), "{daemon:?}");
    assert!(
        !has(&daemon, "~cf1:{tenant-1/views/*") && !has(&daemon, "~cf1:{x/views/*"),
        "{daemon:?}"
    );
    site.configure("");
    site.ends_with(3, &["acl", "other"]).await;
}

#[tokio::test]
async fn who_has_what_is_printed_can_do_everything() {
    let mysql = MysqlServer::start().await;
    let site = Site::on(&mysql).await;
    site.configure(&format!("{FAMILIES}{MORE}"));
    site.printed(&["init"]).await;
    site.sql("CREATE TABLE item (id BIGINT PRIMARY KEY, likes BIGINT NOT NULL)")
        .await;
    site.sql("CREATE DATABASE other").await;
    site.sql("CREATE TABLE other.likes (item BIGINT NOT NULL, KEY (item))")
        .await;
    site.sql("INSERT INTO item VALUES (1, 0)").await;

    let set_user = async || {
        let acl = site.printed(&["acl", "daemon", "--user", "ops"]).await;
        let rule = acl
            .lines()
            .find(|line| line.starts_with("ACL SETUSER ops "))
            .expect("the rule")
            .replace("PASSWORD", "secret");
        let _: () = site.redis.run(&rule).await.expect("taken as it is printed");
    };
    set_user().await;
    site.sql("CREATE USER ops@localhost").await;
    let grants = site
        .printed(&["grants", "daemon", "--user", "ops@localhost"])
        .await;
    assert!(
        grants.contains("GRANT SELECT ON `other`.`likes` TO `ops`@`localhost`;"),
        "{grants}"
    );
    assert!(
        grants.contains("-- forum/saves is recounted by its own SQL"),
        "{grants}"
    );
    site.sql(&grants).await;

    let as_ops = |redis: &str, mysql: &str, families: &str| {
        let redis = format!("{redis}?user=ops&pass=secret");
        let pair = format!(
            "listen = \"off\"\n[pair.main]\nredis = {redis:?}\nmysql = {mysql:?}\ndurability = \"immediate\"\n"
        );
        site.write(&format!("{pair}{families}"));
    };
    let (redis, mysql) = (site.redis.url(), site.mysql_url.replace("root@", "ops@"));
    as_ops(&redis, &mysql, &format!("{FAMILIES}{MORE}"));
    site.printed(&["add", "shop/views", "a"]).await;
    site.printed(&["add", "shop/votes", "a"]).await;
    site.printed(&["add", "shop/downloads", "a"]).await;
    site.printed(&["add", "tenant-5/views", "a"]).await;
    site.printed(&["add", "forum/likes", "1"]).await;
    site.printed(&["drain"]).await;
    site.printed(&["recount", "forum/likes"]).await;
    assert_eq!(
        site.number("SELECT likes FROM item").await,
        0,
        "the recount took away what has no row"
    );
    site.printed(&["get", "forum/likes", "1"]).await;
    // an error that concerns no privilege: Redis has no persistence, and there are visitors
    let status = site.ends_with(2, &["status"]).await;
    assert_eq!(status.out.matches("error: ").count(), 1, "{status:?}");
    let check = site.run(&["check"]).await;
    assert!(
        !check.out.contains("acl") && !check.out.contains("privilege"),
        "{check:?}"
    );
    let denied = site.ends_with(2, &["scripts", "load"]).await;
    assert!(denied.err.contains("+script|load"), "{denied:?}");

    // also without a pattern among the names
    as_ops(
        &redis,
        &mysql,
        "[[family]]\nname = \"shop/views\"\nkind = \"buffered\"\n",
    );
    set_user().await;
    site.printed(&["drain"]).await;
}

#[tokio::test]
async fn grants_are_printed_without_mysql() {
    let mysql = MysqlServer::start().await;
    let site = Site::on(&mysql).await;
    site.configure_pair("create_tables = true", &format!("{FAMILIES}{MORE}"));
    mysql.kill();
    let grants = site.ends_with(0, &["grants", "daemon"]).await;
    assert!(
        grants
            .err
            .contains("without the families that only the database knows"),
        "{grants:?}"
    );
    assert!(
        grants
            .out
            .contains("GRANT CREATE ON `cli\\_0`.* TO `counterfoil`@`%`;"),
        "{grants:?}"
    );
    site.configure("[[family]]\nname = \"shop/views\"\nkind = \"buffered\"\n");
    let nothing = site.printed(&["grants", "writer"]).await;
    assert_eq!(nothing, "-- pair main: needs no privileges in MySQL\n");
}

/// Pasted for the daemon's user, the lines of an application would take the daemon's rights away.
#[tokio::test]
async fn an_application_has_a_user_of_its_own() {
    let site = Site::new().await;
    let printed = async |args: &[&str]| {
        let outcome = site.ends_with(0, args).await;
        (outcome.out.contains(" counterfoil-app "), outcome.out)
    };
    site.configure(FAMILIES);
    let (is_own, acl) = printed(&["acl", "application"]).await;
    assert!(is_own && !acl.contains("SETUSER counterfoil "), "{acl}");
    assert!(
        printed(&["acl", "reader"])
            .await
            .1
            .contains("SETUSER counterfoil-reader ")
    );
    assert!(
        printed(&["acl", "daemon"])
            .await
            .1
            .contains("SETUSER counterfoil ")
    );
    let (_, grants) = printed(&["grants", "application"]).await;
    assert!(grants.contains(" TO `counterfoil-app`@`%`;"), "{grants}");
    for (command, user) in [
        ("acl", "counterfoil"),
        // this daemon logs in as these
        ("acl", "default"),
        ("grants", "root"),
        ("grants", "counterfoil@10.0.0.%"),
    ] {
        for role in ["application", "writer", "reader"] {
            let refused = site.ends_with(3, &[command, role, "--user", user]).await;
            assert!(
                refused.out.is_empty()
                    && refused
                        .err
                        .contains(&format!("{user} is the daemon's user"))
                    && refused.err.contains("--user counterfoil-"),
                "{refused:?}"
            );
        }
        site.printed(&[command, "daemon", "--user", user]).await;
    }
    site.printed(&["acl", "application", "--user", "shop"])
        .await;

    // also where the daemon has another name
    let redis = format!("{}?user=ops&pass=secret", site.redis.url());
    let mysql = site.mysql_url.replace("root@", "ops@");
    let families = "[[family]]\nname = \"shop/votes\"\nkind = \"cached\"\n";
    site.write(&format!(
        "[pair.main]\nredis = {redis:?}\nmysql = {mysql:?}\n{families}"
    ));
    for (command, own, other) in [
        ("acl", "SETUSER ops ", "SETUSER ops-app "),
        ("grants", " TO `ops`@`%`;", " TO `ops-app`@`%`;"),
    ] {
        assert!(printed(&[command, "daemon"]).await.1.contains(own));
        assert!(printed(&[command, "application"]).await.1.contains(other));
        site.ends_with(3, &[command, "application", "--user", "ops"])
            .await;
    }
}

/// Two roles, or two recounts, may need the same privilege.
#[tokio::test]
async fn each_grant_is_printed_once() {
    let site = Site::new().await;
    let likes = MORE.split("[[family]]").nth(1).expect("a family");
    let again = likes.replace("forum/likes", "forum/others");
    site.configure(&format!("{FAMILIES}{MORE}[[family]]{again}"));
    for role in ["application", "writer", "reader", "daemon"] {
        let grants = site.json(0, &["grants", role]).await;
        let lines = grants[0]["lines"].as_array().expect("lines");
        let all: BTreeSet<_> = lines.iter().map(|line| line.as_str()).collect();
        assert_eq!(all.len(), lines.len(), "{role}: {lines:#?}");
    }
}

/// In a grant on a whole schema, `_` stands for any character.
#[tokio::test]
async fn the_privilege_to_create_tables_is_for_one_schema() {
    let mysql = MysqlServer::start().await;
    let site = Site::on(&mysql).await;
    site.configure_pair("create_tables = true", FAMILIES);
    let grants = site
        .printed(&["grants", "daemon", "--user", "ops@localhost"])
        .await;
    let create = grants
        .lines()
        .find(|line| line.contains("CREATE"))
        .expect("it creates");
    site.sql("CREATE USER ops@localhost; CREATE DATABASE cliX0")
        .await;
    site.sql(create).await;
    let may_create = async |schema: &str| {
        let url = mysql.url(schema).replace("root@", "ops@");
        let pool = counterfoil::sqlx::MySqlPool::connect(&url).await;
        let Ok(pool) = pool else { return false };
        let create = "CREATE TABLE created (id INT)";
        counterfoil::sqlx::raw_sql(create)
            .execute(&pool)
            .await
            .is_ok()
    };
    assert!(may_create("cli_0").await);
    assert!(!may_create("cliX0").await);
}

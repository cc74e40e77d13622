//! TLS and least privileges: the main path with exactly the output of `acl` and `grants`, and
//! without each line of it.

use std::time::Duration;

use counterfoil::{
    Counterfoil, Day, Family, KeyType, MemoryStore, MysqlStore, Outcome, Precision, Table,
};
use serde_json::Value;
use testkit::{Certificates, MysqlServer, RedisOptions, RedisServer};

use crate::support::{Output, Site, eventually};

const FAMILIES: &str = r#"
[[family]]
name = "shop-*/views"
kind = "buffered"
table = { name = "views", write = "upsert", keys = [["store", "unsigned"], ["product", "text"]], value = "n" }
sync_hits = 1
sync_time = "50ms"
[[family]]
name = "forum/votes"
kind = "cached"
table = { name = "item", write = "update", keys = [["id", "unsigned"]], value = "votes" }
sync_time = "50ms"
[family.recount]
rows = "added"
table = "vote"
keys = ["item"]
within = "200ms"
every = "1s"
# not item 1, whose votes have no rows
ids = "source"
[[family]]
name = "forum/visitors"
kind = "visitors"
sync_hits = 1
sync_time = "50ms"
[[family]]
name = "forum/downloads"
kind = "series"
windows = [["1s", 60]]
keep = ["1s"]
sync_time = "1s"
[[family]]
name = "forum/readers"
kind = "activity"
"#;

const TABLES: &str =
    "CREATE TABLE views (store INT UNSIGNED, product VARBINARY(64), n BIGINT NOT NULL, PRIMARY KEY (store, product));
CREATE TABLE item (id INT UNSIGNED PRIMARY KEY, votes BIGINT NOT NULL);
CREATE TABLE vote (item INT UNSIGNED NOT NULL, voter INT NOT NULL, PRIMARY KEY (item, voter));
INSERT INTO item VALUES (1, 0), (2, 0)";

/// Servers that accept only TLS, from clients with a certificate, with a user that has exactly the
/// printed privileges.
struct Secured {
    site: Site,
    rules: Vec<String>,
    grants: Vec<String>,
    _mysql: MysqlServer,
    _certificates: Certificates,
}

impl Secured {
    async fn start() -> Self {
        let certificates = Certificates::issue();
        let redis = RedisServer::start(RedisOptions::aof("always").tls(&certificates)).await;
        let mysql = MysqlServer::start_tcp(Some(&certificates)).await;
        let (database, pool) = mysql.database("shop").await;
        MysqlStore::new(&pool)
            .unwrap()
            .create_tables()
            .await
            .expect("counterfoil's tables");
        let file = |name: &str| certificates.file(name);
        let tls = format!(
            "ssl-mode=VERIFY_IDENTITY&ssl-ca={}&ssl-cert={}&ssl-key={}",
            file("ca.pem"),
            file("client.pem"),
            file("client.key")
        );
        let mysql_url = format!(
            "mysql://counterfoil@localhost:{}/{database}?{tls}",
            mysql.port()
        );
        let redis_url = format!("rediss://counterfoil@localhost:{}", redis.port());
        let site = Site::of(redis, pool, mysql_url);
        site.sql(TABLES).await;
        site.write(&format!(
            "listen = \"127.0.0.1:0\"\n[pair.main]\nredis = {redis_url:?}\nredis_ca = {:?}\nredis_cert = {:?}\n\
             redis_key = {:?}\nmysql = {:?}\ndurability = \"immediate\"\n{FAMILIES}",
            file("ca.pem"),
            file("client.pem"),
            file("client.key"),
            site.mysql_url,
        ));
        site.sql("CREATE USER counterfoil@'%' IDENTIFIED BY 'mysql-secret' REQUIRE X509")
            .await;
        let mut secured = Secured {
            site,
            rules: vec![],
            grants: vec![],
            _mysql: mysql,
            _certificates: certificates,
        };
        secured.rules = secured.lines("acl").await;
        secured.grants = secured.lines("grants").await;
        secured.allow(&secured.rules).await;
        for grant in &secured.grants {
            secured.site.sql(grant).await;
        }
        secured
    }

    async fn run(&self, args: &[&str]) -> Output {
        self.site.run_with(args, &PASSWORDS).await
    }

    /// Returns the output of `acl` or `grants` for the daemon.
    async fn lines(&self, command: &str) -> Vec<String> {
        let outcome = self.run(&[command, "daemon", "--json"]).await;
        let all: Value = serde_json::from_str(&outcome.out)
            .unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        let lines = all[0]["lines"].as_array().expect("lines").iter();
        lines
            .map(|line| line.as_str().expect("text").to_owned())
            .collect()
    }

    async fn allow(&self, rules: &[String]) {
        let command = format!(
            "ACL SETUSER counterfoil reset on >redis-secret {}",
            rules.join(" ")
        );
        let _: () = self
            .site
            .redis
            .run(&command)
            .await
            .unwrap_or_else(|error| panic!("{command}: {error}"));
    }

    /// Returns the findings of `check`.
    async fn check(&self) -> String {
        let outcome = self.run(&["check", "--json"]).await;
        outcome.out + &outcome.err
    }
}

const PASSWORDS: [(&str, &str); 2] = [
    ("COUNTERFOIL_MAIN_REDIS_PASSWORD", "redis-secret"),
    ("COUNTERFOIL_MAIN_MYSQL_PASSWORD", "mysql-secret"),
];

#[tokio::test]
async fn the_printed_privileges_are_enough_over_tls_and_each_rule_is_needed() {
    let secured = Secured::start().await;
    let Secured { site, rules, .. } = &secured;
    let daemon = site.daemon_with(|command| command.envs(PASSWORDS)).await;
    daemon.logs(&["started", "families=4"]).await;
    site.want("shop-1/views").await;
    count(site).await;
    let seen = "SELECT (SELECT n FROM views WHERE store = 1) * 10000 + (SELECT votes FROM item WHERE id = 1) * 1000 \
                + (SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values)";
    eventually("every kind", async || {
        let found = counterfoil::sqlx::query_scalar::<_, Option<i64>>(seen)
            .fetch_one(&site.pool)
            .await;
        // 3 views; 2 votes; a visitor and 4 downloads
        found.is_ok_and(|found| found == Some(32_005))
    })
    .await;
    // rows that were not counted
    site.sql("INSERT INTO vote VALUES (2, 1), (2, 2), (2, 3)")
        .await;
    eventually("the recount", async || {
        site.number("SELECT votes FROM item WHERE id = 2").await == 3
    })
    .await;
    let found = secured.check().await;
    assert!(!found.contains("\"error\""), "{found}");
    drop(daemon);

    for rule in rules.iter().filter(|rule| *rule != "+ping") {
        let others: Vec<_> = rules
            .iter()
            .filter(|other| *other != rule)
            .cloned()
            .collect();
        secured.allow(&others).await;
        let found = secured.check().await;
        // the missing pattern is reported for the announced tenant
        let missed = rule.trim_start_matches('+').replace("shop-*", "shop-1");
        assert!(found.contains(&missed), "without {rule}: {found}");
    }
}

#[tokio::test]
async fn each_printed_privilege_is_needed() {
    let secured = Secured::start().await;
    let Secured { site, grants, .. } = &secured;
    for grant in grants {
        let (privileges, on) = grant
            .strip_prefix("GRANT ")
            .unwrap()
            .split_once(" ON ")
            .unwrap();
        let (table, user) = on.trim_end_matches(';').split_once(" TO ").unwrap();
        for privilege in privileges.split(", ") {
            site.sql(&format!("REVOKE {privilege} ON {table} FROM {user}"))
                .await;
            let found = secured.check().await;
            let name = table.rsplit('.').next().unwrap().trim_matches('`');
            assert!(
                found.contains(name) && found.contains(privilege),
                "without {privilege} on {table}: {found}"
            );
            site.sql(grant).await;
        }
    }
}

/// Counts in every kind, as a user with all privileges.
async fn count(site: &Site) {
    let writer = Counterfoil::new(site.redis.manager().await, MemoryStore::new());
    let now = counterfoil::Durability::Immediate;
    let table = Table::upsert("views")
        .key("store", KeyType::Unsigned)
        .key("product", KeyType::Text)
        .value("n");
    let views = writer.open(
        Family::buffered("shop-1", "views")
            .table(table)
            .durability(now),
    );
    let _ = views.await.unwrap().add("1/shoe", 3).await.unwrap();
    let visitors = writer
        .open(Family::visitors("forum", "visitors").durability(now))
        .await
        .unwrap();
    let _ = visitors
        .first_visit("page", Day::today(), "me")
        .await
        .unwrap();
    let _ = visitors
        .first_visit("page", Day::today(), "me")
        .await
        .unwrap();
    let downloads = Family::series("forum", "downloads")
        .windows([(Precision::SECOND, 60)])
        .keep([Precision::SECOND]);
    let downloads = writer.open(downloads.durability(now)).await.unwrap();
    let _ = downloads.add("file", 4).await.unwrap();
    let readers = writer
        .open(Family::activity("forum", "readers").durability(now))
        .await
        .unwrap();
    readers.touch("page", "me").await.unwrap();

    let all = Counterfoil::new(
        site.redis.manager().await,
        MysqlStore::new(&site.pool).unwrap(),
    );
    let item = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("votes");
    let votes = Family::cached("forum", "votes")
        .table(item)
        .durability(now)
        .sync_time(Duration::from_millis(50));
    let votes = all.open(votes).await.unwrap();
    assert_eq!(votes.incr("1", 2).await.unwrap(), Outcome::Counted(2));
}

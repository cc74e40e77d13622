//! States of the servers: the reason of an outage is the server's own, the log has each state once,
//! and slow replies are visible.

use std::fs;
use std::time::Duration;

use counterfoil::sqlx::{Connection, MySqlConnection};
use serde_json::Value;
use testkit::{Certificates, MysqlServer, Proxy, RedisOptions, RedisServer};
use tokio::net::TcpStream;

use crate::client::{address, get};
use crate::http::{sample, scrape};
use crate::support::{Daemon, Site, eventually};

async fn state(daemon: &Daemon) -> Value {
    get(daemon, "/api/v1/state").await.json()
}

/// Returns why a server is unavailable.
async fn why(daemon: &Daemon, server: &str) -> String {
    let why = state(daemon).await["pairs"][0][server]["why"].clone();
    why.as_str().unwrap_or_default().to_owned()
}

/// Returns the problem of this name.
async fn problem(daemon: &Daemon, name: &str) -> Option<Value> {
    let state = state(daemon).await;
    let mut problems = state["problems"].as_array().expect("problems").iter();
    problems.find(|one| one["problem"] == name).cloned()
}

/// A site on a MySQL of its own.
async fn alone() -> (MysqlServer, Site) {
    let mysql = MysqlServer::start().await;
    let site = Site::on(&mysql).await;
    site.configure("create_tables = true");
    (mysql, site)
}

#[tokio::test]
async fn the_reason_of_an_outage_is_the_servers_own() {
    let (mysql, site) = alone().await;
    let daemon = site.daemon().await;
    daemon.logs(&["started"]).await;
    mysql.kill();
    eventually("MySQL is down", async || {
        problem(&daemon, "MySQL is unavailable").await.is_some()
    })
    .await;
    let found = problem(&daemon, "MySQL is unavailable")
        .await
        .expect("known");
    let words = found["why"].as_str().expect("a reason");
    assert!(words.contains("(os error "), "{found}");
    let status = site.run(&["status"]).await;
    assert!(status.out.contains("(os error "), "{status:?}");
    // what applications reach is unknown here
    let advice = found["what_to_do"].as_str().expect("advice");
    assert!(!advice.contains("Hits count,"), "{advice}");
}

#[tokio::test]
async fn an_expired_certificate_is_logged_once() {
    let certificates = Certificates::issue_until(2020, 1, 1);
    let redis = RedisServer::start(RedisOptions::volatile().tls(&certificates)).await;
    let (port, ca) = (redis.port(), certificates.file("ca.pem"));
    let (_mysql, site) = alone().await;
    let url = &site.mysql_url;
    site.write(&format!(
        "listen = \"127.0.0.1:0\"\n[pair.main]\nredis = \"rediss://localhost:{port}\"\n\
         redis_ca = {ca:?}\nmysql = {url:?}\n"
    ));
    let daemon = site.daemon().await;
    let mut texts = Vec::new();
    // the text contains the time
    while texts.len() < 4 {
        eventually("another text", async || {
            let text = why(&daemon, "redis").await;
            !text.is_empty() && texts.last() != Some(&text)
        })
        .await;
        texts.push(why(&daemon, "redis").await);
    }
    assert!(texts[0].contains("xpired"), "{texts:?}");
    let lines = daemon.lines(&["unavailable", "server=\"redis\""]);
    assert_eq!(lines, 1, "{}", daemon.log());
}

#[tokio::test]
async fn a_mysql_without_free_connections_is_logged_once_and_forgotten_after_it() {
    let (mysql, site) = alone().await;
    site.sql("CREATE USER counterfoil@localhost; GRANT ALL ON *.* TO counterfoil@localhost")
        .await;
    let url = site.mysql_url.replace("root@", "counterfoil@");
    let site = Site::of(
        RedisServer::start(RedisOptions::volatile()).await,
        site.pool.clone(),
        url.clone(),
    );
    site.configure("create_tables = true\n[[family]]\nname = \"shop/views\"\nkind = \"buffered\"");
    let daemon = site.daemon().await;
    daemon.logs(&["started"]).await;
    let mut root = site.pool.acquire().await.expect("a connection");
    let own = mysql.url("mysql").replace("root@", "counterfoil@");
    let limit = "SET GLOBAL max_connections = 10";
    counterfoil::sqlx::raw_sql(limit)
        .execute(&mut *root)
        .await
        .expect("set");
    site.end_sessions("counterfoil").await;
    let mut held = Vec::new();
    while held.len() < 20 {
        match MySqlConnection::connect(&own).await {
            Ok(connection) => held.push(connection),
            Err(_) => break,
        }
    }
    let full = "Too many connections";
    eventually(full, async || why(&daemon, "mysql").await.contains(full)).await;
    let since = state(&daemon).await["at"].as_u64().expect("a time");
    // several checks
    eventually("some seconds", async || {
        state(&daemon).await["at"].as_u64().expect("a time") >= since + 9
    })
    .await;
    let lines = |words: &[&str]| daemon.lines(words);
    assert_eq!(
        lines(&["unavailable", "mysql", full]),
        1,
        "{}",
        daemon.log()
    );
    assert!(lines(&["unavailable", "mysql"]) <= 2, "{}", daemon.log());
    drop(held);
    daemon.logs(&["available again", "mysql"]).await;
    eventually("health", async || {
        state(&daemon).await["state"] == "healthy"
    })
    .await;
    let log = daemon.log();
    let (_, after) = log.rsplit_once("available again").expect("it recovered");
    assert!(!after.contains(full), "{log}");
}

#[tokio::test]
async fn connections_that_are_not_accepted_are_logged_once() {
    let (_mysql, site) = alone().await;
    let daemon = site.daemon().await;
    daemon.logs(&["started"]).await;
    let pid = daemon.process.id().expect("it runs");
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("files")
        .count();
    let limit = format!("--nofile={}", open + 5);
    let limited = std::process::Command::new("prlimit")
        .args([&format!("--pid={pid}"), &limit])
        .status();
    assert!(limited.expect("prlimit runs").success());
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(TcpStream::connect(address(&daemon)).await.expect("listens"));
    }
    daemon.logs(&["accept failed"]).await;
    // each that leaves lets another one in, which succeeds, and the next one fails
    for _ in 0..12 {
        drop(clients.remove(0));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(daemon.lines(&["accept failed"]), 1, "{}", daemon.log());
}

#[tokio::test]
async fn slow_servers_are_problems_on_every_surface() {
    let (mysql, site) = alone().await;
    let (of_redis, of_mysql) = (Proxy::to(&site.redis), Proxy::to_unix(mysql.socket()));
    let socket = |path: &std::path::Path| path.display().to_string();
    let url = site
        .mysql_url
        .replace(&socket(mysql.socket()), &socket(of_mysql.socket()));
    site.write(&format!(
        "listen = \"127.0.0.1:0\"\n[pair.main]\nredis = {:?}\nmysql = {url:?}\ncreate_tables = true\n",
        of_redis.url()
    ));
    let daemon = site.daemon().await;
    eventually("health", async || {
        state(&daemon).await["state"] == "healthy"
    })
    .await;
    for (proxy, name, server) in [(&of_redis, "Redis", "redis"), (&of_mysql, "MySQL", "mysql")] {
        let slow = format!("{name} is slow");
        assert_eq!(problem(&daemon, &slow).await, None);
        proxy.delay_replies(Duration::from_millis(300));
        eventually(&slow, async || problem(&daemon, &slow).await.is_some()).await;
        let latency = state(&daemon).await["pairs"][0][server]["latency"].clone();
        let p99 = latency["p99_seconds"].as_f64().expect("a time");
        assert!(p99 >= 0.3 && latency["slow"] == true, "{latency}");
        let labels = [("server", server), ("quantile", "0.5")];
        let metric = "counterfoil_server_latency_seconds";
        let median = sample(&scrape(&daemon).await, metric, &labels);
        assert!(median.is_some_and(|median| median >= 0.25), "{median:?}");
        let status = site.run(&["status"]).await;
        assert!(status.out.contains(&slow), "{status:?}");
        proxy.delay_replies(Duration::ZERO);
    }
}

#[tokio::test]
async fn certificates_are_problems_two_weeks_before_they_end() {
    let today = jiff::Zoned::now().date();
    for (days, is_problem) in [(10, true), (30, false)] {
        let end = today.saturating_add(jiff::Span::new().days(days));
        let month = end.month().unsigned_abs();
        let certificates =
            Certificates::issue_until(end.year().into(), month, end.day().unsigned_abs());
        let redis = RedisServer::start(RedisOptions::volatile().tls(&certificates)).await;
        let mysql = MysqlServer::start_tcp(Some(&certificates)).await;
        let (database, pool) = mysql.database("certificates").await;
        let (port, of_mysql) = (redis.port(), mysql.port());
        let file = |name: &str| certificates.file(name);
        let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
        let site = Site::of(redis, pool, String::new());
        site.sql("CREATE USER shop@'%' IDENTIFIED BY 'x'; GRANT ALL ON *.* TO shop@'%'")
            .await;
        let url = format!("mysql://shop:x@localhost:{of_mysql}/{database}?ssl-ca={ca}");
        site.write(&format!(
            "listen = \"127.0.0.1:0\"\n[pair.main]\nredis = \"rediss://localhost:{port}\"\n\
             redis_ca = {ca:?}\nredis_cert = {cert:?}\nredis_key = {key:?}\nmysql = {url:?}\n\
             create_tables = true\n"
        ));
        let daemon = site.daemon().await;
        let own = [
            format!("mysql localhost:{of_mysql}"),
            format!("redis localhost:{port}"),
            "redis_ca".to_owned(),
            "redis_cert".to_owned(),
        ];
        eventually("all certificates", async || {
            let state = state(&daemon).await;
            let read = state["pairs"][0]["certificates"]
                .as_array()
                .expect("a list");
            let mut names: Vec<_> = read.iter().map(|one| &one["certificate"]).collect();
            names.sort_by_key(|name| name.to_string());
            names == own.iter().collect::<Vec<_>>()
        })
        .await;
        for (name, ends) in own.iter().zip([is_problem, is_problem, false, is_problem]) {
            let words = format!("The certificate of {name} ends soon");
            assert_eq!(problem(&daemon, &words).await.is_some(), ends, "{words}");
            let status = site.run(&["status"]).await.out;
            assert_eq!(status.contains(&words), ends, "{words}: {status}");
        }
        let labels = [("certificate", own[1].as_str())];
        let metric = "counterfoil_certificate_expiry_timestamp_seconds";
        let expires = sample(&scrape(&daemon).await, metric, &labels);
        let expected = end.to_zoned(jiff::tz::TimeZone::UTC).expect("a day");
        assert_eq!(expires, Some(expected.timestamp().as_second() as f64));
    }
}

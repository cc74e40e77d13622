//! The messages of commands while a server is unavailable.

use counterfoil::redis;
use futures_util::future::join_all;
use testkit::MysqlServer;

use super::FAMILIES;
use crate::support::Site;

#[tokio::test]
async fn a_redis_that_is_gone_or_silent_is_named() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a"]).await;
    site.redis.pause();
    let silent = site.ends_with(2, &["status"]).await;
    assert!(
        silent
            .out
            .contains("pair main: down: Redis is unavailable: "),
        "{silent:?}"
    );
    site.redis.kill();
    let gone = site.json(2, &["status"]).await;
    assert_eq!(
        (&gone[0]["redis"]["up"], &gone[0]["mysql"]["up"]),
        (&false.into(), &true.into()),
        "{gone}"
    );
    assert!(
        site.ends_with(2, &["check"])
            .await
            .out
            .contains("error: redis: unavailable")
    );
    for args in [
        &["get", "shop/views", "a"][..],
        &["add", "shop/views", "a"],
        &["drain"],
        &["scripts", "load"],
        &["pending"],
    ] {
        let away = site.ends_with(2, args).await;
        assert!(
            (away.err.clone() + &away.out).contains("pair main: "),
            "{away:?}"
        );
        assert!(away.err.lines().count() <= 1, "{away:?}");
    }
    let not_drained = site.json(2, &["drain"]).await;
    assert_eq!(not_drained[0]["drained"], false, "{not_drained}");
    // commands that need only MySQL continue to work
    site.printed(&["rejects", "list"]).await;
    site.printed(&["rejects", "retry", "--all"]).await;
}

#[tokio::test]
async fn a_redis_without_a_free_connection_is_named() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    let client = redis::Client::open(site.redis.url()).expect("a URL");
    let mut held = client.get_multiplexed_async_connection().await.unwrap();
    let mut limit = redis::cmd("CONFIG");
    let limit = limit.arg(&["SET", "maxclients", "1"]);
    let _: () = limit.query_async(&mut held).await.unwrap();
    let refused = site.ends_with(2, &["status"]).await;
    let names_it = |words| refused.out.contains(words);
    assert!(
        names_it("maxclients") || names_it("max number of clients"),
        "{refused:?}"
    );
}

/// The error of a connection to a server that is gone.
const REFUSED: &str = "Connection refused";

#[tokio::test]
async fn a_mysql_that_is_gone_is_named() {
    let mysql = MysqlServer::start().await;
    let site = Site::on(&mysql).await;
    site.configure(FAMILIES);
    site.printed(&["init"]).await;
    site.printed(&["add", "shop/views", "a"]).await;
    mysql.kill();
    let gone = site.ends_with(2, &["status"]).await;
    let mut lines = gone.out.lines();
    let line = lines.find(|line| line.starts_with("pair main: down: MySQL is unavailable: "));
    assert!(line.is_some_and(|line| line.contains(REFUSED)), "{gone:?}");
    let row = gone.out.lines().find(|line| line.starts_with("shop/views"));
    let cells: Vec<_> = row.expect("what Redis knows").split_whitespace().collect();
    assert_eq!(
        (cells[1], cells[2], cells.last()),
        ("buffered", "1", Some(&"down")),
        "{gone:?}"
    );
    let pending = site.json(2, &["pending"]).await;
    let families = pending[0]["families"].as_array().expect("families");
    let names: Vec<_> = families.iter().map(|family| &family["family"]).collect();
    assert_eq!(names, ["views"], "{pending}");
    let commands = [
        &["get", "shop/views", "a"][..],
        &["rejects", "list"],
        &["drift", "shop/views"],
        &["init"],
    ];
    // concurrently, since each waits a while for MySQL
    for away in join_all(commands.map(|args| site.ends_with(2, args))).await {
        assert!(
            away.err.contains(REFUSED) && away.err.lines().count() == 1,
            "{away:?}"
        );
    }
    let missing = "Families are missing: those that only MySQL knows";
    assert!(gone.out.contains(missing), "{gone:?}");
    let counted = site.printed(&["add", "shop/views", "a"]).await;
    assert_eq!(counted, "counted\n");
    mysql.start_again().await;
    assert_eq!(site.printed(&["get", "shop/views", "a"]).await, "a\t2\n");
}

//! Tests that servers return to an older state.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use testkit::{MysqlServer, RedisOptions, RedisServer};
use tokio::task::JoinHandle;
use tokio::time::sleep;

#[tokio::test]
async fn mysql_returns_to_a_backup_of_a_moment() {
    let server = MysqlServer::start().await;
    let (_, pool) = server.database("older").await;
    let run = async |sql: &'static str| sqlx::query(sql).execute(&pool).await.map(drop);
    // with one row in each, no commit may be in one table only
    run("CREATE TABLE a (n INT)").await.unwrap();
    run("CREATE TABLE b (n INT)").await.unwrap();
    let count = async || {
        let sql = "SELECT (SELECT COUNT(*) FROM a), (SELECT COUNT(*) FROM b)";
        let count: (i64, i64) = sqlx::query_as(sql).fetch_one(&pool).await.unwrap();
        assert_eq!(count.0, count.1);
        count.0
    };
    let insert: JoinHandle<()> = tokio::spawn({
        let pool = pool.clone();
        async move {
            loop {
                let mut commit = pool.begin().await.unwrap();
                for sql in ["INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)"] {
                    sqlx::query(sql).execute(&mut *commit).await.unwrap();
                }
                commit.commit().await.unwrap();
            }
        }
    });
    while count().await < 100 {}
    let before = count().await;
    let start = Instant::now();
    let backup = server.back_up();
    println!("backed up in {:?}", start.elapsed());
    let after = count().await;
    while count().await < after + 100 {}
    insert.abort();
    let _ = insert.await;
    for _ in 0..2 {
        let start = Instant::now();
        server.restore(&backup).await;
        println!("restored in {:?}", start.elapsed());
        pool_is_back(&pool).await;
        let restored = count().await;
        assert!((before..=after).contains(&restored), "{restored}");
        run("DELETE FROM a").await.unwrap();
        run("DELETE FROM b").await.unwrap();
    }
}

/// Waits until no connection of the pool is from before a restart.
async fn pool_is_back(pool: &sqlx::MySqlPool) {
    while sqlx::query("SELECT 1").execute(pool).await.is_err() {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn redis_returns_to_a_dump() {
    let snapshots = RedisOptions::volatile().arg("save", "3600 1");
    let all = [
        (RedisOptions::aof("always"), Some("newer")),
        (RedisOptions::aof("everysec"), Some("newer")),
        (snapshots, Some("older")),
        (RedisOptions::volatile(), None),
    ];
    for (options, after_a_kill) in all {
        println!("{options:?}");
        let server = RedisServer::start(options).await;
        let set = async |value: &str| {
            let mut redis = server.manager().await;
            redis.set::<_, _, ()>("key", value).await.unwrap();
            // with everysec, Redis postpones the write while a sync is running
            while !(server.run::<String>("INFO persistence").await.unwrap())
                .split_whitespace()
                .all(|field| !field.starts_with("aof_buffer_length:") || field.ends_with(":0"))
            {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let get = async || server.run::<Option<String>>("GET key").await.unwrap();
        set("older").await;
        let dump = server.back_up().await;
        set("newer").await;
        // The dump takes no part in a crash of a server that has no dumps.
        server.kill();
        server.start_again().await;
        assert_eq!(get().await.as_deref(), after_a_kill);
        for _ in 0..2 {
            set("newest").await;
            server.restore(&dump).await;
            assert_eq!(get().await.as_deref(), Some("older"));
        }
        let folder = server.socket().parent().unwrap();
        let copies = || {
            let names = std::fs::read_dir(folder)
                .unwrap()
                .map(|it| it.unwrap().file_name());
            names
                .filter(|name| name.to_string_lossy().starts_with("backup-"))
                .count()
        };
        assert_eq!(copies(), 1);
        drop(dump);
        assert_eq!(copies(), 0);
    }
}

//! The programs of README.md as they stand, but for the addresses, on empty servers.

use std::sync::OnceLock;

use counterfoil::{Counterfoil, Family};
use sqlx::MySqlPool;
use testkit::{MysqlServer, RedisOptions, RedisServer};

use crate::support::tls::Tls;
use crate::support::{counted, family};

const README: &str = include_str!("../../README.md");

/// Of Redis and the database.
static URLS: OnceLock<(String, String)> = OnceLock::new();

pub fn redis_url() -> &'static str {
    &URLS.get().expect("servers run").0
}

pub fn mysql_url() -> &'static str {
    &URLS.get().expect("servers run").1
}

mod first {
    include!(concat!(env!("OUT_DIR"), "/readme_1.rs"));

    pub fn run() -> counterfoil::Result<()> {
        main()
    }
}

/// A program that is a function of a pair.
macro_rules! program {
    ($module:ident, $file:literal, $function:ident) => {
        mod $module {
            include!(concat!(env!("OUT_DIR"), $file));

            pub async fn run(counterfoil: Counterfoil) -> counterfoil::Result<()> {
                $function(counterfoil).await
            }
        }
    };
}

mod secure {
    include!(concat!(env!("OUT_DIR"), "/readme_7.rs"));

    pub async fn run() -> Result<Counterfoil, Box<dyn std::error::Error>> {
        connect().await
    }
}

/// A test by itself.
mod in_tests {
    include!(concat!(env!("OUT_DIR"), "/readme_8.rs"));
}

program!(own_table, "/readme_2.rs", shop);
program!(cached, "/readme_3.rs", forum);
program!(series, "/readme_4.rs", site);
program!(activity, "/readme_5.rs", forum);
program!(visitors, "/readme_6.rs", shop);

static TLS: OnceLock<Tls> = OnceLock::new();

pub fn tls() -> &'static Tls {
    TLS.get().expect("servers run")
}

/// In place of `std::fs`.
mod files {
    pub fn read(file: &str) -> std::io::Result<Vec<u8>> {
        super::tls().read(file)
    }
}

#[tokio::test]
async fn the_program_with_tls_runs() {
    assert!(TLS.set(Tls::start().await).is_ok(), "one test");
    let counterfoil = secure::run().await.expect("connected");
    counterfoil.store().create_tables().await.expect("created");
    let views = counterfoil.open(family("views").build().expect("valid")).await.expect("opened");
    assert_eq!(counted(views.add("product/7", 1).await.expect("counted")), 1);
    counterfoil.drain().await.expect("drained");
    let counted: i64 =
        sqlx::query_scalar("SELECT value FROM counterfoil_values").fetch_one(&tls().pool).await.expect("read");
    assert_eq!(counted, 1);
}

#[test]
fn every_program_of_the_readme_runs() {
    assert_eq!(README.matches("\n```rust").count(), 8, "a program that is not run here");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (_redis, _mysql, pool) = runtime.block_on(start());
    first::run().expect("the first program");
    runtime.block_on(the_others(&pool)).expect("the other programs");
}

async fn start() -> (RedisServer, MysqlServer, MySqlPool) {
    let (redis, mysql) = (RedisServer::start(RedisOptions::volatile()).await, MysqlServer::start().await);
    let (database, pool) = mysql.database("shop").await;
    URLS.set((redis.url(), mysql.url(&database))).expect("one test");
    (redis, mysql, pool)
}

async fn the_others(pool: &MySqlPool) -> counterfoil::Result<()> {
    for block in README.split("\n```sql\n").skip(1) {
        let sql = block.split("\n```").next().expect("a block");
        sqlx::raw_sql(sql).execute(pool).await.expect(sql);
    }
    let counterfoil = Counterfoil::connect(redis_url(), mysql_url()).await?;
    own_table::run(counterfoil.clone()).await?;
    cached::run(counterfoil.clone()).await?;
    series::run(counterfoil.clone()).await?;
    activity::run(counterfoil.clone()).await?;
    visitors::run(counterfoil.clone()).await?;

    let views = counterfoil.open(Family::buffered("shop", "product_views").build()?).await?;
    assert_eq!(views.get("product/7").await?, 1);
    counterfoil.drain().await?;
    for (count, query) in [
        (0, "SELECT COUNT(*) FROM counterfoil_rejects"),
        (1, "SELECT count FROM sales WHERE store_id = 12345 AND day = '2014-09-20'"),
        (1, "SELECT CAST(vote_count AS SIGNED) FROM item WHERE id = 4711"),
        (1, "SELECT count FROM visitors WHERE store_id = 12345 AND day = '2014-09-20'"),
    ] {
        let found: Option<i64> = sqlx::query_scalar(query).fetch_optional(pool).await.expect(query);
        assert_eq!(found, Some(count), "{query}");
    }
    Ok(())
}

//! The programs of README.md, the guide and operations.md on empty servers, unchanged except for
//! the addresses.

use std::sync::OnceLock;

use crate::support::*;

const README: &str = include_str!("../../README.md");
const GUIDE: &str = include_str!("../../docs/guide.md");
const OPERATIONS: &str = include_str!("../../docs/operations.md");

/// The URLs of Redis and of the database.
static URLS: OnceLock<(String, String)> = OnceLock::new();

pub fn redis_url() -> &'static str {
    &URLS.get().unwrap().0
}

pub fn mysql_url() -> &'static str {
    &URLS.get().unwrap().1
}

mod first {
    include!(concat!(env!("OUT_DIR"), "/readme_1.rs"));

    pub fn run() -> counterfoil::Result<()> {
        main()
    }
}

/// Includes programs as functions of a pair, and runs them in this order.
macro_rules! programs {
    ($($module:ident, $file:literal, $function:ident;)*) => {
        $(mod $module {
            include!(concat!(env!("OUT_DIR"), $file));

            pub async fn run(counterfoil: Counterfoil) -> counterfoil::Result<()> {
                $function(counterfoil).await
            }
        })*

        async fn run_all(counterfoil: &Counterfoil) -> Result<()> {
            $($module::run(counterfoil.clone()).await?;)*
            Ok(())
        }
    };
}

mod secure {
    include!(concat!(env!("OUT_DIR"), "/guide_15.rs"));

    pub async fn run() -> Result<Counterfoil, Box<dyn std::error::Error>> {
        connect().await
    }
}

mod pooled {
    include!(concat!(env!("OUT_DIR"), "/guide_13.rs"));

    pub fn run(pool: Pool, store: MysqlStore) -> Counterfoil {
        counterfoil(pool, store)
    }
}

/// The same program with the types of bb8-redis, as the guide names them.
mod pooled_by_bb8 {
    use bb8_redis::RedisConnectionManager;
    use bb8_redis::bb8::{Pool, PooledConnection};
    use counterfoil::redis::aio::ConnectionLike;
    use counterfoil::redis::{Cmd, Pipeline, RedisError, RedisFuture, Value};
    use counterfoil::{Connection, Counterfoil, CustomConnection, MysqlStore};

    #[derive(Clone)]
    struct Pooled(Pool<RedisConnectionManager>);

    impl Pooled {
        async fn connection(
            &self,
        ) -> Result<PooledConnection<'_, RedisConnectionManager>, RedisError> {
            self.0.get().await.map_err(Connection::unsent)
        }
    }

    impl ConnectionLike for Pooled {
        fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
            Box::pin(async { self.connection().await?.req_packed_command(cmd).await })
        }

        fn req_packed_commands<'a>(
            &'a mut self,
            pipe: &'a Pipeline,
            offset: usize,
            count: usize,
        ) -> RedisFuture<'a, Vec<Value>> {
            Box::pin(async move {
                self.connection()
                    .await?
                    .req_packed_commands(pipe, offset, count)
                    .await
            })
        }

        fn get_db(&self) -> i64 {
            0
        }
    }

    pub fn run(pool: Pool<RedisConnectionManager>, store: MysqlStore) -> Counterfoil {
        let connection = Connection::custom(Pooled(pool), CustomConnection::default());
        Counterfoil::new(connection, store)
    }
}

mod own_connections {
    include!(concat!(env!("OUT_DIR"), "/guide_14.rs"));

    pub async fn run(pool: &MySqlPool) -> counterfoil::Result<Counterfoil> {
        connect(pool).await
    }
}

/// A program that is itself a test.
mod without_servers {
    include!(concat!(env!("OUT_DIR"), "/guide_16.rs"));
}

mod rejects {
    include!(concat!(env!("OUT_DIR"), "/operations_1.rs"));

    pub async fn run(
        counterfoil: Counterfoil,
        family: &Family,
    ) -> counterfoil::Result<RetrySummary> {
        retry(counterfoil, family).await
    }
}

programs! {
    cached, "/guide_6.rs", forum;
    series, "/guide_7.rs", site;
    activity, "/guide_8.rs", forum;
    visitors, "/guide_9.rs", shop;
    smallest, "/guide_1.rs", shop;
    results, "/guide_2.rs", page;
    reading, "/guide_5.rs", page;
    requests, "/guide_3.rs", job;
    recording, "/guide_4.rs", log;
    worker, "/guide_11.rs", worker;
    recounting, "/guide_12.rs", recounting;
}

mod own_table {
    include!(concat!(env!("OUT_DIR"), "/guide_10.rs"));

    pub async fn run(counterfoil: Counterfoil) -> counterfoil::Result<()> {
        shop(counterfoil).await
    }
}

/// Without a connection a pool sends nothing: no hit is of unknown outcome, and recorded hits stay.
#[tokio::test]
async fn a_pool_without_a_connection_loses_no_hits() {
    let redis = RedisServer::start(RedisOptions::aof("always")).await;
    let (_, pool) = mysql().await.database("pools").await;
    let store = MysqlStore::new(&pool).unwrap();
    store.create_tables().await.unwrap();
    let deadpool = deadpool_redis::Config::from_url(redis.url());
    let deadpool = deadpool.create_pool(None).unwrap();
    let manager = bb8_redis::RedisConnectionManager::new(redis.url()).unwrap();
    let bb8 = bb8_redis::bb8::Pool::builder().connection_timeout(millis(400));
    let bb8 = bb8.build(manager).await.unwrap();
    let over_deadpool = patient(pooled::run(deadpool, store.clone()));
    let over_bb8 = patient(pooled_by_bb8::run(bb8, store));
    let both = [
        over_deadpool.opened(family("deadpool")).await,
        over_bb8.opened(family("bb8")).await,
    ];
    for views in &both {
        views.count("page", 1).await;
    }
    redis.kill();
    for views in &both {
        views.record("page", 10).unwrap();
    }
    // one after the other, which takes longer than one attempt to send recorded hits
    for views in &both {
        let error = views.add("page", 1).await.unwrap_err();
        assert!(error.is_retryable(), "{error:#}");
    }
    redis.start_again().await;
    for views in both {
        let flushed = timeout(secs(20), async {
            while let Err(error) = views.flush().await {
                assert!(error.is_retryable(), "{error:#}");
            }
        });
        flushed.await.unwrap();
        eventually("the outage is over", async || {
            views.get("page").await.is_ok()
        })
        .await;
        assert_eq!(views.value("page").await, 11, "{}", views.family());
    }
}

static TLS: OnceLock<Tls> = OnceLock::new();

pub fn tls() -> &'static Tls {
    TLS.get().unwrap()
}

/// A replacement for `std::fs`.
mod files {
    pub fn read(file: &str) -> std::io::Result<Vec<u8>> {
        super::tls().read(file)
    }
}

#[tokio::test]
async fn the_program_with_tls_runs() {
    // one test
    assert!(TLS.set(Tls::start().await).is_ok());
    let counterfoil = secure::run().await.unwrap();
    counterfoil.mysql().unwrap().create_tables().await.unwrap();
    assert_eq!(
        counted(
            counterfoil
                .opened(family("views"))
                .await
                .add("product/7", 1)
                .await
                .unwrap()
        ),
        1
    );
    counterfoil.drained().await;
    let counted: i64 = sqlx::query_scalar("SELECT value FROM counterfoil_values")
        .fetch_one(&tls().pool)
        .await
        .unwrap();
    assert_eq!(counted, 1);
}

#[test]
fn every_program_of_the_documents_runs() {
    for (document, programs) in [(README, 1), (GUIDE, 16), (OPERATIONS, 1)] {
        // a program that is not run here
        assert_eq!(document.matches("\n```rust").count(), programs);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_redis, pool) = runtime.block_on(start());
    first::run().unwrap();
    runtime.block_on(the_others(&pool)).unwrap();
}

async fn start() -> (RedisServer, MySqlPool) {
    let (redis, mysql) = (new_redis().await, mysql().await);
    let (database, pool) = mysql.database("shop").await;
    URLS.set((redis.url(), mysql.url(&database))).unwrap();
    (redis, pool)
}

async fn the_others(pool: &MySqlPool) -> Result<()> {
    for block in GUIDE.split("\n```sql\n").skip(1) {
        let sql = block.split("\n```").next().unwrap();
        sqlx::raw_sql(sql).execute(pool).await.expect(sql);
    }
    let counterfoil = Counterfoil::connect(redis_url(), mysql_url()).await?;
    let redis = deadpool_redis::Config::from_url(redis_url())
        .create_pool(None)
        .unwrap();
    let over_a_pool = pooled::run(redis, MysqlStore::new(pool).unwrap());
    own_table::run(over_a_pool.clone()).await?;
    over_a_pool.drain().await?;
    let redis = bb8_redis::RedisConnectionManager::new(redis_url()).unwrap();
    let redis = bb8_redis::bb8::Pool::builder().build(redis).await.unwrap();
    let over_bb8 = pooled_by_bb8::run(redis, MysqlStore::new(pool).unwrap());
    over_bb8
        .opened(family("pooled"))
        .await
        .count("page", 1)
        .await;
    over_bb8.drain().await?;
    let beside_a_pool = own_connections::run(pool).await?;
    beside_a_pool.opened(family("beside")).await;
    run_all(&counterfoil).await?;

    for (namespace, name, id, value) in [
        ("shop", "product_views", "product/7", 1),
        ("guide", "views", "product/7", 2),
        ("guide", "orders", "product/7", 1),
        ("guide", "lines", "access.log", 1000),
    ] {
        assert_eq!(
            counterfoil
                .open(Family::buffered(namespace, name))
                .await?
                .get(id)
                .await?,
            value,
            "{namespace}/{name}"
        );
    }
    counterfoil.drain().await?;
    for (count, query) in [
        (0, "SELECT COUNT(*) FROM counterfoil_rejects"),
        (
            1,
            "SELECT count FROM sales WHERE store_id = 12345 AND day = '2014-09-20'",
        ),
        (
            1,
            "SELECT CAST(vote_count AS SIGNED) FROM item WHERE id = 4711",
        ),
        (
            1,
            "SELECT count FROM visitors WHERE store_id = 12345 AND day = '2014-09-20'",
        ),
    ] {
        let found: Option<i64> = sqlx::query_scalar(query)
            .fetch_optional(pool)
            .await
            .expect(query);
        assert_eq!(found, Some(count), "{query}");
    }
    a_reject_is_retried(counterfoil, pool).await
}

/// Retries a hit whose row is created later.
async fn a_reject_is_retried(counterfoil: Counterfoil, pool: &MySqlPool) -> Result<()> {
    let table = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("vote_count");
    let downloads = counterfoil
        .open(Family::buffered("shop", "downloads").table(table))
        .await?;
    assert_eq!(counted(downloads.add("4712", 3).await?), 3);
    counterfoil.drain().await?;
    sqlx::raw_sql("INSERT INTO item (id, name) VALUES (4712, 'Raspberry')")
        .execute(pool)
        .await
        .unwrap();

    let retried = rejects::run(counterfoil, downloads.family()).await?;
    assert_eq!((retried.applied, retried.refused), (1, 0));
    let found: i64 =
        sqlx::query_scalar("SELECT CAST(vote_count AS SIGNED) FROM item WHERE id = 4712")
            .fetch_one(pool)
            .await
            .unwrap();
    assert_eq!(found, 3);
    Ok(())
}

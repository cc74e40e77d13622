//! Locks of the application in its own tables: they delay one family, and counterfoil's locks delay
//! the application for a moment only and cause no deadlock.

use sqlx::{Connection as _, MySqlConnection};

use crate::support::*;

const ROWS: i64 = 1_000;

/// A shop with two tables of its own, a family on each, and one on counterfoil's.
struct Shop {
    pair: Pair,
    products: BufferedCounters,
    assets: BufferedCounters,
    orders: BufferedCounters,
}

impl Shop {
    async fn new() -> Self {
        let pair = Pair::new().await;
        pair.sql(
            "CREATE TABLE product (id BIGINT PRIMARY KEY, stock INT NOT NULL DEFAULT 0, n BIGINT NOT NULL DEFAULT 0);
             INSERT INTO product (id) WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 1000) \
                 SELECT i FROM s;
             CREATE TABLE asset LIKE product; INSERT INTO asset SELECT * FROM product",
        )
        .await;
        let of = |table: Table| keyed(table, [("id", Signed)]);
        let products = family("products").table(of(Table::update("product")));
        let assets = family("assets").table(of(Table::upsert("asset")));
        Shop {
            products: pair.open(products).await,
            assets: pair.open(assets).await,
            orders: pair.open(family("orders")).await,
            pair,
        }
    }

    /// Opens a connection of the shop's own, and runs these statements.
    async fn session(&self, sql: &'static str) -> MySqlConnection {
        let options = self.pair.pool.connect_options();
        let mut session = MySqlConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql(sql).execute(&mut session).await.unwrap();
        session
    }

    /// Runs the shop's statement again and again. Returns the longest time that it took.
    fn updating(&self, sql: &'static str) -> Load<Duration> {
        let options = self.pair.pool.connect_options();
        Load::start(1, move |_, stop| {
            let options = options.clone();
            async move {
                let mut session = MySqlConnection::connect_with(&options).await.unwrap();
                let mut longest = Duration::ZERO;
                while !stop.is_set() {
                    let began = Instant::now();
                    sqlx::raw_sql(sql).execute(&mut session).await.expect(sql);
                    longest = longest.max(began.elapsed());
                    pause(5).await;
                }
                longest
            }
        })
    }

    /// Counts once in every row of each family.
    async fn hit(&self) {
        let ids: Vec<_> = (1..=ROWS).map(|id| id.to_string()).collect();
        for counters in [&self.products, &self.assets, &self.orders] {
            let hits = counters.add_many(ids.iter().map(|id| (id, 1))).await;
            assert!(hits.iter().all(Result::is_ok));
        }
    }

    async fn arrives(&self, table: &str, sum: i64) {
        let select = format!("SELECT SUM(n) FROM {table}");
        eventually(table, async || self.pair.number(&select).await == sum).await;
    }
}

/// Locks rows of products, counts in all tables, and asserts that the other families and the shop's
/// update are not delayed. `meanwhile` waits for what else must arrive before the lock is released.
async fn only_products_wait(
    shop: &Shop,
    (what, lock): (&str, &'static str),
    update: &'static str,
    meanwhile: impl AsyncFnOnce(),
) {
    let locker = shop.session(lock).await;
    let updating = shop.updating(update);
    shop.hit().await;
    let (began, reconciler) = (Instant::now(), shop.pair.reconcile().await);
    tokio::join!(shop.arrives("asset", ROWS), shop.pair.arrives(ROWS));
    let others = began.elapsed();
    meanwhile().await;
    pause(1_500).await;
    let longest = updating.end().await[0];
    locker.close().await.unwrap();
    shop.arrives("product", ROWS).await;
    reconciler.stop().await;
    println!(
        "a {what} was locked: others stored after {others:?}, the shop's longest update {longest:?}"
    );
    assert!(others < secs(8) && longest < secs(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_holds_up_only_its_own_family() {
    let shop = Shop::new().await;
    let lock = ("table", "LOCK TABLES product WRITE");
    let update = "UPDATE asset SET stock = stock + 1 WHERE id IN (3, 700)";
    only_products_wait(&shop, lock, update, async || {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_holds_up_neither_the_rows_before_it_nor_the_shop() {
    let shop = Shop::new().await;
    let lock = "BEGIN; SELECT id FROM product WHERE id = 900 FOR UPDATE";
    let update = "UPDATE product SET stock = stock + 1 WHERE id IN (1, 901)";
    // three of four partitions do not have the row, and ids are in the order of their bytes
    let select = "SELECT COUNT(*) FROM product WHERE n = 1";
    let others = async || shop.pair.number(select).await > ROWS * 3 / 4;
    let meanwhile = async || eventually("the other rows", others).await;
    only_products_wait(&shop, ("row", lock), update, meanwhile).await;
}

/// The shop's transactions lock a row of each table, in either order. They have rows of their own,
/// so that there is no deadlock among them.
#[tokio::test(flavor = "multi_thread")]
async fn the_shop_is_not_the_victim_of_deadlocks() {
    const TASKS: i64 = 4;
    const DEADLOCK: u16 = 1213;
    let shop = Shop::new().await;
    let reconciler = shop.pair.reconcile().await;
    let (options, seed): (_, u64) = (shop.pair.pool.connect_options(), random::numbers().random());
    let tasks = Load::start(TASKS as usize, move |task, stop| {
        let (options, task) = (options.clone(), task as i64);
        let mut random = StdRng::seed_from_u64(seed ^ task as u64);
        async move {
            let mut shop = MySqlConnection::connect_with(&options).await.unwrap();
            let (mut done, mut deadlocks, mut longest) = (0_u64, 0_u64, Duration::ZERO);
            while !stop.is_set() {
                let row =
                    |random: &mut StdRng| random.random_range(0..ROWS / TASKS) * TASKS + task + 1;
                let mut steps = vec![
                    format!(
                        "UPDATE product SET stock = stock + 1 WHERE id = {}",
                        row(&mut random)
                    ),
                    format!(
                        "UPDATE asset SET stock = stock + 1 WHERE id = {}",
                        row(&mut random)
                    ),
                    format!(
                        "UPDATE product SET stock = stock - 1 WHERE id = {}",
                        row(&mut random)
                    ),
                ];
                if random.random() {
                    steps.reverse();
                }
                let began = Instant::now();
                let mut transaction = shop.begin().await.unwrap();
                let mut outcome = Ok(());
                for step in steps {
                    outcome = sqlx::query(AssertSqlSafe(step))
                        .execute(&mut *transaction)
                        .await
                        .map(drop);
                    if outcome.is_err() {
                        break;
                    }
                    pause(1).await;
                }
                match outcome {
                    Ok(()) => transaction.commit().await.unwrap(),
                    Err(sqlx::Error::Database(error)) => {
                        let number = error
                            .downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
                            .number();
                        assert_eq!(number, DEADLOCK, "{error}");
                        deadlocks += 1;
                        transaction.rollback().await.unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
                done += 1;
                longest = longest.max(began.elapsed());
            }
            (done, deadlocks, longest)
        }
    });
    let (began, mut rounds) = (Instant::now(), 0);
    let time = (random::cases(50) / 10).clamp(3, 60).into();
    while began.elapsed() < secs(time) {
        shop.hit().await;
        rounds += 1;
        pause(100).await;
    }
    let (mut transactions, mut deadlocks, mut longest) = (0, 0, Duration::ZERO);
    for (done, victims, slowest) in tasks.end().await {
        transactions += done;
        deadlocks += victims;
        longest = longest.max(slowest);
    }
    shop.pair.drain().await;
    reconciler.stop().await;
    println!(
        "{deadlocks} deadlocks in {transactions} transactions of the shop, the longest of which took {longest:?}, \
         with {} hits",
        rounds * ROWS * 3
    );
    assert!(
        deadlocks * 1_000 <= transactions,
        "{deadlocks} of {transactions}"
    );
    let sums = ["product", "asset"].map(|table| format!("SELECT SUM(n) FROM {table}"));
    for sum in sums {
        assert_eq!(shop.pair.number(&sum).await, rounds * ROWS);
    }
}

//! The demo's families: counters, series and unique visitors, some in counterfoil's own table and
//! some in tables of the application.

use std::time::Duration;

use counterfoil::{
    BufferedCounters, Counterfoil, Durability, Family, KeyType, MysqlStore, Precision, Series,
    Table, Visitors,
};
use sqlx::{AssertSqlSafe, MySqlPool};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::log::Hit;

pub const NAMESPACE: &str = "demo";
pub const PAGE_VIEWS: &str = "page_views";
pub const DAILY_HITS: &str = "daily_hits";
pub const STATUS_CODES: &str = "status_codes";
pub const REQUESTS: &str = "requests";
/// A day of the log, which is in UTC. The calendar's days are those around the current time, and the
/// demo counts at the log's times.
pub const DAY: Precision = Precision::Seconds(86_400);
pub const VISITORS: &str = "visitors";

/// The time that a batch waits before it goes to MySQL. The default of 2.5 s suits an append-only
/// file that is synced every second. The demo kills processes but never cuts the power, and what a
/// killed process wrote stays written. A short time is therefore as safe, and exposes many more
/// batches to the disturbances.
pub const SETTLE: Duration = Duration::from_millis(300);

/// The number of hits, and the time, after which a batch is cut.
const SYNC_HITS: u64 = 1_000;
const SYNC_TIME: Duration = Duration::from_millis(500);

/// The servers that hold the counters.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    #[arg(long)]
    pub redis: String,
    #[arg(long)]
    pub mysql: String,
}

pub type Pair = Counterfoil;

/// The families that this process uses.
pub struct Opened {
    pub pair: Pair,
    page_views: BufferedCounters,
    daily_hits: BufferedCounters,
    status_codes: BufferedCounters,
    /// Requests per day and hour.
    pub requests: Series,
    /// Unique visitors per day.
    pub visitors: Visitors,
}

impl Opened {
    /// Returns each family of counters with the id that the hit counts in it.
    pub fn ids<'a>(&'a self, hit: &'a Hit) -> [(&'a BufferedCounters, &'a str); 3] {
        [
            (&self.page_views, &hit.path),
            (&self.daily_hits, &hit.day),
            (&self.status_codes, &hit.status),
        ]
    }
}

/// Connects and opens the families.
pub async fn open(place: &Place) -> counterfoil::Result<Opened> {
    let pair = Counterfoil::connect(&place.redis, &place.mysql).await?;
    let settle = Durability::Settle(SETTLE);
    let family = |name: &str| {
        Family::buffered(NAMESPACE, name)
            .sync_hits(SYNC_HITS)
            .sync_time(SYNC_TIME)
            .durability(settle)
    };
    // inserts rows that do not exist yet
    let days = Table::upsert(DAILY_HITS)
        .key("day", KeyType::Date)
        .value("hits");
    // updates only: the application inserts the rows
    let codes = Table::update(STATUS_CODES)
        .key("status", KeyType::Unsigned)
        .value("hits");
    // far shorter than the log: slices that have left the windows are in MySQL
    let requests = Family::series(NAMESPACE, REQUESTS)
        .windows([(Precision::HOUR, 24), (DAY, 2)])
        .keep([Precision::HOUR, DAY])
        .sync_time(SYNC_TIME)
        .durability(settle);
    let visits = Table::upsert(VISITORS)
        .key("scope", KeyType::Text)
        .key("day", KeyType::Date)
        .value("count");
    let visitors = Family::visitors(NAMESPACE, VISITORS)
        .table(visits)
        .sync_hits(SYNC_HITS)
        .sync_time(SYNC_TIME)
        .durability(settle);
    Ok(Opened {
        page_views: pair.open(family(PAGE_VIEWS)).await?,
        daily_hits: pair.open(family(DAILY_HITS).table(days)).await?,
        status_codes: pair.open(family(STATUS_CODES).table(codes)).await?,
        requests: pair.open(requests).await?,
        visitors: pair.open(visitors).await?,
        pair,
    })
}

/// Connects and opens the families for a process that only reconciles.
pub async fn pair(place: &Place) -> counterfoil::Result<Pair> {
    Ok(open(place).await?.pair)
}

/// Creates counterfoil's tables and the application's, with a row for each status code.
pub async fn create_tables(
    mysql: &MySqlPool,
    status_codes: impl Iterator<Item = &str>,
) -> Result<()> {
    MysqlStore::new(mysql)?.create_tables().await?;
    sqlx::raw_sql(
        "CREATE TABLE daily_hits (day DATE PRIMARY KEY, hits BIGINT NOT NULL);
         CREATE TABLE status_codes (status INT UNSIGNED PRIMARY KEY, hits BIGINT NOT NULL DEFAULT 0);
         CREATE TABLE visitors (scope VARBINARY(200), day DATE, count BIGINT NOT NULL, PRIMARY KEY (scope, day))",
    )
    .execute(mysql)
    .await?;
    let rows: Vec<_> = status_codes.map(|status| format!("({status})")).collect();
    let insert = format!(
        "INSERT INTO status_codes (status) VALUES {}",
        rows.join(", ")
    );
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(mysql).await?;
    Ok(())
}

/// Returns the number of deltas that MySQL refused.
pub async fn rejects(mysql: &MySqlPool) -> Result<i64> {
    Ok(
        sqlx::query_scalar("SELECT COUNT(*) FROM counterfoil_rejects")
            .fetch_one(mysql)
            .await?,
    )
}

/// The time within which a server is back after a fault, on a busy machine.
const BACK: Duration = Duration::from_secs(30);

/// Retries `attempt` while it fails because its connection was cut.
pub async fn patiently<T>(
    attempt: impl AsyncFn() -> counterfoil::Result<T>,
) -> counterfoil::Result<T> {
    let started = Instant::now();
    loop {
        match attempt().await {
            Err(error) if error.is_retryable() && started.elapsed() < BACK => {}
            ended => return ended,
        }
        sleep(Duration::from_millis(50)).await;
    }
}

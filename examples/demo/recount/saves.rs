//! The application's rows, and the counter of the rows that each user has saved.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil::{BufferedCounters, Counterfoil, Durability, Family, MysqlStore};
use sqlx::MySqlPool;

use crate::Result;
use crate::families::{NAMESPACE, Pair, Place};

pub const PARTITIONS: u32 = 4;

/// The settle time. It is short as in the other demos: the demo never cuts the power.
const SETTLE: Duration = Duration::from_millis(100);
const SYNC_HITS: u64 = 1_000;
const SYNC_TIME: Duration = Duration::from_millis(200);

/// Connects and opens the family.
pub async fn open(place: &Place) -> counterfoil::Result<(Pair, BufferedCounters)> {
    let pair = Counterfoil::connect(&place.redis, &place.mysql).await?;
    let saves = Family::buffered(NAMESPACE, "saves")
        .partitions(PARTITIONS)
        .sync_hits(SYNC_HITS)
        .sync_time(SYNC_TIME)
        .durability(Durability::Settle(SETTLE));
    let saves = pair.open(saves).await?;
    Ok((pair, saves))
}

/// Connects and opens the family for a process that only reconciles.
pub async fn pair(place: &Place) -> counterfoil::Result<Pair> {
    Ok(open(place).await?.0)
}

/// Creates counterfoil's tables and the application's.
pub async fn create_tables(mysql: &MySqlPool) -> Result<()> {
    MysqlStore::new(mysql)?.create_tables().await?;
    sqlx::raw_sql(
        "CREATE TABLE saves (event BIGINT AUTO_INCREMENT PRIMARY KEY, user_id INT UNSIGNED NOT NULL, KEY (user_id))",
    )
    .execute(mysql)
    .await?;
    Ok(())
}

/// Returns the ids of all users' counters.
pub fn ids(users: u32) -> Vec<String> {
    (1..=users).map(|user| user.to_string()).collect()
}

/// Returns the number of rows of each user that has any.
pub async fn rows(mysql: &MySqlPool) -> Result<BTreeMap<u32, i64>> {
    let rows =
        sqlx::query_as("SELECT CAST(user_id AS SIGNED), COUNT(*) FROM saves GROUP BY user_id");
    by_user(rows.fetch_all(mysql).await?)
}

/// Reads the counters with plain SQL, without the library.
pub async fn stored(mysql: &MySqlPool) -> Result<BTreeMap<u32, i64>> {
    let values = sqlx::query_as(
        "SELECT CAST(CAST(v.id AS CHAR) AS SIGNED), v.value FROM counterfoil_values v \
         JOIN counterfoil_families f ON f.number = v.family WHERE f.name = 'saves'",
    );
    by_user(values.fetch_all(mysql).await?)
}

fn by_user(rows: Vec<(i64, i64)>) -> Result<BTreeMap<u32, i64>> {
    rows.into_iter()
        .map(|(user, count)| Ok((u32::try_from(user)?, count)))
        .collect()
}

/// The library's records of its recounts.
pub struct Corrections {
    pub runs: i64,
    pub corrections: i64,
    /// The sums of what was added (`up`) and subtracted (`down`).
    pub up: i64,
    pub down: i64,
}

pub async fn corrections(mysql: &MySqlPool) -> Result<Corrections> {
    let noted = sqlx::query_as(
        "SELECT (SELECT COUNT(*) FROM counterfoil_recounts), COUNT(*), \
         CAST(COALESCE(SUM(GREATEST(delta, 0)), 0) AS SIGNED), \
         CAST(COALESCE(SUM(GREATEST(-delta, 0)), 0) AS SIGNED) FROM counterfoil_drift WHERE delta <> 0",
    );
    let (runs, corrections, up, down) = noted.fetch_one(mysql).await?;
    Ok(Corrections {
        runs,
        corrections,
        up,
        down,
    })
}

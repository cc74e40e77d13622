//! The items: a table of the application in which the number of votes is a cached counter.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil::{CachedCounters, Counterfoil, Durability, Family, KeyType, MysqlStore, Table};
use sqlx::{AssertSqlSafe, MySqlPool};

use crate::Result;
use crate::families::{NAMESPACE, Pair, Place};

/// The settle time. It is short as in the other demos: the demo never cuts the power. The shorter
/// it is, the more often a counter is saved, leaves Redis and is read from MySQL again.
const SETTLE: Duration = Duration::from_millis(100);
/// The delay before a vote is on its way to MySQL.
const SAVE_AFTER: Duration = Duration::from_millis(20);
/// The time that a saved counter stays in Redis. It is far too short for an application.
const RETAIN: Duration = Duration::from_millis(30);

/// Connects and opens the family.
pub async fn open(place: &Place) -> counterfoil::Result<(Pair, CachedCounters)> {
    let pair = Counterfoil::connect(&place.redis, &place.mysql).await?;
    let votes = Family::cached(NAMESPACE, "votes")
        .table(
            Table::update("item")
                .key("id", KeyType::Unsigned)
                .value("vote_count"),
        )
        .durability(Durability::Settle(SETTLE))
        .sync_time(SAVE_AFTER)
        .retain(RETAIN);
    let votes = pair.open(votes).await?;
    Ok((pair, votes))
}

/// Connects and opens the family for a process that only reconciles.
pub async fn pair(place: &Place) -> counterfoil::Result<Pair> {
    Ok(open(place).await?.0)
}

/// Creates counterfoil's tables and the application's, with a row for each item.
pub async fn create_tables(mysql: &MySqlPool, items: u32) -> Result<()> {
    MysqlStore::new(mysql)?.create_tables().await?;
    sqlx::raw_sql(
        "CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(200) NOT NULL, \
         vote_count INT NOT NULL DEFAULT 0)",
    )
    .execute(mysql)
    .await?;
    let rows: Vec<_> = (1..=items)
        .map(|id| format!("({id}, 'Item {id}')"))
        .collect();
    let insert = format!("INSERT INTO item (id, name) VALUES {}", rows.join(", "));
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(mysql).await?;
    Ok(())
}

/// Reads the table with plain SQL, without the library.
pub async fn vote_counts(mysql: &MySqlPool) -> Result<BTreeMap<u32, i64>> {
    let rows = sqlx::query_as("SELECT CAST(id AS SIGNED), CAST(vote_count AS SIGNED) FROM item")
        .fetch_all(mysql)
        .await?;
    rows.into_iter()
        .map(|(id, votes): (i64, i64)| Ok((u32::try_from(id)?, votes)))
        .collect()
}

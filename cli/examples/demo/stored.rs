//! The counters in MySQL, and the row that a writer asks for.

use std::collections::BTreeMap;

use counterfoil::sqlx::{self, MySqlPool};

use crate::Result;

const COUNTERS: &str = "
SELECT CAST(CONCAT('shop-', store_id, '/views') AS CHAR), CAST(CONCAT(store_id, '/', product) AS CHAR), count FROM views
UNION ALL
SELECT CAST(CONCAT('shop-', store_id, '/visitors') AS CHAR), CAST(CONCAT(store_id, '/', day) AS CHAR), count
FROM visitors
UNION ALL
SELECT 'forum/votes', CAST(id AS CHAR), vote_count FROM item";

/// The values by family and id.
pub struct Stored(pub BTreeMap<(String, String), i64>);

impl Stored {
    pub async fn read(mysql: &MySqlPool) -> Result<Self> {
        let rows: Vec<(String, String, i64)> = sqlx::query_as(COUNTERS).fetch_all(mysql).await?;
        Ok(Stored(
            rows.into_iter()
                .map(|(family, id, value)| ((family, id), value))
                .collect(),
        ))
    }

    /// Returns the value of `counter`, or 0 if it has no row.
    pub fn of(&self, counter: &(String, String)) -> i64 {
        self.0.get(counter).copied().unwrap_or(0)
    }
}

/// Returns an item's votes for a writer, which has no MySQL driver.
pub async fn votes(mysql: &MySqlPool, item: &str) -> Result<i64> {
    Ok(
        sqlx::query_scalar("SELECT vote_count FROM item WHERE id = ?")
            .bind(item)
            .fetch_one(mysql)
            .await?,
    )
}

//! The counters in MySQL.

use std::collections::BTreeMap;

use counterfoil::sqlx::{self, MySqlPool};

use crate::Result;

const COUNTERS: &str = "
SELECT CAST(CONCAT('shop-', store_id, '/views') AS CHAR), CAST(CONCAT(store_id, '/', product) AS CHAR), count FROM views
UNION ALL
SELECT CAST(CONCAT('shop-', store_id, '/visitors') AS CHAR), CAST(CONCAT(store_id, '/', day) AS CHAR), count
FROM visitors
UNION ALL
SELECT CAST(CONCAT('shop-', store_id, '/votes') AS CHAR), CAST(CONCAT(store_id, '/', id) AS CHAR), vote_count FROM item";

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

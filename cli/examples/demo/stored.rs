//! What MySQL holds: every counter, and the one row that a writer asks for.

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

/// As lua/README.md has it, with the value in a table of the application.
const ROW: &str = "
SELECT CAST(i.vote_count AS CHAR), CAST(CONCAT(LPAD(LOWER(HEX(r.lineage)), 16, '0'), ':', r.n) AS CHAR)
FROM item i
LEFT JOIN counterfoil_families f ON f.namespace = 'forum' AND f.name = 'votes'
LEFT JOIN counterfoil_versions r ON r.family = f.number AND r.id = ?
WHERE i.id = ?";

/// Values by family and id.
pub struct Stored(pub BTreeMap<(String, String), i64>);

impl Stored {
    pub async fn read(mysql: &MySqlPool) -> Result<Self> {
        let rows: Vec<(String, String, i64)> = sqlx::query_as(COUNTERS).fetch_all(mysql).await?;
        Ok(Stored(rows.into_iter().map(|(family, id, value)| ((family, id), value)).collect()))
    }

    /// 0 where there is no row.
    pub fn of(&self, counter: &(String, String)) -> i64 {
        self.0.get(counter).copied().unwrap_or(0)
    }
}

/// Value and version of an item's votes, `-` for what there is not: for a writer, which has no driver for MySQL.
pub async fn row(mysql: &MySqlPool, id: &str) -> Result<String> {
    let found: Option<(String, Option<String>)> =
        sqlx::query_as(ROW).bind(id.as_bytes()).bind(id).fetch_optional(mysql).await?;
    let (value, version) = found.map_or((None, None), |(value, version)| (Some(value), version));
    let word = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
    Ok(format!("{} {}", word(value), word(version)))
}

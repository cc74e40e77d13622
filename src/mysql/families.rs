//! The families that the database knows, each with the settings that every process must agree on.

use sqlx::{MySqlPool, Row};

use super::fault::store;
use super::session::Meter;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;

/// The columns that hold [`Family::identity`], in its order.
const IDENTITY: &str = "kind, CAST(partitions AS CHAR), wide, durability, target, shape";

/// Makes the family known, if it is not yet, and answers its number.
pub(super) async fn register(pool: &MySqlPool, meter: &Meter, family: &Family) -> Result<u64> {
    if let Some(number) = find(pool, meter, family).await? {
        return Ok(number);
    }
    insert(pool, meter, family).await.map_err(store("a family was not registered"))?;
    // another process may have been first, with another configuration
    let absent = || Error::new(ErrorKind::Store, format!("{family} was registered and is not there"));
    find(pool, meter, family).await?.ok_or_else(absent)
}

/// Changes nothing where the family is there.
async fn insert(pool: &MySqlPool, meter: &Meter, family: &Family) -> Result<(), sqlx::Error> {
    const INSERT: &str = "INSERT INTO counterfoil_families (namespace, name, kind, partitions, wide, durability, target, shape) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE number = number";
    let identity = family.identity();
    let mut query = sqlx::query(INSERT).bind(family.namespace.as_bytes()).bind(family.name.as_bytes());
    for (_, value) in identity {
        query = query.bind(value);
    }
    meter.sent(1);
    query.execute(pool).await.map(drop)
}

async fn find(pool: &MySqlPool, meter: &Meter, family: &Family) -> Result<Option<u64>> {
    let failed = "families were not read";
    let text = format!("SELECT number, {IDENTITY} FROM counterfoil_families WHERE namespace = ? AND name = ?");
    let query = sqlx::query(sqlx::AssertSqlSafe(text)).bind(family.namespace.as_bytes()).bind(family.name.as_bytes());
    meter.sent(1);
    let Some(row) = query.fetch_optional(pool).await.map_err(store(failed))? else { return Ok(None) };
    for (index, (setting, ours)) in family.identity().into_iter().enumerate() {
        let known: String = row.try_get(index + 1).map_err(store(failed))?;
        if known != ours {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("{family}: {setting} is {known:?} in the database, and this process came with {ours:?}"),
            ));
        }
    }
    row.try_get(0).map(Some).map_err(store(failed))
}

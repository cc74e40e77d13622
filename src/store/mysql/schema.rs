//! Counterfoil's own tables: their creation, and the check that none is missing.

use std::collections::HashSet;

use sqlx::MySqlPool;

use super::fault;
use super::session::Meter;
use crate::error::{Error, ErrorKind, Result};

pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// The advice for an operator whose database lacks tables.
pub(crate) const ADVICE: &str = "Connect by Counterfoil::builder() with create_tables(true), call MysqlStore::create_tables(), \
     or run the SQL of MysqlStore::schema()";

const UNREAD: &str = "the database was not asked for counterfoil's tables";

/// Returns the name of each table with the statement that creates it.
pub(crate) fn tables() -> impl Iterator<Item = (&'static str, &'static str)> {
    SCHEMA.split_terminator(';').filter_map(|create| {
        let (_, definition) = create.split_once("CREATE TABLE IF NOT EXISTS ")?;
        Some((definition.split(' ').next()?, create))
    })
}

/// Returns the names of the tables that do not exist, or that this user may not see.
pub(crate) async fn missing(
    pool: &MySqlPool,
    meter: &Meter,
) -> Result<Vec<&'static str>, sqlx::Error> {
    const PRESENT: &str = "SELECT CAST(TABLE_NAME AS CHAR) FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'counterfoil%'";
    meter.sent(1);
    let present: Vec<String> = sqlx::query_scalar(PRESENT).fetch_all(pool).await?;
    let present: HashSet<_> = present.iter().map(String::as_str).collect();
    Ok(tables()
        .map(|(name, _)| name)
        .filter(|name| !present.contains(name))
        .collect())
}

/// Creates the tables that are missing. If none is, the user does not need the privilege to create.
pub(super) async fn create(pool: &MySqlPool, meter: &Meter) -> Result<()> {
    let missing = missing(pool, meter).await.map_err(fault::store(UNREAD))?;
    for (name, create) in tables().filter(|(name, _)| missing.contains(name)) {
        meter.sent(1);
        let created = sqlx::raw_sql(create).execute(pool).await;
        created.map_err(fault::store(format!(
            "{name} is missing in the database and was not created"
        )))?;
    }
    Ok(())
}

/// Refuses a database that lacks any of the tables.
pub(super) async fn require(pool: &MySqlPool, meter: &Meter) -> Result<()> {
    let missing = missing(pool, meter).await.map_err(fault::store(UNREAD))?;
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!(
        "missing in the database, or hidden from this user: {}. {ADVICE}",
        missing.join(", ")
    );
    Err(Error::new(ErrorKind::Mismatch, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_creates_a_table() {
        let names = tables()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
            .join(", ");
        let own = "counterfoil_families, counterfoil_values, counterfoil_ledger, counterfoil_rejects, \
             counterfoil_recounts, counterfoil_drift";
        assert_eq!(names, own);
    }
}

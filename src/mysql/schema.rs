//! Counterfoil's own tables: how they are created, and which of them are missing.

use std::collections::HashSet;

use sqlx::{MySqlPool, Row};

use super::fault;
use super::session::Meter;
use crate::error::{Error, ErrorKind, Result};

pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// One of counterfoil's own tables.
pub(super) struct OwnTable {
    pub(super) name: &'static str,
    /// The statement that creates it.
    create: &'static str,
}

fn tables() -> impl Iterator<Item = OwnTable> {
    SCHEMA.split_terminator(';').filter_map(|create| {
        let (_, definition) = create.split_once("CREATE TABLE IF NOT EXISTS ")?;
        Some(OwnTable { name: definition.split(' ').next()?, create })
    })
}

/// The tables that are not there, or that this user may not see.
pub(super) async fn missing(pool: &MySqlPool, meter: &Meter) -> Result<Vec<OwnTable>, sqlx::Error> {
    meter.sent(1);
    let text = "SELECT CAST(TABLE_NAME AS CHAR) FROM information_schema.TABLES \
                WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'counterfoil%'";
    let rows = sqlx::query(text).fetch_all(pool).await?;
    let there = rows.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<String>, _>>()?;
    Ok(tables().filter(|table| !there.contains(table.name)).collect())
}

/// Creates the tables that are missing. Where none is, no privilege to create is needed.
pub(super) async fn create(pool: &MySqlPool, meter: &Meter) -> Result<()> {
    for OwnTable { name, create } in missing(pool, meter).await.map_err(fault::store(UNREAD))? {
        meter.sent(1);
        let created = sqlx::raw_sql(create).execute(pool).await;
        created.map_err(fault::store(format!("table {name} is missing and was not created")))?;
    }
    Ok(())
}

/// Refuses a database where one is missing.
pub(super) async fn require(pool: &MySqlPool, meter: &Meter) -> Result<()> {
    let missing = missing(pool, meter).await.map_err(fault::store(UNREAD))?;
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("missing in the database, or hidden from this user: {}. {ADVICE}", names(&missing));
    Err(Error::new(ErrorKind::Mismatch, what))
}

const UNREAD: &str = "the database was not asked for counterfoil's tables";

/// How a table comes to be that is missing.
pub(super) const ADVICE: &str = "Connect by Counterfoil::builder() with create_tables(true), call \
     MysqlStore::create_tables(), or run the SQL of MysqlStore::schema()";

pub(super) fn names(tables: &[OwnTable]) -> String {
    tables.iter().map(|table| table.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_creates_a_table() {
        let names = names(&tables().collect::<Vec<_>>());
        let own =
            "counterfoil_families, counterfoil_values, counterfoil_versions, counterfoil_ledger, counterfoil_rejects";
        assert_eq!(names, own);
    }
}

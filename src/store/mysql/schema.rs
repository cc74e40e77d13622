//! Counterfoil's own tables: how they are created or brought up to date, and what of them is missing.

use std::collections::{HashMap, HashSet};

use sqlx::{MySqlPool, Row};

use super::fault;
use super::session::Meter;
use crate::error::{Error, ErrorKind, Result};

pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// Columns that tables of an earlier version lack, with the statement that adds each.
const ADDED: [(&str, &str, &str); 2] = [
    ("counterfoil_families", "settings", "ALTER TABLE counterfoil_families ADD COLUMN settings TEXT AFTER shape"),
    (
        "counterfoil_rejects",
        "applied_at",
        "ALTER TABLE counterfoil_rejects ADD COLUMN applied_at TIMESTAMP(3) NULL DEFAULT NULL",
    ),
];

/// One of counterfoil's own tables, or a column of one.
pub(super) struct SchemaPart {
    name: String,
    /// The statement that creates it.
    create: &'static str,
}

/// Their names, and the statement that creates each.
pub(super) fn tables() -> impl Iterator<Item = (&'static str, &'static str)> {
    SCHEMA.split_terminator(';').filter_map(|create| {
        let (_, definition) = create.split_once("CREATE TABLE IF NOT EXISTS ")?;
        Some((definition.split(' ').next()?, create))
    })
}

/// The tables, and columns of those that are there, that are not there, or that this user may not see.
pub(super) async fn missing(pool: &MySqlPool, meter: &Meter) -> Result<Vec<SchemaPart>, sqlx::Error> {
    meter.sent(1);
    let text = "SELECT CAST(TABLE_NAME AS CHAR), CAST(COLUMN_NAME AS CHAR) FROM information_schema.COLUMNS \
                WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'counterfoil%'";
    let mut there: HashMap<String, HashSet<String>> = HashMap::new();
    for row in sqlx::query(text).fetch_all(pool).await? {
        there.entry(row.try_get(0)?).or_default().insert(row.try_get(1)?);
    }
    let absent = tables().filter(|(name, _)| !there.contains_key(*name));
    let absent = absent.map(|(name, create)| SchemaPart { name: name.to_owned(), create });
    let lacking = ADDED
        .into_iter()
        .filter(|(table, column, _)| there.get(*table).is_some_and(|columns| !columns.contains(*column)));
    let lacking = lacking.map(|(table, column, create)| SchemaPart { name: format!("{table}.{column}"), create });
    Ok(absent.chain(lacking).collect())
}

/// Creates what is missing. Where nothing is, no privilege to create is needed.
pub(super) async fn create(pool: &MySqlPool, meter: &Meter) -> Result<()> {
    for SchemaPart { name, create } in missing(pool, meter).await.map_err(fault::store(UNREAD))? {
        meter.sent(1);
        match sqlx::raw_sql(create).execute(pool).await {
            // somebody else was first
            Err(error) if fault::is_there(&error) => {}
            created => created
                .map(drop)
                .map_err(fault::store(format!("{name} is missing in the database and was not created")))?,
        }
    }
    Ok(())
}

/// Refuses a database where anything is missing.
pub(super) async fn require(pool: &MySqlPool, meter: &Meter) -> Result<()> {
    let missing = missing(pool, meter).await.map_err(fault::store(UNREAD))?;
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("missing in the database, or hidden from this user: {}. {}", names(&missing), advice(&missing));
    Err(Error::new(ErrorKind::Mismatch, what))
}

const UNREAD: &str = "the database was not asked for counterfoil's tables";

/// How what is missing comes to be there.
pub(super) fn advice(missing: &[SchemaPart]) -> String {
    let mut advice =
        "Connect by Counterfoil::builder() with create_tables(true), call MysqlStore::create_tables(), or run \
                      the SQL of MysqlStore::schema()"
            .to_owned();
    // that of the schema leaves tables alone that are there
    for added in missing.iter().filter(|own| own.name.contains('.')) {
        advice.push_str(" and: ");
        advice.push_str(added.create);
    }
    advice
}

pub(super) fn names(missing: &[SchemaPart]) -> String {
    missing.iter().map(|own| own.name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_creates_a_table() {
        let names = tables().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        let own = "counterfoil_families, counterfoil_values, counterfoil_versions, counterfoil_ledger, counterfoil_rejects, \
             counterfoil_recounts, counterfoil_drift";
        assert_eq!(names, own);
    }
}

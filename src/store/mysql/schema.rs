//! Counterfoil's own tables: their creation, and the check that none is missing.

use super::session::Database;
use super::statement::Statement;
use crate::error::{Error, Result};

pub const SCHEMA: &str = include_str!("schema.sql");

/// The advice for an operator whose database lacks tables.
pub const ADVICE: &str = "Run `counterfoil init`, connect by Counterfoil::builder() with create_tables(true), \
     or run the SQL of MysqlStore::schema()";

/// One of counterfoil's own tables.
pub struct OwnTable {
    pub name: &'static str,
    /// Its columns, as in [`SCHEMA`].
    pub columns: Vec<&'static str>,
    /// The statement that creates it.
    create: &'static str,
}

/// Returns counterfoil's tables, which [`SCHEMA`] describes.
pub fn tables() -> impl Iterator<Item = OwnTable> {
    SCHEMA.split_terminator(';').filter_map(|create| {
        let (_, definition) = create.split_once("CREATE TABLE IF NOT EXISTS ")?;
        let (name, columns) = definition.split_once(" (\n")?;
        let columns = columns
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        // the names of columns are in lower case, and the words of SQL are not
        let is_column = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
        Some(OwnTable {
            name,
            columns: columns.filter(is_column).collect(),
            create,
        })
    })
}

/// Returns the names of the tables that do not exist, or that this user may not see.
pub async fn missing(database: &Database) -> Result<Vec<&'static str>> {
    const PRESENT: &str = "SELECT CAST(TABLE_NAME AS CHAR) FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'counterfoil%'";
    let unread = "the list of counterfoil's tables was not read";
    let present: Vec<(String,)> = database.read(unread, Statement::new(PRESENT)).await?;
    let names = tables().map(|table| table.name);
    Ok(names
        .filter(|name| !present.iter().any(|(present,)| present == name))
        .collect())
}

/// Creates the tables that are missing, or refuses a database that lacks any. If none is missing,
/// the user does not need the privilege to create.
pub async fn ensure(database: &Database, creates: bool) -> Result<()> {
    let missing = missing(database).await?;
    if !missing.is_empty() && !creates {
        let what = format!(
            "missing in the database, or hidden from this user: {}. {ADVICE}",
            missing.join(", ")
        );
        return Err(Error::mismatch(what));
    }
    for table in tables().filter(|table| missing.contains(&table.name)) {
        let failed = format!(
            "{} is missing in the database, and could not be created",
            table.name
        );
        database
            .transact(failed, Statement::once(table.create))
            .await?;
    }
    Ok(())
}

//! The texts of statements, and names in them.

use std::sync::Arc;

use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql};

/// A statement and its parameters so far.
pub type Statement = Query<'static, MySql, MySqlArguments>;

/// The text of a statement, created once and shared.
#[derive(Clone)]
pub struct Text(Arc<str>);

impl Text {
    pub fn new(text: String) -> Self {
        Text(text.into())
    }

    pub fn query(&self) -> Statement {
        sqlx::query(AssertSqlSafe(Arc::clone(&self.0)))
    }
}

/// Returns a name as SQL takes it.
pub fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// Returns the quoted name of the table, with its schema if that is given.
pub fn table_name(name: &str) -> String {
    name.split('.').map(quoted).collect::<Vec<_>>().join(".")
}

/// Splits the name of a table into its schema, if that is given, and the name itself.
pub fn schema_and_name(name: &str) -> (Option<&str>, &str) {
    name.split_once('.')
        .map_or((None, name), |(schema, name)| (Some(schema), name))
}

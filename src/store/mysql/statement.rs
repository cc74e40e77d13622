//! The text of a statement, and names in it.

use std::sync::Arc;

use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;

/// A statement and its parameters so far.
pub(super) type Statement = Query<'static, sqlx::MySql, MySqlArguments>;

/// The text of a statement, created once and shared.
#[derive(Clone)]
pub(super) struct Text(Arc<str>);

impl Text {
    pub(super) fn query(&self) -> Statement {
        sqlx::query(AssertSqlSafe(Arc::clone(&self.0)))
    }

    pub(super) fn query_with(&self, arguments: MySqlArguments) -> Statement {
        sqlx::query_with(AssertSqlSafe(Arc::clone(&self.0)), arguments)
    }
}

pub(super) fn text(text: String) -> Text {
    Text(text.into())
}

/// The server's `read_only` as text: a number on most servers, a word on others. MySQL's
/// `super_read_only` sets it too.
pub(super) const READ_ONLY: &str = "CAST(@@GLOBAL.read_only AS CHAR) AS read_only";

/// The exact number of rows of a [`bulk_insert`]. A statement for every number of rows would not
/// stay prepared.
pub(super) const BULK: usize = 2_500;

/// Returns an INSERT of [`BULK`] rows into these columns. Each value is a parameter, which costs
/// the server less than JSON.
///
/// If a row exists, `update` reads the new one's values as `VALUES(column)`. A trigger of the table
/// could have changed those, so this is for counterfoil's own tables only.
pub(super) fn bulk_insert(table: &str, columns: &[&str], update: &str) -> Text {
    let row = format!("({})", vec!["?"; columns.len()].join(", "));
    text(format!(
        "INSERT INTO {table} ({}) VALUES {} ON DUPLICATE KEY UPDATE {update}",
        columns.join(", "),
        vec![row; BULK].join(", ")
    ))
}

/// Returns the quoted name of the table, with its schema if that is given.
pub(crate) fn table_name(name: &str) -> String {
    name.split('.').map(quoted).collect::<Vec<_>>().join(".")
}

/// Returns a name as SQL takes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

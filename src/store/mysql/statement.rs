//! The text of a statement, and names in it.

use std::sync::Arc;

use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;

/// A statement and its parameters so far.
pub(super) type Statement = Query<'static, sqlx::MySql, MySqlArguments>;

/// The text of a statement, made once and shared.
#[derive(Clone)]
pub(super) struct Text(Arc<str>);

impl Text {
    pub(super) fn query(&self) -> Statement {
        sqlx::query(AssertSqlSafe(Arc::clone(&self.0)))
    }
}

pub(super) fn text(text: String) -> Text {
    Text(text.into())
}

/// The table's name, quoted, with its schema if that is given.
pub(super) fn table_name(name: &str) -> String {
    name.split('.').map(quoted).collect::<Vec<_>>().join(".")
}

/// A name as SQL takes it.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

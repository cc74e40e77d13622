//! Statements and their parameters, and the spelling of names, text and times in them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::mysql::{MySqlArguments, MySqlTypeInfo, MySqlValueRef};
use sqlx::query::Query;
use sqlx::{Arguments, AssertSqlSafe, Decode, MySql, Type};

use crate::store::FamilyNumber;

/// A statement and its parameters so far.
#[derive(Clone)]
pub struct Statement {
    text: Arc<str>,
    parameters: MySqlArguments,
    stays_prepared: bool,
}

impl Statement {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Statement {
            text: text.into(),
            parameters: MySqlArguments::default(),
            stays_prepared: true,
        }
    }

    /// Creates a statement whose text hardly ever occurs again, and so does not stay prepared.
    pub fn once(text: impl Into<Arc<str>>) -> Self {
        Statement {
            stays_prepared: false,
            ..Statement::new(text)
        }
    }

    #[must_use]
    pub fn bind<'v>(mut self, value: impl Encode<'v, MySql> + Type<MySql>) -> Self {
        // a value that cannot be encoded is left out, and sqlx refuses the statement for lack of it
        let _ = self.parameters.add(value);
        self
    }

    /// Binds rows as the JSON text that [`json::table`](super::json::table) unfolds.
    #[must_use]
    pub fn bind_rows<R: Serialize>(self, rows: impl IntoIterator<Item = R>) -> Self {
        let all: Vec<_> = rows.into_iter().collect();
        // numbers and text always become JSON
        self.bind(serde_json::to_string(&all).unwrap_or_default())
    }

    pub fn query(self) -> Query<'static, MySql, MySqlArguments> {
        sqlx::query_with(AssertSqlSafe(self.text), self.parameters).persistent(self.stays_prepared)
    }
}

impl Type<MySql> for FamilyNumber {
    fn type_info() -> MySqlTypeInfo {
        u64::type_info()
    }

    fn compatible(ty: &MySqlTypeInfo) -> bool {
        u64::compatible(ty)
    }
}

impl Encode<'_, MySql> for FamilyNumber {
    fn encode_by_ref(&self, buffer: &mut Vec<u8>) -> Result<IsNull, BoxDynError> {
        Encode::<MySql>::encode_by_ref(&self.0, buffer)
    }
}

impl<'r> Decode<'r, MySql> for FamilyNumber {
    fn decode(value: MySqlValueRef<'r>) -> Result<Self, BoxDynError> {
        Decode::<MySql>::decode(value).map(FamilyNumber)
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

/// Returns the statement that reads these columns of a view of `information_schema` about a table,
/// whose name may include its schema.
pub fn of_table(columns: &str, view: &str, table: &str) -> Statement {
    let (schema, name) = match table.split_once('.') {
        Some((schema, name)) => (Some(schema), name),
        None => (None, table),
    };
    Statement::new(format!(
        "SELECT {columns} FROM information_schema.{view} \
         WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?"
    ))
    .bind(schema)
    .bind(name)
}

/// Returns text that is stored as bytes.
pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the expression that reads a TIMESTAMP for [`time`].
pub fn unix_ms(timestamp: &str) -> String {
    format!("CAST(UNIX_TIMESTAMP({timestamp}) * 1000 AS UNSIGNED)")
}

/// Returns the time of [`unix_ms`].
pub fn time(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

//! The building blocks of the statements on a table: they pass, match and spell its rows.

use sqlx::Arguments;
use sqlx::mysql::MySqlArguments;

use super::json::{self, JsonRows};
use super::shape::{Shape, Storage};
use super::statement::{Statement, quoted, table_name};
use crate::family::table::{KeyType, Table};

/// The name of the JSON rows in a statement. No table of the application has this name.
pub(super) const INPUT: &str = "counterfoil_input";

/// A key column.
pub(super) struct StoredKey {
    /// The quoted name of the column.
    pub(super) column: String,
    pub(super) kind: KeyType,
    pub(super) storage: Storage,
}

/// The part of an id for one key column. It sorts like the column, so that all transactions lock
/// rows in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Segment<'id> {
    Number(i128),
    /// ASCII without quotes and backslashes: a day or a UUID.
    Plain(&'id str),
    Text(&'id str),
}

impl<'id> Segment<'id> {
    pub(super) fn new(kind: KeyType, text: &'id str) -> Self {
        match kind {
            // split() passes nothing but numbers
            KeyType::Unsigned | KeyType::Signed => {
                text.parse().map_or(Segment::Text(text), Segment::Number)
            }
            KeyType::Date | KeyType::Uuid => Segment::Plain(text),
            KeyType::Text | KeyType::Char => Segment::Text(text),
        }
    }

    pub(super) fn write(&self, row: &mut JsonRows) {
        match self {
            Segment::Number(number) => row.number(number),
            Segment::Plain(text) => row.plain(text),
            Segment::Text(text) => row.bytes(text.as_bytes()),
        };
    }

    /// Adds the segment as a parameter of a [bulk insert](super::statement::bulk_insert).
    pub(super) fn add_to(&self, arguments: &mut MySqlArguments) -> Result<(), sqlx::Error> {
        let added = match self {
            Segment::Number(number) => match i64::try_from(*number) {
                Ok(number) => arguments.add(number),
                Err(_) => arguments.add(number.to_string()),
            },
            Segment::Plain(text) | Segment::Text(text) => arguments.add(text.as_bytes()),
        };
        added.map_err(sqlx::Error::Encode)
    }

    /// Binds the segment as a parameter of [`StoredKey::equals_parameter`].
    pub(super) fn bind(self, query: Statement) -> Statement {
        match self {
            Segment::Number(number) => query.bind(number.to_string()),
            Segment::Plain(text) => query.bind(text),
            Segment::Text(text) => query.bind(text.as_bytes()),
        }
    }
}

/// The building blocks of the statements on a table, which the statements call `t`.
pub(super) struct Parts {
    /// The quoted name of the table.
    pub(super) name: String,
    pub(super) keys: Vec<StoredKey>,
    /// The quoted name of the value column.
    pub(super) value: String,
    nullable: bool,
}

impl Parts {
    pub(super) fn new(table: &Table, shape: &Shape) -> Self {
        let keys = table.keys.iter().zip(shape.keys.iter().cloned());
        Parts {
            name: table_name(&table.name),
            keys: keys
                .map(|(key, storage)| StoredKey {
                    column: quoted(&key.name),
                    kind: key.kind,
                    storage,
                })
                .collect(),
            value: quoted(&table.value),
            nullable: shape.nullable,
        }
    }

    /// Returns the rows that a statement receives, named [`INPUT`]: `pos` from 1, the `delta` if
    /// there is one, and the keys `k0`, `k1` .... MariaDB reads a row again for each column, up to
    /// that column, so long columns come last.
    pub(super) fn source(&self, has_delta: bool) -> String {
        let delta = has_delta.then(|| ("delta".to_owned(), "BIGINT"));
        let keys = self
            .keys
            .iter()
            .enumerate()
            .map(|(index, key)| (format!("k{index}"), json_type(key.kind)));
        let columns = delta.into_iter().chain(keys).enumerate();
        let columns: Vec<_> = columns
            .map(|(index, (name, kind))| json::column(&name, kind, index))
            .collect();
        format!(
            "JSON_TABLE(?, '$[*]' COLUMNS(pos FOR ORDINALITY, {})) AS {INPUT}",
            columns.join(", ")
        )
    }

    /// Returns the key columns for an INSERT of the [given](Self::given) rows.
    pub(super) fn key_columns(&self) -> String {
        join(&self.keys, ", ", |_, key| key.column.clone())
    }

    pub(super) fn given(&self) -> String {
        join(&self.keys, ", ", |index, key| key.given(index))
    }

    /// Returns the condition that a row is the given one.
    pub(super) fn matches(&self) -> String {
        join(&self.keys, " AND ", |index, key| {
            format!("t.{} = {}", key.column, key.given(index))
        })
    }

    /// Returns the condition that a row is the one given by parameters.
    pub(super) fn equals_parameters(&self) -> String {
        join(&self.keys, " AND ", |_, key| key.equals_parameter())
    }

    /// Returns the condition that a row was found.
    pub(super) fn there(&self) -> String {
        self.keys
            .first()
            .map_or_else(String::new, |key| format!("t.{} IS NOT NULL", key.column))
    }

    /// Returns the value, with NULL as 0: NULL plus a delta would be NULL, and the delta would be
    /// lost.
    pub(super) fn current(&self, table: &str) -> String {
        if self.nullable {
            format!("COALESCE({table}.{}, 0)", self.value)
        } else {
            format!("{table}.{}", self.value)
        }
    }

    /// Returns the value as decimal digits, since BIGINT UNSIGNED does not decode into i64.
    pub(super) fn digits(&self) -> String {
        format!("CAST({} AS CHAR)", self.current("t"))
    }
}

impl StoredKey {
    /// Returns the value from the JSON in the form that the column takes.
    fn given(&self, index: usize) -> String {
        let json = format!("{INPUT}.k{index}");
        match self.kind {
            KeyType::Text | KeyType::Char => self.stored(&format!("UNHEX({json})")),
            _ => self.stored(&json),
        }
    }

    /// Returns the condition that the column equals a parameter, which is spelt as in an id.
    pub(super) fn equals_parameter(&self) -> String {
        self.compared("=")
    }

    /// Returns the condition that compares the column with such a parameter.
    pub(super) fn compared(&self, operator: &str) -> String {
        let parameter = match self.kind {
            KeyType::Unsigned => "CAST(? AS UNSIGNED)",
            KeyType::Signed => "CAST(? AS SIGNED)",
            KeyType::Date => "CAST(? AS DATE)",
            KeyType::Text | KeyType::Char | KeyType::Uuid => "?",
        };
        format!("t.{} {operator} {}", self.column, self.stored(parameter))
    }

    /// Returns the value in the form that is compared with the column, so that the index is used.
    fn stored(&self, value: &str) -> String {
        match &self.storage {
            Storage::Plain | Storage::Bytes => value.to_owned(),
            Storage::Characters { charset, collation } => {
                format!("CONVERT({value} USING {charset}) COLLATE {collation}")
            }
            Storage::UuidBytes => format!("UNHEX(REPLACE({value}, '-', ''))"),
            Storage::Uuid => format!("CAST({value} AS UUID)"),
        }
    }

    /// Returns the column as spelt in an id, in bytes.
    pub(super) fn bytes(&self) -> String {
        self.bytes_of(format!("t.{}", self.column))
    }

    /// Returns [`bytes`](Self::bytes) for another column with such values.
    pub(super) fn bytes_of(&self, column: String) -> String {
        match (self.kind, &self.storage) {
            // + 0 removes the leading zeros of a ZEROFILL column
            (KeyType::Unsigned | KeyType::Signed, _) => {
                format!("CAST(CAST({column} + 0 AS CHAR) AS BINARY)")
            }
            (KeyType::Date, _) | (_, Storage::Uuid) => {
                format!("CAST(CAST({column} AS CHAR) AS BINARY)")
            }
            (_, Storage::UuidBytes) => {
                let groups = [(1, 4), (5, 2), (7, 2), (9, 2), (11, 6)];
                let groups =
                    groups.map(|(from, bytes)| format!("HEX(SUBSTR({column}, {from}, {bytes}))"));
                format!(
                    "CAST(LOWER(CONCAT_WS('-', {})) AS BINARY)",
                    groups.join(", ")
                )
            }
            // bare, so that a range of the column is a range of the index
            (KeyType::Text, Storage::Bytes) => column,
            (KeyType::Text, _) => format!("CAST({column} AS BINARY)"),
            // some sessions have CHAR padded with spaces
            (KeyType::Char | KeyType::Uuid, _) => {
                format!("CAST(CONVERT(RTRIM({column}) USING utf8mb4) AS BINARY)")
            }
        }
    }
}

/// Returns the type of a key's column in `JSON_TABLE`.
fn json_type(kind: KeyType) -> &'static str {
    match kind {
        KeyType::Unsigned => "BIGINT UNSIGNED",
        KeyType::Signed => "BIGINT",
        KeyType::Date => "DATE",
        // 255 bytes as hexadecimal digits
        KeyType::Text | KeyType::Char => "VARCHAR(510)",
        KeyType::Uuid => "VARCHAR(36)",
    }
}

fn join(keys: &[StoredKey], between: &str, each: impl Fn(usize, &StoredKey) -> String) -> String {
    keys.iter()
        .enumerate()
        .map(|(index, key)| each(index, key))
        .collect::<Vec<_>>()
        .join(between)
}

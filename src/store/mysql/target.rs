//! A table for values, counterfoil's own or the application's, and the statements on it.
//!
//! A statement on many rows takes them as [JSON](super::json). The JSON always drives the join, and
//! the table is looked up by its unique key, row by row: a scan would wait for the locks of
//! unrelated transactions.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::Offset;
use serde::Serialize;

use super::families;
use super::json::{self, I64, ID, INPUT, U64};
use super::ledger;
use super::session::READ_ONLY;
use super::shape::{Shape, Storage};
use super::statement::{Statement, quoted, table_name};
use crate::family::table::{KeyType, Table};
use crate::store::{Columns, Registration};

/// The exact number of rows of [`Target::bulk_upsert`]. A statement for every number of rows would
/// not stay prepared.
pub const BULK: usize = 2_500;

/// A table with its properties and statements, which call it `t`.
pub struct Target {
    /// A text that is unique for a description of a table.
    pub label: String,
    /// The table's name, quoted.
    pub name: String,
    /// The value column.
    pub value: String,
    /// The value as decimal digits, since BIGINT UNSIGNED does not decode into i64.
    pub digits: String,
    /// `true` if a delta without a row inserts one.
    pub inserts: bool,
    /// `true` if the value column refuses negative numbers.
    pub unsigned: bool,
    /// `true` if the table numbers new rows itself. An upsert of a row that exists would use up a
    /// number, and without numbers left it would add to another counter's row.
    pub is_numbered: bool,
    /// The key columns. The first one of counterfoil's own table is the family.
    pub keys: Vec<StoredKey>,
    pub is_own: bool,
    /// The values that its columns can hold; `None` for counterfoil's own.
    pub definition: Option<Arc<Columns>>,
    /// Takes rows of a delta and a key. Inserts only if the table is numbered.
    pub upsert: Statement,
    /// Like [`upsert`](Self::upsert), but skips rows that it cannot insert, each with a warning. It also
    /// writes values that do not fit, clipped, with a warning.
    pub upsert_some: Statement,
    /// An upsert of [`BULK`] rows of a key and a delta, all as parameters, which costs the server
    /// less than JSON. It reads a new row's value as `VALUES(column)`, which a trigger could have
    /// changed, so it is for counterfoil's own table only.
    pub bulk_upsert: Option<Statement>,
    /// Takes keys, and returns for each whether it has a row, which is then locked.
    pub lock: Statement,
    /// Like [`lock`](Self::lock), but does not wait: a row that another transaction has locked
    /// counts as missing.
    pub lock_free: Statement,
    /// Takes keys, and returns for each whether it has a row. Locks nothing.
    pub exists: Statement,
    /// Takes rows of a delta and a key.
    pub update: Statement,
    /// Reads values alone. If the table is counterfoil's own, the statements also take the family's
    /// namespace and name, and return its number in place of 0.
    pub values: Lookup,
    /// Reads values and the ledger.
    pub snapshot: Lookup,
}

/// The statements of a lookup.
pub struct Lookup {
    /// Takes one row's key, then the ledger's family, partition and incarnation. Always returns one
    /// row: 2, [`READ_ONLY`], the digits, the mark, and 0.
    pub one: Statement,
    /// Takes ids, and the family if the table is counterfoil's own; then ledger rows (partition,
    /// incarnation) and their family. Returns the row (0, position, digits) for each id, (1,
    /// position, mark) for each ledger row, and (2, 0, [`READ_ONLY`]) once.
    pub many: Statement,
}

impl Target {
    /// Returns counterfoil's own table, described like one of the application's.
    pub fn own() -> Self {
        let table = Table::upsert("counterfoil_values")
            .key("family", KeyType::Unsigned)
            .key("id", KeyType::Text)
            .value("value");
        let rows = vec!["(?, ?, ?)"; BULK].join(", ");
        let bulk = format!(
            "INSERT INTO counterfoil_values (family, id, value) VALUES {rows} \
             ON DUPLICATE KEY UPDATE value = value + VALUES(value)"
        );
        Target {
            bulk_upsert: Some(Statement::new(bulk)),
            ..Target::new(&table, &Shape::own(), true)
        }
    }

    pub fn new(table: &Table, shape: &Shape, is_own: bool) -> Self {
        let (name, value) = (table_name(&table.name), quoted(&table.value));
        let keys: Vec<_> = table
            .keys
            .iter()
            .zip(&shape.keys)
            .enumerate()
            .map(|(index, ((name, kind), storage))| StoredKey {
                column: quoted(name),
                name: format!("k{index}"),
                kind: *kind,
                storage: storage.clone(),
            })
            .collect();
        let t = format!("{name} AS t FORCE INDEX ({})", quoted(&shape.index));
        // NULL plus a delta would be NULL, and the delta would be lost
        let current = |table: &str| {
            if shape.nullable {
                format!("COALESCE({table}.{value}, 0)")
            } else {
                format!("{table}.{value}")
            }
        };
        let or_update = if shape.is_numbered {
            String::new()
        } else {
            format!(
                " ON DUPLICATE KEY UPDATE {name}.{value} = {} + {INPUT}.delta{}",
                current(&name),
                unchanged(table, &name)
            )
        };
        let digits = format!("CAST({} AS CHAR)", current("t"));
        let is_found = format!(
            "t.{} IS NOT NULL",
            keys.first().map_or("", |key| &key.column)
        );
        let found = format!("CASE WHEN {is_found} THEN {digits} END");
        let delta = ("delta".to_owned(), I64);
        let deltas = json::table(std::iter::once(delta).chain(columns(&keys)));
        let columns_of = join(&keys, ", ", |key| key.column.clone());
        let given = join(&keys, ", ", StoredKey::given);
        let matches = join(&keys, " AND ", StoredKey::equals_given);
        let upsert = |insert: &str| {
            Statement::new(format!(
                "{insert} INTO {name} ({columns_of}, {value}) SELECT {given}, {INPUT}.delta FROM {deltas}{or_update}"
            ))
        };

        let exists = format!(
            "SELECT CAST({INPUT}.pos AS UNSIGNED), {is_found} FROM {} LEFT JOIN {t} ON {matches}",
            json::derived_table(columns(&keys)),
        );

        // all ids of a read belong to one family, which is a parameter beside the JSON
        let family = if is_own { "t.family = ? AND " } else { "" };
        let ids = &keys[usize::from(is_own)..];
        let many = format!(
            "SELECT 0, CAST({INPUT}.pos AS UNSIGNED), {found} AS text FROM {} LEFT JOIN {t} ON {family}{}",
            json::table(columns(ids)),
            join(ids, " AND ", StoredKey::equals_given)
        );
        let none = "CAST(0 AS UNSIGNED)";
        let number = if is_own { families::NUMBER } else { none };
        let last = |number: &str| format!("UNION ALL SELECT 2, {number}, {READ_ONLY}");
        // the columns have names, because the reply would otherwise contain whole expressions as
        // names
        let by_parameters = join(&keys, " AND ", StoredKey::equals);
        let one = format!(
            "SELECT 2, {READ_ONLY} AS text, (SELECT {digits} FROM {t} WHERE {by_parameters}) AS digits"
        );
        let mark = ledger::MARK;
        let ledger = "counterfoil_ledger AS l FORCE INDEX (PRIMARY)";
        let rows = json::table([("partition_no", U64), ("incarnation", U64)]);

        Target {
            label: format!("{} {}", table.describe(), table.unchanged.join(",")),
            inserts: table.missing.inserts(),
            unsigned: shape.unsigned,
            is_numbered: shape.is_numbered,
            value: table.value.clone(),
            is_own,
            definition: shape.columns.clone(),
            upsert: upsert("INSERT"),
            upsert_some: upsert("INSERT IGNORE"),
            bulk_upsert: None,
            lock: Statement::new(format!("{exists} FOR UPDATE")),
            lock_free: Statement::new(format!("{exists} FOR UPDATE SKIP LOCKED")),
            exists: Statement::new(exists),
            update: Statement::new(format!(
                "UPDATE {deltas} STRAIGHT_JOIN {t} ON {matches} SET t.{value} = {} + {INPUT}.delta{}",
                current("t"),
                unchanged(table, "t")
            )),
            values: Lookup {
                one: Statement::new(format!("{one}, NULL AS mark, {number} AS number")),
                many: Statement::new(format!("{many} {}", last(number))),
            },
            // one statement, so one snapshot of InnoDB
            snapshot: Lookup {
                one: Statement::new(format!(
                    "{one}, (SELECT {mark} FROM {ledger} \
                     WHERE l.family = ? AND l.partition_no = ? AND l.incarnation = ?) AS mark, \
                     {none} AS number"
                )),
                many: Statement::new(format!(
                    "{many} UNION ALL SELECT 1, CAST({INPUT}.pos AS UNSIGNED), {mark} \
                     FROM {rows} LEFT JOIN {ledger} ON l.family = ? \
                     AND l.partition_no = {INPUT}.partition_no AND l.incarnation = {INPUT}.incarnation {}",
                    last(none)
                )),
            },
            digits,
            name,
            keys,
        }
    }

    /// Returns the name of a column that is too short for its part of the key.
    pub fn too_short(&self, key: &[Segment<'_>]) -> Option<&str> {
        self.keys
            .iter()
            .zip(key)
            .find(|(column, segment)| match (&column.storage, segment) {
                (Storage::Characters { length, .. }, Segment::Text(text)) => {
                    text.chars().count() > *length
                }
                _ => false,
            })
            .map(|(column, _)| &*column.column)
    }

    /// Returns the key columns and the value column, quoted.
    pub fn columns(&self) -> Vec<String> {
        self.keys
            .iter()
            .map(|key| key.column.clone())
            .chain([quoted(&self.value)])
            .collect()
    }

    /// Returns the key columns that an id spells.
    pub fn id_keys(&self) -> &[StoredKey] {
        &self.keys[usize::from(self.is_own)..]
    }
}

/// Returns the assignments that leave the unchanged columns of a row as they are. `row` is the table's
/// name in the statement.
fn unchanged(table: &Table, row: &str) -> String {
    table
        .unchanged
        .iter()
        .map(|name| quoted(name))
        .map(|column| format!(", {row}.{column} = {row}.{column}"))
        .collect()
}

/// Returns the JSON columns of keys.
fn columns(keys: &[StoredKey]) -> impl Iterator<Item = (String, &'static str)> {
    keys.iter().map(|key| (key.name.clone(), key.json_type()))
}

/// Joins a text for each key.
pub fn join(keys: &[StoredKey], between: &str, each: impl Fn(&StoredKey) -> String) -> String {
    keys.iter().map(each).collect::<Vec<_>>().join(between)
}

/// The part of an id for one key column. It sorts like the column, so that all transactions lock
/// rows in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum Segment<'id> {
    Number(i128),
    /// A day or a UUID.
    Plain(&'id str),
    #[serde(serialize_with = "json::serialize_hex")]
    Text(&'id str),
}

impl<'id> Segment<'id> {
    pub fn new(kind: KeyType, text: &'id str) -> Self {
        match kind {
            // the id was checked before, so this is always a number
            KeyType::Unsigned | KeyType::Signed | KeyType::DateTime => {
                text.parse().map_or(Segment::Text(text), Segment::Number)
            }
            KeyType::Date | KeyType::Uuid => Segment::Plain(text),
            KeyType::Text | KeyType::Char => Segment::Text(text),
        }
    }

    /// Binds the segment as a parameter of [`StoredKey::parameter`].
    pub fn bind(self, statement: Statement) -> Statement {
        match self {
            Segment::Number(number) => match i64::try_from(number) {
                Ok(number) => statement.bind(number),
                Err(_) => statement.bind(u64::try_from(number).unwrap_or(u64::MAX)),
            },
            Segment::Plain(text) => statement.bind(text),
            Segment::Text(text) => statement.bind(text.as_bytes()),
        }
    }
}

/// Binds each of the segments.
pub fn bind<'id>(
    statement: Statement,
    segments: impl IntoIterator<Item = Segment<'id>>,
) -> Statement {
    segments
        .into_iter()
        .fold(statement, |statement, segment| segment.bind(statement))
}

/// Returns the id's segments, one for each of [`Target::id_keys`], or the reason why it matches no
/// row.
pub fn segments<'id>(family: &Registration, id: &'id str) -> Result<Vec<Segment<'id>>, String> {
    family
        .family
        .check_id(id)
        .map_err(|wrong| wrong.to_string())?;
    let Some(table) = &family.family.table else {
        return Ok(vec![Segment::Text(id)]);
    };
    Ok(table
        .split(id)
        .zip(&table.keys)
        .map(|(part, (_, kind))| Segment::new(*kind, part))
        .collect())
}

/// Returns the first segment of a row's key if the row is in counterfoil's own table.
pub fn family_segment(family: &Registration) -> Option<Segment<'static>> {
    family
        .family
        .table
        .is_none()
        .then_some(Segment::Number(family.number.0.into()))
}

/// The begin of Unix time in UTC.
const EPOCH: &str = "TIMESTAMP'1970-01-01 00:00:00'";

/// Returns these seconds of Unix time as MySQL writes a DATETIME.
fn date_time(seconds: i64) -> String {
    let at = Timestamp::from_second(seconds).unwrap_or_default();
    let time = Offset::UTC.to_datetime(at);
    format!("{} {}", time.date(), time.time())
}

/// A key column.
#[derive(Clone)]
pub struct StoredKey {
    /// The quoted name of the column.
    pub column: String,
    /// The name of the value in a statement's JSON, and in a source's rows.
    pub name: String,
    pub kind: KeyType,
    pub storage: Storage,
}

impl StoredKey {
    /// Returns the type of the column in `JSON_TABLE`.
    fn json_type(&self) -> &'static str {
        match self.kind {
            KeyType::Unsigned => U64,
            KeyType::Signed | KeyType::DateTime => I64,
            KeyType::Date => "DATE",
            KeyType::Text | KeyType::Char => ID,
            KeyType::Uuid => json::UUID,
        }
    }

    /// Returns the value from the JSON in the form that the column takes.
    fn given(&self) -> String {
        let json = format!("{INPUT}.{}", self.name);
        match self.kind {
            KeyType::Text | KeyType::Char => self.stored(&format!("UNHEX({json})")),
            _ => self.stored(&json),
        }
    }

    fn equals_given(&self) -> String {
        format!("t.{} = {}", self.column, self.given())
    }

    /// Returns a parameter in the form that the column takes. With `as_text` it is text, which is
    /// converted to the character set of the column. Without this conversion a server refuses to
    /// compare a column with text that has other characters.
    pub fn parameter(&self, as_text: bool) -> String {
        match (self.kind, &self.storage) {
            (_, Storage::Characters { .. }) if as_text => self.stored("CONVERT(? USING utf8mb4)"),
            _ if as_text => self.own_parameter().to_owned(),
            (KeyType::Date, Storage::Plain) => "CAST(? AS DATE)".to_owned(),
            _ => self.stored("?"),
        }
    }

    /// Returns a parameter in the application's own statement, whose text says how it is converted.
    /// It is bound as text.
    pub fn own_parameter(&self) -> &'static str {
        match self.storage {
            Storage::Time { .. } => "CAST(? AS DATETIME)",
            _ => "?",
        }
    }

    /// Binds a segment as this parameter. As text it has the column's own type and collation, so
    /// that the column's index is used.
    pub fn bind(&self, statement: Statement, segment: Segment<'_>, as_text: bool) -> Statement {
        match (segment, &self.storage) {
            (Segment::Plain(uuid), Storage::UuidBytes) if as_text => {
                let uuid = u128::from_str_radix(&uuid.replace('-', ""), 16).unwrap_or_default();
                statement.bind(&uuid.to_be_bytes()[..])
            }
            (Segment::Text(text), _) if as_text => statement.bind(text),
            (Segment::Number(seconds), Storage::Time { ahead }) if as_text => {
                let seconds = i64::try_from(seconds).unwrap_or_default() + ahead;
                statement.bind(date_time(seconds))
            }
            _ => segment.bind(statement),
        }
    }

    /// Returns the condition that the column equals a parameter.
    pub fn equals(&self) -> String {
        format!("t.{} = {}", self.column, self.parameter(false))
    }

    /// Returns the value in the form that is compared with the column, so that the index is used.
    pub fn stored(&self, value: &str) -> String {
        match &self.storage {
            Storage::Plain | Storage::Bytes => value.to_owned(),
            Storage::Characters {
                charset, collation, ..
            } => {
                format!("CONVERT({value} USING {charset}) COLLATE {collation}")
            }
            Storage::Midnight => format!("CAST({value} AS DATETIME)"),
            Storage::Time { ahead: 0 } => format!("TIMESTAMPADD(SECOND, {value}, {EPOCH})"),
            Storage::Time { ahead } => {
                format!("TIMESTAMPADD(SECOND, {value} {ahead:+}, {EPOCH})")
            }
            Storage::UuidBytes => format!("UNHEX(REPLACE({value}, '-', ''))"),
            Storage::Uuid => format!("CAST({value} AS UUID)"),
        }
    }

    /// Returns the column as spelt in an id, in bytes.
    pub fn bytes(&self) -> String {
        let column = format!("t.{}", self.column);
        match (self.kind, &self.storage) {
            // the bare column, so that a range of it is a range of the index
            (KeyType::Text, Storage::Bytes) => column,
            _ => self.bytes_of(&column),
        }
    }

    /// Returns an application's column with such values as spelt in an id, in bytes.
    pub fn bytes_of(&self, column: &str) -> String {
        let text = match (self.kind, &self.storage) {
            // removes the leading zeros of a ZEROFILL column
            (KeyType::Unsigned | KeyType::Signed, Storage::Plain) => format!("{column} + 0"),
            // times that no id spells become NULL: those that are not a midnight, or not a whole
            // second
            (_, Storage::Midnight) => {
                format!("IF({column} = DATE({column}), DATE({column}), NULL)")
            }
            (_, Storage::Time { ahead }) => format!(
                "IF(MICROSECOND({column}) = 0, TIMESTAMPDIFF(SECOND, {EPOCH}, {column}) {:+}, NULL)",
                -ahead
            ),
            // a CHAR column drops trailing spaces, but a VARCHAR column of a source keeps them
            (KeyType::Char, _) => format!("RTRIM({column})"),
            // a lookup also finds a row in upper case where the collation folds
            (KeyType::Uuid, Storage::Characters { .. }) => format!(
                "IF(COLLATION({column}) LIKE '%_ci', LOWER(RTRIM({column})), RTRIM({column}))"
            ),
            (_, Storage::UuidBytes) => {
                let groups = [(1, 4), (5, 2), (7, 2), (9, 2), (11, 6)]
                    .map(|(from, bytes)| format!("HEX(SUBSTR({column}, {from}, {bytes}))"));
                format!("LOWER(CONCAT_WS('-', {}))", groups.join(", "))
            }
            _ => column.to_owned(),
        };
        // a column may have any character set
        format!("CAST(CONVERT({text} USING utf8mb4) AS BINARY)")
    }
}

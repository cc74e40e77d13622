//! The table of a family's values in the database, and the mapping of an id to the columns of a
//! row.

use std::collections::HashSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::family::day::Day;

/// The application's table and column that hold a family's values, in place of counterfoil's own
/// table.
///
/// An id is split at the separator into one segment per key column. Every segment must have its one
/// canonical spelling (`7`, never `07`), so that two ids never mean one row.
///
/// The ids that a series or activity keeps begin with the slice, for which the table has a column:
///
/// ```
/// use counterfoil::{KeyType, Table};
/// // hours like 1410134400/home into hourly(hour DATETIME, page, hits)
/// let hourly = Table::upsert("hourly")
///     .key("hour", KeyType::DateTime)
///     .key("page", KeyType::Text)
///     .value("hits");
/// ```
///
/// ```
/// use counterfoil::{KeyType, Table};
/// // ids like 12345/2014-09-20 into visitors(store_id, day, count)
/// let visitors = Table::upsert("visitors")
///     .key("store_id", KeyType::Unsigned)
///     .key("day", KeyType::Date)
///     .value("count");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub(crate) name: String,
    #[serde(rename = "write")]
    pub(crate) missing: MissingRow,
    /// The key columns by name, in the order of an id's segments.
    pub(crate) keys: Vec<(String, KeyType)>,
    pub(crate) value: String,
    #[serde(default = "slash")]
    pub(crate) separator: char,
    /// The offset from UTC of the times in `DATETIME` columns, such as `+05:30`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) utc_offset: Option<String>,
    /// The columns that an update leaves as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unchanged: Vec<String>,
}

fn slash() -> char {
    '/'
}

/// The treatment of a delta whose row does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum MissingRow {
    /// A new row with the delta.
    #[serde(rename = "upsert")]
    Insert,
    /// A new row with the delta. If a foreign key of the row refers to nothing, it is dropped and
    /// counted.
    #[serde(rename = "upsert-or-drop")]
    InsertOrDrop,
    /// A reject, because the application creates the rows.
    #[serde(rename = "update")]
    Reject,
    /// Nothing: it is dropped and counted.
    #[serde(rename = "update-or-drop")]
    Drop,
}

impl MissingRow {
    pub(crate) fn inserts(self) -> bool {
        matches!(self, MissingRow::Insert | MissingRow::InsertOrDrop)
    }

    pub(crate) fn drops(self) -> bool {
        matches!(self, MissingRow::Drop | MissingRow::InsertOrDrop)
    }
}

/// Returns true if MySQL accepts it as the name of a table, with or without its schema.
pub(crate) fn is_table_name(name: &str) -> bool {
    name.split('.').count() <= 2 && name.split('.').all(is_name)
}

/// Returns true if MySQL accepts it as the name of a column.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.chars().count()) && !name.contains(['`', '\0', '.'])
}

/// The type of a key column of an application's table, and of the id's segment that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum KeyType {
    /// `0` to `18446744073709551615`, without leading zeros; any integer column.
    Unsigned,
    /// `-9223372036854775808` to `9223372036854775807`, without leading zeros or `+`; any signed
    /// integer column.
    Signed,
    /// `YYYY-MM-DD`, a day that exists, years 1000 to 9999; a `DATE` column, or the midnights of a
    /// `DATETIME` one.
    Date,
    /// `0` to `253402300799`, seconds of Unix time without leading zeros, as
    /// [kept](crate::FamilyBuilder::keep) slices of a fixed length and minutes have them; a
    /// `DATETIME` column in UTC or at a fixed [offset](Table::utc_offset) from it, or a `TIMESTAMP`
    /// one (from `1` to `2147483647`).
    DateTime,
    /// The bytes as they are; a `VARBINARY` column, or a `VARCHAR` one with a binary collation that
    /// does not pad.
    Text,
    /// Text that does not end in a space, which a `CHAR` column cannot keep; a `CHAR` column with a
    /// binary collation of utf8mb4.
    Char,
    /// `5d41402a-bc4b-4a76-b971-9d911017c592`, in lower case; a `BINARY(16)` column with the bytes
    /// in this order (as `UUID_TO_BIN(text)` stores them, without its swap), MariaDB's `UUID`, or a
    /// `CHAR` or `VARCHAR` of at least 36.
    Uuid,
}

impl Table {
    /// Describes a table in which missing rows are inserted. The name may include its schema:
    /// `shop.visitors`.
    pub fn upsert(name: impl Into<String>) -> Self {
        Table::new(name, MissingRow::Insert)
    }

    /// Describes a table like [`upsert`](Self::upsert), but a delta is dropped if a foreign key of its
    /// new row refers to a row that does not exist, and counted in
    /// [`WITHOUT_ROW`](crate::metrics::WITHOUT_ROW): for ids that anyone can make up, such as those of
    /// products in the paths of requests. A hit that arrives before the other row is lost.
    ///
    /// A family may change from one to the other, as with
    /// [`update_or_drop`](Self::update_or_drop).
    pub fn upsert_or_drop(name: impl Into<String>) -> Self {
        Table::new(name, MissingRow::InsertOrDrop)
    }

    /// Describes a table whose rows the application creates: a delta without a row goes to the
    /// rejects.
    pub fn update(name: impl Into<String>) -> Self {
        Table::new(name, MissingRow::Reject)
    }

    /// Describes a table like [`update`](Self::update), but a delta without a row is dropped, and
    /// counted in [`WITHOUT_ROW`](crate::metrics::WITHOUT_ROW): for ids that anyone can make up,
    /// such as the paths of requests. A hit that arrives before its row is lost.
    ///
    /// A family may change from one to the other. A reconciler follows the settings of its own
    /// process, and those of the last opening for registered families.
    pub fn update_or_drop(name: impl Into<String>) -> Self {
        Table::new(name, MissingRow::Drop)
    }

    fn new(name: impl Into<String>, missing: MissingRow) -> Self {
        Table {
            name: name.into(),
            keys: Vec::new(),
            value: String::new(),
            separator: slash(),
            utc_offset: None,
            unchanged: Vec::new(),
            missing,
        }
    }

    /// Adds a key column, in the order of the id's segments. All key columns together form a unique
    /// key of the table.
    #[must_use]
    pub fn key(mut self, column: impl Into<String>, kind: KeyType) -> Self {
        self.keys.push((column.into(), kind));
        self
    }

    /// Sets the integer column to which deltas are added.
    #[must_use]
    pub fn value(mut self, column: impl Into<String>) -> Self {
        self.value = column.into();
        self
    }

    /// Sets the character between an id's segments. Defaults to `/`. Text must not contain it, except
    /// in the last column: of a series or activity, or of a table without other text keys. A scope
    /// of visitors never may.
    #[must_use]
    pub fn separator(mut self, separator: char) -> Self {
        self.separator = separator;
        self
    }

    /// Sets how far the times in `DATETIME` columns are ahead of UTC, `+05:30`, or behind it,
    /// `-03:00`. Defaults to UTC. A `TIMESTAMP` column needs no offset.
    ///
    /// Where clocks change, a local time means two moments, and two slices would be one row. So
    /// the name of a time zone is refused: a table with such times needs a `TIMESTAMP` column. Days
    /// are [`KeyType::Date`], in any time zone.
    #[must_use]
    pub fn utc_offset(mut self, offset: impl Into<String>) -> Self {
        self.utc_offset = Some(offset.into());
        self
    }

    /// Leaves a column as it is when the value changes: a time with `ON UPDATE CURRENT_TIMESTAMP`
    /// would show the last sync. May be called for several columns, and may change with a deploy.
    #[must_use]
    pub fn unchanged(mut self, column: impl Into<String>) -> Self {
        self.unchanged.push(column.into());
        self
    }

    /// Refuses a table without a key or value column, and names that MySQL does not accept.
    pub(crate) fn check(&self) -> Result<(), String> {
        let keys = self.keys.iter().map(|(name, _)| name);
        let columns = || keys.clone().chain([&self.value]).chain(&self.unchanged);
        let mut seen = HashSet::new();
        let wrong = if !is_table_name(&self.name) {
            "not a name that MySQL accepts".to_owned()
        } else if self.keys.is_empty() {
            "no key column is named".to_owned()
        } else if self.value.is_empty() {
            "no value column is named".to_owned()
        } else if let Some(column) = columns().find(|column| !is_name(column)) {
            format!("column {column:?} is not a name that MySQL accepts")
        } else if let Some(twice) = columns().find(|column| !seen.insert(*column)) {
            format!("column {twice:?} is named twice")
        } else if self.keys.len() > 1 && matches!(self.separator, '0'..='9' | 'a'..='f' | '-') {
            let separator = self.separator;
            format!("{separator:?} cannot separate segments: numbers, days and UUIDs contain it")
        } else if let Some(offset) = self.unknown_offset() {
            format!(
                "utc_offset {offset:?} is not like \"+05:30\": where clocks change, two slices would \
                 be one row"
            )
        } else if self.utc_offset.is_some() && !self.has_times() {
            "utc_offset is for keys of the type DateTime".to_owned()
        } else {
            return Ok(());
        };
        Err(format!("{:?}: {wrong}", self.name))
    }

    fn has_times(&self) -> bool {
        self.keys.iter().any(|(_, kind)| *kind == KeyType::DateTime)
    }

    fn unknown_offset(&self) -> Option<&str> {
        self.utc_offset
            .as_deref()
            .filter(|offset| seconds_of(offset).is_none())
    }

    /// Returns the seconds by which the times in `DATETIME` columns are ahead of UTC.
    pub(crate) fn ahead_of_utc(&self) -> i64 {
        self.utc_offset.as_deref().and_then(seconds_of).unwrap_or(0)
    }

    /// Returns one line that describes the table, equal for equal tables. The database stores it
    /// beside the family.
    pub(crate) fn describe(&self) -> String {
        let verb = match self.missing {
            // a deploy may change a table to one that drops deltas, and back: both have the same
            // text
            MissingRow::Insert | MissingRow::InsertOrDrop => "upsert",
            MissingRow::Reject | MissingRow::Drop => "update",
        };
        let keys: Vec<_> = self
            .keys
            .iter()
            .map(|(name, kind)| format!("{name}:{kind:?}"))
            .collect();
        let offset = match self.ahead_of_utc() {
            0 => None,
            _ => self.utc_offset.as_deref(),
        };
        format!(
            "{verb} {}({}){}{}{}",
            self.name,
            keys.join(","),
            self.separator,
            self.value,
            offset.unwrap_or_default()
        )
    }

    /// Splits an id of a row into segments, one per key column.
    pub(crate) fn split<'id>(&self, id: &'id str) -> impl Iterator<Item = &'id str> + use<'id> {
        id.splitn(self.keys.len(), self.separator)
    }
}

impl KeyType {
    /// All types.
    const ALL: [KeyType; 7] = [
        KeyType::Unsigned,
        KeyType::Signed,
        KeyType::Date,
        KeyType::DateTime,
        KeyType::Text,
        KeyType::Char,
        KeyType::Uuid,
    ];
    /// The last second of the year 9999.
    pub(crate) const LAST_SECOND: i64 = 253_402_300_799;

    /// Returns the types of which the segment is a canonical spelling.
    pub(crate) fn that_fit(segment: &str) -> impl Iterator<Item = KeyType> {
        KeyType::ALL
            .into_iter()
            .filter(|kind| kind.is_canonical(segment))
    }

    /// Returns true if the segment is the canonical spelling of a value of this type.
    pub(crate) fn is_canonical(self, segment: &str) -> bool {
        match self {
            KeyType::Unsigned => is_spelling_of::<u64>(segment),
            KeyType::Signed => is_spelling_of::<i64>(segment),
            KeyType::Date => is_spelling_of::<Day>(segment),
            KeyType::DateTime => {
                let seconds = segment.parse::<i64>();
                let is_time = |seconds| (0..=KeyType::LAST_SECOND).contains(&seconds);
                is_spelling_of::<i64>(segment) && seconds.is_ok_and(is_time)
            }
            KeyType::Text => true,
            KeyType::Char => !segment.ends_with(' '),
            KeyType::Uuid => is_uuid(segment),
        }
    }
}

/// Returns true if the value that the text stands for is written exactly like this.
fn is_spelling_of<T: FromStr + ToString>(text: &str) -> bool {
    text.parse::<T>()
        .is_ok_and(|value| value.to_string() == text)
}

/// Returns the seconds of an offset from UTC such as `+05:30`, up to 14 hours.
fn seconds_of(offset: &str) -> Option<i64> {
    let (hours, minutes) = offset.split_once(':')?;
    let digits = hours.strip_prefix(['+', '-'])?;
    let seconds =
        (two_digits(digits)? * 60 + two_digits(minutes).filter(|minutes| *minutes < 60)?) * 60;
    let ahead = if hours.starts_with('-') {
        -seconds
    } else {
        seconds
    };
    (seconds <= 14 * 3600).then_some(ahead)
}

/// Returns the number of exactly two digits.
fn two_digits(text: &str) -> Option<i64> {
    let are_two = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    are_two.then(|| text.parse().ok()).flatten()
}

fn is_uuid(text: &str) -> bool {
    let shape = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    text.len() == 36 && text.bytes().enumerate().all(shape)
}

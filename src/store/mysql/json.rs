//! The rows for a statement: one JSON text for any number of rows, unfolded by `JSON_TABLE`; and
//! the replies, one row for each by its position.
//!
//! The statement's own text is the same for any number of rows, so it stays prepared. Text is sent
//! as hexadecimal digits: the JSON is plain ASCII, so no character set of a connection, a database
//! or a JSON parser can change a byte. Its columns name their character set: the default is the
//! database's, and UNHEX of text in utf16 is NULL.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Serializer;

/// The name of the JSON rows in a statement. No table of the application has this name.
pub const INPUT: &str = "counterfoil_input";

/// The types of columns. The last two hold [`hex`]: an id, and a reason for an operator.
pub const U64: &str = "BIGINT UNSIGNED";
pub const I64: &str = "BIGINT";
pub const UUID: &str = "VARCHAR(36) CHARACTER SET latin1";
pub const ID: &str = "VARCHAR(510) CHARACTER SET latin1";
pub const REASON: &str = "VARCHAR(8192) CHARACTER SET latin1";

/// Returns the rows that a statement receives, named [`INPUT`], with `pos` from 1 and these columns
/// (name and type).
///
/// A value that does not fit fails the statement: the default, NULL, would lose it silently. MariaDB
/// reads a row again for each column, up to that column, so use few columns, long ones last.
pub fn table<N: Display>(columns: impl IntoIterator<Item = (N, &'static str)>) -> String {
    let definitions: String = columns
        .into_iter()
        .enumerate()
        .map(|(index, (name, kind))| {
            format!(", {name} {kind} PATH '$[{index}]' ERROR ON EMPTY ERROR ON ERROR")
        })
        .collect();
    format!("JSON_TABLE(?, '$[*]' COLUMNS(pos FOR ORDINALITY{definitions})) AS {INPUT}")
}

/// Returns [`table`] as a derived table, for locking reads: MySQL refuses to lock a JSON_TABLE
/// (error 3569).
pub fn derived_table<N: Display>(columns: impl IntoIterator<Item = (N, &'static str)>) -> String {
    format!("(SELECT * FROM {}) AS {INPUT}", table(columns))
}

/// Returns text as hexadecimal digits. The statement decodes them by `UNHEX`.
pub fn hex(text: impl AsRef<[u8]>) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.as_ref()
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

/// Returns the text with these hexadecimal digits.
pub fn unhex(digits: &str) -> Option<Vec<u8>> {
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Serializes text as [`hex`] does.
pub fn serialize_hex<S: Serializer>(
    text: impl AsRef<[u8]>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex(text))
}

/// Returns the reply for each given row, in the order of the positions that come with them.
///
/// Such a statement returns a row for every row that it received, found or not. So a truncated
/// reply (by `sql_select_limit`, by a proxy) is an error, and is not mistaken for missing rows.
pub fn by_position<T>(rows: Vec<(u64, T)>, given: usize) -> Result<Vec<T>, sqlx::Error> {
    check_all(given, rows.len() as u64)?;
    let found: BTreeMap<_, _> = rows.into_iter().collect();
    if found.keys().copied().eq(1..=given as u64) {
        Ok(found.into_values().collect())
    } else {
        Err(unexpected(given, 0))
    }
}

/// Returns an error unless a statement concerned every row that it received.
pub fn check_all(given: usize, rows: u64) -> Result<(), sqlx::Error> {
    if rows == given as u64 {
        Ok(())
    } else {
        Err(unexpected(given, rows))
    }
}

fn unexpected(given: usize, rows: u64) -> sqlx::Error {
    sqlx::Error::Protocol(format!(
        "the database returned {rows} rows instead of {given}"
    ))
}

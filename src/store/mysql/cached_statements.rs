//! The statements on the rows of cached counters: a value in one table, and beside it the version of who wrote it.

use super::json::JsonRows;
use super::parts::{INPUT, Parts, Segment};
use super::statement::{Text, text};

/// The statements that depend on the table of the values.
pub(super) struct CachedStatements {
    /// Takes rows of (key, id if [asked for](Self::takes_id)) and the family; a row whatever there is.
    pub(super) rows: Text,
    /// Takes a row's key, the family and the id; a row whatever there is.
    pub(super) row: Text,
    /// Takes what [`rows`](Self::rows) takes.
    pub(super) lock: Text,
    /// Takes rows of (value, known value, key).
    pub(super) swap: Text,
    /// Takes rows of (value, key), all of them there.
    pub(super) update: Text,
    /// Takes rows of (value, key), none of them there.
    pub(super) insert: Text,
    /// Whether the id is given beside the key.
    takes_id: bool,
}

/// As text: a number on most servers, a word on others. On MySQL `super_read_only` sets it too.
const READ_ONLY: &str = "CAST(@@GLOBAL.read_only AS CHAR) AS read_only";

/// The same by itself.
pub(super) const ASK_READ_ONLY: &str = "SELECT CAST(@@GLOBAL.read_only AS CHAR)";

impl CachedStatements {
    pub(super) fn new(parts: &Parts) -> Self {
        let Parts { name, value, .. } = parts;
        let (given, matches) = (parts.given(), parts.matches());
        let (ids, values) = (parts.source(&[], parts.takes_id()), parts.source(&["value"], false));
        // NULL only where there is no row
        let found = format!(
            "CAST({INPUT}.pos AS UNSIGNED), CASE WHEN {} THEN {} END AS digits, CONCAT(v.lineage, ':', v.n) AS version",
            parts.there(),
            parts.digits()
        );
        // the value's row first: a version is read when the row is locked that goes with it
        let joined = format!(
            "LEFT JOIN {name} AS t ON {matches} \
             LEFT JOIN counterfoil_versions AS v ON v.family = ? AND v.id = {}",
            parts.given_id()
        );
        CachedStatements {
            rows: text(format!("SELECT {found}, {READ_ONLY} FROM {ids} {joined}")),
            row: text(format!(
                "SELECT (SELECT {} FROM {name} AS t WHERE {}) AS digits, \
                 (SELECT CONCAT(v.lineage, ':', v.n) FROM counterfoil_versions AS v WHERE v.family = ? AND v.id = ?) \
                 AS version, {READ_ONLY}",
                parts.digits(),
                parts.equals_parameters(),
            )),
            // the derived table is for MySQL, which refuses to lock a JSON_TABLE (error 3569)
            lock: text(format!("SELECT {found} FROM (SELECT * FROM {ids}) AS {INPUT} {joined} FOR UPDATE")),
            swap: text(format!(
                "UPDATE {} STRAIGHT_JOIN {name} AS t ON {matches} SET t.{value} = {INPUT}.value \
                 WHERE {} = {INPUT}.known",
                parts.source(&["value", "known"], false),
                parts.current("t"),
            )),
            update: text(format!(
                "UPDATE {values} STRAIGHT_JOIN {name} AS t ON {matches} SET t.{value} = {INPUT}.value"
            )),
            takes_id: parts.takes_id(),
            insert: text(format!(
                "INSERT INTO {name} ({}, {value}) SELECT {given}, {INPUT}.value FROM {values}",
                parts.key_columns()
            )),
        }
    }

    /// Writes a row of [`rows`](Self::rows) or [`lock`](Self::lock).
    pub(super) fn write_id(&self, cells: &mut JsonRows, key: &[Segment<'_>], id: &[u8]) {
        key.iter().for_each(|segment| segment.write(cells));
        if self.takes_id {
            cells.bytes(id);
        }
    }
}

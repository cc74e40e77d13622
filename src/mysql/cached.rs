//! The statements on the rows of cached counters: a value in one table, and beside it the version of who wrote it.

use super::target::{INPUT, Parts, Text, text};

/// The statements that depend on the table of the values.
pub(super) struct Cached {
    /// Takes rows of (key, id) and the family; a row whatever there is.
    pub(super) rows: Text,
    /// Takes a row's key, and twice the family and the id; a row whatever there is.
    pub(super) row: Text,
    /// Takes rows of (key, id) and the family; a row whatever there is.
    pub(super) lock: Text,
    /// Takes rows of (key, value), all of them there.
    pub(super) update: Text,
    /// Takes rows of (key, value), none of them there.
    pub(super) insert: Text,
}

/// As text: a number on most servers, a word on others. On MySQL `super_read_only` sets it too.
const READ_ONLY: &str = "CAST(@@GLOBAL.read_only AS CHAR) AS read_only";

impl Cached {
    pub(super) fn new(parts: &Parts) -> Self {
        let Parts { name, value, .. } = parts;
        let (given, matches) = (parts.given(), parts.matches());
        let (ids, values) = (parts.source(&[("id", "VARCHAR(510)")]), parts.source(&[("value", "BIGINT")]));
        // NULL only where there is no row
        let found = format!(
            "CAST({INPUT}.pos AS UNSIGNED), CASE WHEN {} THEN {} END AS digits, v.lineage, v.n",
            parts.there(),
            parts.digits()
        );
        // the value's row first: a version is read when the row is locked that goes with it
        let joined = format!(
            "LEFT JOIN {name} AS t ON {matches} \
             LEFT JOIN counterfoil_versions AS v ON v.family = ? AND v.id = UNHEX({INPUT}.id)"
        );
        let version = |column| {
            format!("(SELECT v.{column} FROM counterfoil_versions AS v WHERE v.family = ? AND v.id = ?) AS {column}")
        };
        Cached {
            rows: text(format!("SELECT {found}, {READ_ONLY} FROM {ids} {joined}")),
            row: text(format!(
                "SELECT (SELECT {} FROM {name} AS t WHERE {}) AS digits, {}, {}, {READ_ONLY}",
                parts.digits(),
                parts.equals_parameters(),
                version("lineage"),
                version("n"),
            )),
            // the derived table is for MySQL, which refuses to lock a JSON_TABLE (error 3569)
            lock: text(format!("SELECT {found} FROM (SELECT * FROM {ids}) AS {INPUT} {joined} FOR UPDATE")),
            update: text(format!(
                "UPDATE {values} STRAIGHT_JOIN {name} AS t ON {matches} SET t.{value} = {INPUT}.value"
            )),
            insert: text(format!(
                "INSERT INTO {name} ({}, {value}) SELECT {given}, {INPUT}.value FROM {values}",
                parts.key_columns()
            )),
        }
    }
}

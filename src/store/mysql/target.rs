//! A table for values, counterfoil's own or the application's, and the statements on it.
//!
//! Each statement takes its rows as one JSON text, so that its own text is constant and stays
//! prepared. `JSON_TABLE` always drives the join, and the table is looked up by its unique key, row
//! by row.

use super::json;
use super::ledger;
use super::parts::{INPUT, Parts, Segment, StoredKey};
use super::rejects;
use super::shape::Shape;
use super::statement::{READ_ONLY, Text, bulk_insert, quoted, text};
use crate::family::table::{KeyType, Missing, Table};
use crate::store::Registered;

/// A table with its properties and statements.
pub(crate) struct Target {
    /// [`Table::describe`], which is unique for a table.
    pub(super) label: String,
    /// `true` if a delta without a row inserts one.
    pub(crate) inserts: bool,
    /// `true` if the value column refuses negative numbers.
    pub(super) unsigned: bool,
    /// The value column, for messages.
    pub(crate) value: String,
    pub(super) upsert: Text,
    /// An upsert of [`BULK`](super::statement::BULK) rows, with their keys and deltas as
    /// parameters.
    pub(super) bulk_upsert: Option<Text>,
    pub(super) lock: Text,
    pub(super) update: Text,
    /// Takes keys, and the ledger's (partition, incarnation) and family.
    pub(super) read: Text,
    /// Takes one row's key, and the ledger's family, partition and incarnation. Always returns one
    /// row.
    pub(super) point: Text,
    /// Takes keys. Returns a row for each, with the digits where there is a row, and the server's
    /// `read_only`.
    pub(super) rows: Text,
    /// Takes one row's key. Always returns one row of digits and `read_only`.
    pub(super) row: Text,
    /// The table's name, quoted.
    pub(crate) name: String,
    /// The value as decimal digits.
    pub(super) digits: String,
    pub(super) keys: Vec<StoredKey>,
}

/// Returns the segments of a batch's id, or the reason why it matches no row.
pub(super) fn key<'id>(family: &Registered, id: &'id [u8]) -> Result<Vec<Segment<'id>>, String> {
    segments(
        family,
        std::str::from_utf8(id).map_err(|_| rejects::NOT_UTF8.to_owned())?,
    )
}

/// Returns the id's segments for the key columns of the family's table, or the reason why it
/// matches no row.
pub(super) fn segments<'id>(
    family: &Registered,
    id: &'id str,
) -> Result<Vec<Segment<'id>>, String> {
    family
        .family
        .check_id(id)
        .map_err(|wrong| wrong.to_string())?;
    let Some(table) = &family.family.table else {
        return Ok(vec![
            Segment::Number(family.number.into()),
            Segment::Text(id),
        ]);
    };
    let parts = table.split(id)?.into_iter().zip(&table.keys);
    Ok(parts
        .map(|(part, key)| Segment::new(key.kind, part))
        .collect())
}

impl Target {
    /// Returns counterfoil's own table, described like one of the application's.
    pub(super) fn own() -> Self {
        let table = Table::upsert("counterfoil_values")
            .key("family", KeyType::Unsigned)
            .key("id", KeyType::Text)
            .value("value");
        let bulk = bulk_insert(
            "counterfoil_values",
            &["family", "id", "value"],
            "value = value + VALUES(value)",
        );
        Target {
            bulk_upsert: Some(bulk),
            ..Target::new(&table, &Shape::own())
        }
    }

    pub(super) fn new(table: &Table, shape: &Shape) -> Self {
        let parts = Parts::new(table, shape);
        let Parts { name, value, .. } = &parts;
        let (columns, given, matches) = (parts.key_columns(), parts.given(), parts.matches());
        let (ids, deltas) = (parts.source(false), parts.source(true));

        Target {
            label: table.describe(),
            inserts: table.missing == Missing::Insert,
            unsigned: shape.unsigned,
            value: table.value.clone(),
            upsert: text(format!(
                "INSERT INTO {name} ({columns}, {value}) SELECT {given}, {INPUT}.delta FROM {deltas} \
                 ON DUPLICATE KEY UPDATE {name}.{value} = {} + {INPUT}.delta",
                parts.current(name)
            )),
            bulk_upsert: None,
            // the derived table is for MySQL, which refuses to lock a JSON_TABLE (error 3569)
            lock: text(format!(
                "SELECT CAST({INPUT}.pos AS UNSIGNED), {} FROM (SELECT * FROM {ids}) AS {INPUT} \
                 LEFT JOIN {name} AS t ON {matches} FOR UPDATE",
                parts.there()
            )),
            update: text(format!(
                "UPDATE {deltas} STRAIGHT_JOIN {name} AS t ON {matches} SET t.{value} = {} + {INPUT}.delta",
                parts.current("t")
            )),
            // as digits, since BIGINT UNSIGNED does not decode into i64
            read: text(format!(
                "SELECT 0, CAST({INPUT}.pos AS UNSIGNED), CAST(t.{value} AS CHAR) \
                 FROM {ids} LEFT JOIN {name} AS t ON {matches} \
                 UNION ALL SELECT 1, CAST({INPUT}.pos AS UNSIGNED), {} \
                 FROM JSON_TABLE(?, '$[*]' COLUMNS(pos FOR ORDINALITY, {}, {})) AS {INPUT} \
                 LEFT JOIN counterfoil_ledger AS l \
                 ON l.family = ? AND l.partition_no = {INPUT}.partition_no AND l.incarnation = {INPUT}.incarnation",
                ledger::MARK,
                json::column("partition_no", "INT UNSIGNED", 0),
                json::column("incarnation", "BIGINT UNSIGNED", 1),
            )),
            // names the columns, since the reply would otherwise contain the whole expressions as
            // names
            point: text(format!(
                "SELECT (SELECT CAST(t.{value} AS CHAR) FROM {name} AS t WHERE {}) AS digits, \
                 (SELECT {} FROM counterfoil_ledger AS l \
                 WHERE l.family = ? AND l.partition_no = ? AND l.incarnation = ?) AS mark",
                parts.equals_parameters(),
                ledger::MARK,
            )),
            rows: text(format!(
                "SELECT CAST({INPUT}.pos AS UNSIGNED), CASE WHEN {} THEN {} END AS digits, {READ_ONLY} \
                 FROM {ids} LEFT JOIN {name} AS t ON {matches}",
                parts.there(),
                parts.digits(),
            )),
            row: text(format!(
                "SELECT (SELECT {} FROM {name} AS t WHERE {}) AS digits, {READ_ONLY}",
                parts.digits(),
                parts.equals_parameters(),
            )),
            digits: parts.digits(),
            name: parts.name,
            keys: parts.keys,
        }
    }

    /// Returns the key columns and the value column, quoted.
    pub(crate) fn columns(&self) -> impl Iterator<Item = String> {
        self.keys
            .iter()
            .map(|key| key.column.clone())
            .chain([quoted(&self.value)])
    }
}

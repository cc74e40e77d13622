//! A table that values go to, counterfoil's own or the application's, and the statements on it.
//!
//! Each statement takes its rows as one JSON text, and has one text for any number of rows
//! so that it stays prepared. `JSON_TABLE` always drives and the table is looked up by its unique key, row by row.

use super::cached_statements::CachedStatements;
use super::json;
use super::parts::{INPUT, Parts, Segment, StoredKey};
use super::shape::Shape;
use super::statement::{Text, bulk_insert, quoted, text};
use crate::family::table::{KeyType, Missing, Table};
use crate::store::Registered;

/// A table with everything that was learnt about it.
pub(super) struct Target {
    /// The same for the same table: [`Table::describe`].
    pub(super) label: String,
    /// Whether a delta without a row inserts one.
    pub(super) inserts: bool,
    /// Whether the value column takes no number below 0.
    pub(super) unsigned: bool,
    /// The value column, for messages.
    pub(super) value: String,
    pub(super) upsert: Text,
    /// The same of [`BULK`](super::statement::BULK) rows, their keys and deltas as parameters.
    pub(super) bulk_upsert: Option<Text>,
    pub(super) lock: Text,
    pub(super) update: Text,
    pub(super) read: Text,
    /// Takes a row's key, and the ledger's family, partition and incarnation; a row whatever there is.
    pub(super) point: Text,
    pub(super) cached: CachedStatements,
    /// The table's name, quoted.
    pub(super) name: String,
    /// The value as decimal digits.
    pub(super) digits: String,
    pub(super) keys: Vec<StoredKey>,
}

/// The id's segments for the key columns of the family's table, or what is wrong with it.
pub(super) fn segments<'id>(family: &Registered, id: &'id str) -> Result<Vec<Segment<'id>>, String> {
    family.family.check_id(id).map_err(|wrong| wrong.to_string())?;
    let Some(table) = &family.family.table else {
        return Ok(vec![Segment::Number(family.number.into()), Segment::Text(id)]);
    };
    let parts = table.split(id)?.into_iter().zip(&table.keys);
    Ok(parts.map(|(part, key)| Segment::new(key.kind, part)).collect())
}

impl Target {
    /// Counterfoil's own table, described like one of the application's.
    pub(super) fn own() -> Self {
        let table = Table::upsert("counterfoil_values")
            .key("family", KeyType::Unsigned)
            .key("id", KeyType::Text)
            .value("value");
        let bulk = bulk_insert("counterfoil_values", &["family", "id", "value"], "value = value + VALUES(value)");
        Target { bulk_upsert: Some(bulk), ..Target::new(&table, &Shape::own()) }
    }

    pub(super) fn new(table: &Table, shape: &Shape) -> Self {
        let parts = Parts::new(table, shape);
        let Parts { name, value, .. } = &parts;
        let (columns, given, matches) = (parts.key_columns(), parts.given(), parts.matches());
        let (ids, deltas) = (parts.source(&[], false), parts.source(&["delta"], false));

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
                 UNION ALL SELECT 1, CAST({INPUT}.pos AS UNSIGNED), CAST(l.seq AS CHAR) \
                 FROM JSON_TABLE(?, '$[*]' COLUMNS(pos FOR ORDINALITY, {}, {})) AS {INPUT} \
                 LEFT JOIN counterfoil_ledger AS l \
                 ON l.family = ? AND l.partition_no = {INPUT}.partition_no AND l.incarnation = {INPUT}.incarnation",
                json::column("partition_no", "INT UNSIGNED", 0),
                json::column("incarnation", "BIGINT UNSIGNED", 1),
            )),
            // of named columns, or the whole expressions would come back as the reply's column names
            point: text(format!(
                "SELECT (SELECT CAST(t.{value} AS CHAR) FROM {name} AS t WHERE {}) AS digits, \
                 (SELECT l.seq FROM counterfoil_ledger AS l \
                 WHERE l.family = ? AND l.partition_no = ? AND l.incarnation = ?) AS seq",
                parts.equals_parameters(),
            )),
            cached: CachedStatements::new(&parts),
            digits: parts.digits(),
            name: parts.name,
            keys: parts.keys,
        }
    }

    /// The key columns and the value column, quoted.
    pub(super) fn columns(&self) -> impl Iterator<Item = String> {
        self.keys.iter().map(|key| key.column.clone()).chain([quoted(&self.value)])
    }
}

//! The actual definition of the application's table: read from `information_schema`, and refused if
//! counts could get lost.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use indexmap::IndexMap;
use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, Row};

use super::session::Database;
use super::statement::{of_table, quoted, table_name};
use crate::error::{Error, Result};
use crate::family::table::{KeyType, MissingRow, Table};
use crate::store::{Columns, Extent};

/// The properties of a table that the statements need beyond its description.
pub struct Shape {
    /// The primary or unique key of exactly the key columns.
    pub index: String,
    /// The storage of each key column.
    pub keys: Vec<Storage>,
    /// `true` if the value column refuses negative numbers.
    pub unsigned: bool,
    /// `true` if a column other than the key columns has AUTO_INCREMENT.
    pub is_numbered: bool,
    /// `true` if the value column may be NULL, which counts as 0.
    pub nullable: bool,
    /// The values that the columns can hold; `None` for counterfoil's own table.
    pub columns: Option<Arc<Columns>>,
}

/// The storage of a key column's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A number or a day.
    Plain,
    /// A day as its midnight, in DATETIME.
    Midnight,
    /// A time as DATETIME or TIMESTAMP, ahead of UTC by these seconds. The session is in UTC.
    Time { ahead: i64 },
    /// Text as VARBINARY.
    Bytes,
    /// Text, or a UUID's, as VARCHAR or CHAR.
    Characters {
        charset: String,
        collation: String,
        /// The length of the column in characters.
        length: usize,
    },
    /// A UUID as BINARY(16).
    UuidBytes,
    /// A UUID as MariaDB's type for it.
    Uuid,
}

/// The collations of MySQL and MariaDB under which two texts are equal only if their bytes are;
/// under the last one, if neither ends in a space. All others fold letters or ignore trailing
/// spaces. Two ids would then mean one row, or an UPDATE would count only one of them.
const EXACT_COLLATIONS: [&str; 3] = ["utf8mb4_0900_bin", "utf8mb4_nopad_bin", "utf8mb4_bin"];

/// Returns the collations of text that this type of key can have.
pub fn exact_collations(kind: KeyType) -> &'static [&'static str] {
    match kind {
        KeyType::Char => &EXACT_COLLATIONS,
        _ => &EXACT_COLLATIONS[..2],
    }
}

/// A column of a table or view.
pub struct Column {
    /// `int`, `varchar` ...
    data_type: String,
    charset: String,
    collation: String,
    /// The length in characters, or in bytes for a type without characters.
    length: i64,
    unsigned: bool,
    nullable: bool,
    has_default: bool,
    auto_increment: bool,
    generated: bool,
    /// `true` if each update of a row sets it to the present time.
    on_update: bool,
}

/// A table as the database describes it. Names of columns are in lower case, as MySQL compares
/// them.
struct Definition<'t> {
    table: &'t Table,
    columns: IndexMap<String, Column>,
    /// The columns of each primary or unique key; an empty name stands for an expression or the
    /// prefix of a column.
    uniques: BTreeMap<String, BTreeSet<String>>,
}

impl Shape {
    /// Returns the shape of counterfoil's own table.
    pub fn own() -> Self {
        Shape {
            index: "PRIMARY".to_owned(),
            keys: vec![Storage::Plain, Storage::Bytes],
            unsigned: false,
            is_numbered: false,
            nullable: false,
            columns: None,
        }
    }

    /// Reads the table's definition and checks that it matches the description.
    pub async fn learn(database: &Database, table: &Table) -> Result<Self> {
        let select_kind = of_table(KIND, "TABLES", &table.name);
        let kind = database.read(UNREAD, select_kind).await?.pop();
        let definition = Definition {
            table,
            columns: columns(database, &table.name).await?,
            uniques: unique_keys(database, &table.name).await?,
        };
        check_kind(table, kind)
            .and_then(|()| definition.shape())
            .map_err(|what| Error::mismatch(format!("table {}: {what}", table.name)))
    }
}

const UNREAD: &str = "a table's definition was not read";

/// Reads the columns of a table or view. Their names are in lower case.
pub async fn columns(database: &Database, table: &str) -> Result<IndexMap<String, Column>> {
    let select = of_table(COLUMNS, "COLUMNS", table);
    let rows: Vec<ColumnRow> = database.read(UNREAD, select).await?;
    Ok(rows
        .into_iter()
        .map(|ColumnRow(name, column)| (name.to_lowercase(), column))
        .collect())
}

/// A row of [`COLUMNS`]: the name of a column, and its properties.
struct ColumnRow(String, Column);

impl FromRow<'_, MySqlRow> for ColumnRow {
    fn from_row(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let column = Column {
            data_type: row.try_get(1)?,
            charset: row.try_get(2)?,
            collation: row.try_get(3)?,
            length: row.try_get(4)?,
            unsigned: row.try_get(5)?,
            nullable: row.try_get(6)?,
            has_default: row.try_get(7)?,
            auto_increment: row.try_get(8)?,
            generated: row.try_get(9)?,
            on_update: row.try_get(10)?,
        };
        Ok(ColumnRow(row.try_get(0)?, column))
    }
}

/// Reads the columns of each primary or unique key, in lower case.
async fn unique_keys(
    database: &Database,
    table: &str,
) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut uniques = BTreeMap::<String, BTreeSet<String>>::new();
    let select = of_table(INDEXES, "STATISTICS", table);
    let rows: Vec<(String, String, bool)> = database.read(UNREAD, select).await?;
    for (index, column, is_unique) in rows {
        if is_unique {
            uniques
                .entry(index)
                .or_default()
                .insert(column.to_lowercase());
        }
    }
    Ok(uniques)
}

/// The type and the engine of the table.
const KIND: &str = "CAST(TABLE_TYPE AS CHAR), CAST(ENGINE AS CHAR)";

/// The fields of [`Column`]. Without a default, MySQL has NULL, and MariaDB has the word NULL for a
/// nullable column; DEFAULT_GENERATED is an ordinary column whose default is an expression.
const COLUMNS: &str = "CAST(COLUMN_NAME AS CHAR), CAST(LOWER(DATA_TYPE) AS CHAR), \
     CAST(COALESCE(CHARACTER_SET_NAME, '') AS CHAR), CAST(COALESCE(COLLATION_NAME, '') AS CHAR), \
     CAST(COALESCE(CHARACTER_MAXIMUM_LENGTH, 0) AS SIGNED), LOWER(COLUMN_TYPE) LIKE '%unsigned%', \
     IS_NULLABLE = 'YES', COALESCE(COLUMN_DEFAULT <> 'NULL', 0), LOWER(EXTRA) LIKE '%auto_increment%', \
     LOWER(EXTRA) LIKE '%virtual generated%' OR LOWER(EXTRA) LIKE '%stored generated%', \
     LOWER(EXTRA) LIKE '%on update%'";

/// A column of an index, and `true` if the index is a unique key.
const INDEXES: &str = "CAST(INDEX_NAME AS CHAR), \
     CAST(IF(SUB_PART IS NULL, COALESCE(COLUMN_NAME, ''), '') AS CHAR), NON_UNIQUE = 0";

fn check_kind(table: &Table, kind: Option<(String, Option<String>)>) -> Result<(), String> {
    match kind {
        None => {
            let advice = match table.missing {
                MissingRow::Insert | MissingRow::InsertOrDrop => {
                    format!(". To create it: {}", creation(table))
                }
                MissingRow::Reject | MissingRow::Drop => String::new(),
            };
            Err(format!(
                "does not exist, or this user may not see it{advice}"
            ))
        }
        Some((kind, _)) if kind != "BASE TABLE" => Err(format!("is a {kind}, not a plain table")),
        Some((_, Some(engine))) if engine.eq_ignore_ascii_case("InnoDB") => Ok(()),
        Some((_, engine)) => Err(format!(
            "its engine is {}, not InnoDB: rows could not be rolled back",
            engine.as_deref().unwrap_or("unknown")
        )),
    }
}

/// Returns the type of a column that can hold keys of this type.
fn sql_type(kind: KeyType) -> &'static str {
    match kind {
        KeyType::Unsigned => "BIGINT UNSIGNED",
        KeyType::Signed => "BIGINT",
        KeyType::Date => "DATE",
        KeyType::DateTime => "DATETIME",
        KeyType::Text => "VARBINARY(255)",
        KeyType::Char => "CHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        KeyType::Uuid => "BINARY(16)",
    }
}

/// Returns a statement that creates a table of this description.
fn creation(table: &Table) -> String {
    let columns: String = table
        .keys
        .iter()
        .map(|(name, kind)| format!("{} {} NOT NULL, ", quoted(name), sql_type(*kind)))
        .collect();
    let keys: Vec<_> = table.keys.iter().map(|(name, _)| quoted(name)).collect();
    let (name, value) = (table_name(&table.name), quoted(&table.value));
    format!(
        "CREATE TABLE {name} ({columns}{value} BIGINT NOT NULL, PRIMARY KEY ({}))",
        keys.join(", ")
    )
}

impl Definition<'_> {
    /// Returns the table's shape, or the reason why counts could get lost in it.
    fn shape(&self) -> Result<Shape, String> {
        let (mut storages, mut extents) = (Vec::new(), Vec::new());
        for (name, kind) in &self.table.keys {
            let column = self.column(name)?;
            if column.on_update {
                return Err(format!(
                    "key column {name} is ON UPDATE CURRENT_TIMESTAMP, so counting would change it"
                ));
            }
            let storage = column.storage(name, *kind, self.table.ahead_of_utc())?;
            if column.data_type == "timestamp" && self.table.utc_offset.is_some() {
                return Err(format!(
                    "key column {name} is timestamp, which has no offset: utc_offset is for DATETIME"
                ));
            }
            extents.push(column.extent(&storage));
            storages.push(storage);
        }
        let (name, value) = (&self.table.value, self.column(&self.table.value)?);
        if !value.is_integer() {
            let is = &value.data_type;
            return Err(format!("value column {name} is {is}, not an integer"));
        }
        if value.generated {
            return Err(format!("value column {name} is generated"));
        }
        for unchanged in &self.table.unchanged {
            self.column(unchanged)?;
        }
        let names: Vec<_> = self
            .table
            .keys
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let keys: BTreeSet<_> = names.iter().map(|name| name.to_lowercase()).collect();
        let Some(index) = self.index_of(&keys) else {
            return Err(format!(
                "no primary or unique key is of exactly the key columns ({}), each in full",
                names.join(", ")
            ));
        };
        if self.table.missing.inserts() {
            self.check_inserts(&keys, &name.to_lowercase())?;
        }
        Ok(Shape {
            index: index.to_owned(),
            keys: storages,
            unsigned: value.unsigned,
            is_numbered: self
                .columns
                .iter()
                .any(|(name, column)| column.auto_increment && !keys.contains(name)),
            nullable: value.nullable,
            columns: Some(Arc::new(Columns {
                keys: extents,
                values: value.values(),
            })),
        })
    }

    fn column(&self, name: &str) -> Result<&Column, String> {
        self.columns
            .get(&name.to_lowercase())
            .ok_or_else(|| format!("has no column {name}"))
    }

    /// Returns the primary or unique key of exactly these columns; the primary key if several fit.
    fn index_of(&self, keys: &BTreeSet<String>) -> Option<&str> {
        self.uniques
            .iter()
            .filter(|(_, columns)| *columns == keys)
            .map(|(name, _)| name.as_str())
            .min_by_key(|name| *name != "PRIMARY")
    }

    /// Refuses a table on which every insert would fail, and a further unique key that an inserted
    /// row could violate: ON DUPLICATE KEY UPDATE would then count on the row with that key, which
    /// is another counter's.
    fn check_inserts(&self, keys: &BTreeSet<String>, value: &str) -> Result<(), String> {
        for (name, column) in &self.columns {
            let is_key = keys.contains(name);
            if is_key && column.generated {
                return Err(format!(
                    "key column {name} is generated, no row could be inserted"
                ));
            }
            let filled =
                column.nullable || column.has_default || column.auto_increment || column.generated;
            if !is_key && name != value && !filled {
                return Err(format!(
                    "column {name} is NOT NULL without a default, no row could be inserted"
                ));
            }
        }
        for (name, columns) in &self.uniques {
            // such a column is NULL or newly numbered in an inserted row, so no other row has its value
            let never_clashes = columns.iter().any(|column| {
                let is_written = column == value || keys.contains(column);
                !is_written
                    && self
                        .columns
                        .get(column)
                        .is_some_and(Column::is_unlike_others)
            });
            // a row with a key that includes all key columns also has our key
            if !keys.is_subset(columns) && !never_clashes {
                return Err(format!(
                    "an inserted row could violate unique key {name}, and the delta would count on another row"
                ));
            }
        }
        Ok(())
    }
}

impl Column {
    /// Returns `true` if an INSERT that leaves it out makes it NULL, or numbers it.
    fn is_unlike_others(&self) -> bool {
        let is_null = self.nullable && !self.has_default && !self.generated;
        self.auto_increment || is_null
    }

    fn is_integer(&self) -> bool {
        matches!(
            self.data_type.as_str(),
            "tinyint" | "smallint" | "mediumint" | "int" | "bigint"
        )
    }

    /// Returns the values of an integer column, as far as they are valid i64s.
    fn values(&self) -> RangeInclusive<i64> {
        let (least, most) = self.numbers().into_inner();
        i64::try_from(least).unwrap_or(i64::MIN)..=i64::try_from(most).unwrap_or(i64::MAX)
    }

    /// Returns the numbers that an integer column can hold.
    fn numbers(&self) -> RangeInclusive<i128> {
        let bits = match self.data_type.as_str() {
            "tinyint" => 8,
            "smallint" => 16,
            "mediumint" => 24,
            "int" => 32,
            _ => 64,
        };
        if self.unsigned {
            0..=(1 << bits) - 1
        } else {
            -(1 << (bits - 1))..=(1 << (bits - 1)) - 1
        }
    }

    /// Returns what a key column can hold, stored like this.
    fn extent(&self, storage: &Storage) -> Extent {
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        match self.data_type.as_str() {
            // the times that all servers can hold; 0 is none of them
            "timestamp" => Extent::Numbers(1..=i32::MAX.into()),
            _ if self.is_integer() => Extent::Numbers(self.numbers()),
            "varbinary" => Extent::Bytes(length),
            "char" | "varchar" => Extent::Characters(length),
            _ => match storage {
                Storage::Time { ahead } => {
                    Extent::Numbers(0..=(KeyType::LAST_SECOND - ahead.max(&0)).into())
                }
                _ => Extent::All,
            },
        }
    }

    fn characters(&self) -> Storage {
        Storage::Characters {
            charset: self.charset.clone(),
            collation: self.collation.clone(),
            length: usize::try_from(self.length).unwrap_or(usize::MAX),
        }
    }

    /// Returns the storage of keys of that type in a column of a recount's source, or the reason
    /// why a comparison would not find them. Its rows are grouped by their bytes, so any collation
    /// fits. A `DATETIME` is `ahead` of UTC like those of the family's table.
    pub fn storage_in_source(
        &self,
        name: &str,
        kind: KeyType,
        ahead: i64,
    ) -> Result<Storage, String> {
        use KeyType::{Char, Date, Signed, Text, Unsigned, Uuid};
        match (kind, self.data_type.as_str()) {
            (Uuid, "binary" | "varbinary") if self.length == 16 => Ok(Storage::UuidBytes),
            (Unsigned | Signed, _) if self.is_integer() => Ok(Storage::Plain),
            _ if !self.charset.is_empty() => Ok(self.characters()),
            (Text | Char, data_type) if data_type != "binary" => Ok(Storage::Plain),
            // hardly any time in such a column is a midnight, so hardly any row would be found
            (Date, data_type) if data_type != "date" => Err(self.unfit(name, kind, "DATE")),
            _ => self.storage(name, kind, ahead),
        }
    }

    /// Returns the storage of keys of that type in the column, or the reason why they do not fit.
    /// A `DATETIME` is `ahead` of UTC by these seconds.
    fn storage(&self, name: &str, kind: KeyType, ahead: i64) -> Result<Storage, String> {
        let needed = match (kind, self.data_type.as_str()) {
            (KeyType::Unsigned, _) if self.is_integer() => return Ok(Storage::Plain),
            (KeyType::Unsigned | KeyType::Signed, "datetime" | "timestamp") => {
                "an integer, or KeyType::DateTime"
            }
            (KeyType::Unsigned, _) => "an integer",
            (KeyType::Signed, _) if self.is_integer() && !self.unsigned => {
                return Ok(Storage::Plain);
            }
            (KeyType::Signed, _) => "a signed integer",
            (KeyType::Date, "date") => return Ok(Storage::Plain),
            (KeyType::Date, "datetime") => return Ok(Storage::Midnight),
            (KeyType::Date, _) => "DATE or DATETIME",
            (KeyType::DateTime, "datetime") => return Ok(Storage::Time { ahead }),
            (KeyType::DateTime, "timestamp") => return Ok(Storage::Time { ahead: 0 }),
            (KeyType::DateTime, _) => "DATETIME or TIMESTAMP",
            (KeyType::Text, "varbinary") => return Ok(Storage::Bytes),
            (KeyType::Text, "varchar") => {
                let exact = "VARBINARY, or collation utf8mb4_0900_bin (MySQL) or utf8mb4_nopad_bin (MariaDB)";
                return self.exact_characters(name, kind, exact);
            }
            // CHAR drops and BINARY adds trailing characters, whatever the collation
            (KeyType::Text, "char") => "VARBINARY or VARCHAR, or KeyType::Char",
            (KeyType::Text, _) => "VARBINARY or VARCHAR",
            (KeyType::Char, "char") => {
                return self.exact_characters(name, kind, "collation utf8mb4_bin");
            }
            (KeyType::Char, _) => "CHAR",
            (KeyType::Uuid, "uuid") => return Ok(Storage::Uuid),
            (KeyType::Uuid, "binary") if self.length == 16 => return Ok(Storage::UuidBytes),
            // no collation makes two UUIDs equal
            (KeyType::Uuid, "char" | "varchar") if self.length >= 36 => {
                return Ok(self.characters());
            }
            (KeyType::Uuid, _) => "BINARY(16), UUID (MariaDB), or CHAR or VARCHAR of at least 36",
        };
        Err(self.unfit(name, kind, needed))
    }

    /// Returns the storage of text if two texts are equal only if their bytes are.
    fn exact_characters(&self, name: &str, kind: KeyType, needed: &str) -> Result<Storage, String> {
        let collation = &*self.collation;
        if exact_collations(kind).contains(&collation) {
            return Ok(self.characters());
        }
        Err(format!(
            "key column {name} has collation {collation}, under which different ids can be one row; needed is {needed}"
        ))
    }

    fn unfit(&self, name: &str, kind: KeyType, needed: &str) -> String {
        let unsigned = if self.unsigned { " unsigned" } else { "" };
        format!(
            "key column {name} is {}{unsigned}, needed for {kind:?} is {needed}",
            self.data_type
        )
    }
}

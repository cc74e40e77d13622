//! The actual definition of the application's table: read from `information_schema`, and refused if
//! counts could get lost.

use std::collections::BTreeMap;

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::fault::store;
use super::session::Database;
use super::statement::{quoted, schema_and_name, table_name};
use crate::error::{Error, ErrorKind, Result};
use crate::family::table::{KeyType, Missing, Table};

/// The properties of a table that the statements need beyond its description.
pub struct Shape {
    /// The primary or unique key of exactly the key columns.
    pub index: String,
    /// The storage of each key column.
    pub keys: Vec<Storage>,
    /// `true` if the value column refuses negative numbers.
    pub unsigned: bool,
    /// `true` if the value column may be NULL, which counts as 0.
    pub nullable: bool,
}

/// The storage of a key column's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A number or a day.
    Plain,
    /// Text as VARBINARY.
    Bytes,
    /// Text, or a UUID's, as VARCHAR or CHAR.
    Characters { charset: String, collation: String },
    /// A UUID as BINARY(16).
    UuidBytes,
    /// A UUID as MariaDB's type for it.
    Uuid,
}

/// The collations of MySQL and MariaDB under which two texts are equal only if their bytes are. All
/// others fold letters or ignore trailing spaces. Two ids would then mean one row, or an UPDATE
/// would count only one of them.
const EXACT_COLLATIONS: [&str; 2] = ["utf8mb4_0900_bin", "utf8mb4_nopad_bin"];

/// The collations with this property for texts that do not end in a space.
const EXACT_CHAR_COLLATIONS: [&str; 3] = ["utf8mb4_bin", "utf8mb4_0900_bin", "utf8mb4_nopad_bin"];

struct Column {
    /// In lower case, as MySQL compares names.
    name: String,
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
}

struct Unique {
    name: String,
    /// The columns in lower case, sorted; `None` for an expression or the prefix of a column.
    columns: Vec<Option<String>>,
}

/// A table as the database describes it.
struct Definition<'t> {
    table: &'t Table,
    columns: Vec<Column>,
    uniques: Vec<Unique>,
}

impl Shape {
    /// Returns the shape of counterfoil's own table.
    pub fn own() -> Self {
        Shape {
            index: "PRIMARY".to_owned(),
            keys: vec![Storage::Plain, Storage::Bytes],
            unsigned: false,
            nullable: false,
        }
    }

    /// Reads the table's definition and checks that it matches the description.
    pub async fn learn(database: &Database, table: &Table) -> Result<Self> {
        let unread = "a table's definition was not read";
        let kind = kind(database, table).await.map_err(store(unread))?;
        let definition = Definition {
            table,
            columns: columns(database, table).await.map_err(store(unread))?,
            uniques: uniques(database, table).await.map_err(store(unread))?,
        };
        let shape = check_kind(table, kind).and_then(|()| definition.shape());
        let refused = |what| format!("table {}: {what}", table.name);
        shape.map_err(|what| Error::new(ErrorKind::Mismatch, refused(what)))
    }
}

/// Runs a query for the definition of a table.
async fn describe<T>(
    database: &Database,
    table: &Table,
    select: &'static str,
    read: impl Fn(&MySqlRow) -> Result<T, sqlx::Error>,
) -> Result<Vec<T>, sqlx::Error> {
    let (schema, name) = schema_and_name(&table.name);
    let query = || sqlx::query(select).bind(schema).bind(name);
    database.fetch_each(query, read).await
}

/// Returns the type and the engine of the table if it exists.
async fn kind(
    database: &Database,
    table: &Table,
) -> Result<Option<(String, Option<String>)>, sqlx::Error> {
    const KIND: &str = "SELECT CAST(TABLE_TYPE AS CHAR), CAST(ENGINE AS CHAR) FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?";
    let kind = |row: &MySqlRow| Ok((row.try_get(0)?, row.try_get(1)?));
    Ok(describe(database, table, KIND, kind).await?.pop())
}

async fn columns(database: &Database, table: &Table) -> Result<Vec<Column>, sqlx::Error> {
    // without a default, MySQL has NULL, and MariaDB has the word NULL for a nullable column;
    // DEFAULT_GENERATED is an ordinary column whose default is an expression
    const COLUMNS: &str = "SELECT CAST(COLUMN_NAME AS CHAR), CAST(LOWER(DATA_TYPE) AS CHAR), \
         CAST(COALESCE(CHARACTER_SET_NAME, '') AS CHAR), CAST(COALESCE(COLLATION_NAME, '') AS CHAR), \
         CAST(COALESCE(CHARACTER_MAXIMUM_LENGTH, 0) AS SIGNED), LOWER(COLUMN_TYPE) LIKE '%unsigned%', \
         IS_NULLABLE = 'YES', COALESCE(COLUMN_DEFAULT <> 'NULL', 0), LOWER(EXTRA) LIKE '%auto_increment%', \
         LOWER(EXTRA) LIKE '%virtual generated%' OR LOWER(EXTRA) LIKE '%stored generated%' \
         FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?";
    let column = |row: &MySqlRow| {
        let is = |index| row.try_get::<i64, usize>(index).map(|is| is != 0);
        Ok(Column {
            name: row.try_get::<String, _>(0)?.to_lowercase(),
            data_type: row.try_get(1)?,
            charset: row.try_get(2)?,
            collation: row.try_get(3)?,
            length: row.try_get(4)?,
            unsigned: is(5)?,
            nullable: is(6)?,
            has_default: is(7)?,
            auto_increment: is(8)?,
            generated: is(9)?,
        })
    };
    describe(database, table, COLUMNS, column).await
}

async fn uniques(database: &Database, table: &Table) -> Result<Vec<Unique>, sqlx::Error> {
    const COLUMNS: &str = "SELECT CAST(INDEX_NAME AS CHAR), \
         CAST(IF(SUB_PART IS NULL, COLUMN_NAME, NULL) AS CHAR) FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ? AND NON_UNIQUE = 0";
    let column = |row: &MySqlRow| Ok((row.try_get(0)?, row.try_get::<Option<String>, _>(1)?));
    let mut uniques = BTreeMap::<String, Vec<Option<String>>>::new();
    for (name, column) in describe(database, table, COLUMNS, column).await? {
        let column = column.map(|column| column.to_lowercase());
        uniques.entry(name).or_default().push(column);
    }
    let sorted = |(name, mut columns): (String, Vec<_>)| {
        columns.sort();
        Unique { name, columns }
    };
    Ok(uniques.into_iter().map(sorted).collect())
}

fn check_kind(table: &Table, kind: Option<(String, Option<String>)>) -> Result<(), String> {
    let Some((kind, engine)) = kind else {
        let advice = match table.missing {
            Missing::Insert => format!(". To create it: {}", creation(table)),
            Missing::Reject => String::new(),
        };
        return Err(format!(
            "does not exist, or this user may not see it{advice}"
        ));
    };
    if kind != "BASE TABLE" {
        return Err(format!("is a {kind}, not a plain table"));
    }
    let engine = engine.unwrap_or_else(|| "unknown".to_owned());
    if !engine.eq_ignore_ascii_case("InnoDB") {
        return Err(format!(
            "its engine is {engine}, not InnoDB: rows could not be rolled back"
        ));
    }
    Ok(())
}

/// Returns a statement that creates a table of this description.
fn creation(table: &Table) -> String {
    let kind = |kind| match kind {
        KeyType::Unsigned => "BIGINT UNSIGNED",
        KeyType::Signed => "BIGINT",
        KeyType::Date => "DATE",
        KeyType::Text => "VARBINARY(255)",
        KeyType::Char => "CHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        KeyType::Uuid => "BINARY(16)",
    };
    let columns: String = table
        .keys
        .iter()
        .map(|key| format!("{} {} NOT NULL, ", quoted(&key.name), kind(key.kind)))
        .collect();
    let keys: Vec<_> = table.keys.iter().map(|key| quoted(&key.name)).collect();
    let (name, value) = (table_name(&table.name), quoted(&table.value));
    format!(
        "CREATE TABLE {name} ({columns}{value} BIGINT NOT NULL, PRIMARY KEY ({}))",
        keys.join(", ")
    )
}

impl Definition<'_> {
    /// Returns the table's shape, or the reason why counts could get lost in it.
    fn shape(&self) -> Result<Shape, String> {
        let keys = self.table.keys.iter();
        let keys = keys.map(|key| self.column(&key.name)?.storage(key.kind));
        let keys = keys.collect::<Result<_, _>>()?;
        let value = self.column(&self.table.value)?;
        if !value.is_integer() {
            return Err(format!(
                "value column {} is {}, not an integer",
                value.name, value.data_type
            ));
        }
        if value.generated {
            return Err(format!("value column {} is generated", value.name));
        }
        let index = self.unique_key()?;
        if self.table.missing == Missing::Insert {
            self.check_inserts()?;
            self.check_other_uniques()?;
        }
        Ok(Shape {
            index,
            keys,
            unsigned: value.unsigned,
            nullable: value.nullable,
        })
    }

    fn column(&self, name: &str) -> Result<&Column, String> {
        let lower = name.to_lowercase();
        let column = self.columns.iter().find(|column| column.name == lower);
        column.ok_or_else(|| format!("has no column {name}"))
    }

    /// Returns the names of the key columns, sorted.
    fn keys(&self) -> Vec<Option<String>> {
        let names = self.table.keys.iter().map(|key| key.name.to_lowercase());
        let mut names: Vec<_> = names.map(Some).collect();
        names.sort();
        names
    }

    /// Returns the name of the unique key of exactly the key columns, the primary key if there are
    /// several.
    fn unique_key(&self) -> Result<String, String> {
        let keys = self.keys();
        let exact = self.uniques.iter().filter(|unique| unique.columns == keys);
        let found = exact.min_by_key(|unique| unique.name != "PRIMARY");
        found.map(|unique| unique.name.clone()).ok_or_else(|| {
            let names: Vec<_> = self
                .table
                .keys
                .iter()
                .map(|key| key.name.as_str())
                .collect();
            format!(
                "no primary or unique key is of exactly the key columns ({}), each in full",
                names.join(", ")
            )
        })
    }

    /// Refuses a table on which every insert would fail.
    fn check_inserts(&self) -> Result<(), String> {
        let (keys, value) = (self.keys(), self.table.value.to_lowercase());
        for column in &self.columns {
            let name = &column.name;
            let is_key = keys.iter().flatten().any(|key| key == name);
            if is_key && column.generated {
                return Err(format!(
                    "key column {name} is generated, no row could be inserted"
                ));
            }
            let filled =
                column.nullable || column.has_default || column.auto_increment || column.generated;
            if !is_key && *name != value && !filled {
                return Err(format!(
                    "column {name} is NOT NULL without a default, no row could be inserted"
                ));
            }
        }
        Ok(())
    }

    /// Refuses a further unique key that an inserted row could violate: ON DUPLICATE KEY UPDATE
    /// would then count on the row with that key, which is another counter's.
    ///
    /// A key is harmless if it includes all key columns (a row with that key also has our key), or
    /// a column that is NULL or newly numbered in an inserted row.
    fn check_other_uniques(&self) -> Result<(), String> {
        let (keys, value) = (self.keys(), Some(self.table.value.to_lowercase()));
        let never_clashes = |name: &Option<String>| {
            let is_written = *name == value || keys.contains(name);
            let column = self.columns.iter().find(|column| {
                Some(&column.name) == name.as_ref()
                    && (column.auto_increment
                        || (column.nullable && !column.has_default && !column.generated))
            });
            !is_written && column.is_some()
        };
        let is_harmless = |unique: &&Unique| {
            keys.iter().all(|key| unique.columns.contains(key))
                || unique.columns.iter().any(never_clashes)
        };
        match self.uniques.iter().find(|unique| !is_harmless(unique)) {
            None => Ok(()),
            Some(unique) => Err(format!(
                "an inserted row could violate unique key {}, and the delta would count on another row",
                unique.name
            )),
        }
    }
}

impl Column {
    fn is_integer(&self) -> bool {
        matches!(
            self.data_type.as_str(),
            "tinyint" | "smallint" | "mediumint" | "int" | "bigint"
        )
    }

    /// Returns the storage of keys of that type in the column, or the reason why they do not fit.
    fn storage(&self, kind: KeyType) -> Result<Storage, String> {
        let characters = || Storage::Characters {
            charset: self.charset.clone(),
            collation: self.collation.clone(),
        };
        let exact = |collations: &[&str], needed: &str| match &*self.collation {
            collation if collations.contains(&collation) => Ok(characters()),
            collation => Err(format!(
                "key column {} has collation {collation}, under which different ids can be one row; needed is {needed}",
                self.name
            )),
        };
        let needed = match (kind, self.data_type.as_str()) {
            (KeyType::Unsigned, _) if self.is_integer() => return Ok(Storage::Plain),
            (KeyType::Unsigned, _) => "an integer",
            (KeyType::Signed, _) if self.is_integer() && !self.unsigned => {
                return Ok(Storage::Plain);
            }
            (KeyType::Signed, _) => "a signed integer",
            (KeyType::Date, "date") => return Ok(Storage::Plain),
            (KeyType::Date, _) => "DATE",
            (KeyType::Text, "varbinary") => return Ok(Storage::Bytes),
            (KeyType::Text, "varchar") => {
                let needed = "VARBINARY, or collation utf8mb4_0900_bin (MySQL) or utf8mb4_nopad_bin (MariaDB)";
                return exact(&EXACT_COLLATIONS, needed);
            }
            // CHAR drops and BINARY adds trailing characters, whatever the collation
            (KeyType::Text, "char") => "VARBINARY or VARCHAR, or KeyType::Char",
            (KeyType::Text, _) => "VARBINARY or VARCHAR",
            (KeyType::Char, "char") => {
                return exact(&EXACT_CHAR_COLLATIONS, "collation utf8mb4_bin");
            }
            (KeyType::Char, _) => "CHAR",
            (KeyType::Uuid, "uuid") => return Ok(Storage::Uuid),
            (KeyType::Uuid, "binary") if self.length == 16 => return Ok(Storage::UuidBytes),
            // no collation makes two UUIDs equal
            (KeyType::Uuid, "char" | "varchar") if self.length >= 36 => return Ok(characters()),
            (KeyType::Uuid, _) => "BINARY(16), UUID (MariaDB), or CHAR or VARCHAR of at least 36",
        };
        Err(format!(
            "key column {} is {}, needed for {kind:?} is {needed}",
            self.name, self.data_type
        ))
    }
}

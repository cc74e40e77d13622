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
pub(super) struct Shape {
    /// The primary or unique key of exactly the key columns.
    pub(super) index: String,
    /// The storage of each key column.
    pub(super) keys: Vec<Storage>,
    /// `true` if the value column refuses negative numbers.
    pub(super) unsigned: bool,
    /// `true` if the value column may be NULL, which counts as 0.
    pub(super) nullable: bool,
}

/// The storage of a key column's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Storage {
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
    name: String,
    /// `int`, `varchar` ...
    data_type: String,
    unsigned: bool,
    nullable: bool,
    has_default: bool,
    charset: String,
    collation: String,
    /// The length in characters, or in bytes for a type without characters.
    length: i64,
    auto_increment: bool,
    generated: bool,
}

struct Unique {
    name: String,
    /// The columns in lower case, sorted; `None` for an expression or the prefix of a column.
    columns: Vec<Option<String>>,
}

impl Shape {
    /// Returns the shape of counterfoil's own table.
    pub(super) fn own() -> Self {
        Shape {
            index: "PRIMARY".to_owned(),
            keys: vec![Storage::Plain, Storage::Bytes],
            unsigned: false,
            nullable: false,
        }
    }

    /// Reads the table's definition and checks that it matches the description.
    pub(super) async fn learn(database: &Database, table: &Table) -> Result<Self> {
        check_engine(database, table).await?;
        let columns = columns(database, table).await?;
        let uniques = uniques(database, table).await?;

        let keys = table
            .keys
            .iter()
            .map(|key| key_storage(table, find(table, &columns, &key.name)?, key.kind));
        let keys = keys.collect::<Result<_>>()?;
        let value = find(table, &columns, &table.value)?;
        check_value(table, value)?;
        let index = unique_key(table, &uniques)?;
        if table.missing == Missing::Insert {
            check_inserts(table, &columns)?;
            check_other_uniques(table, &columns, &uniques)?;
        }
        Ok(Shape {
            index,
            keys,
            unsigned: value.unsigned,
            nullable: value.nullable,
        })
    }
}

fn refuse(table: &Table, what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Mismatch, format!("table {}: {what}", table.name))
}

async fn check_engine(database: &Database, table: &Table) -> Result<()> {
    let text = "SELECT CAST(TABLE_TYPE AS CHAR), CAST(ENGINE AS CHAR) FROM information_schema.TABLES \
                WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?";
    let rows = describe(database, table, text).await?;
    let Some(row) = rows.first() else {
        let advice = match table.missing {
            Missing::Insert => format!(". This would do: {}", creation(table)),
            Missing::Reject => String::new(),
        };
        return Err(refuse(
            table,
            format!("does not exist, or this user may not see it{advice}"),
        ));
    };
    let (kind, engine): (String, Option<String>) = (get(row, 0)?, get(row, 1)?);
    if kind != "BASE TABLE" {
        return Err(refuse(table, format!("is a {kind}, not a plain table")));
    }
    match engine {
        Some(engine) if engine.eq_ignore_ascii_case("InnoDB") => Ok(()),
        engine => Err(refuse(
            table,
            format!(
                "its engine is {}, not InnoDB: rows could not be rolled back",
                engine.as_deref().unwrap_or("unknown")
            ),
        )),
    }
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

async fn columns(database: &Database, table: &Table) -> Result<Vec<Column>> {
    let text = "SELECT CAST(COLUMN_NAME AS CHAR), CAST(DATA_TYPE AS CHAR), CAST(COLUMN_TYPE AS CHAR), \
                CAST(IS_NULLABLE AS CHAR), CAST(COALESCE(COLUMN_DEFAULT <> 'NULL', 0) AS SIGNED), \
                CAST(COALESCE(COLLATION_NAME, '') AS CHAR), CAST(EXTRA AS CHAR), \
                CAST(COALESCE(CHARACTER_SET_NAME, '') AS CHAR), CAST(COALESCE(CHARACTER_MAXIMUM_LENGTH, 0) AS SIGNED) \
                FROM information_schema.COLUMNS \
                WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?";
    // without a default, MySQL has NULL, and MariaDB has the word NULL for a nullable column
    let column = |row: &MySqlRow| {
        let (kind, nullable, extra): (String, String, String) =
            (get(row, 2)?, get(row, 3)?, get(row, 6)?);
        let extra = extra.to_ascii_uppercase();
        Ok(Column {
            name: get(row, 0)?,
            data_type: get::<String>(row, 1)?.to_ascii_lowercase(),
            unsigned: kind.to_ascii_lowercase().contains("unsigned"),
            nullable: nullable == "YES",
            has_default: get::<i64>(row, 4)? != 0,
            charset: get(row, 7)?,
            collation: get(row, 5)?,
            length: get(row, 8)?,
            auto_increment: extra.contains("AUTO_INCREMENT"),
            // DEFAULT_GENERATED is an ordinary column whose default is an expression
            generated: extra.contains("VIRTUAL GENERATED") || extra.contains("STORED GENERATED"),
        })
    };
    describe(database, table, text)
        .await?
        .iter()
        .map(column)
        .collect()
}

async fn uniques(database: &Database, table: &Table) -> Result<Vec<Unique>> {
    let text = "SELECT CAST(INDEX_NAME AS CHAR), CAST(COLUMN_NAME AS CHAR), CAST(SUB_PART IS NOT NULL AS SIGNED) \
                FROM information_schema.STATISTICS \
                WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ? AND NON_UNIQUE = 0";
    let mut uniques = BTreeMap::<String, Vec<Option<String>>>::new();
    for row in describe(database, table, text).await? {
        let (name, column, cut): (String, Option<String>, i64) =
            (get(&row, 0)?, get(&row, 1)?, get(&row, 2)?);
        let column = column
            .filter(|_| cut == 0)
            .map(|column| column.to_lowercase());
        uniques.entry(name).or_default().push(column);
    }
    let sorted = |(name, mut columns): (String, Vec<_>)| {
        columns.sort();
        Unique { name, columns }
    };
    Ok(uniques.into_iter().map(sorted).collect())
}

async fn describe(database: &Database, table: &Table, text: &'static str) -> Result<Vec<MySqlRow>> {
    let (schema, name) = schema_and_name(&table.name);
    let rows = database
        .fetch(|| sqlx::query(text).bind(schema).bind(name))
        .await;
    rows.map_err(store(UNREAD))
}

const UNREAD: &str = "a table's definition was not read";

fn get<'r, T>(row: &'r MySqlRow, index: usize) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::MySql> + sqlx::Type<sqlx::MySql>,
{
    row.try_get(index).map_err(store(UNREAD))
}

fn find<'c>(table: &Table, columns: &'c [Column], name: &str) -> Result<&'c Column> {
    let same = |column: &&Column| column.name.to_lowercase() == name.to_lowercase();
    columns
        .iter()
        .find(same)
        .ok_or_else(|| refuse(table, format!("has no column {name}")))
}

fn is_integer(column: &Column) -> bool {
    matches!(
        column.data_type.as_str(),
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint"
    )
}

fn key_storage(table: &Table, column: &Column, kind: KeyType) -> Result<Storage> {
    let wrong = |needed: &str| {
        let name = &column.name;
        Err(refuse(
            table,
            format!(
                "key column {name} is {}, needed for {kind:?} is {needed}",
                column.data_type
            ),
        ))
    };
    let exact = |collations: &[&str], needed: &str| {
        if collations.contains(&column.collation.as_str()) {
            Ok(characters(column))
        } else {
            Err(refuse(
                table,
                format!(
                    "key column {} has collation {}, under which different ids can be one row; needed is {needed}",
                    column.name, column.collation
                ),
            ))
        }
    };
    match (kind, column.data_type.as_str()) {
        (KeyType::Unsigned, _) if is_integer(column) => Ok(Storage::Plain),
        (KeyType::Unsigned, _) => wrong("an integer"),
        (KeyType::Signed, _) if is_integer(column) && !column.unsigned => Ok(Storage::Plain),
        (KeyType::Signed, _) => wrong("a signed integer"),
        (KeyType::Date, "date") => Ok(Storage::Plain),
        (KeyType::Date, _) => wrong("DATE"),
        (KeyType::Text, "varbinary") => Ok(Storage::Bytes),
        (KeyType::Text, "varchar") => exact(
            &EXACT_COLLATIONS,
            "VARBINARY, or collation utf8mb4_0900_bin (MySQL) or utf8mb4_nopad_bin (MariaDB)",
        ),
        // CHAR drops and BINARY adds trailing characters, whatever the collation
        (KeyType::Text, "char") => wrong("VARBINARY or VARCHAR, or KeyType::Char"),
        (KeyType::Text, _) => wrong("VARBINARY or VARCHAR"),
        (KeyType::Char, "char") => exact(&EXACT_CHAR_COLLATIONS, "collation utf8mb4_bin"),
        (KeyType::Char, _) => wrong("CHAR"),
        (KeyType::Uuid, "uuid") => Ok(Storage::Uuid),
        (KeyType::Uuid, "binary") if column.length == 16 => Ok(Storage::UuidBytes),
        // no collation makes two UUIDs equal
        (KeyType::Uuid, "char" | "varchar") if column.length >= 36 => Ok(characters(column)),
        (KeyType::Uuid, _) => {
            wrong("BINARY(16), UUID (MariaDB), or CHAR or VARCHAR of at least 36")
        }
    }
}

fn characters(column: &Column) -> Storage {
    Storage::Characters {
        charset: column.charset.clone(),
        collation: column.collation.clone(),
    }
}

fn check_value(table: &Table, value: &Column) -> Result<()> {
    if !is_integer(value) {
        return Err(refuse(
            table,
            format!(
                "value column {} is {}, not an integer",
                value.name, value.data_type
            ),
        ));
    }
    if value.generated {
        return Err(refuse(
            table,
            format!("value column {} is generated", value.name),
        ));
    }
    Ok(())
}

fn key_names(table: &Table) -> Vec<Option<String>> {
    let mut names: Vec<_> = table
        .keys
        .iter()
        .map(|key| Some(key.name.to_lowercase()))
        .collect();
    names.sort();
    names
}

/// Returns the name of the unique key of exactly the key columns, the primary key if there are
/// several.
fn unique_key(table: &Table, uniques: &[Unique]) -> Result<String> {
    let keys = key_names(table);
    let exact = uniques.iter().filter(|unique| unique.columns == keys);
    if let Some(unique) = exact.min_by_key(|unique| unique.name != "PRIMARY") {
        return Ok(unique.name.clone());
    }
    let names: Vec<_> = table.keys.iter().map(|key| key.name.as_str()).collect();
    Err(refuse(
        table,
        format!(
            "no primary or unique key is of exactly the key columns ({}), each in full",
            names.join(", ")
        ),
    ))
}

/// Refuses a table on which every insert would fail.
fn check_inserts(table: &Table, columns: &[Column]) -> Result<()> {
    for column in columns {
        let ours = |name: &str| name.to_lowercase() == column.name.to_lowercase();
        let is_key = table.keys.iter().any(|key| ours(&key.name));
        if is_key && column.generated {
            return Err(refuse(
                table,
                format!(
                    "key column {} is generated, no row could be inserted",
                    column.name
                ),
            ));
        }
        let filled =
            column.nullable || column.has_default || column.auto_increment || column.generated;
        if !is_key && !ours(&table.value) && !filled {
            return Err(refuse(
                table,
                format!(
                    "column {} is NOT NULL without a default, no row could be inserted",
                    column.name
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses a further unique key that an inserted row could violate: ON DUPLICATE KEY UPDATE would
/// then count on the row with that key, which is another counter's.
///
/// A key is harmless if it includes all key columns (a row with that key also has our key), or a
/// column that is NULL or newly numbered in an inserted row.
fn check_other_uniques(table: &Table, columns: &[Column], uniques: &[Unique]) -> Result<()> {
    let keys = key_names(table);
    let named = |name: &String| {
        table
            .keys
            .iter()
            .map(|key| &key.name)
            .chain([&table.value])
            .any(|ours| ours.to_lowercase() == *name)
    };
    let never_clashes = |name: &Option<String>| {
        let Some(name) = name.as_ref().filter(|name| !named(name)) else {
            return false;
        };
        let column = columns
            .iter()
            .find(|column| column.name.to_lowercase() == *name);
        column.is_some_and(|column| {
            column.auto_increment || (column.nullable && !column.has_default && !column.generated)
        })
    };
    let harmless = |unique: &&Unique| {
        keys.iter().all(|key| unique.columns.contains(key))
            || unique.columns.iter().any(never_clashes)
    };
    match uniques.iter().find(|unique| !harmless(unique)) {
        None => Ok(()),
        Some(unique) => Err(refuse(
            table,
            format!(
                "an inserted row could run into unique key {}, and the delta would count on another row",
                unique.name
            ),
        )),
    }
}

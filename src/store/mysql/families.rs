//! The registered families. Each has the settings that every process must agree on, and all
//! settings of the process that opened it last.

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row};

use super::fault::store;
use super::session::Database;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::store::Registered;

/// The columns that hold the settings, and [`Family::identity`] in its order.
const COLUMNS: &str =
    "number, settings, kind, CAST(partitions AS CHAR), wide, durability, target, shape";
/// The index of the identity among them.
const IDENTITY: usize = 2;
const UNREAD: &str = "families were not read";

/// Registers the family unless it is registered, and returns its number.
pub(super) async fn register(database: &Database, family: &Family) -> Result<u64> {
    if let Some(number) = find(database, family).await? {
        return Ok(number);
    }
    insert(database, family)
        .await
        .map_err(store("a family was not registered"))?;
    // another process may have been first, with another configuration
    let absent = || {
        Error::new(
            ErrorKind::Store,
            format!("{family} was registered, but is missing"),
        )
    };
    find(database, family).await?.ok_or_else(absent)
}

/// Inserts the family. An existing row stays unchanged.
async fn insert(database: &Database, family: &Family) -> Result<(), sqlx::Error> {
    const INSERT: &str = "INSERT INTO counterfoil_families \
         (namespace, name, settings, kind, partitions, wide, durability, target, shape) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE number = number";
    let mut query = sqlx::query(INSERT)
        .bind(family.namespace.clone().into_bytes())
        .bind(family.name.clone().into_bytes());
    query = query.bind(family.settings());
    for (_, value) in family.identity() {
        query = query.bind(value);
    }
    database.execute(query).await.map(drop)
}

/// Returns the family's number, and writes this process's settings beside its identity.
async fn find(database: &Database, family: &Family) -> Result<Option<u64>> {
    let text =
        format!("SELECT {COLUMNS} FROM counterfoil_families WHERE namespace = ? AND name = ?");
    let query = || {
        sqlx::query(AssertSqlSafe(text.clone()))
            .bind(family.namespace.clone().into_bytes())
            .bind(family.name.clone().into_bytes())
    };
    let mut rows = database.fetch(query).await.map_err(store(UNREAD))?;
    let Some(row) = rows.pop() else {
        return Ok(None);
    };
    if let Some((setting, known, ours)) = difference(&row, family).map_err(store(UNREAD))? {
        return Err(Error::new(
            ErrorKind::Mismatch,
            format!(
                "{family}: {setting} is {known:?} in the database, but this process has {ours:?}"
            ),
        ));
    }
    let (number, known) = numbered(&row).map_err(store(UNREAD))?;
    let settings = family.settings();
    if known != settings {
        let update = sqlx::query("UPDATE counterfoil_families SET settings = ? WHERE number = ?");
        let updated = database.execute(update.bind(settings).bind(number)).await;
        updated.map_err(store(format!("{family}: its settings were not written")))?;
    }
    Ok(Some(number))
}

fn numbered(row: &MySqlRow) -> Result<(u64, String), sqlx::Error> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// Returns the setting of the family's identity in which the row differs, with both values.
fn difference(
    row: &MySqlRow,
    family: &Family,
) -> Result<Option<(&'static str, String, String)>, sqlx::Error> {
    for (index, (setting, ours)) in family.identity().into_iter().enumerate() {
        let known: String = row.try_get(IDENTITY + index)?;
        if known != ours {
            return Ok(Some((setting, known, ours)));
        }
    }
    Ok(None)
}

/// Replaces the configuration by `after` if it is still `before`.
pub(super) async fn reconfigure(
    database: &Database,
    before: &Family,
    after: &Family,
) -> Result<()> {
    const UPDATE: &str = "UPDATE counterfoil_families \
         SET settings = ?, kind = ?, partitions = ?, wide = ?, durability = ?, target = ?, shape = ? \
         WHERE namespace = ? AND name = ? \
         AND kind = ? AND partitions = ? AND wide = ? AND durability = ? AND target = ? AND shape = ?";
    let identity = |family: &Family| family.identity().map(|(_, value)| value);
    let mut query = sqlx::query(UPDATE).bind(after.settings());
    for value in identity(after) {
        query = query.bind(value);
    }
    query = query
        .bind(after.namespace.clone().into_bytes())
        .bind(after.name.clone().into_bytes());
    for value in identity(before) {
        query = query.bind(value);
    }
    let updated = database.execute(query).await;
    match updated.map_err(store("a family was not changed"))? {
        0 => Err(Error::new(
            ErrorKind::Mismatch,
            format!("{after} was changed by another process at the same time"),
        )),
        _ => Ok(()),
    }
}

/// Returns all families, each with the settings of the process that opened it last, or the error in
/// them.
pub(super) async fn list(database: &Database) -> Result<Vec<Result<Registered>>> {
    let text =
        format!("SELECT {COLUMNS}, namespace, name FROM counterfoil_families ORDER BY number");
    let query = || sqlx::query(AssertSqlSafe(text.clone()));
    let rows = database.fetch(query).await.map_err(store(UNREAD))?;
    rows.iter()
        .map(|row| listed(row).map_err(store(UNREAD)))
        .collect()
}

fn listed(row: &MySqlRow) -> Result<Result<Registered>, sqlx::Error> {
    let text = |index| {
        row.try_get(index)
            .map(|bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned())
    };
    let after = IDENTITY + 6;
    let (namespace, name) = (text(after)?, text(after + 1)?);
    let (number, settings) = numbered(row)?;
    let family = match Family::from_settings(&namespace, &name, &settings) {
        Ok(family) => family,
        Err(error) => return Ok(Err(error)),
    };
    if let Some((setting, known, written)) = difference(row, &family)? {
        let wrong = format!(
            "{namespace}/{name}: {setting} is {known:?}, and {written:?} in its settings: open it once"
        );
        return Ok(Err(Error::new(ErrorKind::Mismatch, wrong)));
    }
    Ok(Ok(Registered { family, number }))
}

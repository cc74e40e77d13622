//! The registered families. Each has the settings that every process must agree on, and all
//! settings of the process that opened it last.

use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, Row};

use super::session::{Database, Session};
use super::statement::{Statement, text};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::scripts::partition::salt;
use crate::store::Registered;

/// A family as it is registered.
struct Known {
    number: u64,
    namespace: String,
    name: String,
    settings: String,
    database: String,
    state: String,
    /// The values of [`Family::identity`].
    identity: Vec<String>,
}

impl FromRow<'_, MySqlRow> for Known {
    fn from_row(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        Ok(Known {
            number: row.try_get(0)?,
            namespace: text(row.try_get(1)?),
            name: text(row.try_get(2)?),
            settings: row.try_get(3)?,
            database: row.try_get(4)?,
            state: row.try_get(5)?,
            identity: (6..12)
                .map(|index| row.try_get(index))
                .collect::<Result<_, _>>()?,
        })
    }
}

impl Known {
    /// Returns the setting of the identity in which the family differs, with both values.
    fn difference(&self, family: &Family) -> Option<(&'static str, &str, String)> {
        let settings = self.identity.iter().zip(family.identity());
        let mut settings = settings.map(|(known, (setting, value))| (setting, &**known, value));
        settings.find(|(_, known, value)| known != value)
    }

    /// Refuses a family that differs in its identity.
    fn refuse_difference(&self, family: &Family) -> Result<()> {
        let Some((setting, known, ours)) = self.difference(family) else {
            return Ok(());
        };
        Err(Error::mismatch(format!(
            "{family}: {setting} is {known:?} in the database, but this process has {ours:?}"
        )))
    }
}

/// Returns the statement that reads the registered families that meet a condition.
fn select(condition: &str) -> Statement {
    Statement::new(format!(
        "SELECT number, namespace, name, settings, database_id, state, kind, CAST(partitions AS CHAR), wide, durability, \
         target, shape FROM counterfoil_families {condition}"
    ))
}

const UNREAD: &str = "families were not read";

/// The condition that leaves out families that were removed.
pub(super) const NOT_REMOVED: &str = "state <> 'removed'";

/// Returns the query for the holder of a number, without a row if no family uses it. The family's
/// row stays locked, so that it is not removed before the transaction ends.
///
/// A removed family leaves its number to a later one of its name, whose hits may go to another
/// table.
pub(super) fn holder_of(number: &str) -> String {
    format!(
        "SELECT CONCAT(f.namespace, '/', f.name, '/', f.database_id, '/', f.kind, '/', f.target) \
         FROM counterfoil_families AS f FORCE INDEX (PRIMARY) \
         WHERE f.number = {number} AND f.state = 'used' LOCK IN SHARE MODE"
    )
}

/// Returns whether that is the holder which this process knows under the family's number.
pub(super) fn is_holder(registered: &Registered, holder: &[u8]) -> bool {
    let Registered {
        family, database, ..
    } = registered;
    let [(_, kind), _, _, _, (_, table), _] = family.identity();
    format!("{family}/{database}/{kind}/{table}").as_bytes() == holder
}

/// Returns the error for a family that the database does not have under its number.
pub(super) fn not_registered(Registered { family, number, .. }: &Registered) -> sqlx::Error {
    let why = "it was removed or registered anew, its number of partitions was changed, or the database lost its registration";
    let what = format!("{family} is not registered as number {number}: {why}");
    sqlx::Error::Configuration(Error::mismatch(what).into())
}

/// Refuses a family that the database does not have under its number and with its partitions, and
/// otherwise locks its row against a removal.
pub(super) async fn refuse_unregistered(
    transaction: &mut Session,
    registered: &Registered,
) -> Result<(), sqlx::Error> {
    // a process with a former number of partitions does not see all hits
    let holder = Statement::new(holder_of("? AND f.partitions = ?"));
    let holder = holder.bind(registered.number);
    let holder = holder.bind(registered.family.partitions);
    let holder: Vec<(Vec<u8>,)> = transaction.fetch(holder).await?;
    let mut holder = holder.iter();
    if holder.any(|(holder,)| is_holder(registered, holder)) {
        Ok(())
    } else {
        Err(not_registered(registered))
    }
}

/// Registers the family unless it is registered. One that was removed is registered anew, except
/// `again`.
pub(super) async fn register(
    database: &Database,
    family: &Family,
    again: bool,
) -> Result<Registered> {
    // an existing row stays unchanged
    const INSERT: &str = "INSERT INTO counterfoil_families \
         (namespace, name, settings, database_id, kind, partitions, wide, durability, target, shape) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE number = number";
    if let Some(registered) = find(database, family, again).await? {
        return Ok(registered);
    }
    let insert = bind_name(Statement::new(INSERT), family).bind(family.settings());
    let insert = bind_identity(insert.bind(database_id(database).await?), family);
    database
        .transact("a family was not registered", insert)
        .await?;
    // another process may have been first, with another configuration
    let absent = || Error::store(format!("{family} was registered, but is missing"));
    find(database, family, again).await?.ok_or_else(absent)
}

fn bind_name(statement: Statement, family: &Family) -> Statement {
    statement
        .bind(family.namespace.as_bytes())
        .bind(family.name.as_bytes())
}

fn bind_identity(statement: Statement, family: &Family) -> Statement {
    let identity = family.identity().into_iter();
    identity.fold(statement, |statement, (_, value)| statement.bind(value))
}

/// Returns the id of the database, or a new one if no family is registered. Two processes that both
/// make one at the same time register families with two ids, which is harmless: only the ids of one
/// family are compared.
async fn database_id(database: &Database) -> Result<String> {
    const FIRST: &str = "SELECT database_id FROM counterfoil_families ORDER BY number LIMIT 1";
    let ids: Vec<(String,)> = database.read(UNREAD, Statement::new(FIRST)).await?;
    match ids.into_iter().next() {
        Some((id,)) => Ok(id),
        None => salt(),
    }
}

/// Returns the family as registered, and writes this process's settings beside its identity.
async fn find(database: &Database, family: &Family, again: bool) -> Result<Option<Registered>> {
    let by_name = bind_name(select("WHERE namespace = ? AND name = ?"), family);
    let read = || database.read::<Known>(UNREAD, by_name.clone());
    let mut found = read().await?.pop();
    if found.as_ref().is_some_and(|known| known.state == "removed") {
        if again {
            return Err(Error::mismatch(format!("{family} was removed")));
        }
        take_over(database, family).await?;
        found = read().await?.pop();
    }
    let Some(known) = found else {
        return Ok(None);
    };
    if known.state != "used" {
        let why = "its removal was interrupted; repeat it (`counterfoil family remove`)";
        return Err(Error::mismatch(format!("{family}: {why}")));
    }
    known.refuse_difference(family)?;
    let settings = family.settings();
    if known.settings != settings {
        const UPDATE: &str =
            "UPDATE counterfoil_families SET settings = ? WHERE number = ? AND settings = ?";
        let update = Statement::new(UPDATE).bind(settings).bind(known.number);
        let update = update.bind(&*known.settings);
        let failed = format!("{family}: its settings were not written");
        if database.transact(failed, update).await? == 0 {
            // another process was first, and may have changed the identity
            let now = read().await?;
            now.iter()
                .try_for_each(|now| now.refuse_difference(family))?;
        }
    }
    Ok(Some(Registered {
        family: family.clone(),
        number: known.number,
        database: known.database.clone(),
    }))
}

/// Registers a family under the number of a removed one of its name, unless another process did.
async fn take_over(database: &Database, family: &Family) -> Result<()> {
    let update = configure(family, "state = 'removed'");
    let failed = "a family was not registered";
    database.transact(failed, update).await.map(drop)
}

/// Replaces the configuration by `after` if it is still `before`.
pub(super) async fn reconfigure(
    database: &Database,
    before: &Family,
    after: &Family,
) -> Result<()> {
    const IS_BEFORE: &str = "state = 'used' AND kind = ? AND partitions = ? AND wide = ? \
         AND durability = ? AND target = ? AND shape = ?";
    let update = bind_identity(configure(after, IS_BEFORE), before);
    let failed = "a family was not changed";
    match database.transact(failed, update).await? {
        0 => Err(Error::mismatch(format!(
            "{after} was changed by another process at the same time"
        ))),
        _ => Ok(()),
    }
}

/// Returns the statement that writes the configuration of a family that meets a condition.
fn configure(family: &Family, condition: &str) -> Statement {
    let update = Statement::new(format!(
        "UPDATE counterfoil_families SET state = 'used', settings = ?, kind = ?, partitions = ?, wide = ?, \
         durability = ?, target = ?, shape = ? WHERE namespace = ? AND name = ? AND {condition}"
    ));
    let update = bind_identity(update.bind(family.settings()), family);
    bind_name(update, family)
}

/// Returns all families, each with the settings of the process that opened it last, or the error in
/// them.
pub(super) async fn list(database: &Database) -> Result<Vec<(String, Result<Registered>)>> {
    let select = select(&format!("WHERE {NOT_REMOVED} ORDER BY number"));
    let known = database.read::<Known>(UNREAD, select).await?;
    let listed = known.iter().map(|known| {
        let name = format!("{}/{}", known.namespace, known.name);
        (name, registered(known))
    });
    Ok(listed.collect())
}

fn registered(known: &Known) -> Result<Registered> {
    let family = Family::from_settings(&known.namespace, &known.name, &known.settings)?;
    if let Some((setting, known, written)) = known.difference(&family) {
        return Err(Error::mismatch(format!(
            "{family}: {setting} is {known:?}, and {written:?} in its settings: open it once"
        )));
    }
    Ok(Registered {
        family,
        number: known.number,
        database: known.database.clone(),
    })
}

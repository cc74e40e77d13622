//! The registered families. Each has the settings that every process must agree on, and all
//! settings of the process that opened it last.

use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, Row};

use super::fault;
use super::session::{Database, Session, UnitOfWork};
use super::statement::{Statement, text};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::scripts::random::random_name;
use crate::store::{FamilyNumber, Registration};

/// A family as it is registered.
struct FamilyRow {
    number: FamilyNumber,
    namespace: String,
    name: String,
    settings: String,
    database: String,
    state: String,
    /// The values of [`Family::identity`].
    identity: Vec<String>,
}

impl FromRow<'_, MySqlRow> for FamilyRow {
    fn from_row(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        Ok(FamilyRow {
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

impl FamilyRow {
    /// Returns the setting of the identity in which the family differs, with both values.
    fn difference(&self, family: &Family) -> Option<(&'static str, &str, String)> {
        self.identity
            .iter()
            .zip(family.identity())
            .map(|(known, (setting, value))| (setting, &**known, value))
            .find(|(_, known, value)| known != value)
    }

    /// Refuses a family that differs in its identity, or that is not in use.
    fn refuse_other(&self, family: &Family) -> Result<()> {
        let what = match &*self.state {
            "removed" => "was removed".to_owned(),
            "removing" => {
                "its removal was interrupted; repeat it (`counterfoil family remove`)".to_owned()
            }
            _ => match self.difference(family) {
                None => return Ok(()),
                Some((setting, known, ours)) => {
                    format!("{setting} is {known:?} in the database, but this process has {ours:?}")
                }
            },
        };
        Err(Error::mismatch(format!("{family}: {what}")))
    }

    fn registered(self, family: Family) -> Registration {
        Registration {
            family,
            number: self.number,
            database: self.database,
            columns: None,
        }
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
pub const NOT_REMOVED: &str = "state <> 'removed'";

/// The lock of a family's row against a removal.
pub const SHARED: &str = "LOCK IN SHARE MODE";

/// Returns the query for the holder of a number, without a row if no family uses it. The family's
/// row stays locked, so that it is not removed before the transaction ends.
///
/// A removed family leaves its number to a later one of its name, whose hits may go to another
/// table.
pub fn holder_of(number: &str, lock: &str) -> String {
    format!(
        "SELECT CONCAT(f.namespace, '/', f.name, '/', f.database_id, '/', f.kind, '/', f.target) \
         FROM counterfoil_families AS f FORCE INDEX (PRIMARY) \
         WHERE f.number = {number} AND f.state = 'used' {lock}"
    )
}

/// Returns whether that is the holder which this process knows under the family's number.
pub fn is_holder(registered: &Registration, holder: &[u8]) -> bool {
    let Registration {
        family, database, ..
    } = registered;
    let [(_, kind), _, _, _, (_, table), _] = family.identity();
    format!("{family}/{database}/{kind}/{table}").as_bytes() == holder
}

/// Returns the error for a family that the database does not have under its number.
fn unregistered(Registration { family, number, .. }: &Registration) -> Error {
    let why = "it was removed or registered anew, its number of partitions was changed, or the database lost its registration";
    Error::mismatch(format!(
        "{family} is not registered as number {number}: {why}"
    ))
}

/// Returns that error inside a transaction.
pub fn not_registered(registered: &Registration) -> sqlx::Error {
    fault::from_own(unregistered(registered))
}

/// The number of the family of a namespace and a name, which are parameters; 0 without one. A family that
/// was removed keeps its number.
pub const NUMBER: &str = "CAST(COALESCE((SELECT f.number FROM counterfoil_families AS f \
     WHERE f.namespace = ? AND f.name = ?), 0) AS UNSIGNED)";

/// Refuses a family that the database has under another number, or not at all.
pub async fn refuse_renumbered(database: &Database, registered: &Registration) -> Result<()> {
    let number = Statement::new(format!("SELECT {NUMBER}"));
    let (now,): (u64,) = database
        .read_one(UNREAD, bind_name(number, &registered.family))
        .await?;
    if now == registered.number.0 {
        Ok(())
    } else {
        Err(unregistered(registered))
    }
}

/// Refuses a family that the database does not have under its number and with its partitions, and
/// otherwise locks its row against a removal.
pub async fn refuse_unregistered(
    transaction: &mut Session,
    registered: &Registration,
    lock: &str,
) -> Result<(), sqlx::Error> {
    // a process with a former number of partitions does not see all hits, so what it writes is
    // refused
    let select = Statement::new(holder_of("? AND f.partitions = ?", lock))
        .bind(registered.number)
        .bind(registered.family.partitions);
    match transaction.fetch::<(Vec<u8>,)>(select).await?.pop() {
        Some((holder,)) if is_holder(registered, &holder) => Ok(()),
        _ => Err(not_registered(registered)),
    }
}

/// Registers the family unless it is registered. One that was removed is registered anew, except
/// `again`.
pub async fn register(database: &Database, family: &Family, again: bool) -> Result<Registration> {
    let mut rows: Vec<FamilyRow> = database.read(UNREAD, by_name(family, "")).await?;
    if let Some(known) = rows.pop()
        && (again || known.state != "removed")
    {
        known.refuse_other(family)?;
        if known.settings == family.settings() {
            return Ok(known.registered(family.clone()));
        }
    }
    let register = RegistrationTransaction {
        family: family.clone(),
        again,
    };
    database
        .transact(format!("{family} was not registered"), register)
        .await
}

/// A transaction that writes a family's row, with the settings of this process.
struct RegistrationTransaction {
    family: Family,
    again: bool,
}

impl UnitOfWork for RegistrationTransaction {
    type Output = Registration;

    async fn run(&self, transaction: &mut Session) -> Result<Registration, sqlx::Error> {
        const FIRST: &str = "SELECT database_id FROM counterfoil_families ORDER BY number LIMIT 1";
        // a duplicate key is a conflict with another process, after which this one finds its row
        const INSERT: &str = "INSERT INTO counterfoil_families \
             (namespace, name, settings, database_id, kind, partitions, wide, durability, target, shape) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        const UPDATE: &str = "UPDATE counterfoil_families SET settings = ? WHERE number = ?";
        let family = &self.family;
        let locked = by_name(family, "FOR UPDATE");
        let mut found = transaction.fetch::<FamilyRow>(locked.clone()).await?.pop();
        let write = match &found {
            None => {
                // Two processes that open the first families may each make an id for the database.
                // That is harmless, because an id is only compared with that in the keys of the
                // same family.
                let id = match transaction.fetch(Statement::new(FIRST)).await?.pop() {
                    Some((id,)) => id,
                    None => random_name().map_err(fault::from_own)?,
                };
                let insert = bind_name(Statement::new(INSERT), family)
                    .bind(family.settings())
                    .bind(id);
                Some(bind_identity(insert, family))
            }
            Some(known) if known.state == "removed" && !self.again => {
                Some(configure(family, "state = 'removed'"))
            }
            Some(_) => None,
        };
        if let Some(write) = write {
            transaction.execute(write).await?;
            found = transaction.fetch(locked).await?.pop();
        }
        let known = found.ok_or(sqlx::Error::RowNotFound)?;
        known.refuse_other(family).map_err(fault::from_own)?;
        if known.settings != family.settings() {
            let update = Statement::new(UPDATE)
                .bind(family.settings())
                .bind(known.number);
            transaction.execute(update).await?;
        }
        Ok(known.registered(family.clone()))
    }
}

fn by_name(family: &Family, lock: &str) -> Statement {
    bind_name(
        select(&format!("WHERE namespace = ? AND name = ? {lock}")),
        family,
    )
}

pub fn bind_name(statement: Statement, family: &Family) -> Statement {
    statement
        .bind(family.namespace.as_bytes())
        .bind(family.name.as_bytes())
}

fn bind_identity(statement: Statement, family: &Family) -> Statement {
    family
        .identity()
        .into_iter()
        .fold(statement, |statement, (_, value)| statement.bind(value))
}

/// Replaces the configuration by `after` if it is still `before`.
pub async fn reconfigure(database: &Database, before: &Family, after: &Family) -> Result<()> {
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
    ))
    .bind(family.settings());
    bind_name(bind_identity(update, family), family)
}

/// Returns all families, each with the settings of the process that opened it last, or the error in
/// them.
pub async fn list(database: &Database) -> Result<Vec<(String, Result<Registration>)>> {
    let all = select(&format!("WHERE {NOT_REMOVED} ORDER BY number"));
    let rows: Vec<FamilyRow> = database.read(UNREAD, all).await?;
    Ok(rows
        .into_iter()
        .map(|known| {
            let name = format!("{}/{}", known.namespace, known.name);
            (name, registered(known))
        })
        .collect())
}

/// Returns the family of this name, `NAMESPACE/FAMILY`.
pub async fn find(database: &Database, full_name: &str) -> Result<Option<Registration>> {
    let (namespace, name) = full_name.split_once('/').unwrap_or_default();
    let by_name = select(&format!(
        "WHERE namespace = ? AND name = ? AND {NOT_REMOVED}"
    ))
    .bind(namespace.as_bytes())
    .bind(name.as_bytes());
    let mut rows: Vec<FamilyRow> = database.read(UNREAD, by_name).await?;
    rows.pop().map(registered).transpose()
}

fn registered(known: FamilyRow) -> Result<Registration> {
    let family = Family::from_settings(&known.namespace, &known.name, &known.settings)?;
    if let Some((setting, known, written)) = known.difference(&family) {
        return Err(Error::mismatch(format!(
            "{family}: {setting} is {known:?}, and {written:?} in its settings: open it once"
        )));
    }
    Ok(known.registered(family))
}

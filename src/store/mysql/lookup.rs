//! Values and ledger as of one moment (docs/protocol.md, section 3.7), and the values that seed
//! cached counters (section 4).

use super::fault::store;
use super::json;
use super::ledger;
use super::session::Database;
use super::statement::Statement;
use super::target::{self, Segment, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::store::{Incarnation, Mark, Registered, Snapshot};

/// The digits of the values, the marks, and the server's `read_only`.
type Found = (Vec<Option<String>>, Vec<Mark>, String);

/// Reads values and marks as of one moment, and the server's `read_only`. Does not read the ledger
/// if no row of it is requested: a user that only seeds counters may lack the privilege.
pub async fn read(
    database: &Database,
    target: &Target,
    family: &Registered,
    ids: &[&str],
    ledger: &[(u32, Incarnation)],
) -> Result<(Snapshot, String)> {
    // an id that matches no row is left out of the query
    let key = |(index, id)| Some((index, target::segments(family, id).ok()?));
    let (indexes, keys): (Vec<_>, Vec<_>) = ids.iter().copied().enumerate().filter_map(key).unzip();
    let found = match (&keys[..], ledger) {
        ([key], [] | [_]) => one(database, target, family, key, ledger.first()).await,
        _ => many(database, target, family, &keys, ledger).await,
    };
    let (digits, ledger, read_only) = found.map_err(store("values were not read"))?;
    let mut values = vec![None; ids.len()];
    for (index, digits) in indexes.into_iter().zip(digits) {
        let value = digits.map(|digits| value(family, ids[index], &digits));
        values[index] = value.transpose()?;
    }
    Ok((Snapshot { values, ledger }, read_only))
}

/// Looks one id up, the most common read, without the cost of JSON.
async fn one(
    database: &Database,
    target: &Target,
    family: &Registered,
    key: &[Segment<'_>],
    ledger: Option<&(u32, Incarnation)>,
) -> Result<Found, sqlx::Error> {
    let key = key.iter().copied();
    let key = target::family_segment(family).into_iter().chain(key);
    let Some((partition, incarnation)) = ledger else {
        let select = target::bind(target.values.one.clone(), key);
        let (digits, read_only) = database.fetch_one(select).await?;
        return Ok((vec![digits], Vec::new(), read_only));
    };
    let select = target::bind(target.snapshot.one.clone(), key);
    let select = select.bind(family.number).bind(partition);
    let row = database.fetch_one(select.bind(incarnation.0)).await?;
    let (digits, read_only, seq, nonce, position) = row;
    let mark = ledger::mark(seq, nonce, position).unwrap_or_default();
    Ok((vec![digits], vec![mark], read_only))
}

async fn many(
    database: &Database,
    target: &Target,
    family: &Registered,
    keys: &[Vec<Segment<'_>>],
    ledger: &[(u32, Incarnation)],
) -> Result<Found, sqlx::Error> {
    let lookup = match ledger {
        [] => &target.values,
        _ => &target.snapshot,
    };
    let select = lookup.many.clone().bind_rows(keys);
    let mut select = target::bind(select, target::family_segment(family));
    if !ledger.is_empty() {
        select = select.bind_rows(ledger).bind(family.number);
    }
    let rows = database.fetch(select).await?;
    // an incomplete reply must not pass for missing rows
    json::check_all(keys.len() + ledger.len() + 1, rows.len() as u64)?;
    let (mut digits, mut marks) = (vec![None; keys.len()], vec![Mark::default(); ledger.len()]);
    let mut read_only = String::new();
    for (kind, at, text, seq, nonce, position) in rows {
        let (kind, text): (i64, Option<String>) = (kind, text);
        let mark = ledger::mark(seq, nonce, position);
        match kind {
            0 => *json::at(&mut digits, at)? = text,
            1 => *json::at(&mut marks, at)? = mark.unwrap_or_default(),
            _ => read_only = text.unwrap_or_default(),
        }
    }
    Ok((digits, marks, read_only))
}

/// Reads a value from its digits. Only an unsigned column can hold one that is not a valid i64.
pub fn value(family: &Registered, id: &str, digits: &str) -> Result<i64> {
    let outside = |_| {
        Error::new(
            ErrorKind::Range,
            format!("{}: the value of {id:?} is {digits}", family.family),
        )
    };
    digits.parse().map_err(outside)
}

/// Refuses a server that accepts no writes, before a family of cached counters is opened.
pub async fn refuse_replica(database: &Database, family: &Family) -> Result<()> {
    let select = Statement::new("SELECT CAST(@@GLOBAL.read_only AS CHAR)");
    let (read_only,): (String,) = database.read_one("read_only was not read", select).await?;
    check_writable(&read_only, family)
}

/// Refuses a server that accepts no writes. It may be a replica, whose rows may be older than
/// batches applied before. MySQL's `super_read_only` sets `read_only` too.
pub fn check_writable(read_only: &str, family: &Family) -> Result<()> {
    // a number on most servers, a word on others
    match read_only {
        "0" | "OFF" => Ok(()),
        setting => Err(Error::new(
            ErrorKind::Unsafe,
            format!(
                "{family}: the database that counters are seeded from accepts no writes (read_only is {setting}), as a \
                 replica does; give MysqlStore::new a pool on the primary"
            ),
        )),
    }
}

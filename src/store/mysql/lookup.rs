//! Values and ledger as of one moment (docs/protocol.md, section 3.7), and the values that seed
//! cached counters (section 4).

use super::families;
use super::fault::store;
use super::json;
use super::ledger;
use super::session::{Database, READ_ONLY};
use super::statement::Statement;
use super::target::{self, Segment, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Incarnation, Mark, Registration, Snapshot};

/// The digits of the values, the marks, and the family's number if the values depend on it.
type Lookup = (Vec<Option<String>>, Vec<Mark>, u64);

/// Reads values and marks as of one moment. Does not read the ledger if no row of it is requested: a
/// user that only seeds counters may lack the privilege. If `writes`, the server must accept writes.
/// Also returns whether it proves that the family has the number that this process knows, as far as it
/// matters: values in counterfoil's own table, and marks, may else be those of another family.
pub async fn read(
    database: &Database,
    target: &Target,
    family: &Registration,
    ids: &[&str],
    ledger: &[(u32, Incarnation)],
    writes: bool,
) -> Result<(Snapshot, bool)> {
    // an id that matches no row is left out of the query
    let (indexes, keys): (Vec<_>, Vec<_>) = ids
        .iter()
        .enumerate()
        .filter_map(|(index, id)| Some((index, target::segments(family, id).ok()?)))
        .unzip();
    let (found, marks, number) = find(database, target, family, &keys, ledger, writes)
        .await
        .map_err(store("values were not read"))?;
    let mut values = vec![None; ids.len()];
    for (index, digits) in indexes.into_iter().zip(found) {
        if let Some(text) = digits {
            values[index] = Some(value(family, ids[index], &text)?);
        }
    }
    let is_its = match ledger {
        [] => !target.is_own || number == family.number.0,
        // no other family has a row of this incarnation
        _ => marks.iter().any(|mark| mark.seq > 0),
    };
    let snapshot = Snapshot {
        values,
        ledger: marks,
    };
    Ok((snapshot, is_its))
}

/// Leaves the connections to a server that accepts no writes, and refuses it if all lead there.
pub async fn leave_replica(database: &Database) -> Result<()> {
    let select = Statement::new(format!("SELECT 2, {READ_ONLY} AS text"));
    let _: Vec<(i64, String)> = database
        .look_up(select, true)
        .await
        .map_err(store("read_only was not read"))?;
    Ok(())
}

/// Looks keys up. A single one, the most common read, goes without the cost of JSON.
async fn find(
    database: &Database,
    target: &Target,
    family: &Registration,
    keys: &[Vec<Segment<'_>>],
    ledger: &[(u32, Incarnation)],
    writes: bool,
) -> Result<Lookup, sqlx::Error> {
    let own = target::family_segment(family);
    let statements = match ledger {
        [] => &target.values,
        _ => &target.snapshot,
    };
    let names_family = target.is_own && ledger.is_empty();
    if let ([key], [] | [_]) = (keys, ledger) {
        let segments = own.into_iter().chain(key.iter().copied());
        let mut select = target::bind(statements.one.clone(), segments);
        for (partition, incarnation) in ledger {
            select = select
                .bind(family.number)
                .bind(partition)
                .bind(incarnation.0);
        }
        if names_family {
            select = families::bind_name(select, &family.family);
        }
        let found = database.look_up(select, writes).await?.pop();
        let (kind, read_only, digits, text, number) = found.ok_or(sqlx::Error::RowNotFound)?;
        let _: (i64, String) = (kind, read_only);
        let mark = ledger::mark(text)?.unwrap_or_default();
        return Ok((vec![digits], vec![mark; ledger.len()], number));
    }
    let mut select = target::bind(statements.many.clone().bind_rows(keys), own);
    if !ledger.is_empty() {
        select = select.bind_rows(ledger).bind(family.number);
    }
    if names_family {
        select = families::bind_name(select, &family.family);
    }
    let (mut digits, mut marks, mut number) = (Vec::new(), Vec::new(), 0);
    for (kind, at, text) in database.look_up(select, writes).await? {
        let kind: i64 = kind;
        match kind {
            0 => digits.push((at, text)),
            1 => marks.push((at, ledger::mark(text)?.unwrap_or_default())),
            _ => number = at,
        }
    }
    // an incomplete reply must not pass for missing rows
    Ok((
        json::by_position(digits, keys.len())?,
        json::by_position(marks, ledger.len())?,
        number,
    ))
}

/// Reads a value from its digits. Only an unsigned column can hold one that is not a valid i64.
pub fn value(family: &Registration, id: &str, digits: &str) -> Result<i64> {
    digits.parse().map_err(|_| {
        Error::new(
            ErrorKind::Range,
            format!("{}: the value of {id:?} is {digits}", family.family),
        )
    })
}

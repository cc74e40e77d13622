//! Values and ledger as of one moment (docs/protocol.md, section 3.7), and the values that seed
//! cached counters (section 4).

use super::MysqlStore;
use super::fault::store;
use super::json;
use super::ledger;
use super::session::{Database, READ_ONLY};
use super::statement::Statement;
use super::target::{self, Segment, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Incarnation, Mark, Registered, Snapshot};

/// The digits of the values, and the marks.
type Found = (Vec<Option<String>>, Vec<Mark>);

impl MysqlStore {
    /// Reads values and marks as of one moment. Does not read the ledger if no row of it is
    /// requested: a user that only seeds counters may lack the privilege. If `writes`, the server
    /// must accept writes.
    pub(super) async fn look_up(
        &self,
        database: &Database,
        family: &Registered,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        writes: bool,
    ) -> Result<Snapshot> {
        let target = &self.target(&family.family).await?;
        // an id that matches no row is left out of the query
        let key = |(index, id)| Some((index, target::segments(family, id).ok()?));
        let (indexes, keys): (Vec<_>, Vec<_>) =
            ids.iter().copied().enumerate().filter_map(key).unzip();
        let found = find(database, target, family, &keys, ledger, writes).await;
        let (digits, ledger) = found.map_err(store("values were not read"))?;
        let mut values = vec![None; ids.len()];
        for (index, digits) in indexes.into_iter().zip(digits) {
            let value = digits.map(|digits| value(family, ids[index], &digits));
            values[index] = value.transpose()?;
        }
        Ok(Snapshot { values, ledger })
    }

    /// Leaves the connections to a server that accepts no writes, and refuses it if all lead there.
    pub(crate) async fn leave_replica(&self) -> Result<()> {
        let select = Statement::new(format!("SELECT 2, {READ_ONLY} AS text"));
        let read_only = self.primary.look_up(select, true).await;
        let _: Vec<(i64, String)> = read_only.map_err(store("read_only was not read"))?;
        Ok(())
    }
}

/// Looks keys up. A single one, the most common read, goes without the cost of JSON.
async fn find(
    database: &Database,
    target: &Target,
    family: &Registered,
    keys: &[Vec<Segment<'_>>],
    ledger: &[(u32, Incarnation)],
    writes: bool,
) -> Result<Found, sqlx::Error> {
    let own = target::family_segment(family);
    let lookup = match ledger {
        [] => &target.values,
        _ => &target.snapshot,
    };
    if let ([key], [] | [_]) = (keys, ledger) {
        let key = own.into_iter().chain(key.iter().copied());
        let mut select = target::bind(lookup.one.clone(), key);
        for (partition, incarnation) in ledger {
            select = select.bind(family.number).bind(partition);
            select = select.bind(incarnation.0);
        }
        let found = database.look_up(select, writes).await?.pop();
        let (kind, read_only, digits, mark) = found.ok_or(sqlx::Error::RowNotFound)?;
        let _: (i64, String) = (kind, read_only);
        let mark = ledger::mark(mark)?.unwrap_or_default();
        return Ok((vec![digits], vec![mark; ledger.len()]));
    }
    let mut select = target::bind(lookup.many.clone().bind_rows(keys), own);
    if !ledger.is_empty() {
        select = select.bind_rows(ledger).bind(family.number);
    }
    let rows = database.look_up(select, writes).await?;
    let (mut digits, mut marks) = (Vec::new(), Vec::new());
    for (kind, at, text) in rows {
        let kind: i64 = kind;
        match kind {
            0 => digits.push((at, text)),
            1 => marks.push((at, ledger::mark(text)?.unwrap_or_default())),
            _ => {}
        }
    }
    // an incomplete reply must not pass for missing rows
    Ok((
        json::by_position(digits, keys.len())?,
        json::by_position(marks, ledger.len())?,
    ))
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

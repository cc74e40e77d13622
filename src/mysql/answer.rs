//! Answers to questions about many rows at once: one row each, by position.

use sqlx::Row;
use sqlx::mysql::MySqlRow;

/// For each of the rows asked about, whether the answer was yes, from rows of (position from 1, 1 or 0 or NULL).
///
/// A statement that asks answers every row it was given, whether or not something was found for it. So an answer cut
/// short (by `sql_select_limit`, by a proxy) is an error, and is not taken for rows that are not there.
pub(super) fn flags(rows: &[MySqlRow], asked: usize) -> Result<Vec<bool>, sqlx::Error> {
    if rows.len() != asked {
        return Err(unexpected(asked, rows.len()));
    }
    let mut flags = vec![false; asked];
    for row in rows {
        let position = row.try_get::<u64, _>(0)?;
        let flag = row.try_get::<Option<i64>, _>(1)?;
        let index = usize::try_from(position).ok().and_then(|position| position.checked_sub(1));
        *index.and_then(|index| flags.get_mut(index)).ok_or_else(|| unexpected(asked, rows.len()))? = flag == Some(1);
    }
    Ok(flags)
}

/// Whether a statement changed every row that it was to change.
pub(super) fn all(asked: usize, changed: u64) -> Result<(), sqlx::Error> {
    match changed == asked as u64 {
        true => Ok(()),
        false => Err(unexpected(asked, usize::try_from(changed).unwrap_or(usize::MAX))),
    }
}

/// The database did not do what the statement says.
pub(super) fn unexpected(asked: usize, answered: usize) -> sqlx::Error {
    sqlx::Error::Protocol(format!("{answered} rows instead of {asked}"))
}

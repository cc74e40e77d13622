//! Replies to questions about many rows at once: one row each, by position.

use sqlx::Row;
use sqlx::mysql::MySqlRow;

/// Applies `take` to the reply for each row in question. Each row of the reply begins with its
/// position, from 1.
///
/// Such a statement returns a row for every row that it received, found or not. So a truncated
/// reply (by `sql_select_limit`, by a proxy) is an error, and is not mistaken for missing rows.
pub(super) fn by_position<T>(
    rows: &[MySqlRow],
    asked: usize,
    take: impl Fn(&MySqlRow) -> Result<T, sqlx::Error>,
) -> Result<Vec<T>, sqlx::Error> {
    let mut found: Vec<_> = std::iter::repeat_with(|| None).take(asked).collect();
    for row in rows {
        let position = row.try_get::<u64, _>(0)?;
        let index = usize::try_from(position)
            .ok()
            .and_then(|position| position.checked_sub(1));
        *index
            .and_then(|index| found.get_mut(index))
            .ok_or_else(|| unexpected(asked, rows.len()))? = Some(take(row)?);
    }
    found
        .into_iter()
        .collect::<Option<_>>()
        .ok_or_else(|| unexpected(asked, rows.len()))
}

/// Returns whether the reply was yes for each row, from rows of (position from 1, 1 or 0 or NULL).
pub(super) fn flags(rows: &[MySqlRow], asked: usize) -> Result<Vec<bool>, sqlx::Error> {
    by_position(rows, asked, |row| {
        Ok(row.try_get::<Option<i64>, _>(1)? == Some(1))
    })
}

/// Returns an error unless a statement changed every row that it should change.
pub(super) fn all(asked: usize, changed: u64) -> Result<(), sqlx::Error> {
    if changed == asked as u64 {
        Ok(())
    } else {
        Err(unexpected(
            asked,
            usize::try_from(changed).unwrap_or(usize::MAX),
        ))
    }
}

/// Returns the error for a database that did not do what the statement says.
pub(super) fn unexpected(asked: usize, came: usize) -> sqlx::Error {
    sqlx::Error::Protocol(format!("{came} rows instead of {asked}"))
}

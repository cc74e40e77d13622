//! Bulk statements of which single rows may be refused.

use super::fault;

/// Most rows of a statement. At 255 bytes an id it then has about 5 MB.
pub(super) const CHUNK: usize = 10_000;

/// The rows of one bulk statement after the other.
///
/// A statement that fails because of one of its rows is undone by InnoDB and made again in halves, down to the single
/// row: among 10,000 rows one bad row costs some 28 statements more.
pub(super) struct Halves<'r, R> {
    /// The first one last.
    parts: Vec<&'r [R]>,
    refused: Vec<(&'r R, String)>,
}

impl<'r, R> Halves<'r, R> {
    pub(super) fn of(rows: &'r [R]) -> Self {
        Halves { parts: rows.chunks(CHUNK).rev().collect(), refused: Vec::new() }
    }

    /// The rows of the next statement.
    pub(super) fn next(&mut self) -> Option<&'r [R]> {
        self.parts.pop()
    }

    /// Takes what the statement of these rows came to. An error that blames no row is returned.
    pub(super) fn made(&mut self, rows: &'r [R], result: Result<(), sqlx::Error>) -> Result<(), sqlx::Error> {
        match (result, rows) {
            (Ok(()), _) => {}
            (Err(error), _) if !fault::blames_row(&error) => return Err(error),
            (Err(error), [row]) => self.refused.push((row, fault::message(&error))),
            (Err(_), rows) => {
                let (first, second) = rows.split_at(rows.len() / 2);
                self.parts.extend([second, first]);
            }
        }
        Ok(())
    }

    /// The rows that the database refused, with its words.
    pub(super) fn refused(self) -> Vec<(&'r R, String)> {
        self.refused
    }
}

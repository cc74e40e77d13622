//! Bulk statements in which single rows may be refused.

use super::fault;

/// The maximum number of rows in a statement. With ids of 255 bytes it then has about 5 MB.
pub(super) const CHUNK: usize = 10_000;

/// The rows of successive bulk statements.
///
/// If a statement fails because of one of its rows, InnoDB undoes it. It is then repeated in
/// halves, down to the single row: among 10,000 rows, one bad row costs about 28 more statements.
pub(super) struct Halves<'r, R> {
    /// The parts that remain, the first one last.
    parts: Vec<&'r [R]>,
    refused: Vec<(&'r R, String)>,
}

impl<'r, R> Halves<'r, R> {
    pub(super) fn of(rows: &'r [R]) -> Self {
        Halves {
            parts: rows.chunks(CHUNK).rev().collect(),
            refused: Vec::new(),
        }
    }

    /// Returns the rows of the next statement.
    pub(super) fn next(&mut self) -> Option<&'r [R]> {
        self.parts.pop()
    }

    /// Takes the result of the statement with these rows. Returns an error that blames no row.
    pub(super) fn made(
        &mut self,
        rows: &'r [R],
        result: Result<(), sqlx::Error>,
    ) -> Result<(), sqlx::Error> {
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

    /// Returns the rows that the database refused, with its messages.
    pub(super) fn refused(self) -> Vec<(&'r R, String)> {
        self.refused
    }
}

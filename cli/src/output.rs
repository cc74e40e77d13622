//! The output of commands: for people, or as JSON.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::time::SystemTime;

use jiff::Timestamp;
use serde::Serialize;

use crate::exit::Failure;

/// The format of a command's results.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub json: bool,
}

impl Output {
    /// Prints the value as JSON, or as the lines that `lines` returns.
    pub fn print<T: Serialize>(
        self,
        value: &T,
        lines: impl FnOnce(&T) -> Vec<String>,
    ) -> Result<(), Failure> {
        self.write(|out| {
            if self.json {
                serde_json::to_writer_pretty(&mut *out, value)?;
                writeln!(out)
            } else {
                lines(value)
                    .iter()
                    .try_for_each(|line| writeln!(out, "{line}"))
            }
        })
    }

    /// Prints a text unchanged.
    pub fn text(self, text: &[u8]) -> Result<(), Failure> {
        self.write(|out| out.write_all(text))
    }

    /// Writes to standard output. A pipe that the reader closes is not an error.
    fn write(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        match write(&mut out).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}

/// Formats rows in aligned columns, with numbers to the right.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells
            .chain([heads[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let is_number = |column: usize| {
        let is_number = |cell: &String| {
            cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        };
        rows.iter().all(|row| is_number(&row[column]))
            && !rows.iter().all(|row| row[column].is_empty())
    };
    let columns: Vec<_> = (0..heads.len())
        .map(|column| (width(column), is_number(column)))
        .collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&columns).map(|(cell, &(width, right))| {
            if right {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head = line(heads.to_vec());
    [head]
        .into_iter()
        .chain(
            rows.iter()
                .map(|row| line(row.iter().map(String::as_str).collect())),
        )
        .collect()
}

/// Formats a time as 3s, 2m, 5h or 4d.
pub fn short(seconds: f64) -> String {
    match seconds.max(0.0) as u64 {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Formats a moment as `2026-11-22T12:00:00Z`.
pub fn moment(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

/// Formats a number with its noun: `1 family`, `2 families`.
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let shown = [0.4, 3.9, 119.0, 120.0, 7199.0, 7200.0, 172_800.0].map(short);
        assert_eq!(shown, ["0s", "3s", "119s", "2m", "119m", "2h", "2d"]);
    }

    #[test]
    fn numbers_stand_to_the_right() {
        let rows =
            [["a", "7", ""], ["long", "100", "x"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&["NAME", "N", "WHY"], &rows),
            ["NAME    N  WHY", "a       7", "long  100  x"]
        );
    }
}

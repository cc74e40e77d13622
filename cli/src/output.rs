//! The output of commands: for people, or as JSON.

use std::io::{self, BufRead, BufWriter, ErrorKind, IsTerminal, Write};

use jiff::Timestamp;
use serde::Serialize;

use crate::exit::{Exit, Failure};

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
    ) -> Result<Exit, Failure> {
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
    pub fn text(self, text: &[u8]) -> Result<Exit, Failure> {
        self.write(|out| out.write_all(text))
    }

    /// Writes to standard output. A pipe that the reader closes is not an error.
    fn write(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Exit, Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        match write(&mut out).and_then(|()| out.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(Exit::Ok),
        }
    }
}

/// Asks on the terminal whether to continue. Without a terminal, `yes` must be set.
pub fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        let advice = "--dry-run shows what it concerns, --yes confirms it";
        return Err(Failure::usage(format!("{question} {advice}")));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::warning("nothing was changed")),
    }
}

/// Formats rows in aligned columns, with numbers to the right. Without rows there are no lines.
pub fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> Vec<String> {
    columns(&heads, rows.iter().map(|row| &row[..]))
}

/// Formats rows that begin with the name of a pair, which is omitted if there is only one pair.
pub fn pair_table<const N: usize>(
    pairs: usize,
    heads: [&str; N],
    rows: &[[String; N]],
) -> Vec<String> {
    let first = usize::from(pairs == 1);
    columns(&heads[first..], rows.iter().map(|row| &row[first..]))
}

fn columns<'r>(heads: &[&str], rows: impl Iterator<Item = &'r [String]> + Clone) -> Vec<String> {
    if rows.clone().next().is_none() {
        return Vec::new();
    }
    let is_number =
        |cell: &str| cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let column = |(column, head): (usize, &&str)| {
        let cells = || rows.clone().map(move |row| row[column].as_str());
        let width = cells()
            .chain([*head])
            .map(|cell| cell.chars().count())
            .max();
        let is_right = cells().all(is_number) && !cells().all(str::is_empty);
        (width.unwrap_or(0), is_right)
    };
    let columns: Vec<_> = heads.iter().enumerate().map(column).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&columns).map(|(cell, &(width, is_right))| {
            if is_right {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head = line(&mut heads.iter().copied());
    let rows = rows.map(|row| line(&mut row.iter().map(String::as_str)));
    [head].into_iter().chain(rows).collect()
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

/// Formats a time as `2026-11-22T12:00:00Z`.
pub fn moment(unix_seconds: u64) -> String {
    let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds);
    time.unwrap_or(Timestamp::MAX).to_string()
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
    fn numbers_are_aligned_to_the_right() {
        let rows = [["a", "7", ""], ["long", "100", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(
            table(["NAME", "N", "WHY"], &rows),
            ["NAME    N  WHY", "a       7", "long  100  x"]
        );
    }
}

//! What commands print: for people, or as JSON.

use std::io::{self, Write};

use serde::Serialize;

/// Where results go, and how.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub json: bool,
}

impl Output {
    /// Prints the value as JSON, or the lines that are made of it.
    pub fn print<T: Serialize>(self, value: &T, lines: impl FnOnce(&T) -> Vec<String>) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, value)?;
            writeln!(out)
        } else {
            lines(value).iter().try_for_each(|line| writeln!(out, "{line}"))
        }
    }
}

/// Columns below each other, the numbers to the right.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].chars().count()]).max().unwrap_or(0)
    };
    let is_number = |column: usize| {
        rows.iter()
            .all(|row| row[column].is_empty() || row[column].starts_with(|c: char| c.is_ascii_digit() || c == '-'))
    };
    let columns: Vec<_> = (0..heads.len()).map(|column| (width(column), is_number(column))).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells
            .iter()
            .zip(&columns)
            .map(|(cell, &(width, right))| if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head = line(heads.to_vec());
    [head].into_iter().chain(rows.iter().map(|row| line(row.iter().map(String::as_str).collect()))).collect()
}

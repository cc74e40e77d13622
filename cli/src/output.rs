//! The output of commands: for people, or as JSON. Text that others wrote, such as an id, can
//! neither control the terminal nor change the order of what surrounds it.

use std::io::{self, BufRead, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::{self, Path};
use std::sync::{LazyLock, OnceLock};
use std::{env, fs};

use jiff::Timestamp;
use serde::Serialize;

use crate::exit::{Exit, Failure};

/// The configuration file that this process reads by default.
pub const DEFAULT_CONFIG: &str = "counterfoil.toml";
/// The program's name in the texts of this program.
const NAME: &str = "counterfoil";
/// The variable by which a launcher passes how it was called: `npx counterfoil-daemon`, or its path.
const CALLED: &str = "COUNTERFOIL_PROGRAM";
/// The program with the option for this process's configuration file, if that is another file.
static PROGRAM: OnceLock<String> = OnceLock::new();
/// The program as it was called.
static CALLED_AS: LazyLock<String> = LazyLock::new(|| {
    let passed = env::var(CALLED).ok().filter(|called| !called.is_empty());
    let called = passed.or_else(|| env::args().next());
    called.map_or_else(|| NAME.to_owned(), |called| shown(&called))
});
/// The commands that read no configuration.
const WITHOUT_CONFIG: [&str; 3] = ["example-config", "init --print", "setup --private"];

/// Sets the configuration file of the commands that this process shows. They are copied into a shell
/// in another folder, so the path is absolute.
pub fn show_config(path: &Path) {
    if path != Path::new(DEFAULT_CONFIG) {
        let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let _ = PROGRAM.set(with_config(&CALLED_AS, &file.display().to_string()));
    }
}

/// Returns how a shell in any folder calls a program that was called like this. A path becomes the
/// file's name if PATH leads to the same file.
fn shown(called: &str) -> String {
    let path = Path::new(called);
    let (true, Some(name)) = (called.contains('/'), path.file_name()) else {
        return called.to_owned();
    };
    let folders = env::var_os("PATH").unwrap_or_default();
    let first = env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    match (first.map(fs::canonicalize), fs::canonicalize(path)) {
        (Some(Ok(first)), Ok(own)) if first == own => in_shell(&name.to_string_lossy()),
        _ => {
            let absolute = path::absolute(path).unwrap_or_else(|_| path.to_owned());
            in_shell(&absolute.display().to_string())
        }
    }
}

/// Returns a word of a shell.
fn in_shell(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%".contains(&byte);
    if word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn with_config(called: &str, file: &str) -> String {
    format!("{called} --config {}", in_shell(file))
}

fn program() -> &'static str {
    PROGRAM.get().unwrap_or(&CALLED_AS)
}

/// Returns a command to copy, such as `counterfoil check`.
pub fn command(words: &str) -> String {
    format!("{} {words}", program())
}

/// Returns the text with the commands in it, which stand in backticks, as [`command`] does.
pub fn with_commands(text: &str) -> String {
    commands_of(&CALLED_AS, program(), text)
}

fn commands_of(called: &str, program: &str, text: &str) -> String {
    let mut parts = text.split("`counterfoil ");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_complete = part.starts_with("--config ");
        let needs_none = WITHOUT_CONFIG.iter().any(|words| part.starts_with(words));
        let program = if is_complete || needs_none {
            called
        } else {
            program
        };
        shown += &format!("`{program} {part}");
    }
    shown
}

/// The format of a command's results.
#[derive(Clone, Copy)]
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
                    .try_for_each(|line| writeln!(out, "{}", without_controls(line)))
            }
        })
    }

    /// Prints a text unchanged.
    pub fn print_text(self, text: &[u8]) -> Result<Exit, Failure> {
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

/// Writes a line to standard error, with commands to copy. A command continues if that is closed.
pub fn print_message(line: &str) {
    let _ = writeln!(io::stderr(), "{}", without_controls(&with_commands(line)));
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
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::warning("nothing was changed")),
    }
}

/// Unicode's FIRST STRONG ISOLATE and POP DIRECTIONAL ISOLATE. Text between them is ordered by
/// itself, and does not change the order of what surrounds it.
const ISOLATE: [char; 2] = ['\u{2068}', '\u{2069}'];

/// Returns the text with escapes in place of control characters, also those for right-to-left text.
pub fn escaped(text: &str) -> String {
    let is_bidi_control = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_break = |c| matches!(c, '\u{2028}' | '\u{2029}');
    escape(text, |c| {
        c.is_control() || is_bidi_control(c) || is_break(c)
    })
}

/// Returns the text as [`escaped`] does, and isolated if a part of it is written from right to left.
pub fn isolated(text: &str) -> String {
    let is_right_to_left = |c| {
        matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefe}'
            | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
    };
    let [start, end] = ISOLATE;
    let shown = escaped(text);
    if shown.contains(is_right_to_left) {
        format!("{start}{shown}{end}")
    } else {
        shown
    }
}

/// Escapes the control characters of a whole message, except line breaks.
pub fn without_controls(message: &str) -> String {
    escape(message, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Formats rows in aligned columns, with numbers to the right. Without rows there are no lines.
pub fn table(heads: &[&str], rows: &[impl AsRef<[String]>]) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let mut shown = Vec::new();
    for row in rows {
        let cells: Vec<_> = row.as_ref().iter().map(|cell| isolated(cell)).collect();
        shown.push(cells);
    }
    let mut columns = Vec::new();
    for (at, head) in heads.iter().enumerate() {
        let below: Vec<_> = shown.iter().map(|row| row[at].as_str()).collect();
        columns.push(ColumnLayout::of(head, &below));
    }
    let mut lines = vec![aligned(heads.iter().copied(), &columns)];
    for row in &shown {
        lines.push(aligned(row.iter().map(String::as_str), &columns));
    }
    lines
}

/// The width of the widest column, such as one of UUIDs.
const WIDEST: usize = 40;

/// The layout of a column.
struct ColumnLayout {
    width: usize,
    is_right: bool,
}

impl ColumnLayout {
    /// Returns the layout of a column with this head and these cells.
    fn of(head: &str, cells: &[&str]) -> Self {
        // a cell longer than `WIDEST` does not widen its column, and shifts only the rest of its
        // own line
        let widest = cells
            .iter()
            .chain([&head])
            .map(|cell| width(cell))
            .filter(|width| *width <= WIDEST)
            .max();
        let has_numbers = cells.iter().all(|cell| is_number(cell));
        ColumnLayout {
            width: widest.unwrap_or(0),
            is_right: has_numbers && !cells.iter().all(|cell| cell.is_empty()),
        }
    }
}

/// Returns whether a cell may stand in a column of numbers.
fn is_number(cell: &str) -> bool {
    cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

/// Returns a line of a table.
fn aligned<'c>(cells: impl Iterator<Item = &'c str>, columns: &[ColumnLayout]) -> String {
    let mut padded = Vec::new();
    for (cell, column) in cells.zip(columns) {
        let space = " ".repeat(column.width.saturating_sub(width(cell)));
        padded.push(if column.is_right {
            format!("{space}{cell}")
        } else {
            format!("{cell}{space}")
        });
    }
    padded.join("  ").trim_end().to_owned()
}

/// Returns the number of characters that are visible.
fn width(cell: &str) -> usize {
    cell.chars().filter(|c| !ISOLATE.contains(c)).count()
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
    Timestamp::from_second(seconds)
        .unwrap_or(Timestamp::MAX)
        .to_string()
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
    fn a_long_cell_moves_its_own_line_alone() {
        let long = "x".repeat(255);
        let rows = [
            [long.clone(), "1".to_owned()],
            ["id".to_owned(), "22".to_owned()],
        ];
        let expected = [
            "ID   N".to_owned(),
            format!("{long}   1"),
            "id  22".to_owned(),
        ];
        assert_eq!(table(&["ID", "N"], &rows), expected);
    }

    #[test]
    fn commands_name_the_configuration_once() {
        let program = with_config("counterfoil", "/etc/it's here.toml");
        let text = "run `counterfoil check`, or `counterfoil init --print`; `counterfoiled x`";
        let shown = commands_of("counterfoil", &program, text);
        let expected = "run `counterfoil --config '/etc/it'\\''s here.toml' check`, \
                        or `counterfoil init --print`; `counterfoiled x`";
        assert_eq!(shown, expected);
        assert_eq!(commands_of("counterfoil", &program, &shown), shown);
        assert_eq!(commands_of("counterfoil", "counterfoil", text), text);
        let called = "npx counterfoil-daemon";
        let program = with_config(called, "/a/b.toml");
        assert_eq!(program, "npx counterfoil-daemon --config /a/b.toml");
        let text = "`counterfoil run`, `counterfoil init --print`";
        let shown = commands_of(called, &program, text);
        assert_eq!(shown, format!("`{program} run`, `{called} init --print`"));
        assert_eq!(commands_of(called, &program, &shown), shown);
    }

    #[test]
    fn foreign_text_neither_controls_nor_reorders() {
        for (text, shown) in [
            ("page/1 ä 日本 👩‍👧", "page/1 ä 日本 👩‍👧"),
            (
                "a\x1b[2J\r\nb\t\u{9b}1m\x7f",
                "a\\u{1b}[2J\\r\\nb\\t\\u{9b}1m\\u{7f}",
            ),
            (
                "a\u{202e}gpj.exe\u{2066}\u{2028}",
                "a\\u{202e}gpj.exe\\u{2066}\\u{2028}",
            ),
            ("\u{200f}1", "\\u{200f}1"),
            ("שלום/7", "\u{2068}שלום/7\u{2069}"),
            ("مرحبا", "\u{2068}مرحبا\u{2069}"),
        ] {
            assert_eq!(isolated(text), shown);
        }
        let rows = [["שלום", "7", ""], ["ab\n", "10", "x"]].map(|row| row.map(str::to_owned));
        let lines = table(&["ID", "N", "WHY"], &rows);
        let expected = ["ID     N  WHY", "\u{2068}שלום\u{2069}   7", "ab\\n  10  x"];
        assert_eq!(lines, expected);
        assert_eq!(without_controls("a\nb\x1b"), "a\nb\\u{1b}");
    }
}

//! The access log, and what one of its lines counts.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

use crate::Result;

/// A log file, as far as it was written when the demo began: also one that a web server still appends to.
#[derive(Clone, Debug, clap::Args)]
pub struct Log {
    #[arg(long)]
    pub path: PathBuf,
    #[arg(long)]
    pub bytes: u64,
}

impl Log {
    pub fn open(path: PathBuf) -> Result<Self> {
        let about = std::fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        if !about.is_file() {
            return Err(format!("{}: not a file", path.display()).into());
        }
        Ok(Log { path, bytes: about.len() })
    }

    /// As arguments of a process.
    pub fn args(&self) -> Result<Vec<String>> {
        let path = self.path.to_str().ok_or("the log's path is not UTF-8")?;
        Ok(["--path", path, "--bytes", &self.bytes.to_string()].map(str::to_owned).to_vec())
    }

    /// The lines without their ends.
    pub fn lines(&self) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>> + use<>> {
        let file = File::open(&self.path)?;
        Ok(BufReader::new(file.take(self.bytes)).split(b'\n'))
    }
}

/// What a line counts: one hit in each family, by the id there.
#[derive(Debug, PartialEq, Eq)]
pub struct Hit {
    pub path: String,
    /// As the line says it, in the line's own time zone: `2015-05-17`.
    pub day: String,
    pub status: String,
}

impl Hit {
    /// Takes `HOST IDENT USER [TIME] "REQUEST" STATUS BYTES ...` apart. `None` for a line that is something else.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = readable(line);
        let (_, rest) = line.split_once(" [")?;
        let (time, rest) = rest.split_once("] \"")?;
        let (request, rest) = rest.split_at_checked(closing_quote(rest)?)?;
        let status = rest.strip_prefix("\" ")?.split_whitespace().next()?;
        let is_status = status.len() == 3 && matches!(status.parse(), Ok(100..=999));
        is_status.then_some(())?;
        Some(Hit { path: id_of(path(request)), day: day(time)?, status: status.to_owned() })
    }
}

/// The line as text without control characters. What is neither is spelt `\xNN`, as web servers do.
fn readable(line: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(line)
        && !text.contains(|letter: char| letter.is_ascii_control())
    {
        return text.into();
    }
    let mut text = String::new();
    for chunk in line.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter.is_ascii_control() {
                true => text += &spelt(letter as u8),
                false => text.push(letter),
            }
        }
        text.extend(chunk.invalid().iter().map(|&byte| spelt(byte)));
    }
    text.into()
}

fn spelt(byte: u8) -> String {
    format!("\\x{byte:02x}")
}

/// Where the request ends: at the first quote that is not escaped.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

/// The second word of `GET /path HTTP/1.1`; of a request that is no such thing, such as `-`, all of it.
fn path(request: &str) -> &str {
    match request.split(' ').nth(1).unwrap_or(request) {
        "" => "-",
        path => path,
    }
}

/// An id has at most 255 bytes: of a longer path the beginning, and the checksum of the whole behind a `#`, which no
/// path in a log contains.
fn id_of(path: &str) -> String {
    if path.len() <= 255 {
        return path.to_owned();
    }
    let beginning = &path[..path.floor_char_boundary(200)];
    format!("{beginning}#{:08x}", crc32fast::hash(path.as_bytes()))
}

/// `2015-05-17` of `17/May/2015:10:05:03 +0000`, if there is such a day.
fn day(time: &str) -> Option<String> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut parts = time.split(':').next()?.split('/');
    let day = number(parts.next()?, 2)?;
    let month = parts.next()?;
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    let year = number(parts.next()?, 4)?;
    let exists = year >= 1000 && (1..=days_in(month, year)).contains(&day) && parts.next().is_none();
    exists.then(|| format!("{year}-{month:02}-{day:02}"))
}

fn number(text: &str, digits: usize) -> Option<u32> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn days_in(month: usize, year: u32) -> u32 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

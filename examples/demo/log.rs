//! The access log, and the hits in its lines.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::Result;

/// The name of the site, used for its series and as the scope of its visitors.
pub const SITE: &str = "site";

/// A log file up to its length when the demo began. A web server may still append to it.
#[derive(Clone, Debug, clap::Args)]
pub struct Log {
    #[arg(long)]
    pub path: PathBuf,
    #[arg(long)]
    pub bytes: u64,
}

impl Log {
    pub fn open(path: PathBuf) -> Result<Self> {
        let about =
            std::fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        if !about.is_file() {
            return Err(format!("{}: not a file", path.display()).into());
        }
        Ok(Log {
            path,
            bytes: about.len(),
        })
    }

    /// Returns the log as command-line arguments.
    pub fn args(&self) -> Result<Vec<String>> {
        let path = self.path.to_str().ok_or("the log's path is not UTF-8")?;
        Ok(["--path", path, "--bytes", &self.bytes.to_string()]
            .map(str::to_owned)
            .to_vec())
    }

    /// Returns the lines without their line breaks.
    pub fn lines(&self) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>> + use<>> {
        let file = File::open(&self.path)?;
        Ok(BufReader::new(file.take(self.bytes)).split(b'\n'))
    }
}

/// The content of a line. Each family counts a part of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Hit {
    /// The client's address.
    pub visitor: String,
    pub path: String,
    /// The day in the line's own time zone: `2015-05-17`.
    pub day: String,
    /// The start of the hour in Unix seconds, as if the line's time zone were UTC. Hours therefore
    /// add up to days.
    pub hour: i64,
    pub status: String,
}

impl Hit {
    /// Returns the series of this hit: the whole site's, and that of its status class, such as
    /// `4xx`.
    pub fn series(&self) -> [String; 2] {
        [SITE.to_owned(), format!("{}xx", &self.status[..1])]
    }

    /// Parses `HOST IDENT USER [TIME] "REQUEST" STATUS BYTES ...`. Returns `None` for any other
    /// line.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = readable(line);
        let (client, rest) = line.split_once(" [")?;
        let visitor = client.split(' ').next().filter(|word| !word.is_empty())?;
        let (time, rest) = rest.split_once("] \"")?;
        let (request, rest) = rest.split_at_checked(closing_quote(rest)?)?;
        let status = rest.strip_prefix("\" ")?.split_whitespace().next()?;
        let is_status = status.len() == 3 && matches!(status.parse(), Ok(100..=999));
        is_status.then_some(())?;
        let (day, hour) = day_and_hour(time)?;
        Some(Hit {
            visitor: id_of(visitor),
            path: id_of(path(request)),
            day,
            hour,
            status: status.to_owned(),
        })
    }
}

/// Returns the line as text. Control characters and invalid UTF-8 become `\xNN`, as web servers
/// write them.
fn readable(line: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(line)
        && !text.contains(|letter: char| letter.is_ascii_control())
    {
        return text.into();
    }
    let mut text = String::new();
    for chunk in line.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_ascii_control() {
                text += &spelt(letter as u8)
            } else {
                text.push(letter)
            }
        }
        text.extend(chunk.invalid().iter().map(|&byte| spelt(byte)));
    }
    text.into()
}

fn spelt(byte: u8) -> String {
    format!("\\x{byte:02x}")
}

/// Returns the end of the request: the position of the first quote that is not escaped.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

/// Returns the second word of `GET /path HTTP/1.1`, or all of a request with one word, such as `-`.
fn path(request: &str) -> &str {
    match request.split(' ').nth(1).unwrap_or(request) {
        "" => "-",
        path => path,
    }
}

/// Shortens an id or a visitor to at most 255 bytes: a longer one becomes its beginning, a `#` and
/// a checksum of the whole. No path or address in a log contains a `#`.
fn id_of(text: &str) -> String {
    if text.len() <= 255 {
        return text.to_owned();
    }
    let beginning = &text[..text.floor_char_boundary(200)];
    format!("{beginning}#{:08x}", crc32fast::hash(text.as_bytes()))
}

/// Returns `2015-05-17` and the start of the hour for `17/May/2015:10:05:03 +0000`. Returns `None`
/// for an invalid time and for one before 1970.
fn day_and_hour(time: &str) -> Option<(String, i64)> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (date, clock) = time.split_once(':')?;
    let [day, month, year] = date.split('/').collect::<Vec<_>>().try_into().ok()?;
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    let date = Date::new(
        number(year, 4)?,
        i8::try_from(month).ok()?,
        i8::try_from(number(day, 2)?).ok()?,
    )
    .ok()?;
    let hour = i8::try_from(number(clock.split(':').next()?, 2)?)
        .ok()
        .filter(|hour| *hour < 24)?;
    let hour = date
        .at(hour, 0, 0, 0)
        .to_zoned(TimeZone::UTC)
        .ok()?
        .timestamp()
        .as_second();
    (hour >= 0).then(|| (date.to_string(), hour))
}

fn number(text: &str, digits: usize) -> Option<i16> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

//! The ids that name a row, or the part of them that a caller gives: what they must look like, as a
//! check, as a regular expression for clients in other languages, and in words.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::Family;
use super::kind::Kind;
use super::table::{KeyType, Table};

/// The columns of an application's table as the database defines them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The key columns, in the order of the description.
    pub keys: Vec<Extent>,
    /// The values that the value column can hold, as far as they are i64s.
    pub values: RangeInclusive<i64>,
}

impl Columns {
    /// Returns the values that a row can have: all, while the columns are unknown.
    pub(crate) fn values(columns: Option<&Columns>) -> RangeInclusive<i64> {
        columns.map_or(i64::MIN..=i64::MAX, |columns| columns.values.clone())
    }
}

/// The values of its type that a key column can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Numbers of this range.
    Numbers(RangeInclusive<i128>),
    /// Texts of up to so many characters.
    Characters(usize),
    /// Texts of up to so many bytes.
    Bytes(usize),
    /// All of them.
    All,
}

/// The rule for the ids of a family's rows, or for the names and pages of which it makes ids.
#[derive(Clone, Copy, Debug)]
pub struct RowIds<'f> {
    family: &'f Family,
    columns: Option<&'f Columns>,
    /// `true` for the names and pages of series and activity.
    is_name: bool,
}

/// A part of an id, which goes to one column.
struct Segment<'f> {
    column: &'f str,
    kind: KeyType,
    extent: Extent,
    /// The character that it must not contain.
    without: Option<char>,
    /// `true` if it may be empty.
    may_be_empty: bool,
}

impl Family {
    /// Returns the rule for what a caller gives: an id, or the name of a series or page. Without
    /// the columns, it is that of the table's description.
    pub(crate) fn given_ids<'f>(&'f self, columns: Option<&'f Columns>) -> RowIds<'f> {
        RowIds {
            family: self,
            columns,
            is_name: matches!(self.kind, Kind::Series(_) | Kind::Activity(_)),
        }
    }

    /// Returns the rule for the ids of rows, by the table's description.
    pub(super) fn row_ids(&self) -> RowIds<'_> {
        RowIds {
            family: self,
            columns: None,
            is_name: false,
        }
    }

    /// Returns true if the last part of an id may contain the separator: what precedes it never
    /// does. Visitors have a day at the end.
    fn has_open_end(&self, table: &Table) -> bool {
        let is_text = |(_, kind): &(String, KeyType)| matches!(kind, KeyType::Text | KeyType::Char);
        match (&self.kind, table.keys.split_last()) {
            (_, Some((_, []))) | (_, None) => true,
            (Kind::Visitors(_), _) => false,
            (Kind::Buffered | Kind::Cached(_), Some((_, others))) => !others.iter().any(is_text),
            // counterfoil makes the parts before the name, and they do not contain the separator
            (Kind::Series(_) | Kind::Activity(_), _) => true,
        }
    }
}

impl<'f> RowIds<'f> {
    /// Returns the largest number of bytes. A kept id has 255 with what precedes the name.
    fn longest(&self) -> usize {
        if self.is_name { 200 } else { 255 }
    }

    /// Returns the index of the column in which what the caller gives begins, and how many
    /// characters precede it there.
    fn start(&self, table: &Table) -> (usize, usize) {
        if !self.is_name {
            return (0, 0);
        }
        let (prefixes, count) = (self.family.kept_prefixes(), table.keys.len());
        // all prefixes have the same number of parts
        let parts = prefixes.first().map_or(0, |one| one.matches('/').count());
        let first = parts.min(count.saturating_sub(1));
        let in_column = |prefix: &String| prefix.splitn(count, '/').nth(first).map_or(0, str::len);
        (first, prefixes.iter().map(in_column).max().unwrap_or(0))
    }

    /// Returns the parts of what the caller gives, with the separator between them; none without a
    /// table.
    fn segments(&self) -> impl Iterator<Item = Segment<'f>> + use<'f> {
        let (family, columns) = (self.family, self.columns);
        let table = family.table.as_ref();
        let (first, taken) = table.map_or((0, 0), |table| self.start(table));
        table.into_iter().flat_map(move |table| {
            let count = table.keys.len();
            let is_open = family.has_open_end(table);
            let keys = table.keys.iter().enumerate().skip(first);
            keys.map(move |(index, (column, kind))| {
                let extent = columns.and_then(|columns| columns.keys.get(index));
                let is_last = index + 1 == count;
                Segment {
                    column,
                    kind: *kind,
                    extent: extent.map_or(Extent::All, |extent| extent.without(taken)),
                    without: (!is_last || !is_open).then_some(table.separator),
                    may_be_empty: first + 1 < count,
                }
            })
        })
    }

    /// Refuses an id that can have no row, and returns the reason.
    pub fn check(&self, id: &str) -> Result<(), String> {
        let (length, longest) = (id.len(), self.longest());
        if !(1..=longest).contains(&length) {
            return Err(format!("it has {length} bytes, allowed are 1 to {longest}"));
        }
        let mut rest = Some(id);
        let mut segments = self.segments().peekable();
        while let Some(segment) = segments.next() {
            let Some(text) = rest else {
                return Err(format!("nothing is left for column {}", segment.column));
            };
            let split = match segments.peek() {
                Some(_) => text.split_once(self.family.separator()),
                None => None,
            };
            let part = split.map_or(text, |(part, _)| part);
            if !segment.takes(part) {
                let (column, words) = (segment.column, segment.words(longest));
                return Err(format!("{part:?} is not {words} for column {column}"));
            }
            rest = split.map(|(_, rest)| rest);
        }
        Ok(())
    }

    /// Returns the regular expression that matches an id as a whole. PCRE, JavaScript, Python, Ruby
    /// and RE2 read it alike, with text as characters. It cannot count bytes, so it also matches
    /// ids that are too long in bytes.
    pub fn pattern(&self) -> String {
        let longest = self.longest();
        let patterns: Vec<_> = self.segments().map(|one| one.pattern(longest)).collect();
        if patterns.is_empty() {
            return format!("{ANY}{{1,{longest}}}");
        }
        patterns.join(&literal(self.family.separator()))
    }

    /// Returns the rule in words, which follow "expected".
    pub fn words(&self) -> String {
        let longest = self.longest();
        let segments: Vec<_> = self.segments().collect();
        match &segments[..] {
            [] => format!("1 to {longest} bytes of UTF-8"),
            [one] => one.words(longest),
            several => {
                let columns: Vec<_> = several.iter().map(|one| one.column).collect();
                let rules: Vec<_> = several
                    .iter()
                    .map(|one| format!("{} {}", one.column, one.words(longest)))
                    .collect();
                format!(
                    "{} of {}",
                    columns.join(&self.family.separator().to_string()),
                    rules.join(", ")
                )
            }
        }
    }
}

impl Extent {
    /// Returns what is left of it after so many characters.
    fn without(&self, taken: usize) -> Extent {
        match self {
            Extent::Characters(most) => Extent::Characters(most.saturating_sub(taken)),
            Extent::Bytes(most) => Extent::Bytes(most.saturating_sub(taken)),
            other => other.clone(),
        }
    }
}

impl Segment<'_> {
    fn takes(&self, part: &str) -> bool {
        let fits = match &self.extent {
            Extent::Numbers(range) => part.parse().is_ok_and(|number| range.contains(&number)),
            Extent::Characters(most) => part.chars().count() <= *most,
            Extent::Bytes(most) => part.len() <= *most,
            Extent::All => true,
        };
        let is_split = self
            .without
            .is_some_and(|character| part.contains(character));
        let is_missing = part.is_empty() && !self.may_be_empty;
        fits && !is_split && !is_missing && self.kind.is_canonical(part)
    }

    /// Returns the numbers that it can be.
    fn numbers(&self) -> RangeInclusive<i128> {
        let all = match self.kind {
            KeyType::Signed => i64::MIN.into()..=i64::MAX.into(),
            KeyType::DateTime => 0..=KeyType::LAST_SECOND.into(),
            _ => 0..=u64::MAX.into(),
        };
        match &self.extent {
            Extent::Numbers(range) => *all.start().max(range.start())..=*all.end().min(range.end()),
            _ => all,
        }
    }

    /// Returns the largest number of characters.
    fn most(&self, longest: usize) -> usize {
        match self.extent {
            Extent::Characters(most) | Extent::Bytes(most) => most.min(longest),
            _ => longest,
        }
    }

    fn pattern(&self, longest: usize) -> String {
        let any = match self.without {
            Some(character) => format!("[^{}]", in_class(character)),
            None => ANY.to_owned(),
        };
        let (least, most) = (usize::from(!self.may_be_empty), self.most(longest));
        match self.kind {
            KeyType::Unsigned | KeyType::Signed | KeyType::DateTime => numbers(&self.numbers()),
            KeyType::Date => DAY.to_owned(),
            KeyType::Uuid => "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}".to_owned(),
            KeyType::Text => format!("{any}{{{least},{most}}}"),
            KeyType::Char => {
                let without = self.without.filter(|character| *character != ' ');
                let end = format!("[^ {}]", without.map(in_class).unwrap_or_default());
                let text = format!("{any}{{0,{}}}{end}", most.saturating_sub(1));
                if self.may_be_empty {
                    format!("(?:{text})?")
                } else {
                    text
                }
            }
        }
    }

    fn words(&self, longest: usize) -> String {
        match self.kind {
            KeyType::Unsigned | KeyType::Signed => {
                let (least, most) = self.numbers().into_inner();
                format!("a number from {least} to {most} without leading zeros")
            }
            KeyType::Date => "a day YYYY-MM-DD".to_owned(),
            KeyType::DateTime => {
                let (least, most) = self.numbers().into_inner();
                format!("a time in Unix seconds from {least} to {most} without leading zeros")
            }
            KeyType::Uuid => "a UUID in lower case with hyphens".to_owned(),
            KeyType::Text | KeyType::Char => {
                let (most, unit) = match self.extent {
                    Extent::Characters(most) if most < longest => (most, "characters"),
                    _ => (self.most(longest), "bytes"),
                };
                let mut words = format!("text of up to {most} {unit}");
                if let Some(character) = self.without {
                    let _ = write!(words, " without {character:?}");
                }
                if self.kind == KeyType::Char {
                    words.push_str(" that does not end in a space");
                }
                words
            }
        }
    }
}

/// Any character, also a line break.
const ANY: &str = r"[\s\S]";

/// The days from 1000-01-01 to 9999-12-31, with those of leap years at the end.
const DAY: &str = "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])\
    |(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))\
    |(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)";

/// Returns the pattern of the numbers of a range that includes 0, or begins at 1, without leading
/// zeros or `-0`.
fn numbers(range: &RangeInclusive<i128>) -> String {
    let mut ways = Vec::new();
    ways.extend(range.contains(&0).then(|| "0".to_owned()));
    ways.extend(up_to(*range.end(), ""));
    ways.extend(up_to(-*range.start(), "-"));
    format!("(?:{})", ways.join("|"))
}

/// Returns the patterns of the numbers from 1 to `most`, each with a sign in front.
fn up_to(most: i128, sign: &str) -> Vec<String> {
    if most < 1 {
        return Vec::new();
    }
    let digits: Vec<_> = most.to_string().bytes().map(|byte| byte - b'0').collect();
    let mut ways = Vec::new();
    if digits.len() > 1 {
        // all numbers with fewer digits
        ways.push(format!("{sign}[1-9][0-9]{{0,{}}}", digits.len() - 2));
    }
    let mut equal = sign.to_owned();
    for (index, digit) in digits.iter().enumerate() {
        // the numbers whose digits are equal before this one, and smaller here
        let least = u8::from(index == 0);
        if *digit > least {
            let smaller = match digit - least {
                1 => least.to_string(),
                _ => format!("[{least}-{}]", digit - 1),
            };
            let rest = match digits.len() - index - 1 {
                0 => String::new(),
                1 => "[0-9]".to_owned(),
                count => format!("[0-9]{{{count}}}"),
            };
            ways.push(format!("{equal}{smaller}{rest}"));
        }
        let _ = write!(equal, "{digit}");
    }
    ways.push(equal);
    ways
}

/// Returns the pattern of one character.
fn literal(character: char) -> String {
    match character {
        '^' | '$' | '\\' | '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' => {
            format!("\\{character}")
        }
        control if control.is_ascii_control() => format!("\\x{:02x}", u32::from(control)),
        other => other.to_string(),
    }
}

/// Returns a character within a class of characters.
fn in_class(character: char) -> String {
    match character {
        '-' => "\\-".to_owned(),
        other => literal(other),
    }
}

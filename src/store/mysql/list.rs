//! The counters of a family, page by page: those that begin with a prefix, or all in the order of
//! the table's key.

use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, Row};

use super::json::hex;
use super::lookup;
use super::session::Database;
use super::statement::Statement;
use super::target::{self, Segment, StoredKey, Target};
use crate::error::{Error, Result};
use crate::store::Registration;

/// The range of requested ids.
struct Range<'p> {
    /// The values of the leading key columns that the prefix gives in full.
    fixed: Vec<Segment<'p>>,
    /// The part of every id that spells them, with the separators. What follows it is compared as
    /// text.
    lead: &'p str,
    /// The lower bound of that text in byte order, inclusive.
    from: Vec<u8>,
    /// The upper bound, exclusive.
    to: Vec<u8>,
}

impl<'p> Range<'p> {
    /// Returns `None` if no id can be in the range.
    fn new(family: &Registration, prefix: &'p str, after: Option<&str>) -> Option<Self> {
        let (fixed, rest) = match &family.family.table {
            None => (vec![Segment::Number(family.number.0.into())], prefix),
            Some(table) => {
                let mut parts: Vec<_> = prefix.splitn(table.keys.len(), table.separator).collect();
                let rest = parts.pop().unwrap_or_default();
                let fixed: Option<_> = parts
                    .into_iter()
                    .zip(&table.keys)
                    .map(|(text, (_, kind))| {
                        kind.is_canonical(text).then(|| Segment::new(*kind, text))
                    })
                    .collect();
                (fixed?, rest)
            }
        };
        let lead = &prefix[..prefix.len() - rest.len()];
        let from = match after {
            // `after` with a zero byte behind it is the next text in byte order
            Some(after) if after >= prefix => format!("{}\0", after.strip_prefix(lead)?),
            _ => rest.to_owned(),
        };
        let to = match rest.as_bytes() {
            // 0xff occurs in no UTF-8 text
            [] => vec![0xff],
            // no overflow, since no byte of UTF-8 is 0xff
            [start @ .., last] => [start, &[last + 1]].concat(),
        };
        Some(Range {
            fixed,
            lead,
            from: from.into_bytes(),
            to,
        })
    }
}

/// Returns the SELECT of the rows with `count` leading columns, between two texts.
fn select(target: &Target, count: usize, separator: char) -> Statement {
    let (fixed, others) = target.keys.split_at(count);
    let rest = match others {
        [key] => key.bytes(),
        keys => {
            let between = format!(", X'{}', ", hex(separator.to_string()));
            let texts = target::join(keys, &between, StoredKey::bytes);
            format!("CONCAT({texts})")
        }
    };
    let conditions: String = fixed.iter().map(|key| key.equals() + " AND ").collect();
    Statement::new(format!(
        "SELECT {rest}, {} FROM {} AS t WHERE {conditions}{rest} >= ? AND {rest} < ? ORDER BY {rest} LIMIT ?",
        target.digits, target.name
    ))
}

/// Returns up to `limit` ids that begin with `prefix` and come after `after`, with their values.
///
/// The key columns whose segments the prefix gives in full are looked up. If a single VARBINARY
/// column is left, the statement reads a range of the index, no further than the limit. Otherwise it
/// builds the ids as text, filters and sorts them. That reads all rows with those leading columns, or
/// the whole table if the prefix gives none.
pub async fn ids_with_prefix(
    database: &Database,
    target: &Target,
    family: &Registration,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, i64)>> {
    let mut found = Vec::new();
    let Some(mut range) = Range::new(family, prefix, after) else {
        return Ok(found);
    };
    let of_columns = select(target, range.fixed.len(), family.family.separator());
    let select = target::bind(of_columns, range.fixed);
    while found.len() < limit {
        let want = limit - found.len();
        let page = select.clone().bind(&range.from).bind(&range.to);
        let rows: Vec<(Vec<u8>, String)> = database
            .read("counters were not listed", page.bind(want as u64))
            .await?;
        let is_last = rows.len() < want;
        for (rest, digits) in rows {
            // skips a row whose columns spell no valid id, such as the day 0000-00-00
            if let Ok(text) = std::str::from_utf8(&rest)
                && let id = format!("{}{text}", range.lead)
                && family.family.check_id(&id).is_ok()
            {
                let value = lookup::value(family, &id, &digits)?;
                found.push((id, value));
            }
            range.from = rest;
            range.from.push(0);
        }
        if is_last {
            break;
        }
    }
    Ok(found)
}

/// Returns up to `limit` ids of the family's counters that come after `after` in the order of the key
/// columns. It reads a range of the key, however many ids come before.
pub async fn ids_after(
    database: &Database,
    target: &Target,
    family: &Registration,
    after: Option<&str>,
    limit: usize,
) -> Result<IdPage> {
    let keys = target.id_keys();
    let columns: Vec<_> = keys.iter().map(|key| key.column.clone()).collect();
    let of_family = match family.family.table {
        None => format!("family = {}", family.number),
        Some(_) => "TRUE".to_owned(),
    };
    let start = page_start(family, after)?;
    let select = Statement::new(format!(
        "SELECT {} FROM {} WHERE {of_family}{} ORDER BY {} LIMIT ?",
        target::join(keys, ", ", |key| key.bytes_of(&key.column)),
        target.name,
        condition_after(keys, &columns, &start, false),
        columns.join(", "),
    ));
    let page = bind_after(select, keys, &start, false).bind(limit as u64);
    let rows = database.read("ids were not listed", page).await?;
    IdPage::new(family, rows, limit)
}

/// Returns the key of the id after which a page begins, or none for the first page.
pub fn page_start<'id>(family: &Registration, id: Option<&'id str>) -> Result<Vec<Segment<'id>>> {
    id.map(|id| target::segments(family, id).map_err(Error::invalid))
        .unwrap_or(Ok(Vec::new()))
}

/// Returns the condition that a row comes after a key, in the order of these columns. It begins with
/// AND; for the first page it is empty. [`bind_after`] binds its parameters.
pub fn condition_after(
    keys: &[StoredKey],
    columns: &[String],
    after: &[Segment<'_>],
    as_text: bool,
) -> String {
    if after.is_empty() {
        return String::new();
    }
    let parameters: Vec<_> = keys.iter().map(|key| key.parameter(as_text)).collect();
    // a comparison of whole keys uses no index, and the one of the first column does
    format!(
        " AND {} >= {} AND ({}) > ({})",
        columns[0],
        parameters[0],
        columns.join(", "),
        parameters.join(", ")
    )
}

/// Binds the parameters of [`condition_after`]: the first column of the key, then all of it.
pub fn bind_after(
    select: Statement,
    keys: &[StoredKey],
    after: &[Segment<'_>],
    as_text: bool,
) -> Statement {
    let bound = keys.iter().zip(after);
    let twice = bound.clone().take(1).chain(bound);
    twice.fold(select, |select, (key, segment)| {
        key.bind(select, *segment, as_text)
    })
}

/// Ids in the order of their key columns.
#[derive(Debug, Default)]
pub(crate) struct IdPage {
    pub(crate) ids: Vec<String>,
    /// `true` if there may be more ids.
    pub(crate) is_full: bool,
}

impl IdPage {
    /// Reads the ids of the rows of a page, and skips those that the family cannot have. A page of
    /// `limit` rows or more may have a next one.
    pub fn new(family: &Registration, rows: Vec<Columns>, limit: usize) -> Result<Self> {
        let is_full = rows.len() >= limit;
        let ids: Vec<_> = rows
            .into_iter()
            .filter_map(|row| row.id(family))
            .filter(|id| family.family.check_id(id).is_ok())
            .collect();
        if ids.is_empty() && is_full {
            return Err(Error::mismatch(format!(
                "{}: {limit} successive rows have keys that are not valid ids",
                family.family
            )));
        }
        Ok(IdPage { ids, is_full })
    }
}

/// The columns of a row as bytes: those of a key, and others after it.
pub struct Columns(pub Vec<Option<Vec<u8>>>);

impl FromRow<'_, MySqlRow> for Columns {
    fn from_row(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        (0..row.len())
            .map(|index| row.try_get(index))
            .collect::<Result<_, _>>()
            .map(Columns)
    }
}

impl Columns {
    /// Returns the id that the first columns spell, or `None` if they are not text.
    pub fn id(self, family: &Registration) -> Option<String> {
        let table = family.family.table.as_ref();
        let count = table.map_or(1, |table| table.keys.len());
        let keys = self.0.into_iter().take(count);
        let segments: Option<Vec<_>> = keys.map(|key| String::from_utf8(key?).ok()).collect();
        Some(segments?.join(&family.family.separator().to_string()))
    }
}

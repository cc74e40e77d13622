//! The counters of a family, page by page: those that begin with a prefix, or all in the order of
//! the table's key.

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::MysqlStore;
use super::fault::store;
use super::json::hex;
use super::lookup;
use super::session::Database;
use super::statement::Statement;
use super::target::{self, Segment, StoredKey, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Registered;

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

/// Returns up to `limit` ids that begin with `prefix` and come after `after`, with their values.
///
/// The key columns whose segments the prefix gives in full are looked up. If a single VARBINARY
/// column is left, the statement reads a range of the index, no further than the limit. Otherwise
/// it builds the ids as text, filters and sorts them. That reads all rows with those leading
/// columns, or the whole table if the prefix gives none.
pub async fn list(
    database: &Database,
    target: &Target,
    family: &Registered,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, i64)>> {
    let mut found = Vec::new();
    let Some(mut range) = Range::new(family, prefix, after) else {
        return Ok(found);
    };
    let select = select(target, range.fixed.len(), family.family.separator());
    let select = target::bind(select, range.fixed);
    while found.len() < limit {
        let want = limit - found.len();
        let page = select.clone().bind(&range.from).bind(&range.to);
        let page = database.read("counters were not listed", page.bind(want as u64));
        let rows: Vec<(Vec<u8>, String)> = page.await?;
        let is_last = rows.len() < want;
        for (rest, digits) in rows {
            // skips a row whose columns spell no valid id, such as the day 0000-00-00
            if let Ok(rest) = std::str::from_utf8(&rest)
                && let id = format!("{}{rest}", range.lead)
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

impl<'p> Range<'p> {
    /// Returns `None` if no id can be in the range.
    fn new(family: &Registered, prefix: &'p str, after: Option<&str>) -> Option<Self> {
        let (fixed, lead) = match &family.family.table {
            None => (vec![Segment::Number(family.number.into())], ""),
            Some(table) => {
                let mut given: Vec<_> = prefix.splitn(table.keys.len(), table.separator).collect();
                let rest = given.pop().unwrap_or_default();
                let fixed = given.into_iter().zip(&table.keys).map(|(text, key)| {
                    let is_canonical = key.kind.is_canonical(text);
                    is_canonical.then(|| Segment::new(key.kind, text))
                });
                let lead = &prefix[..prefix.len() - rest.len()];
                (fixed.collect::<Option<_>>()?, lead)
            }
        };
        let mut from = prefix.as_bytes().to_vec();
        if let Some(after) = after.filter(|after| after.as_bytes() >= prefix.as_bytes()) {
            // the next text in byte order
            from = [after.as_bytes(), &[0]].concat();
        }
        let from = from.strip_prefix(lead.as_bytes())?.to_vec();
        let to = match &prefix.as_bytes()[lead.len()..] {
            // 0xff occurs in no UTF-8 text
            [] => vec![0xff],
            // no overflow, since no byte of UTF-8 is 0xff
            [start @ .., last] => [start, &[last + 1]].concat(),
        };
        Some(Range {
            fixed,
            lead,
            from,
            to,
        })
    }
}

/// Returns the SELECT of the rows with `fixed` leading columns, between two texts.
fn select(target: &Target, fixed: usize, separator: char) -> Statement {
    let (fixed, rest) = target.keys.split_at(fixed);
    let rest = match rest {
        [key] => key.bytes(),
        keys => {
            let columns: Vec<_> = keys.iter().map(StoredKey::bytes).collect();
            let separator = hex(separator.to_string());
            format!("CONCAT({})", columns.join(&format!(", X'{separator}', ")))
        }
    };
    let fixed: String = fixed.iter().map(|key| key.equals() + " AND ").collect();
    Statement::new(format!(
        "SELECT {rest}, {} FROM {} AS t WHERE {fixed}{rest} >= ? AND {rest} < ? ORDER BY {rest} LIMIT ?",
        target.digits, target.name
    ))
}

impl MysqlStore {
    /// Returns up to `limit` ids of the family's counters that come after `after` in the order of
    /// the key columns. It reads a range of the key, however many ids come before.
    pub(crate) async fn ids_after(
        &self,
        family: &Registered,
        after: Option<&str>,
        limit: usize,
    ) -> Result<IdPage> {
        let target = self.target(&family.family).await?;
        let keys = target.id_keys();
        let spelt: Vec<_> = keys.iter().map(StoredKey::bytes).collect();
        let columns: Vec<_> = keys.iter().map(|key| format!("t.{}", key.column)).collect();
        let of_family = match family.family.table {
            None => format!("t.family = {}", family.number),
            Some(_) => "TRUE".to_owned(),
        };
        let after = After::new(
            family,
            after,
            &columns,
            keys.iter().map(StoredKey::parameter),
        )?;
        let select = Statement::new(format!(
            "SELECT {} FROM {} AS t WHERE {of_family}{} ORDER BY {} LIMIT ?",
            spelt.join(", "),
            target.name,
            after.condition,
            columns.join(", "),
        ));
        let select = target::bind(select, after.segments);
        let rows = self.primary.fetch(select.bind(limit as u64)).await;
        IdPage::new(family, &rows.map_err(store("ids were not listed"))?, limit)
    }
}

/// The condition that a row comes after that of an id, in the order of its columns.
#[derive(Default)]
pub struct After<'id> {
    /// Begins with AND; empty for the first page.
    pub condition: String,
    /// The parameters of the condition: the first column's twice.
    pub segments: Vec<Segment<'id>>,
}

impl<'id> After<'id> {
    pub fn new(
        family: &Registered,
        id: Option<&'id str>,
        columns: &[String],
        parameters: impl Iterator<Item = String>,
    ) -> Result<Self> {
        let (Some(id), [first, ..]) = (id, columns) else {
            return Ok(After::default());
        };
        let key = target::segments(family, id).map_err(Error::invalid)?;
        let (parameters, columns): (Vec<_>, _) = (parameters.collect(), columns.join(", "));
        // the comparison of rows uses no index, and that of the first column does
        let condition = format!(
            " AND {first} >= {} AND ({columns}) > ({})",
            parameters[0],
            parameters.join(", ")
        );
        let segments = [&key[..1], &key].concat();
        Ok(After {
            condition,
            segments,
        })
    }
}

/// Ids in the order of their key columns.
#[derive(Debug, Default)]
pub(crate) struct IdPage {
    pub(crate) ids: Vec<String>,
    /// `true` if there may be more ids.
    pub(crate) is_full: bool,
}

impl IdPage {
    /// Reads the ids of up to `limit` rows, and skips those that the family cannot have.
    pub fn new(family: &Registered, rows: &[MySqlRow], limit: usize) -> Result<Self> {
        let ids: Result<Vec<_>, _> = rows.iter().map(|row| id(family, row)).collect();
        let ids = ids.map_err(store("ids were not listed"))?;
        let is_valid = |id: &String| family.family.check_id(id).is_ok();
        let ids: Vec<_> = ids.into_iter().flatten().filter(is_valid).collect();
        let is_full = rows.len() == limit;
        if ids.is_empty() && is_full {
            let what = format!(
                "{}: {limit} successive rows have keys that are not valid ids",
                family.family
            );
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        Ok(IdPage { ids, is_full })
    }
}

/// Returns the id that a row's first columns spell, or `None` if they are not text.
pub fn id(family: &Registered, row: &MySqlRow) -> Result<Option<String>, sqlx::Error> {
    let table = family.family.table.as_ref();
    let mut segments = Vec::new();
    for index in 0..table.map_or(1, |table| table.keys.len()) {
        let bytes: Option<Vec<u8>> = row.try_get(index)?;
        let Some(text) = bytes.and_then(|bytes| String::from_utf8(bytes).ok()) else {
            return Ok(None);
        };
        segments.push(text);
    }
    Ok(Some(segments.join(&family.family.separator().to_string())))
}

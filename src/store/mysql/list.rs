//! The counters of a family, page by page: those that begin with a prefix, or all in the order of
//! the table's key.

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row};

use super::MysqlStore;
use super::fault::store;
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
    let text = text(target, range.fixed.len(), family.family.separator());
    while found.len() < limit {
        let want = limit - found.len();
        let query = || {
            let query = sqlx::query(AssertSqlSafe(text.clone()));
            let fixed = range.fixed.iter();
            fixed
                .fold(query, |query, segment| segment.bind(query))
                .bind(&range.from)
                .bind(&range.to)
                .bind(want as u64)
        };
        let row =
            |row: &MySqlRow| Ok((row.try_get::<Vec<u8>, _>(0)?, row.try_get::<String, _>(1)?));
        let rows = database.fetch_each(query, row).await;
        let rows = rows.map_err(store("counters were not listed"))?;
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

fn text(target: &Target, fixed: usize, separator: char) -> String {
    let separator = separator.to_string();
    let separator: String = separator
        .bytes()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    let (fixed, rest) = target.keys.split_at(fixed);
    let rest = match rest {
        [key] => key.bytes(),
        keys => {
            let columns: Vec<_> = keys.iter().map(StoredKey::bytes).collect();
            format!("CONCAT({})", columns.join(&format!(", X'{separator}', ")))
        }
    };
    let conditions = fixed.iter().map(|key| key.compared("="));
    let conditions: Vec<_> = conditions
        .chain([format!("{rest} >= ? AND {rest} < ?")])
        .collect();
    format!(
        "SELECT {rest}, {} FROM {} AS t WHERE {} ORDER BY {rest} LIMIT ?",
        target.digits,
        target.name,
        conditions.join(" AND ")
    )
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
        let columns: Vec<_> = keys.iter().map(|key| format!("t.{}", key.column)).collect();
        let spelt: Vec<_> = keys.iter().map(StoredKey::bytes).collect();
        let of_family = match family.family.table {
            None => format!("t.family = {} AND ", family.number),
            Some(_) => String::new(),
        };
        let text = format!(
            "SELECT {} FROM {} AS t WHERE {of_family}{} ORDER BY {} LIMIT ?",
            spelt.join(", "),
            target.name,
            beyond(after, keys.len(), |index, sign| keys[index].compared(sign)),
            columns.join(", "),
        );
        let bind = |query, _, segment: &Segment<'_>| segment.bind(query);
        let rows = page(&self.primary, family, &text, after, limit, bind).await?;
        IdPage::new(family, &rows.map_err(store("ids were not listed"))?, limit)
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

/// Returns the condition that a row comes after the given one, in the order of the columns. The
/// first column alone bounds the range.
pub fn beyond(
    after: Option<&str>,
    columns: usize,
    compared: impl Fn(usize, &str) -> String,
) -> String {
    let mut beyond = "TRUE".to_owned();
    for index in (0..columns).rev().filter(|_| after.is_some()) {
        let greater = compared(index, ">");
        beyond = if index == columns - 1 {
            greater
        } else {
            format!("{} AND ({greater} OR ({beyond}))", compared(index, ">="))
        };
    }
    beyond
}

/// Fetches the rows [beyond] an id. `bind` takes the index of the segment's column.
pub async fn page(
    database: &Database,
    family: &Registered,
    text: &str,
    after: Option<&str>,
    limit: usize,
    bind: impl Fn(Statement, usize, &Segment<'_>) -> Statement,
) -> Result<Result<Vec<MySqlRow>, sqlx::Error>> {
    let after = after.map_or_else(|| Ok(Vec::new()), |after| target::segments(family, after));
    let after = after.map_err(Error::invalid)?;
    let query = || {
        let mut query = sqlx::query(AssertSqlSafe(text.to_owned()));
        for (index, segment) in after.iter().enumerate() {
            // all but the last one are compared twice
            for _ in 0..if index + 1 < after.len() { 2 } else { 1 } {
                query = bind(query, index, segment);
            }
        }
        query.bind(limit as u64)
    };
    Ok(database.fetch(query).await)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_after_another_by_its_columns_in_order() {
        let compared = |index: usize, sign: &str| format!("c{index} {sign} ?");
        assert_eq!(beyond(None, 2, compared), "TRUE");
        assert_eq!(beyond(Some("a"), 1, compared), "c0 > ?");
        assert_eq!(
            beyond(Some("a"), 2, compared),
            "c0 >= ? AND (c0 > ? OR (c1 > ?))"
        );
    }
}

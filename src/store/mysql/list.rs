//! The counters that begin with a prefix, page by page.

use sqlx::{AssertSqlSafe, MySqlPool, Row};

use super::fault::store;
use super::parts::StoredKey;
use super::session::{self, Meter};
use super::snapshot;
use super::target::Target;
use crate::error::Result;
use crate::family::table::KeyType;
use crate::store::Registered;

/// The range of requested ids.
struct Range {
    /// The values of the leading key columns that the prefix gives in full, as they are spelt in an
    /// id.
    fixed: Vec<String>,
    /// The part of every id that spells them, with the separators. What follows it is compared as
    /// text.
    lead: String,
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
pub(super) async fn list(
    pool: &MySqlPool,
    meter: &Meter,
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
    let separator = family
        .family
        .table
        .as_ref()
        .map_or('/', |table| table.separator);
    let text = text(target, range.fixed.len(), separator);
    while found.len() < limit {
        let want = limit - found.len();
        let rows = page(pool, meter, &text, target, &range, want)
            .await
            .map_err(store("counters were not listed"))?;
        let last = rows.len() < want;
        for (rest, digits) in rows {
            // skips a row whose columns spell no valid id, such as the day 0000-00-00
            if let Ok(rest) = std::str::from_utf8(&rest)
                && let id = format!("{}{rest}", range.lead)
                && family.family.check_id(&id).is_ok()
            {
                let value = snapshot::value(family, &id, &digits)?;
                found.push((id, value));
            }
            range.from = rest;
            range.from.push(0);
        }
        if last {
            break;
        }
    }
    Ok(found)
}

impl Range {
    /// Returns `None` if no id can be in the range.
    fn new(family: &Registered, prefix: &str, after: Option<&str>) -> Option<Self> {
        let (fixed, lead) = match &family.family.table {
            None => (vec![family.number.to_string()], ""),
            Some(table) => {
                let mut fixed: Vec<_> = prefix
                    .splitn(table.keys.len(), table.separator)
                    .map(str::to_owned)
                    .collect();
                let rest = fixed.pop().unwrap_or_default();
                if !fixed
                    .iter()
                    .zip(&table.keys)
                    .all(|(segment, key)| key.kind.is_canonical(segment))
                {
                    return None;
                }
                (fixed, &prefix[..prefix.len() - rest.len()])
            }
        };
        let mut from = prefix.as_bytes().to_vec();
        if let Some(after) = after.filter(|after| after.as_bytes() >= prefix.as_bytes()) {
            // the next text in byte order
            from = [after.as_bytes(), &[0]].concat();
        }
        let from = from.strip_prefix(lead.as_bytes())?.to_vec();
        Some(Range {
            fixed,
            lead: lead.to_owned(),
            from,
            to: behind(&prefix.as_bytes()[lead.len()..]),
        })
    }
}

/// Returns the first bytes that come after every text that begins with `prefix`, which is UTF-8.
fn behind(prefix: &[u8]) -> Vec<u8> {
    match prefix {
        // 0xff occurs in no UTF-8 text
        [] => vec![0xff],
        // no overflow, since no byte of UTF-8 is 0xff
        [start @ .., last] => [start, &[last + 1]].concat(),
    }
}

fn text(target: &Target, fixed: usize, separator: char) -> String {
    let separator: String = separator
        .to_string()
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
    let conditions: Vec<_> = fixed.iter().map(StoredKey::equals_parameter).collect();
    let conditions = conditions
        .into_iter()
        .chain([format!("{rest} >= ? AND {rest} < ?")])
        .collect::<Vec<_>>();
    format!(
        "SELECT {rest}, {} FROM {} AS t WHERE {} ORDER BY {rest} LIMIT ?",
        target.digits,
        target.name,
        conditions.join(" AND ")
    )
}

async fn page(
    pool: &MySqlPool,
    meter: &Meter,
    text: &str,
    target: &Target,
    range: &Range,
    limit: usize,
) -> Result<Vec<(Vec<u8>, String)>, sqlx::Error> {
    let query = || {
        let mut query = sqlx::query(AssertSqlSafe(text.to_owned()));
        for (segment, key) in range.fixed.iter().zip(&target.keys) {
            query = match key.kind {
                KeyType::Text | KeyType::Char => query.bind(segment.as_bytes()),
                _ => query.bind(segment),
            };
        }
        query.bind(&range.from).bind(&range.to).bind(limit as u64)
    };
    let rows = session::fetch(pool, meter, query).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

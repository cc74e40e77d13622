//! The rows that a recount compares counters with: counted by a statement, in a table, or by the
//! application.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlPool, Row};
use tokio::time::timeout;

use super::MysqlStore;
use super::fault::{self, store};
use super::json;
use super::parts::{Segment, StoredKey};
use super::session;
use super::shape::Storage;
use super::statement::{Statement, quoted, table_name};
use super::target::{self, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::table::{KeyType, is_name, is_table_name};
use crate::store::Registered;

/// The rows that a family's counters stand for, and the way to count them for many ids
/// (docs/protocol.md, section 9).
///
/// A row must be committed before it is counted. An id that the source does not return has no rows.
///
/// ```
/// use counterfoil::recount::Source;
/// // ids are bound for the one (?), as the types of the family's key columns say
/// let saves = Source::sql("SELECT user_id, COUNT(*) FROM saves WHERE user_id IN (?) GROUP BY user_id");
/// // the same, which can also list the ids that have rows
/// let saves = Source::table("saves", ["user_id"]).filter("deleted_at IS NULL");
/// // two key columns, and a sum in place of a number of rows
/// let points = Source::table("shop.purchases", ["customer", "day"]).sum("points");
/// ```
#[derive(Clone)]
pub struct Source {
    rows: Rows,
    filter: Option<String>,
    sum: Option<String>,
}

#[derive(Clone)]
enum Rows {
    Sql(String),
    Table { name: String, keys: Vec<String> },
    Function(Arc<Function>),
}

type Counts = Result<HashMap<String, i64>, Box<dyn StdError + Send + Sync>>;
type Function = dyn Fn(Vec<String>) -> BoxFuture<'static, Counts> + Send + Sync;

/// The name of the count in a source's statement.
const COUNT: &str = "counterfoil_count";

impl Source {
    /// Creates a source from a SELECT. Its columns are the key columns of the family's table, in
    /// their order, followed by the number of rows, an integer.
    ///
    /// The text has `(?)` once, for the ids. With several key columns, write `(store_id, day) IN
    /// (?)`. A family without a table of the application has one key, the whole id.
    pub fn sql(select: impl Into<String>) -> Self {
        Source::of(Rows::Sql(select.into()))
    }

    /// Creates a source from the rows of a table, whose name may include its schema. `keys` are the
    /// table's columns that hold the family's key columns. They need an index.
    pub fn table(
        name: impl Into<String>,
        keys: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Source::of(Rows::Table {
            name: name.into(),
            keys: keys.into_iter().map(Into::into).collect(),
        })
    }

    /// Creates a source from a function of the application, which maps ids to their numbers of
    /// rows. An id that is missing in the result has no rows.
    pub fn function<F, R>(count: F) -> Self
    where
        F: Fn(Vec<String>) -> R + Send + Sync + 'static,
        R: Future<Output = Counts> + Send + 'static,
    {
        Source::of(Rows::Function(Arc::new(move |ids| count(ids).boxed())))
    }

    fn of(rows: Rows) -> Self {
        Source {
            rows,
            filter: None,
            sum: None,
        }
    }

    /// Counts only those rows of the [table](Self::table) that meet a condition, the text of a
    /// WHERE.
    #[must_use]
    pub fn filter(mut self, condition: impl Into<String>) -> Self {
        self.filter = Some(condition.into());
        self
    }

    /// Uses the sum of that column of the [table](Self::table), an integer, instead of the number
    /// of rows.
    #[must_use]
    pub fn sum(mut self, column: impl Into<String>) -> Self {
        self.sum = Some(column.into());
        self
    }

    /// Returns whether the source can list the ids that have rows.
    pub(crate) fn lists_ids(&self) -> bool {
        matches!(self.rows, Rows::Table { .. })
    }

    /// Refuses a source that does not fit this family.
    pub(crate) fn check(&self, family: &Family) -> Result<()> {
        let wrong = |what: String| {
            Err(Error::invalid(format!(
                "{family}: the source of a recount: {what}"
            )))
        };
        let expected = family.table.as_ref().map_or(1, |table| table.keys.len());
        match &self.rows {
            Rows::Table { name, keys } => {
                if !is_table_name(name) {
                    return wrong(format!("{name:?} is not a name MySQL takes"));
                }
                if let Some(column) = keys.iter().chain(&self.sum).find(|column| !is_name(column)) {
                    return wrong(format!("column {column:?} is not a name MySQL takes"));
                }
                if keys.len() != expected {
                    return wrong(format!(
                        "{} key columns, and the family's table has {expected}",
                        keys.len()
                    ));
                }
            }
            _ if self.filter.is_some() || self.sum.is_some() => {
                return wrong("only a table has a filter or a sum".into());
            }
            Rows::Sql(text) if text.matches("(?)").count() != 1 => {
                return wrong(format!("the ids are to stand in one (?): {text}"));
            }
            Rows::Sql(_) | Rows::Function(_) => {}
        }
        Ok(())
    }

    /// Returns the number of rows of each id, in the order of the ids. Fails if that takes longer
    /// than `limit`.
    pub(crate) async fn count(
        &self,
        mysql: &MysqlStore,
        replica: Option<&MySqlPool>,
        family: &Registered,
        ids: &[&str],
        limit: Duration,
    ) -> Result<Vec<i64>> {
        let counts = match &self.rows {
            Rows::Function(count) => {
                let counted =
                    timeout(limit, count(ids.iter().map(|&id| id.to_owned()).collect())).await;
                let counts = counted.map_err(|_| late(limit))?;
                counts.map_err(|source| {
                    Error::new(ErrorKind::Store, "rows were not counted").with_source(source)
                })?
            }
            _ => {
                let pool = replica.unwrap_or(&mysql.primary);
                self.select(mysql, pool, family, ids, limit).await?
            }
        };
        let asked: HashMap<&str, usize> =
            ids.iter().enumerate().map(|(at, &id)| (id, at)).collect();
        let mut rows = vec![0; ids.len()];
        for (id, count) in counts {
            let wrong = |what| {
                Err(Error::invalid(format!(
                    "{}: the source of a recount: {id:?}: {what}",
                    family.family
                )))
            };
            match asked.get(&*id) {
                Some(_) if count < 0 => return wrong("a count below 0"),
                Some(&at) => rows[at] = count,
                None => return wrong("was not asked for"),
            }
        }
        Ok(rows)
    }

    async fn select(
        &self,
        mysql: &MysqlStore,
        pool: &MySqlPool,
        family: &Registered,
        ids: &[&str],
        limit: Duration,
    ) -> Result<HashMap<String, i64>> {
        let target = mysql.target(&family.family).await?;
        let keys = own_keys(&target, family);
        let names: Vec<_> = (0..keys.len()).map(|index| format!("k{index}")).collect();
        let spelt: Vec<_> = keys
            .iter()
            .zip(&names)
            .map(|(key, name)| spelt(key, name))
            .collect();
        let marks = format!("({})", vec!["?"; keys.len()].join(", "));
        let marks = vec![if keys.len() == 1 { "?" } else { &*marks }; ids.len()].join(", ");
        let select = self.text().replacen("(?)", &format!("({marks})"), 1);
        let text = format!(
            "WITH counterfoil_source ({}, {COUNT}) AS ({select}) \
             SELECT {}, CAST({COUNT} AS CHAR) FROM counterfoil_source",
            names.join(", "),
            spelt.join(", "),
        );
        let segments = ids.iter().map(|id| own_segments(family, id));
        let segments: Vec<_> = segments
            .collect::<std::result::Result<_, _>>()
            .map_err(Error::invalid)?;
        let query = || {
            // a text for each number of ids would fill the server's table of prepared statements
            let query = sqlx::query(AssertSqlSafe(text.clone())).persistent(false);
            segments
                .iter()
                .flatten()
                .zip(keys.iter().cycle())
                .fold(query, |query, (segment, key)| bind(query, key, segment))
        };
        let rows = timeout(limit, session::fetch(pool, &mysql.meter, query))
            .await
            .map_err(|_| late(limit))?;
        let rows = rows.map_err(|error| refused(&family.family, error))?;
        let mut counts = HashMap::with_capacity(rows.len());
        for row in &rows {
            let (id, digits) = read(family, row, keys.len())?;
            let wrong = |what: String| {
                Error::invalid(format!(
                    "{}: the source of a recount: {id:?}: {what}",
                    family.family
                ))
            };
            let digits = digits.ok_or_else(|| wrong("the count is NULL".into()))?;
            let count = whole(&digits)
                .ok_or_else(|| wrong(format!("{digits} is no whole number of 64 bits")))?;
            if counts.insert(id.clone(), count).is_some() {
                return Err(wrong("came twice".into()));
            }
        }
        Ok(counts)
    }

    fn text(&self) -> String {
        match &self.rows {
            Rows::Sql(text) => text.clone(),
            Rows::Table { name, keys } => {
                let keys = keys
                    .iter()
                    .map(|key| quoted(key))
                    .collect::<Vec<_>>()
                    .join(", ");
                let count = match &self.sum {
                    Some(column) => format!("COALESCE(SUM({}), 0)", quoted(column)),
                    None => "COUNT(*)".to_owned(),
                };
                let (name, filter) = (table_name(name), self.condition());
                format!(
                    "SELECT {keys}, {count} FROM {name} WHERE ({keys}) IN (?){filter} GROUP BY {keys}"
                )
            }
            Rows::Function(_) => String::new(),
        }
    }

    fn condition(&self) -> String {
        self.filter
            .as_ref()
            .map_or_else(String::new, |filter| format!(" AND ({filter})"))
    }

    /// Returns up to `limit` ids that have rows and come after `after` in the order of the table's
    /// columns. Skips ids that the family cannot have.
    pub(crate) async fn ids_after(
        &self,
        mysql: &MysqlStore,
        replica: Option<&MySqlPool>,
        family: &Registered,
        after: Option<&str>,
        limit: usize,
    ) -> Result<IdPage> {
        let Rows::Table {
            name,
            keys: columns,
        } = &self.rows
        else {
            return Ok(IdPage::default());
        };
        let target = mysql.target(&family.family).await?;
        let keys = own_keys(&target, family);
        let columns: Vec<_> = columns.iter().map(|column| quoted(column)).collect();
        let spelt: Vec<_> = keys
            .iter()
            .zip(&columns)
            .map(|(key, column)| spelt(key, column))
            .collect();
        let (compared, order) = (
            |index: usize, sign: &str| format!("{} {sign} ?", columns[index]),
            columns.join(", "),
        );
        let beyond = after.map_or_else(|| "TRUE".to_owned(), |_| beyond(columns.len(), compared));
        let text = format!(
            "SELECT {} FROM (SELECT DISTINCT {order} FROM {} WHERE {beyond}{} ORDER BY {order} LIMIT ?) AS counterfoil_source \
             ORDER BY {order}",
            spelt.join(", "),
            table_name(name),
            self.condition(),
        );
        let pool = replica.unwrap_or(&mysql.primary);
        page(
            mysql,
            pool,
            family,
            &text,
            after,
            limit,
            |query, at, segment| bind(query, &keys[at], segment),
        )
        .await
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.text()).finish()
    }
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
        let keys = own_keys(&target, family);
        let columns: Vec<_> = keys.iter().map(|key| format!("t.{}", key.column)).collect();
        let spelt: Vec<_> = keys.iter().map(StoredKey::bytes).collect();
        let compared = |index: usize, sign: &str| keys[index].compared(sign);
        let beyond = after.map_or_else(|| "TRUE".to_owned(), |_| beyond(keys.len(), compared));
        let of_family = if family.family.table.is_none() {
            format!("t.family = {} AND ", family.number)
        } else {
            String::new()
        };
        let text = format!(
            "SELECT {} FROM {} AS t WHERE {of_family}{beyond} ORDER BY {} LIMIT ?",
            spelt.join(", "),
            target.name,
            columns.join(", "),
        );
        page(
            self,
            &self.primary,
            family,
            &text,
            after,
            limit,
            |query, _, segment| segment.bind(query),
        )
        .await
    }

    /// Returns the lag of the server behind this pool, if it is a replica and this user may read
    /// the lag.
    pub(crate) async fn lag(&self, pool: &MySqlPool) -> Result<Option<Duration>> {
        self.meter.sent(1);
        let row = match sqlx::raw_sql("SHOW REPLICA STATUS")
            .fetch_optional(pool)
            .await
        {
            Err(error) if error.as_database_error().is_some() => return Ok(None),
            asked => asked.map_err(store("a replica was not asked for its lag"))?,
        };
        let Some(row) = row else { return Ok(None) };
        let seconds = ["Seconds_Behind_Source", "Seconds_Behind_Master"].into_iter();
        let seconds = seconds
            .filter_map(|name| row.try_get::<Option<u64>, _>(name).ok())
            .next();
        match seconds {
            None => Ok(None),
            Some(Some(seconds)) => Ok(Some(Duration::from_secs(seconds))),
            Some(None) => Err(Error::new(
                ErrorKind::Store,
                "the replica does not replicate",
            )),
        }
    }
}

/// Returns the key columns that an id spells: in counterfoil's own table all but the family.
fn own_keys<'t>(target: &'t Target, family: &Registered) -> &'t [StoredKey] {
    &target.keys[usize::from(family.family.table.is_none())..]
}

fn own_segments<'id>(
    family: &Registered,
    id: &'id str,
) -> std::result::Result<Vec<Segment<'id>>, String> {
    let skip = usize::from(family.family.table.is_none());
    Ok(target::segments(family, id)?
        .into_iter()
        .skip(skip)
        .collect())
}

/// Returns the condition that a row comes after the given one, in the order of the columns. The
/// first column alone bounds the range.
fn beyond(columns: usize, compared: impl Fn(usize, &str) -> String) -> String {
    let (mut beyond, last) = (String::new(), columns - 1);
    for index in (0..columns).rev() {
        beyond = if index == last {
            compared(index, ">")
        } else {
            format!(
                "{} AND ({} OR ({beyond}))",
                compared(index, ">="),
                compared(index, ">")
            )
        };
    }
    beyond
}

/// Returns the segments as often as [`beyond`] takes them: all but the last one twice.
fn page_binds<'s, 'id>(
    segments: &'s [Segment<'id>],
) -> impl Iterator<Item = (usize, &'s Segment<'id>)> {
    let last = segments.len().saturating_sub(1);
    let twice = move |at: usize| if at == last { 1 } else { 2 };
    segments
        .iter()
        .enumerate()
        .flat_map(move |(at, segment)| std::iter::repeat_n((at, segment), twice(at)))
}

async fn page(
    mysql: &MysqlStore,
    pool: &MySqlPool,
    family: &Registered,
    text: &str,
    after: Option<&str>,
    limit: usize,
    bind: impl Fn(Statement, usize, &Segment<'_>) -> Statement,
) -> Result<IdPage> {
    let segments = after
        .map_or_else(|| Ok(Vec::new()), |after| own_segments(family, after))
        .map_err(Error::invalid)?;
    let query = || {
        let query = sqlx::query(AssertSqlSafe(text.to_owned()));
        page_binds(&segments)
            .fold(query, |query, (at, segment)| bind(query, at, segment))
            .bind(limit as u64)
    };
    let rows = session::fetch(pool, &mysql.meter, query)
        .await
        .map_err(|error| refused(&family.family, error))?;
    let keys = family
        .family
        .table
        .as_ref()
        .map_or(1, |table| table.keys.len());
    let ids = rows.iter().map(|row| id(family, row, keys));
    let ids: Vec<_> = ids
        .collect::<std::result::Result<_, _>>()
        .map_err(store("ids were not listed"))?;
    let ids: Vec<_> = ids
        .into_iter()
        .flatten()
        .filter(|id| family.family.check_id(id).is_ok())
        .collect();
    let is_full = rows.len() == limit;
    if ids.is_empty() && is_full {
        let what = format!(
            "{}: {limit} rows in a row have keys that are no ids of it",
            family.family
        );
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    Ok(IdPage { ids, is_full })
}

/// Ids in the order of their key columns.
#[derive(Debug, Default)]
pub(crate) struct IdPage {
    pub(crate) ids: Vec<String>,
    /// `true` if there may be more ids.
    pub(crate) is_full: bool,
}

/// Returns the id that a row's key columns spell, or `None` if they are not text.
fn id(
    family: &Registered,
    row: &MySqlRow,
    keys: usize,
) -> std::result::Result<Option<String>, sqlx::Error> {
    let separator = family
        .family
        .table
        .as_ref()
        .map_or('/', |table| table.separator);
    let mut id = String::new();
    for index in 0..keys {
        let Some(bytes) = row.try_get::<Option<Vec<u8>>, _>(index)? else {
            return Ok(None);
        };
        let Ok(text) = String::from_utf8(bytes) else {
            return Ok(None);
        };
        if index > 0 {
            id.push(separator);
        }
        id.push_str(&text);
    }
    Ok(Some(id))
}

fn read(family: &Registered, row: &MySqlRow, keys: usize) -> Result<(String, Option<String>)> {
    let read = || {
        Ok((
            id(family, row, keys)?,
            row.try_get::<Option<String>, _>(keys)?,
        ))
    };
    let (id, digits) = read().map_err(store("rows were not counted"))?;
    let is_none = || {
        Error::invalid(format!(
            "{}: the source of a recount returned a key that is NULL or no text",
            family.family
        ))
    };
    Ok((id.ok_or_else(is_none)?, digits))
}

/// Returns a column as the id spells it, in bytes.
fn spelt(key: &StoredKey, column: &str) -> String {
    match (key.kind, &key.storage) {
        (KeyType::Uuid, Storage::UuidBytes) => key.bytes_of(column.to_owned()),
        (KeyType::Unsigned | KeyType::Signed, _) => {
            format!("CAST(CAST({column} + 0 AS CHAR) AS BINARY)")
        }
        _ => format!("CAST(CAST({column} AS CHAR) AS BINARY)"),
    }
}

/// Binds a parameter that is compared with a column of the application. It has the column's own
/// type, so that the column's index is used.
fn bind(query: Statement, key: &StoredKey, segment: &Segment<'_>) -> Statement {
    match (segment, &key.storage) {
        (Segment::Number(number), _) => match i64::try_from(*number) {
            Ok(number) => query.bind(number),
            Err(_) => query.bind(u64::try_from(*number).unwrap_or(u64::MAX)),
        },
        (Segment::Plain(text), Storage::UuidBytes) => {
            query.bind(json::unhex(&text.replace('-', "")).unwrap_or_default())
        }
        (Segment::Plain(text) | Segment::Text(text), _) => query.bind((*text).to_owned()),
    }
}

/// Parses an integer that may end in a decimal point and zeros.
fn whole(digits: &str) -> Option<i64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    fraction
        .bytes()
        .all(|digit| digit == b'0')
        .then(|| whole.parse().ok())?
}

fn late(limit: Duration) -> Error {
    Error::new(
        ErrorKind::Store,
        format!("rows were not counted within {limit:?}"),
    )
}

/// Returns the error of a source's statement. If the server refuses the text, the application made
/// a mistake.
fn refused(family: &Family, error: sqlx::Error) -> Error {
    let what = format!(
        "{family}: the source of a recount: {}",
        fault::message(&error)
    );
    let kind = match error.as_database_error().and_then(|error| error.code()) {
        Some(state) if state.starts_with("42") || state.starts_with("21") => {
            ErrorKind::InvalidInput
        }
        Some(state) if state == "HY000" && what.contains("column") => ErrorKind::InvalidInput,
        _ => ErrorKind::Store,
    };
    Error::new(kind, what).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_may_have_zeros_behind_the_point() {
        let read = ["7", "-7", "7.000", "7.5", "", "NaN", "9223372036854775808"].map(whole);
        assert_eq!(read, [Some(7), Some(-7), Some(7), None, None, None, None]);
    }

    #[test]
    fn a_row_comes_after_another_by_its_columns_in_order() {
        let compared = |index: usize, sign: &str| format!("c{index} {sign} ?");
        assert_eq!(beyond(1, compared), "c0 > ?");
        assert_eq!(beyond(2, compared), "c0 >= ? AND (c0 > ? OR (c1 > ?))");
    }
}

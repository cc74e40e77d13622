//! The rows that a recount compares counters with: counted by a statement, in a table, or by the
//! application.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, MySqlPool, Row};
use tokio::time::timeout;

use super::MysqlStore;
use super::fault::{self, store};
use super::list::{self, IdPage};
use super::session::Database;
use super::shape::Storage;
use super::statement::{Statement, quoted, table_name};
use super::target::{self, Segment, StoredKey};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::table::{is_name, is_table_name};
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
        let wrong = |what: String| Err(wrong(family, what));
        let expected = family.table.as_ref().map_or(1, |table| table.keys.len());
        match &self.rows {
            Rows::Table { name, keys } => {
                if !is_table_name(name) {
                    return wrong(format!("{name:?} is not a name that MySQL accepts"));
                }
                if let Some(column) = keys.iter().chain(&self.sum).find(|column| !is_name(column)) {
                    return wrong(format!(
                        "column {column:?} is not a name that MySQL accepts"
                    ));
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
                return wrong(format!("the ids belong into exactly one (?): {text}"));
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
                let counted = count(ids.iter().map(|&id| id.to_owned()).collect());
                let counts = timeout(limit, counted).await.map_err(|_| late(limit))?;
                counts.map_err(|source| {
                    Error::new(ErrorKind::Store, "rows were not counted").with_source(source)
                })?
            }
            _ => {
                let database = mysql.on(replica);
                self.select(mysql, &database, family, ids, limit).await?
            }
        };
        let indexes: HashMap<&str, usize> = ids.iter().copied().zip(0..).collect();
        let mut rows = vec![0; ids.len()];
        for (id, count) in counts {
            let wrong = |what| Err(wrong(&family.family, format!("{id:?} {what}")));
            match indexes.get(&*id) {
                Some(_) if count < 0 => return wrong("has a count below 0"),
                Some(&index) => rows[index] = count,
                None => return wrong("was not requested"),
            }
        }
        Ok(rows)
    }

    async fn select(
        &self,
        mysql: &MysqlStore,
        database: &Database,
        family: &Registered,
        ids: &[&str],
        limit: Duration,
    ) -> Result<HashMap<String, i64>> {
        let target = mysql.target(&family.family).await?;
        let keys = target.id_keys();
        let names: Vec<_> = (0..keys.len()).map(|index| format!("k{index}")).collect();
        let marks = format!("({})", vec!["?"; keys.len()].join(", "));
        let marks = vec![if keys.len() == 1 { "?" } else { &*marks }; ids.len()].join(", ");
        let select = self.text().replacen("(?)", &format!("({marks})"), 1);
        let text = format!(
            "WITH counterfoil_source ({}, {COUNT}) AS ({select}) \
             SELECT {}, CAST({COUNT} AS CHAR) FROM counterfoil_source",
            names.join(", "),
            spelt(keys, &names),
        );
        let segments = ids.iter().map(|id| target::segments(family, id));
        let segments: Vec<_> = segments.collect::<Result<_, _>>().map_err(Error::invalid)?;
        let query = || {
            // a text for each number of ids would fill the server's table of prepared statements
            let query = sqlx::query(AssertSqlSafe(text.clone())).persistent(false);
            segments
                .iter()
                .flatten()
                .zip(keys.iter().cycle())
                .fold(query, |query, (segment, key)| bind(query, key, segment))
        };
        let rows = timeout(limit, database.fetch(query))
            .await
            .map_err(|_| late(limit))?;
        let rows = rows.map_err(|error| refused(&family.family, error))?;
        let mut counts = HashMap::with_capacity(rows.len());
        for row in &rows {
            let read = || Ok((list::id(family, row)?, row.try_get(keys.len())?));
            let (id, digits): (_, Option<String>) =
                read().map_err(store("rows were not counted"))?;
            let id =
                id.ok_or_else(|| wrong(&family.family, "returned a key that is NULL or not text"))?;
            let wrong = |what: &str| wrong(&family.family, format!("{id:?} {what}"));
            let digits = digits.ok_or_else(|| wrong("has the count NULL"))?;
            let count = integer(&digits)
                .ok_or_else(|| wrong(&format!("has the count {digits}, not a 64-bit integer")))?;
            if counts.insert(id.clone(), count).is_some() {
                return Err(wrong("was returned twice"));
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
        let keys = target.id_keys();
        let columns: Vec<_> = columns.iter().map(|column| quoted(column)).collect();
        let order = columns.join(", ");
        let text = format!(
            "SELECT {} FROM (SELECT DISTINCT {order} FROM {} WHERE {}{} ORDER BY {order} LIMIT ?) AS counterfoil_source \
             ORDER BY {order}",
            spelt(keys, &columns),
            table_name(name),
            list::beyond(after, keys.len(), |index, sign| format!(
                "{} {sign} ?",
                columns[index]
            )),
            self.condition(),
        );
        let bind = |query, index: usize, segment: &Segment<'_>| bind(query, &keys[index], segment);
        let rows = list::page(&mysql.on(replica), family, &text, after, limit, bind).await?;
        let rows = rows.map_err(|error| refused(&family.family, error))?;
        IdPage::new(family, &rows, limit)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.text()).finish()
    }
}

impl MysqlStore {
    /// Returns the lag of the server behind this pool, if it is a replica and this user may read
    /// the lag.
    pub(crate) async fn lag(&self, pool: &MySqlPool) -> Result<Option<Duration>> {
        self.primary.meter.sent(1);
        let row = match sqlx::raw_sql("SHOW REPLICA STATUS")
            .fetch_optional(pool)
            .await
        {
            Err(error) if error.as_database_error().is_some() => return Ok(None),
            row => row.map_err(store("the lag of a replica was not read"))?,
        };
        let Some(row) = row else { return Ok(None) };
        let seconds = ["Seconds_Behind_Source", "Seconds_Behind_Master"]
            .into_iter()
            .find_map(|name| row.try_get::<Option<u64>, _>(name).ok());
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

/// Returns columns with the values of keys, in bytes as an id spells them.
fn spelt(keys: &[StoredKey], columns: &[String]) -> String {
    let spelt = keys.iter().zip(columns);
    spelt
        .map(|(key, column)| key.bytes_of(column))
        .collect::<Vec<_>>()
        .join(", ")
}

fn wrong(family: &Family, what: impl fmt::Display) -> Error {
    Error::invalid(format!("{family}: the source of a recount: {what}"))
}

/// Binds a parameter that is compared with a column of the application. It has the column's own
/// type, so that the column's index is used.
fn bind(query: Statement, key: &StoredKey, segment: &Segment<'_>) -> Statement {
    match (segment, &key.storage) {
        (Segment::Plain(uuid), Storage::UuidBytes) => {
            let uuid = u128::from_str_radix(&uuid.replace('-', ""), 16).unwrap_or_default();
            query.bind(uuid.to_be_bytes().to_vec())
        }
        // as text, which has the collation of the column
        (Segment::Text(text), _) => query.bind(*text),
        _ => segment.bind(query),
    }
}

/// Parses an integer that may end in a decimal point and zeros.
fn integer(digits: &str) -> Option<i64> {
    let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_integer = fraction.bytes().all(|digit| digit == b'0');
    is_integer.then(|| integer.parse().ok())?
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
    fn an_integer_may_have_zeros_behind_the_point() {
        let read = ["7", "-7", "7.000", "7.5", "", "NaN", "9223372036854775808"].map(integer);
        assert_eq!(read, [Some(7), Some(-7), Some(7), None, None, None, None]);
    }
}

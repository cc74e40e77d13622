//! The rows that a recount compares counters with: counted by a statement, in a table, or by the
//! application.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, Row};
use tokio::time::timeout;

use super::MysqlStore;
use super::fault::{self, store};
use super::list::{self, Columns, IdPage};
use super::session::Database;
use super::shape::{self, Storage, exact_collations};
use super::statement::{Statement, quoted, table_name, text};
use super::target::{self, StoredKey, Target, join};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::table::{KeyType, Table, is_name, is_table_name};
use crate::store::Registration;

/// The longest wait for a count of rows, which may read all of a table.
const SCAN: Duration = Duration::from_hours(1);

/// The changes of the rows that a recount counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Rows are only added, and each stays and counts the same, 0 or more: purchases, or sums of
    /// points. Counters are corrected while hits arrive.
    ///
    /// If such rows are deleted or changed after all, the recount corrects counters that are right.
    Added,
    /// Rows are also deleted or changed, such as likes that are taken back, or count less than 0,
    /// such as votes of +1 and -1. A mark that the [filter](Source::filter) excludes
    /// (`deleted_at IS NULL`) deletes a row too.
    ///
    /// A counter is corrected only if nothing was counted in it meanwhile, not even +1 and -1.
    /// Others are checked three times in a run, and left for the next one. While such a run works,
    /// hits wait in Redis for up to twice [`within`](crate::recount::RecountBuilder::within), three
    /// times with a [`replica`](crate::recount::RecountBuilder::replica), and the
    /// [`timeout`](crate::recount::RecountBuilder::timeout).
    AddedAndDeleted,
}

/// The rows that a family's counters stand for, and the way to count them for many ids
/// (docs/protocol.md, section 9).
///
/// A row must be committed before it is counted. An id that the source does not return has no rows.
/// A row belongs to the id that its text spells, byte by byte. The id of a UUID is in lower case,
/// also if its row is not and the collation folds.
///
/// The SQL runs in a session of the store: in UTC, in a strict mode, on MySQL with ONLY_FULL_GROUP_BY, and `||` means OR.
///
/// ```
/// use counterfoil::recount::Source;
/// // ids are bound for (?), as the types of the family's key columns say
/// let saves = Source::sql("SELECT user_id, COUNT(*) FROM saves WHERE user_id IN (?) GROUP BY user_id");
/// // the same, which can also list the ids that have rows
/// let saves = Source::table("saves", ["user_id"]).filter("kind = 'save'");
/// // two key columns, and a sum in place of a number of rows
/// let points = Source::table("shop.purchases", ["customer", "day"]).sum("points");
/// ```
#[derive(Clone)]
pub struct Source {
    origin: Origin,
    filter: Option<String>,
    sum: Option<String>,
}

#[derive(Clone)]
enum Origin {
    Sql(String),
    Table { name: String, keys: Vec<String> },
    Function(Arc<Function>),
}

type Counts = Result<HashMap<String, i64>, Box<dyn StdError + Send + Sync>>;
type Function = dyn Fn(Vec<String>) -> BoxFuture<'static, Counts> + Send + Sync;

impl Source {
    /// Creates a source from a SELECT. Its columns are the key columns of the family's table, in
    /// their order, followed by the number of rows, an integer.
    ///
    /// The text has `(?)` for the ids. With several key columns, write `(store_id, day) IN (?)`. A
    /// family without a table of the application has one key, the whole id.
    ///
    /// Most collations take `Rust` and `rust` for equal, which are two ids. So keys that are text
    /// must be selected, compared and grouped as the bytes of utf8mb4. Another comparison uses the
    /// index:
    ///
    /// ```
    /// # use counterfoil::recount::Source;
    /// let saves = Source::sql(
    ///     "SELECT CAST(CONVERT(tag USING utf8mb4) AS BINARY), COUNT(*) FROM saves \
    ///      WHERE tag IN (?) AND CAST(CONVERT(tag USING utf8mb4) AS BINARY) IN (?) GROUP BY 1",
    /// );
    /// ```
    ///
    /// A recount fails if a text has a collation that folds, or if an id cannot be converted to the
    /// character set of the column that it is compared with. [`table`](Self::table) needs none of
    /// this.
    pub fn sql(select: impl Into<String>) -> Self {
        Source::of(Origin::Sql(select.into()))
    }

    /// Creates a source from the rows of a table, whose name may include its schema. `keys` are the
    /// table's columns that hold the family's key columns. They need an index, and may have any
    /// character set and collation, or another type in which the server finds the keys. A recount
    /// fails if it would find none, such as days in a `DATETIME`. [Times](crate::KeyType::DateTime)
    /// are found in a `DATETIME`, at the offset of the family's table, or a `TIMESTAMP` that has
    /// exactly these: a column with the time of each event needs a generated one beside it, or
    /// [`sql`](Self::sql).
    pub fn table(
        name: impl Into<String>,
        keys: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Source::of(Origin::Table {
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
        Source::of(Origin::Function(Arc::new(move |ids| count(ids).boxed())))
    }

    fn of(origin: Origin) -> Self {
        Source {
            origin,
            filter: None,
            sum: None,
        }
    }

    /// Counts only those rows of the [table](Self::table) that meet a condition, the text of a
    /// WHERE. With a condition that a row may cease to meet, such as `deleted_at IS NULL`, rows are
    /// [also deleted](Rows::AddedAndDeleted).
    #[must_use]
    pub fn filter(mut self, condition: impl Into<String>) -> Self {
        self.filter = Some(condition.into());
        self
    }

    /// Uses the sum of that column of the [table](Self::table), an integer, instead of the number
    /// of rows. A column that may be below 0, such as votes of +1 and -1, needs
    /// [`Rows::AddedAndDeleted`].
    #[must_use]
    pub fn sum(mut self, column: impl Into<String>) -> Self {
        self.sum = Some(column.into());
        self
    }

    /// Returns whether the source can list the ids that have rows.
    pub(crate) fn lists_ids(&self) -> bool {
        matches!(self.origin, Origin::Table { .. })
    }

    /// Refuses a source that does not fit this family.
    #[doc(hidden)]
    pub fn check(&self, family: &Family) -> Result<()> {
        let expected = family.table.as_ref().map_or(1, |table| table.keys.len());
        let what = match &self.origin {
            Origin::Table { name, keys } => {
                let mut columns = keys.iter().chain(&self.sum);
                if !is_table_name(name) {
                    format!("{name:?} is not a name that MySQL accepts")
                } else if let Some(column) = columns.find(|column| !is_name(column)) {
                    format!("column {column:?} is not a name that MySQL accepts")
                } else if keys.len() != expected {
                    format!(
                        "{} key columns, and the family's table has {expected}",
                        keys.len()
                    )
                } else {
                    return Ok(());
                }
            }
            _ if self.filter.is_some() || self.sum.is_some() => {
                "only a table has a filter or a sum".to_owned()
            }
            Origin::Sql(text) if !text.contains("(?)") => {
                format!("the ids need at least one (?): {text}")
            }
            Origin::Sql(_) | Origin::Function(_) => return Ok(()),
        };
        Err(wrong(family, what))
    }

    /// Returns the number of rows of each id, in the order of the ids. Fails if that takes longer
    /// than `limit`, or if the rows are only added and a count is below 0.
    pub(crate) async fn count(
        &self,
        mysql: &MysqlStore,
        replica: Option<&MysqlStore>,
        family: &Registration,
        ids: &[&str],
        limit: Duration,
        declared: Rows,
    ) -> Result<Vec<i64>> {
        let count = self.count_by_id(mysql, replica, family, ids, declared);
        let mut by_id = timeout(limit, count)
            .await
            .map_err(|_| Error::store(format!("rows were not counted within {limit:?}")))??;
        let counts: Vec<_> = ids
            .iter()
            .map(|id| by_id.remove(*id).unwrap_or(0))
            .collect();
        if declared == Rows::Added
            && let Some((id, _)) = ids.iter().zip(&counts).find(|(_, count)| **count < 0)
        {
            let what = "has a count or a row below 0, so its rows are not \"added\" but \"added_and_deleted\"";
            return Err(wrong(&family.family, format!("{id:?} {what}")));
        }
        match by_id.keys().next() {
            // the collation of a table's column may also find other spellings of an id, which are
            // left out
            Some(id) if !self.lists_ids() => {
                Err(wrong(&family.family, format!("{id:?} was not requested")))
            }
            _ => Ok(counts),
        }
    }

    /// Returns the number of rows of each id that the source has.
    async fn count_by_id(
        &self,
        mysql: &MysqlStore,
        replica: Option<&MysqlStore>,
        family: &Registration,
        ids: &[&str],
        declared: Rows,
    ) -> Result<HashMap<String, i64>> {
        if let Origin::Function(count) = &self.origin {
            return count(ids.iter().map(|&id| id.to_owned()).collect())
                .await
                .map_err(|source| Error::store("rows were not counted").with_source(source));
        }
        let target = mysql.target(&family.family).await?;
        let source = server(mysql, replica);
        let keys = self.keys(&source, &target, family).await?;
        let select = self.select(&keys, family, ids, declared)?;
        counts(family, rows(&source, family, select).await?)
    }

    /// Returns the key columns as the source stores them.
    async fn keys(
        &self,
        source: &Database,
        target: &Target,
        family: &Registration,
    ) -> Result<Vec<StoredKey>> {
        let mut keys = target.id_keys().to_vec();
        if let Origin::Table { name, keys: names } = &self.origin {
            let columns = shape::columns(source, name).await?;
            let table = family.family.table.as_ref();
            let ahead = table.map_or(0, Table::ahead_of_utc);
            for (key, name) in keys.iter_mut().zip(names) {
                // the server's own error names a column that is missing
                if let Some(column) = columns.get(&name.to_lowercase()) {
                    key.storage = column
                        .storage_in_source(name, key.kind, ahead)
                        .map_err(|what| wrong(&family.family, what))?;
                }
            }
        }
        Ok(keys)
    }

    /// Returns the SELECT of the ids' keys, a collation that folds them or NULL, and the counts.
    fn select(
        &self,
        keys: &[StoredKey],
        family: &Registration,
        ids: &[&str],
        declared: Rows,
    ) -> Result<Statement> {
        // the application's own text says how its parameters are converted
        let parameters = match self.origin {
            Origin::Table { .. } => join(keys, ", ", |key| key.parameter(true)),
            _ => join(keys, ", ", |key| key.own_parameter().to_owned()),
        };
        // MySQL takes (?) for a row of one column as well
        let marks = vec![format!("({parameters})"); ids.len()].join(", ");
        let text = self.text(keys, declared);
        let folding: String = keys
            .iter()
            .filter(|key| is_text(key))
            .map(folding)
            .collect();
        // a text for each number of ids would fill the server's table of prepared statements
        let mut select = Statement::once(format!(
            "WITH counterfoil_source ({}, counterfoil_count) AS ({}) \
             SELECT {}, COALESCE({folding}NULL), CAST(counterfoil_count AS CHAR) FROM counterfoil_source",
            join(keys, ", ", |key| key.name.clone()),
            text.replace("(?)", &format!("({marks})")),
            join(keys, ", ", |key| key.bytes_of(&key.name)),
        ));
        for _ in text.matches("(?)") {
            for id in ids {
                let segments = target::segments(family, id).map_err(Error::invalid)?;
                for (key, segment) in keys.iter().zip(segments) {
                    select = key.bind(select, segment, true);
                }
            }
        }
        Ok(select)
    }

    fn text(&self, keys: &[StoredKey], declared: Rows) -> String {
        match &self.origin {
            Origin::Sql(text) => text.clone(),
            Origin::Table {
                name,
                keys: key_columns,
            } => {
                let columns: Vec<_> = key_columns.iter().map(|column| quoted(column)).collect();
                let groups: Vec<_> = keys.iter().zip(&columns).map(exact).collect();
                format!(
                    "SELECT {groups}, {} FROM {} WHERE ({}) IN (?){} GROUP BY {groups}",
                    self.count_of_group(declared),
                    table_name(name),
                    columns.join(", "),
                    self.condition(),
                    groups = groups.join(", "),
                )
            }
            Origin::Function(_) => String::new(),
        }
    }

    /// Returns the expression that counts the rows of an id in a table.
    fn count_of_group(&self, declared: Rows) -> String {
        let Some(column) = self.sum.as_deref().map(quoted) else {
            return "COUNT(*)".to_owned();
        };
        let sum = format!("COALESCE(SUM({column}), 0)");
        if declared == Rows::Added {
            format!("CASE WHEN MIN({column}) < 0 THEN -1 ELSE {sum} END")
        } else {
            sum
        }
    }

    fn condition(&self) -> String {
        match &self.filter {
            Some(filter) => format!(" AND ({filter})"),
            None => String::new(),
        }
    }

    /// Returns the ids that have rows and come after `after` in the order of the table's columns:
    /// up to `limit`, and more if their collation takes several for equal, which then are on one
    /// page. Skips ids that the family cannot have.
    pub(crate) async fn ids_after(
        &self,
        mysql: &MysqlStore,
        replica: Option<&MysqlStore>,
        family: &Registration,
        after: Option<&str>,
        limit: usize,
    ) -> Result<IdPage> {
        let Origin::Table {
            name,
            keys: key_columns,
        } = &self.origin
        else {
            return Ok(IdPage::default());
        };
        let (target, source) = (mysql.target(&family.family).await?, server(mysql, replica));
        let keys = self.keys(&source, &target, family).await?;
        let start = list::page_start(family, after)?;
        let columns: Vec<_> = key_columns.iter().map(|column| quoted(column)).collect();
        let spelt: Vec<_> = keys
            .iter()
            .zip(&columns)
            .map(|(key, column)| key.bytes_of(column))
            .collect();
        let least: Vec<_> = columns
            .iter()
            .map(|column| format!("MIN({column})"))
            .collect();
        let present: Vec<_> = columns
            .iter()
            .map(|column| format!("{column} IS NOT NULL"))
            .collect();
        let select = Statement::new(format!(
            "SELECT {spelt} FROM {name} WHERE ({order}) IN (SELECT {order} FROM (\
             SELECT DISTINCT {order} FROM {name} WHERE {found}{is_after}{filter} ORDER BY {order} LIMIT ?\
             ) AS counterfoil_source){filter} GROUP BY {spelt} ORDER BY {}",
            least.join(", "),
            spelt = spelt.join(", "),
            name = table_name(name),
            order = columns.join(", "),
            found = present.join(" AND "),
            is_after = list::condition_after(&keys, &columns, &start, true),
            filter = self.condition(),
        ));
        let page = list::bind_after(select, &keys, &start, true).bind(limit as u64);
        IdPage::new(family, rows(&source, family, page).await?, limit)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// Returns the lag of the server, the longest of all that it replicates, if it is a replica and this
/// user may read the lag.
pub async fn lag(database: &Database) -> Result<Option<Duration>> {
    // MariaDB; MySQL; MySQL before 8.0.22
    let statements = [
        "SHOW ALL SLAVES STATUS",
        "SHOW REPLICA STATUS",
        "SHOW SLAVE STATUS",
    ];
    for statement in statements {
        let sources = match database.fetch(Statement::new(statement)).await {
            Err(error) if fault::is_syntax(&error) => continue,
            Err(error) if error.as_database_error().is_some() => return Ok(None),
            reply => reply.map_err(store("the lag of a replica was not read"))?,
        };
        let lags: Option<Vec<_>> = sources.into_iter().map(|Lag(lag)| lag).collect();
        return match lags {
            Some(lags) => Ok(lags.into_iter().max()),
            None => Err(Error::store("the replica does not replicate")),
        };
    }
    Ok(None)
}

/// The lag behind one source; `None` if the server does not replicate it.
struct Lag(Option<Duration>);

impl FromRow<'_, MySqlRow> for Lag {
    fn from_row(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let seconds = row
            .try_get("Seconds_Behind_Source")
            .or_else(|_| row.try_get("Seconds_Behind_Master"));
        seconds.map(|seconds: Option<u64>| Lag(seconds.map(Duration::from_secs)))
    }
}

fn wrong(family: &Family, what: impl fmt::Display) -> Error {
    Error::invalid(about(family, what))
}

fn about(family: &Family, what: impl fmt::Display) -> String {
    format!("{family}: the source of a recount: {what}")
}

/// Reads the rows of a source's statement, each with an id and its count.
fn counts(family: &Registration, rows: Vec<Columns>) -> Result<HashMap<String, i64>> {
    let mut counts = HashMap::with_capacity(rows.len());
    for mut row in rows {
        let digits = row.0.pop().flatten().map(text);
        if let Some(collation) = row.0.pop().flatten() {
            let folds = format!("different ids are equal under its {}", text(collation));
            return Err(wrong(&family.family, format!("{folds}; {ADVICE}")));
        }
        let Some(id) = row.id(family) else {
            let null = "returned a key that is NULL or not text";
            return Err(wrong(&family.family, null));
        };
        let what = match digits.as_deref().map(|digits| (digits, integer(digits))) {
            None => "has the count NULL".to_owned(),
            Some((digits, None)) => format!("has the count {digits}, not a 64-bit integer"),
            Some(_) if counts.contains_key(&id) => "was returned twice".to_owned(),
            Some((_, Some(count))) => {
                counts.insert(id, count);
                continue;
            }
        };
        return Err(wrong(&family.family, format!("{id:?} {what}")));
    }
    Ok(counts)
}

const ADVICE: &str =
    "use a table, or select, compare and group by CAST(CONVERT(.. USING utf8mb4) AS BINARY)";

fn is_text(key: &StoredKey) -> bool {
    matches!(key.kind, KeyType::Text | KeyType::Char)
}

/// Returns a column in the form by which rows are grouped: text as bytes, because a collation may
/// take different ids for equal.
fn exact((key, column): (&StoredKey, &String)) -> String {
    if is_text(key) || matches!(key.storage, Storage::Characters { .. }) {
        key.bytes_of(column)
    } else {
        column.clone()
    }
}

/// Returns the collation of a text under which the rows of several ids are one group, or NULL.
fn folding(key: &StoredKey) -> String {
    let exact = exact_collations(key.kind).join("', '");
    let name = &key.name;
    format!("IF(COLLATION({name}) IN ('binary', '{exact}'), NULL, COLLATION({name})), ")
}

/// Parses an integer that may end in a decimal point and zeros.
fn integer(digits: &str) -> Option<i64> {
    let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    fraction
        .bytes()
        .all(|digit| digit == b'0')
        .then(|| integer.parse().ok())?
}

/// Words of errors without a SQLSTATE of their own that blame the text of a source.
const OF_TEXT: [&str; 2] = ["column", "collation"];

/// Returns the server that has the rows.
fn server(mysql: &MysqlStore, replica: Option<&MysqlStore>) -> Database {
    Database {
        limit: SCAN,
        ..replica.unwrap_or(mysql).primary.clone()
    }
}

/// Reads the rows of a source's statement.
async fn rows(source: &Database, family: &Registration, select: Statement) -> Result<Vec<Columns>> {
    let fetched = source.fetch(select).await;
    fetched.map_err(|error| refused(&family.family, error))
}

/// Returns the error of a source's statement. If the server refuses the text, or sqlx its number of
/// parameters, the application made a mistake.
fn refused(family: &Family, error: sqlx::Error) -> Error {
    let message = fault::message(&error);
    let kind = match fault::class(&error).as_deref() {
        None if matches!(error, sqlx::Error::Protocol(_)) => ErrorKind::InvalidInput,
        _ if fault::concerns_server(&error) => ErrorKind::Store,
        Some("42" | "21") => ErrorKind::InvalidInput,
        Some("HY") if OF_TEXT.iter().any(|word| message.contains(word)) => ErrorKind::InvalidInput,
        _ => ErrorKind::Store,
    };
    Error::new(kind, about(family, message)).with_source(error)
}

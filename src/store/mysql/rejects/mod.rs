//! Deltas that the database refused: one reject for each family and id, which holds their sum and the
//! last reason, so that they never block the others (docs/protocol.md, section 1, promise 5). It
//! exists until its row takes the sum, or until it is discarded.

mod limit;
mod take;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, Row};

pub use self::limit::Limit;
use self::limit::count_up_to;
pub use self::take::BY_ID;
use self::take::{PAGE, RejectOutcome, RejectTransaction, Selection, parsed};
use self::write::NOW;
pub use self::write::{REASON, RefusedDelta, short, write};
use super::MysqlStore;
use super::json::{self, hex};
use super::session::Database;
use super::statement::{Statement, text, time, unix_ms};
use super::target::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::store::{FamilyNumber, Registration, Store};

/// The deltas of an id that the database refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reject {
    /// The family's namespace.
    pub namespace: String,
    /// The family's name.
    pub family: String,
    /// The counter's id. One of more than 255 bytes is cut, and bytes that are not UTF-8 are
    /// replaced.
    pub id: String,
    /// The sum of the deltas.
    pub delta: i128,
    /// The reason of the last refusal, in most cases the server's own words. At most 1024
    /// characters.
    pub reason: String,
    /// The time of the first refusal, by the database's clock.
    pub first_at: SystemTime,
    /// The time of the last refusal.
    pub last_at: SystemTime,
    /// The number of refused retries.
    pub retries: u64,
    /// The time of the next retry; `None` if no row can ever have the id.
    pub retry_at: Option<SystemTime>,
    /// The position in the [list](MysqlStore::rejects).
    pub cursor: String,
}

/// The outcome of a retry of rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetrySummary {
    /// The number of rejects that their rows took. They exist no longer.
    pub applied: u64,
    /// The number of rejects that were refused again. Each has the new reason.
    pub refused: u64,
    /// The number of rejects that stay because another transaction has locked their rows.
    pub left: u64,
}

/// Returns the maximum number of rejects if there are as many.
pub async fn maximum_if_reached(database: &Database, limit: &Limit) -> Result<Option<u64>> {
    let (rejects,): (u64,) = database
        .read_one("rejects were not counted", count_up_to(limit.most))
        .await?;
    Ok((rejects >= limit.most).then_some(limit.most))
}

/// Reads up to `limit` rejects of a family, `NAMESPACE/FAMILY`, or of all families, by family and id.
/// `after` is the cursor of the last one of the page before.
pub async fn list(
    database: &Database,
    family: Option<&str>,
    after: Option<&str>,
    limit: u64,
) -> Result<Vec<Reject>> {
    const BY_FAMILY: &str = "(PRIMARY) STRAIGHT_JOIN counterfoil_families AS f ON f.number = r.family \
         WHERE (r.family = ? AND r.id >= ? OR r.family > ?) AND r.family <= ? ORDER BY r.family, r.id LIMIT ?";
    let (mut first, mut last) = (FamilyNumber(0), FamilyNumber(u32::MAX.into()));
    if let Some(family) = family {
        let Some(number) = number_of(database, family).await? else {
            return Ok(Vec::new());
        };
        (first, last) = (number, number);
    }
    let (from, id) = match after {
        None => (first, Vec::new()),
        Some(after) => position(after).ok_or_else(|| {
            let what = format!("{after:?} is not the cursor of a reject");
            Error::new(ErrorKind::InvalidInput, what)
        })?,
    };
    let select = select(BY_FAMILY)
        .bind(from)
        .bind(id)
        .bind(from)
        .bind(last)
        .bind(limit);
    read(database, select).await
}

/// Reads the latest `limit` rejects, the newest first.
pub async fn latest(database: &Database, limit: u64) -> Result<Vec<Reject>> {
    const LATEST: &str = "(newest) STRAIGHT_JOIN counterfoil_families AS f ON f.number = r.family \
         ORDER BY r.first_at DESC LIMIT ?";
    read(database, select(LATEST).bind(limit)).await
}

/// Returns the statement that reads rejects by an index.
fn select(by: &str) -> Statement {
    Statement::new(format!(
        "SELECT CAST(r.family AS UNSIGNED), f.namespace, f.name, r.id, CAST(r.delta AS CHAR), r.reason, {}, {}, \
         CAST(r.retries AS UNSIGNED), {} FROM counterfoil_rejects AS r FORCE INDEX {by}",
        unix_ms("r.first_at"),
        unix_ms("r.last_at"),
        unix_ms("r.retry_at")
    ))
}

/// Reads the rejects of a [`select`].
async fn read(database: &Database, select: Statement) -> Result<Vec<Reject>> {
    let rows: Vec<RejectRow> = database.read("rejects were not read", select).await?;
    Ok(rows.into_iter().map(|RejectRow(reject)| reject).collect())
}

/// A row of a [`select`].
struct RejectRow(Reject);

impl FromRow<'_, MySqlRow> for RejectRow {
    fn from_row(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let number: FamilyNumber = row.try_get(0)?;
        let id: Vec<u8> = row.try_get(3)?;
        let delta: String = row.try_get(4)?;
        Ok(RejectRow(Reject {
            namespace: text(row.try_get(1)?),
            family: text(row.try_get(2)?),
            cursor: format!("{number}/{}", hex(&id)),
            id: text(id),
            delta: parsed(&delta),
            reason: row.try_get(5)?,
            first_at: time(row.try_get(6)?),
            last_at: time(row.try_get(7)?),
            retries: row.try_get(8)?,
            retry_at: row.try_get::<Option<u64>, _>(9)?.map(time),
        }))
    }
}

/// Returns the number of a family, `NAMESPACE/FAMILY`.
async fn number_of(database: &Database, family: &str) -> Result<Option<FamilyNumber>> {
    const NUMBER: &str = "SELECT CAST(number AS UNSIGNED) FROM counterfoil_families \
         WHERE namespace = ? AND name = ?";
    let (namespace, name) = family.split_once('/').unwrap_or_default();
    let select = Statement::new(NUMBER)
        .bind(namespace.as_bytes())
        .bind(name.as_bytes());
    let numbers = database.read("families were not read", select).await?;
    Ok(numbers.first().map(|&(number,)| number))
}

/// Adds the rejects of these ids, or all of the family, to their rows.
pub async fn retry(
    mysql: &MysqlStore,
    family: &Family,
    ids: Option<&[&str]>,
) -> Result<RetrySummary> {
    let registered = mysql.register(family).await?;
    let number = registered.number;
    let rows = Some((registered, mysql.target(family).await?));
    let (retried, _) = take_all(&mysql.primary, &family.to_string(), number, rows, ids).await?;
    Ok(retried)
}

/// Discards the rejects of these ids, or all of the family, `NAMESPACE/FAMILY`. Returns their number.
pub async fn discard(database: &Database, family: &str, ids: Option<&[&str]>) -> Result<u64> {
    let Some(number) = number_of(database, family).await? else {
        return Ok(0);
    };
    let (_, discarded) = take_all(database, family, number, None, ids).await?;
    Ok(discarded)
}

/// Takes the rejects of these ids, or all of the family, for its rows or to discard them. Returns the
/// outcome of their retry, and the number of discarded ones.
async fn take_all(
    database: &Database,
    name: &str,
    family: FamilyNumber,
    rows: Option<(Registration, Arc<Target>)>,
    ids: Option<&[&str]>,
) -> Result<(RetrySummary, u64)> {
    let mut pages = match ids {
        None => vec![Selection::From(Vec::new())],
        Some(ids) => pages_of(ids),
    };
    let is_retry = rows.is_some();
    let (mut retried, mut discarded) = (RetrySummary::default(), 0);
    while let Some(which) = pages.pop() {
        let by_ids = matches!(which, Selection::Ids(_));
        let work = RejectTransaction {
            family,
            retry: rows.clone(),
            which,
        };
        let taken = take(database, name, work).await?;
        let gone = taken.gone.len() as u64;
        if is_retry {
            retried.applied += gone;
        } else {
            discarded += gone;
        }
        retried.refused += taken.refused;
        retried.left += taken.left;
        if let Some(last) = taken.last
            && !by_ids
        {
            pages.push(Selection::From(successor(last)));
        }
    }
    Ok((retried, discarded))
}

/// Returns these ids in pages, each id once.
fn pages_of(ids: &[&str]) -> Vec<Selection> {
    let distinct: Vec<_> = BTreeSet::from_iter(ids)
        .into_iter()
        .map(|&id| id.to_owned())
        .collect();
    distinct
        .chunks(PAGE)
        .map(|page| Selection::Ids(page.to_vec()))
        .collect()
}

/// Takes rejects, and records them in the log and in the metrics.
async fn take(database: &Database, family: &str, take: RejectTransaction) -> Result<RejectOutcome> {
    let is_retry = take.retry.is_some();
    let failed = if is_retry {
        "rejects were not applied"
    } else {
        "rejects were not discarded"
    };
    let taken = database.transact(failed, take).await?;
    let rejects = taken.gone.len() as u64;
    if rejects == 0 {
        return Ok(taken);
    }
    if is_retry {
        ::metrics::counter!(metrics::REJECTS_APPLIED).increment(rejects);
        tracing::info!(family, rejects, "rows took rejects");
        for (id, delta) in &taken.gone {
            tracing::debug!(family, id = %id.escape_ascii(), delta, "a row took a reject");
        }
    } else {
        ::metrics::counter!(metrics::REJECTS_DISCARDED).increment(rejects);
        for (id, delta) in &taken.gone {
            tracing::info!(family, id = %id.escape_ascii(), delta, "a reject was discarded");
        }
    }
    Ok(taken)
}

/// Retries rejects of each of these families whose retries are due, up to two pages of each. Returns
/// whether any has further ones, and the first error of a family, which does not hold up the others.
pub async fn retry_due(mysql: &MysqlStore, families: &[Arc<Registration>]) -> Result<bool> {
    let select = Statement::new(format!(
        "SELECT CAST(f.number AS UNSIGNED) FROM counterfoil_families AS f WHERE EXISTS \
         (SELECT 1 FROM counterfoil_rejects AS r FORCE INDEX (due) WHERE r.family = f.number AND r.retry_at <= {NOW})"
    ));
    let due: BTreeSet<(FamilyNumber,)> = mysql
        .primary
        .read("rejects were not read", select)
        .await?
        .into_iter()
        .collect();
    let (mut has_more, mut result) = (false, Ok(()));
    for registered in families {
        if !due.contains(&(registered.number,)) {
            continue;
        }
        match retry_pages(mysql, registered).await {
            Ok(is_full) => has_more |= is_full,
            Err(error) if error.kind() == ErrorKind::Store => return Err(error),
            Err(error) => result = result.and(Err(error)),
        }
    }
    result.map(|()| has_more)
}

/// Retries the page of a family's rejects that became due last, and if it is full, the page of those
/// that became due first: a new reject does not wait for many others, and none waits for ever.
/// Returns whether there may be more.
async fn retry_pages(mysql: &MysqlStore, registered: &Registration) -> Result<bool> {
    let family = &registered.family;
    let target = mysql.target(family).await?;
    for which in [Selection::DueLast, Selection::DueFirst] {
        let work = RejectTransaction {
            family: registered.number,
            retry: Some((registered.clone(), target.clone())),
            which,
        };
        let taken = take(&mysql.primary, &family.to_string(), work).await?;
        if taken.last.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the family and the id that follow a [cursor](Reject::cursor).
fn position(cursor: &str) -> Option<(FamilyNumber, Vec<u8>)> {
    let (family, id) = cursor.split_once('/')?;
    Some((
        FamilyNumber(family.parse().ok()?),
        successor(json::unhex(id)?),
    ))
}

/// Returns the next id in byte order.
fn successor(mut id: Vec<u8>) -> Vec<u8> {
    id.push(0);
    id
}

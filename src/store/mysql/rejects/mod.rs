//! Deltas that the database refused: one reject for each family and id, which holds their sum and the
//! last reason, so that they never block the others (docs/protocol.md, section 1, promise 5). It
//! exists until its row takes the sum, or until it is discarded.

mod limit;
mod take;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

pub use self::limit::Limit;
use self::limit::count_up_to;
pub use self::take::BY_ID;
use self::take::{PAGE, Take, Taken, Which, parsed};
use self::write::NOW;
pub use self::write::{REASON, Rejected, short, write};
use super::MysqlStore;
use super::json::{self, hex};
use super::statement::{Statement, text, time, unix_ms};
use super::target::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::store::{FamilyNumber, Registered, Store};

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
pub struct Retried {
    /// The number of rejects that their rows took. They exist no longer.
    pub applied: u64,
    /// The number of rejects that were refused again. Each has the new reason.
    pub refused: u64,
    /// The number of rejects that stay because another transaction has locked their rows.
    pub left: u64,
}

impl MysqlStore {
    /// Sets about how many rejects are kept, of all families together. Defaults to a million. If there
    /// are as many, a refused delta of an id without a reject is lost and counted in
    /// [`REJECTS_LOST`](metrics::REJECTS_LOST), and [`check`](crate::Counterfoil::check) reports an
    /// error.
    #[must_use]
    pub fn max_rejects(mut self, most: u64) -> Self {
        self.max_rejects = Arc::new(Limit::new(most));
        self
    }

    /// Returns the maximum number of rejects if there are as many.
    pub(crate) async fn has_max_rejects(&self) -> Result<Option<u64>> {
        let most = self.max_rejects.most;
        let count = self
            .primary
            .read_one("rejects were not counted", count_up_to(most));
        let (rejects,): (u64,) = count.await?;
        Ok((rejects >= most).then_some(most))
    }

    /// Returns up to `limit` rejects of a family, `NAMESPACE/FAMILY`, or of all families, by family and
    /// id. `after` is the [cursor](Reject::cursor) of the last one of the page before.
    ///
    /// # Errors
    /// [`Store`](ErrorKind::Store) if the database is unreachable;
    /// [`InvalidInput`](ErrorKind::InvalidInput) if `after` is not a cursor.
    pub async fn rejects(
        &self,
        family: Option<&str>,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<Reject>> {
        let (mut first, mut last) = (FamilyNumber(0), FamilyNumber(u32::MAX.into()));
        if let Some(family) = family {
            let Some(number) = self.number_of(family).await? else {
                return Ok(Vec::new());
            };
            (first, last) = (number, number);
        }
        let (first, id) = match after {
            None => (first, Vec::new()),
            Some(after) => position(after).ok_or_else(|| {
                let what = format!("{after:?} is not the cursor of a reject");
                Error::new(ErrorKind::InvalidInput, what)
            })?,
        };
        const PAGE: &str = "(PRIMARY) STRAIGHT_JOIN counterfoil_families AS f ON f.number = r.family \
             WHERE (r.family = ? AND r.id >= ? OR r.family > ?) AND r.family <= ? ORDER BY r.family, r.id LIMIT ?";
        let bind = |select: Statement| {
            let select = select.bind(first).bind(id).bind(first);
            select.bind(last).bind(limit)
        };
        self.read_rejects(PAGE, bind).await
    }

    /// Returns the latest `limit` rejects, the newest first.
    ///
    /// # Errors
    /// [`Store`](ErrorKind::Store) if the database is unreachable.
    pub async fn latest_rejects(&self, limit: u64) -> Result<Vec<Reject>> {
        const LATEST: &str = "(newest) STRAIGHT_JOIN counterfoil_families AS f ON f.number = r.family \
             ORDER BY r.first_at DESC LIMIT ?";
        self.read_rejects(LATEST, |select| select.bind(limit)).await
    }

    /// Reads rejects by an index.
    async fn read_rejects(
        &self,
        by: &str,
        bind: impl FnOnce(Statement) -> Statement,
    ) -> Result<Vec<Reject>> {
        let select = Statement::new(format!(
            "SELECT CAST(r.family AS UNSIGNED), f.namespace, f.name, r.id, CAST(r.delta AS CHAR), r.reason, {}, {}, \
             CAST(r.retries AS UNSIGNED), {} FROM counterfoil_rejects AS r FORCE INDEX {by}",
            unix_ms("r.first_at"),
            unix_ms("r.last_at"),
            unix_ms("r.retry_at")
        ));
        let rows = self.primary.read("rejects were not read", bind(select));
        let reject = |row: (FamilyNumber, _, _, Vec<u8>, String, _, _, _, _, Option<u64>)| {
            let (
                number,
                namespace,
                family,
                id,
                delta,
                reason,
                first_at,
                last_at,
                retries,
                retry_at,
            ) = row;
            Reject {
                namespace: text(namespace),
                family: text(family),
                cursor: format!("{number}/{}", hex(&id)),
                id: text(id),
                delta: parsed(&delta),
                reason,
                first_at: time(first_at),
                last_at: time(last_at),
                retries,
                retry_at: retry_at.map(time),
            }
        };
        Ok(rows.await?.into_iter().map(reject).collect())
    }

    /// Returns the number of a family, `NAMESPACE/FAMILY`.
    async fn number_of(&self, family: &str) -> Result<Option<FamilyNumber>> {
        const NUMBER: &str = "SELECT CAST(number AS UNSIGNED) FROM counterfoil_families \
             WHERE namespace = ? AND name = ?";
        let (namespace, name) = family.split_once('/').unwrap_or_default();
        let select = Statement::new(NUMBER);
        let select = select.bind(namespace.as_bytes()).bind(name.as_bytes());
        let numbers = self.primary.read("families were not read", select).await?;
        Ok(numbers.first().map(|&(number,)| number))
    }

    /// Adds the rejects of these ids, or all of the family, to their rows. Reconcilers do the same,
    /// a new one within seconds and an old one within an hour. A reject that its row takes exists no
    /// longer. One that is refused again stays, with the new reason.
    ///
    /// Each counts once, however often and by however many processes this is called: row and reject
    /// change in one transaction. A reject that another transaction is changing is left out. A cached
    /// counter that is in Redis shows the delta once its row is read again: with its next sync or
    /// seed.
    ///
    /// # Errors
    /// [`Store`](ErrorKind::Store) or [`Busy`](ErrorKind::Busy): the last transaction was not kept,
    /// or its outcome is unknown. Call again: nothing counts twice.
    /// [`Mismatch`](ErrorKind::Mismatch) if the family or its table is registered differently.
    pub async fn retry_rejects(&self, family: &Family, ids: Option<&[&str]>) -> Result<Retried> {
        let registered = self.register(family).await?;
        let retry = Some((registered.clone(), self.target(family).await?));
        self.take_all(&family.to_string(), registered.number, retry, ids)
            .await
            .map(|(retried, _)| retried)
    }

    /// Discards the rejects of these ids, or all of the family, `NAMESPACE/FAMILY`: their deltas are
    /// never added. Returns their number. The log has each. If this and
    /// [`retry_rejects`](Self::retry_rejects) run at the same time, one of them takes each reject.
    ///
    /// # Errors
    /// [`Store`](ErrorKind::Store): the last transaction was not kept, or its outcome is unknown. Call
    /// again.
    pub async fn discard_rejects(&self, family: &str, ids: Option<&[&str]>) -> Result<u64> {
        let Some(number) = self.number_of(family).await? else {
            return Ok(0);
        };
        let taken = self.take_all(family, number, None, ids).await?;
        Ok(taken.1)
    }

    /// Takes the rejects of these ids, or all of the family. Returns the outcome of their retry, and
    /// the number of those that were discarded.
    async fn take_all(
        &self,
        name: &str,
        family: FamilyNumber,
        retry: Option<(Registered, Arc<Target>)>,
        ids: Option<&[&str]>,
    ) -> Result<(Retried, u64)> {
        let mut pages: Vec<_> = match ids {
            None => vec![Which::From(Vec::new())],
            Some(ids) => {
                let ids = BTreeSet::from_iter(ids).into_iter();
                let ids: Vec<_> = ids.map(|&id| id.to_owned()).collect();
                ids.chunks(PAGE)
                    .map(|ids| Which::Ids(ids.to_vec()))
                    .collect()
            }
        };
        let (mut retried, mut discarded) = (Retried::default(), 0);
        while let Some(which) = pages.pop() {
            let by_ids = matches!(which, Which::Ids(_));
            let retry = retry.clone();
            let is_retry = retry.is_some();
            let taken = self
                .take(
                    name,
                    Take {
                        family,
                        retry,
                        which,
                    },
                )
                .await?;
            let gone = taken.gone.len() as u64;
            if is_retry {
                retried.applied += gone;
            } else {
                discarded += gone;
            }
            retried.refused += taken.refused;
            retried.left += taken.left;
            let next = taken.last.filter(|_| !by_ids);
            pages.extend(next.map(|last| Which::From(successor(last))));
        }
        Ok((retried, discarded))
    }

    /// Takes rejects, and records them in the log and in the metrics.
    async fn take(&self, family: &str, take: Take) -> Result<Taken> {
        let is_retry = take.retry.is_some();
        let failed = if is_retry {
            "rejects were not applied"
        } else {
            "rejects were not discarded"
        };
        let taken = self.primary.transact(failed, take).await?;
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

    /// Retries a page of rejects of each of these families whose retries are due. Returns whether any
    /// has further ones, and the first error of a family, which does not hold up the others.
    pub(crate) async fn retry_due(&self, families: &[Arc<Registered>]) -> Result<bool> {
        let due = format!(
            "SELECT CAST(f.number AS UNSIGNED) FROM counterfoil_families AS f WHERE EXISTS \
             (SELECT 1 FROM counterfoil_rejects AS r FORCE INDEX (due) WHERE r.family = f.number AND r.retry_at <= {NOW})"
        );
        let due = self
            .primary
            .read("rejects were not read", Statement::new(due));
        let due: BTreeSet<FamilyNumber> = due.await?.into_iter().map(|(number,)| number).collect();
        let (mut has_more, mut first) = (false, Ok(()));
        for registered in families.iter().filter(|one| due.contains(&one.number)) {
            match self.retry_page(registered).await {
                Ok(is_full) => has_more |= is_full,
                Err(error) if error.kind() == ErrorKind::Store => return Err(error),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first.map(|()| has_more)
    }

    /// Retries a page of due rejects of a family. Returns whether the page was full.
    async fn retry_page(&self, registered: &Registered) -> Result<bool> {
        let family = &registered.family;
        let take = Take {
            family: registered.number,
            retry: Some((registered.clone(), self.target(family).await?)),
            which: Which::Due,
        };
        let taken = self.take(&family.to_string(), take).await?;
        Ok(taken.last.is_some())
    }
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

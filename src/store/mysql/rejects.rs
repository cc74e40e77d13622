//! Deltas that the database refused: kept with their batch and the reason, so that they never block
//! the others (docs/protocol.md, section 1, promise 5), until they are retried or discarded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::MysqlStore;
use super::add::{self, NOT_UTF8, Refused};
use super::json::{self, INPUT, hex};
use super::session::{Transaction, UnitOfWork};
use super::statement::{Statement, text, time, unix_ms};
use super::target::Target;
use crate::error::Result;
use crate::family::Family;
use crate::store::{Batch, Incarnation, Registered, Store};

/// A delta that the database refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reject {
    /// The number of the reject. Numbers ascend, with gaps.
    pub number: u64,
    /// The family's namespace.
    pub namespace: String,
    /// The family's name.
    pub family: String,
    /// The counter's id. A longer one is cut at 255 bytes, and the reason states it.
    pub id: String,
    /// The delta that was not added.
    pub delta: i64,
    /// The partition that it came from.
    pub partition: u32,
    /// The batch's incarnation.
    pub incarnation: Incarnation,
    /// The batch's sequence number.
    pub seq: u64,
    /// The reason, in most cases the server's own words. At most 1024 characters.
    pub reason: String,
    /// The time of the reject, by the database's clock.
    pub at: SystemTime,
}

/// The outcome of a retried reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// Its delta was added to its row, and it is no longer among the
    /// [rejects](MysqlStore::rejects).
    Applied,
    /// An earlier call applied it. This call did nothing.
    AppliedBefore,
    /// The database refused it again. It stays a reject with the new reason.
    Refused,
    /// It was [discarded](MysqlStore::discard_rejects). This call did nothing.
    Discarded,
    /// The family has no reject of this number.
    NotFound,
}

/// A delta of a batch about to become a [`Reject`].
pub struct Rejected<'b> {
    pub batch: &'b Batch,
    pub id: &'b [u8],
    pub delta: i64,
    pub reason: &'b str,
}

/// The maximum number of rejects that a transaction locks.
const MOST: usize = 10_000;

/// The maximum number of rows in a statement. A reason may have some thousand bytes.
const CHUNK: usize = 500;

/// The beginning of the reason of a discarded reject.
const DISCARDED: &str = "discarded: ";

const ID_BYTES: usize = 255;
const REASON_CHARS: usize = 1024;

/// The JSON column of a reason of up to [`REASON_CHARS`], and its value.
pub const GIVEN_REASON: (&str, &str) = ("reason", "VARCHAR(8192)");
pub const REASON: &str = "CONVERT(UNHEX(reason) USING utf8mb4)";

/// Inserts the rejects, except those that exist.
pub async fn write(
    transaction: &mut Transaction,
    rejected: &[Rejected<'_>],
) -> Result<(), sqlx::Error> {
    let columns = [
        ("family", "INT UNSIGNED"),
        ("partition_no", "INT UNSIGNED"),
        ("incarnation", "BIGINT UNSIGNED"),
        ("seq", "BIGINT UNSIGNED"),
        ("delta", "BIGINT"),
        ("id", "VARCHAR(510)"),
        GIVEN_REASON,
    ];
    let insert = Statement::new(format!(
        "INSERT INTO counterfoil_rejects (family, partition_no, incarnation, seq, id, delta, reason) \
         SELECT family, partition_no, incarnation, seq, UNHEX(id), delta, {REASON} FROM {} \
         ON DUPLICATE KEY UPDATE number = number",
        json::table(columns)
    ));
    let row = |one: &Rejected<'_>| {
        let (family, partition) = (one.batch.family.number, one.batch.partition);
        let (incarnation, seq) = (one.batch.id.incarnation.0, one.batch.id.seq);
        let (id, reason) = (hex(fitting(one.id)), hex(short(one.reason)));
        (family, partition, incarnation, seq, one.delta, id, reason)
    };
    for chunk in rejected.chunks(CHUNK) {
        let insert = insert.clone().bind_rows(chunk.iter().map(row));
        transaction.execute(insert).await?;
    }
    Ok(())
}

/// Cuts the reason to its column.
pub fn short(reason: &str) -> String {
    reason.chars().take(REASON_CHARS).collect()
}

/// Cuts the id to its column, between two letters.
fn fitting(id: &[u8]) -> &[u8] {
    match std::str::from_utf8(id) {
        Ok(text) => &id[..text.floor_char_boundary(ID_BYTES)],
        Err(_) => &id[..id.len().min(ID_BYTES)],
    }
}

/// The resolution of rejects: of any family they are discarded, of one family they are retried.
struct Resolve {
    retry: Option<(Registered, Arc<Target>)>,
    numbers: Vec<u64>,
}

/// A reject as it is kept.
struct Kept {
    number: u64,
    id: Vec<u8>,
    delta: i64,
    reason: String,
    is_done: bool,
}

/// The outcome of a reject.
struct Resolved {
    was_open: bool,
    outcome: Retried,
}

impl UnitOfWork for Resolve {
    type Output = Vec<(u64, Resolved)>;

    async fn run(&self, transaction: &mut Transaction) -> Result<Self::Output, sqlx::Error> {
        let columns = [("number", "BIGINT UNSIGNED"), ("done", "INT"), GIVEN_REASON];
        let update = Statement::new(format!(
            "UPDATE {} STRAIGHT_JOIN counterfoil_rejects AS r FORCE INDEX (PRIMARY) ON r.number = {INPUT}.number \
             SET r.applied_at = IF({INPUT}.done = 1, CURRENT_TIMESTAMP(3), NULL), \
             r.reason = CONVERT(UNHEX({INPUT}.reason) USING utf8mb4)",
            json::table(columns)
        ));
        let kept = self.lock(transaction).await?;
        let refused = match &self.retry {
            Some((family, target)) => retry(transaction, family, target, &kept).await?,
            None => Refused::new(),
        };
        let (mut resolved, mut rows) = (Vec::with_capacity(kept.len()), Vec::new());
        for (index, reject) in kept.iter().enumerate() {
            let again = refused.get(&index);
            let is_discarded = if reject.is_done {
                reject.reason.starts_with(DISCARDED)
            } else {
                self.retry.is_none()
            };
            let outcome = match again {
                Some(_) => Retried::Refused,
                None if is_discarded => Retried::Discarded,
                None if reject.is_done => Retried::AppliedBefore,
                None => Retried::Applied,
            };
            let was_open = !reject.is_done;
            if was_open {
                let prefix = if is_discarded { DISCARDED } else { "" };
                let reason = format!("{prefix}{}", again.unwrap_or(&reject.reason));
                let is_done = u8::from(again.is_none());
                rows.push((reject.number, is_done, hex(short(&reason))));
            }
            resolved.push((reject.number, Resolved { was_open, outcome }));
        }
        transaction.execute(update.bind_rows(rows)).await?;
        Ok(resolved)
    }
}

impl Resolve {
    /// Locks the rejects and returns their content. If two calls resolve the same reject, the second
    /// one waits and finds it marked.
    async fn lock(&self, transaction: &mut Transaction) -> Result<Vec<Kept>, sqlx::Error> {
        let lock = Statement::new(format!(
            "SELECT r.family, r.number, r.id, r.delta, r.reason, r.applied_at IS NOT NULL FROM {} \
             STRAIGHT_JOIN counterfoil_rejects AS r FORCE INDEX (PRIMARY) ON r.number = {INPUT}.number FOR UPDATE",
            json::derived_table([("number", "BIGINT UNSIGNED")])
        ));
        let numbers = self.numbers.iter().map(|number| (number,));
        let rows = transaction.read(lock.bind_rows(numbers)).await?;
        let kept = |(family, number, id, delta, reason, is_done)| {
            let (family, retried): (u64, _) = (family, self.retry.as_ref());
            let is_wanted = retried.is_none_or(|(retried, _)| retried.number == family);
            is_wanted.then_some(Kept {
                number,
                id,
                delta,
                reason,
                is_done,
            })
        };
        Ok(rows.into_iter().filter_map(kept).collect())
    }
}

/// Adds the deltas of the open rejects, and returns those that are refused again.
async fn retry(
    transaction: &mut Transaction,
    family: &Registered,
    target: &Target,
    kept: &[Kept],
) -> Result<Refused, sqlx::Error> {
    // an id that was cut could be another counter's
    let is_cut = |reject: &Kept| {
        let was_too_long = || {
            reject
                .reason
                .starts_with(&format!("{}: id ", family.family))
        };
        reject.reason == NOT_UTF8 || reject.id.len() > ID_BYTES - 4 && was_too_long()
    };
    let open = kept.iter().enumerate();
    let (cut, open): (Vec<_>, Vec<_>) = open
        .filter(|(_, reject)| !reject.is_done)
        .partition(|(_, reject)| is_cut(reject));
    let refused = cut.into_iter();
    let mut refused = refused
        .map(|(index, reject)| (index, reject.reason.clone()))
        .collect();
    let open = open.into_iter();
    let ids = open.map(|(index, reject)| (index, &*reject.id, reject.delta));
    let deltas = add::deltas(family, ids, &mut refused);
    add::add(transaction, target, deltas, &mut refused).await?;
    Ok(refused)
}

impl MysqlStore {
    /// Returns up to `limit` rejects with numbers above `after` (0 for the first page), ascending,
    /// except those that were [applied](Self::retry_rejects) or [discarded](Self::discard_rejects)
    /// since.
    ///
    /// The database assigns a number before the transaction commits, so a lower number may appear
    /// shortly after a higher one.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn rejects(&self, after: u64, limit: u64) -> Result<Vec<Reject>> {
        self.open_rejects("ORDER BY r.number", after, limit).await
    }

    /// Returns the latest `limit` of these rejects, the newest first.
    ///
    /// # Errors
    /// See [`rejects`](Self::rejects).
    pub async fn latest_rejects(&self, limit: u64) -> Result<Vec<Reject>> {
        self.open_rejects("ORDER BY r.number DESC", 0, limit).await
    }

    async fn open_rejects(&self, order: &str, after: u64, limit: u64) -> Result<Vec<Reject>> {
        let select = Statement::new(format!(
            "SELECT r.number, f.namespace, f.name, r.id, r.delta, r.partition_no, r.incarnation, r.seq, r.reason, {} \
             FROM counterfoil_rejects AS r JOIN counterfoil_families AS f ON f.number = r.family \
             WHERE r.applied_at IS NULL AND r.number > ? {order} LIMIT ?",
            unix_ms("r.rejected_at")
        ));
        let select = select.bind(after).bind(limit);
        let rows = self.primary.read("rejects were not read", select).await?;
        let reject =
            |(number, namespace, family, id, delta, partition, incarnation, seq, reason, at)| {
                Reject {
                    number,
                    namespace: text(namespace),
                    family: text(family),
                    id: text(id),
                    delta,
                    partition,
                    incarnation: Incarnation(incarnation),
                    seq,
                    reason,
                    at: time(at),
                }
            };
        Ok(rows.into_iter().map(reject).collect())
    }

    /// Adds rejects of a family, given by their numbers, to their rows once the cause is fixed, and
    /// returns the outcome of each, in the order of the numbers. The rejects stay in their table,
    /// marked as applied. A delta that is refused again stays a reject with the new reason.
    ///
    /// Each counts once, however often it is retried: row and reject are written in one
    /// transaction, for up to 10,000 rejects. A cached counter that is in Redis shows the delta
    /// once its row is read again: with its next sync or seed.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): the last transaction was not kept, or its outcome is
    /// unknown. Call again: nothing counts twice. [`Mismatch`](crate::ErrorKind::Mismatch) if the
    /// family or its table is registered differently.
    pub async fn retry_rejects(&self, family: &Family, numbers: &[u64]) -> Result<Vec<Retried>> {
        let number = self.register(family).await?;
        let target = self.target(family).await?;
        let family = family.clone();
        let retry = Some((Registered { family, number }, target));
        let retried = self.resolve(retry, numbers, "rejects were not applied");
        let retried = retried.await?;
        let outcome = |number| {
            retried
                .get(number)
                .map_or(Retried::NotFound, |found| found.outcome)
        };
        Ok(numbers.iter().map(outcome).collect())
    }

    /// Discards the open rejects among these numbers, of any family. Each is marked as done without
    /// being added, and its reason, cut at 1024 characters, begins with `discarded: `. Returns the
    /// numbers of the discarded ones, ascending. The others do not exist, or were applied or
    /// discarded before.
    ///
    /// If this and [`retry_rejects`](Self::retry_rejects) run at the same time, one of them takes
    /// each reject.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store): up to 10,000 rejects share a transaction. The last
    /// transaction was not kept, or its outcome is unknown. Call again.
    pub async fn discard_rejects(&self, numbers: &[u64]) -> Result<Vec<u64>> {
        let discarded = self.resolve(None, numbers, "rejects were not discarded");
        let mut discarded = discarded.await?;
        discarded.retain(|_, reject| reject.was_open);
        Ok(discarded.into_keys().collect())
    }

    /// Retries rejects of a family, or discards rejects. All transactions lock rejects in the order
    /// of their numbers.
    async fn resolve(
        &self,
        retry: Option<(Registered, Arc<Target>)>,
        numbers: &[u64],
        failed: &'static str,
    ) -> Result<BTreeMap<u64, Resolved>> {
        let numbers: BTreeSet<_> = numbers.iter().copied().collect();
        let numbers: Vec<_> = numbers.into_iter().collect();
        let mut resolved = BTreeMap::new();
        for numbers in numbers.chunks(MOST) {
            let work = Resolve {
                retry: retry.clone(),
                numbers: numbers.to_vec(),
            };
            resolved.extend(self.primary.transact(failed, work).await?);
        }
        Ok(resolved)
    }
}

//! Deltas that the database refused: kept with their batch and the reason, so that they never block
//! the others (docs/protocol.md, section 1, promise 5), until they are retried or discarded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row};

use super::MysqlStore;
use super::add::{self, NOT_UTF8, Refused};
use super::fault::store;
use super::json::{self, INPUT, JsonRows};
use super::session::{Transaction, UnitOfWork, detached};
use super::statement::Text;
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
    static WRITE: LazyLock<Text> = LazyLock::new(|| {
        let columns = [
            ("family", "INT UNSIGNED"),
            ("partition_no", "INT UNSIGNED"),
            ("incarnation", "BIGINT UNSIGNED"),
            ("seq", "BIGINT UNSIGNED"),
            ("delta", "BIGINT"),
            ("id", "VARCHAR(510)"),
            GIVEN_REASON,
        ];
        Text::new(format!(
            "INSERT INTO counterfoil_rejects (family, partition_no, incarnation, seq, id, delta, reason) \
             SELECT family, partition_no, incarnation, seq, UNHEX(id), delta, {REASON} FROM {} \
             ON DUPLICATE KEY UPDATE number = number",
            json::table(columns)
        ))
    });
    for chunk in rejected.chunks(CHUNK) {
        let mut rows = JsonRows::default();
        for one in chunk {
            rows.row()
                .number(one.batch.family.number)
                .number(one.batch.partition)
                .number(one.batch.id.incarnation.0)
                .number(one.batch.id.seq)
                .number(one.delta)
                .bytes(fitting(one.id))
                .bytes(short(one.reason).as_bytes());
        }
        transaction
            .execute(WRITE.query().bind(rows.finish()))
            .await?;
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
struct Resolve<'r> {
    retry: Option<(&'r Registered, Arc<Target>)>,
    numbers: &'r [u64],
}

/// A reject as it is kept.
struct KeptReject {
    number: u64,
    family: u64,
    id: Vec<u8>,
    delta: i64,
    reason: String,
    is_done: bool,
}

impl UnitOfWork for Resolve<'_> {
    type Output = Vec<(u64, (bool, Retried))>;

    async fn run(&self, transaction: &mut Transaction) -> Result<Self::Output, sqlx::Error> {
        let kept = self.lock(transaction).await?;
        let refused = match &self.retry {
            Some((family, target)) => retry(transaction, family, target, &kept).await?,
            None => Refused::new(),
        };
        let (mut resolved, mut rows) = (Vec::with_capacity(kept.len()), JsonRows::default());
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
            if !reject.is_done {
                let prefix = if is_discarded { DISCARDED } else { "" };
                let reason = format!("{prefix}{}", again.unwrap_or(&reject.reason));
                rows.row()
                    .number(reject.number)
                    .number(u8::from(again.is_none()))
                    .bytes(short(&reason).as_bytes());
            }
            resolved.push((reject.number, (!reject.is_done, outcome)));
        }
        transaction
            .execute(RESOLVE.query().bind(rows.finish()))
            .await?;
        Ok(resolved)
    }
}

static RESOLVE: LazyLock<Text> = LazyLock::new(|| {
    let columns = [("number", "BIGINT UNSIGNED"), ("done", "INT"), GIVEN_REASON];
    Text::new(format!(
        "UPDATE {} STRAIGHT_JOIN counterfoil_rejects AS r FORCE INDEX (PRIMARY) ON r.number = {INPUT}.number \
         SET r.applied_at = IF({INPUT}.done = 1, CURRENT_TIMESTAMP(3), NULL), \
         r.reason = CONVERT(UNHEX({INPUT}.reason) USING utf8mb4)",
        json::table(columns)
    ))
});

impl Resolve<'_> {
    /// Locks the rejects and returns their content. If two calls resolve the same reject, the second
    /// one waits and finds it marked.
    async fn lock(&self, transaction: &mut Transaction) -> Result<Vec<KeptReject>, sqlx::Error> {
        static LOCK: LazyLock<Text> = LazyLock::new(|| {
            Text::new(format!(
                "SELECT r.number, r.family, r.id, r.delta, r.reason, \
                 CAST(r.applied_at IS NOT NULL AS SIGNED) FROM {} \
                 STRAIGHT_JOIN counterfoil_rejects AS r FORCE INDEX (PRIMARY) ON r.number = {INPUT}.number FOR UPDATE",
                json::derived_table([("number", "BIGINT UNSIGNED")])
            ))
        });
        let mut numbers = JsonRows::default();
        for number in self.numbers {
            numbers.row().number(number);
        }
        let rows = transaction
            .fetch(LOCK.query().bind(numbers.finish()))
            .await?;
        let kept: Vec<_> = rows.iter().map(kept).collect::<Result<_, _>>()?;
        let family = self.retry.as_ref().map(|(family, _)| family.number);
        let is_ours = |kept: &KeptReject| family.is_none_or(|family| kept.family == family);
        Ok(kept.into_iter().filter(is_ours).collect())
    }
}

/// Adds the deltas of the open rejects, and returns those that are refused again.
async fn retry(
    transaction: &mut Transaction,
    family: &Registered,
    target: &Target,
    kept: &[KeptReject],
) -> Result<Refused, sqlx::Error> {
    // an id that was cut could be another counter's
    let is_cut = |reject: &KeptReject| {
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

fn kept(row: &MySqlRow) -> Result<KeptReject, sqlx::Error> {
    Ok(KeptReject {
        number: row.try_get(0)?,
        family: row.try_get(1)?,
        id: row.try_get(2)?,
        delta: row.try_get(3)?,
        reason: row.try_get(4)?,
        is_done: row.try_get::<i64, _>(5)? == 1,
    })
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
        let text = format!(
            "SELECT r.number, f.namespace, f.name, r.id, r.delta, r.partition_no, r.incarnation, r.seq, r.reason, \
             CAST(UNIX_TIMESTAMP(r.rejected_at) * 1000 AS UNSIGNED) \
             FROM counterfoil_rejects AS r JOIN counterfoil_families AS f ON f.number = r.family \
             WHERE r.applied_at IS NULL AND r.number > ? {order} LIMIT ?"
        );
        let database = self.primary.clone();
        detached(async move {
            let query = || {
                sqlx::query(AssertSqlSafe(text.clone()))
                    .bind(after)
                    .bind(limit)
            };
            let rejects = database.fetch_each(query, reject);
            rejects.await.map_err(store("rejects were not read"))
        })
        .await
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
        let (mysql, family, numbers) = (self.clone(), family.clone(), numbers.to_vec());
        detached(async move {
            let number = mysql.register(&family).await?;
            let family = Registered { family, number };
            let retried = mysql.resolve(Some(&family), &numbers).await?;
            let outcome = |number| {
                retried
                    .get(number)
                    .map_or(Retried::NotFound, |found| found.1)
            };
            Ok(numbers.iter().map(outcome).collect())
        })
        .await
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
        let (mysql, numbers) = (self.clone(), numbers.to_vec());
        detached(async move {
            let mut resolved = mysql.resolve(None, &numbers).await?;
            resolved.retain(|_, (was_open, _)| *was_open);
            Ok(resolved.into_keys().collect())
        })
        .await
    }

    /// Retries rejects of a family, or discards rejects. Returns whether each was open, and its
    /// outcome. All transactions lock rejects in the order of their numbers.
    async fn resolve(
        &self,
        retry: Option<&Registered>,
        numbers: &[u64],
    ) -> Result<BTreeMap<u64, (bool, Retried)>> {
        let retry = match retry {
            Some(family) => Some((family, self.target(&family.family).await?)),
            None => None,
        };
        let numbers: BTreeSet<_> = numbers.iter().copied().collect();
        let numbers: Vec<_> = numbers.into_iter().collect();
        let mut resolved = BTreeMap::new();
        for numbers in numbers.chunks(MOST) {
            let work = Resolve {
                retry: retry.clone(),
                numbers,
            };
            let failed = match retry {
                Some(_) => "rejects were not applied",
                None => "rejects were not discarded",
            };
            resolved.extend(self.primary.transact(failed, &work).await?);
        }
        Ok(resolved)
    }
}

fn reject(row: &MySqlRow) -> Result<Reject, sqlx::Error> {
    Ok(Reject {
        number: row.try_get(0)?,
        namespace: text(row, 1)?,
        family: text(row, 2)?,
        id: text(row, 3)?,
        delta: row.try_get(4)?,
        partition: row.try_get(5)?,
        incarnation: Incarnation(row.try_get(6)?),
        seq: row.try_get(7)?,
        reason: row.try_get(8)?,
        at: time(row.try_get(9)?),
    })
}

/// Reads a column of text that is stored as bytes.
pub fn text(row: &MySqlRow, index: usize) -> Result<String, sqlx::Error> {
    Ok(String::from_utf8_lossy(row.try_get(index)?).into_owned())
}

/// Converts milliseconds of Unix time.
pub fn time(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

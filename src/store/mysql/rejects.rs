//! Deltas that the database refused: one reject for each family and id, which holds their sum and the
//! last reason, so that they never block the others (docs/protocol.md, section 1, promise 5). It
//! exists until its row takes the sum, or until it is discarded.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::MysqlStore;
use super::add::{self, Cause, Refusal, Refused};
use super::families;
use super::fault;
use super::json::{self, I64, ID, INPUT, U64, hex};
use super::session::{Session, UnitOfWork};
use super::statement::{Statement, text, time, unix_ms};
use super::target::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::store::{Batch, Registered, Store};

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

/// The maximum number of rejects in a transaction: some may take several statements each.
const PAGE: usize = 500;

/// The pause before the first retry. It doubles with each refused one.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// The approximate size of the ids and reasons in a statement, which doubles them.
const STATEMENT_BYTES: usize = 2_000_000;

const ID_BYTES: usize = 255;
const REASON_CHARS: usize = 1024;

/// The end of an id that was cut. It is not UTF-8, so no row has such an id.
const CUT: u8 = 0xff;

/// The reason in a statement's JSON as text.
pub const REASON: &str = "CONVERT(UNHEX(reason) USING utf8mb4)";

const NOW: &str = "CURRENT_TIMESTAMP(3)";

/// The rejects of a family that have the ids in a statement's JSON.
pub const BY_ID: &str = "counterfoil_rejects AS r FORCE INDEX (PRIMARY) \
     ON r.family = ? AND r.id = UNHEX(counterfoil_input.id)";

/// A delta of a batch, and its refusal.
pub type Rejected<'b> = (&'b Batch, &'b (Vec<u8>, i64), &'b Refusal);

/// The limit of the number of rejects. Each process counts them now and then, and meanwhile the ones
/// that it inserts, so several processes may exceed it a little.
#[derive(Debug)]
pub struct Limit {
    most: u64,
    /// The number of further rejects, and the time of the count.
    room: Mutex<Option<(u64, Instant)>>,
}

impl Limit {
    /// The default of [`MysqlStore::max_rejects`].
    const MOST: u64 = 1_000_000;
    /// The time between counts.
    const COUNTED: Duration = Duration::from_mins(1);

    fn new(most: u64) -> Self {
        let room = Mutex::default();
        Limit { most, room }
    }

    /// Returns the number of further rejects.
    async fn room(&self, transaction: &mut Session) -> Result<u64, sqlx::Error> {
        let known = *self.room.lock();
        if let Some((room, _)) = known.filter(|(_, counted)| counted.elapsed() < Limit::COUNTED) {
            return Ok(room);
        }
        let counted = Instant::now();
        let rejects = transaction.fetch(count_up_to(self.most)).await?;
        let rejects = rejects.first().map_or(0, |&(rejects,)| rejects);
        let room = self.most.saturating_sub(rejects);
        *self.room.lock() = Some((room, counted));
        Ok(room)
    }

    fn use_up(&self, inserted: u64) {
        if let Some((room, _)) = &mut *self.room.lock() {
            *room = room.saturating_sub(inserted);
        }
    }
}

impl Default for Limit {
    fn default() -> Self {
        Limit::new(Limit::MOST)
    }
}

/// Returns the statement that counts rejects, up to this number.
fn count_up_to(most: u64) -> Statement {
    const COUNT: &str = "SELECT CAST(COUNT(*) AS UNSIGNED) FROM \
         (SELECT 1 FROM counterfoil_rejects FORCE INDEX (newest) LIMIT ?) AS r";
    Statement::new(COUNT).bind(most)
}

/// Adds the refused deltas to the rejects of their ids. Returns the number of those that are lost,
/// because they have no reject, and there are as many as the limit allows.
pub async fn write(
    transaction: &mut Session,
    limit: &Limit,
    refused: &[Rejected<'_>],
) -> Result<u64, sqlx::Error> {
    if refused.is_empty() {
        return Ok(0);
    }
    let input = json::table([
        ("family", U64),
        ("pause", U64),
        ("delta", I64),
        ("id", ID),
        ("reason", json::REASON),
    ]);
    let first_retry =
        |pause: &str| format!("IF({pause} = 0, NULL, {NOW} + INTERVAL {pause} SECOND)");
    // further refusals do not change the pauses of retries
    let upsert = Statement::new(format!(
        "INSERT INTO counterfoil_rejects (family, id, delta, reason, retry_at) \
         SELECT family, UNHEX(id), delta, {REASON}, {} FROM {input} \
         ON DUPLICATE KEY UPDATE counterfoil_rejects.delta = counterfoil_rejects.delta + {INPUT}.delta, \
         counterfoil_rejects.reason = CONVERT(UNHEX({INPUT}.reason) USING utf8mb4), \
         counterfoil_rejects.last_at = {NOW}, \
         counterfoil_rejects.retry_at = IF({INPUT}.pause = 0, NULL, COALESCE(counterfoil_rejects.retry_at, {}))",
        first_retry("pause"),
        first_retry(&format!("{INPUT}.pause"))
    ));
    let row = |(batch, (id, delta), refusal): &Rejected<'_>| {
        let (pause, reason) = (pause(refusal, 0).as_secs(), hex(short(&refusal.reason)));
        (batch.family.number, pause, *delta, hex(fitting(id)), reason)
    };
    let mut rows: Vec<_> = refused.iter().map(row).collect();
    // all transactions lock rejects in this order
    rows.sort_unstable_by(|one, other| (one.0, &one.3).cmp(&(other.0, &other.3)));
    let room = limit.room(transaction).await?;
    let all = rows.len() as u64;
    if room < all {
        let ids = rows.iter().map(|row| (row.0, &row.3));
        let exists = existing(transaction, ids).await?;
        let (mut exists, mut room) = (exists.into_iter(), room);
        rows.retain(|_| {
            let joins = exists.next() == Some(true);
            let fits = joins || room > 0;
            room -= u64::from(fits && !joins);
            fits
        });
    }
    for rows in statements(&rows, |row| row.3.len() + row.4.len()) {
        let upsert = upsert.clone().bind_rows(rows);
        let changed = transaction.execute(upsert).await?;
        // 1 for an inserted row and 2 for another
        limit.use_up((2 * rows.len() as u64).saturating_sub(changed));
    }
    Ok(all - rows.len() as u64)
}

/// Returns for each id of a family, in hexadecimal digits, whether it has a reject.
async fn existing<'i>(
    transaction: &mut Session,
    ids: impl Iterator<Item = (u64, &'i String)>,
) -> Result<Vec<bool>, sqlx::Error> {
    let select = Statement::new(format!(
        "SELECT CAST({INPUT}.pos AS UNSIGNED), r.id IS NOT NULL FROM {} \
         LEFT JOIN counterfoil_rejects AS r FORCE INDEX (PRIMARY) \
         ON r.family = {INPUT}.family AND r.id = UNHEX({INPUT}.id)",
        json::table([("family", U64), ("id", ID)])
    ));
    let ids: Vec<_> = ids.collect();
    let rows = transaction.fetch(select.bind_rows(&ids)).await?;
    json::by_position(rows, ids.len())
}

/// Returns the pause after a refusal, given the number of refused retries; 0 if there is no retry.
fn pause(refusal: &Refusal, retries: u64) -> Duration {
    match refusal.cause {
        Cause::Never => Duration::ZERO,
        Cause::Missing | Cause::Row => LONGEST_PAUSE.min(PAUSE * (1 << retries.min(16))),
    }
}

/// Splits rows into those of each statement.
fn statements<R>(rows: &[R], digits: impl Fn(&R) -> usize) -> impl Iterator<Item = &[R]> {
    let mut bytes = 0;
    rows.chunk_by(move |row, _| {
        bytes += digits(row) / 2;
        let fits = bytes < STATEMENT_BYTES;
        bytes *= usize::from(fits);
        fits
    })
}

/// Cuts the reason to its column.
pub fn short(reason: &str) -> String {
    reason.chars().take(REASON_CHARS).collect()
}

/// Cuts the id to its column.
fn fitting(id: &[u8]) -> Cow<'_, [u8]> {
    if id.len() <= ID_BYTES {
        return Cow::Borrowed(id);
    }
    let end = match std::str::from_utf8(id) {
        Ok(text) => text.floor_char_boundary(ID_BYTES - 1),
        Err(_) => ID_BYTES - 1,
    };
    Cow::Owned([&id[..end], &[CUT]].concat())
}

/// The rejects of a family that a transaction takes.
#[derive(Clone, Debug)]
enum Which {
    /// A page of those whose retry is due, the newest first.
    Due,
    /// A page of those with ids from this one on.
    From(Vec<u8>),
    /// Those of these ids.
    Ids(Vec<String>),
}

/// A transaction that takes rejects of a family: it adds them to their rows, or discards them.
/// Leaves out rejects that another transaction has locked.
struct Take {
    /// The family's number.
    family: u64,
    /// The rows to add them to; `None` to discard them.
    retry: Option<(Registered, Arc<Target>)>,
    which: Which,
}

/// The effect of a [`Take`].
#[derive(Default)]
struct Taken {
    /// The ids of the rejects that exist no longer, with their deltas.
    gone: Vec<(Vec<u8>, i128)>,
    refused: u64,
    left: u64,
    /// The last id of a full page.
    last: Option<Vec<u8>>,
}

/// A reject in a [`Take`].
struct Kept {
    id: Vec<u8>,
    delta: i128,
    retries: u64,
}

impl Kept {
    /// Returns the part of the sum that one statement adds.
    fn part(&self) -> i64 {
        let part = self.delta.clamp(i64::MIN.into(), i64::MAX.into());
        i64::try_from(part).unwrap_or_default()
    }
}

impl UnitOfWork for Take {
    type Output = Taken;

    /// After a lock timeout others go first.
    fn is_repeated(error: &sqlx::Error) -> bool {
        fault::is_conflict(error) && !fault::is_locked(error)
    }

    async fn run(&self, transaction: &mut Session) -> Result<Taken, sqlx::Error> {
        // also orders this against the begin of a recount
        match &self.retry {
            Some((family, _)) => {
                families::refuse_unregistered(transaction, family, families::SHARED).await?;
            }
            None => {
                let lock = format!(
                    "SELECT CAST(number AS UNSIGNED) FROM counterfoil_families WHERE number = ? {}",
                    families::SHARED
                );
                let lock = Statement::new(lock).bind(self.family);
                transaction.fetch::<(u64,)>(lock).await?;
            }
        }
        let kept = transaction.fetch(self.select()).await?.into_iter();
        let kept = kept.map(|(id, delta, retries): (_, String, _)| Kept {
            id,
            delta: parsed(&delta),
            retries,
        });
        let kept: Vec<_> = kept.collect();
        let (refused, locked) = self.add(transaction, &kept).await?;
        let mut taken = Taken::default();
        if kept.len() == PAGE {
            taken.last = kept.last().map(|reject| reject.id.clone());
        }
        let (mut stay, mut noted) = (Vec::new(), Vec::new());
        for (index, reject) in kept.into_iter().enumerate() {
            let (mut added, mut retries, mut wait) = (0, reject.retries, PAUSE);
            let mut reason = String::new();
            if let Some(refusal) = refused.get(&index) {
                taken.refused += 1;
                retries += 1;
                wait = pause(refusal, retries);
                // of an id that was cut it would be another
                if refusal.cause != Cause::Never {
                    reason = short(&refusal.reason);
                }
            } else if locked.contains(&index) {
                taken.left += 1;
            } else {
                noted.push((hex(&reject.id),));
                added = reject.part();
                if self.retry.is_none() || i128::from(added) == reject.delta {
                    taken.gone.push((reject.id, reject.delta));
                    continue;
                }
                taken.left += 1;
            }
            stay.push((retries, wait.as_secs(), added, hex(reject.id), hex(reason)));
        }
        self.delete(transaction, &taken.gone).await?;
        self.keep(transaction, &stay).await?;
        self.note(transaction, noted).await?;
        Ok(taken)
    }
}

impl Take {
    /// Returns the statement that locks and reads the rejects.
    fn select(&self) -> Statement {
        let select = |from: &str| {
            Statement::new(format!(
                "SELECT r.id, CAST(r.delta AS CHAR), CAST(r.retries AS UNSIGNED) FROM {from} \
                 FOR UPDATE SKIP LOCKED"
            ))
        };
        match &self.which {
            Which::Due => select(&format!(
                "counterfoil_rejects AS r FORCE INDEX (due) WHERE r.family = ? AND r.retry_at <= {NOW} \
                 ORDER BY r.retry_at DESC LIMIT {PAGE}"
            ))
            .bind(self.family),
            Which::From(first) => select(&format!(
                "counterfoil_rejects AS r FORCE INDEX (PRIMARY) WHERE r.family = ? AND r.id >= ? \
                 ORDER BY r.id LIMIT {PAGE}"
            ))
            .bind(self.family)
            .bind(&first[..]),
            Which::Ids(ids) => {
                let ids = ids.iter().map(|id| (hex(fitting(id.as_bytes())),));
                let input = json::derived_table([("id", ID)]);
                select(&format!("{input} STRAIGHT_JOIN {BY_ID}"))
                    .bind_rows(ids)
                    .bind(self.family)
            }
        }
    }

    /// Adds the rejects to their rows. Returns those that are refused again, and those whose rows are
    /// locked.
    async fn add(
        &self,
        transaction: &mut Session,
        kept: &[Kept],
    ) -> Result<(Refused, BTreeSet<usize>), sqlx::Error> {
        let mut refused = Refused::new();
        let Some((family, target)) = &self.retry else {
            return Ok((refused, BTreeSet::new()));
        };
        // a sum of 0 has nothing to add
        let rejects = kept.iter().enumerate();
        let ids = rejects
            .filter(|(_, reject)| reject.delta != 0)
            .map(|(index, reject)| (index, &*reject.id, reject.part()));
        let added = add::add_unlocked(transaction, family, target, ids, &mut refused);
        let locked = added.await?;
        Ok((refused, locked))
    }

    async fn delete(
        &self,
        transaction: &mut Session,
        gone: &[(Vec<u8>, i128)],
    ) -> Result<(), sqlx::Error> {
        if gone.is_empty() {
            return Ok(());
        }
        let delete = Statement::new(format!(
            "DELETE r FROM {} STRAIGHT_JOIN {BY_ID}",
            json::table([("id", ID)])
        ));
        let delete = delete.bind_rows(gone.iter().map(|(id, _)| (hex(id),)));
        let deleted = transaction.execute(delete.bind(self.family)).await?;
        json::check_all(gone.len(), deleted)
    }

    /// Writes the rejects that stay: their retries, the pause until the next one, the part that was
    /// added, the id, and the new reason, if any.
    async fn keep(
        &self,
        transaction: &mut Session,
        stay: &[(u64, u64, i64, String, String)],
    ) -> Result<(), sqlx::Error> {
        let columns = [
            ("retries", U64),
            ("pause", U64),
            ("added", I64),
            ("id", ID),
            ("reason", json::REASON),
        ];
        let update = Statement::new(format!(
            "UPDATE {} STRAIGHT_JOIN {BY_ID} SET r.delta = r.delta - {INPUT}.added, \
             r.reason = IF({INPUT}.reason = '', r.reason, CONVERT(UNHEX({INPUT}.reason) USING utf8mb4)), \
             r.last_at = IF({INPUT}.reason = '', r.last_at, {NOW}), \
             r.retry_at = IF({INPUT}.pause = 0, NULL, {NOW} + INTERVAL {INPUT}.pause SECOND), \
             r.retries = {INPUT}.retries",
            json::table(columns)
        ));
        for rows in statements(stay, |row| row.3.len() + row.4.len()) {
            let update = update.clone().bind_rows(rows).bind(self.family);
            transaction.execute(update).await?;
        }
        Ok(())
    }

    /// Notes the ids in the run of a recount, which may have read values without these rejects: it
    /// leaves them out.
    async fn note(
        &self,
        transaction: &mut Session,
        ids: Vec<(String,)>,
    ) -> Result<(), sqlx::Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let insert = Statement::new(format!(
            "INSERT INTO counterfoil_drift (family, run, id, value_before, row_count, value_after, delta, note) \
             SELECT c.family, c.run, UNHEX({INPUT}.id), 0, 0, 0, 0, '' FROM counterfoil_recounts AS c STRAIGHT_JOIN {} \
             WHERE c.family = ? AND c.finished_at IS NULL AND c.holder <> 0 \
             ON DUPLICATE KEY UPDATE counterfoil_drift.delta = counterfoil_drift.delta",
            json::table([("id", ID)])
        ));
        let insert = insert.bind_rows(ids).bind(self.family);
        transaction.execute(insert).await.map(drop)
    }
}

/// Returns the number of a `DECIMAL(40)`, which i128 nearly covers.
fn parsed(digits: &str) -> i128 {
    let bound = if digits.starts_with('-') {
        i128::MIN
    } else {
        i128::MAX
    };
    digits.parse().unwrap_or(bound)
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
        let (mut first, mut last) = (0, u64::from(u32::MAX));
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
        let reject = |row: (u64, _, _, Vec<u8>, String, _, _, _, _, Option<u64>)| {
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
    async fn number_of(&self, family: &str) -> Result<Option<u64>> {
        const NUMBER: &str = "SELECT CAST(number AS UNSIGNED) FROM counterfoil_families \
             WHERE CONCAT(namespace, '/', name) = CAST(? AS BINARY)";
        let select = Statement::new(NUMBER).bind(family);
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
        family: u64,
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
        let due: BTreeSet<u64> = due.await?.into_iter().map(|(number,)| number).collect();
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
fn position(cursor: &str) -> Option<(u64, Vec<u8>)> {
    let (family, id) = cursor.split_once('/')?;
    Some((family.parse().ok()?, successor(json::unhex(id)?)))
}

/// Returns the next id in byte order.
fn successor(mut id: Vec<u8>) -> Vec<u8> {
    id.push(0);
    id
}

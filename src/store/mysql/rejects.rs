//! Deltas that the database refused: kept with their batch and the reason, so that they never block
//! the others (docs/protocol.md, section 1, promise 5), until they are retried or discarded.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use super::MysqlStore;
use super::add::{self, NOT_UTF8, Refused};
use super::families;
use super::fault;
use super::json::{self, I64, ID, INPUT, U64, hex};
use super::session::{Session, UnitOfWork};
use super::statement::{Statement, text, time, unix_ms};
use super::target::Target;
use crate::error::{ErrorKind, Result};
use crate::family::Family;
use crate::store::{Batch, Incarnation, Registered, Store};

/// Deltas of an id that the database refused for the same reason.
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
    /// The sum of the deltas that were not added.
    pub delta: i64,
    /// The number of the deltas.
    pub times: u64,
    /// The partition that the last of them came from.
    pub partition: u32,
    /// The incarnation of its batch.
    pub incarnation: Incarnation,
    /// The sequence number of its batch.
    pub seq: u64,
    /// The reason, in most cases the server's own words. At most 1024 characters.
    pub reason: String,
    /// The time of the first delta's refusal, by the database's clock.
    pub at: SystemTime,
    /// The time of the last delta's refusal.
    pub last_at: SystemTime,
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

/// The maximum number of rejects that a transaction locks.
const MOST: usize = 10_000;

/// The number of rejects that a reconciler retries at a time: some may take several statements
/// each.
const PAGE: u64 = 500;

/// The maximum number of rows in a statement. A reason may have some thousand bytes.
const CHUNK: usize = 500;

/// The beginning of the reason of a discarded reject.
const DISCARDED: &str = "discarded: ";

const ID_BYTES: usize = 255;
const REASON_CHARS: usize = 1024;

/// The reason in a statement's JSON as text.
pub const REASON: &str = "CONVERT(UNHEX(reason) USING utf8mb4)";

/// A delta of a batch, and the reason for refusing it.
pub type Rejected<'b> = (&'b Batch, &'b (Vec<u8>, i64), &'b String);

/// Adds the refused deltas to the open rejects of their ids and reasons, or inserts new ones.
pub async fn write(transaction: &mut Session, refused: &[Rejected<'_>]) -> Result<(), sqlx::Error> {
    let input = json::table([
        ("family", U64),
        ("cause", U64),
        ("partition_no", U64),
        ("incarnation", U64),
        ("seq", U64),
        ("delta", I64),
        ("id", ID),
        ("reason", json::REASON),
    ]);
    let leave_full = Statement::new(format!(
        "UPDATE {input} STRAIGHT_JOIN counterfoil_rejects AS r FORCE INDEX (open_reject) \
         ON r.family = {INPUT}.family AND r.id = UNHEX({INPUT}.id) AND r.cause = {INPUT}.cause SET r.cause = NULL \
         WHERE CAST(r.delta AS DECIMAL(20)) + {INPUT}.delta NOT BETWEEN {} AND {}",
        i64::MIN,
        i64::MAX
    ));
    let insert = Statement::new(format!(
        "INSERT INTO counterfoil_rejects (family, cause, partition_no, incarnation, seq, id, delta, reason) \
         SELECT family, cause, partition_no, incarnation, seq, UNHEX(id), delta, {REASON} FROM {input} \
         ON DUPLICATE KEY UPDATE counterfoil_rejects.delta = counterfoil_rejects.delta + {INPUT}.delta, \
         counterfoil_rejects.times = counterfoil_rejects.times + 1, \
         counterfoil_rejects.partition_no = {INPUT}.partition_no, \
         counterfoil_rejects.incarnation = {INPUT}.incarnation, counterfoil_rejects.seq = {INPUT}.seq, \
         counterfoil_rejects.last_at = CURRENT_TIMESTAMP(3)"
    ));
    // a statement has one row for each reject, so that its sum is checked before it is changed
    let mut rounds: Vec<Vec<_>> = Vec::new();
    let mut seen: HashMap<_, usize> = HashMap::new();
    for (batch, (id, delta), reason) in refused {
        let (family, partition, incarnation) = batch.ledger_key();
        let (id, reason) = (fitting(id), short(reason));
        let cause = cause(&reason);
        let round = seen.entry((family, id, cause)).or_default();
        if rounds.len() == *round {
            rounds.push(Vec::new());
        }
        rounds[*round].push((
            family,
            cause,
            partition,
            incarnation,
            batch.id.seq,
            delta,
            hex(id),
            hex(reason),
        ));
        *round += 1;
    }
    for mut rows in rounds {
        // all transactions lock rejects in this order
        rows.sort_unstable_by(|one, other| (one.0, &one.6).cmp(&(other.0, &other.6)));
        for chunk in rows.chunks(CHUNK) {
            let full = leave_full.clone().bind_rows(chunk);
            transaction.execute(full).await?;
            transaction.execute(insert.clone().bind_rows(chunk)).await?;
        }
    }
    Ok(())
}

/// Returns a hash of the reason.
fn cause(reason: &str) -> u64 {
    let digest = sha1_smol::Sha1::from(reason).digest().bytes();
    u64::from_be_bytes(std::array::from_fn(|index| digest[index]))
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
    /// Set if the one reject waits for a row that another transaction has locked. Several leave out
    /// those with such rows.
    waits: bool,
}

/// The outcome of a resolution.
#[derive(Default)]
struct Resolved {
    /// The number of each reject with its outcome.
    done: Vec<(u64, Retried)>,
    /// The numbers of the rejects that were left out.
    locked: Vec<u64>,
}

/// A reject as it is kept.
struct Kept {
    number: u64,
    id: Vec<u8>,
    delta: i64,
    reason: String,
    is_done: bool,
}

impl UnitOfWork for Resolve {
    type Output = Resolved;

    /// A lock timeout comes after the wait for the one row.
    fn is_repeated(error: &sqlx::Error) -> bool {
        fault::is_conflict(error) && !fault::is_locked(error)
    }

    async fn run(&self, transaction: &mut Session) -> Result<Self::Output, sqlx::Error> {
        if let Some((family, _)) = &self.retry {
            families::refuse_unregistered(transaction, family, families::SHARED).await?;
        }
        let kept = self.lock(transaction).await?;
        let (refused, locked) = self.retry(transaction, &kept).await?;
        let (mut resolved, mut rows) = (Resolved::default(), Vec::new());
        for (index, reject) in kept.into_iter().enumerate() {
            if locked.contains(&index) {
                resolved.locked.push(reject.number);
                continue;
            }
            let mut reason = reject.reason;
            let outcome = match refused.get(&index) {
                _ if reject.is_done && reason.starts_with(DISCARDED) => Retried::Discarded,
                _ if reject.is_done => Retried::AppliedBefore,
                _ if self.retry.is_none() => {
                    reason.insert_str(0, DISCARDED);
                    Retried::Discarded
                }
                Some(again) => {
                    reason.clone_from(again);
                    Retried::Refused
                }
                None => Retried::Applied,
            };
            if !reject.is_done {
                let is_done = u8::from(outcome != Retried::Refused);
                rows.push((reject.number, is_done, hex(short(&reason))));
            }
            resolved.done.push((reject.number, outcome));
        }
        let columns = [("number", U64), ("done", "INT"), ("reason", json::REASON)];
        let update = Statement::new(format!(
            "UPDATE {} STRAIGHT_JOIN counterfoil_rejects AS r FORCE INDEX (PRIMARY) ON r.number = {INPUT}.number \
             SET r.applied_at = IF({INPUT}.done = 1, CURRENT_TIMESTAMP(3), NULL), \
             r.cause = IF({INPUT}.done = 1, NULL, r.cause), \
             r.reason = CONVERT(UNHEX({INPUT}.reason) USING utf8mb4)",
            json::table(columns)
        ));
        for chunk in rows.chunks(CHUNK) {
            transaction.execute(update.clone().bind_rows(chunk)).await?;
        }
        Ok(resolved)
    }
}

impl Resolve {
    /// Locks the rejects and returns the content of those to retry, or of the open ones. If two
    /// calls resolve the same reject, the second one waits and finds it marked.
    async fn lock(&self, transaction: &mut Session) -> Result<Vec<Kept>, sqlx::Error> {
        let lock = Statement::new(format!(
            "SELECT r.family, r.number, r.id, r.delta, r.reason, r.applied_at IS NOT NULL FROM {} \
             STRAIGHT_JOIN counterfoil_rejects AS r FORCE INDEX (PRIMARY) ON r.number = {INPUT}.number FOR UPDATE",
            json::derived_table([("number", U64)])
        ));
        let numbers = self.numbers.iter().map(|number| (number,));
        let rows = transaction.fetch(lock.bind_rows(numbers)).await?;
        let kept = |(family, number, id, delta, reason, is_done)| {
            let (family, is_done): (u64, bool) = (family, is_done);
            let is_wanted = match &self.retry {
                Some((retried, _)) => retried.number == family,
                None => !is_done,
            };
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

    /// Adds the deltas of the open rejects. Returns those that are refused again, and those that
    /// are left out.
    async fn retry(
        &self,
        transaction: &mut Session,
        kept: &[Kept],
    ) -> Result<(Refused, BTreeSet<usize>), sqlx::Error> {
        let mut refused = Refused::new();
        let Some((family, target)) = &self.retry else {
            return Ok((refused, BTreeSet::new()));
        };
        // an id that was cut could be another counter's
        let is_cut = |reject: &Kept| {
            let too_long = format!("{}: id ", family.family);
            let was_too_long =
                reject.id.len() > ID_BYTES - 4 && reject.reason.starts_with(&too_long);
            reject.reason == NOT_UTF8 || was_too_long
        };
        let open = kept.iter().enumerate();
        let (cut, open): (Vec<_>, Vec<_>) = open
            .filter(|(_, reject)| !reject.is_done)
            .partition(|(_, reject)| is_cut(reject));
        let cut = cut.into_iter();
        refused.extend(cut.map(|(index, reject)| (index, reject.reason.clone())));
        let ids = open
            .into_iter()
            .map(|(index, reject)| (index, &*reject.id, reject.delta));
        let waits = self.waits;
        let added = add::add_unlocked(transaction, family, target, ids, waits, &mut refused);
        let locked = added.await?;
        Ok((refused, locked))
    }
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
            "SELECT r.number, f.namespace, f.name, r.id, r.delta, r.times, r.partition_no, r.incarnation, r.seq, r.reason, \
             {}, {} \
             FROM counterfoil_rejects AS r FORCE INDEX (open_by_number) STRAIGHT_JOIN counterfoil_families AS f ON f.number = r.family \
             WHERE r.applied_at IS NULL AND r.number > ? {order} LIMIT ?",
            unix_ms("r.rejected_at"),
            unix_ms("r.last_at")
        )).bind(after).bind(limit);
        let rows = self.primary.read("rejects were not read", select).await?;
        let reject = |(
            number,
            namespace,
            family,
            id,
            delta,
            times,
            partition,
            incarnation,
            seq,
            reason,
            at,
            last_at,
        )| {
            Reject {
                number,
                namespace: text(namespace),
                family: text(family),
                id: text(id),
                delta,
                times,
                partition,
                incarnation: Incarnation(incarnation),
                seq,
                reason,
                at: time(at),
                last_at: time(last_at),
            }
        };
        Ok(rows.into_iter().map(reject).collect())
    }

    /// Adds rejects of a family, given by their numbers, to their rows once the cause is fixed, and
    /// returns the outcome of each, in the order of the numbers. A running reconciler does the same
    /// by itself, within seconds if there are few. The rejects stay in their table, marked as
    /// applied, for [`keep_rejects`](Self::keep_rejects). A delta that is refused again stays a
    /// reject with the new reason.
    ///
    /// Each counts once, however often it is retried: row and reject are written in one
    /// transaction, for up to 10,000 rejects. A cached counter that is in Redis shows the delta
    /// once its row is read again: with its next sync or seed.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store), or [`Busy`](crate::ErrorKind::Busy) if a row is locked: the
    /// last transaction was not kept, or its outcome is unknown. Call again: nothing counts twice.
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the
    /// family or its table is registered differently.
    pub async fn retry_rejects(&self, family: &Family, numbers: &[u64]) -> Result<Vec<Retried>> {
        let registered = self.register(family).await?;
        let target = self.target(family).await?;
        let (retry, failed) = (Some((registered, target)), "rejects were not applied");
        let mut retried = self.resolve(retry.clone(), numbers, failed).await?;
        for number in retried.locked {
            let alone = Resolve {
                retry: retry.clone(),
                numbers: vec![number],
                waits: true,
            };
            let alone = self.primary.transact(failed, alone).await?;
            retried.done.extend(alone.done);
        }
        let retried: HashMap<_, _> = retried.done.into_iter().collect();
        let outcome = |number| retried.get(number).copied().unwrap_or(Retried::NotFound);
        Ok(numbers.iter().map(outcome).collect())
    }

    /// Applies open rejects of these families whose causes are gone, of a page of rejects with
    /// numbers above `after`. Leaves those whose rows are locked. Returns the number to continue
    /// after, 0 at the end, where it also deletes rejects that were done long ago, and the first
    /// error of a family, which does not hold up the others.
    pub(crate) async fn close_rejects(
        &self,
        families: &[Arc<Registered>],
        after: u64,
    ) -> Result<(u64, Result<()>)> {
        let page = self.rejects(after, PAGE).await?;
        let mut by_family: HashMap<_, Vec<u64>> = HashMap::new();
        for reject in &page {
            let family = (&*reject.namespace, &*reject.family);
            by_family.entry(family).or_default().push(reject.number);
        }
        let mut first = Ok(());
        for registered in families {
            let family = &registered.family;
            let numbers = by_family.remove(&(&*family.namespace, &*family.name));
            let Some(numbers) = numbers else { continue };
            match self.close_rejects_of(registered, &numbers).await {
                Err(error) if error.kind() == ErrorKind::Store => return Err(error),
                closed => first = first.and(closed),
            }
        }
        if page.len() as u64 == PAGE {
            return Ok((page.last().map_or(0, |reject| reject.number), first));
        }
        self.expire_rejects().await;
        Ok((0, first))
    }

    async fn close_rejects_of(&self, registered: &Registered, numbers: &[u64]) -> Result<()> {
        let family = &registered.family;
        let retry = Some((registered.clone(), self.target(family).await?));
        let failed = "rejects were not applied";
        let resolved = self.resolve(retry, numbers, failed).await?;
        let applied = |(_, outcome): &&(u64, Retried)| *outcome == Retried::Applied;
        let applied = resolved.done.iter().filter(applied).count();
        if applied > 0 {
            tracing::info!(%family, applied, "rejects were applied, because their causes are gone");
        }
        Ok(())
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
        let mut discarded: Vec<_> = self
            .resolve(None, numbers, "rejects were not discarded")
            .await?
            .done
            .into_iter()
            .map(|(number, _)| number)
            .collect();
        discarded.sort_unstable();
        Ok(discarded)
    }

    /// Retries rejects of a family, or discards rejects. All transactions lock rejects in the order
    /// of their numbers.
    async fn resolve(
        &self,
        retry: Option<(Registered, Arc<Target>)>,
        numbers: &[u64],
        failed: &'static str,
    ) -> Result<Resolved> {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let mut resolved = Resolved::default();
        for numbers in numbers.chunks(MOST) {
            let work = Resolve {
                retry: retry.clone(),
                numbers: numbers.to_vec(),
                waits: false,
            };
            let Resolved { done, locked } = self.primary.transact(failed, work).await?;
            resolved.done.extend(done);
            resolved.locked.extend(locked);
        }
        Ok(resolved)
    }
}

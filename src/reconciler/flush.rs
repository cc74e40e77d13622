//! The path of batches to the database: cut, wait until durable, fetch, apply in parts, release
//! (docs/protocol.md, section 3). For a cached family, the rows are read back and its counters
//! marked as saved (section 4).

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::process::family::OpenFamily;
use crate::process::registration::registered_again;
use crate::process::tasks::{GRACE, each, pause_unless_stopped, unless_stopped};
use crate::process::work::{FamilySlot, PartitionId, WorkItem};
use crate::reconciler::cached;
use crate::reconciler::flusher::Flusher;
use crate::reconciler::set_back::{self, report_lost};
use crate::reconciler::step::{Step, caught};
use crate::scripts::partition::buffered::{Cut, CutBatch, FetchReply, LastCut, Lease, RotateReply};
use crate::store::{ApplyReply, Batch, Progress, Registration};
use crate::testing::ablation::{self, Guard};

/// The approximate number of ids in a page of a fetch: small enough for a script to stay far below
/// a millisecond.
const PAGE: usize = 500;

/// The approximate number of ids in one flush, which bounds its memory. Large enough for a
/// transaction to cost little.
const FLUSH_IDS: u64 = 10_000;

/// The number of ids beyond which a family is flushed without others, which would wait for it.
const MIXED_IDS: u64 = 1_000;

/// The time after which a flush leaves the rest of its batches to a later one, so that others go
/// first. The ledger has the position.
const TURN: Duration = Duration::from_secs(3);

/// The time after which a write without a reply counts as failing. A write that waits for a lock
/// fails within a second or two.
const SILENCE: Duration = Duration::from_secs(5);

/// A batch that this process knows of, waiting to be durable and flushed.
#[derive(Debug)]
pub struct HeldBatch {
    pub id: PartitionId,
    pub opened: Arc<OpenFamily>,
    registered: Arc<Registration>,
    pub cut: CutBatch,
    settle: Duration,
    known_since: Instant,
    /// When it may be fetched, by this process's clock. The server's clock decides.
    pub ready_at: Instant,
    /// Set if an earlier flush applied a part.
    fetched: Option<Arc<Batch>>,
    /// Set if it could not be applied before, for example because of a lock: other families are not
    /// applied with it.
    pub failed_before: bool,
}

/// A batch that was fetched, with its content.
struct FetchedBatch {
    held: HeldBatch,
    content: Arc<Batch>,
}

/// The outcome of a flush of one batch.
#[derive(Debug)]
pub enum FlushOutcome {
    /// The batch is in the database, or was dropped after a set-back, or another reconciler flushed
    /// it.
    Done,
    /// It is not durable yet, because the clock of Redis stepped back, or the flush took so long that
    /// others go first: flush it later.
    Waits(HeldBatch),
}

/// The outcome of a rotation.
#[derive(Debug)]
pub enum RotateOutcome {
    Batch(HeldBatch),
    /// No sync is due for this time, unless further hits make one due.
    Early(Duration),
    /// Another reconciler has the lease of the batch in flight for this time.
    Leased(Duration),
    Nothing,
}

impl HeldBatch {
    /// Returns when the oldest hit in it was counted, by this process's clock.
    pub fn oldest_hit(&self) -> Instant {
        self.known_since
            .checked_sub(self.cut.oldest)
            .unwrap_or(self.known_since)
    }

    /// Returns when it is flushed. With a settle time it waits a little longer, so that batches cut
    /// with it join.
    pub fn flush_at(&self) -> Instant {
        self.ready_at + self.settle.min(Duration::from_secs(1)) / 50
    }
}

/// Cuts a batch off each partition, or takes the batch in flight. [`Cut::WhenDue`] leaves a
/// batch in flight to another reconciler that has its lease; other cuts ignore leases.
#[tracing::instrument(level = "debug", skip_all, fields(partitions = partitions.len()))]
pub async fn rotate(
    flusher: &Flusher,
    partitions: &[PartitionId],
    cut: Cut,
) -> Vec<(PartitionId, Result<RotateOutcome>)> {
    let rotate = async |id: &PartitionId| (*id, caught(rotate_one(flusher, *id, cut)).await);
    each(partitions, rotate).await
}

async fn rotate_one(flusher: &Flusher, id: PartitionId, cut: Cut) -> Result<RotateOutcome> {
    let Some(opened) = flusher.shared.family(id.family) else {
        return Ok(RotateOutcome::Nothing);
    };
    let registering = flusher.shared.registered(&opened);
    let registered = unless_stopped(&flusher.stop, GRACE, registering).await?;
    let (family, database) = (&registered.family, &registered.database);
    let settle = if flusher.redis.can_be_reverted() {
        family.durability().settle()
    } else {
        Duration::ZERO
    };
    let lease = flusher
        .lease
        .filter(|_| cut == Cut::WhenDue)
        .map(|beyond| Lease {
            owner: &flusher.owner,
            time: settle + beyond,
        });
    let partition = flusher.partition(family, id.number);
    let rotated = partition.rotate(family, database, lease, cut).await;
    if let Err(error) = &rotated
        && error.kind() == ErrorKind::Mismatch
    {
        // The family's hits go to a database with another id. That may be this process's own
        // database, made anew: the upkeep registers the family again, and so learns the new id.
        flusher.shared.work.announce(WorkItem::Upkeep(id.family));
    }
    Ok(match rotated? {
        RotateReply::Batch(cut) => {
            let now = Instant::now();
            RotateOutcome::Batch(HeldBatch {
                id,
                opened,
                registered,
                cut,
                settle,
                known_since: now,
                ready_at: now + settle.saturating_sub(cut.settled),
                fetched: None,
                failed_before: false,
            })
        }
        RotateReply::Early(time) => RotateOutcome::Early(time),
        RotateReply::Leased(time) => RotateOutcome::Leased(time),
        RotateReply::Empty => RotateOutcome::Nothing,
    })
}

/// Applies the batches to the database and drops them from Redis. While the database is
/// unreachable it retries, until it is stopped.
///
/// Returns an outcome for each batch. After an error the batch is still in Redis, also if it is
/// in the database: it is flushed again.
#[tracing::instrument(skip_all, fields(batches = held.len(), rows = tracing::field::Empty))]
pub async fn flush(
    flusher: &Flusher,
    held: Vec<HeldBatch>,
) -> Vec<(PartitionId, Result<FlushOutcome>)> {
    let started = Instant::now();
    let mut outcomes = Vec::with_capacity(held.len());
    let fetched = fetch(flusher, held, &mut outcomes).await;
    let ids: usize = fetched.iter().map(|one| one.content.deltas.len()).sum();
    tracing::Span::current().record("rows", ids);
    let applied = apply(flusher, &fetched).await;
    let (mut whole, mut renewed) = (Vec::with_capacity(fetched.len()), BTreeMap::new());
    for (FetchedBatch { mut held, content }, progress) in fetched.into_iter().zip(applied) {
        match progress {
            Ok(Progress::Partial { .. }) => {
                held.ready_at = Instant::now();
                held.fetched = Some(content);
                outcomes.push((held.id, Ok(FlushOutcome::Waits(held))));
            }
            Ok(progress) => whole.push((FetchedBatch { held, content }, progress)),
            Err(error) => {
                let error = renew(flusher, &held, error, &mut renewed).await;
                outcomes.push((held.id, Err(error)));
            }
        }
    }
    let finish_one = async |(batch, progress): &(FetchedBatch, Progress)| {
        let finished = finish(flusher, batch, *progress).await;
        (batch.held.id, finished.map(|()| FlushOutcome::Done))
    };
    outcomes.extend(each(&whole, finish_one).await);
    ::metrics::histogram!(metrics::FLUSH_SECONDS).record(started.elapsed());
    outcomes
}

/// Fetches the batches once they are durable. The outcome of one that is not fetched goes to
/// `outcomes`.
async fn fetch(
    flusher: &Flusher,
    held: Vec<HeldBatch>,
    outcomes: &mut Vec<(PartitionId, Result<FlushOutcome>)>,
) -> Vec<FetchedBatch> {
    let (mut fetched, mut unfetched) = (Vec::with_capacity(held.len()), Vec::new());
    for mut held in held {
        // an earlier flush has fetched it, and applied a part
        match held.fetched.take() {
            Some(content) => fetched.push(FetchedBatch { held, content }),
            None => unfetched.push(held),
        }
    }
    let fetch_one = async |held: &HeldBatch| {
        let partition = flusher.partition(&held.opened.family, held.id.number);
        partition.fetch(held.cut.id, held.settle, PAGE).await
    };
    let replies = each(&unfetched, fetch_one).await;
    for (mut held, reply) in unfetched.into_iter().zip(replies) {
        match reply {
            Ok(FetchReply::Deltas(deltas)) => {
                let content = Arc::new(Batch {
                    family: held.registered.clone(),
                    partition: held.id.number,
                    id: held.cut.id,
                    deltas,
                    is_lost: false,
                });
                fetched.push(FetchedBatch { held, content });
            }
            Ok(FetchReply::Wait(time)) => {
                held.ready_at = Instant::now() + time;
                outcomes.push((held.id, Ok(FlushOutcome::Waits(held))));
            }
            // another reconciler has flushed it
            Ok(FetchReply::Stale) => outcomes.push((held.id, Ok(FlushOutcome::Done))),
            Err(error) => {
                metrics::retried("fetch");
                outcomes.push((held.id, Err(error)));
            }
        }
    }
    fetched
}

/// Applies the batches together, or family by family if one of them cannot be written. Returns
/// the progress or the error of each batch.
async fn apply(flusher: &Flusher, fetched: &[FetchedBatch]) -> Vec<Result<Progress>> {
    let all: Vec<_> = fetched.iter().collect();
    let mut results = apply_together(flusher, &all).await;
    let mut families: BTreeMap<FamilySlot, Vec<usize>> = BTreeMap::new();
    for (index, one) in fetched.iter().enumerate() {
        families.entry(one.held.id.family).or_default().push(index);
    }
    if families.len() < 2 {
        return results;
    }
    for mut indexes in families.into_values() {
        // an unreachable database concerns all families
        let concerns_one = |error: &Error| error.kind() != ErrorKind::Store;
        indexes.retain(|&index| results[index].as_ref().is_err_and(concerns_one));
        let some: Vec<_> = indexes.iter().map(|&index| all[index]).collect();
        let again = apply_together(flusher, &some).await;
        for (index, result) in indexes.into_iter().zip(again) {
            results[index] = result;
        }
    }
    results
}

/// Applies the batches together, part by part, until each is complete, one fails, or the
/// [`TURN`] is over. Returns the progress of each, or its error.
async fn apply_together(flusher: &Flusher, batches: &[&FetchedBatch]) -> Vec<Result<Progress>> {
    let (mut stopped, mut left) = (None, Vec::from_iter(0..batches.len()));
    let mut results = vec![Ok(Progress::Repeated); batches.len()];
    let begun = Instant::now();
    while !left.is_empty() {
        let some: Vec<_> = left.iter().map(|&index| batches[index]).collect();
        let is_late =
            *flusher.stop.borrow() && stopped.get_or_insert_with(Instant::now).elapsed() > GRACE;
        let applied = if is_late {
            let late = "stopped before the rest of a batch was applied";
            Err(Error::store(late))
        } else {
            apply_repeated(flusher, &some).await
        };
        match applied {
            Ok(applied) => {
                record(&applied);
                warn_of_rejects(flusher, applied.rejected, applied.lost);
                let of_family = |&(place, lost): &(usize, u64)| {
                    let held: &HeldBatch = &batches[left[place]].held;
                    (&*held.opened, lost)
                };
                report_lost(applied.database_set_back.iter().map(of_family));
                for (&index, progress) in left.iter().zip(applied.progress) {
                    if let Progress::Partial { left } = progress {
                        let family = &batches[index].content.family.family;
                        tracing::debug!(%family, left, "applied a part of a batch");
                    }
                    results[index] = Ok(progress);
                }
            }
            Err(error) => {
                for &index in &left {
                    results[index] = Err(error.clone());
                }
            }
        }
        left.retain(|&index| matches!(results[index], Ok(Progress::Partial { .. })));
        if begun.elapsed() >= TURN {
            break;
        }
    }
    results
}

/// Applies the batches, and retries while the database is unreachable, until the reconciler is
/// stopped.
async fn apply_repeated(flusher: &Flusher, batches: &[&FetchedBatch]) -> Result<ApplyReply> {
    let (mut pause, mut grace) = (Backoff::default(), GRACE);
    let ids: Vec<_> = batches.iter().map(|one| one.held.id).collect();
    let contents: Vec<_> = batches.iter().map(|one| one.content.clone()).collect();
    loop {
        let applying = flusher.shared.store.apply(&contents, flusher.max_rows);
        let applying = noting_silence(flusher, &ids, applying);
        match unless_stopped(&flusher.stop, grace, applying).await {
            Ok(applied) if applied.progress.len() == contents.len() => return Ok(applied),
            Ok(applied) => {
                let (some, all) = (applied.progress.len(), contents.len());
                return Err(Error::corrupt(format!(
                    "the store returned the progress of {some} of {all} batches"
                )));
            }
            // The database is unreachable. An error of kind `Busy`, such as a lock or a failing
            // table, concerns one family: the caller goes on without it.
            Err(error) if error.is_retryable() && error.kind() != ErrorKind::Busy => {
                metrics::retried("apply");
                failed_all(flusher, &ids, &error);
                grace = Duration::ZERO;
                if !pause_unless_stopped(&flusher.stop, pause.next()).await {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits for the database. If it is silent, for example because its disk is full, the flushes
/// count as failing meanwhile.
async fn noting_silence<T>(
    flusher: &Flusher,
    ids: &[PartitionId],
    reply: impl Future<Output = T>,
) -> T {
    let mut reply = pin!(reply);
    if let Ok(reply) = timeout(SILENCE, &mut reply).await {
        return reply;
    }
    let waited = SILENCE.as_secs();
    let silence = format!("batches are not written yet: no reply within {waited} s");
    failed_all(flusher, ids, &Error::store(silence));
    reply.await
}

/// Notes that the flush of each partition fails.
fn failed_all(flusher: &Flusher, ids: &[PartitionId], error: &Error) {
    for id in ids {
        flusher.failed(Step::Work(WorkItem::Due(*id)), error);
    }
}

fn warn_of_rejects(flusher: &Flusher, rejected: u64, lost: u64) {
    if rejected + lost > 0
        && let Some(transactions) = flusher.failures.lock().count("rejects".to_owned())
    {
        tracing::warn!(
            rejected,
            lost,
            transactions,
            "the database refused rows: see counterfoil_rejects"
        );
    }
}

/// Registers the batch's family again if the error says that the database may have lost it.
/// `renewed` has the result for further batches of the family in this flush. Returns the error
/// of the batch. If the family has another number now, that error is retryable, and the batch
/// is flushed again under the new number.
async fn renew(
    flusher: &Flusher,
    held: &HeldBatch,
    error: Error,
    renewed: &mut BTreeMap<FamilySlot, bool>,
) -> Error {
    if error.kind() != ErrorKind::Mismatch {
        return error;
    }
    let (opened, before) = (&held.opened, &held.registered);
    let is_other = match renewed.get(&held.id.family) {
        Some(is_other) => *is_other,
        // a failure to register is ignored: the error of the batch says more
        None => flusher.shared.renew(opened, before).await.unwrap_or(false),
    };
    renewed.insert(held.id.family, is_other);
    if is_other {
        registered_again(&opened.family, error)
    } else {
        error
    }
}

/// Releases a batch that the database has, or begins anew if it proves that Redis was set back.
/// If the release fails, the batch is found again, and the ledger skips it.
async fn finish(flusher: &Flusher, batch: &FetchedBatch, progress: Progress) -> Result<()> {
    let FetchedBatch { held, content } = batch;
    let (family, number) = (&held.opened.family, held.id.number);
    ::metrics::histogram!(metrics::LAG_SECONDS, "family" => held.opened.label.clone())
        .record(held.oldest_hit().elapsed());
    let is_set_back = progress == Progress::SetBack && !ablation::is_out(Guard::SetBack);
    let finished = match family.retention() {
        _ if is_set_back => {
            let cut = LastCut::of(content.id);
            set_back::begin_anew(flusher, &held.opened, number, cut).await
        }
        // A batch without ids has nothing to save, and is released: a crash in the middle of a
        // script left only the field `""` in it, which is of no id.
        Some(_) if !content.deltas.is_empty() && !ablation::is_out(Guard::ReadBack) => {
            cached::save(flusher, content).await
        }
        _ => {
            let partition = flusher.partition(family, number);
            partition.release(content.id).await.map(drop)
        }
    };
    finished.inspect_err(|_| metrics::retried("release"))
}

/// Takes the batches of one flush from `held`: the durable ones of families that may be flushed,
/// up to [`FLUSH_IDS`] ids, but at least one batch. A family with many ids is taken without
/// others. So is a family with batches that failed before, and its turn comes last.
pub fn next_flush(
    held: &mut Vec<HeldBatch>,
    may_flush: impl Fn(FamilySlot) -> bool,
) -> Vec<HeldBatch> {
    let now = Instant::now();
    let is_ready = |held: &HeldBatch| held.ready_at <= now && may_flush(held.id.family);
    let mut ids: BTreeMap<FamilySlot, u64> = BTreeMap::new();
    for held in held.iter().filter(|held| is_ready(held)) {
        *ids.entry(held.id.family).or_default() += held.cut.ids;
    }
    let is_large = |family| ids.get(&family).is_some_and(|ids| *ids > MIXED_IDS);
    let ready = held.iter().filter(|held| is_ready(held));
    let first = ready.min_by_key(|held| held.failed_before);
    let alone = first
        .filter(|held| held.failed_before || is_large(held.id.family))
        .map(|held| held.id.family);
    let mut rows = 0;
    let taken = held.extract_if(.., |held| {
        let fits = rows == 0 || rows + held.cut.ids <= FLUSH_IDS;
        let belongs = match alone {
            Some(family) => held.id.family == family,
            None => !held.failed_before && !is_large(held.id.family),
        };
        let takes = fits && belongs && is_ready(held);
        rows += if takes { held.cut.ids } else { 0 };
        takes
    });
    taken.collect()
}

fn record(applied: &ApplyReply) {
    let is_complete = |progress: &&Progress| **progress == Progress::Complete;
    let complete = applied.progress.iter().filter(is_complete).count() as u64;
    ::metrics::counter!(metrics::BATCHES).increment(complete);
    ::metrics::counter!(metrics::ROWS).increment(applied.rows);
    ::metrics::counter!(metrics::REJECTS).increment(applied.rejected);
    ::metrics::counter!(metrics::WITHOUT_ROW).increment(applied.dropped);
    ::metrics::counter!(metrics::REJECTS_LOST).increment(applied.lost);
}

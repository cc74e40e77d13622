//! The path of batches to the database: cut, wait until durable, fetch, apply in parts, release
//! (docs/protocol.md, section 3). For a cached family, the rows are read back and its counters
//! marked as saved (section 4).

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::backoff::{Backoff, GRACE, pause_unless_stopped, unless_stopped};
use crate::connection::failures::Failures;
use crate::connection::{Connection, each, try_each};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::process::family::Opened;
use crate::process::shared::Shared;
use crate::process::work::Announced;
use crate::reconciler::set_back;
use crate::scripts::buffered::{Cut, CutBatch, FetchReply, LastCut, Lease, RotateReply};
use crate::scripts::bundle;
use crate::scripts::keys::Key;
use crate::scripts::partition::Partition;
use crate::store::{Applied, Batch, Progress, Registered};
use crate::testing::ablation::{self, Guard};

/// A partition: the number of its family, and its own number.
pub type PartitionId = (u64, u32);

/// The approximate number of ids in a page of a fetch: small enough for a script to stay far below
/// a millisecond.
const PAGE: usize = 500;

/// The approximate number of ids in one flush, which bounds its memory. Large enough for a
/// transaction to cost little.
const FLUSH_IDS: u64 = 10_000;

/// The time after which a write without a reply counts as failing. A lock ends it within a second
/// or two.
const SILENCE: Duration = Duration::from_secs(5);

/// The steps from Redis to the database.
#[derive(Debug)]
pub struct Flusher {
    pub(super) shared: Arc<Shared>,
    pub(super) redis: Connection,
    /// The name of this lease holder, and the time beyond the settle time.
    pub(super) lease: Option<(String, Duration)>,
    /// The limit of the rows that one transaction changes; `None` leaves it to the store.
    pub(super) max_rows: Option<u64>,
    pub(super) closing_all: bool,
    /// The deletion passes, by the number of the cached family.
    pub(super) passes: Mutex<HashMap<u64, Pass>>,
    pub(super) failures: Arc<Mutex<Failures<Step>>>,
}

/// A step of a reconciler that is retried when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Checks of a family, and all steps of a partition.
    Work(Announced),
    Upkeep(u64),
    Listing,
    Servers,
    Rejects,
    /// The write of a batch, together with others: the number of its family in the database, and
    /// its partition.
    Apply(u64, u32),
}

impl Step {
    /// Returns its name in the log and in [`Failing`](crate::Failing).
    pub fn name(self) -> &'static str {
        match self {
            Step::Work(Announced::Family(_)) => "search for hits",
            Step::Work(Announced::Due(..)) | Step::Apply(..) => "flush",
            Step::Upkeep(_) => "upkeep",
            Step::Listing => "search for families",
            Step::Servers => "check of Redis",
            Step::Rejects => "retry of rejects",
        }
    }
}

/// The state of the deletion of a cached family's counters.
#[derive(Clone, Debug)]
pub(super) enum Pass {
    /// The time when the next pass is due.
    Next(Instant),
    /// A pass under way: the cursor in each partition, `None` at its end.
    At(Vec<Option<u64>>),
}

/// A batch that this process knows of, waiting to be durable and flushed.
#[derive(Debug)]
pub struct Held {
    pub id: PartitionId,
    opened: Arc<Opened>,
    pub(super) registered: Arc<Registered>,
    pub cut: CutBatch,
    settle: Duration,
    known_since: Instant,
    /// Set if it could not be applied before, for example because of a lock: other families are not
    /// applied with it.
    pub failed_before: bool,
}

/// The outcome of a rotation.
#[derive(Debug)]
pub enum Rotated {
    Held(Held),
    /// No sync due for this time, unless further hits make one due.
    Early(Duration),
    /// A lease of another reconciler for this time.
    Leased(Duration),
    Nothing,
}

/// The outcome of a held batch. An error means that it is still in Redis. Otherwise it is in the
/// database, or was dropped after a set-back, or another reconciler flushed it. If its release
/// failed, the ledger skips it next time.
pub type Flushed = Result<()>;

impl Held {
    /// Returns when it may be fetched, by this process's clock. The server's clock decides.
    pub fn ready_at(&self) -> Instant {
        self.known_since + self.settle.saturating_sub(self.cut.settled)
    }

    /// Returns when the oldest hit in it was counted, by this process's clock.
    pub fn oldest_hit(&self) -> Instant {
        self.known_since
            .checked_sub(self.cut.oldest)
            .unwrap_or(self.known_since)
    }

    /// Returns when it is flushed. With a settle time it waits a little longer, so that batches cut
    /// with it join.
    pub fn flush_at(&self) -> Instant {
        self.ready_at() + self.settle.min(Duration::from_secs(1)) / 50
    }
}

/// The result of the search for hits in a family. Some may be found although it failed.
pub struct Swept {
    pub family: u64,
    pub pending: Vec<PartitionId>,
    pub result: Result<()>,
}

impl Flusher {
    /// Creates a flusher without leases, on the pair's own connection.
    pub fn new(shared: Arc<Shared>) -> Self {
        let redis = shared.redis.clone();
        Flusher {
            shared,
            redis,
            lease: None,
            max_rows: None,
            closing_all: false,
            passes: Mutex::default(),
            failures: Arc::default(),
        }
    }

    /// Notes a failure for the log.
    pub fn failed(&self, step: Step, error: &Error) {
        let opened = match step {
            Step::Work(Announced::Family(number) | Announced::Due(number, _))
            | Step::Upkeep(number) => self.shared.family(number),
            Step::Apply(..) | Step::Listing | Step::Servers | Step::Rejects => None,
        };
        let name = match opened {
            Some(opened) => format!("{} of {}", step.name(), opened.family),
            None => step.name().to_owned(),
        };
        self.failures.lock().failed(step, name, error);
    }

    /// Also closes kept slices that are not over.
    pub fn closing_all(mut self, all: bool) -> Self {
        self.closing_all = all;
        self
    }

    /// Returns the partitions of each family that have anything pending.
    #[tracing::instrument(level = "debug", skip_all, fields(families = families.len()))]
    pub async fn sweep(&self, families: Vec<Arc<Opened>>) -> Vec<Swept> {
        let sweep = async |opened: &Arc<Opened>| {
            let Opened { family, number, .. } = &**opened;
            let all: Vec<_> = (0..family.partitions())
                .map(|partition| Partition::new(self.redis.clone(), family, partition))
                .collect();
            let mut swept = Swept {
                family: *number,
                pending: Vec::new(),
                result: self.tidy(opened, &all).await,
            };
            // a key of a wrong type does not hold up the hits beside it
            if !swept.result.as_ref().is_err_and(Error::is_retryable) {
                match self.pending_partitions(*number, &all).await {
                    Ok(pending) => swept.pending = pending,
                    Err(error) => swept.result = Err(error),
                }
            }
            swept
        };
        each(&families, sweep).await
    }

    /// Closes the slices that are over, and deletes the counters that are due.
    async fn tidy(&self, opened: &Opened, partitions: &[Partition]) -> Result<()> {
        if opened.family.keeps_slices() {
            self.close_slices(partitions).await?;
        }
        match opened.family.retention() {
            Some(retention) => self.delete_due(opened, retention, partitions).await,
            None => Ok(()),
        }
    }

    /// Returns the partitions of the family that have anything pending; takes one command if it is
    /// idle on one server.
    async fn pending_partitions(&self, family: u64, all: &[Partition]) -> Result<Vec<PartitionId>> {
        if let Ok(false) = self
            .has_any(all.iter().flat_map(|one| one.keys.pending()))
            .await
        {
            return Ok(Vec::new());
        }
        let found = try_each(all, Partition::has_pending).await?;
        let pending = |(pending, partition): (bool, _)| pending.then_some((family, partition));
        Ok(found.into_iter().zip(0..).filter_map(pending).collect())
    }

    /// Returns true if any of the keys exists. Takes one command; a cluster is assumed to have one:
    /// it refuses keys of several slots once, and is then known as a cluster.
    pub(super) async fn has_any(&self, keys: impl Iterator<Item = Key>) -> Result<bool> {
        if self.shared.topology.is_cluster() {
            return Ok(true);
        }
        match bundle::any_exists(&self.redis, &keys.collect::<Vec<_>>()).await {
            Err(error) if bundle::crosses_slots(&error) => {
                self.shared.topology.found_cluster();
                Ok(true)
            }
            reply => reply,
        }
    }

    /// Moves the slices that are over, or all of them, to the buffers.
    async fn close_slices(&self, partitions: &[Partition]) -> Result<()> {
        if !self
            .has_any(partitions.iter().map(|one| one.keys.schedule()))
            .await?
        {
            return Ok(());
        }
        let close = async |partition: &Partition| {
            if self.closing_all {
                partition.close_all_slices().await
            } else {
                partition.close_slices().await.map(drop)
            }
        };
        each(partitions, close).await.into_iter().collect()
    }

    /// Cuts a batch off each partition, or takes the batch in flight. When due only where no other
    /// reconciler has the lease.
    #[tracing::instrument(level = "debug", skip_all, fields(partitions = partitions.len()))]
    pub async fn rotate(
        &self,
        partitions: &[PartitionId],
        cut: Cut,
    ) -> Vec<(PartitionId, Result<Rotated>)> {
        let rotate = async |id: &PartitionId| (*id, self.rotate_one(*id, cut).await);
        each(partitions, rotate).await
    }

    async fn rotate_one(&self, id: PartitionId, cut: Cut) -> Result<Rotated> {
        let Some(opened) = self.shared.family(id.0) else {
            return Ok(Rotated::Nothing);
        };
        let registered = opened.registered(&*self.shared.store).await?;
        let Registered {
            family, database, ..
        } = &*registered;
        let settle = match self.redis.can_be_reverted() {
            true => family.durability().settle(),
            false => Duration::ZERO,
        };
        let lease = self.lease.as_ref().filter(|_| cut == Cut::WhenDue);
        let lease = lease.map(|(owner, beyond)| Lease {
            owner,
            time: settle + *beyond,
        });
        let partition = Partition::new(self.redis.clone(), family, id.1);
        Ok(
            match partition.rotate(family, database, lease, cut).await? {
                RotateReply::Batch(cut) => Rotated::Held(Held {
                    id,
                    opened,
                    registered,
                    cut,
                    settle,
                    known_since: Instant::now(),
                    failed_before: false,
                }),
                RotateReply::Early(time) => Rotated::Early(time),
                RotateReply::Leased(time) => Rotated::Leased(time),
                RotateReply::Empty => Rotated::Nothing,
            },
        )
    }

    /// Applies the batches to the database and drops them from Redis. While the database is
    /// unreachable it retries, until it is stopped.
    #[tracing::instrument(skip_all, fields(batches = held.len(), rows = tracing::field::Empty))]
    pub async fn flush(
        &self,
        held: Vec<Held>,
        stop: &watch::Receiver<bool>,
    ) -> Vec<(PartitionId, Flushed)> {
        let started = Instant::now();
        let mut ends = Vec::with_capacity(held.len());
        let (fetched, batches) = self.fetch_all(held, &mut ends).await;
        let ids: usize = batches.iter().map(|batch| batch.deltas.len()).sum();
        tracing::Span::current().record("rows", ids);
        let pending = PendingIds::of(&batches);
        let results = self.apply(&batches, stop).await;
        drop(pending);
        let (mut applied, mut renewed) = (Vec::with_capacity(fetched.len()), BTreeMap::new());
        for ((held, batch), result) in fetched.into_iter().zip(batches).zip(results) {
            match result {
                Ok(progress) => applied.push((held, batch, progress)),
                Err(error) => {
                    let error = self.renew(&held, error, &mut renewed).await;
                    ends.push((held.id, Err(error)));
                }
            }
        }
        // a batch that is applied but not released is found again, and skipped by the ledger
        let finish = async |(held, batch, progress): &(Held, Arc<Batch>, Progress)| {
            self.finish(held, batch, *progress).await;
        };
        each(&applied, finish).await;
        ends.extend(applied.iter().map(|(held, ..)| (held.id, Ok(()))));
        ::metrics::histogram!(metrics::FLUSH_SECONDS).record(started.elapsed());
        ends
    }

    /// Registers the batch's family again if the database may have lost it; once for all batches of a
    /// flush. Returns the error of the batch, which is retried soon if it has another number now.
    async fn renew(&self, held: &Held, error: Error, renewed: &mut BTreeMap<u64, bool>) -> Error {
        if error.kind() != ErrorKind::Mismatch {
            return error;
        }
        let (opened, before) = (&held.opened, &held.registered);
        let is_other = match renewed.get(&held.id.0) {
            Some(is_other) => *is_other,
            // the error of the batch says more
            None => opened
                .renew(&*self.shared.store, before)
                .await
                .unwrap_or(false),
        };
        renewed.insert(held.id.0, is_other);
        if !is_other {
            return error;
        }
        let again = format!("{}: registered again", opened.family);
        Error::new(ErrorKind::Busy, again).with_source(error)
    }

    /// Fetches the batches. The outcome of a missing or failed batch goes to `ends`.
    async fn fetch_all(
        &self,
        held: Vec<Held>,
        ends: &mut Vec<(PartitionId, Flushed)>,
    ) -> (Vec<Held>, Vec<Arc<Batch>>) {
        let (mut fetched, mut batches) = (Vec::new(), Vec::new());
        let contents = each(&held, |held| self.fetch(held)).await;
        for (held, content) in held.into_iter().zip(contents) {
            match content {
                Ok(Some(deltas)) => {
                    batches.push(Arc::new(held.batch(deltas)));
                    fetched.push(held);
                }
                Ok(None) => ends.push((held.id, Ok(()))),
                Err(error) => ends.push((held.id, Err(retried("fetch", error)))),
            }
        }
        (fetched, batches)
    }

    /// Returns the batch's content, or `None` if the batch is gone.
    async fn fetch(&self, held: &Held) -> Result<Option<Vec<(Vec<u8>, i64)>>> {
        let partition = held.partition(&self.redis);
        loop {
            match partition.fetch(held.cut.id, held.settle, PAGE).await? {
                FetchReply::Deltas(deltas) => return Ok(Some(deltas)),
                FetchReply::Wait(time) => sleep(time).await,
                FetchReply::Stale => return Ok(None),
            }
        }
    }

    /// Applies the batches together, or family by family if one of them cannot be written. Returns
    /// the progress or the error of each batch.
    async fn apply(
        &self,
        batches: &[Arc<Batch>],
        stop: &watch::Receiver<bool>,
    ) -> Vec<Result<Progress>> {
        let mut families: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (index, batch) in batches.iter().enumerate() {
            families.entry(batch.family.number).or_default().push(index);
        }
        let mut ends: Vec<_> = batches.iter().map(|_| None).collect();
        let all = (0..batches.len()).collect();
        if let Err(error) = self.apply_all_parts(batches, all, &mut ends, stop).await {
            let concerns_one = families.len() > 1 && error.kind() != ErrorKind::Store;
            for indexes in families.into_values() {
                let left = indexes.into_iter().filter(|&index| ends[index].is_none());
                let left: Vec<_> = left.collect();
                let applied = if concerns_one {
                    let left = left.clone();
                    self.apply_all_parts(batches, left, &mut ends, stop).await
                } else {
                    Err(error.clone())
                };
                if let Err(error) = applied {
                    for index in left {
                        ends[index].get_or_insert_with(|| Err(error.clone()));
                    }
                }
            }
        }
        let unfinished = || Err(Error::corrupt("a batch was neither applied nor refused"));
        ends.into_iter()
            .map(|end| end.unwrap_or_else(unfinished))
            .collect()
    }

    /// Applies the batches at these indexes part by part, until each is complete.
    async fn apply_all_parts(
        &self,
        batches: &[Arc<Batch>],
        mut indexes: Vec<usize>,
        ends: &mut [Option<Result<Progress>>],
        stop: &watch::Receiver<bool>,
    ) -> Result<()> {
        let mut stopped = None;
        while !indexes.is_empty() {
            let some = indexes.iter().map(|&index| batches[index].clone());
            let some: Vec<_> = some.collect();
            let applied = self.apply_repeated(&some, stop).await?;
            self.record(&applied);
            let mut left = Vec::new();
            for (index, progress) in indexes.into_iter().zip(applied.progress) {
                match progress {
                    Progress::Partial { left: ids } => {
                        tracing::debug!(family = %batches[index].family.family, ids, "applied a part of a batch");
                        left.push(index);
                    }
                    end => ends[index] = Some(Ok(end)),
                }
            }
            indexes = left;
            if *stop.borrow()
                && stopped.get_or_insert_with(Instant::now).elapsed() > GRACE
                && !indexes.is_empty()
            {
                return Err(Error::store(
                    "stopped before the rest of a batch was applied",
                ));
            }
        }
        Ok(())
    }

    /// Applies the batches, and retries while the database is unreachable, until it is stopped.
    async fn apply_repeated(
        &self,
        batches: &[Arc<Batch>],
        stop: &watch::Receiver<bool>,
    ) -> Result<Applied> {
        let (mut pause, mut grace) = (Backoff::default(), GRACE);
        let step = |batch: &Arc<Batch>| Step::Apply(batch.family.number, batch.partition);
        let steps: Vec<_> = batches.iter().map(step).collect();
        loop {
            let apply = self.shared.store.apply(batches, self.max_rows);
            let apply = self.noting_silence(&steps, apply);
            match unless_stopped(stop, grace, apply).await {
                Ok(applied) if applied.progress.len() == batches.len() => {
                    let mut failures = self.failures.lock();
                    steps.iter().for_each(|step| failures.succeeded(step));
                    return Ok(applied);
                }
                Ok(applied) => {
                    let (some, all) = (applied.progress.len(), batches.len());
                    return Err(Error::corrupt(format!(
                        "the store returned the progress of {some} of {all} batches"
                    )));
                }
                // a lock or a table that fails concerns one family, and the others do not wait for it
                Err(error) if error.is_retryable() && error.kind() != ErrorKind::Busy => {
                    let error = retried("apply", error);
                    steps.iter().for_each(|step| self.failed(*step, &error));
                    grace = Duration::ZERO;
                    if !pause_unless_stopped(stop, pause.next()).await {
                        return Err(error);
                    }
                }
                Err(error) => {
                    let mut failures = self.failures.lock();
                    steps.iter().for_each(|step| failures.forget(step));
                    return Err(error);
                }
            }
        }
    }

    /// Waits for the database. If it is silent, for example because its disk is full, the steps count
    /// as failing meanwhile.
    async fn noting_silence<T>(&self, steps: &[Step], reply: impl Future<Output = T>) -> T {
        let mut reply = pin!(reply);
        if let Ok(reply) = timeout(SILENCE, &mut reply).await {
            return reply;
        }
        let waited = SILENCE.as_secs();
        let silence = format!("batches are not written yet: no reply within {waited} s");
        let silence = Error::store(silence);
        steps.iter().for_each(|step| self.failed(*step, &silence));
        reply.await
    }

    /// Releases a batch that the database has, or begins anew if it proves that Redis was set back.
    async fn finish(&self, held: &Held, batch: &Batch, progress: Progress) {
        let family = &held.opened.family;
        ::metrics::histogram!(metrics::LAG_SECONDS, "family" => held.opened.label.clone())
            .record(held.oldest_hit().elapsed());
        let partition = held.partition(&self.redis);
        let is_set_back = progress == Progress::SetBack && !ablation::is_out(Guard::SetBack);
        let finished = match family.retention() {
            _ if is_set_back => {
                let id = batch.id;
                let cut = LastCut {
                    incarnation: Some(id.incarnation),
                    seq: id.seq,
                    nonce: Some(id.nonce),
                };
                set_back::begin_anew(&self.shared, &self.redis, &held.opened, held.id.1, cut).await
            }
            Some(retention) if !ablation::is_out(Guard::ReadBack) => {
                self.save(held, batch, retention).await
            }
            _ => partition.release(batch.id).await.map(drop),
        };
        if let Err(error) = finished {
            tracing::warn!(%family, error = %retried("release", error), "a batch was applied, but not yet released");
        }
    }

    fn record(&self, applied: &Applied) {
        let complete = applied
            .progress
            .iter()
            .filter(|progress| **progress == Progress::Complete)
            .count() as u64;
        ::metrics::counter!(metrics::BATCHES).increment(complete);
        ::metrics::counter!(metrics::ROWS).increment(applied.rows);
        ::metrics::counter!(metrics::REJECTS).increment(applied.rejected);
        ::metrics::counter!(metrics::WITHOUT_ROW).increment(applied.dropped);
        if applied.rejected > 0
            && let Some(transactions) = self.failures.lock().count("rejects".to_owned())
        {
            let rejected = applied.rejected;
            tracing::warn!(
                rejected,
                transactions,
                "the database refused rows: see counterfoil_rejects"
            );
        }
    }

    /// Takes the batches of one flush from `held`: the durable ones, up to [`FLUSH_IDS`] ids, but
    /// at least one batch. Batches that failed before are taken last, each family for itself.
    pub fn next_flush(&self, held: &mut Vec<Held>) -> Vec<Held> {
        let now = Instant::now();
        let ready = held.iter().filter(|held| held.ready_at() <= now);
        let first = ready.min_by_key(|held| held.failed_before);
        let alone = first.filter(|held| held.failed_before);
        let alone = alone.map(|held| held.id.0);
        let mut rows = 0;
        let taken = held.extract_if(.., |held| {
            let fits = rows == 0 || rows + held.cut.ids <= FLUSH_IDS;
            let belongs = match alone {
                Some(family) => held.id.0 == family,
                None => !held.failed_before,
            };
            let takes = fits && belongs && held.ready_at() <= now;
            rows += if takes { held.cut.ids } else { 0 };
            takes
        });
        taken.collect()
    }
}

impl Held {
    pub(super) fn partition(&self, redis: &Connection) -> Partition {
        Partition::new(redis.clone(), &self.opened.family, self.id.1)
    }

    fn batch(&self, deltas: Vec<(Vec<u8>, i64)>) -> Batch {
        Batch {
            family: self.registered.clone(),
            partition: self.id.1,
            id: self.cut.id,
            deltas,
        }
    }
}

fn retried(what: &'static str, error: Error) -> Error {
    metrics::retried(what);
    error
}

/// The gauge of ids that are being written. Dropping it subtracts them, also when the caller gives
/// up.
struct PendingIds(Vec<(::metrics::Gauge, f64)>);

impl PendingIds {
    fn of(batches: &[Arc<Batch>]) -> Self {
        let gauge = |batch: &Arc<Batch>| ::metrics::gauge!(metrics::PENDING_IDS, "family" => batch.family.family.name.clone());
        let pending: Vec<_> = batches
            .iter()
            .map(|batch| (gauge(batch), batch.deltas.len() as f64))
            .collect();
        pending
            .iter()
            .for_each(|(gauge, ids)| gauge.increment(*ids));
        PendingIds(pending)
    }
}

impl Drop for PendingIds {
    fn drop(&mut self) {
        self.0.iter().for_each(|(gauge, ids)| gauge.decrement(*ids));
    }
}

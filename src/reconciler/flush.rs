//! Bringing batches from Redis to the database: cut, wait until durable, fetch, apply, release. The only place where
//! both are spoken to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use redis::aio::ConnectionLike;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::connection::backoff::{Backoff, GRACE, pause_unless_stopped, unless_stopped, wait_out};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::reconciler::upkeep;
use crate::scripts::buffered::{Cut, CutBatch, FetchReply, Lease, RotateReply, anything_pending};
use crate::scripts::bundle;
use crate::scripts::partition::{Partition, random};
use crate::scripts::series::any_slices;
use crate::store::{Applied, Batch, Incarnation, ReadFrom, Registered, Store};
use crate::testing::ablation::{self, Guard};
use crate::writer::opened::Opened;
use crate::writer::shared::Shared;

/// A partition, by its family's number and its own.
pub type PartitionId = (u64, u32);

/// The deltas of a batch, and those of ids that are not UTF-8.
type Content = (Vec<(String, i64)>, Vec<(Vec<u8>, i64)>);

/// About how many ids a page of a fetch has: small enough for a script to stay far below a millisecond.
const PAGE: usize = 500;
/// How many calls to Redis are under way at a time.
const CALLS: usize = 64;

/// The steps from Redis to the database.
#[derive(Debug)]
pub struct Flusher<C, S> {
    shared: Arc<Shared<C, S>>,
    redis: C,
    lease: Option<(String, Duration)>,
    max_rows: u64,
    closing_all: bool,
}

/// A batch that this process knows of, and that waits to be durable.
#[derive(Debug)]
pub struct Held {
    pub id: PartitionId,
    opened: Arc<Opened>,
    registered: Arc<Registered>,
    pub cut: CutBatch,
    known_since: Instant,
}

/// What a rotation found.
#[derive(Debug)]
pub enum Rotated {
    Held(Held),
    /// No sync is due for so long, unless further hits make it due.
    Early(Duration),
    /// Somebody else has the lease for so long.
    Leased(Duration),
    Nothing,
}

/// How a held batch ended.
#[derive(Debug)]
pub enum Flushed {
    /// It is in the database, and gone from Redis.
    Done,
    /// It was not there any more: somebody else did it.
    Stale,
    /// It is still in Redis.
    Failed(Error),
}

impl Held {
    /// When it may be fetched, by this process's clock; the server has the last word.
    pub fn ready_at(&self) -> Instant {
        let settle = self.opened.family.durability().settle();
        self.known_since + settle.saturating_sub(self.cut.settled)
    }

    /// When the oldest hit in it was counted, by this process's clock.
    pub fn oldest_hit(&self) -> Instant {
        self.known_since.checked_sub(self.cut.oldest).unwrap_or(self.known_since)
    }

    /// When it is flushed: where it has to wait anyway a little later, so that those cut with it come along.
    pub fn flush_at(&self) -> Instant {
        let settle = self.opened.family.durability().settle();
        self.ready_at() + settle.min(Duration::from_secs(1)) / 50
    }
}

impl<C, S> Flusher<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// Without leases, over the pair's own connection.
    pub fn new(shared: Arc<Shared<C, S>>) -> Self {
        let redis = shared.redis.clone();
        Flusher { shared, redis, lease: None, max_rows: 50_000, closing_all: false }
    }

    pub fn over(mut self, redis: C) -> Self {
        self.redis = redis;
        self
    }

    pub fn max_rows(mut self, rows: u64) -> Self {
        self.max_rows = rows;
        self
    }

    /// Closes slices that are kept also where they are not over.
    pub fn closing_all(mut self, all: bool) -> Self {
        self.closing_all = all;
        self
    }

    pub fn leasing(mut self, time: Duration) -> Result<Self> {
        self.lease = Some((format!("{:016x}", random()?), time));
        Ok(self)
    }

    /// The partitions of each family that have anything pending.
    #[tracing::instrument(level = "debug", skip_all, fields(families = families.len()))]
    pub async fn sweep(&self, families: Vec<Arc<Opened>>) -> Vec<(u64, Result<Vec<PartitionId>>)> {
        let mut found = Vec::with_capacity(families.len());
        for some in families.chunks(CALLS) {
            let looks = some.iter().map(|opened| async move { (opened.number, self.pending_partitions(opened).await) });
            found.extend(join_all(looks).await);
        }
        found
    }

    /// The partitions of the family that have anything pending: one command where it is idle.
    async fn pending_partitions(&self, opened: &Opened) -> Result<Vec<PartitionId>> {
        let Opened { family, number, .. } = opened;
        let all: Vec<_> =
            (0..family.partitions()).map(|partition| Partition::new(self.redis.clone(), family, partition)).collect();
        if family.keeps_slices() {
            self.close_slices(&all).await?;
        }
        // a cluster says once that it does not take keys of several slots in one call
        if !self.shared.topology.is_cluster() {
            match anything_pending(&self.redis, &all).await {
                Ok(false) => return Ok(Vec::new()),
                Err(error) if bundle::crosses_slots(&error) => self.shared.topology.found_cluster(),
                _ => {}
            }
        }
        let mut found = Vec::new();
        for some in all.chunks(CALLS) {
            found.extend(try_join_all(some.iter().map(Partition::has_pending)).await?);
        }
        let found =
            found.into_iter().zip(0..).filter_map(|(pending, partition)| pending.then_some((*number, partition)));
        Ok(found.collect())
    }

    /// Hands the slices that are over, or all, on to the buffers.
    async fn close_slices(&self, partitions: &[Partition<C>]) -> Result<()> {
        if !self.shared.topology.is_cluster() {
            match any_slices(&self.redis, partitions).await {
                Ok(false) => return Ok(()),
                Err(error) if bundle::crosses_slots(&error) => self.shared.topology.found_cluster(),
                _ => {}
            }
        }
        for some in partitions.chunks(CALLS) {
            try_join_all(some.iter().map(async |partition| match self.closing_all {
                true => partition.close_all_slices().await,
                false => partition.close_slices().await.map(drop),
            }))
            .await?;
        }
        Ok(())
    }

    /// Cuts a batch off each partition, or takes the one that is there. With `due`, only where a sync is due and nobody
    /// else has the lease.
    #[tracing::instrument(level = "debug", skip_all, fields(partitions = partitions.len()))]
    pub async fn rotate(&self, partitions: &[PartitionId], due: bool) -> Vec<(PartitionId, Result<Rotated>)> {
        let mut all = Vec::with_capacity(partitions.len());
        for some in partitions.chunks(CALLS) {
            let rotations = some.iter().map(|&id| async move { (id, self.rotate_one(id, due).await) });
            all.extend(join_all(rotations).await);
        }
        all
    }

    async fn rotate_one(&self, id: PartitionId, due: bool) -> Result<Rotated> {
        let Some(opened) = self.shared.family(id.0) else { return Ok(Rotated::Nothing) };
        let registered = opened.registered(&self.shared.store).await?.clone();
        let family = &registered.family;
        let settle = family.durability().settle();
        let lease = self.lease.as_ref().filter(|_| due);
        let lease = lease.map(|(owner, beyond)| Lease { owner, time: settle + *beyond });
        let cut = if due { Cut::WhenDue(family) } else { Cut::Now };
        let partition = Partition::new(self.redis.clone(), family, id.1);
        Ok(match partition.rotate(Incarnation(random()?), lease, cut).await? {
            RotateReply::Batch(cut) => Rotated::Held(Held { id, opened, registered, cut, known_since: Instant::now() }),
            RotateReply::Early(time) => Rotated::Early(time),
            RotateReply::Leased(time) => Rotated::Leased(time),
            RotateReply::Empty => Rotated::Nothing,
        })
    }

    /// Brings the batches to the database in one transaction and drops them from Redis. While the database is away it
    /// waits, unless it is told to stop.
    #[tracing::instrument(skip_all, fields(batches = held.len(), rows = tracing::field::Empty))]
    pub async fn flush(&self, held: Vec<Held>, stop: &watch::Receiver<bool>) -> Vec<(PartitionId, Flushed)> {
        let started = Instant::now();
        let mut ends = Vec::with_capacity(held.len());
        let (fetched, batches) = self.fetch_all(held, &mut ends).await;
        let ids: usize = batches.iter().map(|batch| batch.deltas.len()).sum();
        tracing::Span::current().record("rows", ids);
        let pending = PendingIds::of(&batches);
        let results = self.apply(&batches, stop).await;
        drop(pending);
        let mut applied = Vec::with_capacity(fetched.len());
        for (held, result) in fetched.into_iter().zip(results) {
            match result {
                Ok(repeated) => applied.push((held, repeated)),
                Err(error) => ends.push((held.id, Flushed::Failed(error))),
            }
        }
        // what is applied but not released is found again, and skipped by the ledger
        for some in applied.chunks(CALLS) {
            join_all(some.iter().map(|(held, repeated)| self.release(held, *repeated))).await;
        }
        ends.extend(applied.iter().map(|(held, _)| (held.id, Flushed::Done)));
        ::metrics::histogram!(metrics::FLUSH_SECONDS).record(started.elapsed());
        ends
    }

    /// The batches that are there, with their content.
    async fn fetch_all(&self, held: Vec<Held>, ends: &mut Vec<(PartitionId, Flushed)>) -> (Vec<Held>, Vec<Batch>) {
        let (mut fetched, mut batches) = (Vec::with_capacity(held.len()), Vec::with_capacity(held.len()));
        for some in chunks(held, CALLS) {
            let contents = join_all(some.iter().map(|held| self.fetch(held))).await;
            for (held, content) in some.into_iter().zip(contents) {
                match content {
                    Ok(Some((deltas, foreign))) => {
                        batches.push(held.batch(deltas, foreign));
                        fetched.push(held);
                    }
                    Ok(None) => ends.push((held.id, Flushed::Stale)),
                    Err(error) => ends.push((held.id, Flushed::Failed(retried("fetch", error)))),
                }
            }
        }
        (fetched, batches)
    }

    /// The batch's content; `None` if it is not there any more.
    async fn fetch(&self, held: &Held) -> Result<Option<Content>> {
        let settle = held.opened.family.durability().settle();
        let partition = held.partition(&self.redis);
        loop {
            match partition.fetch(&held.cut, settle, PAGE).await? {
                FetchReply::Deltas { deltas, foreign } => return Ok(Some((deltas, foreign))),
                FetchReply::Wait(time) => sleep(time).await,
                FetchReply::Stale => return Ok(None),
            }
        }
    }

    /// Applies the batches, all together, or family by family where one of them cannot be written at all. Returns
    /// for each batch whether it or one that went with it had been applied before, or why it was not applied.
    async fn apply(&self, batches: &[Batch], stop: &watch::Receiver<bool>) -> Vec<Result<bool>> {
        if batches.is_empty() {
            return Vec::new();
        }
        let error = match self.apply_repeated(batches, stop).await {
            Ok(repeated) => return batches.iter().map(|_| Ok(repeated)).collect(),
            Err(error) => error,
        };
        let mut families: BTreeMap<u64, Vec<Batch>> = BTreeMap::new();
        for batch in batches {
            families.entry(batch.family.number).or_default().push(batch.clone());
        }
        if families.len() == 1 || error.kind() == ErrorKind::Store {
            return batches.iter().map(|_| Err(error.again())).collect();
        }
        let mut results = BTreeMap::new();
        for (number, batches) in families {
            results.insert(number, self.apply_repeated(&batches, stop).await);
        }
        let of = |batch: &Batch| results[&batch.family.number].as_ref().copied().map_err(Error::again);
        batches.iter().map(of).collect()
    }

    /// Tries again as long as the database is away, and nobody says stop. Returns whether any of them had been applied before.
    async fn apply_repeated(&self, batches: &[Batch], stop: &watch::Receiver<bool>) -> Result<bool> {
        let (mut pause, mut grace) = (Backoff::default(), GRACE);
        loop {
            match unless_stopped(stop, grace, self.shared.store.apply(batches)).await {
                Ok(applied) => {
                    record(applied);
                    return Ok(applied.repeated > 0);
                }
                Err(error) if error.is_retryable() => {
                    let error = retried("apply", error);
                    tracing::warn!(%error, batches = batches.len(), "the database did not take the batches");
                    grace = Duration::ZERO;
                    if !pause_unless_stopped(stop, pause.next()).await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn release(&self, held: &Held, repeated: bool) {
        let family = &held.opened.family;
        ::metrics::histogram!(metrics::LAG_SECONDS, "family" => held.opened.label.clone())
            .record(held.oldest_hit().elapsed());
        let released = match repeated && !ablation::is_out(Guard::SetBack) {
            true => self.release_repeated(held).await,
            false => held.partition(&self.redis).release(&held.cut).await.map(drop),
        };
        if let Err(error) = released {
            tracing::warn!(%family, error = %retried("release", error), "a batch was applied but not yet released");
        }
    }

    /// A batch that is still there when the ledger is past it shows that Redis was set back (docs/protocol.md, section 3.9).
    async fn release_repeated(&self, held: &Held) -> Result<()> {
        let (family, partition) = (&held.opened.family, held.partition(&self.redis));
        let ledger = [(held.id.1, held.cut.incarnation)];
        let snapshot = self.shared.store.read(&held.registered, &[], &ledger, ReadFrom::Primary).await?;
        let is_past = snapshot.ledger.first().is_some_and(|applied| *applied > held.cut.seq);
        // slices that are kept were set back as well, and only the old numbers tell those that the database has
        let dropped = match is_past && !family.keeps_slices() {
            true => partition.discard(&held.cut, Incarnation(random()?)).await?,
            false => partition.release(&held.cut).await?.then_some(held.cut.ids),
        };
        if let Some(ids) = dropped.filter(|_| is_past) {
            ::metrics::counter!(metrics::SET_BACK, "family" => held.opened.label.clone()).increment(1);
            let partition = held.id.1;
            tracing::error!(%family, partition, ids, "Redis was set back to an older state: what was pending is dropped");
        }
        Ok(())
    }

    /// Takes from the batches what one transaction brings to the database: those that are durable by now, up to the
    /// number of rows, but at least one.
    pub fn next_transaction(&self, held: &mut Vec<Held>) -> Vec<Held> {
        let now = Instant::now();
        let mut rows = 0;
        let taken = held.extract_if(.., |held| {
            let fits = rows == 0 || rows + held.cut.ids <= self.max_rows;
            let takes = fits && held.ready_at() <= now;
            rows += if takes { held.cut.ids } else { 0 };
            takes
        });
        taken.collect()
    }

    /// Brings everything to the database that is in Redis now. What cannot be brought there holds nothing else back.
    #[tracing::instrument(skip_all)]
    pub async fn drain(&self, mut families: Vec<Arc<Opened>>) -> Result<()> {
        let mut pause = Backoff::default();
        let mut left: Vec<PartitionId> = Vec::new();
        while !families.is_empty() {
            for (number, found) in self.sweep(std::mem::take(&mut families)).await {
                match found {
                    Ok(found) => left.extend(found),
                    Err(error) => {
                        wait_out(error, &mut pause).await?;
                        families.extend(self.shared.family(number));
                    }
                }
            }
        }
        let mut stuck = None;
        while !left.is_empty() {
            left = self.drain_once(left, &mut pause, &mut stuck).await;
        }
        stuck.map_or(Ok(()), Err)
    }

    /// Takes one batch off each partition. Returns the partitions that may still hold a hit from before the drain: a
    /// batch that somebody else cut says nothing about the buffer.
    async fn drain_once(
        &self,
        partitions: Vec<PartitionId>,
        pause: &mut Backoff,
        stuck: &mut Option<Error>,
    ) -> Vec<PartitionId> {
        let (_running, stop) = watch::channel(false);
        let (mut held, mut left, mut failed) = (Vec::new(), BTreeSet::new(), Vec::new());
        for (id, rotated) in self.rotate(&partitions, false).await {
            match rotated {
                Ok(Rotated::Held(batch)) => {
                    if !batch.cut.fresh {
                        left.insert(id);
                    }
                    held.push(batch);
                }
                // a drain heeds neither the time nor a lease
                Ok(Rotated::Nothing | Rotated::Early(_) | Rotated::Leased(_)) => {}
                Err(error) => failed.push((id, error)),
            }
        }
        while let Some(ready) = held.iter().map(Held::ready_at).max() {
            tokio::time::sleep_until(ready).await;
            for (id, end) in self.flush(self.next_transaction(&mut held), &stop).await {
                if let Flushed::Failed(error) = end {
                    failed.push((id, error));
                }
            }
        }
        for (id, error) in failed {
            match wait_out(error, pause).await {
                Ok(()) => left.insert(id),
                Err(error) => {
                    *stuck = Some(error);
                    left.remove(&id)
                }
            };
        }
        left.into_iter().collect()
    }

    /// What a family needs once a minute. Returns the partitions beyond its own in which something waits, if it is to look.
    pub async fn upkeep(&self, number: u64, look: bool) -> Result<Vec<PartitionId>> {
        let Some(opened) = self.shared.family(number) else { return Ok(Vec::new()) };
        let Shared { topology, store, .. } = &*self.shared;
        let family = &opened.registered(store).await?.family;
        match upkeep::begin_epochs(&self.redis, topology, family).await {
            // who is right is known to the database, which may have another configuration by now
            Err(error) if error.kind() == ErrorKind::Mismatch => {
                store.register(family).await?;
                upkeep::configure(&self.redis, topology, family).await?;
            }
            begun => begun?,
        }
        if !look {
            return Ok(Vec::new());
        }
        let strays = upkeep::strays(&self.redis, topology, family).await?;
        Ok(strays.into_iter().map(|partition| (number, partition)).collect())
    }
}

impl Held {
    fn partition<C: ConnectionLike + Clone + 'static>(&self, redis: &C) -> Partition<C> {
        Partition::new(redis.clone(), &self.opened.family, self.id.1)
    }

    fn batch(&self, deltas: Vec<(String, i64)>, foreign: Vec<(Vec<u8>, i64)>) -> Batch {
        Batch {
            family: self.registered.clone(),
            partition: self.id.1,
            incarnation: self.cut.incarnation,
            seq: self.cut.seq,
            deltas,
            foreign,
        }
    }
}

fn retried(what: &'static str, error: Error) -> Error {
    metrics::retried(what);
    error
}

/// The ids of batches that are being written: no more of them once it is dropped, as when the caller gives up.
struct PendingIds(Vec<(::metrics::Gauge, f64)>);

impl PendingIds {
    fn of(batches: &[Batch]) -> Self {
        let gauge =
            |batch: &Batch| ::metrics::gauge!(metrics::PENDING_IDS, "family" => batch.family.family.name.clone());
        let pending: Vec<_> = batches.iter().map(|batch| (gauge(batch), batch.deltas.len() as f64)).collect();
        pending.iter().for_each(|(gauge, ids)| gauge.increment(*ids));
        PendingIds(pending)
    }
}

impl Drop for PendingIds {
    fn drop(&mut self) {
        self.0.iter().for_each(|(gauge, ids)| gauge.decrement(*ids));
    }
}

fn record(applied: Applied) {
    ::metrics::counter!(metrics::BATCHES).increment(applied.batches);
    ::metrics::counter!(metrics::ROWS).increment(applied.rows);
    ::metrics::counter!(metrics::REJECTS).increment(applied.rejected);
    if applied.rejected > 0 {
        tracing::warn!(rejected = applied.rejected, "the database refused rows: see counterfoil_rejects");
    }
}

fn chunks<T>(all: Vec<T>, size: usize) -> impl Iterator<Item = Vec<T>> {
    let mut all = all.into_iter();
    std::iter::from_fn(move || {
        let some: Vec<_> = all.by_ref().take(size).collect();
        (!some.is_empty()).then_some(some)
    })
}

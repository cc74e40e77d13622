//! The path of batches to the database: cut, wait until durable, fetch, apply in parts, release
//! (docs/protocol.md, section 3). For a cached family, the rows are read back and its counters
//! marked as saved (section 4).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::connection::backoff::{GRACE, unless_stopped};
use crate::connection::failures::Failures;
use crate::connection::{Connection, each};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::process::family::Opened;
use crate::process::shared::Shared;
use crate::process::work::{Announced, FamilySlot, PartitionId};
use crate::reconciler::step::{Step, caught};
use crate::scripts::buffered::{Cut, CutBatch, FetchReply, LastCut, Lease, RotateReply};
use crate::scripts::partition::Partition;
use crate::store::{Batch, Progress, Registered};
use crate::testing::ablation::{self, Guard};

/// The approximate number of ids in a page of a fetch: small enough for a script to stay far below
/// a millisecond.
const PAGE: usize = 500;

/// The approximate number of ids in one flush, which bounds its memory. Large enough for a
/// transaction to cost little.
const FLUSH_IDS: u64 = 10_000;

/// The number of ids beyond which a family is flushed without others, which would wait for it.
const MIXED_IDS: u64 = 1_000;

/// The steps of a reconciler, on the connection of its own.
#[derive(Debug)]
pub struct Flusher {
    pub shared: Arc<Shared>,
    pub redis: Connection,
    /// The time of its leases beyond the settle time.
    pub lease: Option<Duration>,
    /// The name of this lease holder.
    pub owner: String,
    /// The limit of the rows that one transaction changes; `None` leaves it to the store.
    pub max_rows: Option<u64>,
    /// Set when it stops: then it no longer waits for the database.
    pub stop: watch::Receiver<bool>,
    /// The deletion passes of the partitions of cached families.
    pub passes: Mutex<HashMap<PartitionId, Pass>>,
    pub failures: Arc<Mutex<Failures<Step>>>,
}

/// The deletion of due counters in a partition: the time of its next step, and the cursor.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub at: Instant,
    pub cursor: u64,
}

/// A batch that this process knows of, waiting to be durable and flushed.
#[derive(Debug)]
pub struct Held {
    pub id: PartitionId,
    pub opened: Arc<Opened>,
    registered: Arc<Registered>,
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

/// A batch that was fetched.
pub type Fetched = (Held, Arc<Batch>);

/// The outcome of a flush of one batch.
#[derive(Debug)]
pub enum Flushed {
    /// The batch is in the database, or was dropped after a set-back, or another reconciler flushed
    /// it.
    Done,
    /// It is not durable yet, because the clock of Redis stepped back, or the flush took so long that
    /// others go first: flush it later.
    Waits(Held),
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

impl Held {
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

impl Flusher {
    /// Creates a flusher without leases, on the pair's own connection.
    pub fn new(shared: Arc<Shared>) -> Self {
        let redis = shared.redis.clone();
        Flusher {
            shared,
            redis,
            lease: None,
            owner: String::new(),
            max_rows: None,
            stop: watch::channel(false).1,
            passes: Mutex::default(),
            failures: Arc::default(),
        }
    }

    /// Notes a failure for the log.
    pub fn failed(&self, step: Step, error: &Error) {
        let name = match step.family().and_then(|number| self.shared.family(number)) {
            Some(opened) => format!("{} of {}", step.name(), opened.family),
            None => step.name().to_owned(),
        };
        self.failures.lock().failed(step, name, error);
    }

    /// Notes a success for the log.
    pub fn succeeded(&self, step: Step) {
        self.failures.lock().succeeded(&step);
    }

    /// Takes a step, and notes for the log that it failed or succeeded. A panic is an error.
    pub async fn noted<T>(&self, step: Step, taken: impl Future<Output = Result<T>>) -> Result<T> {
        let result = caught(taken).await;
        match &result {
            Ok(_) => self.succeeded(step),
            Err(error) => self.failed(step, error),
        }
        result
    }

    pub fn partition(&self, family: &Family, number: u32) -> Partition {
        Partition::new(self.redis.clone(), family, number)
    }

    /// Cuts a batch off each partition, or takes the batch in flight. When due only where no other
    /// reconciler has the lease.
    #[tracing::instrument(level = "debug", skip_all, fields(partitions = partitions.len()))]
    pub async fn rotate(
        &self,
        partitions: &[PartitionId],
        cut: Cut,
    ) -> Vec<(PartitionId, Result<Rotated>)> {
        let rotate = async |id: &PartitionId| (*id, caught(self.rotate_one(*id, cut)).await);
        each(partitions, rotate).await
    }

    async fn rotate_one(&self, id: PartitionId, cut: Cut) -> Result<Rotated> {
        let Some(opened) = self.shared.family(id.0) else {
            return Ok(Rotated::Nothing);
        };
        let registered = opened.registered(&*self.shared.store);
        let registered = unless_stopped(&self.stop, GRACE, registered).await?;
        let (family, database) = (&registered.family, &registered.database);
        let settle = if self.redis.can_be_reverted() {
            family.durability().settle()
        } else {
            Duration::ZERO
        };
        let lease = self
            .lease
            .filter(|_| cut == Cut::WhenDue)
            .map(|beyond| Lease {
                owner: &self.owner,
                time: settle + beyond,
            });
        let partition = self.partition(family, id.1);
        let rotated = partition.rotate(family, database, lease, cut).await;
        if let Err(error) = &rotated
            && error.kind() == ErrorKind::Mismatch
        {
            // the database may have been made anew, and the family registered in it
            self.shared.work.announce(Announced::Upkeep(id.0));
        }
        Ok(match rotated? {
            RotateReply::Batch(cut) => {
                let now = Instant::now();
                Rotated::Held(Held {
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
            RotateReply::Early(time) => Rotated::Early(time),
            RotateReply::Leased(time) => Rotated::Leased(time),
            RotateReply::Empty => Rotated::Nothing,
        })
    }

    /// Applies the batches to the database and drops them from Redis. While the database is
    /// unreachable it retries, until it is stopped.
    ///
    /// Returns an outcome for each batch. After an error the batch is still in Redis, also if it is
    /// in the database: it is flushed again.
    #[tracing::instrument(skip_all, fields(batches = held.len(), rows = tracing::field::Empty))]
    pub async fn flush(&self, held: Vec<Held>) -> Vec<(PartitionId, Result<Flushed>)> {
        let started = Instant::now();
        let mut ends = Vec::with_capacity(held.len());
        let fetched = self.fetch_all(held, &mut ends).await;
        let ids: usize = fetched.iter().map(|(_, batch)| batch.deltas.len()).sum();
        tracing::Span::current().record("rows", ids);
        let results = self.apply(&fetched).await;
        let (mut applied, mut renewed) = (Vec::with_capacity(fetched.len()), BTreeMap::new());
        for (mut one, result) in fetched.into_iter().zip(results) {
            let result = match result {
                Ok(Progress::Partial { .. }) => {
                    one.0.ready_at = Instant::now();
                    one.0.fetched = Some(one.1);
                    ends.push((one.0.id, Ok(Flushed::Waits(one.0))));
                    continue;
                }
                Err(error) => Err(self.renew(&one.0, error, &mut renewed).await),
                applied => applied,
            };
            applied.push((one, result));
        }
        let finish = async |((held, batch), result): &(Fetched, Result<Progress>)| {
            let end = match result {
                Ok(progress) => self.finish(held, batch, *progress).await,
                Err(error) => Err(error.clone()),
            };
            (held.id, end.map(|()| Flushed::Done))
        };
        ends.extend(each(&applied, finish).await);
        ::metrics::histogram!(metrics::FLUSH_SECONDS).record(started.elapsed());
        ends
    }

    /// Registers the batch's family again if the database may have lost it; once for all batches
    /// of a flush. Returns the error of the batch, which is retried soon if it has another number
    /// now.
    async fn renew(
        &self,
        held: &Held,
        error: Error,
        renewed: &mut BTreeMap<FamilySlot, bool>,
    ) -> Error {
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

    /// Fetches the batches. The outcome of one that is not fetched goes to `ends`.
    async fn fetch_all(
        &self,
        held: Vec<Held>,
        ends: &mut Vec<(PartitionId, Result<Flushed>)>,
    ) -> Vec<Fetched> {
        let (begun, held): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|held| held.fetched.is_some());
        let begun = begun.into_iter().filter_map(|mut held| {
            let batch = held.fetched.take()?;
            Some((held, batch))
        });
        let mut fetched: Vec<_> = begun.collect();
        let fetch = async |held: &Held| {
            self.partition(&held.opened.family, held.id.1)
                .fetch(held.cut.id, held.settle, PAGE)
                .await
        };
        let replies = each(&held, fetch).await;
        for (mut held, reply) in held.into_iter().zip(replies) {
            let id = held.id;
            let end = match reply {
                Ok(FetchReply::Deltas(deltas)) => {
                    let batch = Batch {
                        family: held.registered.clone(),
                        partition: id.1,
                        id: held.cut.id,
                        deltas,
                    };
                    fetched.push((held, Arc::new(batch)));
                    continue;
                }
                Ok(FetchReply::Wait(time)) => {
                    held.ready_at = Instant::now() + time;
                    Ok(Flushed::Waits(held))
                }
                Ok(FetchReply::Stale) => Ok(Flushed::Done),
                Err(error) => {
                    metrics::retried("fetch");
                    Err(error)
                }
            };
            ends.push((id, end));
        }
        fetched
    }

    /// Releases a batch that the database has, or begins anew if it proves that Redis was set back.
    /// If the release fails, the batch is found again, and the ledger skips it.
    async fn finish(&self, held: &Held, batch: &Batch, progress: Progress) -> Result<()> {
        let family = &held.opened.family;
        ::metrics::histogram!(metrics::LAG_SECONDS, "family" => held.opened.label.clone())
            .record(held.oldest_hit().elapsed());
        let partition = self.partition(&held.opened.family, held.id.1);
        let is_set_back = progress == Progress::SetBack && !ablation::is_out(Guard::SetBack);
        let finished = match family.retention() {
            _ if is_set_back => {
                let id = batch.id;
                let cut = LastCut {
                    incarnation: Some(id.incarnation),
                    seq: id.seq,
                    nonce: Some(id.nonce),
                };
                self.begin_anew(&held.opened, held.id.1, cut).await
            }
            // without ids there is nothing to save: half a script left the field of no id
            Some(_) if !batch.deltas.is_empty() && !ablation::is_out(Guard::ReadBack) => {
                self.save(held, batch).await
            }
            _ => partition.release(batch.id).await.map(drop),
        };
        finished.inspect_err(|_| metrics::retried("release"))
    }

    /// Takes the batches of one flush from `held`: the durable ones of families that may be flushed,
    /// up to [`FLUSH_IDS`] ids, but at least one batch. A family with many ids is taken by itself, and
    /// so is one with batches that failed before, which are taken last.
    pub fn next_flush(
        &self,
        held: &mut Vec<Held>,
        may_flush: impl Fn(FamilySlot) -> bool,
    ) -> Vec<Held> {
        let now = Instant::now();
        let is_ready = |held: &Held| held.ready_at <= now && may_flush(held.id.0);
        let mut ids: BTreeMap<FamilySlot, u64> = BTreeMap::new();
        for held in held.iter().filter(|held| is_ready(held)) {
            *ids.entry(held.id.0).or_default() += held.cut.ids;
        }
        let is_large = |family| ids.get(&family).is_some_and(|ids| *ids > MIXED_IDS);
        let ready = held.iter().filter(|held| is_ready(held));
        let first = ready.min_by_key(|held| held.failed_before);
        let alone = first
            .filter(|held| held.failed_before || is_large(held.id.0))
            .map(|held| held.id.0);
        let mut rows = 0;
        let taken = held.extract_if(.., |held| {
            let fits = rows == 0 || rows + held.cut.ids <= FLUSH_IDS;
            let belongs = match alone {
                Some(family) => held.id.0 == family,
                None => !held.failed_before && !is_large(held.id.0),
            };
            let takes = fits && belongs && is_ready(held);
            rows += if takes { held.cut.ids } else { 0 };
            takes
        });
        taken.collect()
    }
}

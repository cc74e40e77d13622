//! Bringing cached counters from Redis to the database: what is due is claimed, written once the claim is durable, and
//! marked as saved; what is saved and not used any more is deleted (docs/protocol.md, section 4).
//!
//! Nothing is remembered between two rounds: a claim stands in Redis, and whoever looks at it when its time has come goes
//! on with it.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{try_join, try_join_all};
use redis::aio::ConnectionLike;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::connection::backoff::{Backoff, GRACE, pause_unless_stopped, unless_stopped, wait_out};
use crate::error::{Error, ErrorKind, Result};
use crate::family::{Family, Retention};
use crate::metrics;
use crate::scripts::bundle;
use crate::scripts::cached::{Claim, Deleted, Marked, Rebased, any_cached};
use crate::scripts::partition::Partition;
use crate::store::{Row, Save, Saved, Store};
use crate::writer::opened::Opened;
use crate::writer::shared::Shared;

/// How many calls to Redis are under way at a time.
const CALLS: usize = 64;
/// How many counters are written together, where the reconciler allows as many: enough for the transaction to cost
/// little, few enough for Redis and the database to work at the same time.
const BATCH: usize = 10_000;
/// How many saves are under way at a time: one is claimed or marked in Redis while the others are written.
const WRITES: usize = 3;
/// How many ids one call has: few enough for the script to stay near a millisecond.
const IDS: usize = 200;
/// After a value that the database refuses.
const MEND: Duration = Duration::from_secs(30);

/// The steps from Redis to the database, for one family.
pub struct Saver<C, S> {
    shared: Arc<Shared<C, S>>,
    redis: C,
    opened: Arc<Opened>,
    retention: Retention,
    lease: Duration,
    max_rows: usize,
}

/// What a round found.
#[derive(Debug, Default)]
pub struct Round {
    /// When to look again; not before somebody counts if it is `None`.
    pub next: Option<Duration>,
}

/// A counter's save on its way, and whether everything counted before this round is in it.
#[derive(Debug)]
struct Ready {
    save: Save,
    fresh: bool,
}

/// What became of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Everything is saved.
    Clean,
    /// More was counted since it was claimed.
    Dirty,
    /// It is to be claimed again: somebody else wrote the row, or went on with the claim.
    Again,
    /// The database refuses the value.
    Stuck,
}

/// A save by its place, the row that it met, and whether that is a stranger's.
type Conflict = (usize, Row, bool);

/// What is due.
#[derive(Debug, Default)]
struct Due {
    saves: Vec<Save>,
    /// To be deleted, by partition.
    idle: Vec<(u32, Vec<Vec<u8>>)>,
    /// In how long the next one is due.
    next: Option<Duration>,
    /// Whether there may be more.
    is_full: bool,
}

/// What claiming found.
#[derive(Debug, Default)]
struct Claimed {
    ready: Vec<Ready>,
    /// Not durable yet, with how long that takes.
    waiting: Vec<(Vec<u8>, Duration, bool)>,
    /// Nothing to save, and to be deleted in so long.
    clean: Vec<(Vec<u8>, Duration)>,
}

impl<C, S> Saver<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// For this family, if it is a cached one; without leases.
    pub fn new(shared: Arc<Shared<C, S>>, redis: C, opened: Arc<Opened>) -> Option<Self> {
        let retention = opened.family.retention()?.clone();
        Some(Saver { shared, redis, opened, retention, lease: Duration::ZERO, max_rows: 50_000 })
    }

    /// Keeps other reconcilers away from what this one is writing.
    pub fn leasing(mut self, lease: Option<Duration>) -> Self {
        self.lease = lease.unwrap_or_default();
        self
    }

    /// How many counters one transaction takes.
    pub fn max_rows(mut self, rows: u64) -> Self {
        self.max_rows = usize::try_from(rows).unwrap_or(usize::MAX).max(1);
        self
    }

    /// Does what is due: claims, saves what is durable, deletes. The next counters are claimed while the last ones are
    /// written. While the database is away it waits, unless it is told to stop.
    #[tracing::instrument(skip_all, fields(family = %self.family()))]
    pub async fn round(self: Arc<Self>, stop: watch::Receiver<bool>) -> Result<Round> {
        let mut round = Round::default();
        let mut goes_on = self.has_any().await?;
        let mut writing = JoinSet::new();
        loop {
            while goes_on && writing.len() < WRITES {
                let due = self.gather().await?;
                round.look_in(due.is_full.then_some(Duration::ZERO).or(due.next));
                // without a lease the same ones would come again
                goes_on = due.is_full && !self.lease.is_zero() && !*stop.borrow();
                let (saver, stop) = (self.clone(), stop.clone());
                writing.spawn(async move { saver.finish(&due, &stop).await });
            }
            let Some(finished) = writing.join_next().await else { return Ok(round) };
            let ended = |error| Error::new(ErrorKind::Closed, "the task of a save ended early").with_source(error);
            if finished.map_err(ended)?? {
                round.look_in(Some(Duration::ZERO));
            }
        }
    }

    /// Whether any counter is in Redis: one command where the family is idle.
    async fn has_any(&self) -> Result<bool> {
        let all: Vec<_> = self.numbers().map(|number| self.partition(number)).collect();
        match any_cached(&self.redis, &all).await {
            // a cluster does not take keys of several slots in one call
            Err(error) if bundle::crosses_slots(&error) => Ok(true),
            reply => reply,
        }
    }

    /// What is due in all partitions, for about one transaction.
    async fn gather(&self) -> Result<Due> {
        let numbers: Vec<_> = self.numbers().collect();
        let count = (self.max_rows.min(BATCH) / numbers.len()).max(1);
        let mut due = Due::default();
        for some in numbers.chunks(CALLS) {
            let all = try_join_all(some.iter().map(|&number| self.claim_due(number, count))).await?;
            all.into_iter().for_each(|more| due.join(more));
        }
        Ok(due)
    }

    /// Claims what is due in the partition, at most so many.
    async fn claim_due(&self, number: u32, count: usize) -> Result<Due> {
        let settle = self.family().durability().settle();
        let horizon = self.retention.retain.max(self.family().sync_time).max(settle).max(self.lease).max(MEND);
        let (ids, next) = self.partition(number).due(count, horizon * 2).await?;
        let claimed = self.claim(number, &ids, self.lease).await?;
        let (idle, later): (Vec<_>, Vec<_>) = claimed.clean.into_iter().partition(|(_, time)| time.is_zero());
        let idle: Vec<_> = idle.into_iter().map(|(id, _)| id).collect();
        let waiting = claimed.waiting.into_iter().map(|(_, time, _)| time);
        let later = later.into_iter().map(|(_, time)| time);
        Ok(Due {
            saves: claimed.ready.into_iter().map(|ready| ready.save).collect(),
            idle: (!idle.is_empty()).then_some((number, idle)).into_iter().collect(),
            // what more is due already is found by whoever goes on
            next: next.filter(|next| !next.is_zero()).into_iter().chain(waiting).chain(later).min(),
            is_full: ids.len() >= count,
        })
    }

    /// Saves what is ready and deletes what is idle. Returns whether there is more to do at once.
    async fn finish(&self, due: &Due, stop: &watch::Receiver<bool>) -> Result<bool> {
        let started = Instant::now();
        let ends = self.save(&due.saves, stop).await?;
        if !ends.is_empty() {
            ::metrics::histogram!(metrics::FLUSH_SECONDS).record(started.elapsed());
        }
        try_join_all(due.idle.iter().map(|(number, ids)| self.delete(*number, ids))).await?;
        Ok(ends.iter().any(|end| matches!(end, End::Dirty | End::Again)))
    }

    async fn claim(&self, number: u32, ids: &[Vec<u8>], lease: Duration) -> Result<Claimed> {
        let mut claimed = Claimed::default();
        let partition = self.partition(number);
        for some in ids.chunks(IDS) {
            let claims = partition.claim(self.family(), &self.retention, lease, some).await?;
            for (id, claim) in some.iter().cloned().zip(claims) {
                match claim {
                    Claim::Save { known, value, version, fresh } => {
                        claimed
                            .ready
                            .push(Ready { save: Save { id, partition: number, known, value, version }, fresh });
                    }
                    Claim::Wait { time, fresh } => claimed.waiting.push((id, time, fresh)),
                    Claim::Clean(time) => claimed.clean.push((id, time)),
                    Claim::Gone => {}
                    Claim::Bad(why) => {
                        let id = String::from_utf8_lossy(&id);
                        tracing::error!(family = %self.family(), ?id, why, "a counter cannot be saved");
                    }
                }
            }
        }
        Ok(claimed)
    }

    /// Writes the counters to the database and tells Redis. Returns what became of each.
    async fn save(&self, saves: &[Save], stop: &watch::Receiver<bool>) -> Result<Vec<End>> {
        if saves.is_empty() {
            return Ok(Vec::new());
        }
        let outcomes = self.write(saves, stop).await?;
        self.measure(&outcomes);
        let mut ends = vec![End::Stuck; saves.len()];
        let mut written: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut conflicts: BTreeMap<u32, Vec<Conflict>> = BTreeMap::new();
        for (place, (save, outcome)) in saves.iter().zip(outcomes).enumerate() {
            match outcome {
                Saved::Done | Saved::NoRow => written.entry(save.partition).or_default().push(place),
                Saved::Conflict(row) => conflicts.entry(save.partition).or_default().push((place, row, true)),
                Saved::Recounted(row) => conflicts.entry(save.partition).or_default().push((place, row, false)),
                Saved::Refused => {}
            }
        }
        let marks = written.iter().map(|(number, places)| self.mark(*number, saves, places));
        let rebases = conflicts.iter().map(|(number, conflicts)| self.rebase(*number, saves, conflicts));
        let (marked, rebased) = try_join(try_join_all(marks), try_join_all(rebases)).await?;
        marked.into_iter().chain(rebased).flatten().for_each(|(place, end)| ends[place] = end);
        self.put_off(saves.iter().zip(&ends).filter(|(_, end)| **end == End::Stuck).map(|(save, _)| save)).await?;
        Ok(ends)
    }

    /// Tries again as long as the database is away, and nobody says stop.
    async fn write(&self, saves: &[Save], stop: &watch::Receiver<bool>) -> Result<Vec<Saved>> {
        let (mut pause, mut grace) = (Backoff::default(), GRACE);
        loop {
            let save = async {
                let registered = self.opened.registered(&self.shared.store).await?;
                self.shared.store.save(registered, saves).await
            };
            match unless_stopped(stop, grace, save).await {
                Ok(outcomes) if outcomes.len() == saves.len() => return Ok(outcomes),
                Ok(outcomes) => {
                    let (some, all) = (outcomes.len(), saves.len());
                    return Err(Error::corrupt(format!("the store says of {some} of {all} saves what became of them")));
                }
                Err(error) if error.is_retryable() => {
                    metrics::retried("save");
                    tracing::warn!(%error, saves = saves.len(), "the database did not take the saves");
                    grace = Duration::ZERO;
                    if !pause_unless_stopped(stop, pause.next()).await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn mark(&self, number: u32, saves: &[Save], places: &[usize]) -> Result<Vec<(usize, End)>> {
        let partition = self.partition(number);
        let mut ends = Vec::with_capacity(places.len());
        for some in places.chunks(IDS) {
            let claims: Vec<_> = some.iter().map(|&place| (&*saves[place].id, saves[place].version)).collect();
            let marked = partition.saved(self.family(), &self.retention, &claims).await?;
            ends.extend(some.iter().copied().zip(marked.into_iter().map(End::from)));
        }
        Ok(ends)
    }

    /// Somebody else, or a recount, wrote the rows: both contributions are kept.
    async fn rebase(&self, number: u32, saves: &[Save], conflicts: &[Conflict]) -> Result<Vec<(usize, End)>> {
        let partition = self.partition(number);
        let mut ends = Vec::with_capacity(conflicts.len());
        for some in conflicts.chunks(IDS) {
            let rows: Vec<_> =
                some.iter().map(|&(place, row, _)| (&*saves[place].id, saves[place].version, row)).collect();
            for (&(place, row, by_stranger), rebased) in
                some.iter().zip(partition.rebase(&self.retention, &rows).await?)
            {
                if by_stranger || rebased == Rebased::OutOfRange {
                    self.report(&saves[place], row, rebased);
                }
                ends.push((place, if rebased == Rebased::OutOfRange { End::Stuck } else { End::Again }));
            }
        }
        Ok(ends)
    }

    fn report(&self, save: &Save, row: Row, rebased: Rebased) {
        let (family, id, value) = (self.family(), String::from_utf8_lossy(&save.id), save.value);
        let (known, found) = (save.known, row);
        match rebased {
            Rebased::Done => {
                ::metrics::counter!(metrics::CONFLICTS, "family" => self.opened.label.clone()).increment(1);
                tracing::warn!(%family, ?id, value, ?known, ?found, "somebody else wrote the row: both are kept");
                if was_behind(known, found) {
                    tracing::error!(%family, ?id, "rows are read from a database that is behind: is its pool on a replica?");
                }
            }
            Rebased::OutOfRange => {
                tracing::error!(%family, ?id, value, ?known, ?found, "the sum with what somebody else wrote is no i64");
            }
            Rebased::Stale => {}
        }
    }

    /// Nobody is handed these again before long.
    async fn put_off(&self, saves: impl Iterator<Item = &Save>) -> Result<()> {
        let mut partitions: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        saves.for_each(|save| partitions.entry(save.partition).or_default().push(save.id.clone()));
        try_join_all(partitions.iter().map(|(number, ids)| self.claim(*number, ids, MEND))).await.map(drop)
    }

    async fn delete(&self, number: u32, ids: &[Vec<u8>]) -> Result<()> {
        let partition = self.partition(number);
        for some in ids.chunks(IDS) {
            let deleted = partition.delete(&self.retention, some).await?;
            let left = deleted.iter().filter(|deleted| **deleted == Deleted::Done).count() as u64;
            ::metrics::counter!(metrics::DELETED, "family" => self.opened.label.clone()).increment(left);
        }
        Ok(())
    }

    /// Brings every counter of the family to the database that is not saved, whenever it is due.
    pub async fn drain(&self) -> Result<()> {
        let numbers: Vec<_> = self.numbers().collect();
        for some in numbers.chunks(CALLS) {
            try_join_all(some.iter().map(|&number| self.drain_partition(number))).await?;
        }
        Ok(())
    }

    async fn drain_partition(&self, number: u32) -> Result<()> {
        let (_running, stop) = watch::channel(false);
        let mut pause = Backoff::default();
        let mut left = loop {
            match self.partition(number).cached_ids().await {
                Ok(ids) => break ids,
                Err(error) => wait_out(error, &mut pause).await?,
            }
        };
        // those of whose last hits before the drain a claim is known to hold
        let mut covered = HashSet::new();
        while !left.is_empty() {
            left = match self.drain_once(number, &left, &mut covered, &stop).await {
                Ok(left) => left,
                Err(error) => {
                    wait_out(error, &mut pause).await?;
                    left
                }
            };
        }
        Ok(())
    }

    /// Returns the counters that may still hold a hit from before the drain.
    async fn drain_once(
        &self,
        number: u32,
        ids: &[Vec<u8>],
        covered: &mut HashSet<Vec<u8>>,
        stop: &watch::Receiver<bool>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut left = Vec::new();
        for some in ids.chunks(self.max_rows) {
            let claimed = self.claim(number, some, Duration::ZERO).await?;
            let longest = claimed.waiting.iter().map(|(_, time, _)| *time).max();
            for (id, _, fresh) in claimed.waiting {
                if fresh {
                    covered.insert(id.clone());
                }
                left.push(id);
            }
            covered.extend(claimed.ready.iter().filter(|ready| ready.fresh).map(|ready| ready.save.id.clone()));
            let saves: Vec<_> = claimed.ready.into_iter().map(|ready| ready.save).collect();
            let ends = self.save(&saves, stop).await?;
            for (Save { id, .. }, end) in saves.into_iter().zip(ends) {
                match end {
                    End::Clean | End::Stuck => {}
                    End::Dirty if covered.contains(&id) => {}
                    End::Dirty | End::Again => left.push(id),
                }
            }
            if let Some(longest) = longest {
                sleep(longest).await;
            }
        }
        Ok(left)
    }

    fn measure(&self, outcomes: &[Saved]) {
        let count = |wanted: Saved| outcomes.iter().filter(|outcome| **outcome == wanted).count() as u64;
        ::metrics::counter!(metrics::ROWS).increment(count(Saved::Done));
        let rejects = count(Saved::NoRow) + count(Saved::Refused);
        ::metrics::counter!(metrics::REJECTS).increment(rejects);
        if rejects > 0 {
            tracing::warn!(family = %self.family(), rejects, "the database refused values: see counterfoil_rejects");
        }
    }

    fn family(&self) -> &Family {
        &self.opened.family
    }

    fn numbers(&self) -> Range<u32> {
        0..self.family().partitions()
    }

    fn partition(&self, number: u32) -> Partition<C> {
        Partition::new(self.redis.clone(), self.family(), number)
    }
}

/// Whether the row as it was known is an earlier one of the same lineage. A lineage knows of its own saves, so this was
/// read after it had ended, and from a copy that had not heard of its last save.
fn was_behind(known: Row, found: Row) -> bool {
    let versions = known.version.zip(found.version);
    versions.is_some_and(|(known, found)| known.lineage == found.lineage && known.n < found.n)
}

impl From<Marked> for End {
    fn from(marked: Marked) -> Self {
        match marked {
            Marked::Clean => End::Clean,
            Marked::Dirty => End::Dirty,
            Marked::Stale => End::Again,
        }
    }
}

impl Due {
    fn join(&mut self, more: Due) {
        self.saves.extend(more.saves);
        self.idle.extend(more.idle);
        self.next = self.next.into_iter().chain(more.next).min();
        self.is_full |= more.is_full;
    }
}

impl Round {
    fn look_in(&mut self, time: Option<Duration>) {
        self.next = self.next.into_iter().chain(time).min();
    }
}

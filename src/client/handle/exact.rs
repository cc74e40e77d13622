//! Exact reads of everything that reaches the database in batches: Redis, the ledger and the rows
//! combined (docs/protocol.md, section 3.7).

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::{Either, OptionFuture, join, select, try_join_all};
use tokio::time::{Instant, timeout_at};

use crate::client::handle::{Handle, Wait, borrowed_ids};
use crate::client::pages::{self, PAGE};
use crate::client::read::{Verdict, beyond, has_ledger, judge, may_be_forgotten};
use crate::error::{Error, ErrorKind, Result};
use crate::reconciler::flusher::Flusher;
use crate::reconciler::set_back;
use crate::scripts::partition::buffered::{ReadReply, Scan};
use crate::store::{Incarnation, Mark, ReadFrom, Registration, Snapshot};
use crate::writer::LONGEST;

/// Exact values, or else the values in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadValues {
    /// The values, in the order of the requested ids.
    pub values: Vec<i64>,
    /// `true` if the values are exact; otherwise recent hits may be missing.
    pub exact: bool,
}

/// The ids that one call to one partition reads, as indexes into the requested ids, and its reply.
struct PartitionRead {
    partition: u32,
    indexes: Vec<usize>,
    pending: ReadReply,
}

impl PartitionRead {
    /// Adds the pending deltas of its ids to their sums.
    fn add_to(&self, sums: &mut [i128], ids: &[&str], verdict: &Verdict) {
        for (&index, &deltas) in self.indexes.iter().zip(&self.pending.deltas) {
            sums[index] += beyond(ids[index], deltas, verdict);
        }
    }

    /// Returns the key of the partition's row in the family's ledger, if Redis knows it.
    fn ledger_key(&self) -> Option<(u32, Incarnation)> {
        Some((self.partition, self.pending.last.incarnation?))
    }
}

/// The result of one round of an exact read.
enum ReadOutcome {
    Read(Vec<i64>),
    /// A retry is needed, usually because a batch landed during the round.
    Again,
    /// A retry is needed: the ledger has another batch than Redis under the same number.
    SetBack,
    /// A retry is needed: the primary lacks batches that Redis has released.
    Behind,
}

/// The number of the round after which a read suspects that a server was set back, and probes. It
/// probes again every ten rounds.
const PATIENT: u32 = 2;

impl Handle {
    /// Returns the exact values of the rows with these ids, in their order. It takes one call per
    /// partition involved and one query.
    pub async fn exact(&self, ids: &[&str]) -> Result<Vec<i64>> {
        self.exact_from(ids, ReadFrom::Nearest).await
    }

    /// Returns the exact values like [`exact`](Self::exact), from this copy of the database. The
    /// ledger does not show whether a replica lacks a correction of a recount or a retried reject.
    /// A caller that needs these reads the primary.
    pub async fn exact_from(&self, ids: &[&str], from: ReadFrom) -> Result<Vec<i64>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.repeating(|wait| self.exact_once(ids, from, wait))
            .await
    }

    async fn exact_once(&self, ids: &[&str], from: ReadFrom, wait: Wait) -> Result<Vec<i64>> {
        let family = self.family();
        // The batch of a cached family leaves Redis in parts, once it is complete on the primary. A
        // replica may still lack the batch, and the deltas that have left Redis would be missing.
        let from = match from {
            ReadFrom::Nearest if self.has_replica() && !family.is_cached() => from,
            _ => ReadFrom::Primary,
        };
        for round in 0..100 {
            let read = self.try_exact(ids, from, round == 0, wait).await?;
            let is_behind = matches!(read, ReadOutcome::Behind);
            let is_suspect = match read {
                ReadOutcome::Read(values) => return Ok(values),
                ReadOutcome::Again | ReadOutcome::Behind => round % 10 == PATIENT,
                ReadOutcome::SetBack => true,
            };
            if !is_suspect {
                continue;
            }
            if is_behind && round > PATIENT {
                // A probe of an earlier round has completed the ledger, unless a batch is in
                // flight. When that batch is written, it records the loss.
                let what = format!(
                    "{family}: the database lacks batches that Redis has released: it was set back to an \
                     older state. The next batch that is written ends this"
                );
                return Err(Error::store(what));
            }
            // some connections may still lead to a former primary, which lacks the last batches
            if let Some(mysql) = self.shared.store.as_mysql() {
                mysql.leave_replica().await?;
            }
            if self.probe().await? > 0 {
                let what = format!(
                    "{family}: Redis was set back to an older state; the affected partitions were reset"
                );
                return Err(Error::redis(what));
            }
        }
        Err(Error::corrupt(format!(
            "{family}: Redis and the ledger disagree"
        )))
    }

    /// Resets the partitions that are behind the ledger, and returns their number.
    async fn probe(&self) -> Result<usize> {
        let family = std::slice::from_ref(&self.opened);
        set_back::probe(&Flusher::new(self.shared.clone()), family).await
    }

    /// Returns the value of each id in the database; a replica may lag.
    pub async fn stored(&self, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        self.repeating(|wait: Wait| self.stored_by(wait.deadline, self.stored_once(ids)))
            .await
    }

    async fn stored_once(&self, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        let family = self.registered().await?;
        let reading = self.shared.store.read(&family, ids, &[], ReadFrom::Nearest);
        Ok(self.or_renewed(&family, reading.await).await?.values)
    }

    /// Returns the database's reply. If it has the family under another number, the error is retryable.
    pub async fn or_renewed<T>(
        &self,
        registered: &Arc<Registration>,
        reply: Result<T>,
    ) -> Result<T> {
        self.shared
            .or_renewed(&self.opened, registered, reply)
            .await
    }

    /// Returns the result of `exact` if it arrives within `within`, or else the values in the
    /// database, which are read once `exact` has failed or half of that time is over.
    pub async fn or_stored(
        &self,
        ids: &[&str],
        within: Duration,
        exact: impl Future<Output = Result<Vec<i64>>>,
    ) -> Result<ReadValues> {
        let within = within.min(LONGEST);
        let (half, end) = (Instant::now() + within / 2, Instant::now() + within);
        // `None` if the values in the database take the place of the exact ones
        let reading_exact = async {
            match timeout_at(end, exact).await {
                Ok(Err(error)) if error.is_retryable() => None,
                Ok(values) => Some(values.map(|values| ReadValues {
                    values,
                    exact: true,
                })),
                Err(_) => None,
            }
        };
        let reading_stored = async {
            let rows = timeout_at(end, self.stored_once(ids))
                .await
                .unwrap_or_else(|_| Err(self.late(ErrorKind::Store, within)))?;
            Ok(ReadValues {
                values: rows.into_iter().map(Option::unwrap_or_default).collect(),
                exact: false,
            })
        };
        let mut reading_exact = pin!(reading_exact);
        match timeout_at(half, &mut reading_exact).await {
            Ok(Some(exact)) => return exact,
            Ok(None) => return reading_stored.await,
            Err(_) => {}
        }
        match select(reading_exact, pin!(reading_stored)).await {
            Either::Left((Some(exact), _)) => exact,
            Either::Left((None, reading_stored)) => reading_stored.await,
            Either::Right((stored, reading_exact)) => reading_exact.await.unwrap_or(stored),
        }
    }

    /// Returns the pending value of each id in Redis.
    pub async fn pending(&self, ids: &[&str]) -> Result<Vec<i64>> {
        let reads = self
            .repeating(|wait| self.read_partitions(ids, wait))
            .await?;
        let mut sums = vec![0i128; ids.len()];
        for read in reads {
            read.add_to(&mut sums, ids, &Verdict::AddBatch);
        }
        self.in_range(ids, sums)
    }

    /// Returns up to `limit` ids that begin with `prefix` and follow `after`, ascending, each with
    /// its exact value.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        let numbers = 0..self.family().partitions();
        let pending = numbers.map(|number| self.pending_ids(number, prefix, after, limit));
        let pending: BTreeSet<_> = try_join_all(pending).await?.into_iter().flatten().collect();
        self.repeating(|wait| self.list_once(prefix, after, limit, &pending, wait))
            .await
    }

    /// Returns the first ids after `after` that have anything pending in the partition.
    async fn pending_ids(
        &self,
        number: u32,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<BTreeSet<String>> {
        let (partition, mut first) = (self.partition(number), BTreeSet::new());
        let mut next = Some(Scan::default());
        while let Some(scan) = next {
            let mut scan = Some(scan);
            let page = |wait| {
                // after an error the scan begins again, because another server does not know the
                // cursor
                let scan = scan.take().unwrap_or_default();
                self.ask(number, wait, partition.scan(scan, prefix))
            };
            let (ids, rest) = self.repeating(page).await?;
            for id in ids {
                if after.is_none_or(|after| id.as_str() > after) {
                    first.insert(id);
                    if first.len() > limit {
                        first.pop_last();
                    }
                }
            }
            next = rest;
        }
        Ok(first)
    }

    /// Returns all ids that begin with `prefix`, ascending, as a stream that reads page by page.
    pub fn list_all(
        &self,
        prefix: &str,
    ) -> impl Stream<Item = Result<(String, i64)>> + Send + Unpin + use<> {
        let (handle, prefix) = (self.clone(), prefix.to_owned());
        let page = move |after: Option<String>| {
            let (handle, prefix) = (handle.clone(), prefix.clone());
            async move { handle.list(&prefix, after.as_deref(), PAGE).await }
        };
        pages::all(page, |(id, _)| id)
    }

    async fn list_once(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        pending: &BTreeSet<String>,
        wait: Wait,
    ) -> Result<Vec<(String, i64)>> {
        let listing = async {
            let family = self.registered().await?;
            let listed = self.shared.store.list(&family, prefix, after, limit).await;
            self.or_renewed(&family, listed).await
        };
        // the caller has read Redis before, so ids that left it meanwhile are in the database
        let rows = self.stored_by(wait.deadline, listing).await?;
        let mut ids = pending.clone();
        ids.extend(rows.into_iter().map(|(id, _)| id));
        let page: Vec<_> = ids.into_iter().take(limit).collect();
        let values = self
            .exact_once(&borrowed_ids(&page), ReadFrom::Nearest, wait)
            .await?;
        Ok(page.into_iter().zip(values).collect())
    }

    /// Returns whether the nearest copy may be another one than the primary.
    fn has_replica(&self) -> bool {
        let mysql = self.shared.store.as_mysql();
        mysql.is_none_or(|mysql| mysql.replica.is_some())
    }

    /// Makes one round of an exact read. With `at_once` it reads the database and Redis
    /// concurrently, and guesses which rows of the ledger it needs. Whichever server replies first,
    /// the ledger shows how the two replies fit, unless Redis was set back in between. A Redis that
    /// restarts closes its connections, so the reply of the database counts only if the connection
    /// to Redis is the same before and after.
    ///
    /// Cached counters are always read from Redis first, because their batches leave Redis in
    /// parts.
    async fn try_exact(
        &self,
        ids: &[&str],
        from: ReadFrom,
        at_once: bool,
        wait: Wait,
    ) -> Result<ReadOutcome> {
        let registered = self.stored_by(wait.deadline, self.registered()).await?;
        let query = async |marks, copy| {
            let snapshot = self.shared.store.read(&registered, ids, marks, copy);
            let snapshot = self.stored_by(wait.deadline, snapshot).await;
            self.or_renewed(&registered, snapshot).await
        };
        let connection = self.shared.redis.connection_number();
        let guess = match connection {
            Some(_) if at_once && !self.family().is_cached() => self.guess(ids),
            _ => None,
        };
        // not try_join, which drops the query when Redis fails: its connection would be closed
        let (guessed, reads) = join(
            OptionFuture::from(guess.as_deref().map(|marks| query(marks, from))),
            self.read_partitions(ids, wait),
        )
        .await;
        let reads = reads?;
        let keys = reads.iter().map(PartitionRead::ledger_key);
        let is_known = keys.clone().all(|key| key.is_some());
        let marks = Vec::from_iter(keys.flatten().collect::<BTreeSet<_>>());
        for &(partition, incarnation) in &marks {
            self.opened.incarnations.seen(partition, incarnation);
        }
        // without a row of the incarnation in the ledger a replica's lag is not detectable
        let copies: &[_] = match from {
            ReadFrom::Nearest if is_known && reads.iter().all(|read| has_ledger(&read.pending)) => {
                &[ReadFrom::Nearest, ReadFrom::Primary]
            }
            _ => &[ReadFrom::Primary],
        };
        let fits = guess.as_ref() == Some(&marks) && copies[0] == from;
        let is_same_connection = self.shared.redis.connection_number() == connection;
        let mut first = guessed.filter(|_| is_known && fits && is_same_connection);
        for &copy in copies {
            let snapshot = match first.take() {
                Some(snapshot) => snapshot?,
                None => query(&marks, copy).await?,
            };
            let combining = self.combine(&registered, ids, &reads, &marks, &snapshot);
            if let Some(outcome) = combining.await? {
                return Ok(outcome);
            }
        }
        Ok(ReadOutcome::Behind)
    }

    /// Adds what is pending to the values of a snapshot, whose ledger rows are those of `marks`.
    /// Returns `None` if that copy of the database is behind Redis.
    async fn combine(
        &self,
        registered: &Registration,
        ids: &[&str],
        reads: &[PartitionRead],
        marks: &[(u32, Incarnation)],
        snapshot: &Snapshot,
    ) -> Result<Option<ReadOutcome>> {
        let mark_of = |read: &PartitionRead| {
            let index = marks.binary_search(&read.ledger_key()?).ok()?;
            snapshot.ledger.get(index).cloned()
        };
        let (mut ledger, mut verdicts) = (Vec::new(), Vec::new());
        for read in reads {
            let mark = mark_of(read).unwrap_or_default();
            verdicts.push(judge(registered, &read.pending, &mark)?);
            ledger.push(mark);
        }
        if verdicts.contains(&Verdict::SetBack) {
            return Ok(Some(ReadOutcome::SetBack));
        }
        if verdicts.contains(&Verdict::Again) {
            return Ok(Some(ReadOutcome::Again));
        }
        if verdicts.contains(&Verdict::Behind) {
            return Ok(None);
        }
        if self.was_forgotten(reads, &ledger, ids).await? {
            return Ok(Some(ReadOutcome::Again));
        }
        let values = snapshot.values.iter();
        let mut sums: Vec<i128> = values.map(|value| value.unwrap_or(0).into()).collect();
        for (read, verdict) in reads.iter().zip(&verdicts) {
            read.add_to(&mut sums, ids, verdict);
        }
        Ok(Some(ReadOutcome::Read(self.in_range(ids, sums)?)))
    }

    /// Returns each partition with its last seen incarnation; `None` if one is unknown.
    fn guess(&self, ids: &[&str]) -> Option<Vec<(u32, Incarnation)>> {
        let partitions: BTreeSet<_> = ids
            .iter()
            .flat_map(|id| self.family().partitions_of_row(id))
            .collect();
        let mark = |partition| Some((partition, self.opened.incarnations.guess(partition)?));
        partitions.into_iter().map(mark).collect()
    }

    /// Returns whether Redis has lost since the read an incarnation that no ledger row confirms.
    async fn was_forgotten(
        &self,
        reads: &[PartitionRead],
        ledger: &[Mark],
        ids: &[&str],
    ) -> Result<bool> {
        let is_other = async |read: &PartitionRead| {
            let partition = self.partition(read.partition);
            let now = partition.read(&[ids[read.indexes[0]]]).await?;
            Ok::<_, Error>(now.last.incarnation != read.pending.last.incarnation)
        };
        let doubtful = reads
            .iter()
            .zip(ledger)
            .filter(|(read, mark)| may_be_forgotten(&read.pending, mark));
        let looks = doubtful.map(|(read, _)| is_other(read));
        Ok(try_join_all(looks).await?.contains(&true))
    }

    /// Reads the pending deltas of the ids from the partitions of each: its own, or all of a wide
    /// family.
    async fn read_partitions(&self, ids: &[&str], wait: Wait) -> Result<Vec<PartitionRead>> {
        let groups = self.by_partition_of_row(ids).into_iter();
        let reads = groups.map(|(number, indexes)| async move {
            let members: Vec<_> = indexes.iter().map(|&index| ids[index]).collect();
            let partition = self.partition(number);
            Ok(PartitionRead {
                partition: number,
                indexes,
                pending: self.ask(number, wait, partition.read(&members)).await?,
            })
        });
        try_join_all(reads).await
    }

    fn in_range(&self, ids: &[&str], sums: Vec<i128>) -> Result<Vec<i64>> {
        let narrow = |(sum, id): (i128, &&str)| {
            i64::try_from(sum).map_err(|_| {
                let family = self.family();
                let what = format!("{family}: the value of {id:?}, {sum}, exceeds the i64 range");
                Error::new(ErrorKind::Range, what)
            })
        };
        sums.into_iter().zip(ids).map(narrow).collect()
    }
}

//! Exact reads of everything that reaches the database in batches: Redis, the ledger and the rows
//! combined (docs/protocol.md, section 3.7).

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::{Either, OptionFuture, join, select, try_join_all};
use tokio::time::{Instant, timeout_at};

use crate::client::handle::{Handle, Wait, borrowed_ids};
use crate::client::pages::{self, PAGE};
use crate::client::read::{Verdict, beyond, has_ledger, judge, may_be_forgotten};
use crate::error::{Error, ErrorKind, Result};
use crate::reconciler::flush::Flusher;
use crate::scripts::buffered::{Pending, Scan};
use crate::store::{Incarnation, Mark, ReadFrom, Snapshot};
use crate::writer::LONGEST;

/// Exact values, or else the values in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The values, in the order of the requested ids.
    pub values: Vec<i64>,
    /// `true` if the values are exact; otherwise recent hits may be missing.
    pub exact: bool,
}

/// The ids that one call to one partition reads, as indexes into the requested ids, and its reply.
struct PartitionRead {
    partition: u32,
    indexes: Vec<usize>,
    pending: Pending,
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
enum Round {
    Read(Vec<i64>),
    /// A retry is needed, usually because a batch landed during the round.
    Again,
    /// A retry is needed: the ledger has another batch than Redis under the same number.
    SetBack,
}

/// The round after which a read suspects that Redis was set back, and again every ten rounds.
const PATIENT: u32 = 2;

impl Handle {
    /// Returns the exact values of the rows with these ids, in their order. It takes one call per
    /// partition involved and one query.
    pub async fn exact(&self, ids: &[&str]) -> Result<Vec<i64>> {
        self.exact_from(ids, ReadFrom::Nearest).await
    }

    /// Does the same. The ledger does not show that a replica lacks a correction or a retried
    /// reject; on the primary the values contain them.
    pub async fn exact_from(&self, ids: &[&str], from: ReadFrom) -> Result<Vec<i64>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.repeating(|wait| self.exact_once(ids, from, wait))
            .await
    }

    async fn exact_once(&self, ids: &[&str], from: ReadFrom, wait: Wait) -> Result<Vec<i64>> {
        let family = self.family();
        // a cached batch leaves Redis in parts, once it is complete on the primary
        let from = match from {
            ReadFrom::Nearest if self.has_replica() && !family.is_cached() => from,
            _ => ReadFrom::Primary,
        };
        for round in 0..100 {
            let is_suspect = match self.try_exact(ids, from, round == 0, wait).await? {
                Round::Read(values) => return Ok(values),
                Round::Again => round % 10 == PATIENT,
                Round::SetBack => true,
            };
            if !is_suspect {
                continue;
            }
            // a former primary may lack the last batches
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
            "{family}: Redis and the ledger disagree; the database may have been set back"
        )))
    }

    /// Resets the partitions that are behind the ledger, and returns their number.
    async fn probe(&self) -> Result<usize> {
        let family = std::slice::from_ref(&self.opened);
        Flusher::new(self.shared.clone()).probe(family).await
    }

    /// Returns the value of each id in the database; a replica may lag.
    pub async fn stored(&self, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        self.repeating(|wait: Wait| self.stored_by(wait.deadline, self.stored_once(ids)))
            .await
    }

    async fn stored_once(&self, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        let (family, store) = (self.registered().await?, &self.shared.store);
        let snapshot = store.read(&family, ids, &[], ReadFrom::Nearest).await?;
        Ok(snapshot.values)
    }

    /// Returns the result of `exact` if it arrives within `within`, or else the values in the
    /// database, which are read once `exact` has failed or half of that time is over.
    pub async fn or_stored(
        &self,
        ids: &[&str],
        within: Duration,
        exact: impl Future<Output = Result<Vec<i64>>>,
    ) -> Result<Shown> {
        let within = within.min(LONGEST);
        let (half, end) = (Instant::now() + within / 2, Instant::now() + within);
        let exact = async {
            match timeout_at(end, exact).await {
                Ok(Err(error)) if error.is_retryable() => None,
                done => done.ok(),
            }
        };
        let stored = async {
            let late = |_| Err(self.late(ErrorKind::Store, within));
            let stored = timeout_at(end, self.stored_once(ids)).await;
            let stored = stored.unwrap_or_else(late);
            let stored = stored?.into_iter();
            let values = stored.map(Option::unwrap_or_default).collect();
            let exact = false;
            Ok(Shown { values, exact })
        };
        let exactly = |values| Shown {
            values,
            exact: true,
        };
        let mut exact = pin!(exact);
        match timeout_at(half, &mut exact).await {
            Ok(Some(exact)) => return exact.map(exactly),
            Ok(None) => return stored.await,
            Err(_) => {}
        }
        match select(exact, pin!(stored)).await {
            Either::Left((Some(exact), _)) => exact.map(exactly),
            Either::Left((None, stored)) => stored.await,
            Either::Right((stored, exact)) => match exact.await {
                Some(exact) => exact.map(exactly),
                None => stored,
            },
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
                // after an error it begins again: another server continues no scan
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
        let stored = async {
            let family = self.registered().await?;
            self.shared.store.list(&family, prefix, after, limit).await
        };
        // after Redis: ids that left it meanwhile are already in the database
        let stored = self.stored_by(wait.deadline, stored).await?;
        let stored = stored.into_iter().map(|(id, _)| id);
        let ids: BTreeSet<_> = pending.iter().cloned().chain(stored).collect();
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
    /// concurrently: whichever is read first, the ledger shows how they fit, unless Redis was set back
    /// in between. So the call must use a connection that was there before. Cached counters are read
    /// from Redis first.
    async fn try_exact(
        &self,
        ids: &[&str],
        from: ReadFrom,
        at_once: bool,
        wait: Wait,
    ) -> Result<Round> {
        let registered = self.stored_by(wait.deadline, self.registered()).await?;
        let store = &self.shared.store;
        let run = || self.shared.redis.run();
        let before = run().filter(|_| at_once && !self.family().is_cached());
        let guess = before.and_then(|_| self.guess(ids));
        let guessed = guess.as_ref().map(|marks| {
            let snapshot = store.read(&registered, ids, marks, from);
            self.stored_by(wait.deadline, snapshot)
        });
        // not try_join: a query is better not dropped half-way
        let guessed = OptionFuture::from(guessed);
        let (guessed, reads) = join(guessed, self.read_partitions(ids, wait)).await;
        let reads = reads?;
        let keys = reads.iter().map(PartitionRead::ledger_key);
        let is_known = keys.clone().all(|key| key.is_some());
        let marks: BTreeSet<_> = keys.flatten().collect();
        let marks: Vec<_> = marks.into_iter().collect();
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
        let is_right = is_known && fits && run() == before;
        let mut guessed = guessed.filter(|_| is_right);
        for &copy in copies {
            let snapshot = if let Some(snapshot) = guessed.take() {
                snapshot?
            } else {
                let snapshot = store.read(&registered, ids, &marks, copy);
                self.stored_by(wait.deadline, snapshot).await?
            };
            if let Some(round) = self.combine(ids, &reads, &marks, &snapshot).await? {
                return Ok(round);
            }
        }
        Ok(Round::Again)
    }

    /// Adds what is pending to the values of a snapshot, whose ledger rows are those of `marks`.
    /// Returns `None` if that copy of the database is behind Redis.
    async fn combine(
        &self,
        ids: &[&str],
        reads: &[PartitionRead],
        marks: &[(u32, Incarnation)],
        snapshot: &Snapshot,
    ) -> Result<Option<Round>> {
        let mark_of = |read: &PartitionRead| {
            let index = marks.binary_search(&read.ledger_key()?).ok()?;
            snapshot.ledger.get(index).cloned()
        };
        let ledger = reads.iter().map(|read| mark_of(read).unwrap_or_default());
        let ledger: Vec<Mark> = ledger.collect();
        let verdicts = reads.iter().zip(&ledger);
        let verdicts = verdicts.map(|(read, mark)| judge(&read.pending, mark));
        let verdicts: Vec<_> = verdicts.collect();
        if verdicts.contains(&Verdict::SetBack) {
            return Ok(Some(Round::SetBack));
        }
        if verdicts.contains(&Verdict::Again) {
            return Ok(Some(Round::Again));
        }
        if verdicts.contains(&Verdict::Behind) {
            return Ok(None);
        }
        if self.was_forgotten(reads, &ledger, ids).await? {
            return Ok(Some(Round::Again));
        }
        let values = snapshot.values.iter();
        let mut sums: Vec<i128> = values.map(|value| value.unwrap_or(0).into()).collect();
        for (read, verdict) in reads.iter().zip(&verdicts) {
            read.add_to(&mut sums, ids, verdict);
        }
        Ok(Some(Round::Read(self.in_range(ids, sums)?)))
    }

    /// Returns each partition with its last seen incarnation; `None` if one is unknown.
    fn guess(&self, ids: &[&str]) -> Option<Vec<(u32, Incarnation)>> {
        let partitions = ids.iter();
        let partitions = partitions.flat_map(|id| self.family().partitions_of_row(id));
        let partitions: BTreeSet<_> = partitions.collect();
        let mark = |partition| Some((partition, self.opened.incarnations.guess(partition)?));
        partitions.into_iter().map(mark).collect()
    }

    /// Returns whether Redis has lost an incarnation that no ledger row confirms.
    async fn was_forgotten(
        &self,
        reads: &[PartitionRead],
        ledger: &[Mark],
        ids: &[&str],
    ) -> Result<bool> {
        let doubtful = reads.iter().zip(ledger);
        let doubtful = doubtful.filter(|(read, mark)| may_be_forgotten(&read.pending, mark));
        let looks = doubtful.map(|(read, _)| async move {
            let partition = self.partition(read.partition);
            let now = partition.read(&[ids[read.indexes[0]]]).await?;
            Ok::<_, Error>(now.last.incarnation != read.pending.last.incarnation)
        });
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

//! Exact reads of everything that reaches the database in batches: Redis, the ledger and the rows
//! combined (docs/protocol.md, section 3.7).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::{join, try_join_all};
use tokio::time::{Instant, timeout};

use crate::client::handle::Handle;
use crate::client::pages::{self, PAGE};
use crate::client::read::{Verdict, beyond, judge, may_be_forgotten};
use crate::error::{Error, ErrorKind, Result};
use crate::reconciler::set_back;
use crate::scripts::buffered::Pending;
use crate::scripts::partition::Partition;
use crate::store::{Incarnation, Mark, ReadFrom};

/// Exact values, or else the values in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The values, in the order of the requested ids.
    pub values: Vec<i64>,
    /// `true` if the values are exact; otherwise recent hits may be missing.
    pub exact: bool,
}

/// The ids that one call to one partition reads, as indexes into the requested ids.
struct PartitionRead {
    partition: u32,
    indexes: Vec<usize>,
}

impl PartitionRead {
    /// Adds the pending deltas of its ids to their sums.
    fn add_to(&self, sums: &mut [i128], ids: &[&str], pending: &Pending, verdict: &Verdict) {
        for (&index, &deltas) in self.indexes.iter().zip(&pending.deltas) {
            sums[index] += beyond(ids[index], deltas, verdict);
        }
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
        self.repeating(|deadline| self.exact_once(ids, deadline))
            .await
    }

    async fn exact_once(&self, ids: &[&str], deadline: Instant) -> Result<Vec<i64>> {
        let family = self.family();
        for round in 0..100 {
            let is_suspect = match self.try_exact(ids, round == 0, deadline).await? {
                Round::Read(values) => return Ok(values),
                Round::Again => round % 10 == PATIENT,
                Round::SetBack => true,
            };
            if is_suspect && self.probe().await? > 0 {
                let what = format!(
                    "{family}: Redis was set back to an older state; the affected partitions were reset"
                );
                return Err(Error::new(ErrorKind::Redis, what));
            }
        }
        Err(Error::corrupt(format!(
            "{family}: Redis and the ledger disagree; the database may have been set back"
        )))
    }

    /// Resets the partitions that are behind the ledger, and returns their number.
    async fn probe(&self) -> Result<usize> {
        set_back::probe(
            &self.shared,
            &self.shared.redis,
            std::slice::from_ref(&self.opened),
        )
        .await
    }

    /// Returns the value of each id in the database; a replica may lag.
    pub async fn stored(&self, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        let read = async || {
            self.shared
                .store
                .read(self.registered().await?, ids, &[], ReadFrom::Nearest)
                .await
        };
        Ok(self
            .repeating(|deadline| self.stored_by(deadline, read()))
            .await?
            .values)
    }

    /// Returns the result of `exact` if it arrives within `within`, or else the values in the
    /// database.
    pub async fn or_stored(
        &self,
        ids: &[&str],
        within: Duration,
        exact: impl Future<Output = Result<Vec<i64>>>,
    ) -> Result<Shown> {
        match timeout(within, exact).await {
            Ok(Ok(values)) => Ok(Shown {
                values,
                exact: true,
            }),
            Ok(Err(error)) if !error.is_retryable() => Err(error),
            _ => {
                let values = self
                    .stored(ids)
                    .await?
                    .into_iter()
                    .map(|value| value.unwrap_or(0))
                    .collect();
                Ok(Shown {
                    values,
                    exact: false,
                })
            }
        }
    }

    /// Returns the pending value of each id in Redis.
    pub async fn pending(&self, ids: &[&str]) -> Result<Vec<i64>> {
        let groups = self.groups(ids);
        let pending = self.repeating(|_| self.read_groups(&groups, ids)).await?;
        let mut sums = vec![0i128; ids.len()];
        for (group, pending) in groups.iter().zip(&pending) {
            group.add_to(&mut sums, ids, pending, &Verdict::AddBatch);
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
        self.repeating(|deadline| self.list_once(prefix, after, limit, deadline))
            .await
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
        deadline: Instant,
    ) -> Result<Vec<(String, i64)>> {
        let partitions: Vec<_> = (0..self.family().partitions())
            .map(|number| self.partition(number))
            .collect();
        let pending = try_join_all(
            partitions
                .iter()
                .map(|partition| partition.pending_ids(prefix)),
        )
        .await?;
        // after Redis: ids that left it meanwhile are already in the database
        let stored = async {
            self.shared
                .store
                .list(self.registered().await?, prefix, after, limit)
                .await
        };
        let stored = self.stored_by(deadline, stored).await?;
        let is_after = |id: &String| after.is_none_or(|after| id.as_bytes() > after.as_bytes());
        let pending = pending.into_iter().flatten().filter(is_after);
        let ids: BTreeSet<_> = pending
            .chain(stored.into_iter().map(|(id, _)| id))
            .collect();
        let page: Vec<_> = ids.into_iter().take(limit).collect();
        let ids: Vec<_> = page.iter().map(String::as_str).collect();
        let values = self.exact_once(&ids, deadline).await?;
        Ok(page.into_iter().zip(values).collect())
    }

    /// Makes one round of an exact read. With `at_once` it reads the database and Redis
    /// concurrently: whichever is read first, the ledger shows how they fit.
    async fn try_exact(&self, ids: &[&str], at_once: bool, deadline: Instant) -> Result<Round> {
        let registered = self.stored_by(deadline, self.registered()).await?;
        let groups = self.groups(ids);
        let guess = if at_once { self.guess(&groups) } else { None };
        let (guessed, pending) = match guess {
            Some(marks) => {
                let snapshot = self
                    .shared
                    .store
                    .read(registered, ids, &marks, ReadFrom::Nearest);
                let snapshot = self.stored_by(deadline, snapshot);
                // not try_join: a query is better not dropped half-way
                let (snapshot, pending) = join(snapshot, self.read_groups(&groups, ids)).await;
                (Some((marks, snapshot)), pending?)
            }
            None => (None, self.read_groups(&groups, ids).await?),
        };
        let mark = |(group, pending): (&PartitionRead, &Pending)| {
            Some((group.partition, pending.last.incarnation?))
        };
        let marks: BTreeSet<_> = groups.iter().zip(&pending).filter_map(mark).collect();
        let marks: Vec<_> = marks.into_iter().collect();
        marks.iter().for_each(|&(partition, incarnation)| {
            self.opened.incarnations.seen(partition, incarnation);
        });
        // without an incarnation a replica's lag is not detectable
        let is_known = pending
            .iter()
            .all(|pending| pending.last.incarnation.is_some());
        let mut guessed = guessed
            .filter(|(guess, _)| is_known && *guess == marks)
            .map(|(_, snapshot)| snapshot);
        let copies: &[_] = if is_known {
            &[ReadFrom::Nearest, ReadFrom::Primary]
        } else {
            &[ReadFrom::Primary]
        };
        for &copy in copies {
            let snapshot = if let Some(snapshot) = guessed.take() {
                snapshot?
            } else {
                let read = self.shared.store.read(registered, ids, &marks, copy);
                self.stored_by(deadline, read).await?
            };
            let mark_of = |(group, pending): (&PartitionRead, &Pending)| {
                let index = |incarnation| marks.binary_search(&(group.partition, incarnation)).ok();
                let index = pending.last.incarnation.and_then(index);
                index
                    .and_then(|index| snapshot.ledger.get(index).cloned())
                    .unwrap_or_default()
            };
            let ledger: Vec<Mark> = groups.iter().zip(&pending).map(mark_of).collect();
            let verdicts: Vec<_> = pending
                .iter()
                .zip(&ledger)
                .map(|(pending, mark)| judge(pending, mark))
                .collect();
            if verdicts.contains(&Verdict::SetBack) {
                return Ok(Round::SetBack);
            }
            if verdicts.contains(&Verdict::Again) {
                return Ok(Round::Again);
            }
            if verdicts.contains(&Verdict::Behind) {
                continue;
            }
            if self.was_forgotten(&groups, &pending, &ledger, ids).await? {
                return Ok(Round::Again);
            }
            let mut sums: Vec<_> = snapshot
                .values
                .iter()
                .map(|value| i128::from(value.unwrap_or(0)))
                .collect();
            for ((group, pending), verdict) in groups.iter().zip(&pending).zip(&verdicts) {
                group.add_to(&mut sums, ids, pending, verdict);
            }
            return self.in_range(ids, sums).map(Round::Read);
        }
        Ok(Round::Again)
    }

    /// Returns each partition with its last seen incarnation; `None` if one is unknown.
    fn guess(&self, groups: &[PartitionRead]) -> Option<Vec<(u32, Incarnation)>> {
        let partitions: BTreeSet<_> = groups.iter().map(|group| group.partition).collect();
        let mark = |partition| Some((partition, self.opened.incarnations.guess(partition)?));
        partitions.into_iter().map(mark).collect()
    }

    /// Returns whether Redis has lost an incarnation that no ledger row confirms.
    async fn was_forgotten(
        &self,
        groups: &[PartitionRead],
        pending: &[Pending],
        ledger: &[Mark],
        ids: &[&str],
    ) -> Result<bool> {
        let doubtful = groups
            .iter()
            .zip(pending)
            .zip(ledger)
            .filter(|((_, pending), mark)| may_be_forgotten(pending, mark));
        let looks = doubtful.map(|((group, pending), _)| async move {
            let now = self
                .partition(group.partition)
                .read(&[ids[group.indexes[0]]])
                .await?;
            Ok::<_, Error>(now.last.incarnation != pending.last.incarnation)
        });
        Ok(try_join_all(looks).await?.contains(&true))
    }

    async fn read_groups(&self, groups: &[PartitionRead], ids: &[&str]) -> Result<Vec<Pending>> {
        let reads = groups.iter().map(|group| async move {
            let members: Vec<_> = group.indexes.iter().map(|&index| ids[index]).collect();
            let partition = self.partition(group.partition);
            if self.family().keeps_slices() {
                partition.read_with_slices(&members).await
            } else {
                partition.read(&members).await
            }
        });
        try_join_all(reads).await
    }

    /// Groups the ids by the partitions to read: the id's own, or all of a wide family.
    fn groups(&self, ids: &[&str]) -> Vec<PartitionRead> {
        let family = self.family();
        let mut indexes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, id) in ids.iter().enumerate() {
            let partitions = family.partitions_of_row(id);
            partitions.for_each(|partition| indexes.entry(partition).or_default().push(index));
        }
        let group = |(partition, indexes): (u32, Vec<usize>)| {
            let chunks: Vec<_> = indexes
                .chunks(Partition::READ_IDS)
                .map(<[usize]>::to_vec)
                .collect();
            chunks
                .into_iter()
                .map(move |indexes| PartitionRead { partition, indexes })
        };
        indexes.into_iter().flat_map(group).collect()
    }

    fn in_range(&self, ids: &[&str], sums: Vec<i128>) -> Result<Vec<i64>> {
        let narrow = |(sum, id): (i128, &&str)| {
            i64::try_from(sum).map_err(|_| {
                Error::new(
                    ErrorKind::Range,
                    format!(
                        "{}: the value of {id:?}, {sum}, exceeds the i64 range",
                        self.family()
                    ),
                )
            })
        };
        sums.into_iter().zip(ids).map(narrow).collect()
    }
}

//! A family in use: counting and reading.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::aio::ConnectionLike;

use crate::buffered::{Added, Pending};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::mysql::MysqlStore;
use crate::partition::{Partition, random};
use crate::primary::Primary;
use crate::read::{Verdict, beyond, judge, lacks_incarnation, may_be_forgotten};
use crate::shared::{Opened, Shared};
use crate::store::{Incarnation, ReadFrom, Registered, Store};
use crate::writer::{Answer, Writer};

/// The counters of one open family. Cloning is cheap.
#[derive(Debug)]
pub struct Counters<C = Primary, S = MysqlStore> {
    shared: Arc<Shared<C, S>>,
    opened: Arc<Opened>,
    writer: Arc<Writer<C>>,
    patience: Duration,
}

impl<C, S> Clone for Counters<C, S> {
    fn clone(&self) -> Self {
        let (shared, opened, writer) = (self.shared.clone(), self.opened.clone(), self.writer.clone());
        Counters { shared, opened, writer, patience: self.patience }
    }
}

/// The ids, by their places in the question, that one call to one partition reads.
struct Group {
    partition: u32,
    places: Vec<usize>,
}

impl Group {
    /// Adds what its ids have pending to the sums at their places.
    fn add_to(&self, sums: &mut [i128], pending: &Pending, verdict: Verdict) {
        for (&place, &deltas) in self.places.iter().zip(&pending.deltas) {
            sums[place] += beyond(deltas, verdict);
        }
    }
}

impl<C, S> Counters<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    pub(crate) fn new(shared: Arc<Shared<C, S>>, registered: Registered) -> Self {
        let (opened, writer) = shared.open(registered);
        Counters { shared, opened, writer, patience: Duration::from_secs(5) }
    }

    /// How long an [`add`](Self::add) of this handle and its clones repeats a call that fails before it gives up; 5 s
    /// unless said otherwise.
    #[must_use]
    pub fn write_timeout(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The configuration.
    pub fn family(&self) -> &Family {
        &self.opened.registered.family
    }

    /// Counts `delta` for `id`, and answers when Redis has done it: with the pending value as after exactly this
    /// increment. The value is in the database after the next sync, exactly once, whatever dies in between.
    ///
    /// Callers that come while a call to the id's partition is under way go together into the next one, equal ids
    /// summed; a lone caller's hit goes out at once. Where this process already keeps many hits waiting for Redis, it
    /// waits for room. After a lost reply `pending` is what it is by the time of the repeat. A call that is dropped
    /// half-way may have been counted.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput): the id is not allowed. [`Redis`](ErrorKind::Redis): not counted; may
    /// be called again. [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): counted once or not at all, the reply was lost
    /// and could not be asked for again within the [write timeout](Self::write_timeout).
    pub async fn add(&self, id: &str, delta: i64) -> Result<Added> {
        self.family().check_id(id)?;
        self.writer.add(id, delta, self.patience, true).await.map(Answer::added)
    }

    /// The same, but where it would have to wait for room it is an error at once.
    ///
    /// # Errors
    /// As for [`add`](Self::add), and [`Busy`](ErrorKind::Busy): not counted, since many others wait.
    pub async fn try_add(&self, id: &str, delta: i64) -> Result<Added> {
        self.family().check_id(id)?;
        self.writer.add(id, delta, self.patience, false).await.map(Answer::added)
    }

    /// Counts many hits at once, and answers what became of each, in their order. Partitions are called side by side,
    /// and fail by themselves.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) if one of the ids is not allowed: none was counted then. For each hit
    /// as for [`add`](Self::add).
    pub async fn add_many(&self, hits: &[(impl AsRef<str>, i64)]) -> Result<Vec<Result<Added>>> {
        let checked = |id| self.family().check_id(id).map(|()| id);
        let hits = hits.iter().map(|(id, delta)| Ok((checked(id.as_ref())?, *delta))).collect::<Result<Vec<_>>>()?;
        let answers = self.writer.add_many(&hits, self.patience).await;
        Ok(answers.into_iter().map(|answer| answer.map(Answer::added)).collect())
    }

    /// Counts `delta` for `id` without waiting for Redis: summed in this process, and sent within a few milliseconds, as
    /// exactly as an [`add`](Self::add). What was not sent yet is lost when the process is killed or its tokio runtime
    /// ends; [`flush`](Self::flush) before. Dropping the last handle sends it in the background.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput): the id is not allowed. [`Busy`](ErrorKind::Busy): not counted, since
    /// many ids wait to be sent, mostly because Redis is away. [`Range`](ErrorKind::Range): not counted, since the sum
    /// in this process would leave i64.
    pub fn record(&self, id: &str, delta: i64) -> Result<()> {
        self.family().check_id(id)?;
        self.writer.record(id, delta)
    }

    /// Returns when Redis has counted everything that was recorded before the call.
    ///
    /// # Errors
    /// What went wrong with recorded hits since the last flush: [`Redis`](ErrorKind::Redis) if some are not yet sent,
    /// which are kept and tried again; [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) if some may be lost;
    /// [`Range`](ErrorKind::Range) if some were refused as [`Added`] says it, and [`Corrupt`](ErrorKind::Corrupt) if by a
    /// key that is not of the bundle's shape: those are not counted.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn flush(&self) -> Result<()> {
        self.writer.flush().await
    }

    /// The exact value: every increment acknowledged before the call, none twice, also while a batch is on its way.
    /// 0 for an id that was never counted.
    ///
    /// # Errors
    /// [`Redis`](ErrorKind::Redis) or [`Store`](ErrorKind::Store) where one of the two cannot be asked;
    /// [`Range`](ErrorKind::Range) where the sum leaves the signed 64-bit range.
    pub async fn get(&self, id: &str) -> Result<i64> {
        Ok(self.get_many(&[id]).await?[0])
    }

    /// The exact values of many ids, in their order, in one call per partition concerned and one query.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family(), ids = ids.len()))]
    pub async fn get_many(&self, ids: &[impl AsRef<str>]) -> Result<Vec<i64>> {
        let ids = self.family().check_ids(ids)?;
        for _ in 0..100 {
            if let Some(values) = self.try_get(&ids).await? {
                return Ok(values);
            }
        }
        let family = self.family();
        Err(Error::corrupt(format!("{family}: Redis and the ledger do not come to agree; was the database set back?")))
    }

    /// What the database holds of each id, `None` where there is no row. It may lag behind by a sync, or by a read
    /// replica's lag.
    ///
    /// # Errors
    /// [`Store`](ErrorKind::Store) where the database cannot be asked.
    pub async fn stored(&self, ids: &[impl AsRef<str>]) -> Result<Vec<Option<i64>>> {
        let ids = self.family().check_ids(ids)?;
        let read = self.shared.store.read(&self.opened.registered, &ids, &[], ReadFrom::Nearest);
        Ok(read.await?.values)
    }

    /// What Redis holds of each id, for which no database is needed. While a batch is on its way its part may be in the
    /// database already, so this is not to be added to [`stored`](Self::stored): [`get_many`](Self::get_many) does that.
    ///
    /// # Errors
    /// [`Redis`](ErrorKind::Redis) where it cannot be asked; [`Range`](ErrorKind::Range).
    pub async fn pending(&self, ids: &[impl AsRef<str>]) -> Result<Vec<i64>> {
        let ids = self.family().check_ids(ids)?;
        let groups = self.groups(&ids);
        let pending = self.read_groups(&groups, &ids).await?;
        let mut sums = vec![0i128; ids.len()];
        for (group, pending) in groups.iter().zip(&pending) {
            group.add_to(&mut sums, pending, Verdict::AddBatch);
        }
        self.in_range(&ids, sums)
    }

    /// Up to `limit` ids that begin with `prefix` and come after `after` in byte order, ascending, each with its exact
    /// value; pass the last one as `after` for the next page. Ids that are only in Redis so far are among them. It
    /// looks through all that is pending in the family, page by page.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family(), prefix, limit))]
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>> {
        let partitions: Vec<_> = (0..self.family().partitions()).map(|number| self.partition(number)).collect();
        let pending = try_join_all(partitions.iter().map(|partition| partition.pending_ids(prefix))).await?;
        // after Redis: what left it meanwhile is in the database by now
        let stored = self.shared.store.list(&self.opened.registered, prefix, after, limit).await?;
        let is_after = |id: &String| after.is_none_or(|after| id.as_bytes() > after.as_bytes());
        let pending = pending.into_iter().flatten().filter(is_after);
        let ids: BTreeSet<_> = pending.chain(stored.into_iter().map(|(id, _)| id)).collect();
        let page: Vec<_> = ids.into_iter().take(limit).collect();
        let values = self.get_many(&page).await?;
        Ok(page.into_iter().zip(values).collect())
    }

    /// One round of an exact read; `None` if it has to be started again, mostly because a batch landed in between.
    async fn try_get(&self, ids: &[&str]) -> Result<Option<Vec<i64>>> {
        let groups = self.groups(ids);
        let pending = self.read_groups(&groups, ids).await?;
        if self.begin(&groups, &pending).await? {
            return Ok(None);
        }
        let mark = |(group, pending): (&Group, &Pending)| Some((group.partition, pending.incarnation?));
        let marks: BTreeSet<_> = groups.iter().zip(&pending).filter_map(mark).collect();
        let marks: Vec<_> = marks.into_iter().collect();
        // without an incarnation a replica's lag would go unseen
        let told = pending.iter().all(|pending| pending.incarnation.is_some());
        let copies: &[_] = if told { &[ReadFrom::Nearest, ReadFrom::Primary] } else { &[ReadFrom::Primary] };
        for &copy in copies {
            let snapshot = self.shared.store.read(&self.opened.registered, ids, &marks, copy).await?;
            let stands = |(group, pending): (&Group, &Pending)| {
                let mark = |incarnation| marks.binary_search(&(group.partition, incarnation)).ok();
                let at = pending.incarnation.and_then(mark);
                at.and_then(|at| snapshot.ledger.get(at).copied()).unwrap_or(0)
            };
            let ledger: Vec<u64> = groups.iter().zip(&pending).map(stands).collect();
            let verdicts: Vec<_> =
                pending.iter().zip(&ledger).map(|(pending, &ledger)| judge(pending, ledger)).collect();
            if verdicts.contains(&Verdict::Again) {
                return Ok(None);
            }
            if verdicts.contains(&Verdict::Behind) {
                continue;
            }
            if self.was_forgotten(&groups, &pending, &ledger, ids).await? {
                return Ok(None);
            }
            let mut sums: Vec<_> = snapshot.values.iter().map(|value| i128::from(value.unwrap_or(0))).collect();
            for ((group, pending), verdict) in groups.iter().zip(&pending).zip(verdicts) {
                group.add_to(&mut sums, pending, verdict);
            }
            return self.in_range(ids, sums).map(Some);
        }
        Ok(None)
    }

    /// Gives an incarnation to the partitions that need one; answers whether there were any.
    async fn begin(&self, groups: &[Group], pending: &[Pending]) -> Result<bool> {
        let lacking = groups.iter().zip(pending).filter(|(_, pending)| lacks_incarnation(pending));
        let begins = lacking
            .map(|(group, _)| async move { self.partition(group.partition).begin(Incarnation(random()?)).await });
        Ok(!try_join_all(begins).await?.is_empty())
    }

    /// Whether an incarnation that no ledger row vouches for is not there any more.
    async fn was_forgotten(&self, groups: &[Group], pending: &[Pending], ledger: &[u64], ids: &[&str]) -> Result<bool> {
        let doubtful =
            groups.iter().zip(pending).zip(ledger).filter(|((_, pending), ledger)| may_be_forgotten(pending, **ledger));
        let looks = doubtful.map(|((group, pending), _)| async move {
            let now = self.partition(group.partition).read(&[ids[group.places[0]]]).await?;
            Ok::<_, Error>(now.incarnation != pending.incarnation)
        });
        Ok(try_join_all(looks).await?.contains(&true))
    }

    async fn read_groups(&self, groups: &[Group], ids: &[&str]) -> Result<Vec<Pending>> {
        let reads = groups.iter().map(|group| async move {
            let members: Vec<_> = group.places.iter().map(|&place| ids[place]).collect();
            self.partition(group.partition).read(&members).await
        });
        try_join_all(reads).await
    }

    /// Which partitions have to be asked about which ids: the id's own, or all of a wide family.
    fn groups(&self, ids: &[&str]) -> Vec<Group> {
        let family = self.family();
        let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (place, id) in ids.iter().enumerate() {
            let partitions = if family.is_wide() {
                0..family.partitions()
            } else {
                let own = family.partition_of(id);
                own..own + 1
            };
            partitions.for_each(|partition| places.entry(partition).or_default().push(place));
        }
        let group = |(partition, places): (u32, Vec<usize>)| {
            let chunks: Vec<_> = places.chunks(Partition::<C>::READ_IDS).map(<[usize]>::to_vec).collect();
            chunks.into_iter().map(move |places| Group { partition, places })
        };
        places.into_iter().flat_map(group).collect()
    }

    fn partition(&self, number: u32) -> Partition<C> {
        self.shared.partition(self.family(), number)
    }

    fn in_range(&self, ids: &[&str], sums: Vec<i128>) -> Result<Vec<i64>> {
        let narrow = |(sum, id): (i128, &&str)| {
            i64::try_from(sum).map_err(|_| {
                Error::new(ErrorKind::Range, format!("{}: the value of {id:?}, {sum}, is not an i64", self.family()))
            })
        };
        sums.into_iter().zip(ids).map(narrow).collect()
    }
}

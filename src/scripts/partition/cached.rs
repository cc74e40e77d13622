//! Typed calls of the cached kind's scripts on one partition (docs/protocol.md, section 4).

use futures_util::future::{join, join_all};
use redis::Value;

use crate::error::Result;
use crate::family::Family;
use crate::family::ids::BatchId;
use crate::scripts::bundle::{self, Reply, ScriptCall, borrowed, owned, text};
#[cfg(feature = "test-hooks")]
use crate::scripts::counting::Update;
use crate::scripts::counting::{
    CallReply, PairRequest, PairResult, Pairs, PartitionCall, Seed, request_keys, words,
    write_requests,
};
use crate::scripts::fence::Fence;
use crate::scripts::keys::{Key, Keys};
use crate::scripts::partition::Partition;
use crate::scripts::partition::buffered::id_args;
use crate::scripts::partition::settings::other_database;
use crate::scripts::random::random_name;

/// The outcome of `cached_delete` for one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// The counter is not in Redis (any more).
    Done,
    /// Not deleted: a change to it waits in the buffer.
    Waiting,
    /// Not deleted: a change to it is in the batch.
    InFlight,
}

/// A counter's row as it was read back.
#[derive(Clone, Copy, Debug)]
pub enum RowState {
    Value(i64),
    Missing,
    /// No cached counter can have its value, whose size is not below 2^53.
    Beyond,
}

impl From<Option<i64>> for RowState {
    fn from(value: Option<i64>) -> Self {
        value.map_or(RowState::Missing, RowState::Value)
    }
}

impl Partition {
    /// Seeds the given counters, then changes counters that have a base. Returns each counter's new
    /// value.
    #[cfg(feature = "test-hooks")]
    pub async fn incr<'p, I: AsRef<[u8]> + ?Sized + 'p>(
        &'p self,
        family: &Family,
        fence: Fence<'p>,
        seeds: impl IntoIterator<Item = (&'p I, Seed)>,
        updates: impl IntoIterator<Item = (&'p I, Update)>,
    ) -> Result<CallReply> {
        let pairs: Vec<_> = updates
            .into_iter()
            .map(|(id, update)| (id.as_ref(), update))
            .collect();
        let seeds = seeds.into_iter().map(|(id, seed)| (id.as_ref(), seed));
        let call = PartitionCall {
            partition: self,
            hits: pairs.len() as u64,
            pairs: pairs.iter().copied(),
            seeds: seeds.collect(),
        };
        Self::incr_in(family, "", fence, &[call], &[]).await
    }

    /// Seeds and changes counters of several partitions of one node, some of them under the names of
    /// requests. `calls` must not be empty. The seeds are rows of the database with this id; empty if
    /// it has none.
    pub async fn incr_in<'a>(
        family: &Family,
        database: &str,
        fence: Fence<'_>,
        calls: &[PartitionCall<'_, impl Pairs<'a>>],
        requests: &[PairRequest<'_>],
    ) -> Result<CallReply> {
        let Partition { redis, now_ms, .. } = calls[0].partition;
        let memories = request_keys(fence.home, requests);
        let keys = 2 + 4 * calls.len() + memories.len();
        let mut command = ScriptCall::new("cached_incr", keys, 5 + words(calls, requests))?;
        let (keys, args) = fence.begin(borrowed(now_ms));
        command.arg(keys);
        for PartitionCall { partition, .. } in calls {
            command
                .arg(&partition.cached_keys())
                .arg(partition.keys.meta());
        }
        command.arg(memories);
        command.arg(args);
        command.arg(requests.len());
        for call in calls {
            call.write_pairs(&mut command);
        }
        write_requests(&mut command, requests);
        let seeds = calls.iter().filter(|call| !call.seeds.is_empty());
        let home = fence.home;
        let seeds = seeds.map(|call| (call.partition, &*call.seeds));
        let seeding = join_all(seeds.map(|(one, seeds)| one.seed(family, database, home, seeds)));
        // Both are sent together, the seeds first, so that the changes find the seeded counters. A
        // counter whose seed failed is missing again.
        let (_, reply) = join(seeding, command.send(redis)).await;
        let mut reply = reply?;
        if let Some(outcome) = CallReply::not_executed(&reply)? {
            return Ok(outcome);
        }
        let pairs = calls.iter().map(|call| call.pairs.len()).sum();
        let repeated = reply.status() == "DUP";
        let results = if repeated {
            let words = reply.text()?;
            let words = words.split_ascii_whitespace().map(PairResult::parse_word);
            words
                .collect::<Option<Vec<_>>>()
                .filter(|results| results.len() == pairs)
                .ok_or_else(|| reply.unexpected_reply())?
        } else {
            reply.read_all(pairs, |reply| reply.read(PairResult::parse))?
        };
        Ok(CallReply::Executed {
            results,
            due: Vec::new(),
            repeated,
        })
    }

    /// Seeds counters that were missing with rows of this database. Returns for each whether it has
    /// a base now. `home` has the family's settings.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the family belongs to another database.
    pub async fn seed(
        &self,
        family: &Family,
        database: &str,
        home: &Keys,
        seeds: &[(&[u8], Seed)],
    ) -> Result<Vec<bool>> {
        let mut results = Vec::with_capacity(seeds.len());
        for seeds in seeds.chunks(Self::READ_IDS) {
            let mut args = vec![borrowed(&self.now_ms), borrowed(database)];
            for (id, seed) in seeds {
                args.extend([borrowed(*id), owned(seed.ticket), owned(seed.value)]);
            }
            let keys = [home.calls(), self.keys.base()];
            let reply = bundle::repeat_safe(&self.redis, "cached_seed", &keys, &args).await?;
            let mut reply = own_reply(family, database, reply)?;
            let has_base = |word: &Value| match text(word)? {
                "SEEDED" | "HELD" => Some(true),
                "MISS" | "NOROW" | "BEYOND" => Some(false),
                _ => None,
            };
            results.extend(reply.read_all(seeds.len(), |reply| reply.read(has_base))?);
        }
        Ok(results)
    }

    /// Returns the values of counters, and a ticket for each one without a base, for a caller that
    /// reads the rows of this database.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the partition belongs to another database.
    pub async fn values(
        &self,
        family: &Family,
        database: &str,
        ids: &[impl AsRef<[u8]>],
    ) -> Result<Vec<PairResult>> {
        self.values_with(family, database, ids, 1).await
    }

    /// Returns the values of counters like [`values`](Self::values), without writing tickets.
    pub async fn peek(
        &self,
        family: &Family,
        database: &str,
        ids: &[impl AsRef<[u8]>],
    ) -> Result<Vec<PairResult>> {
        self.values_with(family, database, ids, 0).await
    }

    async fn values_with(
        &self,
        family: &Family,
        database: &str,
        ids: &[impl AsRef<[u8]>],
        tickets: u8,
    ) -> Result<Vec<PairResult>> {
        let mut args = vec![
            owned(tickets),
            borrowed(&self.now_ms),
            owned(random_name()?),
            borrowed(database),
        ];
        args.extend(ids.iter().map(|id| borrowed(id)));
        let [base, buffer, batch] = self.cached_keys();
        let keys = [base, buffer, batch, self.keys.meta()];
        let reply = bundle::repeat_safe(&self.redis, "cached_get", &keys, &args).await?;
        let mut reply = own_reply(family, database, reply)?;
        reply.read_all(ids.len(), |reply| reply.read(PairResult::parse))
    }

    /// Marks counters of a batch as saved once it is complete in the database, each with its row.
    /// Returns how many ids are left in the batch, or `None` if it does not exist (any more).
    pub async fn saved(
        &self,
        batch: BatchId,
        rows: &[(&[u8], impl Into<RowState> + Copy)],
    ) -> Result<Option<u64>> {
        let [base, buffer, cut] = self.cached_keys();
        let mut args: Vec<_> = id_args(batch).into();
        args.push(borrowed(&self.now_ms));
        for (id, row) in rows {
            let row = match (*row).into() {
                RowState::Value(value) => owned(value),
                RowState::Missing => borrowed("-"),
                RowState::Beyond => borrowed("beyond"),
            };
            args.extend([borrowed(*id), row]);
        }
        let keys = [base, buffer, cut, self.keys.meta()];
        let mut reply = bundle::repeat_safe(&self.redis, "cached_saved", &keys, &args).await?;
        Ok(if reply.is_ok_or("STALE")? {
            Some(reply.number()?)
        } else {
            None
        })
    }

    /// Checks about `count` counters from `cursor` on, and deletes those that are due and have
    /// nothing pending. Returns the outcome of each that was due, and the next cursor, 0 at the
    /// end. `home` has the family's settings.
    pub async fn delete_due(
        &self,
        home: &Keys,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<DeleteOutcome>, u64)> {
        self.delete_some(home, cursor, count, &self.now_ms, &[""; 0])
            .await
    }

    /// Deletes counters like [`delete_due`](Self::delete_due), but checks about 1000, whether they
    /// are due or not.
    pub async fn delete_any(&self, home: &Keys, cursor: u64) -> Result<(Vec<DeleteOutcome>, u64)> {
        // at this time every counter is due: a time in milliseconds has 13 digits, and retain is a
        // day at most
        const LAST: &str = "99999999999999";
        self.delete_some(home, cursor, Self::READ_IDS, LAST, &[""; 0])
            .await
    }

    /// Deletes these counters, at most 1000, except those with anything pending.
    pub async fn delete(
        &self,
        home: &Keys,
        ids: &[impl AsRef<[u8]>],
    ) -> Result<Vec<DeleteOutcome>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.delete_some(home, 0, 1, &self.now_ms, ids).await?.0)
    }

    async fn delete_some(
        &self,
        home: &Keys,
        cursor: u64,
        count: usize,
        now_ms: &str,
        ids: &[impl AsRef<[u8]>],
    ) -> Result<(Vec<DeleteOutcome>, u64)> {
        let mut args = vec![owned(cursor), owned(count), borrowed(now_ms)];
        args.extend(ids.iter().map(|id| borrowed(id)));
        let [base, buffer, batch] = self.cached_keys();
        let keys = [home.calls(), base, buffer, batch];
        let mut reply = bundle::expect_ok(&self.redis, "cached_delete", &keys, &args).await?;
        let next = reply.number()?;
        let deleted = |word: &Value| match text(word)? {
            "DELETED" | "GONE" => Some(DeleteOutcome::Done),
            "KEPT:buffer" => Some(DeleteOutcome::Waiting),
            "KEPT:batch" => Some(DeleteOutcome::InFlight),
            _ => None,
        };
        let outcomes = reply.read_all(reply.left(), |reply| reply.read(deleted))?;
        Ok((outcomes, next))
    }

    fn cached_keys(&self) -> [Key; 3] {
        [self.keys.base(), self.keys.buffer(), self.keys.batch()]
    }
}

/// Returns the reply to a caller that has named its database, unless the family belongs to another
/// one.
fn own_reply(family: &Family, database: &str, mut reply: Reply) -> Result<Reply> {
    match reply.status() {
        "MISMATCH" => Err(other_database(family, &reply.text()?, database)),
        _ => reply.expect_ok(),
    }
}

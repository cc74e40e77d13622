//! Typed calls of the buffered kind's scripts on one partition, one call for each script
//! (docs/protocol.md, section 3).

use std::time::Duration;

use redis::Value;

use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::ids::{BatchId, Incarnation, Nonce};
use crate::scripts::bundle::{self, Reply, borrowed, owned};
use crate::scripts::fence::Fence;
use crate::scripts::keys::Keys;
#[cfg(feature = "test-hooks")]
use crate::scripts::partition::Update;
use crate::scripts::partition::{
    Counted, PairResult, Partition, PartitionCall, expect_ok, millis, salt,
};
use crate::testing::ablation::{self, Guard};

/// The reply of `buffered_rotate`.
#[derive(Debug, PartialEq, Eq)]
pub enum RotateReply {
    /// The partition's one batch.
    Batch(CutBatch),
    /// Another owner holds the lease for this long.
    Leased(Duration),
    /// No sync is due for this long.
    Early(Duration),
    /// Nothing is pending.
    Empty,
}

/// A batch in flight in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutBatch {
    /// The batch's id within its partition.
    pub id: BatchId,
    /// The number of counter ids in the batch.
    pub ids: u64,
    /// The time since the batch was cut.
    pub settled: Duration,
    /// The time since its oldest hit was counted.
    pub oldest: Duration,
    /// `true` if the call that returned the batch also cut it.
    pub fresh: bool,
}

/// The reply of `buffered_fetch`, all pages together.
#[derive(Debug, PartialEq, Eq)]
pub enum FetchReply {
    /// Each id once, in byte order. Clients in other languages may have counted ids that are not
    /// UTF-8.
    Deltas(Vec<(Vec<u8>, i64)>),
    /// The remaining time until the batch is durable.
    Wait(Duration),
    /// The batch does not exist (any more).
    Stale,
}

/// The last cut of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCut {
    /// `None` if nothing configured the partition or counted in it since Redis lost its data.
    pub incarnation: Option<Incarnation>,
    /// 0 if nothing was cut.
    pub seq: u64,
    /// `None` if nothing was cut.
    pub nonce: Option<Nonce>,
}

/// The contents that `buffered_reset` dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The number of hits, for kinds that count them.
    pub hits: u64,
    /// The number of counter ids in the buffer and the batch.
    pub ids: u64,
}

/// The reply of `buffered_read`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The last batch that was cut.
    pub last: LastCut,
    /// `true` if that batch is still in flight.
    pub in_flight: bool,
    /// The deltas of each id: in the batch, then in the buffer.
    pub deltas: Vec<(i64, i64)>,
}

/// The condition under which a rotation may cut.
#[derive(Clone, Copy, Debug)]
pub enum Cut<'f> {
    /// No condition: whatever is pending is cut.
    Now,
    /// A sync is due by the family's settings.
    WhenDue(&'f Family),
}

/// A lease on a batch.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    /// The reconciler's random name.
    pub owner: &'a str,
    /// The duration of the lease.
    pub time: Duration,
}

impl Partition {
    /// Adds each delta to its id's pending sum. Together the deltas stand for `hits` hits.
    #[cfg(feature = "test-hooks")]
    pub async fn add<'p, I: AsRef<[u8]> + ?Sized + 'p>(
        &'p self,
        family: &Family,
        fence: Fence<'p>,
        hits: u64,
        pairs: impl IntoIterator<Item = (&'p I, i64)>,
    ) -> Result<Counted> {
        let pairs: Vec<_> = pairs
            .into_iter()
            .map(|(id, delta)| (id.as_ref(), Update::Add(delta)))
            .collect();
        Self::add_to(
            family,
            fence,
            &[PartitionCall {
                partition: self,
                hits,
                pairs: &pairs,
            }],
        )
        .await
    }

    /// Adds the deltas of several partitions of one node in one call. `calls` must not be empty.
    pub async fn add_to(
        family: &Family,
        fence: Fence<'_>,
        calls: &[PartitionCall<'_>],
    ) -> Result<Counted> {
        let Partition { redis, now_ms, .. } = calls[0].partition;
        let (mut keys, mut args) = fence.begin(borrowed(now_ms));
        for PartitionCall {
            partition,
            hits,
            pairs,
        } in calls
        {
            keys.extend([partition.keys.buffer(), partition.keys.meta()].map(String::into_bytes));
            args.extend([owned(hits), owned(pairs.len())]);
            args.extend(
                pairs
                    .iter()
                    .flat_map(|(id, update)| [borrowed(*id), update.to_arg()]),
            );
        }
        let reply = bundle::call(redis, "buffered_add", &keys, &args).await?;
        match reply.status() {
            "OK" => counted(&reply, family, calls),
            "DUP" => {
                // the call was counted, so a failed read must not look like a refusal
                let unknown = |error| {
                    Error::new(ErrorKind::OutcomeUnknown, "the pending value is unknown")
                        .with_source(error)
                };
                let mut results = Self::now_pending(calls).await.map_err(unknown)?;
                refuse_again(&reply.string(0)?, &mut results)
                    .ok_or_else(|| reply.unexpected_reply())?;
                Ok(Counted::Executed {
                    results,
                    due: Vec::new(),
                    repeated: true,
                })
            }
            "EXPIRED" => Ok(Counted::Expired),
            "PASSED" => Ok(Counted::Passed),
            _ => Err(reply.unexpected_reply()),
        }
    }

    /// Reads the current pending values of the pairs' ids, in one call, because a reply has just
    /// been lost.
    async fn now_pending(calls: &[PartitionCall<'_>]) -> Result<Vec<PairResult>> {
        const READ: &str = "\
local pending, arg = {}, 1
for k = 1, #KEYS do
  for i = arg + 1, arg + ARGV[arg] do pending[#pending + 1] = redis.call('HGET', KEYS[k], ARGV[i]) or '0' end
  arg = arg + 1 + ARGV[arg]
end
return pending";
        let keys: Vec<_> = calls
            .iter()
            .map(|call| call.partition.keys.buffer())
            .collect();
        let ids = |call: &PartitionCall<'_>| {
            call.pairs
                .iter()
                .map(|(id, _)| id.to_vec())
                .collect::<Vec<_>>()
        };
        let args: Vec<_> = calls
            .iter()
            .flat_map(|call| [vec![call.pairs.len().to_string().into_bytes()], ids(call)].concat())
            .collect();
        let pending: Vec<i64> =
            bundle::reading(&calls[0].partition.redis, READ, &keys, &args).await?;
        Ok(pending.into_iter().map(PairResult::Counted).collect())
    }

    /// Cuts the buffer off as the partition's one batch, or returns the batch in flight.
    pub async fn rotate(&self, lease: Option<Lease<'_>>, cut: Cut<'_>) -> Result<RotateReply> {
        let (hits, time) = match cut {
            Cut::Now => (0, Duration::ZERO),
            Cut::WhenDue(family) => (family.sync_hits, family.sync_time),
        };
        let args = [
            salt()?,
            lease.map_or(String::new(), |lease| lease.owner.to_owned()),
            millis(lease.map_or(Duration::ZERO, |lease| lease.time)),
            hits.to_string(),
            millis(time),
            self.now_ms.clone(),
        ];
        let keys = [self.keys.buffer(), self.keys.batch(), self.keys.meta()];
        let reply = bundle::repeat_safe(&self.redis, "buffered_rotate", &keys, &args).await?;
        match reply.status() {
            "OK" | "HELD" => {
                let LastCut {
                    incarnation,
                    seq,
                    nonce,
                } = last_cut(&reply, 0)?;
                let (Some(incarnation), Some(nonce)) = (incarnation, nonce) else {
                    return Err(reply.unexpected_reply());
                };
                Ok(RotateReply::Batch(CutBatch {
                    id: BatchId {
                        incarnation,
                        seq,
                        nonce,
                    },
                    ids: reply.number(3)?,
                    settled: Duration::from_millis(reply.number(4)?),
                    oldest: Duration::from_millis(reply.number(5)?),
                    fresh: reply.status() == "OK",
                }))
            }
            "LEASED" => Ok(RotateReply::Leased(Duration::from_millis(reply.number(0)?))),
            "EARLY" => Ok(RotateReply::Early(Duration::from_millis(reply.number(0)?))),
            "EMPTY" => Ok(RotateReply::Empty),
            _ => Err(reply.unexpected_reply()),
        }
    }

    /// Returns the batch's content once it is durable.
    pub async fn fetch(&self, batch: BatchId, settle: Duration, page: usize) -> Result<FetchReply> {
        let settle = if ablation::is_out(Guard::Settle) {
            Duration::ZERO
        } else {
            settle
        };
        let keys = [self.keys.batch(), self.keys.meta()];
        let mut deltas: Vec<(Vec<u8>, i64)> = Vec::new();
        let mut cursor = "0".to_owned();
        let mut passes = 3;
        loop {
            let [incarnation, seq, nonce] = id_args(batch);
            let args = [
                incarnation,
                seq,
                nonce,
                millis(settle),
                cursor,
                page.to_string(),
                self.now_ms.clone(),
            ];
            let mut reply =
                bundle::repeat_safe(&self.redis, "buffered_fetch", &keys, &args).await?;
            match reply.status() {
                "OK" => {}
                "WAIT" => return Ok(FetchReply::Wait(Duration::from_millis(reply.number(0)?))),
                "STALE" => return Ok(FetchReply::Stale),
                _ => return Err(reply.unexpected_reply()),
            }
            cursor = reply.string(0)?;
            let mut words = reply.byte_strings_in(1)?.into_iter();
            while let (Some(id), Some(delta)) = (words.next(), words.next()) {
                let number = std::str::from_utf8(&delta)
                    .ok()
                    .and_then(|delta| delta.parse().ok());
                let number = number.ok_or_else(|| {
                    let (id, delta) = (
                        String::from_utf8_lossy(&id),
                        String::from_utf8_lossy(&delta),
                    );
                    Error::corrupt(format!(
                        "{}: {id:?} has the delta {delta:?}",
                        self.keys.batch()
                    ))
                })?;
                deltas.push((id, number));
            }
            if cursor != "0" {
                continue;
            }
            // HSCAN may return an id twice
            deltas.sort_unstable();
            deltas.dedup_by(|one, other| one.0 == other.0);
            let size: usize = reply.number(2)?;
            if deltas.len() == size {
                return Ok(FetchReply::Deltas(deltas));
            }
            // A cursor is valid on one server only, because each server hashes differently. Ids are
            // missing after a restart, a failover or a slot migration between two pages.
            if passes == 0 {
                let message = format!(
                    "{} of {size} ids of {} came",
                    deltas.len(),
                    self.keys.batch()
                );
                return Err(Error::new(ErrorKind::Redis, message));
            }
            passes -= 1;
        }
    }

    /// Drops the batch, which is complete in the database. Returns whether it still existed.
    pub async fn release(&self, batch: BatchId) -> Result<bool> {
        let keys = [self.keys.batch(), self.keys.meta()];
        let reply =
            bundle::repeat_safe(&self.redis, "buffered_release", &keys, &id_args(batch)).await?;
        match reply.status() {
            "OK" => Ok(true),
            "STALE" => Ok(false),
            _ => Err(reply.unexpected_reply()),
        }
    }

    /// Drops all that is not in the database and starts a new incarnation, if the last cut is still
    /// `proven`. `home` remembers the calls to this partition. Returns what was dropped, or `None`
    /// if the partition is in another state.
    pub async fn reset(
        &self,
        family: &Family,
        home: &Keys,
        proven: LastCut,
    ) -> Result<Option<Dropped>> {
        let mut keys = vec![self.keys.meta(), home.calls()];
        keys.extend(self.keys.unsaved(family));
        let text = |number: Option<String>| number.unwrap_or_default();
        let args = [
            text(
                proven
                    .incarnation
                    .map(|incarnation| incarnation.to_string()),
            ),
            proven.seq.to_string(),
            text(proven.nonce.map(|nonce| nonce.to_string())),
            salt()?,
            self.now_ms.clone(),
        ];
        let reply = bundle::repeat_safe(&self.redis, "buffered_reset", &keys, &args).await?;
        match reply.status() {
            "OK" => Ok(Some(Dropped {
                hits: reply.number(0)?,
                ids: reply.number(1)?,
            })),
            "STALE" => Ok(None),
            _ => Err(reply.unexpected_reply()),
        }
    }

    /// The maximum number of ids in one [`read`](Self::read).
    pub const READ_IDS: usize = 1000;

    /// Reads the pending values of the ids and the id of the last batch, as of one moment.
    pub async fn read(&self, ids: &[impl AsRef<[u8]>]) -> Result<Pending> {
        self.read_from(
            &[self.keys.buffer(), self.keys.batch(), self.keys.meta()],
            ids,
        )
        .await
    }

    /// Reads like [`read`](Self::read), but adds slices that are not over yet to the buffer's
    /// values.
    pub async fn read_with_slices(&self, ids: &[impl AsRef<[u8]>]) -> Result<Pending> {
        self.read_from(
            &[
                self.keys.buffer(),
                self.keys.batch(),
                self.keys.meta(),
                self.keys.open(),
            ],
            ids,
        )
        .await
    }

    async fn read_from(&self, keys: &[String], ids: &[impl AsRef<[u8]>]) -> Result<Pending> {
        let mut reply = bundle::repeat_safe(&self.redis, "buffered_read", keys, ids).await?;
        expect_ok(&reply)?;
        let mut pending = Pending {
            last: last_cut(&reply, 0)?,
            in_flight: reply.number::<u8>(3)? == 1,
            deltas: Vec::with_capacity(ids.len()),
        };
        let words = reply.strings(4)?;
        let number = |word: &String| word.parse::<i64>().ok();
        let deltas: Option<Vec<_>> = words
            .chunks(2)
            .map(|two| Some((number(&two[0])?, number(two.get(1)?)?)))
            .collect();
        pending.deltas = deltas
            .filter(|deltas| deltas.len() == ids.len())
            .ok_or_else(|| {
                Error::corrupt(format!(
                    "{}: a delta is not an i64: {words:?}",
                    self.keys.buffer()
                ))
            })?;
        Ok(pending)
    }

    /// Returns whether anything is pending in the partition, by one cheap command.
    pub async fn has_pending(&self) -> Result<bool> {
        bundle::any_exists(&self.redis, &self.keys.pending()).await
    }

    /// Returns the ids with that prefix that have anything pending, each at least once. An id
    /// counted before the call is found, or is in the database when the call ends. The buffer is
    /// scanned before the batch that it becomes, and a batch is released only after it was applied.
    pub async fn pending_ids(&self, prefix: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for key in [self.keys.buffer(), self.keys.batch()] {
            let mut cursor = 0u64;
            loop {
                let args = [
                    &cursor.to_string(),
                    "MATCH",
                    &starts_with(prefix),
                    "COUNT",
                    "1000",
                ];
                let (next, words): (u64, Vec<Vec<u8>>) =
                    bundle::read(&self.redis, "HSCAN", std::slice::from_ref(&key), &args).await?;
                found.extend(
                    words
                        .into_iter()
                        .step_by(2)
                        .filter_map(|id| String::from_utf8(id).ok()),
                );
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// Returns the last cut of each of these partitions, at most 1000. In a cluster they must lie in
/// one slot.
pub async fn last_cuts(redis: &Connection, partitions: &[Partition]) -> Result<Vec<LastCut>> {
    let keys: Vec<_> = partitions.iter().map(|one| one.keys.meta()).collect();
    let reply = bundle::repeat_safe(redis, "buffered_state", &keys, &[""; 0]).await?;
    expect_ok(&reply)?;
    (0..partitions.len())
        .map(|at| last_cut(&reply, 3 * at))
        .collect()
}

/// Parses incarnation, seq and nonce from position `at` on.
fn last_cut(reply: &Reply, at: usize) -> Result<LastCut> {
    let hex = |at| match reply.string(at)?.as_str() {
        "" => Ok(None),
        text => u64::from_str_radix(text, 16)
            .map(Some)
            .map_err(|_| reply.unexpected_reply()),
    };
    let (incarnation, nonce) = (hex(at)?.map(Incarnation), hex(at + 2)?.map(Nonce));
    Ok(LastCut {
        incarnation,
        seq: reply.number(at + 1)?,
        nonce,
    })
}

/// Returns a batch's id as arguments of a script.
pub(crate) fn id_args(batch: BatchId) -> [String; 3] {
    [
        batch.incarnation.to_string(),
        batch.seq.to_string(),
        batch.nonce.to_string(),
    ]
}

/// Returns the Redis glob pattern that matches everything with this prefix.
fn starts_with(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for letter in prefix.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('*');
    pattern
}

/// Returns the outcome of a call that was executed just now.
fn counted(reply: &Reply, family: &Family, calls: &[PartitionCall<'_>]) -> Result<Counted> {
    let (mut results, mut due) = (Vec::new(), Vec::new());
    let mut words = reply.rest(0)?.iter();
    for (at, call) in calls.iter().enumerate() {
        let Some(Value::Int(total)) = words.next() else {
            return Err(reply.unexpected_reply());
        };
        if family.is_due(call.hits, *total) {
            due.push(at);
        }
        results.extend(words.by_ref().take(call.pairs.len()).map_while(result));
    }
    let expected: usize = calls.iter().map(|call| call.pairs.len()).sum();
    match words.next() {
        None if results.len() == expected => Ok(Counted::Executed {
            results,
            due,
            repeated: false,
        }),
        _ => Err(reply.unexpected_reply()),
    }
}

/// Restores the refusals of the first execution, "INDEX:WORD ..." with indexes from 1.
pub(crate) fn refuse_again(refused: &str, results: &mut [PairResult]) -> Option<()> {
    for one in refused.split_ascii_whitespace() {
        let (index, word) = one.split_once(':')?;
        *results.get_mut(index.parse::<usize>().ok()?.checked_sub(1)?)? = refusal(word.as_bytes())?;
    }
    Some(())
}

fn result(word: &Value) -> Option<PairResult> {
    match word {
        Value::Int(pending) => Some(PairResult::Counted(*pending)),
        Value::BulkString(word) => refusal(word).or_else(|| {
            std::str::from_utf8(word)
                .ok()?
                .parse()
                .ok()
                .map(PairResult::Counted)
        }),
        _ => None,
    }
}

pub(crate) fn refusal(word: &[u8]) -> Option<PairResult> {
    match word {
        b"RANGE" => Some(PairResult::OutOfRange(0)),
        b"FULL" => Some(PairResult::Full),
        b"WRONGTYPE" => Some(PairResult::WrongType),
        b"BADID" => Some(PairResult::BadId),
        _ => None,
    }
}

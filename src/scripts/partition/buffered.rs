//! Typed calls of the buffered kind's scripts on one partition, one call for each script
//! (docs/protocol.md, section 3).

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;
use tokio::time::sleep;

use crate::connection::Connection;
use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::ids::{BatchId, Incarnation, Nonce};
use crate::scripts::bundle::{self, Arg, Reply, ScriptCall, borrowed, owned, text};
#[cfg(feature = "test-hooks")]
use crate::scripts::counting::Update;
use crate::scripts::counting::{
    CallReply, PairRequest, PairResult, Pairs, PartitionCall, request_keys, words, write_requests,
};
use crate::scripts::fence::Fence;
use crate::scripts::keys::Keys;
use crate::scripts::partition::Partition;
use crate::scripts::partition::settings::other_database;
use crate::scripts::random::random_name;

/// The number of times that the pending values of a repeated call are read again.
const READ_REPEATS: u32 = 3;

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

impl LastCut {
    /// Returns the cut of this batch.
    pub fn of(batch: BatchId) -> Self {
        LastCut {
            incarnation: Some(batch.incarnation),
            seq: batch.seq,
            nonce: Some(batch.nonce),
        }
    }

    /// Returns the id of the batch that was cut.
    pub fn batch(self) -> Option<BatchId> {
        Some(BatchId {
            incarnation: self.incarnation?,
            seq: self.seq,
            nonce: self.nonce?,
        })
    }
}

/// The contents that `buffered_reset` dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetReply {
    /// The number of hits, for kinds that count them.
    pub hits: u64,
    /// The number of counter ids in the buffer and the batch.
    pub ids: u64,
}

/// The reply of `buffered_read`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadReply {
    /// The last batch that was cut.
    pub last: LastCut,
    /// The id of the database that the partition's hits go to; empty while it is unknown.
    pub database: String,
    /// `true` if that batch is still in flight.
    pub in_flight: bool,
    /// The deltas of each id: in the batch, then in the buffer.
    pub deltas: Vec<(i64, i64)>,
}

/// The progress of a scan of a partition's pending ids.
#[derive(Debug)]
pub struct Scan {
    /// The index of the key.
    key: usize,
    cursor: String,
}

impl Default for Scan {
    fn default() -> Self {
        let (key, cursor) = (0, "0".to_owned());
        Scan { key, cursor }
    }
}

/// The condition under which a rotation may cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// No condition: whatever is pending is cut.
    Now,
    /// No condition. Later cuts [when due](Self::WhenDue) wait for this time, so that a recount
    /// finds which counters did not move.
    NowAndHold(Duration),
    /// A sync is due by the family's settings.
    WhenDue,
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
    ) -> Result<CallReply> {
        let pairs: Vec<_> = pairs
            .into_iter()
            .map(|(id, delta)| (id.as_ref(), Update::Add(delta)))
            .collect();
        let call = PartitionCall {
            partition: self,
            hits,
            pairs: pairs.iter().copied(),
            seeds: Vec::new(),
        };
        Self::add_to(family, fence, &[call], &[]).await
    }

    /// Adds the deltas of several partitions of one node in one call, some of them under the names
    /// of requests. `calls` must not be empty.
    pub async fn add_to<'a>(
        family: &Family,
        fence: Fence<'_>,
        calls: &[PartitionCall<'_, impl Pairs<'a>>],
        requests: &[PairRequest<'_>],
    ) -> Result<CallReply> {
        let Partition { redis, now_ms, .. } = calls[0].partition;
        let memories = request_keys(fence.home, requests);
        let keys = 2 + 2 * calls.len() + memories.len();
        let mut command = ScriptCall::new("buffered_add", keys, 5 + words(calls, requests))?;
        let (keys, args) = fence.begin(borrowed(now_ms));
        command.arg(keys);
        for PartitionCall { partition, .. } in calls {
            command.arg(&[partition.keys.buffer(), partition.keys.meta()]);
        }
        command.arg(memories);
        command.arg(args).arg(requests.len());
        for call in calls {
            command.arg(call.hits);
            call.write_pairs(&mut command);
        }
        write_requests(&mut command, requests);
        let mut reply = command.send(redis).await?;
        if let Some(outcome) = CallReply::not_executed(&reply)? {
            return Ok(outcome);
        }
        let (repeated, mut due) = (reply.status() == "DUP", Vec::new());
        let results = if repeated {
            Self::repeated_results(&mut reply, calls).await?
        } else {
            let mut results = Vec::with_capacity(reply.left());
            for (index, call) in calls.iter().enumerate() {
                if family.is_due(call.hits, reply.number()?) {
                    due.push(index);
                }
                for _ in 0..call.pairs.len() {
                    results.push(reply.read(PairResult::parse)?);
                }
            }
            results
        };
        reply.expect_end()?;
        Ok(CallReply::Executed {
            results,
            due,
            repeated,
        })
    }

    /// Returns the results of a call that was executed before: its words, and the current pending
    /// values of the other ids.
    async fn repeated_results<'a>(
        reply: &mut Reply,
        calls: &[PartitionCall<'_, impl Pairs<'a>>],
    ) -> Result<Vec<PairResult>> {
        let pairs = calls.iter().map(|call| call.pairs.len()).sum();
        let words = PairResult::read_words(reply, pairs)?;
        let mut rest = &words[..];
        let reads = calls.iter().map(|call| {
            let (own, others) = rest.split_at(call.pairs.len());
            rest = others;
            let counted = call
                .pairs
                .clone()
                .zip(own)
                .filter(|(_, word)| word.is_none());
            let ids: Vec<_> = counted.map(|((id, _), _)| id).collect();
            async move {
                if ids.is_empty() {
                    return Ok(Vec::new());
                }
                // each read is repeated on its own, so that another lost reply does not repeat all
                // of them
                let (mut pause, mut repeats) = (Backoff::default(), 0..READ_REPEATS);
                loop {
                    match call.partition.read(&ids).await {
                        Err(error) if error.is_retryable() && repeats.next().is_some() => {
                            sleep(pause.next()).await;
                        }
                        read => return read.map(|pending| pending.deltas),
                    }
                }
            }
        });
        // the call was counted, so a failed read must not look like a refusal
        let deltas = try_join_all(reads).await.map_err(|error| {
            Error::new(ErrorKind::OutcomeUnknown, "the pending value is unknown").with_source(error)
        })?;
        let mut pending = deltas.into_iter().flatten();
        let result = |word: Option<PairResult>| {
            word.or_else(|| {
                pending
                    .next()
                    .map(|(_, buffer)| PairResult::Counted(buffer))
            })
        };
        Ok(words.into_iter().filter_map(result).collect())
    }

    /// Cuts the buffer off as the partition's one batch, or returns the batch in flight.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) if the partition belongs to another database.
    pub async fn rotate(
        &self,
        family: &Family,
        database: &str,
        lease: Option<Lease<'_>>,
        cut: Cut,
    ) -> Result<RotateReply> {
        let (hits, time, hold) = match cut {
            Cut::Now => (0, Duration::ZERO, Duration::ZERO),
            Cut::NowAndHold(hold) => (0, Duration::ZERO, hold),
            Cut::WhenDue => (family.sync_hits, family.sync_time, Duration::ZERO),
        };
        let args = [
            owned(random_name()?),
            borrowed(lease.map_or("", |lease| lease.owner)),
            owned(lease.map_or(0, |lease| lease.time.as_millis())),
            owned(hits),
            owned(time.as_millis()),
            owned(hold.as_millis()),
            borrowed(database),
            borrowed(&self.now_ms),
        ];
        let keys = [self.keys.buffer(), self.keys.batch(), self.keys.meta()];
        let mut reply = bundle::repeat_safe(&self.redis, "buffered_rotate", &keys, &args).await?;
        match reply.status() {
            "OK" | "HELD" => {
                let last = last_cut(&mut reply)?;
                let id = last.batch().ok_or_else(|| reply.unexpected_reply())?;
                Ok(RotateReply::Batch(CutBatch {
                    id,
                    ids: reply.number()?,
                    settled: reply.millis()?,
                    oldest: reply.millis()?,
                    fresh: reply.status() == "OK",
                }))
            }
            "LEASED" => Ok(RotateReply::Leased(reply.millis()?)),
            "EARLY" => Ok(RotateReply::Early(reply.millis()?)),
            "EMPTY" => Ok(RotateReply::Empty),
            "MISMATCH" => Err(other_database(family, &reply.text()?, database)),
            _ => Err(reply.unexpected_reply()),
        }
    }

    /// Returns the batch's content once it is durable.
    pub async fn fetch(&self, batch: BatchId, settle: Duration, page: usize) -> Result<FetchReply> {
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
                owned(settle.as_millis()),
                owned(cursor),
                owned(page),
                borrowed(&self.now_ms),
            ];
            let mut reply =
                bundle::repeat_safe(&self.redis, "buffered_fetch", &keys, &args).await?;
            match reply.status() {
                "OK" => {}
                "WAIT" => return Ok(FetchReply::Wait(reply.millis()?)),
                "STALE" => return Ok(FetchReply::Stale),
                _ => return Err(reply.unexpected_reply()),
            }
            cursor = reply.text()?;
            let mut words = reply.byte_strings()?.into_iter();
            while let (Some(id), Some(delta)) = (words.next(), words.next()) {
                if id.is_empty() {
                    deltas.push((id, 0));
                    continue;
                }
                let number = std::str::from_utf8(&delta)
                    .ok()
                    .and_then(|it| it.parse().ok());
                let number = number.ok_or_else(|| {
                    let [id, delta] = [&id, &delta].map(|bytes| String::from_utf8_lossy(bytes));
                    Error::corrupt(format!("{}: {id:?} has the delta {delta:?}", reply.key()))
                })?;
                deltas.push((id, number));
            }
            if cursor != "0" {
                continue;
            }
            // HSCAN may return an id twice
            deltas.sort_unstable();
            deltas.dedup_by(|one, other| one.0 == other.0);
            let size: usize = reply.number()?;
            if deltas.len() == size {
                // the field `""` counts in the size, but is of no id: a crash in the middle of a
                // script may leave it
                deltas.retain(|(id, _)| !id.is_empty());
                return Ok(FetchReply::Deltas(deltas));
            }
            // A cursor is valid on one server only, because each server hashes differently. Ids are
            // missing after a restart, a failover or a slot migration between two pages.
            if passes == 0 {
                let message = format!("{} of {size} ids of {} came", deltas.len(), reply.key());
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
        reply.is_ok_or("STALE")
    }

    /// Drops all that is not in the database and starts a new incarnation, if the last cut is still
    /// `proven`. `home` remembers the calls to this partition. Returns what was dropped, or `None`
    /// if the partition is in another state.
    pub async fn reset(
        &self,
        family: &Family,
        home: &Keys,
        proven: LastCut,
    ) -> Result<Option<ResetReply>> {
        let mut keys = vec![self.keys.meta(), home.calls()];
        keys.extend(home.requests());
        keys.extend(self.keys.unsaved(family));
        let [incarnation, seq, nonce] = cut_args(proven);
        let (salt, now_ms) = (owned(random_name()?), borrowed(&self.now_ms));
        let args = [incarnation, seq, nonce, salt, now_ms];
        let mut reply = bundle::repeat_safe(&self.redis, "buffered_reset", &keys, &args).await?;
        if !reply.is_ok_or("STALE")? {
            return Ok(None);
        }
        Ok(Some(ResetReply {
            hits: reply.number()?,
            ids: reply.number()?,
        }))
    }

    /// The maximum number of ids in one [`read`](Self::read).
    pub const READ_IDS: usize = 1000;

    /// Reads the pending values of the ids and the id of the last batch, as of one moment.
    pub async fn read(&self, ids: &[impl AsRef<[u8]>]) -> Result<ReadReply> {
        let keys = [self.keys.buffer(), self.keys.batch(), self.keys.meta()];
        let mut reply = bundle::expect_ok(&self.redis, "buffered_read", &keys, ids).await?;
        Ok(ReadReply {
            last: last_cut(&mut reply)?,
            database: reply.text()?,
            in_flight: reply.number::<u8>()? == 1,
            deltas: reply.read_all(ids.len(), |reply| Ok((reply.number()?, reply.number()?)))?,
        })
    }

    /// Returns for each id whether it was counted since the cut, even if the sum is 0; `None` if
    /// the partition was cut again. At most [`READ_IDS`](Self::READ_IDS) ids.
    pub async fn moved(&self, since: LastCut, ids: &[&str]) -> Result<Option<Vec<bool>>> {
        let keys = [self.keys.buffer(), self.keys.meta()];
        let mut args = Vec::from(cut_args(since));
        args.extend(ids.iter().copied().map(borrowed));
        let mut reply = bundle::repeat_safe(&self.redis, "buffered_moved", &keys, &args).await?;
        if !reply.is_ok_or("STALE")? {
            return Ok(None);
        }
        let moved = reply.read_all(ids.len(), |reply| Ok(reply.number::<u8>()? == 1));
        moved.map(Some)
    }

    /// Returns whether anything is pending in the partition, by one cheap command.
    pub async fn has_pending(&self) -> Result<bool> {
        bundle::any_exists(&self.redis, &self.keys.pending()).await
    }

    /// Returns the next of the ids with that prefix that have anything pending, and the rest of the
    /// scan. All steps together return each id at least once: an id counted before the scan is
    /// found, or is in the database when the scan ends. The buffer is scanned before the batch that
    /// it becomes, and a batch is released only after it was applied.
    pub async fn scan(&self, scan: Scan, prefix: &str) -> Result<(Vec<String>, Option<Scan>)> {
        let Scan { key, cursor } = scan;
        let pending = self.keys.pending();
        let (keys, args) = ([&pending[key]], [&*cursor, prefix, "1000"]);
        let mut reply = bundle::expect_ok(&self.redis, "buffered_scan", &keys, &args).await?;
        let next_cursor = reply.text()?;
        let ids_and_deltas = reply.byte_strings()?.into_iter();
        let ids = ids_and_deltas
            .step_by(2)
            .filter_map(|id| String::from_utf8(id).ok())
            .collect();
        let next_key = key + usize::from(next_cursor == "0");
        let rest = (next_key < pending.len()).then_some(Scan {
            key: next_key,
            cursor: next_cursor,
        });
        Ok((ids, rest))
    }
}

/// Returns the last cut of each of these partitions, at most 1000, and the id of the database that
/// its hits go to, empty while it is unknown. In a cluster they must lie in one slot.
pub async fn last_cuts(
    redis: &Connection,
    partitions: &[Partition],
) -> Result<Vec<(LastCut, String)>> {
    let keys: Vec<_> = partitions.iter().map(|one| one.keys.meta()).collect();
    let mut reply = bundle::expect_ok(redis, "buffered_state", &keys, &[""; 0]).await?;
    reply.read_all(partitions.len(), |reply| {
        Ok((last_cut(reply)?, reply.text()?))
    })
}

/// Reads incarnation, seq and nonce.
fn last_cut(reply: &mut Reply) -> Result<LastCut> {
    let hex = |value: &Value| match text(value)? {
        "" => Some(None),
        text => u64::from_str_radix(text, 16).ok().map(Some),
    };
    Ok(LastCut {
        incarnation: reply.read(hex)?.map(Incarnation),
        seq: reply.number()?,
        nonce: reply.read(hex)?.map(Nonce),
    })
}

/// Returns a cut as arguments of a script.
fn cut_args<'a>(cut: LastCut) -> [Arg<'a>; 3] {
    [
        cut.incarnation.map_or(borrowed(""), owned),
        owned(cut.seq),
        cut.nonce.map_or(borrowed(""), owned),
    ]
}

/// Returns a batch's id as arguments of a script.
pub(crate) fn id_args<'a>(batch: BatchId) -> [Arg<'a>; 3] {
    [
        owned(batch.incarnation),
        owned(batch.seq),
        owned(batch.nonce),
    ]
}

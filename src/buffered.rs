//! The scripts of the buffered kind as typed calls on one partition: one script, one call (PROTOCOL section 3).

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;
use redis::aio::ConnectionLike;

use crate::ablation::{self, Guard};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::partition::{Fence, Partition, expect_ok, guarded, millis};
use crate::script;
use crate::store::Incarnation;

/// What became of one pair of an add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a hit that was refused is not counted"]
pub enum Added {
    /// It is counted, and will be in the database. `pending` is what the id's partition holds in its buffer for it
    /// now, this delta included.
    Counted {
        /// The sum of the deltas that are not yet on their way to the database.
        pending: i64,
    },
    /// Not counted: the sum would leave the signed 64-bit range.
    OutOfRange,
    /// Not counted: the partition holds as many ids as the family's `max_pending` allows, and this is a further one.
    Full,
}

/// What `buffered_add` answers.
#[derive(Debug, PartialEq, Eq)]
pub enum AddReply {
    /// Executed now, or before (DUP).
    Counted {
        /// Whether a sync is due.
        due: bool,
        /// What became of each pair.
        added: Vec<Added>,
        /// It was executed before: what is pending may contain later hits, or lack those that are on their way.
        repeated: bool,
    },
    /// Redis lost its memory of the producer.
    Unknown,
}

/// What `buffered_rotate` answers.
#[derive(Debug, PartialEq, Eq)]
pub enum RotateReply {
    /// The partition's one batch.
    Batch(CutBatch),
    /// Somebody else works on it for so long.
    Leased(Duration),
    /// No sync is due for so long.
    Early(Duration),
    /// Nothing is pending.
    Empty,
}

/// A batch that waits in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutBatch {
    /// With `seq`, its id.
    pub incarnation: Incarnation,
    /// Counts up from 1 within an incarnation.
    pub seq: u64,
    /// How many ids it holds.
    pub ids: u64,
    /// How long ago it was cut.
    pub settled: Duration,
    /// How long ago its oldest hit was counted.
    pub oldest: Duration,
    /// Whether the call that answered it cut it.
    pub fresh: bool,
}

/// What `buffered_fetch` answers, all pages together.
#[derive(Debug, PartialEq, Eq)]
pub enum FetchReply {
    /// Each id once.
    Deltas(Vec<(String, i64)>),
    /// It is not durable for so long.
    Wait(Duration),
    /// That batch is not there (any more).
    Stale,
}

/// What `buffered_read` answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `None` as long as nothing was ever cut, or since Redis lost its memory.
    pub incarnation: Option<Incarnation>,
    /// The last batch that was cut; 0 if none was.
    pub seq: u64,
    /// Whether that batch is still there.
    pub in_flight: bool,
    /// For each id what the batch and what the buffer holds.
    pub deltas: Vec<(i64, i64)>,
}

/// When a rotation may cut.
#[derive(Clone, Copy, Debug)]
pub enum Cut<'f> {
    /// Whatever is there.
    Now,
    /// If a sync is due by the family's settings.
    WhenDue(&'f Family),
}

/// Who takes the lease on a batch, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    /// The reconciler's random name.
    pub owner: &'a str,
    /// How long it lasts.
    pub time: Duration,
}

impl<C: ConnectionLike + Clone + 'static> Partition<C> {
    /// Adds each delta to its id's pending sum, for so many hits in all.
    pub async fn add<'p, I: AsRef<[u8]> + ?Sized + 'p>(
        &self,
        family: &Family,
        fence: Option<Fence<'_>>,
        hits: u64,
        pairs: impl IntoIterator<Item = (&'p I, i64)>,
    ) -> Result<AddReply> {
        let fence = guarded(fence);
        let mut pairs: Vec<_> =
            pairs.into_iter().map(|(id, delta)| (id.as_ref(), delta, itoa::Buffer::new())).collect();
        let count = pairs.len();
        let numbers = [fence.map_or(0, |fence| fence.seq), hits, family.sync_hits].map(|number| number.to_string());
        let (sync_ms, max_pending) = (millis(family.sync_time), family.max_pending.to_string());
        let attempt = Fence::attempt(fence.as_ref());
        let mut args = Vec::with_capacity(8 + 2 * count);
        let fixed = [fence.map_or("", |fence| fence.producer), &numbers[0], attempt, &numbers[1], &numbers[2]];
        args.extend(fixed.into_iter().chain([&*sync_ms, &max_pending, &self.now_ms]).map(str::as_bytes));
        args.extend(pairs.iter_mut().flat_map(|(id, delta, digits)| [*id, digits.format(*delta).as_bytes()]));
        let keys = [self.keys.buffer(), self.keys.meta(), self.keys.producers()];
        let reply = script::call(&self.redis, "buffered_add", &keys, &args).await?;
        match reply.status() {
            "OK" | "DUP" => {
                let (due, repeated) = (reply.number::<u8>(0)? == 1, reply.status() == "DUP");
                let added: Option<Vec<_>> = reply.rest(1)?.iter().map(outcome).collect();
                match added {
                    Some(added) if added.len() == count => Ok(AddReply::Counted { due, added, repeated }),
                    _ => Err(reply.misshapen()),
                }
            }
            "UNKNOWN" => Ok(AddReply::Unknown),
            _ => Err(reply.misshapen()),
        }
    }

    /// Cuts the buffer off as the partition's one batch, or answers the one that is there.
    pub async fn rotate(
        &self,
        incarnation: Incarnation,
        lease: Option<Lease<'_>>,
        cut: Cut<'_>,
    ) -> Result<RotateReply> {
        let incarnation = if ablation::is_out(Guard::Incarnation) { Incarnation(0) } else { incarnation };
        let (hits, time) = match cut {
            Cut::Now => (0, Duration::ZERO),
            Cut::WhenDue(family) => (family.sync_hits, family.sync_time),
        };
        let args = [
            incarnation.to_string(),
            lease.map_or(String::new(), |lease| lease.owner.to_owned()),
            millis(lease.map_or(Duration::ZERO, |lease| lease.time)),
            hits.to_string(),
            millis(time),
            self.now_ms.clone(),
        ];
        let keys = [self.keys.buffer(), self.keys.batch(), self.keys.meta()];
        let reply = script::repeat_safe(&self.redis, "buffered_rotate", &keys, &args).await?;
        match reply.status() {
            "OK" | "HELD" => Ok(RotateReply::Batch(CutBatch {
                incarnation: incarnation_of(&reply.string(0)?).ok_or_else(|| reply.misshapen())?,
                seq: reply.number(1)?,
                ids: reply.number(2)?,
                settled: Duration::from_millis(reply.number(3)?),
                oldest: Duration::from_millis(reply.number(4)?),
                fresh: reply.status() == "OK",
            })),
            "LEASED" => Ok(RotateReply::Leased(Duration::from_millis(reply.number(0)?))),
            "EARLY" => Ok(RotateReply::Early(Duration::from_millis(reply.number(0)?))),
            "EMPTY" => Ok(RotateReply::Empty),
            _ => Err(reply.misshapen()),
        }
    }

    /// The batch's content, page by page, once it is durable.
    pub async fn fetch(&self, batch: &CutBatch, settle: Duration, page: usize) -> Result<FetchReply> {
        let settle = if ablation::is_out(Guard::Settle) { Duration::ZERO } else { settle };
        let keys = [self.keys.batch(), self.keys.meta()];
        // HSCAN may hand an id out twice
        let mut deltas = HashMap::new();
        let mut cursor = "0".to_owned();
        let mut passes = 3;
        loop {
            let args = [
                batch.incarnation.to_string(),
                batch.seq.to_string(),
                millis(settle),
                cursor,
                page.to_string(),
                self.now_ms.clone(),
            ];
            let mut reply = script::repeat_safe(&self.redis, "buffered_fetch", &keys, &args).await?;
            match reply.status() {
                "OK" => {}
                "WAIT" => return Ok(FetchReply::Wait(Duration::from_millis(reply.number(0)?))),
                "STALE" => return Ok(FetchReply::Stale),
                _ => return Err(reply.misshapen()),
            }
            cursor = reply.string(0)?;
            let mut words = reply.list(1)?.into_iter();
            while let (Some(id), Some(delta)) = (words.next(), words.next()) {
                let delta = delta
                    .parse()
                    .map_err(|_| Error::corrupt(format!("{}: {id:?} has the delta {delta:?}", self.keys.batch())))?;
                deltas.insert(id, delta);
            }
            if cursor != "0" {
                continue;
            }
            let size: usize = reply.number(2)?;
            if deltas.len() == size {
                return Ok(FetchReply::Deltas(deltas.into_iter().collect()));
            }
            // A cursor means nothing to another server: each hashes in its own way. After a restart, a failover or a
            // slot's move between two pages ids are missing.
            if passes == 0 {
                let message = format!("{} of {size} ids of {} came", deltas.len(), self.keys.batch());
                return Err(Error::new(ErrorKind::Redis, message));
            }
            passes -= 1;
        }
    }

    /// Drops the batch, which is in the database. Answers whether it was still there.
    pub async fn release(&self, batch: &CutBatch) -> Result<bool> {
        let args = [batch.incarnation.to_string(), batch.seq.to_string()];
        let keys = [self.keys.batch(), self.keys.meta()];
        let reply = script::repeat_safe(&self.redis, "buffered_release", &keys, &args).await?;
        match reply.status() {
            "OK" => Ok(true),
            "STALE" => Ok(false),
            _ => Err(reply.misshapen()),
        }
    }

    /// How many ids one [`read`](Self::read) takes.
    pub const READ_IDS: usize = 1000;

    /// What the ids have pending, with the batch's id, as of one moment.
    pub async fn read(&self, ids: &[&str]) -> Result<Pending> {
        self.read_from(&[self.keys.buffer(), self.keys.batch(), self.keys.meta()], ids).await
    }

    /// The same with what slices hold that are not over yet, as part of the buffer.
    pub async fn read_with_slices(&self, ids: &[&str]) -> Result<Pending> {
        self.read_from(&[self.keys.buffer(), self.keys.batch(), self.keys.meta(), self.keys.open()], ids).await
    }

    async fn read_from(&self, keys: &[String], ids: &[&str]) -> Result<Pending> {
        let mut reply = script::repeat_safe(&self.redis, "buffered_read", keys, ids).await?;
        expect_ok(&reply)?;
        let incarnation = reply.string(0)?;
        let mut pending = Pending {
            incarnation: incarnation_of(&incarnation),
            seq: reply.number(1)?,
            in_flight: reply.number::<u8>(2)? == 1,
            deltas: Vec::with_capacity(ids.len()),
        };
        if pending.incarnation.is_none() && !incarnation.is_empty() {
            return Err(reply.misshapen());
        }
        let words = reply.strings(3)?;
        let number = |word: &String| word.parse::<i64>().ok();
        let deltas: Option<Vec<_>> =
            words.chunks(2).map(|two| Some((number(&two[0])?, number(two.get(1)?)?))).collect();
        pending.deltas = deltas
            .filter(|deltas| deltas.len() == ids.len())
            .ok_or_else(|| Error::corrupt(format!("{}: a delta is not an i64: {words:?}", self.keys.buffer())))?;
        Ok(pending)
    }

    /// Gives the partition an incarnation if it has none.
    pub async fn begin(&self, incarnation: Incarnation) -> Result<()> {
        let args = [incarnation.to_string()];
        let reply = script::repeat_safe(&self.redis, "buffered_begin", &[self.keys.meta()], &args).await?;
        expect_ok(&reply)
    }

    /// Whether anything waits in the partition, for one cheap command.
    pub async fn has_pending(&self) -> Result<bool> {
        anything_pending(&self.redis, std::slice::from_ref(self)).await
    }

    /// The ids with that prefix that have anything pending, each at least once. An id that was counted before the call
    /// is found here or is in the database by the end of it: the buffer is looked through before the batch that it
    /// becomes, and the batch leaves only after it was applied.
    pub async fn pending_ids(&self, prefix: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for key in [self.keys.buffer(), self.keys.batch()] {
            let mut cursor = 0u64;
            loop {
                let args = [&cursor.to_string(), "MATCH", &starts_with(prefix), "COUNT", "1000"];
                let (next, words): (u64, Vec<String>) =
                    script::read(&self.redis, "HSCAN", std::slice::from_ref(&key), &args).await?;
                found.extend(words.into_iter().step_by(2));
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// Whether anything waits in any of the partitions. In a cluster they are asked one by one: keys of several slots in
/// one call are refused.
pub async fn anything_pending<C>(redis: &C, partitions: &[Partition<C>]) -> Result<bool>
where
    C: ConnectionLike + Clone + 'static,
{
    let keys: Vec<_> = partitions.iter().flat_map(|one| [one.keys.buffer(), one.keys.batch()]).collect();
    script::read::<_, u64>(redis, "EXISTS", &keys, &[]).await.map(|existing| existing > 0)
}

/// The glob pattern of Redis for everything that begins with the prefix.
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

fn outcome(word: &Value) -> Option<Added> {
    match word {
        Value::Int(pending) => Some(Added::Counted { pending: *pending }),
        Value::BulkString(word) => match &**word {
            b"RANGE" => Some(Added::OutOfRange),
            b"FULL" => Some(Added::Full),
            digits => std::str::from_utf8(digits).ok()?.parse().ok().map(|pending| Added::Counted { pending }),
        },
        _ => None,
    }
}

fn incarnation_of(text: &str) -> Option<Incarnation> {
    u64::from_str_radix(text, 16).ok().map(Incarnation)
}

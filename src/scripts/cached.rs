//! The scripts of the cached kind as typed calls on one partition: one script, one call (docs/protocol.md, section 4).

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::{join, join_all};
use redis::Value;
use redis::aio::ConnectionLike;

use crate::error::{Error, ErrorKind, Result};
use crate::family::{Family, Retention};
use crate::scripts::bundle::{self, Reply, arg, made};
use crate::scripts::fence::Fence;
#[cfg(feature = "test-hooks")]
use crate::scripts::partition::Change;
use crate::scripts::partition::{Counted, PairResult, Part, Partition, Ticket, expect_ok, millis, random};
use crate::store::{Row, Version};
use crate::testing::ablation::{self, Guard};

/// How long a ticket lasts: time to read a row from the database and to hand it in.
const TICKET: Duration = Duration::from_secs(30);

/// What a counter is seeded with: the row as it was read after the ticket was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// What Redis gave for the missing counter.
    pub ticket: Ticket,
    /// Read from the database that is written.
    pub row: Row,
}

/// What `cached_claim` replies for one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Durable: it may be written to the database.
    Save {
        /// The row as last known.
        known: Row,
        /// The claimed value.
        value: i64,
        /// With it.
        version: Version,
        /// Claimed by this call.
        fresh: bool,
    },
    /// Claimed, and not durable for so long.
    Wait {
        /// How long.
        time: Duration,
        /// Claimed by this call.
        fresh: bool,
    },
    /// Nothing is to be saved; it may be deleted after so long.
    Clean(Duration),
    /// Nothing is known of it.
    Gone,
    /// Its keys are not of the bundle's shape.
    Bad(String),
}

/// What `cached_saved` replies for one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// Everything is saved.
    Clean,
    /// More was counted since the claim.
    Dirty,
    /// It is not claimed in that version any more.
    Stale,
}

/// What `cached_rebase` replies for one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebased {
    /// What is not saved yet lies on top of the row now.
    Done,
    /// It is not claimed in that version any more.
    Stale,
    /// The sum is no i64; nothing was changed.
    OutOfRange,
}

/// What `cached_delete` replies for one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It is not in Redis any more.
    Done,
    /// It stays: it is not saved, or was used lately.
    Kept,
}

/// A counter that is in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Its value.
    value: i64,
    /// Its row as last known.
    known: Row,
    /// What may be in the row by now.
    claim: Option<(i64, Version)>,
}

impl Peeked {
    fn parse(value: &str, row: &str) -> Option<Self> {
        let words: Vec<_> = row.split(' ').collect();
        let (&[base, saved, lineage, n, _, ..], claim) = (&*words, words.get(5)) else { return None };
        let own = Version { lineage: u64::from_str_radix(lineage, 16).ok()?, n: n.parse().ok()? };
        let saved = if saved == "=" { Some(own) } else { optional(saved, version)? };
        let claim = match claim {
            Some(claim) => Some((claim.parse().ok()?, own)),
            None => None,
        };
        let known = Row { value: optional(base, |word| word.parse().ok())?, version: saved };
        Some(Peeked { value: value.strip_prefix('=').unwrap_or(value).parse().ok()?, known, claim })
    }

    /// The value on top of what somebody else added to the row, which was read afterwards; `None` where the row was saved in
    /// between.
    pub fn on_top_of(&self, row: Row) -> Option<i128> {
        let known = match self.claim {
            Some((value, version)) if row.version == Some(version) => value,
            _ if row.version == self.known.version => self.known.value.unwrap_or(0),
            _ => return None,
        };
        Some(i128::from(self.value) + i128::from(row.value.unwrap_or(0)) - i128::from(known))
    }
}

/// Ids and what they are seeded with.
type Seeds<'a> = Vec<(&'a [u8], Seed)>;

impl<C: ConnectionLike + Clone + 'static> Partition<C> {
    /// Changes counters that are there, seeds those that are handed in before, and returns each one's new value.
    #[cfg(feature = "test-hooks")]
    pub async fn incr<'p, I: AsRef<[u8]> + ?Sized + 'p>(
        &'p self,
        retention: &Retention,
        fence: Fence<'p>,
        seeds: impl IntoIterator<Item = (&'p I, Seed)>,
        changes: impl IntoIterator<Item = (&'p I, Change)>,
    ) -> Result<Counted> {
        let pairs: Vec<_> = changes.into_iter().map(|(id, change)| (id.as_ref(), change)).collect();
        let part = Part { partition: self, hits: pairs.len() as u64, pairs: &pairs };
        let seeds: Vec<_> = seeds.into_iter().map(|(id, seed)| (id.as_ref(), seed)).collect();
        Self::incr_in(retention, fence, &[(self, seeds)], &[part]).await
    }

    /// The same in several partitions of one node, of which there must be one at least.
    pub async fn incr_in(
        retention: &Retention,
        fence: Fence<'_>,
        seeds: &[(&Self, Seeds<'_>)],
        parts: &[Part<'_, C>],
    ) -> Result<Counted> {
        match Self::incr_unless_passed(retention, fence, seeds, parts).await? {
            // a repeat is replied to as the first arrival was
            Some(Counted::Executed { results, due, .. }) => Ok(Counted::Executed { results, due, repeated: false }),
            Some(Counted::Expired) => Ok(Counted::Expired),
            None => Err(Error::new(ErrorKind::OutcomeUnknown, "cached_incr: the caller has made another call since")),
        }
    }

    /// The same, and whether it was executed before; `None` where the caller has made a later call since.
    pub async fn incr_unless_passed(
        retention: &Retention,
        fence: Fence<'_>,
        seeds: &[(&Self, Seeds<'_>)],
        parts: &[Part<'_, C>],
    ) -> Result<Option<Counted>> {
        let Partition { redis, now_ms, .. } = parts[0].partition;
        let bound = |bound: Option<i64>| bound.map_or(arg(""), made);
        let (mut keys, mut args) = fence.begin(arg(now_ms));
        args.extend([made(millis(TICKET)), bound(retention.min), bound(retention.max)]);
        for Part { partition, pairs, .. } in parts {
            keys.extend(partition.cached_keys().map(String::into_bytes));
            args.push(made(pairs.len()));
            args.extend(pairs.iter().flat_map(|(id, change)| [arg(*id), change.delta()]));
        }
        let seeding = join_all(seeds.iter().map(|(partition, seeds)| partition.seed(retention, seeds)));
        // Both travel together, the seeds first: whose counter is still missing then is told so.
        let (_, reply) = join(seeding, bundle::call(redis, "cached_incr", &keys, &args)).await;
        let reply = reply?;
        let count = parts.iter().map(|part| part.pairs.len()).sum();
        match reply.status() {
            "DUP" if reply.rest(0)?.is_empty() => Ok(None),
            status @ ("OK" | "DUP") => {
                let (results, repeated) = (pair_results(&reply, count)?, status == "DUP");
                Ok(Some(Counted::Executed { results, due: Vec::new(), repeated }))
            }
            "EXPIRED" => Ok(Some(Counted::Expired)),
            _ => Err(reply.misshapen()),
        }
    }

    /// Brings counters that were missed, with what the primary has of them, and returns their values. One that is missing
    /// still was seeded, saved and deleted meanwhile: it is to be looked at again.
    pub async fn seed(&self, retention: &Retention, seeds: &[(&[u8], Seed)]) -> Result<Vec<PairResult>> {
        let mut results = Vec::with_capacity(seeds.len());
        for seeds in seeds.chunks(Self::READ_IDS) {
            let mut args = vec![made(millis(retention.retain)), arg(&self.now_ms)];
            for (id, seed) in seeds {
                let [value, version] = row_words(seed.row).map(made);
                args.extend([arg(*id), made(seed.ticket), value, version]);
            }
            let reply = bundle::repeat_safe(&self.redis, "cached_seed", &self.cached_keys(), &args).await?;
            expect_ok(&reply)?;
            results.extend(pair_results(&reply, seeds.len())?);
        }
        Ok(results)
    }

    /// The values of counters, with a ticket for those that are missing.
    pub async fn values(&self, ids: &[&str]) -> Result<Vec<PairResult>> {
        let mut args = vec![made(millis(TICKET)), arg(&self.now_ms), made(Ticket(random()?))];
        args.extend(ids.iter().map(|&id| arg(id)));
        let reply = bundle::repeat_safe(&self.redis, "cached_get", &self.cached_keys(), &args).await?;
        expect_ok(&reply)?;
        pair_results(&reply, ids.len())
    }

    /// Counters that are there, with what is known of their rows; none of them is seeded, or kept for longer.
    pub async fn peek(&self, ids: &[&str]) -> Result<Vec<Option<Peeked>>> {
        const PEEK: &str = "\
local reply = {}
local values, rows = redis.call('HMGET', KEYS[1], unpack(ARGV)), redis.call('HMGET', KEYS[2], unpack(ARGV))
for i, value in ipairs(values) do reply[2 * i - 1], reply[2 * i] = value or '', rows[i] or '' end
return reply";
        let keys = [self.keys.values(), self.keys.rows()];
        let reply: Vec<String> = bundle::reading(&self.redis, PEEK, &keys, ids).await?;
        let peeked = reply.chunks(2).map(|pair| match pair {
            [value, _] if value.is_empty() => Ok(None),
            [value, row] => Peeked::parse(value, row).map(Some).ok_or_else(|| {
                Error::corrupt(format!("{}: a counter of another shape: {value:?}, {row:?}", self.keys.values()))
            }),
            _ => Err(Error::corrupt("half a counter was read")),
        });
        peeked.collect()
    }

    /// The counters whose time has come, up to `count`, and how long until the next one's has.
    pub async fn due(&self, count: usize, horizon: Duration) -> Result<(Vec<Vec<u8>>, Option<Duration>)> {
        let args = [count.to_string(), millis(horizon), self.now_ms.clone()];
        let mut reply = bundle::repeat_safe(&self.redis, "cached_due", &[self.keys.schedule()], &args).await?;
        expect_ok(&reply)?;
        let next = match reply.string(0) {
            Ok(none) if none.is_empty() => None,
            _ => Some(Duration::from_millis(reply.number(0)?)),
        };
        Ok((reply.byte_strings(1)?, next))
    }

    /// Claims what is to be saved, and hands out what is durable.
    pub async fn claim(
        &self,
        family: &Family,
        retention: &Retention,
        lease: Duration,
        ids: &[Vec<u8>],
    ) -> Result<Vec<Claim>> {
        let settle = if ablation::is_out(Guard::Settle) { Duration::ZERO } else { family.durability().settle() };
        let mut args =
            vec![made(millis(settle)), made(millis(lease)), made(millis(retention.retain)), arg(&self.now_ms)];
        args.extend(ids.iter().map(|id| arg(id)));
        let reply = bundle::repeat_safe(&self.redis, "cached_claim", &self.cached_keys(), &args).await?;
        expect_ok(&reply)?;
        let claims: Option<Vec<_>> = reply.rest(0)?.iter().map(claim).collect();
        claims.filter(|claims| claims.len() == ids.len()).ok_or_else(|| reply.misshapen())
    }

    /// Marks what was written to the database as saved, if it is still claimed in that version.
    pub async fn saved(
        &self,
        family: &Family,
        retention: &Retention,
        saves: &[(&[u8], Version)],
    ) -> Result<Vec<Marked>> {
        let mut args = vec![made(millis(family.sync_time)), made(millis(retention.retain)), arg(&self.now_ms)];
        args.extend(saves.iter().flat_map(|(id, version)| [arg(*id), made(version)]));
        let reply = bundle::repeat_safe(&self.redis, "cached_saved", &self.cached_keys(), &args).await?;
        let marked = |word: &str| match word {
            "CLEAN" => Some(Marked::Clean),
            "DIRTY" => Some(Marked::Dirty),
            "STALE" => Some(Marked::Stale),
            _ => None,
        };
        each(reply, saves.len(), marked)
    }

    /// Puts what is not saved yet on top of the row that somebody else wrote.
    pub async fn rebase(&self, retention: &Retention, rows: &[(&[u8], Version, Row)]) -> Result<Vec<Rebased>> {
        let mut args = vec![made(millis(retention.retain)), arg(&self.now_ms)];
        for (id, claimed, row) in rows {
            let [value, version] = row_words(*row).map(made);
            args.extend([arg(*id), made(claimed), value, version]);
        }
        let reply = bundle::repeat_safe(&self.redis, "cached_rebase", &self.cached_keys(), &args).await?;
        let rebased = |word: &str| match word {
            "OK" => Some(Rebased::Done),
            "STALE" => Some(Rebased::Stale),
            "RANGE" => Some(Rebased::OutOfRange),
            _ => None,
        };
        each(reply, rows.len(), rebased)
    }

    /// Deletes the counters that are saved, unclaimed, and have not been used for as long as they are to stay.
    pub async fn delete(&self, retention: &Retention, ids: &[Vec<u8>]) -> Result<Vec<Deleted>> {
        let mut args = vec![made(millis(retention.retain)), arg(&self.now_ms)];
        args.extend(ids.iter().map(|id| arg(id)));
        let reply = bundle::repeat_safe(&self.redis, "cached_delete", &self.cached_keys(), &args).await?;
        let deleted = |word: &str| match word {
            "DELETED" | "GONE" => Some(Deleted::Done),
            kept if kept.starts_with("KEPT:") => Some(Deleted::Kept),
            _ => None,
        };
        each(reply, ids.len(), deleted)
    }

    /// All counters that are in Redis, each once. One that is there for as long as the call takes is among them.
    pub async fn cached_ids(&self) -> Result<Vec<Vec<u8>>> {
        let key = [self.keys.schedule()];
        let mut found = HashSet::new();
        // a cursor means nothing to another server: after a failover between two pages ids are missing
        for _ in 0..3 {
            let mut cursor = 0u64;
            loop {
                let args = [&*cursor.to_string(), "COUNT", "1000"];
                let (next, words): (u64, Vec<Vec<u8>>) = bundle::read(&self.redis, "ZSCAN", &key, &args).await?;
                found.extend(words.into_iter().step_by(2));
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
            let size: usize = bundle::read(&self.redis, "ZCARD", &key, &[]).await?;
            if found.len() >= size {
                return Ok(found.into_iter().collect());
            }
        }
        Err(Error::new(ErrorKind::Redis, format!("{} does not hold still", self.keys.schedule())))
    }

    fn cached_keys(&self) -> [String; 3] {
        [self.keys.values(), self.keys.rows(), self.keys.schedule()]
    }
}

/// Whether any counter is in any of the partitions, for one cheap command. In a cluster keys of several slots in one call
/// are refused.
pub async fn any_cached<C>(redis: &C, partitions: &[Partition<C>]) -> Result<bool>
where
    C: ConnectionLike + Clone + 'static,
{
    let keys: Vec<_> = partitions.iter().map(|partition| partition.keys.schedule()).collect();
    bundle::read::<_, u64>(redis, "EXISTS", &keys, &[]).await.map(|existing| existing > 0)
}

/// A row as scripts take it: value and version, "-" for none.
fn row_words(row: Row) -> [String; 2] {
    let none = || "-".to_owned();
    [
        row.value.map_or_else(none, |value| value.to_string()),
        row.version.map_or_else(none, |version| version.to_string()),
    ]
}

fn pair_results(reply: &Reply, count: usize) -> Result<Vec<PairResult>> {
    let results: Option<Vec<_>> = reply.rest(0)?.iter().map(word).collect();
    results.filter(|results| results.len() == count).ok_or_else(|| reply.misshapen())
}

fn word(value: &Value) -> Option<PairResult> {
    let text = match value {
        Value::Int(value) => return Some(PairResult::Counted(*value)),
        value => text(value)?,
    };
    match text.split_once(':') {
        Some(("RANGE", value)) => Some(PairResult::OutOfRange(value.parse().ok()?)),
        // there is none after a seed that came too late
        Some(("MISS", "")) => Some(PairResult::Missing(Ticket(0))),
        Some(("MISS", ticket)) => {
            u64::from_str_radix(ticket, 16).ok().map(|ticket| PairResult::Missing(Ticket(ticket)))
        }
        Some(_) => None,
        None if text == "BADSTATE" => Some(PairResult::NoInteger),
        None if text == "BADID" => Some(PairResult::BadId),
        None => text.parse().ok().map(PairResult::Counted),
    }
}

/// A reply of one word for each of the ids.
fn each<T>(mut reply: Reply, count: usize, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    expect_ok(&reply)?;
    let words = reply.strings(0)?;
    let parsed: Option<Vec<T>> = words.iter().map(|word| parse(word)).collect();
    let parsed = parsed.filter(|parsed| parsed.len() == count);
    parsed.ok_or_else(|| Error::corrupt(format!("{count} words were expected, and came: {words:?}")))
}

fn claim(value: &Value) -> Option<Claim> {
    let Value::Array(items) = value else { return None };
    let word = |at: usize| items.get(at).and_then(text);
    let number = |at: usize| match items.get(at) {
        Some(Value::Int(number)) => u64::try_from(*number).ok(),
        _ => word(at)?.parse().ok(),
    };
    let time = |at| number(at).map(Duration::from_millis);
    Some(match word(0)? {
        "SAVE" => Claim::Save {
            known: Row { value: optional(word(1)?, |word| word.parse().ok())?, version: optional(word(2)?, version)? },
            value: word(3)?.parse().ok()?,
            version: version(word(4)?)?,
            fresh: number(5)? == 1,
        },
        "WAIT" => Claim::Wait { time: time(1)?, fresh: number(2)? == 1 },
        "CLEAN" => Claim::Clean(time(1)?),
        "GONE" => Claim::Gone,
        "BAD" => Claim::Bad(word(1)?.to_owned()),
        _ => return None,
    })
}

/// "-" is none.
fn optional<T>(word: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if word == "-" { Some(None) } else { parse(word).map(Some) }
}

fn version(word: &str) -> Option<Version> {
    let (lineage, n) = word.split_once(':')?;
    Some(Version { lineage: u64::from_str_radix(lineage, 16).ok()?, n: n.parse().ok()? })
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK"),
        _ => None,
    }
}

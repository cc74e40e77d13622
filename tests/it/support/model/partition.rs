//! The reference of a partition's buffer and batch, which all kinds with rows share.

use redis::{Value, from_redis_value};

use super::fence::refusal_of;
use super::*;
use crate::support::*;

pub type Deltas = BTreeMap<String, i64>;

const OWNERS: [&str; 3] = ["", "r1", "r2"];
/// Stands for a name that the server has created and the test has not read yet.
const NEW: &str = "new";

#[derive(Clone, Debug, Default)]
pub struct Partition {
    pub buffer: Deltas,
    pub batch: Deltas,
    pub meta: BTreeMap<&'static str, String>,
}

/// The batch that a call names.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    Present,
    Earlier,
    Later,
    OtherIncarnation,
    OtherNonce,
}

/// A call on the batch.
#[derive(Clone, Debug)]
pub enum BatchCall {
    Rotate {
        owner: usize,
        lease_ms: u64,
        sync_hits: u64,
        sync_ms: u64,
    },
    Fetch {
        which: Which,
        settle_ms: u64,
    },
    Release {
        which: Which,
    },
}

impl Which {
    /// Draws the present batch `usual` times as often as each other one.
    pub fn any(usual: u32) -> impl Strategy<Value = Which> {
        prop_oneof![
            usual => Just(Which::Present),
            1 => Just(Which::Earlier),
            1 => Just(Which::Later),
            1 => Just(Which::OtherIncarnation),
            1 => Just(Which::OtherNonce),
        ]
    }
}

impl BatchCall {
    /// A rotation that cuts whatever is pending.
    pub const FORCED: BatchCall = BatchCall::Rotate {
        owner: 0,
        lease_ms: 0,
        sync_hits: 0,
        sync_ms: 0,
    };

    /// Draws rotations with owners and leases, some of them early.
    pub fn rotations(ms: impl Fn() -> BoxedStrategy<u64>) -> impl Strategy<Value = BatchCall> {
        (
            0..OWNERS.len(),
            ms(),
            proptest::sample::select(vec![0_u64, 0, 3, 50]),
            ms(),
        )
            .prop_map(|(owner, lease_ms, sync_hits, sync_ms)| BatchCall::Rotate {
                owner,
                lease_ms,
                sync_hits,
                sync_ms,
            })
    }
}

impl Partition {
    pub fn number(&self, field: &str) -> Option<u64> {
        self.meta.get(field).map(|number| number.parse().unwrap())
    }

    pub fn set<const N: usize>(&mut self, fields: [(&'static str, String); N]) {
        self.meta.extend(fields);
    }

    /// Notes that a script gives the partition an incarnation if it has none.
    pub fn is_known(&mut self) {
        self.meta.entry("incarnation").or_insert_with(|| NEW.into());
    }

    pub(super) fn lacks_name(&self) -> bool {
        self.meta.get("incarnation").is_some_and(|name| name == NEW)
    }

    /// Notes new hits, and returns the number of hits since the last rotation.
    pub fn note(&mut self, now: u64, hits: u64) -> u64 {
        let earlier = self.number("hits").unwrap_or(0);
        if earlier == 0 {
            self.set([("first_at", now.to_string())]);
            self.is_known();
        }
        self.set([("hits", (earlier + hits).to_string())]);
        earlier + hits
    }

    /// Corrects the number of hits after a call whose hits were all noted: takes back those of the
    /// pairs that were not counted, and notes those of the pairs that were refused.
    pub fn refuse(&mut self, hits: u64, [uncounted, refused]: [usize; 2], pairs: usize) {
        let share = |some: usize| hits * some as u64 / (pairs as u64).max(1);
        let left = self.number("hits").unwrap_or(0) - share(uncounted);
        let refused = self.number("refused").unwrap_or(0) + share(refused);
        self.set([("hits", left.to_string())]);
        if refused > 0 {
            self.set([("refused", refused.to_string())]);
        }
    }

    /// Returns incarnation, seq and nonce of the last cut, as scripts write them.
    pub fn cut(&self) -> [String; 3] {
        let field = |field| self.meta.get(field).cloned();
        [
            field("incarnation").unwrap_or_default(),
            field("seq").unwrap_or_else(|| "0".into()),
            field("nonce").unwrap_or_default(),
        ]
    }

    /// Returns the id of the database; empty if it is unknown.
    pub fn database(&self) -> String {
        self.meta.get("database").cloned().unwrap_or_default()
    }

    /// Returns the reply to a caller that names this database, if the partition belongs to another
    /// one.
    pub fn refuses(&self, database: &str) -> Option<Value> {
        refusal_of(self.meta.get("database"), database)
    }

    /// Returns the id of the batch.
    pub fn named(&self, which: Which) -> [String; 3] {
        let [incarnation, seq, nonce] = self.cut();
        let n: u64 = seq.parse().unwrap();
        let other = "9".repeat(16);
        match which {
            Which::Present => [incarnation, seq, nonce],
            Which::Earlier => [incarnation, n.saturating_sub(1).to_string(), nonce],
            Which::Later => [incarnation, (n + 1).to_string(), nonce],
            Which::OtherIncarnation => [other, seq, nonce],
            Which::OtherNonce => [incarnation, seq, other],
        }
    }

    pub fn has(&self, named: &[String; 3]) -> bool {
        !self.batch.is_empty() && self.cut() == *named
    }

    /// Rotates. A new cut gets this nonce.
    fn rotate(
        &mut self,
        now: u64,
        nonce: &str,
        owner: &str,
        [lease_ms, sync_hits, sync_ms]: [u64; 3],
    ) -> Value {
        let mut status = "HELD";
        let lease = self.number("lease_until").unwrap_or(0);
        let number = |field| self.number(field).unwrap_or(0);
        if self.batch.is_empty() {
            if self.buffer.is_empty() {
                return reply("EMPTY", []);
            }
            let left = self
                .number("rotated_at")
                .filter(|&at| at <= now)
                .map_or(0, |at| (at + sync_ms).saturating_sub(now));
            if left > 0 && number("hits") < sync_hits {
                return reply("EARLY", [int(left)]);
            }
            status = "OK";
            let (seq, hits) = (number("seq") + 1, number("hits"));
            let hits_before = number("hits_before") + hits;
            let first_at = self.number("first_at").unwrap_or(now);
            self.batch = std::mem::take(&mut self.buffer);
            self.set([("seq", seq.to_string()), ("nonce", nonce.into())]);
            self.set([
                ("hits", "0".into()),
                ("hits_before", hits_before.to_string()),
            ]);
            self.set([("rotated_at", now.to_string())]);
            self.set([("batch_first_at", first_at.to_string())]);
            self.set([("batch_hits", hits.to_string())]);
        } else if !owner.is_empty()
            && self
                .meta
                .get("lease_owner")
                .is_some_and(|holder| holder != owner)
            && lease > now
            && lease - now <= lease_ms.max(60_000)
        {
            return reply("LEASED", [int(lease - now)]);
        }
        if !owner.is_empty() {
            let until = now + lease_ms;
            self.set([
                ("lease_owner", owner.into()),
                ("lease_until", until.to_string()),
            ]);
        }
        let age = |field| int(now.saturating_sub(self.number(field).unwrap_or(now)));
        reply(
            status,
            self.cut()
                .map(text)
                .into_iter()
                .chain([int(self.batch.len())])
                .chain([age("rotated_at"), age("batch_first_at")]),
        )
    }

    /// Returns the reply, or `None` if the script returns the content of the batch.
    fn fetch(&mut self, now: u64, named: &[String; 3], settle_ms: u64) -> Option<Value> {
        if !self.has(named) {
            return Some(reply("STALE", []));
        }
        let cut = self.number("rotated_at").unwrap().min(now);
        self.set([("rotated_at", cut.to_string())]);
        let left = (cut + settle_ms).saturating_sub(now);
        (left > 0).then(|| reply("WAIT", [int(left)]))
    }

    fn release(&mut self, named: &[String; 3]) -> Value {
        if !self.has(named) {
            return reply("STALE", []);
        }
        self.batch.clear();
        self.end_batch();
        reply("OK", [])
    }

    /// Removes the fields of the batch.
    pub fn end_batch(&mut self) {
        let ends = |field: &str| field.starts_with("batch_") || field.starts_with("lease_");
        self.meta.retain(|field, _| !ends(field));
    }

    /// Returns the keys of these kinds.
    pub fn keys(&self, [buffer, batch, meta]: [&str; 3]) -> Keys {
        let deltas = [(buffer, &self.buffer), (batch, &self.batch)];
        let deltas = deltas.map(|(kind, deltas)| (kind.into(), (Content::hash(deltas), None)));
        let meta = (meta.into(), (Content::hash(&self.meta), None));
        deltas.into_iter().chain([meta]).collect()
    }
}

impl Frame {
    /// Calls a script on the batch and the reference. Returns what the call released.
    pub fn batch_call(
        &mut self,
        partition: &mut Partition,
        keys @ [_, batch, meta]: [&str; 3],
        call: &BatchCall,
    ) -> Checked<Deltas> {
        let now = self.now;
        match *call {
            BatchCall::Rotate {
                owner,
                lease_ms,
                sync_hits,
                sync_ms,
            } => {
                let (owner, numbers) = (OWNERS[owner], [lease_ms, sync_hits, sync_ms]);
                let [lease, hits, ms] = numbers.map(|number| number.to_string());
                let (salt, time) = (self.salt(), now.to_string());
                let args = [&*salt, owner, &lease, &hits, &ms, "0", "", &time];
                let got = self.call("buffered_rotate", &keys, &args)?;
                let words = words(&got);
                if words[0] == "OK" {
                    self.made("nonce", &words[3])?;
                }
                prop_assert_eq!(
                    got,
                    partition.rotate(now, words.get(3).map_or("", |nonce| nonce), owner, numbers)
                );
            }
            BatchCall::Fetch { which, settle_ms } => {
                let named = partition.named(which);
                let expected = partition.fetch(now, &named, settle_ms);
                let rest = [
                    settle_ms.to_string(),
                    "0".into(),
                    "2".into(),
                    now.to_string(),
                ];
                let mut args = [&named[..], &rest].concat();
                let mut content = Deltas::new();
                loop {
                    let got = self.call("buffered_fetch", &[batch, meta], &args)?;
                    if let Some(expected) = expected {
                        prop_assert_eq!(got, expected);
                        break;
                    }
                    let (status, cursor, page, size): (String, String, Deltas, usize) =
                        from_redis_value(got)?;
                    prop_assert_eq!((&*status, size), ("OK", partition.batch.len()));
                    content.extend(page);
                    args[4] = cursor;
                    if args[4] == "0" {
                        prop_assert_eq!(&content, &partition.batch);
                        break;
                    }
                }
            }
            BatchCall::Release { which } => {
                let (named, held) = (partition.named(which), partition.batch.clone());
                let got = self.call("buffered_release", &[batch, meta], &named)?;
                prop_assert_eq!(&got, &partition.release(&named));
                if got == reply("OK", []) {
                    return Ok(held);
                }
            }
        }
        Ok(Deltas::new())
    }
}

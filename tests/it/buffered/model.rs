//! HOUSE test 3: random sequences of calls of all scripts, on a real Redis and on a plain reference written from the
//! scripts' headers. Replies and keys must be the same after every call, and what was counted must be what left with
//! the batches and what is still there.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 300 unless said otherwise.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use redis::{Value, pipe};
use crate::support::model::{Checked, Model, Number, Scripts, agrees, notices, numbers};

const KINDS: [&str; 4] = ["buffer", "batch", "meta", "producers"];
const IDS: [&str; 4] = ["a", "b", "é/2014-09-20", "nul\0"];
const PRODUCERS: [&str; 2] = ["w1", "w2"];
const OWNERS: [&str; 3] = ["", "r1", "r2"];
const START: u64 = 1_000_000_000;

/// What a partition holds and does, as the headers say.
#[derive(Clone, Debug, Default)]
struct Reference {
    buffer: BTreeMap<String, i64>,
    batch: BTreeMap<String, i64>,
    incarnation: Option<String>,
    /// 0 where nothing was cut yet.
    seq: u64,
    hits: Option<u64>,
    first_at: Option<u64>,
    rotated_at: Option<u64>,
    batch_first_at: Option<u64>,
    lease: Option<(String, u64)>,
    producers: BTreeMap<String, LastCall>,
}

#[derive(Clone, Debug, Default)]
struct LastCall {
    seq: u64,
    at: u64,
    /// Pairs, numbered from 1, with the word that refused them.
    refused: Vec<(usize, &'static str)>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock goes on, or back.
    Clock(i64),
    Register {
        producer: usize,
    },
    Add(Add),
    Rotate {
        incarnation: u64,
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
    Read {
        ids: Vec<usize>,
    },
    Begin {
        incarnation: u64,
    },
    Trim {
        idle_ms: u64,
    },
    /// Redis loses its memory.
    Forget,
}

#[derive(Clone, Debug)]
struct Add {
    producer: Option<usize>,
    number: Number,
    repeat: bool,
    hits: u64,
    sync_hits: u64,
    sync_ms: u64,
    max_pending: usize,
    pairs: Vec<(usize, i64)>,
}

/// Which batch is meant.
#[derive(Clone, Copy, Debug)]
enum Which {
    Present,
    Earlier,
    Later,
    OtherIncarnation,
}

fn text(text: impl ToString) -> Value {
    Value::BulkString(text.to_string().into())
}

/// An integer where every client has it exactly, else its digits.
fn amount(sum: i64) -> Value {
    if sum.unsigned_abs() < 1 << 53 { Value::Int(sum) } else { text(sum) }
}

fn int(number: impl TryInto<i64, Error: std::fmt::Debug>) -> Value {
    Value::Int(number.try_into().unwrap())
}

fn answer(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

fn incarnation(number: u64) -> String {
    format!("{number:016x}")
}

impl Reference {
    fn register(&mut self, now: u64, producer: &str) -> Value {
        let new = LastCall { at: now, ..LastCall::default() };
        let last = self.producers.entry(producer.into()).or_insert(new);
        answer([text("OK"), text(last.seq)])
    }

    fn add(&mut self, now: u64, call: &Add, seq: u64) -> Value {
        let pairs: Vec<_> = call.pairs.iter().map(|&(id, delta)| (IDS[id], delta)).collect();
        let producer = call.producer.map(|producer| PRODUCERS[producer]);
        let last = producer.and_then(|producer| self.producers.get(producer)).cloned();
        if call.repeat && producer.is_some() && last.is_none() {
            return answer([text("UNKNOWN")]);
        }
        let waiting = self.hits.unwrap_or(0);
        let due = |hits: u64| match self.rotated_at {
            Some(at) if at <= now => now - at >= call.sync_ms || hits >= call.sync_hits,
            _ => true,
        };
        if let Some(last) = last.filter(|last| seq <= last.seq) {
            let mut reply = vec![text("DUP"), int(u8::from(due(waiting)))];
            reply.extend(pairs.iter().map(|&(id, _)| amount(*self.buffer.get(id).unwrap_or(&0))));
            for (pair, word) in last.refused.into_iter().filter(|_| seq == last.seq) {
                if let Some(place) = reply.get_mut(pair + 1) {
                    *place = text(word);
                }
            }
            return answer(reply);
        }
        let mut reply = vec![text("OK"), int(u8::from(due(waiting + call.hits)))];
        let mut refused = vec![];
        for (i, (id, delta)) in pairs.into_iter().enumerate() {
            let pending = self.buffer.get(id).copied();
            let word = match pending.unwrap_or(0).checked_add(delta) {
                _ if pending.is_none() && self.buffer.len() >= call.max_pending => "FULL",
                None => "RANGE",
                Some(sum) => {
                    self.buffer.insert(id.into(), sum);
                    reply.push(amount(sum));
                    continue;
                }
            };
            reply.push(text(word));
            refused.push((i + 1, word));
        }
        if waiting == 0 {
            self.first_at = Some(now);
        }
        self.hits = Some(waiting + call.hits);
        if let Some(producer) = producer {
            self.producers.insert(producer.into(), LastCall { seq, at: now, refused });
        }
        answer(reply)
    }

    fn rotate(&mut self, now: u64, brought: &str, owner: &str, lease_ms: u64, sync_hits: u64, sync_ms: u64) -> Value {
        let mut status = "HELD";
        if self.batch.is_empty() {
            if self.buffer.is_empty() {
                return answer([text("EMPTY")]);
            }
            let over = self.rotated_at.filter(|&at| at <= now).map(|at| at + sync_ms);
            if let Some(over) = over.filter(|&over| over > now && self.hits.unwrap_or(0) < sync_hits) {
                return answer([text("EARLY"), int(over - now)]);
            }
            status = "OK";
            self.incarnation.get_or_insert(brought.into());
            self.seq += 1;
            self.batch = std::mem::take(&mut self.buffer);
            (self.rotated_at, self.batch_first_at, self.hits) = (Some(now), self.first_at.or(Some(now)), Some(0));
        } else if let Some((holder, until)) = &self.lease
            && !owner.is_empty()
            && holder != owner
            && *until > now
            && until - now <= lease_ms.max(60_000)
        {
            return answer([text("LEASED"), int(until - now)]);
        }
        if !owner.is_empty() {
            self.lease = Some((owner.into(), now + lease_ms));
        }
        let age = |since: Option<u64>| int(now.saturating_sub(since.unwrap_or(now)));
        let (ids, incarnation) = (self.batch.len(), self.incarnation.as_ref().unwrap());
        let ages = [age(self.rotated_at), age(self.batch_first_at)];
        answer([text(status), text(incarnation), text(self.seq), int(ids)].into_iter().chain(ages))
    }

    fn has(&self, incarnation: &str, seq: u64) -> bool {
        !self.batch.is_empty() && self.incarnation.as_deref() == Some(incarnation) && self.seq == seq
    }

    /// Either the reply, or that the batch is handed out.
    fn fetch(&mut self, now: u64, incarnation: &str, seq: u64, settle_ms: u64) -> Option<Value> {
        if !self.has(incarnation, seq) {
            return Some(answer([text("STALE")]));
        }
        let cut = self.rotated_at.unwrap().min(now);
        self.rotated_at = Some(cut);
        let left = (cut + settle_ms).saturating_sub(now);
        (left > 0).then(|| answer([text("WAIT"), int(left)]))
    }

    fn release(&mut self, incarnation: &str, seq: u64) -> Value {
        if !self.has(incarnation, seq) {
            return answer([text("STALE")]);
        }
        self.batch.clear();
        (self.batch_first_at, self.lease) = (None, None);
        answer([text("OK")])
    }

    fn read(&self, ids: &[&str]) -> Value {
        let known = self.incarnation.clone().unwrap_or_default();
        let delta = |deltas: &BTreeMap<String, i64>, id: &str| text(deltas.get(id).unwrap_or(&0));
        let deltas = ids.iter().flat_map(|id| [delta(&self.batch, id), delta(&self.buffer, id)]);
        let in_flight = u8::from(!self.batch.is_empty());
        answer([text("OK"), text(known), text(self.seq), int(in_flight)].into_iter().chain(deltas))
    }

    fn begin(&mut self, brought: &str) -> Value {
        let incarnation = self.incarnation.get_or_insert(brought.into());
        answer([text("OK"), text(incarnation), text(self.seq)])
    }

    fn trim(&mut self, now: u64, idle_ms: u64) -> Value {
        let known = self.producers.len();
        self.producers.retain(|_, last| last.at + idle_ms > now);
        answer([text("OK"), text(0), int(known - self.producers.len())])
    }

    /// The four keys as they are in Redis.
    fn keys(&self) -> [BTreeMap<String, String>; 4] {
        let deltas =
            |deltas: &BTreeMap<String, i64>| deltas.iter().map(|(id, n)| (id.clone(), n.to_string())).collect();
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let (owner, until) = self.lease.clone().unzip();
        let meta = [
            ("incarnation", self.incarnation.clone()),
            ("seq", number(Some(self.seq).filter(|&seq| seq > 0))),
            ("hits", number(self.hits)),
            ("first_at", number(self.first_at)),
            ("rotated_at", number(self.rotated_at)),
            ("batch_first_at", number(self.batch_first_at)),
            ("lease_owner", owner),
            ("lease_until", number(until)),
        ];
        let meta = meta.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))).collect();
        let record = |LastCall { seq, at, refused }: &LastCall| {
            let refused: String = refused.iter().map(|(pair, word)| format!(" {pair}:{word}")).collect();
            format!("{seq} {at}{refused}")
        };
        let producers = self.producers.iter().map(|(name, last)| (name.clone(), record(last))).collect();
        [deltas(&self.buffer), deltas(&self.batch), meta, producers]
    }
}

fn delta() -> impl Strategy<Value = i64> {
    let ends = [i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1, 1 << 53, (1 << 53) + 1, -(1 << 53) - 1, 1 << 62];
    prop_oneof![4 => -3..=3_i64, 1 => select(ends.to_vec()), 1 => any::<i64>()]
}

fn add() -> impl Strategy<Value = Add> {
    let number = numbers(6);
    let producer = prop_oneof![1 => Just(None), 5 => (0..PRODUCERS.len()).prop_map(Some)];
    let limits = (0..5_u64, prop_oneof![Just(0), 1..20_u64], select(vec![0, 100, 1000, 60_000]), 0..6_usize);
    let pairs = prop::collection::vec((0..IDS.len(), delta()), 1..6);
    (producer, number, limits, pairs).prop_map(|(producer, (number, repeat), limits, pairs)| {
        let (hits, sync_hits, sync_ms, max_pending) = limits;
        Add { producer, number, repeat, hits, sync_hits, sync_ms, max_pending, pairs }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![6 => 0..500_i64, 2 => 500..100_000_i64, 1 => -2000..0_i64, 1 => -200_000..0_i64];
    let which = || {
        prop_oneof![5 => Just(Which::Present), 1 => Just(Which::Earlier), 1 => Just(Which::Later),
            1 => Just(Which::OtherIncarnation)]
    };
    let millis = || select(vec![0_u64, 100, 1000, 70_000]);
    let rotate = (0..3_u64, 0..OWNERS.len(), millis(), select(vec![0_u64, 0, 3, 50]), millis());
    prop_oneof![
        6 => clock.prop_map(Step::Clock),
        1 => (0..PRODUCERS.len()).prop_map(|producer| Step::Register { producer }),
        12 => add().prop_map(Step::Add),
        5 => rotate.prop_map(|(incarnation, owner, lease_ms, sync_hits, sync_ms)| {
            Step::Rotate { incarnation, owner, lease_ms, sync_hits, sync_ms }
        }),
        4 => (which(), millis()).prop_map(|(which, settle_ms)| Step::Fetch { which, settle_ms }),
        4 => which().prop_map(|which| Step::Release { which }),
        3 => prop::collection::vec(0..IDS.len(), 1..5).prop_map(|ids| Step::Read { ids }),
        1 => (0..3_u64).prop_map(|incarnation| Step::Begin { incarnation }),
        1 => millis().prop_map(|idle_ms| Step::Trim { idle_ms }),
        1 => Just(Step::Forget),
    ]
}

/// One sequence: the reference, what the callers know, and the books.
struct Play {
    scripts: Scripts,
    reference: Reference,
    now: u64,
    last_seq: [u64; PRODUCERS.len()],
    counted: BTreeMap<String, i128>,
    gone: BTreeMap<String, i128>,
}

impl Model for Play {
    type Step = Step;
    const FAMILY: &'static str = "shop/views";

    fn steps() -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn new(scripts: Scripts) -> Self {
        Play {
            scripts,
            reference: Reference::default(),
            now: START,
            last_seq: Default::default(),
            counted: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: &Step) -> Checked {
        let now = self.now.to_string();
        match step {
            Step::Clock(ms) => self.now = self.now.saturating_add_signed(*ms),
            Step::Register { producer } => {
                let got =
                    self.scripts.call("buffered_register", &["producers"], &[PRODUCERS[*producer].into(), now])?;
                prop_assert_eq!(got, self.reference.register(self.now, PRODUCERS[*producer]));
            }
            Step::Add(add) => self.add(add)?,
            Step::Rotate { incarnation: brought, owner, lease_ms, sync_hits, sync_ms } => {
                let (brought, owner) = (incarnation(*brought), OWNERS[*owner]);
                let numbers = [lease_ms, sync_hits, sync_ms].map(u64::to_string);
                let args: Vec<_> = [brought.clone(), owner.into()].into_iter().chain(numbers).chain([now]).collect();
                let got = self.scripts.call("buffered_rotate", &["buffer", "batch", "meta"], &args)?;
                let expected = self.reference.rotate(self.now, &brought, owner, *lease_ms, *sync_hits, *sync_ms);
                prop_assert_eq!(got, expected);
            }
            Step::Fetch { which, settle_ms } => self.fetch(*which, *settle_ms)?,
            Step::Release { which } => {
                let (incarnation, seq) = self.batch(*which);
                let held = self.reference.batch.clone();
                let got = self.scripts.call(
                    "buffered_release",
                    &["batch", "meta"],
                    &[incarnation.clone(), seq.to_string()],
                )?;
                prop_assert_eq!(&got, &self.reference.release(&incarnation, seq));
                if got == answer([text("OK")]) {
                    for (id, delta) in held {
                        *self.gone.entry(id).or_default() += i128::from(delta);
                    }
                }
            }
            Step::Read { ids } => {
                let ids: Vec<_> = ids.iter().map(|&id| IDS[id]).collect();
                let args: Vec<_> = ids.iter().map(ToString::to_string).collect();
                let got = self.scripts.call("buffered_read", &["buffer", "batch", "meta"], &args)?;
                prop_assert_eq!(got, self.reference.read(&ids));
            }
            Step::Begin { incarnation: brought } => {
                let brought = incarnation(*brought);
                let got = self.scripts.call("buffered_begin", &["meta"], std::slice::from_ref(&brought))?;
                prop_assert_eq!(got, self.reference.begin(&brought));
            }
            Step::Trim { idle_ms } => {
                let args = [idle_ms.to_string(), "0".into(), "100".into(), now];
                let got = self.scripts.call("buffered_trim", &["producers"], &args)?;
                prop_assert_eq!(got, self.reference.trim(self.now, *idle_ms));
            }
            Step::Forget => {
                self.scripts.forget();
                self.reference = Reference::default();
                (self.counted, self.gone) = Default::default();
            }
        }
        self.check_keys()
    }
}

impl Play {
    fn add(&mut self, add: &Add) -> Checked {
        let seq = add.producer.map_or(0, |producer| {
            let last = &mut self.last_seq[producer];
            add.number.after(last)
        });
        let producer = add.producer.map_or("", |producer| PRODUCERS[producer]);
        let attempt = if add.repeat { "repeat" } else { "first" };
        let numbers = [add.hits, add.sync_hits, add.sync_ms, add.max_pending as u64, self.now].map(|n| n.to_string());
        let pairs = add.pairs.iter().flat_map(|&(id, delta)| [IDS[id].to_owned(), delta.to_string()]);
        let call = [producer.to_owned(), seq.to_string(), attempt.into()];
        let args: Vec<_> = call.into_iter().chain(numbers).chain(pairs).collect();
        let got = self.scripts.call("buffered_add", &["buffer", "meta", "producers"], &args)?;
        prop_assert_eq!(&got, &self.reference.add(self.now, add, seq));
        // the books go by what the caller was told, not by the reference
        let words = got.into_sequence().unwrap();
        if words[0] == text("OK") {
            for (&(id, delta), word) in add.pairs.iter().zip(&words[2..]) {
                let was_refused = [text("RANGE"), text("FULL")].contains(word);
                *self.counted.entry(IDS[id].into()).or_default() += if was_refused { 0 } else { i128::from(delta) };
            }
        }
        Ok(())
    }

    fn batch(&self, which: Which) -> (String, u64) {
        let present = self.reference.incarnation.clone().unwrap_or_else(|| incarnation(0));
        match which {
            Which::Present => (present, self.reference.seq),
            Which::Earlier => (present, self.reference.seq.saturating_sub(1)),
            Which::Later => (present, self.reference.seq + 1),
            Which::OtherIncarnation => (incarnation(9), self.reference.seq),
        }
    }

    fn fetch(&mut self, which: Which, settle_ms: u64) -> Checked {
        let (incarnation, seq) = self.batch(which);
        let expected = self.reference.fetch(self.now, &incarnation, seq, settle_ms);
        let mut args =
            [incarnation, seq.to_string(), settle_ms.to_string(), "0".into(), "2".into(), self.now.to_string()];
        let mut content = BTreeMap::new();
        loop {
            let got = self.scripts.call("buffered_fetch", &["batch", "meta"], &args)?;
            if let Some(expected) = expected {
                prop_assert_eq!(got, expected);
                return Ok(());
            }
            let (status, cursor, page, size): (String, String, BTreeMap<String, i64>, usize) =
                redis::from_redis_value(got).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!((&*status, size), ("OK", self.reference.batch.len()));
            content.extend(page);
            args[3] = cursor;
            if args[3] == "0" {
                prop_assert_eq!(&content, &self.reference.batch);
                return Ok(());
            }
        }
    }

    fn check_keys(&mut self) -> Checked {
        let mut read = pipe();
        for kind in KINDS {
            read.hgetall(self.scripts.key(kind));
        }
        let keys: [BTreeMap<String, String>; 4] = self.scripts.ask::<Vec<_>>(&read).try_into().unwrap();
        for (kind, (got, expected)) in KINDS.iter().zip(keys.iter().zip(&self.reference.keys())) {
            prop_assert_eq!(got, expected, "{}", kind);
        }
        for id in IDS {
            let there = keys[..2].iter().map(|deltas| deltas.get(id).map_or(0, |delta| delta.parse::<i128>().unwrap()));
            let sum = there.sum::<i128>() + self.gone.get(id).unwrap_or(&0);
            prop_assert_eq!(sum, *self.counted.get(id).unwrap_or(&0), "the books of {:?}", id);
        }
        Ok(())
    }
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Play>(file!()).await;
}

/// A script with one thing taken out must not pass.
#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Play>(&[
        ("buffered_add", "seq <= last_seq", "seq < last_seq"),
        ("buffered_add", "attempt == 'repeat' and", "false and"),
        ("buffered_add", "if not is_exact(sum)", "if false"),
        ("buffered_add", "since < 0 or", "false or"),
        ("buffered_add", "if is_new then held = held + 1 end", ""),
        ("buffered_add", "(seq == last_seq and last or '')", "last"),
        ("buffered_rotate", "incarnation or ARGV[1]", "ARGV[1]"),
        ("buffered_rotate", "left > 0 and", "left >= 0 and"),
        ("buffered_rotate", "math.max(lease_ms, 60000)", "lease_ms"),
        ("buffered_rotate", "since >= 0 and", ""),
        ("buffered_fetch", "settled = 0", "settled = settle_ms"),
        ("buffered_fetch", "state[1] ~= ARGV[1]", "false"),
        ("buffered_release", "state[2] ~= ARGV[2]", "false"),
        ("buffered_release", "'batch_first_at', ", ""),
        ("buffered_register", "if last then", "if false then"),
        ("buffered_begin", "if state[1] then", "if false then"),
        ("buffered_read", "waiting[i] or '0'", "'0'"),
        ("buffered_trim", ">= tonumber(ARGV[1])", "> tonumber(ARGV[1])"),
    ])
    .await;
}

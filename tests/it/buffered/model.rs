//! The model of buffered counters: random sequences of calls of all buffered and family scripts, on
//! a real Redis and on a plain reference written from the scripts' headers. Replies and keys must
//! be equal after every call. What was counted must equal what left with the batches plus what is
//! still there, and no call may count twice.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 100 by default.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::model::{BADARG, Checked, Model, Number, Scripts, agrees, notices, numbers};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use redis::{Value, pipe};

const FENCE: [&str; 2] = ["calls", "calls_before"];
/// Buffer, batch and meta of two partitions. One call may carry hits for both.
const PARTITIONS: [[&str; 3]; 2] = [
    ["buffer", "batch", "meta"],
    ["other:buffer", "other:batch", "other:meta"],
];
const IDS: [&str; 4] = ["a", "b", "é/2014-09-20", "nul\0"];
/// The ids of pairs: `IDS`, and one that is refused.
const PAIR_IDS: [&str; 5] = [IDS[0], IDS[1], IDS[2], IDS[3], ""];
const CALLERS: [&str; 3] = ["w1", "w2", "careless"];
/// The caller that names any epoch with any number. The others follow the headers.
const CARELESS: usize = 2;
const OWNERS: [&str; 3] = ["", "r1", "r2"];
const START: u64 = 1_000_000_000;
const EPOCH_MS: u64 = 60_000;

#[derive(Clone, Debug, Default)]
struct Reference {
    family: Family,
    partitions: [Partition; PARTITIONS.len()],
}

/// The family and callers that a home partition knows, as the headers describe them.
#[derive(Clone, Debug, Default)]
struct Family {
    kind: Option<String>,
    partitions: Option<u64>,
    max_pending: Option<usize>,
    settings: Option<String>,
    epoch: Option<String>,
    before: Option<String>,
    began_at: Option<u64>,
    calls: BTreeMap<String, LastCall>,
    calls_before: BTreeMap<String, LastCall>,
    /// The fields in the key of the previous epoch, besides its callers.
    left: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default)]
struct LastCall {
    n: u64,
    /// The refused pairs, as "INDEX:WORD ...".
    refused: String,
}

/// A partition's content and behaviour, as the headers describe them.
#[derive(Clone, Debug, Default)]
struct Partition {
    buffer: BTreeMap<String, i64>,
    batch: BTreeMap<String, i64>,
    incarnation: Option<String>,
    /// The number of cuts so far, 0 before the first.
    seq: u64,
    nonce: Option<String>,
    hits: Option<u64>,
    /// The hits of all batches so far.
    hits_before: Option<u64>,
    first_at: Option<u64>,
    rotated_at: Option<u64>,
    batch_first_at: Option<u64>,
    batch_hits: Option<u64>,
    lease: Option<(String, u64)>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock moves forward or back.
    Clock(i64),
    Configure {
        kind: &'static str,
        partitions: u64,
        max_pending: usize,
        /// The number of partitions that the call names.
        metas: usize,
    },
    /// A new epoch begins if one is due. "" stands for any kind or number.
    Epoch {
        kind: &'static str,
        partitions: &'static str,
    },
    Add(Add),
    /// A call on one of the partitions.
    Of(usize, Call),
    /// Redis loses its memory.
    Forget,
}

#[derive(Clone, Debug)]
struct Add {
    caller: Option<usize>,
    number: Number,
    epoch: Epoch,
    groups: Vec<Group>,
}

/// The epoch that a call names.
#[derive(Clone, Copy, Debug)]
enum Epoch {
    Current,
    Before,
    Unknown,
}

/// The hits of a call in one partition.
#[derive(Clone, Debug)]
struct Group {
    partition: usize,
    /// The number of hits, at least the number of pairs.
    hits: u64,
    pairs: Vec<(usize, i64)>,
}

#[derive(Clone, Debug)]
enum Call {
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
    Reset {
        which: Which,
    },
    Read {
        ids: Vec<usize>,
    },
    State,
}

/// The batch that a call names.
#[derive(Clone, Copy, Debug)]
enum Which {
    Present,
    Earlier,
    Later,
    OtherIncarnation,
    OtherNonce,
}

fn text(text: impl ToString) -> Value {
    Value::BulkString(text.to_string().into())
}

/// Returns an integer if every client can hold it exactly, else its digits.
fn amount(sum: i64) -> Value {
    if sum.unsigned_abs() < 1 << 53 {
        Value::Int(sum)
    } else {
        text(sum)
    }
}

fn int(number: impl TryInto<i64, Error: std::fmt::Debug>) -> Value {
    Value::Int(number.try_into().unwrap())
}

fn reply(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

impl Reference {
    fn add(&mut self, now: u64, call: &Add, n: u64, epoch: &str) -> Value {
        if self
            .family
            .kind
            .as_deref()
            .is_some_and(|kind| kind != "buffered")
        {
            return Value::SimpleString(BADARG.into());
        }
        let caller = call.caller.map(|caller| CALLERS[caller]);
        if let Some(refusal) = caller.and_then(|caller| self.family.refusal(caller, n, epoch)) {
            return refusal;
        }
        let max_pending = self.family.max_pending.unwrap_or(1_000_000);
        let (mut results, mut refused, mut pair) = (vec![text("OK")], vec![], 0);
        for group in &call.groups {
            let partition = &mut self.partitions[group.partition];
            results.push(int(partition.note(now, group.hits)));
            for &(id, delta) in &group.pairs {
                pair += 1;
                let sum = partition.count(PAIR_IDS[id], delta, max_pending);
                refused.extend(sum.err().map(|word| format!("{pair}:{word}")));
                results.push(sum.map_or_else(text, amount));
            }
        }
        if let Some(caller) = caller {
            self.family.calls.insert(
                caller.into(),
                LastCall {
                    n,
                    refused: refused.join(" "),
                },
            );
        }
        reply(results)
    }

    /// Returns the keys as they are in Redis, by kind.
    fn keys(&self) -> BTreeMap<&'static str, BTreeMap<String, String>> {
        let fence = FENCE.into_iter().zip(self.family.keys());
        let data = PARTITIONS.iter().zip(&self.partitions);
        fence
            .chain(data.flat_map(|(kinds, partition)| kinds.iter().copied().zip(partition.keys())))
            .collect()
    }
}

/// Returns the fields that have a value.
fn fields(
    fields: impl IntoIterator<Item = (&'static str, Option<String>)>,
) -> BTreeMap<String, String> {
    fields
        .into_iter()
        .filter_map(|(field, value)| Some((field.to_owned(), value?)))
        .collect()
}

impl Family {
    /// Returns the reply to a call that is not executed.
    fn refusal(&self, caller: &str, n: u64, epoch: &str) -> Option<Value> {
        let is_current = self.epoch.as_deref() == Some(epoch);
        if !is_current && self.before.as_deref() != Some(epoch) {
            return Some(reply([text("EXPIRED")]));
        }
        let earlier = self.calls_before.get(caller).filter(|_| !is_current);
        let last = self
            .calls
            .get(caller)
            .or(earlier)
            .filter(|last| n <= last.n)?;
        Some(if n == last.n {
            reply([text("DUP"), text(&last.refused)])
        } else {
            reply([text("PASSED")])
        })
    }

    fn configure(&mut self, kind: &str, partitions: u64, max_pending: usize, settings: &str) {
        if self
            .kind
            .as_ref()
            .is_some_and(|known| known != kind || self.partitions != Some(partitions))
        {
            self.end_epochs();
        }
        (self.kind, self.partitions) = (Some(kind.into()), Some(partitions));
        (self.max_pending, self.settings) = (Some(max_pending), Some(settings.into()));
    }

    fn end_epochs(&mut self) {
        (self.epoch, self.before, self.began_at) = (None, None, None);
    }

    /// Returns the part of a reply that follows the epochs.
    fn known(&self) -> Option<[Value; 3]> {
        Some([
            text(self.kind.as_ref()?),
            text(self.partitions?),
            text(self.settings.as_ref()?),
        ])
    }

    /// Returns the reply, or `None` if a new epoch begins.
    fn epoch(&self, now: u64, kind: &str, partitions: &str) -> Option<Value> {
        let Some([known_kind, right, settings]) = self.known() else {
            return Some(reply([text("UNCONFIGURED")]));
        };
        let fits = |wanted: &str, known: &Value| wanted.is_empty() || text(wanted) == *known;
        if !fits(kind, &known_kind) || !fits(partitions, &right) {
            return Some(reply([text("MISMATCH"), known_kind, right]));
        }
        let began_at = self.began_at.filter(|&at| at <= now && now - at < EPOCH_MS);
        let epochs = began_at.and(self.epoch.as_ref()).zip(self.before.as_ref());
        epochs.map(|(epoch, before)| {
            reply([
                text("OK"),
                text(epoch),
                text(before),
                known_kind,
                right,
                settings,
            ])
        })
    }

    fn begin(&mut self, now: u64, name: &str) {
        if self.epoch.is_some() {
            self.before.clone_from(&self.epoch);
            (self.left, self.calls_before) = (self.fields(), std::mem::take(&mut self.calls));
        }
        self.before = self.epoch.replace(name.into()).or(Some(name.into()));
        self.began_at = Some(now);
    }

    /// Returns the key's fields, besides its callers.
    fn fields(&self) -> BTreeMap<String, String> {
        fields([
            ("=kind", self.kind.clone()),
            (
                "=partitions",
                self.partitions.map(|partitions| partitions.to_string()),
            ),
            ("=max_pending", self.max_pending.map(|max| max.to_string())),
            ("=settings", self.settings.clone()),
            ("=now", self.epoch.clone()),
            ("=before", self.before.clone()),
            ("=began_at", self.began_at.map(|at| at.to_string())),
        ])
    }

    fn keys(&self) -> [BTreeMap<String, String>; 2] {
        let record =
            |LastCall { n, refused }: &LastCall| format!("{n} {refused}").trim_end().to_owned();
        let with = |fields: BTreeMap<String, String>, calls: &BTreeMap<String, LastCall>| {
            fields
                .into_iter()
                .chain(
                    calls
                        .iter()
                        .map(|(caller, last)| (caller.clone(), record(last))),
                )
                .collect()
        };
        [
            with(self.fields(), &self.calls),
            with(self.left.clone(), &self.calls_before),
        ]
    }
}

impl Partition {
    /// Notes new hits, and returns the number of hits since the last rotation.
    fn note(&mut self, now: u64, hits: u64) -> u64 {
        let earlier = self.hits.unwrap_or(0);
        if earlier == 0 {
            self.first_at = Some(now);
        }
        self.hits = Some(earlier + hits);
        earlier + hits
    }

    /// Returns the new pending sum of the id, or the reason why the delta was not counted.
    fn count(&mut self, id: &str, delta: i64, max_pending: usize) -> Result<i64, &'static str> {
        let pending = self.buffer.get(id).copied();
        if id.is_empty() {
            return Err("BADID");
        }
        if pending.is_none() && self.buffer.len() >= max_pending {
            return Err("FULL");
        }
        let sum = pending.unwrap_or(0).checked_add(delta).ok_or("RANGE")?;
        self.buffer.insert(id.into(), sum);
        Ok(sum)
    }

    /// Rotates. A new cut gets this nonce.
    fn rotate(
        &mut self,
        now: u64,
        nonce: &str,
        owner: &str,
        lease_ms: u64,
        sync_hits: u64,
        sync_ms: u64,
    ) -> Value {
        let mut status = "HELD";
        if self.batch.is_empty() {
            if self.buffer.is_empty() {
                return reply([text("EMPTY")]);
            }
            let over = self
                .rotated_at
                .filter(|&at| at <= now)
                .map(|at| at + sync_ms);
            if let Some(over) =
                over.filter(|&over| over > now && self.hits.unwrap_or(0) < sync_hits)
            {
                return reply([text("EARLY"), int(over - now)]);
            }
            status = "OK";
            self.seq += 1;
            self.nonce = Some(nonce.into());
            self.batch = std::mem::take(&mut self.buffer);
            (self.rotated_at, self.batch_first_at) = (Some(now), self.first_at.or(Some(now)));
            let hits = self.hits.replace(0).unwrap_or(0);
            self.batch_hits = Some(hits);
            *self.hits_before.get_or_insert(0) += hits;
        } else if let Some((holder, until)) = &self.lease
            && !owner.is_empty()
            && holder != owner
            && *until > now
            && until - now <= lease_ms.max(60_000)
        {
            return reply([text("LEASED"), int(until - now)]);
        }
        if !owner.is_empty() {
            self.lease = Some((owner.into(), now + lease_ms));
        }
        let age = |since: Option<u64>| int(now.saturating_sub(since.unwrap_or(now)));
        let ages = [age(self.rotated_at), age(self.batch_first_at)];
        reply(
            [text(status)]
                .into_iter()
                .chain(self.cut().map(text))
                .chain([int(self.batch.len())])
                .chain(ages),
        )
    }

    /// Returns incarnation, seq and nonce of the last cut, as scripts write them.
    fn cut(&self) -> [String; 3] {
        [
            self.incarnation.clone().unwrap_or_default(),
            self.seq.to_string(),
            self.nonce.clone().unwrap_or_default(),
        ]
    }

    fn has(&self, cut: &[String; 3]) -> bool {
        !self.batch.is_empty() && self.cut() == *cut
    }

    /// Returns the reply, or `None` if the batch is handed out.
    fn fetch(&mut self, now: u64, named: &[String; 3], settle_ms: u64) -> Option<Value> {
        if !self.has(named) {
            return Some(reply([text("STALE")]));
        }
        let cut = self.rotated_at.unwrap().min(now);
        self.rotated_at = Some(cut);
        let left = (cut + settle_ms).saturating_sub(now);
        (left > 0).then(|| reply([text("WAIT"), int(left)]))
    }

    fn release(&mut self, named: &[String; 3]) -> Value {
        if !self.has(named) {
            return reply([text("STALE")]);
        }
        self.batch.clear();
        (self.batch_first_at, self.batch_hits, self.lease) = (None, None, None);
        reply([text("OK")])
    }

    /// Resets the partition, which gets this incarnation.
    fn reset(&mut self, named: &[String; 3], incarnation: &str) -> Value {
        if self.incarnation.is_none() || self.cut() != *named {
            return reply([text("STALE")]);
        }
        let (waiting, ids) = (self.hits.unwrap_or(0), self.batch.len() + self.buffer.len());
        let hits = waiting + self.batch_hits.unwrap_or(0);
        *self = Partition {
            incarnation: Some(incarnation.into()),
            hits: Some(0),
            hits_before: Some(self.hits_before.unwrap_or(0) + waiting),
            ..Partition::default()
        };
        reply([text("OK"), int(hits), int(ids), text(incarnation)])
    }

    fn read(&self, ids: &[&str]) -> Value {
        let delta = |deltas: &BTreeMap<String, i64>, id: &str| text(deltas.get(id).unwrap_or(&0));
        let deltas = ids
            .iter()
            .flat_map(|id| [delta(&self.batch, id), delta(&self.buffer, id)]);
        let in_flight = int(u8::from(!self.batch.is_empty()));
        reply(
            [text("OK")]
                .into_iter()
                .chain(self.cut().map(text))
                .chain([in_flight])
                .chain(deltas),
        )
    }

    /// Returns the id of the batch.
    fn named(&self, which: Which) -> [String; 3] {
        let [incarnation, _, nonce] = self.cut();
        let other = || "9".repeat(16);
        match which {
            Which::Present => self.cut(),
            Which::Earlier => [incarnation, self.seq.saturating_sub(1).to_string(), nonce],
            Which::Later => [incarnation, (self.seq + 1).to_string(), nonce],
            Which::OtherIncarnation => [other(), self.seq.to_string(), nonce],
            Which::OtherNonce => [incarnation, self.seq.to_string(), other()],
        }
    }

    fn keys(&self) -> [BTreeMap<String, String>; 3] {
        let deltas = |deltas: &BTreeMap<String, i64>| {
            deltas
                .iter()
                .map(|(id, n)| (id.clone(), n.to_string()))
                .collect()
        };
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let (owner, until) = self.lease.clone().unzip();
        let meta = fields([
            ("incarnation", self.incarnation.clone()),
            ("seq", number(Some(self.seq).filter(|&seq| seq > 0))),
            ("nonce", self.nonce.clone()),
            ("hits", number(self.hits)),
            ("hits_before", number(self.hits_before)),
            ("first_at", number(self.first_at)),
            ("rotated_at", number(self.rotated_at)),
            ("batch_first_at", number(self.batch_first_at)),
            ("batch_hits", number(self.batch_hits)),
            ("lease_owner", owner),
            ("lease_until", number(until)),
        ]);
        [deltas(&self.buffer), deltas(&self.batch), meta]
    }
}

fn delta() -> impl Strategy<Value = i64> {
    let ends = [
        i64::MAX,
        i64::MIN,
        i64::MAX - 1,
        i64::MIN + 1,
        1 << 53,
        (1 << 53) + 1,
        -(1 << 53) - 1,
        1 << 62,
    ];
    prop_oneof![4 => -3..=3_i64, 1 => select(ends.to_vec()), 1 => any::<i64>()]
}

fn group() -> impl Strategy<Value = Group> {
    let id = prop_oneof![12 => 0..IDS.len(), 1 => IDS.len()..PAIR_IDS.len()];
    let pairs = prop::collection::vec((id, delta()), 1..6);
    // the 64th hit turns a buffer into a hash table
    let more = prop_oneof![5 => 0..5_u64, 1 => 55..65_u64];
    (0..PARTITIONS.len(), more, pairs).prop_map(|(partition, more, pairs)| {
        let hits = pairs.len() as u64 + more;
        Group {
            partition,
            hits,
            pairs,
        }
    })
}

fn add() -> impl Strategy<Value = Add> {
    let caller = prop_oneof![1 => Just(None), 6 => (0..CALLERS.len()).prop_map(Some)];
    let epoch =
        prop_oneof![8 => Just(Epoch::Current), 3 => Just(Epoch::Before), 1 => Just(Epoch::Unknown)];
    let groups = prop::collection::vec(group(), 1..=2);
    (caller, numbers(6), epoch, groups).prop_map(|(caller, number, epoch, groups)| Add {
        caller,
        number,
        epoch,
        groups,
    })
}

fn call() -> impl Strategy<Value = Call> {
    let which = || {
        let others = [
            Which::Earlier,
            Which::Later,
            Which::OtherIncarnation,
            Which::OtherNonce,
        ];
        prop_oneof![5 => Just(Which::Present), 4 => select(others.to_vec())]
    };
    let millis = || select(vec![0_u64, 100, 1000, 70_000]);
    let rotate = (
        0..OWNERS.len(),
        millis(),
        select(vec![0_u64, 0, 3, 50]),
        millis(),
    );
    prop_oneof![
        5 => rotate.prop_map(|(owner, lease_ms, sync_hits, sync_ms)| {
            Call::Rotate { owner, lease_ms, sync_hits, sync_ms }
        }),
        4 => (which(), millis()).prop_map(|(which, settle_ms)| Call::Fetch { which, settle_ms }),
        4 => which().prop_map(|which| Call::Release { which }),
        1 => which().prop_map(|which| Call::Reset { which }),
        3 => prop::collection::vec(0..IDS.len(), 1..5).prop_map(|ids| Call::Read { ids }),
        1 => Just(Call::State),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![
        12 => 0..500_i64, 3 => 500..60_000_i64, 3 => 60_000..100_000_i64, 2 => -2000..0_i64, 1 => -200_000..0_i64
    ];
    let kind = || {
        select(vec![
            "buffered", "buffered", "buffered", "buffered", "series",
        ])
    };
    let asked = (
        prop_oneof![5 => kind(), 1 => Just("")],
        select(vec!["4", "4", "4", "4", "1", ""]),
    );
    let limits = (
        select(vec![4_u64, 4, 4, 4, 1]),
        1..6_usize,
        0..=PARTITIONS.len(),
    );
    prop_oneof![
        6 => clock.prop_map(Step::Clock),
        2 => (kind(), limits).prop_map(|(kind, (partitions, max_pending, metas))| {
            Step::Configure { kind, partitions, max_pending, metas: metas.max(1) }
        }),
        4 => asked.prop_map(|(kind, partitions)| Step::Epoch { kind, partitions }),
        14 => add().prop_map(Step::Add),
        17 => (0..PARTITIONS.len(), call()).prop_map(|(partition, call)| Step::Of(partition, call)),
        1 => Just(Step::Forget),
    ]
}

/// One sequence: the reference, the state of the callers, and the books.
struct Play {
    scripts: Scripts,
    reference: Reference,
    now: u64,
    /// Every epoch that has begun.
    epochs: BTreeSet<String>,
    /// The number and epoch of each careful caller's calls.
    sent: [Vec<(u64, String)>; CARELESS],
    executed: BTreeSet<(usize, u64, String)>,
    /// The number of the careless caller's last call.
    careless: u64,
    counted: BTreeMap<String, i128>,
    gone: BTreeMap<String, i128>,
    /// Every incarnation and nonce so far.
    names: BTreeSet<String>,
    /// The number of salts used so far.
    salts: u64,
}

impl Model for Play {
    type Step = Step;
    const FAMILY: &'static str = "shop/views";
    const FENCED: &'static [&'static str] = &["buffered_add"];

    fn steps() -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn new(scripts: Scripts) -> Self {
        Play::empty(scripts, START, 0, BTreeSet::new())
    }

    fn step(&mut self, step: &Step) -> Checked {
        match step {
            Step::Clock(ms) => self.now = self.now.saturating_add_signed(*ms),
            Step::Configure {
                kind,
                partitions,
                max_pending,
                metas,
            } => {
                self.configure(kind, *partitions, *max_pending, *metas)?;
            }
            Step::Epoch { kind, partitions } => self.epoch(kind, partitions)?,
            Step::Add(add) => self.add(add)?,
            Step::Of(partition, call) => self.call(*partition, call)?,
            Step::Forget => {
                self.scripts.forget();
                self.reference.family = Family::default();
                self.epoch("buffered", "4")?;
                *self = Play::empty(
                    self.scripts.clone(),
                    self.now,
                    self.salts,
                    std::mem::take(&mut self.names),
                );
            }
        }
        self.check_keys()
    }
}

impl Play {
    /// Begins on an empty Redis at this time, after so many salts and these names.
    fn empty(scripts: Scripts, now: u64, salts: u64, names: BTreeSet<String>) -> Self {
        let mut play = Play {
            scripts,
            reference: Reference::default(),
            now,
            epochs: BTreeSet::new(),
            sent: Default::default(),
            executed: BTreeSet::new(),
            careless: 0,
            counted: BTreeMap::new(),
            gone: BTreeMap::new(),
            names,
            salts,
        };
        // without this, most calls would name no epoch; the second partition gets its incarnation
        // with its first hit
        play.configure("buffered", 4, 5, 1).unwrap();
        play.epoch("buffered", "4").unwrap();
        play
    }

    fn salt(&mut self) -> String {
        self.salts += 1;
        self.salts.to_string()
    }

    /// Checks that a name from a script is valid and new.
    fn made(&mut self, name: Option<String>) -> Result<String, TestCaseError> {
        let name = name.unwrap_or_default();
        prop_assert!(
            name.len() == 16 && u64::from_str_radix(&name, 16).is_ok(),
            "{:?} is no name",
            name
        );
        prop_assert!(
            self.names.insert(name.clone()),
            "the name {} was given before",
            name
        );
        Ok(name)
    }

    fn configure(
        &mut self,
        kind: &str,
        partitions: u64,
        max_pending: usize,
        metas: usize,
    ) -> Checked {
        let keys: Vec<_> = FENCE[..1]
            .iter()
            .copied()
            .chain(PARTITIONS[..metas].iter().map(|keys| keys[2]))
            .collect();
        let settings = format!("settings {}", self.salts);
        let numbers = [partitions.to_string(), max_pending.to_string()];
        let args = [
            [self.salt(), self.now.to_string(), kind.into()].as_slice(),
            &numbers,
            std::slice::from_ref(&settings),
        ]
        .concat();
        prop_assert_eq!(
            self.scripts.call("family_configure", &keys, &args)?,
            reply([text("OK")])
        );
        self.reference
            .family
            .configure(kind, partitions, max_pending, &settings);
        for number in 0..metas {
            self.learn_incarnation(number)?;
        }
        // without this, the next epoch could get an old name
        self.now += 1;
        Ok(())
    }

    /// Reads the incarnation if a script may have just created it.
    fn learn_incarnation(&mut self, number: usize) -> Checked {
        if self.reference.partitions[number].incarnation.is_none() {
            let mut read = pipe();
            read.hget(self.scripts.key(PARTITIONS[number][2]), "incarnation");
            let [name]: [Option<String>; 1] = self.scripts.ask(&read);
            self.reference.partitions[number].incarnation = Some(self.made(name)?);
        }
        Ok(())
    }

    fn epoch(&mut self, kind: &str, partitions: &str) -> Checked {
        let args = [kind.to_owned(), partitions.to_owned(), self.now.to_string()];
        let got = self.scripts.call("family_epoch", &FENCE, &args)?;
        let family = &mut self.reference.family;
        if let Some(expected) = family.epoch(self.now, kind, partitions) {
            prop_assert_eq!(got, expected);
            return Ok(());
        }
        let [status, name, before, known @ ..] = &got.into_sequence().unwrap()[..] else {
            unreachable!("an epoch")
        };
        prop_assert_eq!(status, &text("OK"));
        prop_assert_eq!(known, &family.known().unwrap()[..]);
        let name: String = redis::from_redis_value(name.clone()).unwrap();
        prop_assert_eq!(before, &text(family.epoch.as_ref().unwrap_or(&name)));
        if !self.epochs.insert(name.clone()) {
            // names derive from the time and the last name: without a last one, the test's clock
            // can repeat one
            prop_assume!(family.epoch.is_some());
            prop_assert!(false, "the epoch {} began twice", name);
        }
        family.begin(self.now, &name);
        Ok(())
    }

    /// Returns number and epoch of a call. A careful caller's numbers grow, and a repeat names its
    /// original epoch.
    fn numbered(&mut self, add: &Add) -> (u64, String) {
        let family = &self.reference.family;
        let epoch = match add.epoch {
            Epoch::Current => family.epoch.clone(),
            Epoch::Before => family.before.clone(),
            Epoch::Unknown => None,
        };
        let epoch = epoch.unwrap_or_else(|| "unknown".into());
        let sent = match add.caller {
            None => return (0, epoch),
            Some(CARELESS) => return (add.number.after(&mut self.careless), epoch),
            Some(caller) => &mut self.sent[caller],
        };
        let repeated = match add.number {
            Number::Same => sent.last(),
            Number::Earlier => sent.iter().nth_back(1),
            _ => None,
        };
        if let Some(call) = repeated {
            return call.clone();
        }
        let last = sent.last().map_or(0, |(n, _)| *n);
        sent.push((
            if matches!(add.number, Number::Skipping) {
                last + 9
            } else {
                last + 1
            },
            epoch,
        ));
        sent.last().unwrap().clone()
    }

    fn add(&mut self, add: &Add) -> Checked {
        let (n, epoch) = self.numbered(add);
        let caller = add.caller.map_or("", |caller| CALLERS[caller]);
        let mut keys = FENCE.to_vec();
        let mut args = vec![
            caller.to_owned(),
            n.to_string(),
            epoch.clone(),
            self.now.to_string(),
        ];
        for Group {
            partition,
            hits,
            pairs,
        } in &add.groups
        {
            let [buffer, _, meta] = PARTITIONS[*partition];
            keys.extend([buffer, meta]);
            args.extend([hits.to_string(), pairs.len().to_string()]);
            args.extend(
                pairs
                    .iter()
                    .flat_map(|&(id, delta)| [PAIR_IDS[id].to_owned(), delta.to_string()]),
            );
        }
        let got = self.scripts.call("buffered_add", &keys, &args)?;
        let before = self
            .reference
            .partitions
            .clone()
            .map(|partition| partition.hits.unwrap_or(0));
        prop_assert_eq!(&got, &self.reference.add(self.now, add, n, &epoch));
        if got == Value::SimpleString(BADARG.into()) {
            return Ok(());
        }

        // the books follow the reply, not the reference
        let mut results = got.into_sequence().unwrap().into_iter();
        let status = results.next().unwrap();
        if let Some(caller) = add.caller.filter(|&caller| caller != CARELESS) {
            let call = (caller, n, epoch);
            prop_assert!(
                status != text("OK") || !self.executed.contains(&call),
                "{:?} was executed twice",
                call
            );
            prop_assert!(
                status != text("DUP") || self.executed.contains(&call),
                "{:?} was never executed",
                call
            );
            if status == text("OK") {
                self.executed.insert(call);
            }
        }
        if status == text("OK") {
            for group in &add.groups {
                if before[group.partition] == 0 {
                    self.learn_incarnation(group.partition)?;
                }
                results.next();
                for (&(id, delta), result) in group.pairs.iter().zip(results.by_ref()) {
                    let was_refused = ["RANGE", "FULL", "BADID"].map(text).contains(&result);
                    *self.counted.entry(PAIR_IDS[id].into()).or_default() +=
                        if was_refused { 0 } else { i128::from(delta) };
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, number: usize, call: &Call) -> Checked {
        let (keys, now) = (&PARTITIONS[number], self.now.to_string());
        match call {
            Call::Rotate {
                owner,
                lease_ms,
                sync_hits,
                sync_ms,
            } => {
                let owner = OWNERS[*owner];
                let numbers = [lease_ms, sync_hits, sync_ms].map(u64::to_string);
                let args: Vec<_> = [self.salt(), owner.into()]
                    .into_iter()
                    .chain(numbers)
                    .chain([now])
                    .collect();
                let got = self.scripts.call("buffered_rotate", keys, &args)?;
                let words = got.clone().into_sequence().unwrap();
                let nonce = if words[0] == text("OK") {
                    self.made(redis::from_redis_value(words[3].clone()).unwrap())?
                } else {
                    String::new()
                };
                let partition = &mut self.reference.partitions[number];
                prop_assert_eq!(
                    got,
                    partition.rotate(self.now, &nonce, owner, *lease_ms, *sync_hits, *sync_ms)
                );
            }
            Call::Fetch { which, settle_ms } => self.fetch(number, *which, *settle_ms)?,
            Call::Release { which } => {
                let partition = &mut self.reference.partitions[number];
                let (named, held) = (partition.named(*which), partition.batch.clone());
                let got = self.scripts.call("buffered_release", &keys[1..], &named)?;
                prop_assert_eq!(&got, &partition.release(&named));
                if got == reply([text("OK")]) {
                    self.left(held);
                }
            }
            Call::Reset { which } => {
                let partition = &self.reference.partitions[number];
                let (named, held) = (
                    partition.named(*which),
                    [&partition.batch, &partition.buffer].map(Clone::clone),
                );
                let args = [named.as_slice(), &[self.salt(), now]].concat();
                let keys = [keys[2], FENCE[0], keys[0], keys[1]];
                let got = self.scripts.call("buffered_reset", &keys, &args)?;
                let incarnation = match &got.clone().into_sequence().unwrap()[..] {
                    [_, _, _, name] => self.made(redis::from_redis_value(name.clone()).unwrap())?,
                    _ => String::new(),
                };
                prop_assert_eq!(
                    &got,
                    &self.reference.partitions[number].reset(&named, &incarnation)
                );
                if !incarnation.is_empty() {
                    held.into_iter().for_each(|deltas| self.left(deltas));
                    self.reference.family.end_epochs();
                }
            }
            Call::Read { ids } => {
                let ids: Vec<_> = ids.iter().map(|&id| IDS[id]).collect();
                let args: Vec<_> = ids.iter().map(ToString::to_string).collect();
                let got = self.scripts.call("buffered_read", keys, &args)?;
                prop_assert_eq!(got, self.reference.partitions[number].read(&ids));
            }
            Call::State => {
                let got =
                    self.scripts
                        .call("buffered_state", &PARTITIONS.map(|keys| keys[2]), &[])?;
                let cuts = self
                    .reference
                    .partitions
                    .iter()
                    .flat_map(|partition| partition.cut().map(text));
                prop_assert_eq!(got, reply([text("OK")].into_iter().chain(cuts)));
            }
        }
        Ok(())
    }

    /// Adds deltas that have left Redis to the books.
    fn left(&mut self, deltas: BTreeMap<String, i64>) {
        for (id, delta) in deltas {
            *self.gone.entry(id).or_default() += i128::from(delta);
        }
    }

    fn fetch(&mut self, number: usize, which: Which, settle_ms: u64) -> Checked {
        let partition = &mut self.reference.partitions[number];
        let named = partition.named(which);
        let expected = partition.fetch(self.now, &named, settle_ms);
        let numbers = [
            settle_ms.to_string(),
            "0".into(),
            "2".into(),
            self.now.to_string(),
        ];
        let mut args = [named.as_slice(), &numbers].concat();
        let mut content = BTreeMap::new();
        loop {
            let got = self
                .scripts
                .call("buffered_fetch", &PARTITIONS[number][1..], &args)?;
            if let Some(expected) = expected {
                prop_assert_eq!(got, expected);
                return Ok(());
            }
            let (status, cursor, page, size): (String, String, BTreeMap<String, i64>, usize) =
                redis::from_redis_value(got)
                    .map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
            prop_assert_eq!((&*status, size), ("OK", partition.batch.len()));
            content.extend(page);
            args[4] = cursor;
            if args[4] == "0" {
                prop_assert_eq!(&content, &partition.batch);
                return Ok(());
            }
        }
    }

    fn check_keys(&mut self) -> Checked {
        let expected = self.reference.keys();
        let mut read = pipe();
        for kind in expected.keys() {
            read.hgetall(self.scripts.key(kind));
        }
        let keys: Vec<BTreeMap<String, String>> = self.scripts.ask(&read);
        for ((kind, expected), got) in expected.iter().zip(&keys) {
            prop_assert_eq!(got, expected, "{}", kind);
        }
        let keys: BTreeMap<_, _> = expected.keys().copied().zip(&keys).collect();
        for id in IDS {
            let deltas = PARTITIONS
                .iter()
                .flat_map(|[buffer, batch, _]| [keys[buffer], keys[batch]]);
            let there = deltas.map(|deltas| {
                deltas
                    .get(id)
                    .map_or(0, |delta| delta.parse::<i128>().unwrap())
            });
            let sum = there.sum::<i128>() + self.gone.get(id).unwrap_or(&0);
            prop_assert_eq!(
                sum,
                *self.counted.get(id).unwrap_or(&0),
                "the books of {:?}",
                id
            );
        }
        Ok(())
    }
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Play>(file!()).await;
}

#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Play>(&[
        ("buffered_add", "kind and kind ~= own_kind", "false"),
        ("buffered_add", "before == 0", "before < 0"),
        (
            "buffered_add",
            "call('HSETNX', meta, 'incarnation'",
            "tostring('incarnation'",
        ),
        (
            "buffered_add",
            "call('HSETNX', meta, 'incarnation'",
            "call('HSET', meta, 'incarnation'",
        ),
        ("buffered_add", "sum >= 2^53 or sum <= -2^53", "false"),
        (
            "buffered_add",
            "and call('HEXISTS', buffer, id) == 0",
            "and true",
        ),
        ("buffered_add", "grows and max + 1 or max", "max"),
        ("buffered_add", "at - (k + 1) / 2", "at - 2"),
        (
            "buffered_rotate",
            "incarnation or random(meta)",
            "random(meta)",
        ),
        ("buffered_rotate", "what, salt, time", "what, time"),
        ("buffered_rotate", "'nonce', nonce, ", ""),
        ("buffered_rotate", "'batch_hits', text(hits), ", ""),
        ("buffered_rotate", "left > 0 and", "left >= 0 and"),
        ("buffered_rotate", "math.max(lease_ms, 60000)", "lease_ms"),
        ("buffered_rotate", "since >= 0 and", ""),
        ("buffered_fetch", "settled = 0", "settled = settle_ms"),
        ("buffered_fetch", "state[1] == ARGV[1] and ", ""),
        ("buffered_fetch", " and state[3] == ARGV[3]", ""),
        ("buffered_release", " or state[2] ~= ARGV[2]", ""),
        (
            "buffered_release",
            "if state[3] ~= ARGV[3] then",
            "if false then",
        ),
        ("buffered_release", "'batch_first_at', ", ""),
        ("buffered_reset", "state[1] == ARGV[1] and ", ""),
        ("buffered_reset", " and (state[2] or '0') == ARGV[2]", ""),
        ("buffered_reset", " and (state[3] or '') == ARGV[3]", ""),
        (
            "buffered_reset",
            "redis.call('HDEL', calls, '=now', '=before', '=began_at')",
            "",
        ),
        ("buffered_reset", "meta, salt, time", "meta, time"),
        (
            "buffered_reset",
            "meta, 'seq', 'nonce', ",
            "meta, 'nonce', ",
        ),
        ("buffered_reset", "unpack(KEYS, 3)", "KEYS[3]"),
        ("buffered_reset", "before + waiting)", "before)"),
        ("buffered_reset", "waiting + cut, ", "waiting, "),
        ("buffered_read", "waiting[i] or '0'", "'0'"),
        ("buffered_read", "state[3] or ''", "''"),
        ("buffered_state", "state[3] or ''", "''"),
        ("family_epoch", "if not kind then", "if false then"),
        ("family_epoch", "not fits or", ""),
        ("family_epoch", "age >= 0 and", ""),
        ("family_epoch", "age < 60000", "false"),
        (
            "family_epoch",
            "= name, now or name, string",
            "= name, name, string",
        ),
        (
            "family_epoch",
            "redis.call('HSET', calls, '=before', now)",
            "",
        ),
        (
            "family_epoch",
            "redis.call('RENAME', calls, calls_before)",
            "redis.call('UNLINK', calls)",
        ),
        ("family_configure", "is_other or", ""),
        ("family_configure", "known_kind ~= kind or ", ""),
        (
            "family_configure",
            "'incarnation') == 0",
            "'incarnation') >= 0",
        ),
    ])
    .await;
}

//! The model of cached counters: random sequences of script calls, on a real Redis and on a plain
//! reference written from the scripts' headers. Replies and keys must be equal after every call. No
//! call may count twice, and no ticket, incarnation or nonce may be given out twice.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 100 by default.

use std::collections::BTreeMap;

use crate::support::model::{Checked, Model, Number, Scripts, agrees, notices, numbers};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::TestCaseError;
use redis::{Value, from_redis_value, pipe};

const FENCE: [&str; 2] = ["calls", "calls_before"];
/// Two partitions. One call may change counters of both. Only the first one is configured.
const PARTITIONS: [[&str; 4]; 2] = [
    ["base", "buffer", "batch", "meta"],
    ["other:base", "other:buffer", "other:batch", "other:meta"],
];
const IDS: [&str; 4] = ["a", "b", "é/2014-09-20", "nul\0"];
const CALLERS: [&str; 3] = ["w1", "w2", "careless"];
/// The caller that names any epoch with any number. The others follow the header.
const CARELESS: usize = 2;
const START: u64 = 1_000_000_000;
const EPOCH_MS: u64 = 60_000;
const TICKET_MS: u64 = 300;
/// A name that the server has created and the test has not read yet.
const NEW: &str = "new";

#[derive(Clone, Debug, Default)]
struct Reference {
    /// The family's settings and epochs.
    fields: BTreeMap<String, String>,
    calls: BTreeMap<&'static str, LastCall>,
    /// The settings in the key of the previous epoch.
    fields_before: BTreeMap<String, String>,
    calls_before: BTreeMap<&'static str, LastCall>,
    partitions: [Partition; PARTITIONS.len()],
}

#[derive(Clone, Debug)]
struct LastCall {
    n: u64,
    words: Vec<String>,
}

type Deltas = BTreeMap<&'static str, i64>;

/// A partition's content and behaviour, as the headers describe them.
#[derive(Clone, Debug, Default)]
struct Partition {
    /// The bases by id, with the times from which they may be deleted.
    bases: BTreeMap<&'static str, (u64, Base)>,
    buffer: Deltas,
    batch: Deltas,
    meta: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug)]
enum Base {
    Ticket(String),
    Row(i64),
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock moves forward or back.
    Clock(i64),
    /// A new epoch begins. A family that Redis does not know is configured first.
    Epoch,
    Incr(Incr),
    /// A call on one of the partitions.
    Of(usize, Call),
    /// Redis loses its memory.
    Forget,
}

#[derive(Clone, Debug)]
struct Incr {
    caller: Option<usize>,
    number: Number,
    epoch: Epoch,
    low: Option<i64>,
    high: Option<i64>,
    groups: Vec<Group>,
}

/// The epoch that a call names.
#[derive(Clone, Copy, Debug)]
enum Epoch {
    Current,
    Before,
    Unknown,
}

/// The changes of a call in one partition.
#[derive(Clone, Debug)]
struct Group {
    partition: usize,
    pairs: Vec<(usize, Change)>,
}

#[derive(Clone, Debug)]
enum Call {
    Seed {
        retain_ms: u64,
        seeds: Vec<(usize, Which, i64)>,
    },
    Get {
        ticket_ms: &'static str,
        ids: Vec<usize>,
    },
    Rotate,
    Fetch {
        which: Which,
        settle_ms: u64,
    },
    Release {
        which: Which,
    },
    Saved {
        which: Which,
        retain_ms: u64,
        rows: Vec<(usize, Option<i64>)>,
    },
    Delete {
        ids: Vec<usize>,
    },
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Add(i64),
    Set(i64),
}

/// The type of a name. A ticket may equal an incarnation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Name {
    Ticket,
    /// An incarnation of that partition.
    Incarnation(usize),
    Nonce,
}

/// The ticket or batch that a call names.
#[derive(Clone, Copy, Debug)]
enum Which {
    Present,
    Earlier,
    Other,
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

/// Returns a word of a reply as text.
fn word(word: &Value) -> String {
    from_redis_value(word.clone()).unwrap()
}

fn int(number: impl TryInto<i64, Error: std::fmt::Debug>) -> Value {
    Value::Int(number.try_into().unwrap())
}

fn reply(status: &str, words: impl IntoIterator<Item = Value>) -> Value {
    Value::Array([text(status)].into_iter().chain(words).collect())
}

/// Returns the id of a pair: one of `IDS`, or one of two that no counter may have.
fn pair_id(number: usize) -> String {
    IDS.get(number).map_or_else(
        || "x".repeat((number - IDS.len()) * 256),
        ToString::to_string,
    )
}

impl Change {
    fn argument(self) -> String {
        match self {
            Change::Add(delta) => delta.to_string(),
            Change::Set(goal) => format!("={goal}"),
        }
    }

    /// Returns value and pending delta after the change.
    fn apply(
        self,
        value: i64,
        waiting: i64,
        (low, high): (Option<i64>, Option<i64>),
    ) -> Option<(i64, i64)> {
        let (delta, falls, rises) = match self {
            Change::Add(delta) => (delta, delta < 0, delta > 0),
            Change::Set(goal) => (goal.checked_add(value.checked_neg()?)?, true, true),
        };
        let (after, pending) = (value.checked_add(delta)?, waiting.checked_add(delta)?);
        let is_out = (falls && low.is_some_and(|low| after < low))
            || (rises && high.is_some_and(|high| after > high));
        (!is_out).then_some((after, pending))
    }
}

impl Reference {
    /// Returns the reply to a call that is not executed.
    fn refusal(&self, caller: &str, n: u64, epoch: &str) -> Option<Value> {
        let is = |name: &str| self.fields.get(name).is_some_and(|known| known == epoch);
        if !is("=now") && !is("=before") {
            return Some(reply("EXPIRED", []));
        }
        let earlier = self.calls_before.get(caller).filter(|_| !is("=now"));
        let last = self
            .calls
            .get(caller)
            .or(earlier)
            .filter(|last| n <= last.n)?;
        let dup = || reply("DUP", [text(last.words.join(" "))]);
        Some(if n < last.n {
            reply("PASSED", [])
        } else {
            dup()
        })
    }

    fn incr(&mut self, now: u64, call: &Incr, n: u64, epoch: &str, ticket: &str) -> Value {
        let caller = call.caller.map(|caller| CALLERS[caller]);
        if let Some(refusal) = caller.and_then(|caller| self.refusal(caller, n, epoch)) {
            return refusal;
        }
        let mut words = vec![];
        for group in &call.groups {
            words.extend(self.partitions[group.partition].incr(
                now,
                &group.pairs,
                (call.low, call.high),
                ticket,
            ));
        }
        let reply = reply(
            "OK",
            words
                .iter()
                .map(|word| word.parse().map_or_else(|_| text(word), amount)),
        );
        if let Some(caller) = caller {
            self.calls.insert(caller, LastCall { n, words });
        }
        reply
    }

    /// Returns the keys as they are in Redis, by kind.
    fn keys(&self) -> BTreeMap<&'static str, BTreeMap<String, String>> {
        let record = |LastCall { n, words }: &LastCall| format!("{n} {}", words.join(" "));
        let with = |fields: &BTreeMap<String, String>, calls: &BTreeMap<&str, LastCall>| {
            let calls = calls
                .iter()
                .map(|(&caller, last)| (caller.to_owned(), record(last)));
            fields
                .clone()
                .into_iter()
                .chain(calls)
                .collect::<BTreeMap<_, _>>()
        };
        let memories = [
            with(&self.fields, &self.calls),
            with(&self.fields_before, &self.calls_before),
        ];
        let fence = FENCE.into_iter().zip(memories);
        let data = PARTITIONS.iter().zip(&self.partitions);
        fence
            .chain(data.flat_map(|(kinds, partition)| kinds.iter().copied().zip(partition.keys())))
            .collect()
    }
}

impl Partition {
    fn delta(deltas: &Deltas, id: &str) -> i64 {
        deltas.get(id).copied().unwrap_or(0)
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.meta.get(field).map(|number| number.parse().unwrap())
    }

    fn set<const N: usize>(&mut self, fields: [(&'static str, String); N]) {
        self.meta.extend(fields);
    }

    fn incr(
        &mut self,
        now: u64,
        pairs: &[(usize, Change)],
        bounds: (Option<i64>, Option<i64>),
        ticket: &str,
    ) -> Vec<String> {
        let (mut words, mut counted) = (vec![], 0);
        let held = self.bases.clone();
        for &(id, change) in pairs {
            let Some(&id) = IDS.get(id) else {
                words.push("BADID".into());
                continue;
            };
            let base = match held.get(id) {
                Some((_, Base::Row(base))) => *base,
                Some((_, Base::Ticket(stored))) => {
                    words.push(self.miss(now, id, stored));
                    continue;
                }
                None => {
                    words.push(self.miss(now, id, ticket));
                    continue;
                }
            };
            let waiting = Self::delta(&self.buffer, id);
            let value = base
                .checked_add(Self::delta(&self.batch, id))
                .and_then(|sum| sum.checked_add(waiting));
            words.push(
                match value.map(|value| (value, change.apply(value, waiting, bounds))) {
                    None => "BADSTATE".into(),
                    Some((value, None)) => format!("RANGE:{value}"),
                    Some((_, Some((after, pending)))) => {
                        self.buffer.insert(id, pending);
                        counted += 1;
                        after.to_string()
                    }
                },
            );
        }
        let before = self.number("hits").unwrap_or(0);
        if counted > 0 {
            self.set([("hits", (before + counted).to_string())]);
            if before == 0 {
                self.set([("first_at", now.to_string())]);
                self.meta.entry("incarnation").or_insert_with(|| NEW.into());
            }
        }
        words
    }

    /// Stores the ticket, or extends the life of the stored one.
    fn miss(&mut self, now: u64, id: &'static str, ticket: &str) -> String {
        self.bases
            .insert(id, (now + TICKET_MS, Base::Ticket(ticket.into())));
        format!("MISS:{ticket}")
    }

    fn seed(
        &mut self,
        now: u64,
        retain_ms: u64,
        id: &'static str,
        ticket: &str,
        row: i64,
    ) -> &'static str {
        match self.bases.get(id) {
            Some((_, Base::Row(_))) => "HELD",
            Some((_, Base::Ticket(stored))) if stored == ticket => {
                self.bases.insert(id, (now + retain_ms, Base::Row(row)));
                "SEEDED"
            }
            _ => "MISS",
        }
    }

    fn get(&mut self, now: u64, id: &'static str, ticket: &str) -> Value {
        match self.bases.get(id) {
            Some((_, Base::Ticket(ticket))) => text(format!("MISS:{ticket}")),
            None if ticket.is_empty() => text("MISS:"),
            None => text(self.miss(now, id, ticket)),
            Some((_, Base::Row(base))) => {
                let parts = [
                    *base,
                    Self::delta(&self.batch, id),
                    Self::delta(&self.buffer, id),
                ];
                let size: u128 = parts
                    .iter()
                    .map(|part| u128::from(part.unsigned_abs()))
                    .sum();
                let [base, batch, buffer] = parts;
                if size < 1 << 53 {
                    int(base + batch + buffer)
                } else {
                    text(format!("SUM:{base}:{batch}:{buffer}"))
                }
            }
        }
    }

    /// Cuts a batch with this nonce if there is none.
    fn rotate(&mut self, now: u64, nonce: &str) -> Value {
        let mut status = "HELD";
        if self.batch.is_empty() {
            if self.buffer.is_empty() {
                return reply("EMPTY", []);
            }
            status = "OK";
            let number = |field| self.number(field).unwrap_or(0);
            let (seq, hits, before, first_at) = (
                number("seq") + 1,
                number("hits"),
                number("hits_before"),
                self.number("first_at").unwrap_or(now),
            );
            self.batch = std::mem::take(&mut self.buffer);
            self.set([
                ("seq", seq.to_string()),
                ("nonce", nonce.into()),
                ("rotated_at", now.to_string()),
            ]);
            self.set([
                ("batch_first_at", first_at.to_string()),
                ("batch_hits", hits.to_string()),
            ]);
            self.set([
                ("hits", "0".into()),
                ("hits_before", (before + hits).to_string()),
            ]);
        }
        let age = |field| int(now.saturating_sub(self.number(field).unwrap_or(now)));
        let id = ["incarnation", "seq", "nonce"].map(|field| text(&self.meta[field]));
        reply(
            status,
            id.into_iter().chain([
                int(self.batch.len()),
                age("rotated_at"),
                age("batch_first_at"),
            ]),
        )
    }

    /// Returns the id of the batch.
    fn batch_id(&self, which: Which) -> [String; 3] {
        let field = |name| self.meta.get(name).cloned();
        let [incarnation, nonce] =
            ["incarnation", "nonce"].map(|name| field(name).unwrap_or_else(|| "f".repeat(16)));
        let seq = self.number("seq").unwrap_or(0);
        match which {
            Which::Present => [incarnation, seq.to_string(), nonce],
            Which::Earlier => [incarnation, seq.saturating_sub(1).to_string(), nonce],
            Which::Other => [incarnation, seq.to_string(), "e".repeat(16)],
        }
    }

    fn is_there(&self, which: Which) -> bool {
        matches!(which, Which::Present) && !self.batch.is_empty()
    }

    fn fetch(&mut self, now: u64, which: Which, settle_ms: u64) -> Value {
        let Some(rotated_at) = self.number("rotated_at").filter(|_| self.is_there(which)) else {
            return reply("STALE", []);
        };
        if rotated_at > now {
            self.set([("rotated_at", now.to_string())]);
        }
        match settle_ms.saturating_sub(now.saturating_sub(rotated_at)) {
            0 => reply("OK", [text("0"), pairs(&self.batch), int(self.batch.len())]),
            left => reply("WAIT", [int(left)]),
        }
    }

    fn release(&mut self, which: Which) -> Value {
        if !self.is_there(which) {
            return reply("STALE", []);
        }
        self.batch.clear();
        self.end_batch();
        reply("OK", [])
    }

    fn end_batch(&mut self) {
        self.meta.retain(|field, _| !field.starts_with("batch_"));
    }

    fn saved(
        &mut self,
        now: u64,
        which: Which,
        retain_ms: u64,
        rows: &[(usize, Option<i64>)],
    ) -> Value {
        if !self.is_there(which) {
            return reply("STALE", []);
        }
        for &(id, row) in rows {
            let id = IDS[id];
            if self.batch.remove(id).is_none() {
                continue;
            }
            if row.is_none() && !self.buffer.contains_key(id) {
                self.bases.remove(id);
            } else if let Some((due, Base::Row(base))) = self.bases.get_mut(id) {
                (*due, *base) = (now + retain_ms, row.unwrap_or(0));
            }
        }
        if self.batch.is_empty() {
            self.end_batch();
        }
        reply("OK", [int(self.batch.len())])
    }

    /// Deletes counters and returns the words, in any order if no ids are given.
    fn delete(&mut self, now: u64, ids: &[usize]) -> Vec<&'static str> {
        let due = || {
            self.bases
                .iter()
                .filter(|(_, (due, _))| *due <= now)
                .map(|(&id, _)| id)
                .collect()
        };
        let ids: Vec<_> = if ids.is_empty() {
            due()
        } else {
            ids.iter().map(|&id| IDS[id]).collect()
        };
        let word = |id: &'static str| {
            let kept = [("KEPT:buffer", &self.buffer), ("KEPT:batch", &self.batch)];
            let kept = kept.into_iter().find(|(_, deltas)| deltas.contains_key(id));
            kept.map_or(
                if self.bases.contains_key(id) {
                    "DELETED"
                } else {
                    "GONE"
                },
                |(word, _)| word,
            )
        };
        let words: Vec<_> = ids.iter().map(|&id| word(id)).collect();
        for (id, word) in ids.into_iter().zip(&words) {
            if *word == "DELETED" {
                self.bases.remove(id);
            }
        }
        words
    }

    /// Returns the four keys as they are in Redis.
    fn keys(&self) -> [BTreeMap<String, String>; 4] {
        fn own<V: ToString>(fields: &BTreeMap<&'static str, V>) -> BTreeMap<String, String> {
            fields
                .iter()
                .map(|(field, value)| ((*field).to_owned(), value.to_string()))
                .collect()
        }
        let base = |(due, base): &(u64, Base)| match base {
            Base::Ticket(ticket) => format!("{due:013} ticket {ticket}"),
            Base::Row(row) => format!("{due:013} {row}"),
        };
        let bases = self
            .bases
            .iter()
            .map(|(id, held)| ((*id).to_owned(), base(held)))
            .collect();
        [bases, own(&self.buffer), own(&self.batch), own(&self.meta)]
    }
}

/// Returns the content of a page, in order.
fn pairs(deltas: &Deltas) -> Value {
    Value::Array(
        deltas
            .iter()
            .flat_map(|(id, delta)| [text(id), text(delta)])
            .collect(),
    )
}

fn number() -> impl Strategy<Value = i64> {
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
    let tens = [
        100_000_000_000_000,
        99_999_999_999_999,
        -100_000_000_000_000,
        1_000_000_000,
        999_999_999,
        -1_000_000_000,
    ];
    prop_oneof![8 => -3..=3_i64, 1 => select(ends.to_vec()), 1 => select(tens.to_vec()), 1 => any::<i64>()]
}

fn retain_ms() -> impl Strategy<Value = u64> {
    select(vec![1_u64, 500, 500, 2000])
}

fn incr() -> impl Strategy<Value = Incr> {
    let caller = prop_oneof![1 => Just(None), 6 => (0..CALLERS.len()).prop_map(Some)];
    let epoch =
        prop_oneof![8 => Just(Epoch::Current), 3 => Just(Epoch::Before), 1 => Just(Epoch::Unknown)];
    // the header requires this
    let bound = || number().prop_filter("is a bound", |bound| bound.unsigned_abs() < 1 << 53);
    let bounds = (
        prop::option::weighted(0.3, bound()),
        prop::option::weighted(0.3, bound()),
    );
    let change =
        prop_oneof![4 => number().prop_map(Change::Add), 1 => number().prop_map(Change::Set)];
    let id = prop_oneof![20 => 0..IDS.len(), 1 => IDS.len()..IDS.len() + 2];
    let pairs = prop::collection::vec((id, change), 1..5);
    let groups = (
        subsequence(vec![0, 1], 1..=2),
        prop::collection::vec(pairs, PARTITIONS.len()),
    );
    (caller, numbers(8), epoch, bounds, groups).prop_map(
        |(caller, number, epoch, (low, high), (partitions, pairs))| {
            let groups = partitions
                .into_iter()
                .zip(pairs)
                .map(|(partition, pairs)| Group { partition, pairs })
                .collect();
            Incr {
                caller,
                number,
                epoch,
                low,
                high,
                groups,
            }
        },
    )
}

fn call() -> impl Strategy<Value = Call> {
    let ids = |least| subsequence((0..IDS.len()).collect::<Vec<_>>(), least..=IDS.len());
    let which = || prop_oneof![8 => Just(Which::Present), 1 => Just(Which::Earlier), 1 => Just(Which::Other)];
    let seeds = (
        retain_ms(),
        prop::collection::vec((0..IDS.len(), which(), number()), 1..6),
    );
    let get = (
        select(vec!["", "0", "300", "300"]),
        prop::collection::vec(0..IDS.len(), 1..5),
    );
    let row = prop::option::weighted(0.8, number());
    let saved = (
        which(),
        retain_ms(),
        ids(1),
        prop::collection::vec(row, IDS.len()),
    );
    prop_oneof![
        8 => seeds.prop_map(|(retain_ms, seeds)| Call::Seed { retain_ms, seeds }),
        4 => get.prop_map(|(ticket_ms, ids)| Call::Get { ticket_ms, ids }),
        5 => Just(Call::Rotate),
        2 => (which(), select(vec![0_u64, 100, 400])).prop_map(|(which, settle_ms)| Call::Fetch { which, settle_ms }),
        1 => which().prop_map(|which| Call::Release { which }),
        6 => saved.prop_map(|(which, retain_ms, ids, rows)| {
            Call::Saved { which, retain_ms, rows: ids.into_iter().zip(rows).collect() }
        }),
        3 => ids(1).prop_map(|ids| Call::Delete { ids }),
        3 => Just(Call::Delete { ids: vec![] }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let clock =
        prop_oneof![6 => 0..300_i64, 2 => 300..5000_i64, 1 => -300..0_i64, 1 => -5000..0_i64];
    // mostly the first one, so that later calls meet the results of earlier ones
    let partition = prop_oneof![3 => Just(0), 1 => Just(1_usize)];
    prop_oneof![
        16 => clock.prop_map(Step::Clock),
        3 => Just(Step::Epoch),
        24 => incr().prop_map(Step::Incr),
        56 => (partition, call()).prop_map(|(partition, call)| Step::Of(partition, call)),
        1 => Just(Step::Forget),
    ]
}

/// One sequence: the reference, and the state of the callers.
struct Play {
    scripts: Scripts,
    reference: Reference,
    now: u64,
    /// The clock of the epochs, which is separate so that a new epoch does not age stored data.
    epochs_now: u64,
    /// The number and epoch of each careful caller's calls.
    sent: [Vec<(u64, String)>; CARELESS],
    /// The results of those calls, by caller, number and epoch.
    executed: BTreeMap<(usize, u64, String), Vec<String>>,
    /// The number of the careless caller's last call.
    careless: u64,
    /// The number of calls without a caller.
    unnumbered: u64,
    /// All names that the server created.
    names: Vec<(Name, String)>,
}

impl Model for Play {
    type Step = Step;
    const FAMILY: &'static str = "shop/stock";
    const FENCED: &'static [&'static str] = &["cached_incr"];

    fn steps() -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn new(scripts: Scripts) -> Self {
        let mut play = Play {
            scripts,
            reference: Reference::default(),
            now: START,
            epochs_now: START,
            sent: Default::default(),
            executed: BTreeMap::new(),
            careless: 0,
            unnumbered: 0,
            names: vec![],
        };
        play.begin_epoch().unwrap();
        play
    }

    fn step(&mut self, step: &Step) -> Checked {
        match step {
            Step::Clock(ms) => self.now = self.now.saturating_add_signed(*ms),
            Step::Epoch => self.begin_epoch()?,
            Step::Incr(call) => self.incr(call)?,
            Step::Of(partition, call) => self.call(*partition, call)?,
            Step::Forget => {
                self.scripts.forget();
                self.reference = Reference::default();
            }
        }
        self.check_keys()
    }
}

impl Play {
    fn read_fields(&self, kind: &str) -> BTreeMap<String, String> {
        let [mut fields]: [BTreeMap<String, String>; 1] =
            self.scripts.ask(pipe().hgetall(self.scripts.key(kind)));
        fields.retain(|field, _| field.starts_with('='));
        fields
    }

    fn begin_epoch(&mut self) -> Checked {
        self.epochs_now += EPOCH_MS;
        // no number is reused in a later epoch: tickets derive from it
        self.careless += 10;
        let now_ms = self.epochs_now.to_string();
        if self.reference.fields.is_empty() {
            let args = ["salt", &now_ms, "cached", "1", "1000", "{}"].map(str::to_owned);
            prop_assert_eq!(
                self.scripts
                    .call("family_configure", &["calls", "meta"], &args)?,
                reply("OK", [])
            );
            self.reference.partitions[0]
                .meta
                .entry("incarnation")
                .or_insert_with(|| NEW.into());
        }
        let got = self.scripts.call(
            "family_epoch",
            &FENCE,
            &["cached".into(), "1".into(), now_ms],
        )?;
        if self.reference.fields.contains_key("=now") {
            self.reference.fields_before = self.read_fields("calls_before");
            self.reference.calls_before = std::mem::take(&mut self.reference.calls);
        }
        self.reference.fields = self.read_fields("calls");
        let fields = ["=now", "=before", "=kind", "=partitions", "=settings"];
        prop_assert_eq!(
            got,
            reply(
                "OK",
                fields.map(|field| text(&self.reference.fields[field]))
            )
        );
        Ok(())
    }

    /// Returns number and epoch of a call. A careful caller's numbers grow, and a repeat names its
    /// original epoch.
    fn numbered(&mut self, call: &Incr) -> (u64, String) {
        let epoch = match call.epoch {
            Epoch::Current => self.reference.fields.get("=now").cloned(),
            Epoch::Before => self.reference.fields.get("=before").cloned(),
            Epoch::Unknown => None,
        };
        let epoch = epoch.unwrap_or_else(|| "unknown".into());
        let Some(caller) = call.caller else {
            self.unnumbered += 1;
            return (self.unnumbered, epoch);
        };
        if caller == CARELESS {
            return (call.number.after(&mut self.careless), epoch);
        }
        let sent = &mut self.sent[caller];
        let repeated = match call.number {
            Number::Same => sent.last(),
            Number::Earlier => sent.iter().nth_back(1),
            _ => None,
        };
        repeated.cloned().unwrap_or_else(|| {
            let last = sent.last().map_or(0, |(n, _)| *n);
            sent.push((
                last + if let Number::Skipping = call.number {
                    9
                } else {
                    1
                },
                epoch,
            ));
            sent.last().unwrap().clone()
        })
    }

    /// Notes a name that the server created, which must be new.
    fn note_name(&mut self, kind: Name, name: &str) -> Checked {
        let named = (kind, name.to_owned());
        prop_assert!(
            name.len() == 16 && u64::from_str_radix(name, 16).is_ok(),
            "{:?} is no name",
            named
        );
        prop_assert!(!self.names.contains(&named), "{:?} was given twice", named);
        self.names.push(named);
        Ok(())
    }

    /// Returns the first new ticket of the reply, `""` for none.
    fn new_ticket(&mut self, got: &Value) -> Result<String, TestCaseError> {
        let mut words = got.as_sequence().unwrap().iter().map(word);
        if words.next().is_none_or(|status| status != "OK") {
            return Ok(String::new());
        }
        let mut tickets = words.filter_map(|word| word.strip_prefix("MISS:").map(str::to_owned));
        let is_new = |ticket: &String| {
            !ticket.is_empty() && !self.names.contains(&(Name::Ticket, ticket.clone()))
        };
        let Some(ticket) = tickets.find(is_new) else {
            return Ok(String::new());
        };
        self.note_name(Name::Ticket, &ticket)?;
        Ok(ticket)
    }

    fn incr(&mut self, call: &Incr) -> Checked {
        let (n, epoch) = self.numbered(call);
        let caller = call.caller.map_or("", |caller| CALLERS[caller]);
        let mut keys = FENCE.to_vec();
        let mut args = vec![
            caller.to_owned(),
            n.to_string(),
            epoch.clone(),
            self.now.to_string(),
        ];
        args.push(TICKET_MS.to_string());
        args.extend(
            [call.low, call.high]
                .map(|bound| bound.map_or(String::new(), |bound| bound.to_string())),
        );
        for Group { partition, pairs } in &call.groups {
            keys.extend(PARTITIONS[*partition]);
            args.push(pairs.len().to_string());
            args.extend(
                pairs
                    .iter()
                    .flat_map(|&(id, change)| [pair_id(id), change.argument()]),
            );
        }
        let got = self.scripts.call("cached_incr", &keys, &args)?;
        let ticket = self.new_ticket(&got)?;
        prop_assert_eq!(
            &got,
            &self.reference.incr(self.now, call, n, &epoch, &ticket)
        );

        // the callers' state follows the replies, not the reference
        let mut words: Vec<_> = got.as_sequence().unwrap().iter().map(word).collect();
        let status = words.remove(0);
        let Some(caller) = call.caller.filter(|&caller| caller != CARELESS) else {
            return Ok(());
        };
        let earlier = self.executed.get(&(caller, n, epoch.clone()));
        match &*status {
            "OK" => prop_assert!(
                earlier.is_none(),
                "call {} of {} was executed twice",
                n,
                CALLERS[caller]
            ),
            "DUP" => prop_assert_eq!(earlier.map(|words| words.join(" ")), words.pop()),
            "PASSED" => prop_assert!(self.sent[caller].last().unwrap().0 > n),
            _ => {}
        }
        if status == "OK" {
            self.executed.insert((caller, n, epoch), words);
        }
        Ok(())
    }

    fn call(&mut self, number: usize, call: &Call) -> Checked {
        let (keys, now) = (&PARTITIONS[number], self.now);
        let [base, buffer, batch, meta] = *keys;
        let now_ms = now.to_string();
        let names = |ids: &[usize]| ids.iter().map(|&id| IDS[id].to_owned()).collect::<Vec<_>>();
        match call {
            Call::Seed { retain_ms, seeds } => self.seed(number, *retain_ms, seeds)?,
            Call::Get { ticket_ms, ids } => {
                self.unnumbered += 1;
                let fixed = vec![(*ticket_ms).to_owned(), now_ms, self.unnumbered.to_string()];
                let keys = [base, buffer, batch];
                let got = self
                    .scripts
                    .call("cached_get", &keys, &[fixed, names(ids)].concat())?;
                let makes_tickets = *ticket_ms == TICKET_MS.to_string();
                let ticket = if makes_tickets {
                    self.new_ticket(&got)?
                } else {
                    String::new()
                };
                let partition = &mut self.reference.partitions[number];
                let mut values = ids.iter().map(|&id| partition.get(now, IDS[id], &ticket));
                prop_assert_eq!(got, reply("OK", values.by_ref()));
            }
            Call::Rotate => {
                self.unnumbered += 1;
                let salt = self.unnumbered.to_string();
                let args = [&salt, "", "0", "0", "0", &now_ms].map(str::to_owned);
                let got = self
                    .scripts
                    .call("buffered_rotate", &[buffer, batch, meta], &args)?;
                let words: Vec<_> = got.as_sequence().unwrap().iter().map(word).collect();
                let nonce = words.get(3).cloned().unwrap_or_default();
                if words[0] == "OK" {
                    self.note_name(Name::Nonce, &nonce)?;
                }
                prop_assert_eq!(got, self.reference.partitions[number].rotate(now, &nonce));
            }
            Call::Fetch { which, settle_ms } => {
                let partition = &mut self.reference.partitions[number];
                let fixed = [settle_ms.to_string(), "0".into(), "1000".into(), now_ms];
                let args = [&partition.batch_id(*which)[..], &fixed].concat();
                let mut got = self.scripts.call("buffered_fetch", &[batch, meta], &args)?;
                if let Value::Array(words) = &mut got
                    && let Some(Value::Array(page)) = words.get_mut(2)
                {
                    let mut sorted: Vec<_> = page.chunks(2).map(<[Value]>::to_vec).collect();
                    sorted.sort_by_key(|pair| word(&pair[0]));
                    *page = sorted.concat();
                }
                prop_assert_eq!(got, partition.fetch(now, *which, *settle_ms));
            }
            Call::Release { which } => {
                let partition = &mut self.reference.partitions[number];
                let got = self.scripts.call(
                    "buffered_release",
                    &[batch, meta],
                    &partition.batch_id(*which),
                )?;
                prop_assert_eq!(got, partition.release(*which));
            }
            Call::Saved {
                which,
                retain_ms,
                rows,
            } => {
                let partition = &mut self.reference.partitions[number];
                let row = |row: Option<i64>| row.map_or("-".into(), |row| row.to_string());
                let pairs = rows
                    .iter()
                    .flat_map(|&(id, value)| [IDS[id].to_owned(), row(value)]);
                let args = [
                    &partition.batch_id(*which)[..],
                    &[retain_ms.to_string(), now_ms],
                ]
                .concat();
                let got = self.scripts.call(
                    "cached_saved",
                    keys,
                    &args.into_iter().chain(pairs).collect::<Vec<_>>(),
                )?;
                prop_assert_eq!(got, partition.saved(now, *which, *retain_ms, rows));
            }
            Call::Delete { ids } => {
                let args = [vec!["0".into(), "1".into(), now_ms], names(ids)].concat();
                let got = self
                    .scripts
                    .call("cached_delete", &[base, buffer, batch], &args)?;
                let mut got: Vec<_> = got.as_sequence().unwrap().iter().map(word).collect();
                let mut expected = self.reference.partitions[number].delete(now, ids);
                if ids.is_empty() {
                    got[2..].sort_unstable();
                    expected.sort_unstable();
                }
                // Redis scans a small hash as a whole
                prop_assert_eq!(got, [&["OK", "0"], &expected[..]].concat());
            }
        }
        Ok(())
    }

    fn seed(&mut self, number: usize, retain_ms: u64, seeds: &[(usize, Which, i64)]) -> Checked {
        let partition = &mut self.reference.partitions[number];
        let (mut tickets, mut args) = (vec![], vec![retain_ms.to_string(), self.now.to_string()]);
        for &(id, which, row) in seeds {
            let stored = match partition.bases.get(IDS[id]) {
                Some((_, Base::Ticket(ticket))) => Some(ticket),
                _ => None,
            };
            let ticket = match which {
                Which::Present => stored,
                Which::Earlier => {
                    let mut names = self
                        .names
                        .iter()
                        .filter(|(kind, _)| *kind == Name::Ticket)
                        .map(|(_, name)| name);
                    names.rfind(|&ticket| Some(ticket) != stored)
                }
                Which::Other => None,
            };
            let ticket = ticket.cloned().unwrap_or_else(|| "f".repeat(16));
            args.extend([IDS[id].into(), ticket.clone(), row.to_string()]);
            tickets.push(ticket);
        }
        let got = self
            .scripts
            .call("cached_seed", &PARTITIONS[number][..1], &args)?;
        let seeds = seeds.iter().zip(&tickets);
        let seeded = seeds.map(|(&(id, _, row), ticket)| {
            partition.seed(self.now, retain_ms, IDS[id], ticket, row)
        });
        prop_assert_eq!(got, reply("OK", seeded.map(text)));
        Ok(())
    }

    fn check_keys(&mut self) -> Checked {
        let mut read = pipe();
        let kinds: Vec<_> = self.reference.keys().into_keys().collect();
        for kind in &kinds {
            read.hgetall(self.scripts.key(kind));
        }
        let keys: Vec<BTreeMap<String, String>> = self.scripts.ask(&read);
        for (number, [.., meta]) in PARTITIONS.iter().enumerate() {
            let got = kinds
                .iter()
                .position(|kind| kind == meta)
                .and_then(|at| keys[at].get("incarnation"));
            if self.reference.partitions[number]
                .meta
                .get("incarnation")
                .is_some_and(|name| name == NEW)
            {
                let name = got.cloned().unwrap_or_default();
                self.note_name(Name::Incarnation(number), &name)?;
                self.reference.partitions[number].set([("incarnation", name)]);
            }
        }
        for ((kind, expected), got) in self.reference.keys().iter().zip(&keys) {
            prop_assert_eq!(got, expected, "{}", kind);
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
        ("cached_incr", " + delta * delta", ""),
        ("cached_incr", "saved * saved + ", ""),
        ("cached_incr", " and pending * pending < 1e26", ""),
        ("cached_incr", "latest[id] or waits[i]", "waits[i]"),
        ("cached_incr", "cut = batch_hits and", "cut = false and"),
        ("cached_incr", "is_lowered and after < low", "after < low"),
        ("cached_incr", "is_raised and after > high", "false"),
        (
            "cached_incr",
            "{ KEYS[3], caller, n, time[1], time[2] }",
            "{ KEYS[3], caller, time[1], time[2] }",
        ),
        (
            "cached_incr",
            "row or 'ticket ' .. name",
            "'ticket ' .. name",
        ),
        ("cached_incr", "last = last or redis", "last = redis"),
        ("cached_incr", "value and math.abs(value) < 2^53", "value"),
        ("cached_incr", "id ~= '' and #id < 256", "#id < 256"),
        ("cached_incr", "id ~= '' and #id < 256", "id ~= ''"),
        ("cached_incr", "'hits', total", "'hits', before + 1"),
        (
            "cached_incr",
            "write.changes > 0 and before == 0",
            "write.changes > 0",
        ),
        (
            "cached_incr",
            "call('HSETNX', meta, 'incarnation', name)",
            "",
        ),
        (
            "cached_seed",
            "if row ~= 'ticket ' .. ticket then may_seed = false end",
            "may_seed = true",
        ),
        ("cached_seed", "seeded[id] or bases[i] and", "bases[i] and"),
        ("cached_seed", "now_ms + ARGV[1]", "now_ms"),
        ("cached_get", "size < 2^53 and", "true and"),
        ("cached_get", "row + in_flight + waiting", "row + waiting"),
        ("cached_get", "and ticket_ms > 0 then", "then"),
        (
            "cached_get",
            "{ base_key, ARGV[3], time[1]",
            "{ base_key, time[1]",
        ),
        ("cached_saved", "if not is_current then", "if false then"),
        ("cached_saved", "and state[3] == ARGV[3]", ""),
        ("cached_saved", "unsaved[i] and row", "row"),
        ("cached_saved", "unsaved[i] and bases[i]", "bases[i]"),
        (
            "cached_saved",
            "row == '-' and not is_waiting",
            "row == '-'",
        ),
        ("cached_saved", "row == '-' and '0' or row", "row"),
        (
            "cached_saved",
            "redis.call('HDEL', batch, unpack(ids))",
            "redis.call('UNLINK', batch)",
        ),
        ("cached_saved", "if left == 0 then", "if true then"),
        ("cached_delete", "if waits[i + 1] then", "if false then"),
        ("cached_delete", "if cut[i + 1] then", "if false then"),
        ("cached_delete", "<= now_ms then", "< now_ms then"),
        ("cached_saved", "now_ms + ARGV[4]", "now_ms"),
    ])
    .await;
}

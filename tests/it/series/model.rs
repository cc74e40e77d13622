//! The model of series: random sequences of script calls, on a real Redis and on a plain reference
//! written from the scripts' headers. Replies, keys and their times to live must be equal after
//! every call.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 100 by default.

use std::collections::BTreeMap;

use crate::support::model::{Checked, Model, Number, Scripts, agrees, notices, numbers};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use redis::{Value, pipe};

const FENCE: [&str; 2] = ["calls", "calls_before"];
const NAMES: [&str; 5] = ["a", "a b", "b/1", "é", LONG];
/// The names of pairs: `NAMES`, and two that are refused.
const PAIR_NAMES: [&str; 7] = [
    NAMES[0], NAMES[1], NAMES[2], NAMES[3], NAMES[4], "", TOO_LONG,
];
/// A name of the maximum length, which is too long for the longest kept ids.
const LONG: &str = text_of(&[b'x'; 200]);
const TOO_LONG: &str = text_of(&[b'x'; 201]);
const CALLERS: [&str; 2] = ["w1", "w2"];
const FIXED_KEYS: [&str; 6] = [FENCE[0], FENCE[1], "open", "schedule", "names", "idle"];
const CLOSED_KEYS: [&str; 4] = ["open", "schedule", "buffer", "meta"];
/// The first time in ms. All times here are in ms, except the starts of slices.
const START: u64 = 1_410_134_400_000;
const EPOCH_MS: u64 = 60_000;
/// The fields that an application has configured.
const CONFIGURED: [(&str, &str); 4] = [
    ("=kind", "series"),
    ("=partitions", "1"),
    ("=max_pending", "1000000"),
    ("=settings", "{}"),
];
const INCARNATION: &str = "0123456789abcdef";
/// The longest duration of a sequence.
const TAKES_MS: i64 = 30_000;

/// The starts, in seconds, of a calendar's slices. It repeats every half hour, with slices of three
/// lengths.
const CALENDAR: [u64; 4] = [0, 500, 1200, 1800];

const fn text_of(bytes: &'static [u8]) -> &'static str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("no text"),
    }
}

struct Precision {
    label: &'static str,
    /// The length in seconds; `None` for slices of the calendar.
    length: Option<u64>,
    slices: u64,
    keep: &'static str,
}

/// The precisions. The first two cover equal times.
const PRECISIONS: [Precision; 5] = [
    Precision {
        label: "60s",
        length: Some(60),
        slices: 10,
        keep: "60s/*/",
    },
    Precision {
        label: "5m",
        length: Some(300),
        slices: 2,
        keep: "-",
    },
    Precision {
        label: "day",
        length: None,
        slices: 1,
        keep: "day/*/",
    },
    Precision {
        label: "all",
        length: Some(7),
        slices: 40,
        keep: "everything-counted-in-slices-of-seven-seconds-for-this-name/",
    },
    Precision {
        label: "1",
        length: Some(120),
        slices: 1,
        keep: "-",
    },
];

/// A slice of a precision, in seconds.
#[derive(Clone, Copy, Debug)]
struct Slice {
    start: u64,
    end: u64,
    /// An upper limit for the length of the precision's slices.
    longest: u64,
}

impl Precision {
    fn slice(&self, at: u64) -> Slice {
        let at = at / 1000;
        if let Some(length) = self.length {
            let start = at / length * length;
            return Slice {
                start,
                end: start + length,
                longest: length,
            };
        }
        let anew = at - at % 1800;
        let next = CALENDAR
            .iter()
            .position(|&start| start > at % 1800)
            .unwrap();
        let (start, end) = (anew + CALENDAR[next - 1], anew + CALENDAR[next]);
        // a fifth more than the current slice, as in the script
        Slice {
            start,
            end,
            longest: ((end - start) * 6).div_ceil(5),
        }
    }

    fn words(&self, slice: Slice) -> String {
        let length = self
            .length
            .map_or(format!("{}-{}", slice.start, slice.end), |length| {
                length.to_string()
            });
        format!("{} {length} {} {}", self.label, self.slices, self.keep)
    }

    fn window(&self, name: &str) -> String {
        format!("series:{}:{name}", self.label)
    }

    fn kept(&self, slice: Slice, name: &str) -> Option<String> {
        (self.keep != "-").then(|| self.keep.replace('*', &slice.start.to_string()) + name)
    }
}

/// A partition's content and behaviour, as the headers describe them.
#[derive(Clone, Debug, Default)]
struct Reference {
    family: Family,
    open: BTreeMap<String, i64>,
    schedule: BTreeMap<String, u64>,
    idle: BTreeMap<String, u64>,
    /// The time to live of the names and of their idle times.
    names_live: Option<u64>,
    windows: BTreeMap<String, Window>,
    buffer: BTreeMap<String, i64>,
    meta: BTreeMap<String, String>,
}

/// The epochs and callers that a home partition knows.
#[derive(Clone, Debug, Default)]
struct Family {
    epoch: Option<String>,
    before: Option<String>,
    began_at: Option<u64>,
    calls: BTreeMap<String, LastCall>,
    calls_before: BTreeMap<String, LastCall>,
    /// The fields in the key of the previous epoch, besides its callers.
    left: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct LastCall {
    n: u64,
    /// The refused pairs, as "INDEX:WORD ...".
    refused: String,
}

#[derive(Clone, Debug, Default)]
struct Window {
    slices: BTreeMap<u64, i64>,
    lives: Option<u64>,
}

impl Window {
    /// Removes the slice that has just left the window. Removes earlier ones if there are too many
    /// slices.
    fn trim(&mut self, precision: &Precision, present: Slice) {
        let oldest = present.start - precision.slices * present.longest;
        self.slices.remove(&oldest);
        if self.slices.len() as u64 > precision.slices {
            self.slices.retain(|&start, _| start > oldest);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock moves forward or back.
    Clock(i64),
    /// The clock moves to the end of the next slice or the next idle time, or to just before it.
    Edge {
        early: u64,
    },
    /// A new epoch begins if one is due.
    Epoch,
    Add(Add),
    Get(Vec<(usize, usize)>),
    Names {
        prefix: &'static str,
        after: Option<usize>,
        limit: usize,
    },
    Close {
        limit: usize,
        full: bool,
    },
    Read(Vec<(usize, usize)>),
    /// A window's current slice, or its kept count, has room for only `room` more.
    Fill {
        precision: usize,
        name: usize,
        room: i64,
        kept: bool,
    },
    /// The pending count of a kept slice has room for only `room` more.
    FillBuffer {
        room: i64,
        nth: usize,
    },
    /// The buffer is cut.
    Cut,
    /// Redis loses its memory.
    Forget,
}

#[derive(Clone, Debug)]
struct Add {
    caller: Option<usize>,
    number: Number,
    epoch: Epoch,
    precisions: Vec<usize>,
    /// The error of the caller's clock in ms.
    wrong_by: i64,
    pairs: Vec<(usize, i64)>,
    /// The index of a key that has another type during the call.
    spoilt: Option<usize>,
    /// True if Redis has no memory left for the call.
    full: bool,
}

/// The epoch that a call names.
#[derive(Clone, Copy, Debug)]
enum Epoch {
    Current,
    Before,
    Unknown,
}

fn text(text: impl ToString) -> Value {
    Value::BulkString(text.to_string().into())
}

fn int(number: impl TryInto<i64, Error: std::fmt::Debug>) -> Value {
    Value::Int(number.try_into().unwrap())
}

fn reply(status: &str, words: impl IntoIterator<Item = Value>) -> Value {
    Value::Array([text(status)].into_iter().chain(words).collect())
}

/// Fails if the key has another type.
fn look_at(key: &str, spoilt: Option<&str>) -> Result<(), &'static str> {
    if spoilt == Some(key) {
        Err("WRONGTYPE")
    } else {
        Ok(())
    }
}

/// Increases the count, and returns whether it was 0 before.
fn increase(count: &mut i64, amount: i64) -> Result<bool, &'static str> {
    let was_nothing = *count == 0;
    *count = count.checked_add(amount).ok_or("RANGE")?;
    Ok(was_nothing)
}

impl Add {
    /// Returns the slices of the call: those of a fixed length by the server's clock, the others by
    /// the caller's.
    fn slices(&self, now: u64) -> Vec<(&'static Precision, Slice)> {
        let believed = now.saturating_add_signed(self.wrong_by);
        let slice = |precision: &'static Precision| match precision.length {
            Some(_) => precision.slice(now),
            None => precision.slice(believed),
        };
        self.precisions
            .iter()
            .map(|&i| (&PRECISIONS[i], slice(&PRECISIONS[i])))
            .collect()
    }

    fn keys(&self) -> Vec<String> {
        let windows = self
            .pairs
            .iter()
            .flat_map(|&(name, _)| self.precisions.iter().map(move |&i| (i, name)));
        let windows = windows.map(|(i, name)| PRECISIONS[i].window(PAIR_NAMES[name]));
        FIXED_KEYS
            .map(str::to_owned)
            .into_iter()
            .chain(windows)
            .collect()
    }
}

impl Family {
    /// Returns the reply to a call that is not executed.
    fn refusal(
        &self,
        caller: &str,
        n: u64,
        epoch: &str,
        spoilt: Option<&str>,
    ) -> Result<Option<Value>, &'static str> {
        look_at("calls", spoilt)?;
        let is_current = self.epoch.as_deref() == Some(epoch);
        if !caller.is_empty() && !is_current && self.before.as_deref() != Some(epoch) {
            return Ok(Some(reply("EXPIRED", [])));
        }
        let mut last = self.calls.get(caller);
        if last.is_none() && !is_current {
            look_at("calls_before", spoilt)?;
            last = self.calls_before.get(caller);
        }
        Ok(last.filter(|last| n <= last.n).map(|last| {
            if n == last.n {
                reply("DUP", [text(&last.refused)])
            } else {
                reply("PASSED", [])
            }
        }))
    }

    /// Returns whether a new epoch is due.
    fn is_over(&self, now: u64) -> bool {
        self.began_at
            .is_none_or(|at| at > now || now - at >= EPOCH_MS)
    }

    fn begin(&mut self, now: u64, name: String) {
        if self.epoch.is_some() {
            self.before.clone_from(&self.epoch);
            (self.left, self.calls_before) = (self.fields(), std::mem::take(&mut self.calls));
        }
        self.before = self.epoch.replace(name.clone()).or(Some(name));
        self.began_at = Some(now);
    }

    /// Returns the key's fields, besides its callers.
    fn fields(&self) -> BTreeMap<String, String> {
        let began_at = self.began_at.map(|at| at.to_string());
        let fields = [
            ("=now", self.epoch.clone()),
            ("=before", self.before.clone()),
            ("=began_at", began_at),
        ];
        let configured = CONFIGURED.map(|(field, value)| (field, Some(value.to_owned())));
        let fields = fields.into_iter().chain(configured);
        fields
            .filter_map(|(field, value)| Some((field.to_owned(), value?)))
            .collect()
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

impl Reference {
    /// Returns the reply, or the error of a call that changes nothing.
    fn add(
        &mut self,
        now: u64,
        call: &Add,
        n: u64,
        epoch: &str,
        spoilt: Option<&str>,
    ) -> Result<Value, &'static str> {
        let caller = call.caller.map_or("", |caller| CALLERS[caller]);
        if let Some(refusal) = self.family.refusal(caller, n, epoch, spoilt)? {
            return Ok(refusal);
        }
        let slices = call.slices(now);
        if slices
            .iter()
            .any(|(_, slice)| now < slice.start * 1000 || now >= slice.end * 1000)
        {
            return Ok(reply("OUTSIDE", [text(now)]));
        }
        for key in ["schedule", "names", "idle"] {
            look_at(key, spoilt)?;
        }
        let (mut words, mut refused) = (vec![], vec![]);
        for (i, &(name, amount)) in call.pairs.iter().enumerate() {
            let mut after = self.clone();
            match after.count(now, &slices, PAIR_NAMES[name], amount, spoilt) {
                Ok(()) => {
                    *self = after;
                    words.push(int(1));
                }
                Err(word) => {
                    words.push(text(word));
                    refused.push(format!("{}:{word}", i + 1));
                }
            }
        }
        if !caller.is_empty() {
            self.family.calls.insert(
                caller.into(),
                LastCall {
                    n,
                    refused: refused.join(" "),
                },
            );
        }
        Ok(reply("OK", words))
    }

    /// Counts a pair, or returns the reason of a refusal, after which the caller discards all
    /// changes.
    fn count(
        &mut self,
        now: u64,
        slices: &[(&Precision, Slice)],
        name: &str,
        amount: i64,
        spoilt: Option<&str>,
    ) -> Result<(), &'static str> {
        let is_kept_too_long = slices.iter().any(|(precision, slice)| {
            let kept = precision.kept(*slice, name);
            kept.is_some_and(|id| id.len() > 255)
        });
        if name.is_empty() || name.len() > 200 || is_kept_too_long {
            return Err("BADID");
        }
        if amount < 1 {
            return Err("RANGE");
        }
        // the first of the precisions with the longest window
        let longest = slices
            .iter()
            .rev()
            .max_by_key(|(precision, slice)| precision.slices * slice.longest)
            .unwrap();
        for &(precision, slice) in slices {
            let key = precision.window(name);
            look_at(&key, spoilt)?;
            let window = self.windows.entry(key).or_default();
            if increase(window.slices.entry(slice.start).or_default(), amount)? {
                window.trim(precision, slice);
                let gone = (slice.start + (precision.slices + 1) * slice.longest) * 1000;
                window.lives = window.lives.max(Some(gone - now));
                if precision.label == longest.0.label {
                    let idle = self.idle.entry(name.into()).or_default();
                    *idle = gone.max(*idle);
                    self.idle.retain(|_, idle| *idle > now);
                    self.names_live = self.names_live.max(Some(gone - now));
                }
            }
            if let Some(id) = precision.kept(slice, name) {
                look_at("open", spoilt)?;
                if increase(self.open.entry(id.clone()).or_default(), amount)? {
                    self.schedule.insert(id, slice.end * 1000);
                }
            }
        }
        Ok(())
    }

    fn names(&self, now: u64, prefix: &str, after: &str, limit: usize) -> Value {
        let names = self
            .idle
            .iter()
            .filter(|(name, _)| name.starts_with(prefix) && name.as_str() > after);
        let page: Vec<_> = names.take(limit).collect();
        let last = page.get(limit - 1).map_or("", |(name, _)| name);
        let names = page
            .iter()
            .filter(|(_, idle)| **idle > now)
            .map(|(name, _)| text(name));
        reply("OK", [text(last)].into_iter().chain(names))
    }

    fn next(&self) -> Option<(u64, String)> {
        self.schedule.iter().map(|(id, at)| (*at, id.clone())).min()
    }

    fn close(&mut self, now: u64, limit: usize) -> Value {
        let mut moved = 0;
        let mut due: Vec<_> = self
            .schedule
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(id, at)| (*at, id.clone()))
            .collect();
        due.sort();
        for (_, id) in due.into_iter().take(limit) {
            let pending = self.buffer.get(&id).copied().unwrap_or_default();
            match pending.checked_add(self.open[&id]) {
                None => drop(self.schedule.insert(id, now + 60_000)),
                Some(sum) => {
                    self.schedule.remove(&id);
                    self.open.remove(&id);
                    self.buffer.insert(id, sum);
                    moved += 1;
                }
            }
        }
        let hits = self
            .meta
            .get("hits")
            .map_or(0, |hits| hits.parse().unwrap());
        if moved > 0 {
            if hits == 0 {
                self.meta.insert("first_at".into(), now.to_string());
            }
            self.meta.insert("hits".into(), (hits + moved).to_string());
        }
        let next = self
            .next()
            .map_or(text(""), |(at, _)| int(at.saturating_sub(now)));
        reply("OK", [int(moved), next])
    }

    /// Returns both deltas of each id, `None` if they cannot be added exactly.
    fn read(&self, ids: &[String]) -> Option<Value> {
        let is_exact = |number: i64| number.unsigned_abs() < 1 << 53;
        let sum = |id: &String| match (self.buffer.get(id), self.open.get(id)) {
            (Some(&a), Some(&b)) => a
                .checked_add(b)
                .filter(|&sum| is_exact(a) && is_exact(b) && is_exact(sum)),
            (a, b) => Some(a.or(b).copied().unwrap_or_default()),
        };
        let deltas = ids
            .iter()
            .map(|id| sum(id).map(|sum| [text(0), text(sum)]))
            .collect::<Option<Vec<_>>>()?;
        Some(reply(
            "OK",
            [text(INCARNATION), text(0), text(""), int(0)]
                .into_iter()
                .chain(deltas.into_iter().flatten()),
        ))
    }

    /// Returns the keys as they are in Redis, except the windows.
    fn keys(&self) -> BTreeMap<&'static str, BTreeMap<String, String>> {
        let numbers = |counts: &BTreeMap<String, i64>| {
            counts
                .iter()
                .map(|(id, n)| (id.clone(), n.to_string()))
                .collect()
        };
        let times = |times: &BTreeMap<String, u64>| {
            times
                .iter()
                .map(|(id, at)| (id.clone(), at.to_string()))
                .collect()
        };
        let fence = FENCE.into_iter().zip(self.family.keys());
        let others = [
            ("open", numbers(&self.open)),
            ("schedule", times(&self.schedule)),
            (
                "names",
                self.idle
                    .keys()
                    .map(|name| (name.clone(), "0".into()))
                    .collect(),
            ),
            ("idle", times(&self.idle)),
            ("buffer", numbers(&self.buffer)),
            ("meta", self.meta.clone()),
        ];
        fence.chain(others).collect()
    }
}

fn add() -> impl Strategy<Value = Add> {
    let caller = prop_oneof![1 => Just(None), 3 => (0..CALLERS.len()).prop_map(Some)];
    let epoch =
        prop_oneof![8 => Just(Epoch::Current), 3 => Just(Epoch::Before), 1 => Just(Epoch::Unknown)];
    let precisions = subsequence(
        (0..PRECISIONS.len()).collect::<Vec<_>>(),
        1..=PRECISIONS.len(),
    )
    .prop_shuffle();
    let wrong_by = prop_oneof![8 => Just(0), 1 => -600_000..600_000_i64];
    let name = prop_oneof![15 => 0..NAMES.len(), 1 => NAMES.len()..PAIR_NAMES.len()];
    let amount = prop_oneof![20 => 1..5_i64, 2 => Just(999_999_999_999_999), 1 => Just(i64::MAX), 1 => -1..=0_i64];
    let pairs = prop::collection::vec((name, amount), 1..5);
    let trouble = (prop::option::weighted(0.15, 0..20_usize), full());
    (
        caller,
        numbers(8),
        epoch,
        precisions,
        wrong_by,
        pairs,
        trouble,
    )
        .prop_map(
            |(caller, number, epoch, precisions, wrong_by, pairs, (spoilt, full))| Add {
                caller,
                number,
                epoch,
                precisions,
                wrong_by,
                pairs,
                spoilt,
                full: full && spoilt.is_none(),
            },
        )
}

fn full() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.1)
}

fn step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![
        4 => 0..20_000_i64,
        4 => 0..400_000_i64,
        1 => 0..4_000_000_i64,
        1 => -100_000..0_i64,
        1 => -4_000_000..0_i64,
    ];
    let places = || prop::collection::vec((0..PRECISIONS.len(), 0..NAMES.len()), 1..5);
    let names = (
        select(vec!["", "", "a", "a ", "b", "x", "é"]),
        prop::option::of(0..NAMES.len()),
        1..5_usize,
    );
    let fill = (0..PRECISIONS.len(), 0..NAMES.len(), 0..6_i64, any::<bool>());
    prop_oneof![
        8 => clock.prop_map(Step::Clock),
        2 => (0..2_u64).prop_map(|early| Step::Edge { early }),
        3 => Just(Step::Epoch),
        14 => add().prop_map(Step::Add),
        2 => places().prop_map(Step::Get),
        2 => names.prop_map(|(prefix, after, limit)| Step::Names { prefix, after, limit }),
        4 => (1..6_usize, full()).prop_map(|(limit, full)| Step::Close { limit, full }),
        2 => places().prop_map(Step::Read),
        2 => fill.prop_map(|(precision, name, room, kept)| Step::Fill { precision, name, room, kept }),
        1 => (0..6_i64, 0..9_usize).prop_map(|(room, nth)| Step::FillBuffer { room, nth }),
        1 => Just(Step::Cut),
        1 => prop::bool::weighted(0.2).prop_map(|forget| if forget { Step::Forget } else { Step::Clock(1) }),
    ]
}

/// One sequence: the reference, and the state of the callers.
struct Play {
    scripts: Scripts,
    reference: Reference,
    now: u64,
    /// The number of each caller's last call.
    last_n: [u64; CALLERS.len()],
}

impl Model for Play {
    type Step = Step;
    const FAMILY: &'static str = "shop/pulse";
    const FENCED: &'static [&'static str] = &["series_add"];

    fn steps() -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn new(scripts: Scripts) -> Self {
        let (reference, last_n) = Default::default();
        let mut play = Play {
            scripts,
            reference,
            now: START,
            last_n,
        };
        let [calls, meta] = ["calls", "meta"].map(|kind| play.scripts.key(kind));
        play.scripts.ask::<()>(
            pipe()
                .hset_multiple(calls, &CONFIGURED)
                .hset(meta, "incarnation", INCARNATION)
                .ignore(),
        );
        play.reference
            .meta
            .insert("incarnation".into(), INCARNATION.into());
        // without this, most calls would name no epoch
        play.epoch().unwrap();
        play
    }

    fn step(&mut self, step: &Step) -> Checked {
        let now = self.now;
        match step {
            Step::Clock(ms) => self.now = now.saturating_add_signed(*ms),
            Step::Edge { early } => {
                let edges = self
                    .reference
                    .schedule
                    .values()
                    .chain(self.reference.idle.values());
                self.now = edges
                    .filter(|at| **at > now)
                    .min()
                    .map_or(now, |at| at - early);
            }
            Step::Epoch => self.epoch()?,
            Step::Add(call) => self.add(call)?,
            Step::Get(places) => self.get(places)?,
            Step::Names {
                prefix,
                after,
                limit,
            } => {
                let after = after.map_or("", |name| NAMES[name]);
                let after = if after.starts_with(prefix) { after } else { "" };
                let args = [
                    prefix.to_string(),
                    after.into(),
                    limit.to_string(),
                    now.to_string(),
                ];
                let got = self
                    .scripts
                    .call("series_names", &["names", "idle"], &args)?;
                prop_assert_eq!(got, self.reference.names(now, prefix, after, *limit));
            }
            Step::Close { limit, full } => {
                self.fill_up(*full);
                let got = self.scripts.call(
                    "series_close",
                    &CLOSED_KEYS,
                    &[limit.to_string(), "0".to_owned(), now.to_string()],
                );
                self.fill_up(false);
                prop_assert_eq!(got?, self.reference.close(now, *limit));
            }
            Step::Read(places) => {
                let id = |&(precision, name): &(usize, usize)| {
                    let precision: &Precision = &PRECISIONS[precision];
                    let kept = precision.kept(precision.slice(now), NAMES[name]);
                    kept.filter(|id| id.len() <= 255).unwrap_or("other".into())
                };
                let ids: Vec<_> = places
                    .iter()
                    .map(id)
                    .chain(self.reference.next().map(|(_, id)| id))
                    .collect();
                let got =
                    self.scripts
                        .call("buffered_read", &["buffer", "batch", "meta", "open"], &ids);
                match self.reference.read(&ids) {
                    Some(expected) => prop_assert_eq!(got?, expected),
                    None => {
                        let got = got.map_err(|error| format!("{error:#}"));
                        prop_assert!(got.is_err_and(|error| error.contains("BADSTATE")))
                    }
                }
            }
            Step::Fill {
                precision,
                name,
                room,
                kept,
            } => self.fill(*precision, NAMES[*name], i64::MAX - room, *kept),
            Step::FillBuffer { room, nth } => {
                if let Some(id) = self.reference.open.keys().nth(*nth).cloned() {
                    self.write("HSET", "buffer", &id, i64::MAX - room);
                    self.reference.buffer.insert(id, i64::MAX - room);
                }
            }
            Step::Cut => {
                self.scripts
                    .ask::<()>(pipe().del(self.scripts.key("buffer")).ignore());
                self.write("HSET", "meta", "hits", 0);
                self.reference.buffer.clear();
                self.reference.meta.insert("hits".into(), "0".into());
            }
            Step::Forget => {
                self.scripts.forget();
                *self = Play {
                    now,
                    last_n: self.last_n,
                    ..Play::new(self.scripts.clone())
                };
            }
        }
        self.check_keys()
    }
}

impl Play {
    fn epoch(&mut self) -> Checked {
        let got = self.scripts.call(
            "family_epoch",
            &FENCE,
            &["series".into(), "1".into(), self.now.to_string()],
        )?;
        let words: Vec<String> = redis::from_redis_value(got)
            .map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
        let [status, name, ..] = &words[..] else {
            return Err(TestCaseError::fail(words.join(" ")));
        };
        prop_assert_eq!(status, "OK");
        let family = &mut self.reference.family;
        prop_assert_eq!(
            family.is_over(self.now),
            family.epoch.as_ref() != Some(name)
        );
        if family.is_over(self.now) {
            family.begin(self.now, name.clone());
        }
        Ok(())
    }

    fn add(&mut self, call: &Add) -> Checked {
        let n = call
            .caller
            .map_or(0, |caller| call.number.after(&mut self.last_n[caller]));
        let caller = call.caller.map_or("", |caller| CALLERS[caller]);
        let epoch = match call.epoch {
            Epoch::Current => self.reference.family.epoch.clone(),
            Epoch::Before => self.reference.family.before.clone(),
            Epoch::Unknown => None,
        };
        let epoch = epoch.unwrap_or_else(|| "unknown".into());
        let precisions = call
            .slices(self.now)
            .into_iter()
            .map(|(precision, slice)| precision.words(slice));
        let fixed = [
            caller,
            &n.to_string(),
            &epoch,
            &self.now.to_string(),
            &call.precisions.len().to_string(),
        ];
        let pairs = call
            .pairs
            .iter()
            .flat_map(|&(name, amount)| [PAIR_NAMES[name].to_owned(), amount.to_string()]);
        let args: Vec<_> = fixed
            .map(str::to_owned)
            .into_iter()
            .chain(precisions)
            .chain(pairs)
            .collect();
        let keys = call.keys();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let spoilt = call.spoilt.and_then(|nth| keys.get(nth).copied());

        let before = self.reference.clone();
        let expected = self.reference.add(self.now, call, n, &epoch, spoilt);
        self.spoil(spoilt);
        self.fill_up(call.full);
        let got = self.scripts.call("series_add", &keys, &args);
        self.fill_up(false);
        self.restore(spoilt);
        let fails_with = |got: Result<Value, TestCaseError>, text| {
            got.is_err_and(|e| e.to_string().contains(text))
        };
        match expected {
            Ok(Value::Array(words)) if call.full && words[0] == text("OK") => {
                self.reference = before;
                prop_assert!(fails_with(got, "maxmemory"));
            }
            Ok(expected) => prop_assert_eq!(got?, expected),
            Err(word) => prop_assert!(fails_with(got, word)),
        }
        Ok(())
    }

    fn fill_up(&self, full: bool) {
        self.scripts.ask::<()>(
            pipe()
                .cmd("CONFIG")
                .arg("SET")
                .arg("maxmemory")
                .arg(u8::from(full))
                .ignore(),
        );
    }

    /// Renames the key, and puts a string in its place.
    fn spoil(&self, key: Option<&str>) {
        let Some(key) = key.map(|key| self.scripts.key(key)) else {
            return;
        };
        if self.scripts.ask::<(bool,)>(pipe().exists(&key)).0 {
            self.scripts
                .ask::<()>(pipe().rename(&key, "spare").ignore());
        }
        self.scripts.ask::<()>(pipe().set(&key, "1").ignore());
    }

    fn restore(&self, key: Option<&str>) {
        let Some(key) = key.map(|key| self.scripts.key(key)) else {
            return;
        };
        self.scripts.ask::<()>(pipe().del(&key).ignore());
        if self.scripts.ask::<(bool,)>(pipe().exists("spare")).0 {
            self.scripts
                .ask::<()>(pipe().rename("spare", &key).ignore());
        }
    }

    fn get(&mut self, places: &[(usize, usize)]) -> Checked {
        let keys: Vec<_> = places
            .iter()
            .map(|&(i, name)| PRECISIONS[i].window(NAMES[name]))
            .collect();
        let kinds: Vec<_> = keys.iter().map(String::as_str).collect();
        let got = self
            .scripts
            .call("series_get", &kinds, &[self.now.to_string()])?;
        let got: Vec<String> = redis::from_redis_value(got).unwrap();
        prop_assert_eq!(&got[..2], ["OK".to_owned(), self.now.to_string()]);
        let slices = |text: &String| -> BTreeMap<u64, i64> {
            let numbers: Vec<i64> = text
                .split_whitespace()
                .map(|number| number.parse().unwrap())
                .collect();
            numbers
                .chunks(2)
                .map(|slice| (slice[0] as u64, slice[1]))
                .collect()
        };
        let expected = keys.iter().map(|key| {
            self.reference
                .windows
                .get(key)
                .cloned()
                .unwrap_or_default()
                .slices
        });
        prop_assert_eq!(
            got[2..].iter().map(slices).collect::<Vec<_>>(),
            expected.collect::<Vec<_>>()
        );
        Ok(())
    }

    fn write(&self, command: &str, key: &str, first: &str, second: impl ToString) {
        let mut pipeline = pipe();
        pipeline
            .cmd(command)
            .arg(self.scripts.key(key))
            .arg(first)
            .arg(second.to_string())
            .ignore();
        self.scripts.ask::<()>(&pipeline);
    }

    fn fill(&mut self, precision: usize, name: &str, count: i64, kept: bool) {
        let precision = &PRECISIONS[precision];
        let slice = precision.slice(self.now);
        let window = precision.window(name);
        match precision
            .kept(slice, name)
            .filter(|id| kept && id.len() <= 255)
        {
            Some(id) => {
                self.write("HSET", "open", &id, count);
                self.write("ZADD", "schedule", &(slice.end * 1000).to_string(), &id);
                self.reference.schedule.insert(id.clone(), slice.end * 1000);
                self.reference.open.insert(id, count);
            }
            None => {
                self.write("HSET", &window, &slice.start.to_string(), count);
                self.reference
                    .windows
                    .entry(window)
                    .or_default()
                    .slices
                    .insert(slice.start, count);
            }
        }
    }

    fn check_keys(&mut self) -> Checked {
        let keys = self.reference.keys();
        let mut read = pipe();
        read.keys(self.scripts.key("series:*"));
        for kind in keys
            .keys()
            .copied()
            .chain(self.reference.windows.keys().map(String::as_str))
        {
            let key = self.scripts.key(kind);
            read.pttl(&key);
            match kind {
                "schedule" | "names" | "idle" => {
                    read.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES")
                }
                _ => read.hgetall(key),
            };
        }
        let mut got = self.scripts.ask::<Vec<Value>>(&read).into_iter();
        let windows: Vec<String> = redis::from_redis_value(got.next().unwrap()).unwrap();
        prop_assert_eq!(windows.len(), self.reference.windows.len(), "{:?}", windows);
        for (kind, expected) in &keys {
            let lives = if ["names", "idle"].contains(kind) {
                self.reference.names_live
            } else {
                None
            };
            check_life(kind, got.next().unwrap(), lives)?;
            let fields: BTreeMap<String, String> =
                redis::from_redis_value(got.next().unwrap()).unwrap();
            prop_assert_eq!(&fields, expected, "{}", kind);
        }
        for (window, expected) in &self.reference.windows {
            check_life(window, got.next().unwrap(), expected.lives)?;
            let slices: BTreeMap<u64, i64> = redis::from_redis_value(got.next().unwrap()).unwrap();
            prop_assert_eq!(&slices, &expected.slices, "{}", window);
        }
        Ok(())
    }
}

/// Compares the `PTTL` of a key with its time to live by the sequence's clock, which stands still
/// meanwhile.
fn check_life(key: &str, left: Value, lives: Option<u64>) -> Checked {
    let left: i64 = redis::from_redis_value(left).unwrap();
    match lives.map(|ms| ms as i64) {
        Some(ms) => prop_assert!(
            (ms - TAKES_MS..=ms).contains(&left),
            "{key} lives {left} ms, expected {ms}"
        ),
        None => prop_assert!(left < 0, "{key} lives {left} ms"),
    }
    Ok(())
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Play>(file!()).await;
}

#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Play>(&[
        ("series_add", " and now_ms < over * 1000", ""),
        ("series_add", "now_ms >= start * 1000 and ", ""),
        (
            "series_add",
            "math.floor(now_ms / 1000 / length) * length",
            "math.floor(now_ms / 1000)",
        ),
        ("series_add", "slice.gone - length", "slice.gone"),
        ("series_add", "is_long and ", ""),
        (
            "series_add",
            "call('HDEL', window, format('%.0f', slice.gone))",
            "",
        ),
        ("series_add", "start <= slice.gone or ", ""),
        (
            "series_add",
            "if call('PTTL', key) < ttl then call",
            "do call",
        ),
        ("series_add", "lives_s + slice.reach", "slice.reach"),
        ("series_add", "'GT', ", ""),
        (
            "series_add",
            "slice.reach > longest.reach",
            "slice.reach >= longest.reach",
        ),
        ("series_add", "if slice ~= longest then return end", ""),
        ("series_add", "prolong(idle, slice.expires_ms)", ""),
        ("series_add", "call('ZREM', names, '', unpack(over))", ""),
        (
            "series_add",
            "(refusal or opens) and added",
            "opens and not refusal and added",
        ),
        (
            "series_add",
            "t = 1, (refusal or opens)",
            "t = 1, not refusal",
        ),
        ("series_add", "call('HDEL', key, field)", ""),
        ("series_add", "opens or sum == amount", "sum == amount"),
        (
            "series_add",
            "for k = 4, 6 do call('ZCARD', KEYS[k]) end",
            "",
        ),
        (
            "series_add",
            "sum.err:find('WRONGTYPE') and 'WRONGTYPE' or ",
            "",
        ),
        (
            "series_add",
            "call('ZADD', names, 'XX', '0', '') else",
            "else",
        ),
        (
            "series_add",
            "if refused[1] and caller ~= '' then",
            "if false then",
        ),
        ("series_add", "math.min(limit, 255 - #prefix)", "limit"),
        ("series_names", "> now then", ">= now then"),
        ("series_names", "'(' .. after", "'[' .. after"),
        ("series_close", "redis.call('HDEL', open, id)", ""),
        ("series_close", "redis.call('ZREM', schedule, id)", ""),
        ("series_close", "now + 60000", "now"),
        ("series_close", "redis.call('HDEL', meta, '')", ""),
        ("series_close", "tonumber(hits or 0) == 0", "true"),
        ("series_close", "'HSETNX', meta", "'HSET', meta"),
        ("buffered_read", "open[i] or waiting[i]", "waiting[i]"),
    ])
    .await;
}

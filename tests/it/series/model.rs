//! HOUSE test 3 for series: random sequences of calls of their scripts, on a real Redis and on a plain reference written
//! from the scripts' headers. Replies, keys and what is left of the keys' lives must be the same after every call.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 300 unless said otherwise.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use redis::{Value, pipe};
use crate::support::model::{Checked, Model, Number, Scripts, agrees, notices, numbers};

const NAMES: [&str; 4] = ["a", "a b", "b/1", "é"];
const PRODUCERS: [&str; 2] = ["w1", "w2"];
const FIXED_KEYS: [&str; 5] = ["producers", "open", "agenda", "names", "idle"];
const CLOSED_KEYS: [&str; 4] = ["open", "agenda", "buffer", "meta"];
/// In ms, as all times here but the starts of slices.
const START: u64 = 1_410_134_400_000;
/// A sequence takes no longer.
const TAKES_MS: i64 = 30_000;

/// A calendar begins anew every half hour, with slices of three lengths; where they start, in seconds.
const CALENDAR: [u64; 4] = [0, 500, 1200, 1800];

struct Precision {
    label: &'static str,
    /// In seconds; none is the calendar's.
    length: Option<u64>,
    slices: u64,
    keep: &'static str,
}

/// The first two reach as far as one another.
const PRECISIONS: [Precision; 5] = [
    Precision { label: "60s", length: Some(60), slices: 10, keep: "60s/*/" },
    Precision { label: "5m", length: Some(300), slices: 2, keep: "-" },
    Precision { label: "day", length: None, slices: 1, keep: "day/*/" },
    Precision { label: "all", length: Some(7), slices: 40, keep: "all/" },
    Precision { label: "1", length: Some(120), slices: 1, keep: "-" },
];

/// Of a precision, in seconds.
#[derive(Clone, Copy, Debug)]
struct Slice {
    start: u64,
    end: u64,
    /// No slice of the precision is longer.
    longest: u64,
}

impl Precision {
    fn slice(&self, at: u64) -> Slice {
        let at = at / 1000;
        if let Some(length) = self.length {
            let start = at / length * length;
            return Slice { start, end: start + length, longest: length };
        }
        let anew = at - at % 1800;
        let next = CALENDAR.iter().position(|&start| start > at % 1800).unwrap();
        let (start, end) = (anew + CALENDAR[next - 1], anew + CALENDAR[next]);
        // a fifth more than the present one has, as the script has it
        Slice { start, end, longest: ((end - start) * 6).div_ceil(5) }
    }

    fn words(&self, slice: Slice) -> String {
        let length = self.length.map_or(format!("{}-{}", slice.start, slice.end), |length| length.to_string());
        format!("{} {length} {} {}", self.label, self.slices, self.keep)
    }

    fn window(&self, name: &str) -> String {
        format!("series:{}:{name}", self.label)
    }

    fn kept(&self, slice: Slice, name: &str) -> Option<String> {
        (self.keep != "-").then(|| self.keep.replace('*', &slice.start.to_string()) + name)
    }
}

/// What a partition holds and does, as the headers say.
#[derive(Clone, Debug, Default)]
struct Reference {
    producers: BTreeMap<&'static str, LastCall>,
    open: BTreeMap<String, i64>,
    agenda: BTreeMap<String, u64>,
    idle: BTreeMap<String, u64>,
    /// For how long names and idle are kept.
    names_live: Option<u64>,
    windows: BTreeMap<String, Window>,
    buffer: BTreeMap<String, i64>,
    meta: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default)]
struct Window {
    slices: BTreeMap<u64, i64>,
    lives: Option<u64>,
}

impl Window {
    /// One slice too many is mostly the one that has just left; what else left is looked for where that is not enough.
    fn trim(&mut self, precision: &Precision, present: Slice) {
        let has_left = |start: u64| start + precision.slices * present.longest <= present.start;
        let is_too_long = |slices: &BTreeMap<_, _>| slices.len() as u64 > precision.slices;
        if is_too_long(&self.slices) && precision.length.is_some() {
            self.slices.remove(&(present.start - precision.slices * present.longest));
        }
        if is_too_long(&self.slices) {
            self.slices.retain(|&start, _| !has_left(start));
        }
    }
}

#[derive(Clone, Debug)]
struct LastCall {
    seq: u64,
    at: u64,
    refused: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock goes on, or back.
    Clock(i64),
    /// It goes on to when the next slice is over or the next name idle, or to just before that.
    Edge {
        early: u64,
    },
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
    /// A window's current slice, or what is kept of it, has room for so much more.
    Fill {
        precision: usize,
        name: usize,
        room: i64,
        kept: bool,
    },
    /// So has what is pending of a slice that is kept.
    FillBuffer {
        room: i64,
        nth: usize,
    },
    /// The buffer is cut off.
    Cut,
    /// Redis loses its memory.
    Forget,
}

#[derive(Clone, Debug)]
struct Add {
    producer: Option<usize>,
    number: Number,
    repeat: bool,
    precisions: Vec<usize>,
    /// By how much the caller's clock is wrong.
    wrong_by: i64,
    pairs: Vec<(usize, i64)>,
    /// The number of a key that holds something else for once.
    spoilt: Option<usize>,
    /// Redis has no memory left for it.
    full: bool,
}

fn text(text: impl ToString) -> Value {
    Value::BulkString(text.to_string().into())
}

fn int(number: impl TryInto<i64, Error: std::fmt::Debug>) -> Value {
    Value::Int(number.try_into().unwrap())
}

fn answer(status: &str, words: impl IntoIterator<Item = Value>) -> Value {
    Value::Array([text(status)].into_iter().chain(words).collect())
}

/// For each of so many pairs.
fn words(pairs: usize, refused: &[usize]) -> impl Iterator<Item = Value> {
    (0..pairs).map(|i| if refused.contains(&i) { text("RANGE") } else { int(1) })
}

impl Add {
    /// The slices that the caller names; those of a fixed length are the server's.
    fn slices(&self, now: u64) -> Vec<(&'static Precision, Slice)> {
        let believed = now.saturating_add_signed(self.wrong_by);
        let slice = |precision: &'static Precision| match precision.length {
            Some(_) => precision.slice(now),
            None => precision.slice(believed),
        };
        self.precisions.iter().map(|&i| (&PRECISIONS[i], slice(&PRECISIONS[i]))).collect()
    }

    fn keys(&self) -> Vec<String> {
        let windows = self.pairs.iter().flat_map(|&(name, _)| self.precisions.iter().map(move |&i| (i, name)));
        let windows = windows.map(|(i, name)| PRECISIONS[i].window(NAMES[name]));
        FIXED_KEYS.map(str::to_owned).into_iter().chain(windows).collect()
    }
}

impl Reference {
    /// Nothing where it comes upon the key that is spoilt.
    fn add(&mut self, now: u64, call: &Add, seq: u64, spoilt: Option<&str>) -> Option<Value> {
        let is_spoilt = |key: &str| spoilt == Some(key);
        let producer = call.producer.map(|producer| PRODUCERS[producer]);
        if is_spoilt("producers") {
            return None;
        }
        match producer.map(|producer| self.producers.get(producer)) {
            Some(Some(last)) if last.seq == seq => {
                return Some(answer("DUP", words(call.pairs.len(), &last.refused)));
            }
            Some(Some(last)) if last.seq > seq => return Some(answer("DUP", words(call.pairs.len(), &[]))),
            Some(None) if call.repeat => return Some(answer("UNKNOWN", [])),
            _ => {}
        }
        let slices = call.slices(now);
        if slices.iter().any(|(_, slice)| now < slice.start * 1000 || now >= slice.end * 1000) {
            return Some(answer("OUTSIDE", [text(now)]));
        }

        let mut after = self.clone();
        let (mut refused, mut opened, mut ended) = (vec![], vec![], vec![]);
        for (i, &(name, n)) in call.pairs.iter().enumerate() {
            let mut pair = after.clone();
            let (mut its_opened, mut its_ended) = (vec![], vec![]);
            let windows = slices.iter().map(|&(precision, slice)| (precision, slice, None));
            let kept = slices
                .iter()
                .filter_map(|&(precision, slice)| Some((precision, slice, Some(precision.kept(slice, NAMES[name])?))));
            let mut is_refused = false;
            for (precision, slice, kept) in windows.chain(kept) {
                let window = precision.window(NAMES[name]);
                if is_spoilt(if kept.is_some() { "open" } else { &window }) {
                    return None;
                }
                let count = match &kept {
                    Some(id) => pair.open.entry(id.clone()).or_default(),
                    None => pair.windows.entry(window).or_default().slices.entry(slice.start).or_default(),
                };
                let is_new = *count == 0;
                let Some(sum) = count.checked_add(n) else {
                    is_refused = true;
                    break;
                };
                *count = sum;
                match kept {
                    Some(id) if is_new => its_ended.push((id, slice.end * 1000)),
                    None if is_new => its_opened.push((precision, slice, NAMES[name])),
                    _ => {}
                }
            }
            if is_refused {
                refused.push(i);
                continue;
            }
            after = pair;
            opened.extend(its_opened);
            ended.extend(its_ended);
        }
        if !(opened.is_empty() && ended.is_empty()) && ["agenda", "names", "idle"].into_iter().any(is_spoilt) {
            return None;
        }

        after.agenda.extend(ended);
        let reach = |&(precision, slice): &(&Precision, Slice)| precision.slices * slice.longest;
        let furthest = slices.iter().map(reach).max().unwrap();
        let longest = slices.iter().find(|slice| reach(slice) == furthest).unwrap().0.label;
        for (precision, slice, name) in opened {
            let window = after.windows.get_mut(&precision.window(name)).unwrap();
            window.trim(precision, slice);
            let gone = (slice.start + (precision.slices + 1) * slice.longest) * 1000;
            window.lives = window.lives.max(Some(gone - now));
            if precision.label == longest {
                let idle = after.idle.entry(name.into()).or_default();
                *idle = gone.max(*idle);
                after.idle.retain(|_, idle| *idle > now);
                after.names_live = after.names_live.max(Some(gone - now));
            }
        }
        let reply = answer("OK", words(call.pairs.len(), &refused));
        if let Some(producer) = producer {
            after.producers.insert(producer, LastCall { seq, at: now, refused });
        }
        *self = after;
        Some(reply)
    }

    fn names(&self, now: u64, prefix: &str, after: &str, limit: usize) -> Value {
        let names = self.idle.iter().filter(|(name, _)| name.starts_with(prefix) && name.as_str() > after);
        let page: Vec<_> = names.take(limit).collect();
        let last = page.get(limit - 1).map_or("", |(name, _)| name);
        let names = page.iter().filter(|(_, idle)| **idle > now).map(|(name, _)| text(name));
        answer("OK", [text(last)].into_iter().chain(names))
    }

    fn next(&self) -> Option<(u64, String)> {
        self.agenda.iter().map(|(id, at)| (*at, id.clone())).min()
    }

    fn close(&mut self, now: u64, limit: usize) -> Value {
        let mut moved = 0;
        let mut due: Vec<_> =
            self.agenda.iter().filter(|(_, at)| **at <= now).map(|(id, at)| (*at, id.clone())).collect();
        due.sort();
        for (_, id) in due.into_iter().take(limit) {
            let pending = self.buffer.get(&id).copied().unwrap_or_default();
            match pending.checked_add(self.open[&id]) {
                None => drop(self.agenda.insert(id, now + 60_000)),
                Some(sum) => {
                    self.agenda.remove(&id);
                    self.open.remove(&id);
                    self.buffer.insert(id, sum);
                    moved += 1;
                }
            }
        }
        let hits = self.meta.get("hits").map_or(0, |hits| hits.parse().unwrap());
        if moved > 0 {
            if hits == 0 {
                self.meta.insert("first_at".into(), now.to_string());
            }
            self.meta.insert("hits".into(), (hits + moved).to_string());
        }
        let next = self.next().map_or(text(""), |(at, _)| int(at.saturating_sub(now)));
        answer("OK", [int(moved), next])
    }

    /// Both deltas of each id, none where they cannot be added up exactly.
    fn read(&self, ids: &[String]) -> Option<Value> {
        let is_exact = |number: i64| number.unsigned_abs() < 1 << 53;
        let sum = |id: &String| match (self.buffer.get(id), self.open.get(id)) {
            (Some(&a), Some(&b)) => a.checked_add(b).filter(|&sum| is_exact(a) && is_exact(b) && is_exact(sum)),
            (a, b) => Some(a.or(b).copied().unwrap_or_default()),
        };
        let deltas = ids.iter().map(|id| sum(id).map(|sum| [text(0), text(sum)])).collect::<Option<Vec<_>>>()?;
        Some(answer("OK", [text(""), text(0), int(0)].into_iter().chain(deltas.into_iter().flatten())))
    }

    /// The keys as they are in Redis, but for the windows.
    fn keys(&self) -> BTreeMap<&'static str, BTreeMap<String, String>> {
        let numbers =
            |counts: &BTreeMap<String, i64>| counts.iter().map(|(id, n)| (id.clone(), n.to_string())).collect();
        let times = |times: &BTreeMap<String, u64>| times.iter().map(|(id, at)| (id.clone(), at.to_string())).collect();
        let producer = |(name, last): (&&str, &LastCall)| {
            let refused = last.refused.iter().map(|i| format!(" {}:RANGE", i + 1)).collect::<String>();
            ((*name).to_owned(), format!("{} {}{refused}", last.seq, last.at))
        };
        BTreeMap::from([
            ("producers", self.producers.iter().map(producer).collect()),
            ("open", numbers(&self.open)),
            ("agenda", times(&self.agenda)),
            ("names", self.idle.keys().map(|name| (name.clone(), "0".into())).collect()),
            ("idle", times(&self.idle)),
            ("buffer", numbers(&self.buffer)),
            ("meta", self.meta.clone()),
        ])
    }
}

fn add() -> impl Strategy<Value = Add> {
    let number = numbers(8);
    let producer = prop_oneof![1 => Just(None), 2 => (0..PRODUCERS.len()).prop_map(Some)];
    let precisions = subsequence((0..PRECISIONS.len()).collect::<Vec<_>>(), 1..=PRECISIONS.len()).prop_shuffle();
    let wrong_by = prop_oneof![8 => Just(0), 1 => -600_000..600_000_i64];
    let amount = prop_oneof![6 => 1..5_i64, 1 => Just(999_999_999_999_999)];
    let pairs = prop::collection::vec((0..NAMES.len(), amount), 1..5);
    (producer, number, precisions, wrong_by, pairs, prop::option::weighted(0.1, 0..20_usize), full()).prop_map(
        |(producer, (number, repeat), precisions, wrong_by, pairs, spoilt, full)| Add {
            producer,
            number,
            repeat,
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
    let names = (select(vec!["", "", "a", "a ", "b", "x", "é"]), prop::option::of(0..NAMES.len()), 1..5_usize);
    let fill = (0..PRECISIONS.len(), 0..NAMES.len(), 0..6_i64, any::<bool>());
    prop_oneof![
        8 => clock.prop_map(Step::Clock),
        2 => (0..2_u64).prop_map(|early| Step::Edge { early }),
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

/// One sequence: the reference, and what the callers know.
struct Play {
    scripts: Scripts,
    reference: Reference,
    now: u64,
    last_seq: [u64; PRODUCERS.len()],
}

impl Model for Play {
    type Step = Step;
    const FAMILY: &'static str = "shop/pulse";

    fn steps() -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn new(scripts: Scripts) -> Self {
        let (reference, last_seq) = Default::default();
        Play { scripts, reference, now: START, last_seq }
    }

    fn step(&mut self, step: &Step) -> Checked {
        let now = self.now;
        match step {
            Step::Clock(ms) => self.now = now.saturating_add_signed(*ms),
            Step::Edge { early } => {
                let edges = self.reference.agenda.values().chain(self.reference.idle.values());
                self.now = edges.filter(|at| **at > now).min().map_or(now, |at| at - early);
            }
            Step::Add(call) => self.add(call)?,
            Step::Get(places) => self.get(places)?,
            Step::Names { prefix, after, limit } => {
                let after = after.map_or("", |name| NAMES[name]);
                let after = if after.starts_with(prefix) { after } else { "" };
                let args = [prefix.to_string(), after.into(), limit.to_string(), now.to_string()];
                let got = self.scripts.call("series_names", &["names", "idle"], &args)?;
                prop_assert_eq!(got, self.reference.names(now, prefix, after, *limit));
            }
            Step::Close { limit, full } => {
                self.fill_up(*full);
                let got = self.scripts.call("series_close", &CLOSED_KEYS, &[limit.to_string(), now.to_string()]);
                self.fill_up(false);
                prop_assert_eq!(got?, self.reference.close(now, *limit));
            }
            Step::Read(places) => {
                let id = |&(precision, name): &(usize, usize)| {
                    let precision: &Precision = &PRECISIONS[precision];
                    precision.kept(precision.slice(now), NAMES[name]).unwrap_or("other".into())
                };
                let ids: Vec<_> = places.iter().map(id).chain(self.reference.next().map(|(_, id)| id)).collect();
                let got = self.scripts.call("buffered_read", &["buffer", "batch", "meta", "open"], &ids);
                match self.reference.read(&ids) {
                    Some(expected) => prop_assert_eq!(got?, expected),
                    None => prop_assert!(got.is_err_and(|error| error.to_string().contains("BADSTATE"))),
                }
            }
            Step::Fill { precision, name, room, kept } => self.fill(*precision, NAMES[*name], i64::MAX - room, *kept),
            Step::FillBuffer { room, nth } => {
                if let Some(id) = self.reference.open.keys().nth(*nth).cloned() {
                    self.write("HSET", "buffer", &id, i64::MAX - room);
                    self.reference.buffer.insert(id, i64::MAX - room);
                }
            }
            Step::Cut => {
                self.scripts.ask::<()>(pipe().del(self.scripts.key("buffer")).ignore());
                self.write("HSET", "meta", "hits", 0);
                self.reference.buffer.clear();
                self.reference.meta.insert("hits".into(), "0".into());
            }
            Step::Forget => {
                self.scripts.forget();
                self.reference = Reference::default();
            }
        }
        self.check_keys()
    }
}

impl Play {
    fn add(&mut self, call: &Add) -> Checked {
        let seq = call.producer.map_or(0, |producer| {
            let last = &mut self.last_seq[producer];
            call.number.after(last)
        });
        let producer = call.producer.map_or("", |producer| PRODUCERS[producer]);
        let attempt = if call.repeat { "repeat" } else { "first" };
        let precisions = call.slices(self.now).into_iter().map(|(precision, slice)| precision.words(slice));
        let fixed = [producer, &seq.to_string(), attempt, &self.now.to_string(), &call.precisions.len().to_string()];
        let pairs = call.pairs.iter().flat_map(|&(name, n)| [NAMES[name].to_owned(), n.to_string()]);
        let args: Vec<_> = fixed.map(str::to_owned).into_iter().chain(precisions).chain(pairs).collect();
        let keys = call.keys();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let spoilt = call.spoilt.and_then(|nth| keys.get(nth).copied());

        let before = self.reference.clone();
        let expected = self.reference.add(self.now, call, seq, spoilt);
        self.spoil(spoilt);
        self.fill_up(call.full);
        let got = self.scripts.call("series_add", &keys, &args);
        self.fill_up(false);
        self.restore(spoilt);
        let fails_with = |got: Result<Value, TestCaseError>, text| got.is_err_and(|e| e.to_string().contains(text));
        match expected {
            Some(Value::Array(words)) if call.full && words[0] == text("OK") => {
                self.reference = before;
                prop_assert!(fails_with(got, "maxmemory"));
            }
            Some(expected) => prop_assert_eq!(got?, expected),
            None => prop_assert!(fails_with(got, "BADKEY")),
        }
        Ok(())
    }

    fn fill_up(&self, full: bool) {
        self.scripts.ask::<()>(pipe().cmd("CONFIG").arg("SET").arg("maxmemory").arg(u8::from(full)).ignore());
    }

    /// Puts a string where the key is, which waits elsewhere.
    fn spoil(&self, key: Option<&str>) {
        let Some(key) = key.map(|key| self.scripts.key(key)) else { return };
        if self.scripts.ask::<(bool,)>(pipe().exists(&key)).0 {
            self.scripts.ask::<()>(pipe().rename(&key, "spare").ignore());
        }
        self.scripts.ask::<()>(pipe().set(&key, "1").ignore());
    }

    fn restore(&self, key: Option<&str>) {
        let Some(key) = key.map(|key| self.scripts.key(key)) else { return };
        self.scripts.ask::<()>(pipe().del(&key).ignore());
        if self.scripts.ask::<(bool,)>(pipe().exists("spare")).0 {
            self.scripts.ask::<()>(pipe().rename("spare", &key).ignore());
        }
    }

    fn get(&mut self, places: &[(usize, usize)]) -> Checked {
        let keys: Vec<_> = places.iter().map(|&(i, name)| PRECISIONS[i].window(NAMES[name])).collect();
        let kinds: Vec<_> = keys.iter().map(String::as_str).collect();
        let got = self.scripts.call("series_get", &kinds, &[self.now.to_string()])?;
        let got: Vec<String> = redis::from_redis_value(got).unwrap();
        prop_assert_eq!(&got[..2], ["OK".to_owned(), self.now.to_string()]);
        let slices = |text: &String| -> BTreeMap<u64, i64> {
            let numbers: Vec<i64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
            numbers.chunks(2).map(|slice| (slice[0] as u64, slice[1])).collect()
        };
        let expected = keys.iter().map(|key| self.reference.windows.get(key).cloned().unwrap_or_default().slices);
        prop_assert_eq!(got[2..].iter().map(slices).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        Ok(())
    }

    fn write(&self, command: &str, key: &str, first: &str, second: impl ToString) {
        let mut pipeline = pipe();
        pipeline.cmd(command).arg(self.scripts.key(key)).arg(first).arg(second.to_string()).ignore();
        self.scripts.ask::<()>(&pipeline);
    }

    fn fill(&mut self, precision: usize, name: &str, count: i64, kept: bool) {
        let precision = &PRECISIONS[precision];
        let slice = precision.slice(self.now);
        let window = precision.window(name);
        match precision.kept(slice, name).filter(|_| kept) {
            Some(id) => {
                self.write("HSET", "open", &id, count);
                self.write("ZADD", "agenda", &(slice.end * 1000).to_string(), &id);
                self.reference.agenda.insert(id.clone(), slice.end * 1000);
                self.reference.open.insert(id, count);
            }
            None => {
                self.write("HSET", &window, &slice.start.to_string(), count);
                self.reference.windows.entry(window).or_default().slices.insert(slice.start, count);
            }
        }
    }

    fn check_keys(&mut self) -> Checked {
        let keys = self.reference.keys();
        let mut read = pipe();
        read.keys(self.scripts.key("series:*"));
        for kind in keys.keys().copied().chain(self.reference.windows.keys().map(String::as_str)) {
            let key = self.scripts.key(kind);
            read.pttl(&key);
            match kind {
                "agenda" | "names" | "idle" => read.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES"),
                _ => read.hgetall(key),
            };
        }
        let mut got = self.scripts.ask::<Vec<Value>>(&read).into_iter();
        let windows: Vec<String> = redis::from_redis_value(got.next().unwrap()).unwrap();
        prop_assert_eq!(windows.len(), self.reference.windows.len(), "{:?}", windows);
        for (kind, expected) in &keys {
            let lives = if ["names", "idle"].contains(kind) { self.reference.names_live } else { None };
            check_life(kind, got.next().unwrap(), lives)?;
            let fields: BTreeMap<String, String> = redis::from_redis_value(got.next().unwrap()).unwrap();
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

/// `PTTL` of a key, and how long it lives by the clock of the sequence, which stands still meanwhile.
fn check_life(key: &str, left: Value, lives: Option<u64>) -> Checked {
    let left: i64 = redis::from_redis_value(left).unwrap();
    match lives.map(|ms| ms as i64) {
        Some(ms) => prop_assert!((ms - TAKES_MS..=ms).contains(&left), "{key} lives {left} ms, expected {ms}"),
        None => prop_assert!(left < 0, "{key} lives {left} ms"),
    }
    Ok(())
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Play>(file!()).await;
}

/// A script with one thing taken out must not pass.
#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Play>(&[
        ("series_add", "seq <= last_seq", "false"),
        ("series_add", "attempt == 'repeat' and", "false and"),
        ("series_add", "now >= over * 1000", "false"),
        ("series_add", "math.floor(now / 1000 / length) * length", "math.floor(now / 1000)"),
        ("series_add", "start - slices * length", "start"),
        ("series_add", "if held <= slices then return end", ""),
        ("series_add", "or math.huge) <= oldest", "or math.huge) < oldest"),
        ("series_add", "if redis.call('PTTL', key) < ms then", "do"),
        ("series_add", "(slices + 1) * length", "slices * length"),
        ("series_add", "'GT', ", ""),
        ("series_add", "slices * length > reach", "slices * length >= reach"),
        ("series_add", "if t == longest then", "do"),
        ("series_add", "redis.call('ZREM', names, gone)", ""),
        ("series_add", "take_back(i, t - 1)", ""),
        ("series_add", "if not refused[i] then", "do"),
        ("series_add", "== 0 then redis.call('HDEL', hash, field) end", "== 0 then return end"),
        ("series_add", "'RANGE', openings_before, kept_before", "'RANGE', openings, kept_openings"),
        ("series_add", "if last then redis.call('HSET', producers, producer, last) else", "do"),
        ("series_names", "> now then", ">= now then"),
        ("series_names", "'(' .. after", "'[' .. after"),
        ("series_close", "redis.call('HDEL', open, id)", ""),
        ("series_close", "redis.call('ZREM', agenda, id)", ""),
        ("series_close", "now + 60000", "now"),
        ("series_close", "redis.call('HDEL', meta, '')", ""),
        ("series_close", "tonumber(hits or 0) == 0", "true"),
        ("buffered_read", "waiting[i] or still_open[i]", "waiting[i]"),
    ])
    .await;
}

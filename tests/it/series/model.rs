//! The model of series: random sequences of script calls, on a real Redis and on a plain reference
//! written from the scripts' headers.

use proptest::collection::vec;
use proptest::sample::{select, subsequence};
use redis::Value;

use crate::support::model::*;
use crate::support::*;

/// The names of pairs. The last two are refused.
const NAMES: [&str; 7] = ["a", "a b", "b/1", "é", LONG, "", TOO_LONG];
const VALID: usize = 5;
/// A name of the maximum length, which is too long for the longest kept ids.
const LONG: &str = text_of(&[b'x'; 200]);
const TOO_LONG: &str = text_of(&[b'x'; 201]);

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

const fn precision(
    label: &'static str,
    length: Option<u64>,
    slices: u64,
    keep: &'static str,
) -> Precision {
    Precision {
        label,
        length,
        slices,
        keep,
    }
}

/// The precisions. The first two cover equal times.
const PRECISIONS: [Precision; 5] = [
    precision("60s", Some(60), 10, "60s/*/"),
    precision("5m", Some(300), 2, "-"),
    precision("day", None, 1, "day/*/"),
    precision(
        "all",
        Some(7),
        40,
        "everything-counted-in-slices-of-seven-seconds-for-this-name/",
    ),
    precision("1", Some(120), 1, "-"),
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

    fn words(&self, Slice { start, end, .. }: Slice) -> String {
        let length = self
            .length
            .map_or(format!("{start}-{end}"), |length| length.to_string());
        format!("{} {length} {} {}", self.label, self.slices, self.keep)
    }

    fn window(&self, name: &str) -> String {
        format!("series:{}:{name}", self.label)
    }

    fn kept(&self, slice: Slice, name: &str) -> Option<String> {
        (self.keep != "-").then(|| self.keep.replace('*', &slice.start.to_string()) + name)
    }
}

#[derive(Clone, Debug, Default)]
struct Series {
    open: Deltas,
    schedule: BTreeMap<String, u64>,
    idle: BTreeMap<String, u64>,
    /// The time to live of the names and of their idle times.
    names_live: Option<u64>,
    windows: BTreeMap<String, Window>,
    partition: Partition,
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
enum Own {
    /// The clock moves to the end of the next slice or the next idle time, or to just before it.
    Edge(u64),
    Add(Called, Add),
    Get(Vec<(usize, usize)>),
    Names {
        prefix: &'static str,
        after: Option<usize>,
        limit: usize,
    },
    Close(usize),
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
}

#[derive(Clone, Debug)]
struct Add {
    precisions: Vec<usize>,
    /// The error of the caller's clock in ms.
    wrong_by: i64,
    pairs: Vec<(usize, i64)>,
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
        let slice = |&i: &usize| {
            let precision = &PRECISIONS[i];
            let at = if precision.length.is_some() {
                now
            } else {
                believed
            };
            (precision, precision.slice(at))
        };
        self.precisions.iter().map(slice).collect()
    }

    fn keys(&self) -> Vec<String> {
        let fixed = [FENCE[0], FENCE[1], "open", "schedule", "names", "idle"];
        fixed
            .map(str::to_owned)
            .into_iter()
            .chain(self.pairs.iter().flat_map(|&(name, _)| {
                self.precisions
                    .iter()
                    .map(move |&i| PRECISIONS[i].window(NAMES[name]))
            }))
            .collect()
    }
}

impl Series {
    /// Counts a pair, or returns the reason of a refusal, after which the caller discards all
    /// changes.
    fn count(
        &mut self,
        now: u64,
        slices: &[(&Precision, Slice)],
        (name, amount): (&str, i64),
        sent: &Sent,
    ) -> Result<(), &'static str> {
        let is_kept_too_long = slices.iter().any(|(precision, slice)| {
            precision
                .kept(*slice, name)
                .is_some_and(|id| id.len() > 255)
        });
        if name.is_empty() || name.len() > 200 || is_kept_too_long {
            return Err("BADID");
        }
        if amount < 1 {
            return Err("RANGE");
        }
        // the first of the precisions with the longest window
        let reach = |(precision, slice): &&(&Precision, Slice)| precision.slices * slice.longest;
        let longest = slices.iter().rev().max_by_key(reach).unwrap();
        for &(precision, slice) in slices {
            let key = precision.window(name);
            sent.look_at(&key)?;
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
                sent.look_at("open")?;
                if increase(self.open.entry(id.clone()).or_default(), amount)? {
                    self.schedule.insert(id, slice.end * 1000);
                }
            }
        }
        Ok(())
    }

    fn names(&self, now: u64, prefix: &str, after: &str, limit: usize) -> Value {
        let is_next = |name: &str| name.starts_with(prefix) && name > after;
        let page: Vec<_> = self
            .idle
            .iter()
            .filter(|(name, _)| is_next(name))
            .take(limit)
            .collect();
        let last = page.get(limit - 1).map_or("", |(name, _)| name);
        let names = page.iter().filter(|(_, idle)| **idle > now);
        reply(
            "OK",
            [text(last)]
                .into_iter()
                .chain(names.map(|(name, _)| text(name))),
        )
    }

    fn next(&self) -> Option<(u64, String)> {
        self.schedule.iter().map(|(id, at)| (*at, id.clone())).min()
    }

    fn close(&mut self, now: u64, limit: usize) -> Value {
        let mut moved = 0_u64;
        let due = self.schedule.iter().filter(|(_, at)| **at <= now);
        let mut due: Vec<_> = due.map(|(id, at)| (*at, id.clone())).collect();
        due.sort();
        let buffer = &mut self.partition.buffer;
        for (_, id) in due.into_iter().take(limit) {
            match buffer
                .get(&id)
                .copied()
                .unwrap_or_default()
                .checked_add(self.open[&id])
            {
                None => drop(self.schedule.insert(id, now + 60_000)),
                Some(sum) => {
                    self.schedule.remove(&id);
                    self.open.remove(&id);
                    buffer.insert(id, sum);
                    moved += 1;
                }
            }
        }
        if moved > 0 {
            self.partition.note(now, moved);
        }
        let left = |(at, _): (u64, _)| int(at.saturating_sub(now));
        reply("OK", [int(moved), self.next().map_or(text(""), left)])
    }

    /// Returns both deltas of each id, `None` if they cannot be added exactly.
    fn read(&self, ids: &[String]) -> Option<Value> {
        let is_exact = |number: i64| number.unsigned_abs() < 1 << 53;
        let sum = |id: &String| match (self.partition.buffer.get(id), self.open.get(id)) {
            (Some(&a), Some(&b)) => {
                let sum = a.checked_add(b)?;
                [a, b, sum].into_iter().all(is_exact).then_some(sum)
            }
            (a, b) => Some(a.or(b).copied().unwrap_or_default()),
        };
        let deltas = ids.iter().map(|id| sum(id).map(|sum| [text(0), text(sum)]));
        let deltas = deltas.collect::<Option<Vec<_>>>()?.into_iter().flatten();
        Some(reply(
            "OK",
            self.partition
                .cut()
                .map(text)
                .into_iter()
                .chain([int(0)])
                .chain(deltas),
        ))
    }
}

fn own() -> impl Strategy<Value = Own> {
    let precisions = subsequence(
        (0..PRECISIONS.len()).collect::<Vec<_>>(),
        1..=PRECISIONS.len(),
    );
    let wrong_by = prop_oneof![8 => Just(0), 1 => -600_000..600_000_i64];
    let name = prop_oneof![15 => 0..VALID, 1 => VALID..NAMES.len()];
    let pairs = vec(
        (
            name,
            prop_oneof![
                20 => 1..5_i64,
                2 => Just(999_999_999_999_999),
                1 => Just(i64::MAX),
                1 => -1..=0_i64
            ],
        ),
        1..5,
    );
    let add = (
        called((0.12, 0.1)),
        precisions.prop_shuffle(),
        wrong_by,
        pairs,
    );
    let add = add.prop_map(|(called, precisions, wrong_by, pairs)| {
        let add = Add {
            precisions,
            wrong_by,
            pairs,
        };
        Own::Add(called, add)
    });
    let places = || vec((0..PRECISIONS.len(), 0..VALID), 1..5);
    let prefix = select(vec!["", "", "a", "a ", "b", "x", "é"]);
    let names = (prefix, proptest::option::of(0..VALID), 1..5_usize);
    let names = names.prop_map(|(prefix, after, limit)| Own::Names {
        prefix,
        after,
        limit,
    });
    let fill = (0..PRECISIONS.len(), 0..VALID, 0..6_i64, any::<bool>());
    let fill = fill.prop_map(|(precision, name, room, kept)| Own::Fill {
        precision,
        name,
        room,
        kept,
    });
    prop_oneof![
        2 => (0..2_u64).prop_map(Own::Edge),
        14 => add,
        2 => places().prop_map(Own::Get),
        2 => names,
        4 => (1..6_usize).prop_map(Own::Close),
        2 => places().prop_map(Own::Read),
        2 => fill,
        1 => (0..6_i64, 0..9_usize).prop_map(|(room, nth)| Own::FillBuffer { room, nth }),
        1 => Just(Own::Cut),
    ]
}

impl Kind for Series {
    type Step = Own;
    const NAME: &'static str = "series";
    const FAMILY: &'static str = "shop/pulse";
    const START: u64 = 1_410_134_400_000;

    fn steps() -> BoxedStrategy<Step<Own>> {
        let clock = prop_oneof![
            4 => 0..20_000_i64,
            4 => 0..400_000_i64,
            1 => 0..4_000_000_i64,
            1 => -100_000..0_i64,
            1 => -4_000_000..0_i64,
        ];
        prop_oneof![
            40 => clock.prop_map(Step::Clock),
            15 => Just(Step::Epoch),
            150 => own().prop_map(Step::Own),
            1 => Just(Step::Forget),
        ]
        .boxed()
    }

    fn begin(frame: &mut Frame) -> Checked<Self> {
        let mut series = Series::default();
        frame.configure("series", 1, 1_000_000, [("meta", &mut series.partition)])?;
        // without this, most calls would name no epoch
        frame.epoch("series", "1")?;
        Ok(series)
    }

    fn step(&mut self, frame: &mut Frame, step: &Own) -> Checked {
        let now = frame.now;
        let ms = now.to_string();
        match step {
            Own::Edge(early) => {
                frame.now = self
                    .schedule
                    .values()
                    .chain(self.idle.values())
                    .filter(|at| **at > now)
                    .min()
                    .map_or(now, |at| at - early);
            }
            Own::Add(called, add) => self.add(frame, called, add)?,
            Own::Get(places) => self.get(frame, places)?,
            Own::Names {
                prefix,
                after,
                limit,
            } => {
                let after = after.map_or("", |name| NAMES[name]);
                let after = if after.starts_with(prefix) { after } else { "" };
                prop_assert_eq!(
                    frame.call(
                        "series_names",
                        &["names", "idle"],
                        &[prefix, after, &limit.to_string(), &ms]
                    )?,
                    self.names(now, prefix, after, *limit)
                );
            }
            Own::Close(limit) => {
                let keys = ["open", "schedule", "buffer", "meta"];
                let got = frame.call("series_close", &keys, &[&*limit.to_string(), "0", &ms]);
                prop_assert_eq!(got?, self.close(now, *limit));
            }
            Own::Read(places) => {
                let id = |&(precision, name): &(usize, usize)| {
                    let precision: &Precision = &PRECISIONS[precision];
                    precision
                        .kept(precision.slice(now), NAMES[name])
                        .filter(|id| id.len() <= 255)
                        .unwrap_or("other".into())
                };
                let ids = places.iter().map(id).chain(self.next().map(|(_, id)| id));
                let ids: Vec<_> = ids.collect();
                let got = frame.call("buffered_read", &["buffer", "batch", "meta", "open"], &ids);
                let is_bad = |error: &TestCaseError| format!("{error:#}").contains("BADSTATE");
                match self.read(&ids) {
                    Some(expected) => prop_assert_eq!(got?, expected),
                    None => prop_assert!(got.as_ref().is_err_and(is_bad), "{got:?}"),
                }
            }
            Own::Fill {
                precision,
                name,
                room,
                kept,
            } => self.fill(
                frame,
                &PRECISIONS[*precision],
                NAMES[*name],
                i64::MAX - room,
                *kept,
            ),
            Own::FillBuffer { room, nth } => {
                if let Some(id) = self.open.keys().nth(*nth).cloned() {
                    let count = i64::MAX - room;
                    frame.write("HSET", "buffer", &[&id, &count.to_string()]);
                    self.partition.buffer.insert(id, count);
                }
            }
            Own::Cut => {
                frame.write("DEL", "buffer", &[]);
                frame.write("HSET", "meta", &["hits", "0"]);
                self.partition.buffer.clear();
                self.partition.set([("hits", "0".into())]);
            }
        }
        Ok(())
    }

    fn keys(&self) -> Keys {
        let names: BTreeMap<_, _> = self.idle.keys().map(|name| (name, 0)).collect();
        let names_live = self.names_live.map(|ms| ms as i64);
        let whole = [
            ("open", Content::hash(&self.open), None),
            ("schedule", Content::zset(&self.schedule), None),
            ("names", Content::zset(&names), names_live),
            ("idle", Content::zset(&self.idle), names_live),
        ];
        let whole = whole.map(|(kind, content, lives)| (kind.to_owned(), (content, lives)));
        let windows = self.windows.iter().map(|(key, window)| {
            (
                key.clone(),
                (
                    Content::hash(&window.slices),
                    window.lives.map(|ms| ms as i64),
                ),
            )
        });
        let mut keys = self.partition.keys(["buffer", "batch", "meta"]);
        keys.extend(whole.into_iter().chain(windows));
        keys
    }
}

impl Series {
    fn add(&mut self, frame: &mut Frame, called: &Called, add: &Add) -> Checked {
        let (keys, now) = (add.keys(), frame.now);
        let slices = add.slices(now);
        let count = [slices.len().to_string()].into_iter();
        let precisions = slices
            .iter()
            .map(|(precision, slice)| precision.words(*slice));
        let pairs = add.pairs.iter();
        let pairs = pairs.flat_map(|&(name, amount)| [NAMES[name].to_owned(), amount.to_string()]);
        let sent = frame.sent(called, &keys);
        let counting = CountingCall {
            script: "series_add",
            kind: "series",
            keys: &keys,
            args: count.chain(precisions).chain(pairs).collect(),
            dup: record,
        };
        frame.count(counting, &sent, self, |series, _, _| {
            let is_over = |slice: &Slice| now < slice.start * 1000 || now >= slice.end * 1000;
            if slices.iter().any(|(_, slice)| is_over(slice)) {
                return Ok((reply("OUTSIDE", [text(now)]), None));
            }
            for key in ["schedule", "names", "idle"] {
                sent.look_at(key)?;
            }
            let (mut words, mut refused) = (vec![], vec![]);
            for (i, &(name, amount)) in add.pairs.iter().enumerate() {
                let mut after = series.clone();
                match after.count(now, &slices, (NAMES[name], amount), &sent) {
                    Ok(()) => {
                        *series = after;
                        words.push(int(1));
                    }
                    Err(word) => {
                        words.push(text(word));
                        refused.push(format!("{}:{word}", i + 1));
                    }
                }
            }
            Ok((reply("OK", words), Some(refused.join(" "))))
        })?;
        Ok(())
    }

    fn get(&mut self, frame: &mut Frame, places: &[(usize, usize)]) -> Checked {
        let keys = places
            .iter()
            .map(|&(i, name)| PRECISIONS[i].window(NAMES[name]));
        let keys: Vec<_> = keys.collect();
        let now = frame.now.to_string();
        let got = words(&frame.call("series_get", &keys, &[&now])?);
        prop_assert_eq!(&got[..2], ["OK", &now]);
        let slices = |text: &String| {
            let numbers: Vec<i64> = text
                .split_whitespace()
                .map(|n| n.parse().unwrap())
                .collect();
            let slices = numbers.chunks(2).map(|slice| (slice[0] as u64, slice[1]));
            slices.collect::<BTreeMap<_, _>>()
        };
        let got: Vec<_> = got[2..].iter().map(slices).collect();
        prop_assert_eq!(
            got,
            keys.iter()
                .map(|key| self.windows.get(key))
                .map(|window| window.map(|w| w.slices.clone()).unwrap_or_default())
                .collect::<Vec<_>>()
        );
        Ok(())
    }

    fn fill(&mut self, frame: &Frame, precision: &Precision, name: &str, count: i64, kept: bool) {
        let (slice, window) = (precision.slice(frame.now), precision.window(name));
        let kept = precision
            .kept(slice, name)
            .filter(|id| kept && id.len() <= 255);
        let digits = count.to_string();
        if let Some(id) = kept {
            let end = slice.end * 1000;
            frame.write("HSET", "open", &[&id, &digits]);
            frame.write("ZADD", "schedule", &[&end.to_string(), &id]);
            self.schedule.insert(id.clone(), end);
            self.open.insert(id, count);
        } else {
            frame.write("HSET", &window, &[&slice.start.to_string(), &digits]);
            self.windows
                .entry(window)
                .or_default()
                .slices
                .insert(slice.start, count);
        }
    }
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Series>().await;
}

#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Series>("series").await;
}

//! The model of series: random sequences of script calls, on a real Redis and on a plain reference
//! written from the scripts' headers.

use proptest::collection::vec;
use proptest::sample::{select, subsequence};
use redis::Value;

use crate::support::model::{Counted, Family, *};
use crate::support::*;

/// The names of hits. The last two are refused.
const NAMES: [&str; 7] = ["a", "a b", "b/1", "é", LONG, "", TOO_LONG];
const VALID: usize = 5;
/// A name of the maximum length.
const LONG: &str = text_of(&[b'x'; 200]);
const TOO_LONG: &str = text_of(&[b'x'; 201]);

/// The starts, in seconds, of the days of a short calendar. It repeats every half hour, with days of
/// three lengths.
const DAYS: [u64; 3] = [0, 500, 1200];
/// The time from which a later day may still change, in seconds.
const FIXED_S: u64 = 3600;

const fn text_of(bytes: &'static [u8]) -> &'static str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("no text"),
    }
}

/// A window that a family may have.
struct Precision {
    label: &'static str,
    /// The length of a slice in seconds; `None` for those of the calendar.
    length: Option<u64>,
    slices: u64,
}

const fn precision(label: &'static str, length: Option<u64>, slices: u64) -> Precision {
    Precision {
        label,
        length,
        slices,
    }
}

/// The windows. The first two cover equal times.
const PRECISIONS: [Precision; 5] = [
    precision("60s", Some(60), 10),
    precision("300s", Some(300), 2),
    precision("day", None, 2),
    precision("7s", Some(7), 40),
    precision("120s", Some(120), 1),
];

/// A slice of a window.
#[derive(Clone, Debug)]
struct Slice {
    start: u64,
    /// The name in kept ids.
    name: String,
    /// An upper limit for the length of the window's slices.
    longest: u64,
    /// The number of days of the calendar that have begun.
    begun: usize,
}

impl Precision {
    fn key(&self, name: &str) -> String {
        format!("series:{}:{name}", self.label)
    }
}

/// The days of a calendar, by date.
type Calendar = BTreeMap<String, u64>;

#[derive(Clone, Debug, Default)]
struct Series {
    calendar: Calendar,
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
    fn trim(&mut self, precision: &Precision, present: &Slice) {
        let oldest = present.start - precision.slices * present.longest;
        self.slices.remove(&oldest);
        if self.slices.len() as u64 > precision.slices {
            self.slices.retain(|&start, _| start > oldest);
        }
    }
}

#[derive(Clone, Debug)]
enum Own {
    /// The clock moves to the next idle time, or to just before it.
    Edge(u64),
    Add(Called, Add),
    Get(usize, Vec<usize>),
    Names {
        prefix: &'static str,
        after: Option<usize>,
        limit: usize,
    },
    /// A list of days is written: so many before and after the current one, with starts that are
    /// wrong by so many seconds.
    Calendar {
        before: u64,
        after: u64,
        wrong_by: i64,
    },
    /// A window's current slice, or its kept count, has room for only `room` more.
    Fill {
        precision: usize,
        name: usize,
        room: i64,
        kept: bool,
    },
    /// The buffer is cut.
    Cut,
}

#[derive(Clone, Debug)]
struct Add {
    /// The family's windows.
    windows: Vec<usize>,
    /// Those that the caller knows.
    known: Vec<usize>,
    keep: Vec<usize>,
    late_ms: u64,
    max_pending: usize,
    hits: Vec<(usize, i64, At)>,
}

/// The time that a hit brings.
#[derive(Clone, Copy, Debug)]
enum At {
    Now,
    /// So many ms ago; ahead if it is negative.
    Ago(i64),
    NoNumber,
}

impl At {
    fn word(self, now: u64) -> String {
        match self {
            At::Now => String::new(),
            At::Ago(ms) => now.saturating_add_signed(-ms).to_string(),
            At::NoNumber => "1e12".into(),
        }
    }
}

/// Increases the count, and returns whether it was 0 before.
fn increase(count: &mut i64, amount: i64) -> Result<bool, &'static str> {
    let was_nothing = *count == 0;
    *count = count.checked_add(amount).ok_or("RANGE")?;
    Ok(was_nothing)
}

fn joined(indexes: &[usize], word: impl Fn(&Precision) -> String) -> String {
    let words = indexes.iter().map(|&index| word(&PRECISIONS[index]));
    words.collect::<Vec<_>>().join(" ")
}

impl Add {
    fn windows(&self) -> Vec<(&'static Precision, bool)> {
        let window = |index: &usize| (&PRECISIONS[*index], self.keep.contains(index));
        self.windows.iter().map(window).collect()
    }

    /// Returns the settings that the script reads.
    fn settings(&self) -> [(&'static str, String); 4] {
        [
            (
                "=windows",
                joined(&self.windows, |it| format!("{} {}", it.label, it.slices)),
            ),
            ("=keep", joined(&self.keep, |it| it.label.into())),
            ("=late", self.late_ms.to_string()),
            ("=max_pending", self.max_pending.to_string()),
        ]
    }

    fn keys(&self) -> Vec<String> {
        let windows = self.hits.iter().flat_map(|&(name, ..)| {
            let key = move |&index: &usize| PRECISIONS[index].key(NAMES[name]);
            self.known.iter().map(key)
        });
        let own = ["buffer", "meta", "names", "idle"];
        let calendars = ["calendar:day", "calendar:month"];
        let fixed = FENCE.into_iter().chain(calendars).chain(own);
        fixed.map(str::to_owned).chain(windows).collect()
    }
}

impl Series {
    /// Returns the starts and dates of the calendar, ascending.
    fn days(&self) -> Vec<(u64, &str)> {
        let days = self.calendar.iter();
        let mut days: Vec<_> = days.map(|(date, start)| (*start, date.as_str())).collect();
        days.sort_unstable();
        days
    }

    /// Returns the slice of that time, in seconds; `None` if the calendar has none.
    fn slice(&self, precision: &Precision, at: u64) -> Option<Slice> {
        if let Some(length) = precision.length {
            let start = at / length * length;
            return Some(Slice {
                start,
                name: start.to_string(),
                longest: length,
                begun: 0,
            });
        }
        let days = self.days();
        let begun = days.partition_point(|(start, _)| *start <= at);
        let (start, date) = *days.get(begun.checked_sub(1)?)?;
        let (end, _) = *days.get(begun)?;
        // a fifth more than the current slice, as in the script
        Some(Slice {
            start,
            name: date.to_owned(),
            longest: ((end - start) * 6).div_ceil(5),
            begun,
        })
    }

    /// Counts a hit, or returns the reason of a refusal, after which the caller discards all
    /// changes.
    fn count(
        &mut self,
        now: u64,
        add: &Add,
        present: &[Option<Slice>],
        (name, amount, at): (&str, i64, At),
        sent: &Sent,
    ) -> Result<(), &'static str> {
        if name.is_empty() || name.len() > 200 {
            return Err("BADID");
        }
        if amount < 1 {
            return Err("RANGE");
        }
        let present: Option<Vec<_>> = present.iter().cloned().collect();
        let present = present.ok_or("NOCALENDAR")?;
        let at = match at {
            At::Now => now,
            At::Ago(ms) if ms < -60_000 => return Err("BADTIME"),
            At::Ago(ms) => now.saturating_add_signed(-ms).min(now),
            At::NoNumber => return Err("BADTIME"),
        };
        let targets = self.targets(now, at, add, &present)?;
        let kept = targets.iter().filter_map(|(.., id)| id.as_ref());
        let kept = kept.map(|prefix| prefix.to_owned() + name);
        let fresh = kept.filter(|id| !self.partition.buffer.contains_key(id));
        let fresh = fresh.count();
        if fresh > 0 && self.partition.buffer.len() + fresh > add.max_pending {
            return Err("FULL");
        }
        // the first of the precisions with the longest window
        let windows = add.windows();
        let reach = |index: &usize| windows[*index].0.slices * present[*index].longest;
        let longest = (0..windows.len()).rev().max_by_key(reach).unwrap();
        for (index, start, id) in targets {
            if let Some(start) = start {
                let (precision, present) = (windows[index].0, &present[index]);
                let key = precision.key(name);
                sent.look_at(&key)?;
                let window = self.windows.entry(key).or_default();
                if increase(window.slices.entry(start).or_default(), amount)? {
                    window.trim(precision, present);
                    let gone = (present.start + (precision.slices + 1) * present.longest) * 1000;
                    window.lives = window.lives.max(Some(gone - now));
                    if index == longest {
                        let idle = self.idle.entry(name.into()).or_default();
                        *idle = gone.max(*idle);
                        self.idle.retain(|_, idle| *idle > now);
                        self.names_live = self.names_live.max(Some(gone - now));
                    }
                }
            }
            if let Some(prefix) = id {
                let count = self.partition.buffer.entry(prefix + name).or_default();
                increase(count, amount)?;
            }
        }
        Ok(())
    }

    /// Returns what a hit of that time counts in: the windows, each with the start of a slice that
    /// is in it, and what precedes the name in the kept id.
    #[expect(clippy::type_complexity, reason = "of this function only")]
    fn targets(
        &self,
        now: u64,
        at: u64,
        add: &Add,
        present: &[Slice],
    ) -> Result<Vec<(usize, Option<u64>, Option<String>)>, &'static str> {
        let mut targets = vec![];
        for (index, (precision, is_kept)) in add.windows().into_iter().enumerate() {
            let slice = self.slice(precision, at / 1000);
            let ago = slice.as_ref().map(|slice| match precision.length {
                Some(length) => (present[index].start - slice.start) / length,
                None => (present[index].begun - slice.begun) as u64,
            });
            let is_in = ago.is_some_and(|ago| ago < precision.slices);
            let is_late = now - at <= add.late_ms;
            match slice {
                Some(slice) if is_in || is_kept && is_late => {
                    let label = match add.keep.len() {
                        1 => String::new(),
                        _ => format!("{}/", precision.label),
                    };
                    let id = is_kept.then(|| format!("{label}{}/", slice.name));
                    targets.push((index, is_in.then_some(slice.start), id));
                }
                _ if is_kept => return Err("BADTIME"),
                _ => {}
            }
        }
        if targets.is_empty() {
            Err("BADTIME")
        } else {
            Ok(targets)
        }
    }

    /// Returns the reply to a list of days, in seconds.
    fn write(&mut self, now: u64, list: &[(u64, String)]) -> Value {
        let now_s = now / 1000;
        if list[0].0 > now_s || list[list.len() - 1].0 <= now_s {
            return reply("STALE", [text(now)]);
        }
        let (stays, later): (Calendar, Calendar) = self
            .calendar
            .clone()
            .into_iter()
            .partition(|(_, start)| *start <= now_s + FIXED_S);
        let first = stays.values().min().copied().unwrap_or(u64::MAX);
        let last = stays.values().max().copied().unwrap_or(0);
        let mut after = stays.clone();
        for (start, date) in list {
            let is_new =
                *start > now_s + FIXED_S || *start < first || later.is_empty() && *start > last;
            if !stays.contains_key(date) && is_new {
                after.insert(date.clone(), *start);
            } else if let Some(before) = later.get(date) {
                after.insert(date.clone(), *before);
            }
        }
        let added = after
            .iter()
            .filter(|(date, start)| self.calendar.get(*date) != Some(start));
        let removed = self.calendar.iter();
        let removed = removed.filter(|(date, start)| after.get(*date) != Some(start));
        let changed = added.count().max(removed.count());
        self.calendar = after;
        reply("OK", [int(changed)])
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

    /// Returns the reply to a read of windows.
    fn read(&self, now: u64, family: &Family, precision: &Precision, names: &[usize]) -> Value {
        let windows = family.get("=windows").map_or("", String::as_str);
        let given: Vec<_> = windows.split(' ').step_by(2).collect();
        if !given.contains(&precision.label) {
            return reply("MISMATCH", []);
        }
        let now_s = now / 1000;
        let starts: Vec<_> = if let Some(length) = precision.length {
            let current = now_s / length;
            let first = current + 1 - precision.slices;
            (first..=current).map(|number| number * length).collect()
        } else {
            let days = self.days();
            let begun = days.partition_point(|(start, _)| *start <= now_s);
            if begun == 0 || begun == days.len() {
                return reply("NOCALENDAR", []);
            }
            let first = begun.saturating_sub(precision.slices as usize);
            days[first..begun].iter().map(|(start, _)| *start).collect()
        };
        let joined = |numbers: Vec<String>| text(numbers.join(" "));
        let counts = names.iter().map(|&name| {
            let window = self.windows.get(&precision.key(NAMES[name]));
            let count = |start| window.and_then(|window| window.slices.get(start));
            let counts = starts.iter().map(|start| count(start).unwrap_or(&0));
            joined(counts.map(ToString::to_string).collect())
        });
        let all = joined(starts.iter().map(ToString::to_string).collect());
        reply("OK", [all].into_iter().chain(counts))
    }
}

fn add() -> impl Strategy<Value = Add> {
    let all = || (0..PRECISIONS.len()).collect::<Vec<_>>();
    let windows = subsequence(all(), 1..=PRECISIONS.len()).prop_shuffle();
    let name = prop_oneof![15 => 0..VALID, 1 => VALID..NAMES.len()];
    let amount = prop_oneof![
        20 => 1..5_i64,
        2 => Just(999_999_999_999_999),
        1 => Just(i64::MAX),
        1 => -1..=0_i64
    ];
    let at = prop_oneof![
        12 => Just(At::Now),
        4 => (0..700_000_i64).prop_map(At::Ago),
        2 => (0..5_000_000_i64).prop_map(At::Ago),
        1 => (-120_000..0_i64).prop_map(At::Ago),
        1 => select(vec![-60_000_i64, -60_001, 900_000, 900_001]).prop_map(At::Ago),
        1 => Just(At::NoNumber),
    ];
    let kept = subsequence(all(), 0..=2);
    let late_ms = select(vec![900_000_u64, 900_000, 10_000_000]);
    let max_pending = select(vec![1_000_000_usize, 1_000_000, 1_000_000, 3, 8]);
    let is_outdated = prop_oneof![12 => Just(false), 1 => Just(true)];
    let known = subsequence(all(), 1..=PRECISIONS.len()).prop_shuffle();
    let hits = vec((name, amount, at), 1..5);
    let parts = (
        windows,
        kept,
        late_ms,
        max_pending,
        is_outdated,
        known,
        hits,
    );
    parts.prop_map(
        |(windows, mut keep, late_ms, max_pending, is_outdated, known, hits)| {
            keep.retain(|index| windows.contains(index));
            Add {
                known: if is_outdated { known } else { windows.clone() },
                windows,
                keep,
                late_ms,
                max_pending,
                hits,
            }
        },
    )
}

fn own() -> impl Strategy<Value = Own> {
    let add = (called((0.12, 0.1)), add()).prop_map(|(called, add)| Own::Add(called, add));
    let get = (0..PRECISIONS.len(), vec(0..VALID, 1..4));
    let prefix = select(vec!["", "", "a", "a ", "b", "x", "é"]);
    let names = (prefix, proptest::option::of(0..VALID), 1..5_usize);
    let names = names.prop_map(|(prefix, after, limit)| Own::Names {
        prefix,
        after,
        limit,
    });
    let wrong_by = prop_oneof![2 => Just(0_i64), 1 => -200..200_i64];
    let calendar = (0..9_u64, 1..14_u64, wrong_by);
    let calendar = calendar.prop_map(|(before, after, wrong_by)| Own::Calendar {
        before,
        after,
        wrong_by,
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
        18 => add,
        3 => get.prop_map(|(precision, names)| Own::Get(precision, names)),
        2 => names,
        4 => calendar,
        2 => fill,
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
        series.calendar(frame, 8, 13, 0)?;
        Ok(series)
    }

    fn step(&mut self, frame: &mut Frame, step: &Own) -> Checked {
        let now = frame.now;
        match step {
            Own::Edge(early) => {
                let next = self.idle.values().filter(|at| **at > now).min();
                frame.now = next.map_or(now, |at| at - early);
            }
            Own::Add(called, add) => self.add(frame, called, add)?,
            Own::Get(precision, names) => {
                let precision = &PRECISIONS[*precision];
                let home = [FENCE[0], "calendar:day", "calendar:month"].map(str::to_owned);
                let windows = names.iter().map(|&name| precision.key(NAMES[name]));
                let keys: Vec<_> = home.into_iter().chain(windows).collect();
                prop_assert_eq!(
                    frame.call("series_get", &keys, &[precision.label, &now.to_string()])?,
                    self.read(now, &frame.family, precision, names)
                );
            }
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
                        &[prefix, after, &limit.to_string(), &now.to_string()]
                    )?,
                    self.names(now, prefix, after, *limit)
                );
            }
            Own::Calendar {
                before,
                after,
                wrong_by,
            } => self.calendar(frame, *before, *after, *wrong_by)?,
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
            ("calendar:day", Content::zset(&self.calendar), None),
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
        let settings = add.settings();
        let mut fields = vec!["=settings", "max_pending windows keep late"];
        fields.extend(settings.iter().flat_map(|(name, value)| [*name, value]));
        frame.write("HSET", FENCE[0], &fields);
        frame.family.set([("=settings", fields[1])]);
        for (name, value) in &settings {
            frame.family.set([(name, value)]);
        }
        let args = add.hits.iter().flat_map(|&(name, amount, at)| {
            [NAMES[name].to_owned(), amount.to_string(), at.word(now)]
        });
        let sent = frame.sent(called, &keys);
        let counting = CountingCall {
            script: "series_add",
            kind: "series",
            keys: &keys,
            args: args.collect(),
            dup: record,
        };
        frame.count(counting, &sent, self, |series, _, _| {
            series.call(now, add, &sent)
        })?;
        Ok(())
    }

    /// Returns the reply, or the error of a call that changes nothing.
    fn call(&mut self, now: u64, add: &Add, sent: &Sent) -> Result<Counted, &'static str> {
        let mut present = vec![];
        for (nth, (precision, _)) in add.windows().into_iter().enumerate() {
            if precision.length.is_none() {
                sent.look_at("calendar:day")?;
            }
            present.push(self.slice(precision, now / 1000));
            // of further ones the key is that of the next hit, or missing
            let mut known = add
                .known
                .iter()
                .cycle()
                .take(add.known.len() * add.hits.len());
            if known.nth(nth) != Some(&add.windows[nth]) {
                return Ok((reply("MISMATCH", []), None));
            }
        }
        if add.windows.len() != add.known.len() {
            return Ok((reply("MISMATCH", []), None));
        }
        sent.look_at("names")?;
        sent.look_at("idle")?;
        let is_kept = !add.keep.is_empty();
        if is_kept {
            sent.look_at("buffer")?;
            sent.look_at("meta")?;
        }
        let (mut words, mut refused) = (vec![], vec![]);
        for (i, &(name, amount, at)) in add.hits.iter().enumerate() {
            let mut after = self.clone();
            match after.count(now, add, &present, (NAMES[name], amount, at), sent) {
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
        let counted = (add.hits.len() - refused.len()) as u64;
        let mut total = 0;
        if is_kept && counted > 0 {
            total = self.partition.note(now, counted);
        }
        if is_kept && !refused.is_empty() {
            let before = self.partition.number("refused").unwrap_or(0);
            let refused = before + refused.len() as u64;
            self.partition.set([("refused", refused.to_string())]);
        }
        let items = [int(total)].into_iter().chain(words);
        Ok((reply("OK", items), Some(refused.join(" "))))
    }

    /// Writes a list of days around now.
    fn calendar(&mut self, frame: &mut Frame, before: u64, after: u64, wrong_by: i64) -> Checked {
        let now_s = frame.now / 1000;
        let period = |number: u64| {
            let (half_hours, nth) = (number / 3, number % 3);
            half_hours * 1800 + DAYS[nth as usize]
        };
        let current = now_s / 1800 * 3;
        let current =
            current + DAYS.iter().filter(|start| **start <= now_s % 1800).count() as u64 - 1;
        let list: Vec<_> = (current - before..=current + after)
            .map(|number| {
                let start = period(number);
                (
                    start.saturating_add_signed(wrong_by),
                    format!("{start:010}"),
                )
            })
            .collect();
        let args = list.iter();
        let args = args.flat_map(|(start, date)| [start.to_string(), date.clone()]);
        let args: Vec<_> = std::iter::once(frame.now.to_string()).chain(args).collect();
        prop_assert_eq!(
            frame.call("series_calendar", &["calendar:day"], &args)?,
            self.write(frame.now, &list)
        );
        Ok(())
    }

    fn fill(&mut self, frame: &Frame, precision: &Precision, name: &str, count: i64, kept: bool) {
        let Some(slice) = self.slice(precision, frame.now / 1000) else {
            return;
        };
        let digits = count.to_string();
        if kept {
            let id = format!("{}/{name}", slice.name);
            frame.write("HSET", "buffer", &[&id, &digits]);
            self.partition.buffer.insert(id, count);
        } else {
            let window = precision.key(name);
            frame.write("HSET", &window, &[&slice.start.to_string(), &digits]);
            let window = self.windows.entry(window).or_default();
            window.slices.insert(slice.start, count);
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

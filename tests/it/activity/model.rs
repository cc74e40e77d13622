//! HOUSE test 3 for activity and daily visitors: random sequences of calls of their scripts, on a real Redis and on a plain
//! reference written from the scripts' headers. Replies and keys must be the same after every call. And an experiment:
//! the load under which a program that notes its visitors without scripts lost 350 of 6,800 views.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 300 unless said otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use redis::{Connection, Value, cmd, pipe};
use crate::support::model::{Checked, Model, Number, Scripts, agrees, notices, numbers};
use testkit::{RedisOptions, RedisServer};

/// Stripe and page of each place.
const PLACES: [&str; 4] = ["0:p", "1:p", "0:é/q", "12:p:"];
const VISITORS: [&str; 5] = ["a", "b", "A", "é", "nul\0"];
const IDS: [&str; 3] = ["12345/2014-09-20", "12345/2014-09-21", "é"];
const PRODUCERS: [&str; 2] = ["w1", "w2"];
const START: u64 = 1_410_134_400_000;
/// Three layers a minute, so long that nothing expires during a sequence.
const LAYER_MS: u64 = 20_000;
const MINUTE_MS: u64 = 60_000;
const SYNC_MS: u64 = 50_000;
const REMEMBER_MS: u64 = 86_400_000;

/// What a partition holds and does, as the headers say.
#[derive(Clone, Debug, Default)]
struct Reference {
    /// By place; those of the HyperLogLogs beside the others.
    views: [BTreeMap<&'static str, Views>; 2],
    /// By place: when each visitor was seen last.
    visitors: BTreeMap<&'static str, BTreeMap<&'static str, i64>>,
    /// By the end of the key: who is in a layer or minute.
    logs: BTreeMap<String, BTreeSet<&'static str>>,
    open: BTreeMap<String, i64>,
    agenda: BTreeMap<String, i64>,
    seen: BTreeMap<&'static str, BTreeSet<&'static str>>,
    buffer: BTreeMap<&'static str, i64>,
    meta: BTreeMap<&'static str, i64>,
    producers: BTreeMap<&'static str, LastCall>,
    /// By the end of the key: how long it stays, in ms.
    stays: BTreeMap<String, i64>,
}

/// By layer.
#[derive(Clone, Debug, Default)]
struct Views(BTreeMap<i64, i64>);

#[derive(Clone, Debug)]
struct LastCall {
    seq: u64,
    at: u64,
    /// Of visitors_first.
    words: Vec<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Hash(BTreeMap<String, String>),
    Zset(BTreeMap<String, String>),
    Set(BTreeSet<String>),
    Log(usize),
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock goes on, or back.
    Clock(i64),
    Touch(Call, Touch),
    Now(Window),
    First(Call, First),
    /// The buffer is cut off.
    Rotate,
    /// What is over goes to the buffer.
    Close,
    /// Redis loses its memory.
    Forget,
}

/// What the fence knows a call by.
#[derive(Clone, Debug)]
struct Call {
    producer: Option<usize>,
    number: Number,
    repeat: bool,
}

#[derive(Clone, Debug)]
struct Window {
    /// In HyperLogLogs, by a caller whose layer is so far from the current one.
    logs: Option<i64>,
    layers: i64,
    places: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Touch {
    window: Window,
    keep: bool,
    /// For each place.
    views: Vec<i64>,
    visitors: Vec<Vec<usize>>,
}

#[derive(Clone, Debug)]
struct First {
    sync_hits: i64,
    max_pending: usize,
    visits: Vec<(usize, Vec<usize>)>,
}

fn text(text: impl ToString) -> Value {
    Value::BulkString(text.to_string().into())
}

fn answer(words: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(words.into_iter().collect())
}

fn status(word: &str) -> Value {
    answer([text(word)])
}

fn outside(now: u64) -> Value {
    answer([text("OUTSIDE"), text(now)])
}

fn page(place: &str) -> &str {
    place.split_once(':').unwrap().1
}

fn layer_of(now: u64) -> i64 {
    (now / LAYER_MS) as i64
}

/// The beginning of the minute in which the layer begins.
fn minute_of(layer: i64) -> i64 {
    layer * LAYER_MS as i64 / MINUTE_MS as i64 * 60
}

fn longer(stays: &mut BTreeMap<String, i64>, key: String, ms: i64) {
    let stay = stays.entry(key).or_default();
    *stay = ms.max(*stay);
}

fn texts<K: ToString, V: ToString>(fields: &BTreeMap<K, V>) -> BTreeMap<String, String> {
    fields.iter().map(|(field, value)| (field.to_string(), value.to_string())).collect()
}

impl Views {
    /// Counts, and answers whether the layer is new, and whether it is looked for who left the window.
    fn count(&mut self, layer: i64, window: i64, views: i64) -> (bool, bool) {
        let is_opened = !self.0.contains_key(&layer);
        let sum = self.0.entry(layer).or_default();
        *sum += views;
        let looks = is_opened || *sum / 64 > (*sum - views) / 64;
        if is_opened {
            self.0.retain(|&its_layer, _| its_layer > layer - window);
        }
        (is_opened, looks)
    }

    fn sum(&self, layer: i64, window: i64) -> i64 {
        self.0.range(layer - window + 1..).map(|(_, views)| views).sum()
    }
}

impl Reference {
    /// What a call is answered that is not executed: whether it was before, or a repeat that nobody remembers.
    fn fenced(&self, call: &Call, seq: u64) -> Option<&'static str> {
        match self.producers.get(PRODUCERS[call.producer?]) {
            Some(last) => (seq <= last.seq).then_some("DUP"),
            None => call.repeat.then_some("UNKNOWN"),
        }
    }

    fn note(&mut self, now: u64, call: &Call, seq: u64, words: Vec<&'static str>) {
        if let Some(producer) = call.producer {
            self.producers.insert(PRODUCERS[producer], LastCall { seq, at: now, words });
        }
    }

    fn keep(&mut self, kind: &str, minute: i64, place: &str, count: i64) {
        if count > 0 {
            let id = format!("{kind}/{minute}/{}", page(place));
            *self.open.entry(id.clone()).or_default() += count;
            self.agenda.insert(id, (minute + 60) * 1000);
        }
    }

    fn touch(&mut self, now: u64, call: &Call, seq: u64, touch: &Touch) -> Value {
        if let Some(word) = self.fenced(call, seq) {
            return status(word);
        }
        let (layer, Window { logs, layers, places }) = (layer_of(now), &touch.window);
        if logs.is_some_and(|off| off != 0) {
            return outside(now);
        }
        self.note(now, call, seq, vec![]);
        let mut stay = (layers + 1) * LAYER_MS as i64;
        if touch.keep && logs.is_none() {
            stay = stay.max((MINUTE_MS + LAYER_MS) as i64);
        }
        for ((&place, &views), visitors) in places.iter().zip(&touch.views).zip(&touch.visitors) {
            let place = PLACES[place];
            let (kind, others) = match logs {
                None => ("", format!("visitors:{place}")),
                Some(_) => ("9", format!("layer:{layer}:9{place}")),
            };
            let (is_opened, looks) =
                self.views[usize::from(logs.is_some())].entry(place).or_default().count(layer, *layers, views);
            if is_opened {
                longer(&mut self.stays, format!("views:{kind}{place}"), stay);
                longer(&mut self.stays, others, stay);
            }
            let is_new = match logs {
                None => self.see(place, now, *layers, touch.keep, looks, visitors),
                Some(_) => self.log(place, layer, touch.keep, visitors),
            };
            if touch.keep {
                self.keep("views", minute_of(layer), place, views);
                self.keep("visitors", minute_of(layer), place, is_new);
            }
        }
        status("OK")
    }

    /// Notes who was there, and answers how many of them are new in the minute.
    fn see(&mut self, place: &'static str, now: u64, layers: i64, keep: bool, looks: bool, visitors: &[usize]) -> i64 {
        let seen = self.visitors.entry(place).or_default();
        let (layer, now) = (layer_of(now), now as i64);
        let minute = minute_of(layer) * 1000;
        let mut is_new = 0;
        for &visitor in visitors {
            let last = seen.get(VISITORS[visitor]).copied();
            is_new += i64::from(last.is_none_or(|last| last < minute));
            seen.insert(VISITORS[visitor], last.map_or(now, |last| last.max(now)));
        }
        // who is of this minute is not forgotten while minutes are kept
        let since = (layer - layers + 1) * LAYER_MS as i64;
        let since = if keep { since.min(minute) } else { since };
        seen.retain(|_, last| !looks || *last >= since);
        is_new
    }

    fn log(&mut self, place: &str, layer: i64, keep: bool, visitors: &[usize]) -> i64 {
        let visitors: BTreeSet<_> = visitors.iter().map(|&visitor| VISITORS[visitor]).collect();
        self.logs.entry(format!("layer:{layer}:9{place}")).or_default().extend(&visitors);
        if !keep {
            return 0;
        }
        let key = format!("minute:{}:9{place}", minute_of(layer));
        let minute = self.logs.entry(key.clone()).or_default();
        let before = minute.len();
        minute.extend(&visitors);
        self.stays.insert(key, 180_000);
        (minute.len() - before) as i64
    }

    fn now(&self, now: u64, Window { logs, layers, places }: &Window) -> Value {
        let layer = layer_of(now);
        if logs.is_some_and(|off| off != 0) {
            return outside(now);
        }
        let window = layer - layers + 1..;
        let of_place = |&place: &usize| {
            let place = PLACES[place];
            let views = self.views[usize::from(logs.is_some())].get(place).map_or(0, |views| views.sum(layer, *layers));
            let visitors = match logs {
                None => self
                    .visitors
                    .get(place)
                    .map_or(0, |seen| seen.values().filter(|last| window.contains(&layer_of(**last as u64))).count()),
                Some(_) => {
                    let keys = (layer - layers + 1..=layer).map(|layer| format!("layer:{layer}:9{place}"));
                    keys.filter_map(|key| self.logs.get(&key)).flatten().collect::<BTreeSet<_>>().len()
                }
            };
            [Value::Int(views), Value::Int(visitors as i64)]
        };
        answer([text("OK")].into_iter().chain(places.iter().flat_map(of_place)))
    }

    fn first(&mut self, now: u64, call: &Call, seq: u64, first: &First) -> Value {
        let reply = |status: &str, is_due: bool, words: &[&str]| {
            let word = |word: &&str| match *word {
                "NEW" => Value::Int(1),
                "" => Value::Int(0),
                other => text(other),
            };
            answer([text(status), Value::Int(i64::from(is_due))].into_iter().chain(words.iter().map(word)))
        };
        let since = self.meta.get("rotated_at").map(|at| now as i64 - at);
        let is_time = since.is_none_or(|since| since < 0 || since >= SYNC_MS as i64);
        let hits = self.meta.get("hits").copied().unwrap_or(0);
        if let Some(word) = self.fenced(call, seq) {
            if word == "UNKNOWN" {
                return status(word);
            }
            let last = &self.producers[PRODUCERS[call.producer.unwrap()]];
            let visits = first.visits.iter().map(|(_, visitors)| visitors.len()).sum();
            let mut words = if seq == last.seq { last.words.clone() } else { vec![] };
            words.resize(visits, "");
            return reply("DUP", is_time || hits >= first.sync_hits, &words);
        }
        let mut words = vec![];
        for (id, visitors) in &first.visits {
            let id = IDS[*id];
            let is_full = !self.buffer.contains_key(id) && self.buffer.len() >= first.max_pending;
            for &visitor in visitors {
                let seen = self.seen.entry(id).or_default();
                words.push(match () {
                    () if seen.contains(VISITORS[visitor]) => "",
                    () if is_full => "FULL",
                    () => {
                        seen.insert(VISITORS[visitor]);
                        *self.buffer.entry(id).or_default() += 1;
                        self.stays.insert(format!("seen:{id}"), REMEMBER_MS as i64);
                        "NEW"
                    }
                });
            }
        }
        self.seen.retain(|_, seen| !seen.is_empty());
        let new = words.iter().filter(|word| **word == "NEW").count() as i64;
        if new > 0 {
            self.meta.insert("hits", hits + new);
            if hits == 0 {
                self.meta.insert("first_at", now as i64);
            }
        }
        self.note(now, call, seq, words.clone());
        reply("OK", is_time || hits + new >= first.sync_hits, &words)
    }

    /// Every key as it is in Redis, by its end.
    fn keys(&self) -> BTreeMap<String, Content> {
        let last_call = |LastCall { seq, at, words }: &LastCall| {
            let words = words.iter().enumerate().filter(|(_, word)| !word.is_empty());
            words.fold(format!("{seq} {at}"), |text, (i, word)| format!("{text} {}:{word}", i + 1))
        };
        let producers = self.producers.iter().map(|(name, call)| (*name, last_call(call))).collect();
        let whole = [
            ("open", Content::Hash(texts(&self.open))),
            ("agenda", Content::Zset(texts(&self.agenda))),
            ("buffer", Content::Hash(texts(&self.buffer))),
            ("meta", Content::Hash(texts(&self.meta))),
            ("producers", Content::Hash(texts(&producers))),
        ];
        let whole = whole.into_iter().map(|(key, content)| (key.to_owned(), content));
        let [exact, logged] = &self.views;
        let views = exact.iter().map(|(place, views)| (format!("views:{place}"), Content::Hash(texts(&views.0))));
        let others = logged.iter().map(|(place, views)| (format!("views:9{place}"), Content::Hash(texts(&views.0))));
        let visitors =
            self.visitors.iter().map(|(place, seen)| (format!("visitors:{place}"), Content::Zset(texts(seen))));
        let logs = self.logs.iter().map(|(key, visitors)| (key.clone(), Content::Log(visitors.len())));
        let seen = self.seen.iter().map(|(id, seen)| {
            (format!("seen:{id}"), Content::Set(seen.iter().map(|&visitor| visitor.to_owned()).collect()))
        });
        let all = whole.chain(views).chain(others).chain(visitors).chain(logs).chain(seen);
        all.filter(|(_, content)| !content.is_empty()).collect()
    }
}

impl Content {
    fn is_empty(&self) -> bool {
        match self {
            Content::Hash(fields) | Content::Zset(fields) => fields.is_empty(),
            Content::Set(members) => members.is_empty(),
            Content::Log(count) => *count == 0,
        }
    }
}

fn call() -> impl Strategy<Value = Call> {
    let number = numbers(8);
    let producer = prop_oneof![1 => Just(None), 2 => (0..PRODUCERS.len()).prop_map(Some)];
    (producer, number).prop_map(|(producer, (number, repeat))| Call { producer, number, repeat })
}

fn window() -> impl Strategy<Value = Window> {
    let logs = prop_oneof![4 => Just(None), 3 => Just(Some(0)), 1 => select(vec![Some(-1), Some(1)])];
    let places = vec(0..PLACES.len(), 1..4);
    (logs, select(vec![2_i64, 4, 4, 4, 7]), places).prop_map(|(logs, layers, places)| Window { logs, layers, places })
}

fn some_visitors() -> impl Strategy<Value = Vec<usize>> {
    vec(0..VISITORS.len(), 1..5)
}

fn step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![6 => 0..20_000_i64, 3 => 20_000..100_000_i64, 1 => -20_000..0_i64, 1 => -200_000..0_i64];
    let views = prop_oneof![4 => 1..9_i64, 1 => 30..90_i64];
    let touch = (window(), any::<bool>(), vec(views, 3), vec(some_visitors(), 3));
    let touch = touch.prop_map(|(window, keep, views, visitors)| Touch { window, keep, views, visitors });
    let visits = vec((0..IDS.len(), some_visitors()), 1..4);
    let first = (select(vec![0_i64, 3, 100]), select(vec![0_usize, 1, 2, 9, 9]), visits);
    let first = first.prop_map(|(sync_hits, max_pending, visits)| First { sync_hits, max_pending, visits });
    prop_oneof![
        8 => clock.prop_map(Step::Clock),
        12 => (call(), touch).prop_map(|(call, touch)| Step::Touch(call, touch)),
        6 => window().prop_map(Step::Now),
        6 => (call(), first).prop_map(|(call, first)| Step::First(call, first)),
        1 => Just(Step::Rotate),
        1 => Just(Step::Close),
        1 => prop::bool::weighted(0.3).prop_map(|forget| if forget { Step::Forget } else { Step::Clock(1) }),
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
    const FAMILY: &'static str = "shop/here";

    fn steps() -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn new(scripts: Scripts) -> Self {
        Play { scripts, reference: Reference::default(), now: START, last_seq: [0; PRODUCERS.len()] }
    }

    fn step(&mut self, step: &Step) -> Checked {
        match step {
            Step::Clock(ms) => self.now = self.now.saturating_add_signed(*ms),
            Step::Touch(call, touch) => self.touch(call, touch)?,
            Step::Now(window) => self.now(window)?,
            Step::First(call, first) => self.first(call, first)?,
            Step::Rotate => self.rotate(),
            Step::Close => self.close(),
            Step::Forget => {
                self.scripts.forget();
                self.reference = Reference::default();
            }
        }
        self.check_keys()
    }
}

impl Play {
    /// The number that the call has, and its fence as arguments.
    fn fence(&mut self, call: &Call) -> (u64, [String; 3]) {
        let seq = call.producer.map_or(0, |producer| {
            let last = &mut self.last_seq[producer];
            call.number.after(last)
        });
        let producer = call.producer.map_or("", |producer| PRODUCERS[producer]);
        let attempt = if call.repeat { "repeat" } else { "first" };
        (seq, [producer.into(), seq.to_string(), attempt.into()])
    }

    /// The layer that the caller believes to be the current one.
    fn layer(&self, off: i64) -> i64 {
        layer_of(self.now) + off
    }

    fn touch(&mut self, call: &Call, touch: &Touch) -> Checked {
        let (seq, fence) = self.fence(call);
        let Window { logs, layers, places } = &touch.window;
        let mut keys = ["producers", "open", "agenda"].map(str::to_owned).to_vec();
        let numbers = [self.now as i64, LAYER_MS as i64, *layers, i64::from(touch.keep)];
        let numbers = numbers.into_iter().chain(logs.map(|off| self.layer(off))).chain([places.len() as i64]);
        let mut args: Vec<_> = fence.into_iter().chain(numbers.map(|number| number.to_string())).collect();
        for ((&place, views), visitors) in places.iter().zip(&touch.views).zip(&touch.visitors) {
            let place = PLACES[place];
            match *logs {
                None => keys.extend([format!("views:{place}"), format!("visitors:{place}")]),
                Some(off) => {
                    let layer = self.layer(off);
                    keys.extend([format!("views:9{place}"), format!("layer:{layer}:9{place}")]);
                    keys.extend(touch.keep.then(|| format!("minute:{}:9{place}", minute_of(layer))));
                }
            }
            args.extend([page(place).to_owned(), views.to_string(), visitors.len().to_string()]);
            args.extend(visitors.iter().map(|&visitor| VISITORS[visitor].to_owned()));
        }
        let script = if logs.is_some() { "activity_touch_hll" } else { "activity_touch" };
        let got = self.call(script, &keys, &args)?;
        prop_assert_eq!(got, self.reference.touch(self.now, call, seq, touch));
        Ok(())
    }

    fn now(&mut self, window: &Window) -> Checked {
        let Window { logs, layers, places } = window;
        let keys = places.iter().map(|&place| PLACES[place]).flat_map(|place| match *logs {
            None => vec![format!("views:{place}"), format!("visitors:{place}")],
            Some(off) => {
                let layer = self.layer(off);
                let logs = (layer - layers + 1..=layer).map(|layer| format!("layer:{layer}:9{place}"));
                [format!("views:9{place}")].into_iter().chain(logs).collect()
            }
        });
        let keys: Vec<_> = keys.collect();
        let numbers = [self.now as i64, LAYER_MS as i64, *layers].into_iter().chain(logs.map(|off| self.layer(off)));
        let args: Vec<_> = numbers.map(|number| number.to_string()).collect();
        let script = if logs.is_some() { "activity_now_hll" } else { "activity_now" };
        let got = self.call(script, &keys, &args)?;
        prop_assert_eq!(got, self.reference.now(self.now, window));
        Ok(())
    }

    fn first(&mut self, call: &Call, first: &First) -> Checked {
        let (seq, fence) = self.fence(call);
        let numbers = [first.sync_hits as u64, SYNC_MS, first.max_pending as u64, REMEMBER_MS, self.now];
        let numbers = numbers.into_iter().chain([first.visits.len() as u64]).map(|number| number.to_string());
        let mut args: Vec<_> = fence.into_iter().chain(numbers).collect();
        let mut keys = ["buffer", "meta", "producers"].map(str::to_owned).to_vec();
        for (id, visitors) in &first.visits {
            keys.push(format!("seen:{}", IDS[*id]));
            args.extend([IDS[*id].to_owned(), visitors.len().to_string()]);
            args.extend(visitors.iter().map(|&visitor| VISITORS[visitor].to_owned()));
        }
        let got = self.call("visitors_first", &keys, &args)?;
        prop_assert_eq!(got, self.reference.first(self.now, call, seq, first));
        Ok(())
    }

    fn call(&self, script: &str, keys: &[String], args: &[String]) -> Result<Value, TestCaseError> {
        self.scripts.call(script, &keys.iter().map(String::as_str).collect::<Vec<_>>(), args)
    }

    /// What is left when the buffer was cut off, and the batch released.
    fn rotate(&mut self) {
        let [buffer, meta] = ["buffer", "meta"].map(|kind| self.scripts.key(kind));
        self.scripts.ask::<()>(
            pipe().del(buffer).ignore().hset_multiple(meta, &[("hits", 0), ("rotated_at", self.now)]).ignore(),
        );
        self.reference.buffer.clear();
        self.reference.meta.extend([("hits", 0), ("rotated_at", self.now as i64)]);
    }

    /// What is left when the minutes that are over were closed, and came to the database.
    fn close(&mut self) {
        let over: Vec<_> =
            self.reference.agenda.extract_if(.., |_, at| *at <= self.now as i64).map(|(id, _)| id).collect();
        for id in &over {
            self.reference.open.remove(id);
            let [open, agenda] = ["open", "agenda"].map(|kind| self.scripts.key(kind));
            self.scripts.ask::<()>(pipe().hdel(open, id).ignore().zrem(agenda, id).ignore());
        }
    }

    fn check_keys(&mut self) -> Checked {
        let expected = self.reference.keys();
        let (names,): (BTreeSet<String>,) = self.scripts.ask(pipe().cmd("KEYS").arg("*"));
        prop_assert_eq!(&names, &expected.keys().map(|key| self.scripts.key(key)).collect(), "keys");
        let mut read = pipe();
        for (end, content) in &expected {
            let key = self.scripts.key(end);
            match content {
                Content::Hash(_) => read.hgetall(&key),
                Content::Zset(_) => read.zrange_withscores(&key, 0, -1),
                Content::Set(_) => read.smembers(&key),
                Content::Log(_) => read.pfcount(&key),
            };
            read.pttl(&key);
        }
        let there: Vec<Value> = if expected.is_empty() { vec![] } else { self.scripts.ask(&read) };
        for ((end, content), got) in expected.iter().zip(there.chunks(2)) {
            let stay: i64 = redis::from_redis_value_ref(&got[1]).unwrap();
            let got = match content {
                Content::Hash(_) => Content::Hash(redis::from_redis_value_ref(&got[0]).unwrap()),
                Content::Zset(_) => Content::Zset(redis::from_redis_value_ref(&got[0]).unwrap()),
                Content::Set(_) => Content::Set(redis::from_redis_value_ref(&got[0]).unwrap()),
                Content::Log(_) => Content::Log(redis::from_redis_value_ref(&got[0]).unwrap()),
            };
            prop_assert_eq!(&got, content, "{}", end);
            match self.reference.stays.get(end) {
                Some(&expected) => {
                    prop_assert!((expected - 20_000..=expected).contains(&stay), "{end} stays {stay} ms")
                }
                None => prop_assert_eq!(stay, -1, "{} expires", end),
            }
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
        ("activity_touch", "seq <= tonumber(last:match('^%d+'))", "false"),
        ("activity_touch", "attempt == 'repeat' and", "false and"),
        ("activity_touch", "'ZADD', visitors, 'GT', now_ms", "'ZADD', visitors, now_ms"),
        ("activity_touch", "'GT', unpack", "unpack"),
        ("activity_touch", "keep and math.min(since, minute_ms) or since", "since"),
        ("activity_touch", "opened[i] = sum == n", "opened[i] = false"),
        ("activity_touch", "or layer) <= gone", "or layer) < gone"),
        ("activity_touch", "sum % 64 < n", "false"),
        ("activity_touch", "minute_ms, '+inf') - before", "minute_ms, '+inf')"),
        ("activity_touch", "redis.call('PTTL', key) < ms", "false"),
        ("activity_touch", "if old > 0 then", "if false then"),
        ("activity_touch_hll", "seq <= tonumber(last:match('^%d+'))", "false"),
        ("activity_touch_hll", "math.floor(now / layer_ms) ~= layer", "false"),
        ("activity_touch_hll", "redis.call('PFCOUNT', keys[k + 2]) - before", "redis.call('PFCOUNT', keys[k + 2])"),
        ("activity_touch_hll", "prolong(keys[k + 1], stay)", ""),
        ("activity_now", "or gone) > gone", "or gone) >= gone"),
        ("activity_now", "(gone + 1) * layer_ms", "gone * layer_ms"),
        ("activity_now_hll", "k + 1, k + layers", "k + 2, k + layers"),
        ("activity_now_hll", "math.floor(now / tonumber(ARGV[2])) ~= layer", "false"),
        ("visitors_first", "seq <= last_seq", "false"),
        ("visitors_first", "redis.call('SADD', seen, ARGV[i]) == 1", "redis.call('SADD', seen, ARGV[i])"),
        ("visitors_first", "held >= max_pending", "false"),
        ("visitors_first", "if is_other then held = held + 1 end", ""),
        ("visitors_first", "if waiting == 0 then", "if true then"),
        ("visitors_first", "due(waiting + hits)", "due(waiting)"),
        ("visitors_first", "redis.call('PEXPIRE', seen, ARGV[7])", ""),
    ])
    .await;
}

/// The load of the experiment, and what is known when it is over.
struct Experiment {
    redis: Connection,
    touch: String,
    now: String,
    /// By producer: the number of its last call.
    calls: [u64; 5],
}

const TAG: &str = "cf1:{shop/here/0}:";
const WIDTH: u32 = 15;
const LOAD_MS: u64 = 195_000;

impl Experiment {
    async fn new(server: &RedisServer) -> Self {
        let mut redis = server.client().get_connection().unwrap();
        let mut load = |name: &str| {
            let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/v1").join(name)).unwrap();
            cmd("SCRIPT").arg("LOAD").arg(source).query(&mut redis).unwrap()
        };
        let (touch, now) = (load("activity_touch.lua"), load("activity_now.lua"));
        Experiment { redis, touch, now, calls: [0; 5] }
    }

    /// One call with all of these visits, one a visitor and view; every third one is sent twice, as if its reply was lost.
    fn send(&mut self, at: u64, visits: &[String]) {
        let mut stripes = BTreeMap::<u32, Vec<&String>>::new();
        for visitor in visits {
            stripes.entry(crc32fast::hash(visitor.as_bytes()) % WIDTH).or_default().push(visitor);
        }
        let nth = (self.calls.iter().sum::<u64>() % 5) as usize;
        self.calls[nth] += 1;
        for attempt in ["first", "repeat"].iter().take(1 + usize::from(self.calls[nth].is_multiple_of(3))) {
            let mut call = cmd("EVALSHA");
            call.arg(&self.touch).arg(3 + 2 * stripes.len());
            for kind in ["producers", "open", "agenda"] {
                call.arg(format!("{TAG}{kind}"));
            }
            for stripe in stripes.keys() {
                call.arg(format!("{TAG}views:{stripe}:p")).arg(format!("{TAG}visitors:{stripe}:p"));
            }
            call.arg(format!("w{nth}"))
                .arg(self.calls[nth])
                .arg(*attempt)
                .arg(at)
                .arg(&[3000, 200, 1])
                .arg(stripes.len());
            for visitors in stripes.values() {
                let distinct: BTreeSet<_> = visitors.iter().collect();
                call.arg("p").arg(visitors.len()).arg(distinct.len());
                for visitor in distinct {
                    call.arg(*visitor);
                }
            }
            let (word,): (String,) = call.query(&mut self.redis).unwrap();
            assert_eq!(word, if *attempt == "first" { "OK" } else { "DUP" });
        }
    }

    /// Views and visitors of the page, all stripes together.
    fn sums(&mut self, at: u64) -> (u64, u64) {
        let mut call = cmd("EVALSHA");
        call.arg(&self.now).arg(2 * WIDTH);
        for stripe in 0..WIDTH {
            call.arg(format!("{TAG}views:{stripe}:p")).arg(format!("{TAG}visitors:{stripe}:p"));
        }
        let reply: Vec<Value> = call.arg(at).arg(&[3000, 200]).query(&mut self.redis).unwrap();
        let numbers: Vec<u64> = reply[1..].iter().map(|n| redis::from_redis_value_ref(n).unwrap()).collect();
        numbers.chunks(2).fold((0, 0), |(views, visitors), pair| (views + pair[0], visitors + pair[1]))
    }

    /// What the minutes had, of a kind.
    fn minutes(&mut self, kind: &str) -> u64 {
        let open: BTreeMap<String, u64> = cmd("HGETALL").arg(format!("{TAG}open")).query(&mut self.redis).unwrap();
        open.iter().filter(|(id, _)| id.starts_with(kind)).map(|(_, count)| count).sum()
    }
}

/// So many views a second for 195 s, from visitors that come again; not one is lost, nor counted twice.
async fn no_view_is_lost(rate: u64, per_call: usize) {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let mut experiment = Experiment::new(&server).await;
    let views = rate * LOAD_MS / 1000;
    let (mut everybody, mut by_minute, mut waiting) = (BTreeSet::new(), BTreeSet::new(), vec![]);
    for i in 0..views {
        let at = START + i * 1000 / rate;
        let visitor = format!("v{}", i * i % 9973);
        everybody.insert(visitor.clone());
        waiting.push(visitor);
        if waiting.len() == per_call || i == views - 1 {
            by_minute.extend(waiting.iter().map(|visitor| (at / MINUTE_MS, visitor.clone())));
            experiment.send(at, &waiting);
            waiting.clear();
        }
    }
    let distinct = everybody.len() as u64;
    assert_eq!(experiment.sums(START + LOAD_MS), (views, distinct), "views and visitors of the window");
    assert_eq!(experiment.minutes("views/"), views, "views of the minutes");
    assert_eq!(experiment.minutes("visitors/"), by_minute.len() as u64, "visitors of the minutes");
    assert_eq!(experiment.sums(START + LOAD_MS + 700_000), (0, 0), "when all have left");
}

#[tokio::test]
async fn no_view_is_lost_at_35_a_second() {
    no_view_is_lost(35, 1).await;
}

#[tokio::test]
async fn no_view_is_lost_at_3500_a_second() {
    no_view_is_lost(3500, 250).await;
}

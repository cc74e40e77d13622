//! The model of activity and daily visitors: random sequences of script calls, on a real Redis and
//! on a plain reference written from the scripts' headers. Replies and keys must be equal after
//! every call. An experiment repeats the load under which a program that counted visitors without
//! scripts lost 350 of 6,800 views.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 100 by default.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::support::model::{Checked, Model, Number, Scripts, agrees, notices, numbers};
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use redis::{Connection, Value, cmd, pipe};
use testkit::{RedisOptions, RedisServer};

/// The stripe and page of each place.
const PLACES: [&str; 4] = ["0:p", "1:p", "0:é/q", "12:p:"];
const VISITORS: [&str; 5] = ["a", "b", "A", "é", "nul\0"];
const IDS: [&str; 3] = ["12345/2014-09-20", "12345/2014-09-21", "é"];
/// The ids of visits: `IDS`, and two that are refused.
const VISIT_IDS: [&str; 5] = [IDS[0], IDS[1], IDS[2], "", TOO_LONG];
const TOO_LONG: &str = match std::str::from_utf8(&[b'x'; 256]) {
    Ok(text) => text,
    Err(_) => panic!("no text"),
};
const FENCE: [&str; 2] = ["calls", "calls_before"];
const TOUCH_KEYS: [&str; 4] = [FENCE[0], FENCE[1], "open", "schedule"];
const CALLERS: [&str; 2] = ["w1", "w2"];
const START: u64 = 1_410_134_400_000;
/// The length of a layer: three a minute, and long enough that nothing expires during a sequence.
const LAYER_MS: u64 = 20_000;
const MINUTE_MS: u64 = 60_000;
const EPOCH_MS: u64 = 60_000;
/// The fields that an application has configured, besides the kind.
const CONFIGURED: [(&str, &str); 2] = [("=partitions", "1"), ("=settings", "{}")];
const INCARNATION: i64 = 1_234_567_890_123_456;
const REMEMBER_MS: u64 = 86_400_000;

/// A partition's content and behaviour, as the headers describe them.
#[derive(Clone, Debug, Default)]
struct Reference {
    family: Family,
    /// The views by place: beside exact visitors, and beside HyperLogLogs.
    views: [BTreeMap<&'static str, Views>; 2],
    /// The time at which each visitor was last seen, by place.
    visitors: BTreeMap<&'static str, BTreeMap<&'static str, i64>>,
    /// The visitors of a layer or minute, by the end of the key.
    logs: BTreeMap<String, BTreeSet<&'static str>>,
    open: BTreeMap<String, i64>,
    schedule: BTreeMap<String, i64>,
    seen: BTreeMap<&'static str, BTreeSet<&'static str>>,
    buffer: BTreeMap<&'static str, i64>,
    meta: BTreeMap<&'static str, i64>,
    /// The time to live in ms, by the end of the key.
    ttls: BTreeMap<String, i64>,
}

/// The epochs and callers that a home partition knows.
#[derive(Clone, Debug, Default)]
struct Family {
    epoch: Option<String>,
    before: Option<String>,
    began_at: Option<u64>,
    /// The kind of the last call: the test calls scripts of two kinds on the same keys.
    kind: &'static str,
    max_pending: usize,
    calls: BTreeMap<&'static str, LastCall>,
    calls_before: BTreeMap<&'static str, LastCall>,
    /// The fields in the key of the previous epoch, besides its callers.
    left: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct LastCall {
    n: u64,
    /// The words of `visitors_first`.
    words: Vec<&'static str>,
}

/// The views by layer.
#[derive(Clone, Debug, Default)]
struct Views(BTreeMap<i64, i64>);

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Hash(BTreeMap<String, String>),
    Zset(BTreeMap<String, String>),
    Set(BTreeSet<String>),
    Log(usize),
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock moves forward or back.
    Clock(i64),
    /// A new epoch begins if one is due.
    Epoch,
    Touch(Call, Touch),
    Now(Window),
    First(Call, First),
    /// The pending count of an id leaves room for only `room` more.
    Fill {
        id: usize,
        room: i64,
    },
    /// The buffer is cut, and the batch released.
    Rotate,
    /// Minutes that are over are closed.
    Close,
    /// Redis loses its memory.
    Forget,
}

/// The arguments of a call's fence, and its disturbances.
#[derive(Clone, Debug)]
struct Call {
    caller: Option<usize>,
    number: Number,
    epoch: Epoch,
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

/// A call as sent to Redis.
#[derive(Clone, Debug)]
struct Sent {
    now: u64,
    caller: &'static str,
    n: u64,
    epoch: String,
    /// The end of the key that has another type.
    spoilt: Option<String>,
}

#[derive(Clone, Debug)]
struct Window {
    /// For HyperLogLogs, the caller's layer as an offset from the current one.
    logs: Option<i64>,
    layers: i64,
    places: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Touch {
    window: Window,
    keep: bool,
    /// The views of each place.
    views: Vec<i64>,
    visitors: Vec<Vec<usize>>,
}

#[derive(Clone, Debug)]
struct First {
    max_pending: usize,
    visits: Vec<(usize, Vec<usize>)>,
}

fn text(text: impl ToString) -> Value {
    Value::BulkString(text.to_string().into())
}

fn reply(words: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(words.into_iter().collect())
}

fn status(word: &str) -> Value {
    reply([text(word)])
}

fn outside(now: u64) -> Value {
    reply([text("OUTSIDE"), text(now)])
}

fn page(place: &str) -> &str {
    place.split_once(':').unwrap().1
}

fn layer_of(now: u64) -> i64 {
    (now / LAYER_MS) as i64
}

/// Returns the start of the minute in which the layer begins.
fn minute_of(layer: i64) -> i64 {
    layer * LAYER_MS as i64 / MINUTE_MS as i64 * 60
}

fn longer(ttls: &mut BTreeMap<String, i64>, key: String, ms: i64) {
    let ttl = ttls.entry(key).or_default();
    *ttl = ms.max(*ttl);
}

fn texts<K: ToString, V: ToString>(fields: &BTreeMap<K, V>) -> BTreeMap<String, String> {
    fields
        .iter()
        .map(|(field, value)| (field.to_string(), value.to_string()))
        .collect()
}

/// Returns the keys of the views, and of the visitors or the layer's log.
fn place_keys(place: &str, log_of: Option<i64>) -> [String; 2] {
    match log_of {
        None => [format!("views:{place}"), format!("visitors:{place}")],
        Some(layer) => [format!("views:9{place}"), format!("layer:{layer}:9{place}")],
    }
}

fn minute_key(place: &str, layer: i64) -> String {
    format!("minute:{}:9{place}", minute_of(layer))
}

impl Sent {
    /// Fails if the key has another type.
    fn look_at(&self, key: &str) -> Result<(), &'static str> {
        if self.spoilt.as_deref() == Some(key) {
            Err("WRONGTYPE")
        } else {
            Ok(())
        }
    }

    fn fence(&self) -> [String; 4] {
        [
            self.caller.into(),
            self.n.to_string(),
            self.epoch.clone(),
            self.now.to_string(),
        ]
    }
}

impl Family {
    /// Returns the reply to a call that is not executed: its status, and the recorded words.
    fn refusal(
        &self,
        call: &Sent,
    ) -> Result<Option<(&'static str, Vec<&'static str>)>, &'static str> {
        call.look_at("calls")?;
        let is_current = self.epoch.as_deref() == Some(&call.epoch);
        if !call.caller.is_empty() && !is_current && self.before.as_deref() != Some(&call.epoch) {
            return Ok(Some(("EXPIRED", vec![])));
        }
        let mut last = self.calls.get(call.caller);
        if last.is_none() && !is_current {
            call.look_at("calls_before")?;
            last = self.calls_before.get(call.caller);
        }
        Ok(last.filter(|last| call.n <= last.n).map(|last| {
            if call.n == last.n {
                ("DUP", last.words.clone())
            } else {
                ("PASSED", vec![])
            }
        }))
    }

    fn note(&mut self, call: &Sent, words: Vec<&'static str>) {
        if !call.caller.is_empty() {
            self.calls
                .insert(call.caller, LastCall { n: call.n, words });
        }
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
        let fields = [
            ("=now", self.epoch.clone()),
            ("=before", self.before.clone()),
            ("=began_at", self.began_at.map(|at| at.to_string())),
            ("=max_pending", Some(self.max_pending.to_string())),
            ("=kind", Some(self.kind.to_owned())),
        ];
        let configured = CONFIGURED.map(|(field, value)| (field, Some(value.to_owned())));
        fields
            .into_iter()
            .chain(configured)
            .filter_map(|(field, value)| Some((field.to_owned(), value?)))
            .collect()
    }

    fn keys(&self) -> [BTreeMap<String, String>; 2] {
        let record = |LastCall { n, words }: &LastCall| {
            format!("{n} {}", words.join(" ")).trim_end().to_owned()
        };
        let with = |fields: BTreeMap<String, String>, calls: &BTreeMap<&'static str, LastCall>| {
            let calls = calls
                .iter()
                .map(|(caller, last)| (caller.to_string(), record(last)));
            fields.into_iter().chain(calls).collect()
        };
        [
            with(self.fields(), &self.calls),
            with(self.left.clone(), &self.calls_before),
        ]
    }
}

impl Views {
    /// Counts. Returns whether the layer is new, and whether visitors that left the window are
    /// removed.
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
        self.0
            .range(layer - window + 1..)
            .map(|(_, views)| views)
            .sum()
    }
}

impl Reference {
    fn keep(&mut self, kind: &str, minute: i64, place: &str, count: i64) {
        if count > 0 {
            let id = format!("{kind}/{minute}/{}", page(place));
            *self.open.entry(id.clone()).or_default() += count;
            self.schedule.insert(id, (minute + 60) * 1000);
        }
    }

    /// Returns the reply, or the error of a call that changes nothing.
    fn touch(&mut self, call: &Sent, touch: &Touch) -> Result<Value, &'static str> {
        if let Some((refusal, _)) = self.family.refusal(call)? {
            return Ok(status(refusal));
        }
        let now = call.now;
        let (
            layer,
            Window {
                logs,
                layers,
                places,
            },
        ) = (layer_of(now), &touch.window);
        if logs.is_some_and(|off| off != 0) {
            return Ok(outside(now));
        }
        let kind = usize::from(logs.is_some());
        self.look_at(call, touch, layer)?;
        self.family.note(call, vec![]);
        let mut ttl = (layers + 1) * LAYER_MS as i64;
        if touch.keep && logs.is_none() {
            ttl = ttl.max((MINUTE_MS + LAYER_MS) as i64);
        }
        for ((&place, &views), visitors) in places.iter().zip(&touch.views).zip(&touch.visitors) {
            let place = PLACES[place];
            let (is_opened, looks) = self.views[kind]
                .entry(place)
                .or_default()
                .count(layer, *layers, views);
            if is_opened {
                for key in place_keys(place, logs.map(|_| layer)) {
                    longer(&mut self.ttls, key, ttl);
                }
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
        Ok(status("OK"))
    }

    fn is_open(&self, place: &str, layer: i64, logs: Option<i64>) -> bool {
        self.views[usize::from(logs.is_some())]
            .get(place)
            .is_some_and(|views| views.0.contains_key(&layer))
    }

    /// Fails if one of the keys that the script checks first has another type.
    fn look_at(&self, call: &Sent, touch: &Touch, layer: i64) -> Result<(), &'static str> {
        if touch.keep {
            call.look_at("open")?;
            call.look_at("schedule")?;
        }
        let logs = touch.window.logs;
        for &place in &touch.window.places {
            let place = PLACES[place];
            let [views, others] = place_keys(place, logs.map(|_| layer));
            call.look_at(&views)?;
            if !self.is_open(place, layer, logs) {
                call.look_at(&others)?;
            }
            if touch.keep && logs.is_some() {
                call.look_at(&minute_key(place, layer))?;
            }
        }
        Ok(())
    }

    /// Records the visitors, and returns how many of them are new in the minute.
    fn see(
        &mut self,
        place: &'static str,
        now: u64,
        layers: i64,
        keep: bool,
        looks: bool,
        visitors: &[usize],
    ) -> i64 {
        let seen = self.visitors.entry(place).or_default();
        let (layer, now) = (layer_of(now), now as i64);
        let minute = minute_of(layer) * 1000;
        let mut is_new = 0;
        for &visitor in visitors {
            let last = seen.get(VISITORS[visitor]).copied();
            is_new += i64::from(last.is_none_or(|last| last < minute));
            seen.insert(VISITORS[visitor], last.map_or(now, |last| last.max(now)));
        }
        // while minutes are kept, the visitors of the current one stay
        let since = (layer - layers + 1) * LAYER_MS as i64;
        let since = if keep { since.min(minute) } else { since };
        seen.retain(|_, last| !looks || *last >= since);
        is_new
    }

    fn log(&mut self, place: &str, layer: i64, keep: bool, visitors: &[usize]) -> i64 {
        let visitors: BTreeSet<_> = visitors.iter().map(|&visitor| VISITORS[visitor]).collect();
        self.logs
            .entry(format!("layer:{layer}:9{place}"))
            .or_default()
            .extend(&visitors);
        if !keep {
            return 0;
        }
        let key = minute_key(place, layer);
        let minute = self.logs.entry(key.clone()).or_default();
        let before = minute.len();
        minute.extend(&visitors);
        self.ttls.insert(key, 180_000);
        (minute.len() - before) as i64
    }

    fn now(
        &self,
        now: u64,
        Window {
            logs,
            layers,
            places,
        }: &Window,
    ) -> Value {
        let layer = layer_of(now);
        if logs.is_some_and(|off| off != 0) {
            return outside(now);
        }
        let window = layer - layers + 1..;
        let of_place = |&place: &usize| {
            let place = PLACES[place];
            let views = self.views[usize::from(logs.is_some())]
                .get(place)
                .map_or(0, |views| views.sum(layer, *layers));
            let visitors = match logs {
                None => self.visitors.get(place).map_or(0, |seen| {
                    seen.values()
                        .filter(|last| window.contains(&layer_of(**last as u64)))
                        .count()
                }),
                Some(_) => {
                    let keys =
                        (layer - layers + 1..=layer).map(|layer| format!("layer:{layer}:9{place}"));
                    keys.filter_map(|key| self.logs.get(&key))
                        .flatten()
                        .collect::<BTreeSet<_>>()
                        .len()
                }
            };
            [Value::Int(views), Value::Int(visitors as i64)]
        };
        reply(
            [text("OK")]
                .into_iter()
                .chain(places.iter().flat_map(of_place)),
        )
    }

    /// Returns the reply, or the error of a call that changes nothing.
    fn first(&mut self, call: &Sent, first: &First) -> Result<Value, &'static str> {
        let word = |word: &&str| word.parse().map_or_else(|_| text(word), Value::Int);
        if let Some((refusal, words)) = self.family.refusal(call)? {
            return Ok(reply(
                [text(refusal)].into_iter().chain(words.iter().map(word)),
            ));
        }
        call.look_at("meta")?;
        call.look_at("buffer")?;
        let (mut words, mut counted) = (vec![], 0);
        for (id, visitors) in &first.visits {
            counted += self.count(call, VISIT_IDS[*id], visitors, &mut words);
        }
        let hits = self.meta.get("hits").copied().unwrap_or(0);
        if counted > 0 || call.caller.is_empty() {
            self.meta.insert("hits", hits + counted);
        }
        if counted > 0 && hits == 0 {
            self.meta.insert("first_at", call.now as i64);
        }
        self.family.note(call, words.clone());
        Ok(reply(
            [text("OK"), Value::Int(hits + counted)]
                .into_iter()
                .chain(words.iter().map(word)),
        ))
    }

    /// Counts the visitors that are new to the id, and adds a word for each visitor.
    fn count(
        &mut self,
        call: &Sent,
        id: &'static str,
        visitors: &[usize],
        words: &mut Vec<&'static str>,
    ) -> i64 {
        let key = format!("seen:{id}");
        let max_pending = self.family.max_pending;
        let refusal = match call.look_at(&key) {
            Err(word) => Some(word),
            Ok(()) if id.is_empty() || id.len() > 255 => Some("BADID"),
            Ok(()) => (!self.buffer.contains_key(id) && self.buffer.len() >= max_pending)
                .then_some("FULL"),
        };
        let seen = self.seen.get(id).filter(|_| refusal != Some("WRONGTYPE"));
        let (mut new, first_word) = (BTreeSet::new(), words.len());
        for &visitor in visitors {
            let visitor = VISITORS[visitor];
            let is_known = seen.is_some_and(|seen| seen.contains(visitor)) || new.contains(visitor);
            words.push(if is_known {
                "0"
            } else {
                refusal.unwrap_or("1")
            });
            if !is_known && refusal.is_none() {
                new.insert(visitor);
            }
        }
        if new.is_empty() {
            return 0;
        }
        let counted = new.len() as i64;
        let Some(sum) = self.buffer.get(id).unwrap_or(&0).checked_add(counted) else {
            let new = words[first_word..].iter_mut().filter(|word| **word == "1");
            new.for_each(|word| *word = "RANGE");
            return 0;
        };
        self.buffer.insert(id, sum);
        self.seen.entry(id).or_default().extend(new);
        self.ttls.insert(key, REMEMBER_MS as i64);
        counted
    }

    /// Returns every key as it is in Redis, by its end.
    fn keys(&self) -> BTreeMap<String, Content> {
        let whole = [
            ("open", Content::Hash(texts(&self.open))),
            ("schedule", Content::Zset(texts(&self.schedule))),
            ("buffer", Content::Hash(texts(&self.buffer))),
            ("meta", Content::Hash(texts(&self.meta))),
        ];
        let fence = FENCE.into_iter().zip(self.family.keys().map(Content::Hash));
        let whole = whole
            .into_iter()
            .chain(fence)
            .map(|(key, content)| (key.to_owned(), content));
        let [exact, logged] = &self.views;
        let views = exact
            .iter()
            .map(|(place, views)| (format!("views:{place}"), Content::Hash(texts(&views.0))));
        let others = logged
            .iter()
            .map(|(place, views)| (format!("views:9{place}"), Content::Hash(texts(&views.0))));
        // scores are negative times
        let visitors = self.visitors.iter().map(|(place, seen)| {
            let scores = seen
                .iter()
                .map(|(visitor, at)| (visitor.to_string(), (-at).to_string()))
                .collect();
            (format!("visitors:{place}"), Content::Zset(scores))
        });
        let logs = self
            .logs
            .iter()
            .map(|(key, visitors)| (key.clone(), Content::Log(visitors.len())));
        let seen = self.seen.iter().map(|(id, seen)| {
            (
                format!("seen:{id}"),
                Content::Set(seen.iter().map(|&visitor| visitor.to_owned()).collect()),
            )
        });
        let all = whole
            .chain(views)
            .chain(others)
            .chain(visitors)
            .chain(logs)
            .chain(seen);
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
    let caller = prop_oneof![1 => Just(None), 3 => (0..CALLERS.len()).prop_map(Some)];
    let epoch =
        prop_oneof![8 => Just(Epoch::Current), 3 => Just(Epoch::Before), 1 => Just(Epoch::Unknown)];
    let trouble = (option::weighted(0.15, 0..12_usize), weighted(0.05));
    (caller, numbers(8), epoch, trouble).prop_map(|(caller, number, epoch, (spoilt, full))| {
        let full = full && spoilt.is_none();
        Call {
            caller,
            number,
            epoch,
            spoilt,
            full,
        }
    })
}

fn window() -> impl Strategy<Value = Window> {
    let logs =
        prop_oneof![4 => Just(None), 3 => Just(Some(0)), 1 => select(vec![Some(-1), Some(1)])];
    let places = vec(0..PLACES.len(), 1..4);
    (logs, select(vec![2_i64, 4, 4, 4, 7]), places).prop_map(|(logs, layers, places)| Window {
        logs,
        layers,
        places,
    })
}

fn some_visitors() -> impl Strategy<Value = Vec<usize>> {
    vec(0..VISITORS.len(), 1..5)
}

fn step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![6 => 0..20_000_i64, 3 => 20_000..100_000_i64, 1 => -20_000..0_i64, 1 => -200_000..0_i64];
    let views = prop_oneof![4 => 1..9_i64, 1 => 30..90_i64];
    let touch = (
        window(),
        any::<bool>(),
        vec(views, 3),
        vec(some_visitors(), 3),
    );
    let touch = touch.prop_map(|(window, keep, views, visitors)| Touch {
        window,
        keep,
        views,
        visitors,
    });
    let id = prop_oneof![12 => 0..IDS.len(), 1 => IDS.len()..VISIT_IDS.len()];
    let first = (
        select(vec![0_usize, 1, 2, 9, 9]),
        vec((id, some_visitors()), 1..4),
    );
    let first = first.prop_map(|(max_pending, visits)| First {
        max_pending,
        visits,
    });
    prop_oneof![
        8 => clock.prop_map(Step::Clock),
        3 => Just(Step::Epoch),
        12 => (call(), touch).prop_map(|(call, touch)| Step::Touch(call, touch)),
        6 => window().prop_map(Step::Now),
        6 => (call(), first).prop_map(|(call, first)| Step::First(call, first)),
        1 => (0..IDS.len(), 0..3_i64).prop_map(|(id, room)| Step::Fill { id, room }),
        1 => Just(Step::Rotate),
        1 => Just(Step::Close),
        1 => weighted(0.3).prop_map(|forget| if forget { Step::Forget } else { Step::Clock(1) }),
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
    const FAMILY: &'static str = "shop/here";
    const FENCED: &'static [&'static str] =
        &["activity_touch", "activity_touch_hll", "visitors_first"];

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
        play.reference.meta.insert("incarnation", INCARNATION);
        play.becomes("activity", 1_000_000);
        // without this, most calls would name no epoch
        play.epoch().unwrap();
        play
    }

    fn step(&mut self, step: &Step) -> Checked {
        match step {
            Step::Clock(ms) => self.now = self.now.saturating_add_signed(*ms),
            Step::Epoch => self.epoch()?,
            Step::Touch(call, touch) => self.touch(call, touch)?,
            Step::Now(window) => self.now(window)?,
            Step::First(call, first) => self.first(call, first)?,
            Step::Fill { id, room } => {
                let pending = i64::MAX - room;
                self.scripts.ask::<()>(
                    pipe()
                        .hset(self.scripts.key("buffer"), IDS[*id], pending)
                        .ignore(),
                );
                self.reference.buffer.insert(IDS[*id], pending);
            }
            Step::Rotate => self.rotate(),
            Step::Close => self.close(),
            Step::Forget => {
                self.scripts.forget();
                *self = Play {
                    now: self.now,
                    last_n: self.last_n,
                    ..Play::new(self.scripts.clone())
                };
            }
        }
        self.check_keys()
    }
}

impl Play {
    /// Sets the kind of the family.
    fn becomes(&mut self, kind: &'static str, max_pending: usize) {
        let fields = [
            ("=kind", kind.to_owned()),
            ("=max_pending", max_pending.to_string()),
        ];
        self.scripts.ask::<()>(
            pipe()
                .hset_multiple(self.scripts.key("calls"), &fields)
                .ignore(),
        );
        (
            self.reference.family.kind,
            self.reference.family.max_pending,
        ) = (kind, max_pending);
    }

    fn epoch(&mut self) -> Checked {
        let got = self.scripts.call(
            "family_epoch",
            &FENCE,
            &[String::new(), "1".into(), self.now.to_string()],
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

    /// Returns the call as sent, with its number, its epoch and the key that has another type.
    fn sent(&mut self, call: &Call, keys: &[String]) -> Sent {
        let n = call
            .caller
            .map_or(0, |caller| call.number.after(&mut self.last_n[caller]));
        let epoch = match call.epoch {
            Epoch::Current => self.reference.family.epoch.clone(),
            Epoch::Before => self.reference.family.before.clone(),
            Epoch::Unknown => None,
        };
        Sent {
            now: self.now,
            caller: call.caller.map_or("", |caller| CALLERS[caller]),
            n,
            epoch: epoch.unwrap_or_else(|| "unknown".into()),
            spoilt: call.spoilt.and_then(|nth| keys.get(nth).cloned()),
        }
    }

    /// Calls the script with these disturbances, and compares with the reference, which was
    /// `before` until this call.
    fn compare(
        &mut self,
        script: &str,
        keys: &[String],
        args: &[String],
        (full, spoilt): (bool, Option<String>),
        before: Reference,
        expected: Result<Value, &'static str>,
    ) -> Checked {
        let spoilt = spoilt.map(|key| self.scripts.key(&key));
        if full {
            self.fill_up(1);
        }
        spoilt.iter().for_each(|key| self.spoil(key));
        let got = self.call(script, keys, args);
        spoilt.iter().for_each(|key| self.restore(key));
        if full {
            self.fill_up(0);
        }
        let fails_with = |got: Result<Value, TestCaseError>, text| {
            got.is_err_and(|e| e.to_string().contains(text))
        };
        match expected {
            Ok(Value::Array(words)) if full && words[0] == text("OK") => {
                self.reference = before;
                prop_assert!(fails_with(got, "maxmemory"));
            }
            Ok(expected) => prop_assert_eq!(got?, expected),
            Err(word) => prop_assert!(fails_with(got, word)),
        }
        Ok(())
    }

    fn fill_up(&self, max_memory: u8) {
        self.scripts.ask::<()>(
            pipe()
                .cmd("CONFIG")
                .arg("SET")
                .arg("maxmemory")
                .arg(max_memory)
                .ignore(),
        );
    }

    /// Renames the key, and puts a string in its place.
    fn spoil(&self, key: &str) {
        if self.scripts.ask::<(bool,)>(pipe().exists(key)).0 {
            self.scripts.ask::<()>(pipe().rename(key, "spare").ignore());
        }
        self.scripts.ask::<()>(pipe().set(key, "1").ignore());
    }

    fn restore(&self, key: &str) {
        self.scripts.ask::<()>(pipe().del(key).ignore());
        if self.scripts.ask::<(bool,)>(pipe().exists("spare")).0 {
            self.scripts.ask::<()>(pipe().rename("spare", key).ignore());
        }
    }

    /// Returns the layer that the caller believes to be current.
    fn layer(&self, off: i64) -> i64 {
        layer_of(self.now) + off
    }

    fn touch(&mut self, call: &Call, touch: &Touch) -> Checked {
        self.becomes("activity", self.reference.family.max_pending);
        let Window {
            logs,
            layers,
            places,
        } = &touch.window;
        let layer = self.layer(logs.unwrap_or(0));
        let (mut keys, mut in_use) = (TOUCH_KEYS.map(str::to_owned).to_vec(), vec![]);
        let mut of_places = vec![];
        for ((&place, views), visitors) in places.iter().zip(&touch.views).zip(&touch.visitors) {
            let place = PLACES[place];
            let of_place = place_keys(place, logs.map(|_| layer));
            in_use.extend(
                self.reference
                    .is_open(place, layer, *logs)
                    .then(|| of_place[1].clone()),
            );
            keys.extend(of_place);
            keys.extend((touch.keep && logs.is_some()).then(|| minute_key(place, layer)));
            of_places.extend([
                page(place).to_owned(),
                views.to_string(),
                visitors.len().to_string(),
            ]);
            of_places.extend(visitors.iter().map(|&visitor| VISITORS[visitor].to_owned()));
        }
        let mut sent = self.sent(call, &keys);
        // within a layer, the script writes before it reads the visitors' key
        sent.spoilt = sent.spoilt.filter(|key| !in_use.contains(key));
        let numbers = [LAYER_MS as i64, *layers, i64::from(touch.keep)];
        let numbers = numbers
            .into_iter()
            .chain(logs.map(|_| layer))
            .chain([places.len() as i64]);
        let args = sent
            .fence()
            .into_iter()
            .chain(numbers.map(|number| number.to_string()))
            .chain(of_places);
        let args: Vec<_> = args.collect();
        let script = if logs.is_some() {
            "activity_touch_hll"
        } else {
            "activity_touch"
        };
        let before = self.reference.clone();
        let expected = self.reference.touch(&sent, touch);
        self.compare(
            script,
            &keys,
            &args,
            (call.full, sent.spoilt),
            before,
            expected,
        )
    }

    fn now(&mut self, window: &Window) -> Checked {
        let Window {
            logs,
            layers,
            places,
        } = window;
        let keys = places
            .iter()
            .map(|&place| PLACES[place])
            .flat_map(|place| match *logs {
                None => vec![format!("views:{place}"), format!("visitors:{place}")],
                Some(off) => {
                    let layer = self.layer(off);
                    let logs =
                        (layer - layers + 1..=layer).map(|layer| format!("layer:{layer}:9{place}"));
                    [format!("views:9{place}")]
                        .into_iter()
                        .chain(logs)
                        .collect()
                }
            });
        let keys: Vec<_> = keys.collect();
        let numbers = [self.now as i64, LAYER_MS as i64, *layers]
            .into_iter()
            .chain(logs.map(|off| self.layer(off)));
        let args: Vec<_> = numbers.map(|number| number.to_string()).collect();
        let script = if logs.is_some() {
            "activity_now_hll"
        } else {
            "activity_now"
        };
        let got = self.call(script, &keys, &args)?;
        prop_assert_eq!(got, self.reference.now(self.now, window));
        Ok(())
    }

    fn first(&mut self, call: &Call, first: &First) -> Checked {
        let (mut keys, mut of_ids) = (
            [FENCE[0], FENCE[1], "buffer", "meta"]
                .map(str::to_owned)
                .to_vec(),
            vec![],
        );
        for (id, visitors) in &first.visits {
            let id = VISIT_IDS[*id];
            keys.push(format!("seen:{id}"));
            of_ids.extend([id.to_owned(), visitors.len().to_string()]);
            of_ids.extend(visitors.iter().map(|&visitor| VISITORS[visitor].to_owned()));
        }
        self.becomes("visitors", first.max_pending);
        let sent = self.sent(call, &keys);
        let numbers = [REMEMBER_MS.to_string(), first.visits.len().to_string()];
        let args: Vec<_> = sent
            .fence()
            .into_iter()
            .chain(numbers)
            .chain(of_ids)
            .collect();
        let before = self.reference.clone();
        let expected = self.reference.first(&sent, first);
        self.compare(
            "visitors_first",
            &keys,
            &args,
            (call.full, sent.spoilt),
            before,
            expected,
        )
    }

    fn call(&self, script: &str, keys: &[String], args: &[String]) -> Result<Value, TestCaseError> {
        self.scripts.call(
            script,
            &keys.iter().map(String::as_str).collect::<Vec<_>>(),
            args,
        )
    }

    /// Cuts the buffer and releases the batch, in Redis and in the reference.
    fn rotate(&mut self) {
        let [buffer, meta] = ["buffer", "meta"].map(|kind| self.scripts.key(kind));
        self.scripts.ask::<()>(
            pipe()
                .del(buffer)
                .ignore()
                .hset_multiple(meta, &[("hits", 0), ("rotated_at", self.now)])
                .ignore(),
        );
        self.reference.buffer.clear();
        self.reference
            .meta
            .extend([("hits", 0), ("rotated_at", self.now as i64)]);
    }

    /// Closes the minutes that are over, as if they had reached the database.
    fn close(&mut self) {
        let over: Vec<_> = self
            .reference
            .schedule
            .extract_if(.., |_, at| *at <= self.now as i64)
            .map(|(id, _)| id)
            .collect();
        for id in &over {
            self.reference.open.remove(id);
            let [open, schedule] = ["open", "schedule"].map(|kind| self.scripts.key(kind));
            self.scripts
                .ask::<()>(pipe().hdel(open, id).ignore().zrem(schedule, id).ignore());
        }
    }

    fn check_keys(&mut self) -> Checked {
        let expected = self.reference.keys();
        let (names,): (BTreeSet<String>,) = self.scripts.ask(pipe().cmd("KEYS").arg("*"));
        prop_assert_eq!(
            &names,
            &expected.keys().map(|key| self.scripts.key(key)).collect(),
            "keys"
        );
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
        let there: Vec<Value> = if expected.is_empty() {
            vec![]
        } else {
            self.scripts.ask(&read)
        };
        for ((end, content), got) in expected.iter().zip(there.chunks(2)) {
            let ttl: i64 = redis::from_redis_value_ref(&got[1]).unwrap();
            let got = match content {
                Content::Hash(_) => Content::Hash(redis::from_redis_value_ref(&got[0]).unwrap()),
                Content::Zset(_) => Content::Zset(redis::from_redis_value_ref(&got[0]).unwrap()),
                Content::Set(_) => Content::Set(redis::from_redis_value_ref(&got[0]).unwrap()),
                Content::Log(_) => Content::Log(redis::from_redis_value_ref(&got[0]).unwrap()),
            };
            prop_assert_eq!(&got, content, "{}", end);
            match self.reference.ttls.get(end) {
                Some(&expected) => {
                    prop_assert!(
                        (expected - 20_000..=expected).contains(&ttl),
                        "{end} ttls {ttl} ms"
                    )
                }
                None => prop_assert_eq!(ttl, -1, "{} expires", end),
            }
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
        (
            "activity_touch",
            "'ZADD', visitors, 'LT', unpack",
            "'ZADD', visitors, unpack",
        ),
        ("activity_touch", "math.min(since, minute * 1000)", "since"),
        (
            "activity_touch",
            "opens[i] and pcall('ZCARD', KEYS[4 + 2 * i])",
            "false",
        ),
        ("activity_touch", "or layer) <= gone", "or layer) < gone"),
        (
            "activity_touch",
            "opens[i] or sum % 64 < amount",
            "opens[i]",
        ),
        (
            "activity_touch",
            "-1000 * minute) - before",
            "-1000 * minute)",
        ),
        ("activity_touch", "call('PTTL', visitors) < ttl", "false"),
        ("activity_touch", "if left > 0 then", "if false then"),
        ("activity_touch", "math.max(ttl, 60000 + layer_ms)", "ttl"),
        (
            "activity_touch",
            "or layer) <= gone then",
            "or layer) <= gone + 1 then",
        ),
        ("activity_touch", "ttl + layers * layer_ms", "ttl"),
        ("activity_touch", "last = last or redis", "last = redis"),
        ("activity_touch", "take_back(i)", "take_back(i - 1)"),
        (
            "activity_touch",
            "if left == 0 then call('HDEL', views, field) end",
            "",
        ),
        (
            "activity_touch",
            "if keeps then call('ZCARD', KEYS[4]) end",
            "",
        ),
        (
            "activity_touch_hll",
            "math.floor(now_ms / layer_ms) ~= layer",
            "false",
        ),
        (
            "activity_touch_hll",
            "call('PFCOUNT', seen) - before",
            "call('PFCOUNT', seen)",
        ),
        (
            "activity_touch_hll",
            "for j = k, k + 1 do",
            "for j = k, k do",
        ),
        ("activity_touch_hll", "if outside then", "if false then"),
        (
            "activity_touch_hll",
            "or layer) <= gone then",
            "or layer) <= gone + 1 then",
        ),
        ("activity_touch_hll", "ttl + layers * layer_ms", "ttl"),
        ("activity_touch_hll", "last = last or redis", "last = redis"),
        ("activity_touch_hll", "take_back(k)", "take_back(k - 1)"),
        ("activity_touch_hll", "call('HDEL', views, ARGV[8])", ""),
        (
            "activity_touch_hll",
            "call('PFCOUNT', KEYS[k + 2]) --",
            "--",
        ),
        (
            "activity_touch_hll",
            "if keeps then call('ZCARD', KEYS[4]) end",
            "",
        ),
        ("activity_now", "or gone) > gone", "or gone) >= gone"),
        ("activity_now", "(gone + 1) * layer_ms", "gone * layer_ms"),
        (
            "activity_now_hll",
            "'PFCOUNT', KEYS[k + 1], unpack",
            "'PFCOUNT', unpack",
        ),
        (
            "activity_now_hll",
            "math.floor(now_ms / ARGV[2]) ~= layer",
            "false",
        ),
        ("visitors_first", "'HSETNX', meta", "'HSET', meta"),
        ("visitors_first", "known[arg - first + 1] == 1 or ", ""),
        ("visitors_first", " or places[visitor] then", " then"),
        ("visitors_first", "pending >= max", "false"),
        (
            "visitors_first",
            "pending = pending + 1",
            "pending = pending",
        ),
        (
            "visitors_first",
            "counted > 0 and hits == 0 then",
            "counted > 0 then",
        ),
        (
            "visitors_first",
            "reply[2] = hits + counted",
            "reply[2] = hits",
        ),
        ("visitors_first", "call('PEXPIRE', seen, remember_ms)", ""),
        ("visitors_first", "reply[place] = 'RANGE'", "place = nil"),
        (
            "visitors_first",
            "if known.err then refusal = 'WRONGTYPE' end",
            "",
        ),
        (
            "visitors_first",
            "if id == '' or #id > 255 then refusal = 'BADID' end",
            "",
        ),
        (
            "visitors_first",
            "call('HINCRBY', meta, 'hits', 0) else",
            "else",
        ),
    ])
    .await;
}

/// The experiment's connection, scripts and callers.
struct Experiment {
    redis: Connection,
    touch: String,
    now: String,
    epoch: String,
    /// The number of each caller's last call.
    calls: [u64; 5],
    /// The epoch that calls name, and the time of the request for it.
    asked: Option<(String, u64)>,
}

const TAG: &str = "cf1:{shop/here/0}:";
const WIDTH: u32 = 15;
const LOAD_MS: u64 = 195_000;

impl Experiment {
    async fn new(server: &RedisServer) -> Self {
        let mut redis = server.client().get_connection().unwrap();
        let mut load = |name: &str| {
            let source = fs::read_to_string(
                Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("lua/v1")
                    .join(name),
            )
            .unwrap();
            cmd("SCRIPT")
                .arg("LOAD")
                .arg(source)
                .query(&mut redis)
                .unwrap()
        };
        let [touch, now, epoch] =
            ["activity_touch.lua", "activity_now.lua", "family_epoch.lua"].map(&mut load);
        let mut configure = cmd("HSET");
        configure
            .arg(format!("{TAG}calls"))
            .arg(&CONFIGURED)
            .arg(&[("=kind", "activity"), ("=max_pending", "1000000")])
            .exec(&mut redis)
            .unwrap();
        Experiment {
            redis,
            touch,
            now,
            epoch,
            calls: [0; 5],
            asked: None,
        }
    }

    /// Returns the epoch, and requests it again after 30 s, as callers do.
    fn epoch(&mut self, at: u64) -> String {
        if let Some((epoch, _)) = self
            .asked
            .as_ref()
            .filter(|(_, asked_at)| at - asked_at < 30_000)
        {
            return epoch.clone();
        }
        let mut call = cmd("EVALSHA");
        call.arg(&self.epoch)
            .arg(FENCE.len())
            .arg(&FENCE.map(|kind| format!("{TAG}{kind}")));
        let words: Vec<String> = call
            .arg("activity")
            .arg(1)
            .arg(at)
            .query(&mut self.redis)
            .unwrap();
        assert_eq!(words[0], "OK");
        self.asked = Some((words[1].clone(), at));
        words[1].clone()
    }

    /// Sends all visits in one call, one view each. Every third call is sent twice, as if its reply
    /// was lost.
    fn send(&mut self, at: u64, visits: &[String]) {
        let mut stripes = BTreeMap::<u32, Vec<&String>>::new();
        for visitor in visits {
            stripes
                .entry(crc32fast::hash(visitor.as_bytes()) % WIDTH)
                .or_default()
                .push(visitor);
        }
        let nth = (self.calls.iter().sum::<u64>() % 5) as usize;
        self.calls[nth] += 1;
        let epoch = self.epoch(at);
        for word in ["OK", "DUP"]
            .iter()
            .take(1 + usize::from(self.calls[nth].is_multiple_of(3)))
        {
            let mut call = cmd("EVALSHA");
            call.arg(&self.touch)
                .arg(TOUCH_KEYS.len() + 2 * stripes.len());
            for kind in TOUCH_KEYS {
                call.arg(format!("{TAG}{kind}"));
            }
            for stripe in stripes.keys() {
                call.arg(format!("{TAG}views:{stripe}:p"))
                    .arg(format!("{TAG}visitors:{stripe}:p"));
            }
            call.arg(format!("w{nth}"))
                .arg(self.calls[nth])
                .arg(&epoch)
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
            let (got,): (String,) = call.query(&mut self.redis).unwrap();
            assert_eq!(&got, word);
        }
    }

    /// Returns the views and visitors of the page over all stripes.
    fn sums(&mut self, at: u64) -> (u64, u64) {
        let mut call = cmd("EVALSHA");
        call.arg(&self.now).arg(2 * WIDTH);
        for stripe in 0..WIDTH {
            call.arg(format!("{TAG}views:{stripe}:p"))
                .arg(format!("{TAG}visitors:{stripe}:p"));
        }
        let reply: Vec<Value> = call
            .arg(at)
            .arg(&[3000, 200])
            .query(&mut self.redis)
            .unwrap();
        let numbers: Vec<u64> = reply[1..]
            .iter()
            .map(|n| redis::from_redis_value_ref(n).unwrap())
            .collect();
        numbers.chunks(2).fold((0, 0), |(views, visitors), pair| {
            (views + pair[0], visitors + pair[1])
        })
    }

    /// Returns the sum of all minutes of one kind.
    fn minutes(&mut self, kind: &str) -> u64 {
        let open: BTreeMap<String, u64> = cmd("HGETALL")
            .arg(format!("{TAG}open"))
            .query(&mut self.redis)
            .unwrap();
        open.iter()
            .filter(|(id, _)| id.starts_with(kind))
            .map(|(_, count)| count)
            .sum()
    }
}

/// Sends `rate` views a second for 195 s, from returning visitors. No view is lost or counted
/// twice.
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
            by_minute.extend(
                waiting
                    .iter()
                    .map(|visitor| (at / MINUTE_MS, visitor.clone())),
            );
            experiment.send(at, &waiting);
            waiting.clear();
        }
    }
    let distinct = everybody.len() as u64;
    assert_eq!(
        experiment.sums(START + LOAD_MS),
        (views, distinct),
        "views and visitors of the window"
    );
    assert_eq!(experiment.minutes("views/"), views, "views of the minutes");
    assert_eq!(
        experiment.minutes("visitors/"),
        by_minute.len() as u64,
        "visitors of the minutes"
    );
    assert_eq!(
        experiment.sums(START + LOAD_MS + 700_000),
        (0, 0),
        "when all have left"
    );
}

#[tokio::test]
async fn no_view_is_lost_at_35_a_second() {
    no_view_is_lost(35, 1).await;
}

#[tokio::test]
async fn no_view_is_lost_at_3500_a_second() {
    no_view_is_lost(3500, 250).await;
}

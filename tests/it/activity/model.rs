//! The model of activity and daily visitors: random sequences of script calls, on a real Redis and
//! on a plain reference written from the scripts' headers.

use proptest::collection::vec;
use proptest::sample::select;
use redis::Value;

use crate::support::model::{Counted, Family, *};
use crate::support::*;

/// The stripe and page of each place.
const PLACES: [&str; 4] = ["0:p", "1:p", "0:é/q", "12:p:"];
const VISITORS: [&str; 5] = ["a", "b", "A", "é", "nul\0"];
/// The ids of visits. The last two are refused.
const IDS: [&str; 5] = ["12345/2014-09-20", "12345/2014-09-21", "é", "", TOO_LONG];
const VALID: usize = 3;
const TOO_LONG: &str = match std::str::from_utf8(&[b'x'; 256]) {
    Ok(text) => text,
    Err(_) => panic!("no text"),
};
const TOUCH_KEYS: [&str; 4] = [FENCE[0], FENCE[1], "buffer", "meta"];
/// The number of stripes of a page. The scripts only compare it.
const STRIPES: &str = "16";
const START: u64 = 1_410_134_400_000;
/// The length of a layer: three a minute, and long enough that nothing expires during a sequence.
const LAYER_MS: u64 = 20_000;
const MINUTE_MS: u64 = 60_000;
const REMEMBER_MS: i64 = 86_400_000;

type Members = BTreeSet<&'static str>;

/// A partition's content and behaviour, as the headers describe them.
#[derive(Clone, Debug, Default)]
struct Activity {
    /// The views by place.
    views: BTreeMap<&'static str, Views>,
    /// The time at which each visitor was last seen, by place.
    visitors: BTreeMap<&'static str, BTreeMap<&'static str, i64>>,
    seen: BTreeMap<&'static str, Members>,
    partition: Partition,
    /// The time to live in ms, by the end of the key.
    lives: BTreeMap<String, i64>,
}

/// The views by layer.
#[derive(Clone, Debug, Default)]
struct Views(BTreeMap<i64, i64>);

#[derive(Clone, Debug)]
enum Own {
    Touch(Called, Touch),
    Now(Window),
    First(Called, First),
    /// The pending count of an id leaves room for only `room` more.
    Fill {
        id: usize,
        room: i64,
    },
    /// The buffer is cut, and the batch released.
    Cut,
}

#[derive(Clone, Debug)]
struct Window {
    /// The family's setting at the time of the call.
    layers: i64,
    places: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Touch {
    window: Window,
    keep: bool,
    max_pending: usize,
    /// The caller knows another number of stripes.
    is_outdated: bool,
    /// The views of each place.
    views: Vec<i64>,
    visitors: Vec<Vec<usize>>,
}

#[derive(Clone, Debug)]
struct First {
    max_pending: usize,
    visits: Vec<(usize, Vec<usize>)>,
}

fn word(word: &str) -> Value {
    word.parse().map_or_else(|_| text(word), Value::Int)
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

/// Returns the keys of the views and of the visitors.
fn place_keys(place: &str) -> [String; 2] {
    [format!("views:{place}"), format!("visitors:{place}")]
}

impl Window {
    fn places(&self) -> impl Iterator<Item = &'static str> {
        self.places.iter().map(|&place| PLACES[place])
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

    fn sum(&self, since: i64) -> i64 {
        self.0.range(since..).map(|(_, views)| views).sum()
    }
}

impl Activity {
    /// Adds to what is kept.
    fn keep(&mut self, kind: &str, minute: i64, place: &str, count: i64) {
        if count > 0 {
            let id = format!("{kind}/{minute}/{}", page(place));
            *self.partition.buffer.entry(id).or_default() += count;
        }
    }

    /// Returns the reason of a refusal of each place.
    fn refusals(&self, touch: &Touch, minute: i64) -> Vec<Option<&'static str>> {
        let mut ids: BTreeSet<_> = self.partition.buffer.keys().cloned().collect();
        let refusal = |place: &'static str| {
            let kept = ["views", "visitors"].map(|kind| format!("{kind}/{minute}/{}", page(place)));
            let counts = kept.iter().filter_map(|id| self.partition.buffer.get(id));
            if counts.into_iter().any(|count| count.to_string().len() > 16) {
                return Some("RANGE");
            }
            let fresh = kept.iter().filter(|id| !ids.contains(*id)).count();
            if fresh > 0 && ids.len() + fresh > touch.max_pending {
                return Some("FULL");
            }
            ids.extend(kept);
            None
        };
        let mut refusals: Vec<_> = touch.window.places().map(refusal).collect();
        if !touch.keep {
            refusals.fill(None);
        }
        refusals
    }

    /// Returns the reply, or the error of a call that changes nothing.
    fn touch(&mut self, now: u64, sent: &Sent, touch: &Touch) -> Result<Counted, &'static str> {
        if touch.is_outdated {
            return Ok((reply("MISMATCH", []), None));
        }
        let window = &touch.window;
        let layer = layer_of(now);
        let minute = now as i64 / MINUTE_MS as i64 * 60;
        if touch.keep {
            sent.look_at("buffer")?;
            sent.look_at("meta")?;
        }
        let refusals = self.refusals(touch, minute);
        self.look_at(sent, touch, layer, &refusals)?;
        let mut lives = (window.layers + 1) * LAYER_MS as i64;
        if touch.keep {
            lives = lives.max((MINUTE_MS + LAYER_MS) as i64);
        }
        let (mut counted, mut words, mut refused) = (0, vec![], vec![]);
        let places = window.places().zip(&touch.views).zip(&touch.visitors);
        for (nth, ((place, &views), visitors)) in places.enumerate() {
            if let Some(word) = refusals[nth] {
                words.push(text(word));
                refused.push(format!("{}:{word}", nth + 1));
                continue;
            }
            words.push(int(1));
            let of_place = self.views.entry(place).or_default();
            let (is_opened, looks) = of_place.count(layer, window.layers, views);
            if is_opened {
                for key in place_keys(place) {
                    let ms = self.lives.entry(key).or_default();
                    *ms = lives.max(*ms);
                }
            }
            let visitors = visitors.iter().map(|&visitor| VISITORS[visitor]);
            let is_new = self.see(place, now, window.layers, (touch.keep, looks), visitors);
            if touch.keep {
                counted += views as u64;
                self.keep("views", minute, place, views);
                self.keep("visitors", minute, place, is_new);
            }
        }
        let mut total = 0;
        if counted > 0 {
            total = self.partition.note(now, counted);
        }
        if !refused.is_empty() {
            let before = self.partition.number("refused").unwrap_or(0);
            let refused = before + refused.len() as u64;
            self.partition.set([("refused", refused.to_string())]);
        }
        let items = [int(total)].into_iter().chain(words);
        Ok((reply("OK", items), Some(refused.join(" "))))
    }

    fn is_open(&self, place: &str, layer: i64) -> bool {
        let views = self.views.get(place);
        views.is_some_and(|views| views.0.contains_key(&layer))
    }

    /// Fails if one of the keys that the script checks first has another type.
    fn look_at(
        &self,
        sent: &Sent,
        touch: &Touch,
        layer: i64,
        refusals: &[Option<&str>],
    ) -> Result<(), &'static str> {
        let places = touch.window.places().zip(refusals);
        for (place, _) in places.filter(|(_, refusal)| refusal.is_none()) {
            let [views, visitors] = place_keys(place);
            sent.look_at(&views)?;
            if !self.is_open(place, layer) {
                sent.look_at(&visitors)?;
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
        (keep, looks): (bool, bool),
        visitors: impl Iterator<Item = &'static str>,
    ) -> i64 {
        let seen = self.visitors.entry(place).or_default();
        let (layer, now) = (layer_of(now), now as i64);
        let minute = minute_of(layer) * 1000;
        let mut is_new = 0;
        for visitor in visitors {
            let last = seen.get(visitor).copied();
            is_new += i64::from(last.is_none_or(|last| last < minute));
            seen.insert(visitor, last.map_or(now, |last| last.max(now)));
        }
        // while minutes are kept, the visitors of the current one stay
        let since = (layer - layers + 1) * LAYER_MS as i64;
        let since = if keep { since.min(minute) } else { since };
        seen.retain(|_, last| !looks || *last >= since);
        is_new
    }

    fn now(&self, now: u64, window: &Window) -> Value {
        let layer = layer_of(now);
        let since = layer - window.layers + 1;
        let of_place = |place: &'static str| {
            let views = self.views.get(place);
            let visitors = self.visitors.get(place).into_iter().flatten();
            let visitors = visitors.filter(|(_, last)| layer_of(**last as u64) >= since);
            [
                Value::Int(views.map_or(0, |views| views.sum(since))),
                Value::Int(visitors.count() as i64),
            ]
        };
        reply("OK", window.places().flat_map(of_place))
    }

    /// Returns the reply, or the error of a call that changes nothing.
    fn first(
        &mut self,
        now: u64,
        sent: &Sent,
        family: &Family,
        first: &First,
    ) -> Result<Counted, &'static str> {
        sent.look_at("meta")?;
        sent.look_at("buffer")?;
        let (mut words, mut counted) = (vec![], 0);
        for (id, visitors) in &first.visits {
            counted += self.count(sent, family.max_pending(), IDS[*id], visitors, &mut words);
        }
        let hits = self.partition.number("hits").unwrap_or(0) + counted;
        if counted > 0 {
            self.partition.note(now, counted);
        } else if !sent.has_caller() {
            self.partition.set([("hits", hits.to_string())]);
        }
        let refused = words.iter().filter(|word| !["0", "1"].contains(word));
        let refused = refused.count() as u64;
        if refused > 0 {
            let before = self.partition.number("refused").unwrap_or(0);
            self.partition
                .set([("refused", (before + refused).to_string())]);
        }
        let items = [Value::Int(hits as i64)].into_iter();
        Ok((
            reply("OK", items.chain(words.iter().map(|text| word(text)))),
            Some(words.join(" ")),
        ))
    }

    /// Counts the visitors that are new to the id, and adds a word for each visitor.
    fn count(
        &mut self,
        sent: &Sent,
        max_pending: usize,
        id: &'static str,
        visitors: &[usize],
        words: &mut Vec<&'static str>,
    ) -> u64 {
        let key = format!("seen:{id}");
        let buffer = &mut self.partition.buffer;
        let refusal = match sent.look_at(&key) {
            Err(word) => Some(word),
            Ok(()) if id.is_empty() || id.len() > 255 => Some("BADID"),
            Ok(()) => (!buffer.contains_key(id) && buffer.len() >= max_pending).then_some("FULL"),
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
        let counted = new.len() as u64;
        let Some(sum) = buffer.get(id).unwrap_or(&0).checked_add(counted as i64) else {
            for (word, &visitor) in words[first_word..].iter_mut().zip(visitors) {
                if new.contains(VISITORS[visitor]) {
                    *word = "RANGE";
                }
            }
            return 0;
        };
        buffer.insert(id.into(), sum);
        self.seen.entry(id).or_default().extend(new);
        self.lives.insert(key, REMEMBER_MS);
        counted
    }
}

fn window() -> impl Strategy<Value = Window> {
    let places = vec(0..PLACES.len(), 1..4);
    (select(vec![2_i64, 4, 4, 4, 7]), places).prop_map(|(layers, places)| Window { layers, places })
}

fn own() -> impl Strategy<Value = Own> {
    let called = || called((0.15, 0.1));
    let visitors = || vec(0..VISITORS.len(), 1..5);
    let views = vec(prop_oneof![1 => 1..9_i64, 1 => 30..90_i64], 3);
    let max_pending = select(vec![1_000_000_usize, 1_000_000, 1_000_000, 2, 4]);
    let is_outdated = prop_oneof![12 => Just(false), 1 => Just(true)];
    let settings = (any::<bool>(), max_pending, is_outdated);
    let touch = (window(), settings, views, vec(visitors(), 3));
    let touch = touch.prop_map(
        |(window, (keep, max_pending, is_outdated), views, visitors)| Touch {
            window,
            keep,
            max_pending,
            is_outdated,
            views,
            visitors,
        },
    );
    let id = prop_oneof![12 => 0..VALID, 1 => VALID..IDS.len()];
    let first = (
        select(vec![0_usize, 1, 2, 9, 9]),
        vec((id, visitors()), 1..4),
    );
    let first = first.prop_map(|(max_pending, visits)| First {
        max_pending,
        visits,
    });
    prop_oneof![
        12 => (called(), touch).prop_map(|(called, touch)| Own::Touch(called, touch)),
        6 => window().prop_map(Own::Now),
        6 => (called(), first).prop_map(|(called, first)| Own::First(called, first)),
        1 => (0..VALID, 0..3_i64).prop_map(|(id, room)| Own::Fill { id, room }),
        1 => Just(Own::Cut),
    ]
}

impl Kind for Activity {
    type Step = Own;
    const NAME: &'static str = "";
    const FAMILY: &'static str = "shop/here";
    const START: u64 = START;

    fn steps() -> BoxedStrategy<Step<Own>> {
        let clock = prop_oneof![
            6 => 0..20_000_i64,
            3 => 20_000..100_000_i64,
            1 => -20_000..0_i64,
            1 => -200_000..0_i64
        ];
        prop_oneof![
            24 => clock.prop_map(Step::Clock),
            9 => Just(Step::Epoch),
            81 => own().prop_map(Step::Own),
            1 => Just(Step::Forget),
        ]
        .boxed()
    }

    fn begin(frame: &mut Frame) -> Checked<Self> {
        let mut activity = Activity::default();
        let meta = [("meta", &mut activity.partition)];
        frame.configure("activity", 1, 1_000_000, meta)?;
        // without this, most calls would name no epoch
        frame.epoch("activity", "1")?;
        Ok(activity)
    }

    fn step(&mut self, frame: &mut Frame, step: &Own) -> Checked {
        match step {
            Own::Touch(called, touch) => return self.call_touch(frame, called, touch),
            Own::Now(window) => return self.call_now(frame, window),
            Own::First(called, first) => return self.call_first(frame, called, first),
            Own::Fill { id, room } => {
                let pending = i64::MAX - room;
                frame.write("HSET", "buffer", &[IDS[*id], &pending.to_string()]);
                self.partition.buffer.insert(IDS[*id].into(), pending);
            }
            Own::Cut => {
                let now = frame.now.to_string();
                frame.write("DEL", "buffer", &[]);
                frame.write("HSET", "meta", &["hits", "0", "rotated_at", &now]);
                self.partition.buffer.clear();
                self.partition
                    .set([("hits", "0".into()), ("rotated_at", now)]);
            }
        }
        Ok(())
    }

    fn keys(&self) -> Keys {
        let views = self
            .views
            .iter()
            .map(|(place, views)| (format!("views:{place}"), Content::hash(&views.0)));
        let visitors = self.visitors.iter().map(|(place, seen)| {
            // scores are negative times
            let scores = seen.iter().map(|(visitor, at)| (visitor, -at)).collect();
            (
                format!("visitors:{place}"),
                Content::zset::<_, i64>(&scores),
            )
        });
        let seen = self.seen.iter().map(|(id, seen)| {
            let seen = seen.iter().map(ToString::to_string).collect();
            (format!("seen:{id}"), Content::Set(seen))
        });
        let all = views.chain(visitors).chain(seen);
        let all = all.map(|(key, content)| {
            let lives = self.lives.get(&key).copied();
            (key, (content, lives))
        });
        let mut keys = self.partition.keys(["buffer", "batch", "meta"]);
        keys.extend(all);
        keys
    }
}

/// Sets the kind of the family, because the test calls scripts of two kinds on the same keys, and its
/// settings.
fn becomes(frame: &mut Frame, kind: &str, max_pending: usize, settings: &[(&str, String)]) {
    let max_pending = ("=max_pending", max_pending.to_string());
    let names = "max_pending remember layer layers keep_minutes stripes".to_owned();
    let remember = ("=remember", REMEMBER_MS.to_string());
    let fixed = [
        ("=kind", kind.to_owned()),
        ("=settings", names),
        max_pending,
        remember,
    ];
    for (name, value) in fixed.iter().chain(settings) {
        frame.write("HSET", FENCE[0], &[name, value]);
        frame.family.set([(name, value)]);
    }
}

impl Window {
    /// Returns the settings that the scripts read.
    fn settings(&self, keep: bool) -> [(&'static str, String); 4] {
        [
            ("=layer", LAYER_MS.to_string()),
            ("=layers", self.layers.to_string()),
            ("=keep_minutes", u8::from(keep).to_string()),
            ("=stripes", STRIPES.to_owned()),
        ]
    }
}

impl Activity {
    fn call_touch(&mut self, frame: &mut Frame, called: &Called, touch: &Touch) -> Checked {
        let (window, now) = (&touch.window, frame.now);
        let settings = window.settings(touch.keep);
        becomes(frame, "activity", touch.max_pending, &settings);
        let layer = layer_of(now);
        let (mut keys, mut in_use) = (TOUCH_KEYS.map(str::to_owned).to_vec(), vec![]);
        let stripes = if touch.is_outdated { "4" } else { STRIPES };
        let mut args = vec![stripes.to_owned(), window.places.len().to_string()];
        for ((place, views), visitors) in window.places().zip(&touch.views).zip(&touch.visitors) {
            let of_place = place_keys(place);
            in_use.extend(self.is_open(place, layer).then(|| of_place[1].clone()));
            keys.extend(of_place);
            args.extend([
                page(place).to_owned(),
                views.to_string(),
                visitors.len().to_string(),
            ]);
            args.extend(visitors.iter().map(|&visitor| VISITORS[visitor].to_owned()));
        }
        let mut sent = frame.sent(called, &keys);
        // within a layer, the script writes before it reads the visitors' key
        sent.spoilt = sent.spoilt.filter(|key| !in_use.contains(key));
        let counting = CountingCall {
            script: "activity_touch",
            kind: "activity",
            keys: &keys,
            args,
            dup: record,
        };
        frame.count(counting, &sent, self, |activity, _, _| {
            activity.touch(now, &sent, touch)
        })?;
        Ok(())
    }

    fn call_now(&mut self, frame: &mut Frame, window: &Window) -> Checked {
        let max_pending = 1_000_000;
        becomes(frame, "activity", max_pending, &window.settings(true));
        let places = window.places().flat_map(place_keys);
        let keys: Vec<_> = std::iter::once(FENCE[0].to_owned()).chain(places).collect();
        let now = frame.now.to_string();
        prop_assert_eq!(
            frame.call("activity_now", &keys, &[STRIPES, &now])?,
            self.now(frame.now, window)
        );
        Ok(())
    }

    fn call_first(&mut self, frame: &mut Frame, called: &Called, first: &First) -> Checked {
        becomes(frame, "visitors", first.max_pending, &[]);
        let mut keys = [FENCE[0], FENCE[1], "buffer", "meta"]
            .map(str::to_owned)
            .to_vec();
        let mut args = vec![first.visits.len().to_string()];
        for (id, visitors) in &first.visits {
            let id = IDS[*id];
            keys.push(format!("seen:{id}"));
            args.extend([id.to_owned(), visitors.len().to_string()]);
            args.extend(visitors.iter().map(|&visitor| VISITORS[visitor].to_owned()));
        }
        let (sent, now) = (frame.sent(called, &keys), frame.now);
        let counting = CountingCall {
            script: "visitors_first",
            kind: "visitors",
            keys: &keys,
            args,
            dup: |record| record.split_whitespace().map(word).collect(),
        };
        frame.count(counting, &sent, self, |activity, family, _| {
            activity.first(now, &sent, family, first)
        })?;
        Ok(())
    }
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Activity>().await;
}

#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Activity>("activity").await;
}

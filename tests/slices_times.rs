//! Series and activity at times that the test sets: around daylight saving changes, with a server's
//! clock that steps back, and with a wrong clock of a caller. Days and months are compared with a
//! reference in plain Rust.
#![allow(missing_docs)]

#[path = "it/support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use counterfoil::test_hooks::{Guard, set_clock_error, set_time, take_out};
use counterfoil::{
    Activity, Counterfoil, Counting, Durability, Family, FamilyBuilder, KeyType, MemoryStore,
    MysqlStore, Precision, Series, Slice, Table,
};
use proptest::prelude::*;
use proptest::test_runner::TestError;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::interleaving::connect::{Connect, Lasting};
use support::interleaving::hunt::{cases, expect_failure, hunt, runtime};
use support::interleaving::{Checked, Crashes, failed};
use support::tally::now_ms;
use support::{Pair, Plain, eventually, pause, random, times, trouble, unix};
use testkit::{MysqlServer, Proxy, RedisOptions, RedisServer};
use tokio::sync::RwLock;
use tokio::task::JoinSet;

/// The program's only clock, which the tests lock in turn.
struct Clock(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Clock {
    fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        Clock(TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the server's clock, in Unix milliseconds.
    fn set(&self, ms: i64) {
        set_time(Some(ms.cast_unsigned()));
    }

    /// Sets how far this machine's clock is ahead of the server's.
    fn machine_is_ahead(&self, ms: i64) {
        set_clock_error(ms);
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        set_time(None);
        set_clock_error(0);
        take_out(None);
    }
}

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// 2014-03-30 01:00 UTC, when Berlin's clocks went from 2:00 to 3:00.
const SPRING: i64 = 1_396_141_200;
/// 2014-10-26 01:00 UTC, when Berlin's clocks went from 3:00 to 2:00.
const AUTUMN: i64 = 1_414_285_200;
/// 2014-01-01 00:00 in Berlin.
const NEW_YEAR: i64 = 1_388_530_800;

/// A reference for Berlin's calendar in 2014.
mod berlin {
    use super::{AUTUMN, DAY, HOUR, NEW_YEAR, SPRING};

    const MONTHS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

    fn is_summer(at: i64) -> bool {
        (SPRING..AUTUMN).contains(&at)
    }

    /// Returns the start of a day of the year, counted from 0. No clock changes at midnight.
    fn day(number: i64) -> i64 {
        let midnight = NEW_YEAR + number * DAY;
        if is_summer(midnight) {
            midnight - HOUR
        } else {
            midnight
        }
    }

    pub fn days() -> impl Iterator<Item = i64> {
        (0..365).map(day)
    }

    pub fn months() -> impl Iterator<Item = i64> {
        (0..12).map(|month| day(MONTHS[..month].iter().sum()))
    }
}

/// Returns the starts of the last `most` slices of the precision up to this time, in 2014.
fn starts(precision: Precision, at: i64, most: usize) -> Vec<i64> {
    let until = |all: &mut dyn Iterator<Item = i64>| {
        let before: Vec<_> = all.take_while(|start| *start <= at).collect();
        before[before.len().saturating_sub(most)..].to_vec()
    };
    match precision {
        Precision::Seconds(length) => {
            let length = i64::from(length);
            let last = at / length;
            (last + 1 - most as i64..=last)
                .map(|number| number * length)
                .collect()
        }
        Precision::Day => until(&mut berlin::days()),
        _ => until(&mut berlin::months()),
    }
}

fn start(precision: Precision, at: i64) -> i64 {
    starts(precision, at, 1)[0]
}

const NAMES: [&str; 2] = ["a", "page/é"];
const WINDOWS: [(Precision, u32); 4] = [
    (Precision::FIVE_SECONDS, 6),
    (Precision::HOUR, 5),
    (Precision::Day, 4),
    (Precision::Month, 2),
];
const KEPT: [Precision; 2] = [Precision::HOUR, Precision::Day];

#[derive(Clone, Debug)]
enum Step {
    Add {
        name: usize,
        n: u64,
    },
    /// The server's clock moves forward or back.
    Jump {
        ms: i64,
    },
    /// The server's clock moves close to a moment at which something changes.
    Goto {
        edge: usize,
        ms: i64,
    },
    /// The machine's clock becomes wrong.
    MachineAhead {
        ms: i64,
    },
    /// A window is read.
    Get {
        name: usize,
        window: usize,
    },
    /// The current slice is read, with this many slices before and after it.
    Range {
        name: usize,
        kept: usize,
        before: i64,
        after: i64,
    },
    Drain,
}

/// The two daylight saving changes, and Berlin's midnights around them and at the ends of these
/// months.
const EDGES: [i64; 10] = [
    SPRING - 2 * HOUR,
    SPRING,
    SPRING + 21 * HOUR,
    SPRING + 45 * HOUR,
    AUTUMN - 3 * HOUR,
    AUTUMN - HOUR,
    AUTUMN,
    AUTUMN + HOUR,
    AUTUMN + 22 * HOUR,
    AUTUMN + 142 * HOUR,
];

fn step() -> impl Strategy<Value = Step> {
    let hours = |hours: i64| -hours * HOUR * 1000..hours * HOUR * 1000;
    let jump = prop_oneof![6 => 0..10_000i64, 2 => -12_000..0i64, 2 => hours(4), 1 => hours(60)];
    prop_oneof![
        10 => (0..NAMES.len(), 1..1000u64).prop_map(|(name, n)| Step::Add { name, n }),
        6 => jump.prop_map(|ms| Step::Jump { ms }),
        2 => (0..EDGES.len(), -3000..3000i64).prop_map(|(edge, ms)| Step::Goto { edge, ms }),
        1 => hours(40).prop_map(|ms| Step::MachineAhead { ms }),
        6 => (0..NAMES.len(), 0..WINDOWS.len()).prop_map(|(name, window)| Step::Get { name, window }),
        3 => (0..NAMES.len(), 0..KEPT.len(), 0..12i64, 0..3i64)
            .prop_map(|(name, kept, before, after)| Step::Range { name, kept, before, after }),
        1 => Just(Step::Drain),
    ]
}

/// A slice of one of the windows.
type Place = (usize, Precision, i64);

struct World<'c> {
    clock: &'c Clock,
    counterfoil: Counterfoil,
    series: Series,
    now_ms: i64,
    /// All counts so far.
    counted: BTreeMap<Place, i64>,
    /// The counts that windows may hold. A count that left a window is dropped some time later, and
    /// may return to it when the clock steps back.
    held: BTreeMap<Place, BTreeSet<i64>>,
}

impl<'c> World<'c> {
    async fn new(clock: &'c Clock, server: &RedisServer, name: String) -> Self {
        let counterfoil = Counterfoil::new(Lasting::to(server).await, MemoryStore::new());
        let family = Family::series(name, "hits")
            .windows(WINDOWS)
            .keep(KEPT)
            .time_zone("Europe/Berlin")
            .partitions(1)
            .durability(Durability::Immediate);
        let series = counterfoil.open(family).await.expect("opened");
        let now_ms = (SPRING - 3 * HOUR) * 1000;
        clock.machine_is_ahead(0);
        clock.set(now_ms);
        World {
            clock,
            counterfoil,
            series,
            now_ms,
            counted: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    fn now(&self) -> i64 {
        self.now_ms / 1000
    }

    fn go_to(&mut self, ms: i64) {
        // windows cover two months, and the reference ends with the year
        self.now_ms = ms.clamp((NEW_YEAR + 65 * DAY) * 1000, (NEW_YEAR + 330 * DAY) * 1000);
        self.clock.set(self.now_ms);
    }

    async fn step(&mut self, step: &Step) -> Checked {
        match *step {
            Step::Add { name, n } => {
                let _ = self.series.add(NAMES[name], n).await?;
                self.count(name, n.cast_signed());
            }
            Step::Jump { ms } => self.go_to(self.now_ms + ms),
            Step::Goto { edge, ms } => self.go_to(EDGES[edge] * 1000 + ms),
            Step::MachineAhead { ms } => self.clock.machine_is_ahead(ms),
            Step::Get { name, window } => self.get(name, window).await?,
            Step::Range {
                name,
                kept,
                before,
                after,
            } => {
                let precision = KEPT[kept];
                let length = if precision == Precision::Day {
                    DAY
                } else {
                    HOUR
                };
                self.range(
                    name,
                    precision,
                    self.now() - before * length,
                    self.now() + after * length,
                )
                .await?;
            }
            Step::Drain => self.counterfoil.drain().await?,
        }
        Ok(())
    }

    fn count(&mut self, name: usize, n: i64) {
        for (precision, slices) in WINDOWS {
            let window = starts(precision, self.now(), slices as usize);
            for ((_, _, start), values) in self
                .held
                .range_mut((name, precision, 0)..(name, precision, i64::MAX))
            {
                if *start < window[0] {
                    values.insert(0);
                }
            }
            let place = (name, precision, window[window.len() - 1]);
            *self.counted.entry(place).or_default() += n;
            let values = self
                .held
                .entry(place)
                .or_insert_with(|| BTreeSet::from([0]));
            *values = values.iter().map(|value| value + n).collect();
        }
    }

    async fn get(&mut self, name: usize, window: usize) -> Checked {
        let (precision, slices) = WINDOWS[window];
        let read = self.series.get(NAMES[name], precision).await?;
        let expected = starts(precision, self.now(), slices as usize);
        let began: Vec<_> = read.iter().map(|slice| unix(slice.start)).collect();
        if began != expected {
            return Err(failed(format!(
                "WRONG SLICES: of {precision} {began:?}, not {expected:?}"
            )));
        }
        for Slice { start, count } in read {
            let start = unix(start);
            let values = self
                .held
                .entry((name, precision, start))
                .or_insert_with(|| BTreeSet::from([0]));
            if !values.contains(&count) {
                return Err(failed(format!(
                    "WRONG COUNT: {count} at {start} of {precision}, not {values:?}"
                )));
            }
            *values = BTreeSet::from([count]);
        }
        Ok(())
    }

    async fn range(&self, name: usize, precision: Precision, from: i64, to: i64) -> Checked {
        let read = self
            .series
            .get_range(NAMES[name], precision, times(from..to))
            .await?;
        let first = start(precision, from);
        let all = starts(precision, to - 1, 1000);
        let of = |start| {
            self.counted
                .get(&(name, precision, start))
                .copied()
                .unwrap_or(0)
        };
        let all = all.into_iter().filter(|start| *start >= first && from < to);
        let expected: Vec<_> = all
            .map(|start| Slice {
                start: times(start..start).start,
                count: of(start),
            })
            .collect();
        if read == expected {
            Ok(())
        } else {
            Err(failed(format!("WRONG RANGE: {read:?}, not {expected:?}")))
        }
    }

    /// Checks all counts, before and after a drain.
    async fn finish(&mut self) -> Checked {
        for _ in 0..2 {
            for name in 0..NAMES.len() {
                self.range(name, Precision::Day, NEW_YEAR + DAY, NEW_YEAR + 340 * DAY)
                    .await?;
                for window in 0..WINDOWS.len() {
                    self.get(name, window).await?;
                }
            }
            self.counterfoil.drain().await?;
        }
        Ok(())
    }
}

fn hunt_in(clock: &Clock, cases: u32, guard: Option<Guard>) -> Result<(), TestError<Vec<Step>>> {
    let runtime = runtime();
    let steps = proptest::collection::vec(step(), 10..60);
    hunt(
        &runtime,
        (Crashes::None, cases, guard),
        steps,
        |server, name, steps| {
            runtime.block_on(async {
                let mut world = World::new(clock, server, name).await;
                for step in &steps {
                    world.step(step).await?;
                }
                world.finish().await
            })
        },
    )
}

#[test]
fn series_at_random_times_are_what_the_reference_has() {
    if let Err(error) = hunt_in(&Clock::take(), cases(80), None) {
        panic!("{error}");
    }
}

#[test]
fn without_a_look_at_the_clock_a_hit_counts_in_another_day() {
    expect_failure(
        hunt_in(&Clock::take(), 500, Some(Guard::Outside)),
        Guard::Outside,
        &["WRONG"],
    );
}

#[test]
fn a_clock_that_stepped_back_would_drop_what_lies_ahead() {
    expect_failure(
        hunt_in(&Clock::take(), 500, Some(Guard::Ahead)),
        Guard::Ahead,
        &["WRONG"],
    );
}

fn online(name: &str, counting: Counting) -> FamilyBuilder<Activity> {
    Family::activity("test", name)
        .window(Duration::from_secs(60), Duration::from_secs(3))
        .stripes(5)
        .partitions(3)
        .visitors(counting)
        .keep_minutes(true)
        .durability(Durability::Settle(Duration::from_millis(20)))
        .sync_time(Duration::from_millis(200))
}

/// Returns the number of script calls.
async fn script_calls(server: &RedisServer) -> u64 {
    let info: String = server.run("INFO commandstats").await.unwrap();
    let calls = |line: &str| {
        let line = line
            .strip_prefix("cmdstat_eval:calls=")
            .or(line.strip_prefix("cmdstat_evalsha:calls="))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    info.lines().filter_map(calls).sum()
}

/// Counts ten views by five visitors with a clock that is hours off. Returns the views and visitors
/// that are seen.
async fn seen_by_a_wrong_clock(clock: &Clock) -> (u64, u64) {
    let plain = Plain::new().await;
    let family = online("online", Counting::HyperLogLog).stripes(1);
    let touching = plain.counterfoil.open(family.clone()).await.unwrap();
    for (visitor, hours) in [5, -5, 0, 300, -300].into_iter().enumerate() {
        clock.machine_is_ahead(hours * HOUR * 1000);
        touching.touch("page", [visitor as u8]).await.unwrap();
        // the caller has learnt the server's time
        let before = script_calls(&plain.redis).await;
        touching.touch("page", [visitor as u8]).await.unwrap();
        assert_eq!(
            script_calls(&plain.redis).await,
            before + 1,
            "{hours} hours ahead"
        );
    }
    clock.machine_is_ahead(0);
    let elsewhere = Counterfoil::new(plain.redis.manager().await, plain.store.clone());
    let now = elsewhere
        .open(family)
        .await
        .unwrap()
        .now("page")
        .await
        .unwrap();
    (now.views, now.visitors.count())
}

#[test]
fn a_layer_is_the_servers_whatever_the_caller_believes() {
    let clock = Clock::take();
    runtime().block_on(async {
        assert_eq!(seen_by_a_wrong_clock(&clock).await, (10, 5));
        take_out(Some(Guard::Outside));
        let (views, visitors) = seen_by_a_wrong_clock(&clock).await;
        assert!(
            views < 10 && visitors < 5,
            "counted in other layers, and seen all the same"
        );
    });
}

/// The way to the server takes longer than a layer.
#[test]
fn layers_are_told_over_a_long_way() {
    let clock = Clock::take();
    runtime().block_on(async {
        let plain = Plain::new().await;
        let proxy = Proxy::to(&plain.redis);
        let far = Counterfoil::new(proxy.manager().await, plain.store.clone());
        let window = (Duration::from_secs(20), Duration::from_millis(40));
        let online = online("online", Counting::HyperLogLog)
            .keep_minutes(false)
            .stripes(1)
            .window(window.0, window.1);
        let online = far.open(online).await.unwrap().cache_for(Duration::ZERO);
        proxy.delay_replies(Duration::from_millis(60));
        // makes the caller learn the server's time
        clock.machine_is_ahead(3 * HOUR * 1000);
        for visitor in 0..20u32 {
            online.touch("page", visitor.to_be_bytes()).await.unwrap();
            assert_eq!(
                online.now("page").await.unwrap().views,
                u64::from(visitor) + 1
            );
        }
    });
}

/// Cuts calls at every point for a caller whose clock is wrong each time, so that each call is sent
/// twice.
async fn cut_with_a_wrong_clock(clock: &Clock) {
    type Cut = fn(&Proxy, usize);
    let plain = Plain::new().await;
    let proxy = Proxy::to(&plain.redis);
    let redis = proxy.manager().await;
    let frail = Counterfoil::new(redis.clone(), plain.store.clone());
    let (hits, online) = (
        Family::series("test", "hits"),
        online("online", Counting::HyperLogLog).stripes(1),
    );
    let hits = frail
        .open(hits.windows([(Precision::Day, 3)]))
        .await
        .unwrap();
    let online = frail.open(online).await.unwrap().cache_for(Duration::ZERO);
    let (mut calls, mut hours) = (0i64, 7 * 24);
    // requests are long, so they are cut only after every fifth byte
    let directions: [(Cut, usize); 2] = [
        (Proxy::cut_requests_after, 5),
        (Proxy::cut_replies_after, 1),
    ];
    for (cut, step) in directions {
        for bytes in (0..).step_by(step) {
            hours = -hours;
            clock.machine_is_ahead(hours * HOUR * 1000);
            eventually("a connection", async || {
                redis::cmd("PING")
                    .query_async::<()>(&mut redis.clone())
                    .await
                    .is_ok()
            })
            .await;
            let before = hits.get("page", Precision::Day).await.unwrap();
            let now = online.now("page").await.unwrap();
            assert_eq!(
                (
                    before.iter().map(|slice| slice.count).sum::<i64>(),
                    now.views
                ),
                (calls, calls.cast_unsigned())
            );
            clock.machine_is_ahead(-hours * HOUR * 1000);
            cut(&proxy, bytes);
            if calls % 2 == 0 {
                let _ = hits.add("page", 1).await.unwrap();
                online.touch("page", "visitor").await.unwrap();
            } else {
                online.touch("page", "visitor").await.unwrap();
                let _ = hits.add("page", 1).await.unwrap();
            }
            calls += 1;
            if proxy.call_off() {
                break;
            }
        }
    }
    assert!(calls > 100, "{calls} calls");
}

#[test]
fn a_call_that_is_made_for_another_time_is_counted_once_wherever_it_is_cut() {
    let clock = Clock::take();
    runtime().block_on(cut_with_a_wrong_clock(&clock));
}

#[test]
fn the_window_slides_by_layers() {
    let clock = Clock::take();
    runtime().block_on(async {
        for counting in [Counting::Exact, Counting::HyperLogLog] {
            let plain = Plain::new().await;
            let online = plain
                .counterfoil
                .open(online("online", counting))
                .await
                .unwrap()
                .cache_for(Duration::ZERO);
            let noon = (AUTUMN + 10 * HOUR) * 1000;
            clock.set(noon);
            for view in 0..20u32 {
                online
                    .touch("page", (view % 10).to_be_bytes())
                    .await
                    .unwrap();
            }
            clock.set(noon + 40_000);
            online.touch("page", "late").await.unwrap();
            // a minute in layers of 3 s
            let windows = [
                (40_000, 21, 11),
                (59_999, 21, 11),
                (60_000, 1, 1),
                (98_999, 1, 1),
                (99_000, 0, 0),
            ];
            for (ms, views, visitors) in windows {
                clock.set(noon + ms);
                let now = online.now("page").await.unwrap();
                assert_eq!(
                    (now.views, now.visitors.count()),
                    (views, visitors),
                    "{counting:?} after {ms} ms"
                );
            }
        }
    });
}

/// Steps the server's clock back in the middle of a window, and lets it catch up again.
async fn steps_back(clock: &Clock, counting: Counting, by_ms: i64) {
    let plain = Plain::new().await;
    let online = plain
        .counterfoil
        .open(online("online", counting))
        .await
        .unwrap()
        .cache_for(Duration::ZERO);
    let noon = (AUTUMN + 10 * HOUR) * 1000;
    let mut touches = 0;
    let mut touch = async |at_ms: i64, visitors: std::ops::Range<u32>| {
        clock.set(at_ms);
        for visitor in visitors {
            online.touch("page", visitor.to_be_bytes()).await.unwrap();
            touches += 1;
        }
        touches
    };
    touch(noon, 0..10).await;
    touch(noon + 6_000, 5..20).await;
    touch(noon + 6_000 - by_ms, 15..30).await;
    // visitors from before and after the step are present
    let now = online.now("page").await.unwrap();
    assert!(now.views >= 15 && now.visitors.count() >= 14, "{now:?}");
    touch(noon + 7_000 - by_ms, 10..12).await;
    touch(noon + 9_000, 20..25).await;
    let now = online.now("page").await.unwrap();
    let expected = if by_ms < 60_000 { 47 } else { 30 };
    assert_eq!(now.views, expected, "{counting:?}, {by_ms} ms back");
    let (least, most) = if by_ms < 60_000 { (29, 31) } else { (24, 26) };
    assert!((least..=most).contains(&now.visitors.count()), "{now:?}");
    let all = || online.minutes("page", times(AUTUMN..AUTUMN + 11 * HOUR));
    let before = all().await.unwrap();
    plain.counterfoil.drain().await.unwrap();
    assert_eq!(
        all().await.unwrap(),
        before,
        "what was read is what is stored"
    );
    assert_eq!(before.iter().map(|minute| minute.views).sum::<i64>(), 47);
    let visitors: u64 = before.iter().map(|minute| minute.visitors.count()).sum();
    assert!(
        (24..=47).contains(&visitors),
        "{visitors} visitors of the minutes"
    );
}

#[test]
fn activity_outlives_a_clock_that_steps_back() {
    let clock = Clock::take();
    runtime().block_on(async {
        for counting in [Counting::Exact, Counting::HyperLogLog] {
            for by_ms in [2_000, 30_000, 5 * HOUR * 1000] {
                steps_back(&clock, counting, by_ms).await;
            }
        }
    });
}

/// The acknowledged touches of one minute.
#[derive(Clone, Debug, Default)]
struct Touched {
    views: i64,
    visitors: BTreeSet<u32>,
}

const PAGES: [&str; 2] = ["/", "/forum/é"];

/// Writers that touch pages until they are stopped, and count the acknowledged touches by page and
/// minute. The minute changes only between calls.
struct Touching {
    stop: Arc<AtomicBool>,
    minute: Arc<RwLock<i64>>,
    writers: JoinSet<HashMap<(usize, i64), Touched>>,
}

impl Touching {
    fn on(online: &Activity, minute: i64, random: &mut StdRng) -> Self {
        let (stop, minute) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(RwLock::new(minute)),
        );
        let mut writers = JoinSet::new();
        for _ in 0..6 {
            let (online, stop, minute) = (online.clone(), stop.clone(), minute.clone());
            let mut random = StdRng::from_rng(&mut *random);
            writers.spawn(async move {
                let mut all = HashMap::new();
                while !stop.load(Ordering::Relaxed) {
                    let (page, visitor) = (
                        random.random_range(0..PAGES.len()),
                        random.random_range(0..400u32),
                    );
                    let minute = minute.read().await;
                    match online.touch(PAGES[page], visitor.to_be_bytes()).await {
                        Ok(()) => {
                            let touched: &mut Touched = all.entry((page, *minute)).or_default();
                            touched.views += 1;
                            touched.visitors.insert(visitor);
                        }
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                    drop(minute);
                    pause(1).await;
                }
                all
            });
        }
        Touching {
            stop,
            minute,
            writers,
        }
    }

    async fn end(self) -> BTreeMap<(usize, i64), Touched> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all: BTreeMap<_, Touched> = BTreeMap::new();
        for (place, touched) in self.writers.join_all().await.into_iter().flatten() {
            let sum = all.entry(place).or_default();
            sum.views += touched.views;
            sum.visitors.extend(touched.visitors);
        }
        all
    }
}

#[test]
fn kept_minutes_are_exact_whatever_dies() {
    let clock = Clock::take();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut random = random::numbers();
    runtime.block_on(async {
        let family = || online("online", Counting::Exact);
        let mysql = MysqlServer::start().await;
        let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
        let proxy = Proxy::to(&pair.redis);
        let frail = Counterfoil::new(proxy.manager().await, MysqlStore::new(pair.pool.clone()));
        let touched = frail
            .open(family())
            .await
            .unwrap()
            .write_timeout(Duration::from_secs(20));
        // long over, so that its counts go to the database at once
        let first = now_ms() / 60_000 - 30;
        clock.set(first * 60_000);
        let touching = Touching::on(&touched, first, &mut random);
        for round in 0..10 {
            let open = |counterfoil: Counterfoil| async move {
                let family = online("online", Counting::Exact);
                counterfoil.open(family).await.map(drop)
            };
            trouble::round(round, &mut random, (&pair, &proxy, &mysql), open).await;
            let mut minute = touching.minute.write().await;
            *minute += 1;
            clock.set(*minute * 60_000 + random.random_range(0..60_000));
        }
        let acknowledged = touching.end().await;
        let safe = pair.counterfoil.open(family()).await.unwrap();
        let range = first * 60..(first + 11) * 60;
        let mut read = Vec::new();
        for page in PAGES {
            read.push(safe.minutes(page, times(range.clone())).await.unwrap());
        }
        pair.counterfoil.drain().await.unwrap();
        for (page, read) in read.iter().enumerate() {
            assert_eq!(
                safe.minutes(PAGES[page], times(range.clone()))
                    .await
                    .unwrap(),
                *read,
                "{}",
                PAGES[page]
            );
            for minute in read {
                let expected = acknowledged
                    .get(&(page, unix(minute.start) / 60))
                    .cloned()
                    .unwrap_or_default();
                assert_eq!(
                    minute.views,
                    expected.views,
                    "views of {} at {}",
                    PAGES[page],
                    unix(minute.start)
                );
                assert_eq!(
                    minute.visitors.count(),
                    expected.visitors.len() as u64,
                    "{expected:?}"
                );
            }
        }
        let sum =
            "SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values WHERE id LIKE 'views/%'";
        let views: i64 = acknowledged.values().map(|touched| touched.views).sum();
        assert_eq!(pair.number(sum).await, views);
        assert!(
            views > 500 && acknowledged.len() >= 20,
            "{views} views in {} minutes",
            acknowledged.len()
        );
        println!("{views} views in {} minutes of pages", acknowledged.len());
    });
}

/// A day of 23 hours and one of 25, with a hit in each hour, in `page_days(day, page, hits)`.
#[tokio::test]
async fn days_of_23_and_25_hours_get_to_the_applications_own_table() {
    let clock = Clock::take();
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE page_days (day DATE, page VARBINARY(200), hits INT NOT NULL, PRIMARY KEY (day, page))")
        .await;
    let table = Table::upsert("page_days")
        .key("day", KeyType::Date)
        .key("page", KeyType::Text)
        .value("hits");
    let family = Family::series("test", "days")
        .windows([(Precision::HOUR, 30), (Precision::Day, 3)])
        .time_zone("Europe/Berlin")
        .keep([Precision::Day])
        .table(table)
        .durability(Durability::Immediate);
    let hits = pair.counterfoil.open(family).await.unwrap();
    for change in [SPRING, AUTUMN] {
        let midnight = start(Precision::Day, change);
        for hour in 0..26 {
            clock.set((midnight + hour * HOUR) * 1000);
            let _ = hits.add("/a/b", 1).await.unwrap();
        }
    }
    pair.counterfoil.drain().await.unwrap();
    // of the 26 hours, 3 or 1 belong to the next day
    for (day, count) in [
        ("2014-03-30", 23),
        ("2014-03-31", 3),
        ("2014-10-26", 25),
        ("2014-10-27", 1),
    ] {
        let query =
            sqlx::query_scalar("SELECT hits FROM page_days WHERE day = ? AND page = '/a/b'")
                .bind(day);
        let stored: Option<i32> = query.fetch_optional(&pair.pool).await.unwrap();
        assert_eq!(stored, Some(count), "{day}");
    }
    let spring = start(Precision::Day, SPRING);
    let read = hits
        .get_range("/a/b", Precision::Day, times(spring..spring + 2 * DAY))
        .await
        .unwrap();
    assert_eq!(
        read.iter().map(|slice| slice.count).collect::<Vec<_>>(),
        [23, 3, 0]
    );
    assert_eq!(unix(read[1].start) - unix(read[0].start), 23 * HOUR);
}

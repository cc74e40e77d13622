//! Series and activity at times that the test sets: around daylight saving changes, with a server's
//! clock that steps back, and with a wrong clock of the machine that writes the calendar. Days and months are compared with a
//! reference in plain Rust.
#![allow(missing_docs)]

#[path = "it/support/mod.rs"]
mod support;

use counterfoil::test_hooks::{set_clock_error, set_time};

use support::interleaving::*;
use support::*;

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
    let all: Vec<_> = match precision {
        Precision::Seconds(length) => {
            let length = i64::from(length);
            let last = at / length;
            let numbers = last + 1 - most as i64..=last;
            return numbers.map(|number| number * length).collect();
        }
        Precision::Day => berlin::days().collect(),
        _ => berlin::months().collect(),
    };
    let until = all.partition_point(|start| *start <= at);
    all[until.saturating_sub(most)..until].to_vec()
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
    /// A hit of earlier arrives late.
    Late {
        name: usize,
        n: u64,
        ago_ms: i64,
    },
    /// The server's clock moves forward or back.
    Jump(i64),
    /// The server's clock moves close to a moment at which something changes.
    Goto {
        edge: usize,
        ms: i64,
    },
    /// The machine's clock becomes wrong.
    MachineAhead(i64),
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
        4 => (0..NAMES.len(), 1..1000u64, 0..200 * HOUR * 1000)
            .prop_map(|(name, n, ago_ms)| Step::Late { name, n, ago_ms }),
        6 => jump.prop_map(Step::Jump),
        2 => (0..EDGES.len(), -3000..3000i64).prop_map(|(edge, ms)| Step::Goto { edge, ms }),
        1 => hours(40).prop_map(Step::MachineAhead),
        6 => (0..NAMES.len(), 0..WINDOWS.len()).prop_map(|(name, window)| Step::Get { name, window }),
        3 => (0..NAMES.len(), 0..KEPT.len(), 0..12i64, 0..3i64)
            .prop_map(|(name, kept, before, after)| Step::Range { name, kept, before, after }),
        1 => Just(Step::Drain),
    ]
}

/// The name, precision and start of a slice of one of the windows.
type Cell = (usize, Precision, i64);

struct World<'c> {
    clock: &'c Clock,
    counterfoil: Counterfoil,
    family: FamilyBuilder<Series>,
    series: Series,
    now_ms: i64,
    /// All counts so far.
    counted: BTreeMap<Cell, i64>,
    /// The counts that windows may hold. A count that left a window is dropped some time later, and
    /// may return to it when the clock steps back.
    held: BTreeMap<Cell, BTreeSet<i64>>,
}

impl<'c> World<'c> {
    async fn new(clock: &'c Clock, server: &RedisServer, name: String) -> Self {
        let counterfoil = Counterfoil::new(ConnectionManager::to(server).await, MemoryStore::new());
        let family = Family::series(name, "hits")
            .windows(WINDOWS)
            .keep(KEPT)
            .late(secs(60 * DAY.cast_unsigned()))
            .time_zone("Europe/Berlin")
            .partitions(1)
            .at_once();
        let now_ms = (SPRING - 3 * HOUR) * 1000;
        clock.machine_is_ahead(0);
        clock.set(now_ms);
        let series = counterfoil.opened(family.clone()).await;
        World {
            clock,
            counterfoil,
            family,
            series,
            now_ms,
            counted: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    fn now(&self) -> i64 {
        self.now_ms / 1000
    }

    /// Sets the clock. The calendar is written as a reconciler does it from time to time.
    async fn go_to(&mut self, ms: i64) {
        // windows cover two months, and the reference ends with the year
        self.now_ms = ms.clamp((NEW_YEAR + 65 * DAY) * 1000, (NEW_YEAR + 330 * DAY) * 1000);
        self.clock.set(self.now_ms);
        self.series = self.counterfoil.opened(self.family.clone()).await;
    }

    async fn step(&mut self, step: &Step) -> Checked {
        match *step {
            Step::Add { name, n } => {
                let _ = self.series.add(NAMES[name], n).await?;
                self.count(name, n.cast_signed(), self.now());
            }
            Step::Late { name, n, ago_ms } => {
                let at = (self.now_ms - ago_ms) / 1000;
                let time = times(at..at).start;
                let outcome = self.series.add_at(NAMES[name], n, time).await?;
                prop_assert_eq!(outcome, Counted(n.cast_signed()));
                self.count(name, n.cast_signed(), at);
            }
            Step::Jump(ms) => self.go_to(self.now_ms + ms).await,
            Step::Goto { edge, ms } => self.go_to(EDGES[edge] * 1000 + ms).await,
            Step::MachineAhead(ms) => self.clock.machine_is_ahead(ms),
            Step::Get { name, window } => self.get(name, window).await?,
            Step::Range {
                name,
                kept,
                before,
                after,
            } => {
                let (precision, now) = (KEPT[kept], self.now());
                let length = if precision == Precision::Day {
                    DAY
                } else {
                    HOUR
                };
                let (from, to) = (now - before * length, now + after * length);
                self.range(name, precision, from, to).await?;
            }
            Step::Drain => self.counterfoil.drain().await?,
        }
        Ok(())
    }

    /// Counts a hit of that time, in seconds.
    fn count(&mut self, name: usize, n: i64, at: i64) {
        for (precision, slices) in WINDOWS {
            let window = starts(precision, self.now(), slices as usize);
            for (_, values) in self
                .held
                .range_mut((name, precision, 0)..(name, precision, window[0]))
            {
                values.insert(0);
            }
            let cell = (name, precision, start(precision, at));
            *self.counted.entry(cell).or_default() += n;
            if cell.2 >= window[0] {
                let values = self.held.entry(cell).or_insert_with(|| [0].into());
                *values = values.iter().map(|value| value + n).collect();
            }
        }
    }

    async fn get(&mut self, name: usize, window: usize) -> Checked {
        let (precision, slices) = WINDOWS[window];
        let read = self.series.get(NAMES[name], precision).await?;
        let expected = starts(precision, self.now(), slices as usize);
        let began: Vec<_> = read.iter().map(|slice| unix(slice.start)).collect();
        prop_assert_eq!(began, expected, "WRONG SLICES of {}", precision);
        for Slice { start, count } in read {
            let start = unix(start);
            let values = self
                .held
                .entry((name, precision, start))
                .or_insert_with(|| [0].into());
            prop_assert!(
                values.contains(&count),
                "WRONG COUNT: {count} at {start} of {precision}, not {values:?}"
            );
            *values = [count].into();
        }
        Ok(())
    }

    async fn range(&self, name: usize, precision: Precision, from: i64, to: i64) -> Checked {
        let range = self
            .series
            .get_range(NAMES[name], precision, times(from..to));
        let (read, first) = (range.await?, start(precision, from));
        let mut all = starts(precision, to - 1, 1000);
        all.retain(|start| *start >= first && from < to);
        let slice = |start| Slice {
            start: times(start..start).start,
            count: *self.counted.get(&(name, precision, start)).unwrap_or(&0),
        };
        let expected: Vec<_> = all.into_iter().map(slice).collect();
        prop_assert_eq!(read, expected, "WRONG RANGE");
        Ok(())
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

/// A clock that stepped back would drop what lies ahead.
#[test]
fn each_guard_is_needed() {
    let guard = Guard::Ahead;
    expect_failure(hunt_in(&Clock::take(), 500, Some(guard)), guard, &["WRONG"]);
}

fn online() -> FamilyBuilder<Activity> {
    Family::activity("test", "online")
        .window(secs(60), secs(3))
        .stripes(5)
        .partitions(3)
        .keep_minutes(true)
        .settle(20)
        .sync_time(millis(200))
}

/// Opens a family whose reads are not cached.
async fn open(counterfoil: &Counterfoil, family: FamilyBuilder<Activity>) -> Activity {
    counterfoil.opened(family).await.cache_for(Duration::ZERO)
}

/// A time in ms at which activity begins.
const NOON: i64 = (AUTUMN + 10 * HOUR) * 1000;

/// Sends `rate` views a second for this number of seconds, by returning visitors, in groups of this
/// size. A program without scripts lost 350 of 6,800 views.
async fn no_view_is_lost(clock: &Clock, seconds: i64, rate: i64, group: usize) {
    let plain = Plain::new().await;
    let online = open(
        &plain.counterfoil,
        online()
            .partitions(1)
            .stripes(15)
            .window(secs(600), secs(3)),
    )
    .await;
    // from ten seconds before a minute ends
    let views: Vec<_> = (0..seconds * rate)
        .map(|view| (50_000 + view * 1000 / rate, view * view % 9973))
        .collect();
    let (mut visitors, mut by_minute) = (BTreeSet::new(), BTreeSet::new());
    for views in views.chunks(group) {
        let at = views[views.len() - 1].0;
        clock.set(NOON + at);
        let touch = |(_, visitor): &(i64, i64)| online.touch("page", visitor.to_be_bytes());
        try_join_all(views.iter().map(touch)).await.unwrap();
        visitors.extend(views.iter().map(|(_, visitor)| *visitor));
        by_minute.extend(views.iter().map(|(_, visitor)| (at / 60_000, *visitor)));
    }
    let now = online.now("page").await.unwrap();
    assert_eq!(now.views, views.len() as u64);
    assert_eq!(now.visitors, visitors.len() as u64);
    let noon = NOON / 1000;
    let minutes = online
        .minutes("page", times(noon..noon + 600))
        .await
        .unwrap();
    let counts = minutes
        .iter()
        .map(|minute| (minute.views as usize, minute.visitors as usize));
    let (views_of_minutes, visitors_of_minutes): (Vec<_>, Vec<_>) = counts.unzip();
    assert_eq!(views_of_minutes.iter().sum::<usize>(), views.len());
    assert_eq!(visitors_of_minutes.iter().sum::<usize>(), by_minute.len());
    clock.set(NOON + 900_000);
    assert_eq!(online.now("page").await.unwrap().views, 0);
}

#[test]
fn no_view_is_lost_at_35_and_at_3500_a_second() {
    let clock = Clock::take();
    runtime().block_on(async {
        no_view_is_lost(&clock, 195, 35, 1).await;
        no_view_is_lost(&clock, 20, 3500, 250).await;
    });
}

/// Steps the server's clock back in the middle of a window, and lets it catch up again.
async fn steps_back(clock: &Clock, by_ms: i64) {
    let plain = Plain::new().await;
    let online = open(&plain.counterfoil, online()).await;
    let touch = async |at_ms: i64, visitors: std::ops::Range<u32>| {
        clock.set(NOON + at_ms);
        for visitor in visitors {
            online.touch("page", visitor.to_be_bytes()).await.unwrap();
        }
    };
    touch(0, 0..10).await;
    touch(6_000, 5..20).await;
    touch(6_000 - by_ms, 15..30).await;
    // visitors from before and after the step are present
    let now = online.now("page").await.unwrap();
    assert!(now.views >= 15 && now.visitors >= 14, "{now:?}");
    touch(7_000 - by_ms, 10..12).await;
    touch(9_000, 20..25).await;
    let now = online.now("page").await.unwrap();
    let expected = if by_ms < 60_000 { (47, 30) } else { (30, 25) };
    assert_eq!((now.views, now.visitors), expected, "{by_ms} ms back");
    let all = || online.minutes("page", times(AUTUMN..AUTUMN + 11 * HOUR));
    let before = all().await.unwrap();
    plain.drain().await;
    // what was read is what is stored
    assert_eq!(all().await.unwrap(), before);
    assert_eq!(before.iter().map(|minute| minute.views).sum::<i64>(), 47);
    let visitors: u64 = before.iter().map(|minute| minute.visitors).sum();
    assert!(
        (24..=47).contains(&visitors),
        "{visitors} visitors of the minutes"
    );
}

#[test]
fn activity_outlives_a_clock_that_steps_back() {
    let clock = Clock::take();
    runtime().block_on(async {
        for by_ms in [2_000, 30_000, 5 * HOUR * 1000] {
            steps_back(&clock, by_ms).await;
        }
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
        .key("day", Date)
        .key("page", Text)
        .value("hits");
    let family = Family::series("test", "days")
        .windows([(Precision::HOUR, 30), (Precision::Day, 3)])
        .time_zone("Europe/Berlin")
        .keep([Precision::Day])
        .table(table)
        .at_once();
    clock.set((SPRING - 3 * HOUR) * 1000);
    let hits = pair.open(family.clone()).await;
    for change in [SPRING, AUTUMN] {
        let midnight = start(Precision::Day, change);
        clock.set(midnight * 1000);
        // as a reconciler does it from time to time
        let hits = pair.open(family.clone()).await;
        for hour in 0..26 {
            clock.set((midnight + hour * HOUR) * 1000);
            hits.count("/a/b", 1).await;
        }
    }
    pair.drain().await;
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
    let counts: Vec<_> = read.iter().map(|slice| slice.count).collect();
    assert_eq!(counts, [23, 3, 0]);
    assert_eq!(unix(read[1].start) - unix(read[0].start), 23 * HOUR);
}

//! Series under faults and under load, on real servers. Whatever dies, each finished slice is in
//! the database once, and every window is complete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::tally::{Tally, now_ms};
use crate::support::{Pair, Plain, pause, random, times, trouble, unix};
use counterfoil::test_hooks::{Guard, take_out};
use counterfoil::{
    Counterfoil, Counting, Durability, Family, FamilyBuilder, MysqlStore, Outcome, Precision,
    Series, Slice,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use testkit::{MysqlServer, Proxy, RedisOptions};
use tokio::task::JoinSet;

fn family() -> FamilyBuilder<Series> {
    Family::series("test", "hits")
        .windows([(Precision::SECOND, 120), (Precision::Day, 3)])
        .keep([Precision::SECOND])
        .partitions(2)
        .durability(Durability::Settle(Duration::from_millis(20)))
        .sync_time(Duration::from_millis(200))
}

fn sum(slices: &[Slice]) -> i64 {
    slices.iter().map(|slice| slice.count).sum()
}

const NAMES: [&str; 3] = ["a", "b/c", "é"];

/// Writers that count until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    tallies: [Tally; NAMES.len()],
    writers: JoinSet<()>,
}

impl Load {
    fn on(hits: &Series) -> Self {
        let (stop, tallies): (Arc<AtomicBool>, [Tally; NAMES.len()]) = Default::default();
        let mut writers = JoinSet::new();
        for writer in 0..6 {
            let (hits, stop, tallies) = (hits.clone(), stop.clone(), tallies.clone());
            writers.spawn(async move {
                for turn in writer.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (name, tally) = (NAMES[turn % NAMES.len()], &tallies[turn % NAMES.len()]);
                    let began = tally.begin();
                    match hits.add(name, 1).await {
                        Ok(added) => {
                            assert_eq!(added, Outcome::Counted(1));
                            tally.end(began, true)
                        }
                        Err(error) if error.is_retryable() => tally.end(began, false),
                        Err(error) => panic!("{error}"),
                    }
                    pause(1).await;
                }
            });
        }
        Load {
            stop,
            tallies,
            writers,
        }
    }

    async fn end(self) -> [Tally; NAMES.len()] {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.join_all().await;
        self.tallies
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_slices_are_exact_when_redis_is_killed_and_comes_back_with_its_file() {
    let mysql = MysqlServer::start().await;
    // the file contains every acknowledged hit, so a killed process loses nothing
    let pair = Pair::on(RedisOptions::aof("always"), &mysql).await;
    let hits = pair.counterfoil.open(family()).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let load = Load::on(&hits.clone().write_timeout(Duration::from_secs(20)));
    let mut random = random::numbers();
    for _ in 0..8 {
        pause(random.random_range(200..500)).await;
        pair.redis.kill();
        pause(30).await;
        pair.redis.start_again().await;
    }
    let tallies = load.end().await;
    // the last slice is over
    pause(1100).await;
    pair.counterfoil.drain().await.unwrap();
    reconciler.shutdown().await.unwrap();
    are_exact(&pair, &hits, &tallies).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_slices_are_exact_whatever_dies() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let proxy = Proxy::to(&pair.redis);
    let frail = Counterfoil::new(proxy.manager().await, MysqlStore::new(pair.pool.clone()));
    let hits = frail
        .open(family())
        .await
        .unwrap()
        .write_timeout(Duration::from_secs(20));
    let (load, mut random) = (Load::on(&hits), random::numbers());
    for round in 0..10 {
        let open =
            |counterfoil: Counterfoil| async move { counterfoil.open(family()).await.map(drop) };
        trouble::round(round, &mut random, (&pair, &proxy, &mysql), open).await;
    }
    let tallies = load.end().await;
    // the last slice is over
    pause(1100).await;
    let safe = pair.counterfoil.open(family()).await.unwrap();
    let stored = pair.number("SELECT COUNT(*) FROM counterfoil_values").await;
    assert!(stored > 3, "nothing got through meanwhile: {stored} rows");
    pair.counterfoil.drain().await.unwrap();
    are_exact(&pair, &safe, &tallies).await;
}

/// Checks that the row and the window of each slice are equal, and within the bounds of its tally.
async fn are_exact(pair: &Pair, hits: &Series, tallies: &[Tally]) {
    let query = "SELECT CAST(id AS CHAR), value FROM counterfoil_values";
    let rows: Vec<(String, i64)> = sqlx::query_as(query).fetch_all(&pair.pool).await.unwrap();
    let rows: BTreeMap<_, _> = rows.into_iter().collect();
    let (mut acknowledged, mut slices) = (0, 0);
    for (name, tally) in NAMES.iter().zip(tallies) {
        let bounds = tally.look();
        let window = hits.get(name, Precision::SECOND).await.unwrap();
        for Slice { start, count } in &window {
            let start = unix(*start);
            let row = rows.get(&format!("{start}/{name}")).copied().unwrap_or(0);
            assert_eq!(
                row, *count,
                "slice {start} of {name}: the row, and the window"
            );
            assert!(
                bounds.of(start).contains(&row),
                "slice {start} of {name}: {row}, not {:?}",
                bounds.of(start)
            );
        }
        let range = window[0].start..window[119].start + Duration::from_secs(1);
        assert_eq!(
            hits.get_range(name, Precision::SECOND, range)
                .await
                .unwrap(),
            window,
            "{name}"
        );
        assert_eq!(
            sum(&hits.get(name, Precision::Day).await.unwrap()),
            bounds.acknowledged,
            "{name}"
        );
        acknowledged += bounds.acknowledged;
        slices += window.iter().filter(|slice| slice.count > 0).count();
    }
    println!("{acknowledged} hits in {slices} slices");
    assert_eq!(
        rows.values().sum::<i64>(),
        acknowledged,
        "all rows, and all hits"
    );
    assert!(
        acknowledged > 500 && slices > 6 && rows.len() == slices,
        "{acknowledged} hits, {slices} slices"
    );
}

/// Counts one hit, and returns how often it is in its slice: read at once, and read when the slice
/// is over.
async fn handed_over() -> (i64, i64) {
    let pair = Pair::new().await;
    let hits = pair.counterfoil.open(family()).await.unwrap();
    let began = now_ms() / 1000;
    let _ = hits.add("a", 1).await.unwrap();
    let read = async || {
        sum(&hits
            .get_range("a", Precision::SECOND, times(began..began + 3))
            .await
            .unwrap())
    };
    let at_once = read().await;
    pause(1100).await;
    pair.counterfoil.drain().await.unwrap();
    (at_once, read().await)
}

#[tokio::test]
async fn a_slice_is_read_once_before_and_after_it_is_handed_over() {
    assert_eq!(handed_over().await, (1, 1));
    take_out(Some(Guard::Handover));
    let without = handed_over().await;
    take_out(None);
    assert_eq!(without, (1, 2), "a slice that stays is read twice");
}

/// Compares windows of three one-second slices with the hits at every moment. Some adds have no
/// pauses, others pause for about the life of a window. Returns the first errors.
async fn windows_that_are_trimmed_and_expire(seconds: i64) -> Vec<String> {
    let plain = Plain::new().await;
    let family = Family::series("test", "hits")
        .windows([(Precision::SECOND, 3), (Precision::FIVE_SECONDS, 2)]);
    let hits = plain.counterfoil.open(family.partitions(1)).await.unwrap();
    let names: Vec<_> = (0..PAUSES.len())
        .map(|number| format!("page/{number}"))
        .collect();
    let tallies = PAUSES.map(|_| Tally::default());
    let (mut writers, mut random) = (JoinSet::new(), random::numbers());
    for ((name, tally), longest) in names.iter().zip(&tallies).zip(PAUSES) {
        let (hits, name, tally) = (hits.clone(), name.clone(), tally.clone());
        let mut random = StdRng::from_rng(&mut random);
        writers.spawn(async move {
            loop {
                let began = tally.begin();
                let _ = hits.add(&name, 1).await.unwrap();
                tally.end(began, true);
                pause(random.random_range(longest / 2..=longest)).await;
            }
        });
    }
    let (mut wrong, mut reads, until) = (Vec::new(), 0, now_ms() + 1000 * seconds);
    while now_ms() < until && wrong.is_empty() {
        let before: Vec<_> = tallies.iter().map(Tally::look).collect();
        let windows = hits.get_many(&names, Precision::SECOND).await.unwrap();
        for (((name, window), before), after) in names.iter().zip(windows).zip(before).zip(&tallies)
        {
            let after = after.look();
            for Slice { start, count } in window {
                let start = unix(start);
                let expected = before.least(start)..=after.most(start);
                if !expected.contains(&count) {
                    wrong.push(format!(
                        "slice {start} of {name}: {count}, not {expected:?}"
                    ));
                }
            }
        }
        reads += 1;
        pause(3).await;
    }
    assert!(reads > 100 || !wrong.is_empty(), "{reads} reads only");
    wrong
}

/// The longest pauses between a writer's hits, in ms, for a window of three seconds.
const PAUSES: [u64; 6] = [2, 2, 1_300, 2_600, 4_100, 5_200];

/// Compares layers of one second in this way: views, and visitors that differ each time.
async fn layers_that_are_trimmed_and_expire(counting: Counting, seconds: i64) -> Vec<String> {
    let plain = Plain::new().await;
    let window =
        Family::activity("test", "online").window(Duration::from_secs(3), Duration::from_secs(1));
    let family = window.visitors(counting).stripes(2).partitions(1);
    let online = plain.counterfoil.open(family).await.unwrap();
    let online = online.cache_for(Duration::ZERO);
    let tallies = PAUSES.map(|_| Tally::default());
    let pages: Vec<_> = (0..PAUSES.len())
        .map(|number| format!("page/{number}"))
        .collect();
    let (mut writers, mut random) = (JoinSet::new(), random::numbers());
    for ((page, tally), longest) in pages.iter().zip(&tallies).zip(PAUSES) {
        let (online, page, tally) = (online.clone(), page.clone(), tally.clone());
        let mut random = StdRng::from_rng(&mut random);
        writers.spawn(async move {
            for visitor in 0u32.. {
                let began = tally.begin();
                online.touch(&page, visitor.to_be_bytes()).await.unwrap();
                tally.end(began, true);
                pause(random.random_range(longest / 2..=longest)).await;
            }
        });
    }
    let (mut wrong, mut reads, until) = (Vec::new(), 0, now_ms() + 1000 * seconds);
    while now_ms() < until && wrong.is_empty() {
        for (page, tally) in pages.iter().zip(&tallies) {
            let (before, began) = (tally.look(), now_ms() / 1000);
            let now = online.now(page).await.unwrap();
            let (after, layer) = (tally.look(), now_ms() / 1000);
            let window = layer - 2..=layer;
            let least: i64 = window.clone().map(|layer| before.least(layer)).sum();
            let most: i64 = window.map(|layer| after.most(layer)).sum();
            // within one layer, so that the window of the read is known
            if began == layer {
                reads += 1;
                let (views, visitors) =
                    (now.views.cast_signed(), now.visitors.count().cast_signed());
                let is_close = match counting {
                    Counting::Exact => visitors == views,
                    _ => visitors.abs_diff(views) <= 2 + views.unsigned_abs() / 20,
                };
                if !(least..=most).contains(&views) || !is_close {
                    wrong.push(format!("{page}: {now:?}, not {least} to {most}"));
                }
            }
        }
        pause(3).await;
    }
    assert!(reads > 100 || !wrong.is_empty(), "{reads} reads only");
    wrong
}

/// Runs the comparisons for slices, layers, and layers of HyperLogLogs.
async fn all_that_are_trimmed_and_expire() -> [Vec<String>; 3] {
    const SECONDS: i64 = 6;
    tokio::join!(
        windows_that_are_trimmed_and_expire(SECONDS),
        layers_that_are_trimmed_and_expire(Counting::Exact, SECONDS),
        layers_that_are_trimmed_and_expire(Counting::HyperLogLog, SECONDS)
    )
    .into()
}

#[tokio::test]
async fn nothing_is_missing_from_a_window_that_is_trimmed_and_expires() {
    for wrong in all_that_are_trimmed_and_expire().await {
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

async fn are_missing_without(guard: Guard) {
    take_out(Some(guard));
    let all = all_that_are_trimmed_and_expire().await;
    take_out(None);
    for wrong in all {
        assert!(!wrong.is_empty(), "without {guard:?} nothing was missing");
        println!("without {guard:?}: {}", wrong[0]);
    }
}

#[tokio::test]
async fn slices_are_missing_that_are_trimmed_too_early() {
    are_missing_without(Guard::Trim).await;
}

#[tokio::test]
async fn slices_are_missing_from_a_window_that_expires_too_early() {
    are_missing_without(Guard::Expiry).await;
}

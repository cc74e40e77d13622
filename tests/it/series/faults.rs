//! Series under faults and under load, on real servers. Whatever dies, each finished slice is in
//! the database once, and every window is complete.

use crate::support::*;

fn family() -> FamilyBuilder<Series> {
    Family::series("test", "hits")
        .windows([(Precision::SECOND, 120), (Precision::Day, 3)])
        .keep([Precision::SECOND])
        .partitions(2)
        .settle(20)
        .sync_time(millis(200))
}

const NAMES: [&str; 3] = ["a", "b/c", "é"];

/// Starts writers that count until they are stopped.
fn start(hits: Series) -> ([Tally; NAMES.len()], Load<()>) {
    let hits = hits.write_timeout(secs(20));
    let tallies: [Tally; NAMES.len()] = Default::default();
    let load = Load::start(6, |writer, stop| {
        let (hits, tallies) = (hits.clone(), tallies.clone());
        async move {
            for turn in writer.. {
                if stop.is_set() {
                    break;
                }
                let number = turn % NAMES.len();
                let began = tallies[number].begin();
                match hits.add(NAMES[number], 1).await {
                    Ok(added) => {
                        assert_eq!(added, Counted(1));
                        tallies[number].end(began, true)
                    }
                    Err(error) if error.is_retryable() => tallies[number].end(began, false),
                    Err(error) => panic!("{error}"),
                }
                pause(1).await;
            }
        }
    });
    (tallies, load)
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_slices_are_exact_when_redis_is_killed_and_comes_back_with_its_file() {
    // the file contains every acknowledged hit, so a killed process loses nothing
    let pair = Pair::with(RedisOptions::aof("always")).await;
    let hits = pair.open(family()).await;
    let reconciler = pair.reconcile().await;
    let (tallies, load) = start(hits.clone());
    let mut random = random::numbers();
    for _ in 0..8 {
        pause(random.random_range(200..500)).await;
        pair.redis.kill();
        pause(30).await;
        pair.redis.start_again().await;
    }
    end(load, &tallies).await;
    pair.drain().await;
    reconciler.stop().await;
    are_exact(&pair, &hits, &tallies).await;
}

/// The least number of acknowledged hits that a test compares.
const ENOUGH: i64 = 500;

fn acknowledged(tallies: &[Tally]) -> i64 {
    tallies.iter().map(|tally| tally.look().acknowledged).sum()
}

/// Ends the load once it has counted enough, and waits until the last slice is over.
async fn end(load: Load<()>, tallies: &[Tally]) {
    eventually("enough hits", || async { acknowledged(tallies) > ENOUGH }).await;
    load.end().await;
    pause(1100).await;
}

/// Checks that the row and the window of each slice are equal, and within the bounds of its tally.
async fn are_exact(pair: &Pair, hits: &Series, tallies: &[Tally]) {
    let query = "SELECT CAST(id AS CHAR), value FROM counterfoil_values";
    let rows: Vec<(String, i64)> = sqlx::query_as(query).fetch_all(&pair.pool).await.unwrap();
    let rows: BTreeMap<_, _> = rows.into_iter().collect();
    let mut slices = 0;
    for (name, tally) in NAMES.iter().zip(tallies) {
        let bounds = tally.look();
        let window = hits.get(name, Precision::SECOND).await.unwrap();
        for Slice { start, count } in &window {
            let start = unix(*start);
            let (what, bounds) = (format!("slice {start} of {name}"), bounds.of(start));
            let row = rows.get(&format!("{start}/{name}")).copied().unwrap_or(0);
            assert_eq!(row, *count, "{what}: the row, and the window");
            assert!(bounds.contains(&row), "{what}: {row}, not {bounds:?}");
            slices += usize::from(*count > 0);
        }
        let read = hits
            .get_range(
                name,
                Precision::SECOND,
                window[0].start..window[119].start + secs(1),
            )
            .await;
        assert_eq!(read.unwrap(), window, "{name}");
        assert_eq!(
            sum(&hits.get(name, Precision::Day).await.unwrap()),
            bounds.acknowledged,
            "{name}"
        );
    }
    let (stored, acknowledged) = (rows.values().sum::<i64>(), acknowledged(tallies));
    // all rows, and all hits
    assert_eq!(stored, acknowledged);
    assert!(
        acknowledged > ENOUGH && slices > 6 && rows.len() == slices,
        "{acknowledged} hits, {slices} slices"
    );
}

/// The longest pauses between a writer's hits, in ms, for a window of three seconds. Some adds have
/// no pauses, others pause for about the life of a window.
const PAUSES: [u64; 6] = [2, 2, 1_300, 2_600, 4_100, 5_200];

/// Compares what is read with the hits at every moment, until one of the comparisons reports errors
/// or the time is over. Returns the errors.
async fn compared<F: Future<Output = ()> + Send + 'static>(
    hit: impl Fn(String, u32) -> F + Clone + Send + Sync + 'static,
    mut compare: impl AsyncFnMut(&[String], &[Tally], &mut Vec<String>) -> usize,
) -> Vec<String> {
    let tallies = PAUSES.map(|_| Tally::default());
    let names = (0..PAUSES.len()).map(|number| format!("page/{number}"));
    let names: Vec<_> = names.collect();
    let (mut writers, mut random) = (JoinSet::new(), random::numbers());
    for ((name, tally), longest) in names.iter().zip(&tallies).zip(PAUSES) {
        let (hit, name, tally) = (hit.clone(), name.clone(), tally.clone());
        let mut random = StdRng::from_rng(&mut random);
        writers.spawn(async move {
            for number in 0.. {
                let began = tally.begin();
                hit(name.clone(), number).await;
                tally.end(began, true);
                pause(random.random_range(longest / 2..=longest)).await;
            }
        });
    }
    let (mut wrong, mut reads, until) = (vec![], 0, now_ms() + 6_000);
    while now_ms() < until && wrong.is_empty() {
        reads += compare(&names, &tallies, &mut wrong).await;
        pause(3).await;
    }
    assert!(reads > 100 || !wrong.is_empty(), "{reads} reads only");
    wrong
}

/// Compares windows of three one-second slices.
async fn windows_that_are_trimmed_and_expire() -> Vec<String> {
    let plain = Plain::new().await;
    let hits = plain
        .open(
            Family::series("test", "hits")
                .windows([(Precision::SECOND, 3), (Precision::FIVE_SECONDS, 2)])
                .partitions(1),
        )
        .await;
    let add = {
        let hits = hits.clone();
        move |name: String, _| {
            let hits = hits.clone();
            async move {
                hits.count(&name, 1).await;
            }
        }
    };
    compared(add, async |names, tallies, wrong| {
        let before: Vec<_> = tallies.iter().map(Tally::look).collect();
        let windows = hits.get_many(names, Precision::SECOND).await.unwrap();
        for (i, window) in windows.into_iter().enumerate() {
            let after = tallies[i].look();
            for Slice { start, count } in window {
                let start = unix(start);
                let expected = before[i].least(start)..=after.most(start);
                if !expected.contains(&count) {
                    let name = &names[i];
                    wrong.push(format!(
                        "slice {start} of {name}: {count}, not {expected:?}"
                    ));
                }
            }
        }
        1
    })
    .await
}

/// Compares layers of one second in this way: views, and visitors that differ each time.
async fn layers_that_are_trimmed_and_expire() -> Vec<String> {
    let plain = Plain::new().await;
    let window = Family::activity("test", "online").window(secs(3), secs(1));
    let online = plain
        .open(window.stripes(2).partitions(1))
        .await
        .cache_for(Duration::ZERO);
    let touch = {
        let online = online.clone();
        move |page: String, visitor: u32| {
            let online = online.clone();
            async move { online.touch(&page, visitor.to_be_bytes()).await.unwrap() }
        }
    };
    compared(touch, async |pages, tallies, wrong| {
        let mut reads = 0;
        for (page, tally) in pages.iter().zip(tallies) {
            let (before, began) = (tally.look(), now_ms() / 1000);
            let now = online.now(page).await.unwrap();
            let (after, layer) = (tally.look(), now_ms() / 1000);
            // within one layer, so that the window of the read is known
            if began != layer {
                continue;
            }
            reads += 1;
            let window = layer - 2..=layer;
            let least: i64 = window.clone().map(|layer| before.least(layer)).sum();
            let most: i64 = window.map(|layer| after.most(layer)).sum();
            let (views, visitors) = (now.views.cast_signed(), now.visitors.cast_signed());
            if !(least..=most).contains(&views) || visitors != views {
                wrong.push(format!("{page}: {now:?}, not {least} to {most}"));
            }
        }
        reads
    })
    .await
}

/// Runs the comparisons for slices and for layers.
async fn all_that_are_trimmed_and_expire() -> [Vec<String>; 2] {
    tokio::join!(
        windows_that_are_trimmed_and_expire(),
        layers_that_are_trimmed_and_expire()
    )
    .into()
}

#[tokio::test]
async fn nothing_is_missing_from_a_window_that_is_trimmed_and_expires() {
    for wrong in all_that_are_trimmed_and_expire().await {
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

/// Slices are trimmed too early, or their window expires too early.
#[tokio::test]
async fn each_guard_is_needed() {
    for guard in [Guard::Trim, Guard::Expiry] {
        take_out(Some(guard));
        let all = all_that_are_trimmed_and_expire().await;
        take_out(None);
        for wrong in all {
            assert!(!wrong.is_empty(), "without {guard:?} nothing was missing");
        }
    }
}

//! The values that concurrent callers receive: each is the sum as of exactly that caller's
//! increment.

use std::collections::HashSet;

use rand::rngs::SmallRng;

use super::views;
use crate::support::*;

/// An increment with its result.
type Told = (&'static str, i64, Outcome);

/// Runs many callers, each of which counts its deltas one after the other.
async fn callers(
    counters: &BufferedCounters,
    many: usize,
    each: usize,
    mut delta: impl FnMut(usize, usize) -> (&'static str, i64),
) -> Vec<Told> {
    let mut tasks = JoinSet::new();
    for caller in 0..many {
        let hits: Vec<_> = (0..each).map(|hit| delta(caller, hit)).collect();
        let counters = counters.clone();
        tasks.spawn(async move {
            let mut told = Vec::new();
            for (id, delta) in hits {
                told.push((
                    id,
                    delta,
                    counters.add(id, delta).await.expect("Redis is there"),
                ));
            }
            told
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// Runs callers that all wait for one call, since Redis is paused while they start.
async fn together(
    plain: &Plain,
    counters: &BufferedCounters,
    hits: &[(&'static str, i64)],
) -> Vec<Told> {
    plain.redis.pause();
    let mut tasks = JoinSet::new();
    for (id, delta) in hits.iter().copied() {
        let counters = counters.clone();
        tasks.spawn(async move {
            (
                id,
                delta,
                counters.add(id, delta).await.expect("Redis comes back"),
            )
        });
    }
    pause(120).await;
    plain.redis.resume();
    tasks.join_all().await
}

/// Asserts that the counted increments, in some order, lead from 0 to the sum: as edges from the
/// value before to the value after, they form one path.
fn assert_running_sums(told: &[Told], id: &str, sum: i64) {
    let mut balance: BTreeMap<i64, i64> = BTreeMap::from([(0, 1)]);
    *balance.entry(sum).or_default() -= 1;
    let mut next: HashMap<i64, Vec<i64>> = HashMap::new();
    for (_, delta, added) in told.iter().filter(|(of, ..)| *of == id) {
        let Counted(pending) = *added else {
            continue;
        };
        let before = pending
            .checked_sub(*delta)
            .unwrap_or_else(|| panic!("{id}: {pending} after {delta}"));
        *balance.entry(before).or_default() -= 1;
        *balance.entry(pending).or_default() += 1;
        next.entry(before).or_default().push(pending);
    }
    balance.retain(|_, balance| *balance != 0);
    assert!(
        balance.is_empty(),
        "{id}: values without a way to or from them: {balance:?}"
    );
    let (mut reached, mut open) = (HashSet::from([0]), vec![0]);
    while let Some(value) = open.pop() {
        open.extend(
            next.get(&value)
                .into_iter()
                .flatten()
                .filter(|after| reached.insert(**after)),
        );
    }
    let apart: Vec<_> = next
        .keys()
        .filter(|value| !reached.contains(value))
        .collect();
    assert!(
        apart.is_empty(),
        "{id}: values that 0 does not lead to: {apart:?}"
    );
}

/// The numbers of an id start again with each batch, so n is returned at most as often as n - 1.
#[tokio::test(flavor = "multi_thread")]
async fn within_a_batch_the_numbers_are_consecutive() {
    let (plain, views) = views(2).await;
    let reconciler = plain.reconcile().await;
    let mut told = Vec::new();
    for _ in 0..6 {
        told.extend(
            callers(&views, 32, 25, |caller, hit| {
                (["a", "b"][(caller + hit) % 2], 1)
            })
            .await,
        );
        pause(60).await;
    }
    plain.drain().await;
    for id in ["a", "b"] {
        let mut times: BTreeMap<i64, u32> = BTreeMap::new();
        told.iter()
            .filter(|(of, ..)| *of == id)
            .for_each(|(.., added)| *times.entry(counted(*added)).or_default() += 1);
        assert!(times[&1] > 2, "{id}: only {} batches were cut", times[&1]);
        let longest = *times.keys().last().unwrap();
        for number in 2..=longest {
            let [before, now] =
                [number - 1, number].map(|number| times.get(&number).copied().unwrap_or(0));
            assert!(
                before >= now,
                "{id}: {number} was told {now} times, the number before it {before} times"
            );
        }
        let sum: u32 = times.values().sum();
        assert_eq!(views.stored(&[id]).await.unwrap(), [Some(i64::from(sum))]);
        assert_eq!(sum, 6 * 32 * 25 / 2);
    }
    reconciler.stop().await;
}

/// At the ends of the range some callers are refused. All others receive the right value.
#[tokio::test(flavor = "multi_thread")]
async fn callers_are_told_running_sums() {
    type Deltas = fn(&mut SmallRng) -> i64;
    let one: Deltas = |_| 1;
    let of_both_signs: Deltas = |random| match random.random_range(0..5) {
        0 => 0,
        1 => random.random_range(-3..=3),
        2 => random.random_range(-(1i64 << 52)..1 << 52),
        _ => random.random_range(-1000..=1000),
    };
    let far: Deltas = |random| match random.random_range(0..20) {
        0 => i64::MAX,
        1 => i64::MIN,
        _ => random.random_range(-100..=100),
    };
    let (_plain, stock) = views(2).await;
    let mut random = SmallRng::seed_from_u64(7);
    let ends = [("top", i64::MAX - 500), ("bottom", i64::MIN + 500)];
    for (starts, many, each, delta, refused) in [
        (
            &[("a", 0), ("b", 0), ("c", 0), ("page/é", 0)][..],
            64,
            60,
            one,
            0..1,
        ),
        (&[("d", 0), ("e", 0), ("f", 0)], 32, 50, of_both_signs, 0..1),
        (&ends, 24, 60, far, 10..700),
    ] {
        let mut told = vec![];
        for &(id, start) in starts {
            told.push((id, start, stock.add(id, start).await.unwrap()));
        }
        let hit = |caller, hit| {
            let (id, _) = starts[(caller + hit) % starts.len()];
            (id, delta(&mut random))
        };
        told.extend(callers(&stock, many, each, hit).await);
        for &(id, _) in starts {
            let mine = told.iter().filter(|(of, ..)| *of == id);
            let (outside, counted): (Vec<_>, Vec<_>) =
                mine.partition(|(.., added)| *added == OutOfRange(None));
            let sum: i128 = counted.iter().map(|(_, delta, _)| i128::from(*delta)).sum();
            let sum = i64::try_from(sum).unwrap();
            assert_running_sums(&told, id, sum);
            assert_eq!(stock.value(id).await, sum);
            let outside = outside.len();
            assert!(refused.contains(&outside), "{id}: {outside} refused");
        }
    }
}

/// An increase and a decrease do not cause each other's refusal, in any order.
#[tokio::test]
async fn what_leaves_the_range_in_between_and_not_in_the_end() {
    let (plain, stock) = views(1).await;
    stock.count("a", i64::MAX).await;
    // the sum of two increments that overflows i64
    let told = together(
        &plain,
        &stock,
        &[
            ("a", -1),
            ("b", i64::MAX),
            ("b", i64::MAX),
            ("c", i64::MIN),
            ("c", -1),
        ],
    )
    .await;
    for (id, expected) in [("a", i64::MAX - 1), ("b", i64::MAX)] {
        assert_running_sums(
            &[&[("a", i64::MAX, Counted(i64::MAX))], &told[..]].concat(),
            id,
            expected,
        );
    }
    let refused = |of: &str| {
        told.iter()
            .filter(|(id, _, added)| *id == of && *added == OutOfRange(None))
            .count()
    };
    assert_eq!(["a", "b", "c"].map(refused), [0, 1, 1]);
}

const ENCODING: &str = "OBJECT ENCODING cf1:{test/views/0}:buffer";

/// Redis keeps a small hash as a list and searches it from the start. A large one is a hash table.
#[tokio::test]
async fn a_large_buffer_is_a_table_and_a_small_one_is_not() {
    let (plain, views) = views(1).await;
    let ids = ids_of(views.family(), 0, 64);
    let encoding = async || plain.redis.run::<String>(ENCODING).await.unwrap();
    for id in &ids[..63] {
        views.count(id, 1).await;
    }
    assert_ne!(encoding().await, "hashtable");
    views.count(&ids[63], 1).await;
    assert_eq!(encoding().await, "hashtable");
    let fields = plain.redis.run("HKEYS cf1:{test/views/0}:buffer").await;
    let fields: BTreeSet<String> = fields.unwrap();
    assert_eq!(fields, ids.into_iter().collect());
}

/// A hot id uses every partition with room. A single caller stays in one.
#[tokio::test(flavor = "multi_thread")]
async fn a_wide_family_spreads_under_load() {
    let (plain, hot) = Plain::of(family("hot").partitions(16).wide(true)).await;
    let used = async |family: &str| {
        let keys = format!("KEYS cf1:{{test/{family}/*}}:buffer");
        let keys: Vec<String> = plain.redis.run(&keys).await.unwrap();
        keys.len()
    };
    let told = callers(&hot, 200, 20, |_, _| ("page", 1)).await;
    assert_eq!(told.len(), 4000);
    let hot_used = used("hot").await;
    assert!(hot_used >= 4, "{hot_used} partitions of 16");
    assert_eq!(hot.value("page").await, 4000);
    assert_eq!(hot.pending(&["page"]).await.unwrap(), [4000]);
    let listed = hot.list("pa", None, 10).await.unwrap();
    assert_eq!(listed, [("page".to_owned(), 4000)]);
    let alone = plain.open(family("alone").partitions(16).wide(true)).await;
    for _ in 0..50 {
        alone.count("page", 1).await;
    }
    let alone_used = used("alone").await;
    assert!(alone_used <= 2, "{alone_used} partitions of 16");
    assert_eq!(alone.value("page").await, 50);
    plain.drain().await;
    assert_eq!(hot.stored(&["page"]).await.unwrap(), [Some(4000)]);
}

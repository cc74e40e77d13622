//! The values that concurrent callers receive: each is the sum as of exactly that caller's
//! increment.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::support::{Plain, PlainCounters, counted, family, ids_of, pause};
use counterfoil::Outcome;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

/// Runs many callers, each of which counts its deltas one after the other. Returns the increments
/// with their results.
async fn callers(
    counters: &PlainCounters,
    many: usize,
    each: usize,
    delta: impl Fn(usize, usize) -> (&'static str, i64),
) -> Vec<(&'static str, i64, Outcome)> {
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
    counters: &PlainCounters,
    hits: &[(&'static str, i64)],
) -> Vec<(&'static str, i64, Outcome)> {
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
fn assert_running_sums(told: &[(&'static str, i64, Outcome)], id: &str, sum: i64) {
    let mut balance: BTreeMap<i64, i64> = BTreeMap::from([(0, 1)]);
    *balance.entry(sum).or_default() -= 1;
    let mut next: HashMap<i64, Vec<i64>> = HashMap::new();
    for (_, delta, added) in told.iter().filter(|(of, ..)| *of == id) {
        let Outcome::Counted(pending) = *added else {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn increments_by_one_are_told_consecutive_numbers() {
    const IDS: [&str; 4] = ["a", "b", "c", "page/é"];
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(2)).await;
    let told = callers(&views, 64, 60, |caller, hit| {
        (IDS[(caller * 7 + hit) % IDS.len()], 1)
    })
    .await;
    for id in IDS {
        let mut values: Vec<_> = told
            .iter()
            .filter(|(of, ..)| *of == id)
            .map(|(.., added)| counted(*added))
            .collect();
        values.sort_unstable();
        assert!(
            values.iter().copied().eq(1..=64 * 60 / 4),
            "{id}: {values:?}"
        );
        assert_eq!(views.get(id).await.unwrap(), 64 * 60 / 4);
    }
}

/// The numbers of an id start again with each batch, so n is returned at most as often as n - 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn within_a_batch_the_numbers_are_consecutive() {
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(2)).await;
    let reconciler = plain.counterfoil.reconciler().start().await.unwrap();
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
    plain.counterfoil.drain().await.unwrap();
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
    reconciler.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deltas_of_both_signs_are_told_running_sums() {
    let plain = Plain::new().await;
    let stock = plain.open(family("stock").partitions(2)).await;
    let mut random = SmallRng::seed_from_u64(7);
    let ids = ["a", "b", "c"];
    let deltas: Vec<Vec<_>> = (0..32)
        .map(|_| {
            let mut delta = || match random.random_range(0..5) {
                0 => 0,
                1 => random.random_range(-3..=3),
                2 => random.random_range(-(1i64 << 52)..1 << 52),
                _ => random.random_range(-1000..=1000),
            };
            (0..50).map(|_| delta()).collect()
        })
        .collect();
    let told = callers(&stock, 32, 50, |caller, hit| {
        (ids[(caller + hit) % 3], deltas[caller][hit])
    })
    .await;
    for id in ids {
        let sum = told
            .iter()
            .filter(|(of, ..)| *of == id)
            .map(|(_, delta, _)| delta)
            .sum();
        assert_running_sums(&told, id, sum);
        assert_eq!(stock.get(id).await.unwrap(), sum);
    }
}

/// At the ends of the range some callers are refused. All others receive the right value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_sums_hold_at_both_ends_of_the_range() {
    let plain = Plain::new().await;
    let stock = plain.open(family("stock").partitions(2)).await;
    let starts = [("top", i64::MAX - 500), ("bottom", i64::MIN + 500)];
    let mut random = SmallRng::seed_from_u64(8);
    let deltas: Vec<Vec<i64>> = (0..24)
        .map(|_| {
            let delta = |random: &mut SmallRng| match random.random_range(0..20) {
                0 => i64::MAX,
                1 => i64::MIN,
                _ => random.random_range(-100..=100),
            };
            (0..60).map(|_| delta(&mut random)).collect()
        })
        .collect();
    let mut told = Vec::new();
    for (id, start) in starts {
        told.push((id, start, stock.add(id, start).await.unwrap()));
    }
    told.extend(
        callers(&stock, 24, 60, |caller, hit| {
            (starts[(caller + hit) % 2].0, deltas[caller][hit])
        })
        .await,
    );
    for (id, _) in starts {
        let mine = || told.iter().filter(|(of, ..)| *of == id);
        let sum: i128 = mine()
            .filter(|(.., added)| *added != Outcome::OutOfRange(None))
            .map(|(_, delta, _)| i128::from(*delta))
            .sum();
        assert_running_sums(&told, id, i64::try_from(sum).unwrap());
        assert_eq!(i128::from(stock.get(id).await.unwrap()), sum);
        let refused = mine()
            .filter(|(.., added)| *added == Outcome::OutOfRange(None))
            .count();
        assert!(
            (10..700).contains(&refused),
            "{id}: {refused} of {} refused",
            mine().count()
        );
    }
}

/// A refused sum is split: the callers whose own increments fit are counted.
#[tokio::test]
async fn of_a_refused_sum_those_who_fit_are_counted() {
    let plain = Plain::new().await;
    let stock = plain.open(family("stock").partitions(1)).await;
    for (id, start, one, five) in [
        ("top", i64::MAX - 3, 1, 5),
        ("bottom", i64::MIN + 3, -1, -5),
    ] {
        let _ = stock.add(id, start).await.unwrap();
        let hits = [five, one, one, five, one, five, one, one].map(|delta| (id, delta));
        let told = together(
            &plain,
            &stock,
            &[&hits[..], &[("other", 1), ("other", 1)]].concat(),
        )
        .await;
        let values = |of: &str, delta: i64| {
            let mine = told.iter().filter(|(id, by, _)| *id == of && *by == delta);
            let mut values: Vec<_> = mine.map(|(.., added)| *added).collect();
            values.sort_by_key(|added| match added {
                Outcome::Counted(pending) => (0, pending.abs_diff(start)),
                _ => (1, 0),
            });
            values
        };
        assert_eq!(values(id, five), [Outcome::OutOfRange(None); 3]);
        let fit = [1, 2, 3].map(|step| Outcome::Counted(start + step * one));
        assert_eq!(
            values(id, one),
            [&fit[..], &[Outcome::OutOfRange(None); 2]].concat()
        );
        assert!(
            values("other", 1)
                .iter()
                .all(|added| matches!(added, Outcome::Counted(_)))
        );
    }
    assert_eq!(
        stock.get_many(&["top", "bottom", "other"]).await.unwrap(),
        [i64::MAX, i64::MIN, 4]
    );
}

/// An increase and a decrease do not cause each other's refusal, in any order.
#[tokio::test]
async fn what_leaves_the_range_in_between_and_not_in_the_end() {
    let plain = Plain::new().await;
    let stock = plain.open(family("stock").partitions(1)).await;
    let _ = stock.add("a", i64::MAX).await.unwrap();
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
            &[&[("a", i64::MAX, Outcome::Counted(i64::MAX))], &told[..]].concat(),
            id,
            expected,
        );
    }
    let refused = |of: &str| {
        told.iter()
            .filter(|(id, _, added)| *id == of && *added == Outcome::OutOfRange(None))
            .count()
    };
    assert_eq!(["a", "b", "c"].map(refused), [0, 1, 1]);
}

#[tokio::test]
async fn full_is_said_to_those_whom_it_concerns() {
    let plain = Plain::new().await;
    let small = plain
        .open(family("small").partitions(1).max_pending(2))
        .await;
    let _ = small.add_many([("a", 1), ("b", 1)]).await;
    let told = together(
        &plain,
        &small,
        &[("c", 1), ("a", 1), ("c", 1), ("b", -1), ("d", 1), ("c", -1)],
    )
    .await;
    for (id, delta, added) in &told {
        match *id {
            "a" => assert_eq!(*added, Outcome::Counted(2)),
            "b" => assert_eq!(*added, Outcome::Counted(0)),
            _ => assert_eq!(*added, Outcome::Full, "{id} {delta}"),
        }
    }
    assert_eq!(
        small.get_many(&["a", "b", "c", "d"]).await.unwrap(),
        [2, 0, 0, 0]
    );
}

/// Redis keeps a small hash as a list and searches it from the start. A large one is a hash table.
#[tokio::test]
async fn a_large_buffer_is_a_table_and_a_small_one_is_not() {
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(1)).await;
    let ids = ids_of(views.family(), 0, 64);
    let encoding = async || {
        plain
            .redis
            .run::<String>("OBJECT ENCODING cf1:{test/views/0}:buffer")
            .await
            .unwrap()
    };
    for id in &ids[..63] {
        let _ = views.add(id, 1).await.unwrap();
    }
    assert_ne!(encoding().await, "hashtable");
    let _ = views.add(&ids[63], 1).await.unwrap();
    assert_eq!(encoding().await, "hashtable");
    let fields: Vec<String> = plain
        .redis
        .run("HKEYS cf1:{test/views/0}:buffer")
        .await
        .unwrap();
    assert_eq!(
        fields.into_iter().collect::<HashSet<_>>(),
        ids.into_iter().collect()
    );
}

/// The first call after a rotation brings many ids at once, as under load.
#[tokio::test]
async fn a_buffer_that_is_large_at_once_is_a_table() {
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(1)).await;
    let hits: Vec<_> = (0..100)
        .map(|number| (format!("page/{number}"), 1))
        .collect();
    let _ = views.add_many(hits).await;
    let encoding = plain
        .redis
        .run::<String>("OBJECT ENCODING cf1:{test/views/0}:buffer")
        .await
        .unwrap();
    assert_eq!(encoding, "hashtable");
}

/// A hot id uses every partition with room. A single caller stays in one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wide_family_spreads_under_load() {
    let plain = Plain::new().await;
    let hot = plain.open(family("hot").partitions(16).wide(true)).await;
    let used = async |family: &str| {
        let keys: Vec<String> = plain
            .redis
            .run(&format!("KEYS cf1:{{test/{family}/*}}:buffer"))
            .await
            .unwrap();
        keys.len()
    };
    let told = callers(&hot, 200, 20, |_, _| ("page", 1)).await;
    assert_eq!(told.len(), 4000);
    assert!(
        used("hot").await >= 4,
        "{} partitions of 16",
        used("hot").await
    );
    assert_eq!(hot.get("page").await.unwrap(), 4000);
    let alone = plain.open(family("alone").partitions(16).wide(true)).await;
    for _ in 0..50 {
        let _ = alone.add("page", 1).await.unwrap();
    }
    assert!(
        used("alone").await <= 2,
        "{} partitions of 16",
        used("alone").await
    );
    assert_eq!(alone.get("page").await.unwrap(), 50);
    plain.counterfoil.drain().await.unwrap();
    assert_eq!(hot.stored(&["page"]).await.unwrap(), [Some(4000)]);
}

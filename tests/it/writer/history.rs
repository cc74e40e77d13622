//! Histories of parallel writers and readers. Each read is between what was acknowledged before it
//! and what was begun before its end, and reads never decrease.

use std::sync::atomic::AtomicI64;

use crate::support::*;

const IDS: [&str; 3] = ["a", "b", "page/é"];
const WRITERS: usize = 12;
const READERS: usize = 4;

/// The observed values of one id.
#[derive(Debug, Default)]
struct Seen {
    begun: AtomicI64,
    acknowledged: AtomicI64,
    /// The highest value that a read has returned so far.
    read: AtomicI64,
}

/// Counts and reads from two simulated processes, each with a reconciler, also while connections
/// are killed.
async fn history(family: FamilyBuilder<BufferedCounters>, kill: bool) {
    let redis = new_redis().await;
    let store = MemoryStore::new();
    let mut processes = Vec::new();
    for _ in 0..2 {
        let counterfoil = patient(Counterfoil::new(redis.manager().await, store.clone()));
        let counters = counterfoil.opened(family.clone()).await;
        let reconciler = counterfoil.reconciler().lease(None).start().await.unwrap();
        processes.push((counterfoil, counters, reconciler));
    }
    let seen: Arc<[Seen; 3]> = Arc::default();
    let writers = Load::start(WRITERS, |writer, stop| {
        let (counters, seen) = (processes[writer % 2].1.clone(), seen.clone());
        async move {
            let (mut hit, mut batches) = (writer, 0);
            while !stop.is_set() {
                let (id, delta) = (hit % IDS.len(), 1 + (hit / IDS.len() % 3) as i64);
                seen[id].begun.fetch_add(delta, Ordering::SeqCst);
                // a call whose reply is lost is repeated until it succeeds
                let pending = counters.count(IDS[id], delta).await;
                seen[id].acknowledged.fetch_add(delta, Ordering::SeqCst);
                batches += u64::from(pending == delta);
                hit += 1;
                if hit.is_multiple_of(64) {
                    pause(1).await;
                }
            }
            batches
        }
    });
    let readers = Load::start(READERS, |reader, stop| {
        let (counters, seen) = (processes[reader % 2].1.clone(), seen.clone());
        async move {
            let mut reads = 0;
            while !stop.is_set() {
                let all = |count: fn(&Seen) -> &AtomicI64| {
                    [0, 1, 2].map(|id| count(&seen[id]).load(Ordering::SeqCst))
                };
                let least = all(|seen| &seen.acknowledged);
                let read = all(|seen| &seen.read);
                let Ok(values) = counters.get_many(&IDS).await else {
                    continue;
                };
                let most = all(|seen| &seen.begun);
                for (id, value) in values.into_iter().enumerate() {
                    assert!(
                        least[id] <= value && value <= most[id],
                        "{} is not {}..={}",
                        value,
                        least[id],
                        most[id]
                    );
                    assert!(value >= read[id], "{value} after {} was read", read[id]);
                    seen[id].read.fetch_max(value, Ordering::SeqCst);
                }
                reads += 1;
            }
            reads
        }
    });
    for round in 0..20 {
        pause(70 + 13 * (round % 7)).await;
        if kill {
            redis.does("CLIENT KILL TYPE normal SKIPME yes").await;
        }
    }
    let [batches, reads] = [writers.end().await, readers.end().await];
    let [batches, reads] = [batches, reads].map(|each| each.iter().sum::<u64>());
    let (counterfoil, counters, _) = &processes[0];
    counterfoil.drained().await;
    let acknowledged = [0, 1, 2].map(|id| seen[id].acknowledged.load(Ordering::SeqCst));
    assert_eq!(counters.stored(&IDS).await.unwrap(), acknowledged.map(Some));
    println!("{acknowledged:?} acknowledged, {reads} reads, about {batches} batches");
    assert!(acknowledged.iter().sum::<i64>() > 1000 && reads > 100 && batches > 20);
    for (_, _, reconciler) in processes {
        reconciler.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_lie_between_what_was_told_and_what_was_begun() {
    history(family("views").partitions(2), false).await;
    history(family("views").partitions(2).settle(20), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_wide_family_too() {
    history(family("hot").partitions(4).wide(true), true).await;
}

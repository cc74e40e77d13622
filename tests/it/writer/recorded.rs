//! Hits that no caller waits for. A recorded hit is counted once, whatever happens, or an error is
//! reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Plain, PlainCounters, counted, eventually, family, look, pause, random};
use counterfoil::metrics::{HITS, RECORDED, REFUSED, UNKNOWN};
use counterfoil::{Counterfoil, ErrorKind, MemoryStore, Recorded};
use metrics_util::debugging::DebuggingRecorder;
use rand::RngExt;
use testkit::{RedisOptions, RedisServer};
use tokio::time::timeout;

async fn is_counted(views: &PlainCounters, id: &str, value: i64) {
    eventually(&format!("{value} of {id}"), async || {
        views
            .pending(&[id])
            .await
            .is_ok_and(|pending| pending == [value])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_many_threads_nothing_is_lost() {
    let plain = Plain::new().await;
    let views = plain.open(family("views")).await;
    let reconciler = plain.counterfoil.reconciler().start().await.unwrap();
    let threads: Vec<_> = (0..6)
        .map(|thread| {
            let views = views.clone();
            thread::spawn(move || {
                for hit in 0..4000 {
                    views
                        .record(&format!("page/{}", (hit * 7 + thread) % 100), 1 + hit % 3)
                        .unwrap();
                    views.record("total", -1).unwrap();
                    if hit % 500 == 0 {
                        thread::sleep(Duration::from_millis(7));
                    }
                }
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
        let _ = views.add("total", 0).await.unwrap();
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
    let mut expected = [0; 100];
    for thread in 0..6 {
        (0..4000).for_each(|hit| expected[(hit * 7 + thread) % 100] += 1 + hit as i64 % 3);
    }
    let ids: Vec<_> = (0..100).map(|number| format!("page/{number}")).collect();
    assert_eq!(views.get_many(&ids).await.unwrap(), expected);
    assert_eq!(views.get("total").await.unwrap(), -24_000);
    reconciler.shutdown().await.unwrap();
}

/// A thread outside of any runtime records first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_plain_thread_records_is_sent() {
    let plain = Plain::new().await;
    let views = plain.open(family("views")).await;
    let other = views.clone();
    thread::spawn(move || other.record("page", 1).unwrap())
        .join()
        .unwrap();
    is_counted(&views, "page", 1).await;
    views.record("page", 1).unwrap();
    is_counted(&views, "page", 2).await;
}

/// A runtime that ends drops the current sending, and no more.
#[test]
fn a_runtime_that_ends_does_not_end_the_sending() {
    let home = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let plain = home.block_on(Plain::new());
    let views = home.block_on(plain.open(family("views")));
    for round in 1..=10 {
        let doomed = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        doomed.block_on(async { views.record("doomed", 1).unwrap() });
        drop(doomed);
        home.block_on(async {
            views.record("page", 1).unwrap();
            is_counted(&views, "page", round).await;
        });
    }
}

/// A runtime that ends during a flush has taken hits of others.
#[test]
fn a_flush_whose_runtime_ends_is_reported_by_the_next_one() {
    let mut current = tokio::runtime::Builder::new_current_thread();
    let home = current.enable_all().build().unwrap();
    let plain = home.block_on(Plain::new());
    let views = home.block_on(plain.open(family("views")));
    views.record("page", 1).unwrap();
    assert_eq!(home.block_on(views.flush()).unwrap(), Recorded::Counted);
    plain.redis.pause();
    (0..20_000).for_each(|number| views.record(&number.to_string(), 1).unwrap());
    let doomed = tokio::runtime::Runtime::new().unwrap();
    let flushed =
        doomed.block_on(async { timeout(Duration::from_millis(100), views.flush()).await });
    assert!(flushed.is_err(), "Redis stands still");
    doomed.shutdown_timeout(Duration::from_secs(1));
    plain.redis.resume();
    let error = home.block_on(views.flush()).unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert_eq!(home.block_on(views.flush()).unwrap(), Recorded::Counted);
}

#[tokio::test]
async fn dropping_the_last_handle_sends_it() {
    let redis = RedisServer::start(RedisOptions::volatile()).await;
    let store = MemoryStore::new();
    let counterfoil = Counterfoil::new(redis.manager().await, store.clone());
    let views = counterfoil.open(family("views")).await.unwrap();
    (0..1000).for_each(|hit| views.record(&format!("page/{hit}"), 2).unwrap());
    drop((views, counterfoil));
    let counterfoil = Counterfoil::new(redis.manager().await, store);
    let views = counterfoil.open(family("views")).await.unwrap();
    let ids: Vec<_> = (0..1000).map(|hit| format!("page/{hit}")).collect();
    eventually("all", async || {
        views.pending(&ids).await.unwrap() == vec![2; 1000]
    })
    .await;
}

/// A flush returns when all hits recorded before are counted, even those that are already being
/// sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_waits_for_what_is_being_sent() {
    let plain = Plain::new().await;
    let views = plain.open(family("views")).await;
    let mut random = random::numbers();
    for round in 1..=150 {
        for id in ["a", "b", "c", "d"] {
            views.record(id, 1).unwrap();
        }
        let micros = random.random_range(0..8000);
        tokio::time::sleep(Duration::from_micros(micros)).await;
        assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
        assert_eq!(
            views.pending(&["a", "b", "c", "d"]).await.unwrap(),
            [round; 4]
        );
    }
}

/// A caller may stop waiting for a flush.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_that_is_dropped_loses_nothing() {
    let plain = Plain::new().await;
    let views = plain.open(family("views")).await;
    views.record("page", 1).unwrap();
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
    plain.redis.pause();
    for number in 0..1000 {
        views.record(&format!("page/{number}"), 1).unwrap();
    }
    assert!(
        timeout(Duration::from_millis(100), views.flush())
            .await
            .is_err(),
        "Redis stands still"
    );
    for number in 0..1000 {
        views.record(&format!("page/{number}"), 1).unwrap();
    }
    plain.redis.resume();
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
    let ids: Vec<_> = (0..1000).map(|number| format!("page/{number}")).collect();
    assert_eq!(views.pending(&ids).await.unwrap(), vec![2; 1000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_it_is_kept() {
    let plain = Plain::with(RedisOptions::aof("always")).await;
    let views = plain.open(family("views")).await;
    let recorded = Arc::new(AtomicI64::new(0));
    let writer = tokio::spawn({
        let (views, recorded) = (views.clone(), recorded.clone());
        async move {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(1800) {
                for number in 0..20 {
                    views.record(&format!("page/{number}"), 1).unwrap();
                    recorded.fetch_add(1, Ordering::Relaxed);
                }
                pause(1).await;
            }
        }
    });
    pause(300).await;
    plain.redis.kill();
    pause(1000).await;
    plain.redis.start_again().await;
    writer.await.unwrap();
    // everything was sent in the end: no error remains
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
    let ids: Vec<_> = (0..20).map(|number| format!("page/{number}")).collect();
    assert_eq!(
        views.pending(&ids).await.unwrap().iter().sum::<i64>(),
        recorded.load(Ordering::Relaxed)
    );
}

/// Redis refuses hits for longer than one attempt to send them takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_does_not_take_is_sent_again() {
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(2)).await;
    let _: () = plain.redis.run("CONFIG SET maxmemory 1").await.unwrap();
    (0..3).for_each(|_| views.record("page", 1).unwrap());
    views.record("top", i64::MAX).unwrap();
    pause(50).await;
    // the hits are being sent; new ones are added to them when they are returned
    views.record("page", 1).unwrap();
    views.record("top", 1).unwrap();
    pause(5200).await;
    let _: () = plain.redis.run("CONFIG SET maxmemory 0").await.unwrap();
    let refused = Recorded::Refused {
        full: 0,
        out_of_range: 1,
    };
    assert_eq!(
        views.flush().await.unwrap(),
        refused,
        "what leaves i64 when it comes back is told"
    );
    assert_eq!(views.pending(&["page", "top"]).await.unwrap(), [4, 1]);
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_is_bounded() {
    const KEPT: usize = 131_072;
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(1)).await;
    views.record("known", 1).unwrap();
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
    plain.redis.pause();
    // while this is being sent
    views.record("known", 1).unwrap();
    pause(50).await;
    let kept =
        (0..2 * KEPT).take_while(|number| match views.record(&format!("page/{number}"), 1) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                assert!(error.is_retryable());
                false
            }
        });
    let kept = kept.count();
    assert_eq!(kept, KEPT);
    // known ids need no more room
    views.record("page/7", 1).unwrap();
    plain.redis.resume();
    // a slow machine does not send everything within one call's time, and keeps the rest
    let mut flushed = views.flush().await;
    for _ in 0..10 {
        let Err(error) = &flushed else { break };
        assert!(error.is_retryable(), "{error}");
        flushed = views.flush().await;
    }
    assert_eq!(flushed.unwrap(), Recorded::Counted);
    let ids: Vec<_> = (0..=KEPT).map(|number| format!("page/{number}")).collect();
    let mut expected = vec![1; KEPT + 1];
    (expected[7], expected[KEPT]) = (2, 0);
    // in chunks that a slow machine reads within the limit
    for (ids, expected) in ids.chunks(8192).zip(expected.chunks(8192)) {
        assert!(views.pending(ids).await.unwrap() == expected);
    }
}

#[tokio::test]
async fn what_redis_refuses_is_said_by_flush() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let plain = Plain::new().await;
    let views = plain
        .open(family("views").partitions(1).max_pending(3))
        .await;
    let _ = views.add("top", i64::MAX - 1).await.unwrap();
    for (id, delta) in [("top", 2), ("top", 3), ("a", 1), ("b", 1), ("a", 1)] {
        views.record(id, delta).unwrap();
    }
    assert_eq!(
        views.flush().await.unwrap(),
        Recorded::Refused {
            full: 0,
            out_of_range: 2
        }
    );
    assert_eq!(
        views.pending(&["top", "a", "b"]).await.unwrap(),
        [i64::MAX - 1, 2, 1]
    );
    views.record("further", 1).unwrap();
    assert_eq!(
        views.flush().await.unwrap(),
        Recorded::Refused {
            full: 1,
            out_of_range: 0
        }
    );
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
    let seen = look(&snapshotter);
    assert_eq!((seen[HITS], seen[RECORDED]), (4.0, 0.0), "{seen:?}");
    // what would overflow i64 in a sum within this process counts for itself
    views.record("a", i64::MAX).unwrap();
    views.record("a", 1).unwrap();
    assert_eq!(
        views.flush().await.unwrap(),
        Recorded::Refused {
            full: 0,
            out_of_range: 1
        }
    );
    assert_eq!(views.pending(&["a"]).await.unwrap(), [3]);
    let error = views.record("", 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// A recorded sum that other hits joined is split like theirs.
#[tokio::test]
async fn a_recorded_sum_that_fits_is_counted_beside_one_that_does_not() {
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(1)).await;
    let _ = views.add("top", i64::MAX - 5).await.unwrap();
    plain.redis.pause();
    views.record("other", 1).unwrap();
    pause(20).await;
    let adds: Vec<_> = (0..4)
        .map(|_| {
            tokio::spawn({
                let views = views.clone();
                async move { views.add("top", 7).await }
            })
        })
        .collect();
    (0..5).for_each(|_| views.record("top", 1).unwrap());
    pause(30).await;
    plain.redis.resume();
    for add in adds {
        assert_eq!(
            add.await.unwrap().unwrap(),
            counterfoil::Outcome::OutOfRange(None)
        );
    }
    is_counted(&views, "top", i64::MAX).await;
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
}

#[tokio::test]
async fn the_metrics_say_what_became_of_the_hits() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(1)).await;
    (0..10).for_each(|_| views.record("page", 1).unwrap());
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
    let seen = look(&snapshotter);
    assert_eq!((seen[HITS], seen[RECORDED]), (10.0, 0.0), "{seen:?}");

    // hits that are being sent, and in flight, when Redis loses its memory
    plain.redis.pause();
    (0..7).for_each(|_| views.record("page", 1).unwrap());
    pause(50).await;
    assert_eq!(look(&snapshotter)[RECORDED], 7.0);
    plain.redis.kill();
    plain.redis.start_again().await;
    let error = views.flush().await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    let seen = look(&snapshotter);
    assert_eq!((seen[UNKNOWN], seen[RECORDED]), (7.0, 0.0), "{seen:?}");
    assert_eq!(views.get("page").await.unwrap(), 0);

    // each hit of a refused sum is measured on its own, once
    let _ = views.add("top", i64::MAX - 1).await.unwrap();
    plain.redis.pause();
    let all = tokio::spawn({
        let views = views.clone();
        async move {
            let adds = [("page", 1), ("top", 1), ("top", 1), ("top", 3)]
                .map(|(id, delta)| views.add(id, delta));
            futures_util::future::join_all(adds).await
        }
    });
    pause(20).await;
    plain.redis.resume();
    let told: Vec<_> = all.await.unwrap().into_iter().map(Result::unwrap).collect();
    let refused = told
        .iter()
        .filter(|added| **added == counterfoil::Outcome::OutOfRange(None))
        .count();
    assert_eq!(refused, 2, "{told:?}");
    let seen = look(&snapshotter);
    assert_eq!((seen[HITS], seen[REFUSED]), (3.0, 2.0), "{seen:?}");
}

/// The call of a lone caller is measured once, even if others overtake it.
#[tokio::test]
async fn a_call_that_is_overtaken_is_measured_once() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let plain = Plain::new().await;
    let views = plain.open(family("views").partitions(1)).await;
    let _ = views.add("page", 1).await.unwrap();
    let mut first = Box::pin(views.add("page", 1));
    assert!(futures_util::FutureExt::now_or_never(first.as_mut()).is_none());
    let _ = counted(views.add("page", 1).await.unwrap());
    let _ = counted(first.await.unwrap());
    assert_eq!(look(&snapshotter)[HITS], 3.0);
}

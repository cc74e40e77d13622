//! Hits that no caller waits for. A recorded hit is counted once, whatever happens, or an error is
//! reported.

use std::thread;

use counterfoil::Recorded;
use counterfoil::metrics::{HITS, RECORDED, REFUSED, UNKNOWN};

use super::views;
use crate::support::*;

async fn is_counted(views: &BufferedCounters, id: &str, value: i64) {
    eventually(&format!("{value} of {id}"), async || {
        views
            .pending(&[id])
            .await
            .is_ok_and(|pending| pending == [value])
    })
    .await;
}

/// Flushes what was recorded. All of it is counted.
async fn all_counted(views: &BufferedCounters) {
    assert_eq!(views.flush().await.unwrap(), Recorded::Counted);
}

/// Flushes what was recorded. This many hits of it are refused.
async fn are_refused(views: &BufferedCounters, full: u64, out_of_range: u64) {
    let refused = Recorded::Refused {
        full,
        out_of_range,
        bad_time: 0,
    };
    assert_eq!(views.flush().await.unwrap(), refused);
}

/// The threads are outside of any runtime.
#[tokio::test(flavor = "multi_thread")]
async fn over_many_threads_nothing_is_lost() {
    let (plain, views) = views(4).await;
    let reconciler = plain.reconcile().await;
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
                        thread::sleep(millis(7));
                    }
                }
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        all_counted(&views).await;
        views.count("total", 0).await;
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    all_counted(&views).await;
    let mut expected = [0; 100];
    for thread in 0..6 {
        (0..4000).for_each(|hit| expected[(hit * 7 + thread) % 100] += 1 + hit as i64 % 3);
    }
    let ids = pages(100);
    assert_eq!(views.get_many(&ids).await.unwrap(), expected);
    assert_eq!(views.value("total").await, -24_000);
    reconciler.stop().await;
}

/// A runtime that ends drops the current sending, and no more.
#[test]
fn a_runtime_that_ends_does_not_end_the_sending() {
    let home = threads(1);
    let (_plain, views) = home.block_on(views(4));
    for round in 1..=10 {
        runtime().block_on(async { views.record("doomed", 1).unwrap() });
        home.block_on(async {
            views.record("page", 1).unwrap();
            is_counted(&views, "page", round).await;
        });
    }
}

/// A runtime that ends during a flush leaves the hits to the pair's.
#[test]
fn a_flush_goes_on_without_the_runtime_of_its_caller() {
    let home = threads(1);
    let (plain, views) = home.block_on(views(4));
    plain.redis.pause();
    let ids: Vec<_> = (0..20_000).map(|number| number.to_string()).collect();
    ids.iter().for_each(|id| views.record(id, 1).unwrap());
    let doomed = threads(2);
    let flushed = doomed.block_on(async { timeout(millis(100), views.flush()).await });
    assert!(flushed.is_err(), "Redis stands still");
    doomed.shutdown_timeout(secs(1));
    plain.redis.resume();
    assert_eq!(home.block_on(views.flush()).unwrap(), Recorded::Counted);
    let pending = home.block_on(views.pending(&ids)).unwrap();
    assert_eq!(pending, vec![1; ids.len()]);
}

/// Hits that were being sent when the runtime of the pair ended have an unknown outcome.
#[test]
fn a_flush_reports_what_the_runtime_left_half_way() {
    let (home, doomed) = (threads(1), threads(1));
    let plain = home.block_on(Plain::new());
    let views = doomed.block_on(async { plain.other().await.opened(family("views")).await });
    views.record("page", 1).unwrap();
    assert_eq!(doomed.block_on(views.flush()).unwrap(), Recorded::Counted);
    plain.redis.pause();
    views.record("page", 1).unwrap();
    let flushed = home.block_on(async { timeout(millis(200), views.flush()).await });
    assert!(flushed.is_err(), "Redis stands still");
    doomed.shutdown_timeout(secs(1));
    plain.redis.resume();
    let error = home.block_on(views.flush()).unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    let why = "the runtime of the pair has ended";
    refused(home.block_on(views.flush()), ErrorKind::Closed, why);
}

#[tokio::test]
async fn dropping_the_last_handle_sends_it() {
    let (plain, views) = views(4).await;
    let (other, ids) = (plain.other().await, pages(1000));
    ids.iter().for_each(|id| views.record(id, 2).unwrap());
    drop((views, plain.counterfoil));
    let views = other.opened(family("views")).await;
    eventually("all", async || {
        views.pending(&ids).await.unwrap() == vec![2; 1000]
    })
    .await;
}

/// A flush returns when all hits recorded before are counted, even those that are already being
/// sent.
#[tokio::test(flavor = "multi_thread")]
async fn flush_waits_for_what_is_being_sent() {
    let (_plain, views) = views(4).await;
    let mut random = random::numbers();
    for round in 1..=150 {
        for id in ["a", "b", "c", "d"] {
            views.record(id, 1).unwrap();
        }
        let micros = random.random_range(0..8000);
        tokio::time::sleep(Duration::from_micros(micros)).await;
        all_counted(&views).await;
        assert_eq!(
            views.pending(&["a", "b", "c", "d"]).await.unwrap(),
            [round; 4]
        );
    }
}

/// A caller may stop waiting for a flush.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_is_dropped_loses_nothing() {
    let (plain, views) = views(4).await;
    views.record("page", 1).unwrap();
    all_counted(&views).await;
    plain.redis.pause();
    let ids = pages(1000);
    let record = || ids.iter().for_each(|id| views.record(id, 1).unwrap());
    record();
    let flushed = timeout(millis(100), views.flush()).await;
    assert!(flushed.is_err(), "Redis stands still");
    record();
    plain.redis.resume();
    all_counted(&views).await;
    assert_eq!(views.pending(&ids).await.unwrap(), vec![2; 1000]);
}

/// Redis refuses hits for longer than one attempt to send them takes.
#[tokio::test(flavor = "multi_thread")]
async fn what_redis_does_not_take_is_sent_again() {
    let (plain, views) = views(2).await;
    plain.redis.does("CONFIG SET maxmemory 1").await;
    (0..3).for_each(|_| views.record("page", 1).unwrap());
    views.record("top", i64::MAX).unwrap();
    pause(50).await;
    // the hits are being sent; new ones are added to them when they are returned
    views.record("page", 1).unwrap();
    views.record("top", 1).unwrap();
    pause(5200).await;
    plain.redis.does("CONFIG SET maxmemory 0").await;
    // what leaves i64 when it comes back
    are_refused(&views, 0, 1).await;
    assert_eq!(views.pending(&["page", "top"]).await.unwrap(), [4, 1]);
    all_counted(&views).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_is_bounded() {
    const KEPT: usize = 131_072;
    let (plain, views) = views(1).await;
    views.record("known", 1).unwrap();
    all_counted(&views).await;
    plain.redis.pause();
    // while this is being sent
    views.record("known", 1).unwrap();
    pause(50).await;
    let kept =
        (0..2 * KEPT).take_while(|number| match views.record(&format!("page/{number}"), 1) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.kind() == Busy && error.is_retryable(), "{error}");
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
    let ids = pages(KEPT + 1);
    let mut expected = vec![1; KEPT + 1];
    (expected[7], expected[KEPT]) = (2, 0);
    // in chunks that a slow machine reads within the limit
    for (ids, expected) in ids.chunks(8192).zip(expected.chunks(8192)) {
        assert!(views.pending(ids).await.unwrap() == expected);
    }
}

/// Several threads record the same ids, together more than are kept.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_several_threads_is_kept_once() {
    const IDS: usize = 40_000;
    let (plain, views) = views(2).await;
    plain.redis.pause();
    let record = |views: BufferedCounters| {
        move || {
            for id in pages(IDS) {
                views.record(&id, 1).unwrap();
            }
        }
    };
    let threads: Vec<_> = (0..4)
        .map(|_| thread::spawn(record(views.clone())))
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    plain.redis.resume();
    // a slow machine does not send everything within one call's time, and keeps the rest
    while let Err(error) = views.flush().await {
        assert!(error.is_retryable(), "{error}");
    }
    for ids in pages(IDS).chunks(8192) {
        assert!(views.pending(ids).await.unwrap() == vec![4; ids.len()]);
    }
}

#[tokio::test]
async fn what_redis_refuses_is_said_by_flush() {
    let metrics = Metrics::record();
    let (_plain, views) = Plain::of(family("views").partitions(1).max_pending(3)).await;
    views.count("top", i64::MAX - 1).await;
    for (id, delta) in [("top", 2), ("top", 3), ("a", 1), ("b", 1), ("a", 1)] {
        views.record(id, delta).unwrap();
    }
    are_refused(&views, 0, 2).await;
    assert_eq!(
        views.pending(&["top", "a", "b"]).await.unwrap(),
        [i64::MAX - 1, 2, 1]
    );
    views.record("further", 1).unwrap();
    are_refused(&views, 1, 0).await;
    all_counted(&views).await;
    metrics.expect([(HITS, 4.0), (RECORDED, 0.0)]);
    // what would overflow i64 in a sum within this process counts for itself
    views.record("a", i64::MAX).unwrap();
    views.record("a", 1).unwrap();
    are_refused(&views, 0, 1).await;
    assert_eq!(views.pending(&["a"]).await.unwrap(), [3]);
    refused(views.record("", 1), InvalidInput, "");
}

/// A recorded sum that other hits joined is split like theirs.
#[tokio::test]
async fn a_recorded_sum_that_fits_is_counted_beside_one_that_does_not() {
    let (plain, views) = views(1).await;
    views.count("top", i64::MAX - 5).await;
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
        assert_eq!(add.await.unwrap().unwrap(), OutOfRange(None));
    }
    is_counted(&views, "top", i64::MAX).await;
    all_counted(&views).await;
}

#[tokio::test]
async fn the_metrics_say_what_became_of_the_hits() {
    let metrics = Metrics::record();
    let (plain, views) = views(1).await;
    (0..10).for_each(|_| views.record("page", 1).unwrap());
    all_counted(&views).await;
    metrics.expect([(HITS, 10.0), (RECORDED, 0.0)]);

    // hits that are being sent, and in flight, when Redis loses its memory
    plain.redis.pause();
    (0..7).for_each(|_| views.record("page", 1).unwrap());
    pause(50).await;
    metrics.expect([(RECORDED, 7.0)]);
    plain.redis.kill();
    plain.redis.start_again().await;
    let error = views.flush().await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    metrics.expect([(UNKNOWN, 7.0), (RECORDED, 0.0)]);
    assert_eq!(views.value("page").await, 0);

    // each hit of a refused sum is measured on its own, once
    views.count("top", i64::MAX - 1).await;
    plain.redis.pause();
    let all = tokio::spawn({
        let views = views.clone();
        async move {
            let adds = [("page", 1), ("top", 1), ("top", 1), ("top", 3)]
                .map(|(id, delta)| views.add(id, delta));
            try_join_all(adds).await
        }
    });
    pause(20).await;
    plain.redis.resume();
    let told = all.await.unwrap().unwrap();
    let refused = told.iter().filter(|added| **added == OutOfRange(None));
    assert_eq!(refused.count(), 2, "{told:?}");
    metrics.expect([(HITS, 3.0), (REFUSED, 2.0)]);
}

/// The call of a lone caller is measured once, even if others overtake it.
#[tokio::test]
async fn a_call_that_is_overtaken_is_measured_once() {
    let metrics = Metrics::record();
    let (_plain, views) = views(1).await;
    views.count("page", 1).await;
    let mut first = Box::pin(views.add("page", 1));
    assert!(poll_once(first.as_mut()).is_none());
    views.count("page", 1).await;
    counted(first.await.unwrap());
    metrics.expect([(HITS, 3.0)]);
}

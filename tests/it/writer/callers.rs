//! Callers that wait for Redis together. Some are dropped, some are no longer polled, some find no
//! room, and some give up. No caller hangs, and the reported outcome of each hit is true.

use std::pin::pin;
use std::sync::mpsc;
use std::thread;

use tokio::time::{MissedTickBehavior, interval};

use super::views;
use crate::support::*;

/// A time limit for everything that works as intended.
const LONG: Duration = secs(4);

/// Returns the value that the caller receives, within this time.
async fn within_time(limit: Duration, caller: impl Future<Output = Result<Outcome>>) -> i64 {
    let told = within(limit, timeout(LONG, caller)).await;
    counted(told.expect("nobody hangs").unwrap())
}

/// A lone caller makes its own call, and may not be polled meanwhile.
#[tokio::test]
async fn a_lone_caller_that_is_not_polled_does_not_hold_up_the_others() {
    let (_plain, views) = views(1).await;
    // before the epoch is known, and after
    for round in 0..3 {
        let mut first = pin!(views.add("page", 1));
        assert!(poll_once(first.as_mut()).is_none());
        let second = within_time(millis(500), views.add("page", 1)).await;
        // either may reach Redis first; a repeated call returns the current pending value
        let first = within_time(LONG, first).await;
        let (one, both) = (2 * round + 1, 2 * round + 2);
        assert!(
            [(one, both), (both, one), (both, both)].contains(&(first, second)),
            "{first}, {second} in round {round}"
        );
        assert_eq!(views.value("page").await, both);
    }
}

/// Redis refused the lone caller's call, which would pause before it tries again.
#[tokio::test]
async fn a_refused_lone_caller_that_is_not_polled_does_not_hold_up_the_others() {
    let (plain, views) = views(1).await;
    views.count("page", 1).await;
    plain.redis.does("CONFIG SET maxmemory 1").await;
    let mut first = pin!(views.add("page", 1));
    // sent and refused
    for _ in 0..2 {
        assert!(poll_once(first.as_mut()).is_none());
        pause(30).await;
    }
    plain.redis.does("CONFIG SET maxmemory 0").await;
    assert_eq!(within_time(secs(1), views.add("page", 1)).await, 2);
    assert_eq!(within_time(LONG, first).await, 3);
}

#[tokio::test]
async fn a_refused_lone_caller_does_not_pause_beyond_its_deadline() {
    let (plain, views) = views(1).await;
    views.count("page", 1).await;
    plain.redis.does("CONFIG SET maxmemory 1").await;
    let views = views.write_timeout(millis(20));
    let (mut shortest, mut refusals) = (LONG, 0);
    while refusals < 20 {
        let began = Instant::now();
        // a reply that takes longer leaves the outcome unknown
        if views.add("page", 1).await.unwrap_err().kind() == ErrorKind::Redis {
            refusals += 1;
            // pauses grow with the refusals
            if refusals > 10 {
                shortest = shortest.min(began.elapsed());
            }
        }
    }
    assert!(shortest < millis(80), "{shortest:?}");
}

/// Callers of each partition wait for calls in flight, and are not polled meanwhile.
#[tokio::test]
async fn callers_that_are_not_polled_do_not_hold_up_another_family() {
    let (plain, views) = views(8).await;
    let other = plain.open(family("other").partitions(1)).await;
    let ids: Vec<_> = (0..8)
        .map(|number| ids_of(views.family(), number, 1).remove(0))
        .collect();
    let mut callers: Vec<_> = ids.iter().map(|id| Box::pin(views.add(id, 1))).collect();
    for caller in &mut callers {
        assert!(poll_once(caller.as_mut()).is_none());
    }
    assert_eq!(within_time(millis(500), other.add("page", 1)).await, 1);
    for caller in callers {
        assert_eq!(within_time(LONG, caller).await, 1);
    }
}

/// Returns the values that the callers receive, in ascending order.
async fn sorted(callers: JoinSet<Result<Outcome>>) -> Vec<i64> {
    let told = timeout(LONG, callers.join_all()).await;
    let told = told.expect("nobody hangs").into_iter();
    let mut values: Vec<_> = told.map(|told| counted(told.unwrap())).collect();
    values.sort_unstable();
    values
}

/// There are more callers than may wait for one call.
#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_room_try_add_says_so_and_add_waits() {
    let (plain, views) = views(1).await;
    views.count("first", 1).await;
    plain.redis.pause();
    let mut waiting = JoinSet::new();
    for caller in 0..1500 {
        let views = views.clone();
        waiting.spawn(async move { views.add(&format!("page/{}", caller % 1000), 1).await });
    }
    pause(20).await;
    let mut busy = 0;
    for caller in 0..50 {
        let id = format!("busy/{caller}");
        // callers that timed out just now may have left room
        let told = timeout(millis(5), views.try_add(&id, 1));
        if let Ok(told) = within(millis(100), told).await {
            let error = refused(told, Busy, "");
            assert!(error.is_retryable() && !error.outcome_unknown());
            busy += 1;
        }
    }
    assert!(busy >= 25, "{busy} of 50 were refused");
    pause(100).await;
    plain.redis.resume();
    let values = sorted(waiting).await;
    let expected = std::iter::repeat_n(1, 1000).chain(std::iter::repeat_n(2, 500));
    assert!(values.iter().copied().eq(expected), "{values:?}");
    let expected = [[2; 500], [1; 500]].concat();
    assert_eq!(views.get_many(pages(1000)).await.unwrap(), expected);
    assert_eq!(counted(views.try_add("first", 1).await.unwrap()), 2);
}

/// Two hundred pairs need more room than one. A caller that waits for room must not block the
/// thread that makes some.
#[test]
fn many_wait_for_room_on_one_thread() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        runtime().block_on(async {
            let (_plain, views) = Plain::of(family("views").partitions(1)).await;
            views.count("first", 1).await;
            let hits = |part| {
                (0..180)
                    .map(|number| (format!("page/{part}/{number}"), 1))
                    .collect::<Vec<_>>()
            };
            let parts: Vec<_> = (0..6).map(hits).collect();
            // one caller is alone, two find room, and three do not
            let told = join_all(parts.into_iter().map(|part| views.add_many(part))).await;
            let told = told.into_iter().flatten();
            assert!(
                told.map(|told| counted(told.unwrap()))
                    .eq(std::iter::repeat_n(1, 6 * 180))
            );
        });
        done.send(()).unwrap();
    });
    is_done
        .recv_timeout(LONG)
        .expect("the thread is not kept busy");
}

/// The time that the runtime sees: it stands still while a busy machine runs no task.
struct Ticks(
    Arc<AtomicU64>,
    #[expect(dead_code, reason = "ends with it")] JoinSet<()>,
);

impl Ticks {
    const MS: u64 = 5;

    fn begin() -> Self {
        let (ticks, mut ticking) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        let tick = ticks.clone();
        ticking.spawn(async move {
            let mut interval = interval(millis(Self::MS));
            interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                interval.tick().await;
                tick.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ticks(ticks, ticking)
    }

    fn elapsed(&self) -> Duration {
        millis(Self::MS * self.0.load(Ordering::Relaxed))
    }
}

/// Counts once for each id, and returns the errors of the callers, which time out after this time.
async fn after(timeout_after: Duration, views: &BufferedCounters, ids: &[String]) -> Vec<Error> {
    let adds = ids.iter().map(|id| views.add(id, 1));
    let (began, ticks) = (Instant::now(), Ticks::begin());
    let told = timeout(timeout_after + LONG, join_all(adds))
        .await
        .expect("nobody hangs");
    let (waited, seen) = (began.elapsed(), ticks.elapsed());
    assert!(
        waited + millis(50) > timeout_after,
        "given up after {waited:?}"
    );
    assert!(
        seen < timeout_after + millis(300),
        "given up after {waited:?}, {seen:?} of which it could run"
    );
    told.into_iter()
        .map(|told| told.expect_err("Redis is not there"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_stands_still_callers_give_up_in_time() {
    let (plain, views) = views(2).await;
    let timeout_after = millis(350);
    let ids: Vec<_> = (0..2)
        .flat_map(|number| ids_of(views.family(), number, 40))
        .collect();
    for told in views.add_many(ids.iter().map(|id| (id, 1))).await {
        assert_eq!(counted(told.unwrap()), 1);
    }
    let views = views.write_timeout(timeout_after);
    plain.redis.pause();
    let errors = after(timeout_after, &views, &ids).await;
    // a lone caller sent its call, and drivers sent two
    let unknown = errors
        .iter()
        .filter(|error| error.outcome_unknown())
        .count();
    assert!(unknown >= 3, "{unknown} are unknown");
    assert!(
        errors
            .iter()
            .all(|error| error.outcome_unknown() != error.is_retryable()),
        "{errors:?}"
    );
    // these callers have a longer timeout, through another handle, than the callers that follow
    let mut patient = JoinSet::new();
    let long = views.clone().write_timeout(LONG);
    // two waves, so that each of the two drivers has a call to make
    for wave in ids.chunks(40) {
        for id in wave {
            let (long, id) = (long.clone(), id.clone());
            patient.spawn(async move { long.add(&id, 1).await });
        }
        pause(100).await;
    }
    let errors = after(timeout_after, &views, &ids).await;
    // no driver was free, so their errors say that they do not count
    assert!(
        errors.iter().all(|error| !error.outcome_unknown()),
        "{errors:?}"
    );
    plain.redis.resume();
    for told in patient.join_all().await {
        let _ = counted(told.unwrap());
    }
    let values = views.get_many(&ids).await.unwrap();
    let sum: i64 = values.iter().sum();
    assert!(
        (160..=160 + unknown as i64).contains(&sum)
            && values.iter().all(|value| (2..=3).contains(value)),
        "{values:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_nothing_is_unknown() {
    let (plain, views) = views(2).await;
    let timeout_after = millis(300);
    let views = views.write_timeout(timeout_after);
    plain.redis.kill();
    pause(50).await;
    for _ in 0..2 {
        let errors = after(timeout_after, &views, &pages(30)).await;
        assert!(
            errors
                .iter()
                .all(|error| error.is_retryable() && !error.outcome_unknown()),
            "{errors:?}"
        );
    }
    plain.redis.start_again().await;
    assert_eq!(views.write_timeout(LONG).count("page/1", 1).await, 1);
}

/// A key of the wrong type fails its own partition only, and at once.
#[tokio::test]
async fn one_partition_s_trouble_is_its_own() {
    let (plain, views) = views(4).await;
    let other = plain.open(family("other").partitions(1)).await;
    plain
        .redis
        .does("SET cf1:{test/views/2}:buffer wrong")
        .await;
    let ids: Vec<_> = (0..4)
        .flat_map(|number| ids_of(views.family(), number, 10))
        .collect();
    let hits: Vec<_> = ids.iter().map(|id| (id, 1)).collect();
    let (told, alone, elsewhere) = within(millis(500), async {
        tokio::join!(
            views.add_many(hits),
            views.add(&ids[20], 1),
            other.count("page", 1)
        )
    })
    .await;
    for (id, told) in ids.iter().zip(told) {
        if ids[20..30].contains(id) {
            refused(told, Corrupt, "");
        } else {
            assert_eq!(counted(told.unwrap()), 1, "{id}");
        }
    }
    refused(alone, Corrupt, "");
    assert_eq!(elsewhere, 1);
    plain.redis.does("DEL cf1:{test/views/2}:buffer").await;
    assert_eq!(views.count(&ids[20], 1).await, 1);
}

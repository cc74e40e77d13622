//! Requests that the application repeats, in the same process or another one. Each counts once for
//! as long as it is remembered.

use std::pin::pin;

use counterfoil::test_hooks::Partition;

use crate::support::*;

/// Advances the time by a minute, and begins a new epoch.
async fn turn_epoch(plain: &Plain, family: &Family) {
    // read first: a concurrent call may begin the new epoch
    let calls = format!("cf1:{{{family}/0}}:calls");
    let before = plain.redis.run(&format!("HGET {calls} =now")).await;
    let before: String = before.unwrap();
    let age = format!("HINCRBY {calls} =began_at -61000");
    let began_at: i64 = plain.redis.run(&age).await.unwrap();
    let home = Partition::new(plain.redis.manager().await, family, 0);
    assert_ne!(epoch(&home, family).await.unwrap(), before, "{began_at}");
}

#[tokio::test]
async fn a_request_counts_once_whichever_process_makes_it_again() {
    for wide in [false, true] {
        let (plain, here) = Plain::of(family("views").wide(wide)).await;
        let there = plain.other().await.opened(family("views").wide(wide)).await;
        assert_eq!(here.add_once("job/1", "page", 5).await.unwrap(), Counted(5));
        assert_eq!(
            here.add_once("job/1", "page", 5).await.unwrap(),
            CountedBefore(5)
        );
        assert_eq!(
            there.add_once("job/1", "page", 5).await.unwrap(),
            CountedBefore(5)
        );
        // the same job on another counter, and a similar request
        assert_eq!(
            there.add_once("job/1", "start", 1).await.unwrap(),
            Counted(1)
        );
        let _ = there.add_once("job/1:", "page", 1).await.unwrap();
        assert_eq!(here.get_many(&["page", "start"]).await.unwrap(), [6, 1]);
        // does not affect other hits
        there.count("start", 1).await;
        assert_eq!(here.value("start").await, 2);

        let both = [&here, &there];
        let at_once =
            join_all((0..32).map(|number| both[number % 2].add_once("job/2", "page", 1))).await;
        let many = |of: fn(&Outcome) -> bool| {
            let told = at_once.iter().filter_map(|told| told.as_ref().ok());
            told.filter(|told| of(told)).count()
        };
        let now = many(|told| matches!(told, Counted(_)));
        let before = many(|told| matches!(told, CountedBefore(_)));
        assert_eq!((now, before), (1, 31), "{at_once:?}");
        assert_eq!(here.value("page").await, 7);
        plain.drain().await;
        assert_eq!(
            there.add_once("job/2", "page", 1).await.unwrap(),
            CountedBefore(0),
            "and when it is in the database"
        );
    }
}

#[tokio::test]
async fn a_refusal_is_remembered_too() {
    let (plain, views) = Plain::of(family("views").partitions(1).max_pending(1)).await;
    let expect = async |request: &str, id, n, expected| {
        let told = views.add_once(request, id, n).await.unwrap();
        assert_eq!(told, expected, "{request}");
    };
    expect("1", "page", i64::MAX, Counted(i64::MAX)).await;
    for _ in 0..2 {
        expect("2", "page", 1, OutOfRange(None)).await;
        expect("3", "start", 1, Outcome::Full).await;
    }
    plain.drain().await;
    expect("3", "start", 1, Outcome::Full).await;
    expect("4", "start", 1, Counted(1)).await;
    for request in ["", &"x".repeat(65)] {
        refused(views.add_once(request, "page", 1).await, InvalidInput, "");
    }
    expect(&"x".repeat(64), "start", 1, Counted(2)).await;
}

/// Makes a request, and repeats it after so many new epochs, from the process that made it and from
/// a new one. Returns for each call whether it counted, and the value.
async fn again_after(kind: &str, turns: usize) -> [(bool, i64); 3] {
    let (plain, cached) = (Plain::new().await, kind == "cached");
    let (views, votes) = (family("views"), votes());
    let told = async |pair: &Counterfoil| {
        let told = if cached {
            let votes = pair.opened(votes.clone()).await;
            votes.incr_once("job", "page", 1).await
        } else {
            let views = pair.opened(views.clone()).await;
            views.add_once("job", "page", 1).await
        };
        match told.unwrap() {
            Counted(value) => (true, value),
            CountedBefore(value) => (false, value),
            refused => panic!("{refused:?}"),
        }
    };
    let (here, there) = (&plain.counterfoil, plain.other().await);
    let first = told(here).await;
    let family = if cached { votes.build() } else { views.build() };
    let family = family.unwrap();
    for _ in 0..turns {
        turn_epoch(&plain, &family).await;
    }
    [first, told(here).await, told(&there).await]
}

#[tokio::test]
async fn a_request_is_remembered_for_one_whole_epoch() {
    for kind in ["buffered", "cached"] {
        for (turns, here, there) in [
            (0, (false, 1), (false, 1)),
            (1, (false, 1), (false, 1)),
            // the limit: the request is forgotten
            (2, (true, 2), (false, 2)),
        ] {
            let told = again_after(kind, turns).await;
            assert_eq!(told, [(true, 1), here, there], "{kind}, {turns} turns");
        }
    }
}

/// A process learns the epochs with its first call, and its last call names one that has ended.
#[tokio::test]
async fn a_process_whose_epochs_have_ended_asks_again() {
    let plain = Plain::new().await;
    let (here, there) = (
        plain.open(family("views")).await,
        plain.other().await.opened(family("views")).await,
    );
    assert_eq!(here.add_once("job/1", "page", 1).await.unwrap(), Counted(1));
    turn_epoch(&plain, here.family()).await;
    assert_eq!(
        there.add_once("job/2", "page", 1).await.unwrap(),
        Counted(2)
    );
    turn_epoch(&plain, here.family()).await;
    assert_eq!(
        here.add_once("job/2", "page", 1).await.unwrap(),
        CountedBefore(2)
    );
}

const HITS: u32 = 160;

/// Repeats each hit until it is counted. Returns the sum, and the number of repeats. The write
/// timeout is too short for the writer to repeat a call.
async fn made_again(hit: impl AsyncFn(&BufferedCounters, &str) -> Result<Outcome>) -> (i64, u32) {
    let plain = Plain::new().await;
    let frail = plain.over(lossy(&plain.redis, 3, true).await);
    let views = frail.opened(family("views")).await;
    let views = views.write_timeout(millis(4));
    let mut again = 0;
    for number in 0..HITS {
        while let Err(error) = hit(&views, &format!("job/{number}")).await {
            let kind = error.kind();
            assert!(
                matches!(kind, OutcomeUnknown | ErrorKind::Redis),
                "{kind:?}"
            );
            again += 1;
        }
    }
    let views = plain.open(family("views")).await;
    (views.value("page").await, again)
}

#[tokio::test]
async fn a_request_counts_once_where_replies_are_lost() {
    let once = async |views: &BufferedCounters, job: &str| views.add_once(job, "page", 1).await;
    let (value, again) = made_again(once).await;
    assert_eq!(value, i64::from(HITS));
    assert!(again > HITS / 4, "{again} were made again");
    let plainly = async |views: &BufferedCounters, _: &str| views.add("page", 1).await;
    let (value, again) = made_again(plainly).await;
    assert!(
        value > i64::from(HITS + HITS / 4),
        "{again} were made again, and {value} counted: the request is not needed"
    );
}

/// A request waits for its reply, and is not polled meanwhile.
#[tokio::test]
async fn a_request_that_is_not_polled_does_not_hold_up_a_shutdown() {
    let (plain, views) = Plain::of(family("views")).await;
    views.count("page", 1).await;
    let brief = views.write_timeout(millis(300));
    let mut request = pin!(brief.add_once("job", "page", 1));
    assert!(poll_once(request.as_mut()).is_none());
    let remaining = within(secs(4), plain.shutdown(secs(8))).await;
    assert!(remaining.unwrap().is_empty());
}

#[tokio::test]
async fn a_change_counts_once_and_everybody_is_told_its_value() {
    let plain = Plain::new().await;
    let family = votes().max(10);
    let here = plain.open(family.clone()).await;
    let there = plain.other().await.opened(family).await;
    let expect = async |votes: &CachedCounters, request, id, n, expected| {
        let told = votes.incr_once(request, id, n).await.unwrap();
        assert_eq!(told, expected, "{request}");
    };
    // cold: the first change took two calls
    expect(&here, "job/1", "item", 5, Counted(5)).await;
    here.count("item", 2).await;
    for votes in [&here, &there] {
        // not as it is now
        expect(votes, "job/1", "item", 5, CountedBefore(5)).await;
    }
    // warm, on another counter, and a similar request
    expect(&there, "job/2", "item", 1, Counted(8)).await;
    expect(&there, "job/1", "other", 1, Counted(1)).await;
    expect(&there, "job/1:", "item", 1, Counted(9)).await;
    // a refusal is remembered with its value at that time
    expect(&here, "job/3", "item", 5, OutOfRange(Some(9))).await;
    here.count("item", -4).await;
    expect(&there, "job/3", "item", 5, OutOfRange(Some(9))).await;
    assert_eq!(there.get_many(&["item", "other"]).await.unwrap(), [5, 1]);
    for request in ["", &"x".repeat(65)] {
        refused(here.incr_once(request, "item", 1).await, InvalidInput, "");
    }
    assert!(plain.shutdown(secs(5)).await.unwrap().is_empty());
}

/// All callers miss the counter, and send their changes under the same numbers.
#[tokio::test]
async fn of_many_who_ask_at_once_one_counts() {
    let plain = Plain::new().await;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(plain.other().await.opened(votes()).await);
    }
    for round in 1..=20 {
        let (request, id) = (format!("job/{round}"), format!("item/{round}"));
        let all = processes
            .iter()
            .cycle()
            .take(12)
            .map(|votes| votes.incr_once(&request, &id, 7));
        let told = try_join_all(all).await.unwrap();
        let many = |outcome| told.iter().filter(|told| **told == outcome).count();
        let many = [Counted(7), CountedBefore(7)].map(many);
        assert_eq!(many, [1, 11], "{told:?}");
        assert_eq!(processes[0].get(&id).await.unwrap(), 7);
    }
}

#[tokio::test]
async fn a_change_without_a_row_is_not_remembered() {
    let plain = Plain::new().await;
    let table = keyed(Table::update("item"), [("id", Unsigned)]);
    let votes = plain.open(votes().table(table)).await;
    for _ in 0..2 {
        assert_eq!(votes.incr_once("job", "1", 1).await.unwrap(), NoRow);
    }
    plain.store.set(votes.family(), "1", 40);
    assert_eq!(votes.incr_once("job", "1", 1).await.unwrap(), Counted(41));
    assert_eq!(
        votes.incr_once("job", "1", 1).await.unwrap(),
        CountedBefore(41)
    );
}

/// Turns epochs while a process that missed the counter reads its row. Another process makes the
/// request before a turn or after the last one, or never. Returns both results, and the final
/// value.
async fn while_epochs_turn(
    turns: usize,
    other: Option<usize>,
) -> (Result<Outcome>, Option<Outcome>, i64) {
    let plain = Plain::new().await;
    let gate = Gate::new();
    let store = Wrapped {
        store: plain.store.clone(),
        between: gate.clone(),
    };
    let here = Counterfoil::new(plain.redis.manager().await, store);
    let here = here.opened(votes()).await;
    let there = plain.open(votes()).await;
    let asks = tokio::spawn(async move { here.incr_once("job", "item", 1).await });
    gate.reach(&asks).await;
    assert!(!asks.is_finished(), "it read no row");
    let mut told = None;
    for turn in 0..=turns {
        if other == Some(turn) {
            told = Some(there.incr_once("job", "item", 1).await.unwrap());
        }
        if turn < turns {
            turn_epoch(&plain, there.family()).await;
        }
    }
    // if its ticket is gone, it reads the row again
    gate.open();
    let first = asks.await.unwrap();
    (first, told, there.value("item").await)
}

#[tokio::test]
async fn a_change_that_is_overtaken_by_epochs_counts_once() {
    // the first process died there, or is slow: another one continues
    for turns in 0..=1 {
        for other in 0..=turns {
            let (first, second, value) = while_epochs_turn(turns, Some(other)).await;
            let told = (first.unwrap(), second.unwrap(), value);
            assert_eq!(
                told,
                (CountedBefore(1), Counted(1), 1),
                "{turns} turns, asked in {other}"
            );
        }
        let (first, _, value) = while_epochs_turn(turns, None).await;
        assert_eq!((first.unwrap(), value), (Counted(1), 1), "{turns} turns");
    }
    // an executed request may be forgotten here: it does not count again
    for turns in 2..=3 {
        for other in 0..turns {
            let (first, second, value) = while_epochs_turn(turns, Some(other)).await;
            assert_eq!(
                (second.unwrap(), value),
                (Counted(1), 1),
                "{turns} turns, asked in {other}"
            );
            refused(first, OutcomeUnknown, "forgotten");
        }
    }
}

/// The reply to a change is lost, a crash takes its miss back, and then the row cannot be read.
#[tokio::test]
async fn an_error_after_a_lost_reply_says_that_the_outcome_is_unknown() {
    const CHANGE: &str = "request:3:job:item\r\n$1\r\n2\r\n";
    let pair = Pair::new().await;
    let (redis, pool) = (pair.redis.manager().await, pair.pool.clone());
    let changes = Arc::new(AtomicU64::new(0));
    let connection = interposed(&pair.redis, move |cmd| {
        let (mut redis, pool) = (redis.clone(), pool.clone());
        let is_first = mentions(cmd, CHANGE) && changes.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            if !is_first {
                return Ok(());
            }
            for (key, field) in [("base", "item"), ("calls", "request:3:job:item")] {
                let key = format!("cf1:{{test/votes/0}}:{key}");
                let forget = redis::cmd("HDEL").arg((key, field)).to_owned();
                let _: i64 = forget.query_async(&mut redis).await?;
            }
            run_sql(&pool, "RENAME TABLE counterfoil_values TO hidden").await;
            Err(cut_off())
        }
    });
    let process = pair.over(connection.await);
    let votes = process.opened(votes().partitions(1)).await;
    let told = votes.incr_once("job", "item", 1).await;
    refused(told, OutcomeUnknown, "a reply was lost");
}

/// Returns Redis to its last fsync while a process that missed the counter reads its row. Another
/// process makes the request then. Returns the result of the first one, and the final value.
async fn asked_again_after_a_crash() -> (Outcome, i64) {
    let plain = Plain::new().await;
    let gate = Gate::new();
    let store = Wrapped {
        store: plain.store.clone(),
        between: gate.clone(),
    };
    let family = || votes().partitions(1);
    let there = plain.open(family()).await;
    there.count("item", 5).await;
    plain.drain().await;
    let forget = async |what: &str| {
        let hdel = format!("HDEL cf1:{{test/votes/0}}:{what}");
        let forgotten: i64 = plain.redis.run(&hdel).await.unwrap();
        assert_eq!(forgotten, 1, "{what}");
    };
    forget("base item").await;
    let here = Counterfoil::new(plain.redis.manager().await, store);
    let here = here.opened(family()).await;
    let asks = tokio::spawn(async move { here.incr_once("job", "item", 1).await });
    gate.reach(&asks).await;
    forget("calls request:3:job:item").await;
    forget("base item").await;
    assert_eq!(there.value("item").await, 5);
    let told = there.incr_once("job", "item", 1).await.unwrap();
    assert_eq!(told, Counted(6));
    gate.open();
    (asks.await.unwrap().unwrap(), there.value("item").await)
}

#[tokio::test]
async fn a_miss_that_a_crash_forgot_counts_nothing() {
    let asked = asked_again_after_a_crash().await;
    assert_eq!(asked, (CountedBefore(6), 6));
    take_out(Some(Guard::Predecessor));
    let asked = asked_again_after_a_crash().await;
    take_out(None);
    assert_eq!(asked, (Counted(7), 7), "without the guard");
}

/// Processes make the same requests at once, lose every third reply, and die anywhere. Meanwhile
/// counters leave Redis, and an epoch begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_counts_once_whoever_dies() {
    const JOBS: usize = 60;
    let plain = Plain::new().await;
    let moment = millis(3);
    let family = votes().sync_time(moment).retain(moment);
    let saved = plain.open(family.clone()).await;
    let reconciler = plain.reconcile().await;
    let (mut workers, mut random) = (Vec::new(), random::numbers());
    for _ in 0..3 {
        let mut random = StdRng::from_rng(&mut random);
        let frail = plain.over(lossy(&plain.redis, 3, true).await);
        let votes = frail.opened(family.clone()).await;
        workers.push(tokio::spawn(async move {
            let (mut died, mut values) = (0, Vec::new());
            for job in 0..JOBS {
                let (request, id) = (format!("job/{job}"), format!("item/{}", job % 5));
                for attempt in 1.. {
                    // longer with each attempt: a busy machine may need more than any fixed time
                    let life = Duration::from_micros(random.random_range(100..6000) * attempt);
                    match timeout(life, votes.incr_once(&request, &id, 1)).await {
                        Ok(Ok(Counted(value) | CountedBefore(value))) => {
                            values.push(value);
                            break;
                        }
                        Ok(Ok(refused)) => panic!("{refused:?}"),
                        Ok(Err(error)) if error.outcome_unknown() || error.is_retryable() => {
                            died += 1
                        }
                        Ok(Err(error)) => panic!("{error}"),
                        Err(_) => died += 1,
                    }
                }
            }
            (died, values)
        }));
    }
    pause(30).await;
    turn_epoch(&plain, saved.family()).await;
    let ended = try_join_all(workers).await.unwrap();
    let died: u32 = ended.iter().map(|(died, _)| died).sum();
    assert!(died > 20, "{died} died");
    let values = ended.iter().map(|(_, values)| values);
    assert!(
        values.clone().all(|told| told == &ended[0].1),
        "each was told the same: {ended:?}"
    );
    reconciler.stop().await;
    let votes = plain.other().await.opened(family).await;
    let ids = [0, 1, 2, 3, 4].map(|id| format!("item/{id}"));
    assert_eq!(votes.get_many(&ids).await.unwrap(), [JOBS as i64 / 5; 5]);
}

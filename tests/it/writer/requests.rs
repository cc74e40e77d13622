//! Requests that the application repeats, in the same process or another one. Each counts once for
//! as long as it is remembered.

use std::pin::pin;

use counterfoil::test_hooks::Partition;

use crate::support::*;

/// Begins a new generation, as if the time that requests are remembered were over.
async fn turn_generation(plain: &Plain, family: &Family) {
    // read first: a concurrent call may begin the new generation
    let key = |name| format!("cf1:{{{family}/0}}:{name}");
    let asked = format!("HGET {} =now", key("requests"));
    let before: Option<String> = plain.redis.run(&asked).await.unwrap();
    let age = family.remember_requests().as_millis();
    let age = format!("HINCRBY {} =began_at -{age}", key("requests"));
    let _: i64 = plain.redis.run(&age).await.unwrap();
    let home = Partition::new(plain.redis.manager().await, family, 0);
    let after = home.epoch(family, "").await.unwrap().unwrap().generation;
    assert_ne!(Some(after.to_string()), before);
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
        let value = at_once
            .iter()
            .find_map(|told| told.as_ref().ok()?.counted());
        let value = value.unwrap();
        assert_eq!(here.value("page").await, 7);
        plain.drain().await;
        assert_eq!(
            there.add_once("job/2", "page", 1).await.unwrap(),
            CountedBefore(value),
            "and when it is in the database"
        );
    }
}

#[tokio::test]
async fn a_refusal_by_the_range_is_remembered_and_a_full_buffer_is_not() {
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
    expect("2", "page", 1, OutOfRange(None)).await;
    expect("3", "start", 1, Counted(1)).await;
    expect("3", "start", 1, CountedBefore(1)).await;
    for request in ["", &"x".repeat(65)] {
        refused(views.add_once(request, "page", 1).await, InvalidInput, "");
    }
    expect(&"x".repeat(64), "start", 1, Counted(2)).await;
}

/// Requests join the calls of other hits, each with its own outcome.
#[tokio::test]
async fn requests_share_calls() {
    let plain = Plain::new().await;
    let views = plain.open(family("views")).await;
    views.count("page/0", 1).await;
    let before = calls(&plain.redis, "evalsha").await;
    let requests = (0..500).map(|number| {
        let views = views.clone();
        async move {
            let (request, id) = (
                format!("job/{}", number % 250),
                format!("page/{}", number % 7),
            );
            let plainly = number % 3 == 0;
            if plainly {
                let _ = views.add(&id, 1).await.unwrap();
            }
            (plainly, views.add_once(&request, &id, 1).await.unwrap())
        }
    });
    let told = join_all(requests).await;
    let once = told.iter().filter(|(_, told)| told.counted().is_some());
    // the number of pairs of request and id: 250 and 7 have no common divisor
    assert_eq!(once.count(), 500);
    let plainly = told.iter().filter(|(plainly, _)| *plainly).count() as i64;
    let values = views
        .get_many((0..7).map(|page| format!("page/{page}")))
        .await;
    assert_eq!(values.unwrap().iter().sum::<i64>(), 501 + plainly);
    let calls = calls(&plain.redis, "evalsha").await - before;
    assert!(calls < 100, "{calls} calls");
}

/// Makes a request, and repeats it after so many new generations, from the process that made it and from
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
        turn_generation(&plain, &family).await;
    }
    [first, told(here).await, told(&there).await]
}

#[tokio::test]
async fn a_request_is_remembered_for_one_whole_generation() {
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

/// A job stores the generation, and is run again much later.
#[tokio::test]
async fn a_stored_generation_counts_once_or_is_refused() {
    let (plain, views) = Plain::of(family("views")).await;
    let votes = plain.open(votes()).await;
    let generation = views.request_epoch("job", "page").await.unwrap();
    let of_votes = votes.request_epoch("job", "item").await.unwrap();
    for turn in 0..3 {
        let told = views.add_once_since(&generation, "job", "page", 1).await;
        let of_vote = votes.incr_once_since(&of_votes, "job", "item", 1).await;
        if turn == 2 {
            refused(told, OutcomeUnknown, "forgotten");
            refused(of_vote, OutcomeUnknown, "forgotten");
            let never = views
                .add_once_since(&generation, "another", "page", 1)
                .await;
            refused(never, OutcomeUnknown, "forgotten");
            break;
        }
        let expected = if turn == 0 {
            Counted(1)
        } else {
            CountedBefore(1)
        };
        assert_eq!(told.unwrap(), expected);
        assert_eq!(of_vote.unwrap(), expected);
        turn_generation(&plain, views.family()).await;
        turn_generation(&plain, votes.family()).await;
    }
    assert_eq!(
        (views.value("page").await, votes.value("item").await),
        (1, 1)
    );
}

/// A process learns the generation with its first call, and its last call names one that has ended.
#[tokio::test]
async fn a_process_whose_generation_has_ended_asks_again() {
    let plain = Plain::new().await;
    let (here, there) = (
        plain.open(family("views")).await,
        plain.other().await.opened(family("views")).await,
    );
    assert_eq!(here.add_once("job/1", "page", 1).await.unwrap(), Counted(1));
    turn_generation(&plain, here.family()).await;
    assert_eq!(
        there.add_once("job/2", "page", 1).await.unwrap(),
        Counted(2)
    );
    turn_generation(&plain, here.family()).await;
    assert_eq!(
        here.add_once("job/2", "page", 1).await.unwrap(),
        CountedBefore(2)
    );
}

/// Makes a request without a guard of the two memories, in the next generation or the one after it.
async fn without(guard: Guard, turns: usize) -> i64 {
    let (plain, views) = Plain::of(family("views")).await;
    let generation = views.request_epoch("job", "page").await.unwrap();
    take_out(Some(guard));
    for turn in 0..=turns {
        let _ = views.add_once_since(&generation, "job", "page", 1).await;
        if turn < turns {
            turn_generation(&plain, views.family()).await;
        }
    }
    take_out(None);
    views.value("page").await
}

#[tokio::test]
async fn without_its_guards_a_request_counts_twice() {
    assert_eq!(without(Guard::OneGeneration, 1).await, 2);
    assert_eq!(without(Guard::AnyGeneration, 2).await, 2);
}

/// Redis is set back to before a request whose hit is in the database, and is reset. Makes it again
/// with the stored generation, and without one a request that Redis still knows, whose hit the reset
/// dropped. Returns both outcomes and values.
async fn after_a_reset(guard: Option<Guard>) -> [(Result<Outcome>, i64); 2] {
    let (plain, views) = Plain::of(family("views").partitions(1)).await;
    let redis = plain.redis.manager().await;
    let generation = views.request_epoch("job", "start").await.unwrap();
    let _ = views.add_once("job", "page", 1).await.unwrap();
    let before = State::of(&redis, views.family()).await;
    let _ = views.add_once("job", "start", 1).await.unwrap();
    plain.counterfoil.drained().await;
    before.restore(&redis).await;
    take_out(guard);
    // the read finds the set-back
    assert_eq!(views.value("page").await, 1);
    let there = plain
        .other()
        .await
        .opened(family("views").partitions(1))
        .await;
    let known = there.add_once("job", "page", 1).await;
    let stored = there.add_once_since(&generation, "job", "start", 1).await;
    take_out(None);
    [
        (known, there.value("page").await),
        (stored, there.value("start").await),
    ]
}

#[tokio::test]
async fn a_reset_makes_requests_unknown() {
    let [known, stored] = after_a_reset(None).await;
    // in truth the hit is in the database: the reset cannot know
    refused(known.0, OutcomeUnknown, "forgotten");
    refused(stored.0, OutcomeUnknown, "forgotten");
    assert_eq!((known.1, stored.1), (1, 1));
    let [known, _] = after_a_reset(Some(Guard::Tag)).await;
    assert_eq!(known.0.unwrap(), CountedBefore(1), "without the guard");
    let [_, stored] = after_a_reset(Some(Guard::EndOfGenerations)).await;
    assert_eq!(
        (stored.0.unwrap(), stored.1),
        (Counted(1), 2),
        "counted twice without the guard"
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

/// All callers miss the counter, and make the same requests.
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

/// Turns generations while a process that missed the counter reads its row. Another process makes the
/// request before a turn or after the last one, or never. Returns both results, and the final
/// value.
async fn while_generations_turn(
    turns: usize,
    other: Option<usize>,
) -> (Result<Outcome>, Option<Outcome>, i64) {
    let plain = Plain::new().await;
    let gate = Gate::new();
    let store = Wrapped {
        store: plain.store.clone(),
        between: gate.clone(),
    };
    let here = patient(Counterfoil::new(plain.redis.manager().await, store));
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
            turn_generation(&plain, there.family()).await;
        }
    }
    // if its ticket is gone, it reads the row again
    gate.open();
    let first = asks.await.unwrap();
    (first, told, there.value("item").await)
}

#[tokio::test]
async fn a_change_that_is_overtaken_by_generations_counts_once() {
    // the first process died there, or is slow: another one continues
    for turns in 0..=1 {
        for other in 0..=turns {
            let (first, second, value) = while_generations_turn(turns, Some(other)).await;
            let told = (first.unwrap(), second.unwrap(), value);
            assert_eq!(
                told,
                (CountedBefore(1), Counted(1), 1),
                "{turns} turns, asked in {other}"
            );
        }
        let (first, _, value) = while_generations_turn(turns, None).await;
        assert_eq!((first.unwrap(), value), (Counted(1), 1), "{turns} turns");
    }
    // an executed request may be forgotten here: it does not count again
    for turns in 2..=3 {
        for other in 0..turns {
            let (first, second, value) = while_generations_turn(turns, Some(other)).await;
            assert_eq!(
                (second.unwrap(), value),
                (Counted(1), 1),
                "{turns} turns, asked in {other}"
            );
            refused(first, OutcomeUnknown, "forgotten");
        }
    }
}

/// The reply to a change is lost, a crash takes it back, and then the row cannot be read.
#[tokio::test]
async fn an_error_after_a_lost_reply_says_that_the_outcome_is_unknown() {
    let pair = Pair::new().await;
    let (redis, pool) = (pair.redis.manager().await, pair.pool.clone());
    let changes = Arc::new(AtomicU64::new(0));
    let connection = interposed(&pair.redis, move |cmd| {
        let (mut redis, pool) = (redis.clone(), pool.clone());
        // the second one comes with the seed
        let is_change = mentions(cmd, "$3\r\njob\r\n");
        let is_first = is_change && changes.fetch_add(1, Ordering::Relaxed) == 1;
        async move {
            if !is_first {
                return Ok(());
            }
            for (key, field) in [
                ("base", "item"),
                ("requests", "3:job:item"),
                // so that the repeat of the call is refused
                ("calls", "=now"),
                ("calls", "=before"),
            ] {
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
    votes.count("other", 1).await;
    let told = votes.incr_once("job", "item", 1).await;
    refused(told, OutcomeUnknown, "a reply was lost");
}

/// Processes make the same requests at once, lose every third reply, and die anywhere. Meanwhile
/// counters leave Redis, and a generation begins.
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
    turn_generation(&plain, saved.family()).await;
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

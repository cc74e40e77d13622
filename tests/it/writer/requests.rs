//! Requests that the application repeats, in the same process or another one. Each counts once for
//! as long as it is remembered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::between::{Gate, Wrapped};
use crate::support::{Plain, PlainCounters, epoch, family, pause, random};
use counterfoil::test_hooks::{Guard, Partition, take_out};
use counterfoil::{
    BufferedCounters, CachedCounters, Counterfoil, Durability, ErrorKind, Family, FamilyBuilder,
    KeyType, MemoryStore, Outcome, Result, Store, Table,
};
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Cmd, Pipeline, RedisError, RedisFuture, Value};

fn views() -> FamilyBuilder<BufferedCounters> {
    family("views").partitions(4)
}

/// Opens the family in another process.
async fn another(plain: &Plain, family: FamilyBuilder<BufferedCounters>) -> PlainCounters {
    let counterfoil = Counterfoil::new(plain.redis.manager().await, MemoryStore::new());
    counterfoil.open(family).await.unwrap()
}

fn votes() -> FamilyBuilder<CachedCounters> {
    Family::cached("test", "votes")
        .partitions(4)
        .durability(Durability::Immediate)
}

/// Connects a process that shares the database.
async fn process<S: Store>(plain: &Plain, store: S) -> Counterfoil {
    Counterfoil::new(plain.redis.manager().await, store)
}

/// Opens its cached counters.
async fn votes_of<S: Store>(
    plain: &Plain,
    store: S,
    family: &FamilyBuilder<CachedCounters>,
) -> CachedCounters {
    process(plain, store)
        .await
        .open(family.clone())
        .await
        .unwrap()
}

/// Advances the time by a minute, and begins a new epoch.
async fn turn_epoch(plain: &Plain, family: &Family) {
    // read first: a concurrent call may begin the new epoch
    let before: String = plain
        .redis
        .run(&format!("HGET cf1:{{{family}/0}}:calls =now"))
        .await
        .unwrap();
    let began_at: i64 = plain
        .redis
        .run(&format!(
            "HINCRBY cf1:{{{family}/0}}:calls =began_at -61000"
        ))
        .await
        .unwrap();
    let home = Partition::new(plain.redis.manager().await, family, 0);
    assert_ne!(epoch(&home, family).await.unwrap(), before, "{began_at}");
}

const BEFORE: fn(i64) -> Outcome = Outcome::CountedBefore;
const NOW: fn(i64) -> Outcome = Outcome::Counted;

#[tokio::test]
async fn a_request_counts_once_whichever_process_makes_it_again() {
    for wide in [false, true] {
        let plain = Plain::new().await;
        let here = plain.open(views().wide(wide)).await;
        let there = another(&plain, views().wide(wide)).await;
        assert_eq!(here.add_once("job/1", "page", 5).await.unwrap(), NOW(5));
        assert_eq!(here.add_once("job/1", "page", 5).await.unwrap(), BEFORE(5));
        assert_eq!(there.add_once("job/1", "page", 5).await.unwrap(), BEFORE(5));
        // the same job on another counter, and a similar request
        assert_eq!(there.add_once("job/1", "start", 1).await.unwrap(), NOW(1));
        let _ = there.add_once("job/1:", "page", 1).await.unwrap();
        assert_eq!(here.get_many(&["page", "start"]).await.unwrap(), [6, 1]);
        // does not affect other hits
        let _ = there.add("start", 1).await.unwrap();
        assert_eq!(here.get("start").await.unwrap(), 2);

        let both = [&here, &there];
        let at_once =
            join_all((0..32).map(|number| both[number % 2].add_once("job/2", "page", 1))).await;
        let now = at_once
            .iter()
            .filter(|added| matches!(added, Ok(Outcome::Counted(_))))
            .count();
        let before = at_once
            .iter()
            .filter(|added| matches!(added, Ok(Outcome::CountedBefore(_))))
            .count();
        assert_eq!((now, before), (1, 31), "{at_once:?}");
        assert_eq!(here.get("page").await.unwrap(), 7);
        plain.counterfoil.drain().await.unwrap();
        assert_eq!(
            there.add_once("job/2", "page", 1).await.unwrap(),
            BEFORE(0),
            "and when it is in the database"
        );
    }
}

#[tokio::test]
async fn a_refusal_is_remembered_too() {
    let plain = Plain::new().await;
    let views = plain.open(views().partitions(1).max_pending(1)).await;
    assert_eq!(
        views.add_once("1", "page", i64::MAX).await.unwrap(),
        NOW(i64::MAX)
    );
    for _ in 0..2 {
        assert_eq!(
            views.add_once("2", "page", 1).await.unwrap(),
            Outcome::OutOfRange(None)
        );
        assert_eq!(
            views.add_once("3", "start", 1).await.unwrap(),
            Outcome::Full
        );
    }
    plain.counterfoil.drain().await.unwrap();
    assert_eq!(
        views.add_once("3", "start", 1).await.unwrap(),
        Outcome::Full
    );
    assert_eq!(views.add_once("4", "start", 1).await.unwrap(), NOW(1));
    for request in ["", &"x".repeat(65)] {
        assert_eq!(
            views.add_once(request, "page", 1).await.unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
    assert_eq!(
        views.add_once(&"x".repeat(64), "start", 1).await.unwrap(),
        NOW(2)
    );
}

/// Makes a request, and repeats it after so many new epochs, from the process that made it and from
/// a new one. Returns for each call whether it counted, and the value.
async fn again_after(kind: &str, turns: usize) -> [(bool, i64); 3] {
    let (plain, cached) = (Plain::new().await, kind == "cached");
    let (views, votes) = (views(), votes());
    let told = async |pair: &Counterfoil| {
        if cached {
            match pair
                .open(votes.clone())
                .await
                .unwrap()
                .incr_once("job", "page", 1)
                .await
                .unwrap()
            {
                Outcome::Counted(value) => (true, value),
                Outcome::CountedBefore(value) => (false, value),
                refused => panic!("{refused:?}"),
            }
        } else {
            match pair
                .open(views.clone())
                .await
                .unwrap()
                .add_once("job", "page", 1)
                .await
                .unwrap()
            {
                Outcome::Counted(pending) => (true, pending),
                Outcome::CountedBefore(pending) => (false, pending),
                refused => panic!("{refused:?}"),
            }
        }
    };
    let (here, there) = (
        &plain.counterfoil,
        process(&plain, plain.store.clone()).await,
    );
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
        assert_eq!(
            again_after(kind, 0).await,
            [(true, 1), (false, 1), (false, 1)],
            "{kind}"
        );
        assert_eq!(
            again_after(kind, 1).await,
            [(true, 1), (false, 1), (false, 1)],
            "{kind}"
        );
        // the limit: the request is forgotten
        assert_eq!(
            again_after(kind, 2).await,
            [(true, 1), (true, 2), (false, 2)],
            "{kind}"
        );
    }
}

/// A process learns the epochs with its first call, and its last call names one that has ended.
#[tokio::test]
async fn a_process_whose_epochs_have_ended_asks_again() {
    let plain = Plain::new().await;
    let (here, there) = (plain.open(views()).await, another(&plain, views()).await);
    assert_eq!(here.add_once("job/1", "page", 1).await.unwrap(), NOW(1));
    turn_epoch(&plain, here.family()).await;
    assert_eq!(there.add_once("job/2", "page", 1).await.unwrap(), NOW(2));
    turn_epoch(&plain, here.family()).await;
    assert_eq!(here.add_once("job/2", "page", 1).await.unwrap(), BEFORE(2));
}

#[tokio::test]
async fn without_the_fence_or_one_of_its_memories_a_request_counts_again() {
    for kind in ["buffered", "cached"] {
        for (guard, turns) in [
            (Guard::Fence, 0),
            (Guard::NoMemory, 0),
            (Guard::OneMemory, 1),
        ] {
            take_out(Some(guard));
            let again = again_after(kind, turns).await;
            take_out(None);
            assert_eq!(again[1], (true, 2), "{kind}, {guard:?}");
        }
    }
}

/// A connection that loses every third reply.
#[derive(Clone)]
struct Lossy {
    inner: ConnectionManager,
    calls: Arc<AtomicU64>,
}

impl From<Lossy> for counterfoil::Connection {
    fn from(connection: Lossy) -> Self {
        counterfoil::Connection::custom(connection)
    }
}

impl ConnectionLike for Lossy {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let is_lost = self.calls.fetch_add(1, Ordering::Relaxed) % 3 == 2;
        Box::pin(async move {
            let reply = self.inner.req_packed_command(cmd).await?;
            let lost =
                || RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
            if is_lost { Err(lost()) } else { Ok(reply) }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        at: usize,
        n: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(pipe, at, n)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

const HITS: u32 = 160;

/// Repeats each hit until it is counted. Returns the sum, and the number of repeats. The write
/// timeout is too short for the writer to repeat a call.
async fn made_again(
    hit: impl AsyncFn(BufferedCounters, String) -> Result<(), ErrorKind>,
) -> (i64, u32) {
    let plain = Plain::new().await;
    let lossy = Lossy {
        inner: plain.redis.manager().await,
        calls: Arc::default(),
    };
    let views = Counterfoil::new(lossy, MemoryStore::new())
        .open(views())
        .await
        .unwrap();
    let views = views.write_timeout(Duration::from_millis(4));
    let mut again = 0;
    for number in 0..HITS {
        while let Err(kind) = hit(views.clone(), format!("job/{number}")).await {
            assert!(
                matches!(kind, ErrorKind::OutcomeUnknown | ErrorKind::Redis),
                "{kind:?}"
            );
            again += 1;
        }
    }
    (
        plain.open(self::views()).await.get("page").await.unwrap(),
        again,
    )
}

#[tokio::test]
async fn a_request_counts_once_where_replies_are_lost() {
    let once = async |views: BufferedCounters, job: String| {
        views
            .add_once(&job, "page", 1)
            .await
            .map(drop)
            .map_err(|error| error.kind())
    };
    let (value, again) = made_again(once).await;
    assert_eq!(value, i64::from(HITS));
    assert!(again > HITS / 4, "{again} were made again");
    let plainly = async |views: BufferedCounters, _| {
        views
            .add("page", 1)
            .await
            .map(drop)
            .map_err(|error| error.kind())
    };
    let (value, again) = made_again(plainly).await;
    assert!(
        value > i64::from(HITS + HITS / 4),
        "{again} were made again, and {value} counted: the request is not needed"
    );
}

#[tokio::test]
async fn a_pair_that_is_shut_down_takes_no_request() {
    let plain = Plain::new().await;
    let views = plain.open(views()).await;
    assert_eq!(views.add_once("job", "page", 1).await.unwrap(), NOW(1));
    assert!(
        plain
            .counterfoil
            .shutdown(Duration::from_secs(5))
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        views.add_once("job", "page", 1).await.unwrap_err().kind(),
        ErrorKind::Closed
    );
}

const CHANGED: fn(i64) -> Outcome = Outcome::Counted;
const CHANGED_BEFORE: fn(i64) -> Outcome = Outcome::CountedBefore;

#[tokio::test]
async fn a_change_counts_once_and_everybody_is_told_its_value() {
    let plain = Plain::new().await;
    let family = votes().max(10);
    let here = votes_of(&plain, plain.store.clone(), &family).await;
    let there = votes_of(&plain, plain.store.clone(), &family).await;
    // cold: the first change took two calls
    assert_eq!(
        here.incr_once("job/1", "item", 5).await.unwrap(),
        CHANGED(5)
    );
    let _ = here.incr("item", 2).await.unwrap();
    for votes in [&here, &there] {
        assert_eq!(
            votes.incr_once("job/1", "item", 5).await.unwrap(),
            CHANGED_BEFORE(5),
            "not as it is now"
        );
    }
    // warm, on another counter, and a similar request
    assert_eq!(
        there.incr_once("job/2", "item", 1).await.unwrap(),
        CHANGED(8)
    );
    assert_eq!(
        there.incr_once("job/1", "other", 1).await.unwrap(),
        CHANGED(1)
    );
    assert_eq!(
        there.incr_once("job/1:", "item", 1).await.unwrap(),
        CHANGED(9)
    );
    // a refusal is remembered with its value at that time
    assert_eq!(
        here.incr_once("job/3", "item", 5).await.unwrap(),
        Outcome::OutOfRange(Some(9))
    );
    let _ = here.incr("item", -4).await.unwrap();
    assert_eq!(
        there.incr_once("job/3", "item", 5).await.unwrap(),
        Outcome::OutOfRange(Some(9))
    );
    assert_eq!(there.get_many(&["item", "other"]).await.unwrap(), [5, 1]);
    for request in ["", &"x".repeat(65)] {
        assert_eq!(
            here.incr_once(request, "item", 1).await.unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
    assert!(
        plain
            .counterfoil
            .shutdown(Duration::from_secs(5))
            .await
            .unwrap()
            .is_empty()
    );
}

/// All callers miss the counter, and send their changes under the same numbers.
#[tokio::test]
async fn of_many_who_ask_at_once_one_counts() {
    let plain = Plain::new().await;
    let family = votes();
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(votes_of(&plain, plain.store.clone(), &family).await);
    }
    for round in 1..=20 {
        let (request, id) = (format!("job/{round}"), format!("item/{round}"));
        let all = processes
            .iter()
            .cycle()
            .take(12)
            .map(|votes| votes.incr_once(&request, &id, 7));
        let told: Vec<_> = join_all(all)
            .await
            .into_iter()
            .map(|told| told.unwrap())
            .collect();
        assert_eq!(
            told.iter().filter(|told| **told == CHANGED(7)).count(),
            1,
            "{told:?}"
        );
        assert_eq!(
            told.iter()
                .filter(|told| **told == CHANGED_BEFORE(7))
                .count(),
            11,
            "{told:?}"
        );
        assert_eq!(processes[0].get(&id).await.unwrap(), 7);
    }
}

#[tokio::test]
async fn a_change_without_a_row_is_not_remembered() {
    let plain = Plain::new().await;
    let table = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("n");
    let family = votes().table(table);
    let votes = votes_of(&plain, plain.store.clone(), &family).await;
    for _ in 0..2 {
        assert_eq!(
            votes.incr_once("job", "1", 1).await.unwrap(),
            Outcome::NoRow
        );
    }
    plain.store.set(votes.family(), "1", 40);
    assert_eq!(votes.incr_once("job", "1", 1).await.unwrap(), CHANGED(41));
    assert_eq!(
        votes.incr_once("job", "1", 1).await.unwrap(),
        CHANGED_BEFORE(41)
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
    let family = votes();
    let store = plain.store.clone();
    let gate = Gate::new();
    let here = votes_of(
        &plain,
        Wrapped {
            store: store.clone(),
            between: gate.clone(),
        },
        &family,
    )
    .await;
    let there = votes_of(&plain, store, &family).await;
    let asks = tokio::spawn(async move { here.incr_once("job", "item", 1).await });
    gate.reach(&asks).await;
    assert!(!asks.is_finished(), "it read no row");
    let mut told = None;
    for turn in 0..=turns {
        if other == Some(turn) {
            told = Some(there.incr_once("job", "item", 1).await.unwrap());
        }
        if turn < turns {
            turn_epoch(&plain, &family.build().unwrap()).await;
        }
    }
    // if its ticket is gone, it reads the row again
    gate.open();
    let first = asks.await.unwrap();
    (first, told, there.get("item").await.unwrap())
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
                (CHANGED_BEFORE(1), CHANGED(1), 1),
                "{turns} turns, asked in {other}"
            );
        }
        let (first, _, value) = while_epochs_turn(turns, None).await;
        assert_eq!((first.unwrap(), value), (CHANGED(1), 1), "{turns} turns");
    }
    // an executed request may be forgotten here: it does not count again
    for turns in 2..=3 {
        for other in 0..turns {
            let (first, second, value) = while_epochs_turn(turns, Some(other)).await;
            assert_eq!(
                (second.unwrap(), value),
                (CHANGED(1), 1),
                "{turns} turns, asked in {other}"
            );
            let error = first.unwrap_err();
            assert!(
                error.outcome_unknown() && format!("{error:#}").contains("forgotten"),
                "{error}"
            );
        }
    }
}

/// Processes make the same requests at once, lose every third reply, and die anywhere. Meanwhile
/// counters leave Redis, and an epoch begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_counts_once_whoever_dies() {
    const JOBS: usize = 60;
    let plain = Plain::new().await;
    let moment = Duration::from_millis(3);
    let family = votes().sync_time(moment).retain(moment);
    let store = plain.store.clone();
    let _saving = plain.counterfoil.open(family.clone()).await.unwrap();
    let reconciler = plain.counterfoil.reconciler().start().await.unwrap();
    let (mut workers, mut random) = (Vec::new(), random::numbers());
    for _ in 0..3 {
        let mut random = StdRng::from_rng(&mut random);
        let lossy = Lossy {
            inner: plain.redis.manager().await,
            calls: Arc::default(),
        };
        let votes = Counterfoil::new(lossy, store.clone())
            .open(family.clone())
            .await
            .unwrap();
        workers.push(tokio::spawn(async move {
            let (mut died, mut values) = (0, Vec::new());
            for job in 0..JOBS {
                let (request, id) = (format!("job/{job}"), format!("item/{}", job % 5));
                for attempt in 1.. {
                    // longer with each attempt: a busy machine may need more than any fixed time
                    let life = Duration::from_micros(random.random_range(100..6000) * attempt);
                    match tokio::time::timeout(life, votes.incr_once(&request, &id, 1)).await {
                        Ok(Ok(Outcome::Counted(value) | Outcome::CountedBefore(value))) => {
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
    turn_epoch(&plain, &family.build().unwrap()).await;
    let ended: Vec<_> = join_all(workers)
        .await
        .into_iter()
        .map(|ended| ended.unwrap())
        .collect();
    let died: u32 = ended.iter().map(|(died, _)| died).sum();
    assert!(died > 20, "{died} died");
    let values = ended.iter().map(|(_, values)| values);
    assert!(
        values.clone().all(|told| told == &ended[0].1),
        "each was told the same: {ended:?}"
    );
    reconciler.shutdown().await.unwrap();
    let votes = votes_of(&plain, store, &family).await;
    let ids: Vec<_> = (0..5).map(|id| format!("item/{id}")).collect();
    assert_eq!(votes.get_many(&ids).await.unwrap(), [JOBS as i64 / 5; 5]);
}

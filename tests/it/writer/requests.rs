//! Requests that the application makes again, in the same process or another one: each counts once for as long as it is
//! remembered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Plain, PlainCounters, family};
use counterfoil::test_hooks::{Guard, Partition, take_out};
use counterfoil::{AddedOnce, BufferedCounters, BufferedFamilyBuilder, Counterfoil, ErrorKind, MemoryStore};
use futures_util::future::join_all;
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Cmd, Pipeline, RedisError, RedisFuture, Value};

fn views() -> BufferedFamilyBuilder {
    family("views").partitions(4)
}

/// The family as another process has it.
async fn another(plain: &Plain, family: BufferedFamilyBuilder) -> PlainCounters {
    let counterfoil = Counterfoil::new(plain.redis.manager().await, MemoryStore::new());
    counterfoil.open(family.build().unwrap()).await.unwrap()
}

/// A minute goes by, and a new epoch begins.
async fn turn_epoch(plain: &Plain, views: &PlainCounters) {
    let began_at: i64 = plain.redis.run("HINCRBY cf1:{test/views/0}:epochs began_at -61000").await.unwrap();
    let before: String = plain.redis.run("HGET cf1:{test/views/0}:epochs now").await.unwrap();
    let home = Partition::new(plain.redis.manager().await, views.family(), 0);
    assert_ne!(home.epoch(views.family()).await.unwrap(), before, "{began_at}");
}

const BEFORE: fn(i64) -> AddedOnce = |pending| AddedOnce::CountedBefore { pending };
const NOW: fn(i64) -> AddedOnce = |pending| AddedOnce::Counted { pending };

#[tokio::test]
async fn a_request_counts_once_whichever_process_makes_it_again() {
    for wide in [false, true] {
        let plain = Plain::new().await;
        let here = plain.open(views().wide(wide)).await;
        let there = another(&plain, views().wide(wide)).await;
        assert_eq!(here.add_once("job/1", "page", 5).await.unwrap(), NOW(5));
        assert_eq!(here.add_once("job/1", "page", 5).await.unwrap(), BEFORE(5));
        assert_eq!(there.add_once("job/1", "page", 5).await.unwrap(), BEFORE(5));
        // the same job on another counter, and what only looks like it
        assert_eq!(there.add_once("job/1", "start", 1).await.unwrap(), NOW(1));
        let _ = there.add_once("job/1:", "page", 1).await.unwrap();
        assert_eq!(here.get_many(&["page", "start"]).await.unwrap(), [6, 1]);
        // not in the way of others
        let _ = there.add("start", 1).await.unwrap();
        assert_eq!(here.get("start").await.unwrap(), 2);

        let both = [&here, &there];
        let at_once = join_all((0..32).map(|number| both[number % 2].add_once("job/2", "page", 1))).await;
        let now = at_once.iter().filter(|added| matches!(added, Ok(AddedOnce::Counted { .. }))).count();
        let before = at_once.iter().filter(|added| matches!(added, Ok(AddedOnce::CountedBefore { .. }))).count();
        assert_eq!((now, before), (1, 31), "{at_once:?}");
        assert_eq!(here.get("page").await.unwrap(), 7);
        plain.counterfoil.drain().await.unwrap();
        assert_eq!(there.add_once("job/2", "page", 1).await.unwrap(), BEFORE(0), "and when it is in the database");
    }
}

#[tokio::test]
async fn a_refusal_is_remembered_too() {
    let plain = Plain::new().await;
    let views = plain.open(views().partitions(1).max_pending(1)).await;
    assert_eq!(views.add_once("1", "page", i64::MAX).await.unwrap(), NOW(i64::MAX));
    for _ in 0..2 {
        assert_eq!(views.add_once("2", "page", 1).await.unwrap(), AddedOnce::OutOfRange);
        assert_eq!(views.add_once("3", "start", 1).await.unwrap(), AddedOnce::Full);
    }
    plain.counterfoil.drain().await.unwrap();
    assert_eq!(views.add_once("3", "start", 1).await.unwrap(), AddedOnce::Full);
    assert_eq!(views.add_once("4", "start", 1).await.unwrap(), NOW(1));
    for request in ["", &"x".repeat(65)] {
        assert_eq!(views.add_once(request, "page", 1).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(views.add_once(&"x".repeat(64), "start", 1).await.unwrap(), NOW(2));
}

/// What a request is told that was made in one epoch and again after so many others have begun: by the process that made
/// it, which was told of the epochs then, and by one that knows nothing yet.
async fn again_after(turns: usize) -> [AddedOnce; 3] {
    let plain = Plain::new().await;
    let here = plain.open(views()).await;
    let first = here.add_once("job", "page", 1).await.unwrap();
    for _ in 0..turns {
        turn_epoch(&plain, &here).await;
    }
    let again = here.add_once("job", "page", 1).await.unwrap();
    let there = another(&plain, views()).await.add_once("job", "page", 1).await.unwrap();
    [first, again, there]
}

#[tokio::test]
async fn a_request_is_remembered_for_one_whole_epoch() {
    assert_eq!(again_after(0).await, [NOW(1), BEFORE(1), BEFORE(1)]);
    assert_eq!(again_after(1).await, [NOW(1), BEFORE(1), BEFORE(1)]);
    // the limit: by now it is forgotten
    assert_eq!(again_after(2).await, [NOW(1), NOW(2), BEFORE(2)]);
}

/// Told of the epochs by the first call, the process names one that is not known any more by the last.
#[tokio::test]
async fn a_process_whose_epochs_have_ended_asks_again() {
    let plain = Plain::new().await;
    let (here, there) = (plain.open(views()).await, another(&plain, views()).await);
    assert_eq!(here.add_once("job/1", "page", 1).await.unwrap(), NOW(1));
    turn_epoch(&plain, &here).await;
    assert_eq!(there.add_once("job/2", "page", 1).await.unwrap(), NOW(2));
    turn_epoch(&plain, &here).await;
    assert_eq!(here.add_once("job/2", "page", 1).await.unwrap(), BEFORE(2));
}

#[tokio::test]
async fn without_the_fence_or_one_of_its_memories_a_request_counts_again() {
    for (guard, turns) in [(Guard::Fence, 0), (Guard::NoMemory, 0), (Guard::OneMemory, 1)] {
        take_out(Some(guard));
        let again = again_after(turns).await;
        take_out(None);
        assert_eq!(again[1], NOW(2), "{guard:?}");
    }
}

/// A connection that loses every third reply.
#[derive(Clone)]
struct Lossy {
    inner: ConnectionManager,
    calls: Arc<AtomicU64>,
}

impl ConnectionLike for Lossy {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let is_lost = self.calls.fetch_add(1, Ordering::Relaxed) % 3 == 2;
        Box::pin(async move {
            let reply = self.inner.req_packed_command(cmd).await?;
            let lost = || RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
            if is_lost { Err(lost()) } else { Ok(reply) }
        })
    }

    fn req_packed_commands<'a>(&'a mut self, pipe: &'a Pipeline, at: usize, n: usize) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(pipe, at, n)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

/// What 40 hits come to if each is made again until it is known to be counted, and how many had to be. The write timeout
/// is too short for a call to be repeated by itself.
async fn made_again(
    hit: impl AsyncFn(BufferedCounters<Lossy, MemoryStore>, String) -> Result<(), ErrorKind>,
) -> (i64, u32) {
    let plain = Plain::new().await;
    let lossy = Lossy { inner: plain.redis.manager().await, calls: Arc::default() };
    let views = Counterfoil::new(lossy, MemoryStore::new()).open(views().build().unwrap()).await.unwrap();
    let views = views.write_timeout(Duration::from_millis(4));
    let mut again = 0;
    for number in 0..40 {
        while let Err(kind) = hit(views.clone(), format!("job/{number}")).await {
            assert!(matches!(kind, ErrorKind::OutcomeUnknown | ErrorKind::Redis), "{kind:?}");
            again += 1;
        }
    }
    (plain.open(self::views()).await.get("page").await.unwrap(), again)
}

#[tokio::test]
async fn a_request_counts_once_where_replies_are_lost() {
    let once = async |views: BufferedCounters<Lossy, MemoryStore>, job: String| {
        views.add_once(&job, "page", 1).await.map(drop).map_err(|error| error.kind())
    };
    let (value, again) = made_again(once).await;
    assert_eq!(value, 40);
    assert!(again > 10, "{again} were made again");
    let plainly = async |views: BufferedCounters<Lossy, MemoryStore>, _| {
        views.add("page", 1).await.map(drop).map_err(|error| error.kind())
    };
    let (value, again) = made_again(plainly).await;
    assert!(value > 50, "{again} were made again, and {value} counted: the request is not needed");
}

#[tokio::test]
async fn a_pair_that_is_shut_down_takes_no_request() {
    let plain = Plain::new().await;
    let views = plain.open(views()).await;
    assert_eq!(views.add_once("job", "page", 1).await.unwrap(), NOW(1));
    assert!(plain.counterfoil.shutdown(Duration::from_secs(5)).await.unwrap().is_empty());
    assert_eq!(views.add_once("job", "page", 1).await.unwrap_err().kind(), ErrorKind::Closed);
}

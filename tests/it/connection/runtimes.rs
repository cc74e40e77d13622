//! One pair that many runtimes call, as tests share it. It ends with its own runtime; one of the
//! others takes nothing with it.

use std::thread;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::support::*;

const THREADS: i64 = 4;
const ROUNDS: i64 = 60;

/// Starts a Redis, and creates a database with all tables, of which it returns the URL.
async fn servers() -> (RedisServer, String) {
    let (database, pool) = mysql().await.database("test").await;
    MysqlStore::new(&pool)
        .unwrap()
        .create_tables()
        .await
        .unwrap();
    (new_redis().await, mysql().await.url(&database))
}

/// Runs the task in this number of threads, and returns their results.
fn in_threads<T: Send>(threads: i64, task: impl Fn(i64) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let task = &task;
        let spawn = |number| scope.spawn(move || task(number));
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// A pair belongs to its runtime, whichever others call it.
#[test]
fn a_pair_ends_with_its_runtime() {
    let (home, doomed) = (threads(1), runtime());
    let (redis, url) = home.block_on(servers());
    let (pair, used, unused) = doomed.block_on(async {
        let pair = Counterfoil::connect(&redis.url(), &url).await.unwrap();
        let used = pair.open(family("views")).await.unwrap();
        used.count("page", 1).await;
        let unused = pair.open(family("unused")).await.unwrap();
        (pair, used, unused)
    });
    drop(doomed);
    let why = "the runtime of the pair has ended";
    for ended in [used, unused] {
        refused(ended.record("page", 1), ErrorKind::Closed, why);
        refused(home.block_on(ended.flush()), ErrorKind::Closed, why);
        let late = home.block_on(ended.add("page", 1));
        refused(late, ErrorKind::Closed, why);
        let late = home.block_on(ended.add_many([("page", 1), ("other", 1)]));
        for late in late {
            refused(late, ErrorKind::Closed, why);
        }
    }
    let left = home.block_on(pair.shutdown(secs(1)));
    refused(left, ErrorKind::Closed, why);
}

/// Other runtimes begin and end while they count, and take nothing with them.
#[test]
fn runtimes_that_end_take_nothing_with_them() {
    let home = threads(1);
    let plain = home.block_on(Plain::new());
    let views = home.block_on(plain.open(family("views")));
    in_threads(THREADS, |thread| {
        for round in 0..ROUNDS {
            runtime().block_on(async {
                let add = |_| {
                    let views = views.clone();
                    tokio::spawn(async move { views.add("page", 1).await })
                };
                for add in (0..8).map(add).collect::<Vec<_>>() {
                    let added = add.await.unwrap();
                    let is_counted = matches!(added, Ok(Counted(_)));
                    assert!(is_counted, "{thread}, {round}: {added:?}");
                }
                views.record("page", 1).unwrap();
                let stored = views.stored(&["page"]).await.unwrap();
                assert_eq!(stored, [None], "{thread}, {round}");
            });
        }
    });
    assert_eq!(
        home.block_on(views.flush()).unwrap(),
        counterfoil::Recorded::Counted
    );
    let value = home.block_on(views.get("page"));
    assert_eq!(value.unwrap(), 9 * THREADS * ROUNDS);
}

/// A store whose rows take half a second, by a timer of the runtime that reads them.
struct Slow;

impl Between for Slow {
    async fn seen(&self, rows: Vec<Option<i64>>) -> Vec<Option<i64>> {
        pause(500).await;
        rows
    }
}

/// Callers on two runtimes miss one counter at the same time.
#[test]
fn a_read_that_ends_with_its_runtime_takes_no_other_caller_with_it() {
    let (home, doomed) = (threads(1), threads(1));
    let store = Wrapped {
        store: MemoryStore::new(),
        between: Slow,
    };
    let redis = home.block_on(new_redis());
    let (incr, get) = home.block_on(async {
        let pair = patient(Counterfoil::new(redis.manager().await, store));
        let votes = pair.opened(votes()).await;
        let call = |runtime: &Runtime| {
            let incr = votes.clone();
            let get = votes.clone();
            (
                runtime.spawn(async move { incr.incr("a", 1).await }),
                runtime.spawn(async move { get.get("b").await }),
            )
        };
        call(&doomed);
        pause(200).await;
        let calls = call(&home);
        pause(100).await;
        calls
    });
    doomed.shutdown_background();
    let added = home.block_on(incr).expect("no panic").unwrap();
    assert_eq!(counted(added), 1);
    assert_eq!(home.block_on(get).expect("no panic").unwrap(), 0);
}

/// Callers whose hits gather, or are in flight, when the runtime of the pair ends.
#[test]
fn no_caller_waits_for_a_runtime_that_has_ended() {
    let (home, doomed) = (threads(1), threads(1));
    let plain = home.block_on(Plain::new());
    let views = doomed.block_on(async {
        let pair = plain.other().await;
        pair.opened(family("views").partitions(1)).await
    });
    home.block_on(views.count("page", 1));
    plain.redis.pause();
    let add = || {
        let views = views.clone();
        home.spawn(async move { views.add("page", 1).await })
    };
    // the first one makes its own call, drivers make two with the next ones, and the last gather
    let mut callers = vec![add()];
    for _ in 0..3 {
        thread::sleep(millis(200));
        callers.extend((0..15).map(|_| add()));
    }
    thread::sleep(millis(200));
    doomed.shutdown_background();
    thread::sleep(millis(50));
    plain.redis.resume();
    let limit = secs(4);
    let (mut acknowledged, mut unknown, mut refused) = (0, 0, 0);
    for caller in callers {
        match home.block_on(async { timeout(limit, caller).await.expect("nobody hangs") }) {
            Ok(Ok(_)) => acknowledged += 1,
            Ok(Err(error)) if error.outcome_unknown() => unknown += 1,
            Ok(Err(error)) if error.kind() == ErrorKind::Closed => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        acknowledged == 1 && unknown >= 2 && refused >= 15,
        "{acknowledged}, {unknown}, {refused}"
    );
    let value = home.block_on(async {
        let other = plain.other().await;
        let views = other.opened(family("views").partitions(1)).await;
        views.value("page").await
    });
    assert!((2..=2 + unknown).contains(&value), "{value}");
}

/// A thread that blocks on each hit polls nothing in between, and its timers end with its runtime.
#[test]
fn threads_with_runtimes_of_their_own_share_calls() {
    const EACH: i64 = 250;
    let home = threads(1);
    let plain = home.block_on(Plain::new());
    let views = home.block_on(plain.open(family("views")));
    let values = in_threads(2 * THREADS, |_| {
        let own = runtime();
        let values = (0..EACH).map(|_| own.block_on(views.count("page", 1)));
        values.collect::<Vec<_>>()
    });
    let mut values = values.concat();
    values.sort_unstable();
    // each hit receives its own value
    assert!(values.into_iter().eq(1..=2 * THREADS * EACH));
}

/// A search for the primary ends with its runtime. The next call begins it again.
#[test]
fn a_search_ends_with_its_runtime() {
    let (home, doomed) = (threads(1), runtime());
    let redis = home.block_on(new_redis());
    let primary = doomed.block_on(Primary::connect(redis.url())).unwrap();
    let views = home.block_on(async {
        let pair = Counterfoil::new(primary, MemoryStore::new());
        pair.opened(family("views")).await
    });
    let _: () = home.block_on(redis.run("CLIENT KILL TYPE normal")).unwrap();
    redis.pause();
    let brief = millis(200);
    let waited = doomed.block_on(async { timeout(brief, views.add("page", 1)).await });
    assert!(waited.is_err(), "the search takes long: {waited:?}");
    drop(doomed);
    redis.resume();
    home.block_on(views.count("page", 1));
}

/// Paused time jumps to the time limit of a waiting call. A call on a runtime with real time is not
/// affected.
#[tokio::test(start_paused = true)]
async fn time_that_is_paused_does_not_affect_other_runtimes() {
    let home = thread::spawn(|| threads(1)).join().unwrap();
    let counted = home.spawn(async {
        let (_plain, views) = Plain::of(family("views")).await;
        for _ in 0..100 {
            views.count("page", 1).await;
        }
        views.value("page").await
    });
    let began = tokio::time::Instant::now();
    tokio::time::sleep(secs(3600)).await;
    assert!(began.elapsed() >= secs(3600));
    assert_eq!(counted.await.unwrap(), 100);
    home.shutdown_background();
}

/// A call of a pair.
type Call = fn(BufferedCounters, CachedCounters) -> BoxFuture<'static, Result<()>>;

macro_rules! calls {
    ($($name:literal, $views:ident, $votes:ident => $call:expr;)*) => {
        [$(($name, |$views, $votes| async move { $call.map(drop) }.boxed()),)*]
    };
}

/// Calls of all sorts, by name.
const CALLS: [(&str, Call); 10] = calls! {
    "add", views, _votes => views.add("page", 1).await;
    "add in many tasks", views, _votes => {
        let add = move |_| {
            let views = views.clone();
            tokio::spawn(async move { views.add("page", 1).await })
        };
        let added = try_join_all((0..20).map(add).collect::<Vec<_>>()).await;
        added.unwrap().into_iter().collect::<Result<Vec<_>>>()
    };
    "add_once", views, _votes => views.add_once("request", "page", 1).await;
    "incr", _views, votes => votes.incr("new", 1).await;
    "set", _views, votes => votes.set("page", 1).await;
    "get", views, _votes => views.get("page").await;
    "get of a cached counter", _views, votes => votes.get("page").await;
    "list", views, _votes => views.list("", None, 10).await;
    "get_or_stored", views, _votes => views.get_or_stored(["page"], secs(1)).await;
    "flush", views, _votes => {
        views.record("page", 1)?;
        views.flush().await
    };
};

/// The pair was opened on a runtime that has not ended, but is no longer driven.
#[test]
fn calls_end_while_the_runtime_of_the_pair_is_not_driven() {
    let (home, idle) = (threads(1), runtime());
    let (redis, url) = home.block_on(servers());
    for (name, call) in CALLS {
        let (views, votes) = idle.block_on(async {
            let pair = Counterfoil::connect(&redis.url(), &url).await;
            let pair = pair.unwrap().write_timeout(secs(1)).read_timeout(secs(1));
            let views = pair.open(family("views").partitions(1)).await.unwrap();
            let votes = pair.open(votes()).await.unwrap();
            views.count("page", 1).await;
            votes.count("page", 1).await;
            (views, votes)
        });
        let ended = home.block_on(async { timeout(secs(15), call(views, votes)).await });
        match ended.unwrap_or_else(|_| panic!("{name} has no limit")) {
            // it had the time to connect again
            Ok(()) => {}
            Err(error) => {
                let is_late = error.is_retryable() || error.outcome_unknown();
                assert!(is_late, "{name}: {error:#}");
            }
        }
    }
}

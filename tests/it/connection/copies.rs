//! Copies of a process: a fork, and a machine that was resumed twice from one snapshot. Both copies
//! have the caller names of the original (docs/protocol.md, section 3.2).

use std::process::Command;

use fork::{Fork, fork, waitpid};
use redis::aio::ConnectionLike;

use crate::support::*;

const HITS: i64 = 50;

/// A connection of its own for each call, since processes cannot share one.
fn one_per_call(url: String) -> Connection {
    custom_once(move |command| {
        let client = redis::Client::open(url.as_str());
        async move {
            let mut connection = client?.get_multiplexed_async_connection().await?;
            connection.req_packed_command(&command).await
        }
    })
}

async fn hits(views: &BufferedCounters) {
    for _ in 0..HITS {
        views.count("page", 1).await;
    }
}

/// Counts, forks, and counts in both processes. Another test runs it as a program, because only the
/// forking thread exists in the child.
#[test]
#[ignore = "a program of another test"]
fn program() {
    let url = std::env::var("COPIED_REDIS").unwrap();
    let counterfoil = Counterfoil::new(one_per_call(url), MemoryStore::new());
    let parent = runtime();
    let views = parent.block_on(async {
        let views = counterfoil.opened(family("views")).await;
        hits(&views).await;
        views
    });
    match fork().unwrap() {
        Fork::Child => {
            runtime().block_on(hits(&views));
            std::process::exit(0);
        }
        Fork::Parent(child) => {
            parent.block_on(hits(&views));
            waitpid(child).unwrap();
        }
    }
}

#[tokio::test]
async fn a_forked_process_counts_under_names_of_its_own() {
    let plain = Plain::new().await;
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", "connection::copies::program", "--ignored"])
        .env("COPIED_REDIS", plain.redis.url());
    let output = tokio::task::spawn_blocking(move || program.output().unwrap());
    let output = output.await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let views = plain.open(family("views")).await;
    assert_eq!(views.value("page").await, 3 * HITS);
}

/// Machines that are resumed from one snapshot have the same names and numbers of callers.
#[tokio::test]
async fn a_machine_that_is_resumed_twice_loses_no_hit() {
    for (guard, expected) in [(None, 3), (Some(Guard::Step), 2)] {
        let (plain, views) = Plain::of(family("views")).await;
        take_out(guard);
        views.count("page", 1).await;
        call_elsewhere(&plain.redis, 1).await;
        views.count("page", 1).await;
        // no call of this machine is later, so it takes a new name
        call_elsewhere(&plain.redis, 1 << 40).await;
        views.count("page", 1).await;
        take_out(None);
        assert_eq!(views.value("page").await, expected, "{guard:?}");
    }
}

/// A connection that may resend leaves it open whether an earlier arrival was executed.
#[tokio::test]
async fn an_overtaken_call_over_a_connection_that_resends_has_an_unknown_outcome() {
    let plain = Plain::new().await;
    let connection = Connection::custom(plain.redis.manager().await, RESENDS);
    let views = plain.over(connection).opened(family("views")).await;
    views.count("page", 1).await;
    call_elsewhere(&plain.redis, 1 << 40).await;
    let error = views.add("page", 1).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    views.count("page", 1).await;
    assert_eq!(views.value("page").await, 2);
}

/// Makes a call with the name of each caller, whose number is so much above that of its last one.
async fn call_elsewhere(redis: &RedisServer, step: u64) {
    let calls = "cf1:{test/views/0}:calls";
    let fields: Vec<String> = redis.run(&format!("HKEYS {calls}")).await.unwrap();
    for caller in fields.iter().filter(|field| !field.starts_with('=')) {
        redis
            .does(&format!("HINCRBY {calls} {caller} {step}"))
            .await;
    }
}

//! Copies of a process: a fork, and a machine that was resumed twice from one snapshot. Both copies
//! have the caller names of the original (docs/protocol.md, section 3.2).

use std::process::Command;

use fork::{Fork, fork, waitpid};
use redis::aio::ConnectionLike;

use crate::support::*;

const HITS: i64 = 50;

/// A connection of its own for each call, since processes cannot share one.
fn one_per_call(url: String) -> Connection {
    let connection = custom(move |command| {
        let client = redis::Client::open(url.as_str());
        async move {
            let mut connection = client?.get_multiplexed_async_connection().await?;
            connection.req_packed_command(&command).await
        }
    });
    connection.sending_once()
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

/// A copy that resumes from a snapshot finds its connections lost.
#[tokio::test]
async fn a_lost_connection_ends_the_use_of_a_name() {
    let plain = Plain::new().await;
    let redis = &plain.redis;
    let primary = Primary::connect(redis.url()).await.unwrap();
    let views = plain.over(primary).opened(family("views")).await;
    let names = async || {
        let fields: Vec<String> = redis.run("HKEYS cf1:{test/views/0}:calls").await.unwrap();
        let names = fields.into_iter().filter(|field| !field.starts_with('='));
        names.collect::<BTreeSet<_>>()
    };
    hits(&views).await;
    let before = names().await;
    assert_eq!(before.len(), 1, "{before:?}");
    redis.does("CLIENT KILL TYPE normal SKIPME yes").await;
    // the first call finds the connection lost, and is repeated under its name
    hits(&views).await;
    let after = names().await;
    assert_eq!(after.len(), 2, "{after:?}");
    assert_eq!(views.value("page").await, 2 * HITS);
}

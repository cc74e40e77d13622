//! Mistakes of clients that lost or doubled hits silently. Each is an error (docs/protocol.md,
//! section 8).

use std::time::{Duration, SystemTime};

use counterfoil::admin::Script;
use counterfoil::test_hooks::{Counted, Fence, Partition};
use counterfoil::{ErrorKind, Family, Outcome};

use crate::support::{Pair, eventually, family, unix};

type Views = Partition;

async fn partition(pair: &Pair, family: &Family) -> Views {
    Partition::new(pair.redis.manager().await, family, 0)
}

/// Begins this number of epochs, each a minute of the server's time.
async fn pass_epochs(partition: &Views, family: &Family, epochs: u64) {
    for epoch in 1..=epochs {
        let now_ms = unix(SystemTime::now()).unsigned_abs() * 1000 + epoch * 61_000;
        partition
            .clone()
            .at(now_ms)
            .epochs(family)
            .await
            .unwrap()
            .expect("configured");
    }
}

#[tokio::test]
async fn a_caller_name_that_is_used_twice_is_noticed() {
    let pair = Pair::new().await;
    let views = pair
        .counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let (family, partition) = (views.family(), partition(&pair, views.family()).await);
    let epoch = partition.epochs(family).await.unwrap().unwrap().now;
    let call = async |n: u64| {
        let fence = Fence {
            home: partition.keys(),
            caller: "forked",
            n,
            epoch: &epoch,
        };
        partition
            .add(family, fence, 1, [("page", 1)])
            .await
            .unwrap()
    };
    assert!(matches!(
        call(1).await,
        Counted::Executed {
            repeated: false,
            ..
        }
    ));
    assert!(matches!(
        call(2).await,
        Counted::Executed {
            repeated: false,
            ..
        }
    ));
    // the copy of the process is still at its first call
    assert!(matches!(call(1).await, Counted::Passed));
    assert!(
        matches!(call(2).await, Counted::Executed { repeated: true, .. }),
        "the last call is a repeat"
    );
    assert_eq!(views.get("page").await.unwrap(), 2);
}

#[tokio::test]
async fn a_client_learns_all_settings_from_the_epoch() {
    let pair = Pair::new().await;
    let votes = Family::cached("test", "votes")
        .partitions(3)
        .min(-5)
        .max(9)
        .retain(Duration::from_secs(77));
    let votes = pair.counterfoil.open(votes).await.unwrap();
    let text = Script::named("family_epoch").unwrap().source;
    let mut call = redis::cmd("EVAL");
    call.arg(text)
        .arg(2)
        .arg("cf1:{test/votes/0}:calls")
        .arg("cf1:{test/votes/0}:calls_before")
        .arg("")
        .arg("")
        .arg("");
    let reply: Vec<String> = call
        .query_async(&mut pair.redis.manager().await)
        .await
        .unwrap();
    assert_eq!([&*reply[0], &*reply[3], &*reply[4]], ["OK", "cached", "3"]);
    let known = Family::from_settings("test", "votes", &reply[5]).unwrap();
    assert_eq!(known, *votes.family());
}

#[tokio::test]
async fn a_family_that_nobody_configured_is_not_counted_in() {
    let pair = Pair::new().await;
    let typo = family("viewz").build().unwrap();
    let partition = partition(&pair, &typo).await;
    assert!(partition.epochs(&typo).await.unwrap().is_none());
    let fence = Fence {
        home: partition.keys(),
        caller: "python",
        n: 1,
        epoch: "",
    };
    let counted = partition.add(&typo, fence, 1, [("page", 1)]).await.unwrap();
    assert!(
        matches!(counted, Counted::Expired),
        "a call without an epoch is not executed"
    );
}

#[tokio::test]
async fn an_emptied_redis_is_configured_again_without_a_writer() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let partition = partition(&pair, views.family()).await;
    for _ in 0..2 {
        let _: () = pair.redis.run("FLUSHALL").await.unwrap();
        eventually("the family", async || {
            partition.epochs(views.family()).await.unwrap().is_some()
        })
        .await;
    }
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_call_of_another_kind_is_refused() {
    let pair = Pair::new().await;
    let votes = Family::cached("test", "votes").partitions(1);
    let votes = pair.counterfoil.open(votes).await.unwrap();
    let (family, partition) = (votes.family(), partition(&pair, votes.family()).await);
    let epoch = partition.epochs(family).await.unwrap().unwrap().now;
    let fence = Fence {
        home: partition.keys(),
        caller: "python",
        n: 1,
        epoch: &epoch,
    };
    let error = partition
        .add(family, fence, 1, [("page", 1)])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        source.contains("the family is cached, not buffered"),
        "{source}"
    );
    assert_eq!(votes.backlog().await.unwrap().ids, 0);
}

#[tokio::test]
async fn a_request_that_names_its_epoch_never_counts_twice() {
    let pair = Pair::new().await;
    let views = pair
        .counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let (family, partition) = (views.family(), partition(&pair, views.family()).await);
    let epoch = views.request_epoch("order-17", "page").await.unwrap();
    let once = async || views.add_once_since(&epoch, "order-17", "page", 1).await;
    assert_eq!(once().await.unwrap(), Outcome::Counted(1));
    assert_eq!(once().await.unwrap(), Outcome::CountedBefore(1));
    pass_epochs(&partition, family, 1).await;
    assert_eq!(
        once().await.unwrap(),
        Outcome::CountedBefore(1),
        "an epoch later"
    );
    pass_epochs(&partition, family, 3).await;
    let error = once().await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert_eq!(views.get("page").await.unwrap(), 1);
    // without the epoch, it is a new request
    assert_eq!(
        views.add_once("order-17", "page", 1).await.unwrap(),
        Outcome::Counted(2)
    );
}

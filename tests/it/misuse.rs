//! Mistakes of clients that lost or doubled hits silently. Each is an error (docs/protocol.md,
//! section 8).

use counterfoil::test_hooks::{CallReply, Partition};

use crate::support::*;

/// The home of a family, as a client in another language uses it.
struct Client<'f> {
    home: Partition,
    family: &'f Family,
}

impl<'f> Client<'f> {
    async fn new(pair: &Pair, family: &'f Family) -> Self {
        let home = Partition::new(pair.redis.manager().await, family, 0);
        Client { home, family }
    }

    async fn epoch(&self) -> Option<String> {
        let epoch = self.home.epoch(self.family, "").await.unwrap();
        epoch.map(|epoch| epoch.now.to_string())
    }

    async fn generation(&self) -> String {
        let epoch = self.home.epoch(self.family, "").await.unwrap();
        epoch.unwrap().generation.to_string()
    }

    async fn add(&self, n: u64, epoch: &str) -> Result<CallReply> {
        let fence = Fence {
            home: self.home.keys(),
            caller: "python",
            n,
            epoch,
        };
        self.home.add(self.family, fence, 1, [("page", 1)]).await
    }

    /// Begins this number of epochs and generations, each a minute of the server's time.
    async fn pass_epochs(&self, epochs: u64) {
        for epoch in 1..=epochs {
            let now_ms = unix(SystemTime::now()).unsigned_abs() * 1000 + epoch * 61_000;
            self.home
                .clone()
                .at(now_ms)
                .epoch(self.family, "")
                .await
                .unwrap()
                .unwrap();
        }
    }
}

#[tokio::test]
async fn a_client_learns_what_it_needs_from_the_epoch() {
    let pair = Pair::new().await;
    let votes = votes().partitions(3).min(-5).max(9);
    pair.open(votes.retain(secs(77))).await;
    let mut call = cmd("EVAL");
    call.arg(Script::named("family_epoch").unwrap().source);
    call.arg(4);
    for key in ["calls", "calls_before", "requests", "requests_before"] {
        call.arg(format!("cf1:{{test/votes/0}}:{key}"));
    }
    call.arg(&["", "", "", ""]);
    let reply = call.query_async(&mut pair.redis.manager().await).await;
    let reply: Vec<String> = reply.unwrap();
    assert_eq!([&*reply[0], &*reply[3], &*reply[4]], ["OK", "cached", "3"]);
    let description: serde_json::Value = serde_json::from_str(&reply[5]).unwrap();
    let names: Vec<_> = description.as_object().unwrap().keys().collect();
    assert_eq!(names, ["ids", "ids_in_words", "separator"]);
    // the rest is for scripts
    let settings: Vec<String> = pair
        .command("HMGET cf1:{test/votes/0}:calls =min =max =retain")
        .await;
    assert_eq!(settings, ["-5", "9", "77000"]);
}

#[tokio::test]
async fn an_emptied_redis_is_configured_again_without_a_writer() {
    let (pair, views) = Pair::of(family("views")).await;
    let reconciler = pair.reconcile().await;
    let client = Client::new(&pair, views.family()).await;
    for _ in 0..2 {
        pair.command::<()>("FLUSHALL").await;
        eventually("the family", async || client.epoch().await.is_some()).await;
    }
    reconciler.stop().await;
}

#[tokio::test]
async fn a_request_may_name_a_generation_that_only_another_process_knows() {
    let views = family("views").partitions(1).remember_requests(secs(60));
    let (pair, views) = Pair::of(views).await;
    let client = Client::new(&pair, views.family()).await;
    views.count("page", 1).await;
    client.pass_epochs(1).await;
    let generation = client.generation().await;
    let once = views
        .add_once_since(&generation, "order-17", "page", 1)
        .await;
    assert_eq!(once.unwrap(), Outcome::Counted(2));
    client.pass_epochs(1).await;
    let stored = views.request_epoch("order-18", "page").await.unwrap();
    assert_eq!(stored, client.generation().await);
}

#[tokio::test]
async fn a_request_that_names_its_generation_never_counts_twice() {
    let views = family("views").partitions(1).remember_requests(secs(60));
    let (pair, views) = Pair::of(views).await;
    let client = Client::new(&pair, views.family()).await;
    let generation = views.request_epoch("order-17", "page").await.unwrap();
    let once = async || {
        views
            .add_once_since(&generation, "order-17", "page", 1)
            .await
    };
    assert_eq!(once().await.unwrap(), Outcome::Counted(1));
    assert_eq!(once().await.unwrap(), CountedBefore(1));
    client.pass_epochs(1).await;
    assert_eq!(once().await.unwrap(), CountedBefore(1));
    client.pass_epochs(3).await;
    let error = once().await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert_eq!(views.value("page").await, 1);
    // without the generation, it is a new request
    assert_eq!(
        views.add_once("order-17", "page", 1).await.unwrap(),
        Outcome::Counted(2)
    );
}

#[tokio::test]
async fn a_call_of_another_kind_is_refused() {
    let (pair, votes) = Pair::of(votes().partitions(1)).await;
    let client = Client::new(&pair, votes.family()).await;
    let epoch = client.epoch().await.unwrap();
    let text = "the family is cached, not buffered";
    refused(client.add(1, &epoch).await, InvalidInput, text);
    assert_eq!(votes.backlog().await.unwrap().ids, 0);
}

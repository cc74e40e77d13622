//! A machine that was resumed twice from one snapshot. Both copies have the caller names of the
//! original (docs/protocol.md, section 3.2).

use crate::support::*;

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

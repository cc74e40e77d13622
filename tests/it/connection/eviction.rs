//! A Redis that evicts keys when its memory is full: the kinds for which that is safe, and the
//! refused ones.

use crate::support::*;

/// The keys with a time to live, by kind: their parts after the hash tag.
const EXPIRING: [(&str, &[&str]); 5] = [
    ("buffered", &[]),
    ("cached", &[]),
    ("series", &["idle", "names", "series"]),
    ("activity", &["views", "visitors"]),
    ("visitors", &["seen"]),
];

async fn set_policy(redis: &RedisServer, policy: &str) {
    let set = format!("CONFIG SET maxmemory-policy {policy}");
    redis.does(&set).await;
}

#[tokio::test]
async fn kept_slices_and_pending_hits_never_expire() {
    let plain = Plain::new().await;
    for (kind, expected) in EXPIRING {
        OfKind::open(&plain.counterfoil, kind)
            .await
            .unwrap()
            .hit()
            .await
            .unwrap();
        let keys = format!("KEYS cf1:{{shop/{kind}/*");
        let keys: Vec<String> = plain.redis.run(&keys).await.unwrap();
        let mut expiring = vec![];
        for key in keys {
            let ttl: i64 = plain.redis.run(&format!("PTTL {key}")).await.unwrap();
            if ttl >= 0 {
                let (_, key) = key.split_once("}:").unwrap();
                expiring.push(key.split(':').next().unwrap().to_owned());
            }
        }
        expiring.sort();
        expiring.dedup();
        assert_eq!(expiring, expected, "{kind}");
    }
}

#[tokio::test]
async fn a_policy_is_refused_where_it_throws_away_what_counts() {
    let plain = Plain::new().await;
    let redis = &plain.redis;
    for policy in [
        "allkeys-lru",
        "volatile-lru",
        "volatile-ttl",
        "volatile-random",
        "volatile-lfu",
    ] {
        for (kind, expiring) in EXPIRING {
            redis.does("FLUSHALL").await;
            let counterfoil = plain.other().await;
            let is_safe = expiring.is_empty() && policy != "allkeys-lru";
            set_policy(redis, policy).await;
            let opened = OfKind::open(&counterfoil, kind).await;
            assert_eq!(opened.is_ok(), is_safe, "{kind} on {policy}");
            if let Err(error) = opened {
                assert_eq!(error.kind(), Unsafe, "{kind} on {policy}");
                assert!(format!("{error:#}").contains(policy), "{error}");
            }
            // set while the application runs
            set_policy(redis, "noeviction").await;
            let _family = OfKind::open(&counterfoil, kind).await.unwrap();
            set_policy(redis, policy).await;
            let found = counterfoil
                .check()
                .await
                .into_iter()
                .find(|finding| finding.subject == "redis maxmemory-policy");
            assert_eq!(
                found.is_some_and(|found| {
                    found.severity == Severity::Error && found.message.contains(policy)
                }),
                !is_safe,
                "{kind} on {policy}"
            );
            let started = counterfoil.reconciler().start().await;
            assert_eq!(started.is_ok(), is_safe, "{kind} on {policy}");
            counterfoil
                .reconciler()
                .allow_evicting(true)
                .start()
                .await
                .unwrap()
                .stop()
                .await;
        }
    }
}

#[tokio::test]
async fn a_client_that_allows_it_opens_and_starts() {
    let plain = Plain::new().await;
    set_policy(&plain.redis, "volatile-lru").await;
    let counterfoil = plain.counterfoil.clone().allow_evicting(true);
    for kind in KINDS {
        OfKind::open(&counterfoil, kind)
            .await
            .unwrap()
            .hit()
            .await
            .unwrap();
    }
    let reconciler = counterfoil.reconcile().await;
    reconciler.stop().await;
}

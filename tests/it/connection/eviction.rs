//! A Redis that evicts keys when its memory is full: the kinds for which that is safe, and the
//! refused ones.

use crate::support::Plain;
use crate::support::kinds::{KINDS, OfKind};
use counterfoil::ErrorKind;
use counterfoil::admin::Severity;

/// The keys with a time to live, by kind: their parts after the hash tag.
const EXPIRING: [(&str, &[&str]); 6] = [
    ("buffered", &[]),
    ("cached", &[]),
    ("series", &["idle", "names", "series"]),
    ("activity", &["views", "visitors"]),
    ("activity_hll", &["layer", "minute", "views"]),
    ("visitors", &["seen"]),
];

#[tokio::test]
async fn kept_slices_and_pending_hits_never_expire() {
    let plain = Plain::new().await;
    for (kind, expected) in EXPIRING {
        let family = OfKind::open(&plain.counterfoil, kind).await.unwrap();
        family.hit().await.unwrap();
        let keys: Vec<String> = plain
            .redis
            .run(&format!("KEYS cf1:{{shop/{kind}/*"))
            .await
            .unwrap();
        let mut expiring = Vec::new();
        for key in keys {
            if plain
                .redis
                .run::<i64>(&format!("PTTL {key}"))
                .await
                .unwrap()
                >= 0
            {
                expiring.push(
                    key.split("}:")
                        .nth(1)
                        .unwrap()
                        .split(':')
                        .next()
                        .unwrap()
                        .to_owned(),
                );
            }
        }
        expiring.sort();
        expiring.dedup();
        assert_eq!(expiring, expected, "{kind}");
    }
}

#[tokio::test]
async fn a_policy_is_refused_where_it_throws_away_what_counts() {
    for policy in [
        "allkeys-lru",
        "volatile-lru",
        "volatile-ttl",
        "volatile-random",
        "volatile-lfu",
    ] {
        for (kind, expiring) in EXPIRING {
            let plain = Plain::new().await;
            let set = async |policy: &str| {
                let _: () = plain
                    .redis
                    .run(&format!("CONFIG SET maxmemory-policy {policy}"))
                    .await
                    .unwrap();
            };
            let is_error = async || {
                let findings = plain.counterfoil.check().await;
                let found = findings
                    .into_iter()
                    .find(|finding| finding.subject == "redis maxmemory-policy");
                found.is_some_and(|found| {
                    found.severity == Severity::Error && found.message.contains(policy)
                })
            };
            let is_safe = expiring.is_empty() && policy != "allkeys-lru";
            set(policy).await;
            let opened = OfKind::open(&plain.counterfoil, kind).await;
            assert_eq!(opened.is_ok(), is_safe, "{kind} on {policy}");
            if let Err(error) = opened {
                assert_eq!(error.kind(), ErrorKind::Unsafe, "{kind} on {policy}");
                assert!(format!("{error:#}").contains(policy), "{error}");
            }
            // set while the application runs
            set("noeviction").await;
            let _family = OfKind::open(&plain.counterfoil, kind).await.unwrap();
            set(policy).await;
            assert_eq!(is_error().await, !is_safe, "{kind} on {policy}");
            assert_eq!(
                plain.counterfoil.reconciler().start().await.is_ok(),
                is_safe,
                "{kind} on {policy}"
            );
            plain
                .counterfoil
                .reconciler()
                .allow_evicting(true)
                .start()
                .await
                .unwrap()
                .shutdown()
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn who_allows_it_opens_and_starts() {
    let plain = Plain::new().await;
    let _: () = plain
        .redis
        .run("CONFIG SET maxmemory-policy volatile-lru")
        .await
        .unwrap();
    let counterfoil = plain.counterfoil.clone().allow_evicting(true);
    for kind in KINDS {
        OfKind::open(&counterfoil, kind)
            .await
            .unwrap()
            .hit()
            .await
            .unwrap();
    }
    counterfoil
        .reconciler()
        .start()
        .await
        .unwrap()
        .shutdown()
        .await
        .unwrap();
}

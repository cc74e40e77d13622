//! The permissions of the Redis user. A missing one is named when a family is opened, and doubles
//! nothing when it is revoked later. Wrong credentials fail at once.

use std::time::{Duration, Instant};

use crate::support::Plain;
use crate::support::kinds::{self, KINDS, OfKind};
use counterfoil::admin::{Role, Script, Severity, acl_rules};
use counterfoil::{Counterfoil, Error, ErrorKind, Family, MemoryStore, Primary, cluster_settings};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::{Client, IntoConnectionInfo};
use testkit::{RedisCluster, RedisOptions, RedisServer};

/// The time limit of permanent failures, which are never retried.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Creates the user `shop` with these rules, and connects as this user.
async fn connect_with(redis: &RedisServer, rules: &[String]) -> Counterfoil {
    allow(
        redis,
        &[
            &["reset".to_owned(), "on".to_owned(), ">secret".to_owned()],
            rules,
        ]
        .concat(),
    )
    .await;
    Counterfoil::new(manager(user(redis)).await, MemoryStore::new())
}

fn user(redis: &RedisServer) -> Client {
    let info = redis.url().into_connection_info().unwrap();
    let user = info
        .redis_settings()
        .clone()
        .set_username("shop")
        .set_password("secret");
    Client::open(info.set_redis_settings(user)).unwrap()
}

async fn manager(client: Client) -> ConnectionManager {
    let config = ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
    ConnectionManager::new_with_config(client, config)
        .await
        .unwrap()
}

async fn allow(redis: &RedisServer, rules: &[String]) {
    let mut command = redis::cmd("ACL");
    command
        .arg("SETUSER")
        .arg("shop")
        .arg(rules)
        .exec_async(&mut redis.manager().await)
        .await
        .unwrap();
}

/// Leaves the user only these rules.
async fn restrict(redis: &RedisServer, rules: &[String]) {
    allow(
        redis,
        &[&["resetkeys".to_owned(), "-@all".to_owned()], rules].concat(),
    )
    .await;
}

/// Returns the rules of a role for families of all kinds, without one of them.
fn rules_without(missing: &str, role: Role) -> Vec<String> {
    acl_rules(&KINDS.map(kinds::family), role)
        .into_iter()
        .filter(|rule| rule != missing)
        .collect()
}

/// Returns the rules of a user that does everything.
fn all_rules() -> Vec<String> {
    rules_without("", Role::Reconciler)
}

#[tokio::test]
async fn the_rules_of_a_kind_are_enough_for_it() {
    let plain = Plain::new().await;
    for kind in KINDS {
        let _: () = plain.redis.run("FLUSHALL").await.unwrap();
        let counterfoil = connect_with(
            &plain.redis,
            &acl_rules(&[kinds::family(kind)], Role::Reconciler),
        )
        .await;
        let family = OfKind::open(&counterfoil, kind).await.unwrap();
        family
            .use_all()
            .await
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        let reconciler = counterfoil.reconciler().start().await.unwrap();
        counterfoil
            .drain_all()
            .await
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        reconciler.shutdown().await.unwrap();
        let findings = counterfoil.check().await;
        let mut errors = findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error);
        assert!(
            errors.all(|finding| finding.subject == "redis persistence"),
            "{kind}: {findings:?}"
        );
        assert_eq!(
            plain
                .redis
                .run::<Vec<String>>("KEYS *:probe")
                .await
                .unwrap(),
            [""; 0]
        );
    }
    let _: () = plain.redis.run("FLUSHALL").await.unwrap();
    let _counterfoil = connect_with(&plain.redis, &all_rules()).await;
    let own = Primary::connect(format!("{}?user=shop&pass=secret", plain.redis.url()))
        .await
        .unwrap();
    let own = Counterfoil::new(own, MemoryStore::new());
    OfKind::open(&own, "buffered")
        .await
        .unwrap()
        .use_all()
        .await
        .unwrap();
}

#[tokio::test]
async fn opening_and_looking_name_each_rule_that_is_missing() {
    let plain = Plain::new().await;
    for kind in KINDS {
        let rules = acl_rules(&[kinds::family(kind)], Role::Reconciler);
        for missing in &rules {
            let rest: Vec<_> = rules
                .iter()
                .filter(|rule| *rule != missing)
                .cloned()
                .collect();
            let _: () = plain.redis.run("FLUSHALL").await.unwrap();
            let counterfoil = connect_with(&plain.redis, &rest).await;
            let error = OfKind::open(&counterfoil, kind)
                .await
                .map(drop)
                .expect_err(missing);
            assert_eq!(
                error.kind(),
                ErrorKind::AccessDenied,
                "{kind} without {missing}: {error}"
            );
            let names = |text: &str| text.split_whitespace().any(|word| word == missing);
            assert!(
                names(&format!("{error:#}")),
                "{kind} without {missing}: {error}"
            );
            // revoked while the application runs
            let counterfoil = connect_with(&plain.redis, &rules).await;
            let _family = OfKind::open(&counterfoil, kind).await.unwrap();
            restrict(&plain.redis, &rest).await;
            let findings = counterfoil.check().await;
            let named = findings.iter().any(|finding| {
                let says = |text: &str| text.split([' ', ',', '.']).any(|word| word == missing);
                finding.severity == Severity::Error
                    && (says(&finding.message) || says(&finding.advice))
            });
            assert!(named, "{kind} without {missing}: {findings:?}");
        }
    }
}

/// A user with all permissions opens the family. A client that only calls the scripts needs none
/// for that.
#[tokio::test]
async fn a_writer_counts_and_brings_nothing_to_the_database() {
    let plain = Plain::new().await;
    for kind in KINDS {
        let counterfoil = connect_with(&plain.redis, &all_rules()).await;
        let family = OfKind::open(&counterfoil, kind).await.unwrap();
        restrict(
            &plain.redis,
            &acl_rules(&[kinds::family(kind)], Role::Writer),
        )
        .await;
        let _: () = plain.redis.run("SCRIPT FLUSH").await.unwrap();
        family
            .hit_often()
            .await
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        counterfoil.drain_all().await.expect_err(kind);
        restrict(&plain.redis, &all_rules()).await;
        assert_eq!(
            family.shown().await.unwrap(),
            if kind == "visitors" { 1 } else { 3 },
            "{kind}"
        );
        counterfoil.drain_all().await.unwrap();
    }
}

#[tokio::test]
async fn a_reader_sees_what_others_count_and_changes_nothing() {
    let plain = Plain::new().await;
    let counterfoil = connect_with(&plain.redis, &all_rules()).await;
    let mut families = Vec::new();
    for kind in KINDS {
        let family = OfKind::open(&counterfoil, kind).await.unwrap();
        family.hit_often().await.unwrap();
        families.push((kind, family));
    }
    // a part of each value is in the database
    counterfoil.drain().await.unwrap();
    for (kind, family) in &families {
        family.hit().await.unwrap();
        let counted = if *kind == "visitors" { 1 } else { 4 };
        restrict(
            &plain.redis,
            &acl_rules(&[kinds::family(kind)], Role::Reader),
        )
        .await;
        let _: () = plain.redis.run("SCRIPT FLUSH").await.unwrap();
        assert_eq!(family.shown().await.unwrap(), counted, "{kind}");
        family
            .read()
            .await
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        family.hit().await.expect_err(kind);
        assert_eq!(family.shown().await.unwrap(), counted, "{kind}");
        restrict(&plain.redis, &all_rules()).await;
    }
    let mut cold = Script::named("cached_get")
        .map(|script| redis::cmd("EVAL").arg(script.source).take())
        .unwrap();
    cold.arg(3)
        .arg(&["base", "buffer", "batch"].map(|key| format!("cf1:{{shop/cached/0}}:{key}")));
    cold.arg(&["0", "", "", "cold"]);
    let mut redis = manager(user(&plain.redis)).await;
    for missing in rules_without("", Role::Reader) {
        restrict(&plain.redis, &rules_without(&missing, Role::Reader)).await;
        let _: () = plain.redis.run("SCRIPT FLUSH").await.unwrap();
        let mut refused = cold.exec_async(&mut redis).await.is_err();
        for (_, family) in &families {
            refused |= family.read().await.is_err();
        }
        assert!(refused, "nothing is read with {missing}");
    }
    restrict(&plain.redis, &rules_without("", Role::Reader)).await;
    let reply: Vec<String> = cold.query_async(&mut redis).await.unwrap();
    assert_eq!(reply, ["OK", "MISS:"], "without a ticket");
}

#[tokio::test]
async fn a_command_that_goes_missing_doubles_nothing() {
    let plain = Plain::new().await;
    let mut half_done = 0;
    for missing in all_rules().into_iter().filter(|rule| rule.starts_with('+')) {
        for kind in KINDS {
            for before in [0, 1] {
                let _: () = plain.redis.run("FLUSHALL").await.unwrap();
                let counterfoil = connect_with(&plain.redis, &all_rules()).await;
                let family = OfKind::open(&counterfoil, kind).await.unwrap();
                for _ in 0..before {
                    family.hit().await.unwrap();
                }
                allow(&plain.redis, &[missing.replacen('+', "-", 1)]).await;
                let (started, hit) = (Instant::now(), family.hit().await);
                let what = format!("{kind} without {missing}, after {before} hits: {hit:?}");
                assert!(started.elapsed() < AT_ONCE, "{what}");
                allow(&plain.redis, std::slice::from_ref(&missing)).await;
                let shown = family.shown().await.unwrap();
                if let Err(error) = &hit {
                    assert!(!error.is_retryable() || shown == before, "{what}: {shown}");
                    half_done += u32::from(error.outcome_unknown() && shown > before);
                }
                let most = if kind == "visitors" { 1 } else { before + 1 };
                let least = if hit.is_ok() { most } else { before };
                assert!((least..=most).contains(&shown), "{what}: {shown}");
                // the visitor returns
                family.hit().await.unwrap();
                let again = family.shown().await.unwrap();
                let most = if kind == "visitors" { 1 } else { shown + 1 };
                assert!(again <= most, "{what}: {again} in the end");
            }
        }
    }
    assert!(
        half_done > 0,
        "no command was refused in the middle of a script"
    );
}

#[tokio::test]
async fn keys_of_another_namespace_are_named() {
    let plain = Plain::new().await;
    let counterfoil = connect_with(&plain.redis, &all_rules()).await;
    let open = async |namespace: &str| {
        let family = Family::buffered(namespace, "buffered");
        counterfoil.open(family).await.map(drop)
    };
    // once as the first of its kind, and once after a family of another namespace was checked
    for round in 0..2 {
        let error = open("elsewhere").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{round}: {error}");
        assert!(
            error
                .to_string()
                .contains("lacks ~cf1:{elsewhere/buffered/* "),
            "{round}: {error}"
        );
        open("shop").await.unwrap();
    }
}

#[tokio::test]
async fn a_cluster_needs_one_rule_more() {
    let cluster = RedisCluster::start(RedisOptions::volatile()).await;
    let rules = [
        &["reset", "on", ">secret", "+cluster|slots"].map(str::to_owned)[..],
        &all_rules(),
    ]
    .concat();
    for number in 0..cluster.size() {
        allow(cluster.node(number), &rules).await;
    }
    let builder = ClusterClient::builder(cluster.urls())
        .username("shop")
        .password("secret");
    let connection = cluster_settings(builder)
        .build()
        .unwrap()
        .get_async_connection()
        .await
        .unwrap();
    let counterfoil = Counterfoil::new(connection.clone(), MemoryStore::new());
    for kind in KINDS {
        OfKind::open(&counterfoil, kind)
            .await
            .unwrap()
            .use_all()
            .await
            .unwrap();
    }
    counterfoil.drain().await.unwrap();
    for number in cluster.primaries().await {
        allow(cluster.node(number), &["-pexpire".to_owned()]).await;
    }
    let fresh = Counterfoil::new(connection, MemoryStore::new());
    let error = refused(OfKind::open(&fresh, "visitors").await);
    assert!(format!("{error:#}").contains("lacks +pexpire "), "{error}");
}

#[tokio::test]
async fn opening_looks_once_for_each_kind() {
    let plain = Plain::new().await;
    let stats = async || {
        let info: String = plain.redis.run("INFO commandstats").await.unwrap();
        let calls = |command: &str| {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))?;
            line.split(',').next()?.parse::<u64>().ok()
        };
        [calls("eval").unwrap_or(0), calls("evalsha").unwrap_or(0)]
    };
    let open = async |number: u32| {
        let family = Family::buffered("shop", format!("views-{number}"));
        plain.counterfoil.open(family).await.unwrap()
    };
    let _first = open(0).await;
    let [eval, evalsha] = stats().await;
    for number in 1..=10 {
        let _other = open(number).await;
    }
    assert_eq!(
        stats().await,
        [eval, evalsha + 10],
        "each family is configured, and nothing else"
    );
}

/// Returns the error, which must be permanent.
fn refused<T>(result: counterfoil::Result<T>) -> Error {
    let error = result.map(drop).expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(!error.is_retryable() && !error.outcome_unknown(), "{error}");
    error
}

/// Starts a server that requires a password.
async fn protected() -> RedisServer {
    RedisServer::start(RedisOptions::volatile().arg("requirepass", "right")).await
}

#[tokio::test]
async fn connecting_without_the_right_password_fails_at_once() {
    let (redis, started) = (protected().await, Instant::now());
    let wrong = format!("{}?pass=wrong", redis.url());
    for url in [
        &redis.url(),
        &wrong,
        &format!("{}?user=nobody&pass=right", redis.url()),
    ] {
        let error = refused(Primary::connect(url.as_str()).await);
        assert!(
            error
                .to_string()
                .contains("redis.sock rejected the credentials"),
            "{error}"
        );
        refused(Counterfoil::connect(url, "mysql://root@localhost/x").await);
    }
    Primary::connect(format!("{}?pass=right", redis.url()))
        .await
        .unwrap();
    assert!(started.elapsed() < AT_ONCE);
}

/// The application's own connection does not log in.
#[tokio::test]
async fn opening_and_starting_without_a_password_fails_at_once() {
    let redis = protected().await;
    let counterfoil = Counterfoil::new(manager(redis.client()).await, MemoryStore::new());
    let started = Instant::now();
    for kind in KINDS {
        refused(OfKind::open(&counterfoil, kind).await);
    }
    refused(counterfoil.reconciler().start().await);
    let findings = counterfoil.check().await;
    assert!(
        findings
            .iter()
            .any(|found| found.advice.contains("user and password")),
        "{findings:?}"
    );
    assert!(started.elapsed() < AT_ONCE);
}

/// An administrator revokes everything while the application runs.
#[tokio::test]
async fn nothing_is_repeated_that_the_user_may_not_do() {
    let plain = Plain::new().await;
    let counterfoil = connect_with(&plain.redis, &all_rules()).await;
    let mut families = Vec::new();
    for kind in KINDS {
        families.push(OfKind::open(&counterfoil, kind).await.unwrap());
    }
    allow(&plain.redis, &["-@all".to_owned()]).await;
    let started = Instant::now();
    for family in &families {
        let error = family.hit().await.unwrap_err();
        assert!(!error.is_retryable(), "{error}");
        refused(family.shown().await);
    }
    refused(counterfoil.drain().await);
    refused(counterfoil.reconciler().start().await);
    assert!(started.elapsed() < AT_ONCE);
}

//! The permissions of the Redis user. A missing one is named when a family is opened, and doubles
//! nothing when it is revoked later. Wrong credentials fail at once.

use crate::support::kinds::{self};
use redis::cluster::ClusterClient;
use redis::{Client, IntoConnectionInfo, ToRedisArgs};

use crate::support::*;

/// The time limit of permanent failures, which are never retried.
const AT_ONCE: Duration = secs(2);

/// Creates the user `shop` with these rules, and connects as this user.
async fn connect_with(redis: &RedisServer, rules: &[String]) -> Counterfoil {
    allow(redis, &["reset", "on", ">secret"]).await;
    allow(redis, rules).await;
    Counterfoil::new(
        manager_within(secs(5), user(redis)).await,
        MemoryStore::new(),
    )
}

fn user(redis: &RedisServer) -> Client {
    let info = redis.url().into_connection_info().unwrap();
    let user = info.redis_settings().clone();
    Client::open(info.set_redis_settings(user.set_username("shop").set_password("secret"))).unwrap()
}

async fn allow(redis: &RedisServer, rules: &[impl ToRedisArgs]) {
    let mut command = cmd("ACL");
    command.arg("SETUSER").arg("shop").arg(rules);
    command
        .exec_async(&mut redis.manager().await)
        .await
        .unwrap();
}

/// Leaves the user only these rules.
async fn restrict(redis: &RedisServer, rules: &[String]) {
    allow(redis, &["resetkeys", "-@all"]).await;
    allow(redis, rules).await;
}

/// Returns the rules of a role for one kind.
fn rules_of(kind: &str, role: Role) -> Vec<String> {
    acl_rules(&[kinds::family(kind)], role)
}

/// Opens a family of each kind.
async fn open_all(counterfoil: &Counterfoil) -> Vec<(&'static str, OfKind)> {
    let mut families = vec![];
    for kind in KINDS {
        families.push((kind, OfKind::open(counterfoil, kind).await.unwrap()));
    }
    families
}

/// Asserts that the user may do it.
fn allowed(kind: &str, result: Result<()>) {
    result.unwrap_or_else(|error| panic!("{kind}: {error}"));
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

#[test]
fn each_family_has_its_keys_and_all_share_their_commands() {
    let family = |name| Family::buffered("shop", name).build().unwrap();
    let families = ["views", "clicks", "views"].map(family);
    let keys = ["~cf1:{shop/clicks/*", "~cf1:{shop/views/*"];
    let commands = ["+eval", "+evalsha", "+exists", "+hmget"];
    let rules = acl_rules(&families, Role::Reader);
    assert_eq!(rules, [&keys[..], &commands].concat());
}

#[tokio::test]
async fn the_rules_of_a_kind_are_enough_for_it() {
    let plain = Plain::new().await;
    let redis = &plain.redis;
    for kind in KINDS {
        redis.does("FLUSHALL").await;
        let counterfoil = connect_with(redis, &rules_of(kind, Role::Reconciler)).await;
        let family = OfKind::open(&counterfoil, kind).await.unwrap();
        allowed(kind, family.use_all().await);
        let reconciler = counterfoil.reconcile().await;
        allowed(kind, counterfoil.drain().await);
        reconciler.stop().await;
        let findings = counterfoil.check().await;
        let error = findings.iter().find(|finding| {
            finding.severity == Severity::Error && finding.subject != "redis persistence"
        });
        assert!(error.is_none(), "{kind}: {error:?}");
        let probes: Vec<String> = redis.run("KEYS *:probe").await.unwrap();
        assert_eq!(probes, [""; 0]);
    }
    redis.does("FLUSHALL").await;
    let _counterfoil = connect_with(redis, &all_rules()).await;
    let url = format!("{}?user=shop&pass=secret", redis.url());
    let primary = Primary::connect(url).await.unwrap();
    let family = OfKind::open(&plain.over(primary), "buffered").await;
    family.unwrap().use_all().await.unwrap();
}

#[tokio::test]
async fn opening_and_checking_name_each_rule_that_is_missing() {
    let plain = Plain::new().await;
    for kind in KINDS {
        let rules = rules_of(kind, Role::Reconciler);
        for missing in &rules {
            let what = format!("{kind} without {missing}");
            let rest = rules.iter().filter(|rule| *rule != missing);
            let rest: Vec<_> = rest.cloned().collect();
            plain.redis.does("FLUSHALL").await;
            let opened = OfKind::open(&connect_with(&plain.redis, &rest).await, kind).await;
            let message = format!("{:#}", refused(opened));
            assert!(
                message.split_whitespace().any(|word| word == missing),
                "{what}: {message}"
            );
            // revoked while the application runs
            let counterfoil = connect_with(&plain.redis, &rules).await;
            let _family = OfKind::open(&counterfoil, kind).await.unwrap();
            restrict(&plain.redis, &rest).await;
            let findings = counterfoil.check().await;
            let names = |text: &str| text.split([' ', ',', '.']).any(|word| word == missing);
            let is_named = |found: &Finding| {
                found.severity == Severity::Error && (names(&found.message) || names(&found.advice))
            };
            assert!(findings.iter().any(is_named), "{what}: {findings:?}");
        }
    }
}

/// Hits would be counted, and never reach the database.
#[tokio::test]
async fn opening_and_checking_name_a_command_that_the_server_does_not_know() {
    for renamed in ["RENAME", "EXISTS", "EVAL", "INFO"] {
        let options = RedisOptions::volatile().arg(format!("rename-command {renamed}"), "");
        let redis = RedisServer::start(options).await;
        let counterfoil = Counterfoil::new(redis.manager().await, MemoryStore::new());
        let missing = format!("+{}", renamed.to_lowercase());
        let error = refused(OfKind::open(&counterfoil, "buffered").await);
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error:?}");
        assert!(error.to_string().contains(&missing), "{error}");
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
        restrict(&plain.redis, &rules_of(kind, Role::Writer)).await;
        plain.redis.does("SCRIPT FLUSH").await;
        allowed(kind, family.hit_often().await);
        counterfoil.drain().await.expect_err(kind);
        restrict(&plain.redis, &all_rules()).await;
        let counted = if kind == "visitors" { 1 } else { 3 };
        assert_eq!(family.shown().await.unwrap(), counted, "{kind}");
        counterfoil.drain().await.unwrap();
    }
}

#[tokio::test]
async fn a_reader_sees_what_others_count_and_changes_nothing() {
    let plain = Plain::new().await;
    let redis = &plain.redis;
    let counterfoil = connect_with(redis, &all_rules()).await;
    let families = open_all(&counterfoil).await;
    for (_, family) in &families {
        family.hit_often().await.unwrap();
    }
    // a part of each value is in the database
    counterfoil.drained().await;
    for (kind, family) in &families {
        family.hit().await.unwrap();
        let counted = if *kind == "visitors" { 1 } else { 4 };
        restrict(redis, &rules_of(kind, Role::Reader)).await;
        redis.does("SCRIPT FLUSH").await;
        assert_eq!(family.shown().await.unwrap(), counted, "{kind}");
        allowed(kind, family.read().await);
        family.hit().await.expect_err(kind);
        assert_eq!(family.shown().await.unwrap(), counted, "{kind}");
        restrict(redis, &all_rules()).await;
    }
    let mut cold = cmd("EVAL");
    cold.arg(Script::named("cached_get").unwrap().source).arg(4);
    let kinds = ["base", "buffer", "batch", "meta"];
    cold.arg(&kinds.map(|kind| format!("cf1:{{shop/cached/0}}:{kind}")));
    cold.arg(&["0", "", "", "", "cold"]);
    let mut reader = manager_within(secs(5), user(redis)).await;
    for missing in rules_without("", Role::Reader) {
        restrict(redis, &rules_without(&missing, Role::Reader)).await;
        redis.does("SCRIPT FLUSH").await;
        let mut refused = cold.exec_async(&mut reader).await.is_err();
        for (_, family) in &families {
            refused |= family.read().await.is_err();
        }
        assert!(refused, "nothing is read with {missing}");
    }
    restrict(redis, &rules_without("", Role::Reader)).await;
    let reply: Vec<String> = cold.query_async(&mut reader).await.unwrap();
    // without a ticket
    assert_eq!(reply, ["OK", "MISS:"]);
}

#[tokio::test]
async fn a_command_that_goes_missing_doubles_nothing() {
    let plain = Plain::new().await;
    let mut half_done = 0;
    for missing in all_rules().into_iter().filter(|rule| rule.starts_with('+')) {
        for kind in KINDS {
            for before in [0, 1] {
                plain.redis.does("FLUSHALL").await;
                let family = OfKind::open(&connect_with(&plain.redis, &all_rules()).await, kind)
                    .await
                    .unwrap();
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
    // no command was refused in the middle of a script
    assert!(half_done > 0);
}

#[tokio::test]
async fn keys_of_another_namespace_are_named() {
    let plain = Plain::new().await;
    let counterfoil = connect_with(&plain.redis, &all_rules()).await;
    let open = async |namespace: &str| {
        counterfoil
            .open(Family::buffered(namespace, "buffered"))
            .await
            .map(drop)
    };
    // once as the first of its kind, and once after a family of another namespace was checked
    for round in 0..2 {
        let error = refused(open("elsewhere").await).to_string();
        let lacks = "lacks ~cf1:{elsewhere/buffered/* ";
        assert!(error.contains(lacks), "{round}: {error}");
        open("shop").await.unwrap();
    }
}

#[tokio::test]
async fn a_cluster_needs_one_rule_more() {
    let cluster = RedisCluster::start(RedisOptions::volatile()).await;
    for number in 0..cluster.size() {
        let node = cluster.node(number);
        allow(node, &["reset", "on", ">secret", "+cluster|slots"]).await;
        allow(node, &all_rules()).await;
    }
    let connection =
        super::connect(super::builder(&cluster).username("shop").password("secret")).await;
    let counterfoil = Counterfoil::new(connection.clone(), MemoryStore::new());
    for (kind, family) in open_all(&counterfoil).await {
        allowed(kind, family.use_all().await);
    }
    counterfoil.drained().await;
    for number in cluster.primaries().await {
        allow(cluster.node(number), &["-pexpire"]).await;
    }
    let counterfoil = Counterfoil::new(connection, MemoryStore::new());
    let error = refused(OfKind::open(&counterfoil, "visitors").await);
    assert!(format!("{error:#}").contains("lacks +pexpire "), "{error}");
}

#[tokio::test]
async fn opening_checks_once_for_each_kind() {
    let plain = Plain::new().await;
    let stats = async || {
        [
            calls(&plain.redis, "eval").await,
            calls(&plain.redis, "evalsha").await,
        ]
    };
    let open = async |number: u32| {
        plain
            .open(Family::buffered("shop", format!("views-{number}")))
            .await
    };
    let _first = open(0).await;
    let [eval, evalsha] = stats().await;
    for number in 1..=10 {
        let _other = open(number).await;
    }
    // each family is configured, and nothing else
    assert_eq!(stats().await, [eval, evalsha + 10]);
}

/// Returns the error, which must be permanent.
fn refused<T>(result: Result<T>) -> Error {
    let error = crate::support::refused(result.map(drop), AccessDenied, "");
    assert!(!error.is_retryable() && !error.outcome_unknown(), "{error}");
    error
}

/// Starts a server that requires a password.
async fn protected() -> RedisServer {
    RedisServer::start(RedisOptions::volatile().tcp().arg("requirepass", "right")).await
}

#[tokio::test]
async fn connecting_without_the_right_password_fails_at_once() {
    let (redis, started) = (protected().await, Instant::now());
    let wrong = format!("{}?pass=wrong", redis.url());
    let nobody = format!("{}?user=nobody&pass=right", redis.url());
    for url in [&redis.url(), &wrong, &nobody] {
        let error = refused(Primary::connect(url.as_str()).await).to_string();
        let words = "redis.sock rejected the credentials";
        assert!(error.contains(words), "{error}");
        refused(Counterfoil::connect(url, "mysql://root@localhost/x").await);
    }
    let wrong = redis.tcp_url().replace("redis://", "redis://:wrong@");
    for url in [redis.tcp_url(), wrong] {
        let client = ClusterClient::builder([url]).build().unwrap();
        refused(Cluster::connect(client).await);
    }
    let right = format!("{}?pass=right", redis.url());
    Primary::connect(right).await.unwrap();
    assert!(started.elapsed() < AT_ONCE);
}

/// The application's own connection does not log in.
#[tokio::test]
async fn opening_and_starting_without_a_password_fails_at_once() {
    let redis = protected().await;
    let counterfoil = Counterfoil::new(
        manager_within(secs(5), redis.client()).await,
        MemoryStore::new(),
    );
    let started = Instant::now();
    for kind in KINDS {
        refused(OfKind::open(&counterfoil, kind).await);
    }
    refused(counterfoil.reconciler().start().await);
    let findings = counterfoil.check().await;
    let mut advice = findings.iter().map(|found| &found.advice);
    assert!(
        advice.any(|advice| advice.contains("user and password")),
        "{findings:?}"
    );
    assert!(started.elapsed() < AT_ONCE);
}

#[tokio::test]
async fn a_family_without_access_does_not_hide_the_others() {
    let plain = Plain::new().await;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        plain.open(family(name)).await.count("page", 1).await;
    }
    let others = names.into_iter().filter(|name| *name != "d");
    let patterns = others.map(|name| format!("~cf1:{{test/{name}/*"));
    let allowed = format!(
        "ACL SETUSER default resetkeys {}",
        patterns.collect::<Vec<_>>().join(" ")
    );
    plain.redis.does(&allowed).await;
    let found = plain.counterfoil.backlogs().await.unwrap();
    assert_eq!(found.len(), names.len());
    for (family, backlog) in found {
        match backlog {
            Ok(backlog) => assert_eq!((family.name() != "d", backlog.ids), (true, 1)),
            Err(error) => assert_eq!((family.name(), error.kind()), ("d", AccessDenied)),
        }
    }
}

//! The crate as a user uses it, on real servers: counting, reading, syncing and refusals.

use std::sync::Mutex;
use std::time::Duration;

use crate::support::{Pair, day, epoch, eventually, family};
use counterfoil::admin::Severity;
use counterfoil::test_hooks::{Counted, Cut, Fence, Lease, Partition, RotateReply};
use counterfoil::{
    Counterfoil, Durability, Error, ErrorKind, Family, KeyType, MysqlStore, Outcome, Table,
};
use futures_util::{StreamExt, TryStreamExt};
use testkit::RedisOptions;

const OWN: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";

#[tokio::test]
async fn a_hit_is_seen_at_once_and_stored_soon() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    assert_eq!(
        views.add("product/1", 1).await.unwrap(),
        Outcome::Counted(1)
    );
    assert_eq!(
        views.add("product/1", 2).await.unwrap(),
        Outcome::Counted(3)
    );
    assert_eq!(views.get("product/1").await.unwrap(), 3);
    assert_eq!(views.pending(&["product/1"]).await.unwrap(), [3]);
    assert_eq!(views.stored(&["product/1"]).await.unwrap(), [None]);

    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    eventually("the row", || async {
        views.stored(&["product/1"]).await.unwrap() == [Some(3)]
    })
    .await;
    assert_eq!(views.get("product/1").await.unwrap(), 3);
    let _ = views.add("product/1", 4).await.unwrap();
    eventually("the next sync", || async {
        views.stored(&["product/1"]).await.unwrap() == [Some(7)]
    })
    .await;
    assert_eq!(
        views.get_many(&["product/1", "never"]).await.unwrap(),
        [7, 0]
    );
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn numbers_go_to_the_applications_tables() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE visitors (store_id INT UNSIGNED, day DATE, count BIGINT NOT NULL, PRIMARY KEY (store_id, day))",
    )
    .await;
    pair.sql("CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, vote_count INT NOT NULL)").await;
    pair.sql("INSERT INTO item VALUES (1, 'one', 10), (2, 'two', 20)")
        .await;
    let table = Table::upsert("visitors")
        .key("store_id", KeyType::Unsigned)
        .key("day", KeyType::Date)
        .value("count");
    let visitors = pair
        .counterfoil
        .open(family("visitors").table(table))
        .await
        .unwrap();
    let table = Table::update("item")
        .key("id", KeyType::Signed)
        .value("vote_count");
    let votes = pair
        .counterfoil
        .open(family("votes").table(table))
        .await
        .unwrap();

    for day in ["12345/2014-09-20", "12345/2014-09-21", "12345/2014-09-20"] {
        let _ = visitors.add(day, 1).await.unwrap();
    }
    for (id, delta) in [("1", 5), ("2", -3), ("3", 1)] {
        let _ = votes.add(id, delta).await.unwrap();
    }
    assert_eq!(votes.get_many(&["1", "2"]).await.unwrap(), [15, 17]);
    pair.counterfoil.drain().await.unwrap();

    assert_eq!(
        pair.number("SELECT count FROM visitors WHERE store_id = 12345 AND day = '2014-09-20'")
            .await,
        2
    );
    assert_eq!(
        pair.number("SELECT CAST(vote_count AS SIGNED) FROM item WHERE id = 1")
            .await,
        15
    );
    assert_eq!(
        pair.number("SELECT CAST(vote_count AS SIGNED) FROM item WHERE id = 2")
            .await,
        17
    );
    // item 3 does not exist: its vote is kept with the reason, and does not hold up the others
    assert_eq!(
        pair.number("SELECT delta FROM counterfoil_rejects WHERE id = '3'")
            .await,
        1
    );
    assert_eq!(visitors.get("12345/2014-09-20").await.unwrap(), 2);
    let listed = visitors.list("12345/", None, 10).await.unwrap();
    assert_eq!(
        listed,
        [
            ("12345/2014-09-20".into(), 2),
            ("12345/2014-09-21".into(), 1)
        ]
    );
}

#[tokio::test]
async fn bad_input_is_refused_by_name_and_nothing_is_written() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE visitors (store_id INT UNSIGNED, day DATE, count BIGINT NOT NULL, PRIMARY KEY (store_id, day))",
    )
    .await;
    let table = Table::upsert("visitors")
        .key("store_id", KeyType::Unsigned)
        .key("day", KeyType::Date)
        .value("count");
    let visitors = pair
        .counterfoil
        .open(family("visitors").table(table))
        .await
        .unwrap();
    let own = pair.counterfoil.open(family("own")).await.unwrap();
    let refused = |error: Error, word: &str| {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(!error.is_retryable() && !error.outcome_unknown());
        assert!(format!("{error:#}").contains(word), "{error}");
    };
    refused(own.add("", 1).await.unwrap_err(), "0 bytes");
    refused(own.add(&"x".repeat(256), 1).await.unwrap_err(), "256 bytes");
    refused(own.get("").await.unwrap_err(), "0 bytes");
    refused(visitors.add("12345", 1).await.unwrap_err(), "segments");
    refused(
        visitors.add("12345/2014-02-30", 1).await.unwrap_err(),
        "column day",
    );
    refused(
        visitors.add("012345/2014-02-28", 1).await.unwrap_err(),
        "column store_id",
    );
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query_async(&mut pair.redis.manager().await)
        .await
        .unwrap();
    assert!(
        keys.iter()
            .all(|key| key.ends_with(":calls") || key.ends_with(":meta")),
        "{keys:?}"
    );
}

#[tokio::test]
async fn a_hit_that_cannot_be_counted_is_refused_alone() {
    let pair = Pair::new().await;
    let small = pair
        .counterfoil
        .open(family("small").partitions(1).max_pending(2))
        .await
        .unwrap();
    assert_eq!(
        small.add("a", i64::MAX).await.unwrap(),
        Outcome::Counted(i64::MAX)
    );
    assert_eq!(small.add("a", 1).await.unwrap(), Outcome::OutOfRange(None));
    assert_eq!(
        small.add("b", i64::MIN).await.unwrap(),
        Outcome::Counted(i64::MIN)
    );
    assert_eq!(small.add("c", 1).await.unwrap(), Outcome::Full);
    assert_eq!(
        small.add("a", -1).await.unwrap(),
        Outcome::Counted(i64::MAX - 1)
    );
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(small.add("c", 1).await.unwrap(), Outcome::Counted(1));
    assert_eq!(small.add("a", 2).await.unwrap(), Outcome::Counted(2));
    let error = small.get("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Range, "{error}");
    assert_eq!(small.get_many(&["b", "c"]).await.unwrap(), [i64::MIN, 1]);
    // the column cannot hold the sum: the delta goes to the rejects, and the row keeps its value
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        small.get_many(&["a", "b", "c"]).await.unwrap(),
        [i64::MAX - 1, i64::MIN, 1]
    );
    assert_eq!(
        pair.number("SELECT delta FROM counterfoil_rejects").await,
        2
    );
}

#[tokio::test]
async fn scripts_may_be_flushed_at_any_moment() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let mut other = pair.redis.manager().await;
    for _ in 0..200 {
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .exec_async(&mut other)
            .await
            .unwrap();
        let _ = views.add("page", 1).await.unwrap();
    }
    assert_eq!(views.get("page").await.unwrap(), 200);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 200);
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn however_many_tasks_count_redis_remembers_few_callers() {
    let pair = Pair::new().await;
    let views = pair
        .counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let callers = (0..200).map(|_| views.add("page", 1));
    for added in futures_util::future::join_all(callers).await {
        assert!(matches!(added.unwrap(), Outcome::Counted(_)));
    }
    assert_eq!(views.get("page").await.unwrap(), 200);
    let mut redis = pair.redis.manager().await;
    let fields: Vec<String> = redis::cmd("HKEYS")
        .arg("cf1:{test/views/0}:calls")
        .query_async(&mut redis)
        .await
        .unwrap();
    let callers = fields
        .iter()
        .filter(|field| !field.starts_with('='))
        .count();
    assert!((1..=2).contains(&callers), "{fields:?}");
}

/// Every call has its own caller, like a request under php-fpm.
#[tokio::test]
async fn callers_that_call_once_are_forgotten_within_two_epochs() {
    let pair = Pair::new().await;
    let views = family("views").partitions(1).build().unwrap();
    let home = Partition::new(pair.redis.manager().await, &views, 0);
    let begun = epoch(&home, &views).await.unwrap();
    let used_memory = async || -> u64 {
        let info: String = pair.redis.run("INFO memory").await.unwrap();
        info.lines()
            .find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok())
            .unwrap()
    };
    let before = used_memory().await;
    let callers: Vec<_> = (0..100_000)
        .map(|number| format!("{number:016x}"))
        .collect();
    for callers in callers.chunks(100) {
        let calls = callers.iter().map(|caller| {
            home.add(
                &views,
                Fence {
                    home: home.keys(),
                    caller,
                    n: 1,
                    epoch: &begun,
                },
                1,
                [("page", 1)],
            )
        });
        for counted in futures_util::future::join_all(calls).await {
            assert!(matches!(
                counted.unwrap(),
                Counted::Executed {
                    repeated: false,
                    ..
                }
            ));
        }
    }
    let full = used_memory().await;
    assert_eq!(
        pair.redis
            .run::<u64>("HLEN cf1:{test/views/0}:calls")
            .await
            .unwrap(),
        100_007
    );
    println!("{} bytes a caller", (full - before) / 100_000);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    for minutes in 1..=2 {
        let _ = epoch(&home.clone().at(now + minutes * 61_000), &views)
            .await
            .unwrap();
    }
    for key in ["calls", "calls_before"] {
        let left: Vec<String> = pair
            .redis
            .run(&format!("HKEYS cf1:{{test/views/0}}:{key}"))
            .await
            .unwrap();
        assert!(
            left.iter().all(|field| field.starts_with('=')),
            "{key}: {left:?}"
        );
    }
    eventually("the memory is back", || async {
        used_memory().await < before + (full - before) / 10
    })
    .await;
    // a late repeat does not count again
    let late = Fence {
        home: home.keys(),
        caller: &callers[0],
        n: 1,
        epoch: &begun,
    };
    assert_eq!(
        home.add(&views, late, 1, [("page", 1)]).await.unwrap(),
        Counted::Expired
    );
    assert_eq!(home.read(&["page"]).await.unwrap().deltas, [(0, 100_000)]);
}

#[tokio::test]
async fn a_wide_family_sums_over_its_partitions() {
    let pair = Pair::new().await;
    let hot = pair
        .counterfoil
        .open(family("hot").wide(true))
        .await
        .unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let hot = hot.clone();
        callers.spawn(async move { hot.add("front", 1).await.unwrap() });
    }
    callers.join_all().await;
    assert_eq!(hot.get("front").await.unwrap(), 40);
    assert_eq!(hot.pending(&["front"]).await.unwrap(), [40]);
    assert_eq!(
        hot.list("fr", None, 10).await.unwrap(),
        [("front".into(), 40)]
    );
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(hot.stored(&["front"]).await.unwrap(), [Some(40)]);
    assert_eq!(hot.get("front").await.unwrap(), 40);
}

#[tokio::test]
async fn an_exact_read_does_not_believe_a_replica_that_is_behind() {
    let (pair, behind) = (Pair::new().await, Pair::new().await);
    // a copy that knows the family but none of its batches
    behind
        .counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let store = MysqlStore::new(pair.pool.clone()).with_replica(behind.pool.clone());
    let counterfoil = Counterfoil::new(pair.redis.manager().await, store);
    let views = counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    for batches in 1..=3 {
        let _ = views.add("page", 1).await.unwrap();
        assert_eq!(views.get("page").await.unwrap(), batches);
        counterfoil.drain().await.unwrap();
        assert_eq!(views.get("page").await.unwrap(), batches);
        assert_eq!(
            views.stored(&["page"]).await.unwrap(),
            [None],
            "a plain read asks the nearest copy"
        );
    }
    // one batch is in flight, and the copy also lacks the earlier ones
    let _ = views.add("page", 1).await.unwrap();
    let partition = Partition::new(pair.redis.manager().await, views.family(), 0);
    assert!(matches!(
        partition.rotate(None, Cut::Now).await.unwrap(),
        RotateReply::Batch(_)
    ));
    assert_eq!(views.get("page").await.unwrap(), 4);
}

#[tokio::test]
async fn a_list_has_what_is_stored_and_what_is_pending() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    for id in ["a/1", "a/2", "b/1", "a*", "a/[x]"] {
        let _ = views.add(id, 1).await.unwrap();
    }
    pair.counterfoil.drain().await.unwrap();
    for id in ["a/2", "a/3", "a/[y]"] {
        let _ = views.add(id, 10).await.unwrap();
    }
    let all = |pairs: &[(&str, i64)]| {
        pairs
            .iter()
            .map(|(id, value)| ((*id).to_owned(), *value))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        views.list("a/", None, 10).await.unwrap(),
        all(&[
            ("a/1", 1),
            ("a/2", 11),
            ("a/3", 10),
            ("a/[x]", 1),
            ("a/[y]", 10)
        ])
    );
    assert_eq!(
        views.list("a/[", None, 10).await.unwrap(),
        all(&[("a/[x]", 1), ("a/[y]", 10)])
    );
    assert_eq!(views.list("a*", None, 10).await.unwrap(), all(&[("a*", 1)]));
    assert_eq!(
        views.list("a/", None, 2).await.unwrap(),
        all(&[("a/1", 1), ("a/2", 11)])
    );
    assert_eq!(
        views.list("a/", Some("a/2"), 2).await.unwrap(),
        all(&[("a/3", 10), ("a/[x]", 1)])
    );
    assert_eq!(views.list("", None, 100).await.unwrap().len(), 7);
}

/// The ids fill more than one page, some in MySQL and some in Redis.
#[tokio::test]
async fn all_ids_come_as_a_stream() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    assert_eq!(views.list_all("page/").count().await, 0);
    let ids = |from, to| (from..to).map(|number| (format!("page/{number:04}"), 1));
    assert!(
        views
            .add_many(ids(0, 1_500))
            .await
            .into_iter()
            .all(|added| added.is_ok())
    );
    pair.counterfoil.drain().await.unwrap();
    assert!(
        views
            .add_many(ids(1_000, 2_100).chain([("other".to_owned(), 1)]))
            .await
            .into_iter()
            .all(|added| added.is_ok())
    );
    let listed: Vec<_> = views.list_all("page/").try_collect().await.unwrap();
    let value = |number| {
        if (1_000..1_500).contains(&number) {
            2
        } else {
            1
        }
    };
    assert!(
        listed
            .into_iter()
            .eq((0..2_100).map(|number| (format!("page/{number:04}"), value(number))))
    );
    let impatient = pair
        .counterfoil
        .clone()
        .read_timeout(Duration::from_millis(50));
    let impatient = impatient.open(family("views")).await.unwrap();
    pair.redis.kill();
    let mut ended = impatient.list_all("page/");
    assert!(ended.next().await.unwrap().unwrap_err().is_retryable());
    assert!(ended.next().await.is_none());
}

#[tokio::test]
async fn another_configuration_is_refused_by_name() {
    let pair = Pair::new().await;
    let counterfoil = &pair.counterfoil;
    let _views = counterfoil.open(family("views")).await.unwrap();
    for (other, word) in [
        (family("views").partitions(5), "partitions"),
        (family("views").wide(true), "wide"),
        (
            family("views").durability(Durability::Settle(Duration::from_secs(1))),
            "durability",
        ),
    ] {
        let error = counterfoil.open(other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(
            format!("{error:#}").contains(word) && format!("{error:#}").contains("test/views"),
            "{error}"
        );
    }
    // the sync settings may differ between processes
    let later = family("views")
        .sync_hits(500)
        .sync_time(Duration::from_secs(600));
    counterfoil.open(later).await.unwrap();
    // the same name in another namespace is another family
    counterfoil
        .open(Family::buffered("other", "views").partitions(5))
        .await
        .unwrap();
}

#[tokio::test]
async fn namespaces_do_not_see_each_other() {
    let pair = Pair::new().await;
    let open = |namespace: &'static str| {
        let family = Family::buffered(namespace, "views").durability(Durability::Immediate);
        pair.counterfoil.open(family)
    };
    let (one, two) = (open("shop-1").await.unwrap(), open("shop-2").await.unwrap());
    let _ = one.add("page", 1).await.unwrap();
    let _ = two.add("page", 10).await.unwrap();
    assert_eq!(
        (
            one.get("page").await.unwrap(),
            two.get("page").await.unwrap()
        ),
        (1, 10)
    );
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        (
            one.get("page").await.unwrap(),
            two.get("page").await.unwrap()
        ),
        (1, 10)
    );
    assert_eq!(
        two.list("", None, 10).await.unwrap(),
        [("page".to_owned(), 10)]
    );
}

#[tokio::test]
async fn an_evicting_redis_is_refused_unless_forced() {
    let pair = Pair::new().await;
    let mut redis = pair.redis.manager().await;
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory-policy")
        .arg("allkeys-lru")
        .exec_async(&mut redis)
        .await
        .unwrap();
    let error = pair.counterfoil.reconciler().start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsafe);
    assert!(format!("{error:#}").contains("allkeys-lru"), "{error}");
    let reconciler = pair
        .counterfoil
        .reconciler()
        .allow_evicting(true)
        .start()
        .await
        .unwrap();
    reconciler.shutdown().await.unwrap();
    let findings = pair.counterfoil.check().await;
    assert!(
        findings
            .iter()
            .any(|finding| finding.subject == "redis maxmemory-policy"),
        "{findings:?}"
    );
    // keys of buffered and cached families never expire, so these policies do not evict them
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory-policy")
        .arg("volatile-lru")
        .exec_async(&mut redis)
        .await
        .unwrap();
    pair.counterfoil
        .reconciler()
        .start()
        .await
        .unwrap()
        .shutdown()
        .await
        .unwrap();
}

#[tokio::test]
async fn check_tells_how_durable_redis_is() {
    let pair = Pair::new().await;
    let _views = pair.counterfoil.open(family("views")).await.unwrap();
    let mut redis = pair.redis.manager().await;
    let persistence = async |counterfoil: &Counterfoil| {
        let findings = counterfoil.check().await;
        findings
            .into_iter()
            .find(|finding| finding.subject == "redis persistence")
            .map(|finding| finding.severity)
    };
    // the tests' private Redis persists nothing
    assert_eq!(
        persistence(&pair.counterfoil).await,
        Some(Severity::Warning)
    );
    let mut set = async |name: &str, value: &str| {
        redis::cmd("CONFIG")
            .arg("SET")
            .arg(name)
            .arg(value)
            .exec_async(&mut redis)
            .await
            .unwrap();
    };
    set("save", "3600 1").await;
    assert_eq!(
        persistence(&pair.counterfoil).await,
        Some(Severity::Warning),
        "snapshots only"
    );
    set("appendonly", "yes").await;
    set("appendfsync", "always").await;
    assert_eq!(persistence(&pair.counterfoil).await, None);
    set("appendfsync", "everysec").await;
    assert_eq!(
        persistence(&pair.counterfoil).await,
        Some(Severity::Warning),
        "an immediate family on everysec"
    );
}

/// Only Redis knows the visitors of a day.
#[tokio::test]
async fn check_tells_who_is_counted_again_without_persistence() {
    let pair = Pair::new().await;
    let visitors = Family::visitors("test", "visitors").durability(Durability::Immediate);
    let visitors = pair.counterfoil.open(visitors).await.unwrap();
    let findings = pair.counterfoil.check().await;
    let told = findings.iter().any(|finding| {
        finding.severity == Severity::Error
            && finding.subject == "redis persistence"
            && finding.message.contains("test/visitors counts them again")
    });
    assert!(told, "{findings:?}");
    assert_eq!(
        visitors
            .first_visit("shop", day("2014-09-20"), "visitor")
            .await
            .unwrap(),
        Outcome::Counted(1)
    );
    pair.counterfoil.drain().await.unwrap();
    pair.redis.kill();
    pair.redis.start_again().await;
    // the first call may find a broken connection and a lost epoch
    let told = loop {
        if let Ok(told) = visitors
            .first_visit("shop", day("2014-09-20"), "visitor")
            .await
        {
            break told;
        }
    };
    assert_eq!(told, Outcome::Counted(1));
    assert_eq!(
        visitors.get("shop", day("2014-09-20")).await.unwrap(),
        2,
        "as check and the README say"
    );
}

/// By default Redis has snapshots and no append-only file.
#[tokio::test]
async fn starting_warns_where_a_crash_can_double_counts() {
    for (aof, has_visitors, warnings) in [("no", true, 1), ("yes", true, 0), ("no", false, 0)] {
        let options = RedisOptions::volatile()
            .arg("appendonly", aof)
            .arg("save", "3600 1 300 100 60 10000");
        let pair = Pair::with(options).await;
        if has_visitors {
            pair.counterfoil
                .open(Family::visitors("test", "visitors"))
                .await
                .unwrap();
        }
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(Mutex::new(log.reopen().unwrap()))
            .finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        pair.counterfoil
            .reconciler()
            .start()
            .await
            .unwrap()
            .shutdown()
            .await
            .unwrap();
        let text = std::fs::read_to_string(log.path()).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.contains("WARN") && line.contains("visitors counts them again"));
        assert_eq!(
            lines.count(),
            warnings,
            "appendonly {aof}, visitors: {has_visitors}: {text}"
        );
    }
}

#[tokio::test]
async fn an_error_says_where_it_looked() {
    let pair = Pair::new().await;
    let nowhere = "redis+unix:///nonexistent/redis.sock";
    let error = Counterfoil::connect(nowhere, "mysql://root@localhost/x")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redis);
    assert!(
        format!("{error:#}").contains("/nonexistent/redis.sock"),
        "{error}"
    );
    let nowhere = "mysql://root:secret@localhost/x?socket=/nonexistent/mysql.sock";
    let error = Counterfoil::connect(&pair.redis.url(), nowhere)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(
        format!("{error:#}").contains("/nonexistent/mysql.sock"),
        "{error}"
    );
    assert!(!format!("{error:#}").contains("secret"), "{error}");
    let error = Counterfoil::connect("http://localhost", nowhere)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[tokio::test]
async fn shutdown_finishes_what_it_holds() {
    let pair = Pair::new().await;
    let settling = family("settling").durability(Durability::Settle(Duration::from_millis(700)));
    let views = pair.counterfoil.open(settling).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    let mut redis = pair.redis.manager().await;
    let batches: Vec<String> = loop {
        let found: Vec<String> = redis::cmd("KEYS")
            .arg("*:batch")
            .query_async(&mut redis)
            .await
            .unwrap();
        if !found.is_empty() {
            break found;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(batches.len(), 1);
    assert_eq!(pair.number(OWN).await, 0, "not before it is durable");
    reconciler.shutdown().await.unwrap();
    assert_eq!(pair.number(OWN).await, 1);
}

#[tokio::test]
async fn families_are_served_as_they_are_opened() {
    let pair = Pair::new().await;
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    for number in 0..20 {
        let family =
            Family::buffered(format!("shop-{number}"), "views").durability(Durability::Immediate);
        let views = pair.counterfoil.open(family).await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
    }
    eventually("20 shops", || async { pair.number(OWN).await == 20 }).await;
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_leased_partition_is_left_alone_however_many_hits_are_due() {
    let pair = Pair::new().await;
    let views = pair
        .counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let _ = views.add("page", 1).await.unwrap();
    let partition = Partition::new(pair.redis.manager().await, views.family(), 0);
    let elsewhere = Lease {
        owner: "elsewhere",
        time: Duration::from_secs(1),
    };
    partition.rotate(Some(elsewhere), Cut::Now).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let rotations = async || {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut pair.redis.manager().await)
            .await
            .unwrap();
        // a rotation asks for the time, a hit in a buffer that is not empty does not
        let rotations = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_time:calls=")?.split(',').next());
        rotations.unwrap().parse::<i64>().unwrap()
    };
    let (before, started, mut hits) = (rotations().await, std::time::Instant::now(), 0);
    while started.elapsed() < Duration::from_millis(700) {
        let _ = views.add("page", 1).await.unwrap();
        hits += 1;
    }
    let rotations = rotations().await - before;
    assert!(
        (0..20).contains(&rotations),
        "{rotations} rotations beside {hits} hits"
    );
    eventually("the batch of the one who died", || async {
        pair.number(OWN).await == hits + 1
    })
    .await;
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn one_process_serves_several_pairs() {
    let pairs = [Pair::new().await, Pair::new().await];
    let mut reconcilers = Vec::new();
    for (number, pair) in pairs.iter().enumerate() {
        reconcilers.push(pair.counterfoil.reconciler().start().await.unwrap());
        let views = pair.counterfoil.open(family("views")).await.unwrap();
        let _ = views.add("page", number as i64 + 1).await.unwrap();
    }
    eventually("both", || async {
        pairs[0].number(OWN).await == 1 && pairs[1].number(OWN).await == 2
    })
    .await;
    for reconciler in reconcilers {
        reconciler.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn hits_of_another_process_are_found() {
    let pair = Pair::new().await;
    // another handle on the same servers acts as another process: it cannot wake this reconciler
    let elsewhere = Counterfoil::new(
        pair.redis.manager().await,
        MysqlStore::new(pair.pool.clone()),
    );
    let views = elsewhere.open(family("views")).await.unwrap();
    let _ = views.add("before", 1).await.unwrap();
    let _here = pair.counterfoil.open(family("views")).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    eventually("the hit from before", || async {
        pair.number(OWN).await == 1
    })
    .await;
    let _ = views.add("after", 1).await.unwrap();
    eventually("the hit from after", || async {
        pair.number(OWN).await == 2
    })
    .await;
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn many_writers_and_reconcilers_are_exact_without_leases() {
    let pair = Pair::new().await;
    let views = pair.counterfoil.open(family("views")).await.unwrap();
    let mut reconcilers = Vec::new();
    for _ in 0..3 {
        let elsewhere = Counterfoil::new(
            pair.redis.manager().await,
            MysqlStore::new(pair.pool.clone()),
        );
        let _views = elsewhere.open(family("views")).await.unwrap();
        reconcilers.push(elsewhere.reconciler().lease(None).start().await.unwrap());
    }
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let views = views.clone();
        writers.spawn(async move {
            for hit in 0..250 {
                let _ = views
                    .add(&format!("page/{}", (writer + hit) % 7), 1)
                    .await
                    .unwrap();
            }
        });
    }
    let ids: Vec<_> = (0..7).map(|page| format!("page/{page}")).collect();
    let mut last = 0;
    while !writers.is_empty() {
        tokio::select! {
            Some(done) = writers.join_next() => done.unwrap(),
            values = views.get_many(&ids) => {
                let sum = values.unwrap().iter().sum::<i64>();
                assert!((last..=2000).contains(&sum), "{sum} after {last}");
                last = sum;
            }
        }
    }
    assert_eq!(
        views.get_many(&ids).await.unwrap().iter().sum::<i64>(),
        2000
    );
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 2000);
    for reconciler in reconcilers {
        reconciler.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_redis_that_cannot_be_written_counts_nothing() {
    let pair = Pair::new().await;
    let views = pair
        .counterfoil
        .clone()
        .open(family("views"))
        .await
        .unwrap();
    let _ = views.add("page", 1).await.unwrap();
    let mut redis = pair.redis.manager().await;
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg("1")
        .exec_async(&mut redis)
        .await
        .unwrap();
    let error = views.add("page", 1).await.unwrap_err();
    assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg("0")
        .exec_async(&mut redis)
        .await
        .unwrap();
    assert_eq!(views.get("page").await.unwrap(), 1);
    assert_eq!(views.add("page", 1).await.unwrap(), Outcome::Counted(2));
}

/// A client in another language counted for an id that is not text, and for one that no row can
/// have.
#[tokio::test]
async fn an_id_that_no_row_can_have_holds_no_batch_up() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE item (id INT PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    let table = Table::upsert("item").key("id", KeyType::Signed).value("n");
    let items = family("items").partitions(1).table(table);
    let items = pair.counterfoil.open(items).await.unwrap();
    let _ = items.add("7", 1).await.unwrap();
    let mut redis = pair.redis.manager().await;
    for (id, delta) in [(&b"\xff\xfe"[..], 5), (b"no number", 3)] {
        let mut count = redis::cmd("HINCRBY");
        count
            .arg("cf1:{test/items/0}:buffer")
            .arg(id)
            .arg(delta)
            .exec_async(&mut redis)
            .await
            .unwrap();
    }
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(
        items.list("", None, 10).await.unwrap(),
        [("7".to_owned(), 1)]
    );
    let rejects = pair.mysql().rejects(0, 10).await.unwrap();
    let mut told: Vec<_> = rejects
        .iter()
        .map(|reject| (reject.delta, reject.reason.as_str()))
        .collect();
    told.sort_unstable();
    assert_eq!(told[1], (5, "the id is not UTF-8"));
    assert_eq!((told.len(), told[0].0), (2, 3), "{told:?}");
}

/// A client in another language is configured with 16 partitions for a family that has 8.
#[tokio::test]
async fn who_believes_in_another_number_of_partitions_is_refused() {
    let pair = Pair::new().await;
    let views = pair
        .counterfoil
        .open(family("views").partitions(8))
        .await
        .unwrap();
    let wrong = family("views").partitions(16).build().unwrap();
    let home = Partition::new(pair.redis.manager().await, &wrong, 0);
    let error = epoch(&home, &wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(
        error
            .to_string()
            .contains("8 partitions, not buffered with 16"),
        "{error}"
    );
    assert!(epoch(&home, views.family()).await.is_ok());
}

/// A cluster cannot refuse such hits until a reconciler has checked. The reconciler brings them to
/// the database.
#[tokio::test]
async fn hits_in_partitions_that_the_family_does_not_have_are_brought_home() {
    let pair = Pair::new().await;
    let wrong = family("views").partitions(16).build().unwrap();
    let stray = Partition::new(pair.redis.manager().await, &wrong, 12);
    let begun = epoch(&stray, &wrong).await.unwrap();
    let fence = |n| Fence {
        home: stray.keys(),
        caller: "elsewhere",
        n,
        epoch: &begun,
    };
    let counted = stray.add(&wrong, fence(1), 1, [("page", 3)]).await.unwrap();
    assert!(matches!(counted, Counted::Executed { .. }), "{counted:?}");

    let views = pair
        .counterfoil
        .open(family("views").partitions(8))
        .await
        .unwrap();
    let _ = views.add("page", 1).await.unwrap();
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    eventually("all hits are in MySQL", || async {
        pair.number(OWN).await == 4
    })
    .await;
    assert_eq!(views.get("page").await.unwrap(), 4);
    // from here on it is refused
    assert_eq!(
        stray.add(&wrong, fence(2), 1, [("page", 3)]).await.unwrap(),
        Counted::Expired
    );
    assert_eq!(
        epoch(&stray, &wrong).await.unwrap_err().kind(),
        ErrorKind::Mismatch
    );
    reconciler.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_key_of_another_type_is_named() {
    let pair = Pair::new().await;
    let views = pair
        .counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let mut redis = pair.redis.manager().await;
    redis::cmd("SET")
        .arg("cf1:{test/views/0}:meta")
        .arg("x")
        .exec_async(&mut redis)
        .await
        .unwrap();
    for error in [
        views.add("page", 1).await.unwrap_err(),
        views.get("page").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            format!("{error:#}").contains("cf1:{test/views/0}:meta"),
            "{error}"
        );
    }
    assert!(pair.counterfoil.drain().await.is_ok(), "nothing is pending");
}

#[tokio::test]
async fn the_usual_setup_has_no_errors() {
    let pair = Pair::with(RedisOptions::aof("everysec")).await;
    let views = pair
        .counterfoil
        .open(Family::buffered("shop", "views"))
        .await
        .unwrap();
    let findings = pair.counterfoil.check().await;
    assert!(
        findings
            .iter()
            .all(|finding| finding.severity < Severity::Error),
        "{findings:?}"
    );
    let _ = views.add("page", 1).await.unwrap();
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 1);
}

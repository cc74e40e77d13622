//! The crate as a user uses it, on real servers: counting, reading, syncing and refusals.

use counterfoil::test_hooks::{CallReply, Lease, Partition};
use futures_util::{StreamExt, TryStreamExt};

use crate::support::*;

#[tokio::test]
async fn bad_input_is_refused_by_name_and_nothing_is_written() {
    let pair = Pair::new().await;
    let visitors = family("visitors").table(pair.visitors_by_day().await);
    let visitors = pair.open(visitors).await;
    let own = pair.open(family("own")).await;
    for (counters, id, text) in [
        (&own, "", "0 bytes"),
        (&own, &*"x".repeat(256), "256 bytes"),
        (&visitors, "12345", "nothing is left for column day"),
        (&visitors, "12345/2014-02-30", "column day"),
        (&visitors, "012345/2014-02-28", "column store_id"),
    ] {
        let error = refused(counters.add(id, 1).await, InvalidInput, text);
        assert!(!error.is_retryable() && !error.outcome_unknown(), "{error}");
    }
    refused(own.get("").await, InvalidInput, "0 bytes");
    let keys: Vec<String> = pair.command("KEYS *").await;
    let is_empty = |key: &String| {
        let lasting = [":calls", ":meta", ":requests"];
        lasting.iter().any(|name| key.ends_with(name))
    };
    assert!(keys.iter().all(is_empty), "{keys:?}");
}

#[tokio::test]
async fn a_hit_that_cannot_be_counted_is_refused_alone() {
    let (pair, small) = Pair::of(family("small").partitions(1).max_pending(2)).await;
    let (max, min) = (i64::MAX, i64::MIN);
    for (id, delta, expected) in [
        ("a", max, Outcome::Counted(max)),
        ("a", 1, OutOfRange(None)),
        ("b", min, Outcome::Counted(min)),
        ("c", 1, Outcome::Full),
        ("a", -1, Outcome::Counted(max - 1)),
    ] {
        assert_eq!(small.add(id, delta).await.unwrap(), expected, "{id}");
    }
    let backlog = small.backlog().await.unwrap();
    assert_eq!(
        (backlog.counted, backlog.refused, backlog.fullest),
        (3, 2, 2)
    );
    pair.drain().await;
    let backlog = small.backlog().await.unwrap();
    assert_eq!(
        (backlog.counted, backlog.refused, backlog.fullest),
        (3, 2, 0)
    );
    let _ = small.add_once("job", "c", 1).await.unwrap();
    assert_eq!(small.backlog().await.unwrap().requests, 1);
    assert_eq!(small.count("a", 2).await, 2);
    refused(small.get("a").await, ErrorKind::Range, "");
    assert_eq!(small.get_many(&["b", "c"]).await.unwrap(), [min, 1]);
    // the column cannot hold the sum: the delta goes to the rejects, and the row keeps its value
    pair.drain().await;
    assert_eq!(
        small.get_many(&["a", "b", "c"]).await.unwrap(),
        [max - 1, min, 1]
    );
    let delta = "SELECT delta FROM counterfoil_rejects";
    assert_eq!(pair.number(delta).await, 2);
}

#[tokio::test]
async fn however_many_tasks_count_redis_remembers_few_callers() {
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    join_all((0..200).map(|_| views.count("page", 1))).await;
    assert_eq!(views.value("page").await, 200);
    let fields = "HKEYS cf1:{test/views/0}:calls";
    let mut callers: Vec<String> = pair.command(fields).await;
    callers.retain(|field| !field.starts_with('='));
    assert!((1..=2).contains(&callers.len()), "{callers:?}");
}

/// Opens a family of the pair, with a replica that knows the family but none of its batches.
async fn with_replica(pair: &Pair, behind: &Pair) -> (Counterfoil, BufferedCounters) {
    let views = || family("views").partitions(1);
    behind.open(views()).await;
    let store = MysqlStore::new(&pair.pool)
        .unwrap()
        .with_replica(behind.mysql().clone());
    let counterfoil = patient(Counterfoil::new(pair.redis.manager().await, store));
    let views = counterfoil.opened(views()).await;
    (counterfoil, views)
}

#[tokio::test]
async fn an_exact_read_does_not_trust_a_replica_that_is_behind() {
    let (pair, behind) = (Pair::new().await, Pair::new().await);
    let (counterfoil, views) = with_replica(&pair, &behind).await;
    for batches in 1..=3 {
        views.count("page", 1).await;
        assert_eq!(views.value("page").await, batches);
        counterfoil.drained().await;
        assert_eq!(views.value("page").await, batches);
        // a plain read asks the nearest copy
        assert_eq!(views.stored(&["page"]).await.unwrap(), [None]);
    }
    // one batch is in flight, and the copy also lacks the earlier ones
    views.count("page", 1).await;
    assert!(matches!(
        Partition::new(pair.redis.manager().await, views.family(), 0)
            .rotate(views.family(), "", None, Cut::Now)
            .await
            .unwrap(),
        RotateReply::Batch(_)
    ));
    assert_eq!(views.value("page").await, 4);
}

/// Redis was emptied. Before the first batch of the new incarnation no copy has a row of it in the
/// ledger, whether or not the copy has the last batches of the old one.
#[tokio::test]
async fn an_exact_read_of_a_new_incarnation_does_not_trust_a_replica() {
    let (pair, behind) = (Pair::new().await, Pair::new().await);
    let (counterfoil, views) = with_replica(&pair, &behind).await;
    views.count("page", 3).await;
    counterfoil.drained().await;
    pair.redis.does("FLUSHALL").await;
    counterfoil.drained().await;
    assert_eq!(views.value("page").await, 3);
    views.count("page", 1).await;
    assert_eq!(views.value("page").await, 4);
    let partition = Partition::new(pair.redis.manager().await, views.family(), 0);
    let rotated = partition.rotate(views.family(), "", None, Cut::Now).await;
    assert!(matches!(rotated.unwrap(), RotateReply::Batch(_)));
    assert_eq!(views.value("page").await, 4);
}

/// Another caller cuts every batch, as reconcilers do that are faster. What was counted before the
/// drain is in the second batch that it finds, so it does not wait for one of its own.
#[tokio::test]
async fn a_drain_ends_although_others_cut_every_batch() {
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    let partition = Partition::new(pair.redis.manager().await, views.family(), 0);
    let cut = async || {
        let cut = partition.rotate(views.family(), "", None, Cut::Now).await;
        match cut.unwrap() {
            RotateReply::Batch(batch) => batch.id.seq,
            other => panic!("{other:?}"),
        }
    };
    let others = async {
        loop {
            views.count("page", 1).await;
            cut().await;
        }
    };
    let drains = async {
        for _ in 0..30 {
            views.count("page", 1).await;
            let before = cut().await;
            pair.drain().await;
            let after = cut().await;
            assert!(after <= before + 3, "batches {before} to {after}");
        }
    };
    tokio::select! {
        () = drains => {}
        () = others => {}
    }
}

/// The ids fill more than one page, some in MySQL and some in Redis.
#[tokio::test]
async fn all_ids_come_as_a_stream() {
    let (pair, views) = Pair::of(family("views")).await;
    assert_eq!(views.list_all("page/").count().await, 0);
    let ids = |from, to| (from..to).map(|number| (format!("page/{number:04}"), 1));
    let add = async |ids: Vec<(String, i64)>| {
        let added = views.add_many(ids).await.into_iter();
        added.for_each(|added| assert!(counted(added.unwrap()) > 0));
    };
    add(ids(0, 1_500).collect()).await;
    pair.drain().await;
    add(ids(1_000, 2_100).chain([("other".to_owned(), 1)]).collect()).await;
    let found: Vec<_> = views.list_all("page/").try_collect().await.unwrap();
    let twice = 1_000..1_500;
    assert!(found.into_iter().eq((0..2_100).map(|number| {
        let value = if twice.contains(&number) { 2 } else { 1 };
        (format!("page/{number:04}"), value)
    })));
    let hasty = pair.counterfoil.clone().read_timeout(millis(50));
    let hasty = hasty.opened(family("views")).await;
    pair.redis.kill();
    let mut ended = hasty.list_all("page/");
    assert!(ended.next().await.unwrap().unwrap_err().is_retryable());
    assert!(ended.next().await.is_none());
}

#[tokio::test]
async fn check_reports_how_durable_redis_is() {
    let (pair, _views) = Pair::of(family("views")).await;
    let mut redis = pair.redis.manager().await;
    for (settings, expected) in [
        // the tests' private Redis persists nothing
        (&[][..], Some(Severity::Warning)),
        (&[("save", "3600 1")], Some(Severity::Warning)),
        (&[("appendonly", "yes"), ("appendfsync", "always")], None),
        (&[("appendfsync", "everysec")], Some(Severity::Warning)),
    ] {
        for (name, value) in settings {
            cmd("CONFIG")
                .arg(&["SET", *name, *value])
                .exec_async(&mut redis)
                .await
                .unwrap();
        }
        assert_eq!(
            pair.check()
                .await
                .into_iter()
                .find(|finding| finding.subject == "redis persistence")
                .map(|finding| finding.severity),
            expected,
            "{settings:?}"
        );
    }
}

/// Only Redis knows the visitors of a day.
#[tokio::test]
async fn check_reports_visitors_that_are_counted_again_without_persistence() {
    let pair = Pair::new().await;
    let visitors = Family::visitors("test", "visitors").at_once();
    let visitors = pair.open(visitors).await;
    let findings = pair.check().await;
    let words = ["redis persistence: ", "test/visitors counts them again"];
    assert_found(&findings, Severity::Error, &words);
    let day = day("2014-09-20");
    let visit = async || visitors.first_visit("shop", day, "visitor").await;
    assert_eq!(visit().await.unwrap(), Outcome::Counted(1));
    pair.drain().await;
    pair.redis.kill();
    pair.redis.start_again().await;
    // the first call may find a broken connection and a lost epoch
    let again = loop {
        if let Ok(outcome) = visit().await {
            break outcome;
        }
    };
    assert_eq!(again, Outcome::Counted(1));
    // as check and the README say
    assert_eq!(visitors.get("shop", day).await.unwrap(), 2);
}

/// By default Redis has snapshots and no append-only file.
#[tokio::test]
async fn starting_warns_where_a_crash_can_double_counts() {
    for (aof, has_visitors, warnings) in [("no", true, 1), ("yes", true, 0), ("no", false, 0)] {
        let pair = Pair::with(
            RedisOptions::volatile()
                .arg("appendonly", aof)
                .arg("save", "3600 1 300 100 60 10000"),
        )
        .await;
        if has_visitors {
            pair.open(Family::visitors("test", "visitors")).await;
        }
        let log = Log::begin();
        pair.reconcile().await.stop().await;
        let found = log.lines("WARN", "visitors counts them again");
        assert_eq!(
            found.len(),
            warnings,
            "appendonly {aof}, visitors: {has_visitors}: {found:?}"
        );
    }
}

#[tokio::test]
async fn an_error_names_the_address() {
    let pair = Pair::new().await;
    let redis = "redis+unix:///nonexistent/redis.sock";
    let mysql = "mysql://root:secret@localhost/x?socket=/nonexistent/mysql.sock";
    for (redis, kind, text) in [
        (redis, ErrorKind::Redis, "/nonexistent/redis.sock"),
        (
            &*pair.redis.url(),
            ErrorKind::Store,
            "/nonexistent/mysql.sock",
        ),
        ("http://localhost", InvalidInput, ""),
    ] {
        let error = refused(Counterfoil::connect(redis, mysql).await, kind, text);
        assert!(!format!("{error:#}").contains("secret"), "{error}");
    }
}

/// Enough hits that arrive while a batch of their partition settles are saved next, before
/// `sync_time` has passed.
#[tokio::test]
async fn hits_that_are_due_during_a_flush_are_saved_after_it() {
    let views = family("views").partitions(1).sync_time(secs(600));
    let (pair, views) = Pair::of(views.settle(300)).await;
    let reconciler = pair.reconcile().await;
    views.count("page", 1).await;
    let cut = "EXISTS cf1:{test/views/0}:batch";
    eventually("a cut", async || pair.command::<i64>(cut).await == 1).await;
    views.count("page", 1).await;
    pair.arrives(2).await;
    reconciler.stop().await;
}

#[tokio::test]
async fn a_leased_partition_is_left_alone_however_many_hits_are_due() {
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    views.count("page", 1).await;
    let partition = Partition::new(pair.redis.manager().await, views.family(), 0);
    let elsewhere = Lease {
        owner: "elsewhere",
        time: secs(1),
    };
    partition
        .rotate(views.family(), "", Some(elsewhere), Cut::Now)
        .await
        .unwrap();
    let reconciler = pair.reconcile().await;
    // a rotation asks for the time, a hit in a buffer that is not empty does not
    let rotations = async || calls(&pair.redis, "time").await;
    let (before, started, mut hits) = (rotations().await, Instant::now(), 0);
    while started.elapsed() < millis(700) {
        views.count("page", 1).await;
        hits += 1;
    }
    let rotations = rotations().await - before;
    assert!(rotations < 20, "{rotations} rotations beside {hits} hits");
    // with the batch of the owner that died
    pair.arrives(hits + 1).await;
    reconciler.stop().await;
}

/// A client in another language is configured with 16 partitions for a family that has 8. A
/// cluster cannot refuse its hits until a reconciler has checked: the reconciler brings them to the
/// database.
#[tokio::test]
async fn a_client_configured_with_another_partition_count_is_refused_and_loses_nothing() {
    let pair = Pair::new().await;
    let wrong = family("views").partitions(16).build().unwrap();
    let redis = pair.redis.manager().await;
    let [home, stray] = [0, 12].map(|number| Partition::new(redis.clone(), &wrong, number));
    let begun = epoch(&stray, &wrong).await.unwrap();
    let add = async |n| {
        let fence = Fence {
            home: stray.keys(),
            caller: "elsewhere",
            n,
            epoch: &begun,
        };
        stray.add(&wrong, fence, 1, [("page", 3)]).await.unwrap()
    };
    assert!(matches!(add(1).await, CallReply::Executed { .. }));

    let views = pair.open(family("views").partitions(8)).await;
    let text = "8 partitions, not buffered with 16";
    refused(epoch(&home, &wrong).await, Mismatch, text);
    assert!(epoch(&home, views.family()).await.is_ok());
    views.count("page", 1).await;
    let reconciler = pair.reconcile().await;
    pair.arrives(4).await;
    assert_eq!(views.value("page").await, 4);
    // from here on it is refused
    assert_eq!(add(2).await, CallReply::Expired);
    refused(epoch(&stray, &wrong).await, Mismatch, "");
    reconciler.stop().await;
}

#[tokio::test]
async fn a_key_of_another_type_is_named() {
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    let key = "cf1:{test/views/0}:meta";
    pair.command::<()>(&format!("SET {key} x")).await;
    refused(views.add("page", 1).await, Corrupt, key);
    refused(views.get("page").await, Corrupt, key);
    // nothing is pending
    pair.drain().await;
}

/// Pending ids are listed beside any number of others, with those that are stored.
#[tokio::test]
async fn a_page_of_a_listing_beside_many_pending_ids() {
    const MANY: usize = 100_000;
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    views.count("page/0000007", 1).await;
    pair.drain().await;
    views.count("page/0000000", 1).await;
    let fill = "for number = ARGV[1] + 1, ARGV[1] + 1000 do \
                redis.call('HSET', KEYS[1], string.format('page/%07d', number), '2') end";
    let (buffer, mut redis) = ("cf1:{test/views/0}:buffer", pair.redis.manager().await);
    for after in (0..MANY).step_by(1000) {
        let mut some = cmd("EVAL");
        some.arg(fill).arg(1).arg(buffer).arg(after);
        some.exec_async(&mut redis).await.unwrap();
    }
    let page = |numbers: std::ops::Range<usize>| -> Vec<_> {
        let value = |number| match number {
            0 => 1,
            7 => 3,
            _ => 2,
        };
        let entry = |number| (format!("page/{number:07}"), value(number));
        numbers.map(entry).collect()
    };
    // less than a scan of all takes on most machines
    let views = views.read_timeout(secs(1));
    assert_eq!(views.list("page/", None, 20).await.unwrap(), page(0..20));
    let last = page(0..MANY - 5).pop().unwrap().0;
    let found = views.list("page/", Some(&last), 20).await.unwrap();
    assert_eq!(found, page(MANY - 5..MANY + 1));
    assert_eq!(
        views.list("page/00000", None, 200).await.unwrap(),
        page(0..100)
    );
    assert_eq!(views.list("none/", None, 20).await.unwrap(), []);
}

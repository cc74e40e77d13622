//! The removal of families that are no longer used.

use counterfoil::recount::{Rows, Source};

use crate::support::*;

/// Makes the last epoch of every family old.
async fn age(pair: &Pair) {
    for calls in pair.command::<Vec<String>>("KEYS *:calls").await {
        let _: i64 = pair.command(&format!("HSET {calls} =began_at 1000")).await;
    }
}

/// Returns the keys in Redis that do not expire.
async fn lasting(pair: &Pair) -> BTreeSet<String> {
    let mut lasting = BTreeSet::new();
    for key in pair.command::<Vec<String>>("KEYS *").await {
        if pair.command::<i64>(&format!("PTTL {key}")).await == -1 {
            lasting.insert(key);
        }
    }
    lasting
}

/// Returns the number of rows in counterfoil's tables, without those that stay: of the ledger, and
/// of families that were removed.
async fn rows(pair: &Pair) -> i64 {
    let mut rows = 0;
    for table in [
        "families WHERE state <> 'removed'",
        "values",
        "rejects",
        "recounts",
        "drift",
    ] {
        let count = format!("SELECT COUNT(*) FROM counterfoil_{table}");
        rows += pair.number(&count).await;
    }
    rows
}

#[tokio::test]
async fn a_family_that_is_used_or_has_pending_hits_stays() {
    let pair = Pair::new().await;
    let unknown = family("views").build().unwrap();
    refused(pair.remove(&unknown).await, InvalidInput, "not registered");
    for kind in KINDS {
        let opened = OfKind::open(&pair, kind).await.unwrap();
        opened.use_all().await.unwrap();
        let family = kinds::family(kind);
        refused(pair.remove(&family).await, Busy, "a process used it");
        age(&pair).await;
        refused(pair.remove(&family).await, Busy, "hits are pending");
        pair.drain().await;
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_family_but_what_expires() {
    let (pair, other) = Pair::of(family("views-of-products")).await;
    other.count("a", 7).await;
    pair.drain().await;
    let before = (lasting(&pair).await, rows(&pair).await);
    for kind in KINDS {
        let process = pair.other().await;
        let opened = OfKind::open(&process, kind).await.unwrap();
        opened.use_all().await.unwrap();
        process.drain().await.unwrap();
        age(&pair).await;
        pair.remove(&kinds::family(kind)).await.unwrap();
        assert_eq!((lasting(&pair).await, rows(&pair).await), before, "{kind}");
        refused(pair.remove(&kinds::family(kind)).await, InvalidInput, "");
    }
    assert_eq!(other.value("a").await, 7);
    // they begin anew; windows of activity expire
    for kind in KINDS
        .into_iter()
        .filter(|kind| !kind.starts_with("activity"))
    {
        let again = OfKind::open(&pair.other().await, kind).await.unwrap();
        assert_eq!(again.shown().await.unwrap(), 0, "{kind}");
    }
    let again = OfKind::open(&pair.other().await, "buffered").await.unwrap();
    again.hit().await.unwrap();
    assert_eq!(again.shown().await.unwrap(), 1);
}

#[tokio::test]
async fn an_interrupted_removal_is_repeated() {
    let (pair, views) = Pair::of(family("views")).await;
    views.count("a", 7).await;
    pair.drain().await;
    age(&pair).await;
    pair.sql("RENAME TABLE counterfoil_drift TO hidden").await;
    assert!(pair.remove(views.family()).await.is_err());
    pair.sql("RENAME TABLE hidden TO counterfoil_drift").await;
    let again = pair.other().await.open(family("views")).await;
    refused(again, Mismatch, "its removal was interrupted");
    pair.remove(views.family()).await.unwrap();
    assert_eq!(
        (lasting(&pair).await, rows(&pair).await),
        (BTreeSet::new(), 0)
    );
}

/// The hits wait for the family that is opened next: neither it nor the removal waits for the other.
#[tokio::test]
async fn an_interrupted_removal_is_repeated_though_hits_were_counted_since() {
    let (pair, views) = Pair::of(family("views")).await;
    age(&pair).await;
    pair.sql("RENAME TABLE counterfoil_drift TO hidden").await;
    assert!(pair.remove(views.family()).await.is_err());
    pair.sql("RENAME TABLE hidden TO counterfoil_drift").await;
    views.count("a", 7).await;
    pair.remove(views.family()).await.unwrap();
    let process = pair.other().await;
    let views = process.opened(family("views")).await;
    process.drained().await;
    assert_eq!(views.stored(&["a"]).await.unwrap(), [Some(7)]);
}

/// Returns a family with a reject and without pending hits.
async fn with_a_reject() -> (Pair, BufferedCounters) {
    let pair = Pair::new().await;
    let table = pair.sales(Table::update).await;
    let views = pair.open(family("views").table(table)).await;
    views.count("no-row", 5).await;
    pair.drain().await;
    age(&pair).await;
    (pair, views)
}

/// A reject is an acknowledged hit, which only its row may get.
#[tokio::test]
async fn a_family_with_a_reject_stays_until_it_is_applied_or_discarded() {
    let (pair, views) = with_a_reject().await;
    let before = (lasting(&pair).await, rows(&pair).await);
    for _ in 0..2 {
        refused(pair.check_removal(views.family()).await, Busy, "1 reject");
        refused(pair.remove(views.family()).await, Busy, "1 reject");
    }
    assert_eq!((lasting(&pair).await, rows(&pair).await), before);
    pair.sql("INSERT INTO sales (id) VALUES ('no-row')").await;
    let mysql = pair.mysql();
    assert_eq!(retry_all(mysql, views.family()).await, (1, 0, 0));
    pair.remove(views.family()).await.unwrap();
    assert_eq!(pair.number("SELECT n FROM sales").await, 5);
}

/// A removal waits for a batch that is being applied, which may leave a reject. Redis was emptied
/// and no longer shows the batch.
#[tokio::test]
async fn a_reject_that_a_batch_leaves_during_a_removal_stays() {
    let (pair, views) = with_a_reject().await;
    let name = views.family().to_string();
    let discarded = pair.mysql().discard_rejects(&name, None).await;
    assert_eq!(discarded.unwrap(), 1);
    pair.sql("CREATE TRIGGER late BEFORE INSERT ON counterfoil_rejects FOR EACH ROW SET @late = SLEEP(0.5)")
        .await;
    views.count("no-row", 5).await;
    let remove = async {
        sleeping(&pair.pool).await;
        pair.redis.does("FLUSHALL").await;
        pair.remove(views.family()).await
    };
    let (removed, _) = tokio::join!(remove, pair.counterfoil.drain());
    refused(removed, Busy, "1 reject");
    // the family may still be used
    views.count("no-row", 5).await;
    pair.drain().await;
    assert_eq!(pair.mysql().latest_rejects(9).await.unwrap()[0].delta, 10);
}

/// A Redis that is restored to a state from before the removal has hits that are in the table.
#[tokio::test]
async fn a_restored_redis_counts_nothing_again_after_a_removal() {
    let pair = Pair::new().await;
    let table = pair.sales(Table::upsert).await;
    let sales = || family("views").table(table.clone());
    let views = pair.open(sales()).await;
    views.count("a", 5).await;
    pair.redis.does("SAVE").await;
    pair.drain().await;
    age(&pair).await;
    pair.remove(views.family()).await.unwrap();
    let process = pair.other().await;
    process.opened(sales()).await.count("a", 1).await;
    process.drained().await;
    pair.redis.kill();
    pair.redis.start_again().await;
    let process = pair.other().await;
    process.opened(sales()).await;
    let reconciler = process.reconciler().start().await.unwrap();
    pause(500).await;
    reconciler.stop().await;
    process.drained().await;
    assert_eq!(pair.number("SELECT n FROM sales").await, 6);
}

/// A reconciler that was suspended meanwhile leaves later hits to a process that opens the family.
#[tokio::test]
async fn a_reconciler_does_not_undo_a_removal() {
    let pair = Pair::new().await;
    let server = pair.other().await;
    let views = pair.open(family("views")).await;
    let _running = server.reconciler().all().start().await.unwrap();
    let served = async || server.backlogs().await.unwrap().len() == 1;
    eventually("it serves the family", served).await;
    views.count("a", 7).await;
    server.drain().await.unwrap();
    age(&pair).await;
    pair.other().await.remove(views.family()).await.unwrap();
    views.count("a", 1).await;
    refused(server.drain().await, Mismatch, "was removed");
    assert_eq!(rows(&pair).await, 0);
    pair.other().await.opened(family("views")).await;
    server.drain().await.unwrap();
    assert_eq!(views.value("a").await, 1);
}

/// Opens a family, removes it, and registers it anew with another table. Returns the process that
/// still knows the first one, and the new one's counters.
async fn registered_anew() -> (Pair, Counterfoil, BufferedCounters) {
    let pair = Pair::new().await;
    let suspended = pair.other().await;
    let views = suspended.opened(family("views")).await;
    age(&pair).await;
    pair.remove(views.family()).await.unwrap();
    let table = pair.sales(Table::update).await;
    let views = pair.open(family("views").table(table)).await;
    (pair, suspended, views)
}

#[tokio::test]
async fn a_suspended_process_does_not_apply_rejects_to_the_table_of_a_former_family() {
    let (pair, suspended, views) = registered_anew().await;
    views.count("a", 5).await;
    pair.drain().await;
    let reconciler = suspended.reconciler().start().await.unwrap();
    let fails = async || {
        let failing = reconciler.failing();
        failing.iter().any(|one| one.step == "retry of rejects")
    };
    eventually("the retry fails", fails).await;
    reconciler.stop().await;
    assert_eq!(pair.stored().await, 0);
    pair.sql("INSERT INTO sales (id) VALUES ('a')").await;
    let retried = retry_all(pair.mysql(), views.family()).await;
    assert_eq!(retried, (1, 0, 0));
    assert_eq!(pair.number("SELECT n FROM sales").await, 5);
}

/// A recount that goes on during a removal, or begins after it, leaves no counters to a later family
/// of that name.
#[tokio::test]
async fn a_removed_family_is_not_recounted() {
    let (pair, saves) = Pair::of(family("saves")).await;
    let source = Source::function(|_| async { Ok(HashMap::from([("1".to_owned(), 5)])) });
    let recount = pair
        .counterfoil
        .recount(&saves, Rows::Added)
        .source(source)
        .within(millis(20));
    let steps = recount.clone().steps().unwrap();
    let run = steps.take().await.unwrap().unwrap();
    let before = steps.before(vec!["1".to_owned()], None).await.unwrap();
    let page = steps.count(before).await.unwrap();
    let difference = steps.after(&page).await.unwrap();
    pair.sql("UPDATE counterfoil_families SET state = 'removing'")
        .await;
    let corrected = steps.settle(&run, &difference).await;
    refused(corrected, Mismatch, "is not registered as number 1");
    assert_eq!(pair.stored().await, 0);
    age(&pair).await;
    pair.other().await.remove(saves.family()).await.unwrap();
    let recounted = recount.run_once().await;
    refused(recounted, Mismatch, "is not registered as number 1");
    assert_eq!(rows(&pair).await, 0);
}

/// Partitions beyond the family's number keep a fence from when it had more.
#[tokio::test]
async fn a_family_that_had_more_partitions_is_created_again() {
    let (pair, views) = Pair::of(family("views").partitions(8)).await;
    for id in 0..30 {
        views.count(&id.to_string(), 1).await;
    }
    pair.drain().await;
    let fewer = family("views").partitions(2).build().unwrap();
    pair.reconfigure(&fewer).await.unwrap();
    age(&pair).await;
    pair.remove(&fewer).await.unwrap();
    assert_eq!(lasting(&pair).await, BTreeSet::new());
    let again = pair
        .other()
        .await
        .opened(family("views").partitions(8))
        .await;
    for id in 0..30 {
        again.count(&id.to_string(), 1).await;
    }
}

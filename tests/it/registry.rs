//! Families that a process serves or changes without having opened them, as registered in the
//! database.

use counterfoil::recount::{Rows, Source};

use crate::support::*;

const MOMENT: Duration = millis(20);
const HOUR: Duration = secs(3600);

/// Returns the sum of the family's values in the database.
async fn stored(pair: &Pair, name: &str) -> i64 {
    let values = "counterfoil_values JOIN counterfoil_families ON number = family";
    pair.number(&format!(
        "SELECT SUM(value) FROM {values} WHERE name = '{name}'"
    ))
    .await
}

async fn text(pair: &Pair, select: &'static str) -> String {
    let text = sqlx::query_scalar(select).fetch_one(&pair.pool);
    text.await.unwrap()
}

async fn arrives(pair: &Pair, name: &str, sum: i64) {
    eventually(name, async || stored(pair, name).await == sum).await;
}

#[tokio::test]
async fn a_process_that_opened_nothing_serves_all_kinds() {
    const GONE: &str = "CREATE TABLE gone (id INT PRIMARY KEY, n INT NOT NULL)";
    let pair = Pair::new().await;
    pair.sql(GONE).await;
    pair.sql("CREATE TABLE item LIKE gone; INSERT INTO item VALUES (1, 0)")
        .await;
    let gone = keyed(Table::upsert("gone"), [("id", Signed)]);
    let gone = pair.open(family("gone").table(gone)).await;
    let views = pair.open(family("views").wide(true)).await;
    let votes = votes()
        .sync_time(MOMENT)
        .max(2)
        .table(keyed(Table::update("item"), [("id", Signed)]));
    let votes = pair.open(votes).await;
    let hits = Family::series("test", "hits")
        .windows([(Precision::SECOND, 9), (Precision::Day, 3)])
        .keep([Precision::SECOND])
        .at_once()
        .sync_time(MOMENT)
        .time_zone("Europe/Berlin");
    let hits = pair.open(hits).await;
    let online = Family::activity("test", "online")
        .at_once()
        .keep_minutes(true)
        .stripes(3);
    let online = pair.open(online).await;
    let visitors = Family::visitors("test", "visitors").at_once();
    let visitors = pair.open(visitors).await;
    for number in 0..3 {
        gone.count("1", 1).await;
        views.count("page", 1).await;
        let _ = votes.incr("1", 1).await.unwrap();
        hits.count("page", 1).await;
        online.touch("page", "visitor").await.unwrap();
        let visitor = format!("visitor {number}");
        let _ = visitors
            .first_visit("shop", day("2014-09-20"), visitor)
            .await
            .unwrap();
    }
    pair.sql("DROP TABLE gone").await;

    let other = pair.other().await;
    let _running = other.reconciler().all().start().await.unwrap();
    for name in ["views", "hits", "visitors"] {
        arrives(&pair, name, 3).await;
    }
    let saved = async || pair.number("SELECT n FROM item").await == 2;
    eventually("votes", saved).await;
    // it waits by itself
    assert_eq!(gone.pending(&["1"]).await.unwrap(), [3]);
    pair.sql(GONE).await;
    other.drain().await.unwrap();
    let kept = stored(&pair, "online").await;
    assert!(
        (4..=5).contains(&kept),
        "3 views and the visitor, who counts again in another minute: {kept}"
    );
    assert_eq!(pair.number("SELECT n FROM gone").await, 3);
}

#[tokio::test]
async fn later_or_changed_families_are_served_and_an_open_one_keeps_its_settings() {
    let pair = Pair::new().await;
    let other = pair.other().await;
    let rare = |name, time| family(name).sync_hits(1000).sync_time(time);
    let _own = other.opened(rare("own", MOMENT)).await;
    let own = pair.open(rare("own", HOUR)).await;
    let slow = pair.open(rare("slow", HOUR)).await;
    let foreign = pair.open(Family::buffered("foreign", "foreign")).await;
    for views in [&own, &slow, &foreign] {
        views.count("page", 1).await;
    }
    let _running = other.reconciler().namespace("test").start().await.unwrap();
    // the very first hit is due at once, the next ones are not
    arrives(&pair, "slow", 1).await;
    arrives(&pair, "own", 1).await;
    slow.count("page", 1).await;
    pair.open(family("later")).await.count("page", 1).await;
    arrives(&pair, "later", 1).await;
    // as it was opened
    assert_eq!(stored(&pair, "slow").await, 1);
    own.count("page", 1).await;
    arrives(&pair, "own", 2).await;
    pair.open(family("slow").sync_hits(1).sync_time(MOMENT))
        .await;
    arrives(&pair, "slow", 2).await;
    // another namespace
    assert_eq!(stored(&pair, "foreign").await, 0);
}

#[tokio::test]
async fn partitions_change_once_nothing_is_pending() {
    let pair = Pair::new().await;
    let [of_4, of_16] = [4, 16].map(|partitions| family("views").partitions(partitions));
    let before = pair.open(of_4.clone()).await;
    let ids = pages(40);
    for id in &ids {
        assert_eq!(before.count(id, 1).await, 1);
    }
    let operator = pair.other().await;
    let to_16 = of_16.build().unwrap();
    refused(operator.reconfigure(&to_16).await, Busy, "");
    before.count("page/0", 1).await;
    pair.drain().await;
    operator.reconfigure(&to_16).await.unwrap();
    // Redis and the database refuse a client with the old number, and it does not restore that
    // number
    refused(before.add("page/0", 1).await, Mismatch, "");
    let _old = pair.reconcile().await;
    refused(pair.counterfoil.open(of_4.clone()).await, Mismatch, "");
    pause(500).await;
    let home = "HGET cf1:{test/views/0}:calls =partitions";
    assert_eq!(pair.command::<String>(home).await, "16");
    let after = operator.opened(of_16).await;
    for id in &ids {
        assert_eq!(after.count(id, 1).await, 1);
    }
    operator.drained().await;
    assert_eq!(stored(&pair, "views").await, 81);
    assert_eq!(after.value("page/0").await, 3);
    // and back
    operator.reconfigure(&of_4.build().unwrap()).await.unwrap();
    refused(after.add("page/0", 1).await, Mismatch, "");
    assert_eq!(before.count("page/0", 1).await, 1);
}

/// Redis has the new number, and the database does not get it. A reconciler restores the old one.
#[tokio::test]
async fn an_interrupted_change_of_partitions_is_taken_back() {
    let pair = Pair::new().await;
    let [of_4, of_16] = [4, 16].map(|partitions| family("views").partitions(partitions));
    let views = pair.open(of_4).await;
    pair.sql("CREATE TRIGGER stuck BEFORE UPDATE ON counterfoil_families FOR EACH ROW SIGNAL SQLSTATE '45000'")
        .await;
    let operator = pair.other().await;
    let changed = operator.reconfigure(&of_16.build().unwrap()).await;
    assert!(changed.is_err());
    refused(views.add("a", 1).await, Mismatch, "");
    let _reconciler = pair.reconcile().await;
    eventually("the old number is back", async || {
        views.add("a", 1).await.is_ok()
    })
    .await;
    assert_eq!(views.value("a").await, 1);
}

/// A process reads the registration before the change, and would write its settings after it.
#[tokio::test]
async fn a_process_that_opens_a_family_during_a_change_writes_no_old_settings() {
    let pair = Pair::new().await;
    let [of_4, of_16] = [4, 16].map(|partitions| family("views").partitions(partitions));
    pair.open(of_4.clone()).await;
    let mut change = pair.pool.begin().await.unwrap();
    let after = of_16.build().unwrap().settings();
    sqlx::query("UPDATE counterfoil_families SET partitions = 16, settings = ?")
        .bind(after)
        .execute(&mut *change)
        .await
        .unwrap();
    let process = pair.other().await;
    let commit = async {
        pause(300).await;
        change.commit().await.unwrap();
    };
    let (opened, ()) = tokio::join!(process.open(of_4.sync_time(secs(7))), commit);
    refused(opened, Mismatch, "partitions is \"16\"");
    let listed = pair.store().families().await.unwrap();
    assert!(listed.iter().all(|(_, one)| one.is_ok()), "{listed:?}");
}

/// A process with the old number counts before one step of the change, whichever it is.
#[tokio::test]
async fn a_hit_before_any_step_of_a_change_of_partitions_is_kept_or_refused() {
    let pair = Pair::new().await;
    let (mut kept, mut refused) = (0, 0);
    for step in 0.. {
        let [of_4, of_7] = [4, 7].map(|partitions| {
            let name = format!("views-{step}");
            family(&name).partitions(partitions)
        });
        let [four, seven] = [&of_4, &of_7].map(|one| one.clone().build().unwrap());
        let moves = |id: &String| four.partition_of(id) != seven.partition_of(id);
        let id = pages(20).into_iter().find(moves).unwrap();
        let before = pair.open(of_4).await;
        before.count(&id, 1).await;
        pair.drain().await;
        let (late, late_id) = (before.clone(), id.clone());
        let (steps, hits) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (at, counted) = (steps.clone(), hits.clone());
        let connection = interposed(&pair.redis, move |_| {
            let (late, id, counted) = (late.clone(), late_id.clone(), counted.clone());
            let is_step = at.fetch_add(1, Ordering::Relaxed) == step;
            async move {
                if is_step && late.add(&id, 2).await.is_ok() {
                    counted.store(2, Ordering::Relaxed);
                }
                Ok(())
            }
        });
        let operator = pair.over(connection.await);
        let result = operator.reconfigure(&seven).await;
        if steps.load(Ordering::Relaxed) <= step {
            break;
        }
        let mut sum = 1 + hits.load(Ordering::Relaxed) as i64;
        let counters = match result {
            Ok(()) => {
                refused += usize::from(sum == 1);
                operator.opened(of_7).await
            }
            Err(error) => {
                assert_eq!(error.kind(), Busy, "step {step}: {error:#}");
                kept += 1;
                before.count(&id, 3).await;
                sum += 3;
                before
            }
        };
        assert_eq!(counters.value(&id).await, sum, "step {step}");
    }
    assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused");
}

/// A process with the old number opens the family between two steps of the change, and counts.
#[tokio::test]
async fn a_hit_that_arrives_while_partitions_change_is_kept() {
    let pair = Pair::new().await;
    let of_4 = || votes().partitions(4);
    pair.open(of_4()).await.count("item", 1).await;
    pair.drain().await;
    let (late, steps) = (pair.other().await, AtomicU64::new(0));
    let steps = Arc::new(steps);
    let connection = interposed(&pair.redis, move |cmd| {
        let late = late.clone();
        // the first step that touches cached counters
        let is_first = mentions(cmd, ":base") && steps.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            if is_first {
                late.opened(of_4()).await.count("item", 2).await;
            }
            Ok(())
        }
    });
    let operator = pair.over(connection.await);
    let to_7 = votes().partitions(7).build().unwrap();
    refused(operator.reconfigure(&to_7).await, Busy, "");
    assert_eq!(pair.open(of_4()).await.value("item").await, 3);
    pair.drain().await;
    operator.reconfigure(&to_7).await.unwrap();
    let votes = operator.opened(votes().partitions(7)).await;
    assert_eq!(votes.value("item").await, 3);
}

/// A process with the former number that was not stopped leaves a counter in a partition which the
/// family gets again.
#[tokio::test]
async fn a_cached_counter_that_was_read_with_a_former_number_is_not_found_again() {
    let pair = Pair::new().await;
    let [of_7, of_1] = [7, 1].map(|partitions| votes().partitions(partitions));
    let [seven, one] = [&of_7, &of_1].map(|votes| votes.clone().build().unwrap());
    let id = &ids_of(&seven, 3, 1)[0];
    let former = pair.open(of_7.clone()).await;
    former.count(id, 1).await;
    pair.drain().await;
    let operator = pair.other().await;
    operator.reconfigure(&one).await.unwrap();
    assert_eq!(former.value(id).await, 1);
    operator.opened(of_1).await.count(id, 1).await;
    operator.drained().await;
    operator.reconfigure(&seven).await.unwrap();
    assert_eq!(pair.other().await.opened(of_7).await.value(id).await, 2);
}

#[tokio::test]
async fn durability_and_bounds_change_at_any_time_and_nothing_else_does() {
    let pair = Pair::new().await;
    let reconfigure = async |family: Family| pair.reconfigure(&family).await;
    let views = pair.open(family("views")).await;
    views.count("page", 1).await;
    let settling = || family("views").durability(Durability::Settle(MOMENT));
    reconfigure(settling().build().unwrap()).await.unwrap();
    refused(pair.counterfoil.open(family("views")).await, Mismatch, "");
    let views = pair.open(settling()).await;
    pair.drain().await;
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(1)]);

    let _votes = pair.open(votes().min(0)).await;
    let wider = votes().min(-2);
    refused(pair.counterfoil.open(wider.clone()).await, Mismatch, "");
    reconfigure(wider.build().unwrap()).await.unwrap();
    assert_eq!(pair.open(wider).await.count("item", -1).await, -1);

    let hits = |partitions| Family::series("test", "hits").partitions(partitions);
    let _hits = pair.open(hits(4)).await;
    for (wrong, text) in [
        (settling().wide(true).build(), "wide"),
        (family("votes").build(), "kind"),
        (hits(8).build(), "another name"),
        (family("unknown").build(), "not registered"),
    ] {
        refused(reconfigure(wrong.unwrap()).await, InvalidInput, text);
    }
}

/// Kinds whose partitions hold windows or visitors change as docs/operations.md describes: a family
/// of another name uses the same table.
#[tokio::test]
async fn other_kinds_change_their_partitions_under_another_name() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE page_days (day DATE, page VARBINARY(200), n BIGINT NOT NULL, PRIMARY KEY (day, page));
         CREATE TABLE visitors (store INT UNSIGNED, day DATE, n BIGINT NOT NULL, PRIMARY KEY (store, day))",
    )
    .await;
    let open = async |name: &str, partitions: u32| {
        let days = keyed(Table::upsert("page_days"), [("day", Date), ("page", Text)]);
        let hits = Family::series("test", format!("hits{name}"))
            .windows([(Precision::Day, 9)])
            .keep([Precision::Day])
            .table(days);
        let stores = keyed(
            Table::upsert("visitors"),
            [("store", Unsigned), ("day", Date)],
        );
        let visitors = Family::visitors("test", format!("visitors{name}")).table(stores);
        (
            pair.open(hits.at_once().partitions(partitions)).await,
            pair.open(visitors.at_once().partitions(partitions)).await,
        )
    };
    let (old_hits, old_visitors) = open("", 4).await;
    let (before, after) = (day("2014-09-20"), day("2014-09-21"));
    for number in 0..30 {
        let visitor = format!("visitor {number}");
        old_hits.count(&format!("page/{}", number % 5), 1).await;
        let _ = old_visitors
            .first_visit("1", before, &visitor)
            .await
            .unwrap();
    }
    pair.drain().await;
    let (hits, visitors) = open("-9", 9).await;
    for number in 0..50 {
        let visitor = format!("visitor {number}");
        hits.count(&format!("page/{}", number % 5), 1).await;
        // the day before is not over everywhere, and most visitors are already counted
        let expected = match number {
            ..30 => CountedBefore(0),
            _ => Counted(1),
        };
        assert_eq!(
            old_visitors
                .first_visit("1", before, &visitor)
                .await
                .unwrap(),
            expected
        );
        assert_eq!(
            visitors.first_visit("1", after, &visitor).await.unwrap(),
            Counted(1)
        );
    }
    pair.drain().await;
    for (sum, expected) in [
        ("SELECT SUM(n) FROM page_days", 80),
        ("SELECT n FROM visitors WHERE day = '2014-09-20'", 50),
        ("SELECT n FROM visitors WHERE day = '2014-09-21'", 50),
    ] {
        assert_eq!(pair.number(sum).await, expected, "{sum}");
    }
    let now = SystemTime::now();
    let two_days = now - 24 * HOUR..now + secs(1);
    for page in 0..5 {
        let page = format!("page/{page}");
        let days = hits.get_range(&page, Precision::Day, two_days.clone());
        // with what the family before counted
        assert_eq!(sum(&days.await.unwrap()), 16);
    }
    assert_eq!(visitors.get("1", before).await.unwrap(), 50);
}

/// A database that was replaced by one without the family's registration, in which another family
/// has its number.
#[tokio::test]
async fn a_family_that_the_database_lost_is_registered_again() {
    let (pair, views) = Pair::of(family("views").at_once()).await;
    let serving = pair.other().await;
    let reconciler = serving.reconciler().all().start().await.unwrap();
    let values = async |name: &str| {
        pair.number(&format!(
            "SELECT SUM(value) FROM counterfoil_values AS v JOIN counterfoil_families AS f \
             ON f.number = v.family WHERE f.name = '{name}'"
        ))
        .await
    };
    views.count("a", 1).await;
    eventually("the first hit", async || values("views").await == 1).await;
    pair.sql("UPDATE counterfoil_families SET name = 'other'")
        .await;
    views.count("a", 2).await;
    eventually("the second hit", async || values("views").await == 2).await;
    assert_eq!(values("other").await, 1);
    // without any family it has another id, and hits wait for the operator
    let id = "SELECT database_id FROM counterfoil_families LIMIT 1";
    let id: String = sqlx::query_scalar(id).fetch_one(&pair.pool).await.unwrap();
    pair.sql("DELETE FROM counterfoil_families").await;
    views.count("a", 4).await;
    let again = "SELECT COUNT(*) FROM counterfoil_families";
    eventually("a new id", async || pair.number(again).await == 1).await;
    let set = format!("UPDATE counterfoil_families SET database_id = '{id}'");
    pair.sql(&set).await;
    reconciler.stop().await;
    let process = pair.other().await;
    process.opened(family("views")).await;
    process.drained().await;
    assert_eq!(values("views").await, 4);
}

/// A reconciler that has not noticed a change of partitions is the first to miss the family in a database
/// that was set back.
#[tokio::test]
async fn a_family_that_the_database_lost_keeps_its_partitions() {
    let [of_2, of_3] = [2, 3].map(|partitions| family("views").partitions(partitions).at_once());
    let (pair, _other) = Pair::of(family("other")).await;
    pair.open(of_2).await;
    let serving = pair.other().await;
    let _reconciler = serving.reconciler().all().start().await.unwrap();
    let operator = pair.other().await;
    operator
        .reconfigure(&of_3.clone().build().unwrap())
        .await
        .unwrap();
    let views = operator.opened(of_3).await;
    pair.sql("DELETE FROM counterfoil_families WHERE name = 'views'")
        .await;
    let ids = pages(20);
    for id in &ids {
        views.count(id, 1).await;
    }
    pause(1_000).await;
    operator.drained().await;
    assert_eq!(stored(&pair, "views").await, 20);
    let partitions =
        "SELECT CAST(partitions AS SIGNED) FROM counterfoil_families WHERE name = 'views'";
    assert_eq!(pair.number(partitions).await, 3);
    views.count("page/0", 1).await;
    assert_eq!(views.value("page/0").await, 2);
}

/// A process that knows other settings than Redis is the first to miss the family in a database that was
/// set back.
#[tokio::test]
async fn a_family_that_the_database_lost_is_registered_as_redis_has_it() {
    let settle = Durability::Settle(secs(1));
    let views = || family("views").partitions(2).at_once();
    let shared = "SELECT CONCAT_WS(' ', kind, partitions, wide, durability, target, shape) \
                  FROM counterfoil_families WHERE name IN ('views', 'votes')";
    let of_redis: [Family; 4] = [
        views().build().unwrap(),
        views().build().unwrap(),
        views().build().unwrap(),
        votes().max(7).build().unwrap(),
    ];
    let others: [Family; 4] = [
        views().partitions(3).build().unwrap(),
        views().wide(true).build().unwrap(),
        views().durability(settle).build().unwrap(),
        votes().build().unwrap(),
    ];
    for (family_of_redis, other) in of_redis.into_iter().zip(others) {
        let (pair, _another) = Pair::of(family("another")).await;
        pair.open_any(family_of_redis.clone()).await.unwrap();
        let before = text(&pair, shared).await;
        pair.sql("DELETE FROM counterfoil_families WHERE name <> 'another'")
            .await;
        let opened = pair.other().await.open_any(other.clone()).await;
        refused(opened, Mismatch, "in the database, but this process has");
        assert_eq!(text(&pair, shared).await, before, "{other:?}");
        pair.other().await.open_any(family_of_redis).await.unwrap();
    }
}

/// Without other families, a database that was made anew has another id. Its families are its own.
#[tokio::test]
async fn a_new_database_registers_no_families_of_the_former_one() {
    let pair = Pair::new().await;
    pair.open(votes().max(7)).await;
    pair.sql("DELETE FROM counterfoil_families").await;
    let opened = pair.other().await.open(votes()).await;
    refused(
        opened,
        Mismatch,
        "its hits in this Redis go to the database",
    );
    assert_eq!(
        text(&pair, "SELECT shape FROM counterfoil_families").await,
        ""
    );
}

/// The process that recounts a family saves no batches, which would find the number.
#[tokio::test]
async fn a_recount_goes_on_under_the_new_number() {
    let (pair, _another) = Pair::of(family("another")).await;
    let saves = pair.open(family("saves")).await;
    let source = Source::function(|_| async { Ok(HashMap::from([("1".to_owned(), 5)])) });
    let recount = pair.counterfoil.recount(&saves, Rows::Added);
    let recount = recount.source(source).within(MOMENT).every(MOMENT..=MOMENT);
    let recounter = recount.start().unwrap();
    let runs = "SELECT COUNT(*) FROM counterfoil_recounts JOIN counterfoil_families ON number = family \
                WHERE name = 'saves' AND finished_at IS NOT NULL";
    let goes_on = async || {
        eventually("runs end", async || pair.number(runs).await > 1).await;
    };
    goes_on().await;
    pair.sql("UPDATE counterfoil_families SET name = CONCAT('other ', name)")
        .await;
    pair.other().await.opened(family("saves")).await;
    assert_eq!(pair.number(runs).await, 0);
    goes_on().await;
    recounter.shutdown().await.unwrap();
}

/// A backup was restored in which another family has the number. A process that only reads, and in which
/// nothing is flushed, would read that family's values.
#[tokio::test]
async fn a_reader_finds_a_family_under_its_new_number() {
    let (pair, views) = Pair::of(family("views")).await;
    let (all, likes) = (["a"], pair.open(votes()).await);
    views.count("a", 1).await;
    likes.count("a", 2).await;
    pair.drain().await;
    pair.sql("UPDATE counterfoil_families SET name = CONCAT('other ', name); DELETE FROM counterfoil_ledger")
        .await;
    let process = pair.other().await;
    process.opened(family("views")).await;
    pair.command::<()>("FLUSHALL").await;
    let again = process.opened(family("views")).await;
    assert_eq!(views.value("a").await, 0);
    assert_eq!(likes.value("a").await, 0);
    again.count("a", 4).await;
    process.drained().await;
    assert_eq!(views.value("a").await, 4);
    assert_eq!(views.stored(&all).await.unwrap(), [Some(4)]);
}

#[tokio::test]
async fn windows_change_with_a_deploy() {
    let pair = Pair::new().await;
    let hits = |windows: &[Precision]| {
        let windows = windows.iter().map(|precision| (*precision, 9));
        let hits = Family::series("test", "hits").windows(windows);
        hits.keep([Precision::MINUTE, Precision::HOUR])
    };
    let before = pair.open(hits(&[Precision::MINUTE, Precision::HOUR])).await;
    before.count("page", 1).await;
    let other = pair.other().await;
    let after = [Precision::Day, Precision::HOUR, Precision::MINUTE];
    let after = other.opened(hits(&after)).await;
    after.count("page", 1).await;
    let day = after.get("page", Precision::Day).await.unwrap();
    assert_eq!(day.last().map(|slice| slice.count), Some(1));
}

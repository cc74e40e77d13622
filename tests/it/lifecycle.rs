//! The life of a service, from its start to its shutdown.

use counterfoil::Remaining;

use crate::support::*;

/// The time limit of a shutdown without the database, including a second for a busy machine.
const SOON: Duration = secs(3);

const LONG: Duration = secs(20);

/// Makes the database unreachable: it is killed, or it is silent.
fn lose(mysql: &MysqlServer, is_silent: bool) {
    if is_silent {
        mysql.pause()
    } else {
        mysql.kill()
    }
}

async fn recover(mysql: &MysqlServer, is_silent: bool) {
    if is_silent {
        mysql.resume()
    } else {
        mysql.start_again().await
    }
}

/// A backlog without pending hits.
fn counted(counted: u64) -> Backlog {
    Backlog {
        counted,
        ..Backlog::default()
    }
}

impl Pair {
    /// Shuts the client down, and returns the only family that has something left.
    async fn left(&self, limit: Duration) -> Remaining {
        let left = within(limit + millis(500), self.counterfoil.shutdown(limit)).await;
        let mut left = left.unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
        left.remove(0)
    }

    async fn leaves_nothing(&self) {
        let left = self.counterfoil.shutdown(LONG).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A handle that was opened with other settings has a writer of its own.
#[tokio::test]
async fn a_shutdown_reports_what_every_handle_recorded() {
    let (plain, first) = Plain::of(family("views").sync_hits(50)).await;
    let _second = plain.open(family("views").sync_hits(51)).await;
    plain.redis.pause();
    (0..1000).for_each(|page| first.record(&page.to_string(), 1).unwrap());
    let left = plain.counterfoil.shutdown(secs(1)).await.unwrap();
    plain.redis.resume();
    assert_eq!(left.iter().map(|left| left.recorded).sum::<u64>(), 1000);
    assert!(left.iter().all(|left| left.backlog.is_none()), "{left:?}");
    plain.counterfoil.shutdown(LONG).await.unwrap();
    assert_eq!(first.backlog().await.unwrap().counted, 1000);
}

#[tokio::test]
async fn a_reconciler_stops_soon_also_while_the_database_is_unreachable() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let views = pair.open(family("views")).await;
    for is_silent in [false, true] {
        let reconciler = pair.reconcile().await;
        lose(&mysql, is_silent);
        views.count("page", 1).await;
        pause(500).await;
        within(SOON, reconciler.shutdown()).await.unwrap();
        recover(&mysql, is_silent).await;
    }
    pair.drain().await;
    assert_eq!(pair.stored().await, 2);
}

/// A table that another session has locked concerns one family.
#[tokio::test]
async fn a_reconciler_that_stops_writes_what_it_holds_of_other_families() {
    let pair = Pair::new().await;
    let sales = family("sales").table(pair.sales(Table::upsert).await);
    let sales = pair.open(sales).await;
    let views = pair.open(family("views").settle(1_500)).await;
    let mut locker = pair.pool.acquire().await.unwrap();
    let lock = sqlx::raw_sql("LOCK TABLES sales WRITE");
    lock.execute(&mut *locker).await.unwrap();
    let reconciler = pair.reconcile().await;
    sales.count("a", 1).await;
    views.count("a", 1).await;
    let is_held = async || pair.batches().await == 2;
    eventually("both batches are held", is_held).await;
    reconciler.shutdown().await.unwrap();
    assert_eq!(pair.stored().await, 1);
    locker.close().await.unwrap();
    pair.drain().await;
    assert_eq!(pair.number("SELECT n FROM sales").await, 1);
}

/// The upkeep and the rotation wait for the registration of the family.
#[tokio::test]
async fn a_reconciler_stops_soon_while_a_silent_database_does_not_know_the_family() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let reconciler = pair.reconcile().await;
    mysql.pause();
    let views = pair.open(family("views")).await;
    views.count("page", 1).await;
    pause(500).await;
    within(SOON, reconciler.shutdown()).await.unwrap();
    mysql.resume();
    pair.drain().await;
    assert_eq!(pair.stored().await, 1);
}

/// An outage concerns every partition and repeats, and so does a family that Redis refuses.
#[tokio::test]
async fn a_failure_is_logged_when_it_begins_and_when_it_ends() {
    let (redis, mysql) = (new_redis().await, MysqlServer::start().await);
    let (database, _) = mysql.database("test").await;
    let store = MysqlStore::new(mysql.url(&database)).unwrap();
    let store = store.waiting(secs(1));
    store.create_tables().await.unwrap();
    let client = patient(Counterfoil::new(redis.manager().await, store));
    let mut all = vec![];
    for name in ["a", "b", "c"] {
        all.push(client.opened(family(name)).await);
    }
    let failed = |log: &Log| [log.lines("WARN", ""), log.lines("ERROR", "")].concat();
    let log = Log::begin();
    let reconciler = client.reconcile().await;
    mysql.kill();
    let started = Instant::now();
    while started.elapsed() < secs(5) {
        for views in &all {
            for page in ["1", "2", "3"] {
                views.count(page, 1).await;
            }
        }
        pause(50).await;
    }
    let events = failed(&log);
    println!("{} events in 5 s of an outage: {events:#?}", events.len());
    assert!((1..=4).contains(&events.len()));
    assert!(log.lines("INFO", "recovered").is_empty());
    mysql.start_again().await;
    let has_recovered = async || !log.lines("INFO", "recovered").is_empty();
    eventually("the recovery", has_recovered).await;
    reconciler.stop().await;
    // different errors of one outage share a recovery
    let (recoveries, failures) = (log.lines("INFO", "recovered"), failed(&log));
    println!("{recoveries:#?} after {failures:#?}");
    assert!(recoveries.len() <= failures.len().min(4));

    let wrong = redis.run::<String>("SET cf1:{test/a/0}:calls 1");
    wrong.await.unwrap();
    let log = Log::begin();
    let reconciler = client.reconcile().await;
    pause(3000).await;
    reconciler.stop().await;
    let events = failed(&log);
    println!(
        "{} events in 3 s of a refused upkeep: {events:#?}",
        events.len()
    );
    assert!((1..=3).contains(&events.len()));
}

/// One call reads a hundred partitions.
#[tokio::test]
async fn the_backlogs_of_idle_families_take_few_calls() {
    let plain = Plain::new().await;
    for tenant in 0..25 {
        let tenant = format!("tenant-{tenant}");
        plain.open(Family::buffered(&tenant, "views")).await;
        plain.open(Family::cached(&tenant, "votes")).await;
    }
    // the first time Redis does not know the script
    plain.backlogs().await.unwrap();
    plain.redis.does("CONFIG RESETSTAT").await;
    let counterfoil = plain.counterfoil.clone();
    assert_eq!(
        tokio::spawn(async move { counterfoil.backlogs().await })
            .await
            .unwrap()
            .unwrap()
            .len(),
        50
    );
    for (command, expected) in [("eval", 0), ("evalsha", 2)] {
        assert_eq!(calls(&plain.redis, command).await, expected, "{command}");
    }
}

/// There are more partitions than one call reads, with and without content.
#[tokio::test]
async fn the_backlogs_of_all_families_are_those_of_each() {
    let pair = Pair::new().await;
    assert!(pair.backlogs().await.unwrap().is_empty());
    let mut expected = vec![];
    for (tenant, many) in [("a", 40), ("b", 3)] {
        let views = Family::buffered(tenant, "views").partitions(130);
        let views = pair.open(views.at_once()).await;
        let votes = Family::cached(tenant, "votes").partitions(130);
        let votes = pair.open(votes.at_once()).await;
        let hits = Family::series(tenant, "hits")
            .windows([(Precision::Day, 3)])
            .keep([Precision::Day]);
        let hits = pair.open(hits.at_once()).await;
        let _idle = pair.open(Family::cached(tenant, "idle")).await;
        for number in 0..many {
            let id = format!("page/{number}");
            views.count(&id, 1).await;
            views.count(&id, 1).await;
            votes.count(&id, 1).await;
            hits.count(&id, 1).await;
        }
        assert_eq!(votes.value("read only").await, 0);
        expected.extend([
            (format!("{tenant}/views"), (many, 2 * many)),
            (format!("{tenant}/votes"), (many, many)),
            (format!("{tenant}/hits"), (many, many)),
            (format!("{tenant}/idle"), (0, 0)),
        ]);
    }
    pause(50).await;
    let numbers = async || {
        let numbers = |(family, backlog): (Family, Result<Backlog>)| {
            let backlog = backlog.unwrap();
            let is_old = |age| (millis(50)..LONG).contains(&age);
            assert_eq!(
                backlog.oldest.is_some_and(is_old),
                backlog.ids > 0,
                "{family}: {backlog:?}"
            );
            (family.to_string(), (backlog.ids, backlog.counted))
        };
        pair.backlogs()
            .await
            .unwrap()
            .into_iter()
            .map(numbers)
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers().await, expected);
    pair.drain().await;
    expected.iter_mut().for_each(|(_, (ids, ..))| *ids = 0);
    assert_eq!(numbers().await, expected);

    // another process, which serves families that it did not open
    let other = pair.other().await;
    let _running = other.reconciler().namespace("b").start().await.unwrap();
    let served = async || other.backlogs().await.unwrap();
    eventually("the families", async || served().await.len() == 4).await;
    let mut views = served()
        .await
        .into_iter()
        .filter(|(family, _)| family.to_string() == "b/views");
    assert_eq!(views.next().unwrap().1.unwrap(), counted(6));

    // another program overwrote a family's buffer
    pair.command::<()>("SET cf1:{b/views/7}:buffer oops").await;
    let backlogs = pair.backlogs().await.unwrap();
    let broken = backlogs.iter().filter(|(_, found)| found.is_err());
    let broken: Vec<_> = broken.map(|(family, _)| family.name()).collect();
    assert_eq!((backlogs.len(), broken), (8, vec!["views"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_brings_everything_to_the_database_and_accepts_no_more() {
    let (pair, views) = Pair::of(family("views").settle(300)).await;
    let votes = pair.open(votes()).await;
    // hits arrive all the time, until they are refused
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (views, votes) = (views.clone(), votes.clone());
        tasks.spawn(async move {
            let (mut hits, mut is_open) = (0, true);
            while is_open {
                let results = [
                    views.record("page", 1),
                    views.add("page", 1).await.map(drop),
                    views.try_add("page", 1).await.map(drop),
                    views.add_many([("page", 1)]).await.remove(0).map(drop),
                    votes.incr("page", 1).await.map(drop),
                ];
                for result in results {
                    if result.is_ok() {
                        hits += 1;
                    } else {
                        refused(result, Closed, "");
                        is_open = false;
                    }
                }
            }
            hits
        });
    }
    pause(300).await;
    // it returns early
    within(LONG / 2, pair.leaves_nothing()).await;
    let stored = pair.stored().await;
    assert_eq!(stored, tasks.join_all().await.into_iter().sum::<i64>());
    // reads continue, and refused hits are not counted
    assert_eq!(
        views.value("page").await + votes.value("page").await,
        stored
    );
    refused(pair.counterfoil.open(family("later")).await, Closed, "");
    pair.leaves_nothing().await;
}

#[tokio::test]
async fn a_shutdown_without_the_database_returns_in_time_and_reports_what_is_left() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let views = pair.open(family("views")).await;
    let _idle = pair.open(family("idle")).await;
    mysql.kill();
    views.count("a", 1).await;
    views.count("b", 1).await;
    views.record("c", 1).unwrap();
    let left = pair.left(secs(3)).await;
    assert_eq!(
        (left.family.name(), left.recorded, left.backlog.unwrap().ids),
        ("views", 0, 3)
    );
    mysql.start_again().await;
    pair.leaves_nothing().await;
    assert_eq!(pair.stored().await, 3);
}

#[tokio::test]
async fn a_shutdown_reports_once_which_recorded_hits_were_refused() {
    let pair = Pair::new().await;
    let views = family("views").partitions(1).max_pending(1);
    let views = pair.open(views).await;
    views.count("page", i64::MAX).await;
    for id in ["page", "other", "other"] {
        views.record(id, 1).unwrap();
    }
    let left = pair.left(LONG).await;
    assert_eq!(
        (left.recorded, left.refused, left.backlog.unwrap().ids),
        (0, 3, 0)
    );
    pair.leaves_nothing().await;
    assert_eq!(pair.stored().await, i64::MAX);
}

#[tokio::test]
async fn a_drain_brings_slices_that_are_not_over() {
    let (pair, hits) = Pair::of(days()).await;
    let online = Family::activity("test", "online")
        .window(secs(60), secs(3))
        .keep_minutes(true);
    let online = pair.open(online).await;
    let stored = async |like| {
        let sum = format!("SELECT SUM(value) FROM counterfoil_values WHERE id LIKE '{like}'");
        pair.number(&sum).await
    };
    let now = unix(SystemTime::now());
    for round in 1..=3 {
        hits.count("/", 5).await;
        online.touch("/", "a visitor").await.unwrap();
        online.touch("/", format!("visitor {round}")).await.unwrap();
        pair.drain().await;
        assert_eq!(stored("20%/").await, 5 * round);
        let days = hits.get_range("/", Precision::Day, times(now - 86_400..now + 1));
        assert_eq!(sum(&days.await.unwrap()), 5 * round);
    }
    assert_eq!(stored("views/%").await, 6);
    // each of the four visitors once; the first one again if a minute ended meanwhile
    assert!((4..=6).contains(&stored("visitors/%").await));
}

/// A mismatch with the database's family is detected when the database is up, and the counts stay in
/// Redis.
#[tokio::test]
async fn a_family_that_is_opened_without_the_database_is_compared_with_it_later() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let client = &pair.counterfoil;
    let views = client.opened(family("views")).await;
    views.count("page", 3).await;
    let _running = client.reconcile().await;
    pair.arrives(3).await;
    mysql.kill();
    let other = family("views").durability(Durability::Settle(secs(1)));
    let other = within(secs(4), client.open(other)).await.unwrap();
    // Redis knows its partitions
    refused(
        client.open(family("views").partitions(8)).await,
        Mismatch,
        "",
    );
    other.count("page", 1).await;
    mysql.start_again().await;
    let is_refused = async || {
        other
            .get("page")
            .await
            .is_err_and(|error| error.kind() == Mismatch)
    };
    eventually("the refusal", is_refused).await;
    pause(300).await;
    assert_eq!(views.pending(&["page"]).await.unwrap(), [1]);
    assert_eq!(views.value("page").await, 4);
    client.opened(family("views")).await;
    client.drained().await;
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(4)]);
}

#[tokio::test]
async fn a_builder_takes_a_connection_and_a_store() {
    let limit = millis(200);
    for without_mysql in [false, true] {
        let redis = new_redis().await;
        let (_, pool) = mysql().await.database("test").await;
        let builder = Counterfoil::builder()
            .connection(Primary::connect(redis.url()).await.unwrap())
            .store(MysqlStore::new(&pool).unwrap())
            .create_tables(true)
            .start_without_mysql(without_mysql)
            .write_timeout(limit)
            .read_timeout(limit);
        let views = builder
            .connect()
            .await
            .unwrap()
            .opened(family("views"))
            .await;
        views.count("page", 1).await;
        assert_eq!(views.value("page").await, 1);
        redis.pause();
        let began = Instant::now();
        assert!(views.add("page", 1).await.is_err() && views.get("page").await.is_err());
        let took = began.elapsed();
        assert!(took < secs(2), "{took:?}");
        redis.resume();
    }
}

#[tokio::test]
async fn a_builder_starts_without_the_database_if_configured() {
    let mysql = MysqlServer::start().await;
    let (database, pool) = mysql.database("test").await;
    let redis = new_redis().await;
    let connect = |url: &str, without_mysql| {
        Counterfoil::builder()
            .redis(redis.url())
            .mysql(url)
            .create_tables(true)
            .start_without_mysql(without_mysql)
            .connect()
    };
    let (url, elsewhere) = (mysql.url(&database), mysql.url("nowhere"));
    // a permanent error is reported at once
    let bad_mode = "mysql://localhost/shop?ssl-mode=NONE";
    let stranger = url.replace("root", "nobody");
    for (wrong, kind, words) in [
        (&*stranger, AccessDenied, "denies access"),
        ("localhost/shop", InvalidInput, ""),
        (bad_mode, InvalidInput, ""),
        (&*elsewhere, ErrorKind::Store, "refused the connection"),
    ] {
        refused(connect(wrong, true).await, kind, words);
    }
    for (is_silent, value) in [(false, 1), (true, 2)] {
        pool.close().await;
        lose(&mysql, is_silent);
        if !is_silent {
            refused(
                connect(&url, false).await,
                ErrorKind::Store,
                "is unreachable",
            );
        }
        let client = within(secs(4), connect(&url, true)).await;
        let client = client.unwrap();
        let views = client.opened(family("views")).await;
        let votes = client.opened(votes()).await;
        let _running = client.reconciler().all().start().await.unwrap();
        views.count("page", 1).await;
        if !is_silent {
            // it has to be read first
            refused(votes.incr("item", 1).await, ErrorKind::Store, "");
        }
        recover(&mysql, is_silent).await;
        // the tables are created when the database is up
        let stored = async || {
            let stored = views.stored(&["page"]).await;
            stored.is_ok_and(|stored| stored == [Some(value)])
        };
        eventually("what was counted", stored).await;
        assert_eq!(votes.count("item", 1).await, value);
        client.drained().await;
        assert_eq!(votes.stored(&["item"]).await.unwrap(), [Some(value)]);
    }
}

#[tokio::test]
async fn a_search_for_hits_that_panics_is_reported_and_repeated() {
    let (pair, views) = Pair::of(family("views")).await;
    let panics = Arc::new(AtomicBool::new(false));
    let asked = panics.clone();
    let connection = interposed(&pair.redis, move |cmd| {
        // only a search for hits asks for several of the family's partitions
        let is_search = mentions(cmd, "/0}:batch") && mentions(cmd, "/1}:batch");
        let panics = is_search && asked.load(Ordering::Relaxed);
        async move {
            assert!(!panics, "of the test");
            Ok(())
        }
    });
    let connection = connection.await;
    let reconciling = pair.over(connection);
    let _views = reconciling.open(family("views")).await.unwrap();
    let reconciler = reconciling.reconciler().start().await.unwrap();
    panics.store(true, Ordering::Relaxed);
    fails(&reconciler, "search for hits", "of the test").await;
    panics.store(false, Ordering::Relaxed);
    // of another process, whose hits only a search finds
    views.count("page", 1).await;
    pair.arrives(1).await;
    assert!(reconciler.is_running() && reconciler.failing().is_empty());
}

/// A program that is not MySQL replies at its address, and sqlx panics.
#[tokio::test]
async fn a_retry_of_rejects_that_panics_is_reported_and_repeated() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    pair.sql("CREATE TABLE small (id INT PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let small = || {
        let table = keyed(Table::upsert("small"), [("id", Signed)]);
        family("small").table(table)
    };
    pair.open(small()).await.count("7", 1000).await;
    pair.counterfoil.drained().await;
    let store = MysqlStore::new(&pair.pool).unwrap();
    let reconciling = patient(Counterfoil::new(pair.redis.manager().await, store.clone()));
    let _small = reconciling.open(small()).await.unwrap();
    // each call needs a new connection
    let pool = store.pool();
    eventually("no connection", async || {
        while let Some(idle) = pool.try_acquire() {
            idle.close().await.unwrap();
        }
        pool.size() == 0
    })
    .await;
    let stranger = mysql.replaced();
    let reconciler = reconciling.reconciler().start().await.unwrap();
    fails(&reconciler, "retry of rejects", "panicked").await;
    drop(stranger);
    pair.sql("ALTER TABLE small MODIFY n INT NOT NULL").await;
    let applied = async || pair.number("SELECT n FROM small").await == 1000;
    eventually("the reject", applied).await;
    eventually("the end", async || reconciler.failing().is_empty()).await;
}

#[tokio::test]
async fn a_failing_flush_is_reported_until_it_succeeds() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let views = pair.open(family("views")).await;
    let reconciler = pair.reconcile().await;
    mysql.kill();
    views.count("page", 1).await;
    let error = refused(views.get("page").await, ErrorKind::Store, "");
    assert!(error.is_retryable());
    let flush = || {
        let failing = reconciler.failing().into_iter();
        failing
            .filter(|one| one.step == "flush")
            .collect::<Vec<_>>()
    };
    eventually("the failure", async || !flush().is_empty()).await;
    let [failing] = &flush()[..] else {
        panic!("one for the family: {:?}", reconciler.failing());
    };
    assert_eq!(failing.family.as_deref(), Some("test/views"));
    assert!(failing.blocks_hits() && failing.error.kind() == ErrorKind::Store);
    eventually("its time", async || {
        flush()
            .first()
            .is_some_and(|one| one.duration > millis(100))
    })
    .await;
    mysql.start_again().await;
    eventually("the end", async || reconciler.failing().is_empty()).await;
    assert_eq!(pair.stored().await, 1);

    mysql.pause();
    views.count("page", 1).await;
    let is_silent = |one: &counterfoil::Failing| format!("{}", one.error).contains("no reply");
    eventually("the silence", async || {
        flush().first().is_some_and(is_silent)
    })
    .await;
    mysql.resume();
    eventually("its end", async || reconciler.failing().is_empty()).await;
    assert_eq!(pair.stored().await, 2);
}

/// When Redis has recovered, a drain waits for one pause, and not for one of each family.
#[tokio::test]
async fn a_drain_pauses_once_for_all_families() {
    let pair = Pair::new().await;
    let is_out = Arc::new(AtomicBool::new(false));
    let outage = is_out.clone();
    let connection = interposed(&pair.redis, move |_| {
        let is_out = outage.load(Ordering::Relaxed);
        async move { if is_out { Err(cut_off()) } else { Ok(()) } }
    });
    let connection = connection.await;
    let draining = pair.over(connection);
    for number in 0..40 {
        let views = draining.opened(family(&format!("views-{number}"))).await;
        views.count("page", 1).await;
    }
    is_out.store(true, Ordering::Relaxed);
    let recovery = async {
        pause(100).await;
        is_out.store(false, Ordering::Relaxed);
    };
    let drain = within(secs(8), draining.drain());
    let (drained, ()) = tokio::join!(drain, recovery);
    drained.unwrap();
    assert_eq!(pair.stored().await, 40);
}

/// A key of a wrong type holds up neither the other partitions of its family nor other families.
#[tokio::test]
async fn a_spoiled_key_holds_up_no_other_hits() {
    let (pair, votes) = Pair::of(votes().partitions(4)).await;
    let views = pair.open(family("views").partitions(1)).await;
    let other = pair.other().await;
    let counted = other.opened(self::votes().partitions(4)).await;
    pair.redis.does("SET cf1:{test/votes/2}:base spoiled").await;
    let [first, second] = [0, 3].map(|partition| ids_of(votes.family(), partition, 1).remove(0));
    counted.count(&first, 1).await;
    let reconciler = pair.reconcile().await;
    eventually("the other partition", async || pair.stored().await == 1).await;
    assert!(is_failing(&reconciler, "search for hits", "WRONGTYPE"));
    reconciler.stop().await;

    counted.count(&second, 1).await;
    views.count("page", 1).await;
    let error = pair.shutdown(LONG).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:#}");
    assert_eq!(pair.stored().await, 3);
}

/// Each reconciler serves the families that are opened after its start, also while another one of
/// the process receives the announcements.
#[tokio::test]
async fn two_reconcilers_of_a_process_serve_later_families() {
    let pair = Pair::new().await;
    let (first, second) = (pair.reconcile().await, pair.reconcile().await);
    let views = pair.open(family("views")).await;
    views.count("page", 1).await;
    eventually("the first hit", async || pair.stored().await == 1).await;
    first.stop().await;
    let other = pair.other().await;
    let views = other.opened(family("views")).await;
    views.count("page", 1).await;
    eventually("the second hit", async || pair.stored().await == 2).await;
    second.stop().await;
}

/// The batch is in the database, and hits that were counted later wait behind it.
#[tokio::test]
async fn a_batch_that_cannot_be_released_is_a_failing_flush() {
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    let reconciler = pair.reconcile().await;
    pair.redis.does("ACL SETUSER default -unlink").await;
    views.count("page", 1).await;
    fails(&reconciler, "flush", "denies access").await;
    views.count("page", 2).await;
    let before = calls(&pair.redis, "evalsha").await;
    pause(1000).await;
    // of the writer, the search and the watch of the server
    let scripts = calls(&pair.redis, "evalsha").await - before;
    assert!(
        pair.stored().await == 1 && scripts < 200,
        "{scripts} scripts in a second"
    );
    assert!(is_failing(&reconciler, "flush", "denies access"));
    let drained = within(secs(5), pair.counterfoil.drain()).await;
    refused(drained, ErrorKind::AccessDenied, "");
    pair.redis.does("ACL SETUSER default +unlink").await;
    pair.drain().await;
    assert_eq!(pair.stored().await, 3);
}

/// Holds the lock for which a trigger waits.
async fn held_up(pair: &Pair, trigger: &str) -> sqlx::pool::PoolConnection<sqlx::MySql> {
    pair.sql(&format!(
        "CREATE TRIGGER held_up BEFORE INSERT ON {trigger} FOR EACH ROW BEGIN \
         DO GET_LOCK(DATABASE(), 50); DO RELEASE_LOCK(DATABASE()); END"
    ))
    .await;
    let mut holder = pair.pool.acquire().await.unwrap();
    let hold = sqlx::raw_sql("DO GET_LOCK(DATABASE(), 0)");
    hold.execute(&mut *holder).await.unwrap();
    holder
}

async fn is_stored(counters: &BufferedCounters, id: &str) {
    let stored = async || counters.stored(&[id]).await.unwrap() == [Some(1)];
    eventually("the hit is stored", stored).await;
}

/// Flushes of one family wait in the database.
#[tokio::test]
async fn a_family_that_is_flushed_leaves_a_slot_to_others() {
    const HANGING: &str = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
         WHERE STATE = 'User lock' AND DB = DATABASE()";
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE slow (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    let table = keyed(Table::upsert("slow"), [("id", Signed)]);
    let slow = pair.open(family("slow").table(table)).await;
    let fast = pair.open(family("fast")).await;
    // one id of each partition
    let mut ids = [None; 4];
    for id in 0..100 {
        let partition = pair.number(&format!("SELECT CRC32('{id}') % 4")).await;
        ids[partition as usize].get_or_insert(id);
    }
    let holder = held_up(&pair, "slow").await;
    let reconciler = pair.reconcile().await;
    for (id, (batches, hanging)) in ids
        .into_iter()
        .flatten()
        .zip([(1, 1), (2, 2), (3, 3), (4, 3)])
    {
        slow.count(&id.to_string(), 1).await;
        let waits = async || {
            let cut = pair.redis.run("KEYS cf1:{test/slow/*}:batch").await;
            let cut: Vec<String> = cut.unwrap();
            cut.len() == batches && pair.number(HANGING).await == hanging
        };
        eventually("its batch waits", waits).await;
    }
    fast.count("a", 1).await;
    is_stored(&fast, "a").await;
    assert_eq!(pair.number(HANGING).await, 3);
    assert_eq!(pair.number("SELECT COUNT(*) FROM slow").await, 0);
    drop(holder.detach());
    let all = async || pair.number("SELECT COUNT(*) FROM slow").await == 4;
    eventually("the others are stored", all).await;
    reconciler.stop().await;
}

/// Four families have work for half a minute each, in short transactions.
#[tokio::test]
async fn a_long_flush_gives_way_to_others() {
    const ROWS: i64 = 300;
    let pair = Pair::new().await;
    let fast = pair.open(family("fast")).await;
    let reconciler = pair
        .counterfoil
        .reconciler()
        .max_rows(1)
        .start()
        .await
        .unwrap();
    let count = async |name: &str| pair.number(&format!("SELECT COUNT(*) FROM {name}")).await;
    let names = ["slow_1", "slow_2", "slow_3", "slow_4"];
    for name in names {
        pair.sql(&format!(
            "CREATE TABLE {name} (id INT PRIMARY KEY, n INT NOT NULL); \
             CREATE TRIGGER sleeps_{name} BEFORE INSERT ON {name} FOR EACH ROW SET @s = SLEEP(0.1)"
        ))
        .await;
        let table = keyed(Table::upsert(name), [("id", Signed)]);
        let slow = pair.open(family(name).partitions(1).table(table)).await;
        let hits: Vec<_> = (0..ROWS).map(|id| (id.to_string(), 1)).collect();
        join_all(hits.iter().map(|(id, delta)| slow.count(id, *delta))).await;
        eventually("it is flushed", async || count(name).await > 0).await;
    }
    fast.count("a", 1).await;
    is_stored(&fast, "a").await;
    for name in names {
        assert!(count(name).await < ROWS, "{name}");
        pair.sql(&format!("DROP TRIGGER sleeps_{name}")).await;
    }
    for name in names {
        eventually("the rest", async || count(name).await == ROWS).await;
    }
    reconciler.stop().await;
}

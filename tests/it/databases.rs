//! Two databases on one Redis and namespace: the second is refused, no hit reaches it, and it reads
//! none (docs/protocol.md, section 2).

use counterfoil::AnyCounters;

use crate::support::*;

/// A second database for the Redis of a pair, as a copied configuration makes one.
async fn second(pair: &Pair) -> (MySqlPool, Counterfoil) {
    let pool = database().await;
    let redis = pair.redis.manager().await;
    let counterfoil = patient(Counterfoil::new(redis, MysqlStore::new(&pool).unwrap()));
    (pool, counterfoil)
}

async fn id_of(pool: &MySqlPool) -> String {
    let id = sqlx::query_scalar("SELECT database_id FROM counterfoil_families LIMIT 1");
    id.fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn a_second_database_is_refused_and_the_error_names_both() {
    let (pair, views) = Pair::of(family("views")).await;
    let votes = pair.open(votes()).await;
    let (pool, other) = second(&pair).await;
    let error = refused(other.open(family("views")).await, Mismatch, "go to");
    for id in [id_of(&pair.pool).await, id_of(&pool).await] {
        assert!(error.to_string().contains(&id), "{error} lacks {id}");
    }
    refused(other.open(crate::support::votes()).await, Mismatch, "go to");
    // a reconciler that finds the registered families takes no batch
    views.count("page", 1).await;
    let reconciler = other.reconciler().all().start().await.unwrap();
    pause(300).await;
    reconciler.stop().await;
    pair.drain().await;
    assert_eq!(views.stored(&["page"]).await.unwrap(), [Some(1)]);
    drop(votes);
}

/// An emptied Redis belongs to the database whose process comes first.
#[tokio::test]
async fn a_process_whose_redis_was_taken_over_is_refused() {
    let (pair, views) = Pair::of(family("views")).await;
    views.count("page", 1).await;
    let (_pool, other) = second(&pair).await;
    pair.redis.does("FLUSHALL").await;
    let others = other.opened(family("views")).await;
    refused(views.add("page", 1).await, Mismatch, "go to");
    others.count("page", 1).await;
    refused(pair.counterfoil.drain().await, Mismatch, "go to");
    let findings = pair.check().await;
    assert_found(&findings, Severity::Error, &["family test/views: "]);
    other.drained().await;
    assert_eq!(others.stored(&["page"]).await.unwrap(), [Some(1)]);
    refused(views.get("page").await, Mismatch, "go to");
}

/// Without the guard the hits of one process land in the database of the other, without an error.
#[tokio::test]
async fn without_the_id_hits_land_in_the_other_database() {
    let (pair, views) = Pair::of(family("views")).await;
    take_out(Some(Guard::Database));
    let (_pool, other) = second(&pair).await;
    let others = other.opened(family("views")).await;
    for _ in 0..10 {
        views.count("page", 1).await;
    }
    other.drained().await;
    assert_eq!(others.stored(&["page"]).await.unwrap(), [Some(10)]);
    assert_eq!(views.stored(&["page"]).await.unwrap(), [None]);
    take_out(None);
}

/// A restored database keeps its id. A clone gets another one by the statement of the operations
/// manual, or takes the Redis over.
#[tokio::test]
async fn a_clone_is_separated_by_one_statement() {
    let (pair, _views) = Pair::of(family("views")).await;
    let original = id_of(&pair.pool).await;
    pair.sql("UPDATE counterfoil_families SET database_id = 'staging'")
        .await;
    let clone = pair.other().await;
    refused(clone.open(family("views")).await, Mismatch, "\"staging\"");
    let back = "UPDATE counterfoil_families SET database_id = ?";
    let back = sqlx::query(back).bind(original).execute(&pair.pool);
    back.await.unwrap();
    clone.opened(family("views")).await;
}

#[tokio::test]
async fn a_pool_without_a_database_is_refused_with_what_to_do() {
    let pool = MySqlPool::connect(&mysql().await.url("")).await.unwrap();
    refused(MysqlStore::new(&pool), InvalidInput, "name no database");
}

/// A clone of the pair's database, whose rows have changed since: each value is 100. Its id is
/// `staging`, and it has a client on the pair's Redis.
async fn cloned(pair: &Pair) -> (MySqlPool, Counterfoil) {
    let (pool, client) = second(pair).await;
    let original = sqlx::query_scalar("SELECT DATABASE()");
    let original: String = original.fetch_one(&pair.pool).await.unwrap();
    for table in ["families", "values", "ledger"] {
        let copy =
            format!("INSERT INTO counterfoil_{table} SELECT * FROM {original}.counterfoil_{table}");
        run_sql(&pool, &copy).await;
    }
    let changes = "UPDATE counterfoil_families SET database_id = 'staging';
         UPDATE counterfoil_values SET value = 100";
    run_sql(&pool, changes).await;
    (pool, client)
}

/// Opens a family as a tool does that only reads: it writes no settings.
async fn shown(pool: &MySqlPool, client: &Counterfoil, name: &str) -> AnyCounters {
    let found = MysqlStore::new(pool).unwrap().find(name).await.unwrap();
    client.open_registered(found.unwrap()).unwrap()
}

/// The counters of the original, with hits that the clone's rows lack. `quiet` has a row of 3, and is
/// not in Redis.
async fn original() -> (Pair, BufferedCounters, CachedCounters, Series) {
    let (pair, views) = Pair::of(family("views")).await;
    let (votes, days) = (pair.open(votes()).await, pair.open(days()).await);
    views.count("page", 5).await;
    votes.count("item", 7).await;
    days.count("site", 2).await;
    pair.drain().await;
    pair.sql(
        "INSERT INTO counterfoil_values (family, id, value) \
         SELECT number, 'quiet', 3 FROM counterfoil_families WHERE name = 'votes'",
    )
    .await;
    (pair, views, votes, days)
}

#[tokio::test]
async fn a_clone_reads_no_hits_of_the_original() {
    let (pair, views, votes, days) = original().await;
    let (pool, clone) = cloned(&pair).await;
    views.count("page", 1).await;
    votes.count("item", 1).await;
    days.count("site", 1).await;
    let AnyCounters::Buffered(pages) = shown(&pool, &clone, "test/views").await else {
        panic!("not buffered")
    };
    let AnyCounters::Cached(items) = shown(&pool, &clone, "test/votes").await else {
        panic!("not cached")
    };
    let AnyCounters::Series(sites) = shown(&pool, &clone, "test/hits").await else {
        panic!("no series")
    };
    let now = unix(SystemTime::now());
    let today = || times(now..now + 1);
    let range = sites.get_range("site", Precision::Day, today()).await;
    let stored = pages.get_or_stored(["page"], secs(5)).await;
    let errors = [
        refused(pages.get("page").await, Mismatch, "go to"),
        refused(pages.list("", None, 9).await, Mismatch, "go to"),
        refused(stored, Mismatch, "go to"),
        refused(items.get("item").await, Mismatch, "go to"),
        refused(items.get("quiet").await, Mismatch, "go to"),
        refused(items.get_many(["item", "quiet"]).await, Mismatch, "go to"),
        refused(items.peek_many(["item"]).await, Mismatch, "go to"),
        refused(items.find_many(["quiet"]).await, Mismatch, "go to"),
        refused(range, Mismatch, "go to"),
    ];
    let original = id_of(&pair.pool).await;
    for error in errors {
        let text = error.to_string();
        let names_both = text.contains(&original) && text.contains("\"staging\"");
        assert!(names_both && !error.is_retryable(), "{text}");
    }
    // the rows alone are the clone's own
    assert_eq!(pages.stored(["page"]).await.unwrap(), [Some(100)]);
    assert_eq!(views.value("page").await, 6);
    assert_eq!(votes.get_many(["item", "quiet"]).await.unwrap(), [8, 3]);
    let counts = days.get_range("site", Precision::Day, today()).await;
    assert_eq!(sum(&counts.unwrap()), 3);
}

/// Without the guard a clone's reader adds the original's hits to its own rows, and brings a row of
/// its own to the original's Redis.
#[tokio::test]
async fn without_the_id_a_clone_mixes_its_rows_with_hits_of_the_original() {
    let (pair, views, votes, _days) = original().await;
    let (pool, clone) = cloned(&pair).await;
    views.count("page", 1).await;
    let AnyCounters::Buffered(pages) = shown(&pool, &clone, "test/views").await else {
        panic!("not buffered")
    };
    let AnyCounters::Cached(items) = shown(&pool, &clone, "test/votes").await else {
        panic!("not cached")
    };
    take_out(Some(Guard::Database));
    assert_eq!(pages.value("page").await, 100 + 1);
    assert_eq!(items.value("quiet").await, 100);
    take_out(None);
    assert_eq!(votes.value("quiet").await, 100);
}

/// A database that is unreachable at first.
#[derive(Clone, Default)]
struct Late(Arc<AtomicBool>);

impl Between for Late {
    fn before_register(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Store, "unreachable"))
    }
}

/// The clone is unreachable when its process opens the family, so the process does not know its
/// database when it asks for the epoch. Returns what an increment and a read of the process get, and
/// the value of the original then.
async fn late_clone(guard: Option<Guard>) -> ([Result<i64>; 2], i64) {
    let (pair, _views, votes, _days) = original().await;
    let (pool, _) = cloned(&pair).await;
    let late = Late::default();
    let process = async || {
        let store = MysqlStore::new(&pool).unwrap();
        let between = late.clone();
        let redis = pair.redis.manager().await;
        let client = patient(Counterfoil::new(redis, Wrapped { store, between }));
        client.opened(crate::support::votes()).await
    };
    let (counts, reads) = (process().await, process().await);
    refused(counts.incr("quiet", 1).await, ErrorKind::Store, "");
    late.0.store(true, Ordering::Relaxed);
    // this registers the family
    assert_eq!(counts.stored(["quiet"]).await.unwrap(), [Some(100)]);
    take_out(guard);
    let results = [
        counts.incr("quiet", 1).await.map(counted),
        reads.get("quiet").await,
    ];
    take_out(None);
    (results, votes.value("quiet").await)
}

#[tokio::test]
async fn a_row_of_a_clone_seeds_no_counter_of_the_original() {
    let (results, original) = late_clone(None).await;
    for result in results {
        refused(result, Mismatch, "go to");
    }
    assert_eq!(original, 3);
}

#[tokio::test]
async fn without_the_id_a_row_of_a_clone_seeds_a_counter_of_the_original() {
    let (results, original) = late_clone(Some(Guard::Database)).await;
    assert_eq!(results.map(|result| result.unwrap()), [101; 2]);
    assert_eq!(original, 101);
}

/// Starts the reconciler of a clone that went on with a copy of Redis, and then reaches the
/// original's: its ledger is ahead. Returns what the original has pending after some probes.
async fn probed_by_a_clone(guard: Option<Guard>) -> i64 {
    let (pair, views, _votes, _days) = original().await;
    let (pool, clone) = cloned(&pair).await;
    run_sql(&pool, "UPDATE counterfoil_ledger SET seq = seq + 1").await;
    views.count("page", 2).await;
    take_out(guard);
    let reconciler = clone.reconciler().all().start().await.unwrap();
    pause(2_500).await;
    reconciler.stop().await;
    take_out(None);
    views.pending(["page"]).await.unwrap()[0]
}

#[tokio::test]
async fn a_clone_drops_no_hits_of_the_original() {
    assert_eq!(probed_by_a_clone(None).await, 2);
}

#[tokio::test]
async fn without_the_id_a_clone_drops_hits_of_the_original() {
    assert_eq!(probed_by_a_clone(Some(Guard::Database)).await, 0);
}

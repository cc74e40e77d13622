//! Two databases on one Redis and namespace: the second is refused, and no hit reaches it
//! (docs/protocol.md, section 2).

use sqlx::mysql::MySqlPoolOptions;

use crate::support::*;

/// A second database for the Redis of a pair, as a copied configuration makes one.
async fn second(pair: &Pair) -> (MySqlPool, Counterfoil) {
    let pool = database().await;
    let redis = pair.redis.manager().await;
    let counterfoil = Counterfoil::new(redis, MysqlStore::new(pool.clone()));
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

/// A second database of the server, with the same families and other values.
async fn neighbour() -> (String, MySqlPool) {
    let (name, pool) = mysql().await.database("neighbour").await;
    let store = MysqlStore::new(pool.clone());
    store.create_tables().await.unwrap();
    let client = Counterfoil::new(new_redis().await.manager().await, store);
    client.opened(votes()).await;
    client.opened(family("views")).await;
    let insert =
        "INSERT INTO counterfoil_values SELECT number, 'page', 7 FROM counterfoil_families";
    run_sql(&pool, insert).await;
    (name, pool)
}

/// The application changes the database of the pool's only session.
#[tokio::test]
async fn a_session_that_left_the_database_is_replaced() {
    let (pair, (name, neighbour)) = (Pair::new().await, neighbour().await);
    let options = (*pair.pool.connect_options()).clone();
    let pool = MySqlPoolOptions::new().max_connections(1);
    let pool = pool.connect_with(options).await.unwrap();
    let client = Counterfoil::new(pair.redis.manager().await, MysqlStore::new(pool.clone()));
    let votes = client.opened(votes()).await;
    let views = client.opened(family("views")).await;
    pair.sql("INSERT INTO counterfoil_values SELECT number, 'page', 100 FROM counterfoil_families")
        .await;
    let leave = async || run_sql(&pool, &format!("USE {name}")).await;
    leave().await;
    assert_eq!(votes.value("page").await, 100);
    leave().await;
    assert_eq!(views.value("page").await, 100);
    leave().await;
    assert_eq!(views.get_many(["page", "none"]).await.unwrap(), [100, 0]);
    views.count("page", 1).await;
    leave().await;
    client.drained().await;
    leave().await;
    let listed = client.mysql().unwrap().overview().await.unwrap();
    assert!(listed.iter().any(|family| family.last_saved.is_some()));
    leave().await;
    let page = views.list("", None, 10).await.unwrap();
    assert_eq!(page, [("page".to_owned(), 101)]);
    let sum = "SELECT SUM(value) FROM counterfoil_values";
    assert_eq!(number(&pool, sum).await, Some(201));
    assert_eq!(number(&neighbour, sum).await, Some(14));
}

/// All sessions are in another database from some moment on.
#[tokio::test]
async fn a_pool_that_left_the_database_is_refused_and_the_error_names_both() {
    let (pair, (name, neighbour)) = (Pair::new().await, neighbour().await);
    let left = Arc::new(AtomicBool::new(false));
    let options = (*pair.pool.connect_options()).clone();
    let own = options.get_database().unwrap().to_owned();
    let pool = MySqlPoolOptions::new().after_connect({
        let (left, name) = (left.clone(), name.clone());
        move |session, _| {
            let leave = format!("USE {name}");
            let leave = left.load(Ordering::Relaxed).then_some(AssertSqlSafe(leave));
            Box::pin(async move {
                match leave {
                    Some(leave) => sqlx::raw_sql(leave).execute(session).await.map(drop),
                    None => Ok(()),
                }
            })
        }
    });
    let pool = pool.connect_with(options).await.unwrap();
    let store = MysqlStore::new(pool.clone());
    let family = store.register(&family("views").build().unwrap()).await;
    let family = Arc::new(family.unwrap());
    left.store(true, Ordering::Relaxed);
    while pool.size() > 0 {
        let session = pool.acquire().await.unwrap();
        session.close().await.unwrap();
    }
    let batch = crate::mysql::batch(&family, 0, 1, [("page", 1)]);
    let errors = [
        store.apply(&[batch], None).await.map(drop),
        store.rows(&family, &["page"]).await.map(drop),
        store.list(&family, "", None, 1).await.map(drop),
        store.register(&family.family).await.map(drop),
    ];
    for result in errors {
        let error = refused(result, ErrorKind::Store, &format!("`{name}`"));
        assert!(
            format!("{error:#}").contains(&format!("`{own}`")),
            "{error:#}"
        );
    }
    let rows = "SELECT COUNT(*) FROM counterfoil_ledger";
    assert_eq!(number(&neighbour, rows).await, Some(0));
}

#[tokio::test]
async fn a_pool_without_a_database_is_refused_with_what_to_do() {
    let pool = MySqlPool::connect(&mysql().await.url("")).await.unwrap();
    let store = MysqlStore::new(pool);
    let created = store.create_tables().await;
    refused(created, ErrorKind::Store, "no database is selected");
}

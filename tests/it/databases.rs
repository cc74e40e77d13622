//! Two databases on one Redis and namespace: the second is refused, and no hit reaches it
//! (docs/protocol.md, section 2).

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

//! A voting site: `curl -X POST localhost:3000/items/7/vote` returns the item's new number of
//! votes.
//!
//! The votes are stored in a table of the application, which must exist:
//!
//! ```sql
//! CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(200) NOT NULL, vote_count INT NOT NULL DEFAULT 0);
//! INSERT INTO item (id, name) VALUES (7, 'Strawberry');
//! ```
//!
//! `REDIS_URL` and `DATABASE_URL` name the servers. Any number of these processes may run side by
//! side.

use std::env;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Router, http::StatusCode};
use counterfoil::{CachedCounters, Counterfoil, Family, KeyType, Outcome, Table};
use tokio::time::timeout;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = env::var("REDIS_URL").unwrap_or("redis://localhost".into());
    let mysql = env::var("DATABASE_URL").unwrap_or("mysql://root@localhost/test".into());

    let pair = Counterfoil::connect(&redis, &mysql).await?;
    // Creates counterfoil's tables if they are missing. If you use migrations, put
    // MysqlStore::schema() into one.
    pair.mysql()?.create_tables().await?;
    let items = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("vote_count");
    let votes = pair
        .open(Family::cached("example", "votes").table(items))
        .await?;
    let reconciler = pair.reconciler().start().await?;

    let app = Router::new()
        .route("/items/{id}", get(show))
        .route("/items/{id}/vote", post(vote))
        .with_state(votes);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/items/7", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(interrupted())
        .await?;

    reconciler.shutdown().await?;
    // If a server is unavailable, votes that have not reached MySQL stay safe in Redis until the
    // next start.
    match timeout(Duration::from_secs(20), pair.drain()).await {
        Ok(drained) => drained?,
        Err(_) => eprintln!("not all votes are in MySQL yet"),
    }
    Ok(())
}

async fn vote(
    State(votes): State<CachedCounters>,
    Path(item): Path<u64>,
) -> Result<String, StatusCode> {
    match votes.incr(&item.to_string(), 1).await {
        Ok(Outcome::Counted(value)) => Ok(format!("{value}\n")),
        // The application owns the table: a vote never inserts an item.
        Ok(Outcome::NoRow) => Err(StatusCode::NOT_FOUND),
        Ok(_) => Err(StatusCode::CONFLICT),
        Err(error) => Err(failed(item, &error)),
    }
}

async fn show(
    State(votes): State<CachedCounters>,
    Path(item): Path<u64>,
) -> Result<String, StatusCode> {
    let value = votes
        .get(&item.to_string())
        .await
        .map_err(|error| failed(item, &error))?;
    Ok(format!("{value}\n"))
}

fn failed(item: u64, error: &counterfoil::Error) -> StatusCode {
    eprintln!("item {item}: {error:#}");
    if error.is_retryable() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        // the vote may be counted, so the client must not repeat it
        StatusCode::INTERNAL_SERVER_ERROR
    }
}

async fn interrupted() {
    let _ = tokio::signal::ctrl_c().await;
}

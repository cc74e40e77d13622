//! A web server that counts the views of each article and shows them:
//! http://localhost:3000/articles/7
//!
//! `REDIS_URL` and `DATABASE_URL` name the servers. Any number of these processes may run side by
//! side.

use std::env;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::Html;
use axum::{Router, http::StatusCode, routing::get};
use counterfoil::{BufferedCounters, Counterfoil, Family, Outcome};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = env::var("REDIS_URL").unwrap_or("redis://localhost".into());
    let mysql = env::var("DATABASE_URL").unwrap_or("mysql://root@localhost/test".into());

    let pair = Counterfoil::connect(&redis, &mysql).await?;
    // Creates counterfoil's tables if they are missing. If you use migrations, put
    // MysqlStore::schema() into one.
    pair.mysql()?.create_tables().await?;
    let views = pair
        .open(Family::buffered("example", "article_views"))
        .await?;
    let _reconciler = pair.reconciler().start().await?;

    let app = Router::new()
        .route("/articles/{number}", get(article))
        .with_state(views);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/articles/7", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(interrupted())
        .await?;

    // Takes up to twice the settle time, 5 s, if something was counted. Counts that remain after the
    // timeout stay safe in Redis until the next start.
    for remaining in pair.shutdown(Duration::from_secs(10)).await? {
        eprintln!("{remaining:?}");
    }
    Ok(())
}

async fn article(
    State(views): State<BufferedCounters>,
    Path(number): Path<u32>,
) -> Result<Html<String>, StatusCode> {
    let id = number.to_string();
    match views.add(&id, 1).await {
        Ok(Outcome::Counted(_)) => {}
        // A failed count must not fail the page.
        not_counted => eprintln!("article {id}: {not_counted:?}"),
    }
    let seen = views.get(&id).await.map_err(|error| {
        eprintln!("article {id}: {error}");
        StatusCode::SERVICE_UNAVAILABLE
    })?;
    Ok(Html(format!(
        "<h1>Article {id}</h1><p>Seen {seen} times.</p>"
    )))
}

async fn interrupted() {
    let _ = tokio::signal::ctrl_c().await;
}

//! A small service to copy from: views, votes, visitors, downloads and readers of articles, in its
//! own tables.
//!
//! ```sh
//! cat src/store/mysql/schema.sql examples/service/schema.sql | mysql shop
//! REDIS_URL=redis://localhost MYSQL_URL=mysql://root@localhost/shop cargo run --example service
//! curl -X POST localhost:3000/articles/1/votes
//! chromium localhost:3000/articles
//! ```
//!
//! `LISTEN` is the address to listen on (defaults to 127.0.0.1:3000). `SHUTDOWN_SECONDS` is the
//! time limit for bringing the remaining counts to MySQL at shutdown (defaults to 20; counts that
//! wait to be durable take 5). Any number of these processes may run side by side. They start and
//! count while MySQL is unavailable.

mod counts;
mod pages;
mod routes;

use std::env;
use std::time::Duration;

use counterfoil::sqlx::MySqlPool;
use counterfoil::{Counterfoil, MysqlStore, Primary};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use counts::Counts;

/// The time limit for requests in progress when the service shuts down.
const REQUESTS: Duration = Duration::from_secs(5);

struct Settings {
    redis: String,
    mysql: String,
    listen: String,
    shutdown: Duration,
}

impl Settings {
    fn from_env() -> Result<Self, Box<dyn std::error::Error>> {
        let needed = |name| env::var(name).map_err(|error| format!("{name}: {error}"));
        let seconds = env::var("SHUTDOWN_SECONDS").unwrap_or_else(|_| "20".to_owned());
        Ok(Settings {
            redis: needed("REDIS_URL")?,
            mysql: needed("MYSQL_URL")?,
            listen: env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned()),
            shutdown: Duration::from_secs(
                seconds
                    .parse()
                    .map_err(|error| format!("SHUTDOWN_SECONDS: {error}"))?,
            ),
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    // Installed before anything is opened, so that no metric is missed.
    let prometheus = PrometheusBuilder::new().install_recorder()?;
    counterfoil::metrics::describe();

    let settings = Settings::from_env()?;
    let redis = Primary::connect(settings.redis.as_str()).await?;
    let counterfoil = Counterfoil::new(redis, MysqlStore::new(&settings.mysql)?);
    let counts = Counts::open(&counterfoil).await?;
    counterfoil.reconciler().start().await?.detach();

    let listener = TcpListener::bind(&settings.listen).await?;
    tracing::info!(address = %listener.local_addr()?, "listening");
    let pages = pages::router(counts.clone(), MySqlPool::connect_lazy(&settings.mysql)?);
    let app = routes::router(counts, prometheus).merge(pages);
    select! {
        served = axum::serve(listener, app).with_graceful_shutdown(told_to_end()) => served?,
        () = async { told_to_end().await; sleep(REQUESTS).await } => tracing::warn!("requests under way are cut off"),
    }

    let remaining = counterfoil.shutdown(settings.shutdown).await?;
    for left in &remaining {
        // Recorded hits are lost. The backlog is safe in Redis until a reconciler runs again.
        tracing::warn!(family = %left.family, recorded = left.recorded, backlog = ?left.backlog, "left");
    }
    tracing::info!(families_left = remaining.len(), "ended");
    Ok(())
}

/// Waits for SIGTERM or Ctrl-C.
async fn told_to_end() {
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be waited for");
    let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be waited for");
    select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

//! The HTTP server: the state of health, metrics, a JSON API, and pages for people. It changes
//! nothing.

mod api;
mod assets;
mod auth;
mod chosen;
mod connections;
mod counters;
mod events;
mod guard;
mod health;
mod metrics;
mod page;
mod params;
mod problem;
mod rows;
#[cfg(test)]
mod testing;
mod totals;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use self::auth::Keys;
use self::problem::Problem;
use self::totals::Totals;
use crate::daemon::live::Live;

/// The maximum number of requests that query the servers at a time. The reconciler shares these
/// connections.
const QUESTIONS: usize = 4;
/// The maximum number of pages that are kept up to date at a time.
const WATCHERS: usize = 64;
/// The interval at which totals are updated, also without requests.
const OBSERVED: Duration = Duration::from_secs(2);

/// The state that all requests share.
struct App {
    live: Live,
    prometheus: PrometheusHandle,
    totals: Totals,
    questions: Semaphore,
    watchers: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

impl App {
    fn new(live: Live, prometheus: PrometheusHandle, stopping: watch::Receiver<bool>) -> Self {
        App {
            live,
            prometheus,
            totals: Totals::default(),
            questions: Semaphore::new(QUESTIONS),
            watchers: Arc::new(Semaphore::new(WATCHERS)),
            stopping,
        }
    }

    /// Waits for a permit to query the servers. Dropping the permit frees it.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.questions
            .acquire()
            .await
            .map_err(|_| Problem::unavailable("the daemon ends"))
    }

    async fn observe(&self) {
        let mut ticks = tokio::time::interval(OBSERVED);
        loop {
            ticks.tick().await;
            self.totals.observe(&self.live);
        }
    }
}

/// Serves until `stop`, then lets open requests finish. If there is a `token`, requests without it
/// see only the state of health.
pub async fn serve(
    listener: TcpListener,
    live: Live,
    token: Option<String>,
    prometheus: PrometheusHandle,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stopping, is_stopping) = watch::channel(false);
    let app = Arc::new(App::new(live, prometheus, is_stopping));
    let router = router(app.clone(), token.as_deref().map(Keys::new));
    tokio::select! {
        () = connections::serve(listener, router, stop, stopping) => Ok(()),
        () = app.observe() => Ok(()),
    }
}

fn router(app: Arc<App>, keys: Option<Keys>) -> Router {
    let timed = Router::new()
        .merge(api::routes())
        .merge(page::routes())
        .merge(assets::routes())
        .route("/metrics", get(metrics::show))
        .fallback(|| async { Problem::not_found("there is nothing at this path") })
        .layer(from_fn(guard::in_time));
    let locked = timed
        .route("/events", get(events::show))
        .layer(from_fn_with_state(keys.map(Arc::new), auth::require));
    let open = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz));
    locked
        .merge(open)
        .layer(from_fn(guard::only_reads))
        .layer(from_fn(guard::describe))
        .with_state(app)
}

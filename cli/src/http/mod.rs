//! What the daemon shows over HTTP: its state of health, metrics, a JSON API, and pages for people. Nothing can be changed.

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

/// How many requests ask the servers at a time: the reconciler has the same connections.
const QUESTIONS: usize = 4;
/// How many pages are kept up to date at a time.
const WATCHERS: usize = 64;
/// How often what was counted is taken in, whether or not somebody asks.
const OBSERVED: Duration = Duration::from_secs(2);

/// What all requests share.
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

    /// Whoever asks the servers waits for its turn, which ends when this is dropped.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.questions.acquire().await.map_err(|_| Problem::unavailable("the daemon ends"))
    }

    async fn observe(&self) {
        let mut ticks = tokio::time::interval(OBSERVED);
        loop {
            ticks.tick().await;
            self.totals.observe(&self.live);
        }
    }
}

/// Serves until `stop`, then lets requests that are under way end. Who has no `token` sees the state of health only, where
/// there is one.
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
    let locked = timed.route("/events", get(events::show)).layer(from_fn_with_state(keys.map(Arc::new), auth::require));
    let open = Router::new().route("/healthz", get(health::healthz)).route("/readyz", get(health::readyz));
    locked.merge(open).layer(from_fn(guard::only_reads)).layer(from_fn(guard::describe)).with_state(app)
}

//! The HTTP server: health, metrics, a JSON API, and pages. It is read-only.

mod api;
mod assets;
mod auth;
mod connections;
mod events;
mod family;
mod middleware;
mod page;
mod params;
mod problem;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use self::auth::Keys;
use self::problem::Problem;
use crate::daemon::metrics::set_gauges;
use crate::daemon::state::DaemonState;
use crate::view::View;

/// The maximum number of concurrent requests that query Redis and MySQL. The reconciler shares
/// these connections.
const MAX_QUERIES: usize = 4;
/// The maximum number of concurrent event streams.
const MAX_STREAMS: usize = 64;

/// The state that all requests share.
struct App {
    daemon: DaemonState,
    prometheus: PrometheusHandle,
    queries: Semaphore,
    streams: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

/// The application, as handlers receive it.
type AppState = State<Arc<App>>;

impl App {
    /// Returns the last known state of the pair `name`, or of all pairs.
    fn view(&self, name: &Option<String>) -> Result<View, Problem> {
        let mut view = self.daemon.view();
        if name.is_some() {
            view.pairs = vec![self.pair(name)?.view.borrow().clone()];
        }
        Ok(view)
    }

    /// Waits for a permit to query the servers. Dropping the permit frees it.
    async fn query_permit(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.queries
            .acquire()
            .await
            .map_err(|_| Problem::unavailable("the daemon is shutting down"))
    }
}

/// Serves until `stop`, then lets open requests finish. If there is a `token`, requests without it
/// may only check health.
pub async fn serve(
    listener: TcpListener,
    daemon: DaemonState,
    token: Option<String>,
    prometheus: PrometheusHandle,
    stop: impl Future<Output = ()>,
) {
    let (stopping, is_stopping) = watch::channel(false);
    let app = App {
        daemon,
        prometheus,
        queries: Semaphore::new(MAX_QUERIES),
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        stopping: is_stopping,
    };
    let router = router(app, token.as_deref().map(Keys::new));
    connections::serve(listener, router, stop, stopping).await;
}

fn router(app: App, keys: Option<Keys>) -> Router {
    let timed = Router::new()
        .merge(api::routes())
        .merge(page::routes())
        .merge(assets::routes())
        .route("/metrics", get(metrics))
        .fallback(|| async { Problem::not_found("nothing at this path") })
        .layer(from_fn(middleware::time_limit));
    let locked = timed
        .route("/events", get(events::stream))
        .layer(from_fn_with_state(keys.map(Arc::new), auth::require));
    let open = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz));
    locked
        .merge(open)
        .layer(from_fn(middleware::read_only))
        .layer(from_fn(middleware::set_headers))
        .with_state(Arc::new(app))
}

async fn metrics(app: AppState) -> impl IntoResponse {
    set_gauges(&app.daemon.view());
    let format = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, format)], app.prometheus.render())
}

/// Returns 200 if the hits of all pairs reach MySQL, or 503 with the bare reason why not.
async fn readyz(app: AppState) -> (StatusCode, String) {
    match app.daemon.view().not_ready() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => {
            let reason = format!("not ready: {}\n", reason.name());
            (StatusCode::SERVICE_UNAVAILABLE, reason)
        }
    }
}

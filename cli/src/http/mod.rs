//! The HTTP server: health, metrics, a JSON API, and pages. It is read-only.

mod api;
mod assets;
mod auth;
mod connections;
mod family;
mod logins;
mod middleware;
mod page;
pub mod problem;

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Redirect};
use axum::routing::{get, post};
use axum_extra::extract::Query;
use metrics_exporter_prometheus::PrometheusHandle;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::timeout;

use self::logins::Logins;
use self::problem::Problem;
use crate::config::Config;
use crate::metrics::render;
use crate::state::PairState;
use crate::view::View;

/// The time for which a request waits for others to end. Clients wait for half a second in all, and
/// have time to ask another daemon.
const QUEUE_TIME: Duration = Duration::from_millis(200);

/// The path to which the form for the token is sent.
const LOGIN: &str = "/login";
/// The path that takes ids in a body.
const VALUES: &str = "/api/v1/values";
const MAX_LOGIN_BYTES: usize = 4096;

/// The state that all requests share.
pub struct App {
    pairs: Vec<Arc<PairState>>,
    /// The configuration, which a reload may change.
    config: watch::Receiver<Arc<Config>>,
    prometheus: PrometheusHandle,
    /// The name of the cookie. It differs between daemons on one machine, since cookies are shared by
    /// all ports of a host.
    cookie: String,
    logins: Logins,
}

/// The application, as handlers receive it.
type AppState = State<Arc<App>>;

impl App {
    /// Creates the state of a daemon that listens on this port.
    pub fn new(
        pairs: Vec<Arc<PairState>>,
        config: watch::Receiver<Arc<Config>>,
        prometheus: PrometheusHandle,
        port: u16,
    ) -> Self {
        App {
            pairs,
            config,
            prometheus,
            cookie: format!("counterfoil-{port}"),
            logins: Logins::default(),
        }
    }

    /// Returns the last known state of all pairs.
    fn view(&self) -> View {
        View::of(&self.pairs)
    }

    /// Returns the last known state of the pair `name`, or of all pairs.
    fn view_of(&self, name: &Option<String>) -> Result<View, Problem> {
        Ok(match name {
            Some(_) => View::of(slice::from_ref(self.pair(name)?)),
            None => self.view(),
        })
    }
}

/// Waits for a permit to read from the servers of a pair, but not for long. Dropping the permit frees
/// it.
async fn read_permit(pair: &PairState) -> Result<SemaphorePermit<'_>, Problem> {
    match timeout(QUEUE_TIME, pair.reads.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(Problem::overloaded("too many reads at a time")
            .advise("retry later, or send some requests to another daemon")),
    }
}

/// An extractor of query parameters, with a [`Problem`] for errors.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        // `Query` replaces invalid UTF-8, which would be another id
        let mut params = parts.uri.query().unwrap_or_default().split('&');
        if let Some(param) = params.find(|param| percent_decode_str(param).decode_utf8().is_err()) {
            let name = param.split('=').next().unwrap_or_default();
            return Err(Problem::parameter(name, "the value is not UTF-8"));
        }
        match Query::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => Err(Problem::new(rejection.status(), rejection.body_text())),
        }
    }
}

/// Serves until `stop`, then lets open requests finish.
pub async fn serve(listener: TcpListener, app: App, stop: impl Future<Output = ()>) {
    let app = Arc::new(app);
    let all = router(&app).merge(health());
    let busy = || async { Problem::overloaded("too many connections") };
    let reserve = health().fallback(busy);
    let routers = [all, reserve].map(|router| finish(router, app.clone()));
    connections::serve(listener, routers, stop).await;
}

fn router(app: &Arc<App>) -> Router<Arc<App>> {
    Router::new()
        .merge(api::routes())
        .merge(page::routes())
        .route("/metrics", get(metrics))
        .fallback(|| async { Problem::not_found("nothing at this path") })
        .layer(from_fn_with_state(app.clone(), auth::require_token))
        .merge(public())
        .layer(from_fn(middleware::time_limit))
        .layer(from_fn_with_state(app.clone(), auth::require_host))
}

/// Returns the routes that a browser needs to log in.
fn public() -> Router<Arc<App>> {
    // a browser may keep the address of the form
    let login = post(auth::login).get(|| async { Redirect::to("./") });
    Router::new()
        .merge(assets::routes())
        .route(LOGIN, login.layer(DefaultBodyLimit::max(MAX_LOGIN_BYTES)))
}

/// Returns the routes that need no token.
fn health() -> Router<Arc<App>> {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
}

fn finish(router: Router<Arc<App>>, app: Arc<App>) -> Router {
    router
        .layer(from_fn(middleware::read_only))
        .layer(from_fn(middleware::set_headers))
        .with_state(app)
}

async fn metrics(app: AppState) -> impl IntoResponse {
    let format = "text/plain; version=0.0.4; charset=utf-8";
    (
        [(CONTENT_TYPE, format)],
        render(&app.prometheus, &app.view()),
    )
}

/// Returns 200 if the hits of all pairs reach MySQL, or 503 with the bare reason why not.
async fn readyz(app: AppState) -> (StatusCode, String) {
    match app.view().not_ready() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => {
            let reason = format!("not ready: {reason}\n");
            (StatusCode::SERVICE_UNAVAILABLE, reason)
        }
    }
}

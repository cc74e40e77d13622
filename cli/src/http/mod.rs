//! The HTTP server: health, metrics, a JSON API, and pages. It is read-only.

mod api;
mod assets;
mod auth;
mod connections;
pub mod error;
mod family;
mod logins;
mod middleware;
mod page;

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
use rustix::system::uname;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::timeout;

use self::error::ErrorReply;
use self::logins::Logins;
use crate::config::Config;
use crate::metrics::render;
use crate::state::PairState;
use crate::status::unix_now;
use crate::view::View;

/// The time for which a request waits for others to end. Client packages wait for half a second in
/// all, so after a refusal they still have time to ask another daemon.
const QUEUE_TIME: Duration = Duration::from_millis(200);

/// The reply of a daemon that is alive.
pub const ALIVE: &str = "ok\n";
/// The path to which the form for the token is sent.
const LOGIN: &str = "/login";
/// The path that ends a browser's session.
const LOGOUT: &str = "/logout";
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
    /// The machine and the port, by which operators tell daemons apart.
    instance: String,
    /// The start in Unix seconds.
    started: u64,
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
            instance: format!("{}:{port}", uname().nodename().to_string_lossy()),
            started: unix_now(),
            logins: Logins::default(),
        }
    }

    /// Returns the last known state of all pairs.
    fn view(&self) -> View {
        View::of(&self.pairs)
    }

    /// Returns the last known state of the pair `name`, or of all pairs.
    fn view_of(&self, name: &Option<String>) -> Result<View, ErrorReply> {
        Ok(match name {
            Some(_) => View::of(slice::from_ref(self.pair(name)?)),
            None => self.view(),
        })
    }
}

/// Waits for a permit to read from the servers of a pair, but not for long. Dropping the permit frees
/// it.
async fn read_permit(pair: &PairState) -> Result<SemaphorePermit<'_>, ErrorReply> {
    match timeout(QUEUE_TIME, pair.reads.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(ErrorReply::overloaded("too many reads at a time")
            .advise("Retry later, or send some requests to another daemon")),
    }
}

/// An extractor of query parameters, with an [`ErrorReply`] for errors.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ErrorReply;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorReply> {
        // `Query` would replace bytes that are not UTF-8, and so read another id than the one
        // requested
        let mut params = parts.uri.query().unwrap_or_default().split('&');
        if let Some(param) = params.find(|param| percent_decode_str(param).decode_utf8().is_err()) {
            let name = param.split('=').next().unwrap_or_default();
            return Err(ErrorReply::parameter(name, "the value is not UTF-8"));
        }
        match Query::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => Err(ErrorReply::new(rejection.status(), rejection.body_text())),
        }
    }
}

/// Serves until `stop`, then lets open requests finish.
pub async fn serve(listener: TcpListener, app: App, stop: impl Future<Output = ()>) {
    let app = Arc::new(app);
    let all = router(&app).merge(health());
    let reserve = guarded(scrapes(&app), &app)
        .merge(health())
        .fallback(|| async { ErrorReply::overloaded("too many connections") });
    let routers = [all, reserve].map(|router| finish(router, app.clone()));
    connections::serve(listener, routers, stop).await;
}

fn router(app: &Arc<App>) -> Router<Arc<App>> {
    let all = Router::new()
        .merge(api::routes())
        .merge(page::routes())
        .fallback(|| async { ErrorReply::not_found("nothing at this path") })
        .layer(from_fn_with_state(app.clone(), auth::require_token))
        .merge(scrapes(app))
        .merge(public());
    guarded(all, app)
}

/// Limits the time of requests, and requires a known host name.
fn guarded(router: Router<Arc<App>>, app: &Arc<App>) -> Router<Arc<App>> {
    router
        .layer(from_fn(middleware::time_limit))
        .layer(from_fn_with_state(app.clone(), auth::require_host))
}

/// Returns the routes that a browser needs to log in.
fn public() -> Router<Arc<App>> {
    // a browser that shows the form after a failed login has this address, and may load it again
    // with GET
    let login = post(auth::login).get(|| async { Redirect::to("./") });
    Router::new()
        .merge(assets::routes())
        .route(LOGIN, login.layer(DefaultBodyLimit::max(MAX_LOGIN_BYTES)))
        .route(LOGOUT, post(auth::logout))
}

/// Returns the route of the metrics.
fn scrapes(app: &Arc<App>) -> Router<Arc<App>> {
    Router::new()
        .route("/metrics", get(metrics))
        .layer(from_fn_with_state(app.clone(), auth::require_token))
}

/// Returns the routes that need no token.
fn health() -> Router<Arc<App>> {
    Router::new()
        .route("/healthz", get(|| async { ALIVE }))
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
        Some(reason) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {reason}\n"),
        ),
    }
}

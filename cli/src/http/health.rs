//! The health of the daemon, and the availability of its servers.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;

use super::App;
use crate::view::{ServerView, View};

/// Returns 200 as long as the process responds.
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Returns 200 if every server is up, or 503 with a line for each that is not.
pub async fn readyz(State(app): State<Arc<App>>) -> impl IntoResponse {
    let missing = missing(&app.live.view());
    if missing.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, missing)
    }
}

fn missing(view: &View) -> String {
    let servers = view.pairs.iter().flat_map(|pair| {
        [
            (&pair.name, "Redis", &pair.redis),
            (&pair.name, "MySQL", &pair.mysql),
        ]
    });
    let away = servers.filter(|(_, _, server)| !server.up);
    away.map(|(pair, server, ServerView { why, .. })| {
        let why = why
            .as_deref()
            .unwrap_or("it was not reached yet")
            .replace('\n', " ");
        format!("pair {pair}: {server} is away: {why}\n")
    })
    .collect()
}

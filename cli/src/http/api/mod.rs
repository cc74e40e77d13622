//! The JSON API, as docs/http-api.md describes it.

mod counters;
mod notes;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use super::App;

/// The default number of rows in a reply. A request may set `limit` up to `MOST_ROWS`.
const ROWS: u64 = 100;
const MOST_ROWS: u64 = 1000;

pub fn routes() -> Router<Arc<App>> {
    let routes = Router::new()
        .route("/state", get(state::state))
        .route("/families", get(state::families))
        .route("/values", get(counters::values))
        .route("/series", get(counters::series))
        .route("/series-names", get(counters::series_names))
        .route("/activity", get(counters::activity))
        .route("/rejects", get(notes::rejects))
        .route("/drift", get(notes::drift));
    Router::new().nest("/api/v1", routes)
}

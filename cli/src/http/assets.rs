//! The files that pages load. They are part of the program, so that no other host learns about
//! viewers.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::App;
use super::error::ErrorReply;

const CSS: &str = "text/css";
const JAVASCRIPT: &str = "text/javascript";

/// Returns the content type and the text of the file `name`.
fn find(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "page.css" => (CSS, include_str!("../../assets/page.css")),
        "page.js" => (JAVASCRIPT, include_str!("../../assets/page.js")),
        "uPlot.min.css" => (CSS, include_str!("../../assets/uplot/uPlot.min.css")),
        "uPlot.iife.min.js" => (
            JAVASCRIPT,
            include_str!("../../assets/uplot/uPlot.iife.min.js"),
        ),
        _ => return None,
    })
}

/// Returns the relative address of the file `name`, which changes with the content, so that browsers
/// may cache it forever.
pub fn address(name: &str) -> String {
    let mut hasher = DefaultHasher::new();
    find(name).hash(&mut hasher);
    format!("assets/{name}?{:x}", hasher.finish())
}

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/assets/{name}", get(show))
}

async fn show(Path(name): Path<String>) -> Response {
    let Some((content_type, text)) = find(&name) else {
        return ErrorReply::not_found(format!("no file {name:?}")).into_response();
    };
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "private, max-age=31536000, immutable"),
    ];
    (headers, text).into_response()
}

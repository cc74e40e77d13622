//! The files that pages load. They are part of the program, so that no other host learns about
//! viewers.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use super::App;
use super::problem::Problem;

struct Asset {
    kind: &'static str,
    text: &'static str,
    /// An address that changes with the content, so that browsers may cache it forever.
    address: String,
}

static ASSETS: LazyLock<BTreeMap<&'static str, Asset>> = LazyLock::new(|| {
    let files = [
        (
            "page.css",
            "text/css",
            include_str!("../../assets/page.css"),
        ),
        (
            "page.js",
            "text/javascript",
            include_str!("../../assets/page.js"),
        ),
        (
            "uPlot.min.css",
            "text/css",
            include_str!("../../assets/uplot/uPlot.min.css"),
        ),
        (
            "uPlot.iife.min.js",
            "text/javascript",
            include_str!("../../assets/uplot/uPlot.iife.min.js"),
        ),
    ];
    files
        .map(|(name, kind, text)| {
            (
                name,
                Asset {
                    kind,
                    text,
                    address: address(name, text),
                },
            )
        })
        .into()
});

fn address(name: &str, text: &str) -> String {
    let hash = Sha256::digest(text);
    format!(
        "/assets/{name}?{:02x}{:02x}{:02x}{:02x}",
        hash[0], hash[1], hash[2], hash[3]
    )
}

/// Returns the address of the file `name`.
pub fn at(name: &str) -> &'static str {
    ASSETS.get(name).map_or("", |asset| &asset.address)
}

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/assets/{name}", get(show))
}

async fn show(Path(name): Path<String>) -> Response {
    match ASSETS.get(name.as_str()) {
        Some(Asset { kind, text, .. }) => {
            let kept = "private, max-age=31536000, immutable";
            ([(CONTENT_TYPE, *kind), (CACHE_CONTROL, kept)], *text).into_response()
        }
        None => Problem::not_found(format!("there is no file {name:?}")).into_response(),
    }
}

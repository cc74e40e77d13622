//! The files that pages load. They are part of the program, so that no other host learns about
//! viewers.

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
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
    /// An address that changes with the content, so that browsers may cache it forever.
    address: String,
}

impl Asset {
    fn new(name: &'static str, content_type: &'static str, text: &'static str) -> Self {
        let hash = Sha256::digest(text);
        Asset {
            name,
            content_type,
            text,
            address: format!("assets/{name}?{}", hex(&hash[..4])),
        }
    }
}

static ASSETS: LazyLock<[Asset; 4]> = LazyLock::new(|| {
    let css = "text/css";
    let javascript = "text/javascript";
    [
        Asset::new("page.css", css, include_str!("../../assets/page.css")),
        Asset::new("page.js", javascript, include_str!("../../assets/page.js")),
        Asset::new(
            "uPlot.min.css",
            css,
            include_str!("../../assets/uplot/uPlot.min.css"),
        ),
        Asset::new(
            "uPlot.iife.min.js",
            javascript,
            include_str!("../../assets/uplot/uPlot.iife.min.js"),
        ),
    ]
});

fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

/// Returns the relative address of the file `name`.
pub fn address(name: &str) -> &'static str {
    find(name).map_or("", |asset| &asset.address)
}

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/assets/{name}", get(show))
}

async fn show(Path(name): Path<String>) -> Response {
    let Some(asset) = find(&name) else {
        return Problem::not_found(format!("no file {name:?}")).into_response();
    };
    let headers = [
        (CONTENT_TYPE, asset.content_type),
        (CACHE_CONTROL, "private, max-age=31536000, immutable"),
    ];
    (headers, asset.text).into_response()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! What holds for every request: it only reads, and takes a while at most; and what every reply says of itself.

use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

/// How long a reply may take, but for events.
pub const WITHIN: Duration = Duration::from_secs(10);

/// Everything is served from here, and nothing stands in a page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Refuses what would change something, and bodies.
pub async fn only_reads(request: Request, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let problem =
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD: nothing can be changed over HTTP");
        return ([(ALLOW, "GET, HEAD"), (CONNECTION, "close")], problem).into_response();
    }
    if !request.body().is_end_stream() {
        let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "requests have no body here");
        return ([(CONNECTION, "close")], problem).into_response();
    }
    next.run(request).await
}

/// Gives up what takes too long.
pub async fn in_time(request: Request, next: Next) -> Response {
    let late =
        || Problem::unavailable(format!("no reply within {WITHIN:?}")).advise("see at /readyz which server is away");
    tokio::time::timeout(WITHIN, next.run(request)).await.unwrap_or_else(|_| late().into_response())
}

/// Nothing is kept by anybody unless the reply says otherwise, and no page can be made to run what is not ours.
pub async fn describe(request: Request, next: Next) -> Response {
    let mut reply = next.run(request).await;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    reply
}

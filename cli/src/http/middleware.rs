//! The rules for every request, which only reads and has a time limit, and the headers of every
//! reply.

use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ErrorReply;
use super::{LOGIN, LOGOUT, VALUES};

/// The time limit of a reply.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The content security policy: this server alone serves files, and pages contain no inline scripts
/// or styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Refuses methods other than GET and HEAD, and requests with a body, except to log in or out and for
/// values by a list of ids.
pub async fn read_only(request: Request, next: Next) -> Response {
    if request.method() == Method::POST && [LOGIN, LOGOUT, VALUES].contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let (status, why) = if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let why = "only GET and HEAD are allowed";
        (StatusCode::METHOD_NOT_ALLOWED, why)
    } else if !request.body().is_end_stream() {
        (StatusCode::PAYLOAD_TOO_LARGE, "no request body is allowed")
    } else {
        return next.run(request).await;
    };
    let headers = [(ALLOW, "GET, HEAD"), (CONNECTION, "close")];
    (headers, ErrorReply::new(status, why)).into_response()
}

/// Ends requests that take too long.
pub async fn time_limit(request: Request, next: Next) -> Response {
    let reply = tokio::time::timeout(TIME_LIMIT, next.run(request)).await;
    reply.unwrap_or_else(|_| {
        ErrorReply::unavailable(format!("no reply within {TIME_LIMIT:?}"))
            .advise("The status page shows the state of the servers")
            .into_response()
    })
}

/// Sets headers that forbid foreign code in pages and, by default, caching.
pub async fn set_headers(request: Request, next: Next) -> Response {
    let mut reply = next.run(request).await;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    reply
}

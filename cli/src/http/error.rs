//! Error replies.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use counterfoil::{Error, ErrorKind};
use serde::Serialize;

use crate::output::with_commands;
use crate::reason::Advice;

/// An error reply, with advice if there is any.
#[derive(Clone, Serialize)]
pub struct ErrorReply {
    #[serde(skip)]
    pub status: StatusCode,
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what_to_do: Option<String>,
    /// The seconds after which the client may send the request again.
    #[serde(skip)]
    retry_after: Option<u32>,
}

impl ErrorReply {
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        ErrorReply {
            status,
            error: error.into(),
            what_to_do: None,
            retry_after: None,
        }
    }

    /// Creates the reply to a missing or invalid parameter.
    pub fn parameter(name: &str, wrong: impl std::fmt::Display) -> Self {
        ErrorReply::new(
            StatusCode::BAD_REQUEST,
            format!("parameter {name}: {wrong:#}"),
        )
    }

    pub fn not_found(error: impl Into<String>) -> Self {
        ErrorReply::new(StatusCode::NOT_FOUND, error)
    }

    pub fn unavailable(error: impl Into<String>) -> Self {
        ErrorReply::new(StatusCode::SERVICE_UNAVAILABLE, error)
    }

    /// Creates the reply of a daemon that has too much to do at the moment.
    pub fn overloaded(error: impl Into<String>) -> Self {
        ErrorReply {
            retry_after: Some(1),
            ..ErrorReply::unavailable(error)
        }
    }

    pub fn advise(self, what: &str) -> Self {
        ErrorReply {
            what_to_do: Some(with_commands(what)),
            ..self
        }
    }
}

impl From<Error> for ErrorReply {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
            ErrorKind::Range => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::Mismatch => StatusCode::CONFLICT,
            ErrorKind::AccessDenied
            | ErrorKind::Redis
            | ErrorKind::Store
            | ErrorKind::Busy
            | ErrorKind::Closed
            | ErrorKind::Unsafe => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let reply = ErrorReply::new(status, format!("{error:#}"));
        // a client can do nothing about the servers
        if error.is_retryable() || error.kind() == ErrorKind::Closed {
            return reply.advise("Retry later; the status page shows the state of the servers");
        }
        match Advice::about(&error) {
            Some(advice) => reply.advise(&advice.what_to_do),
            None => reply,
        }
    }
}

impl IntoResponse for ErrorReply {
    fn into_response(self) -> Response {
        let retry_after = self.retry_after.map(|seconds| [(RETRY_AFTER, seconds)]);
        (self.status, retry_after, Json(self)).into_response()
    }
}

//! The service over HTTP: a POST counts, and a GET of the same path reads exactly what was counted.

use std::future::ready;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Path, State};
use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use counterfoil::{Day, ErrorKind, Outcome, Precision};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::counts::Counts;

pub fn router(counts: Counts, prometheus: PrometheusHandle) -> Router {
    let metrics = move || {
        ready((
            [(CONTENT_TYPE, "text/plain; version=0.0.4")],
            prometheus.render(),
        ))
    };
    Router::new()
        .route("/articles/{article}/views", post(view).get(views))
        .route("/articles/{article}/votes", post(vote).get(votes))
        .route("/articles/{article}/visitors", get(visitors))
        .route("/articles/{article}/visitors/{visitor}", post(visit))
        .route(
            "/articles/{article}/downloads",
            post(download).get(downloads),
        )
        .route("/articles/{article}/readers", get(readers))
        .route("/articles/{article}/readers/{reader}", post(read))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthy))
        .with_state(counts)
}

type Reply<T> = Result<T, Failed>;

/// Records a view without waiting. It reaches Redis within milliseconds. A kill before that loses
/// it.
async fn view(State(counts): State<Counts>, Path(article): Path<u64>) -> Reply<StatusCode> {
    counts.views.record(&article.to_string(), 1)?;
    Ok(StatusCode::ACCEPTED)
}

async fn views(State(counts): State<Counts>, Path(article): Path<u64>) -> Reply<String> {
    Ok(counts.views.get(&article.to_string()).await?.to_string())
}

/// Counts a vote and returns the new number of votes.
async fn vote(State(counts): State<Counts>, Path(article): Path<u64>) -> Reply<Response> {
    Ok(match counts.votes.incr(&article.to_string(), 1).await? {
        Outcome::Counted(value) => value.to_string().into_response(),
        Outcome::NoRow => StatusCode::NOT_FOUND.into_response(),
        _ => StatusCode::CONFLICT.into_response(),
    })
}

async fn votes(State(counts): State<Counts>, Path(article): Path<u64>) -> Reply<String> {
    Ok(counts.votes.get(&article.to_string()).await?.to_string())
}

/// Counts a visit and returns whether it is the visitor's first one today.
async fn visit(
    State(counts): State<Counts>,
    Path((article, visitor)): Path<(u64, String)>,
) -> Reply<String> {
    Ok((counts
        .visitors
        .first_visit(&article.to_string(), Day::today(), visitor)
        .await?
        == Outcome::Counted(1))
    .to_string())
}

async fn visitors(State(counts): State<Counts>, Path(article): Path<u64>) -> Reply<String> {
    Ok(counts
        .visitors
        .get(&article.to_string(), Day::today())
        .await?
        .to_string())
}

async fn download(State(counts): State<Counts>, Path(article): Path<u64>) -> Reply<StatusCode> {
    Ok(match counts.downloads.add(&article.to_string(), 1).await? {
        Outcome::Counted(_) => StatusCode::NO_CONTENT,
        _ => StatusCode::CONFLICT,
    })
}

/// Returns the last 120 minutes, each with its start in Unix seconds.
async fn downloads(
    State(counts): State<Counts>,
    Path(article): Path<u64>,
) -> Reply<Json<Vec<(u64, i64)>>> {
    let minutes = counts
        .downloads
        .get(&article.to_string(), Precision::MINUTE)
        .await?;
    let seconds = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs()
    };
    Ok(Json(
        minutes
            .into_iter()
            .map(|minute| (seconds(minute.start), minute.count))
            .collect(),
    ))
}

async fn read(
    State(counts): State<Counts>,
    Path((article, reader)): Path<(u64, String)>,
) -> Reply<StatusCode> {
    counts.readers.touch(&article.to_string(), reader).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the readers and views of the last 10 minutes.
async fn readers(State(counts): State<Counts>, Path(article): Path<u64>) -> Reply<Json<Value>> {
    let now = counts.readers.now(&article.to_string()).await?;
    Ok(Json(json!({ "readers": now.visitors, "views": now.views })))
}

/// Returns whether hits are counted. Redis is enough for that: without MySQL they wait there.
async fn healthy(State(counts): State<Counts>) -> StatusCode {
    match timeout(Duration::from_secs(1), counts.views.pending(&["0"])).await {
        Ok(Ok(_)) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The response to a failed call.
struct Failed(counterfoil::Error);

impl From<counterfoil::Error> for Failed {
    fn from(error: counterfoil::Error) -> Self {
        Failed(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Failed(error) = self;
        let status = match error.kind() {
            ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
            // definitely not counted: the client may retry the request
            ErrorKind::Closed => StatusCode::SERVICE_UNAVAILABLE,
            _ if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            // possibly counted: a retry might count twice
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        tracing::warn!(%error, %status, "a request failed");
        status.into_response()
    }
}

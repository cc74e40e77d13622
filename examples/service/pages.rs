//! The pages of the site: the list of articles with their exact views, and an article, whose views by crawlers do not count.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::header::{HeaderMap, USER_AGENT};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use counterfoil::sqlx::{self, MySqlPool};

use crate::counts::Counts;

static CRAWLERS: LazyLock<isbot::Bots> = LazyLock::new(isbot::Bots::default);

pub fn router(counts: Counts, database: MySqlPool) -> Router {
    let article = get(article).layer(from_fn_with_state(counts.clone(), count_view));
    Router::new()
        .route("/articles", get(articles))
        .route("/articles/{article}", article)
        .with_state((counts, database))
}

type Site = State<(Counts, MySqlPool)>;

async fn articles(State((counts, database)): Site) -> Result<Html<String>, Unavailable> {
    let rows = sqlx::query_as("SELECT CAST(id AS CHAR), title FROM article ORDER BY id LIMIT 1000");
    let rows: Vec<(String, String)> = rows.fetch_all(&database).await?;
    let ids: Vec<_> = rows.iter().map(|(id, _)| id.as_str()).collect();
    // one call for the whole list
    let views = counts.views.get_many(&ids).await?;
    let items = rows.iter().zip(views).map(|((id, title), views)| {
        let title = escaped(title);
        format!("<li><a href=\"/articles/{id}\">{title}</a>: {views} views</li>")
    });
    Ok(page(
        "Articles",
        &format!("<ul>{}</ul>", items.collect::<String>()),
    ))
}

async fn article(
    State((counts, database)): Site,
    Path(id): Path<u64>,
) -> Result<Response, Unavailable> {
    let row = sqlx::query_scalar("SELECT title FROM article WHERE id = ?").bind(id);
    let Some(title) = row.fetch_optional(&database).await? else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let title: String = title;
    let views = counts.views.get(&id.to_string()).await?;
    Ok(page(&escaped(&title), &format!("<p>{views} views</p>")).into_response())
}

/// Counts a view of a page that is shown to a reader. A failure is logged, and does not break the page.
async fn count_view(
    State(counts): State<Counts>,
    Path(article): Path<u64>,
    request: Request,
    next: Next,
) -> Response {
    let counts_here = request.method() == Method::GET && is_reader(request.headers());
    let response = next.run(request).await;
    if counts_here
        && response.status().is_success()
        && let Err(error) = counts.views.record(&article.to_string(), 1)
    {
        tracing::warn!(%error, article, "a view may not be counted");
    }
    response
}

/// Returns whether a page is shown to a person: neither a crawler asks for it, nor a browser in advance.
fn is_reader(headers: &HeaderMap) -> bool {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let agent = text(USER_AGENT.as_str());
    let is_in_advance = ["sec-purpose", "purpose"]
        .iter()
        .any(|name| text(name).contains("prefetch"));
    !agent.is_empty() && !is_in_advance && !CRAWLERS.is_bot(agent)
}

fn page(title: &str, body: &str) -> Html<String> {
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><h1>{title}</h1>{body}</html>"
    ))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

/// The response where a server does not reply.
struct Unavailable(Box<dyn std::error::Error + Send + Sync>);

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Unavailable {
    fn from(error: E) -> Self {
        Unavailable(error.into())
    }
}

impl IntoResponse for Unavailable {
    fn into_response(self) -> Response {
        tracing::warn!(error = %self.0, "a page failed");
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}

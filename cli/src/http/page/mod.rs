//! Pages for people. They are complete without JavaScript, and update themselves with it.

mod counter;
mod format;
pub mod overview;
mod series;
mod sparkline;
mod tables;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use maud::{DOCTYPE, Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::App;
use super::assets;
use super::problem::Problem;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(overview::show))
        .route("/counter", get(counter::show))
        .route("/series", get(series::show))
}

/// Renders a page around its content, with the styles and scripts of a chart if `with_chart` is
/// set.
fn page(title: &str, with_chart: bool, content: &Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="data:,";
                @if with_chart {
                    link rel="stylesheet" href=(assets::at("uPlot.min.css"));
                    script defer src=(assets::at("uPlot.iife.min.js")) {}
                }
                link rel="stylesheet" href=(assets::at("page.css"));
                script defer src=(assets::at("page.js")) {}
            }
            body {
                a.skip href="#main" { "To the content" }
                (content)
            }
        }
    };
    Html(page.into_string())
}

/// Renders a problem as a page of its own.
fn problem_page(problem: Problem) -> Response {
    let content = html! {
        header { h1 { a href="/" { "Counterfoil" } } }
        main id="main" { (told(&problem)) }
    };
    (problem.status, page("Counterfoil", false, &content)).into_response()
}

/// Renders a problem within a page.
fn told(problem: &Problem) -> Markup {
    let status = if problem.status == StatusCode::BAD_REQUEST {
        "Not understood"
    } else {
        "Not there"
    };
    html! {
        p.problem role="alert" {
            strong { (status) ": " } (problem.error) "."
            @if let Some(what) = problem.what_to_do { " What to do: " (what) "." }
        }
    }
}

/// Returns an address of this site, without empty parameters.
fn address(path: &str, params: &[(&str, &str)]) -> String {
    let given = params.iter().filter(|(_, value)| !value.is_empty());
    let given: Vec<_> = given
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
        .collect();
    if given.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", given.join("&"))
    }
}

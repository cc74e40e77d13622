//! Pages for people. They are complete without JavaScript, and update themselves with it.
//!
//! All addresses are relative, so that the pages work under any path of a proxy.

mod family;
mod format;
pub mod login;
mod overview;
mod summary;
mod tables;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use maud::{DOCTYPE, Markup, html};
use url::form_urlencoded::Serializer;

use super::App;
use super::assets;
use super::problem::Problem;
use crate::view::View;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(overview::overview))
        .route("/live", get(overview::live))
        .route("/family", get(family::family))
        .route("/family-live", get(family::live))
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
                    link rel="stylesheet" href=(assets::address("uPlot.min.css"));
                    script defer src=(assets::address("uPlot.iife.min.js")) {}
                }
                link rel="stylesheet" href=(assets::address("page.css"));
                script defer src=(assets::address("page.js")) {}
            }
            body {
                a.skip href="#main" { "To the content" }
                (content)
            }
        }
    };
    Html(page.into_string())
}

/// Renders the head of a page whose figures are of this view.
fn header(view: &View, name: Option<&str>) -> Markup {
    html! {
        header {
            h1 { a href="./" { "Counterfoil" } @if let Some(name) = name { " " (name) } }
            // page.js fills both; the age is separate, so that screen readers do not announce it
            // every second
            p.connection { span id="connection" role="status" {} " " span id="age" {} }
            noscript { p { "As of " (format::time(view.at)) " UTC. Reload the page to update it." } }
        }
    }
}

/// Renders the parts of a page that change, each by its name in an element that stays.
fn parts(parts: &[(&str, Markup)]) -> Markup {
    html! {
        @for (name, part) in parts {
            // screen readers announce changes only of an element that existed before
            div id={ "part-" (name) } role=[(*name == "health").then_some("status")] { (part) }
        }
    }
}

/// A problem that takes the place of a page.
pub struct ProblemPage(Problem);

impl<E: Into<Problem>> From<E> for ProblemPage {
    fn from(error: E) -> Self {
        ProblemPage(error.into())
    }
}

impl IntoResponse for ProblemPage {
    fn into_response(self) -> Response {
        let content = html! {
            header { h1 { a href="./" { "Counterfoil" } } }
            main id="main" { (problem(&self.0)) }
        };
        (self.0.status, page("Counterfoil", false, &content)).into_response()
    }
}

/// Renders a problem within a page.
fn problem(problem: &Problem) -> Markup {
    let status = match problem.status {
        StatusCode::BAD_REQUEST => "Bad request",
        StatusCode::NOT_FOUND => "Not found",
        _ => "Error",
    };
    html! {
        p.problem role="alert" {
            strong { (status) ": " } (problem.error) "."
            @if let Some(advice) = problem.what_to_do { " What to do: " (advice) "." }
        }
    }
}

/// Returns a relative address, without empty parameters.
fn address(path: &str, params: &[(&str, &str)]) -> String {
    let given = params.iter().filter(|(_, value)| !value.is_empty());
    let mut query = Serializer::for_suffix(format!("{path}?"), path.len() + 1);
    let address = query.extend_pairs(given).finish();
    address.trim_end_matches('?').to_owned()
}

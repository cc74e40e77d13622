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
use super::error::ErrorReply;
use crate::VERSION;
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
fn header(app: &App, view: &View, name: Option<&str>) -> Markup {
    html! {
        header {
            h1 { a href="./" { "Counterfoil" } @if let Some(name) = name { " " (name) } }
            (instance(app, view))
            // page.js fills both; the age is separate, so that screen readers do not announce it
            // every second
            p.connection { span id="connection" role="status" {} " " span id="age" {} }
            @if app.key().is_some() {
                form method="post" action="logout" { button id="log-out" { "Log out" } }
            }
            noscript { p { "As of " (format::time(view.at)) " UTC. Reload the page to update it." } }
        }
    }
}

/// Renders the name, uptime and version of the daemon.
fn instance(app: &App, view: &View) -> Markup {
    let uptime = html! {
        p { (app.instance) ", up " (format::elapsed(app.started, view.at)) ", version " (VERSION) }
    };
    parts(&[("instance", uptime)])
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

/// An error reply that takes the place of a page.
pub struct ErrorPage(ErrorReply);

impl<E: Into<ErrorReply>> From<E> for ErrorPage {
    fn from(error: E) -> Self {
        ErrorPage(error.into())
    }
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let content = html! {
            header { h1 { a href="./" { "Counterfoil" } } }
            main id="main" { (error_message(&self.0)) }
        };
        (self.0.status, page("Counterfoil", false, &content)).into_response()
    }
}

/// Renders an error reply within a page.
fn error_message(reply: &ErrorReply) -> Markup {
    let status = match reply.status {
        StatusCode::BAD_REQUEST => "Bad request",
        StatusCode::NOT_FOUND => "Not found",
        _ => "Error",
    };
    html! {
        p.problem role="alert" {
            strong { (status) ": " } (format::prose(&reply.error)) "."
            @if let Some(advice) = &reply.what_to_do { " What to do: " (format::prose(advice)) "." }
        }
    }
}

/// Returns a relative address, without empty parameters.
fn address(path: &str, params: &[(&str, &str)]) -> String {
    let given = params.iter().filter(|(_, value)| !value.is_empty());
    Serializer::for_suffix(format!("{path}?"), path.len() + 1)
        .extend_pairs(given)
        .finish()
        .trim_end_matches('?')
        .to_owned()
}

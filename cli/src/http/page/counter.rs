//! A form that shows the exact value of a counter.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::format::number;
use super::{page, problem_page, told};
use crate::http::App;
use crate::http::chosen::Chosen;
use crate::http::counters;
use crate::http::params::Params;
use crate::http::problem::Problem;

pub async fn show(State(app): State<Arc<App>>, params: Params) -> Response {
    let chosen = match app.family(&params).await {
        Ok(chosen) => chosen,
        Err(problem) => return problem_page(problem),
    };
    let id = params.first("id");
    let shown = match id {
        Some(id) => value(&app, &chosen, id).await.map(Some),
        None => Ok(None),
    };
    let status = shown
        .as_ref()
        .map_or_else(|problem| problem.status, |_| axum::http::StatusCode::OK);
    let content = html! {
        header { h1 { a href="/" { "Counterfoil" } " " (chosen.name) } }
        main id="main" {
            form method="get" action="/counter" {
                input type="hidden" name="pair" value=(chosen.pair_name);
                input type="hidden" name="family" value=(chosen.name);
                label { (what_an_id_is(chosen.kind())) " " input name="id" required value=(id.unwrap_or_default()); }
                " " button { "Show the exact value" }
            }
            @match &shown {
                Ok(Some(value)) => p { (id.unwrap_or_default()) ": " output id="value" { (value) } }
                Ok(None) => {}
                Err(problem) => (told(problem)),
            }
        }
    };
    (
        status,
        page(&format!("{} – Counterfoil", chosen.name), false, &content),
    )
        .into_response()
}

fn what_an_id_is(kind: &str) -> &'static str {
    match kind {
        "visitors" => "Scope and day, such as 7/2026-01-31",
        "activity" => "Page",
        _ => "Id",
    }
}

/// Renders the exact value or, for activity, the views and visitors within the window.
async fn value(app: &App, chosen: &Chosen, id: &str) -> Result<Markup, Problem> {
    let _turn = app.turn().await?;
    if chosen.kind() == "activity" {
        let now = counters::activity(chosen, id).await?;
        return Ok(
            html! { (number(now.views)) " views by " (number(now.visitors.count())) " visitors now" },
        );
    }
    let values = counters::values(chosen, &[id]).await?;
    Ok(html! { @for value in values { (number(value)) } })
}

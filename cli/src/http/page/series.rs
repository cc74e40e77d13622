//! The slices of one counter of a series, as a table and, with JavaScript, as a chart.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use counterfoil::{Precision, Slice};
use maud::{Markup, html};

use super::format::{number, time};
use super::{address, page, problem_page};
use crate::http::App;
use crate::http::chosen::Chosen;
use crate::http::counters;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::status::unix_seconds;

/// The maximum number of names to offer.
const NAMES: usize = 100;

pub async fn show(State(app): State<Arc<App>>, params: Params) -> Response {
    let chosen = match app.family(&params).await {
        Ok(chosen) => chosen,
        Err(problem) => return problem_page(problem),
    };
    let precisions: Vec<_> = chosen
        .registered
        .family
        .precisions()
        .iter()
        .map(Precision::to_string)
        .collect();
    let default = precisions.first().cloned().unwrap_or_default();
    let (name, precision) = (
        params.first("name").unwrap_or_default(),
        params.first("precision").unwrap_or(&default),
    );
    let (names, slices) = match read(&app, &chosen, name, precision).await {
        Ok(read) => read,
        Err(problem) => return problem_page(problem),
    };
    let content = html! {
        header { h1 { a href="/" { "Counterfoil" } " " (chosen.name) } }
        main id="main" {
            (form(&chosen, name, precision, &precisions, &names))
            @if !name.is_empty() { (counted(&chosen, name, precision, &slices)) }
        }
    };
    (
        StatusCode::OK,
        page(
            &format!("{} – Counterfoil", chosen.name),
            !name.is_empty(),
            &content,
        ),
    )
        .into_response()
}

/// Reads some names, and the slices of `name`.
async fn read(
    app: &App,
    chosen: &Chosen,
    name: &str,
    precision: &str,
) -> Result<(Vec<String>, Vec<Slice>), Problem> {
    let _turn = app.turn().await?;
    let names = counters::names(chosen, "", None, NAMES).await?;
    let slices = match name {
        "" => Vec::new(),
        name => counters::slices(chosen, name, precision.parse()?, None).await?,
    };
    Ok((names, slices))
}

fn form(
    chosen: &Chosen,
    name: &str,
    precision: &str,
    precisions: &[String],
    names: &[String],
) -> Markup {
    html! {
        form method="get" action="/series" {
            input type="hidden" name="pair" value=(chosen.pair_name);
            input type="hidden" name="family" value=(chosen.name);
            label { "Name " input name="name" list="names" required value=(name); }
            datalist id="names" { @for name in names { option value=(name) {} } }
            " " label { "Slices of "
                select name="precision" {
                    @for one in precisions { option value=(one) selected[one == precision] { (one) } }
                }
            }
            " " button { "Show" }
        }
    }
}

fn counted(chosen: &Chosen, name: &str, precision: &str, slices: &[Slice]) -> Markup {
    let source = [
        ("pair", chosen.pair_name.as_str()),
        ("family", &chosen.name),
        ("name", name),
        ("precision", precision),
    ];
    html! {
        p.connection { span id="connection" role="status" {} " " span id="age" {} }
        div id="chart" data-source=(address("/api/v1/series", &source)) data-label=(name) {}
        details open {
            summary { "As a table" }
            table {
                caption { (name) " in slices of " (precision) ", the latest first" }
                thead { tr { th scope="col" { "From (UTC)" } th scope="col" { "Hits" } } }
                tbody {
                    @for slice in slices.iter().rev() {
                        tr { th scope="row" { (time(unix_seconds(slice.start))) } td.number { (number(slice.count)) } }
                    }
                }
            }
        }
    }
}

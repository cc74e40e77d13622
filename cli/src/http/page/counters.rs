//! The pages that show counters of a family: the exact value of one id, and the slices of a series
//! as a table and, with JavaScript, as a chart.

use axum::http::StatusCode;
use axum::response::Html;
use counterfoil::{Precision, Slice};
use maud::{Markup, html};
use serde::Deserialize;

use super::format::{foreign, number, time};
use super::{ProblemPage, address, page, problem};
use crate::http::AppState;
use crate::http::api::precision;
use crate::http::family::ServedFamily;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::status::unix_seconds;

/// The maximum number of names to offer.
const MAX_NAMES: usize = 100;

/// Renders a page about a family, with a form whose fields are `fields`.
fn family_page(
    family: &ServedFamily<'_>,
    path: &str,
    fields: &Markup,
    result: &Markup,
    with_chart: bool,
) -> Html<String> {
    let content = html! {
        header { h1 { a href="/" { "Counterfoil" } " " (family.name) } }
        main id="main" {
            form method="get" action=(path) {
                input type="hidden" name="pair" value=(family.pair.name);
                input type="hidden" name="family" value=(family.name);
                (fields)
            }
            (result)
        }
    };
    let title = format!("{} – Counterfoil", family.name);
    page(&title, with_chart, &content)
}

#[derive(Deserialize)]
pub struct CounterParams {
    pair: Option<String>,
    family: String,
    id: Option<String>,
}

pub async fn counter(
    app: AppState,
    params: Result<Params<CounterParams>, Problem>,
) -> Result<(StatusCode, Html<String>), ProblemPage> {
    let Params(params) = params?;
    let family = app.family(&params.pair, &params.family).await?;
    let (id, mut status) = (params.id.unwrap_or_default(), StatusCode::OK);
    let result = match exact_value(&family, &id).await {
        Ok(value) => value,
        Err(error) => {
            status = error.status;
            problem(&error)
        }
    };
    let label = match family.kind() {
        "visitors" => "Scope and day, such as 7/2026-01-31",
        "activity" => "Page",
        _ => "Id",
    };
    let fields = html! {
        label { (label) " " input name="id" required value=(id); }
        " " button { "Show the exact value" }
    };
    let page = family_page(&family, "/counter", &fields, &result, false);
    Ok((status, page))
}

/// Renders the exact value or, for activity, the views and visitors within the window. Without an
/// id it renders nothing.
async fn exact_value(family: &ServedFamily<'_>, id: &str) -> Result<Markup, Problem> {
    if id.is_empty() {
        return Ok(Markup::default());
    }
    let value = if family.kind() == "activity" {
        let now = family.activity(id).await?;
        let visitors = number(now.visitors.count());
        html! { (number(now.views)) " views by " (visitors) " visitors now" }
    } else {
        let values = family.values(&[id.to_owned()]).await?;
        html! { @for value in values { (number(value)) } }
    };
    Ok(html! { p { (foreign(id)) ": " output id="value" { (value) } } })
}

#[derive(Deserialize)]
pub struct SeriesParams {
    pair: Option<String>,
    family: String,
    #[serde(default)]
    name: String,
    precision: Option<String>,
}

pub async fn series(
    app: AppState,
    params: Result<Params<SeriesParams>, Problem>,
) -> Result<Html<String>, ProblemPage> {
    let Params(params) = params?;
    let family = app.family(&params.pair, &params.family).await?;
    let precisions = family.registered.family.precisions();
    let precisions: Vec<_> = precisions.iter().map(Precision::to_string).collect();
    let name = &params.name;
    let chosen = params.precision.as_ref().or(precisions.first());
    let chosen = chosen.map_or("", String::as_str);
    let names = family.names("", None, MAX_NAMES).await?;
    let result = if name.is_empty() {
        Markup::default()
    } else {
        let slices = family.slices(name, precision(chosen)?, None).await?;
        slices_of(&family, name, chosen, &slices)
    };
    let fields = html! {
        label { "Name " input name="name" list="names" required value=(name); }
        datalist id="names" { @for name in names { option value=(name) {} } }
        " " label { "Slices of "
            select name="precision" {
                @for one in &precisions { option value=(one) selected[one == chosen] { (one) } }
            }
        }
        " " button { "Show" }
    };
    Ok(family_page(
        &family,
        "/series",
        &fields,
        &result,
        !name.is_empty(),
    ))
}

fn slices_of(family: &ServedFamily<'_>, name: &str, precision: &str, slices: &[Slice]) -> Markup {
    let source = [
        ("pair", family.pair.name.as_str()),
        ("family", &family.name),
        ("name", name),
        ("precision", precision),
    ];
    html! {
        p.connection { span id="connection" role="status" {} " " span id="age" {} }
        div id="chart" data-source=(address("/api/v1/series", &source)) data-label=(name) {}
        details open {
            summary { "As a table" }
            table {
                caption { (foreign(name)) " in slices of " (precision) ", the latest first" }
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

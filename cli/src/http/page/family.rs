//! The page of one family: its state and figures, exact values or the chart of a series, and its
//! configuration.

use axum::http::StatusCode;
use axum::response::Html;
use counterfoil::{AnyCounters, Precision, Series, Slice};
use maud::{Markup, html};
use serde::Deserialize;

use super::format::{ago, elapsed, foreign, grouped, number, time};
use super::{ProblemPage, address, header, page, problem, summary, tables};
use crate::http::api::precision;
use crate::http::family::ServedFamily;
use crate::http::problem::Problem;
use crate::http::{AppState, Params};
use crate::output::short;
use crate::status::FamilyView;
use crate::status::unix_seconds;
use crate::view::{PairView, View};

/// The maximum number of names to offer.
const MAX_NAMES: usize = 100;

/// A family, and what to show of it.
#[derive(Clone, Deserialize)]
pub struct Selection {
    pair: Option<String>,
    family: String,
    /// A counter of the family.
    id: Option<String>,
    /// The slices of a series.
    precision: Option<String>,
}

pub async fn family(
    app: AppState,
    params: Result<Params<Selection>, Problem>,
) -> Result<(StatusCode, Html<String>), ProblemPage> {
    let Params(selection) = params?;
    let view = app.view();
    let name = &selection.family;
    let pair = &app.pair_of(&selection.pair, name)?.name;
    let served = app.family(&selection.pair, name).await;
    let is_known = view.family(pair, name).is_some();
    let served = match served {
        Err(problem) if !is_known => return Err(problem.into()),
        served => served,
    };
    let with_chart = matches!(&served, Ok(family) if family.series().is_ok());
    let counters = match &served {
        Ok(family) => counters_of(family, &selection).await,
        Err(unavailable) => Err(unavailable.clone()),
    };
    let (status, counters) = counters.unwrap_or_else(|wrong| (wrong.status, problem(&wrong)));
    let content = html! {
        (header(&view, Some(name)))
        main id="main" data-live="family-live" {
            (parts(&view, pair, name))
            (counters)
            @if let Ok(family) = &served { (configuration(family)) }
        }
    };
    let title = format!("{name} – Counterfoil");
    Ok((status, page(&title, with_chart, &content)))
}

/// Returns the parts that change, with which a page keeps itself up to date.
pub async fn live(
    app: AppState,
    Params(Selection { pair, family, .. }): Params<Selection>,
) -> Result<Html<String>, Problem> {
    let pair = &app.pair_of(&pair, &family)?.name;
    Ok(Html(parts(&app.view(), pair, &family).into_string()))
}

/// Renders the parts that the daemon knows without a query.
fn parts(view: &View, pair: &str, name: &str) -> Markup {
    let Some((pair, family)) = view.family(pair, name) else {
        return Markup::default();
    };
    let wanted = |of_pair: &str, one: &str| of_pair == pair.name && one == name;
    super::parts(&[
        ("health", state(family, view.at)),
        ("figures", figures(pair, family, view.at)),
        ("rejects", tables::rejects(view, wanted)),
        ("drift", tables::drift(view, wanted)),
        ("recount", recount(pair, name, view.at)),
    ])
}

fn state(family: &FamilyView, now: u64) -> Markup {
    html! {
        p { (tables::state(family, now)) span.quiet { " for " (elapsed(family.state_since, now)) } }
        @if let Some(problem) = &family.problem { p.problem { (problem) } }
    }
}

fn figures(pair: &PairView, family: &FamilyView, now: u64) -> Markup {
    let mut present = family.sample(now);
    present.drifted = pair
        .recount(&family.name())
        .map_or(0, |recount| recount.drifted);
    let optional = |number: Option<u64>| number.map_or("–".to_owned(), |it| grouped(it.into()));
    let of_limit = format!("{:.1} %", family.full * 100.0);
    html! {
        (summary::figures(&present, &family.history))
        dl {
            (setting("Counted by Redis", &optional(family.counted)))
            (setting("Refused by Redis", &optional(family.refused)))
            (setting("Requests that Redis remembers", &optional(family.requests)))
            (setting("Fullest partition, of max_pending", &of_limit))
            dt { "Last saved" }
            dd { @match family.last_saved { Some(saved) => (ago(saved, now)), None => "never" } }
        }
    }
}

fn setting(name: &str, value: &str) -> Markup {
    html! { dt { (name) } dd { (value) } }
}

fn recount(pair: &PairView, name: &str, now: u64) -> Markup {
    html! {
        @if let Some(recount) = pair.recount(name) {
            h2 { "Recount" }
            p { (tables::progress(recount, now)) ", " (number(recount.checked)) " counters checked, " (number(recount.drifted)) " drifted" }
        }
    }
}

fn configuration(family: &ServedFamily<'_>) -> Markup {
    let registered = family.family();
    let sync = short(registered.sync_time().as_secs_f64());
    html! {
        h2 { "Configuration" }
        dl {
            @for (name, value) in registered.identity() { @if !value.is_empty() { (setting(name, &value)) } }
            (setting("sync_time", &sync))
            (setting("max_pending of a partition", &grouped(registered.max_pending().into())))
        }
    }
}

/// Renders the exact value of a counter, or the slices of a series, with a form. A wrong id is a
/// problem beside the form.
async fn counters_of(
    family: &ServedFamily<'_>,
    selection: &Selection,
) -> Result<(StatusCode, Markup), Problem> {
    let label = match &family.counters {
        AnyCounters::Series(of) => {
            let content = series(family, of, selection).await?;
            return Ok((StatusCode::OK, content));
        }
        AnyCounters::Visitors(_) => "Scope and day, such as 7/2026-01-31",
        AnyCounters::Activity(_) => "Page",
        _ => "Id",
    };
    let id = selection.id.as_deref().unwrap_or_default();
    let (status, value) = match exact_value(family, id).await {
        Ok(value) => (StatusCode::OK, value),
        Err(wrong) => (wrong.status, problem(&wrong)),
    };
    let fields = html! {
        label { (label) " " input name="id" required value=(id); }
        " " button { "Show the exact value" }
    };
    let counters = html! { h2 { "Counters" } (form(family, &fields)) (value) };
    Ok((status, counters))
}

fn form(family: &ServedFamily<'_>, fields: &Markup) -> Markup {
    html! {
        form method="get" action="family" {
            input type="hidden" name="pair" value=(family.pair.name);
            input type="hidden" name="family" value=(family.name);
            (fields)
        }
    }
}

/// Renders the exact value or, for activity, the views and visitors within the window. Without an
/// id it renders nothing.
async fn exact_value(family: &ServedFamily<'_>, id: &str) -> Result<Markup, Problem> {
    if id.is_empty() {
        return Ok(Markup::default());
    }
    let value = if let AnyCounters::Activity(activity) = &family.counters {
        let now = activity.now(id).await?;
        let visitors = number(now.visitors);
        html! { (number(now.views)) " views by " (visitors) " visitors now" }
    } else {
        let values = family.values(&[id.to_owned()]).await?;
        html! {
            @for value in values {
                @match value {
                    Some(value) => (number(value)),
                    None => "no row",
                }
            }
        }
    };
    Ok(html! { p { (foreign(id)) ": " output id="value" { (value) } } })
}

/// Renders one counter of a series, by default the first at the finest precision.
async fn series(
    family: &ServedFamily<'_>,
    series: &Series,
    selection: &Selection,
) -> Result<Markup, Problem> {
    let precisions = family.family().precisions();
    let names = series.names("", None, MAX_NAMES).await?;
    let name = selection.id.as_ref().or(names.first());
    let name = name.map_or("", String::as_str);
    let wanted = selection.precision.as_deref().map(precision).transpose()?;
    let chosen = wanted.or(precisions.first().copied());
    let chosen = chosen.filter(|_| !name.is_empty());
    let fields = html! {
        label { "Name " input name="id" list="names" required value=(name); }
        datalist id="names" { @for name in &names { option value=(name) {} } }
        " " label { "Slices of "
            select name="precision" {
                @for one in &precisions { option value=(one) selected[Some(*one) == chosen] { (one) } }
            }
        }
        " " button { "Show" }
    };
    Ok(html! {
        h2 { "Counters" }
        (form(family, &fields))
        @match chosen {
            Some(chosen) => (slices_of(family, name, chosen, &series.get(name, chosen).await?)),
            None => p { "No counters." },
        }
    })
}

/// Renders the slices, of which the last is not over.
fn slices_of(
    family: &ServedFamily<'_>,
    name: &str,
    precision: Precision,
    slices: &[Slice],
) -> Markup {
    let precision = precision.to_string();
    let source = [
        ("pair", family.pair.name.as_str()),
        ("family", &family.name),
        ("name", name),
        ("precision", &precision),
    ];
    let latest = slices.len().saturating_sub(1);
    html! {
        div id="chart" data-source=(address("api/v1/series", &source)) data-label=(name) {}
        p.quiet id="chart-zone" {}
        details open id="slices" {
            summary { "As a table" }
            table {
                caption { (foreign(name)) " in slices of " (precision) ", the latest first" }
                thead { tr { th scope="col" { "From (UTC)" } th.number scope="col" { "Hits" } th scope="col" {} } }
                tbody {
                    @for (at, slice) in slices.iter().enumerate().rev() {
                        tr {
                            th scope="row" { (time(unix_seconds(slice.start))) }
                            td.number { (number(slice.count)) }
                            td { @if at == latest { "not over yet" } }
                        }
                    }
                }
            }
        }
    }
}

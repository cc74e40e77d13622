//! The page of one family: its state and figures, exact values or the chart of a series, and its
//! configuration.

use axum::http::StatusCode;
use axum::response::Html;
use counterfoil::{AnyCounters, Family, FamilySettings, Precision, Series, Slice};
use maud::{Markup, html};
use serde::Deserialize;

use super::format::{ago, elapsed, foreign, grouped, number, prose, time};
use super::summary::{self, Figures};
use super::{ErrorPage, address, error_message, header, instance, page, tables};
use crate::health::{Health, Level};
use crate::http::api::precision;
use crate::http::error::ErrorReply;
use crate::http::family::ServedFamily;
use crate::http::{AppState, Params};
use crate::status::{FamilyView, State, unix_seconds};
use crate::view::{PairView, SetBackView, View};

/// The maximum number of names to offer.
const MAX_NAMES: usize = 100;

/// A family, and what to show of it.
#[derive(Clone, Deserialize)]
pub struct CounterSelection {
    pair: Option<String>,
    family: String,
    /// A counter of the family.
    id: Option<String>,
    /// The slices of a series.
    precision: Option<String>,
}

pub async fn family(
    app: AppState,
    params: Result<Params<CounterSelection>, ErrorReply>,
) -> Result<(StatusCode, Html<String>), ErrorPage> {
    let Params(selection) = params?;
    let view = app.view();
    let name = &selection.family;
    let pair = &app.pair_of(&selection.pair, name)?.name;
    let served = app.family(&selection.pair, name).await;
    if let Err(reply) = &served
        && view.family(pair, name).is_none()
    {
        return Err(reply.clone().into());
    }
    let with_chart = matches!(&served, Ok(family) if family.series().is_ok());
    let read = match &served {
        Ok(family) => counters_of(family, &selection).await,
        Err(unavailable) => Err(unavailable.clone()),
    };
    let (status, counters) = read.unwrap_or_else(|wrong| (wrong.status, error_message(&wrong)));
    let content = html! {
        (header(&app, &view, Some(name)))
        main id="main" data-live="family-live" {
            (parts(&view, pair, name))
            (counters)
            @if let Ok(family) = &served { (settings(family.family())) }
        }
    };
    let state = match view.family(pair, name) {
        Some((pair, family)) => state_words(pair, family),
        None => "unknown".to_owned(),
    };
    let title = format!("{state} – {name} – Counterfoil");
    Ok((status, page(&title, with_chart, &content)))
}

/// Returns the parts that change, with which a page keeps itself up to date.
pub async fn live(
    app: AppState,
    Params(CounterSelection { pair, family, .. }): Params<CounterSelection>,
) -> Result<Html<String>, ErrorReply> {
    let pair = &app.pair_of(&pair, &family)?.name;
    let view = app.view();
    let content = html! { (instance(&app, &view)) (parts(&view, pair, &family)) };
    Ok(Html(content.into_string()))
}

/// Renders the parts that the daemon knows without a query.
fn parts(view: &View, pair: &str, name: &str) -> Markup {
    let Some((pair, family)) = view.family(pair, name) else {
        return Markup::default();
    };
    let wanted = |of_pair: &str, one: &str| of_pair == pair.name && one == name;
    super::parts(&[
        ("health", state(pair, family, view.at)),
        ("problems", problems(view, pair)),
        ("figures", figures(pair, family, view.at)),
        ("rejects", tables::rejects(view, wanted)),
        ("drift", tables::drift(view, wanted)),
        ("recount", recount(pair, name, view.at)),
    ])
}

/// Returns the words for the state of a family; an outage of its pair comes first.
fn state_words(pair: &PairView, family: &FamilyView) -> String {
    match pair.outage() {
        Some((server, _)) => format!("no {server}"),
        None => tables::state_words(pair, family).0,
    }
}

/// Renders the state of a family with the time since when, and what concerns it alone.
fn state(pair: &PairView, family: &FamilyView, now: u64) -> Markup {
    let set_back = pair.set_backs_of(family).map(|one| one.at).max();
    let (health, since) = match (pair.outage(), family.state, set_back) {
        (Some((_, server)), ..) => (Health::Down, server.since),
        (None, State::Ok, Some(at)) => (Health::Degraded, at),
        (None, State::Ok, None) => (Health::Healthy, family.state_since),
        (None, ..) => (Health::Degraded, family.state_since),
    };
    html! {
        p.health.(health.name()) { strong { (state_words(pair, family)) } " for " (elapsed(since, now)) }
        @if family.is_stale(now) {
            p { "Figures are stale" @if let Some(seen) = family.seen { ": read " (ago(seen, now)) } "." }
        }
        @if !family.served { p.quiet { "This daemon does not serve the family." } }
        @if let Some(problem) = &family.problem { p.problem { (prose(&problem.text)) } }
        @for one in pair.set_backs_of(family) { (lost(one, now)) }
    }
}

/// Renders what a family lost when a server was set back.
fn lost(one: &SetBackView, now: u64) -> Markup {
    html! {
        p.problem {
            @match one.server {
                "redis" => { "Redis was set back to an older state: " (number(one.hits)) " hits of " (number(one.ids)) " ids were dropped" }
                _ => { "MySQL was set back to an older state: " (number(one.batches)) " batches are lost" }
            }
            ", " (ago(one.at, now)) "."
        }
    }
}

/// Renders the problems that concern all families of the pair.
fn problems(view: &View, pair: &PairView) -> Markup {
    let mut problems = view.problems();
    problems.retain(|one| one.pair == pair.name && one.severity == Level::Down);
    summary::problems(view, &problems)
}

fn figures(pair: &PairView, family: &FamilyView, now: u64) -> Markup {
    let is_current = pair.has_figures_of(family, now);
    let of_redis = |name: &str, number: Option<u64>| match number {
        Some(number) if is_current => entry(name, &grouped(number.into())),
        Some(_) => entry(name, "–"),
        None => Markup::default(),
    };
    html! {
        (Figures::of_family(pair, family, now).render())
        dl {
            (of_redis("Counted by Redis", family.counted))
            (of_redis("Refused by Redis", family.refused))
            (of_redis("Requests that Redis remembers", family.requests))
            dt { "Last saved" }
            dd { @match family.last_saved { Some(saved) => (ago(saved, now)), None => "never" } }
        }
    }
}

fn entry(name: &str, value: &str) -> Markup {
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

/// Renders the settings in the words of the configuration.
fn settings(family: &Family) -> Markup {
    html! {
        h2 { "Settings" }
        pre.settings { @for line in configured(family) { (line) "\n" } }
    }
}

/// Returns the lines of the configuration with which the family has its settings.
fn configured(family: &Family) -> Vec<String> {
    serde_json::from_str::<FamilySettings>(&family.settings())
        .ok()
        .and_then(|settings| toml::Table::try_from(settings).ok())
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name} = {value}"))
        .collect()
}

/// Renders the exact value of a counter, or the slices of a series, with a form. A wrong id is an
/// error beside the form.
async fn counters_of(
    family: &ServedFamily<'_>,
    selection: &CounterSelection,
) -> Result<(StatusCode, Markup), ErrorReply> {
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
        Err(wrong) => (wrong.status, error_message(&wrong)),
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
async fn exact_value(family: &ServedFamily<'_>, id: &str) -> Result<Markup, ErrorReply> {
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
    selection: &CounterSelection,
) -> Result<Markup, ErrorReply> {
    let precisions = family.family().precisions();
    let names = series.names("", None, MAX_NAMES).await?;
    let name = selection
        .id
        .as_ref()
        .or(names.first())
        .map_or("", String::as_str);
    let wanted = selection.precision.as_deref().map(precision).transpose()?;
    let chosen = wanted
        .or(precisions.first().copied())
        .filter(|_| !name.is_empty());
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

/// Renders the slices. The last one is not over yet, and its count may grow.
fn slices_of(
    family: &ServedFamily<'_>,
    name: &str,
    precision: Precision,
    slices: &[Slice],
) -> Markup {
    let length = precision.to_string();
    let source = [
        ("pair", family.pair.name.as_str()),
        ("family", &family.name),
        ("name", name),
        ("precision", &length),
    ];
    let latest = slices.len().saturating_sub(1);
    html! {
        div id="chart" data-source=(address("api/v1/series", &source)) data-label=(name) {}
        p.quiet id="chart-zone" {}
        details open id="slices" {
            summary { "As a table" }
            table {
                caption { (foreign(name)) " in slices of " (length) ", the latest first" }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use counterfoil::Table;

    use super::*;

    #[test]
    fn settings_have_the_words_of_the_configuration() {
        let table = Table::upsert("item")
            .key("id", counterfoil::KeyType::Text)
            .value("n");
        let views = Family::buffered("shop", "views")
            .table(table)
            .sync_time(Duration::from_secs(90));
        let downloads = Family::series("shop", "downloads");
        let [views, downloads] =
            [views.build(), downloads.build()].map(|built| configured(&built.unwrap()));
        let expected = [
            "kind = \"buffered\"",
            "partitions = 4",
            "durability = \"2.5s\"",
            "sync_time = \"90s\"",
            "max_pending = 1000000",
        ];
        for line in expected {
            assert!(
                views.iter().any(|one| one == line),
                "{line} is not in {views:#?}"
            );
        }
        assert!(views[3].starts_with("table = { "), "{views:#?}");
        let lines = ["keep = []", "time_zone = \"UTC\"", "late = \"7d\""];
        assert!(
            lines
                .iter()
                .all(|line| downloads.iter().any(|one| one == line)),
            "{downloads:#?}"
        );
    }
}

//! The tables of the status page.

use std::fmt::Write;

use counterfoil::admin::Finding;
use maud::{Markup, html};

use super::address;
use super::format::{duration, foreign, grouped, number, rate, time};
use crate::status::FamilyStatus;
use crate::view::{
    DriftView, FamilyView, PairView, RecountView, Refused, RejectView, Sample, ServerView, View,
};

/// The maximum number of names in the list of families that are not served.
const MAX_NAMES: usize = 100;

/// Renders a table that scrolls if it is too wide, also by keyboard.
fn table(id: &str, caption: &str, heads: &[&str], rows: &Markup) -> Markup {
    html! {
        div.scroll role="region" tabindex="0" id=(id) aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Renders a table of what the pairs have, each with the name of its pair, or nothing if no pair
/// has any.
fn optional_table<'v, T: 'v>(
    view: &'v View,
    (id, caption): (&str, &str),
    heads: &[&str],
    items: fn(&'v PairView) -> &'v [T],
    row: impl Fn(&str, &T) -> Markup,
) -> Markup {
    let mut items = view.of_pairs(items).peekable();
    if items.peek().is_none() {
        return Markup::default();
    }
    let rows = html! { @for (pair, item) in items { tr { (row(pair, item)) } } };
    table(id, caption, heads, &rows)
}

pub fn servers(view: &View) -> Markup {
    let row = |pair: &str, name: &str, server: &ServerView| {
        let state = server.state();
        let class = match state {
            "up" => "ok",
            "unknown" => "unknown",
            _ => "down",
        };
        let why = server.why.as_ref().or(server.refuses.as_ref());
        html! {
            tr {
                th scope="row" { (pair) ": " (name) }
                td { span.state.(class) { (state) } }
                td { @if server.since > 0 { (time(server.since)) } }
                td { (server.version.as_deref().unwrap_or("unknown")) }
                td { (why.map_or("", String::as_str)) }
            }
        }
    };
    let rows = html! {
        @for pair in &view.pairs { (row(&pair.name, "Redis", &pair.redis)) (row(&pair.name, "MySQL", &pair.mysql)) }
    };
    let heads = ["Server", "State", "Since (UTC)", "Version", "Reason"];
    table("servers", "Servers", &heads, &rows)
}

/// Renders when figures were last read, for those that are not current.
pub fn figures(view: &View) -> Markup {
    let mut old = Vec::new();
    for pair in &view.pairs {
        let looks = pair.looks.all(view.at).into_iter();
        let not_current = looks.filter(|(_, look, is_stale)| *is_stale || look.why.is_some());
        old.extend(not_current.map(|(name, look, is_stale)| (&pair.name, name, look, is_stale)));
    }
    if old.is_empty() {
        return Markup::default();
    }
    let heads = ["Figures", "State", "Last read (UTC)", "Reason"];
    let rows = html! {
        @for (pair, name, look, is_stale) in old {
            tr {
                th scope="row" { (pair) ": " (name) }
                td { span.state.(if is_stale { "late" } else { "ok" }) { (if is_stale { "stale" } else { "current" }) } }
                td { @match look.at { Some(at) => (time(at)), None => "never" } }
                td { (look.why.as_deref().unwrap_or_default()) }
            }
        }
    };
    table(
        "figures",
        "Figures that are not read at present",
        &heads,
        &rows,
    )
}

pub fn findings(view: &View) -> Markup {
    let caption = "Findings of check";
    let heads = ["Subject", "Severity", "Finding", "Advice"];
    let row = |pair: &str, finding: &Finding| {
        html! {
            th scope="row" { (pair) ": " (finding.subject) }
            td { span.state.(finding.severity) { (finding.severity) } }
            td { (finding.message) }
            td { (finding.advice) }
        }
    };
    optional_table(
        view,
        ("findings", caption),
        &heads,
        |pair| &pair.findings,
        row,
    )
}

pub fn families(rows: &[(&str, &FamilyView)], total: usize, text: &str, now: u64) -> Markup {
    let total = grouped(total as i128);
    let caption = if text.is_empty() {
        format!("Families: {total}")
    } else {
        format!("Families whose name contains “{text}”: {total}")
    };
    let heads = [
        "Family",
        "State",
        "Kind",
        "Hits/s",
        "Pending",
        "Oldest",
        "Open slices",
        "Rejects",
        "Last saved (UTC)",
    ];
    let body = html! { @for (pair, family) in rows { (family_row(pair, family, now)) } };
    html! {
        (table("families", &caption, &heads, &body))
        @if rows.is_empty() { p { "No families." } }
    }
}

fn family_row(pair: &str, family: &FamilyView, now: u64) -> Markup {
    let FamilyView {
        status,
        rate: current,
        history,
    } = family;
    let line = |value: fn(&Sample) -> f64| sparkline(history.iter().map(value));
    let (name, state) = (status.name(), status.state.name());
    html! {
        tr data-family=(name) {
            th scope="row" {
                a id={ "family-" (pair) "-" (name) } href=(counters_address(pair, status)) { (name) }
                @if let Some(problem) = &status.problem { p.problem { (problem) } }
            }
            td {
                span.state.(state) { (state) }
                @if status.is_stale(now) {
                    " " span.state.late { "stale" }
                    @if let Some(seen) = status.seen { " as of " (time(seen)) " UTC" }
                }
                @if !status.served { " not served here" }
            }
            td { (status.kind) }
            td.number { @if let Some(current) = current { (rate(*current)) } (line(|sample| sample.rate.unwrap_or(0.0))) }
            td.number.pending { (number(status.pending)) (line(|sample| sample.pending as f64)) }
            td.number { @if let Some(oldest) = status.oldest_seconds { (duration(oldest)) } (line(|sample| sample.oldest_seconds)) }
            td.number { (number(status.open)) }
            td.number { (number(status.rejects)) }
            td { @if let Some(saved) = status.last_saved { (time(saved)) } }
        }
    }
}

/// Returns the address of the page for a family's counters.
fn counters_address(pair: &str, status: &FamilyStatus) -> String {
    let path = if status.kind == "series" {
        "/series"
    } else {
        "/counter"
    };
    address(path, &[("pair", pair), ("family", &status.name())])
}

pub fn unserved(view: &View) -> Markup {
    let caption = ("refused", "Families that were refused");
    let row = |pair: &str, refused: &Refused| {
        html! { th scope="row" { (pair) ": " (refused.family) } td { (refused.reason) } }
    };
    html! {
        (optional_table(view, caption, &["Family", "Reason"], |pair| &pair.refused, row))
        @for PairView { name, not_served, .. } in view.pairs.iter().map(|pair| &**pair) {
            @if !not_served.is_empty() {
                details {
                    summary { (name) ": " (number(not_served.len() as i128)) " families in the database are not served here" }
                    ul { @for name in not_served.iter().take(MAX_NAMES) { li { (name) } } }
                    @if not_served.len() > MAX_NAMES { p { "And " (number((not_served.len() - MAX_NAMES) as i128)) " more." } }
                }
            }
        }
    }
}

pub fn rejects(view: &View) -> Markup {
    let caption = "Recent rejects: changes that rows refused";
    let heads = [
        "Number",
        "Family",
        "Id",
        "Delta",
        "Times",
        "Reason",
        "Since (UTC)",
    ];
    let row = |pair: &str, reject: &RejectView| {
        html! {
            th scope="row" { (pair) ": " (number(reject.number)) }
            td { (reject.family) }
            td { (foreign(&reject.id)) }
            td.number { (number(reject.delta)) }
            td.number { (number(reject.times)) }
            td { (foreign(&reject.reason)) }
            td { (time(reject.at)) }
        }
    };
    optional_table(
        view,
        ("rejects", caption),
        &heads,
        |pair| &pair.rejects,
        row,
    )
}

pub fn drift(view: &View) -> Markup {
    let caption = "Recent drift: counters that differed from their rows";
    let heads = [
        "Counter",
        "Run",
        "Before",
        "Rows",
        "After",
        "Corrected by",
        "Note",
        "At (UTC)",
    ];
    let row = |pair: &str, drift: &DriftView| {
        html! {
            th scope="row" { (pair) ": " (drift.family) ", " (foreign(&drift.id)) }
            td.number { (number(drift.run)) }
            td.number { (number(drift.before)) }
            td.number { (number(drift.rows)) }
            td.number { (number(drift.after)) }
            td.number { (number(drift.delta)) }
            td { (foreign(&drift.note)) }
            td { (time(drift.at)) }
        }
    };
    optional_table(view, ("drift", caption), &heads, |pair| &pair.drift, row)
}

pub fn recounts(view: &View) -> Markup {
    let heads = [
        "Family",
        "Run",
        "Progress",
        "Checked",
        "Drifted",
        "Started (UTC)",
    ];
    let row = |pair: &str, recount: &RecountView| {
        html! {
            th scope="row" { (pair) ": " (recount.family) }
            td.number { (number(recount.run)) }
            td { (progress(recount)) }
            td.number { (number(recount.checked)) }
            td.number { (number(recount.drifted)) }
            td { (time(recount.started)) }
        }
    };
    optional_table(
        view,
        ("recounts", "Recounts"),
        &heads,
        |pair| &pair.recounts,
        row,
    )
}

fn progress(recount: &RecountView) -> Markup {
    html! {
        @match (recount.finished, recount.about) {
            (Some(finished), _) => { "ended " (time(finished)) }
            (None, Some(about)) if about > 0 => {
                progress max=(about) value=(recount.checked.min(about)) aria-label={ "Recount of " (recount.family) } {}
                " " (recount.checked.min(about) * 100 / about) " %"
            }
            (None, _) => { "running" }
        }
    }
}

const WIDTH: f64 = 90.0;
const HEIGHT: f64 = 16.0;

/// Draws a chart as small as a word, from 0 up, or nothing if all values are 0. The number beside
/// it shows the current value.
fn sparkline(values: impl ExactSizeIterator<Item = f64> + Clone) -> Markup {
    let max = values.clone().fold(0.0, f64::max);
    if max <= 0.0 {
        return Markup::default();
    }
    let last = values.len().saturating_sub(1).max(1) as f64;
    let mut points = String::new();
    for (at, value) in values.enumerate() {
        let (x, y) = (
            WIDTH * at as f64 / last,
            (HEIGHT - 1.0) * (1.0 - value / max) + 0.5,
        );
        let _ = write!(points, "{x:.0},{y:.1} ");
    }
    html! {
        svg.sparkline viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) width=(WIDTH) height=(HEIGHT) aria-hidden="true" focusable="false" {
            polyline points=(points.trim_end()) fill="none" stroke="currentColor" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_values() {
        let line = sparkline([0.0, 5.0, 10.0].into_iter()).into_string();
        assert!(line.contains("points=\"0,15.5 45,8.0 90,0.5\""), "{line}");
        assert_eq!(sparkline([0.0, 0.0].into_iter()).into_string(), "");
        assert_eq!(sparkline(std::iter::empty()).into_string(), "");
    }
}

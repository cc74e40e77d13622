//! The tables of the status page.

use maud::{Markup, html};

use super::address;
use super::format::{duration, grouped, number, rate, time};
use super::sparkline::sparkline;
use crate::http::rows::Row;
use crate::status::{FamilyStatus, State};
use crate::view::{FamilyView, RecountView, ServerView, View};

/// The maximum number of names in the list of families that are not served.
const NAMES: usize = 100;

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

fn word(state: State) -> &'static str {
    match state {
        State::Ok => "ok",
        State::Rejects => "rejects",
        State::Late => "late",
        State::Broken => "broken",
    }
}

pub fn servers(view: &View) -> Markup {
    let row = |pair: &str, name: &str, server: &ServerView| {
        html! {
            tr {
                th scope="row" { (pair) ": " (name) }
                td { span.state.(if server.up { "ok" } else { "away" }) { (if server.up { "up" } else { "away" }) } }
                td { @if server.since > 0 { (time(server.since)) } }
                td { (server.version.as_deref().unwrap_or("not known")) }
                td { (server.why.as_deref().unwrap_or_default()) }
            }
        }
    };
    let rows = html! {
        @for pair in &view.pairs { (row(&pair.name, "Redis", &pair.redis)) (row(&pair.name, "MySQL", &pair.mysql)) }
    };
    table(
        "servers",
        "Servers",
        &["Server", "State", "Since (UTC)", "Version", "Why"],
        &rows,
    )
}

pub fn findings(view: &View) -> Markup {
    let findings = view
        .pairs
        .iter()
        .flat_map(|pair| pair.findings.iter().map(|finding| (&pair.name, finding)));
    let rows = html! {
        @for (pair, finding) in findings.clone() {
            tr {
                th scope="row" { (pair) ": " (finding.subject) }
                td { span.state.(finding.severity) { (finding.severity) } }
                td { (finding.message) }
                td { (finding.advice) }
            }
        }
    };
    html! {
        @if findings.count() > 0 {
            (table("findings", "What check says", &["What", "Severity", "Finding", "What to do"], &rows))
        }
    }
}

pub fn families(rows: &[Row<'_>], total: usize, text: &str) -> Markup {
    let caption = match text {
        "" => format!("Families: {}", grouped(total as i128)),
        text => format!(
            "Families whose name has “{text}”: {}",
            grouped(total as i128)
        ),
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
        "Saved last (UTC)",
    ];
    let rows = html! { @for (pair, family) in rows { (self::family(pair, family)) } };
    html! {
        (table("families", &caption, &heads, &rows))
        @if total == 0 { p { "There are none." } }
    }
}

fn family(
    pair: &str,
    FamilyView {
        status,
        rate: now,
        history,
    }: &FamilyView,
) -> Markup {
    let line = |value: fn(&crate::view::Sample) -> f64| sparkline(history.iter().map(value));
    html! {
        tr data-family=(status.name()) {
            th scope="row" {
                a id={ "family-" (pair) "-" (status.name()) } href=(counters(pair, status)) { (status.name()) }
                @if let Some(problem) = &status.problem { p.problem { (problem) } }
            }
            td { span.state.(word(status.state)) { (word(status.state)) } }
            td { (status.kind) }
            td.number { @if let Some(now) = now { (rate(*now)) } (line(|sample| sample.rate.unwrap_or(0.0))) }
            td.number.pending { (number(status.pending)) (line(|sample| sample.pending as f64)) }
            td.number { @if let Some(oldest) = status.oldest_seconds { (duration(oldest)) } (line(|sample| sample.oldest_seconds)) }
            td.number { (number(status.open)) }
            td.number { (number(status.rejects)) }
            td { @if let Some(saved) = status.last_saved { (time(saved)) } }
        }
    }
}

/// Returns the address of the page for a family's counters.
fn counters(pair: &str, status: &FamilyStatus) -> String {
    let path = if status.kind == "series" {
        "/series"
    } else {
        "/counter"
    };
    address(path, &[("pair", pair), ("family", &status.name())])
}

pub fn unserved(view: &View) -> Markup {
    let refused = view
        .pairs
        .iter()
        .flat_map(|pair| pair.refused.iter().map(|refused| (&pair.name, refused)));
    let rows = html! {
        @for (pair, refused) in refused.clone() {
            tr { th scope="row" { (pair) ": " (refused.family) } td { (refused.reason) } }
        }
    };
    html! {
        @if refused.count() > 0 { (table("refused", "Families that were refused", &["Family", "Why"], &rows)) }
        @for pair in view.pairs.iter().filter(|pair| !pair.not_served.is_empty()) {
            details {
                summary { (pair.name) ": " (number(pair.not_served.len() as i128)) " families in the database are not served here" }
                ul { @for name in pair.not_served.iter().take(NAMES) { li { (name) } } }
                @if pair.not_served.len() > NAMES { p { "And " (number((pair.not_served.len() - NAMES) as i128)) " more." } }
            }
        }
    }
}

pub fn rejects(view: &View) -> Markup {
    let rejects = view
        .pairs
        .iter()
        .flat_map(|pair| pair.rejects.iter().map(|reject| (&pair.name, reject)));
    let rows = html! {
        @for (pair, reject) in rejects.clone() {
            tr {
                th scope="row" { (pair) ": " (number(reject.number)) }
                td { (reject.family) }
                td { (reject.id) }
                td.number { (number(reject.delta)) }
                td { (reject.reason) }
                td { (time(reject.at)) }
            }
        }
    };
    let heads = ["Number", "Family", "Id", "Delta", "Why", "At (UTC)"];
    html! { @if rejects.count() > 0 { (table("rejects", "Recent rejects: what rows refused", &heads, &rows)) } }
}

pub fn drift(view: &View) -> Markup {
    let drift = view
        .pairs
        .iter()
        .flat_map(|pair| pair.drift.iter().map(|drift| (&pair.name, drift)));
    let rows = html! {
        @for (pair, drift) in drift.clone() {
            tr {
                th scope="row" { (pair) ": " (drift.family) ", " (drift.id) }
                td.number { (number(drift.run)) }
                td.number { (number(drift.before)) }
                td.number { (number(drift.rows)) }
                td.number { (number(drift.after)) }
                td.number { (number(drift.delta)) }
                td { (drift.note) }
                td { (time(drift.at)) }
            }
        }
    };
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
    html! { @if drift.count() > 0 { (table("drift", "Recent drift: counters that differed from their rows", &heads, &rows)) } }
}

pub fn recounts(view: &View) -> Markup {
    let recounts = view
        .pairs
        .iter()
        .flat_map(|pair| pair.recounts.iter().map(|recount| (&pair.name, recount)));
    let rows = html! {
        @for (pair, recount) in recounts.clone() {
            tr {
                th scope="row" { (pair) ": " (recount.family) }
                td.number { (number(recount.run)) }
                td { (progress(recount)) }
                td.number { (number(recount.checked)) }
                td.number { (number(recount.drifted)) }
                td { (time(recount.started)) }
            }
        }
    };
    let heads = [
        "Family",
        "Run",
        "Progress",
        "Checked",
        "Drifted",
        "Started (UTC)",
    ];
    html! { @if recounts.count() > 0 { (table("recounts", "Recounts", &heads, &rows)) } }
}

fn progress(recount: &RecountView) -> Markup {
    html! {
        @match (recount.finished, recount.about) {
            (Some(finished), _) => { "ended " (time(finished)) }
            (None, Some(about)) if about > 0 => {
                progress max=(about) value=(recount.checked.min(about)) aria-label={ "Recount of " (recount.family) } {}
                " " ((recount.checked.min(about) * 100).checked_div(about).unwrap_or(0)) " %"
            }
            (None, _) => { "under way" }
        }
    }
}

//! The tables of the pages.

use maud::{Markup, html};

use super::address;
use super::format::{ago, duration, foreign, number, rate, short_id};
use crate::status::FamilyView;
use crate::view::{DriftView, FindingView, PairView, RecountView, RejectView, ServerView, View};

/// The maximum number of names in a list of families that are refused or not served.
const MAX_NAMES: usize = 100;

/// The headings of columns with numbers.
const NUMBERS: [&str; 7] = [
    "Refused",
    "Number",
    "Counter before",
    "Rows",
    "Run",
    "Checked",
    "Drifted",
];
/// The headings of columns that a narrow screen omits.
const WIDE: [&str; 5] = ["Number", "Counter before", "Rows", "Run", "Started"];

/// Renders a table that scrolls if it is too wide, also by keyboard.
fn table(id: &str, caption: &str, heads: &[&str], rows: &Markup) -> Markup {
    html! {
        div.scroll role="region" tabindex="0" id=(id) aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for head in heads { th.number[NUMBERS.contains(head)].wide[WIDE.contains(head)] scope="col" { (head) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Renders a table, or nothing without rows.
fn optional_table(id: &str, caption: &str, heads: &[&str], rows: &[Markup]) -> Markup {
    if rows.is_empty() {
        return Markup::default();
    }
    let rows = html! { @for row in rows { tr { (row) } } };
    table(id, caption, heads, &rows)
}

/// Renders a family's name, which leads to its page, with its pair if there are several.
fn family_link(view: &View, pair: &str, family: &str) -> Markup {
    html! {
        @if view.pairs.len() > 1 { (pair) ": " }
        a href=(family_address(pair, family)) { (family) }
    }
}

fn family_address(pair: &str, family: &str) -> String {
    address("family", &[("pair", pair), ("family", family)])
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
                td { @if server.since > 0 { (ago(server.since, view.at)) } }
                td { (server.version.as_deref().unwrap_or("unknown")) }
                td.text { (why.map_or("", String::as_str)) }
            }
        }
    };
    let rows = html! {
        @for pair in &view.pairs { (row(&pair.name, "Redis", &pair.redis)) (row(&pair.name, "MySQL", &pair.mysql)) }
    };
    let heads = ["Server", "State", "Since", "Version", "Reason"];
    table("servers", "Servers", &heads, &rows)
}

/// Renders when the figures of a pair were last read.
pub fn ages(pair: &PairView, now: u64) -> Markup {
    html! {
        p.ages.quiet {
            @for (at, look) in pair.looks.iter().enumerate() {
                @if at > 0 { ", " }
                (look.name) " read " @match look.at { Some(at) => (ago(at, now)), None => "never" }
                @if look.is_stale(now) { " " span.state.late { "stale" } }
            }
        }
    }
}

/// Renders the findings that are no problems: warnings and information.
pub fn findings(view: &View) -> Markup {
    let findings = view.of_pairs(|pair| &pair.findings);
    let others = findings.filter(|(_, one)| !one.is_error());
    let row = |(pair, FindingView { finding, since }): (&str, &FindingView)| {
        html! {
            th scope="row" { (pair) ": " (finding.subject) }
            td { span.state.(finding.severity) { (finding.severity) } }
            td.text { (finding.message) }
            td.text { (finding.advice) }
            td { (ago(*since, view.at)) }
        }
    };
    let rows: Vec<_> = others.map(row).collect();
    let heads = ["Subject", "Severity", "Finding", "What to do", "Since"];
    optional_table("findings", "Recommendations of check", &heads, &rows)
}

pub fn families(id: &str, caption: &str, rows: &[(&str, &FamilyView)], now: u64) -> Markup {
    let body = html! { @for (pair, family) in rows { (family_row(pair, family, now)) } };
    html! {
        div.scroll role="region" tabindex="0" id=(id) aria-label=(caption) {
            table.families {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "Family" }
                    th scope="col" { "State" }
                    th.number scope="col" { "Hits/s" }
                    th.number scope="col" { "Waiting" }
                    th.number.wide scope="col" { "Oldest" }
                    th.number.wide scope="col" { "Rejects" }
                    th.wide scope="col" { "Saved" }
                } }
                tbody { (body) }
            }
        }
    }
}

fn family_row(pair: &str, family: &FamilyView, now: u64) -> Markup {
    let name = family.name();
    html! {
        tr data-family=(name) {
            th scope="row" {
                a id={ "family-" (pair) "-" (name) } href=(family_address(pair, &name)) { (name) }
                " " span.quiet { (family.kind) }
            }
            td { (state(family, now)) }
            td.number { @if let Some(current) = family.rate { (rate(current)) } }
            td.number.pending { (number(family.pending)) }
            td.number.wide { @if let Some(oldest) = family.oldest_seconds { (duration(oldest)) } }
            td.number.wide { (number(family.rejects)) }
            td.wide { @if let Some(saved) = family.last_saved { (ago(saved, now)) } }
        }
    }
}

/// Renders the state of a family, and whether its figures are old.
pub fn state(family: &FamilyView, now: u64) -> Markup {
    html! {
        span.state.(family.state.name()) { (family.state.name()) }
        @if family.is_stale(now) {
            " " span.state.late { "stale" }
            @if let Some(seen) = family.seen { " read " (ago(seen, now)) }
        }
        @if !family.served { " " span.quiet { "not served here" } }
    }
}

pub fn unserved(view: &View) -> Markup {
    html! {
        @for PairView { name, refused, not_served, .. } in view.pairs.iter().map(|pair| &**pair) {
            @let refused: Vec<_> = refused.iter().map(|one| format!("{}: {}", one.family, one.reason)).collect();
            (list(&format!("refused-{name}"), &refused, &format!("{name}: configured families that were refused")))
            (list(&format!("not-served-{name}"), not_served, &format!("{name}: families in the database that are not served here")))
        }
    }
}

/// Renders a closed list with its length, or nothing if it is empty.
fn list(id: &str, lines: &[String], caption: &str) -> Markup {
    if lines.is_empty() {
        return Markup::default();
    }
    html! {
        details id=(id) {
            summary { (caption) " (" (number(lines.len() as i128)) ")" }
            ul { @for line in lines.iter().take(MAX_NAMES) { li { (line) } } }
            @if lines.len() > MAX_NAMES { p { "And " (number((lines.len() - MAX_NAMES) as i128)) " more." } }
        }
    }
}

/// Renders the latest rejects of the `wanted` families, by pair and NAMESPACE/FAMILY.
pub fn rejects(view: &View, wanted: impl Fn(&str, &str) -> bool) -> Markup {
    let rejects = view.of_pairs(|pair| &pair.rejects);
    let rejects = rejects.filter(|(pair, reject)| wanted(pair, &reject.family));
    let row = |(pair, reject): (&str, &RejectView)| {
        html! {
            td.text { (foreign(&reject.reason)) }
            th scope="row" { (family_link(view, pair, &reject.family)) " " (short_id(&reject.id)) }
            td.number { (format!("{:+}", reject.delta)) @if reject.times > 1 { " in " (number(reject.times)) } }
            td { (ago(reject.at, view.at)) }
            td.number.wide { (number(reject.number)) }
        }
    };
    let rows: Vec<_> = rejects.map(row).collect();
    let heads = ["Reason", "Counter", "Refused", "Since", "Number"];
    optional_table("rejects", "Latest open rejects", &heads, &rows)
}

/// Renders the latest differences of the `wanted` families, by pair and NAMESPACE/FAMILY.
pub fn drift(view: &View, wanted: impl Fn(&str, &str) -> bool) -> Markup {
    let drift = view.of_pairs(|pair| &pair.drift);
    let drift = drift.filter(|(pair, drift)| wanted(pair, &drift.family));
    let row = |(pair, drift): (&str, &DriftView)| {
        html! {
            td.text {
                @if drift.delta == 0 { (foreign(&drift.note)) }
                @else { "corrected by " (format!("{:+}", drift.delta)) " to " (number(drift.after.saturating_add(drift.delta))) }
            }
            th scope="row" { (family_link(view, pair, &drift.family)) " " (short_id(&drift.id)) }
            td.number.wide { (number(drift.before)) }
            td.number.wide { (number(drift.rows)) }
            td { (ago(drift.at, view.at)) }
            td.number.wide { (number(drift.run)) }
        }
    };
    let rows: Vec<_> = drift.map(row).collect();
    let heads = ["Result", "Counter", "Counter before", "Rows", "When", "Run"];
    optional_table(
        "drift",
        "Latest drift: counters that differed from their rows",
        &heads,
        &rows,
    )
}

pub fn recounts(view: &View) -> Markup {
    let row = |(pair, recount): (&str, &RecountView)| {
        html! {
            th scope="row" { (family_link(view, pair, &recount.family)) }
            td { (progress(recount, view.at)) }
            td.number { (number(recount.checked)) }
            td.number { (number(recount.drifted)) }
            td.wide { (ago(recount.started, view.at)) }
            td.number.wide { (number(recount.run)) }
        }
    };
    let rows: Vec<_> = view.of_pairs(|pair| &pair.recounts).map(row).collect();
    let heads = ["Family", "Progress", "Checked", "Drifted", "Started", "Run"];
    optional_table("recounts", "Recounts", &heads, &rows)
}

pub fn progress(recount: &RecountView, now: u64) -> Markup {
    html! {
        @match (recount.finished, recount.about) {
            (Some(finished), _) => { "ended " (ago(finished, now)) }
            (None, Some(about)) if about > 0 => {
                progress max=(about) value=(recount.checked.min(about)) aria-label={ "Recount of " (recount.family) } {}
                " " (recount.checked.min(about) * 100 / about) " %"
            }
            (None, _) => { "running" }
        }
    }
}

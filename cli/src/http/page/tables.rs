//! The tables of the pages.

use maud::{Markup, html};

use super::address;
use super::format::{ago, foreign, number, rate};
use crate::output::short;
use crate::status::FamilyView;
use crate::view::{DriftView, FindingView, PairView, RecountView, RejectView, ServerView, View};

/// The maximum number of names in a list of families that are refused or not served.
const MAX_NAMES: usize = 100;

/// A column of a table: its heading, and the class of its cells. Cells of the class `row` head their
/// row, and a narrow screen omits those of the class `wide`.
type Column = (&'static str, &'static str);

/// Renders a table that scrolls if it is too wide, also by keyboard; without rows nothing.
fn table<const N: usize>(
    id: &str,
    caption: &str,
    columns: [Column; N],
    rows: impl Iterator<Item = [Markup; N]>,
) -> Markup {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Markup::default();
    }
    html! {
        div.scroll role="region" tabindex="0" id=(id) aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for (head, class) in columns { th class=(class) scope="col" { (head) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (cell, (_, class)) in row.into_iter().zip(columns) {
                                @if class == "row" { th scope="row" { (cell) } }
                                @else { td class=(class) { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
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
    let servers = view.pairs.iter().flat_map(|pair| {
        let servers = [("Redis", &pair.redis), ("MySQL", &pair.mysql)];
        servers.map(|(name, server)| (&pair.name, name, server))
    });
    let row = |(pair, name, server): (&String, &str, &ServerView)| {
        let state = server.state();
        let class = match state {
            "up" => "ok",
            "unknown" => "unknown",
            _ => "down",
        };
        let why = server.why.as_ref().or(server.refuses.as_ref());
        [
            html! { (pair) ": " (name) },
            html! { span.state.(class) { (state) } },
            html! { @if server.since > 0 { (ago(server.since, view.at)) } },
            html! { (server.version.as_deref().unwrap_or("unknown")) },
            html! { (why.map_or("", String::as_str)) },
        ]
    };
    let columns = [
        ("Server", "row"),
        ("State", ""),
        ("Since", ""),
        ("Version", ""),
        ("Reason", "text"),
    ];
    table("servers", "Servers", columns, servers.map(row))
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
    let findings = view.of_pairs(|pair| &pair.checked);
    let others = findings.filter(|(_, one)| !one.is_error());
    let row = |(pair, FindingView { finding, since }): (&str, &FindingView)| {
        [
            html! { (pair) ": " (finding.subject) },
            html! { span.state.(finding.severity) { (finding.severity) } },
            html! { (finding.message) },
            html! { (finding.advice) },
            ago(*since, view.at),
        ]
    };
    let columns = [
        ("Subject", "row"),
        ("Severity", ""),
        ("Finding", "text"),
        ("What to do", "text"),
        ("Since", ""),
    ];
    table(
        "findings",
        "Recommendations of check",
        columns,
        others.map(row),
    )
}

pub fn families(id: &str, caption: &str, rows: &[(&str, &FamilyView)], now: u64) -> Markup {
    let row = |(pair, family): &(&str, &FamilyView)| {
        let name = family.name();
        [
            html! {
                a id={ "family-" (pair) "-" (name) } href=(family_address(pair, &name)) { (name) }
                " " span.quiet { (family.kind) }
            },
            state(family, now),
            html! { @if let Some(current) = family.rate { (rate(current)) } },
            number(family.pending),
            html! { @if let Some(oldest) = family.oldest_seconds { (short(oldest)) } },
            number(family.rejects),
            html! { @if let Some(saved) = family.last_saved { (ago(saved, now)) } },
        ]
    };
    let columns = [
        ("Family", "row"),
        ("State", ""),
        ("Hits/s", "number"),
        ("Waiting", "number pending"),
        ("Oldest", "number wide"),
        ("Rejects", "number wide"),
        ("Saved", "wide"),
    ];
    table(id, caption, columns, rows.iter().map(row))
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
        [
            foreign(&reject.reason),
            html! { (family_link(view, pair, &reject.family)) " " (foreign(&reject.id)) },
            html! { (format!("{:+}", reject.delta)) },
            ago(reject.at, view.at),
            number(reject.retries),
        ]
    };
    let columns = [
        ("Reason", "text"),
        ("Counter", "row"),
        ("Refused", "number"),
        ("Since", ""),
        ("Retries", "number wide"),
    ];
    table("rejects", "Latest rejects", columns, rejects.map(row))
}

/// Renders the latest differences of the `wanted` families, by pair and NAMESPACE/FAMILY.
pub fn drift(view: &View, wanted: impl Fn(&str, &str) -> bool) -> Markup {
    let drift = view.of_pairs(|pair| &pair.drift);
    let drift = drift.filter(|(pair, drift)| wanted(pair, &drift.family));
    let row = |(pair, drift): (&str, &DriftView)| {
        [
            html! {
                @if drift.delta == 0 { (foreign(&drift.note)) }
                @else { "corrected by " (format!("{:+}", drift.delta)) " to " (number(drift.after.saturating_add(drift.delta))) }
            },
            html! { (family_link(view, pair, &drift.family)) " " (foreign(&drift.id)) },
            number(drift.before),
            number(drift.rows),
            ago(drift.at, view.at),
            number(drift.run),
        ]
    };
    let columns = [
        ("Result", "text"),
        ("Counter", "row"),
        ("Counter before", "number wide"),
        ("Rows", "number wide"),
        ("When", ""),
        ("Run", "number wide"),
    ];
    let caption = "Latest drift: counters that differed from their rows";
    table("drift", caption, columns, drift.map(row))
}

pub fn recounts(view: &View) -> Markup {
    let row = |(pair, recount): (&str, &RecountView)| {
        [
            family_link(view, pair, &recount.family),
            progress(recount, view.at),
            number(recount.checked),
            number(recount.drifted),
            ago(recount.started, view.at),
            number(recount.run),
        ]
    };
    let columns = [
        ("Family", "row"),
        ("Progress", ""),
        ("Checked", "number"),
        ("Drifted", "number"),
        ("Started", "wide"),
        ("Run", "number wide"),
    ];
    let rows = view.of_pairs(|pair| &pair.recounts).map(row);
    table("recounts", "Recounts", columns, rows)
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

//! The tables of the pages.

use maud::{Markup, html};

use super::address;
use super::format::{ago, foreign, id, number, prose, rate};
use crate::output::{command, escaped, short};
use crate::rejects::MAX_COUNTED;
use crate::status::{FamilyView, State};
use crate::view::{FindingView, PairView, RecountView, View};

/// The maximum number of reasons of rejects.
const MAX_REASONS: usize = 20;
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
                tbody { @for row in rows { tr { (cells(row, columns)) } } }
            }
        }
    }
}

fn cells<const N: usize>(row: [Markup; N], columns: [Column; N]) -> Markup {
    html! {
        @for (cell, (_, class)) in row.into_iter().zip(columns) {
            @if class == "row" { th scope="row" { (cell) } }
            @else { td class=(class) { (cell) } }
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
    let columns = [
        ("Server", "row"),
        ("State", ""),
        ("Since", "age"),
        ("Replies", "latency"),
        ("Version", ""),
        ("Reason", "text"),
    ];
    let has_pairs = view.pairs.len() > 1;
    let servers = view.pairs.iter().flat_map(|pair| {
        [("Redis", &pair.redis), ("MySQL", &pair.mysql)]
            .map(|(name, server)| (&pair.name, name, server))
    });
    let rows = servers.map(|(pair, name, server)| {
        let is_slow = server.latency.is_some_and(|latency| latency.is_slow);
        let (state, class) = match server.state() {
            "up" if is_slow => ("slow", "warning"),
            "up" => ("up", "ok"),
            "unknown" => ("unknown", "unknown"),
            state => (state, "down"),
        };
        let down = server.why.as_ref().map(|reason| reason.text.as_str());
        let why = down.or(server.refuses.as_deref()).unwrap_or_default();
        [
            html! { @if has_pairs { (pair) ": " } (name) },
            html! { span.state.(class) { (state) } },
            html! { @if server.since > 0 { (ago(server.since, view.at)) } },
            html! { @if let Some(latency) = server.latency { (latency) } },
            html! { (server.version.as_deref().unwrap_or("unknown")) },
            prose(why),
        ]
    });
    table("servers", "Servers", columns, rows)
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

/// Renders the findings that are no problems, warnings and information, as a closed list.
pub fn findings(view: &View) -> Markup {
    let columns = [
        ("Subject", "row"),
        ("Severity", ""),
        ("Finding", "text"),
        ("What to do", "text"),
        ("Since", "age"),
    ];
    let has_pairs = view.pairs.len() > 1;
    let others: Vec<_> = view
        .of_pairs(|pair| &pair.checked)
        .filter(|(_, one)| !one.is_error())
        .collect();
    let rows = others.iter().map(|(pair, FindingView { finding, since })| {
        [
            html! { @if has_pairs { (pair) ": " } (finding.subject) },
            html! { span.state.(finding.severity) { (finding.severity) } },
            prose(&finding.message),
            prose(&finding.advice),
            ago(*since, view.at),
        ]
    });
    html! {
        @if !others.is_empty() {
            details id="recommendations" {
                summary { "Recommendations of " code { (command("check")) } ": " (others.len()) }
                (table("findings", "Recommendations", columns, rows))
            }
        }
    }
}

/// The columns of families.
const FAMILY_COLUMNS: [Column; 7] = [
    ("Family", "row"),
    ("State", ""),
    ("Hits/s", "number"),
    ("Waiting", "number pending"),
    ("Oldest", "number wide"),
    ("Rejects", "number wide"),
    ("Saved", "age wide"),
];

/// A family with its pair.
pub type Row<'v> = (&'v PairView, &'v FamilyView);

/// Returns the name of a family's pair and its namespace.
pub fn namespace_of<'v>((pair, family): &Row<'v>) -> (&'v str, &'v str) {
    (&pair.name, &family.namespace)
}

/// Renders the cells of a family. Its link has an id that begins with that of the table.
fn family_cells(table: &str, (pair, family): Row<'_>, name: &str, now: u64) -> [Markup; 7] {
    let (pair_name, full_name) = (&pair.name, family.name());
    let is_current = pair.has_figures_of(family, now);
    let has_rejects = !pair.mysql.is_down() && pair.has_figures("overview", now);
    [
        html! {
            a id={ (table) "-" (pair_name) "-" (full_name) } href=(family_address(pair_name, &full_name)) { (name) }
            " " span.quiet { (family.kind) }
        },
        state(pair, family, now),
        html! { @if let Some(current) = family.rate_of_a_minute().filter(|_| is_current) { (rate(current)) } },
        html! { @if is_current { (number(family.pending)) } },
        html! { @if let Some(oldest) = family.oldest_seconds.filter(|_| is_current) { (short(oldest)) } },
        html! { @if has_rejects { (number(family.rejects)) } },
        html! { @if let Some(saved) = family.last_saved { (ago(saved, now)) } },
    ]
}

/// Renders families with their whole names.
pub fn families(id: &str, caption: &str, rows: &[Row<'_>], now: u64) -> Markup {
    let cells = rows
        .iter()
        .map(|row| family_cells(id, *row, &row.1.name(), now));
    table(id, caption, FAMILY_COLUMNS, cells)
}

/// Renders families that are sorted by namespace. If a namespace has several, the namespaces are
/// headings.
pub fn by_namespace(id: &str, rows: &[Row<'_>], pairs: usize, now: u64) -> Markup {
    let groups = rows.chunk_by(|a, b| namespace_of(a) == namespace_of(b));
    if groups.clone().all(|group| group.len() == 1) {
        return families(id, "The busiest first", rows, now);
    }
    let caption = "By namespace";
    html! {
        div.scroll role="region" tabindex="0" id=(id) aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for (head, class) in FAMILY_COLUMNS { th class=(class) scope="col" { (head) } } } }
                @for group in groups {
                    @let (pair, first) = group[0];
                    tbody {
                        tr.group {
                            th scope="rowgroup" colspan=(FAMILY_COLUMNS.len()) {
                                @if pairs > 1 { (pair.name) ": " }
                                (first.namespace)
                            }
                        }
                        @for &row in group {
                            tr { (cells(family_cells(id, row, &row.1.family, now), FAMILY_COLUMNS)) }
                        }
                    }
                }
            }
        }
    }
}

/// The sums of a namespace's families.
pub struct Namespace<'v> {
    pub pair: &'v PairView,
    pub name: &'v str,
    pub families: u64,
    pub unhealthy: u64,
    pub rate: f64,
    pub pending: u64,
    pub rejects: u64,
}

/// Renders namespaces, each of which leads to its families.
pub fn namespaces(
    caption: &str,
    namespaces: &[Namespace<'_>],
    address: impl Fn(&Namespace<'_>) -> String,
    pairs: usize,
    now: u64,
) -> Markup {
    let columns = [
        ("Namespace", "row"),
        ("Families", "number"),
        ("Unhealthy", "number wide"),
        ("Hits/s", "number"),
        ("Waiting", "number"),
        ("Rejects", "number wide"),
    ];
    let rows = namespaces.iter().map(|one| {
        let is_current = !one.pair.redis.is_down() && one.pair.has_figures("families", now);
        let has_rejects = !one.pair.mysql.is_down() && one.pair.has_figures("overview", now);
        [
            html! {
                @if pairs > 1 { (one.pair.name) ": " }
                a id={ "namespace-" (one.pair.name) "-" (one.name) } href=(address(one)) { (one.name) }
            },
            number(one.families),
            html! { @if one.unhealthy > 0 { span.state.late { (number(one.unhealthy)) } } },
            html! { @if is_current { (rate(one.rate)) } },
            html! { @if is_current { (number(one.pending)) } },
            html! { @if has_rejects { (number(one.rejects)) } },
        ]
    });
    table("namespaces", caption, columns, rows)
}

/// Returns the words for the state of a family and their class: its own state, unless a server is
/// unavailable or was set back.
pub fn state_words(pair: &PairView, family: &FamilyView) -> (String, &'static str) {
    let own = family.state.name();
    match (pair.outage(), family.state) {
        (Some((server, _)), State::Ok | State::Late) => (format!("no {server}"), "down"),
        (None, State::Ok) if pair.set_backs_of(family).next().is_some() => {
            ("set back".to_owned(), "warning")
        }
        _ => (own.to_owned(), own),
    }
}

/// Renders the state of a family, and whether its figures are old.
fn state(pair: &PairView, family: &FamilyView, now: u64) -> Markup {
    let (words, class) = state_words(pair, family);
    html! {
        span.state.(class) { (words) }
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
            @let of_pair = if view.pairs.len() > 1 { format!("{name}: ") } else { String::new() };
            (list(&format!("refused-{name}"), &refused, &format!("{of_pair}configured families that were refused")))
            (list(&format!("not-served-{name}"), not_served, &format!("{of_pair}families in the database that are not served here")))
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
            summary { (caption) ": " (number(lines.len() as i128)) }
            ul { @for line in lines.iter().take(MAX_NAMES) { li { (prose(line)) } } }
            @if lines.len() > MAX_NAMES { p { "And " (number((lines.len() - MAX_NAMES) as i128)) " more." } }
        }
    }
}

/// Renders the reasons of the rejects of the `wanted` families, by pair and NAMESPACE/FAMILY.
pub fn rejects(view: &View, wanted: impl Fn(&str, &str) -> bool) -> Markup {
    let total: u64 = view
        .of_pairs(|pair| &pair.families)
        .filter(|(pair, family)| wanted(pair, &family.name()))
        .map(|(_, family)| family.rejects)
        .sum();
    let caption = if total > MAX_COUNTED {
        format!("Rejects: reasons of the latest {MAX_COUNTED}")
    } else {
        "Rejects".to_owned()
    };
    let columns = [
        ("Number and reason", "text"),
        ("Family", "row"),
        ("Ids", "text"),
        ("Since", "age wide"),
        ("What to do", "text"),
    ];
    let reasons = view
        .of_pairs(|pair| &pair.reasons)
        .filter(|(pair, one)| wanted(pair, &one.family))
        .take(MAX_REASONS);
    let rows = reasons.map(|(pair, reason)| {
        [
            html! { strong { (number(reason.number)) } " × " (prose(&escaped(&reason.reason))) },
            family_link(view, pair, &reason.family),
            html! {
                @for (at, one) in reason.ids.iter().enumerate() { @if at > 0 { ", " } (id(one)) }
                @if reason.number > reason.ids.len() as u64 { ", …" }
            },
            ago(reason.since, view.at),
            html! { (prose(reason.advice())) "." },
        ]
    });
    table("rejects", &caption, columns, rows)
}

/// Renders the latest differences of the `wanted` families, by pair and NAMESPACE/FAMILY.
pub fn drift(view: &View, wanted: impl Fn(&str, &str) -> bool) -> Markup {
    let caption = "Drift: counters that differed from their rows";
    let columns = [
        ("Result", "text"),
        ("Counter", "row"),
        ("Counter before", "number wide"),
        ("Rows", "number wide"),
        ("When", "age"),
        ("Run", "number wide"),
    ];
    let differences = view
        .of_pairs(|pair| &pair.drift)
        .filter(|(pair, drift)| wanted(pair, &drift.family));
    let rows = differences.map(|(pair, drift)| {
        [
            html! {
                @if drift.delta == 0 { (foreign(&drift.note)) }
                @else { "corrected by " (format!("{:+}", drift.delta)) " to " (number(drift.after)) }
            },
            html! { (family_link(view, pair, &drift.family)) " " (id(&drift.id)) },
            number(drift.before),
            number(drift.rows),
            ago(drift.at, view.at),
            number(drift.run),
        ]
    });
    table("drift", caption, columns, rows)
}

pub fn recounts(view: &View) -> Markup {
    let columns = [
        ("Family", "row"),
        ("Progress", ""),
        ("Checked", "number"),
        ("Drifted", "number"),
        ("Started", "age wide"),
        ("Run", "number wide"),
    ];
    let recounts = view.of_pairs(|pair| &pair.recounts);
    let rows = recounts.map(|(pair, recount)| {
        [
            family_link(view, pair, &recount.family),
            progress(recount, view.at),
            number(recount.checked),
            number(recount.drifted),
            ago(recount.started, view.at),
            number(recount.run),
        ]
    });
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

//! The status page.

use std::cmp::Ordering;
use std::ops::Range;

use axum::response::Html;
use maud::{Markup, html};
use serde::Deserialize;

use super::format::grouped;
use super::summary::Figures;
use super::tables::{Namespace, Row, namespace_of, state_words};
use super::{ErrorPage, address, header, instance, page, summary, tables};
use crate::http::error::ErrorReply;
use crate::http::{AppState, Params};
use crate::output::command;
use crate::status::{FamilyView, State};
use crate::view::View;

/// The maximum number of rows on a page. With more families the page shows namespaces.
const ROWS: usize = 50;
/// The number of the busiest, and of the unhealthy families.
const BUSIEST: usize = 10;

/// The selection of families to show.
#[derive(Clone, Default, Deserialize)]
pub struct Selection {
    /// A part of a name.
    #[serde(default)]
    family: String,
    /// A namespace, and its pair.
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    pair: String,
    #[serde(default)]
    sort: Sort,
    /// The number of the page, from 1.
    page: Option<usize>,
}

/// The order of families, the busiest first.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sort {
    #[default]
    Hits,
    Waiting,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Sort::Hits => "hits",
            Sort::Waiting => "waiting",
        }
    }

    /// Compares hits per second and waiting ids, the greater first.
    fn compare(self, a: (f64, u64), b: (f64, u64)) -> Ordering {
        let (rate, pending) = (b.0.total_cmp(&a.0), b.1.cmp(&a.1));
        match self {
            Sort::Hits => rate.then(pending),
            Sort::Waiting => pending.then(rate),
        }
    }
}

impl Selection {
    fn selects(&self, (pair, family): &Row<'_>) -> bool {
        let is_of_pair = self.pair.is_empty() || self.pair == pair.name;
        let is_of_namespace = self.namespace.is_empty() || self.namespace == family.namespace;
        let has_text = self.family.is_empty() || family.name().contains(&self.family);
        is_of_pair && is_of_namespace && has_text
    }

    /// Returns whether it leaves families out.
    fn is_narrow(&self) -> bool {
        [&self.family, &self.namespace, &self.pair]
            .iter()
            .any(|text| !text.is_empty())
    }

    /// Returns the address of a page of this selection, with further parameters.
    fn address(&self, page: usize) -> String {
        let number = if page == 1 {
            String::new()
        } else {
            page.to_string()
        };
        let sort = if self.sort == Sort::Hits {
            ""
        } else {
            self.sort.name()
        };
        let params = [
            ("pair", self.pair.as_str()),
            ("namespace", &self.namespace),
            ("family", &self.family),
            ("sort", sort),
            ("page", &number),
        ];
        address("./", &params)
    }
}

pub async fn overview(
    app: AppState,
    params: Result<Params<Selection>, ErrorReply>,
) -> Result<Html<String>, ErrorPage> {
    let Params(selection) = params?;
    let view = app.view();
    let content = html! {
        (header(&app, &view, None))
        main id="main" data-live="live" { (parts(&view, &selection)) }
    };
    let title = format!("{} – Counterfoil", view.health(&view.problems()).name());
    Ok(page(&title, false, &content))
}

/// Returns the parts that change, with which a page keeps itself up to date.
pub async fn live(app: AppState, Params(selection): Params<Selection>) -> Html<String> {
    let view = app.view();
    let content = html! { (instance(&app, &view)) (parts(&view, &selection)) };
    Html(content.into_string())
}

fn parts(view: &View, selection: &Selection) -> Markup {
    let problems = view.problems();
    super::parts(&[
        ("health", summary::health(view, &problems)),
        ("problems", summary::problems(view, &problems)),
        ("figures", figures(view)),
        ("servers", tables::servers(view)),
        ("rejects", tables::rejects(view, |_, _| true)),
        ("families", families(view, selection)),
        ("drift", tables::drift(view, |_, _| true)),
        ("recounts", tables::recounts(view)),
        ("findings", tables::findings(view)),
        ("unserved", tables::unserved(view)),
    ])
}

/// Renders the figures of each pair.
fn figures(view: &View) -> Markup {
    html! {
        @for pair in &view.pairs {
            section aria-label={ "Figures of " (pair.name) } {
                @if view.pairs.len() > 1 { h2 { (pair.name) } }
                (Figures::of_pair(pair, view.at).render())
                (tables::ages(pair, view.at))
            }
        }
    }
}

/// Renders the families: the unhealthy and the busiest ones, and then all by namespace.
fn families(view: &View, selection: &Selection) -> Markup {
    let selected: Vec<_> = view
        .pairs
        .iter()
        .flat_map(|pair| pair.families_of())
        .filter(|row| selection.selects(row))
        .collect();
    let rows = by_namespace(selected, selection.sort);
    let is_short = rows.len() <= BUSIEST || selection.is_narrow();
    let number = grouped(rows.len() as i128);
    html! {
        h2 { "Families: " (number) }
        (form(selection))
        @if rows.is_empty() { p { "No families." } }
        @if !is_short { (unhealthy(&rows, view.at)) (busiest(&rows, selection.sort, view.at)) }
        @if is_short || rows.len() <= ROWS {
            (by_pages(rows.len(), selection, |shown| {
                tables::by_namespace("family", &rows[shown], view.pairs.len(), view.at)
            }))
        } @else {
            (all_namespaces(view, &rows, selection))
        }
    }
}

fn form(selection: &Selection) -> Markup {
    let option = |sort: Sort, text| html! { option value=(sort.name()) selected[selection.sort == sort] { (text) } };
    html! {
        form method="get" action="./" role="search" {
            @for (name, value) in [("pair", &selection.pair), ("namespace", &selection.namespace)] {
                @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
            }
            label { "Name contains " input id="search" type="search" name="family" value=(selection.family); }
            label { "Busiest by " select id="sort" name="sort" { (option(Sort::Hits, "hits")) (option(Sort::Waiting, "waiting")) } }
            button { "Show" }
            @if !selection.namespace.is_empty() { span { "Namespace " strong { (selection.namespace) } } }
            @if selection.is_narrow() { a href="./" { "Show all" } }
        }
    }
}

/// Returns whether a family has a problem that does not follow from the outage of a server.
fn is_unhealthy((pair, family): &Row<'_>, now: u64) -> bool {
    match pair.outage() {
        Some(_) => !matches!(family.state, State::Ok | State::Late),
        None => state_words(pair, family).1 != State::Ok.name() || family.is_stale(now),
    }
}

fn unhealthy(rows: &[Row<'_>], now: u64) -> Markup {
    let found: Vec<_> = rows
        .iter()
        .filter(|row| is_unhealthy(row, now))
        .copied()
        .collect();
    let more = found.len().saturating_sub(BUSIEST);
    let caption = format!("Unhealthy: {}", grouped(found.len() as i128));
    let shown = &found[..found.len() - more];
    html! {
        (tables::families("unhealthy", &caption, shown, now))
        @if more > 0 { p { "And " (grouped(more as i128)) " more: run " code { (command("status")) } "." } }
    }
}

/// Renders the families that count at present, or in which hits wait, the busiest first.
fn busiest(rows: &[Row<'_>], sort: Sort, now: u64) -> Markup {
    let is_busy =
        |(pair, family): &&Row<'_>| load(family) > (0.0, 0) && pair.has_figures_of(family, now);
    let mut busy: Vec<_> = rows.iter().filter(is_busy).copied().collect();
    busy.sort_by(|a, b| sort.compare(load(a.1), load(b.1)));
    busy.truncate(BUSIEST);
    tables::families("busiest", "Busiest", &busy, now)
}

/// Returns the hits per second and the waiting ids.
fn load(family: &FamilyView) -> (f64, u64) {
    (family.rate_of_a_minute().unwrap_or(0.0), family.pending)
}

/// Sorts families by namespaces, the busiest first, and in each the busiest first.
fn by_namespace(mut rows: Vec<Row<'_>>, sort: Sort) -> Vec<Row<'_>> {
    rows.sort_by_key(|row| (namespace_of(row), &row.1.family));
    let mut groups = Vec::new();
    for group in rows.chunk_by_mut(|a, b| namespace_of(a) == namespace_of(b)) {
        group.sort_by(|a, b| sort.compare(load(a.1), load(b.1)));
        groups.push((load_of(group), group));
    }
    groups.sort_by(|(a, _), (b, _)| sort.compare(*a, *b));
    groups
        .into_iter()
        .flat_map(|(_, group)| group.iter().copied())
        .collect()
}

/// Returns the hits per second and the waiting ids of several families.
fn load_of(group: &[Row<'_>]) -> (f64, u64) {
    group
        .iter()
        .map(|(_, family)| load(family))
        .fold((0.0, 0), |sum, load| (sum.0 + load.0, sum.1 + load.1))
}

/// Renders the namespaces of rows that are sorted by them.
fn all_namespaces(view: &View, rows: &[Row<'_>], selection: &Selection) -> Markup {
    let namespaces: Vec<_> = rows
        .chunk_by(|a, b| namespace_of(a) == namespace_of(b))
        .map(|group| summed(group, view.at))
        .collect();
    let caption = format!("Namespaces: {}", grouped(namespaces.len() as i128));
    let pairs = view.pairs.len();
    by_pages(namespaces.len(), selection, |shown| {
        tables::namespaces(
            &caption,
            &namespaces[shown],
            |one| namespace_address(one, pairs, selection.sort),
            pairs,
            view.at,
        )
    })
}

/// Returns the address of a namespace's families, of one pair if there are several.
fn namespace_address(one: &Namespace<'_>, pairs: usize, sort: Sort) -> String {
    let of_pair = if pairs > 1 { &one.pair.name } else { "" };
    let narrow = Selection {
        pair: of_pair.to_owned(),
        namespace: one.name.to_owned(),
        sort,
        ..Selection::default()
    };
    narrow.address(1)
}

/// Returns the sums of a namespace.
fn summed<'v>(group: &[Row<'v>], now: u64) -> Namespace<'v> {
    let (pair, first) = group[0];
    let (rate, pending) = load_of(group);
    Namespace {
        pair,
        name: &first.namespace,
        families: group.len() as u64,
        unhealthy: group.iter().filter(|row| is_unhealthy(row, now)).count() as u64,
        rate,
        pending,
        rejects: group.iter().map(|(_, family)| family.rejects).sum(),
    }
}

/// Renders a page of rows, and the way to others.
fn by_pages(
    rows: usize,
    selection: &Selection,
    render: impl FnOnce(Range<usize>) -> Markup,
) -> Markup {
    let pages = rows.div_ceil(ROWS).max(1);
    let page = selection.page.unwrap_or(1).clamp(1, pages);
    let first = (page - 1) * ROWS;
    html! {
        @if rows > 0 { (render(first..rows.min(first + ROWS))) }
        @if pages > 1 {
            nav aria-label="Pages of families" {
                @if page > 1 { a id="previous" rel="prev" href=(selection.address(page - 1)) { "Previous" } }
                " Page " (page) " of " (pages) " "
                @if page < pages { a id="next" rel="next" href=(selection.address(page + 1)) { "Next" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::status::idle;
    use crate::view::PairView;

    fn view(families: Vec<FamilyView>) -> View {
        let mut pair = PairView::new("main");
        (pair.redis.up, pair.redis.since) = (true, 1);
        (pair.mysql.up, pair.mysql.since) = (true, 1);
        for look in &mut pair.looks {
            look.at = Some(0);
        }
        pair.families = families;
        View {
            at: 0,
            pairs: vec![Arc::new(pair)],
        }
    }

    fn shown(view: &View, selection: Selection) -> String {
        families(view, &selection).into_string()
    }

    /// Asserts that these texts follow each other.
    fn follow(page: &str, texts: &[&str]) {
        let mut rest = page;
        for text in texts {
            let at = rest
                .find(text)
                .unwrap_or_else(|| panic!("{text} does not follow in {page}"));
            rest = &rest[at + text.len()..];
        }
    }

    #[test]
    fn few_families_are_listed_by_namespace_the_busiest_first() {
        let mut families: Vec<_> = [("blog", "views"), ("shop", "stock"), ("shop", "views")]
            .map(|(namespace, family)| idle(namespace, family))
            .into();
        families[0].pending = 9;
        families[2].rate = Some(7.0);
        let view = view(families);
        let by_hits = shown(&view, Selection::default());
        let links = [
            "family-main-shop/views",
            "family-main-shop/stock",
            "family-main-blog/views",
        ];
        follow(
            &by_hits,
            &["Families: 3", "By namespace", links[0], links[1], links[2]],
        );
        assert!(!by_hits.contains("busiest-") && !by_hits.contains("<nav"));
        let sort = Sort::Waiting;
        let by_waiting = shown(
            &view,
            Selection {
                sort,
                ..Selection::default()
            },
        );
        follow(&by_waiting, &[links[2], links[0], links[1]]);
    }

    #[test]
    fn many_families_are_found_by_namespace_after_the_unhealthy_and_the_busiest() {
        let mut families: Vec<_> = (0..120)
            .map(|number| idle(&format!("shop-{}", number % 60), &format!("f{number:03}")))
            .collect();
        families[77].state = State::Late;
        families[77].pending = 1234;
        for (at, family) in families.iter_mut().enumerate().skip(100) {
            family.rate = Some(at as f64);
        }
        let view = view(families);
        let page = |page| {
            shown(
                &view,
                Selection {
                    page,
                    ..Selection::default()
                },
            )
        };
        let first = page(None);
        follow(
            &first,
            &[
                "Families: 120",
                "Unhealthy: 1",
                "unhealthy-main-shop-17/f077",
                "<data value=\"1234\">1,234</data>",
                "Busiest",
                "busiest-main-shop-59/f119",
                "busiest-main-shop-58/f118",
                "busiest-main-shop-50/f110",
                "Namespaces: 60",
                "namespace-main-shop-59",
                "href=\"./?namespace=shop-59\"",
                "namespace-main-shop-58",
                "Page 1 of 2",
                "href=\"./?page=2\"",
            ],
        );
        assert!(!first.contains("busiest-main-shop-49/f109"));
        assert!(
            !first.contains("namespace-main-shop-9\"")
                && page(Some(2)).contains("namespace-main-shop-9\"")
        );
        assert!(page(Some(99)).contains("Page 2 of 2"));
        let by_text = shown(
            &view,
            Selection {
                family: "f11".to_owned(),
                ..Selection::default()
            },
        );
        assert!(
            by_text.contains("shop-50/f110")
                && !by_text.contains("f077")
                && !by_text.contains("busiest-")
        );
        let of_namespace = shown(
            &view,
            Selection {
                namespace: "shop-17".to_owned(),
                ..Selection::default()
            },
        );
        follow(
            &of_namespace,
            &["Families: 2", "shop-17/f077", "shop-17/f017"],
        );
    }

    #[test]
    fn figures_are_blank_and_nothing_is_ok_while_a_server_is_unavailable() {
        let mut family = idle("shop", "views");
        (family.pending, family.rejects, family.rate) = (77, 88, Some(99.0));
        let healthy = view(vec![family]);
        let without = |server: fn(&mut PairView)| {
            let mut pair = PairView::clone(&healthy.pairs[0]);
            server(&mut pair);
            let view = View {
                at: 0,
                pairs: vec![Arc::new(pair)],
            };
            shown(&view, Selection::default())
        };
        let has = |page: &str| {
            ["ok<", "77<", "88<", "99.0<", "no Redis", "no MySQL"].map(|text| page.contains(text))
        };
        assert_eq!(
            has(&without(|_| ())),
            [true, true, true, true, false, false]
        );
        assert_eq!(
            has(&without(|pair| pair.redis.up = false)),
            [false, false, true, false, true, false]
        );
        assert_eq!(
            has(&without(|pair| pair.mysql.up = false)),
            [false, true, false, true, false, true]
        );
    }
}

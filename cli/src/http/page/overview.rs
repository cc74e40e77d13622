//! The status page.

use axum::response::Html;
use maud::{Markup, html};
use serde::Deserialize;

use super::format::grouped;
use super::{ProblemPage, address, header, page, summary, tables};
use crate::VERSION;
use crate::http::problem::Problem;
use crate::http::{AppState, Params};
use crate::status::{FamilyView, State};
use crate::view::View;

/// The maximum number of families on a page.
const ROWS: usize = 50;
/// The maximum number of healthy families that are shown without a click.
const SHOWN: usize = 20;

/// The selection of families to show.
#[derive(Clone, Default, Deserialize)]
pub struct Selection {
    #[serde(default)]
    family: String,
    /// The number of the page, from 1.
    page: Option<usize>,
}

impl Selection {
    /// Returns the address of another page.
    fn address(&self, page: usize) -> String {
        let page = if page == 1 {
            String::new()
        } else {
            page.to_string()
        };
        address("./", &[("family", &self.family), ("page", &page)])
    }
}

pub async fn overview(
    app: AppState,
    params: Result<Params<Selection>, Problem>,
) -> Result<Html<String>, ProblemPage> {
    let Params(selection) = params?;
    let view = app.view();
    let content = html! {
        (header(&view, None))
        main id="main" data-live="live" {
            (parts(&view, &selection))
            footer { p.quiet { "Version " (VERSION) } }
        }
    };
    let title = format!("{} – Counterfoil", view.health(&view.problems()).name());
    Ok(page(&title, false, &content))
}

/// Returns the parts that change, with which a page keeps itself up to date.
pub async fn live(app: AppState, Params(selection): Params<Selection>) -> Html<String> {
    Html(parts(&app.view(), &selection).into_string())
}

fn parts(view: &View, selection: &Selection) -> Markup {
    let problems = view.problems();
    super::parts(&[
        ("health", summary::health(view, &problems)),
        ("problems", summary::problems(view, &problems)),
        ("figures", figures(view)),
        ("families", families(view, selection)),
        ("rejects", tables::rejects(view, |_, _| true)),
        ("drift", tables::drift(view, |_, _| true)),
        ("recounts", tables::recounts(view)),
        ("findings", tables::findings(view)),
        ("servers", tables::servers(view)),
        ("unserved", tables::unserved(view)),
    ])
}

/// Renders the figures of each pair.
fn figures(view: &View) -> Markup {
    html! {
        @for pair in &view.pairs {
            section aria-label={ "Figures of " (pair.name) } {
                @if view.pairs.len() > 1 { h2 { (pair.name) } }
                (summary::figures(&pair.total(view.at), &pair.totals))
                (tables::ages(pair, view.at))
            }
        }
    }
}

/// Renders the unhealthy families, and the others on pages.
fn families(view: &View, selection: &Selection) -> Markup {
    let rows = view.families(&selection.family);
    let is_healthy =
        |(_, family): &(&str, &FamilyView)| family.state == State::Ok && !family.is_stale(view.at);
    let (healthy, unhealthy): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_healthy);
    let pages = healthy.len().div_ceil(ROWS).max(1);
    let page = selection.page.unwrap_or(1).clamp(1, pages);
    let first = (page - 1) * ROWS;
    let shown = &healthy[first..healthy.len().min(first + ROWS)];
    let is_selected = !selection.family.is_empty() || selection.page.is_some();
    let unhealthy_shown = &unhealthy[..unhealthy.len().min(ROWS)];
    html! {
        h2 { "Families" }
        form method="get" action="./" role="search" {
            label { "Name contains " input id="search" type="search" name="family" value=(selection.family); }
            " " button { "Search" }
            @if !selection.family.is_empty() { " " a href="./" { "Show all" } }
        }
        @if !unhealthy.is_empty() {
            (tables::families("unhealthy", &format!("Unhealthy: {}", grouped(unhealthy.len() as i128)), unhealthy_shown, view.at))
            @if unhealthy.len() > ROWS { p { "And " (unhealthy.len() - ROWS) " more: search by name, or run " code { "counterfoil status" } "." } }
        }
        @if healthy.is_empty() {
            @if unhealthy.is_empty() { p { "No families." } }
        } @else {
            details id="healthy-families" open[is_selected || healthy.len() <= SHOWN] {
                summary { "Healthy: " (grouped(healthy.len() as i128)) }
                (tables::families("healthy", "Healthy families", shown, view.at))
                @if pages > 1 {
                    nav aria-label="Pages of families" {
                        @if page > 1 { a id="previous" rel="prev" href=(selection.address(page - 1)) { "Previous" } }
                        " Page " (page) " of " (pages) " "
                        @if page < pages { a id="next" rel="next" href=(selection.address(page + 1)) { "Next" } }
                    }
                }
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

    #[test]
    fn trouble_comes_first_and_the_rest_by_pages() {
        let mut families: Vec<_> = (0..120)
            .map(|number| idle("shop", &format!("f{number:03}")))
            .collect();
        families[77].state = State::Late;
        families[77].pending = 1234;
        let mut pair = PairView::new("main");
        pair.families = families;
        let view = View {
            at: 0,
            pairs: vec![Arc::new(pair)],
        };
        let listed = |family: &str, page| {
            let family = family.to_owned();
            super::families(&view, &Selection { family, page }).into_string()
        };
        let page = |page| listed("", page);
        let first = page(None);
        let at = |name: &str| {
            first
                .find(name)
                .unwrap_or_else(|| panic!("{name} is not in {first}"))
        };
        assert!(
            at("shop/f077") < at("shop/f000")
                && first.contains("<data value=\"1234\">1,234</data>")
        );
        assert!(first.contains("Unhealthy: 1") && first.contains("Healthy: 119"));
        assert!(!first.contains("<details id=\"healthy-families\" open"));
        assert!(!first.contains("shop/f060") && page(Some(2)).contains("shop/f060"));
        assert!(page(Some(2)).contains("<details id=\"healthy-families\" open"));
        assert!(first.contains("href=\"./?page=2\"") && first.contains("Page 1 of 3"));
        assert!(page(Some(99)).contains("Page 3 of 3"));
        let some = listed("f11", None);
        assert!(some.contains("shop/f110") && !some.contains("shop/f077"));
    }
}

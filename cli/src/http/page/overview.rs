//! The status page, and its parts for events.

use axum::response::Html;
use maud::{Markup, html};
use serde::Deserialize;

use super::{ProblemPage, address, page, tables};
use crate::http::AppState;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::output::count;
use crate::view::View;

/// The maximum number of families on a page.
const ROWS: usize = 50;

/// The selection of families to show.
#[derive(Debug, Default, Deserialize)]
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
        address("/", &[("family", &self.family), ("page", &page)])
    }
}

pub async fn overview(
    app: AppState,
    params: Result<Params<Selection>, Problem>,
) -> Result<Html<String>, ProblemPage> {
    let Params(selection) = params?;
    let view = app.daemon.view();
    let content = html! {
        header {
            h1 { "Counterfoil" }
            p { "Version " (view.version) }
            // page.js fills both; the age is separate, so that screen readers do not announce it
            // every second
            p.connection { span id="connection" role="status" {} " " span id="age" {} }
            noscript { p { "As of " (super::format::time(view.at)) " UTC. Reload the page to update it." } }
        }
        main id="main" data-live="/events" {
            form method="get" action="/" role="search" {
                label { "Families whose name contains " input type="search" name="family" value=(selection.family); }
                " " button { "Show" }
                @if !selection.family.is_empty() { " " a href="/" { "Show all" } }
            }
            @for (name, part) in parts(&view, &selection) {
                // screen readers announce changes only of an element that existed before
                div id={ "part-" (name) } role=[(name == "summary").then_some("status")] { (part) }
            }
        }
    };
    Ok(page("Counterfoil", false, &content))
}

/// Renders the parts of the page by name, in their order.
pub fn parts(view: &View, selection: &Selection) -> [(&'static str, Markup); 9] {
    [
        ("summary", summary(view)),
        ("servers", tables::servers(view)),
        ("figures", tables::figures(view)),
        ("findings", tables::findings(view)),
        ("families", families(view, selection)),
        ("unserved", tables::unserved(view)),
        ("rejects", tables::rejects(view)),
        ("drift", tables::drift(view)),
        ("recounts", tables::recounts(view)),
    ]
}

/// Renders the problems in a sentence.
fn summary(view: &View) -> Markup {
    let families = view.of_pairs(|pair| &pair.families);
    let served = families.filter(|(_, family)| family.status.served).count();
    let problems = view.problems();
    html! {
        p.summary.trouble[!problems.is_empty()] {
            @if !problems.is_empty() { (problems.join(", ")) "." }
            @else if view.is_unknown() { "Not known yet: the daemon has not seen the state of its servers and families." }
            @else { "All is well: " (count(served as u64, "family is served.", "families are served.")) }
        }
    }
}

fn families(view: &View, selection: &Selection) -> Markup {
    let rows = view.families(&selection.family);
    let pages = rows.len().div_ceil(ROWS).max(1);
    let page = selection.page.unwrap_or(1).clamp(1, pages);
    let first = (page - 1) * ROWS;
    let shown = &rows[first..rows.len().min(first + ROWS)];
    html! {
        (tables::families(shown, rows.len(), &selection.family, view.at))
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
    use crate::status::State;
    use crate::view::{FamilyView, Look, PairView, ReconcilerView, Refused};

    fn view() -> View {
        let mut families: Vec<_> = (0..120)
            .map(|number| FamilyView::idle("shop", &format!("f{number:03}")))
            .collect();
        families[77].status.state = State::Late;
        families[77].status.pending = 1234;
        let refused = Refused {
            family: "shop/<script>".to_owned(),
            reason: "a \"reason\" & more".to_owned(),
        };
        let mut pair = PairView {
            name: "main".to_owned(),
            families,
            refused: vec![refused],
            ..PairView::default()
        };
        pair.redis.up = true;
        (pair.redis.since, pair.mysql.since) = (1, 1);
        View {
            at: 0,
            version: "1",
            pairs: vec![Arc::new(pair)],
        }
    }

    fn part(view: &View, family: &str, page: usize, wanted: &str) -> String {
        let selection = Selection {
            family: family.to_owned(),
            page: Some(page),
        };
        let (_, part) = parts(view, &selection)
            .into_iter()
            .find(|(name, _)| *name == wanted)
            .expect("a part");
        part.into_string()
    }

    #[test]
    fn trouble_comes_first_and_the_rest_by_pages() {
        let view = view();
        let page = |page| part(&view, "", page, "families");
        let first = page(1);
        let at = |name: &str| {
            first
                .find(name)
                .unwrap_or_else(|| panic!("{name} is not in {first}"))
        };
        assert!(
            at("shop/f077") < at("shop/f000")
                && first.contains("<data value=\"1234\">1,234</data>")
        );
        assert!(!first.contains("shop/f060") && page(2).contains("shop/f060"));
        assert!(first.contains("href=\"/?page=2\"") && first.contains("Page 1 of 3"));
        assert!(page(99).contains("Page 3 of 3"));
        let some = part(&view, "f11", 1, "families");
        assert!(some.contains("shop/f110") && !some.contains("shop/f077"));
    }

    #[test]
    fn health_is_unknown_before_the_first_look() {
        let seen = Look {
            at: Some(100),
            ..Look::default()
        };
        let mut pair = PairView::default();
        let summary = |pair: &PairView, at| {
            let pairs = vec![Arc::new(pair.clone())];
            let version = "1";
            part(&View { at, version, pairs }, "", 1, "summary")
        };
        let is_known = |pair: &PairView| !summary(pair, 100).contains("Not known yet");
        assert!(!is_known(&pair));
        for server in [&mut pair.redis, &mut pair.mysql] {
            (server.up, server.since) = (true, 1);
        }
        assert!(!is_known(&pair));
        pair.reconciler.running = true;
        for number in 0..3 {
            assert!(!is_known(&pair));
            let looks = &mut pair.looks;
            let looks = [&mut looks.families, &mut looks.overview, &mut looks.check];
            *looks.into_iter().nth(number).expect("a look") = seen.clone();
        }
        assert!(summary(&pair, 100).contains("All is well: 0 families are served."));
        assert!(summary(&pair, 131).contains("2 kinds of figures are stale."));
        assert!(summary(&pair, 221).contains("3 kinds of figures are stale."));
        pair.reconciler = ReconcilerView {
            running: false,
            why: Some("a reason".to_owned()),
            failing: Vec::new(),
        };
        assert!(summary(&pair, 100).contains("1 reconciler does not run."));
    }

    #[test]
    fn the_summary_names_the_problems_and_text_is_escaped() {
        let summary = part(&view(), "", 1, "summary");
        assert!(
            summary.contains("1 server is unavailable, 1 family is late, 1 family was refused."),
            "{summary}"
        );
        let refused = part(&view(), "", 1, "unserved");
        assert!(
            refused.contains("shop/&lt;script&gt;")
                && refused.contains("&quot;reason&quot; &amp; more"),
            "{refused}"
        );
    }
}

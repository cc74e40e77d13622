//! The status page, and its parts for events.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::{address, page, problem_page, tables};
use crate::http::App;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::http::rows;
use crate::status::State as FamilyState;
use crate::view::View;

/// The maximum number of families on a page.
const ROWS: usize = 50;

/// The selection of families to show.
#[derive(Debug)]
pub struct Query {
    text: String,
    /// The number of the page, from 1.
    page: usize,
}

impl Query {
    pub fn of(params: &Params) -> Result<Self, Problem> {
        let page = params.number("page", 1, 1_000_000)?.max(1);
        let text = params.first("family").unwrap_or_default().to_owned();
        Ok(Query {
            text,
            page: usize::try_from(page).unwrap_or(usize::MAX),
        })
    }

    fn at(&self, page: usize) -> String {
        let page = if page == 1 {
            String::new()
        } else {
            page.to_string()
        };
        address("/", &[("family", &self.text), ("page", &page)])
    }
}

pub async fn show(State(app): State<Arc<App>>, params: Params) -> Response {
    let query = match Query::of(&params) {
        Ok(query) => query,
        Err(problem) => return problem_page(problem),
    };
    let view = app.live.view();
    let content = html! {
        header {
            h1 { "Counterfoil" }
            p { "Version " (view.version) }
            // page.js fills both; the age is separate, so that screen readers do not announce it
            // every second
            p.connection { span id="connection" role="status" {} " " span id="age" {} }
            noscript { p { "These figures are of " (super::format::time(view.at)) " UTC. Load the page again for newer ones." } }
        }
        main id="main" data-live="/events" {
            form method="get" action="/" role="search" {
                label { "Families whose name has " input type="search" name="family" value=(query.text); }
                " " button { "Show" }
                @if !query.text.is_empty() { " " a href="/" { "Show all" } }
            }
            @for (name, part) in parts(&view, &query) {
                // screen readers announce changes only of an element that existed before
                div id={ "part-" (name) } role=[(name == "summary").then_some("status")] { (part) }
            }
        }
    };
    page("Counterfoil", false, &content).into_response()
}

/// Renders the parts of the page by name, in their order.
pub fn parts(view: &View, query: &Query) -> [(&'static str, Markup); 8] {
    [
        ("summary", summary(view)),
        ("servers", tables::servers(view)),
        ("findings", tables::findings(view)),
        ("families", families(view, query)),
        ("unserved", tables::unserved(view)),
        ("rejects", tables::rejects(view)),
        ("drift", tables::drift(view)),
        ("recounts", tables::recounts(view)),
    ]
}

/// Renders the problems in a sentence.
fn summary(view: &View) -> Markup {
    let families = || view.pairs.iter().flat_map(|pair| &pair.families);
    let with = |state| {
        families()
            .filter(|family| family.status.state == state)
            .count()
    };
    let servers = view
        .pairs
        .iter()
        .flat_map(|pair| [&pair.redis, &pair.mysql]);
    let refused = view.pairs.iter().map(|pair| pair.refused.len()).sum();
    let wrong = [
        (
            servers.filter(|server| !server.up).count(),
            "server is away",
            "servers are away",
        ),
        (
            with(FamilyState::Broken),
            "family is broken",
            "families are broken",
        ),
        (
            with(FamilyState::Late),
            "family is late",
            "families are late",
        ),
        (
            with(FamilyState::Rejects),
            "family has rejects",
            "families have rejects",
        ),
        (refused, "family was refused", "families were refused"),
    ];
    let wrong: Vec<_> = wrong
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| format!("{count} {}", if *count == 1 { one } else { many }))
        .collect();
    html! {
        p.summary.trouble[!wrong.is_empty()] {
            @if wrong.is_empty() { "All is well: " (families().count()) " families are served." } @else { (wrong.join(", ")) "." }
        }
    }
}

fn families(view: &View, query: &Query) -> Markup {
    let rows = rows::of(view, &query.text);
    let pages = rows.len().div_ceil(ROWS).max(1);
    let page = query.page.min(pages);
    let first = (page - 1) * ROWS;
    let shown = &rows[first..rows.len().min(first + ROWS)];
    html! {
        (tables::families(shown, rows.len(), &query.text))
        @if pages > 1 {
            nav aria-label="Pages of families" {
                @if page > 1 { a id="previous" rel="prev" href=(query.at(page - 1)) { "Previous" } }
                " Page " (page) " of " (pages) " "
                @if page < pages { a id="next" rel="next" href=(query.at(page + 1)) { "Next" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing;
    use crate::view::{PairView, Refused};

    fn view() -> View {
        let mut families: Vec<_> = (0..120)
            .map(|number| testing::family("shop", &format!("f{number:03}")))
            .collect();
        families[77].status.state = FamilyState::Late;
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
        View {
            at: 0,
            version: "1",
            pairs: vec![Arc::new(pair)],
        }
    }

    fn part(view: &View, query: &Query, wanted: &str) -> String {
        let (_, part) = parts(view, query)
            .into_iter()
            .find(|(name, _)| *name == wanted)
            .expect("a part");
        part.into_string()
    }

    #[test]
    fn trouble_comes_first_and_the_rest_by_pages() {
        let (view, query) = (view(), |page| Query {
            text: String::new(),
            page,
        });
        let first = part(&view, &query(1), "families");
        let at = |name: &str| {
            first
                .find(name)
                .unwrap_or_else(|| panic!("{name} is not in {first}"))
        };
        assert!(
            at("shop/f077") < at("shop/f000")
                && first.contains("<data value=\"1234\">1,234</data>")
        );
        assert!(
            !first.contains("shop/f060")
                && part(&view, &query(2), "families").contains("shop/f060")
        );
        assert!(first.contains("href=\"/?page=2\"") && first.contains("Page 1 of 3"));
        assert!(part(&view, &query(99), "families").contains("Page 3 of 3"));
        let some = part(
            &view,
            &Query {
                text: "f11".to_owned(),
                page: 1,
            },
            "families",
        );
        assert!(some.contains("shop/f110") && !some.contains("shop/f077"));
    }

    #[test]
    fn the_summary_names_what_is_wrong_and_text_is_escaped() {
        let (view, query) = (
            view(),
            Query {
                text: String::new(),
                page: 1,
            },
        );
        let summary = part(&view, &query, "summary");
        assert!(
            summary.contains("1 server is away, 1 family is late, 1 family was refused."),
            "{summary}"
        );
        let refused = part(&view, &query, "unserved");
        assert!(
            refused.contains("shop/&lt;script&gt;")
                && refused.contains("&quot;reason&quot; &amp; more"),
            "{refused}"
        );
    }
}

//! The metrics for Prometheus: those of the library in this process, and the daemon's view of its
//! pairs.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::App;
use super::totals::Named;
use crate::status::State as FamilyState;
use crate::view::{FamilyView, PairView, RecountView, View};

pub async fn show(State(app): State<Arc<App>>) -> impl IntoResponse {
    let totals = app.totals.observe(&app.live);
    let text = app.prometheus.render() + &text(&app.live.view(), &totals);
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
}

/// Metrics in the text format, version 0.0.4.
#[derive(Default)]
struct Text(String);

impl Text {
    fn describe(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let label = |(label, value): &(&str, &str)| format!("{label}=\"{}\"", escaped(value));
        let labels: Vec<_> = labels.iter().map(label).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    /// Writes one sample for each family name of each pair.
    fn of_names(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl Iterator<Item = (Named, f64)>,
    ) {
        self.describe(name, kind, help);
        samples.for_each(|(Named { pair, family }, value)| {
            self.sample(name, &[("pair", &pair), ("family", &family)], value)
        });
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Renders the daemon's view of its pairs. Labels have no namespace: families of one name are
/// summed, and their ages yield the maximum.
fn text(view: &View, totals: &BTreeMap<Named, u64>) -> String {
    let mut text = Text::default();
    text.describe(
        "counterfoil_build_info",
        "gauge",
        "the version of the daemon",
    );
    text.sample("counterfoil_build_info", &[("version", view.version)], 1);
    pairs(&mut text, view);
    families(&mut text, view);
    recounts(&mut text, view);
    let counted = totals
        .iter()
        .map(|(named, counted)| (named.clone(), *counted as f64));
    text.of_names(
        "counterfoil_counted_hits_total",
        "counter",
        "hits that Redis has counted, whoever sent them",
        counted,
    );
    text.0
}

fn pairs(text: &mut Text, view: &View) {
    let up = "counterfoil_server_up";
    text.describe(up, "gauge", "1 while the server answers the daemon");
    for pair in &view.pairs {
        for (server, seen) in [("redis", &pair.redis), ("mysql", &pair.mysql)] {
            text.sample(
                up,
                &[("pair", &pair.name), ("server", server)],
                u8::from(seen.up),
            );
        }
    }
    let memory = "counterfoil_redis_memory_bytes";
    text.describe(
        memory,
        "gauge",
        "what Redis, or all nodes of its cluster, have allocated",
    );
    for pair in &view.pairs {
        if let Some(bytes) = pair.redis.memory_bytes {
            text.sample(memory, &[("pair", &pair.name)], bytes);
        }
    }
    type Count = fn(&PairView) -> usize;
    let counts: [(&str, &str, Count); 3] = [
        (
            "counterfoil_families",
            "families that the daemon serves",
            |pair| pair.families.len(),
        ),
        (
            "counterfoil_families_refused",
            "families of the configuration that were not opened",
            |pair| pair.refused.len(),
        ),
        (
            "counterfoil_families_not_served",
            "families in the database that it does not serve",
            |pair| pair.not_served.len(),
        ),
    ];
    for (name, help, count) in counts {
        text.describe(name, "gauge", help);
        view.pairs
            .iter()
            .for_each(|pair| text.sample(name, &[("pair", &pair.name)], count(pair)));
    }
    let findings = "counterfoil_findings";
    text.describe(
        findings,
        "gauge",
        "what check says of the servers, by severity",
    );
    for pair in &view.pairs {
        for severity in ["error", "warning", "info"] {
            let count = pair
                .findings
                .iter()
                .filter(|finding| finding.severity == severity)
                .count();
            text.sample(
                findings,
                &[("pair", &pair.name), ("severity", severity)],
                count,
            );
        }
    }
}

/// Joins the values of all families with one name in a pair.
fn by_name<'a, T: 'a>(
    view: &'a View,
    of_pair: impl Fn(&'a PairView) -> &'a [T],
    name: impl Fn(&'a T) -> &'a str,
    value: impl Fn(&'a T) -> Option<f64>,
    join: fn(f64, f64) -> f64,
) -> impl Iterator<Item = (Named, f64)> {
    let mut joined = BTreeMap::new();
    for pair in &view.pairs {
        for one in of_pair(pair) {
            let Some(value) = value(one) else { continue };
            let named = Named {
                pair: pair.name.clone(),
                family: name(one).to_owned(),
            };
            joined
                .entry(named)
                .and_modify(|joined| *joined = join(*joined, value))
                .or_insert(value);
        }
    }
    joined.into_iter()
}

fn sum(a: f64, b: f64) -> f64 {
    a + b
}

fn families(text: &mut Text, view: &View) {
    type Value = fn(&FamilyView) -> Option<f64>;
    type Join = fn(f64, f64) -> f64;
    let values: [(&str, &str, Value, Join); 6] = [
        (
            "counterfoil_unsaved_ids",
            "distinct ids that wait in Redis for MySQL",
            |family| Some(family.status.pending as f64),
            sum,
        ),
        (
            "counterfoil_unsaved_oldest_seconds",
            "age of the oldest hit that waits in Redis for MySQL, 0 if none does",
            |family| Some(family.status.oldest_seconds.unwrap_or(0.0)),
            f64::max,
        ),
        (
            "counterfoil_open_slices",
            "slices that are kept and not over yet",
            |family| Some(family.status.open as f64),
            sum,
        ),
        (
            "counterfoil_open_rejects",
            "what rows refused and nobody mended yet",
            |family| Some(family.status.rejects as f64),
            sum,
        ),
        (
            "counterfoil_families_late",
            "families whose oldest hit waits for too long, or whose keys in Redis are broken",
            |family| {
                Some(f64::from(u8::from(matches!(
                    family.status.state,
                    FamilyState::Late | FamilyState::Broken
                ))))
            },
            sum,
        ),
        (
            "counterfoil_last_saved_timestamp_seconds",
            "when a batch reached MySQL last, in Unix seconds",
            |family| family.status.last_saved.map(|saved| saved as f64),
            f64::max,
        ),
    ];
    for (name, help, value, join) in values {
        let samples = by_name(
            view,
            |pair| &pair.families,
            |family| &family.status.family,
            value,
            join,
        );
        text.of_names(name, "gauge", help, samples);
    }
}

fn recounts(text: &mut Text, view: &View) {
    fn name(family: &str) -> &str {
        family.rsplit_once('/').map_or(family, |(_, name)| name)
    }
    let of = |value: fn(u64, &RecountView) -> Option<f64>, join| {
        by_name(
            view,
            |pair| &pair.recounts,
            |recount| name(&recount.family),
            move |recount| value(view.at, recount),
            join,
        )
    };
    let drifted = "counterfoil_last_recount_drifted";
    let help = "counters that differed from their rows in the last recount";
    text.of_names(
        drifted,
        "gauge",
        help,
        of(|_, recount| Some(recount.drifted as f64), sum),
    );
    let since = "counterfoil_since_recount_seconds";
    let help = "time since a recount ended last";
    let age = |at: u64, recount: &RecountView| {
        recount
            .finished
            .map(|finished| at.saturating_sub(finished) as f64)
    };
    text.of_names(since, "gauge", help, of(age, f64::max));
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use prometheus_parse::{Scrape, Value};

    use super::*;
    use crate::http::testing;
    use crate::status::State;

    fn scrape(text: &str) -> Scrape {
        Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).expect("the text format")
    }

    /// Returns the only sample of `name` with these labels.
    fn value(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: HashMap<_, _> = labels.iter().copied().collect();
        let has_these = |sample: &&prometheus_parse::Sample| {
            sample.metric == name
                && sample.labels.len() == labels.len()
                && labels
                    .iter()
                    .all(|(label, value)| sample.labels.get(label) == Some(value))
        };
        let found: Vec<_> = scrape.samples.iter().filter(has_these).collect();
        match found.as_slice() {
            [
                prometheus_parse::Sample {
                    value: Value::Gauge(value) | Value::Counter(value),
                    ..
                },
            ] => *value,
            other => panic!("{name} {labels:?}: {other:?}"),
        }
    }

    fn view() -> View {
        let mut families = [
            testing::family("shop-1", "views"),
            testing::family("shop-2", "views"),
        ];
        for (family, (pending, oldest)) in families.iter_mut().zip([(3, 2.5), (4, 150.0)]) {
            family.status.pending = pending;
            family.status.oldest_seconds = Some(oldest);
        }
        families[1].status.state = State::Late;
        families[1].status.rejects = 2;
        let recount = |family: &str, drifted, finished| RecountView {
            family: family.to_owned(),
            run: 1,
            checked: 10,
            drifted,
            about: None,
            started: 900,
            finished,
        };
        let mut pair = PairView {
            name: "main".to_owned(),
            families: families.into(),
            ..PairView::default()
        };
        pair.redis.up = true;
        pair.recounts = vec![
            recount("shop-1/views", 1, Some(950)),
            recount("shop-2/views", 2, Some(970)),
        ];
        View {
            at: 1000,
            version: "1.2.3",
            pairs: vec![Arc::new(pair)],
        }
    }

    #[test]
    fn the_families_of_one_name_are_joined() {
        let named = Named {
            pair: "main".to_owned(),
            family: "views".to_owned(),
        };
        let scrape = scrape(&text(&view(), &[(named, 12_345_678_901)].into()));
        let of_family = |name| value(&scrape, name, &[("pair", "main"), ("family", "views")]);
        assert_eq!(of_family("counterfoil_unsaved_ids"), 7.0);
        assert_eq!(of_family("counterfoil_unsaved_oldest_seconds"), 150.0);
        assert_eq!(of_family("counterfoil_open_rejects"), 2.0);
        assert_eq!(of_family("counterfoil_families_late"), 1.0);
        assert_eq!(
            of_family("counterfoil_counted_hits_total"),
            12_345_678_901.0
        );
        assert_eq!(of_family("counterfoil_last_recount_drifted"), 3.0);
        assert_eq!(of_family("counterfoil_since_recount_seconds"), 50.0);
        let up = |server| {
            value(
                &scrape,
                "counterfoil_server_up",
                &[("pair", "main"), ("server", server)],
            )
        };
        assert_eq!((up("redis"), up("mysql")), (1.0, 0.0));
        assert_eq!(
            value(&scrape, "counterfoil_build_info", &[("version", "1.2.3")]),
            1.0
        );
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = Text::default();
        text.sample("name", &[("label", "a\"b\\c\nd")], 1);
        assert_eq!(text.0, "name{label=\"a\\\"b\\\\c\\nd\"} 1\n");
    }

    #[test]
    fn no_name_is_one_of_the_library() {
        let library = include_str!("../../../src/metrics.rs");
        for line in text(&view(), &BTreeMap::new())
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
        {
            let name = line.split(' ').next().expect("a name");
            assert!(
                !library.contains(&format!("\"{name}\"")),
                "{name} is the library's"
            );
        }
    }

    #[test]
    fn the_dashboard_shows_what_there_is() {
        let dashboard = include_str!("../../grafana/counterfoil.json");
        let _: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
        let there = text(&view(), &BTreeMap::new()) + include_str!("../../../src/metrics.rs");
        let mut seen = 0;
        for (at, _) in dashboard.match_indices("counterfoil_") {
            let end = dashboard[at..]
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .expect("an end")
                + at;
            let name = &dashboard[at..end];
            let series = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| name.strip_suffix(part))
                .unwrap_or(name);
            let is_there = [format!("\"{series}\""), format!("# TYPE {series} ")]
                .iter()
                .any(|text| there.contains(text));
            assert!(is_there, "{name} is not measured");
            seen += 1;
        }
        assert!(seen > 10, "{seen} metrics in the dashboard");
    }
}

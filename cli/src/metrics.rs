//! The daemon's metrics, in one recorder with those of the library.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::time::Duration;

use counterfoil::admin::Severity;
use metrics::{Label, counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::interval;

use crate::VERSION;
use crate::certificates::Certificate;
use crate::status::State;
use crate::view::{PairView, View};

const COUNTED: &str = "counterfoil_counted_hits_total";
const REFUSED: &str = "counterfoil_refused_hits_total";

/// The upper bounds of the histograms' buckets, in seconds.
const BUCKETS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0,
];
/// The interval at which the recorder aggregates measurements.
const UPKEEP: Duration = Duration::from_secs(5);

/// Installs the recorder, and returns the handle that renders its metrics.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS)?
        .install_recorder()?;
    counterfoil::metrics::describe();
    describe_counter!(COUNTED, "hits that Redis has counted from all clients");
    describe_counter!(REFUSED, "hits that Redis has refused from all clients");
    let handle = prometheus.clone();
    tokio::spawn(async move {
        let mut ticks = interval(UPKEEP);
        loop {
            ticks.tick().await;
            handle.run_upkeep();
        }
    });
    Ok(prometheus)
}

/// Adds the hits that Redis has counted and refused in a family since the last call.
pub fn count_hits(pair: &str, family: &str, counted: Option<u64>, refused: Option<u64>) {
    for (name, hits) in [(COUNTED, counted), (REFUSED, refused)] {
        if let Some(hits) = hits {
            counter!(name, "pair" => pair.to_owned(), "family" => family.to_owned())
                .increment(hits);
        }
    }
}

/// Describes and sets a gauge.
fn set(name: &'static str, what: &'static str, labels: &[(&'static str, &str)], value: f64) {
    describe_gauge!(name, what);
    let owned: Vec<_> = labels
        .iter()
        .map(|(label, text)| Label::new(*label, (*text).to_owned()))
        .collect();
    gauge!(name, owned).set(value);
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// Returns the metrics, with gauges of the current state of the pairs. Each call sets the gauges in
/// a new recorder, so that those of a removed family disappear.
pub fn render(prometheus: &PrometheusHandle, view: &View) -> String {
    let gauges = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&gauges, || set_gauges(view));
    prometheus.render() + &gauges.handle().render()
}

/// Sets the gauges to the current state of the pairs.
fn set_gauges(view: &View) {
    let version = [("version", VERSION)];
    set(
        "counterfoil_build_info",
        "the version of the daemon",
        &version,
        1.0,
    );
    for pair in &view.pairs {
        set_pair_gauges(pair);
        set_family_gauges(pair, view.at);
        set_set_back_gauges(pair);
    }
}

fn set_pair_gauges(pair: &PairView) {
    let name = ("pair", pair.name.as_str());
    for (server, state) in pair.servers() {
        let labels = [name, ("server", server)];
        set(
            "counterfoil_server_up",
            "1 while the server replies to the daemon",
            &labels,
            flag(state.up),
        );
        set(
            "counterfoil_server_failing",
            "1 while the server refuses what the daemon writes",
            &labels,
            flag(state.refuses.is_some()),
        );
    }
    for (server, state) in pair.servers() {
        let Some(latency) = state.latency else {
            continue;
        };
        for (quantile, seconds) in [("0.5", latency.p50_seconds), ("0.99", latency.p99_seconds)] {
            set(
                "counterfoil_server_latency_seconds",
                "how long replies of the server to the daemon's checks took, within five minutes",
                &[name, ("server", server), ("quantile", quantile)],
                seconds,
            );
        }
    }
    for Certificate {
        certificate,
        expires,
    } in &pair.certificates
    {
        set(
            "counterfoil_certificate_expiry_timestamp_seconds",
            "end of a certificate on which connections depend, in Unix seconds",
            &[name, ("certificate", certificate)],
            *expires as f64,
        );
    }
    for look in &pair.looks {
        if let Some(at) = look.at {
            set(
                "counterfoil_last_look_timestamp_seconds",
                "time at which the daemon last read figures, in Unix seconds",
                &[name, ("figures", look.name)],
                at as f64,
            );
        }
    }
    let findings = pair.findings();
    for severity in [Severity::Error, Severity::Warning, Severity::Info] {
        let number = findings
            .iter()
            .filter(|one| one.finding.severity == severity);
        set(
            "counterfoil_findings",
            "findings of check, by severity",
            &[name, ("severity", &severity.to_string())],
            number.count() as f64,
        );
    }
    let memory = pair.redis.memory_bytes;
    let served = pair.families.iter().filter(|family| family.served);
    for (gauge, what, value) in [
        (
            "counterfoil_redis_memory_bytes",
            "memory allocated by Redis, or by all nodes of its cluster",
            memory.map_or(f64::NAN, |bytes| bytes as f64),
        ),
        (
            "counterfoil_reconciler_up",
            "1 while the daemon brings hits to MySQL",
            flag(pair.reconciler.running),
        ),
        (
            "counterfoil_families",
            "families that the daemon serves",
            served.count() as f64,
        ),
        (
            "counterfoil_families_refused",
            "configured families that were not opened",
            pair.refused.len() as f64,
        ),
        (
            "counterfoil_families_not_served",
            "families in the database that the daemon does not serve",
            pair.not_served.len() as f64,
        ),
    ] {
        set(gauge, what, &[name], value);
    }
}

/// Gauges of families, by the name of the family, and the name and description of the gauge.
#[derive(Default)]
struct FamilyGauges<'v>(BTreeMap<(&'v str, &'static str, &'static str), f64>);

impl<'v> FamilyGauges<'v> {
    /// Adds the value of a family. `combine` joins it with that of the same name in another
    /// namespace.
    fn merge(
        &mut self,
        family: &'v str,
        name: &'static str,
        what: &'static str,
        value: f64,
        combine: fn(f64, f64) -> f64,
    ) {
        self.0
            .entry((family, name, what))
            .and_modify(|merged| *merged = combine(*merged, value))
            .or_insert(value);
    }
}

/// Sets the gauges of families. Those of the same name in several namespaces share one: numbers are
/// added, and of times the largest is taken.
fn set_family_gauges(pair: &PairView, now: u64) {
    let mut gauges = FamilyGauges::default();
    let failing: BTreeSet<_> = pair
        .reconciler
        .failing
        .iter()
        .filter(|one| one.blocks_hits)
        .filter_map(|one| one.family.clone())
        .collect();
    for family in &pair.families {
        let of = family.family.as_str();
        let is = |state| flag(family.state == state);
        for (name, what, value) in [
            (
                "counterfoil_unsaved_ids",
                "distinct ids that wait in Redis for MySQL",
                family.pending as f64,
            ),
            (
                "counterfoil_remembered_requests",
                "requests (add_once, incr_once) that Redis remembers",
                family.requests.unwrap_or(0) as f64,
            ),
            (
                "counterfoil_open_rejects",
                "refused changes that wait for their rows",
                family.rejects as f64,
            ),
            (
                "counterfoil_families_late",
                "families whose hits have waited for too long",
                is(State::Late),
            ),
            (
                "counterfoil_families_broken",
                "families whose keys in Redis cannot be read",
                is(State::Broken),
            ),
            (
                "counterfoil_families_failing",
                "families whose flushes fail",
                flag(failing.contains(&family.name())),
            ),
        ] {
            gauges.merge(of, name, what, value, f64::add);
        }
        gauges.merge(
            of,
            "counterfoil_pending_share",
            "share of max_pending that the fullest partition has reached",
            family.full,
            f64::max,
        );
        gauges.merge(
            of,
            "counterfoil_unsaved_oldest_seconds",
            "age of the oldest hit that waits in Redis for MySQL, 0 if none waits",
            family.oldest_seconds.unwrap_or(0.0),
            f64::max,
        );
        if let Some(saved) = family.last_saved {
            gauges.merge(
                of,
                "counterfoil_last_saved_timestamp_seconds",
                "time at which a part of a batch last reached MySQL, in Unix seconds",
                saved as f64,
                f64::max,
            );
        }
    }
    for recount in &pair.recounts {
        let name = recount.family.rsplit('/').next().unwrap_or_default();
        gauges.merge(
            name,
            "counterfoil_last_recount_drifted",
            "counters that differed from their rows in the last recount",
            recount.drifted as f64,
            f64::add,
        );
        if !recount.is_configured {
            continue;
        }
        let since = recount.finished.unwrap_or(recount.started);
        gauges.merge(
            name,
            "counterfoil_since_recount_seconds",
            "time since the end of the last recount that the daemon makes, or the start of one that has not ended",
            now.saturating_sub(since) as f64,
            f64::max,
        );
    }
    for ((family, name, what), value) in gauges.0 {
        set(
            name,
            what,
            &[("pair", &pair.name), ("family", family)],
            value,
        );
    }
}

/// Sets the gauges of set-backs, by the name of the family and the server.
fn set_set_back_gauges(pair: &PairView) {
    let mut open: BTreeMap<_, u64> = BTreeMap::new();
    for family in &pair.families {
        for (server, _) in pair.servers() {
            open.insert((family.family.as_str(), server), 0);
        }
    }
    for one in &pair.set_backs {
        let family = one.family.rsplit('/').next().unwrap_or_default();
        *open.entry((family, one.server)).or_default() += one.partitions;
    }
    for ((family, server), partitions) in open {
        set(
            "counterfoil_open_set_backs",
            "partitions in which a set-back of the server was found, within a day and not acknowledged",
            &[("pair", &pair.name), ("family", family), ("server", server)],
            partitions as f64,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::status::{FamilyView, idle};
    use crate::view::{FailingView, RecountView};

    #[test]
    fn the_families_of_one_name_are_joined() {
        let mut pair = PairView::new("main");
        pair.families = vec![
            FamilyView {
                pending: 3,
                oldest_seconds: Some(2.5),
                ..idle("shop-1", "views")
            },
            FamilyView {
                pending: 4,
                oldest_seconds: Some(150.0),
                state: State::Late,
                full: 0.75,
                ..idle("shop-2", "views")
            },
        ];
        let failing = |step| FailingView {
            step,
            family: Some("shop-1/views".to_owned()),
            server: "mysql",
            error: "full".into(),
            since: 990,
            blocks_hits: true,
        };
        pair.reconciler.failing = ["flush", "search for hits"].map(failing).into();
        let recount = |family: &str, drifted, finished| RecountView {
            family: family.to_owned(),
            run: 1,
            checked: 10,
            drifted,
            about: None,
            is_configured: true,
            started: 900,
            finished,
        };
        pair.recounts = vec![
            recount("shop-1/views", 1, Some(950)),
            recount("shop-2/views", 2, None),
        ];
        let pairs = vec![Arc::new(pair)];
        let others = PrometheusBuilder::new().build_recorder().handle();
        let text = render(&others, &View { at: 1000, pairs });
        for (name, value) in [
            ("unsaved_ids", "7"),
            ("unsaved_oldest_seconds", "150"),
            ("families_late", "1"),
            ("families_failing", "1"),
            ("pending_share", "0.75"),
            ("last_recount_drifted", "3"),
            ("since_recount_seconds", "100"),
        ] {
            let line = format!("\ncounterfoil_{name}{{pair=\"main\",family=\"views\"}} {value}\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
}

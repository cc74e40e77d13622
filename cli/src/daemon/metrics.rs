//! The daemon's metrics, in one recorder with those of the library.

use std::collections::{BTreeSet, HashMap};
use std::ops::Add;
use std::time::Duration;

use counterfoil::admin::Severity;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::interval;

use super::VERSION;
use crate::status::State;
use crate::view::{PairView, View};

/// Defines the names of metrics, and a list of them with their descriptions.
macro_rules! metrics {
    ($list:ident: $($name:ident = $metric:literal, $what:literal;)*) => {
        $(const $name: &str = $metric;)*
        const $list: &[(&str, &str)] = &[$(($name, $what)),*];
    };
}

metrics! { GAUGES:
    BUILD_INFO = "counterfoil_build_info", "the version of the daemon";
    SERVER_UP = "counterfoil_server_up", "1 while the server replies to the daemon";
    SERVER_FAILING = "counterfoil_server_failing", "1 while the server refuses what the daemon writes";
    RECONCILER_UP = "counterfoil_reconciler_up", "1 while the daemon brings hits to MySQL";
    LAST_LOOK = "counterfoil_last_look_timestamp_seconds",
        "time at which the daemon last read figures, in Unix seconds";
    REDIS_MEMORY = "counterfoil_redis_memory_bytes", "memory allocated by Redis, or by all nodes of its cluster";
    FAMILIES = "counterfoil_families", "families that the daemon serves";
    REFUSED = "counterfoil_families_refused", "configured families that were not opened";
    NOT_SERVED = "counterfoil_families_not_served", "families in the database that the daemon does not serve";
    FINDINGS = "counterfoil_findings", "findings of check, by severity";
    UNSAVED_IDS = "counterfoil_unsaved_ids", "distinct ids that wait in Redis for MySQL";
    UNSAVED_OLDEST = "counterfoil_unsaved_oldest_seconds",
        "age of the oldest hit that waits in Redis for MySQL, 0 if none waits";
    OPEN_SLICES = "counterfoil_open_slices", "kept slices that have not ended";
    OPEN_REJECTS = "counterfoil_open_rejects", "rejects neither applied nor discarded";
    PENDING_SHARE = "counterfoil_pending_share", "share of max_pending that the fullest partition has reached";
    LATE = "counterfoil_families_late", "families whose hits have waited for too long";
    BROKEN = "counterfoil_families_broken", "families whose keys in Redis cannot be read";
    FAILING = "counterfoil_families_failing", "families whose flushes fail";
    LAST_SAVED = "counterfoil_last_saved_timestamp_seconds",
        "time at which a part of a batch last reached MySQL, in Unix seconds";
    RECOUNT_DRIFTED = "counterfoil_last_recount_drifted", "counters that differed from their rows in the last recount";
    SINCE_RECOUNT = "counterfoil_since_recount_seconds",
        "time since the end of the last recount, or the start of one that has not ended";
}

metrics! { COUNTERS:
    COUNTED = "counterfoil_counted_hits_total", "hits that Redis has counted from all clients";
    REFUSED_HITS = "counterfoil_refused_hits_total", "hits that Redis has refused from all clients";
}

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
    describe();
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

fn describe() {
    for (name, what) in GAUGES {
        describe_gauge!(*name, *what);
    }
    for (name, what) in COUNTERS {
        describe_counter!(*name, *what);
    }
}

/// Adds the hits that Redis has counted in a family since the last call.
pub fn count_hits(pair: &str, family: &str, hits: u64) {
    counter!(COUNTED, "pair" => pair.to_owned(), "family" => family.to_owned()).increment(hits);
}

/// Adds the hits that Redis has refused in a family since the last call.
pub fn count_refused(pair: &str, family: &str, hits: u64) {
    counter!(REFUSED_HITS, "pair" => pair.to_owned(), "family" => family.to_owned())
        .increment(hits);
}

/// Sets the gauges to the current state of the pairs.
pub fn set_gauges(view: &View) {
    gauge!(BUILD_INFO, "version" => VERSION).set(1);
    for pair in &view.pairs {
        set_pair_gauges(pair);
        for ((name, family), value) in family_gauges(pair, view.at) {
            let labels = [("pair", pair.name.clone()), ("family", family.to_owned())];
            gauge!(name, &labels).set(value);
        }
    }
}

fn set_pair_gauges(pair: &PairView) {
    for (server, state) in pair.servers() {
        let labels = [("pair", pair.name.clone()), ("server", server.to_owned())];
        gauge!(SERVER_UP, &labels).set(u8::from(state.up));
        gauge!(SERVER_FAILING, &labels).set(u8::from(state.refuses.is_some()));
    }
    for look in &pair.looks {
        if let Some(at) = look.at {
            gauge!(LAST_LOOK, "pair" => pair.name.clone(), "figures" => look.name).set(at as f64);
        }
    }
    let memory = pair.redis.memory_bytes;
    let served = pair.families.iter().filter(|family| family.served);
    let gauges = [
        (REDIS_MEMORY, memory.map_or(f64::NAN, |bytes| bytes as f64)),
        (RECONCILER_UP, f64::from(u8::from(pair.reconciler.running))),
        (FAMILIES, served.count() as f64),
        (REFUSED, pair.refused.len() as f64),
        (NOT_SERVED, pair.not_served.len() as f64),
    ];
    for (name, value) in gauges {
        gauge!(name, "pair" => pair.name.clone()).set(value);
    }
    for severity in [Severity::Error, Severity::Warning, Severity::Info] {
        let findings = pair.findings.iter();
        let number = findings.filter(|one| one.finding.severity == severity);
        gauge!(FINDINGS, "pair" => pair.name.clone(), "severity" => severity.to_string())
            .set(number.count() as f64);
    }
}

/// Returns the gauges by name and family. Families of the same name in several namespaces share
/// one: numbers are added, and of times the largest is taken.
fn family_gauges(pair: &PairView, now: u64) -> HashMap<(&'static str, &str), f64> {
    let mut gauges = HashMap::new();
    let mut merge = |name, family, value: f64, merge: fn(f64, f64) -> f64| {
        gauges
            .entry((name, family))
            .and_modify(|merged| *merged = merge(*merged, value))
            .or_insert(value);
    };
    for family in &pair.families {
        let name = family.family.as_str();
        let is = |state| f64::from(u8::from(family.state == state));
        merge(UNSAVED_IDS, name, family.pending as f64, f64::add);
        merge(OPEN_SLICES, name, family.open as f64, f64::add);
        merge(OPEN_REJECTS, name, family.rejects as f64, f64::add);
        merge(LATE, name, is(State::Late), f64::add);
        merge(BROKEN, name, is(State::Broken), f64::add);
        merge(FAILING, name, 0.0, f64::add);
        merge(PENDING_SHARE, name, family.full, f64::max);
        let oldest = family.oldest_seconds.unwrap_or(0.0);
        merge(UNSAVED_OLDEST, name, oldest, f64::max);
        if let Some(saved) = family.last_saved {
            merge(LAST_SAVED, name, saved as f64, f64::max);
        }
    }
    fn without_namespace(family: &str) -> &str {
        family.rsplit_once('/').map_or(family, |(_, name)| name)
    }
    let failing = pair.reconciler.failing.iter();
    let failing = failing.filter(|one| one.blocks_hits);
    let failing: BTreeSet<_> = failing.filter_map(|one| one.family.as_deref()).collect();
    for family in failing {
        merge(FAILING, without_namespace(family), 1.0, f64::add);
    }
    for recount in &pair.recounts {
        let family = without_namespace(&recount.family);
        merge(RECOUNT_DRIFTED, family, recount.drifted as f64, f64::add);
        let since = recount.finished.unwrap_or(recount.started);
        let age = now.saturating_sub(since);
        merge(SINCE_RECOUNT, family, age as f64, f64::max);
    }
    gauges
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
            error: "full".to_owned(),
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
            started: 900,
            finished,
        };
        pair.recounts = vec![
            recount("shop-1/views", 1, Some(950)),
            recount("shop-2/views", 2, None),
        ];
        let pairs = vec![Arc::new(pair)];
        let recorder = PrometheusBuilder::new().build_recorder();
        let view = View { at: 1000, pairs };
        metrics::with_local_recorder(&recorder, || set_gauges(&view));
        let text = recorder.handle().render();
        for (name, value) in [
            (UNSAVED_IDS, "7"),
            (UNSAVED_OLDEST, "150"),
            (LATE, "1"),
            (FAILING, "1"),
            (PENDING_SHARE, "0.75"),
            (RECOUNT_DRIFTED, "3"),
            (SINCE_RECOUNT, "100"),
        ] {
            let line = format!("\n{name}{{pair=\"main\",family=\"views\"}} {value}\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
}

//! The names of all metrics, for the recorder that the application installs.
//!
//! The metrics of a family carry the label `family`, without its namespace: an application with ten
//! thousand tenants would otherwise have ten thousand times as many series.
//!
//! Counters and gauges start at 0 when a family is opened or a reconciler starts, so that an alert
//! on one that never moved can fire. Histograms appear with their first value. Install the recorder
//! before.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Declares the metrics. The text of each documents it here and describes it to recorders.
macro_rules! metrics {
    ($(
        $(#[doc = $text:literal])+
        $metric:ident = $name:literal, $describe:ident $(, $unit:ident)?;
    )+) => {
        $(
            $(#[doc = $text])+
            pub const $metric: &str = $name;
        )+

        /// Describes each metric to the installed recorder. Call it once, after installing the
        /// recorder.
        pub fn describe() {
            $($describe!($metric, $(Unit::$unit,)? concat!($($text),+).trim_start());)+
        }
    };
}

metrics! {
    /// Hits acknowledged by Redis, by `family`.
    HITS = "counterfoil_hits_total", describe_counter;
    /// Hits refused, by `family` and `reason` (`range`, `full`).
    REFUSED = "counterfoil_refused_total", describe_counter;
    /// Recorded hits that are being sent, by `family`: about what a kill of this process would
    /// lose.
    RECORDED = "counterfoil_recorded_hits", describe_gauge;
    /// Hits of unknown outcome, by `family`: counted once or not at all.
    UNKNOWN = "counterfoil_unknown_total", describe_counter;
    /// Batches that reached the database.
    BATCHES = "counterfoil_batches_total", describe_counter;
    /// Rows changed in the database.
    ROWS = "counterfoil_rows_total", describe_counter;
    /// Deltas that the database refused.
    REJECTS = "counterfoil_rejects_total", describe_counter;
    /// Rejects that their rows took after all.
    REJECTS_APPLIED = "counterfoil_rejects_applied_total", describe_counter;
    /// Refused deltas that were lost, because there were as many rejects as `max_rejects` allows.
    REJECTS_LOST = "counterfoil_rejects_lost_total", describe_counter;
    /// Rejects that were discarded.
    REJECTS_DISCARDED = "counterfoil_rejects_discarded_total", describe_counter;
    /// Deltas without a row, or whose row has no parent, that were dropped, as `Table::update_or_drop`
    /// and `upsert_or_drop` ask for.
    WITHOUT_ROW = "counterfoil_without_row_total", describe_counter;
    /// Rows read because their cached counter was not in Redis, by `family`.
    SEEDS = "counterfoil_seeds_total", describe_counter;
    /// Cached counters deleted from Redis, by `family`: saved, and unused for their retention.
    DELETED = "counterfoil_deleted_total", describe_counter;
    /// Seconds from fetching batches to their release, or until their counters are marked as saved.
    FLUSH_SECONDS = "counterfoil_flush_seconds", describe_histogram, Seconds;
    /// Age in seconds of a batch's oldest hit when it reached the database, by `family`.
    LAG_SECONDS = "counterfoil_lag_seconds", describe_histogram, Seconds;
    /// Age in seconds of the oldest hit in the batches that this reconciler holds, 0 if it holds
    /// none. It grows while the database is unreachable. Hits that wait for their sync, for the
    /// family's sync time at most, are not included.
    WAITING_SECONDS = "counterfoil_waiting_seconds", describe_gauge, Seconds;
    /// Distinct ids, or cached counters, that wait in Redis for the database, by `family`: the sum
    /// over all families of that name in use, in every namespace. Only `Counterfoil::backlogs` sets
    /// it. Call that where no working reconciler runs.
    BACKLOG_IDS = "counterfoil_backlog_ids", describe_gauge;
    /// Age in seconds of the oldest hit that waits in Redis, 0 if none does, by `family`. Only
    /// `Counterfoil::backlogs` sets it.
    BACKLOG_SECONDS = "counterfoil_backlog_seconds", describe_gauge, Seconds;
    /// Partitions beyond a family's number that received hits from a client with a different
    /// partition count, by `family`. The reconciler brings these hits to the database.
    STRAYS = "counterfoil_stray_partitions_total", describe_counter;
    /// Partitions that were reset because Redis was set back to an older state, by `family`.
    SET_BACK = "counterfoil_set_back_total", describe_counter;
    /// Hits dropped when partitions were reset, by `family`: they are in the database, or mixed
    /// with hits that are. For series and activity a kept slice counts as one hit.
    DROPPED = "counterfoil_dropped_hits_total", describe_counter;
    /// Partitions of which the database lacked batches, because it was set back to an older state,
    /// by `family`.
    DATABASE_SET_BACK = "counterfoil_database_set_back_total", describe_counter;
    /// Batches that the database lost when it was set back, by `family`.
    LOST_BATCHES = "counterfoil_lost_batches_total", describe_counter;
    /// Counters compared with their rows, by `family`.
    RECOUNT_CHECKED = "counterfoil_recount_checked_total", describe_counter;
    /// Counters found different from their rows, by `family`.
    RECOUNT_DRIFTED = "counterfoil_recount_drifted_total", describe_counter;
    /// Counters corrected, by `family` and `direction` (`up`, `down`).
    RECOUNT_CORRECTED = "counterfoil_recount_corrected_total", describe_counter;
    /// Counters too busy to be compared with their rows in a run, by `family`.
    RECOUNT_BUSY = "counterfoil_recount_busy_total", describe_counter;
    /// Duration of a recount run in seconds, by `family`.
    RECOUNT_SECONDS = "counterfoil_recount_seconds", describe_histogram, Seconds;
    /// End of the last full recount run, by `family`, in Unix seconds: its age is the time since.
    RECOUNT_FINISHED = "counterfoil_recount_finished_timestamp_seconds", describe_gauge, Seconds;
    /// Calls retried after a failure, by `what` (`add`, `reconcile`, `fetch`, `apply`, `release`).
    RETRIES = "counterfoil_retries_total", describe_counter;
}

/// Registers the family's metrics. It adds 0 instead of setting it, because other namespaces share
/// the label.
pub(crate) fn begin_family(family: &metrics::SharedString, is_cached: bool) {
    for name in [
        HITS,
        UNKNOWN,
        STRAYS,
        SET_BACK,
        DROPPED,
        DATABASE_SET_BACK,
        LOST_BATCHES,
    ] {
        count(name, family, 0);
    }
    if is_cached {
        count(SEEDS, family, 0);
        count(DELETED, family, 0);
    }
    for reason in ["range", "full"] {
        metrics::counter!(REFUSED, "family" => family.clone(), "reason" => reason).increment(0);
    }
    metrics::gauge!(RECORDED, "family" => family.clone()).increment(0.0);
    metrics::counter!(RETRIES, "what" => "add").increment(0);
}

/// Registers the metrics of a reconciler.
pub(crate) fn begin_reconciler() {
    for name in [
        BATCHES,
        ROWS,
        REJECTS,
        REJECTS_APPLIED,
        REJECTS_DISCARDED,
        REJECTS_LOST,
        WITHOUT_ROW,
    ] {
        metrics::counter!(name).increment(0);
    }
    for what in ["reconcile", "fetch", "apply", "release"] {
        metrics::counter!(RETRIES, "what" => what).increment(0);
    }
}

/// Registers the metrics of a family's recount.
pub(crate) fn begin_recount(family: &metrics::SharedString) {
    for name in [RECOUNT_CHECKED, RECOUNT_DRIFTED, RECOUNT_BUSY] {
        count(name, family, 0);
    }
    for direction in ["up", "down"] {
        metrics::counter!(RECOUNT_CORRECTED, "family" => family.clone(), "direction" => direction)
            .increment(0);
    }
}

/// Counts a retry of a failed call.
pub(crate) fn retried(what: &'static str) {
    metrics::counter!(RETRIES, "what" => what).increment(1);
}

/// Adds to a counter of a family.
pub(crate) fn count(
    name: &'static str,
    family: &(impl Clone + Into<metrics::SharedString>),
    by: u64,
) {
    metrics::counter!(name, "family" => family.clone()).increment(by);
}

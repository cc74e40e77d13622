//! The names of all metrics, for the recorder that the application installs.
//!
//! The metrics of a family carry the label `family`, without its namespace: an application with ten
//! thousand tenants would otherwise have ten thousand times as many series.
//!
//! Counters and gauges start at 0 when a family is opened or a reconciler starts, so that an alert
//! on one that never moved can fire. Histograms appear with their first value. Install the recorder
//! before.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Hits acknowledged by Redis, by `family`.
pub const HITS: &str = "counterfoil_hits_total";
/// Hits refused, by `family` and `reason` (`range`, `full`).
pub const REFUSED: &str = "counterfoil_refused_total";
/// Recorded hits that are being sent, by `family`: about what a kill of this process would lose.
pub const RECORDED: &str = "counterfoil_recorded_hits";
/// Hits of unknown outcome, by `family`: counted once or not at all.
pub const UNKNOWN: &str = "counterfoil_unknown_total";
/// Distinct ids in the batches that this reconciler is writing to the database, by `family`.
pub const PENDING_IDS: &str = "counterfoil_pending_ids";
/// Batches that reached the database.
pub const BATCHES: &str = "counterfoil_batches_total";
/// Rows changed in the database.
pub const ROWS: &str = "counterfoil_rows_total";
/// Deltas that the database refused.
pub const REJECTS: &str = "counterfoil_rejects_total";
/// Deltas without a row that were dropped, as [`Table::update_or_drop`](crate::Table::update_or_drop)
/// asks for.
pub const WITHOUT_ROW: &str = "counterfoil_without_row_total";
/// Rows read because their cached counter was not in Redis, by `family`.
pub const SEEDS: &str = "counterfoil_seeds_total";
/// Cached counters deleted from Redis, by `family`: saved, and unused for their retention.
pub const DELETED: &str = "counterfoil_deleted_total";
/// Seconds from fetching batches to their release, or until their counters are marked as saved.
pub const FLUSH_SECONDS: &str = "counterfoil_flush_seconds";
/// Age in seconds of a batch's oldest hit when it reached the database, by `family`.
pub const LAG_SECONDS: &str = "counterfoil_lag_seconds";
/// Age in seconds of the oldest hit in the batches that this reconciler holds, 0 if it holds none.
/// It grows while the database is unreachable. Hits that wait for their sync, for the family's sync
/// time at most, are not included.
pub const WAITING_SECONDS: &str = "counterfoil_waiting_seconds";
/// Distinct ids, or cached counters, that wait in Redis for the database, by `family`: the sum over
/// all families of that name in use, in every namespace. Only
/// [`backlogs`](crate::Counterfoil::backlogs) sets it. Call that where no working reconciler runs.
pub const BACKLOG_IDS: &str = "counterfoil_backlog_ids";
/// Age in seconds of the oldest of these hits, 0 if there are none, by `family`. Only `backlogs`
/// sets it too.
pub const BACKLOG_SECONDS: &str = "counterfoil_backlog_seconds";
/// Partitions beyond a family's number that received hits from a client with a different partition
/// count, by `family`. The reconciler brings these hits to the database.
pub const STRAYS: &str = "counterfoil_stray_partitions_total";
/// Partitions that were reset because Redis was set back to an older state, by `family`.
pub const SET_BACK: &str = "counterfoil_set_back_total";
/// Hits dropped when partitions were reset, by `family`: they are in the database, or mixed with
/// hits that are. For series and activity a kept slice counts as one hit.
pub const DROPPED: &str = "counterfoil_dropped_hits_total";
/// Counters compared with their rows, by `family`.
pub const RECOUNT_CHECKED: &str = "counterfoil_recount_checked_total";
/// Counters found different from their rows, by `family`.
pub const RECOUNT_DRIFTED: &str = "counterfoil_recount_drifted_total";
/// Counters corrected, by `family` and `direction` (`up`, `down`).
pub const RECOUNT_CORRECTED: &str = "counterfoil_recount_corrected_total";
/// Counters too busy to be compared with their rows in a run, by `family`.
pub const RECOUNT_BUSY: &str = "counterfoil_recount_busy_total";
/// Duration of a recount run in seconds, by `family`.
pub const RECOUNT_SECONDS: &str = "counterfoil_recount_seconds";
/// End of the last full recount run, by `family`, in Unix seconds: its age is the time since.
pub const RECOUNT_FINISHED: &str = "counterfoil_recount_finished_timestamp_seconds";
/// Calls retried after a failure, by `what` (`add`, `reconcile`, `fetch`, `apply`, `release`).
pub const RETRIES: &str = "counterfoil_retries_total";

/// Describes each metric to the installed recorder. Call it once, after installing the recorder.
pub fn describe() {
    for (name, what) in [
        (HITS, "hits acknowledged by Redis"),
        (REFUSED, "hits refused"),
        (UNKNOWN, "hits of unknown outcome"),
        (BATCHES, "batches that reached the database"),
        (ROWS, "rows changed in the database"),
        (REJECTS, "deltas that the database refused"),
        (WITHOUT_ROW, "deltas without a row that were dropped"),
        (
            STRAYS,
            "partitions beyond a family's partition count that contained hits",
        ),
        (
            SET_BACK,
            "partitions that were reset because Redis was set back",
        ),
        (DROPPED, "hits that were dropped when partitions were reset"),
        (
            SEEDS,
            "rows that were read because their cached counter was not in Redis",
        ),
        (DELETED, "cached counters that left Redis"),
        (
            RECOUNT_CHECKED,
            "counters that were compared with their rows",
        ),
        (
            RECOUNT_DRIFTED,
            "counters that were found different from their rows",
        ),
        (RECOUNT_CORRECTED, "counters that were corrected"),
        (
            RECOUNT_BUSY,
            "counters that were too busy to be compared with their rows",
        ),
        (RETRIES, "calls retried after a failure"),
    ] {
        describe_counter!(name, what);
    }
    for (name, what) in [
        (RECORDED, "recorded hits that are being sent"),
        (
            PENDING_IDS,
            "distinct ids in the batches that this reconciler holds",
        ),
        (
            BACKLOG_IDS,
            "distinct ids that wait in Redis for the database, at the last check",
        ),
    ] {
        describe_gauge!(name, what);
    }
    for (name, what) in [
        (
            WAITING_SECONDS,
            "age of the oldest hit in the batches that this reconciler holds",
        ),
        (
            BACKLOG_SECONDS,
            "age of the oldest hit that waits in Redis, at the last check",
        ),
        (
            RECOUNT_FINISHED,
            "when the last full run of a recount ended",
        ),
    ] {
        describe_gauge!(name, Unit::Seconds, what);
    }
    for (name, what) in [
        (FLUSH_SECONDS, "from fetching batches to their release"),
        (
            LAG_SECONDS,
            "age of a batch's oldest hit when it reached the database",
        ),
        (RECOUNT_SECONDS, "a run of a recount"),
    ] {
        describe_histogram!(name, Unit::Seconds, what);
    }
}

/// Registers the family's metrics. It adds 0 instead of setting it, because other namespaces share
/// the label.
pub(crate) fn begin_family(family: &metrics::SharedString, is_cached: bool) {
    for name in [HITS, UNKNOWN, STRAYS, SET_BACK, DROPPED] {
        count(name, family, 0);
    }
    if is_cached {
        count(SEEDS, family, 0);
        count(DELETED, family, 0);
    }
    for reason in ["range", "full"] {
        metrics::counter!(REFUSED, "family" => family.clone(), "reason" => reason).increment(0);
    }
    for name in [RECORDED, PENDING_IDS] {
        metrics::gauge!(name, "family" => family.clone()).increment(0.0);
    }
    metrics::counter!(RETRIES, "what" => "add").increment(0);
}

/// Registers the metrics of a reconciler.
pub(crate) fn begin_reconciler() {
    for name in [BATCHES, ROWS, REJECTS, WITHOUT_ROW] {
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

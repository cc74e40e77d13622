//! What the daemon shows, as of one moment: the page, the API and the metrics are made of it.

use std::sync::Arc;

use counterfoil::{Drift, Finding, Reject, Severity};
use serde::Serialize;

use crate::status::{FamilyStatus, unix_seconds};

/// Everything, as of one moment.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// When, in Unix seconds.
    pub at: u64,
    pub version: &'static str,
    pub pairs: Vec<Arc<PairView>>,
}

/// One pair of servers, and its families.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PairView {
    pub name: String,
    pub redis: ServerView,
    pub mysql: ServerView,
    pub families: Vec<FamilyView>,
    /// Families of the configuration that were not opened, each with the reason.
    pub refused: Vec<Refused>,
    /// Families that are in the database and that this daemon does not serve.
    pub not_served: Vec<String>,
    /// What `check` says, the worst first.
    pub findings: Vec<FindingView>,
    /// The latest, the newest first.
    pub rejects: Vec<RejectView>,
    /// What recounts found lately, the newest first.
    pub drift: Vec<DriftView>,
    pub recounts: Vec<RecountView>,
}

/// A server as it was last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServerView {
    pub up: bool,
    /// Since when it is as it is, in Unix seconds.
    pub since: u64,
    /// Its own name and version.
    pub version: Option<String>,
    /// What Redis, or all nodes of its cluster, have allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Why it is away.
    pub why: Option<String>,
}

/// A family as it stands, and how it came there.
#[derive(Clone, Debug, Serialize)]
pub struct FamilyView {
    #[serde(flatten)]
    pub status: FamilyStatus,
    /// Hits a second since the last sample, for the kinds that count them.
    pub rate: Option<f64>,
    /// The last samples, the oldest first; none of a family that was idle throughout.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Sample>,
}

/// A family at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// In Unix seconds.
    pub at: u64,
    pub rate: Option<f64>,
    pub pending: u64,
    pub oldest_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Refused {
    pub family: String,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct FindingView {
    pub severity: &'static str,
    pub subject: String,
    pub message: String,
    pub advice: String,
}

impl From<&Finding> for FindingView {
    fn from(finding: &Finding) -> Self {
        FindingView {
            severity: match finding.severity {
                Severity::Info => "info",
                Severity::Warning => "warning",
                Severity::Error => "error",
            },
            subject: finding.subject.clone(),
            message: finding.message.clone(),
            advice: finding.advice.clone(),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct RejectView {
    pub number: u64,
    /// `NAMESPACE/FAMILY`.
    pub family: String,
    pub id: String,
    pub delta: i64,
    pub reason: String,
    /// In Unix seconds.
    pub at: u64,
}

impl From<&Reject> for RejectView {
    fn from(reject: &Reject) -> Self {
        RejectView {
            number: reject.number,
            family: format!("{}/{}", reject.namespace, reject.family),
            id: reject.id.clone(),
            delta: reject.delta,
            reason: reject.reason.clone(),
            at: unix_seconds(reject.at),
        }
    }
}

/// A counter that differed from its rows.
#[derive(Clone, Debug, Serialize)]
pub struct DriftView {
    /// `NAMESPACE/FAMILY`.
    pub family: String,
    pub run: u64,
    pub id: String,
    /// The counter before its rows were counted.
    pub before: i64,
    pub rows: i64,
    /// And after.
    pub after: i64,
    /// What was added to it, 0 where the note says why nothing was.
    pub delta: i64,
    pub note: String,
    /// In Unix seconds.
    pub at: u64,
}

impl DriftView {
    /// Of a run of the family NAMESPACE/FAMILY.
    pub fn new(family: &str, run: u64, drift: &Drift) -> Self {
        DriftView {
            family: family.to_owned(),
            run,
            id: drift.id.clone(),
            before: drift.before,
            rows: drift.rows,
            after: drift.after,
            delta: drift.delta,
            note: drift.note.clone(),
            at: unix_seconds(drift.at),
        }
    }
}

/// A recount that runs, or the last run of a family.
#[derive(Clone, Debug, Serialize)]
pub struct RecountView {
    /// `NAMESPACE/FAMILY`.
    pub family: String,
    pub run: u64,
    pub checked: u64,
    pub drifted: u64,
    /// About how many counters there are, of a run that this daemon makes.
    pub about: Option<u64>,
    /// In Unix seconds.
    pub started: u64,
    /// In Unix seconds; none while it runs.
    pub finished: Option<u64>,
}

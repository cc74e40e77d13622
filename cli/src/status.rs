//! The state of a family: its data that waits in Redis, and MySQL's view of it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use counterfoil::admin::{Backlog, Overview};
use counterfoil::{Counterfoil, Family, Result};
use serde::Serialize;

/// The default age from which hits count as late.
pub const LATE: Duration = Duration::from_secs(120);

/// The state of one family.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FamilyStatus {
    pub namespace: String,
    pub family: String,
    pub kind: &'static str,
    /// The number of distinct ids that wait in Redis for MySQL.
    pub pending: u64,
    /// The age in seconds of the oldest waiting hit.
    pub oldest_seconds: Option<f64>,
    /// The number of slices that are kept and not over yet.
    pub open: u64,
    /// The hits that Redis has counted, for the kinds that count them.
    pub counted: Option<u64>,
    /// The last time that a part of a batch reached MySQL, in Unix seconds.
    pub last_saved: Option<u64>,
    /// The number of rejects that were neither applied nor discarded.
    pub rejects: u64,
    pub state: State,
    /// The problem with its keys in Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    #[default]
    Ok,
    /// A row refused a change.
    Rejects,
    /// Hits have waited too long.
    Late,
    /// Its keys in Redis are not what the bundle writes.
    Broken,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Rejects => "rejects",
            State::Late => "late",
            State::Broken => "broken",
        }
    }
}

impl FamilyStatus {
    /// Returns `NAMESPACE/FAMILY`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.family)
    }

    /// Returns the key by which lists of families are sorted.
    pub fn sort_key(&self) -> (&str, &str) {
        (&self.namespace, &self.family)
    }

    fn new(
        family: &Family,
        backlog: Result<Backlog>,
        overview: Option<&Overview>,
        late: Duration,
    ) -> Self {
        let rejects = overview.map_or(0, |overview| overview.rejects);
        let state = match &backlog {
            Err(_) => State::Broken,
            Ok(backlog) if backlog.oldest.is_some_and(|oldest| oldest > late) => State::Late,
            Ok(_) if rejects > 0 => State::Rejects,
            Ok(_) => State::Ok,
        };
        let problem = backlog.as_ref().err().map(ToString::to_string);
        let backlog = backlog.unwrap_or_default();
        FamilyStatus {
            namespace: family.namespace().to_owned(),
            family: family.name().to_owned(),
            kind: family.kind(),
            pending: backlog.ids,
            oldest_seconds: backlog.oldest.map(|age| age.as_secs_f64()),
            open: backlog.open,
            counted: matches!(family.kind(), "buffered" | "cached" | "visitors")
                .then_some(backlog.counted),
            last_saved: overview
                .and_then(|overview| overview.last_saved)
                .map(unix_seconds),
            rejects,
            state,
            problem,
        }
    }
}

/// Returns the state of the families in use.
pub async fn of_families(
    counterfoil: &Counterfoil,
    overview: &[Overview],
    late: Duration,
) -> Result<Vec<FamilyStatus>> {
    let overview: HashMap<_, _> = overview
        .iter()
        .map(|one| ((one.namespace.as_str(), one.family.as_str()), one))
        .collect();
    let of = |(family, backlog): (Family, Result<Backlog>)| {
        let overview = overview.get(&(family.namespace(), family.name())).copied();
        FamilyStatus::new(&family, backlog, overview, late)
    };
    Ok(counterfoil.backlogs().await?.into_iter().map(of).collect())
}

pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

pub fn unix_now() -> u64 {
    unix_seconds(SystemTime::now())
}

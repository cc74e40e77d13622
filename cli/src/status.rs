//! The state of a family: its data that waits in Redis, and MySQL's view of it.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use counterfoil::admin::{Backlog, Overview};
use counterfoil::{Family, Result};
use serde::Serialize;

/// The default time beyond a family's sync and settle time from which waiting hits are late.
pub const LATE: Duration = Duration::from_secs(60);
/// The age in seconds from which figures are stale. They are read every 10 s at least.
pub const STALE_SECONDS: u64 = 30;

/// The kinds of which Redis refuses ids beyond `max_pending`.
const LIMITED: [&str; 2] = ["buffered", "visitors"];

/// The state of a family, and its history.
#[derive(Clone, Default, Serialize)]
pub struct FamilyView {
    pub namespace: String,
    pub family: String,
    pub kind: &'static str,
    /// The number of distinct ids that wait in Redis for MySQL.
    pub pending: u64,
    /// The share of `max_pending` that the fullest partition has reached.
    pub full: f64,
    /// The age in seconds of the oldest waiting hit.
    pub oldest_seconds: Option<f64>,
    /// The hits that Redis has counted, for the kinds that count them.
    pub counted: Option<u64>,
    /// The hits that Redis has refused, for the kinds that it refuses.
    pub refused: Option<u64>,
    /// The requests that Redis remembers, for the kinds that have them.
    pub requests: Option<u64>,
    /// The last time that a part of a batch reached MySQL, in Unix seconds.
    pub last_saved: Option<u64>,
    /// The number of rejects.
    pub rejects: u64,
    pub state: State,
    /// The time at which its figures were read from Redis, in Unix seconds.
    pub seen: Option<u64>,
    /// `true` if this daemon saves its hits.
    pub served: bool,
    /// The reason why its figures cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Hits a second since the last sample of the daemon, for the kinds that count them.
    pub rate: Option<f64>,
    /// The time since which the daemon knows its state, in Unix seconds.
    pub state_since: u64,
    /// The daemon's last samples, the oldest first. A family that was idle throughout has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Sample>,
    /// The time of the daemon's last sample.
    #[serde(skip)]
    pub sampled: Option<Instant>,
}

/// The figures of a family, or of all families of a pair, at one moment.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Sample {
    /// The time in Unix seconds.
    pub at: u64,
    pub rate: f64,
    pub pending: u64,
    /// The maximum of the families.
    pub oldest_seconds: f64,
    pub rejects: u64,
    /// The counters that the last recount of each family found different.
    #[serde(skip)]
    pub drifted: u64,
}

impl Sample {
    pub fn is_idle(&self) -> bool {
        self.pending == 0 && self.rate == 0.0
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    #[default]
    Ok,
    /// A row refused a change.
    Rejects,
    /// Hits have waited too long.
    Late,
    /// Its keys in Redis cannot be read, or are not what the bundle writes.
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

impl FamilyView {
    /// Returns `NAMESPACE/FAMILY`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.family)
    }

    /// Returns its present figures.
    pub fn sample(&self, at: u64) -> Sample {
        Sample {
            at,
            rate: self.rate.unwrap_or(0.0),
            pending: self.pending,
            oldest_seconds: self.oldest_seconds.unwrap_or(0.0),
            rejects: self.rejects,
            drifted: 0,
        }
    }

    /// Returns the key by which lists of families are sorted.
    pub fn sort_key(&self) -> (&str, &str) {
        (&self.namespace, &self.family)
    }

    /// Returns whether Redis refuses hits of further ids in a partition.
    pub fn is_full(&self) -> bool {
        self.full >= 1.0
    }

    /// Returns whether its figures are stale at this time.
    pub fn is_stale(&self, now: u64) -> bool {
        is_older(self.seen, STALE_SECONDS, now)
    }

    fn new(
        family: &Family,
        backlog: Result<Backlog>,
        overview: Option<&Overview>,
        late: Duration,
    ) -> Self {
        let rejects = overview.map_or(0, |overview| overview.rejects);
        let late = family.sync_time() + family.durability().settle() + late;
        let state = match &backlog {
            Err(_) => State::Broken,
            Ok(backlog) if backlog.oldest.is_some_and(|oldest| oldest > late) => State::Late,
            Ok(_) if rejects > 0 => State::Rejects,
            Ok(_) => State::Ok,
        };
        let seen = backlog.is_ok().then(unix_now);
        let problem = backlog.as_ref().err().map(|error| format!("{error:#}"));
        let backlog = backlog.unwrap_or_default();
        let of_kinds = |kinds: &[&str], number| kinds.contains(&family.kind()).then_some(number);
        FamilyView {
            namespace: family.namespace().to_owned(),
            family: family.name().to_owned(),
            kind: family.kind(),
            pending: backlog.ids,
            full: of_kinds(&LIMITED, backlog.fullest)
                .map_or(0.0, |ids| ids as f64 / family.max_pending() as f64),
            oldest_seconds: backlog.oldest.map(|age| age.as_secs_f64()),
            counted: of_kinds(&["buffered", "cached", "visitors"], backlog.counted),
            refused: of_kinds(&LIMITED, backlog.refused),
            requests: of_kinds(&["buffered", "cached"], backlog.requests),
            last_saved: overview
                .and_then(|overview| overview.last_saved)
                .map(unix_seconds),
            rejects,
            state,
            seen,
            served: true,
            problem,
            ..FamilyView::default()
        }
    }
}

/// Creates an idle buffered family.
#[cfg(test)]
pub fn idle(namespace: &str, family: &str) -> FamilyView {
    FamilyView {
        namespace: namespace.to_owned(),
        family: family.to_owned(),
        kind: "buffered",
        counted: Some(0),
        seen: Some(0),
        served: true,
        ..FamilyView::default()
    }
}

/// Returns whether figures of this time are older than this age at `now`.
pub fn is_older(seen: Option<u64>, age: u64, now: u64) -> bool {
    seen.is_none_or(|seen| now.saturating_sub(seen) > age)
}

/// Returns the state of families whose backlogs were read.
pub fn of_families(
    backlogs: Vec<(Family, Result<Backlog>)>,
    overview: &[Overview],
    late: Duration,
) -> Vec<FamilyView> {
    let overview: HashMap<_, _> = overview
        .iter()
        .map(|one| ((one.namespace.as_str(), one.family.as_str()), one))
        .collect();
    let of = |(family, backlog): (Family, Result<Backlog>)| {
        let overview = overview.get(&(family.namespace(), family.name())).copied();
        FamilyView::new(&family, backlog, overview, late)
    };
    backlogs.into_iter().map(of).collect()
}

pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

pub fn unix_now() -> u64 {
    unix_seconds(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_families_with_a_limit_are_full() {
        let now = [
            Family::buffered("shop", "views").build(),
            Family::cached("shop", "stock").build(),
            Family::series("shop", "downloads").build(),
        ];
        let many = Backlog {
            fullest: 2_000_000,
            ..Backlog::default()
        };
        let backlogs = now.map(|family| (family.expect("valid"), Ok(many)));
        let views = of_families(backlogs.into(), &[], LATE);
        let full: Vec<_> = views.iter().map(|family| family.full).collect();
        assert_eq!(full, [2.0, 0.0, 0.0]);
    }
}

//! The state of a family: its data that waits in Redis, and MySQL's view of it.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use counterfoil::admin::{Backlog, Overview};
use counterfoil::{Family, Result};
use serde::Serialize;

use crate::reason::Reason;

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
    pub problem: Option<Reason>,
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
    /// The share of `max_pending`; the maximum of the families.
    pub full: f64,
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
            full: self.full,
            rejects: self.rejects,
            drifted: 0,
        }
    }

    /// Returns the hits per second in the last minute, for the kinds that count them. The order of
    /// families by it changes less than by the rate of a moment.
    pub fn rate_of_a_minute(&self) -> Option<f64> {
        let rate = self.rate?;
        let rates = self.last_minute().map(|one| one.rate);
        let (sum, number) = rates.fold((0.0, 0), |(sum, number), one| (sum + one, number + 1));
        Some(if number == 0 {
            rate
        } else {
            sum / f64::from(number)
        })
    }

    /// Returns the last sample and those of the minute before it, the oldest first.
    fn last_minute(&self) -> impl Iterator<Item = &Sample> {
        let last = self.history.last().map_or(0, |last| last.at);
        self.history
            .iter()
            .filter(move |one| last.saturating_sub(one.at) <= 60)
    }

    /// Returns the seconds until it reaches `max_pending`, if it goes on to fill as in the last
    /// minute; `None` if it did not.
    pub fn seconds_until_full(&self) -> Option<f64> {
        let (first, last) = (self.last_minute().next()?, self.history.last()?);
        let growth = (last.full - first.full) / last.at.saturating_sub(first.at) as f64;
        (growth > 0.0 && growth.is_finite()).then(|| (1.0 - last.full).max(0.0) / growth)
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
        read: Result<Backlog>,
        overview: Option<&Overview>,
        late: Duration,
    ) -> Self {
        let rejects = overview.map_or(0, |overview| overview.rejects);
        let late_age = family.sync_time() + family.durability().settle() + late;
        let state = match &read {
            Err(_) => State::Broken,
            Ok(backlog) if backlog.oldest.is_some_and(|oldest| oldest > late_age) => State::Late,
            Ok(_) if rejects > 0 => State::Rejects,
            Ok(_) => State::Ok,
        };
        let seen = read.is_ok().then(unix_now);
        let problem = read.as_ref().err().cloned().map(Reason::from);
        let backlog = read.unwrap_or_default();
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
    let by_name: HashMap<_, _> = overview
        .iter()
        .map(|one| ((one.namespace.as_str(), one.family.as_str()), one))
        .collect();
    backlogs
        .into_iter()
        .map(|(family, read)| {
            let in_mysql = by_name.get(&(family.namespace(), family.name())).copied();
            FamilyView::new(&family, read, in_mysql, late)
        })
        .collect()
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
    fn a_family_that_fills_is_full_at_a_known_time() {
        let sample = |at, full| Sample {
            at,
            full,
            ..Sample::default()
        };
        let until_full = |history: &[Sample]| {
            let history = history.to_vec();
            FamilyView {
                history,
                ..idle("shop", "views")
            }
            .seconds_until_full()
        };
        let fills = [
            sample(0, 0.9),
            sample(70, 0.25),
            sample(80, 0.375),
            sample(130, 0.5),
        ];
        assert_eq!(until_full(&fills), Some(120.0));
        assert_eq!(until_full(&fills[..2]), None);
        assert_eq!(until_full(&fills[..1]), None);
        assert_eq!(until_full(&[sample(0, 0.5), sample(10, 1.5)]), Some(0.0));
    }

    #[test]
    fn the_rate_of_a_minute_is_a_mean() {
        let sample = |at, rate| Sample {
            at,
            rate,
            ..Sample::default()
        };
        let mut family = idle("shop", "views");
        assert_eq!(family.rate_of_a_minute(), None);
        family.rate = Some(9.0);
        assert_eq!(family.rate_of_a_minute(), Some(9.0));
        family.history = vec![sample(0, 99.0), sample(70, 3.0), sample(130, 9.0)];
        assert_eq!(family.rate_of_a_minute(), Some(6.0));
    }

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

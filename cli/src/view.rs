//! A snapshot of the daemon's state, from which the page, the API and the metrics are rendered.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use counterfoil::admin::{Drift, Finding, Loss, SetBack, Severity};
use serde::Serialize;

use crate::certificates::Certificate;
use crate::latency::Latency;
use crate::output::with_commands;
use crate::reason::{Advice, LoggedReasons, Reason};
use crate::rejects::{ReasonView, RejectView};
use crate::status::{FamilyView, STALE_SECONDS, Sample, State, is_older, unix_seconds};

/// The age in seconds from which the findings of `check` are stale. It runs every 30 s.
const STALE_CHECK_SECONDS: u64 = 120;

/// The state of all pairs at one moment.
pub struct View {
    /// The time of the snapshot, in Unix seconds.
    pub at: u64,
    pub pairs: Vec<Arc<PairView>>,
}

impl View {
    /// Returns the items of all pairs, each with the name of its pair.
    pub fn of_pairs<'v, T: 'v>(
        &'v self,
        items: fn(&'v PairView) -> &'v [T],
    ) -> impl Iterator<Item = (&'v str, &'v T)> {
        self.pairs
            .iter()
            .flat_map(move |pair| items(pair).iter().map(|item| (pair.name.as_str(), item)))
    }

    /// Returns a family, given as `NAMESPACE/FAMILY`, of a pair.
    pub fn family(&self, pair: &str, name: &str) -> Option<(&PairView, &FamilyView)> {
        let named = self.pairs.iter().find(|one| one.name == pair)?;
        let family = named.families.iter().find(|family| family.name() == name)?;
        Some((named, family))
    }

    /// Returns the families whose name contains `text`, those in trouble first, then by name.
    pub fn families(&self, text: &str) -> Vec<(&PairView, &FamilyView)> {
        let mut families: Vec<_> = self
            .pairs
            .iter()
            .flat_map(|pair| pair.families_of())
            .filter(|(_, family)| family.name().contains(text))
            .collect();
        families
            .sort_by_key(|(pair, family)| (Reverse(family.state), family.sort_key(), &*pair.name));
        families
    }
}

/// One pair of servers, and its families.
#[derive(Clone, Default)]
pub struct PairView {
    pub name: String,
    pub redis: ServerView,
    pub mysql: ServerView,
    pub reconciler: ReconcilerView,
    /// The figures of the families, from Redis; the overview with rejects, recounts and times of saves,
    /// from MySQL; and the findings of `check` with the families of the database.
    pub looks: [Look; 3],
    pub families: Vec<FamilyView>,
    /// Configured families that were not opened, each with the reason.
    pub refused: Vec<RefusedFamily>,
    /// Families in the database that this daemon does not serve.
    pub not_served: Vec<String>,
    /// The findings of `check`, the worst first.
    pub checked: Vec<FindingView>,
    /// The latest rejects, the newest first.
    pub rejects: Vec<RejectView>,
    /// The reasons of rejects, the most frequent first. Rejects that `rejects` leaves out count,
    /// too.
    pub reasons: Vec<ReasonView>,
    /// The certificates on which its connections depend.
    pub certificates: Vec<Certificate>,
    /// The set-backs of the last day that no operator has acknowledged.
    pub set_backs: Vec<SetBackView>,
    /// The latest differences that recounts found, the newest first.
    pub drift: Vec<DriftView>,
    pub recounts: Vec<RecountView>,
    /// Sums of all families during the last hour, the oldest first.
    pub totals: Vec<Sample>,
}

impl PairView {
    pub fn new(name: &str) -> Self {
        PairView {
            name: name.to_owned(),
            looks: [
                Look::new("families", STALE_SECONDS),
                Look::new("overview", STALE_SECONDS),
                Look::new("check", STALE_CHECK_SECONDS),
            ],
            ..PairView::default()
        }
    }

    /// Returns both servers with their names.
    pub fn servers(&self) -> [(&'static str, &ServerView); 2] {
        [("redis", &self.redis), ("mysql", &self.mysql)]
    }

    /// Returns whether both servers are up.
    pub fn are_up(&self) -> bool {
        self.redis.up && self.mysql.up
    }

    /// Returns the steps that fail, and the findings of `check`, the worst first.
    pub fn findings(&self) -> Vec<FindingView> {
        let mut findings = findings_of(&self.reconciler.failing);
        findings.extend(self.checked.iter().cloned());
        findings
    }

    /// Sets the steps that fail. Their errors show which servers are up but refuse what the daemon
    /// writes.
    pub fn set_failing(&mut self, failing: Vec<FailingView>) {
        let refused_by = |name: &str, server: &ServerView| {
            let refused = failing.iter().find(|one| server.up && one.server == name)?;
            Some(refused.error.text.clone())
        };
        self.redis.refuses = refused_by("redis", &self.redis);
        self.mysql.refuses = refused_by("mysql", &self.mysql);
        self.reconciler.failing = failing;
    }

    /// Returns the families, each with the pair.
    pub fn families_of(&self) -> impl Iterator<Item = (&PairView, &FamilyView)> {
        self.families.iter().map(move |family| (self, family))
    }

    /// Returns whether the figures that Redis has of a family are current.
    pub fn has_figures_of(&self, family: &FamilyView, now: u64) -> bool {
        !self.redis.is_down() && !family.is_stale(now)
    }

    /// Returns whether the figures of this name are current.
    pub fn has_figures(&self, name: &str, now: u64) -> bool {
        self.looks
            .iter()
            .any(|look| look.name == name && !look.is_stale(now))
    }

    /// Returns the first server that is unavailable: `Redis` or `MySQL`.
    pub fn outage(&self) -> Option<(&'static str, &ServerView)> {
        let servers = [("Redis", &self.redis), ("MySQL", &self.mysql)];
        servers.into_iter().find(|(_, server)| server.is_down())
    }

    /// Returns the set-backs of a family that no operator has acknowledged.
    pub fn set_backs_of<'v>(
        &'v self,
        family: &'v FamilyView,
    ) -> impl Iterator<Item = &'v SetBackView> {
        self.set_backs
            .iter()
            .filter(move |one| one.family.split_once('/') == Some(family.sort_key()))
    }

    /// Returns whether hits that wait for MySQL, in some family, do not reach it at present.
    pub fn is_blocked(&self) -> bool {
        self.mysql.is_down()
            || self.reconciler.failing.iter().any(|one| one.blocks_hits)
            || self.families.iter().any(|one| one.state == State::Late)
    }

    /// Returns the family that has reached the largest share of its `max_pending`.
    pub fn fullest(&self) -> Option<&FamilyView> {
        self.families
            .iter()
            .filter(|family| family.full > 0.0)
            .max_by(|a, b| a.full.total_cmp(&b.full))
    }

    /// Returns the recount of NAMESPACE/FAMILY.
    pub fn recount(&self, family: &str) -> Option<&RecountView> {
        self.recounts
            .iter()
            .find(|recount| recount.family == family)
    }

    /// Returns the sums of all families.
    pub fn total(&self, at: u64) -> Sample {
        let mut total = Sample {
            at,
            drifted: self.recounts.iter().map(|recount| recount.drifted).sum(),
            ..Sample::default()
        };
        for one in self.families.iter().map(|family| family.sample(at)) {
            total.rate += one.rate;
            total.pending += one.pending;
            total.oldest_seconds = total.oldest_seconds.max(one.oldest_seconds);
            total.full = total.full.max(one.full);
            total.rejects += one.rejects;
        }
        total
    }

    /// Adds the present sums to those of the last hour.
    pub fn add_total(&mut self, at: u64) {
        // the clock may step back, which leaves totals of later times: the distance counts, in
        // either direction
        let is_due = |last: &Sample| last.at.abs_diff(at) >= TOTAL_SECONDS;
        if self.totals.last().is_none_or(is_due) {
            self.totals
                .retain(|total| total.at.abs_diff(at) < HOUR_SECONDS);
            self.totals.push(self.total(at));
        }
    }
}

/// The interval in seconds between sums of all families that are remembered.
const TOTAL_SECONDS: u64 = 10;
pub const HOUR_SECONDS: u64 = 3600;

/// A finding, and since when it is known.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct FindingView {
    #[serde(flatten)]
    pub finding: Finding,
    /// The time of the first of the consecutive checks that found it, in Unix seconds.
    pub since: u64,
}

impl FindingView {
    /// Returns the findings, those that are `known` with their time.
    pub fn all(findings: Vec<Finding>, known: &[FindingView], now: u64) -> Vec<Self> {
        findings
            .into_iter()
            .map(advised)
            .map(|finding| {
                let found_before = known.iter().find(|one| one.finding == finding);
                let since = found_before.map_or(now, |one| one.since);
                FindingView { finding, since }
            })
            .collect()
    }

    pub fn is_error(&self) -> bool {
        self.finding.severity == Severity::Error
    }
}

/// Returns a finding with the advice about it.
pub fn advised(mut finding: Finding) -> Finding {
    finding.advice = with_commands(&Advice::of_finding(&finding).what_to_do);
    finding
}

/// The last known state of a server.
#[derive(Clone, Default, PartialEq, Serialize)]
pub struct ServerView {
    pub up: bool,
    /// The time of the last change of `up`, in Unix seconds.
    pub since: u64,
    /// The server's name and version.
    pub version: Option<String>,
    /// The memory that Redis, or all nodes of its cluster, have allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The finding about a Redis, or a node of its cluster, that refuses hits.
    #[serde(skip)]
    pub refusal: Option<Finding>,
    /// The time that its replies take.
    pub latency: Option<Latency>,
    /// The reason, if it is unavailable.
    pub why: Option<Reason>,
    /// The reasons that were logged while it is unavailable.
    #[serde(skip)]
    pub logged: LoggedReasons,
    /// The error with which it refuses what the daemon writes, although it replies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refuses: Option<String>,
}

impl ServerView {
    /// Returns whether it was checked at least once.
    pub fn is_known(&self) -> bool {
        self.since > 0
    }

    /// Returns whether it was checked and is unavailable.
    pub fn is_down(&self) -> bool {
        self.is_known() && !self.up
    }

    pub fn state(&self) -> &'static str {
        match (self.up, &self.refuses) {
            _ if !self.is_known() => "unknown",
            (false, _) => "unavailable",
            (true, Some(_)) => "failing",
            (true, None) => "up",
        }
    }
}

/// The state of the reconciler, which brings hits to MySQL.
#[derive(Clone, Default, Serialize)]
pub struct ReconcilerView {
    pub running: bool,
    /// The reason why it does not run; `None` before the first attempt to start it.
    pub why: Option<Reason>,
    /// The reasons that were logged since it last ran.
    #[serde(skip)]
    pub logged: LoggedReasons,
    /// The steps that fail and are retried.
    pub failing: Vec<FailingView>,
}

/// A step of the reconciler that fails and is retried.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct FailingView {
    pub step: &'static str,
    /// `NAMESPACE/FAMILY`, if the step concerns one.
    pub family: Option<String>,
    /// The server whose error it is: `redis`, `mysql`, or `daemon` for a panic.
    pub server: &'static str,
    pub error: Reason,
    /// The time of the first failure in Unix seconds.
    pub since: u64,
    /// True if hits do not reach MySQL meanwhile.
    pub blocks_hits: bool,
}

impl FailingView {
    /// Returns whether both are the same step of the same family.
    pub fn is_same_step(&self, other: &FailingView) -> bool {
        (self.step, &self.family) == (other.step, &other.family)
    }
}

/// The name of the step that fails while Redis refuses hits. Applications make this step, but it is
/// reported like those of the reconciler.
pub const COUNTING: &str = "counting";
/// The maximum number of names in a line.
const MAX_NAMES: usize = 10;

/// Returns the steps by their errors.
pub fn by_error(failing: &[FailingView]) -> BTreeMap<&str, Vec<&FailingView>> {
    let mut by_error: BTreeMap<_, Vec<&FailingView>> = BTreeMap::new();
    for one in failing {
        by_error
            .entry(one.error.text.as_str())
            .or_default()
            .push(one);
    }
    by_error
}

/// Returns the steps and the families that fail with one error, the first of them if there are many.
pub fn subject(failing: &[&FailingView]) -> String {
    let mut steps = BTreeSet::new();
    let mut families = BTreeSet::new();
    for one in failing {
        steps.insert(one.step);
        families.insert(one.family.as_deref().unwrap_or("the pair"));
    }
    let shown: Vec<_> = families.iter().copied().take(MAX_NAMES).collect();
    let subject = format!(
        "{} of {}",
        Vec::from_iter(steps).join(", "),
        shown.join(", ")
    );
    match families.len() - shown.len() {
        0 => subject,
        more => format!("{subject} and {more} more"),
    }
}

/// Returns a finding for each error, except those of [`COUNTING`], which `check` reports.
fn findings_of(failing: &[FailingView]) -> Vec<FindingView> {
    let mut findings = Vec::new();
    for (error, steps) in by_error(failing) {
        if steps[0].step == COUNTING {
            continue;
        }
        let (effect, default) = if steps.iter().any(|one| one.blocks_hits) {
            let default = "`counterfoil check` names missing privileges, tables and columns";
            ("Hits wait in Redis meanwhile. ", default)
        } else {
            ("", "The step is retried until it succeeds")
        };
        let advice = steps[0].error.advice.as_ref();
        let what_to_do = advice.map_or(default, |advice| &advice.what_to_do);
        let advice = with_commands(&format!("{effect}{what_to_do}"));
        let since = steps.iter().map(|one| one.since).min();
        findings.push(FindingView {
            finding: Finding::new(Severity::Error, subject(&steps), error, advice),
            since: since.unwrap_or_default(),
        });
    }
    findings
}

/// The last read of figures that the daemon reads periodically.
#[derive(Clone, Default)]
pub struct Look {
    pub name: &'static str,
    /// The age in seconds from which the figures are stale.
    max_age: u64,
    /// The time at which they were last read, in Unix seconds.
    pub at: Option<u64>,
    /// The reason why they could not be read since.
    pub why: Option<String>,
    /// The reasons that were logged since then.
    pub logged: LoggedReasons,
}

impl Look {
    fn new(name: &'static str, max_age: u64) -> Self {
        Look {
            name,
            max_age,
            ..Look::default()
        }
    }

    /// Returns whether the daemon has tried to read the figures.
    pub fn is_tried(&self) -> bool {
        self.at.is_some() || self.why.is_some()
    }

    /// Returns whether the figures are stale at this time.
    pub fn is_stale(&self, now: u64) -> bool {
        is_older(self.at, self.max_age, now)
    }
}

#[derive(Clone, Serialize)]
pub struct RefusedFamily {
    pub family: String,
    pub reason: Reason,
}

/// A set-back of a server, as far as it concerns a family.
#[derive(Clone, Serialize)]
pub struct SetBackView {
    /// `NAMESPACE/FAMILY`.
    pub family: String,
    /// `redis` or `mysql`.
    pub server: &'static str,
    /// The number of partitions in which it was found.
    pub partitions: u64,
    /// Batches that MySQL lost, 0 if Redis was set back.
    pub batches: u64,
    /// Hits that were dropped because Redis was set back.
    pub hits: u64,
    /// The ids that had these hits.
    pub ids: u64,
    /// The time when it was last found, in Unix seconds.
    pub at: u64,
}

impl SetBackView {
    pub fn all(set_backs: Vec<SetBack>) -> Vec<Self> {
        let mut views = Vec::new();
        for one in set_backs {
            let (server, batches, hits, ids) = match one.loss {
                Loss::Dropped { hits, ids } => ("redis", 0, hits, ids),
                Loss::Batches(batches) => ("mysql", batches, 0, 0),
                _ => continue,
            };
            views.push(SetBackView {
                family: format!("{}/{}", one.namespace, one.family),
                server,
                partitions: one.partitions,
                batches,
                hits,
                ids,
                at: unix_seconds(one.at),
            });
        }
        views
    }

    /// Returns the number of hits that were dropped, or of batches that are lost.
    pub fn lost(&self) -> u64 {
        self.hits + self.batches
    }
}

/// A counter that differed from its rows.
#[derive(Clone, Serialize)]
pub struct DriftView {
    /// `NAMESPACE/FAMILY`.
    pub family: String,
    pub run: u64,
    pub id: String,
    /// The counter before its rows were counted.
    pub before: i64,
    pub rows: i64,
    /// The correction, 0 if the note gives a reason for none.
    pub delta: i64,
    /// The counter after the correction.
    pub after: i64,
    pub note: String,
    /// The time in Unix seconds.
    pub at: u64,
}

impl DriftView {
    /// Creates the view of a difference that a run of NAMESPACE/FAMILY found.
    pub fn all(family: &str, run: u64, drift: Vec<Drift>) -> Vec<Self> {
        drift
            .into_iter()
            .map(|one| DriftView {
                family: family.to_owned(),
                run,
                id: one.id,
                before: one.before,
                rows: one.rows,
                delta: one.delta,
                after: one.after.saturating_add(one.delta),
                note: one.note,
                at: unix_seconds(one.at),
            })
            .collect()
    }
}

/// A current recount, or the last run of a family.
#[derive(Clone, Serialize)]
pub struct RecountView {
    /// `NAMESPACE/FAMILY`.
    pub family: String,
    pub run: u64,
    pub checked: u64,
    pub drifted: u64,
    /// The approximate number of counters, for a run of this daemon.
    pub about: Option<u64>,
    /// `true` if this daemon's configuration has the recount.
    #[serde(skip)]
    pub is_configured: bool,
    /// The start in Unix seconds.
    pub started: u64,
    /// The end in Unix seconds; `None` while it runs.
    pub finished: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_go_on_after_the_clock_stepped_back() {
        let mut pair = PairView::new("main");
        for at in [90_000, 90_005, 90_010, 100, 105, 110] {
            pair.add_total(at);
        }
        let times: Vec<_> = pair.totals.iter().map(|total| total.at).collect();
        assert_eq!(times, [100, 110]);
    }
}

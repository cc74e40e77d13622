//! The health of the pairs, which the status page, readiness and metrics share.

use std::collections::BTreeSet;

use counterfoil::admin::Severity;

use crate::output::count;
use crate::status::State;
use crate::view::{PairView, ServerView, View};

/// The reason why the daemon is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotReady {
    /// Redis was not reached.
    Redis,
    /// MySQL was not reached.
    Mysql,
    /// Hits do not reach MySQL.
    Flush,
}

impl NotReady {
    /// Returns the bare reason, which contains no data of the pair.
    pub fn name(self) -> &'static str {
        match self {
            NotReady::Redis => "redis",
            NotReady::Mysql => "mysql",
            NotReady::Flush => "flush",
        }
    }
}

impl View {
    /// Returns why the daemon is not ready, or `None` if hits of all pairs reach MySQL.
    pub fn not_ready(&self) -> Option<NotReady> {
        self.pairs.iter().filter_map(|pair| pair.not_ready()).min()
    }

    /// Returns whether some pair was not looked at yet, so that its health is unknown.
    pub fn is_unknown(&self) -> bool {
        self.pairs.iter().any(|pair| pair.is_unknown())
    }

    /// Returns the known problems, each as a short sentence without a period, the worst first.
    pub fn problems(&self) -> Vec<String> {
        let number = |of_pair: &dyn Fn(&PairView) -> usize| -> u64 {
            self.pairs.iter().map(|pair| of_pair(pair) as u64).sum()
        };
        let with = |state| number(&|pair| pair.families_in(state));
        let problems = [
            (
                number(&PairView::servers_down),
                "server is unavailable",
                "servers are unavailable",
            ),
            (
                number(&|pair| {
                    pair.servers()
                        .filter(|server| server.refuses.is_some())
                        .count()
                }),
                "server refuses writes",
                "servers refuse writes",
            ),
            (
                number(&|pair| usize::from(pair.reconciler.why.is_some())),
                "reconciler does not run",
                "reconcilers do not run",
            ),
            (
                number(&PairView::families_failing),
                "family does not reach MySQL",
                "families do not reach MySQL",
            ),
            (
                with(State::Broken),
                "family is broken",
                "families are broken",
            ),
            (with(State::Late), "family is late", "families are late"),
            (
                number(&|pair| pair.refused.len()),
                "family was refused",
                "families were refused",
            ),
            (
                number(&PairView::error_findings),
                "finding is an error",
                "findings are errors",
            ),
            (
                with(State::Rejects),
                "family has rejects",
                "families have rejects",
            ),
            (
                number(&|pair| pair.stale_looks(self.at)),
                "kind of figures is stale",
                "kinds of figures are stale",
            ),
        ];
        let problems = problems.iter().filter(|(number, ..)| *number > 0);
        problems
            .map(|(number, one, many)| count(*number, one, many))
            .collect()
    }
}

impl PairView {
    fn servers(&self) -> impl Iterator<Item = &ServerView> {
        [&self.redis, &self.mysql].into_iter()
    }

    fn not_ready(&self) -> Option<NotReady> {
        let flushes = self.reconciler.running && self.families_failing() == 0;
        match (self.redis.up, self.mysql.up, flushes) {
            (false, ..) => Some(NotReady::Redis),
            (_, false, _) => Some(NotReady::Mysql),
            (_, _, false) => Some(NotReady::Flush),
            _ => None,
        }
    }

    fn is_unknown(&self) -> bool {
        let are_up = self.servers().all(|server| server.up);
        let was_tried = self.reconciler.running || self.reconciler.why.is_some();
        let looks = [
            &self.looks.families,
            &self.looks.overview,
            &self.looks.check,
        ];
        let looked = looks
            .iter()
            .all(|look| look.at.is_some() || look.why.is_some());
        !self.servers().all(|server| server.is_known()) || are_up && !(was_tried && looked)
    }

    fn servers_down(&self) -> usize {
        let known = self.servers().filter(|server| server.is_known());
        known.filter(|server| !server.up).count()
    }

    /// Returns the number of families whose hits do not reach MySQL. Steps of no known family count
    /// as one.
    fn families_failing(&self) -> usize {
        let failing = self.reconciler.failing.iter();
        let blocking = failing.filter(|one| one.blocks_hits);
        let families: BTreeSet<_> = blocking.map(|one| &one.family).collect();
        families.len()
    }

    fn families_in(&self, state: State) -> usize {
        let families = self.families.iter();
        families.filter(|one| one.status.state == state).count()
    }

    fn error_findings(&self) -> usize {
        let findings = self.findings.iter();
        findings
            .filter(|finding| finding.severity == Severity::Error)
            .count()
    }

    /// Returns the number of figures that were tried to read, but not read lately.
    fn stale_looks(&self, now: u64) -> usize {
        let looks = self.looks.all(now).into_iter();
        looks
            .filter(|(_, look, is_stale)| *is_stale && (look.at.is_some() || look.why.is_some()))
            .count()
    }
}

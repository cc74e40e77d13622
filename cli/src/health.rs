//! The health of the pairs, which the status page, readiness and metrics share.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

use crate::output::escaped;
use crate::status::State;
use crate::view::{FamilyView, FindingView, Look, PairView, Refusal, Refused, ServerView, View};

/// The share of `max_pending` from which a family nears the limit.
const NEARLY_FULL: f64 = 0.8;
/// The maximum number of families that a problem names.
const MAX_NAMES: usize = 5;

/// The health of pairs, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Healthy,
    /// The daemon has not seen the state of all pairs yet.
    Unknown,
    /// Something needs attention. Hits count, and those of other families reach MySQL.
    Degraded,
    /// A server is unavailable, Redis refuses hits, or no reconciler runs.
    Down,
}

impl Health {
    pub fn name(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Unknown => "unknown",
            Health::Degraded => "degraded",
            Health::Down => "down",
        }
    }
}

/// A problem of a pair, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub pair: String,
    pub severity: Health,
    /// The problem in a few words.
    pub problem: String,
    /// The error, if there is one.
    pub why: Option<String>,
    /// The time since which it is known, in Unix seconds.
    pub since: Option<u64>,
    /// The recommended action, in a sentence without a period.
    pub what_to_do: String,
    /// The command that shows more.
    pub command: String,
}

impl Problem {
    fn new(
        severity: Health,
        problem: impl Into<String>,
        what_to_do: impl Into<String>,
        command: &str,
    ) -> Self {
        Problem {
            pair: String::new(),
            severity,
            problem: problem.into(),
            why: None,
            since: None,
            what_to_do: what_to_do.into(),
            command: format!("counterfoil {command}"),
        }
    }

    fn because(mut self, why: &Option<String>) -> Self {
        self.why.clone_from(why);
        self
    }

    /// Sets the time in Unix seconds; 0 if it is not known.
    fn since(mut self, since: u64) -> Self {
        self.since = Some(since).filter(|since| *since > 0);
        self
    }
}

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

    /// Returns the health of the worst pair, which has these [`problems`](Self::problems).
    pub fn health(&self, problems: &[Problem]) -> Health {
        match problems.first() {
            Some(worst) => worst.severity,
            None if self.is_unknown() => Health::Unknown,
            None => Health::Healthy,
        }
    }

    /// Returns the known problems of all pairs, the worst first.
    pub fn problems(&self) -> Vec<Problem> {
        let of_pair = |pair: &Arc<PairView>| pair.problems(self.at);
        let mut problems: Vec<_> = self.pairs.iter().flat_map(of_pair).collect();
        problems.sort_by_key(|problem| Reverse(problem.severity));
        problems
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

    /// Returns the number of families whose hits do not reach MySQL. Steps of no known family count
    /// as one.
    fn families_failing(&self) -> usize {
        let failing = self.reconciler.failing.iter();
        let blocking = failing.filter(|one| one.blocks_hits);
        let families: BTreeSet<_> = blocking.map(|one| &one.family).collect();
        families.len()
    }

    /// Returns the problems of servers, then of families, then of figures.
    fn problems(&self, now: u64) -> Vec<Problem> {
        let mut problems = Vec::new();
        problems.extend(self.redis_problem());
        problems.extend(self.mysql_problem());
        problems.extend(self.reconciler_problem());
        problems.extend(self.findings.iter().filter(|one| one.is_error()).map(found));
        problems.extend(self.broken_families());
        problems.extend(self.late_families());
        problems.extend(self.full_families());
        problems.extend(self.refused_families());
        problems.extend(self.open_rejects());
        problems.extend(self.stale_figures(now));
        for problem in &mut problems {
            problem.pair.clone_from(&self.name);
        }
        problems
    }

    fn redis_problem(&self) -> Option<Problem> {
        let server = &self.redis;
        if server.is_down() {
            let advice =
                "Hits do not count meanwhile. Start Redis, or restore the connection to it";
            let problem = Problem::new(Health::Down, "Redis is unavailable", advice, "check");
            return Some(problem.because(&server.why).since(server.since));
        }
        let refusal = server.refusal.filter(|_| server.up)?;
        let advice = match refusal {
            Refusal::MemoryFull => {
                "Raise maxmemory, or restore MySQL, so that waiting hits leave Redis"
            }
            Refusal::Replica => "Let the address in the configuration lead to the primary",
        };
        let mut counting = self.reconciler.failing.iter();
        let counting = counting.find(|failing| failing.error == refusal.text());
        let problem = Problem::new(Health::Down, "Redis refuses hits", advice, "check");
        let problem = problem.because(&Some(refusal.text().to_owned()));
        Some(problem.since(counting.map_or(0, |failing| failing.since)))
    }

    fn mysql_problem(&self) -> Option<Problem> {
        let server = &self.mysql;
        let advice = "Hits count, and wait in Redis. Start MySQL, or restore the connection to it";
        let problem = Problem::new(Health::Down, "MySQL is unavailable", advice, "check");
        let problem = problem.because(&server.why).since(server.since);
        server.is_down().then_some(problem)
    }

    fn reconciler_problem(&self) -> Option<Problem> {
        let advice = "Hits wait in Redis. The daemon starts the reconciler again every few seconds";
        let problem = Problem::new(Health::Down, "The reconciler does not run", advice, "check");
        let why = &self.reconciler.why;
        why.is_some().then(|| problem.because(why))
    }

    fn broken_families(&self) -> Option<Problem> {
        let broken = self.families_in(State::Broken);
        let why = broken.first()?.status.problem.clone();
        let advice = "`counterfoil acl daemon` prints the privileges that Redis needs. Otherwise another \
                      program wrote the keys";
        let problem = of_families(&broken, "is broken", "are broken");
        Some(
            Problem::new(Health::Degraded, problem, advice, "check")
                .because(&why)
                .since(since(&broken)),
        )
    }

    fn late_families(&self) -> Option<Problem> {
        let late = self.families_in(State::Late);
        let advice = "Is MySQL slow, or a table locked? Does a daemon serve the family?";
        let problem = of_families(&late, "is late", "are late");
        let problem = Problem::new(Health::Degraded, problem, advice, "pending");
        (!late.is_empty()).then(|| problem.since(since(&late)))
    }

    fn full_families(&self) -> Option<Problem> {
        let families = self.families.iter();
        let full: Vec<_> = families
            .filter(|family| family.status.full > NEARLY_FULL)
            .collect();
        let advice = "Redis refuses further ids at the limit. Restore what keeps hits from MySQL, or raise \
                      `max_pending`";
        let problem = of_families(&full, "nears max_pending", "near max_pending");
        let problem = Problem::new(Health::Degraded, problem, advice, "pending");
        (!full.is_empty()).then_some(problem)
    }

    /// Returns a problem for each refused family, or one for many.
    fn refused_families(&self) -> Vec<Problem> {
        let number = self.refused.len();
        match &self.refused[..] {
            [first, ..] if number > MAX_NAMES => vec![Problem {
                problem: format!(
                    "{number} families were refused, the first is {}",
                    first.family
                ),
                ..refused(first)
            }],
            some => some.iter().map(refused).collect(),
        }
    }

    fn open_rejects(&self) -> Option<Problem> {
        let families = self.families.iter();
        let with: Vec<_> = families
            .filter(|family| family.status.rejects > 0)
            .collect();
        let oldest = self.rejects.iter().map(|reject| reject.at).min();
        let why = self.rejects.first().map(|reject| escaped(&reject.reason));
        let advice = "Widen the column, or insert the missing row: the daemon then applies them within seconds";
        let problem = of_families(&with, "has open rejects", "have open rejects");
        let problem = Problem::new(Health::Degraded, problem, advice, "rejects list");
        (!with.is_empty()).then(|| problem.because(&why).since(oldest.unwrap_or(0)))
    }

    /// Returns the figures that were tried to read, but not read lately.
    fn stale_figures(&self, now: u64) -> Vec<Problem> {
        let looks = self.looks.all(now).into_iter();
        let tried = looks
            .filter(|(_, look, is_stale)| *is_stale && (look.at.is_some() || look.why.is_some()));
        let problem = |(name, look, _): (&str, &Look, bool)| {
            let advice = "The daemon tries to read them again every few seconds";
            let problem = format!("Figures of {name} are stale");
            let problem = Problem::new(Health::Degraded, problem, advice, "check");
            problem.because(&look.why).since(look.at.unwrap_or(0))
        };
        tried.map(problem).collect()
    }

    fn families_in(&self, state: State) -> Vec<&FamilyView> {
        let families = self.families.iter();
        families.filter(|one| one.status.state == state).collect()
    }
}

fn found(FindingView { finding, since }: &FindingView) -> Problem {
    let advice = finding.advice.clone();
    let problem = Problem::new(Health::Degraded, finding.subject.clone(), advice, "check");
    problem
        .because(&Some(finding.message.clone()))
        .since(*since)
}

fn refused(refused: &Refused) -> Problem {
    let advice = "Correct its settings in the configuration, or run `counterfoil reconfigure`";
    let problem = format!("{} was refused", refused.family);
    let problem = Problem::new(Health::Degraded, problem, advice, "families");
    problem.because(&Some(refused.reason.clone()))
}

/// Returns how many families it concerns, with the names of the first.
fn of_families(families: &[&FamilyView], one: &str, many: &str) -> String {
    let names = families.iter().take(MAX_NAMES);
    let names: Vec<_> = names.map(|family| family.status.name()).collect();
    let names = names.join(", ");
    match families.len() {
        1 => format!("{names} {one}"),
        number if number <= MAX_NAMES => format!("{names} {many}"),
        number => format!("{number} families {many}: {names} and others"),
    }
}

fn since(families: &[&FamilyView]) -> u64 {
    let since = families.iter().map(|family| family.state_since);
    since.min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> PairView {
        let seen = Look {
            at: Some(100),
            ..Look::default()
        };
        let mut pair = PairView {
            name: "main".to_owned(),
            families: (0..9)
                .map(|n| FamilyView::idle("shop", &format!("f{n}")))
                .collect(),
            ..PairView::default()
        };
        for server in [&mut pair.redis, &mut pair.mysql] {
            (server.up, server.since) = (true, 1);
        }
        pair.reconciler.running = true;
        pair.looks.families = seen.clone();
        pair.looks.overview = seen.clone();
        pair.looks.check = seen;
        pair
    }

    fn health(pair: &PairView, at: u64) -> (Health, Vec<String>) {
        let pairs = vec![Arc::new(pair.clone())];
        let view = View {
            at,
            version: "1",
            pairs,
        };
        let problems = view.problems();
        let health = view.health(&problems);
        let problems = problems.into_iter().map(|one| one.problem);
        (health, problems.collect())
    }

    #[test]
    fn health_is_unknown_before_the_first_look() {
        assert_eq!(health(&view(), 100), (Health::Healthy, vec![]));
        let incomplete: [fn(&mut PairView); 5] = [
            |pair| pair.redis = ServerView::default(),
            |pair| pair.mysql = ServerView::default(),
            |pair| pair.reconciler.running = false,
            |pair| pair.looks.families = Look::default(),
            |pair| pair.looks.check = Look::default(),
        ];
        for forget in incomplete {
            let mut pair = view();
            forget(&mut pair);
            assert_eq!(health(&pair, 100), (Health::Unknown, vec![]));
        }
    }

    #[test]
    fn figures_are_stale_after_their_time() {
        let stale = |at| health(&view(), at).1.len();
        assert_eq!([130, 131, 221].map(stale), [0, 2, 3]);
    }

    #[test]
    fn the_worst_problem_decides_and_comes_first() {
        let mut pair = view();
        for late in &mut pair.families[..7] {
            (late.status.state, late.state_since) = (State::Late, 40);
        }
        pair.families[8].status.rejects = 2;
        pair.refused.push(Refused {
            family: "shop/x".to_owned(),
            reason: "a reason".to_owned(),
        });
        let late = "7 families are late: shop/f0, shop/f1, shop/f2, shop/f3, shop/f4 and others";
        let degraded = [late, "shop/x was refused", "shop/f8 has open rejects"];
        assert_eq!(
            health(&pair, 100),
            (Health::Degraded, degraded.map(str::to_owned).to_vec())
        );
        let mut many = pair.clone();
        many.refused = vec![pair.refused[0].clone(); 1000];
        let refused = "1000 families were refused, the first is shop/x";
        assert_eq!(health(&many, 100).1, [late, refused, degraded[2]]);
        pair.reconciler.why = Some("a reason".to_owned());
        (pair.redis.up, pair.mysql.refuses) = (true, Some("refused".to_owned()));
        pair.redis.refusal = Some(Refusal::MemoryFull);
        let (worst, problems) = health(&pair, 100);
        assert_eq!(worst, Health::Down);
        assert_eq!(
            problems[..2],
            ["Redis refuses hits", "The reconciler does not run"]
        );
        assert_eq!(problems[2..], degraded);
        let problems = pair.problems(100);
        assert_eq!(
            (problems[2].since, &*problems[2].command),
            (Some(40), "counterfoil pending")
        );
    }
}

//! The health of the pairs, which the status page, readiness, the API and `status` share.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::output::escaped;
use crate::status::{FamilyView, State};
use crate::view::{FindingView, Look, PairView, Refused, View};

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
    /// Returns the health with these problems.
    pub fn of<'p>(problems: impl IntoIterator<Item = &'p Problem>) -> Self {
        match problems.into_iter().map(|problem| problem.severity).max() {
            Some(Level::Down) => Health::Down,
            Some(Level::Error | Level::Warning) => Health::Degraded,
            None => Health::Healthy,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Unknown => "unknown",
            Health::Degraded => "degraded",
            Health::Down => "down",
        }
    }
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Hits are late or were refused, or figures are missing.
    Warning,
    /// An error of `check`, or a step or a family that fails.
    Error,
    /// A server is unavailable, Redis refuses hits, or no reconciler runs.
    Down,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Down => "down",
        }
    }
}

/// A problem of a pair, and what to do about it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub pair: String,
    pub severity: Level,
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
    fn new(severity: Level, problem: impl Into<String>, what_to_do: &str, command: &str) -> Self {
        Problem {
            pair: String::new(),
            severity,
            problem: problem.into(),
            why: None,
            since: None,
            what_to_do: what_to_do.to_owned(),
            command: format!("counterfoil {command}"),
        }
    }

    fn down(problem: &str, what_to_do: &str) -> Self {
        Problem::new(Level::Down, problem, what_to_do, "check")
    }

    /// Creates the problem that families are missing in what was read.
    pub fn missing(why: String) -> Self {
        let what_to_do = "`counterfoil check` shows more";
        Problem {
            why: Some(why),
            ..Problem::new(Level::Warning, "Families are missing", what_to_do, "check")
        }
    }

    pub fn is_error(&self) -> bool {
        self.severity > Level::Warning
    }

    /// Returns whether it is the same problem as another process sees it. The words with which a
    /// server is unavailable differ.
    pub fn is(&self, other: &Problem) -> bool {
        let is_same_error = self.severity == Level::Down || self.why == other.why;
        self.problem == other.problem && is_same_error
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity.name(), self.problem)?;
        if let Some(why) = &self.why {
            write!(f, ": {why}")?;
        }
        write!(f, ". {}", self.what_to_do)
    }
}

impl View {
    /// Returns why the daemon is not ready, without data of a pair: `redis` or `mysql` was not
    /// reached, or `flush`, hits do not reach MySQL. `None` if those of all pairs do.
    pub fn not_ready(&self) -> Option<&'static str> {
        let reasons = self.pairs.iter().filter_map(|pair| pair.not_ready());
        reasons.min_by_key(|reason| {
            ["redis", "mysql", "flush"]
                .iter()
                .position(|one| one == reason)
        })
    }

    /// Returns whether some pair was not looked at yet, so that its health is unknown.
    pub fn is_unknown(&self) -> bool {
        self.pairs.iter().any(|pair| pair.is_unknown())
    }

    /// Returns the health of the worst pair, which has these [`problems`](Self::problems).
    pub fn health(&self, problems: &[Problem]) -> Health {
        match Health::of(problems) {
            Health::Healthy if self.is_unknown() => Health::Unknown,
            health => health,
        }
    }

    /// Returns the known problems of all pairs, the worst first.
    pub fn problems(&self) -> Vec<Problem> {
        let of_pair = |pair: &Arc<PairView>| pair.problems(self.at);
        worst_first(self.pairs.iter().flat_map(of_pair))
    }
}

impl PairView {
    fn not_ready(&self) -> Option<&'static str> {
        let mut failing = self.reconciler.failing.iter();
        let flushes = self.reconciler.running && !failing.any(|one| one.blocks_hits);
        match (self.redis.up, self.mysql.up, flushes) {
            (false, ..) => Some("redis"),
            (_, false, _) => Some("mysql"),
            (_, _, false) => Some("flush"),
            _ => None,
        }
    }

    fn is_unknown(&self) -> bool {
        let servers = self.servers().map(|(_, server)| server);
        let was_tried = self.reconciler.running || self.reconciler.why.is_some();
        let is_complete = was_tried && self.looks.iter().all(Look::is_tried);
        !servers.iter().all(|server| server.is_known()) || self.are_up() && !is_complete
    }

    /// Returns the problems, with others that a reader found, the worst first.
    pub fn problems_with(&self, others: impl Iterator<Item = Problem>, now: u64) -> Vec<Problem> {
        let others = others.map(|problem| Problem {
            pair: self.name.clone(),
            ..problem
        });
        worst_first(self.problems(now).into_iter().chain(others))
    }

    /// Returns the problems of servers, then of families, then of figures.
    fn problems(&self, now: u64) -> Vec<Problem> {
        let mut problems = self.problems_of_servers();
        problems.extend(self.problems_of_families());
        let stale = self.looks.iter();
        let stale = stale.filter(|look| look.is_stale(now) && look.is_tried());
        problems.extend(stale.map(|look| Problem {
            why: look.why.clone(),
            since: look.at,
            ..Problem::new(
                Level::Warning,
                format!("Figures of {} are stale", look.name),
                "The daemon tries to read them again every few seconds",
                "check",
            )
        }));
        for problem in &mut problems {
            problem.pair.clone_from(&self.name);
        }
        problems
    }

    fn problems_of_servers(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (server, problem, what_to_do) in [
            (
                &self.redis,
                "Redis is unavailable",
                "Hits do not count meanwhile. Start Redis, or restore the connection to it",
            ),
            (
                &self.mysql,
                "MySQL is unavailable",
                "Hits count, and wait in Redis. Start MySQL, or restore the connection to it",
            ),
        ] {
            if server.is_down() {
                problems.push(Problem {
                    why: server.why.clone(),
                    since: Some(server.since),
                    ..Problem::down(problem, what_to_do)
                });
            }
        }
        if let Some(refusal) = self.redis.refusal.as_ref().filter(|_| self.redis.up) {
            let mut failing = self.reconciler.failing.iter();
            let counting = failing.find(|failing| failing.error == refusal.message);
            problems.push(Problem {
                why: Some(refusal.message.clone()),
                since: counting.map(|failing| failing.since),
                ..Problem::down("Redis refuses hits", &refusal.advice)
            });
        }
        if self.reconciler.why.is_some() {
            problems.push(Problem {
                why: self.reconciler.why.clone(),
                ..Problem::down(
                    "The reconciler does not run",
                    "Hits wait in Redis. The daemon starts the reconciler again every few seconds",
                )
            });
        }
        let errors = self.findings().into_iter().filter(FindingView::is_error);
        problems.extend(errors.map(|FindingView { finding, since }| Problem {
            why: Some(finding.message),
            since: Some(since),
            ..Problem::new(Level::Error, finding.subject, &finding.advice, "check")
        }));
        problems
    }

    fn problems_of_families(&self) -> Vec<Problem> {
        let about = |is_so: fn(&FamilyView) -> bool,
                     severity,
                     [one, many]: [&str; 2],
                     what_to_do,
                     command| {
            let families: Vec<_> = self.families.iter().filter(|one| is_so(one)).collect();
            Some(Problem {
                why: families.first()?.problem.clone(),
                since: families.iter().map(|one| one.state_since).min(),
                ..Problem::new(
                    severity,
                    of_families(&families, one, many),
                    what_to_do,
                    command,
                )
            })
        };
        let mut problems = Vec::new();
        problems.extend(about(
            |family| family.state == State::Broken,
            Level::Error,
            ["is broken", "are broken"],
            "`counterfoil acl daemon` prints the privileges that Redis needs. Otherwise another \
             program wrote the keys",
            "check",
        ));
        problems.extend(about(
            |family| family.state == State::Late,
            Level::Warning,
            ["is late", "are late"],
            "Is MySQL slow, or a table locked? Does a daemon serve the family?",
            "pending",
        ));
        let full = about(
            FamilyView::is_full,
            Level::Warning,
            ["has reached max_pending", "have reached max_pending"],
            "Redis refuses hits of further ids. Restore what keeps hits from MySQL, or raise \
             `max_pending`",
            "pending",
        );
        let nearly_full = about(
            |family| family.full > NEARLY_FULL && !family.is_full(),
            Level::Warning,
            ["nears max_pending", "near max_pending"],
            "Redis refuses further ids at the limit. Restore what keeps hits from MySQL, or raise \
             `max_pending`",
            "pending",
        );
        let full = full.into_iter().chain(nearly_full);
        problems.extend(full.map(|full| Problem {
            since: None,
            ..full
        }));
        let number = self.refused.len();
        let shown = if number > MAX_NAMES { 1 } else { number };
        problems.extend(self.refused[..shown].iter().map(|Refused { family, reason }| {
            let problem = if shown == number {
                format!("{family} was refused")
            } else {
                format!("{number} families were refused, the first is {family}")
            };
            let what_to_do =
                "Correct its settings in the configuration, or run `counterfoil reconfigure`";
            Problem {
                why: Some(reason.clone()),
                ..Problem::new(Level::Error, problem, what_to_do, "check")
            }
        }));
        let rejects = about(
            |family| family.rejects > 0,
            Level::Warning,
            ["has rejects", "have rejects"],
            "Widen the column, or insert the missing row. The daemon then applies new ones within \
             seconds, and `counterfoil rejects retry --all` all of them",
            "rejects list",
        );
        problems.extend(rejects.map(|problem| Problem {
            why: self.rejects.first().map(|reject| escaped(&reject.reason)),
            since: self.rejects.iter().map(|reject| reject.at).min(),
            ..problem
        }));
        problems
    }
}

fn worst_first(problems: impl Iterator<Item = Problem>) -> Vec<Problem> {
    let mut problems: Vec<_> = problems.collect();
    problems.sort_by_key(|problem| Reverse(problem.severity));
    problems
}

/// Returns how many families it concerns, with the names of the first.
fn of_families(families: &[&FamilyView], one: &str, many: &str) -> String {
    let names = families.iter().take(MAX_NAMES);
    let names: Vec<_> = names.map(|family| family.name()).collect();
    let names = names.join(", ");
    match families.len() {
        1 => format!("{names} {one}"),
        number if number <= MAX_NAMES => format!("{names} {many}"),
        number => format!("{number} families {many}: {names} and others"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::idle;
    use crate::view::ServerView;

    fn pair() -> PairView {
        let mut pair = PairView::new("main");
        pair.families = ["a", "b", "c", "d", "e", "f"]
            .map(|name| idle("shop", name))
            .into();
        for server in [&mut pair.redis, &mut pair.mysql] {
            (server.up, server.since) = (true, 1);
        }
        pair.reconciler.running = true;
        for look in &mut pair.looks {
            look.at = Some(100);
        }
        pair
    }

    fn health(change: impl FnOnce(&mut PairView), at: u64) -> (Health, Vec<String>) {
        let mut pair = pair();
        change(&mut pair);
        let pairs = vec![Arc::new(pair)];
        let view = View { at, pairs };
        let problems = view.problems();
        let health = view.health(&problems);
        (
            health,
            problems.into_iter().map(|one| one.problem).collect(),
        )
    }

    #[test]
    fn health_is_unknown_before_the_first_look() {
        assert_eq!(health(|_| (), 100), (Health::Healthy, vec![]));
        let incomplete: [fn(&mut PairView); 4] = [
            |pair| pair.redis = ServerView::default(),
            |pair| pair.mysql = ServerView::default(),
            |pair| pair.reconciler.running = false,
            |pair| pair.looks[2].at = None,
        ];
        for forget in incomplete {
            assert_eq!(health(forget, 100), (Health::Unknown, vec![]));
        }
    }

    #[test]
    fn figures_are_stale_after_their_time() {
        let stale = |at| health(|_| (), at).1.len();
        assert_eq!([130, 131, 221].map(stale), [0, 2, 3]);
    }

    #[test]
    fn the_worst_problem_decides_and_comes_first() {
        let change = |pair: &mut PairView| {
            for family in &mut pair.families {
                family.state = State::Late;
            }
            let refused = Refused {
                family: "shop/x".to_owned(),
                reason: "a reason".to_owned(),
            };
            pair.refused = vec![refused; 1000];
            pair.reconciler.why = Some("a reason".to_owned());
        };
        let expected = [
            "The reconciler does not run",
            "1000 families were refused, the first is shop/x",
            "6 families are late: shop/a, shop/b, shop/c, shop/d, shop/e and others",
        ];
        let expected = expected.map(str::to_owned).to_vec();
        assert_eq!(health(change, 100), (Health::Down, expected));
    }
}

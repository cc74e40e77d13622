//! The health of the pairs, which the status page, readiness, the API and `status` share.

use std::cmp::Reverse;
use std::fmt;

use counterfoil::admin::Finding;
use serde::{Deserialize, Serialize};

use crate::output::{self, escaped, moment, with_commands};
use crate::reason::{Advice, Reason};
use crate::rejects::ReasonView;
use crate::status::{FamilyView, State};
use crate::view::{FailingView, FindingView, Look, PairView, RefusedFamily, View};

/// The share of `max_pending` from which a family nears the limit.
const NEARLY_FULL: f64 = 0.8;
/// The maximum number of families that a problem names.
const MAX_NAMES: usize = 5;
/// The maximum number of reasons that the problem of rejects names.
const MAX_REASONS: usize = 3;

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
    /// Hits are late, were refused, or are lost by a set-back; a server is slow; or figures are missing.
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
    /// The server that is unavailable, if that is the problem: `redis` or `mysql`.
    pub server: Option<String>,
    /// The unavailable server of which it is a consequence.
    pub caused_by: Option<String>,
}

impl Problem {
    fn new(severity: Level, problem: impl Into<String>, what_to_do: &str, command: &str) -> Self {
        Problem {
            pair: String::new(),
            severity,
            problem: problem.into(),
            why: None,
            since: None,
            what_to_do: with_commands(what_to_do),
            command: output::command(command),
            server: None,
            caused_by: None,
        }
    }

    /// Returns the problem with its reason, if that is known, and the advice about it.
    fn because(mut self, reason: Option<&Reason>) -> Self {
        self.why = reason.map(|reason| reason.text.clone());
        if let Some(advice) = reason.and_then(|reason| reason.advice.as_ref()) {
            self.what_to_do = with_commands(&advice.what_to_do);
            self.command = output::command(&advice.command);
        }
        self
    }

    /// Returns the problem with a sentence before the advice.
    fn with_effect(self, effect: &str) -> Self {
        let what_to_do = format!("{effect}. {}", self.what_to_do);
        Problem { what_to_do, ..self }
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

    /// Returns whether it is a consequence of the other, the problem of an unavailable server.
    pub fn is_consequence_of(&self, other: &Problem) -> bool {
        self.caused_by.is_some() && self.caused_by == other.server && self.pair == other.pair
    }

    /// Returns whether both are the same problem, each as one process reports it. The reasons why a
    /// server is unavailable are not compared, because two processes word them differently.
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
    /// Returns why the daemon is not ready, as a word that reveals nothing about a pair: `redis` or
    /// `mysql` if a server was not reached, or `flush` if hits do not reach MySQL. Returns `None`
    /// if the hits of all pairs do.
    pub fn not_ready(&self) -> Option<&'static str> {
        self.pairs
            .iter()
            .filter_map(|pair| pair.not_ready())
            .min_by_key(|reason| {
                ["redis", "mysql", "flush"]
                    .iter()
                    .position(|one| one == reason)
            })
    }

    /// Returns whether some pair was not checked yet, so that its health is unknown.
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
        worst_first(self.pairs.iter().flat_map(|pair| pair.problems(self.at)))
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
        let mut problems = self.problems(now);
        problems.extend(others.map(|problem| Problem {
            pair: self.name.clone(),
            ..problem
        }));
        worst_first(problems.into_iter())
    }

    /// Returns the problems of servers, then of families, then of figures.
    fn problems(&self, now: u64) -> Vec<Problem> {
        let mut problems = self.problems_of_servers();
        problems.extend(self.problems_of_families());
        problems.extend(self.set_back("redis"));
        problems.extend(self.set_back("mysql"));
        for one in self.certificates.iter().filter(|one| one.ends_soon(now)) {
            problems.push(Problem {
                why: Some(format!("it is valid until {}", moment(one.expires))),
                ..Problem::new(
                    Level::Warning,
                    format!("The certificate of {} ends soon", one.certificate),
                    "Renew it. From its end on, nothing connects any more",
                    "check",
                )
            });
        }
        for look in &self.looks {
            if !look.is_stale(now) || !look.is_tried() {
                continue;
            }
            problems.push(Problem {
                why: look.why.clone(),
                since: look.at,
                // the daemon reads these figures from MySQL only while both servers are up
                caused_by: self.caused_by(match look.name {
                    "families" => &["redis"],
                    _ => &["mysql", "redis"],
                }),
                ..Problem::new(
                    Level::Warning,
                    format!("Figures of {} are stale", look.name),
                    "The daemon tries to read them again every few seconds",
                    "check",
                )
            });
        }
        for problem in &mut problems {
            problem.pair.clone_from(&self.name);
        }
        problems
    }

    fn problems_of_servers(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let effects = [
            (
                "Redis",
                "Hits do not count if applications cannot reach it either",
            ),
            ("MySQL", "Hits that count meanwhile wait in Redis"),
        ];
        for ((name, server), (product, effect)) in self.servers().into_iter().zip(effects) {
            if server.is_down() {
                let start = format!("Start {product}, or restore the connection to it");
                let problem = Problem::down(&format!("{product} is unavailable"), &start);
                problems.push(Problem {
                    since: Some(server.since),
                    server: Some(name.to_owned()),
                    ..problem.because(server.why.as_ref()).with_effect(effect)
                });
            }
        }
        for (name, server) in [("Redis", &self.redis), ("MySQL", &self.mysql)] {
            let Some(latency) = server.latency.filter(|latency| latency.is_slow) else {
                continue;
            };
            problems.push(Problem {
                why: Some(format!("its replies take {latency}")),
                ..Problem::new(
                    Level::Warning,
                    format!("{name} is slow"),
                    "Each hit and each batch waits for replies. Is the server or the network overloaded, or \
                     the server far away?",
                    "check",
                )
            });
        }
        if let Some(refusal) = self.redis.refusal.as_ref().filter(|_| self.redis.up) {
            let mut failing = self.reconciler.failing.iter();
            let counting = failing.find(|failing| failing.error.text == refusal.message);
            problems.push(Problem {
                why: Some(refusal.message.clone()),
                since: counting.map(|failing| failing.since),
                ..Problem::down("Redis refuses hits", &refusal.advice)
            });
        }
        if let Some(reason) = &self.reconciler.why {
            let retries = "The daemon starts the reconciler again every few seconds";
            let problem = Problem::down("The reconciler does not run", retries);
            problems.push(Problem {
                caused_by: self.caused_by(&["mysql", "redis"]),
                ..problem
                    .because(Some(reason))
                    .with_effect("Hits wait in Redis")
            });
        }
        for found in self.findings() {
            if !found.is_error() {
                continue;
            }
            let FindingView { finding, since } = found;
            let command = self.advice_about(&finding).command;
            problems.push(Problem {
                caused_by: self.cause_of(&finding),
                why: Some(finding.message),
                since: Some(since),
                ..Problem::new(Level::Error, finding.subject, &finding.advice, &command)
            });
        }
        problems
    }

    /// Returns the problem that a server was set back, with what was lost in which families.
    fn set_back(&self, server: &str) -> Option<Problem> {
        let found: Vec<_> = self
            .set_backs
            .iter()
            .filter(|one| one.server == server)
            .collect();
        let (problem, lost, what_to_do) = if server == "redis" {
            (
                "Redis was set back to an older state",
                "hits that waited were dropped",
                "MySQL had these hits, or they were mixed with hits that it had. Recount the families, \
                 and acknowledge the set-back. Does Redis keep an append-only file, and does the lag of \
                 replicas stay below `durability`?",
            )
        } else {
            (
                "MySQL was set back to an older state",
                "batches that it had are lost",
                "Later hits are exact. Recount the families, and acknowledge the set-back",
            )
        };
        let mut names: Vec<_> = found
            .iter()
            .take(MAX_NAMES)
            .map(|one| format!("{} of {}", one.lost(), one.family))
            .collect();
        if found.len() > MAX_NAMES {
            names.push("others".to_owned());
        }
        let sum: u64 = found.iter().map(|one| one.lost()).sum();
        Some(Problem {
            since: Some(found.iter().map(|one| one.at).max()?),
            why: Some(format!("{sum} {lost}: {}", names.join(", "))),
            ..Problem::new(Level::Warning, problem, what_to_do, "set-backs acknowledge")
        })
    }

    /// Returns the first of these servers that is unavailable.
    fn caused_by(&self, servers: &[&str]) -> Option<String> {
        for name in servers {
            for (server, view) in self.servers() {
                if server == *name && view.is_down() {
                    return Some(server.to_owned());
                }
            }
        }
        None
    }

    /// Returns the failing step that the finding reports, if it reports one.
    fn failing(&self, finding: &Finding) -> Option<&FailingView> {
        let mut failing = self.reconciler.failing.iter();
        failing.find(|failing| failing.error.text == finding.message)
    }

    fn advice_about(&self, finding: &Finding) -> Advice {
        self.failing(finding)
            .and_then(|failing| failing.error.advice.clone())
            .unwrap_or_else(|| Advice::of_finding(finding))
    }

    /// Returns the unavailable server because of which a step fails, or `check` does not end.
    fn cause_of(&self, finding: &Finding) -> Option<String> {
        match self.failing(finding) {
            Some(failing) => self.caused_by(&[failing.server]),
            None => match finding.subject.as_str() {
                "check" => self.caused_by(&["mysql", "redis"]),
                subject => self.caused_by(&[subject]),
            },
        }
    }

    /// Returns one problem about all families for which `is_so` is true, or `None` if there are
    /// none.
    fn about(
        &self,
        is_so: fn(&FamilyView) -> bool,
        severity: Level,
        [one, many]: [&str; 2],
        what_to_do: &str,
        command: &str,
    ) -> Option<Problem> {
        let families: Vec<_> = self.families.iter().filter(|one| is_so(one)).collect();
        let first = families.first()?;
        let problem = Problem {
            since: families.iter().map(|one| one.state_since).min(),
            ..Problem::new(
                severity,
                of_families(&families, one, many),
                what_to_do,
                command,
            )
        };
        Some(problem.because(first.problem.as_ref()))
    }

    fn problems_of_families(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        problems.extend(self.about(
            |family| family.state == State::Broken,
            Level::Error,
            ["is broken", "are broken"],
            "Another program may have written its keys in Redis",
            "check",
        ));
        let late = self.about(
            |family| family.state == State::Late,
            Level::Warning,
            ["is late", "are late"],
            "Is MySQL slow, or a table locked? Does a daemon serve the family?",
            "pending",
        );
        problems.extend(late.map(|problem| Problem {
            caused_by: self.caused_by(&["mysql", "redis"]),
            ..problem
        }));
        let full = self.about(
            FamilyView::is_full,
            Level::Warning,
            ["has reached max_pending", "have reached max_pending"],
            "Redis refuses hits of further ids. Restore what keeps hits from MySQL, or raise \
             `max_pending`",
            "pending",
        );
        let nearly_full = self.about(
            |family| family.full > NEARLY_FULL && !family.is_full(),
            Level::Warning,
            ["nears max_pending", "near max_pending"],
            "Redis refuses further ids at the limit. Restore what keeps hits from MySQL, or raise \
             `max_pending`",
            "pending",
        );
        for problem in [full, nearly_full].into_iter().flatten() {
            problems.push(Problem {
                since: None,
                ..problem
            });
        }
        let number = self.refused.len();
        let shown = if number > MAX_NAMES { 1 } else { number };
        problems.extend(
            self.refused[..shown]
                .iter()
                .map(|RefusedFamily { family, reason }| {
                    let problem = if shown == number {
                        format!("{family} was refused")
                    } else {
                        format!("{number} families were refused, the first is {family}")
                    };
                    let what_to_do =
                        "Correct its settings in the configuration, or its table in MySQL";
                    Problem::new(Level::Error, problem, what_to_do, "check").because(Some(reason))
                }),
        );
        let rejects = self.about(
            |family| family.rejects > 0,
            Level::Warning,
            ["has rejects", "have rejects"],
            &what_to_do_about(&self.reasons),
            "rejects list",
        );
        problems.extend(rejects.map(|problem| Problem {
            why: reasons_of(&self.reasons),
            since: self.reasons.iter().map(|reason| reason.since).min(),
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

/// Returns the reasons of rejects, each with its number.
fn reasons_of(reasons: &[ReasonView]) -> Option<String> {
    let mut numbers: Vec<(&str, u64)> = Vec::new();
    for ReasonView { reason, number, .. } in reasons {
        match numbers.iter_mut().find(|(known, _)| known == reason) {
            Some((_, known)) => *known += number,
            None => numbers.push((reason, *number)),
        }
    }
    let mut more = String::new();
    if numbers.len() > MAX_REASONS {
        more = format!(" and {} more reasons", numbers.len() - MAX_REASONS);
    }
    let shown: Vec<_> = numbers
        .iter()
        .take(MAX_REASONS)
        .map(|(reason, number)| format!("{} ({number})", escaped(reason)))
        .collect();
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}

/// Returns the advice about these reasons, each once, and how the rejects are then retried.
fn what_to_do_about(reasons: &[ReasonView]) -> String {
    let mut advice: Vec<&str> = Vec::new();
    for reason in reasons {
        if !advice.contains(&reason.advice()) {
            advice.push(reason.advice());
        }
    }
    if reasons.is_empty() {
        advice.push("Remove the reasons, which `counterfoil rejects list` prints");
    }
    if reasons.is_empty() || reasons.iter().any(|reason| reason.is_retried) {
        advice.push(
            "The daemon then applies new ones within seconds, and `counterfoil rejects retry --all` \
             all of them",
        );
    }
    advice.join(". ")
}

/// Returns how many families it concerns, with the names of the first.
fn of_families(families: &[&FamilyView], one: &str, many: &str) -> String {
    let names = families
        .iter()
        .take(MAX_NAMES)
        .map(|family| family.name())
        .collect::<Vec<_>>()
        .join(", ");
    match families.len() {
        1 => format!("{names} {one}"),
        number if number <= MAX_NAMES => format!("{names} {many}"),
        number => format!("{number} families {many}: {names} and others"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
    fn consequences_of_an_outage_are_known() {
        let mut pair = pair();
        pair.mysql.up = false;
        pair.families[0].state = State::Late;
        pair.families[1].rejects = 1;
        pair.reconciler.failing = ["mysql", "redis"]
            .map(|server| FailingView {
                step: "flush",
                family: Some("shop/a".to_owned()),
                server,
                error: format!("an error of {server}").as_str().into(),
                since: 1,
                blocks_hits: true,
            })
            .into();
        let problems = pair.problems(131);
        let outage = &problems[0];
        let folded: Vec<_> = problems
            .iter()
            .map(|one| (one.problem.as_str(), one.is_consequence_of(outage)))
            .collect();
        assert_eq!(
            folded,
            [
                ("MySQL is unavailable", false),
                ("flush of shop/a", true),
                ("flush of shop/a", false),
                ("shop/a is late", true),
                ("shop/b has rejects", false),
                ("Figures of families are stale", false),
                ("Figures of overview are stale", true),
            ]
        );
        (pair.redis.up, pair.mysql.up) = (false, true);
        let without_redis = pair.problems(131);
        let of_redis: Vec<_> = without_redis
            .iter()
            .filter(|one| one.is_consequence_of(&without_redis[0]))
            .map(|one| one.problem.as_str())
            .collect();
        assert_eq!(
            of_redis,
            [
                "flush of shop/a",
                "shop/a is late",
                "Figures of families are stale",
                "Figures of overview are stale",
            ]
        );
        pair.redis.up = true;
        let with_both = pair.problems(131);
        assert!(with_both.iter().all(|one| one.caused_by.is_none()));
    }

    #[test]
    fn the_worst_problem_decides_and_comes_first() {
        let change = |pair: &mut PairView| {
            for family in &mut pair.families {
                family.state = State::Late;
            }
            let refused = RefusedFamily {
                family: "shop/x".to_owned(),
                reason: "a reason".into(),
            };
            pair.refused = vec![refused; 1000];
            pair.reconciler.why = Some("a reason".into());
        };
        let expected = [
            "The reconciler does not run",
            "1000 families were refused, the first is shop/x",
            "6 families are late: shop/a, shop/b, shop/c, shop/d, shop/e and others",
        ]
        .map(str::to_owned);
        assert_eq!(health(change, 100), (Health::Down, expected.to_vec()));
    }
}

//! The state of pairs and families, for people and for monitoring.

use std::time::Duration;

use futures_util::future::{join, join_all, try_join_all};
use serde::Serialize;

use super::{Context, daemon_state, servers};
use crate::exit::{Exit, Failure};
use crate::health::{Health, Level, Problem};
use crate::output::{short, table};
use crate::poll::{PairReport, poll};
use crate::status::{FamilyView, LATE, State, unix_now};
use crate::view::{FindingView, ServerView};

/// The state of a pair.
#[derive(Serialize)]
struct PairStatus {
    pair: String,
    state: Health,
    redis: ServerView,
    mysql: ServerView,
    families: Vec<FamilyView>,
    never_opened: Vec<String>,
    /// The worst first.
    problems: Vec<Problem>,
    /// The errors that the daemon reports beyond these, `None` if it did not tell its state, or does
    /// not have the pair.
    daemon: Option<Vec<Problem>>,
}

impl PairStatus {
    fn new(report: PairReport, reported: Option<Vec<Problem>>) -> Self {
        let PairReport {
            view,
            never_opened,
            missing,
        } = report;
        let problems = view.problems_with(missing.into_iter().map(Problem::missing), unix_now());
        let daemon = reported.map(|mut reported| {
            reported.retain(|one| one.is_error() && !problems.iter().any(|own| own.is(one)));
            reported
        });
        PairStatus {
            pair: view.name,
            state: Health::of(problems.iter().chain(daemon.iter().flatten())),
            redis: view.redis,
            mysql: view.mysql,
            families: view.families,
            never_opened,
            problems,
            daemon,
        }
    }

    fn worst(&self) -> Option<Level> {
        self.problems
            .iter()
            .chain(self.daemon.iter().flatten())
            .map(|problem| problem.severity)
            .max()
    }

    /// Returns the state of a family as the list shows it. If the pair has errors, which are
    /// printed below the list, a family that is `ok` by itself shows the state of the pair.
    fn state_of(&self, family: &FamilyView) -> &'static str {
        let has_errors = self.worst() > Some(Level::Warning);
        if family.state == State::Ok && has_errors {
            self.state.name()
        } else {
            family.state.name()
        }
    }

    /// Returns the lines about the servers.
    fn latencies(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, server) in [("Redis", &self.redis), ("MySQL", &self.mysql)] {
            if let Some(latency) = server.latency {
                lines.push(format!(
                    "pair {}: replies of {name} take {latency}",
                    self.pair
                ));
            }
        }
        lines
    }

    /// Returns the lines below the table.
    fn remarks(&self) -> Vec<String> {
        let own = self.problems.iter().map(Problem::to_string);
        let reported = self
            .daemon
            .iter()
            .flatten()
            .map(|problem| format!("the daemon reports {problem}"));
        own.chain(reported)
            .map(|line| format!("pair {}: {line}", self.pair))
            .collect()
    }
}

/// Prints a line for each family. The worst problem decides the exit code.
pub async fn status(context: &Context, late: Duration) -> Result<Exit, Failure> {
    let (reply, reports) = join(
        daemon_state::read(context.config.http.as_ref()),
        poll_all(context, late),
    )
    .await;
    let (daemon, silent) = match reply.transpose() {
        Ok(daemon) => (daemon, None),
        Err(why) => (None, Some(why)),
    };
    let checks = context
        .config
        .pairs
        .iter()
        .zip(reports)
        .map(async |(pair, mut report)| {
            // `check` would report an unavailable server a second time
            if report.view.are_up() {
                let findings = servers::check_pair(pair).await?;
                report.view.checked = FindingView::all(findings, &[], unix_now());
            }
            let reported = daemon.as_ref().and_then(|state| state.problems(&pair.name));
            Ok::<_, Failure>(PairStatus::new(report, reported))
        });
    let statuses = try_join_all(checks).await?;
    context.output.print(&statuses, |statuses| {
        let mut lines = lines(statuses);
        for status in statuses {
            let pair = &status.pair;
            let remarks = status.remarks();
            let is_empty = status.families.is_empty() && status.never_opened.is_empty();
            let is_new = is_empty && remarks.is_empty();
            lines.extend(remarks);
            for family in &status.never_opened {
                lines.push(format!(
                    "pair {pair}: {family} is configured, but was never opened"
                ));
            }
            if is_new {
                lines.push(format!("pair {pair}: no family was opened yet"));
            }
            lines.extend(status.latencies());
            if daemon.is_some() && status.daemon.is_none() {
                lines.push(format!(
                    "pair {pair}: the daemon does not have it; a new pair needs a restart"
                ));
            }
        }
        lines.extend(silent.iter().map(|silent| silent.why.clone()));
        lines
    })?;
    // hits wait for a daemon that does not run, also while no family shows it yet
    let is_missing = silent.is_some_and(|silent| !silent.runs);
    Ok(exit(&statuses).max(Exit::warning_if(is_missing)))
}

/// Prints what waits in Redis for MySQL.
pub async fn pending(context: &Context) -> Result<Exit, Failure> {
    let mut statuses = Vec::new();
    for report in poll_all(context, LATE).await {
        let mut status = PairStatus::new(report, None);
        status
            .families
            .retain(|family| family.pending > 0 || family.problem.is_some());
        statuses.push(status);
    }
    context.output.print(&statuses, |statuses| {
        let mut lines = lines(statuses);
        lines.extend(statuses.iter().flat_map(PairStatus::remarks));
        if lines.is_empty() {
            lines.push("nothing is pending".to_owned());
        }
        lines
    })?;
    Ok(exit(&statuses))
}

fn exit(statuses: &[PairStatus]) -> Exit {
    match statuses.iter().filter_map(PairStatus::worst).max() {
        None => Exit::Ok,
        Some(Level::Warning) => Exit::Warning,
        Some(Level::Error | Level::Down) => Exit::Critical,
    }
}

/// Returns a line for each family, below a head.
fn lines(statuses: &[PairStatus]) -> Vec<String> {
    let now = unix_now();
    let heads = [
        "PAIR", "FAMILY", "KIND", "PENDING", "OLDEST", "SAVED", "REJECTS", "STATE",
    ];
    let mut rows = Vec::new();
    for status in statuses {
        for family in &status.families {
            let saved = match family.last_saved {
                Some(saved) => format!("{} ago", short(now.saturating_sub(saved) as f64)),
                None => String::new(),
            };
            let rejects = if status.mysql.up {
                family.rejects.to_string()
            } else {
                "?".to_owned()
            };
            rows.push([
                status.pair.clone(),
                family.name(),
                family.kind.to_owned(),
                family.pending.to_string(),
                family.oldest_seconds.map(short).unwrap_or_default(),
                saved,
                rejects,
                status.state_of(family).to_owned(),
            ]);
        }
    }
    // the name of the only pair is omitted
    let first = usize::from(statuses.len() == 1);
    let shown: Vec<_> = rows.iter().map(|row| &row[first..]).collect();
    table(&heads[first..], &shown)
}

async fn poll_all(context: &Context, late: Duration) -> Vec<PairReport> {
    let pairs = context.config.pairs.iter();
    join_all(pairs.map(|pair| poll(pair, late))).await
}

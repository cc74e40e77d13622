//! The state of pairs and families, for people and for monitoring.

use std::time::Duration;

use futures_util::future::{join, join_all, try_join_all};
use serde::Serialize;

use super::{Context, daemon_state, servers};
use crate::exit::{Exit, Failure};
use crate::health::{Health, Level, Problem};
use crate::output::{short, table};
use crate::poll::{Polled, poll};
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
    fn new(polled: Polled, reported: Option<Vec<Problem>>) -> Self {
        let Polled {
            view,
            never_opened,
            missing,
        } = polled;
        let missing = missing.into_iter().map(Problem::missing);
        let problems = view.problems_with(missing, unix_now());
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
        let reported = self.daemon.iter().flatten();
        let all = self.problems.iter().chain(reported);
        all.map(|problem| problem.severity).max()
    }

    /// Returns the state of a family as the list shows it: that of the pair instead of `ok` where
    /// errors follow.
    fn state_of(&self, family: &FamilyView) -> &'static str {
        let has_errors = self.worst() > Some(Level::Warning);
        if family.state == State::Ok && has_errors {
            self.state.name()
        } else {
            family.state.name()
        }
    }

    /// Returns the lines below the table.
    fn remarks(&self) -> Vec<String> {
        let own = self.problems.iter().map(Problem::to_string);
        let reported = self.daemon.iter().flatten();
        let reported = reported.map(|problem| format!("the daemon reports {problem}"));
        let lines = own.chain(reported);
        lines
            .map(|line| format!("pair {}: {line}", self.pair))
            .collect()
    }
}

/// Prints a line for each family. The worst problem decides the exit code.
pub async fn status(context: &Context, late: Duration) -> Result<Exit, Failure> {
    let daemon = daemon_state::read(context.config.http.as_ref());
    let (daemon, polled) = join(daemon, poll_all(context, late)).await;
    let (daemon, silent) = match daemon.transpose() {
        Ok(daemon) => (daemon, None),
        Err(why) => (None, Some(why)),
    };
    let pairs = context.config.pairs.iter().zip(polled);
    let checks = pairs.map(async |(pair, mut polled)| {
        // an unavailable server is reported once
        if polled.view.are_up() {
            let findings = servers::findings(pair).await?;
            polled.view.checked = FindingView::all(findings, &[], unix_now());
        }
        let reported = daemon.as_ref().and_then(|state| state.problems(&pair.name));
        Ok::<_, Failure>(PairStatus::new(polled, reported))
    });
    let pairs = try_join_all(checks).await?;
    context.output.print(&pairs, |pairs| {
        let mut lines = lines(pairs);
        for status in pairs {
            let pair = &status.pair;
            let remarks = status.remarks();
            let is_empty = status.families.is_empty() && status.never_opened.is_empty();
            let is_new = is_empty && remarks.is_empty();
            lines.extend(remarks);
            let never_opened = status.never_opened.iter();
            lines.extend(never_opened.map(|family| {
                format!("pair {pair}: {family} is configured, but was never opened")
            }));
            lines.extend(is_new.then(|| format!("pair {pair}: no family was opened yet")));
            let is_missing = daemon.is_some() && status.daemon.is_none();
            lines.extend(is_missing.then(|| {
                format!("pair {pair}: the daemon does not have it; a new pair needs a restart")
            }));
        }
        lines.extend(silent);
        lines
    })?;
    Ok(exit(&pairs))
}

/// Prints what waits in Redis for MySQL.
pub async fn pending(context: &Context) -> Result<Exit, Failure> {
    let polled = poll_all(context, LATE).await.into_iter();
    let pairs = polled.map(|polled| {
        let mut status = PairStatus::new(polled, None);
        let families = &mut status.families;
        families.retain(|family| family.pending > 0 || family.problem.is_some());
        status
    });
    let pairs: Vec<_> = pairs.collect();
    context.output.print(&pairs, |pairs| {
        let mut lines = lines(pairs);
        lines.extend(pairs.iter().flat_map(PairStatus::remarks));
        if lines.is_empty() {
            lines.push("nothing is pending".to_owned());
        }
        lines
    })?;
    Ok(exit(&pairs))
}

fn exit(pairs: &[PairStatus]) -> Exit {
    match pairs.iter().filter_map(PairStatus::worst).max() {
        None => Exit::Ok,
        Some(Level::Warning) => Exit::Warning,
        Some(Level::Error | Level::Down) => Exit::Critical,
    }
}

/// Returns a line for each family, below a head.
fn lines(pairs: &[PairStatus]) -> Vec<String> {
    let now = unix_now();
    let age = |saved: u64| format!("{} ago", short(now.saturating_sub(saved) as f64));
    let mut rows = Vec::new();
    for pair in pairs {
        let rejects = |family: &FamilyView| {
            if pair.mysql.up {
                family.rejects.to_string()
            } else {
                "?".to_owned()
            }
        };
        rows.extend(pair.families.iter().map(|family| {
            [
                pair.pair.clone(),
                family.name(),
                family.kind.to_owned(),
                family.pending.to_string(),
                family.oldest_seconds.map(short).unwrap_or_default(),
                family.last_saved.map(age).unwrap_or_default(),
                rejects(family),
                pair.state_of(family).to_owned(),
            ]
        }));
    }
    let heads = [
        "PAIR", "FAMILY", "KIND", "PENDING", "OLDEST", "SAVED", "REJECTS", "STATE",
    ];
    // the name of the only pair is omitted
    let first = usize::from(pairs.len() == 1);
    let rows: Vec<_> = rows.iter().map(|row| &row[first..]).collect();
    table(&heads[first..], &rows)
}

async fn poll_all(context: &Context, late: Duration) -> Vec<Polled> {
    let pairs = context.config.pairs.iter();
    join_all(pairs.map(|pair| poll(pair, late))).await
}

//! The state of families, for people and for monitoring.

use std::time::Duration;

use counterfoil::Family;
use counterfoil::admin::{Finding, Severity};
use futures_util::future::{join, join_all, try_join_all};

use super::{Context, daemon_state, servers};
use crate::config::FamilyConfig;
use crate::exit::{Exit, Failure};
use crate::output::{short, table};
use crate::poll::{self, PairStatus};
use crate::status::{FamilyView, LATE, State, unix_now};

/// Prints a line for each family. The worst state decides the exit code.
pub async fn status(context: &Context, late: Duration) -> Result<Exit, Failure> {
    let daemon = daemon_state::read(context.config.http.as_ref());
    let (daemon, polled) = join(daemon, poll(context, late)).await;
    let (daemon, silent) = match daemon.transpose() {
        Ok(daemon) => (daemon, None),
        Err(why) => (None, Some(why)),
    };
    let pairs = context.config.pairs.iter().zip(polled);
    let checks = pairs.map(async |(pair, mut status)| {
        // an unavailable server is reported once
        if is_up(&status) {
            status.errors = servers::findings(pair).await?;
            let is_error = |finding: &Finding| finding.severity == Severity::Error;
            status.errors.retain(is_error);
        }
        status.daemon = daemon.as_ref().and_then(|state| {
            let mut reported = state.errors(&pair.name)?;
            reported.retain(|finding| !status.errors.contains(finding));
            Some(reported)
        });
        Ok::<_, Failure>(status)
    });
    let pairs = try_join_all(checks).await?;
    context.output.print(&pairs, |pairs| {
        let mut lines = lines(pairs);
        for status in pairs {
            let pair = &status.pair;
            lines.extend(remarks(status));
            let errors = status.errors.iter();
            lines.extend(errors.map(|error| format!("pair {pair}: {error}")));
            let reported = status.daemon.iter().flatten();
            lines.extend(reported.map(|error| format!("pair {pair}: the daemon reports {error}")));
            let is_missing = daemon.is_some() && status.daemon.is_none();
            lines.extend(is_missing.then(|| {
                format!("pair {pair}: the daemon does not have it; a new pair needs a restart")
            }));
        }
        lines.extend(silent);
        lines
    })?;
    let has_errors = |pair: &PairStatus| {
        let reported = pair.daemon.iter().flatten();
        !is_up(pair) || pair.errors.iter().chain(reported).next().is_some()
    };
    let is_late = |pair: &PairStatus| {
        let mut families = pair.families.iter();
        !pair.missing.is_empty()
            || families.any(|family| family.state != State::Ok || family.is_full())
    };
    Ok(if pairs.iter().any(has_errors) {
        Exit::Critical
    } else {
        Exit::warning_if(pairs.iter().any(is_late))
    })
}

/// Prints what waits in Redis for MySQL.
pub async fn pending(context: &Context) -> Result<Exit, Failure> {
    let mut pairs = poll(context, LATE).await;
    for pair in &mut pairs {
        pair.families
            .retain(|family| family.pending > 0 || family.problem.is_some());
    }
    let are_up = pairs.iter().all(is_up);
    let has_no_problem = pairs.iter().all(|pair| problems(pair).is_empty());
    context.output.print(&pairs, |pairs| {
        let mut lines = lines(pairs);
        if lines.is_empty() && has_no_problem {
            lines.push("nothing is pending".to_owned());
        }
        lines.extend(pairs.iter().flat_map(problems));
        lines
    })?;
    Ok(if are_up {
        Exit::warning_if(!has_no_problem)
    } else {
        Exit::Critical
    })
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
                family.state.name().to_owned(),
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

async fn poll(context: &Context, late: Duration) -> Vec<PairStatus> {
    let pairs = context.config.pairs.iter();
    join_all(pairs.map(|pair| poll::poll(pair, late))).await
}

fn is_up(pair: &PairStatus) -> bool {
    pair.redis.up && pair.mysql.up
}

/// Returns why figures are missing, or hits refused.
fn problems(pair: &PairStatus) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, server) in [("redis", &pair.redis), ("mysql", &pair.mysql)] {
        let why = server.why.iter();
        problems.extend(why.map(|why| format!("{name} is unavailable: {why}")));
    }
    for family in &pair.families {
        let full = family
            .is_full()
            .then_some("max_pending is reached, Redis refuses hits of further ids");
        let all = family.problem.as_deref().into_iter().chain(full);
        problems.extend(all.map(|problem| format!("{}: {problem}", family.name())));
    }
    problems.extend(pair.missing.iter().cloned());
    let name = &pair.pair;
    problems
        .iter()
        .map(|problem| format!("pair {name}: {problem}"))
        .collect()
}

/// Returns the remarks below the table.
fn remarks(pair: &PairStatus) -> Vec<String> {
    let mut remarks = problems(pair);
    let name = &pair.pair;
    for family in &pair.never_opened {
        remarks.push(format!(
            "pair {name}: {family} is configured, but was never opened"
        ));
    }
    if remarks.is_empty() && pair.families.is_empty() {
        remarks.push(format!("pair {name}: no family was opened yet"));
    }
    remarks
}

/// Returns the settings in which the database differs from the configuration.
pub fn differences(
    configured: &FamilyConfig,
    registered: &Family,
) -> counterfoil::Result<Vec<String>> {
    let configured = configured.in_namespace(registered.namespace())?;
    let differs = configured.differences(registered);
    Ok(differs
        .map(|(name, here, there)| format!("{name} is {here} here, and {there} in the database"))
        .collect())
}

//! Waiting until everything is in MySQL.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use counterfoil::admin::Backlog;
use counterfoil::{Counterfoil, Family};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{Context, open, try_connect};
use crate::config::PairConfig;
use crate::exit::{Exit, Failure};
use crate::families;
use crate::limits::{in_time, ticks};
use crate::output::{count, print_message, short};

/// The interval between progress messages.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct DrainReport {
    pair: String,
    drained: bool,
    left: Vec<Left>,
    /// Errors of the pair, and of single families, such as one whose keys in Redis are invalid.
    problems: Vec<String>,
}

impl DrainReport {
    /// Returns why not everything is in MySQL.
    fn reasons(&self) -> String {
        let mut reasons = Vec::new();
        for left in &self.left {
            reasons.push(format!(
                "{}: {}, the oldest {}",
                left.family,
                count(left.pending, "id", "ids"),
                short(left.oldest_seconds)
            ));
        }
        reasons.extend(self.problems.iter().cloned());
        reasons.join("; ")
    }
}

/// A family with data left in Redis.
#[derive(Serialize)]
struct Left {
    family: String,
    pending: u64,
    oldest_seconds: f64,
}

/// Waits until everything is in MySQL.
pub async fn drain(context: &Context, within: Duration) -> Result<Exit, Failure> {
    let end = Instant::now() + within;
    let pairs = &context.config.pairs;
    let drains = join_all(pairs.iter().map(|pair| drain_pair(pair, end))).await;
    let mut exit = Exit::Warning;
    let mut reports = Vec::new();
    for (pair, drained) in pairs.iter().zip(drains) {
        reports.push(drained.unwrap_or_else(|failure| {
            exit = exit.max(failure.exit);
            DrainReport {
                pair: pair.name.clone(),
                drained: false,
                left: Vec::new(),
                problems: vec![failure.message],
            }
        }));
    }
    context.output.print(&reports, |reports| {
        reports
            .iter()
            .filter(|report| report.drained)
            .map(|report| format!("pair {}: everything is in MySQL", report.pair))
            .collect()
    })?;
    if reports.iter().all(|report| report.drained) {
        return Ok(Exit::Ok);
    }
    let not_drained: Vec<_> = reports
        .iter()
        .filter(|report| !report.drained)
        .map(|report| {
            format!(
                "pair {}: not everything is in MySQL: {}. The rest stays in Redis",
                report.pair,
                report.reasons()
            )
        })
        .collect();
    Err(Failure {
        exit,
        message: not_drained.join("; "),
    })
}

async fn drain_pair(pair: &PairConfig, end: Instant) -> Result<DrainReport, Failure> {
    let counterfoil = &try_connect(pair).await?;
    let unopened = open_all(pair, counterfoil).await?;
    let ended = timeout_at(end, async {
        tokio::select! {
            drained = counterfoil.drain() => drained,
            never = print_progress(&pair.name, counterfoil) => never,
        }
    })
    .await;
    let (left, mut problems) = match &ended {
        Ok(Ok(())) => (Vec::new(), Vec::new()),
        _ => match in_time(counterfoil.backlogs()).await {
            Ok(backlogs) => pending(backlogs),
            Err(why) => (Vec::new(), vec![format!("Redis: {why}")]),
        },
    };
    if let Ok(Err(error)) = &ended {
        problems.push(format!("{error:#}"));
    }
    if ended.is_err() && left.is_empty() && problems.is_empty() {
        problems.push("the time limit was reached before the check ended".to_owned());
    }
    problems.extend(unopened.into_values());
    Ok(DrainReport {
        pair: pair.name.clone(),
        drained: problems.is_empty() && left.is_empty(),
        left,
        problems,
    })
}

/// Opens the families of the database, those that only the configuration has, and those of patterns
/// that clients announced or whose names Redis keeps. Returns why some were not opened, by name.
async fn open_all(
    pair: &PairConfig,
    counterfoil: &Counterfoil,
) -> Result<BTreeMap<String, String>, Failure> {
    let (registered, mut unopened) = families::read_registered(counterfoil.store()).await?;
    let mut known = BTreeSet::new();
    for registered in registered {
        known.insert(registered.family.to_string());
        counterfoil.open_registered(registered)?;
    }
    let mut names = pair.family_names();
    if pair.has_patterns() {
        names.extend(counterfoil.take_wanted().await?);
        names.extend(counterfoil.kept().await?);
    }
    for name in names {
        if pair.family(&name).is_some() && known.insert(name.clone()) {
            unopened.remove(&name);
            if let Err(Failure { message, .. }) = open(pair, counterfoil, &name).await {
                let prefix = format!("{name}: ");
                let why = message.strip_prefix(&prefix).unwrap_or(&message);
                unopened.insert(name, prefix + why);
            }
        }
    }
    Ok(unopened)
}

/// Prints what is still pending, every second. Never returns.
async fn print_progress<T>(pair: &str, counterfoil: &Counterfoil) -> T {
    let mut ticks = ticks(INTERVAL);
    ticks.reset();
    loop {
        ticks.tick().await;
        let backlogs = match counterfoil.backlogs().await {
            Ok(backlogs) => backlogs,
            Err(error) => {
                print_message(&format!("pair {pair}: {error:#}"));
                continue;
            }
        };
        let (left, _) = pending(backlogs);
        if !left.is_empty() {
            let ids = left.iter().map(|left| left.pending).sum();
            let oldest = left.iter().map(|left| left.oldest_seconds);
            print_message(&format!(
                "pair {pair}: {} of {} pending, the oldest {}",
                count(ids, "id", "ids"),
                count(left.len() as u64, "family", "families"),
                short(oldest.fold(0.0, f64::max))
            ));
        }
    }
}

/// Returns the families with data left in Redis, and the errors of those whose backlog could not be
/// read.
fn pending(backlogs: Vec<(Family, counterfoil::Result<Backlog>)>) -> (Vec<Left>, Vec<String>) {
    let (mut left, mut problems) = (Vec::new(), Vec::new());
    for (family, backlog) in backlogs {
        match backlog {
            Ok(backlog) if backlog.ids > 0 => left.push(Left {
                family: family.to_string(),
                pending: backlog.ids,
                oldest_seconds: backlog.oldest.unwrap_or_default().as_secs_f64(),
            }),
            Ok(_) => {}
            Err(error) => problems.push(format!("{family}: {error:#}")),
        }
    }
    (left, problems)
}

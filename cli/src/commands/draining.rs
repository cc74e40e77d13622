//! Waiting until everything is in MySQL.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use counterfoil::admin::Backlog;
use counterfoil::{Counterfoil, Error, ErrorKind, Family};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{Context, open, try_connect};
use crate::config::PairConfig;
use crate::exit::{Exit, Failure};
use crate::families;
use crate::limits::{in_time, ticks};
use crate::output::{count, message, short};
use crate::search;

/// The interval between progress messages.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Drained {
    pair: String,
    drained: bool,
    left: Vec<Left>,
    /// Errors, also those of families with invalid keys.
    problems: Vec<String>,
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
    let drains = pairs.iter().map(|pair| drain_pair(pair, end));
    let mut exit = Exit::Warning;
    let drained = join_all(drains).await.into_iter().zip(pairs);
    let drained = drained.map(|(drained, pair)| {
        drained.unwrap_or_else(|failure| {
            exit = exit.max(failure.exit);
            Drained {
                pair: pair.name.clone(),
                drained: false,
                left: Vec::new(),
                problems: vec![failure.message],
            }
        })
    });
    let drained: Vec<_> = drained.collect();
    context.output.print(&drained, |drained| {
        let done = drained.iter().filter(|pair| pair.drained);
        done.map(|pair| format!("pair {}: everything is in MySQL", pair.pair))
            .collect()
    })?;
    let not_done = drained.iter().filter(|pair| !pair.drained).map(|pair| {
        let left = pair.left.iter().map(|left| {
            let ids = count(left.pending, "id", "ids");
            format!(
                "{}: {ids}, the oldest {}",
                left.family,
                short(left.oldest_seconds)
            )
        });
        let left: Vec<_> = left.chain(pair.problems.iter().cloned()).collect();
        format!(
            "pair {}: not everything is in MySQL: {}. The rest stays in Redis",
            pair.pair,
            left.join("; ")
        )
    });
    let not_done: Vec<_> = not_done.collect();
    if not_done.is_empty() {
        Ok(Exit::Ok)
    } else {
        let message = not_done.join("; ");
        Err(Failure { exit, message })
    }
}

async fn drain_pair(pair: &PairConfig, end: Instant) -> Result<Drained, Failure> {
    let counterfoil = &try_connect(pair).await?;
    let (known, unopened) = open_all(pair, counterfoil).await?;
    let draining = counterfoil.drain();
    let progress = print_progress(&pair.name, counterfoil);
    let drained = timeout_at(end, async {
        tokio::select! {
            drained = draining => drained,
            never = progress => never,
        }
    });
    let drained = drained.await;
    let (left, mut problems) = match drained {
        Ok(Ok(())) => (Vec::new(), Vec::new()),
        _ => match in_time(counterfoil.backlogs()).await {
            Ok(backlogs) => pending(backlogs),
            Err(why) => (Vec::new(), vec![format!("Redis: {why}")]),
        },
    };
    if let Ok(Err(error)) = &drained {
        problems.push(format!("{error:#}"));
    }
    if drained.is_err() && left.is_empty() && problems.is_empty() {
        problems.push("the time limit was reached before the check ended".to_owned());
    }
    problems.extend(strangers(counterfoil, &known, end).await);
    problems.extend(unopened.into_values());
    let drained = problems.is_empty() && left.is_empty();
    Ok(Drained {
        pair: pair.name.clone(),
        drained,
        left,
        problems,
    })
}

/// Opens the families of the database, and those that only the configuration has. Returns the names
/// of all, and why some were not opened, by name.
async fn open_all(
    pair: &PairConfig,
    counterfoil: &Counterfoil,
) -> Result<(BTreeSet<String>, BTreeMap<String, String>), Failure> {
    let (registered, mut unopened) = families::registered(counterfoil.store()).await?;
    let mut known: BTreeSet<_> = registered
        .iter()
        .map(|registered| registered.family.to_string())
        .collect();
    for registered in registered {
        counterfoil.open_registered(registered)?;
    }
    let mut names = pair.family_names();
    if pair.has_patterns() {
        let found = search::families(counterfoil.redis()).await;
        names.extend(found.map_err(|error| {
            Error::new(ErrorKind::Redis, "search for namespaces failed").with_source(error)
        })?);
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
    known.extend(unopened.keys().cloned());
    Ok((known, unopened))
}

/// Returns a problem for each family with hits in Redis that neither the database nor the
/// configuration has, so that they were not drained.
async fn strangers(
    counterfoil: &Counterfoil,
    known: &BTreeSet<String>,
    end: Instant,
) -> Vec<String> {
    match timeout_at(end, search::waiting(counterfoil.redis())).await {
        Ok(Ok(waiting)) => waiting
            .difference(known)
            .map(|name| {
                format!(
                    "{name}: hits wait, but the family is not registered in MySQL: describe it in the configuration, \
                     or open it in its application, and drain again"
                )
            })
            .collect(),
        Ok(Err(error)) => vec![format!("the search of Redis for other families failed: {error}")],
        Err(_) => vec!["the time limit was reached before Redis was searched for other families".to_owned()],
    }
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
                message(&format!("pair {pair}: {error:#}"));
                continue;
            }
        };
        let (left, _) = pending(backlogs);
        if !left.is_empty() {
            let ids = left.iter().map(|left| left.pending).sum();
            let oldest = left.iter().map(|left| left.oldest_seconds);
            message(&format!(
                "pair {pair}: {} of {} pending, the oldest {}",
                count(ids, "id", "ids"),
                count(left.len() as u64, "family", "families"),
                short(oldest.fold(0.0, f64::max))
            ));
        }
    }
}

/// Returns the families with data left in Redis, and the problems of others.
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

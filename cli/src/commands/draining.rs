//! Waiting until everything is in MySQL.

use std::time::Duration;

use counterfoil::admin::Backlog;
use counterfoil::{Counterfoil, Error, ErrorKind, Family, Registered};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout_at};

use super::{Context, connect};
use crate::config::{FamilyConfig, PairConfig};
use crate::daemon::discovery;
use crate::exit::{Exit, Failure};
use crate::families::registered;
use crate::output::{count, short};

/// The interval between progress messages.
const TELL: Duration = Duration::from_secs(1);
/// The time limit for reading what is left.
const LOOK: Duration = Duration::from_secs(5);

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
pub async fn drain(context: &Context, within: Duration, all: bool) -> Result<Exit, Failure> {
    let end = Instant::now() + within;
    let drains = context.pairs().map(|pair| async move {
        let connected = connect(pair).await?;
        drain_pair(context, pair, &connected, end, all).await
    });
    let drained = join_all(drains)
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
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
            "pair {}: not all is in MySQL: {}. It stays in Redis",
            pair.pair,
            left.join("; ")
        )
    });
    let not_done: Vec<_> = not_done.collect();
    if not_done.is_empty() {
        Ok(Exit::Ok)
    } else {
        Err(Failure::warning(not_done.join("; ")))
    }
}

async fn drain_pair(
    context: &Context,
    pair: &PairConfig,
    counterfoil: &Counterfoil,
    end: Instant,
    all: bool,
) -> Result<Drained, Failure> {
    open_all(context, pair, counterfoil).await?;
    let draining = async {
        if all {
            counterfoil.drain_all().await
        } else {
            counterfoil.drain().await
        }
    };
    let telling = tell(&pair.name, counterfoil);
    let drained = timeout_at(end, async {
        tokio::select! {
            drained = draining => drained,
            never = telling => never,
        }
    });
    let drained = drained.await;
    let (left, mut problems) = match drained {
        Ok(Ok(())) => (Vec::new(), Vec::new()),
        _ => look(counterfoil).await,
    };
    if let Ok(Err(error)) = &drained {
        problems.push(error.to_string());
    }
    if drained.is_err() && left.is_empty() && problems.is_empty() {
        problems.push("the time was over before it was certain".to_owned());
    }
    let drained = problems.is_empty() && left.is_empty();
    Ok(Drained {
        pair: pair.name.clone(),
        drained,
        left,
        problems,
    })
}

/// Opens the families of the database, and those that only the configuration has.
async fn open_all(
    context: &Context,
    pair: &PairConfig,
    counterfoil: &Counterfoil,
) -> Result<(), Failure> {
    let known = registered(counterfoil).await?;
    let is_new = |namespace: &str, name: &str| {
        let is_it = |known: &Registered| {
            known.family.namespace() == namespace && known.family.name() == name
        };
        !known.iter().any(is_it)
    };
    let (patterns, single): (Vec<_>, Vec<_>) = context
        .described(pair)
        .partition(|family| family.is_pattern());
    for described in single
        .into_iter()
        .filter(|family| is_new(&family.namespace, &family.family))
    {
        counterfoil.open(described.sample()?).await?;
    }
    if !patterns.is_empty() {
        let found = discovery::families(counterfoil.redis()).await;
        let found = found.map_err(|error| {
            Error::new(ErrorKind::Redis, "no namespaces were looked for").with_source(error)
        })?;
        for (namespace, name) in found
            .iter()
            .filter(|(namespace, name)| is_new(namespace, name))
        {
            let describes = |described: &&&FamilyConfig| described.describes(namespace, name);
            if let Some(described) = patterns.iter().find(describes) {
                counterfoil.open(described.in_namespace(namespace)?).await?;
            }
        }
    }
    for known in known {
        counterfoil.open_registered(known)?;
    }
    Ok(())
}

/// Prints what is still pending, every second. Never returns.
async fn tell<T>(pair: &str, counterfoil: &Counterfoil) -> T {
    let mut ticks = interval_at(Instant::now() + TELL, TELL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Ok(backlogs) = counterfoil.backlogs().await else {
            eprintln!("pair {pair}: Redis does not reply");
            continue;
        };
        let pending = backlogs
            .iter()
            .filter_map(|(_, backlog)| backlog.as_ref().ok())
            .filter(|backlog| backlog.ids > 0);
        let (ids, families, oldest) = pending.fold(
            (0, 0, Duration::ZERO),
            |(ids, families, oldest), backlog| {
                (
                    ids + backlog.ids,
                    families + 1,
                    oldest.max(backlog.oldest.unwrap_or_default()),
                )
            },
        );
        if ids > 0 {
            let (ids, families) = (
                count(ids, "id", "ids"),
                count(families, "family", "families"),
            );
            eprintln!(
                "pair {pair}: {ids} of {families} pending, the oldest {}",
                short(oldest.as_secs_f64())
            );
        }
    }
}

/// Returns what is left, and the problems.
async fn look(counterfoil: &Counterfoil) -> (Vec<Left>, Vec<String>) {
    let looked = timeout_at(Instant::now() + LOOK, counterfoil.backlogs()).await;
    let backlogs = match looked {
        Ok(Ok(backlogs)) => backlogs,
        Ok(Err(error)) => return (Vec::new(), vec![error.to_string()]),
        Err(_) => return (Vec::new(), vec!["Redis does not reply".to_owned()]),
    };
    let (mut left, mut problems) = (Vec::new(), Vec::new());
    for (family, backlog) in backlogs {
        match backlog {
            Ok(backlog) if backlog.ids > 0 => left.push(left_of(&family, &backlog)),
            Ok(_) => {}
            Err(error) => problems.push(format!("{family}: {error}")),
        }
    }
    (left, problems)
}

fn left_of(family: &Family, backlog: &Backlog) -> Left {
    let oldest_seconds = backlog.oldest.unwrap_or_default().as_secs_f64();
    Left {
        family: family.to_string(),
        pending: backlog.ids,
        oldest_seconds,
    }
}

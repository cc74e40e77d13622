//! Recounts, which compare counters with the rows that they count.

use std::time::Duration;

use counterfoil::admin::Drift;
use counterfoil::{Counterfoil, Family, Mode, MysqlStore, Recounted, Store};
use serde::Serialize;
use tokio::time::sleep;

use super::{Context, connect};
use crate::config::{FamilyConfig, PairConfig, Recount};
use crate::daemon::recounts::configured;
use crate::exit::{Exit, Failure};
use crate::output::{moment, table};
use crate::pair::{self};
use crate::view::DriftView;

/// The interval between progress messages.
const TELL: Duration = Duration::from_secs(1);
/// The number of rows in a read.
const PAGE: u64 = 1000;

#[derive(Serialize)]
struct Found {
    family: String,
    run: u64,
    checked: u64,
    drifted: u64,
    raised: u64,
    lowered: u64,
    only_noted: u64,
    /// Counters that changed too often to be compared.
    busy: u64,
    drift: Vec<DriftView>,
}

/// Recounts a family once.
pub async fn recount(context: &Context, family: &str, report: bool) -> Result<Exit, Failure> {
    let pair = context.pair_of(family)?;
    let describes = |described: &&FamilyConfig| {
        family
            .split_once('/')
            .is_some_and(|(namespace, name)| described.describes(namespace, name))
    };
    let configured = context
        .described(pair)
        .find(describes)
        .and_then(|described| described.recount.as_ref());
    let mut recount = configured.cloned().ok_or_else(|| {
        Failure::usage(format!(
            "the configuration has no [family.recount] for {family}: where are its rows?"
        ))
    })?;
    if report {
        recount.mode = Mode::Report;
    }
    let connected = connect(pair).await?;
    let (recounted, drift) = run(context, pair, &connected, family, &recount).await?;
    let Recounted {
        run,
        checked,
        drifted,
        raised,
        lowered,
        only_noted,
        busy,
        ..
    } = recounted;
    let found = views(family, run, &drift);
    let found = Found {
        family: family.to_owned(),
        run,
        checked,
        drifted,
        raised,
        lowered,
        only_noted,
        busy,
        drift: found,
    };
    context.output.print(&found, |found| {
        let mut lines = vec![format!(
            "run {run}: {checked} checked, {drifted} differ: {raised} raised, {lowered} lowered, \
             {only_noted} only noted; {busy} moved too much to tell"
        )];
        lines.extend(rows(&found.drift));
        lines
    })?;
    Ok(if only_noted > 0 {
        Exit::Warning
    } else {
        Exit::Ok
    })
}

async fn run(
    context: &Context,
    pair: &PairConfig,
    counterfoil: &Counterfoil,
    family: &str,
    recount: &Recount,
) -> Result<(Recounted, Vec<Drift>), Failure> {
    let counters = context.open(pair, counterfoil, family).await?;
    let recount = configured(counterfoil, &counters, recount);
    let recount =
        recount.ok_or_else(|| Failure::usage(format!("{family}: its kind is not recounted")))?;
    let store = counterfoil.mysql()?;
    let recounted = tokio::select! {
        recounted = Box::pin(recount.run_once()) => recounted?,
        never = tell(store, family) => never,
    };
    let drift = drift_of(store, counters.family(), recounted.run).await?;
    Ok((recounted, drift))
}

/// Prints the progress of the run, every second. Never returns.
async fn tell<T>(store: &MysqlStore, family: &str) -> T {
    loop {
        sleep(TELL).await;
        let Ok(overview) = store.overview().await else {
            continue;
        };
        let is_it = |namespace: &str, name: &str| family.split_once('/') == Some((namespace, name));
        let of_family = overview
            .into_iter()
            .find(|one| is_it(&one.namespace, &one.family));
        if let Some(run) = of_family
            .and_then(|one| one.recount)
            .filter(|run| run.finished.is_none())
        {
            eprintln!(
                "{family}: run {}: {} checked, {} differ",
                run.run, run.checked, run.drifted
            );
        }
    }
}

/// Prints the differences that a run found.
pub async fn drift(context: &Context, family: &str, run: Option<u64>) -> Result<Exit, Failure> {
    let store = pair::store(context.pair_of(family)?)?;
    let mut known = store.families().await?.into_iter().filter_map(Result::ok);
    let known = known.find(|known| known.family.to_string() == family);
    let known =
        known.ok_or_else(|| Failure::usage(format!("the database has no family {family}")))?;
    let run = match run {
        Some(run) => run,
        None => last_run(&store, &known.family).await?.ok_or_else(|| {
            Failure::warning(format!(
                "{family} was never recounted: `counterfoil recount {family}`"
            ))
        })?,
    };
    let found = views(family, run, &drift_of(&store, &known.family, run).await?);
    context.output.print(&found, |found| {
        if found.is_empty() {
            vec![format!(
                "run {run} found no counter that differs from its rows"
            )]
        } else {
            rows(found)
        }
    })?;
    Ok(Exit::Ok)
}

async fn last_run(store: &MysqlStore, family: &Family) -> Result<Option<u64>, Failure> {
    let overview = store.overview().await?;
    let of_family = overview
        .into_iter()
        .find(|one| one.namespace == family.namespace() && one.family == family.name());
    Ok(of_family
        .and_then(|one| one.recount)
        .map(|recount| recount.run))
}

async fn drift_of(store: &MysqlStore, family: &Family, run: u64) -> Result<Vec<Drift>, Failure> {
    let mut all: Vec<Drift> = Vec::new();
    loop {
        let after = all.last().map(|drift| drift.id.clone());
        let page = store.drift(family, run, after.as_deref(), PAGE).await?;
        let is_last = (page.len() as u64) < PAGE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

fn views(family: &str, run: u64, drift: &[Drift]) -> Vec<DriftView> {
    drift
        .iter()
        .map(|drift| DriftView::new(family, run, drift))
        .collect()
}

fn rows(drift: &[DriftView]) -> Vec<String> {
    let row = |drift: &DriftView| {
        let numbers =
            [drift.before, drift.rows, drift.after, drift.delta].map(|number| number.to_string());
        let at = moment(std::time::UNIX_EPOCH + Duration::from_secs(drift.at));
        [
            vec![format!("{:?}", drift.id)],
            numbers.to_vec(),
            vec![at, drift.note.clone()],
        ]
        .concat()
    };
    if drift.is_empty() {
        Vec::new()
    } else {
        let rows: Vec<_> = drift.iter().map(row).collect();
        table(
            &["ID", "BEFORE", "ROWS", "AFTER", "ADDED", "AT", "NOTE"],
            &rows,
        )
    }
}

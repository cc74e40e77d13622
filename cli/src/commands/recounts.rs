//! Recounts, which compare counters with the rows that they count.

use std::time::Duration;

use counterfoil::admin::{Drift, Overview};
use counterfoil::recount::RecountProgress;
use counterfoil::{Counterfoil, Family, MysqlStore};
use serde_json::json;
use tokio::time::sleep;

use super::{Context, connect, find_registered, open};
use crate::config::{PairConfig, Recount};
use crate::exit::{Exit, Failure};
use crate::families;
use crate::output::{moment, print_message, table};
use crate::pair;
use crate::signals;
use crate::view::DriftView;

/// The interval between progress messages.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of rows in a read.
const PAGE: u64 = 1000;

/// Recounts a family once.
pub async fn recount(context: &Context, family: &str, report: bool) -> Result<Exit, Failure> {
    let pair = context.pair_of(family)?;
    let configured = pair.family(family);
    let mut recount = configured
        .and_then(|configured| configured.recount.clone())
        .ok_or_else(|| {
            Failure::usage(format!(
                "the configuration has no [family.recount] for {family}"
            ))
        })?;
    recount.settings.only_report |= report;
    let connected = connect(pair).await?;
    let (progress, found) = run(pair, &connected, family, &recount).await?;
    let RecountProgress {
        run,
        checked,
        drifted,
        raised,
        lowered,
        only_noted,
        busy,
        ..
    } = progress;
    let drift = DriftView::all(family, run, found);
    let result = json!({
        "family": family,
        "run": run,
        "checked": checked,
        "drifted": drifted,
        "raised": raised,
        "lowered": lowered,
        "only_noted": only_noted,
        "busy": busy,
        "drift": drift,
    });
    context.output.print(&result, |_| {
        let mut lines = vec![format!(
            "run {run}: {checked} checked, {drifted} differ: {raised} raised, {lowered} lowered, \
             {only_noted} only noted; {busy} too busy to compare"
        )];
        lines.extend(rows(&drift));
        lines
    })?;
    Ok(Exit::warning_if(only_noted > 0))
}

async fn run(
    pair: &PairConfig,
    counterfoil: &Counterfoil,
    family: &str,
    recount: &Recount,
) -> Result<(RecountProgress, Vec<Drift>), Failure> {
    let counters = open(pair, counterfoil, family).await?;
    let builder = families::recount(counterfoil, &counters, recount)
        .ok_or_else(|| Failure::usage(format!("{family}: its kind cannot be recounted")))?;
    let store = counterfoil.mysql()?;
    let stop = signals::stop()?;
    let ended = tokio::select! {
        ended = Box::pin(builder.run_until(stop)) => ended?,
        never = print_progress(store, family) => never,
    };
    let progress = ended.ok_or_else(|| {
        Failure::warning(format!(
            "stopped: the next recount of {family} continues this run"
        ))
    })?;
    let drift = read_drift(store, counters.family(), progress.run).await?;
    Ok((progress, drift))
}

/// Prints the progress of the run, every second. Never returns.
async fn print_progress<T>(store: &MysqlStore, family: &str) -> T {
    loop {
        sleep(INTERVAL).await;
        let Ok(Some(overview)) = read_overview(store, family).await else {
            continue;
        };
        if let Some(run) = overview.recount.filter(|run| run.finished.is_none()) {
            print_message(&format!(
                "{family}: run {}: {} checked, {} differ",
                run.run, run.checked, run.drifted
            ));
        }
    }
}

async fn read_overview(store: &MysqlStore, family: &str) -> counterfoil::Result<Option<Overview>> {
    let mut overview = store.overview().await?.into_iter();
    Ok(overview.find(|one| family.split_once('/') == Some((&one.namespace, &one.family))))
}

/// Prints the differences that a run found.
pub async fn drift(context: &Context, family: &str, run: Option<u64>) -> Result<Exit, Failure> {
    let store = pair::store(context.pair_of(family)?)?;
    let registered = find_registered(&store, family).await?.family;
    let overview = read_overview(&store, family).await?;
    let last_run = overview
        .and_then(|one| Some(one.recount?.run))
        .ok_or_else(|| {
            Failure::warning(format!(
                "{family} was never recounted: run `counterfoil recount {family}`"
            ))
        })?;
    let run = run.unwrap_or(last_run);
    if !(1..=last_run).contains(&run) {
        let what = format!("{family} has no run {run}; the last one is {last_run}");
        return Err(Failure::warning(what));
    }
    let drift = read_drift(&store, &registered, run).await?;
    let found = DriftView::all(family, run, drift);
    context.output.print(&found, |found| {
        if found.is_empty() {
            vec![format!(
                "run {run} found no counter that differs from its rows"
            )]
        } else {
            rows(found)
        }
    })
}

async fn read_drift(store: &MysqlStore, family: &Family, run: u64) -> Result<Vec<Drift>, Failure> {
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

/// Returns a line for each difference, below a head.
fn rows(drift: &[DriftView]) -> Vec<String> {
    let heads = ["ID", "BEFORE", "ROWS", "ADDED", "AFTER", "AT", "NOTE"];
    let mut rows = Vec::new();
    for one in drift {
        rows.push([
            format!("{:?}", one.id),
            one.before.to_string(),
            one.rows.to_string(),
            one.delta.to_string(),
            one.after.to_string(),
            moment(one.at),
            one.note.clone(),
        ]);
    }
    table(&heads, &rows)
}

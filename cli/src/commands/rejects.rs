//! Rejects: changes that rows refused, to list, retry or discard.

use std::collections::BTreeMap;

use counterfoil::MysqlStore;
use counterfoil::admin::RetrySummary;
use serde::Serialize;
use serde_json::json;

use super::{Context, find_registered};
use crate::arguments::{Rejects, Which};
use crate::exit::{Exit, Failure};
use crate::output::{confirm, count, isolated, moment, table};
use crate::pair;
use crate::rejects::RejectView;

/// The number of rejects in a read.
const PAGE: u64 = 1000;
/// The number of refused rejects of a family that a retry prints.
const REFUSED: u64 = 10;

pub async fn execute(context: &Context, command: Rejects) -> Result<Exit, Failure> {
    match command {
        Rejects::List { family, limit } => list(context, family.as_deref(), limit).await,
        Rejects::Retry { which } => retry(context, &which).await,
        Rejects::Discard {
            which,
            yes,
            dry_run,
        } => discard(context, &which, yes, dry_run).await,
    }
}

#[derive(Serialize)]
struct ListedReject<'a> {
    pair: &'a str,
    #[serde(flatten)]
    reject: RejectView,
}

async fn list(context: &Context, family: Option<&str>, limit: u64) -> Result<Exit, Failure> {
    let mut by_pair = Vec::new();
    for pair in &context.config.pairs {
        let rejects = read(&pair::store(pair)?, family, limit)
            .await
            .map_err(Failure::of_pair(&pair.name))?;
        by_pair.push((pair.name.as_str(), rejects));
    }
    print_rejects(context, by_pair)
}

/// Prints rejects, which are given by pair.
fn print_rejects(
    context: &Context,
    by_pair: Vec<(&str, Vec<RejectView>)>,
) -> Result<Exit, Failure> {
    let mut listed = Vec::new();
    for (pair, rejects) in by_pair {
        let rejects = rejects.into_iter();
        listed.extend(rejects.map(|reject| ListedReject { pair, reject }));
    }
    context.output.print(&listed, |listed| lines(listed))
}

/// Returns a line for each reject, below a head.
fn lines(listed: &[ListedReject<'_>]) -> Vec<String> {
    if listed.is_empty() {
        return vec!["no rejects".to_owned()];
    }
    let heads = [
        "PAIR", "FAMILY", "ID", "DELTA", "RETRIES", "SINCE", "REASON",
    ];
    let mut rows = Vec::new();
    for ListedReject { pair, reject } in listed {
        rows.push([
            (*pair).to_owned(),
            reject.family.clone(),
            format!("{:?}", reject.id),
            reject.delta.to_string(),
            reject.retries.to_string(),
            moment(reject.at),
            reject.reason.clone(),
        ]);
    }
    table(&heads, &rows)
}

/// Returns the first `limit` rejects of a family, or of all families.
async fn read(
    store: &MysqlStore,
    family: Option<&str>,
    limit: u64,
) -> Result<Vec<RejectView>, Failure> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let wanted = PAGE.min(limit - all.len() as u64);
        let page = store.rejects(family, after.as_deref(), wanted).await?;
        let is_last = (page.len() as u64) < wanted;
        after = page.last().map(|reject| reject.cursor.clone());
        all.extend(RejectView::all(page));
        if is_last || all.len() as u64 == limit {
            return Ok(all);
        }
    }
}

/// Returns the families that the command line names, each with the number of its rejects.
async fn read_families(
    store: &MysqlStore,
    which: &Which,
) -> Result<BTreeMap<String, u64>, Failure> {
    let mut families = BTreeMap::new();
    for one in store.overview().await? {
        let family = format!("{}/{}", one.namespace, one.family);
        let is_wanted = which
            .family
            .as_deref()
            .is_none_or(|wanted| family == wanted);
        if one.rejects > 0 && is_wanted {
            families.insert(family, one.rejects);
        }
    }
    Ok(families)
}

impl Which {
    /// Returns the ids; `None` for all.
    fn ids(&self) -> Option<Vec<&str>> {
        (!self.ids.is_empty()).then(|| self.ids.iter().map(|id| &**id).collect())
    }
}

/// The numbers of rejects by the outcome of their retry.
#[derive(Default, Serialize)]
struct RetryReport {
    applied: u64,
    /// Rejects that were refused again.
    refused: u64,
    /// Rejects that are left for a later retry, because their rows are locked.
    left: u64,
    /// Families whose rejects cannot be applied, because this version does not know their settings,
    /// or their tables differ from their descriptions.
    failed: Vec<FailedFamily>,
    #[serde(skip)]
    still: Vec<RejectView>,
}

#[derive(Serialize)]
struct FailedFamily {
    family: String,
    why: String,
}

async fn retry(context: &Context, which: &Which) -> Result<Exit, Failure> {
    let store = pair::store(context.pair()?)?;
    let mut report = RetryReport::default();
    for family in read_families(&store, which).await?.into_keys() {
        match retry_family(&store, &family, which).await {
            Ok(retried) => {
                report.applied += retried.applied;
                report.refused += retried.refused;
                report.left += retried.left;
                if retried.refused > 0 {
                    report
                        .still
                        .extend(read(&store, Some(&family), REFUSED).await?);
                }
            }
            Err(Failure { message: why, .. }) => report.failed.push(FailedFamily { family, why }),
        }
    }
    context.output.print(&report, |report| {
        let mut lines = vec![format!("applied: {}", report.applied)];
        if report.refused > 0 {
            lines.push(format!("refused again: {}", report.refused));
        }
        for reject in &report.still {
            let id = isolated(&format!("{:?}", reject.id));
            let reason = isolated(&reject.reason);
            lines.push(format!("  {} {id}: {reason}", reject.family));
        }
        if report.left > 0 {
            lines.push(format!(
                "not applied, because their rows are locked: {}",
                report.left
            ));
        }
        for FailedFamily { family, why } in &report.failed {
            lines.push(format!("not applied: {family}: {why}"));
        }
        lines
    })?;
    let is_done = report.refused + report.left == 0 && report.failed.is_empty();
    let is_found = report.applied >= which.ids.len() as u64;
    Ok(Exit::warning_if(!is_done || !is_found))
}

/// Retries the rejects of a family, or those of the ids that the command line names.
async fn retry_family(
    store: &MysqlStore,
    family: &str,
    which: &Which,
) -> Result<RetrySummary, Failure> {
    let known = find_registered(store, family).await?.family;
    Ok(store.retry_rejects(&known, which.ids().as_deref()).await?)
}

async fn discard(
    context: &Context,
    which: &Which,
    yes: bool,
    dry_run: bool,
) -> Result<Exit, Failure> {
    let pair = context.pair()?;
    let store = pair::store(pair)?;
    if dry_run {
        let mut rejects = read(&store, which.family.as_deref(), u64::MAX).await?;
        rejects.retain(|reject| which.ids.is_empty() || which.ids.contains(&reject.id));
        return print_rejects(context, vec![(&pair.name, rejects)]);
    }
    let families = read_families(&store, which).await?;
    if which.ids.is_empty() && !families.is_empty() {
        let number = count(families.values().sum(), "reject", "rejects");
        let name = &pair.name;
        confirm(
            &format!("pair {name}: discard {number}, which are then never applied?"),
            yes,
        )?;
    }
    let mut discarded = 0;
    for family in families.into_keys() {
        let ids = which.ids();
        discarded += store.discard_rejects(&family, ids.as_deref()).await?;
    }
    context
        .output
        .print(&json!({ "discarded": discarded }), |_| {
            vec![format!("discarded: {discarded}")]
        })?;
    Ok(Exit::warning_if(discarded < which.ids.len() as u64))
}

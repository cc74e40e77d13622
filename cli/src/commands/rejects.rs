//! Rejects: changes that rows refused, to list, retry or discard.

use std::collections::BTreeMap;

use counterfoil::MysqlStore;
use serde::Serialize;
use serde_json::json;

use super::{Context, registered};
use crate::arguments::{Rejects, Which};
use crate::exit::{Exit, Failure};
use crate::output::{confirm, count, isolated, moment, table};
use crate::pair;
use crate::view::RejectView;

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
struct Listed<'a> {
    pair: &'a str,
    #[serde(flatten)]
    reject: RejectView,
}

async fn list(context: &Context, family: Option<&str>, limit: u64) -> Result<Exit, Failure> {
    let mut listed = Vec::new();
    for pair in &context.config.pairs {
        let rejects = read(&pair::store(pair)?, family, limit).await;
        let rejects = rejects.map_err(Failure::of_pair(&pair.name))?;
        listed.push((pair.name.as_str(), rejects));
    }
    print_rejects(context, listed)
}

/// Prints rejects, which are given by pair.
fn print_rejects(
    context: &Context,
    rejects: Vec<(&str, Vec<RejectView>)>,
) -> Result<Exit, Failure> {
    let listed = rejects.into_iter().flat_map(|(pair, rejects)| {
        let rejects = rejects.into_iter();
        rejects.map(move |reject| Listed { pair, reject })
    });
    let listed: Vec<_> = listed.collect();
    context.output.print(&listed, |listed| {
        if listed.is_empty() {
            return vec!["no rejects".to_owned()];
        }
        let row = |Listed { pair, reject }: &Listed<'_>| {
            [
                (*pair).to_owned(),
                reject.family.clone(),
                format!("{:?}", reject.id),
                reject.delta.to_string(),
                reject.retries.to_string(),
                moment(reject.at),
                reject.reason.clone(),
            ]
        };
        let heads = [
            "PAIR", "FAMILY", "ID", "DELTA", "RETRIES", "SINCE", "REASON",
        ];
        let rows: Vec<_> = listed.iter().map(row).collect();
        table(&heads, &rows)
    })
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
async fn families(store: &MysqlStore, which: &Which) -> Result<BTreeMap<String, u64>, Failure> {
    let overview = store.overview().await?.into_iter();
    let families = overview.map(|one| (format!("{}/{}", one.namespace, one.family), one.rejects));
    let wanted = which.family.as_deref();
    let is_wanted = |(family, rejects): &(String, u64)| {
        *rejects > 0 && wanted.is_none_or(|wanted| family == wanted)
    };
    Ok(families.filter(is_wanted).collect())
}

impl Which {
    /// Returns the ids; `None` for all.
    fn ids(&self) -> Option<Vec<&str>> {
        let ids = || self.ids.iter().map(|id| &**id).collect();
        (!self.ids.is_empty()).then(ids)
    }
}

/// The numbers of rejects by the outcome of their retry.
#[derive(Default, Serialize)]
struct Outcome {
    applied: u64,
    /// Refused again.
    refused: u64,
    /// Their rows are locked.
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
    let mut outcome = Outcome::default();
    for family in families(&store, which).await?.into_keys() {
        let retried = async {
            let known = registered(&store, &family).await?.family;
            Ok(store.retry_rejects(&known, which.ids().as_deref()).await?)
        };
        match retried.await {
            Ok(retried) => {
                outcome.applied += retried.applied;
                outcome.refused += retried.refused;
                outcome.left += retried.left;
                if retried.refused > 0 {
                    outcome
                        .still
                        .extend(read(&store, Some(&family), REFUSED).await?);
                }
            }
            Err(Failure { message: why, .. }) => outcome.failed.push(FailedFamily { family, why }),
        }
    }
    context.output.print(&outcome, |outcome| {
        let mut lines = vec![format!("applied: {}", outcome.applied)];
        if outcome.refused > 0 {
            lines.push(format!("refused again: {}", outcome.refused));
        }
        lines.extend(outcome.still.iter().map(|reject| {
            let id = isolated(&format!("{:?}", reject.id));
            format!("  {} {id}: {}", reject.family, isolated(&reject.reason))
        }));
        if outcome.left > 0 {
            lines.push(format!(
                "not applied, because their rows are locked: {}",
                outcome.left
            ));
        }
        let failed = outcome.failed.iter();
        lines.extend(failed.map(|one| format!("not applied: {}: {}", one.family, one.why)));
        lines
    })?;
    let is_done = outcome.refused + outcome.left == 0 && outcome.failed.is_empty();
    let is_found = outcome.applied >= which.ids.len() as u64;
    Ok(Exit::warning_if(!is_done || !is_found))
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
    let families = families(&store, which).await?;
    if which.ids.is_empty() && !families.is_empty() {
        let rejects = count(families.values().sum(), "reject", "rejects");
        let name = &pair.name;
        confirm(
            &format!("pair {name}: discard {rejects}, which are then never applied?"),
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

//! Rejects: changes that rows refused, to list, retry or discard.

use std::collections::{BTreeMap, BTreeSet};

use counterfoil::MysqlStore;
use counterfoil::admin::Retried;
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
        let rejects = open_rejects(&pair::store(pair)?, limit, family).await;
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
                reject.number.to_string(),
                reject.family.clone(),
                format!("{:?}", reject.id),
                reject.delta.to_string(),
                reject.times.to_string(),
                moment(reject.at),
                reject.reason.clone(),
            ]
        };
        let heads = [
            "PAIR", "NUMBER", "FAMILY", "ID", "DELTA", "TIMES", "SINCE", "REASON",
        ];
        let rows: Vec<_> = listed.iter().map(row).collect();
        table(&heads, &rows)
    })
}

/// Returns the first `limit` open rejects of a family, or of all families, ascending.
async fn open_rejects(
    store: &MysqlStore,
    limit: u64,
    family: Option<&str>,
) -> Result<Vec<RejectView>, Failure> {
    let (mut open, mut after) = (Vec::new(), 0);
    loop {
        let page = store.rejects(after, PAGE).await?;
        let is_last = (page.len() as u64) < PAGE;
        after = page.last().map_or(after, |reject| reject.number);
        let page = RejectView::all(page).into_iter();
        open.extend(page.filter(|reject| family.is_none_or(|family| reject.family == family)));
        if is_last || open.len() as u64 >= limit {
            open.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            return Ok(open);
        }
    }
}

/// Returns the open rejects that the command line names, and the numbers that match none.
async fn select(store: &MysqlStore, which: &Which) -> Result<(Vec<RejectView>, Vec<u64>), Failure> {
    if which.numbers.is_empty() {
        let rejects = open_rejects(store, u64::MAX, which.family.as_deref()).await?;
        return Ok((rejects, Vec::new()));
    }
    let (mut selected, mut not_found) = (Vec::new(), Vec::new());
    for &number in BTreeSet::from_iter(&which.numbers) {
        match open_reject(store, number).await? {
            Some(reject) => selected.push(reject),
            None => not_found.push(number),
        }
    }
    Ok((selected, not_found))
}

/// Returns the reject with this number, if it is open.
async fn open_reject(store: &MysqlStore, number: u64) -> Result<Option<RejectView>, Failure> {
    let found = store.rejects(number.saturating_sub(1), 1).await?;
    let mut found = RejectView::all(found).into_iter();
    Ok(found.find(|reject| reject.number == number))
}

/// The outcome of a retry, by the rejects' numbers.
#[derive(Default, Serialize)]
struct Outcome {
    applied: Vec<u64>,
    /// Rejects that another process had applied or discarded.
    done_before: Vec<u64>,
    /// Rejects that were refused again, with the new reasons.
    refused: Vec<RejectView>,
    /// Rejects that cannot be applied, because this version does not know their family or its table
    /// differs from its description.
    left: Vec<Left>,
    /// Numbers that match no open reject.
    not_found: Vec<u64>,
}

#[derive(Serialize)]
struct Left {
    family: String,
    numbers: Vec<u64>,
    why: String,
}

async fn retry(context: &Context, which: &Which) -> Result<Exit, Failure> {
    let pair = context.pair()?;
    let store = pair::store(pair)?;
    let (selected, not_found) = select(&store, which).await?;
    let mut outcome = apply(&store, selected).await?;
    outcome.not_found = not_found;
    context.output.print(&outcome, |outcome| {
        let mut lines = vec![format!("applied: {}", outcome.applied.len())];
        if !outcome.done_before.is_empty() {
            let number = outcome.done_before.len();
            lines.push(format!("already applied or discarded: {number}"));
        }
        lines.extend(outcome.refused.iter().map(|reject| {
            format!(
                "refused again: {} of {}, {}: {}",
                reject.number,
                reject.family,
                isolated(&format!("{:?}", reject.id)),
                isolated(&reject.reason)
            )
        }));
        lines.extend(outcome.left.iter().map(|left| {
            let rejects = count(left.numbers.len() as u64, "reject", "rejects");
            format!("not applied: {rejects} of {}: {}", left.family, left.why)
        }));
        lines.extend(outcome.not_found.iter().map(not_open));
        lines
    })?;
    let is_done =
        outcome.refused.is_empty() && outcome.left.is_empty() && outcome.not_found.is_empty();
    Ok(Exit::warning_if(!is_done))
}

fn not_open(number: &u64) -> String {
    format!("not an open reject: {number}")
}

/// Retries each reject once, family by family.
async fn apply(store: &MysqlStore, rejects: Vec<RejectView>) -> Result<Outcome, Failure> {
    let mut by_family: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for RejectView { family, number, .. } in rejects {
        by_family.entry(family).or_default().push(number);
    }
    let mut outcome = Outcome::default();
    for (family, numbers) in by_family {
        let retried = async {
            let known = registered(store, &family).await?.family;
            Ok(store.retry_rejects(&known, &numbers).await?)
        };
        match retried.await {
            Ok(retried) => {
                for (number, retried) in numbers.into_iter().zip(retried) {
                    match retried {
                        Retried::Applied => outcome.applied.push(number),
                        Retried::Refused => {
                            outcome.refused.extend(open_reject(store, number).await?);
                        }
                        Retried::AppliedBefore | Retried::Discarded | Retried::NotFound => {
                            outcome.done_before.push(number);
                        }
                    }
                }
            }
            Err(Failure { message: why, .. }) => {
                // earlier ones may be applied
                let open = open_rejects(store, u64::MAX, Some(&family)).await.ok();
                let is_open = |number: &u64| {
                    let open = open.as_ref();
                    open.is_none_or(|open| open.iter().any(|reject| reject.number == *number))
                };
                let (numbers, applied): (Vec<_>, Vec<_>) = numbers.into_iter().partition(is_open);
                outcome.applied.extend(applied);
                outcome.left.push(Left {
                    family,
                    numbers,
                    why,
                });
            }
        }
    }
    Ok(outcome)
}

async fn discard(
    context: &Context,
    which: &Which,
    yes: bool,
    dry_run: bool,
) -> Result<Exit, Failure> {
    let pair = context.pair()?;
    let store = pair::store(pair)?;
    let (selected, not_found) = select(&store, which).await?;
    if dry_run {
        return print_rejects(context, vec![(&pair.name, selected)]);
    }
    if which.numbers.is_empty() && !selected.is_empty() {
        let rejects = count(selected.len() as u64, "reject", "rejects");
        let name = &pair.name;
        confirm(
            &format!("pair {name}: discard {rejects}, which are then never applied?"),
            yes,
        )?;
    }
    let numbers: Vec<_> = selected.iter().map(|reject| reject.number).collect();
    let discarded = store.discard_rejects(&numbers).await?;
    let result = json!({ "discarded": discarded, "not_found": not_found });
    context.output.print(&result, |_| {
        let mut lines = vec![format!("discarded: {}", discarded.len())];
        lines.extend(not_found.iter().map(not_open));
        lines
    })?;
    Ok(Exit::warning_if(!not_found.is_empty()))
}

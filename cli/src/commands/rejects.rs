//! Rejects: changes that rows refused, to list, retry or discard.

use std::collections::BTreeMap;

use counterfoil::admin::{Reject, Retried};
use counterfoil::{Counterfoil, Family, MysqlStore};
use serde::Serialize;
use serde_json::json;

use super::{Context, connect};
use crate::arguments::{Rejects, Which};
use crate::exit::{Exit, Failure};
use crate::families::registered;
use crate::output::{count, moment, table};
use crate::pair;
use crate::view::RejectView;

/// The number of rejects in a read.
const PAGE: u64 = 1000;

pub async fn execute(context: &Context, command: Rejects) -> Result<Exit, Failure> {
    match command {
        Rejects::List { family, limit } => list(context, family.as_deref(), limit).await,
        Rejects::Retry { which } => retry(context, &which).await,
        Rejects::Discard { which } => discard(context, &which).await,
    }
}

#[derive(Serialize)]
struct Listed {
    pair: String,
    #[serde(flatten)]
    reject: RejectView,
}

async fn list(context: &Context, family: Option<&str>, limit: u64) -> Result<Exit, Failure> {
    let (mut listed, mut times) = (Vec::new(), Vec::new());
    for pair in context.pairs() {
        let is_selected = |reject: &Reject| family.is_none_or(|family| name(reject) == family);
        for reject in open_rejects(&pair::store(pair)?, limit, is_selected).await? {
            times.push(moment(reject.at));
            listed.push(Listed {
                pair: pair.name.clone(),
                reject: RejectView::from(&reject),
            });
        }
    }
    context.output.print(&listed, |listed| {
        if listed.is_empty() {
            return vec!["no rejects".to_owned()];
        }
        let row = |(Listed { pair, reject }, time): (&Listed, &String)| {
            let (number, delta) = (reject.number.to_string(), reject.delta.to_string());
            let RejectView {
                family, id, reason, ..
            } = reject;
            [
                pair,
                &number,
                family,
                &format!("{id:?}"),
                &delta,
                time,
                reason,
            ]
            .map(String::clone)
            .to_vec()
        };
        let rows: Vec<_> = listed.iter().zip(&times).map(row).collect();
        table(
            &["PAIR", "NUMBER", "FAMILY", "ID", "DELTA", "SINCE", "REASON"],
            &rows,
        )
    })?;
    Ok(Exit::Ok)
}

/// Returns the first `limit` open rejects that `is_selected` accepts, ascending.
async fn open_rejects(
    store: &MysqlStore,
    limit: u64,
    is_selected: impl Fn(&Reject) -> bool,
) -> Result<Vec<Reject>, Failure> {
    let (mut open, mut after) = (Vec::new(), 0);
    loop {
        let page = store.rejects(after, PAGE).await?;
        let is_last = (page.len() as u64) < PAGE;
        after = page.last().map_or(after, |reject| reject.number);
        open.extend(page.into_iter().filter(|reject| is_selected(reject)));
        if is_last || open.len() as u64 >= limit {
            open.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            return Ok(open);
        }
    }
}

fn name(reject: &Reject) -> String {
    format!("{}/{}", reject.namespace, reject.family)
}

/// Returns the open rejects that the command line names.
async fn selected(store: &MysqlStore, which: &Which) -> Result<Vec<Reject>, Failure> {
    if !which.numbers.is_empty() {
        let mut numbers = which.numbers.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let mut selected = Vec::new();
        for number in numbers.into_iter().filter(|number| *number > 0) {
            selected.extend(reject(store, number).await?);
        }
        return Ok(selected);
    }
    let is_selected = |reject: &Reject| {
        which
            .family
            .as_ref()
            .is_none_or(|family| name(reject) == *family)
    };
    open_rejects(store, u64::MAX, is_selected).await
}

/// Returns the reject with this number, if it is open.
async fn reject(store: &MysqlStore, number: u64) -> Result<Option<Reject>, Failure> {
    let found = store.rejects(number.saturating_sub(1), 1).await?;
    Ok(found
        .into_iter()
        .next()
        .filter(|reject| reject.number == number))
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
    /// is not as described.
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
    let connected = connect(pair).await?;
    let selected = selected(connected.mysql()?, which).await?;
    let mut outcome = apply(&connected, &selected).await?;
    outcome.not_found = not_open(which, &selected);
    context.output.print(&outcome, |outcome| {
        let mut lines = vec![format!("applied: {}", outcome.applied.len())];
        if !outcome.done_before.is_empty() {
            lines.push(format!(
                "already applied or discarded: {}",
                outcome.done_before.len()
            ));
        }
        lines.extend(outcome.refused.iter().map(
            |RejectView {
                 number,
                 family,
                 id,
                 reason,
                 ..
             }| { format!("refused again: {number} of {family}, {id:?}: {reason}") },
        ));
        lines.extend(outcome.left.iter().map(
            |Left {
                 family,
                 numbers,
                 why,
             }| {
                format!(
                    "not applied: {} of {family}: {why}",
                    count(numbers.len() as u64, "reject", "rejects")
                )
            },
        ));
        lines.extend(
            outcome
                .not_found
                .iter()
                .map(|number| format!("not an open reject: {number}")),
        );
        lines
    })?;
    let is_done =
        outcome.refused.is_empty() && outcome.left.is_empty() && outcome.not_found.is_empty();
    Ok(if is_done { Exit::Ok } else { Exit::Warning })
}

/// Retries each reject once, family by family.
async fn apply(counterfoil: &Counterfoil, rejects: &[Reject]) -> Result<Outcome, Failure> {
    let known = registered(counterfoil.store()).await?;
    let families: BTreeMap<String, Family> = known
        .into_iter()
        .map(|known| (known.family.to_string(), known.family))
        .collect();
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for reject in rejects {
        numbers.entry(name(reject)).or_default().push(reject.number);
    }
    let store = counterfoil.mysql()?;
    let mut outcome = Outcome::default();
    for (name, numbers) in numbers {
        let results = match families.get(&name) {
            Some(family) => store
                .retry_rejects(family, &numbers)
                .await
                .map_err(|error| format!("{error:#}")),
            None => Err("this version does not know the family".to_owned()),
        };
        let results = match results {
            Ok(results) => results,
            Err(why) => {
                outcome.left.push(Left {
                    family: name,
                    numbers,
                    why,
                });
                continue;
            }
        };
        for (number, result) in numbers.into_iter().zip(results) {
            match result {
                Retried::Applied => outcome.applied.push(number),
                Retried::Refused => outcome
                    .refused
                    .extend(reject(store, number).await?.iter().map(RejectView::from)),
                Retried::AppliedBefore | Retried::Discarded | Retried::NotFound => {
                    outcome.done_before.push(number)
                }
            }
        }
    }
    Ok(outcome)
}

/// Returns the named numbers that match no open reject.
fn not_open(which: &Which, selected: &[Reject]) -> Vec<u64> {
    let is_open = |number: &u64| selected.iter().any(|reject| reject.number == *number);
    which
        .numbers
        .iter()
        .copied()
        .filter(|number| !is_open(number))
        .collect()
}

async fn discard(context: &Context, which: &Which) -> Result<Exit, Failure> {
    let store = pair::store(context.pair()?)?;
    let selected = selected(&store, which).await?;
    let numbers: Vec<_> = selected.iter().map(|reject| reject.number).collect();
    let discarded = store.discard_rejects(&numbers).await?;
    let not_found = not_open(which, &selected);
    context.output.print(
        &json!({ "discarded": discarded, "not_found": not_found }),
        |_| {
            let not_found = not_found
                .iter()
                .map(|number| format!("not an open reject: {number}"));
            [format!("discarded: {}", discarded.len())]
                .into_iter()
                .chain(not_found)
                .collect()
        },
    )?;
    Ok(if not_found.is_empty() {
        Exit::Ok
    } else {
        Exit::Warning
    })
}

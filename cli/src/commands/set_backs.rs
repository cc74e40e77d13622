//! Set-backs: servers that returned to an older state, to list and acknowledge.

use serde::Serialize;

use super::Context;
use crate::arguments::SetBacks;
use crate::exit::{Exit, Failure};
use crate::output::{moment, table};
use crate::pair;
use crate::view::SetBackView;

#[derive(Serialize)]
struct ListedSetBack<'a> {
    pair: &'a str,
    #[serde(flatten)]
    set_back: SetBackView,
}

/// Prints the set-backs that were not acknowledged, and acknowledges these on request.
pub async fn execute(context: &Context, command: SetBacks) -> Result<Exit, Failure> {
    let mut listed = Vec::new();
    for pair in &context.config.pairs {
        let set_backs = in_pair(&pair::store(pair)?, command)
            .await
            .map_err(Failure::of_pair(&pair.name))?;
        listed.extend(set_backs.into_iter().map(|set_back| ListedSetBack {
            pair: &pair.name,
            set_back,
        }));
    }
    context.output.print(&listed, |listed| lines(listed))?;
    let is_open = command == SetBacks::List && !listed.is_empty();
    Ok(Exit::warning_if(is_open))
}

/// Returns the set-backs of a pair, and acknowledges them on request.
async fn in_pair(
    store: &counterfoil::MysqlStore,
    command: SetBacks,
) -> Result<Vec<SetBackView>, Failure> {
    let found = store.set_backs().await?;
    let last = found.iter().map(|one| one.at).max();
    if let Some(last) = last.filter(|_| command == SetBacks::Acknowledge) {
        store.acknowledge_set_backs(last).await?;
    }
    Ok(SetBackView::all(found))
}

/// Returns a line for each set-back, below a head.
fn lines(listed: &[ListedSetBack<'_>]) -> Vec<String> {
    if listed.is_empty() {
        return vec!["no set-backs".to_owned()];
    }
    let heads = ["PAIR", "FAMILY", "SERVER", "PARTITIONS", "FOUND", "LOST"];
    let mut rows = Vec::new();
    for ListedSetBack { pair, set_back } in listed {
        let SetBackView {
            family,
            server,
            partitions,
            batches,
            hits,
            ids,
            at,
        } = set_back;
        let lost = match *server {
            "redis" => format!("{hits} hits of {ids} ids were dropped"),
            _ => format!("{batches} batches are lost"),
        };
        rows.push([
            (*pair).to_owned(),
            family.clone(),
            (*server).to_owned(),
            partitions.to_string(),
            moment(*at),
            lost,
        ]);
    }
    table(&heads, &rows)
}

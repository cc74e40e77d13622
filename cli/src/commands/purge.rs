//! The deletion of old records.

use counterfoil::admin::Purged;
use serde_json::json;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::{confirm, count};
use crate::pair;

fn line((pair, purged): &(&str, Purged)) -> String {
    let recounts = count(purged.recounts, "recount", "recounts");
    let drift = count(purged.drift, "difference", "differences");
    format!("pair {pair}: {recounts} with {drift}")
}

/// Deletes former recounts, older than `keep_history` of their pair.
pub async fn purge(context: &Context, yes: bool, dry_run: bool) -> Result<Exit, Failure> {
    let mut found = Vec::new();
    for pair in &context.config.pairs {
        let purgeable = pair::store(pair)?.purgeable(pair.keep_history).await;
        let purgeable = purgeable.map_err(Failure::of_pair(&pair.name))?;
        found.push((pair.name.as_str(), purgeable));
    }
    let mut verb = "would be deleted";
    if !dry_run {
        verb = "deleted";
        let lines: Vec<_> = found.iter().map(line).collect();
        confirm(&format!("delete {}?", lines.join("; ")), yes)?;
        found.clear();
        for pair in &context.config.pairs {
            let purged = pair::store(pair)?.purge(pair.keep_history).await;
            let purged = purged.map_err(Failure::of_pair(&pair.name))?;
            found.push((pair.name.as_str(), purged));
        }
    }
    let json = |(pair, purged): &(&str, Purged)| {
        json!({
            "pair": pair,
            "recounts": purged.recounts,
            "drift": purged.drift,
        })
    };
    let json: Vec<_> = found.iter().map(json).collect();
    context.output.print(&json, |_| {
        let line = |one| format!("{verb}: {}", line(one));
        found.iter().map(line).collect()
    })
}

//! The deletion of old records.

use counterfoil::admin::PurgeSummary;
use serde_json::json;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::{confirm, count};
use crate::pair;

fn line((pair, purged): &(&str, PurgeSummary)) -> String {
    let recounts = count(purged.recounts, "recount", "recounts");
    let drift = count(purged.drift, "difference", "differences");
    format!("pair {pair}: {recounts} with {drift}")
}

/// Deletes former recounts, older than `keep_history` of their pair.
pub async fn purge(context: &Context, yes: bool, dry_run: bool) -> Result<Exit, Failure> {
    let mut summaries = Vec::new();
    for pair in &context.config.pairs {
        let purgeable = pair::store(pair)?
            .purgeable(pair.keep_history)
            .await
            .map_err(Failure::of_pair(&pair.name))?;
        summaries.push((pair.name.as_str(), purgeable));
    }
    let mut verb = "would be deleted";
    if !dry_run {
        verb = "deleted";
        let lines: Vec<_> = summaries.iter().map(line).collect();
        confirm(&format!("delete {}?", lines.join("; ")), yes)?;
        summaries.clear();
        for pair in &context.config.pairs {
            let purged = pair::store(pair)?
                .purge(pair.keep_history)
                .await
                .map_err(Failure::of_pair(&pair.name))?;
            summaries.push((pair.name.as_str(), purged));
        }
    }
    let json: Vec<_> = summaries
        .iter()
        .map(|(pair, purged)| {
            json!({
                "pair": pair,
                "recounts": purged.recounts,
                "drift": purged.drift,
            })
        })
        .collect();
    context.output.print(&json, |_| {
        summaries
            .iter()
            .map(|summary| format!("{verb}: {}", line(summary)))
            .collect()
    })
}

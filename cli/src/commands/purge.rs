//! The deletion of old records.

use counterfoil::admin::Purged;
use serde::Serialize;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::{confirm, count};
use crate::pair;

#[derive(Serialize)]
struct OfPair {
    pair: String,
    rejects: u64,
    recounts: u64,
    drift: u64,
}

impl OfPair {
    fn new(pair: &str, purged: Purged) -> Self {
        OfPair {
            pair: pair.to_owned(),
            rejects: purged.rejects,
            recounts: purged.recounts,
            drift: purged.drift,
        }
    }

    fn line(&self) -> String {
        format!(
            "pair {}: {}, {} with {}",
            self.pair,
            count(self.rejects, "reject that is done", "rejects that are done"),
            count(self.recounts, "recount", "recounts"),
            count(self.drift, "difference", "differences"),
        )
    }
}

/// Deletes rejects that are done, and former recounts, older than `keep_history` of their pair.
pub async fn purge(context: &Context, yes: bool, dry_run: bool) -> Result<Exit, Failure> {
    let mut found = Vec::new();
    for pair in context.pairs() {
        let purgeable = pair::store(pair).purgeable(pair.keep_history).await?;
        found.push(OfPair::new(&pair.name, purgeable));
    }
    if !dry_run {
        let lines: Vec<_> = found.iter().map(OfPair::line).collect();
        confirm(&format!("delete {}?", lines.join("; ")), yes)?;
        found.clear();
        for pair in context.pairs() {
            let purged = pair::store(pair).purge(pair.keep_history).await?;
            found.push(OfPair::new(&pair.name, purged));
        }
    }
    let verb = if dry_run {
        "would be deleted"
    } else {
        "deleted"
    };
    context.output.print(&found, |found| {
        let line = |one: &OfPair| format!("{verb}: {}", one.line());
        found.iter().map(line).collect()
    })
}

//! The recounts that the configuration asks for.

use std::collections::HashMap;

use counterfoil::{AnyCounters, Counterfoil, RecountBuilder, Recounted, Recounter, Result};
use futures_util::future::join_all;

use crate::config::Recount;

/// The recounters that run, by NAMESPACE/FAMILY.
#[derive(Debug, Default)]
pub struct Recounts(HashMap<String, Recounter>);

impl Recounts {
    /// Begins to recount a family, again and again.
    pub fn start(&mut self, counterfoil: &Counterfoil, counters: &AnyCounters, recount: &Recount) -> Result<()> {
        let Some(builder) = configured(counterfoil, counters, recount) else { return Ok(()) };
        let recounter = builder.every(recount.every..=recount.every + recount.every / 4).start()?;
        self.0.insert(counters.family().to_string(), recounter);
        Ok(())
    }

    /// How far the run of that family is, or its last one was.
    pub fn progress(&self, family: &str) -> Option<Recounted> {
        self.0.get(family).map(Recounter::progress)
    }

    /// Leaves the runs where they are: whoever goes on takes them up there.
    pub async fn stop(&mut self) {
        for stopped in join_all(self.0.drain().map(|(_, recounter)| recounter.shutdown())).await {
            if let Err(error) = stopped {
                tracing::warn!(%error, "a recount did not end");
            }
        }
    }
}

/// As the configuration says; nothing of kinds that are not recounted.
pub fn configured(counterfoil: &Counterfoil, counters: &AnyCounters, recount: &Recount) -> Option<RecountBuilder> {
    let builder = match counters {
        AnyCounters::Buffered(counters) => counterfoil.recount(counters),
        AnyCounters::Cached(counters) => counterfoil.recount(counters),
        _ => return None,
    };
    let builder = builder
        .source(recount.source.clone())
        .within(recount.within)
        .mode(recount.mode)
        .ids(recount.ids)
        .rows_are_deleted(recount.rows_are_deleted);
    let builder = match recount.at_most {
        Some(difference) => builder.at_most(difference),
        None => builder,
    };
    Some(match recount.ids_per_second {
        Some(ids) => builder.ids_per_second(ids),
        None => builder,
    })
}

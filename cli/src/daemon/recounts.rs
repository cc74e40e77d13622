//! The configured recounts.

use std::collections::HashMap;

use counterfoil::recount::{RecountBuilder, Recounted, Recounter};
use counterfoil::{AnyCounters, Counterfoil, Result};
use futures_util::future::join_all;

use crate::config::Recount;

/// The running recounters, by NAMESPACE/FAMILY.
#[derive(Debug, Default)]
pub struct Recounts(HashMap<String, Recounter>);

impl Recounts {
    /// Starts to recount a family periodically.
    pub fn start(
        &mut self,
        counterfoil: &Counterfoil,
        counters: &AnyCounters,
        recount: &Recount,
    ) -> Result<()> {
        let Some(builder) = configured(counterfoil, counters, recount) else {
            return Ok(());
        };
        let recounter = builder
            .every(recount.every..=recount.every + recount.every / 4)
            .start()?;
        self.0.insert(counters.family().to_string(), recounter);
        Ok(())
    }

    /// Returns the progress of the family's current or last run.
    pub fn progress(&self, family: &str) -> Option<Recounted> {
        self.0.get(family).map(Recounter::progress)
    }

    /// Stops the runs where they are. The next recounter resumes them there.
    pub async fn stop(&mut self) {
        for stopped in join_all(self.0.drain().map(|(_, recounter)| recounter.shutdown())).await {
            if let Err(error) = stopped {
                tracing::warn!(error = %format_args!("{error:#}"), "stopping a recount failed");
            }
        }
    }
}

/// Returns the recount as configured, or `None` for kinds without recounts.
pub fn configured(
    counterfoil: &Counterfoil,
    counters: &AnyCounters,
    recount: &Recount,
) -> Option<RecountBuilder> {
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

//! The end of a pair in a service: no more hits, and what was counted in the database, within a time.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::client::backlog::Backlog;
use crate::client::counterfoil::Counterfoil;
use crate::error::Result;
use crate::family::Family;

/// How much of the time is kept for the look at what is left.
const LOOK: Duration = Duration::from_millis(500);

/// Much longer than any shutdown, and yet no end of time.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// What a [`shutdown`](Counterfoil::shutdown) could not bring to the database in its time.
#[derive(Clone, Debug)]
pub struct Remaining {
    /// Of which family.
    pub family: Family,
    /// Recorded hits that were not sent to Redis, or of which no reply says that they were: lost when the process ends.
    pub recorded: u64,
    /// Recorded hits that Redis refused since the last [flush](crate::BufferedCounters::flush), as [`Recorded`](crate::Recorded)
    /// says.
    pub refused: u64,
    /// What Redis holds for the next reconciler; `None` where Redis could not be asked.
    pub backlog: Option<Backlog>,
}

impl Counterfoil {
    /// Ends counting for good: takes no more hits, sends what was recorded, waits for calls under way, and brings to the
    /// database what the families in use have in Redis. It returns as soon as that is done, and with the time at the
    /// latest, with what is left then: nothing of it is lost but recorded hits, and those that Redis refused are told as well.
    /// Slices that are kept and not over stay in Redis (see [`drain`](Self::drain)). Under load it takes up to twice the settle
    /// time, 5 s by default: a batch that is cut already settles first. Reading goes on, and so do reconcilers; later hits are
    /// refused as [`Closed`](crate::ErrorKind::Closed), by this pair and its handles alone. It may be called again.
    ///
    /// # Errors
    /// What no waiting mends, after everything else was done: [`Corrupt`](crate::ErrorKind::Corrupt) keys in Redis, or what
    /// became of recorded hits, as [`BufferedCounters::flush`](crate::BufferedCounters::flush) returns it.
    #[tracing::instrument(skip_all)]
    pub async fn shutdown(&self, within: Duration) -> Result<Vec<Remaining>> {
        let within = within.min(LONGEST);
        let end = Instant::now() + within;
        let families = self.shared.close();
        // boxed: one future around all others would be too deep for the compiler
        let everything = async {
            let finished = join_all(families.iter().map(|(_, writer)| writer.finish())).await;
            finished.into_iter().fold(self.drain().await, Result::and)
        }
        .boxed();
        let done = timeout_at(end - LOOK.min(within / 10), everything).await;
        let is_in_time = done.is_ok();
        done.unwrap_or(Ok(()))?;
        let outcomes = families.iter().map(|(opened, writer)| (opened, writer, writer.recorded_outcome().refused()));
        let looks = outcomes.filter(|(_, _, refused)| !is_in_time || *refused > 0).map(
            |(opened, writer, refused)| async move {
                let backlog = timeout_at(end, self.shared.backlog(&opened.family)).await.ok().and_then(Result::ok);
                Remaining { family: opened.family.clone(), recorded: writer.recorded(), refused, backlog }
            },
        );
        let mut remaining = join_all(looks).await;
        let is_something =
            |one: &Remaining| one.recorded + one.refused > 0 || one.backlog.is_none_or(|found| found.ids > 0);
        remaining.retain(is_something);
        if !remaining.is_empty() {
            tracing::warn!(families = remaining.len(), "not everything is in the database");
        }
        Ok(remaining)
    }
}

//! The shutdown of a pair: refuses further hits, and brings what was counted to the database,
//! within a time limit.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::admin::backlog::Backlog;
use crate::client::counterfoil::Counterfoil;
use crate::error::Result;
use crate::family::Family;
use crate::writer::LONGEST;

/// The time that is reserved for reading what remains.
const LOOK: Duration = Duration::from_millis(500);

/// The hits of a family that a [`shutdown`](Counterfoil::shutdown) did not bring to the database in
/// time.
#[derive(Clone, Debug)]
pub struct Remaining {
    /// The family.
    pub family: Family,
    /// The number of recorded hits that were not sent to Redis, or that no reply acknowledges: lost
    /// when the process ends.
    pub recorded: u64,
    /// The number of recorded hits that Redis refused since the last
    /// [flush](crate::BufferedCounters::flush), as in [`Recorded`](crate::Recorded).
    pub refused: u64,
    /// The backlog that Redis holds for the next reconciler; `None` if Redis was unreachable.
    pub backlog: Option<Backlog>,
}

impl Counterfoil {
    /// Ends counting for good. It refuses new hits, sends the recorded ones, waits for calls in
    /// flight, and brings to the database what the families in use have in Redis.
    ///
    /// It returns when that is done, or after `within` at the latest, with what remains. Of that
    /// only recorded hits are lost; the result also reports those that Redis refused. Windows exist
    /// in Redis alone, and stay there. Under load the call takes up to twice the settle time, by
    /// default 5 s in total, because a batch that is already cut settles first. Reads and
    /// reconcilers continue. Later hits are refused as
    /// [`Closed`](crate::ErrorKind::Closed), by this pair and its handles alone. The call may be
    /// repeated.
    ///
    /// # Errors
    /// Permanent failures, after everything else was done: [`Corrupt`](crate::ErrorKind::Corrupt)
    /// keys in Redis, or the failure of recorded hits, as
    /// [`BufferedCounters::flush`](crate::BufferedCounters::flush) returns it.
    #[tracing::instrument(skip_all)]
    pub async fn shutdown(&self, within: Duration) -> Result<Vec<Remaining>> {
        let within = within.min(LONGEST);
        let end = Instant::now() + within;
        let families = self.shared.close();
        // boxed: a single future around all others is too deep for the compiler
        let everything = async {
            let finished = join_all(families.iter().map(|(_, writer)| writer.finish())).await;
            finished.into_iter().fold(self.drain().await, Result::and)
        }
        .boxed();
        let done = timeout_at(end - LOOK.min(within / 10), everything).await;
        let is_in_time = done.is_ok();
        done.unwrap_or(Ok(()))?;
        let outcomes = families
            .iter()
            .map(|(opened, writer)| (opened, writer, writer.recorded_outcome().refused()));
        let looks = outcomes
            .filter(|(_, _, refused)| !is_in_time || *refused > 0)
            .map(|(opened, writer, refused)| async move {
                let backlog = timeout_at(end, self.shared.backlog(&opened.family))
                    .await
                    .ok()
                    .and_then(Result::ok);
                Remaining {
                    family: opened.family.clone(),
                    recorded: writer.recorded(),
                    refused,
                    backlog,
                }
            });
        let mut remaining = join_all(looks).await;
        let is_something = |one: &Remaining| {
            one.recorded + one.refused > 0 || one.backlog.is_none_or(|found| found.ids > 0)
        };
        remaining.retain(is_something);
        if !remaining.is_empty() {
            tracing::warn!(
                families = remaining.len(),
                "not everything is in the database"
            );
        }
        Ok(remaining)
    }
}

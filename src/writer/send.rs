//! The sending of a call until its outcome is known or its time is over. A repeat is harmless from
//! any process.

use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::family::kind::Kind;
use crate::metrics;
use crate::process::work::Announced;
use crate::scripts::bundle;
use crate::scripts::fence::Fence;
use crate::scripts::partition::{Counted, Partition, PartitionCall};
use crate::writer::call::{CallOutcome, Sending};
use crate::writer::group::Group;
use crate::writer::queue::Queue;

impl Sending {
    /// Sends the call until its outcome is known or its deadline has passed, and records the
    /// outcome in the metrics.
    pub async fn make(&mut self, queue: &Queue) -> CallOutcome {
        let in_time = timeout_at(self.deadline.reply_by, self.repeat(queue)).await;
        let outcome = in_time.unwrap_or_else(|_| {
            if self.in_doubt {
                CallOutcome::Failed(queue.error(ErrorKind::OutcomeUnknown, "no reply in time"))
            } else {
                let what = "not counted: no reply in time";
                CallOutcome::NotExecuted(queue.error(ErrorKind::Redis, what))
            }
        });
        match &outcome {
            CallOutcome::Counted { group, results, .. } => {
                let settled = group.settled_hits(results);
                queue
                    .opened
                    .measure(settled.map(|(hits, result)| (hits, Some(result))));
            }
            CallOutcome::Failed(error) if error.outcome_unknown() => {
                queue.opened.measure([(self.group.hits(), None)]);
            }
            _ => {}
        }
        outcome
    }

    async fn repeat(&mut self, queue: &Queue) -> CallOutcome {
        let unknown = |what, error: Error| {
            let unknown = queue.error(ErrorKind::OutcomeUnknown, what);
            CallOutcome::Failed(unknown.with_source(error))
        };
        let mut pause = Backoff::default();
        loop {
            let error = match self.attempt(queue).await {
                Ok(outcome) => return outcome,
                Err(error) => error,
            };
            self.met_error = true;
            if !self.in_doubt {
                return if may_pass(&error) {
                    let refused = queue.error(ErrorKind::Redis, "not counted");
                    CallOutcome::NotExecuted(refused.with_source(error))
                } else {
                    CallOutcome::Failed(error)
                };
            }
            if bundle::may_be_partly_executed(&error) {
                return unknown("may be partly counted", error);
            }
            let wait = pause.next();
            let is_late = Instant::now() + wait >= self.deadline.reply_by;
            if !may_pass(&error) || is_late || bundle::crosses_slots(&error) {
                return unknown("a reply was lost", error);
            }
            tracing::debug!(family = %queue.family(), error = %format_args!("{error:#}"), "a reply was lost, repeating the call");
            metrics::retried("add");
            sleep(wait).await;
        }
    }

    /// Sends the call once. Until a reply settles it, the call may have been executed.
    async fn attempt(&mut self, queue: &Queue) -> Result<CallOutcome> {
        let home = queue.home(self.group.partition());
        let epoch = match &self.epoch {
            Some(epoch) => epoch,
            None => self.epoch.insert(queue.epochs(home).await?.now),
        };
        let fence = Fence {
            home: home.keys(),
            caller: &self.caller.name,
            n: self.caller.n,
            epoch,
        };
        let was_in_doubt = std::mem::replace(&mut self.in_doubt, true);
        match count(queue, fence, &self.group).await {
            Ok(Counted::Executed {
                results, repeated, ..
            }) => {
                let mut group = std::mem::take(&mut self.group);
                group.complete();
                Ok(CallOutcome::Counted {
                    group,
                    results,
                    // a repeat of a cached family's call receives the reply of the first arrival
                    repeated: repeated && !queue.family().is_cached(),
                })
            }
            Ok(Counted::Expired) => {
                home.forget(epoch);
                // only over a connection that never resends was this definitely the only arrival
                Ok(if was_in_doubt || !queue.redis.sends_once() {
                    let what = "Redis has forgotten the epoch of the call";
                    CallOutcome::Failed(queue.error(ErrorKind::OutcomeUnknown, what))
                } else {
                    let what = "not counted: the epoch of the call has expired";
                    CallOutcome::NotExecuted(queue.error(ErrorKind::Redis, what))
                })
            }
            Ok(Counted::Passed) => Ok(CallOutcome::Failed(queue.error(
                ErrorKind::OutcomeUnknown,
                "Redis has executed a later call with this caller's name: two processes may share it, for example after a fork",
            ))),
            Err(error) => {
                self.in_doubt = was_in_doubt || error.outcome_unknown();
                Err(error)
            }
        }
    }
}

/// Returns whether the same call may succeed later.
pub fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Redis | ErrorKind::OutcomeUnknown)
}

/// Calls the script of the family's kind once, and announces where a sync is due.
pub async fn count(queue: &Queue, fence: Fence<'_>, group: &Group) -> Result<Counted> {
    let counted = call_script(queue, fence, group).await;
    match &counted {
        Ok(Counted::Executed { due, .. }) => {
            for index in due {
                if let Some((partition, _)) = group.parts().nth(*index) {
                    let due = Announced::Due(queue.opened.number, partition);
                    queue.work.announce(due);
                }
            }
        }
        Err(error) if bundle::crosses_slots(error) => queue.topology.found_cluster(),
        _ => {}
    }
    counted
}

async fn call_script(queue: &Queue, fence: Fence<'_>, group: &Group) -> Result<Counted> {
    let calls = group.parts().map(|(number, part)| PartitionCall {
        partition: queue.partition(number),
        hits: part.hits,
        pairs: part.pairs(),
    });
    let calls: Vec<_> = calls.collect();
    let (family, clock) = (queue.family(), &queue.opened.clock);
    // calls of other kinds than these two stay in one partition
    let (one, pairs) = (calls[0].partition, || calls[0].pairs.clone());
    let deltas = || pairs().map(|(id, update)| (id, update.amount()));
    match &family.kind {
        Kind::Buffered => Partition::add_to(family, fence, &calls).await,
        Kind::Cached(retention) => {
            let seeds = group.parts().map(|(_, part)| part.seeds());
            let seeds = calls.iter().map(|call| call.partition).zip(seeds);
            let seeds: Vec<_> = seeds.filter(|(_, seeds)| !seeds.is_empty()).collect();
            Partition::incr_in(retention, fence, &seeds, &calls).await
        }
        Kind::Series(windows) => one.add_to_series(windows, clock, fence, deltas()).await,
        Kind::Activity(sliding) => one.touch(sliding, clock, fence, deltas()).await,
        Kind::Visitors(remember) => {
            let visits = pairs().map(|(visit, _)| visit);
            one.first_visits(family, *remember, fence, visits).await
        }
    }
}

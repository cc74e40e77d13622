//! The sending of a call until its outcome is known or its time is over. A repeat is harmless from
//! any process.

use tokio::time::{Instant, sleep};

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::kind::Kind;
use crate::metrics;
use crate::process::work::Announced;
use crate::scripts::bundle;
use crate::scripts::fence::Fence;
use crate::scripts::partition::{Counted, PairResult, Partition, PartitionCall};
use crate::writer::call::{CallOutcome, Sending};
use crate::writer::group::{Group, PartitionGroup};
use crate::writer::queue::Queue;

impl Sending {
    /// Sends the call until its outcome is known, and notifies all waiting callers.
    pub async fn make(&mut self, queue: &Queue) {
        let unknown = |what, error: Error| {
            queue
                .error(ErrorKind::OutcomeUnknown, what)
                .with_source(error)
        };
        let mut pause = Backoff::default();
        let outcome = loop {
            let error = match self.attempt(queue).await {
                Ok(outcome) => break outcome,
                Err(error) => error,
            };
            let wait = pause.next();
            if !self.in_doubt {
                break if may_pass(&error) {
                    CallOutcome::NotExecuted(
                        queue
                            .error(ErrorKind::Redis, "not counted")
                            .with_source(error),
                    )
                } else {
                    CallOutcome::Failed(error)
                };
            }
            if bundle::may_be_partly_executed(&error) {
                break CallOutcome::Failed(unknown("may be partly counted", error));
            }
            let is_late = Instant::now() + wait >= self.deadline.reply_by;
            if !may_pass(&error) || is_late || bundle::crosses_slots(&error) {
                break CallOutcome::Failed(unknown("a reply was lost", error));
            }
            tracing::debug!(family = %queue.family(), error = %format_args!("{error:#}"), "a reply was lost, repeating the call");
            metrics::retried("add");
            sleep(wait).await;
        };
        self.end(queue, outcome);
    }

    /// Sends the call once. Until a reply settles it, the call may have been executed.
    async fn attempt(&mut self, queue: &Queue) -> Result<CallOutcome> {
        let partition_groups = self.group.by_partition();
        let home = queue.home(partition_groups[0].partition);
        let epoch = match &self.epoch {
            Some(epoch) => epoch,
            None => self.epoch.insert(home.epochs(queue.family()).await?.now),
        };
        let fence = Fence {
            home: home.keys(),
            caller: &self.caller.name,
            n: self.caller.n,
            epoch,
        };
        let was_in_doubt = std::mem::replace(&mut self.in_doubt, true);
        match count(queue, fence, &self.group, &partition_groups).await {
            Ok(Counted::Executed { results, due, repeated }) => {
                for index in due {
                    let family = queue.opened.number;
                    queue.work.announce(Announced::Due(family, partition_groups[index].partition));
                }
                let results = in_group_order(&self.group, &partition_groups, results);
                Ok(CallOutcome::Counted { group: Box::new(std::mem::take(&mut self.group)), results, repeated })
            }
            Ok(Counted::Expired) => {
                home.forget(epoch);
                // only over a connection that never resends was this definitely the only arrival
                Ok(if was_in_doubt || !queue.redis.sends_once() {
                    CallOutcome::Failed(queue.error(ErrorKind::OutcomeUnknown, "Redis has forgotten the epoch of the call"))
                } else {
                    CallOutcome::NotExecuted(queue.error(ErrorKind::Redis, "not counted: the epoch of the call has expired"))
                })
            }
            Ok(Counted::Passed) => Ok(CallOutcome::Failed(queue.error(
                ErrorKind::OutcomeUnknown,
                "Redis has executed a later call with this caller's name: two processes may share it, for example after a fork",
            ))),
            Err(error) => {
                if bundle::crosses_slots(&error) {
                    queue.topology.found_cluster();
                }
                self.in_doubt = was_in_doubt || error.outcome_unknown();
                Err(error)
            }
        }
    }

    /// Stops sending the call and notifies all waiting callers, unless its outcome is known.
    pub fn give_up(&mut self, queue: &Queue) {
        if self.call.outcome().is_none() {
            self.end(
                queue,
                if self.in_doubt {
                    CallOutcome::Failed(queue.error(ErrorKind::OutcomeUnknown, "no reply in time"))
                } else {
                    CallOutcome::NotExecuted(
                        queue.error(ErrorKind::Redis, "not counted: no reply in time"),
                    )
                },
            );
        }
    }

    /// Notifies all waiting callers of the outcome, and records it in the metrics.
    fn end(&self, queue: &Queue, outcome: CallOutcome) {
        match &outcome {
            CallOutcome::Counted { group, results, .. } => {
                let settled = group
                    .settled_hits(results)
                    .map(|(hits, result)| (hits, Some(result)));
                queue.opened.measure(settled);
            }
            CallOutcome::Failed(error) if error.outcome_unknown() => {
                queue.opened.measure([(self.group.hits(), None)]);
            }
            _ => {}
        }
        self.call.end(outcome);
    }
}

/// Returns whether the same call may succeed later.
pub fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Redis | ErrorKind::OutcomeUnknown)
}

/// Calls the script of the family's kind.
async fn count(
    queue: &Queue,
    fence: Fence<'_>,
    group: &Group,
    partition_groups: &[PartitionGroup<'_>],
) -> Result<Counted> {
    let family: &Family = queue.family();
    let partitions: Vec<Partition> = partition_groups
        .iter()
        .map(|partition_group| queue.partition(partition_group.partition))
        .collect();
    let parts: Vec<_> = partition_groups
        .iter()
        .zip(&partitions)
        .map(|(partition_group, partition)| PartitionCall {
            partition,
            hits: partition_group.hits,
            pairs: &partition_group.pairs,
        })
        .collect();
    let (one, clock) = (&partitions[0], &queue.opened.clock);
    let deltas = || {
        parts[0]
            .pairs
            .iter()
            .map(|(id, change)| (*id, change.amount()))
    };
    match &family.kind {
        Kind::Buffered => Partition::add_to(family, fence, &parts).await,
        Kind::Cached(retention) => {
            let seeds = partition_groups.iter().zip(&partitions);
            let seeds = seeds.map(|(partition_group, partition)| {
                (partition, group.seeds_of(partition_group.partition))
            });
            let seeds: Vec<_> = seeds.filter(|(_, seeds)| !seeds.is_empty()).collect();
            let counted = Partition::incr_in(retention, fence, &seeds, &parts).await?;
            Ok(match counted {
                // a repeat receives the same reply as the first arrival
                Counted::Executed { results, due, .. } => Counted::Executed {
                    results,
                    due,
                    repeated: false,
                },
                other => other,
            })
        }
        Kind::Series(windows) => one.add_to_series(windows, clock, fence, deltas()).await,
        Kind::Activity(sliding) => one.touch(sliding, clock, fence, deltas()).await,
        Kind::Visitors(remember) => {
            one.first_visits(
                family,
                *remember,
                fence,
                parts[0].pairs.iter().map(|(visit, _)| *visit),
            )
            .await
        }
    }
}

/// Puts the results of a call, which are ordered by partition, into the order of its group.
fn in_group_order(
    group: &Group,
    partition_groups: &[PartitionGroup<'_>],
    results: Vec<PairResult>,
) -> Vec<PairResult> {
    if partition_groups.len() == 1 {
        return results;
    }
    let mut ordered = vec![PairResult::Full; group.len()];
    for (index, result) in partition_groups
        .iter()
        .flat_map(|partition_group| &partition_group.indexes)
        .zip(results)
    {
        ordered[*index] = result;
    }
    ordered
}

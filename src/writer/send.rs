//! The sending of a call until its outcome is known or its time is over. A repeat is harmless from
//! any process.

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::scripts::bundle;
use crate::scripts::counting::CallReply;
use crate::scripts::fence::Fence;
use crate::writer::call::{Call, Delivery, ExecutedCall};
use crate::writer::queue::{Outside, Queue};
use crate::writer::route::Route;

/// Makes a call, and pauses if Redis refused it. Other callers do not wait for a lone caller:
/// drivers make their calls beside it, and its place is free before its pause.
pub async fn make(queue: &Queue, mut sending: Delivery, call: &Call, lone: Option<Outside>) {
    let start_by = sending.deadline.start_by;
    let outcome = sending.make(&queue.route).await;
    let pause = queue.ended(sending, &outcome);
    drop(lone);
    call.end(outcome);
    if let Some(pause) = pause {
        sleep_until(start_by.min(Instant::now() + pause)).await;
    }
}

impl Delivery {
    /// Sends the call until its outcome is known or its deadline has passed, and records the
    /// outcome in the metrics.
    async fn make(&mut self, route: &Route) -> Result<ExecutedCall> {
        let in_time = timeout_at(self.deadline.reply_by, self.repeat(route)).await;
        let outcome = in_time.unwrap_or_else(|_| {
            if self.in_doubt {
                Err(route.error(ErrorKind::OutcomeUnknown, "no reply in time"))
            } else {
                Err(route.error(ErrorKind::Redis, "not counted: no reply in time"))
            }
        });
        match &outcome {
            Ok(ExecutedCall { group, results, .. }) => {
                let settled = group.settled_hits(results);
                let settled = settled.map(|(hits, result)| (hits, Some(result)));
                route.opened.measure(settled);
            }
            Err(error) if error.outcome_unknown() => {
                route.opened.measure([(self.group.hits(), None)]);
            }
            _ => {}
        }
        outcome
    }

    async fn repeat(&mut self, route: &Route) -> Result<ExecutedCall> {
        let unknown = |what, error: Error| {
            let unknown = route.error(ErrorKind::OutcomeUnknown, what);
            Err(unknown.with_source(error))
        };
        let mut pause = Backoff::default();
        loop {
            let outage = route.outage(self.group.partition());
            let error = match outage.heard(self.attempt(route)).await {
                Ok(outcome) => return outcome,
                Err(error) => error,
            };
            if !self.in_doubt {
                return Err(if may_pass(&error) {
                    let refused = route.error(ErrorKind::Redis, "not counted");
                    refused.with_source(error)
                } else {
                    error
                });
            }
            if bundle::may_be_partly_executed(&error) {
                return unknown("may be partly counted", error);
            }
            let wait = pause.next();
            let is_late = Instant::now() + wait >= self.deadline.reply_by;
            if !may_pass(&error) || is_late {
                return unknown("a reply was lost", error);
            }
            tracing::debug!(family = %route.family(), error = %format_args!("{error:#}"), "a reply was lost, repeating the call");
            metrics::retried("add");
            sleep(wait).await;
        }
    }

    /// Sends the call once, and returns the outcome that the reply settles. Without a reply, the call
    /// may have been executed.
    async fn attempt(&mut self, route: &Route) -> Result<Result<ExecutedCall>> {
        let home = route.home(self.group.partition());
        let epoch = match &self.epoch {
            Some(epoch) => epoch,
            None => self.epoch.insert(route.epoch(home).await?.now),
        };
        let fence = Fence {
            home: home.keys(),
            caller: &self.caller.name,
            n: self.caller.n,
            epoch,
        };
        bundle::ready(&route.redis).await?;
        let was_in_doubt = std::mem::replace(&mut self.in_doubt, true);
        match route.count(fence, &self.group).await {
            Ok(CallReply::Executed {
                results, repeated, ..
            }) => Ok(Ok(ExecutedCall {
                group: std::mem::take(&mut self.group),
                results,
                // a repeat of a cached family's call receives the reply to the first arrival, with
                // its values
                repeated: repeated && !route.family().is_cached(),
            })),
            Ok(refused) => {
                if !matches!(refused, CallReply::Passed) {
                    home.forget(epoch);
                }
                let why = match refused {
                    CallReply::Expired => "Redis has forgotten the epoch of the call",
                    CallReply::Outdated => "the family's windows or stripes in Redis have changed",
                    _ => "another process makes calls with this caller's name",
                };
                // nothing was done now; only over a connection that never resends was this the only
                // arrival
                Ok(Err(if was_in_doubt || !route.redis.sends_once() {
                    route.error(ErrorKind::OutcomeUnknown, why)
                } else {
                    route.error(ErrorKind::Redis, &format!("not counted: {why}"))
                }))
            }
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

//! A hit that the application may request again, also from another process, and that counts once.
//!
//! A request is a caller whose calls are numbered from 1. They name the **previous** epoch, so that
//! Redis looks them up in both memories: a repeat an epoch later receives the first outcome. A
//! buffered counter takes one call. A missing cached counter is seeded and requested by the next
//! number, which Redis executes only after that miss (docs/protocol.md, 4.5).

use std::sync::Arc;

use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::process::family::Opened;
use crate::scripts::bundle;
use crate::scripts::cached::Seed;
use crate::scripts::fence::{Epochs, Fence};
use crate::scripts::partition::{Counted, PairResult, Update};
use crate::writer::Writer;
use crate::writer::deadline::Deadline;
use crate::writer::group::{Group, Hit};
use crate::writer::route::Route;
use crate::writer::send::may_pass;

/// A hit with a name given by the application.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    name: &'a str,
    id: &'a str,
    delta: i64,
}

impl<'a> Request<'a> {
    /// Creates a request if its id and name are allowed. Name and id together identify the work.
    pub fn new(opened: &Opened, name: &'a str, id: &'a str, delta: i64) -> Result<Self> {
        opened.check_given(id)?;
        match name.len() {
            1..=64 => Ok(Request { name, id, delta }),
            length => Err(Error::invalid(format!(
                "{}: request {name:?} has {length} bytes, allowed are 1 to 64",
                opened.family
            ))),
        }
    }

    /// Returns the request's name as a caller. It is unique: no writer's name begins like this.
    fn caller(&self) -> String {
        format!("request:{}:{}:{}", self.name.len(), self.name, self.id)
    }
}

/// The outcome of a request, and `true` if an earlier arrival decided it.
type Settled = (PairResult, bool);

/// The progress of a request, as known from the replies to its calls.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The number of its last call that is known to have been executed.
    n: u64,
    /// The number of a call that may have been executed.
    doubt: Option<u64>,
    /// The current epoch of the first send that may have been executed, or the epoch that the
    /// application stored before it first made the request.
    since: Option<Arc<str>>,
}

/// The outcome of one send of a call.
enum Told {
    Settled(Settled),
    /// The request has made a later call.
    Passed,
    /// Redis does not know the epoch, or the call's predecessor.
    Expired,
    /// Redis may have forgotten the outcome of an earlier call.
    Forgotten,
}

impl Progress {
    /// Begins a request that the application may have made before, in this epoch or a later one.
    pub fn since(epoch: &str) -> Self {
        Progress {
            since: Some(epoch.into()),
            ..Progress::default()
        }
    }

    /// Returns whether the request may have been executed.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Returns whether Redis remembers what the request did so far, given its epochs.
    fn is_remembered(&self, epochs: &Epochs) -> bool {
        let since = self.since.as_ref();
        since.is_none_or(|epoch| epochs.knows(epoch))
    }

    /// Continues with the next call.
    fn next(&mut self) {
        self.n += 1;
        // a later call may have been executed before the request began again
        self.doubt = self.doubt.filter(|n| *n > self.n);
    }
}

impl Writer {
    /// Returns the epoch in which Redis remembers the request if it is made now.
    pub async fn request_epoch(&self, request: Request<'_>) -> Result<String> {
        let route = &self.queue.route;
        let home = route.home(request.partition(route.family()));
        Ok(route.new_epochs(home).await?.now.as_ref().to_owned())
    }

    /// Counts the hit unless the request was executed before. If the counter is missing, call again
    /// with a seed and the same progress. Each request by the application begins with a new
    /// progress.
    pub async fn once(
        &self,
        request: Request<'_>,
        progress: &mut Progress,
        seed: Option<Seed>,
        deadline: Deadline,
    ) -> Result<Settled> {
        let route = &self.queue.route;
        let _in_flight = self.queue.take_request(deadline.reply_by)?;
        let repeated = request.repeat(route, seed, deadline, progress);
        let done = timeout_at(deadline.reply_by, repeated)
            .await
            .unwrap_or_else(|_| Err(route.error(ErrorKind::Redis, "no reply in time")));
        let done = done.map_err(|error| {
            let (kind, what) = if progress.is_in_doubt() {
                (ErrorKind::OutcomeUnknown, "a reply was lost")
            } else if error.kind() == ErrorKind::Redis {
                (ErrorKind::Redis, "not counted")
            } else {
                return error;
            };
            route.error(kind, what).with_source(error)
        });
        match &done {
            // decided by another process, or by an earlier call of the application
            Ok((PairResult::Counted(_), true)) if !progress.is_in_doubt() => {}
            Ok((PairResult::Missing(_), _)) => {}
            Ok((result, _)) => route.opened.measure([(1, Some(*result))]),
            Err(error) if error.outcome_unknown() => route.opened.measure([(1, None)]),
            Err(_) => {}
        }
        done
    }
}

impl Request<'_> {
    /// Returns the partition that counts the request, the same one in every process.
    fn partition(&self, family: &Family) -> u32 {
        // a wide family may use any partition
        family
            .home_of(self.id.as_bytes())
            .unwrap_or_else(|| family.partition_of(self.name))
    }

    /// Sends the next call until a reply settles the request, and passes over calls that were made
    /// before.
    async fn repeat(
        &self,
        route: &Route,
        seed: Option<Seed>,
        deadline: Deadline,
        progress: &mut Progress,
    ) -> Result<Settled> {
        let mut pause = Backoff::default();
        loop {
            let error = match self.send(route, seed, progress).await {
                Ok(Told::Settled(done)) => return Ok(done),
                Ok(Told::Passed) => continue,
                Ok(Told::Expired) => {
                    route.error(ErrorKind::Redis, "the epoch of the call has expired")
                }
                Ok(Told::Forgotten) => {
                    let what = "Redis has forgotten the request";
                    return Err(route.error(ErrorKind::OutcomeUnknown, what));
                }
                Err(error) => error,
            };
            let is_in_vain = progress.is_in_doubt()
                && (bundle::may_be_partly_executed(&error) || bundle::crosses_slots(&error));
            let wait = pause.next();
            if is_in_vain || !may_pass(&error) || Instant::now() + wait >= deadline.start_by {
                return Err(error);
            }
            metrics::retried("add");
            sleep(wait).await;
        }
    }

    /// Sends the next call once.
    async fn send(
        &self,
        route: &Route,
        seed: Option<Seed>,
        progress: &mut Progress,
    ) -> Result<Told> {
        let partition = self.partition(route.family());
        let home = route.home(partition);
        let mut epochs = route.epochs(home).await?;
        if !progress.is_remembered(&epochs) {
            // perhaps a later one, which another process has asked for
            epochs = route.new_epochs(home).await?;
        }
        if !progress.is_remembered(&epochs) {
            return Ok(Told::Forgotten);
        }
        bundle::ready(&route.redis).await?;
        let earlier = progress.clone();
        progress.doubt.get_or_insert(progress.n + 1);
        progress.since.get_or_insert_with(|| epochs.now.clone());
        let caller = self.caller();
        let fence = Fence {
            home: home.keys(),
            caller: &caller,
            n: progress.n + 1,
            epoch: &epochs.before,
        };
        let mut group = Group::default();
        group.push(&Hit {
            partition,
            id: self.id.as_bytes(),
            update: Update::Add(self.delta),
            hits: 1,
            seed,
        });
        group.complete();
        let counted = route.count(fence, &group).await;
        // only over a connection that never resends does a refusal prove that this was the only
        // arrival
        let was_not_executed = match &counted {
            Ok(Counted::Executed { .. } | Counted::Passed) => false,
            Ok(Counted::Expired | Counted::Outdated) => route.redis.sends_once(),
            Err(error) => !error.outcome_unknown(),
        };
        if was_not_executed {
            *progress = earlier.clone();
        }
        match counted? {
            Counted::Executed {
                results, repeated, ..
            } => {
                let result = results
                    .first()
                    .copied()
                    .ok_or_else(|| Error::corrupt("the reply to a request has no result"))?;
                if let PairResult::Missing(_) = result {
                    progress.next();
                } else {
                    progress.doubt = earlier.doubt;
                }
                Ok(Told::Settled((result, repeated)))
            }
            Counted::Expired | Counted::Outdated => {
                home.forget(&epochs.before);
                progress.n = 0;
                Ok(Told::Expired)
            }
            Counted::Passed => {
                progress.next();
                Ok(Told::Passed)
            }
        }
    }
}

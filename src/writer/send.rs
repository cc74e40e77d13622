//! Making a call, and repeating it until its outcome is known or its time is over. A repeat is harmless, whoever makes it.

use std::sync::Arc;

use redis::aio::ConnectionLike;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::backoff::Backoff;
use crate::connection::link;
use crate::error::{Error, ErrorKind, Result};
use crate::family::{Family, Kind, Remember};
use crate::metrics;
use crate::scripts::bundle;
use crate::scripts::fence::{Caller, Fence};
use crate::scripts::partition::{Counted, PairResult, Part, Partition};
use crate::writer::call::{Call, Outcome};
use crate::writer::group::{Group, Share};
use crate::writer::opened::Announced;
use crate::writer::queue::{Queue, Started};

/// Who makes a call: a task, or its first caller itself, who may stop at any moment to do so. Several may make the same one.
#[derive(Debug)]
pub struct Sender<C: ConnectionLike + Clone + Send + Sync + 'static> {
    queue: Arc<Queue<C>>,
    number: u64,
    call: Arc<Call>,
    caller: Caller,
    by_caller: bool,
    over: bool,
}

impl<C> Sender<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub fn new(queue: Arc<Queue<C>>, started: Started) -> Self {
        let Started { number, call, caller, by_caller } = started;
        Sender { queue, number, call, caller, by_caller, over: false }
    }

    /// Makes the call, and lets a task go on with what has gathered meanwhile.
    pub async fn run(self) {
        if let Some(next) = self.make().await {
            next.spawn();
        }
    }

    /// Makes this call and those after it by a task of their own, for as long as hits gather.
    pub fn spawn(self) {
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut next = Some(self);
            while let Some(sender) = next {
                next = sender.make().await;
            }
        });
    }

    /// Makes the call, tells everybody how it ended, and returns the one whose turn it is then.
    async fn make(mut self) -> Option<Self> {
        let outcome = self.outcome().await;
        self.end(outcome);
        match self.call.outcome() {
            Some(Outcome::NotExecuted(refusal)) => sleep(self.queue.refused(self.number, refusal.again())).await,
            _ => self.queue.accepted(),
        }
        if !self.by_caller {
            // those who were just told come again first: the next call carries more
            tokio::task::yield_now().await;
        }
        self.over = true;
        self.finish()
    }

    fn finish(&self) -> Option<Self> {
        self.queue.finish(self.number).map(|next| Sender::new(self.queue.clone(), next))
    }

    /// Tells everybody how the call ended, which somebody else may have settled before.
    fn end(&self, outcome: Option<Outcome>) {
        if outcome.is_some_and(|outcome| self.call.settle(outcome)) {
            self.measure();
        }
        self.call.wake_all();
    }

    /// Sends the call until its outcome is known; `None` if that is settled already.
    async fn outcome(&mut self) -> Option<Outcome> {
        let call = self.call.clone();
        let (group, until) = call.group().and_then(|group| Some((group, group.until()?)))?;
        let mut pause = Backoff::default();
        loop {
            let error = match timeout_at(until.deadline, self.attempt(group)).await {
                Ok(Ok(outcome)) => return outcome,
                Ok(Err(error)) => error,
                Err(_) => self.unknown("no reply in time"),
            };
            if !call.is_in_doubt() {
                return Some(self.refused(error));
            }
            if bundle::may_be_half_done(&error) {
                return Some(Outcome::Failed(self.unknown("perhaps counted in part").with_source(error)));
            }
            let wait = pause.next();
            if !may_pass(&error) || Instant::now() + wait >= until.deadline || bundle::crosses_slots(&error) {
                return Some(Outcome::Failed(self.unknown("a reply was lost").with_source(error)));
            }
            tracing::debug!(family = %self.queue.family(), %error, "a reply was lost, asking again");
            metrics::retried("add");
            sleep(wait).await;
        }
    }

    /// One send of the call, which may be executed until a reply says what became of it; `None` if its outcome is settled.
    async fn attempt(&self, group: &Group) -> Result<Option<Outcome>> {
        let (queue, call) = (&self.queue, &self.call);
        let shares = group.by_partition();
        let home = queue.home(shares[0].partition);
        let epoch = call.epoch(home.epochs(queue.family()).await?.now);
        if !call.sends() {
            return Ok(None);
        }
        let fence = Fence { home: home.keys(), caller: &self.caller.name, n: self.caller.n, epoch };
        match count(queue, fence, group, &shares).await {
            Ok(Counted::Executed { results, due, repeated }) => {
                for place in due {
                    let family = queue.opened.number;
                    queue.work.announce(Announced::Due(family, shares[place].partition));
                }
                Ok(Some(Outcome::Counted { results: in_group_order(group, &shares, results), repeated }))
            }
            Ok(Counted::Expired) => {
                home.forget(epoch);
                // only a connection that never sends a call again by itself tells that this was the only one
                let again = || Outcome::NotExecuted(queue.error(ErrorKind::Redis, "not counted: its epoch has ended"));
                let settled = link::sends_once::<C>() && call.not_executed(again());
                Ok((!settled).then(|| Outcome::Failed(self.unknown("Redis has forgotten the epoch of the call"))))
            }
            Err(error) => {
                if bundle::crosses_slots(&error) {
                    queue.topology.found_cluster();
                }
                if !error.outcome_unknown() {
                    call.not_executed(self.refused(error.again()));
                }
                Err(error)
            }
        }
    }

    /// The outcome of a call that was surely not executed.
    fn refused(&self, error: Error) -> Outcome {
        match may_pass(&error) {
            true => Outcome::NotExecuted(self.queue.error(ErrorKind::Redis, "not counted").with_source(error)),
            false => Outcome::Failed(error),
        }
    }

    fn unknown(&self, what: &'static str) -> Error {
        self.queue.error(ErrorKind::OutcomeUnknown, what)
    }

    /// Measures what became of the call's hits.
    fn measure(&self) {
        match (self.call.outcome(), self.call.group()) {
            (Some(Outcome::Counted { results, .. }), Some(group)) => {
                let settled = group.settled_hits(results).map(|(hits, result)| (hits, Some(result)));
                self.queue.opened.measure(settled);
            }
            (Some(Outcome::Failed(error)), Some(group)) if error.outcome_unknown() => {
                self.queue.opened.measure([(group.hits(), None)]);
            }
            _ => {}
        }
    }
}

/// The sender stops in the middle: the caller was cancelled, or the runtime ended.
impl<C> Drop for Sender<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        if self.over || !self.by_caller && self.call.is_in_doubt() && self.queue.leave(self.number) {
            return;
        }
        let outcome = match self.call.is_in_doubt() {
            true => Outcome::Failed(self.unknown("the call was given up")),
            false => Outcome::NotExecuted(self.queue.error(ErrorKind::Redis, "not counted: the call was given up")),
        };
        self.end(Some(outcome));
        if let Some(next) = self.finish() {
            next.spawn();
        }
    }
}

/// Whether the same call may succeed later.
pub fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Redis | ErrorKind::OutcomeUnknown)
}

/// The script of the family's kind.
async fn count<C>(queue: &Queue<C>, fence: Fence<'_>, group: &Group, shares: &[Share<'_>]) -> Result<Counted>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let family: &Family = queue.family();
    let partitions: Vec<Partition<C>> = shares.iter().map(|share| queue.partition(share.partition)).collect();
    let parts: Vec<_> = shares
        .iter()
        .zip(&partitions)
        .map(|(share, partition)| Part { partition, hits: share.hits, pairs: &share.pairs })
        .collect();
    let (one, clock) = (&partitions[0], &queue.opened.clock);
    let deltas = || parts[0].pairs.iter().map(|(id, change)| (*id, change.amount()));
    match &family.kind {
        Kind::Buffered(_) => Partition::add_to(family, fence, &parts).await,
        Kind::Cached(retention) => {
            let seeds = shares.iter().zip(&partitions);
            let seeds = seeds.map(|(share, partition)| (partition, group.seeds_of(share.partition)));
            let seeds: Vec<_> = seeds.filter(|(_, seeds)| !seeds.is_empty()).collect();
            Partition::incr_in(retention, fence, &seeds, &parts).await
        }
        Kind::Series(windows) => one.add_to_series(windows, clock, fence, deltas()).await,
        Kind::Activity(sliding) => one.touch(sliding, clock, fence, deltas()).await,
        Kind::Visitors(Remember(remember)) => {
            one.first_visits(family, *remember, fence, parts[0].pairs.iter().map(|(visit, _)| *visit)).await
        }
    }
}

/// The results of a call, which has the pairs by partition, in the order of its group.
fn in_group_order(group: &Group, shares: &[Share<'_>], results: Vec<PairResult>) -> Vec<PairResult> {
    if shares.len() == 1 {
        return results;
    }
    let mut ordered = vec![PairResult::Full; group.len()];
    for (index, result) in shares.iter().flat_map(|share| &share.indexes).zip(results) {
        ordered[*index] = result;
    }
    ordered
}

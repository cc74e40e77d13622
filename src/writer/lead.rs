//! Making a call: whoever leads it repeats it until its outcome is known or its time is over.

use std::sync::Arc;
use std::task::Poll;

use redis::aio::ConnectionLike;
use tokio::time::{Instant, sleep, timeout_at};

use crate::activity::TouchReply;
use crate::backoff::Backoff;
use crate::buffered::AddReply;
use crate::cached::IncrReply;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Kind;
use crate::metrics;
use crate::partition::Fence;
use crate::series::SeriesReply;
use crate::visitors::VisitReply;
use crate::writer::answer::Answer;
use crate::writer::call::{Call, Outcome};
use crate::writer::dispatch::{Permit, Turn, start};
use crate::writer::group::Group;
use crate::writer::lane::Lane;
use crate::writer::producer::Producer;

/// The one who makes a call: a task, or the only caller itself, who may stop at any moment to do so.
#[derive(Debug)]
pub struct Lead<C: ConnectionLike + Clone + Send + Sync + 'static> {
    lane: Arc<Lane<C>>,
    call: Arc<Call>,
    term: u64,
    /// `None` until it is registered: nothing was executed as long as it is not.
    producer: Option<Producer>,
    /// Whether the call may have been executed.
    repeat: bool,
    permit: Option<Permit<C>>,
    over: bool,
}

impl<C> Lead<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub fn new(lane: Arc<Lane<C>>, call: Arc<Call>, term: u64, producer: Option<Producer>, permit: Permit<C>) -> Self {
        Lead { lane, call, term, producer, repeat: false, permit: Some(permit), over: false }
    }

    /// Of a call that somebody else began.
    pub fn take_over(lane: Arc<Lane<C>>, call: Arc<Call>, term: u64, producer: Option<Producer>) -> Self {
        Lead { lane, call, term, producer, repeat: true, permit: None, over: false }
    }

    pub fn call(&self) -> &Arc<Call> {
        &self.call
    }

    /// Makes the call, tells everybody how it ended, and starts whose turn it is then.
    pub async fn run(self) {
        if let Some(turn) = self.make().await {
            start(turn);
        }
    }

    /// The same, but answers whose turn it is.
    pub async fn make(mut self) -> Option<Turn<C>> {
        if let Some(outcome) = self.outcome().await {
            let refusal = match &outcome {
                Outcome::NotExecuted(error) => Some(error.again()),
                _ => None,
            };
            if self.end(outcome)
                && let Some(refusal) = refusal
            {
                // others need not wait until this one tries again
                self.permit = None;
                sleep(self.lane.refused(refusal)).await;
            }
        }
        self.land()
    }

    /// Tells everybody how the call ended, and answers whether this leader had a say in it.
    fn end(&self, outcome: Outcome) -> bool {
        let settled = self.lane.settle(self.term, &self.call, outcome);
        if settled {
            self.lane.measure(&self.call);
        }
        self.call.wake_all();
        settled
    }

    fn land(&mut self) -> Option<Turn<C>> {
        self.over = true;
        let again = self.call.outcome().and_then(|outcome| self.lane.land(self.term, self.producer.take(), outcome));
        match self.permit.take() {
            Some(permit) => permit.next(again),
            None => again.and_then(|lane| self.lane.dispatch().turn(0, Some(lane))),
        }
    }

    /// How the call ended; `None` if that is said already, or somebody else leads it by now.
    async fn outcome(&mut self) -> Option<Outcome> {
        let call = self.call.clone();
        if call.outcome().is_some() {
            return None;
        }
        let deadline = call.group()?.until()?.deadline;
        let mut pause = Backoff::default();
        loop {
            let error = match timeout_at(deadline, self.attempt(&call)).await {
                Ok(Ok(Some(outcome))) => {
                    if matches!(outcome, Outcome::Failed(_)) {
                        self.producer = None;
                    }
                    return Some(outcome);
                }
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => error,
                Err(_) => self.unknown("no reply in time"),
            };
            match error.kind() {
                ErrorKind::Redis => {}
                ErrorKind::OutcomeUnknown => self.repeat = true,
                _ => return Some(Outcome::Failed(error)),
            }
            if self.producer.is_none() || !self.repeat {
                let not_counted = Error::new(ErrorKind::Redis, format!("{}: not counted", self.lane.family()));
                return Some(Outcome::NotExecuted(not_counted.with_source(error)));
            }
            let wait = pause.next();
            if Instant::now() + wait >= deadline {
                self.producer = None;
                return Some(Outcome::Failed(self.unknown("a reply was lost").with_source(error)));
            }
            tracing::debug!(family = %self.lane.family(), %error, "a reply was lost, asking again");
            metrics::retried("add");
            sleep(wait).await;
        }
    }

    /// One send of the call; `None` if somebody else leads it by now.
    async fn attempt(&mut self, call: &Call) -> Result<Option<Outcome>> {
        let Some(group) = call.group() else { return Ok(None) };
        if self.producer.is_none() {
            self.lane.dispatch().refuse_resending(self.lane.family()).await?;
            let producer = Producer::register(self.lane.partition()).await?;
            if !self.lane.adopt(self.term, &producer) {
                return Ok(None);
            }
            self.producer = Some(producer);
        } else if !self.lane.is_led(self.term) {
            return Ok(None);
        }
        let mut send = std::pin::pin!(self.send(group));
        // a leader that was not polled and was replaced must not send anything any more: Redis may have lost its memory
        // since its successor's send, and would take an earlier one for a first one
        std::future::poll_fn(|cx| match self.lane.is_led(self.term) {
            true => send.as_mut().poll(cx).map(|outcome| outcome.map(Some)),
            false => Poll::Ready(Ok(None)),
        })
        .await
    }

    /// The script of the family's kind.
    async fn send(&self, group: &Group) -> Result<Outcome> {
        let (partition, family) = (self.lane.partition(), self.lane.family());
        let fence = self.producer.as_ref().map(|producer| Fence {
            producer: &producer.name,
            seq: producer.seq,
            repeat: self.repeat,
        });
        let (answers, repeated) = match &family.kind {
            Kind::Buffered => match partition.add(family, fence, group.hits(), group.pairs()).await? {
                AddReply::Counted { due, added, repeated } => {
                    if due {
                        self.lane.announce_due();
                    }
                    (added.into_iter().map(Answer::from).collect(), repeated)
                }
                AddReply::Unknown => return Ok(self.forgotten()),
            },
            Kind::Cached(stay) => match partition.incr(family, stay, fence, group.seeds(), group.changes()).await? {
                // a repeat is answered as the first one was
                IncrReply::Executed(words) => (words.into_iter().map(Answer::from).collect(), false),
                IncrReply::Unknown => return Ok(self.forgotten()),
            },
            Kind::Series(windows) => {
                match partition.add_to_series(windows, self.lane.clock(), fence, group.pairs()).await? {
                    SeriesReply::Executed(counted) => {
                        let answer = |counted| if counted { Answer::Counted(0) } else { Answer::OutOfRange(0) };
                        (counted.into_iter().map(answer).collect(), false)
                    }
                    SeriesReply::Unknown => return Ok(self.forgotten()),
                }
            }
            Kind::Activity(sliding) => match partition.touch(sliding, self.lane.clock(), fence, group.pairs()).await? {
                TouchReply::Executed => (vec![Answer::Counted(0); group.len()], false),
                TouchReply::Unknown => return Ok(self.forgotten()),
            },
            Kind::Visitors { remember } => {
                let visits = group.pairs().map(|(visit, _)| visit);
                match partition.first_visits(family, *remember, fence, visits).await? {
                    VisitReply::Executed { due, visited } => {
                        if due {
                            self.lane.announce_due();
                        }
                        (visited.into_iter().map(Answer::from).collect(), false)
                    }
                    VisitReply::Unknown => return Ok(self.forgotten()),
                }
            }
        };
        Ok(Outcome::Counted { answers, repeated })
    }

    fn forgotten(&self) -> Outcome {
        Outcome::Failed(self.unknown("Redis lost its memory while the reply was missing"))
    }

    fn unknown(&self, what: &'static str) -> Error {
        Error::new(ErrorKind::OutcomeUnknown, format!("{}: {what}", self.lane.family()))
    }
}

/// The leader stops in the middle: the caller was cancelled, or the runtime ended.
impl<C> Drop for Lead<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        if self.over || !self.lane.is_led(self.term) {
            return;
        }
        self.producer = None;
        self.end(Outcome::Failed(self.unknown("the call was given up")));
        if let Some(turn) = self.land() {
            start(turn);
        }
    }
}

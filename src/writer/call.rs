//! A call to one partition as those see it who wait for it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::scripts::partition::PairResult;
use crate::writer::group::{Group, Position};
use crate::writer::terms::{LAST_MOMENT, Until};

/// One call, from its first hit to its reply.
#[derive(Debug)]
pub struct Call {
    /// When its first hit came, or soon after the first one could have.
    born: Instant,
    /// What it carries, from the moment it is made.
    group: OnceLock<Group>,
    /// The epoch that every send of it names.
    epoch: OnceLock<Arc<str>>,
    /// How many sends of it may have been executed.
    in_doubt: Mutex<u32>,
    outcome: OnceLock<Outcome>,
    waiting: Mutex<Vec<Waker>>,
}

/// How a call ended.
#[derive(Debug)]
pub enum Outcome {
    /// It was executed; what became of each pair, or, after a repeat, how it stood by then.
    Counted { results: Vec<PairResult>, repeated: bool },
    /// Surely not executed; its hits may join another call.
    NotExecuted(Error),
    /// This error is what all callers are told.
    Failed(Error),
}

impl Call {
    pub fn new() -> Self {
        let (group, epoch, outcome) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Call { born: Instant::now(), group, epoch, in_doubt: Mutex::default(), outcome, waiting: Mutex::default() }
    }

    /// When a caller that came for this call with that timeout leaves.
    pub fn until(&self, timeout: Duration) -> Until {
        Until::new(self.born, timeout)
    }

    /// What the call carries; nothing as long as hits are gathered for it.
    pub fn group(&self) -> Option<&Group> {
        self.group.get()
    }

    pub fn carry(&self, group: Group) {
        let _ = self.group.set(group);
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// The epoch that its first send named, or this one if there was none.
    pub fn epoch(&self, epoch: Arc<str>) -> &Arc<str> {
        self.epoch.get_or_init(|| epoch)
    }

    /// A send of it begins, which may be executed; false if its outcome is known already.
    pub fn sends(&self) -> bool {
        let mut in_doubt = self.in_doubt();
        *in_doubt += u32::from(self.outcome().is_none());
        self.outcome().is_none()
    }

    /// A send of it was surely not executed. If no other may have been, this is the outcome, and true is returned.
    pub fn not_executed(&self, outcome: Outcome) -> bool {
        let mut in_doubt = self.in_doubt();
        *in_doubt -= 1;
        *in_doubt == 0 && self.settle(outcome)
    }

    /// Whether a send of it may have been executed.
    pub fn is_in_doubt(&self) -> bool {
        *self.in_doubt() > 0
    }

    fn in_doubt(&self) -> MutexGuard<'_, u32> {
        self.in_doubt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how it ended, and returns whether nobody had said so before: the first is right.
    pub fn settle(&self, outcome: Outcome) -> bool {
        self.outcome.set(outcome).is_ok()
    }

    /// Says how it ended, and tells everybody.
    pub fn end(&self, outcome: Outcome) {
        self.settle(outcome);
        self.wake_all();
    }

    /// Tells everybody that it has ended.
    pub fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Lets everybody look at the time.
    pub fn remind(&self) {
        self.waiting().iter().for_each(Waker::wake_by_ref);
    }

    /// Wakes the caller when it ends. Returns the waker's index.
    pub fn wake(&self, waker: &Waker) -> usize {
        let mut waiting = self.waiting();
        waiting.push(waker.clone());
        waiting.len() - 1
    }

    /// Waits for the end, at most until soon after the deadline, of which the caller is reminded: who makes the call
    /// gives up at the latest deadline of all and knows more. `index` is that of the caller's waker.
    pub fn poll_end(&self, cx: &Context<'_>, index: &mut Option<usize>, deadline: Instant) -> Poll<Result<()>> {
        if self.outcome().is_some() {
            return Poll::Ready(Ok(()));
        }
        // as long as it is not made, who is late is sent away by the queue, which knows that nothing was executed
        if self.group().is_some() && Instant::now() >= deadline + LAST_MOMENT {
            return Poll::Ready(Err(Error::new(ErrorKind::OutcomeUnknown, "Redis did not reply in time")));
        }
        let mut waiting = self.waiting();
        // who ends the call says so first, and wakes the waiting then
        if self.outcome().is_some() {
            return Poll::Ready(Ok(()));
        }
        match index.and_then(|index| waiting.get_mut(index)) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => {
                *index = Some(waiting.len());
                waiting.push(cx.waker().clone());
            }
        }
        Poll::Pending
    }

    /// What became of a hit; `None` if it has to be tried alone.
    pub fn own(&self, position: Position) -> Result<Option<PairResult>> {
        match (self.outcome(), self.group()) {
            (Some(Outcome::Counted { results, repeated }), Some(group)) => Ok(group.own(position, results, *repeated)),
            (Some(Outcome::NotExecuted(error) | Outcome::Failed(error)), _) => Err(error.again()),
            _ => Err(Error::corrupt("a call has no outcome")),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

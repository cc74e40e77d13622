//! A call, as those see it who wait for it, and who makes it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use crate::error::{Error, Result};
use crate::scripts::fence::Caller;
use crate::scripts::partition::PairResult;
use crate::writer::group::{Group, Position};
use crate::writer::terms::Until;

/// One call, from its first hit to its reply.
#[derive(Debug, Default)]
pub struct Call {
    outcome: OnceLock<Outcome>,
    /// Who is woken when it ends, and now and then if that takes long.
    waiting: Mutex<Vec<Waker>>,
}

/// A call that is being made, by one driver at a time.
#[derive(Debug)]
pub struct Sending {
    pub call: Arc<Call>,
    /// What it carries, until it has ended.
    pub group: Group,
    pub caller: Caller,
    pub until: Until,
    /// Where its hits gathered.
    pub place: usize,
    /// The epoch that every send of it names.
    pub epoch: Option<Arc<str>>,
    /// A send of it may have been executed.
    pub in_doubt: bool,
}

/// How a call ended.
#[derive(Debug)]
pub enum Outcome {
    /// It was executed; what became of each pair that it carried, or, after a repeat, how it stood by then.
    Counted { group: Box<Group>, results: Vec<PairResult>, repeated: bool },
    /// Surely not executed; its hits may join another call.
    NotExecuted(Error),
    /// This error is what all callers are told.
    Failed(Error),
}

impl Call {
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Says how it ended, unless that was said before, and tells everybody.
    pub fn end(&self, outcome: Outcome) {
        let _ = self.outcome.set(outcome);
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Lets everybody who waits for it look at how it stands.
    pub fn remind(&self) {
        self.waiting().iter().for_each(Waker::wake_by_ref);
    }

    /// Wakes the caller when it ends, if it has not by the time that this returns. `index` is that of the caller's waker.
    pub fn listen(&self, waker: &Waker, index: &mut Option<usize>) {
        let mut waiting = self.waiting();
        match index.and_then(|index| waiting.get_mut(index)) {
            Some(own) => own.clone_from(waker),
            None => {
                *index = Some(waiting.len());
                waiting.push(waker.clone());
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of a hit; `None` if it has to be tried alone.
    pub fn own(&self, position: Position) -> Result<Option<PairResult>> {
        match self.outcome() {
            Some(Outcome::Counted { group, results, repeated }) => Ok(group.own(position, results, *repeated)),
            Some(Outcome::NotExecuted(error) | Outcome::Failed(error)) => Err(error.again()),
            None => Err(Error::corrupt("a call has no outcome")),
        }
    }
}

impl Sending {
    pub fn new(call: Arc<Call>, group: Group, caller: Caller, until: Until, place: usize) -> Self {
        Sending { call, group, caller, until, place, epoch: None, in_doubt: false }
    }
}

//! A call, as its waiting callers see it and as it is sent.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::scripts::fence::Caller;
use crate::scripts::partition::PairResult;
use crate::writer::deadline::Deadline;
use crate::writer::group::{Group, Position};

/// One call, from its first hit to its outcome.
#[derive(Debug, Default)]
pub struct Call {
    outcome: OnceLock<CallOutcome>,
    /// Notified when the call ends, and now and then if it takes long.
    changed: Notify,
}

/// A call in flight, as its driver or lone caller sees it.
#[derive(Debug)]
pub struct Sending {
    /// The hits that it carries, until it has ended.
    pub group: Group,
    pub caller: Caller,
    pub deadline: Deadline,
    /// The epoch that every send of it names.
    pub epoch: Option<Arc<str>>,
    /// Set if a send of it may have been executed.
    pub in_doubt: bool,
}

impl Sending {
    pub fn new(mut group: Group, caller: Caller, deadline: Deadline) -> Self {
        group.complete();
        Sending {
            group,
            caller,
            deadline,
            epoch: None,
            in_doubt: false,
        }
    }
}

/// The outcome of a call.
#[derive(Debug)]
pub enum CallOutcome {
    /// Executed, with the outcome of each pair that it carried; after a repeat, with the state at
    /// that time.
    Counted {
        group: Group,
        results: Vec<PairResult>,
        repeated: bool,
    },
    /// Definitely not executed; its hits may join another call.
    NotExecuted(Error),
    /// An error that all callers receive.
    Failed(Error),
}

impl Call {
    pub fn outcome(&self) -> Option<&CallOutcome> {
        self.outcome.get()
    }

    /// Sets the outcome, unless it is already set, and wakes all waiting callers.
    pub fn end(&self, outcome: CallOutcome) {
        let _ = self.outcome.set(outcome);
        self.wake();
    }

    /// Wakes all waiting callers, so that they check the time.
    pub fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Completes when the caller is woken next, or at once if the call has ended.
    pub async fn woken(&self) {
        // created first, so that it also sees an end before it is polled
        let woken = self.changed.notified();
        if self.outcome().is_none() {
            woken.await;
        }
    }

    /// Returns the outcome of a hit; `None` if the hit must be tried alone.
    pub fn own(&self, position: Position) -> Result<Option<PairResult>> {
        match self.outcome() {
            Some(CallOutcome::Counted {
                group,
                results,
                repeated,
            }) => Ok(group.own(position, results, *repeated)),
            Some(CallOutcome::NotExecuted(error) | CallOutcome::Failed(error)) => {
                Err(error.clone())
            }
            None => Err(Error::corrupt("a call has no outcome")),
        }
    }
}

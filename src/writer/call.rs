//! A call, as its waiting callers see it and as it is sent.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};
use crate::scripts::fence::Caller;
use crate::scripts::partition::PairResult;
use crate::writer::deadline::Deadline;
use crate::writer::group::{Group, Position};

/// One call, from its first hit to its outcome.
#[derive(Debug, Default)]
pub struct Call {
    outcome: OnceLock<Result<Executed>>,
    /// Notified when the call ends, and now and then if it takes long.
    woken: Notify,
}

/// A call that was executed.
#[derive(Debug)]
pub struct Executed {
    /// The hits that it carried.
    pub group: Group,
    /// The outcome of each pair; after a repeat, with the state at that time.
    pub results: Vec<PairResult>,
    pub repeated: bool,
}

/// Returns whether a call with this error was definitely not executed, and may be made again.
pub fn was_not_executed(error: &Error) -> bool {
    error.kind() == ErrorKind::Redis
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

impl Call {
    pub fn outcome(&self) -> Option<&Result<Executed>> {
        self.outcome.get()
    }

    /// Sets the outcome, unless it is already set, and wakes all waiting callers.
    pub fn end(&self, outcome: Result<Executed>) {
        let _ = self.outcome.set(outcome);
        self.wake();
    }

    /// Wakes all waiting callers, so that they check the time.
    pub fn wake(&self) {
        self.woken.notify_waiters();
    }

    /// Waits until the call has ended, or the next wake.
    pub async fn woken(&self) {
        // created first: a call that ends from now on wakes it
        let woken = self.woken.notified();
        if self.outcome().is_none() {
            woken.await;
        }
    }
}

impl Executed {
    /// Returns the outcome of a hit; `None` if the hit must be tried alone.
    pub fn own(&self, position: Position) -> Option<PairResult> {
        self.group.own(position, &self.results, self.repeated)
    }
}

//! A call, as its waiting callers see it and as it is sent.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::scripts::counting::PairResult;
use crate::scripts::fence::Caller;
use crate::writer::deadline::Deadline;
use crate::writer::group::{Group, Position};

/// One call, from its first hit to its outcome.
#[derive(Debug, Default)]
pub struct Call {
    outcome: OnceLock<Result<ExecutedCall>>,
    /// The wakers of waiting callers, woken when the call ends, and now and then if it takes long.
    waiting: Mutex<Vec<Waker>>,
}

/// A call that was executed.
#[derive(Debug)]
pub struct ExecutedCall {
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
pub struct Delivery {
    /// The hits that it carries, until it has ended.
    pub group: Group,
    pub caller: Caller,
    pub deadline: Deadline,
    /// The epoch that every send of it names.
    pub epoch: Option<Arc<str>>,
    /// Set if a send of it may have been executed.
    pub in_doubt: bool,
}

impl Delivery {
    pub fn new(mut group: Group, caller: Caller, deadline: Deadline) -> Self {
        group.complete();
        Delivery {
            group,
            caller,
            deadline,
            epoch: None,
            in_doubt: false,
        }
    }
}

impl Call {
    pub fn outcome(&self) -> Option<&Result<ExecutedCall>> {
        self.outcome.get()
    }

    /// Sets the outcome, unless it is already set, and wakes all waiting callers.
    pub fn end(&self, outcome: Result<ExecutedCall>) {
        let _ = self.outcome.set(outcome);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Wakes all waiting callers, so that they check the time.
    pub fn wake(&self) {
        self.waiting.lock().iter().for_each(Waker::wake_by_ref);
    }

    /// Completes when the caller is woken next, or at once if the call has ended. `index` is that of
    /// the caller's waker. A list of wakers costs less than a [`Notify`](tokio::sync::Notify).
    pub fn woken(&self, index: &mut Option<usize>) -> impl Future<Output = ()> {
        let mut is_woken = false;
        poll_fn(move |cx| {
            if !is_woken && self.outcome().is_none() {
                self.listen(cx.waker(), index);
            }
            // the call may have ended before its list had the waker
            if std::mem::replace(&mut is_woken, true) || self.outcome().is_some() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }

    fn listen(&self, waker: &Waker, index: &mut Option<usize>) {
        let mut waiting = self.waiting.lock();
        if let Some(own) = index.and_then(|index| waiting.get_mut(index)) {
            own.clone_from(waker)
        } else {
            *index = Some(waiting.len());
            waiting.push(waker.clone());
        }
    }
}

impl ExecutedCall {
    /// Returns the outcome of a hit; `None` if the hit must be tried alone.
    pub fn own(&self, position: Position) -> Option<PairResult> {
        self.group.own(position, &self.results, self.repeated)
    }
}

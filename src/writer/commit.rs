//! Group commit without a timer: a caller's hits join a call, and the caller waits for its outcome
//! or makes it itself.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use crate::error::{ErrorKind, Result};
use crate::writer::call::{Call, CallOutcome};
use crate::writer::deadline::{Deadline, LAST_MOMENT, WriteOptions};
use crate::writer::driver::{Driver, Leader};
use crate::writer::group::Group;
use crate::writer::queue::{Joined, Member, Queue, Turn};

impl Queue {
    /// Counts the hits that `push` adds to a group, and waits until Redis has done so. Returns the
    /// call with its outcome, and the hits' positions in it. A full group is an error unless
    /// `terms.wait` is set. Hits of several partitions are `mixed`; they are refused once the
    /// server turns out to be a cluster.
    pub async fn count<T>(
        self: &Arc<Self>,
        (partition, mixed): (u32, bool),
        options: WriteOptions,
        mut push: impl FnMut(&mut Group) -> Option<T>,
    ) -> Result<(Arc<Call>, T)> {
        let mut deadline = None;
        loop {
            if mixed && !self.spans_partitions() {
                return Err(self.error(
                    ErrorKind::Redis,
                    "not counted: the partitions are on different cluster nodes",
                ));
            }
            let Member {
                positions,
                call,
                deadline: own,
                turn,
            } = match self.join(partition, options, deadline, &mut push)? {
                Joined::Member(member) => member,
                Joined::Full(call) if options.wait => {
                    let deadline = deadline
                        .get_or_insert_with(|| Deadline::new(Instant::now(), options.timeout));
                    Box::pin(self.wait_for_room(&call, deadline.reply_by)).await?;
                    continue;
                }
                Joined::Full(_) => {
                    return Err(self.error(ErrorKind::Busy, "too many hits are waiting for Redis"));
                }
            };
            match turn {
                // boxed, because most callers only wait and need no room for this
                Turn::Leads(sending) => Box::pin(Leader::lead(self, sending)).await,
                Turn::Waits(driver) => Driver::spawn(self, driver),
            }
            let deadline = *deadline.get_or_insert(own);
            let mut waker = None;
            poll_fn(|cx| self.poll_end(cx, &call, &mut waker, deadline.reply_by)).await?;
            match call.outcome() {
                Some(CallOutcome::NotExecuted(_)) if Instant::now() < deadline.start_by => {}
                Some(CallOutcome::NotExecuted(error) | CallOutcome::Failed(error)) => {
                    return Err(error.clone());
                }
                _ => return Ok((call, positions)),
            }
        }
    }

    /// Waits for the end of a call, at most until shortly after the deadline. At the deadline the
    /// driver or leader gives up with a more precise outcome. `waker` is the index of the caller's
    /// waker.
    fn poll_end(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        call: &Arc<Call>,
        waker: &mut Option<usize>,
        reply_by: Instant,
    ) -> Poll<Result<()>> {
        let is_woken = waker.is_some();
        if call.outcome().is_none() {
            call.listen(cx.waker(), waker);
            Driver::spawn(self, self.replace_driver());
            if is_woken && Instant::now() >= reply_by {
                self.dismiss(call);
            }
        }
        match call.outcome() {
            Some(_) => Poll::Ready(Ok(())),
            None if is_woken && Instant::now() >= reply_by + LAST_MOMENT => Poll::Ready(Err(
                self.error(ErrorKind::OutcomeUnknown, "Redis did not reply in time")
            )),
            None => Poll::Pending,
        }
    }
}

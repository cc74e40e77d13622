//! Group commit without a timer: a caller's hits join a call, and the caller waits for its outcome, or makes it itself.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use redis::aio::ConnectionLike;
use tokio::time::{Instant, sleep};

use crate::error::{ErrorKind, Result};
use crate::writer::call::{Call, Outcome};
use crate::writer::group::Group;
use crate::writer::queue::{Joined, Queue, SLOW, Started};
use crate::writer::send::Sender;
use crate::writer::terms::{Terms, Until};

impl<C> Queue<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Counts what `push` puts into a group, which it does if there is room, and returns when Redis has done it: the call
    /// with its outcome, and the hits' positions in it. A full group is an error unless the terms say to wait.
    /// Hits of several partitions come as `mixed`, and are refused once the server turns out to be a cluster.
    pub async fn count<T>(
        self: &Arc<Self>,
        (partition, mixed): (u32, bool),
        terms: Terms,
        mut push: impl FnMut(&mut Group) -> Option<T>,
    ) -> Result<(Arc<Call>, T)> {
        let mut until = None;
        loop {
            if mixed && !self.spans_partitions() {
                return Err(self.error(ErrorKind::Redis, "not counted: the partitions lie on several nodes"));
            }
            let joined = poll_fn(|cx| Poll::Ready(self.join(partition, cx.waker(), terms, until, &mut push))).await;
            let (call, positions, mut waker) = match joined {
                Joined::Waits { positions, call, waker, watch } => {
                    self.watch(watch);
                    (call, positions, Some(waker))
                }
                Joined::Leads { positions, started } => {
                    let call = started.call.clone();
                    // most callers only wait: their futures need no room for this
                    Box::pin(Sender::new(self.clone(), started).run()).await;
                    (call, positions, None)
                }
                Joined::Full(call) if terms.wait => {
                    let until = until.get_or_insert_with(|| Until::new(Instant::now(), terms.timeout));
                    Box::pin(self.wait_for_room(&call, until.deadline)).await?;
                    continue;
                }
                Joined::Closed(error) => return Err(error),
                Joined::Full(_) => return Err(self.error(ErrorKind::Busy, "too many hits wait for Redis")),
            };
            let until = *until.get_or_insert(call.until(terms.timeout));
            // woken not before the end, in all but a few cases
            let mut first = waker.is_some();
            poll_fn(|cx| match std::mem::take(&mut first) {
                true if call.outcome().is_none() => Poll::Pending,
                _ => {
                    let (left, watch) = self.take_over(&call);
                    self.spawn(left);
                    self.watch(watch);
                    call.poll_end(cx, &mut waker, until.deadline)
                }
            })
            .await?;
            match call.outcome() {
                Some(Outcome::NotExecuted(_)) if Instant::now() < until.begin => {}
                Some(Outcome::NotExecuted(error) | Outcome::Failed(error)) => return Err(error.again()),
                _ => return Ok((call, positions)),
            }
        }
    }

    /// Makes calls by tasks of their own.
    fn spawn(self: &Arc<Self>, started: impl IntoIterator<Item = Started>) {
        started.into_iter().for_each(|started| Sender::new(self.clone(), started).spawn());
    }

    /// Looks after calls from now on, if it is this caller's turn to begin.
    fn watch(self: &Arc<Self>, begins: bool) {
        if begins {
            tokio::spawn(Watch(self.clone()).run());
        }
    }
}

/// Looks after the calls of a queue as long as there are any.
struct Watch<C: ConnectionLike + Clone + Send + Sync + 'static>(Arc<Queue<C>>);

impl<C> Watch<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn run(self) {
        loop {
            sleep(SLOW).await;
            let (started, goes_on) = self.0.look();
            self.0.spawn(started);
            if !goes_on {
                return;
            }
        }
    }
}

/// Also where its runtime ends: another one may go on.
impl<C> Drop for Watch<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.0.end_watch();
    }
}

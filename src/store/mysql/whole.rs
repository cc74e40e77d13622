//! Work that is done to its end although its caller may be dropped: a query that is dropped half-way breaks its
//! connection.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use crate::error::{Error, ErrorKind, Result};

/// In a task of its own: the work goes on also while the caller does not look at it, so that a transaction is not left
/// open by one that is busy elsewhere. Boxed, since an application's futures go on around it, and rustc looks 128 deep.
pub(super) fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> BoxFuture<'static, Result<T>> {
    let lost = |error| Error::new(ErrorKind::Store, "the task of a database call ended early").with_source(error);
    async move { tokio::spawn(work).await.map_err(lost)? }.boxed()
}

/// In the caller's own task for as long as the caller is there, which saves a read the way to another task and back.
pub(super) fn in_place<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> InPlace<T> {
    InPlace(Some(work.boxed()))
}

pub(super) struct InPlace<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Future for InPlace<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // gone while it is polled: after a panic nothing is left to do
        let Some(mut work) = self.0.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for InPlace<T> {
    fn drop(&mut self) {
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

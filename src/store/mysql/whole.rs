//! Work that completes even if its caller is dropped. A query that is dropped half-way breaks its
//! connection.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use crate::error::{Error, ErrorKind, Result};

/// Runs the work in its own task. It continues while the caller does not poll it, so a busy caller
/// does not leave a transaction open. Boxed, since an application's futures nest around it and
/// rustc's recursion limit is 128.
pub(crate) fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> BoxFuture<'static, Result<T>> {
    let lost = |error| {
        Error::new(ErrorKind::Store, "the task of a database call ended early").with_source(error)
    };
    async move { tokio::spawn(work).await.map_err(lost)? }.boxed()
}

/// Runs the work in the caller's own task until the caller is dropped, which saves a read two task
/// switches.
pub(super) fn in_place<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> InPlace<T> {
    InPlace(Some(work.boxed()))
}

pub(super) struct InPlace<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Future for InPlace<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // taken while it is polled: after a panic nothing is left to do
        let Some(mut work) = self.0.take() else {
            return Poll::Pending;
        };
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

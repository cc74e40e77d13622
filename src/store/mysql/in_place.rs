//! Statements in the caller's own task, which end even if the caller drops them.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Fuse, FusedFuture};
use tokio::runtime::Handle;

/// Runs a statement in the caller's own task, which saves a read two task switches. If the caller
/// drops the future, a task finishes it, because the connection of a query that is dropped before
/// its reply must be closed. It is boxed, since an application's futures nest around it and rustc's
/// recursion limit is 128.
pub fn in_place<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> InPlace<T> {
    InPlace(work.boxed().fuse())
}

/// The work of [`in_place`].
pub struct InPlace<T: Send + 'static>(Fuse<BoxFuture<'static, T>>);

impl<T: Send + 'static> Future for InPlace<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.0.poll_unpin(context)
    }
}

impl<T: Send + 'static> Drop for InPlace<T> {
    fn drop(&mut self) {
        if !self.0.is_terminated()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(std::mem::replace(&mut self.0, Fuse::terminated()));
        }
    }
}

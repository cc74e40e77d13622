//! The runtime of a pair, on which its tasks run and its connections live.

use std::future::pending;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The runtime on which a pair was made.
#[derive(Debug)]
pub struct PairRuntime {
    handle: Handle,
    /// A task that never completes, and so ends with the runtime.
    life: JoinHandle<()>,
}

impl PairRuntime {
    /// Returns the current runtime.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn current() -> Self {
        let handle = Handle::current();
        let life = handle.spawn(pending());
        PairRuntime { handle, life }
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(task)
    }

    pub fn has_ended(&self) -> bool {
        self.life.is_finished()
    }

    /// Returns whether the caller is on another runtime.
    pub fn is_elsewhere(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() != self.handle.id())
    }
}

impl Drop for PairRuntime {
    fn drop(&mut self) {
        self.life.abort();
    }
}

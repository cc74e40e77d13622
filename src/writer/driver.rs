//! The tasks that make calls, on the runtime where the family was opened.

use std::pin::pin;
use std::sync::Arc;

use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::error::ErrorKind;
use crate::writer::call::{Call, CallOutcome, Sending};
use crate::writer::deadline::SLOW;
use crate::writer::queue::Queue;

/// A task that makes one call after another, as long as hits gather.
#[derive(Debug)]
pub struct Driver {
    queue: Arc<Queue>,
    /// The call in flight.
    call: Option<Arc<Call>>,
    has_exited: bool,
}

impl Driver {
    fn new(queue: &Arc<Queue>) -> Self {
        Driver {
            queue: queue.clone(),
            call: None,
            has_exited: false,
        }
    }

    /// Spawns a driver, which the queue has counted.
    pub fn spawn(queue: &Arc<Queue>) {
        queue.runtime.spawn(Driver::new(queue).run());
    }

    /// Spawns a task that notices the end of the runtime, also while no call is made.
    pub fn watch_runtime(queue: &Arc<Queue>) {
        queue.runtime.spawn(Driver::new(queue).watch());
    }

    async fn watch(mut self) {
        self.queue.dropped.notified().await;
        self.has_exited = true;
    }

    async fn run(mut self) {
        while let Some((call, sending)) = self.queue.next(self.call.take().as_ref()) {
            self.call = Some(call.clone());
            let mut made = pin!(make(&self.queue, &call, sending));
            while timeout(SLOW, &mut made).await.is_err() {
                if self.queue.check_time() {
                    Driver::spawn(&self.queue);
                }
            }
            // the callers just notified add their next hits first, so that the next call carries
            // more
            yield_now().await;
        }
        self.has_exited = true;
    }
}

/// Runs when the runtime ends.
impl Drop for Driver {
    fn drop(&mut self) {
        if self.has_exited {
            return;
        }
        self.queue.end();
        if let Some(call) = &self.call {
            let what = "the runtime that made the call has ended";
            let unknown = self.queue.error(ErrorKind::OutcomeUnknown, what);
            call.end(CallOutcome::Failed(unknown));
        }
    }
}

/// Makes a call, and pauses if Redis refused it.
async fn make(queue: &Queue, call: &Call, mut sending: Sending) {
    let outcome = sending.make(queue).await;
    let pause = queue.ended(sending, &outcome);
    call.end(outcome);
    if let Some(pause) = pause {
        sleep(pause).await;
    }
}

//! The tasks that make calls, on the runtime of the pair.

use std::pin::pin;
use std::sync::Arc;

use tokio::task::yield_now;
use tokio::time::timeout;

use crate::writer::deadline::SLOW;
use crate::writer::queue::Queue;
use crate::writer::send::make;

/// Spawns a driver, which the queue has counted: a task that makes one call after another, as long
/// as hits gather.
pub fn spawn(queue: &Arc<Queue>) {
    queue.spawn(drive(queue.clone()));
}

async fn drive(queue: Arc<Queue>) {
    let mut last = None;
    while let Some((call, sending)) = queue.next(last.as_ref()) {
        let call = last.insert(call);
        let mut made = pin!(make(&queue, sending, call, None));
        while timeout(SLOW, &mut made).await.is_err() {
            if queue.check_time(call) {
                spawn(&queue);
            }
        }
        // the callers just notified add their next hits first, so that the next call carries more
        yield_now().await;
    }
}

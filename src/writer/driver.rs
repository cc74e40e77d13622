//! The tasks that make calls, on the runtime where the family was opened.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::writer::deadline::SLOW;
use crate::writer::queue::Queue;
use crate::writer::send::make;

/// A task of the writer. The queue ends with it if it ends early, with its runtime.
struct Task {
    queue: Arc<Queue>,
    is_done: bool,
}

impl Task {
    fn spawn<F>(queue: &Arc<Queue>, run: impl FnOnce(Arc<Queue>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = Task {
            queue: queue.clone(),
            is_done: false,
        };
        let running = run(queue.clone());
        queue.runtime.spawn(async {
            running.await;
            task.done();
        });
    }

    fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.is_done {
            self.queue.end();
        }
    }
}

/// Spawns a driver, which the queue has counted: a task that makes one call after another, as long
/// as hits gather.
pub fn spawn(queue: &Arc<Queue>) {
    Task::spawn(queue, drive);
}

/// Spawns a task that notices the end of the runtime, also while no call is made. It ends when the
/// sender is dropped.
pub fn watch_runtime(queue: &Arc<Queue>) -> oneshot::Sender<()> {
    let (writer, dropped) = oneshot::channel();
    Task::spawn(queue, |_| async {
        let _ = dropped.await;
    });
    writer
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

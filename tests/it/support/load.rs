//! Tasks that count until they are stopped.

use crate::support::*;

/// Tasks that count until they are stopped.
pub struct Load<T> {
    stop: Stop,
    tasks: JoinSet<T>,
}

/// Tells a task when to stop.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T: Send + 'static> Load<T> {
    /// Starts this many tasks, which each get a number.
    pub fn start<F>(tasks: usize, task: impl Fn(usize, Stop) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let stop = Stop::default();
        let tasks = (0..tasks).map(|number| task(number, stop.clone()));
        Load {
            tasks: tasks.collect(),
            stop,
        }
    }

    /// Stops the tasks after their current turn, and returns their results.
    pub async fn end(self) -> Vec<T> {
        self.stop.0.store(true, Ordering::Relaxed);
        self.tasks.join_all().await
    }
}

//! Helpers for tasks of any kind: calls for many items, and tasks that stop when they are asked to.

use std::future::{Future, pending};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, try_join_all};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::Instrument;

use crate::error::{Error, ErrorKind, Result};

/// The number of calls that one step has in flight at a time.
const CALLS: usize = 64;

/// Makes a call for each item, some at a time, and returns their results in the order of the items.
pub async fn each<'a, T, F: Future>(items: &'a [T], call: impl Fn(&'a T) -> F) -> Vec<F::Output> {
    let mut results = Vec::with_capacity(items.len());
    for some in items.chunks(CALLS) {
        results.extend(join_all(some.iter().map(&call)).await);
    }
    results
}

/// Makes a call for each item like [`each`], until one fails.
pub async fn try_each<'a, T, R, F: Future<Output = Result<R>>>(
    items: &'a [T],
    call: impl Fn(&'a T) -> F,
) -> Result<Vec<R>> {
    try_each_of(CALLS, items, call).await
}

/// Makes calls like [`try_each`], up to `calls` at a time.
pub async fn try_each_of<'a, T, R, F: Future<Output = Result<R>>>(
    calls: usize,
    items: &'a [T],
    call: impl Fn(&'a T) -> F,
) -> Result<Vec<R>> {
    let mut results = Vec::with_capacity(items.len());
    for some in items.chunks(calls) {
        results.extend(try_join_all(some.iter().map(&call)).await?);
    }
    Ok(results)
}

/// Makes one call for all items. If an error concerns one item, makes a call for each half by
/// itself, so that the items beside it do not fail. Returns the items and the result of each call
/// that was not divided. An error that concerns all items is returned at once.
pub async fn bisected<'a, T, R, F: Future<Output = Result<R>>>(
    items: &'a [T],
    concerns_one: impl Fn(&Error) -> bool,
    call: impl Fn(&'a [T]) -> F,
) -> Result<Vec<(&'a [T], Result<R>)>> {
    let (mut left, mut results) = (vec![items], Vec::new());
    while let Some(some) = left.pop() {
        match call(some).await {
            Err(error) if !concerns_one(&error) => return Err(error),
            Err(_) if some.len() > 1 => {
                let (first, second) = some.split_at(some.len() / 2);
                left.extend([second, first]);
            }
            result => results.push((some, result)),
        }
    }
    Ok(results)
}

/// The time for which a stopping task waits for the database, if the database did not fail before.
pub const GRACE: Duration = Duration::from_secs(2);

/// Waits for a step to end, but no longer than `grace` once `stop` is set. An abandoned step may
/// still be executed.
pub async fn unless_stopped<T>(
    stop: &watch::Receiver<bool>,
    grace: Duration,
    step: impl Future<Output = Result<T>>,
) -> Result<T> {
    let stopped = async {
        if stop.clone().wait_for(|&stop| stop).await.is_err() {
            pending::<()>().await;
        }
        sleep(grace).await;
    };
    tokio::select! {
        biased;
        ended = step => ended,
        () = stopped => Err(Error::store("stopped waiting: shutting down")),
    }
}

/// Pauses. Returns `false` if `stop` was set meanwhile.
pub async fn pause_unless_stopped(stop: &watch::Receiver<bool>, pause: Duration) -> bool {
    unless_stopped(stop, Duration::ZERO, sleep(pause).map(Ok))
        .await
        .is_ok()
}

/// A task of its own that stops when it is shut down or dropped.
#[derive(Debug)]
pub struct Background {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Background {
    /// Spawns the task in the current span, in which a program with several pairs can name its pair.
    /// `run` receives the channel that tells it to stop.
    pub fn start<F>(run: impl FnOnce(watch::Receiver<bool>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let task = tokio::spawn(run(stopping).in_current_span());
        Background { stop, task }
    }

    /// Returns false once the task has ended.
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// Stops the task and waits for its end. `ended_early` is the error after a panic.
    pub async fn shutdown(self, ended_early: &'static str) -> Result<()> {
        self.stop.send_replace(true);
        let ended = self.task.await;
        ended.map_err(|error| Error::new(ErrorKind::Closed, ended_early).with_source(error))
    }

    /// Lets the task run until the runtime ends.
    pub fn detach(self) {
        // the task stops when the sender is dropped, so this one never is
        std::mem::forget(self.stop);
    }
}

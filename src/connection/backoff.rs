//! The pauses before a failed call is retried.

use std::fmt;
use std::future::{Future, pending};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::connection::failures::Failures;
use crate::error::{Error, ErrorKind, Result};

/// The time for which a stopping task waits for the database, if the database did not fail before.
pub const GRACE: Duration = Duration::from_secs(2);

/// Pauses that double from 5 ms to a second. Each is a random part of that, at least half, so that
/// callers that failed together do not retry together.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(Duration::from_millis(5))
    }
}

impl Backoff {
    pub fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Duration::from_secs(1));
        let share = getrandom::u32().unwrap_or(0) % 1000;
        pause / 2 + pause / 2 * share / 1000
    }
}

/// The retries of one piece of work.
#[derive(Debug, Default)]
pub struct Retries {
    backoff: Backoff,
    failures: Failures,
}

impl Retries {
    /// Logs a retryable error; returns any other.
    pub fn failed(&mut self, name: impl fmt::Display, error: Error) -> Result<()> {
        if !error.is_retryable() {
            return Err(error);
        }
        self.failures.failed((), name, &error);
        Ok(())
    }

    pub async fn pause(&mut self) {
        sleep(self.backoff.next()).await;
    }

    /// Logs a retryable error and pauses; returns any other.
    pub async fn wait_out(&mut self, name: impl fmt::Display, error: Error) -> Result<()> {
        self.failed(name, error)?;
        self.pause().await;
        Ok(())
    }

    /// Notes that the work succeeded.
    pub fn succeeded(&mut self) {
        self.failures.succeeded(&());
    }
}

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
    /// Spawns the task, which receives the order to stop.
    pub fn start<F>(run: impl FnOnce(watch::Receiver<bool>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let task = tokio::spawn(run(stopping));
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
        // the task stops when the sender is dropped
        std::mem::forget(self.stop);
    }
}

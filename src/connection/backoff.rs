//! The pauses before a failed call is retried.

use std::fmt;
use std::time::Duration;

use tokio::time::sleep;

use crate::connection::failures::Failures;
use crate::error::{Error, Result};

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

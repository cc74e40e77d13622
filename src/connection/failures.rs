//! The log of steps that fail and are retried: one event when a step begins to fail, one a minute
//! while it fails, and one when everything has recovered.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

/// The least time between two log events of the same error.
const INTERVAL: Duration = Duration::from_mins(1);

/// The steps that fail at present, and the errors that were logged lately.
#[derive(Debug)]
pub struct Failures<K = ()> {
    failing: HashMap<K, Failure>,
    /// The time of each error's last event, and the number of failures since.
    logged: HashMap<String, (Instant, u64)>,
    /// True if the log has no event of a recovery since the last failure in it.
    is_open: bool,
}

/// A step that fails at present.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The time of the first failure since the step last succeeded.
    pub since: Instant,
    /// The time of the last failure.
    pub last: Instant,
    /// The last error.
    pub error: Error,
}

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Failures {
            failing: HashMap::new(),
            logged: HashMap::new(),
            is_open: false,
        }
    }
}

impl<K: Eq + Hash> Failures<K> {
    /// Counts a failure of the step, and logs it unless the same error was logged in the last
    /// minute, of this step or another.
    pub fn failed(&mut self, step: K, name: impl fmt::Display, error: &Error) {
        let known = self.failing.get(&step).map(|failure| failure.since);
        let last = Instant::now();
        let failure = Failure {
            since: known.unwrap_or(last),
            last,
            error: error.clone(),
        };
        self.failing.insert(step, failure);
        if let Some(failures) = self.count(format!("{error:#}")) {
            self.is_open = true;
            let failing = self.failing.len();
            let error_text = format_args!("{error:#}");
            if error.is_retryable() {
                tracing::warn!(%name, error = %error_text, failures, failing, "failed, will retry");
            } else if error.outcome_unknown() {
                tracing::warn!(%name, error = %error_text, failures, failing, "failed, the outcome is unknown");
            } else {
                tracing::error!(%name, error = %error_text, failures, failing, "permanent failure, needs an operator");
            }
        }
    }

    /// Notes that the step succeeded, and logs a recovery if it was the last that failed.
    pub fn succeeded(&mut self, step: &K) {
        if self.failing.remove(step).is_some() && self.failing.is_empty() && self.is_open {
            self.is_open = false;
            tracing::info!("recovered");
        }
    }

    /// Returns the steps that fail at present.
    pub fn failing(&self) -> impl Iterator<Item = (&K, &Failure)> {
        self.failing.iter()
    }

    /// Counts an error, or anything else that is logged at most once a minute. Returns the number
    /// since its last event in the log, if the next is due.
    pub fn count(&mut self, error: String) -> Option<u64> {
        let now = Instant::now();
        if let Some((last, failures)) = self.logged.get_mut(&error)
            && now < *last + INTERVAL
        {
            *failures += 1;
            return None;
        }
        let failures = self
            .logged
            .remove(&error)
            .map_or(0, |(_, failures)| failures);
        self.logged.retain(|_, (last, _)| now < *last + INTERVAL);
        self.logged.insert(error, (now, 0));
        Some(failures + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_error_is_due_at_once_and_then_once_a_minute() {
        let mut failures = Failures::<u8>::default();
        let mut count = |error: &str| failures.count(error.to_owned());
        assert_eq!(count("refused"), Some(1));
        assert_eq!(count("refused"), None);
        assert_eq!(count("another"), Some(1));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(count("refused"), Some(2));
        assert_eq!(count("refused"), None);
    }
}

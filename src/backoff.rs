//! How long to wait before a failed call is made again.

use std::time::Duration;

use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::partition::random;

/// Pauses that double from 5 ms to a second, each somewhere between the half and the whole of it, so that callers who
/// failed together do not come back together.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(Duration::from_millis(5))
    }
}

impl Backoff {
    pub fn next(&mut self) -> Duration {
        let whole = self.0;
        self.0 = (whole * 2).min(Duration::from_secs(1));
        let share = random().unwrap_or(0) % 1000;
        whole / 2 + whole / 2 * u32::try_from(share).unwrap_or(0) / 1000
    }
}

/// Pauses after an error that waiting may mend, and hands on any other.
pub async fn wait_out(error: Error, pause: &mut Backoff) -> Result<()> {
    if !error.is_retryable() {
        return Err(error);
    }
    tracing::warn!(%error, "waiting");
    sleep(pause.next()).await;
    Ok(())
}

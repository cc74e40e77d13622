//! Retries of open rejects, so that those whose causes are gone are applied.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Result;
use crate::process::shared::Shared;

/// The interval of retries.
const EVERY: Duration = Duration::from_secs(10);
const NOT_BEFORE_ITS_END: Duration = Duration::from_hours(1);

/// The schedule of the retries, which take a page of rejects at a time.
#[derive(Debug)]
pub struct Rejects {
    next: Instant,
    /// The number of the last reject that was retried; 0 at the end.
    after: u64,
}

impl Rejects {
    pub fn new() -> Self {
        Rejects {
            next: Instant::now(),
            after: 0,
        }
    }

    pub fn next_retry(&self) -> Instant {
        self.next
    }

    /// Returns the number after which to [retry] if a retry is due. The next one is due only after
    /// this one ended.
    pub fn begin(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.next > now {
            return None;
        }
        self.next = now + NOT_BEFORE_ITS_END;
        Some(self.after)
    }

    /// Ends a retry with the number to continue after, if that is known.
    pub fn end(&mut self, after: Option<u64>) {
        self.after = after.unwrap_or(self.after);
        self.next = Instant::now() + EVERY;
    }
}

/// Retries the next rejects of the families in use. Returns the number to continue after, and the
/// first error of a family.
pub async fn retry(shared: &Shared, after: u64) -> Result<(u64, Result<()>)> {
    let Some(mysql) = shared.store.as_mysql() else {
        return Ok((0, Ok(())));
    };
    let families = shared.opened();
    let registered = families.iter().filter_map(|one| one.known());
    let registered: Vec<_> = registered.collect();
    mysql.close_rejects(&registered, after).await
}

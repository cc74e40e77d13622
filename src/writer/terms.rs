//! The time limits of callers and calls.

use std::time::Duration;

use tokio::time::Instant;

/// The conditions under which a hit is counted.
#[derive(Clone, Copy)]
pub struct Terms {
    /// The time for which a failing call is repeated.
    pub timeout: Duration,
    /// Set to wait for room when many others wait.
    pub wait: bool,
    /// Set for hits accepted before the writer was closed.
    pub taken: bool,
}

/// The time limits of a waiting caller.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    pub deadline: Instant,
    /// The latest start of a call. A later one would only make the outcome of uncounted hits
    /// unknown.
    pub begin: Instant,
}

/// The duration after which a call no longer holds up other partitions, and its callers check the
/// time.
pub const SLOW: Duration = Duration::from_millis(50);

/// The time that a call needs to have some hope of a reply.
pub const LAST_MOMENT: Duration = Duration::from_millis(50);

impl Until {
    pub fn new(from: Instant, timeout: Duration) -> Self {
        let deadline = from + timeout;
        Until {
            deadline,
            begin: deadline - timeout.min(LAST_MOMENT) / 2,
        }
    }

    /// Returns the later of both limits.
    pub fn or(self, other: Until) -> Self {
        Until {
            deadline: self.deadline.max(other.deadline),
            begin: self.begin.max(other.begin),
        }
    }
}

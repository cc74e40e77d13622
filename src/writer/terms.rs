//! How long a caller waits for its hit, and whether it waits at all.

use std::time::Duration;

use tokio::time::Instant;

/// How a hit is counted.
#[derive(Clone, Copy)]
pub struct Terms {
    /// How long a call that fails is repeated.
    pub timeout: Duration,
    /// Waits for room where many others wait.
    pub wait: bool,
    /// Was taken before the writer was closed.
    pub taken: bool,
}

/// Until when a caller waits.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    pub deadline: Instant,
    /// A call begun later would only make unknown what is surely not counted.
    pub begin: Instant,
}

/// A call that takes longer does not hold up other partitions any more, and those who wait for it look at the time.
pub const SLOW: Duration = Duration::from_millis(50);

/// What it takes to make a call with some hope of a reply.
pub const LAST_MOMENT: Duration = Duration::from_millis(50);

impl Until {
    pub fn new(from: Instant, timeout: Duration) -> Self {
        let deadline = from + timeout;
        Until { deadline, begin: deadline - timeout.min(LAST_MOMENT) / 2 }
    }

    /// Until the later of the two has gone.
    pub fn or(self, other: Until) -> Self {
        Until { deadline: self.deadline.max(other.deadline), begin: self.begin.max(other.begin) }
    }
}

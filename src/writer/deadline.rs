//! The time limits of callers and calls.

use std::time::Duration;

use tokio::time::Instant;

/// The conditions under which hits are counted.
#[derive(Clone, Copy)]
pub struct WriteOptions {
    pub deadline: Deadline,
    /// Set to wait for room when many others wait.
    pub wait: bool,
    /// Set for hits accepted before the writer was closed.
    pub accepted_before_close: bool,
}

impl From<Deadline> for WriteOptions {
    /// Returns the options of a hit that waits for room.
    fn from(deadline: Deadline) -> Self {
        WriteOptions {
            deadline,
            wait: true,
            accepted_before_close: false,
        }
    }
}

/// The time limits of a waiting caller.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    pub began: Instant,
    pub reply_by: Instant,
    /// The latest start of a call. A call that starts later is unlikely to get a reply in time, and
    /// the outcome of its hits would only become unknown.
    pub start_by: Instant,
}

/// The duration after which a call no longer holds up other partitions, and its callers check the
/// time.
pub const SLOW: Duration = Duration::from_millis(50);

/// The time that a call needs to have some hope of a reply.
pub const LAST_MOMENT: Duration = Duration::from_millis(50);

/// The longest time that a call is left for its reply.
const LONGEST_REPLY: Duration = Duration::from_millis(500);

/// The longest time limit: longer than any call, and still in the range of an [`Instant`].
pub const LONGEST: Duration = Duration::from_hours(24);

impl Deadline {
    /// Returns the limits of a caller that begins now.
    pub fn within(timeout: Duration) -> Self {
        let timeout = timeout.min(LONGEST);
        let began = Instant::now();
        let (reply_by, least) = (began + timeout, timeout.min(LAST_MOMENT) / 2);
        Deadline {
            began,
            reply_by,
            start_by: reply_by - (timeout / 10).clamp(least, LONGEST_REPLY),
        }
    }

    /// Returns the later limits of two callers, of which `self` began first.
    pub fn or(self, other: Deadline) -> Self {
        Deadline {
            began: self.began,
            reply_by: self.reply_by.max(other.reply_by),
            start_by: self.start_by.max(other.start_by),
        }
    }
}

//! Time limits of replies, and the ticks of repeated tasks.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::reason::Reason;

/// The time limit of a server's reply.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit of `check`, which waits for locks of tables.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
pub const CHECK_ADVICE: &str = "Is a table locked? SHOW PROCESSLIST in MySQL shows who waits";

/// Returns the ticks of a repeated task; a late one delays those after it.
pub fn ticks(time: Duration) -> Interval {
    let mut ticks = interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns the reply of a server, or an error if it takes 5 s.
pub async fn in_time<T, E: Display>(
    reply: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout(TIMEOUT, reply).await {
        Ok(reply) => reply.map_err(|error| format!("{error:#}")),
        Err(_) => Err(Reason::silence(TIMEOUT).text),
    }
}

pub async fn with_timeout<T, E: Into<Reason>>(
    limit: Duration,
    reply: impl Future<Output = Result<T, E>>,
) -> Result<T, Reason> {
    match timeout(limit, reply).await {
        Ok(reply) => reply.map_err(Into::into),
        Err(_) => Err(Reason::silence(limit)),
    }
}

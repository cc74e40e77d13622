//! What a process believes the Redis server's time to be. Only the server's own clock decides where something counts; but
//! a caller has to name the day, or the layer, that it believes to be the current one, and is told where that is wrong.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};
use crate::scripts::bundle::Reply;
use crate::testing::simulated;

/// How often a call is made again whose time was wrong. Each time it is told the right one.
const ATTEMPTS: u32 = 5;

/// How far the server's clock is ahead of this machine's, as last seen: that of the server where a call is executed, and
/// this machine's where it was sent. So the way there is part of it, and a guess is right however long that takes, as
/// long as it takes about the same each time.
#[derive(Debug, Default)]
pub struct ServerClock {
    ahead_ms: AtomicI64,
}

impl ServerClock {
    /// The time for a call that depends on it.
    pub fn guess(&self) -> Guess<'_> {
        let sent = here();
        Guess { clock: self, sent, ahead: self.ahead_ms.load(Ordering::Relaxed), left: ATTEMPTS }
    }
}

/// What the time is taken for in a call, until the server says otherwise.
#[derive(Debug)]
pub struct Guess<'c> {
    clock: &'c ServerClock,
    /// When the call is made, by this machine's clock.
    sent: i64,
    ahead: i64,
    left: u32,
}

impl Guess<'_> {
    /// The server's time as far as is known, in Unix milliseconds.
    pub fn now(&self) -> i64 {
        self.sent + self.ahead
    }

    /// The reply, unless it says that the time is another one: then nothing was done, and the call is to be made for
    /// that.
    pub fn accept(&mut self, reply: Reply) -> Result<Option<Reply>> {
        if reply.status() != "OUTSIDE" {
            return Ok(Some(reply));
        }
        self.ahead = reply.number::<i64>(0)? - self.sent;
        self.clock.ahead_ms.store(self.ahead, Ordering::Relaxed);
        self.sent = here();
        self.left -= 1;
        match self.left {
            0 => Err(Error::new(ErrorKind::Redis, "the server's time is another one with each call")),
            _ => Ok(None),
        }
    }
}

/// The time by this machine's clock.
fn here() -> i64 {
    let since = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = simulated::time().map_or_else(|| since().as_millis(), u128::from);
    i64::try_from(time).unwrap_or(0) + simulated::clock_error()
}

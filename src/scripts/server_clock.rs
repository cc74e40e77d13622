//! An estimate of the Redis server's time. Only the server's own clock decides where something
//! counts. But a caller must name the current day, or layer, and the server corrects a wrong one.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};
use crate::scripts::bundle::Reply;
use crate::testing::simulated;

/// The maximum number of attempts of a call with a wrong time. Each rejection contains the right
/// one.
const ATTEMPTS: u32 = 5;

/// The offset of the server's clock from this machine's, as last seen. It is the server's time when
/// it executes a call, minus this machine's time when the call is sent. It includes the network
/// delay, so a guess is right as long as that delay stays about the same.
#[derive(Debug, Default)]
pub struct ServerClock {
    ahead_ms: AtomicI64,
}

impl ServerClock {
    /// Returns a guess of the time for a call that depends on it.
    pub fn guess(&self) -> Guess<'_> {
        let sent = here();
        Guess {
            clock: self,
            sent,
            ahead: self.ahead_ms.load(Ordering::Relaxed),
            left: ATTEMPTS,
        }
    }
}

/// The assumed time of a call, until the server corrects it.
#[derive(Debug)]
pub struct Guess<'c> {
    clock: &'c ServerClock,
    /// This machine's time when the call is sent.
    sent: i64,
    ahead: i64,
    left: u32,
}

impl Guess<'_> {
    /// Returns the server's estimated time in Unix milliseconds.
    pub fn now(&self) -> i64 {
        self.sent + self.ahead
    }

    /// Returns the reply, or `None` if it corrects the time. Nothing was done then, and the call
    /// must be repeated for the new time.
    pub fn accept(&mut self, mut reply: Reply) -> Result<Option<Reply>> {
        if reply.status() != "OUTSIDE" {
            return Ok(Some(reply));
        }
        self.ahead = reply.number::<i64>()? - self.sent;
        self.clock.ahead_ms.store(self.ahead, Ordering::Relaxed);
        self.sent = here();
        self.left -= 1;
        match self.left {
            0 => Err(Error::new(
                ErrorKind::Redis,
                "the server's time differs with each call",
            )),
            _ => Ok(None),
        }
    }
}

/// Returns this machine's time in Unix milliseconds.
fn here() -> i64 {
    let since = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    };
    let time = simulated::time().map_or_else(|| since().as_millis(), u128::from);
    i64::try_from(time).unwrap_or(0) + simulated::clock_error()
}

//! An estimate of the Redis server's time. Only the server's own clock decides where something
//! counts. But a caller must name the current day, or layer, and the server corrects a wrong one.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::scripts::bundle::Reply;
use crate::testing::simulated;

/// The maximum number of attempts of a call with a wrong time. Each rejection contains the right
/// one.
const ATTEMPTS: u32 = 5;

/// The offset of the server's clock from this machine's, as last seen. It is the server's time when
/// it executes a call, minus this machine's time when the call is sent. It includes the network
/// delay, so an estimate is right as long as that delay stays about the same.
#[derive(Debug, Default)]
pub struct ServerClock {
    ahead_ms: AtomicI64,
}

impl ServerClock {
    /// Makes a call with the server's estimated time, in Unix milliseconds. The reply OUTSIDE
    /// corrects the time: nothing was done then, and the call is repeated.
    pub async fn call<F>(&self, call: impl Fn(i64) -> F) -> Result<Reply>
    where
        F: Future<Output = Result<Reply>>,
    {
        let mut ahead = self.ahead_ms.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS {
            let sent = here();
            let mut reply = call(sent + ahead).await?;
            if reply.status() != "OUTSIDE" {
                return Ok(reply);
            }
            ahead = reply.number::<i64>()? - sent;
            self.ahead_ms.store(ahead, Ordering::Relaxed);
        }
        Err(Error::redis("the server's time differs with each call"))
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

//! The faults of the demo: killed daemons, cut connections and flushed scripts.

use std::fmt;
use std::time::{Duration, Instant};

use counterfoil::redis::aio::ConnectionManager;
use counterfoil::redis::cmd;
use tokio::time::sleep;

use crate::daemons::Daemons;
use crate::{BoxError, Result};

/// The first pause between faults. Pauses grow up to `LAST`: a short run sees every fault, a long
/// one leaves time to view the page.
const FIRST: Duration = Duration::from_millis(800);
const LAST: Duration = Duration::from_secs(10);

pub struct Trouble {
    daemons: Daemons,
    redis: ConnectionManager,
    started: Instant,
    done: Done,
}

/// The number of faults of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    kills: u64,
    cuts: u64,
    seconds_started: u64,
    flushes: u64,
    seconds_killed: u64,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Done {
            kills,
            cuts,
            seconds_started,
            flushes,
            seconds_killed,
        } = self;
        write!(
            f,
            "the daemon killed {kills} times, a second one started {seconds_started} and killed {seconds_killed}; "
        )?;
        write!(
            f,
            "connections to Redis cut {cuts} times, scripts flushed {flushes}"
        )
    }
}

impl Trouble {
    pub fn new(daemons: Daemons, redis: ConnectionManager) -> Self {
        Trouble {
            daemons,
            redis,
            started: Instant::now(),
            done: Done::default(),
        }
    }

    /// Injects faults of each kind in turn. Returns only if one fails.
    pub async fn go_on(&mut self) -> BoxError {
        let mut pause = FIRST;
        loop {
            for strike in 0..5 {
                sleep(pause).await;
                pause = (pause * 5 / 4).min(LAST);
                match self.strike(strike).await {
                    Ok(what) => println!("{:6.1} s  {what}", self.started.elapsed().as_secs_f64()),
                    Err(error) => return error,
                }
            }
        }
    }

    /// Returns the daemons and the number of faults.
    pub fn end(self) -> (Daemons, Done) {
        (self.daemons, self.done)
    }

    async fn strike(&mut self, number: u8) -> Result<String> {
        let Trouble {
            daemons,
            redis,
            done,
            ..
        } = self;
        match number {
            0 => {
                let seconds = daemons.replace_first().await?.as_secs_f64();
                done.kills += 1;
                Ok(format!(
                    "the daemon was killed (SIGKILL) and started again, within {seconds:.2} s"
                ))
            }
            1 => {
                // all except the demo's own
                let cut: u64 = cmd("CLIENT")
                    .arg(&["KILL", "TYPE", "normal"])
                    .query_async(redis)
                    .await?;
                done.cuts += 1;
                Ok(format!("{cut} connections to Redis were cut"))
            }
            2 => {
                daemons.start_second()?;
                done.seconds_started += 1;
                Ok("a second daemon was started".to_owned())
            }
            3 => {
                cmd("SCRIPT").arg("FLUSH").exec_async(redis).await?;
                done.flushes += 1;
                Ok("scripts were flushed".to_owned())
            }
            _ => {
                daemons.kill_second().await?;
                done.seconds_killed += 1;
                Ok("the second daemon was killed".to_owned())
            }
        }
    }
}

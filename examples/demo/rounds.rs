//! The work, split into rounds with a disturbance in the middle of each.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio::try_join;

use crate::Result;
use crate::disturb::{Disturbances, Disturber};
use crate::meter::Meter;
use crate::progress::Progress;
use crate::work::Tally;
use crate::writers::Writers;

/// The minimum number of rounds.
const ROUNDS: u64 = 24;
/// The approximate maximum number of lines in a round.
const ROUND_LINES: u64 = 10_000;

/// The work to do.
pub struct Rounds {
    pub lines: u64,
    /// The minimum time of a round, so that even a few lines span many syncs. The figures exclude
    /// the waiting.
    pub time: Duration,
    /// The name of the counted things in the progress message.
    pub what: &'static str,
}

/// The outcomes of the lines, and the seconds of work.
pub struct Worked {
    pub tally: Tally,
    pub seconds: f64,
    pub rounds: u64,
}

impl Rounds {
    pub async fn run(self, mut writers: Writers, disturber: &mut Disturber) -> Result<Worked> {
        let Rounds {
            lines,
            time: round_time,
            what,
        } = self;
        let rounds = lines.div_ceil(ROUND_LINES).max(ROUNDS);
        let mut progress = Progress::new(lines, what)?;
        let (tally, counted) = watch::channel(Tally::default());
        let mut seconds = 0.0;
        for round in 0..rounds {
            let (begin, end) = (lines * round / rounds, lines * (round + 1) / rounds);
            let counting = writers.round(end, &tally);
            let strike = strike_at(begin.midpoint(end), counted.clone(), disturber);
            let pause = async {
                sleep(round_time).await;
                Ok(())
            };
            let (time, (), ()) = try_join!(counting, strike, pause)?;
            seconds += time;
            progress.show(*counted.borrow(), seconds, &disturber.done);
        }
        progress.clear();
        let tally = *counted.borrow();
        Ok(Worked {
            tally,
            seconds,
            rounds,
        })
    }
}

async fn strike_at(
    line: u64,
    mut counted: watch::Receiver<Tally>,
    disturber: &mut Disturber,
) -> Result<()> {
    counted.wait_for(|tally| tally.lines >= line).await?;
    disturber.strike().await
}

/// Subtracts the demo's own readings and disturbances, which are not a cost of counting.
pub fn without_own(used: Meter, done: &Disturbances) -> Meter {
    let reading = Meter {
        commands: 1,
        evalsha: 0,
        statements: 1,
    };
    used - reading
        - Meter {
            commands: done.commands,
            evalsha: 0,
            statements: done.statements,
        }
}

//! A round of random faults, and the comparison at its end.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio::try_join;

use super::fault::Fault;
use super::journal::{Ms, now};
use super::results::Outcome;
use super::site::{OUTSIDE, VIEWS, VOTES};
use super::stage::{Settled, Stage};
use super::watch::Reads;
use crate::Result;
use crate::zipf::Random;

/// The longest pause between two faults, in ms.
const PAUSE: u64 = 150;

pub struct Round {
    pub number: u64,
    pub time: Duration,
    pub random: Random,
    /// The faults to inject, all if it is empty.
    pub only: Vec<Fault>,
    /// An error that the comparison must find.
    pub plant: Option<Plant>,
}

/// A fault as it happened.
struct Strike {
    fault: Fault,
    begun: Ms,
    end: Ms,
}

/// An error that is planted before the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Plant {
    /// A row of MySQL has one hit more
    More,
    /// A row of MySQL has one hit less than Redis acknowledged and no crash explains
    Less,
    /// A journal lacks a hit
    Journal,
}

impl Round {
    pub async fn run(mut self, mut stage: Stage<'_>) -> Result<Outcome> {
        let (started, seed) = (Instant::now(), self.random.0);
        let (persistence, is_over) = (stage.persistence, Cell::new(false));
        let (number, plant, cuts) = (self.number, self.plant, stage.note_cuts());
        let play = async {
            let (read, outside) = (stage.read(&is_over), stage.write_outside(&is_over));
            let strike = async {
                let strikes = self.strike(&mut stage).await;
                is_over.set(true);
                strikes
            };
            let played = try_join!(read, strike, outside);
            if played.is_err() {
                // before the servers of the stage are dropped
                testkit::keep();
            }
            let (reads, strikes, ()) = played?;
            Ok::<_, crate::BoxError>((reads, strikes, stage.settle().await))
        };
        let (reads, strikes, settled) = tokio::select! {
            played = play => played?,
            Err(error) = cuts => return Err(error),
        };
        let mut outcome = Outcome {
            number,
            seed,
            persistence: persistence.to_string(),
            seconds: started.elapsed().as_secs_f64(),
            ..Outcome::default()
        };
        for strike in &strikes {
            *outcome.faults.entry(strike.fault.name()).or_default() += 1;
        }
        outcome.note_reads(reads);
        match settled {
            Ok(settled) => outcome.compare(settled, plant),
            Err(error) => outcome.failed = Some(error.to_string()),
        }
        if !outcome.is_exact() {
            for Strike { fault, begun, end } in strikes {
                eprintln!("{begun} to {end}: {}", fault.name());
            }
        }
        Ok(outcome)
    }

    /// Injects faults one after the other. Each kind is injected once before any is repeated.
    async fn strike(&mut self, stage: &mut Stage<'_>) -> Result<Vec<Strike>> {
        let (mut strikes, mut next) = (Vec::new(), Vec::new());
        let end = Instant::now() + self.time;
        while Instant::now() < end {
            if next.is_empty() {
                let is_wanted = |fault: &Fault| self.only.is_empty() || self.only.contains(fault);
                next.extend(Fault::all(stage.cast()).filter(is_wanted));
            }
            if next.is_empty() {
                return Err("a round with this persistence has none of these faults".into());
            }
            sleep(Duration::from_millis(self.random.below(PAUSE))).await;
            let fault = next.swap_remove(self.random.below(next.len() as u64) as usize);
            let begun = now();
            let struck = stage.strike(fault, &mut self.random).await;
            struck.map_err(|error| format!("{}: {error}", fault.name()))?;
            let end = now();
            strikes.push(Strike { fault, begun, end });
        }
        Ok(strikes)
    }
}

impl Outcome {
    /// Compares MySQL with the journals, counter by counter.
    fn compare(&mut self, mut settled: Settled, plant: Option<Plant>) {
        if let Some(plant) = plant {
            settled.plant(plant);
        }
        let Settled {
            journals,
            names,
            mut stored,
            windows,
            ..
        } = settled;
        let windows = windows.borrow();
        self.saved_ms = u64::try_from(settled.saved_within.as_millis()).unwrap_or(u64::MAX);
        (self.dropped, self.lost_batches) = (settled.dropped, settled.lost_batches);
        self.unreported = settled.unreported;
        self.wrong += settled.miscounted;
        self.single = journals.single;
        for (process, hits) in journals.by_process.iter().enumerate() {
            if *hits > 0 {
                *self.clients.entry(names[process].clone()).or_default() += hits;
            }
        }
        let mut counters = journals.counters;
        // what another program wrote is in the rows of votes
        let outside = counters.split_off(&(OUTSIDE, 0));
        for (_, id) in outside.keys() {
            counters.entry((VOTES, *id)).or_default();
        }
        for (counter, counted) in counters {
            let row = stored.remove(&counter).unwrap_or(0);
            let (mut acknowledged, mut most) = (counted.acknowledged(), counted.most());
            let mut exposed = counted.exposed(counter, &windows, acknowledged);
            let written = outside
                .get(&(OUTSIDE, counter.1))
                .filter(|_| counter.0 == VOTES);
            if let Some(written) = written {
                let place = (OUTSIDE, counter.1);
                exposed.add(written.exposed(place, &windows, written.acknowledged()));
                acknowledged += written.acknowledged();
                most += written.most();
            }
            self.acknowledged += acknowledged;
            self.unknown += most - acknowledged;
            let lacking = (acknowledged - row).max(0);
            let in_crashes = lacking.min(exposed.by_redis);
            let with_backups = (lacking - in_crashes).min(exposed.by_backup);
            self.lost_in_crashes += in_crashes;
            self.lost_with_backups += with_backups;
            self.lost += lacking - in_crashes - with_backups;
            self.doubled += (row - most).max(0);
            let least = acknowledged - exposed.all();
            if !(least..=most).contains(&row) {
                eprintln!("{counter:?}: {row} in MySQL, which should be {least} to {most}");
            }
        }
        self.doubled += stored.values().sum::<i64>();
        if !self.is_exact() {
            eprintln!("{windows:#?}");
            testkit::keep();
        }
    }

    fn note_reads(&mut self, reads: Reads) {
        (self.read, self.read_by_daemon, self.wrong) =
            (reads.checked, reads.by_daemon, reads.wrong);
    }
}

impl Settled {
    /// Plants an error at a counter at which it must show.
    fn plant(&mut self, plant: Plant) {
        let windows = self.windows.borrow();
        let mut views = self.journals.counters.range_mut((VIEWS, 0)..(VIEWS + 1, 0));
        let suited = views.find(|(counter, counted)| {
            let acknowledged = counted.acknowledged();
            let is_known = counted.most() == acknowledged && acknowledged > 0;
            is_known && counted.exposed(**counter, &windows, acknowledged).all() == 0
        });
        let Some((counter, counted)) = suited else {
            return;
        };
        let row = self.stored.entry(*counter).or_default();
        match plant {
            Plant::More => *row += 1,
            Plant::Less => *row -= 1,
            Plant::Journal => counted.forget_one(),
        }
    }
}

//! A round of random faults, and the comparison at its end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use indicatif::HumanCount;
use tokio::time::{Instant, sleep};
use tokio::try_join;

use super::fault::Fault;
use super::persistence::Persistence;
use super::stage::Stage;
use super::watch::Reads;
use crate::Result;
use crate::zipf::Random;

/// The longest pause between two faults, in ms.
const PAUSE: u64 = 150;

pub struct Round {
    pub time: Duration,
    pub random: Random,
}

/// The outcome of a round.
pub struct Outcome {
    pub persistence: Persistence,
    pub faults: BTreeMap<Fault, u64>,
    pub reads: Reads,
    pub acknowledged: i64,
    /// Hits whose outcome no process knows.
    pub unknown: i64,
    /// Acknowledged hits that MySQL lacks, and that a crash of Redis may lose.
    pub crashed: i64,
    /// Further acknowledged hits that MySQL lacks.
    pub lost: i64,
    /// Hits in MySQL beyond those that were acknowledged or of unknown outcome.
    pub doubled: i64,
}

impl Round {
    pub async fn run(mut self, mut stage: Stage<'_>) -> Result<Outcome> {
        let (persistence, is_over) = (stage.persistence, Cell::new(false));
        let watch = stage.watch(&is_over);
        let strike = async {
            let (mut faults, mut next) = (BTreeMap::new(), Vec::new());
            let end = Instant::now() + self.time;
            while Instant::now() < end {
                if next.is_empty() {
                    next.extend(Fault::all(persistence == Persistence::Cluster));
                }
                sleep(Duration::from_millis(self.random.below(PAUSE))).await;
                let fault = next.swap_remove(self.random.below(next.len() as u64) as usize);
                stage.strike(fault, &mut self.random).await?;
                *faults.entry(fault).or_default() += 1;
            }
            is_over.set(true);
            Ok(faults)
        };
        let (reads, faults) = try_join!(watch, strike)?;
        let (journals, mut stored) = stage.settle().await?;
        let mut outcome = Outcome {
            persistence,
            faults,
            reads,
            acknowledged: 0,
            unknown: 0,
            crashed: 0,
            lost: 0,
            doubled: 0,
        };
        for (counter, counted) in journals.counters {
            let row = stored.remove(&counter).unwrap_or(0);
            let most = counted.most();
            outcome.acknowledged += counted.acknowledged;
            outcome.unknown += most - counted.acknowledged;
            let lacking = (counted.acknowledged - row).max(0);
            let crashed = lacking.min(counted.exposed);
            outcome.crashed += crashed;
            outcome.lost += lacking - crashed;
            outcome.doubled += (row - most).max(0);
        }
        outcome.doubled += stored.values().sum::<i64>();
        Ok(outcome)
    }
}

impl Outcome {
    /// Returns the figures of its hits: acknowledged, unknown, lost in a crash, lost otherwise, and
    /// doubled; and of its values: read, and wrong.
    pub fn figures(&self) -> [String; 7] {
        let hits = [
            self.acknowledged,
            self.unknown,
            self.crashed,
            self.lost,
            self.doubled,
        ];
        let [acknowledged, unknown, crashed, lost, doubled] = hits.map(i64::unsigned_abs);
        let Reads { checked, wrong } = self.reads;
        [
            acknowledged,
            unknown,
            crashed,
            lost,
            doubled,
            checked,
            wrong,
        ]
        .map(|number| HumanCount(number).to_string())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: u64 = self.faults.values().sum();
        let [acknowledged, unknown, crashed, lost, doubled, read, wrong] = self.figures();
        write!(
            f,
            "{:<9}  {faults:>3} faults; {acknowledged} acknowledged, {unknown} unknown, \
             lost {crashed} in a crash, {lost} otherwise, {doubled} doubled; \
             {read} values read, {wrong} wrong",
            self.persistence,
        )
    }
}

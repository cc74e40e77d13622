//! What writer processes of both kinds do: count their share, many at a time, in rounds that the supervisor orders.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use crate::Result;
use crate::child::{self, Report};
use crate::measured::Recorder;

/// How many lines are being counted at a time.
const CONCURRENT: usize = 64;
/// After how many lines the supervisor is told.
const REPORT_LINES: u64 = 16;
/// How often a hit is tried that surely was not counted. Each time the library has tried for 5 s.
const TRIES: usize = 6;

/// Which part of all lines a writer process counts.
#[derive(clap::Args)]
pub struct Share {
    /// Which of the shares: from 0.
    #[arg(long)]
    share: usize,
    /// How many shares there are.
    #[arg(long)]
    of: usize,
}

impl Share {
    /// From 0.
    pub fn number(&self) -> usize {
        self.share
    }
}

/// What became of lines and hits.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Lines of the log, or votes.
    pub lines: u64,
    /// Lines that are not of an access log.
    pub skipped: u64,
    pub hits: u64,
    /// Hits that Redis refused, which does not happen here.
    pub refused: u64,
    /// Hits of which nobody knows whether they were counted, which does not happen as long as Redis keeps its memory.
    pub unknown: u64,
    /// Visits that were told to be a visitor's first one of the day.
    pub first_visits: u64,
    /// Calls that were made again, mostly by the library itself because their replies were lost.
    pub repeated: u64,
    /// Rows read from MySQL because a cached counter was not in Redis.
    pub seeds: u64,
}

impl Tally {
    pub fn add(&mut self, more: Tally) {
        self.lines += more.lines;
        self.skipped += more.skipped;
        self.hits += more.hits;
        self.refused += more.refused;
        self.unknown += more.unknown;
        self.first_visits += more.first_visits;
        self.repeated += more.repeated;
        self.seeds += more.seeds;
    }

    /// Counts something, and tries again only where it surely was not counted. `None` where that is unknown.
    pub async fn surely<T>(&mut self, count: impl AsyncFn() -> counterfoil::Result<T>) -> Result<Option<T>> {
        let mut tries = 1;
        loop {
            match count().await {
                Ok(counted) => return Ok(Some(counted)),
                Err(error) if error.outcome_unknown() => {
                    self.unknown += 1;
                    return Ok(None);
                }
                Err(error) if error.is_retryable() && tries < TRIES => tries += 1,
                Err(error) => return Err(format!("not counted in {tries} tries: {error}").into()),
            }
            self.repeated += 1;
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A writer process.
pub struct Work {
    orders: UnboundedReceiver<String>,
    recorder: Recorder,
    share: Share,
}

impl Work {
    pub fn begin(share: Share) -> Result<Self> {
        Ok(Work { orders: child::orders(), recorder: Recorder::install()?, share })
    }

    /// Takes orders up to which line to count, and lets its share of the lines be counted from where it stopped before.
    pub async fn run<T>(
        mut self,
        lines: impl Iterator<Item = T>,
        count: impl AsyncFn(Vec<T>) -> Result<()>,
    ) -> Result<()> {
        let mine = |(number, _): &(usize, _)| number % self.share.of == self.share.share;
        let mut lines = lines.enumerate().filter(mine).peekable();
        child::report(&Report::Ready)?;
        while let Some(order) = self.orders.recv().await {
            let end: usize = order.parse()?;
            let round = std::iter::from_fn(|| lines.next_if(|(number, _)| *number < end));
            let started = Instant::now();
            count(round.map(|(_, line)| line).collect()).await?;
            child::report(&Report::Counted(Tally { repeated: self.recorder.take().retries, ..Tally::default() }))?;
            child::report(&Report::Finished { seconds: started.elapsed().as_secs_f64() })?;
        }
        Ok(())
    }
}

/// Counts lines, many at a time, and reports now and then.
pub async fn count_all<T>(lines: Vec<T>, count: impl AsyncFn(T) -> Result<Tally>) -> Result<()> {
    let mut counted = stream::iter(lines).map(|line| count(line)).buffer_unordered(CONCURRENT);
    let mut tally = Tally::default();
    while let Some(line) = counted.try_next().await? {
        tally.add(line);
        if tally.lines >= REPORT_LINES {
            child::report(&Report::Counted(std::mem::take(&mut tally)))?;
        }
    }
    child::report(&Report::Counted(tally))
}

//! The work of writer processes of both kinds: each counts its share of the lines, many at a time,
//! in rounds that the supervisor orders.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use crate::Result;
use crate::child::{self, Report};
use crate::measured::Recorder;

/// The number of lines counted concurrently.
const CONCURRENT: usize = 64;
/// The number of lines after which a writer reports to the supervisor.
const REPORT_LINES: u64 = 16;
/// The number of attempts for a hit that was definitely not counted. In each one the library
/// retries for 5 s.
const TRIES: usize = 6;

/// The part of all lines that a writer process counts.
#[derive(clap::Args)]
pub struct Share {
    /// The number of the share, from 0.
    #[arg(long)]
    share: usize,
    /// The number of shares.
    #[arg(long)]
    of: usize,
}

impl Share {
    /// Returns the number of the share, from 0.
    pub fn number(&self) -> usize {
        self.share
    }
}

/// The outcomes of lines and hits.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Lines of the log, or votes.
    pub lines: u64,
    /// Lines that are not access-log lines.
    pub skipped: u64,
    pub hits: u64,
    /// Hits that Redis refused. There are none in the demo.
    pub refused: u64,
    /// Hits with an unknown outcome. There are none as long as Redis keeps its data.
    pub unknown: u64,
    /// Visits that the library reported as a visitor's first of the day.
    pub first_visits: u64,
    /// Calls that were retried, mostly by the library itself because a reply was lost.
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

    /// Runs `count` and retries it only if it definitely did not count. Returns `None` if the
    /// outcome is unknown.
    pub async fn surely<T>(
        &mut self,
        count: impl AsyncFn() -> counterfoil::Result<T>,
    ) -> Result<Option<T>> {
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
        Ok(Work {
            orders: child::orders(),
            recorder: Recorder::install()?,
            share,
        })
    }

    /// Receives orders, each with the line to stop at, and counts its share of the lines from the
    /// previous stop.
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
            child::report(&Report::Counted(Tally {
                repeated: self.recorder.take().retries,
                ..Tally::default()
            }))?;
            child::report(&Report::Finished {
                seconds: started.elapsed().as_secs_f64(),
            })?;
        }
        Ok(())
    }
}

/// Counts lines concurrently and reports progress.
pub async fn count_all<T>(lines: Vec<T>, count: impl AsyncFn(T) -> Result<Tally>) -> Result<()> {
    let mut counted = stream::iter(lines)
        .map(|line| count(line))
        .buffer_unordered(CONCURRENT);
    let mut tally = Tally::default();
    while let Some(line) = counted.try_next().await? {
        tally.add(line);
        if tally.lines >= REPORT_LINES {
            child::report(&Report::Counted(std::mem::take(&mut tally)))?;
        }
    }
    child::report(&Report::Counted(tally))
}

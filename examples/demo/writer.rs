//! A writer process: counts its share of the log's lines.

use std::io;
use std::time::{Duration, Instant};

use counterfoil::Primary;
use counterfoil::{Added, Counters, MysqlStore};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::Result;
use crate::child::{self, Report};
use crate::families::{self, Opened, Place, patiently};
use crate::log::{Hit, Log};
use crate::measured::Recorder;

/// How many lines are being counted at a time.
const CONCURRENT: usize = 64;
/// After how many lines the supervisor is told.
const REPORT_LINES: u64 = 16;
/// How often a hit is tried that surely was not counted. Each time the library has tried for 5 s.
const TRIES: usize = 6;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    log: Log,
    /// Which of the shares: from 0.
    #[arg(long)]
    share: usize,
    /// How many shares there are.
    #[arg(long)]
    of: usize,
}

/// What became of lines and hits.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    pub lines: u64,
    /// Lines that are not of an access log.
    pub skipped: u64,
    pub hits: u64,
    /// Hits that Redis refused, which does not happen here.
    pub refused: u64,
    /// Hits of which nobody knows whether they were counted, which does not happen as long as Redis keeps its memory.
    pub unknown: u64,
    /// Calls that were made again, mostly by the library itself because their replies were lost.
    pub repeated: u64,
}

impl Tally {
    pub fn add(&mut self, more: Tally) {
        self.lines += more.lines;
        self.skipped += more.skipped;
        self.hits += more.hits;
        self.refused += more.refused;
        self.unknown += more.unknown;
        self.repeated += more.repeated;
    }
}

/// Takes orders up to which line to count, and counts its share of the lines from where it stopped before.
pub async fn run(args: Args) -> Result<()> {
    let mut orders = child::orders();
    let recorder = Recorder::install()?;
    let opened = patiently(async || families::open(&args.place).await).await?;
    let mine = |(number, _): &(usize, _)| number % args.of == args.share;
    let mut lines = args.log.lines()?.enumerate().filter(mine).peekable();
    child::report(&Report::Ready)?;
    while let Some(order) = orders.recv().await {
        let end: usize = order.parse()?;
        let round = std::iter::from_fn(|| lines.next_if(|(number, _)| *number < end));
        let started = Instant::now();
        count_all(&opened, round.map(|(_, line)| line)).await?;
        child::report(&Report::Counted(Tally { repeated: recorder.take().retries, ..Tally::default() }))?;
        child::report(&Report::Finished { seconds: started.elapsed().as_secs_f64() })?;
    }
    Ok(())
}

/// Counts lines, many at a time, and reports now and then.
async fn count_all(opened: &Opened, lines: impl Iterator<Item = io::Result<Vec<u8>>>) -> Result<()> {
    let mut counted =
        stream::iter(lines).map(|line| async { count_line(opened, &line?).await }).buffer_unordered(CONCURRENT);
    let mut tally = Tally::default();
    while let Some(line) = counted.try_next().await? {
        tally.add(line);
        if tally.lines == REPORT_LINES {
            child::report(&Report::Counted(std::mem::take(&mut tally)))?;
        }
    }
    child::report(&Report::Counted(tally))
}

async fn count_line(opened: &Opened, line: &[u8]) -> Result<Tally> {
    let mut tally = Tally { lines: 1, ..Tally::default() };
    match Hit::parse(line) {
        None => tally.skipped = 1,
        Some(hit) => {
            for (counters, id) in opened.ids(&hit) {
                count_hit(counters, id, &mut tally).await?;
            }
        }
    }
    Ok(tally)
}

/// Counts one hit. It is tried again only where it surely was not counted.
async fn count_hit(counters: &Counters<Primary, MysqlStore>, id: &str, tally: &mut Tally) -> Result<()> {
    for _ in 0..TRIES {
        match counters.add(id, 1).await {
            Ok(Added::Counted { .. }) => tally.hits += 1,
            Ok(Added::OutOfRange | Added::Full) => tally.refused += 1,
            Err(error) if error.outcome_unknown() => tally.unknown += 1,
            Err(error) if error.is_retryable() => {
                tally.repeated += 1;
                sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        return Ok(());
    }
    Err(format!("{}: {id} could not be counted in {TRIES} tries", counters.family()).into())
}

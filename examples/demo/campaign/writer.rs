//! A writer process: counts with all kinds until the supervisor stops or kills it.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::Duration;

use counterfoil::test_hooks::resume_from;
use tokio::time::sleep;

use super::job;
use super::journal::{Hit, Scribe, now};
use super::persistence::Persistence;
use super::site::{JOBS, SAVES, SERIES, VIEWS, draw_id};
use super::way::{Means, Way};
use crate::Result;
use crate::child;
use crate::families::Place;
use crate::zipf::Random;

/// The number of calls in progress at a time.
const CONCURRENT: usize = 48;
/// The most calls of them that save, so that the others go on without MySQL.
const SAVING: usize = 3;
/// The most hits of a call that counts many.
const MANY: u64 = 50;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[arg(long)]
    way: Way,
    #[arg(long)]
    persistence: Persistence,
    #[arg(long)]
    directory: PathBuf,
    /// The number of its journal.
    #[arg(long)]
    number: usize,
    /// The snapshot that its machine was resumed from.
    #[arg(long)]
    snapshot: Option<String>,
}

pub async fn run(args: Args) -> Result<()> {
    if let Some(snapshot) = &args.snapshot {
        resume_from(snapshot);
    }
    let orders = child::orders();
    let writer = Writer {
        scribe: Scribe::create(&args.directory, args.number)?,
        means: args.way.open(&args.place, args.persistence).await?,
        random: RefCell::new(Random(now())),
        drawn: Cell::new(0),
        saving: Cell::new(0),
        args,
    };
    child::repeat_until_ordered(orders, CONCURRENT, async || writer.count().await).await
}

struct Writer {
    args: Args,
    scribe: Scribe,
    means: Means,
    random: RefCell<Random>,
    /// The number of hits drawn so far.
    drawn: Cell<u64>,
    /// The number of calls that save.
    saving: Cell<usize>,
}

impl Writer {
    /// Counts one hit, or many.
    async fn count(&self) -> Result<()> {
        let hits = self.draw();
        if hits[0].family != SAVES {
            return self.count_these(&hits).await;
        }
        self.saving.set(self.saving.get() + 1);
        let counted = self.count_these(&hits).await;
        self.saving.set(self.saving.get() - 1);
        counted
    }

    async fn count_these(&self, hits: &[Hit]) -> Result<()> {
        self.scribe.begin(hits)?;
        if let (JOBS, Means::Library(site)) = (hits[0].family, &self.means) {
            return job::count(site, &self.scribe, &hits[0], None).await;
        }
        let begun = now();
        let outcomes = self.means.count(hits).await;
        let known = hits
            .iter()
            .zip(&outcomes)
            .filter_map(|(hit, outcome)| Some((hit, (*outcome)?)));
        self.scribe.end(known, begun, hits.len())?;
        if !outcomes.contains(&Some(true)) {
            // Redis is unavailable
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn draw(&self) -> Vec<Hit> {
        let mut random = self.random.borrow_mut();
        let mut family = random.below(self.args.way.families() as u64) as usize;
        if family == SAVES && self.saving.get() == SAVING {
            family = VIEWS;
        }
        let can_be_many = [VIEWS, SERIES].contains(&family);
        let hits = if can_be_many && random.below(2) == 0 {
            1 + random.below(MANY)
        } else {
            1
        };
        let hit = |_| {
            let number = self.drawn.replace(self.drawn.get() + 1);
            let (id, name) = (
                draw_id(family, &mut random),
                format!("{}-{number}", self.args.number),
            );
            Hit { family, id, name }
        };
        (0..hits).map(hit).collect()
    }
}

//! A writer process: inserts rows and counts each of them a little later, once or sometimes twice,
//! until the supervisor stops or kills it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use counterfoil::{BufferedCounters, Outcome};
use sqlx::MySqlPool;
use tokio::time::sleep;

use super::journal::Scribe;
use super::saves;
use crate::Result;
use crate::child;
use crate::families::{Place, patiently};
use crate::zipf::{Random, Zipf};

/// The number of rows in progress at a time.
const CONCURRENT: usize = 8;
/// The longest pause between inserting and counting a row, in ms. About half of the rows have none.
const PAUSE: u64 = 20;
/// One in this many rows is counted twice.
const TWICE: u64 = 100;

/// The load of the demo.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// The number of users, Zipf-distributed: the n-th saves 1/n as many rows as the first
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub users: u32,
    /// The seed of users, pauses and second counts: the same number draws the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Load {
    /// Returns the load as command-line arguments.
    pub fn args(&self) -> Vec<String> {
        vec![
            format!("--users={}", self.users),
            format!("--seed={}", self.seed),
        ]
    }
}

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    load: Load,
    #[arg(long)]
    directory: PathBuf,
    /// The number of its journal.
    #[arg(long)]
    number: usize,
}

pub async fn run(
    Args {
        place,
        load,
        directory,
        number,
    }: Args,
) -> Result<()> {
    let orders = child::orders();
    let scribe = Scribe::new(&directory, number)?;
    let (_pair, saves) = patiently(async || saves::open(&place).await).await?;
    let writer = Writer {
        scribe,
        saves,
        mysql: MySqlPool::connect_lazy(&place.mysql)?,
        zipf: Zipf::new(load.users as usize),
        random: RefCell::new(Random(
            load.seed
                .wrapping_mul(1_000_003)
                .wrapping_add(number as u64),
        )),
    };
    child::repeat_until_ordered(orders, CONCURRENT, async || writer.save().await).await
}

struct Writer {
    scribe: Scribe,
    saves: BufferedCounters,
    mysql: MySqlPool,
    zipf: Zipf,
    random: RefCell<Random>,
}

impl Writer {
    async fn save(&self) -> Result<()> {
        let (user, pause, times) = self.draw()?;
        self.scribe.inserts(user)?;
        let began = Instant::now();
        let insert = sqlx::query("INSERT INTO saves (user_id) VALUES (?)").bind(user);
        if insert.execute(&self.mysql).await.is_err() {
            // the connection was cut
            return self.scribe.lost(user);
        }
        sleep(pause).await;
        self.scribe.counts(user, times)?;
        for _ in 0..times {
            match self.saves.add(&user.to_string(), 1).await {
                Ok(Outcome::Counted(_)) => {}
                Ok(refused) => return Err(format!("a count was refused: {refused:?}").into()),
                Err(_) => return self.scribe.counted(user, 0, began.elapsed()),
            }
        }
        self.scribe.counted(user, times, began.elapsed())
    }

    /// Draws a user, the pause before the row is counted, and the number of times to count it.
    fn draw(&self) -> Result<(u32, Duration, i64)> {
        let mut random = self.random.borrow_mut();
        let user = u32::try_from(self.zipf.pick(&mut random))? + 1;
        let pause = if random.below(2) == 0 {
            0
        } else {
            1 + random.below(PAUSE)
        };
        let times = if random.below(TWICE) == 0 { 2 } else { 1 };
        Ok((user, Duration::from_millis(pause), times))
    }
}

//! A writer process: counts its share of the log's lines.

use counterfoil::Primary;
use counterfoil::{Added, Counters, MysqlStore};

use crate::Result;
use crate::families::{self, Opened, Place, patiently};
use crate::log::{Hit, Log};
use crate::work::{Share, Tally, Work};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    log: Log,
    #[command(flatten)]
    share: Share,
}

pub async fn run(args: Args) -> Result<()> {
    let work = Work::begin(args.share)?;
    let opened = patiently(async || families::open(&args.place).await).await?;
    work.run(args.log.lines()?, async |line| count_line(&opened, &line?).await).await
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

async fn count_hit(counters: &Counters<Primary, MysqlStore>, id: &str, tally: &mut Tally) -> Result<()> {
    match tally.surely(async || counters.add(id, 1).await).await? {
        Some(Added::Counted { .. }) => tally.hits += 1,
        Some(Added::OutOfRange | Added::Full) => tally.refused += 1,
        None => {}
    }
    Ok(())
}

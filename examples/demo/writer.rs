//! A writer process: counts its share of the log's lines.

use std::collections::BTreeMap;
use std::io;

use counterfoil::test_hooks::set_time;
use counterfoil::{BufferedCounters, Outcome};

use crate::Result;
use crate::child::{self, Report};
use crate::families::{self, Opened, Place, patiently};
use crate::log::{Hit, Log, SITE};
use crate::work::{Share, Tally, Work, count_all};

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
    work.run(args.log.lines()?, async |lines| {
        count_lines(&opened, lines).await
    })
    .await
}

/// Counts the lines hour by hour. Series count at the process-wide time, so the hits of one hour
/// must be counted before those of the next.
async fn count_lines(opened: &Opened, lines: Vec<io::Result<Vec<u8>>>) -> Result<()> {
    for (hour, hits) in by_hour(lines)? {
        set_time(Some(u64::try_from(hour)? * 1000));
        count_all(hits, async |hit: Hit| count_line(opened, &hit).await).await?;
    }
    Ok(())
}

/// Groups the hits by hour and reports the lines that are not hits.
fn by_hour(lines: Vec<io::Result<Vec<u8>>>) -> Result<BTreeMap<i64, Vec<Hit>>> {
    let mut hours: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut tally = Tally::default();
    for line in lines {
        match Hit::parse(&line?) {
            Some(hit) => hours.entry(hit.hour).or_default().push(hit),
            None => tally.add(Tally {
                lines: 1,
                skipped: 1,
                ..Tally::default()
            }),
        }
    }
    child::report(&Report::Counted(tally))?;
    Ok(hours)
}

async fn count_line(opened: &Opened, hit: &Hit) -> Result<Tally> {
    let mut tally = Tally {
        lines: 1,
        ..Tally::default()
    };
    for (counters, id) in opened.ids(hit) {
        count_hit(counters, id, &mut tally).await?;
    }
    for name in hit.series() {
        let added = tally
            .surely(async || opened.requests.add(&name, 1).await)
            .await?;
        tally.hits += u64::from(added == Some(Outcome::Counted(1)));
    }
    let day = hit.day.parse()?;
    let visit = tally
        .surely(async || opened.visitors.first_visit(SITE, day, &hit.visitor).await)
        .await?;
    tally.hits += u64::from(matches!(
        visit,
        Some(Outcome::Counted(1) | Outcome::CountedBefore(0))
    ));
    tally.first_visits += u64::from(visit == Some(Outcome::Counted(1)));
    Ok(tally)
}

async fn count_hit(counters: &BufferedCounters, id: &str, tally: &mut Tally) -> Result<()> {
    match tally.surely(async || counters.add(id, 1).await).await? {
        Some(Outcome::Counted(_)) => tally.hits += 1,
        Some(_) => tally.refused += 1,
        None => {}
    }
    Ok(())
}

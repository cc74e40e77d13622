//! A voter process: casts its share of the votes and records every returned value.

use std::cell::Cell;

use counterfoil::Outcome;

use super::ballot::Ballot;
use super::item;
use super::told::{Scribe, ToldTo};
use crate::Result;
use crate::families::{Place, patiently};
use crate::work::{Share, Tally, Work, count_all};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    ballot: Ballot,
    #[command(flatten)]
    told_to: ToldTo,
    #[command(flatten)]
    share: Share,
}

pub async fn run(args: Args) -> Result<()> {
    let scribe = Scribe::new(&args.told_to, args.share.number())?;
    let work = Work::begin(args.share)?;
    let (pair, votes) = patiently(async || item::open(&args.place).await).await?;
    // a voter's only statements are reads of rows whose counters are not in Redis
    let statements = Cell::new(pair.mysql().unwrap().statements());
    let vote = async |item: u32| {
        let mut tally = Tally {
            lines: 1,
            ..Tally::default()
        };
        match tally
            .surely(async || votes.incr(&item.to_string(), 1).await)
            .await?
        {
            Some(Outcome::Counted(value)) => {
                tally.hits = 1;
                scribe.value(item, value)?;
            }
            Some(_) => tally.refused = 1,
            None => scribe.unknown(item)?,
        }
        let now = pair.mysql().unwrap().statements();
        tally.seeds = now - statements.replace(now);
        Ok(tally)
    };
    work.run(args.ballot.votes(), async |votes| {
        count_all(votes, &vote).await
    })
    .await
}

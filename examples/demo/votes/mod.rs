//! The demo of cached counters: votes are cast for items by several processes, each vote returning the item's new
//! number of votes, while counters leave Redis and come back and everything is being killed, cut and flushed. Then
//! MySQL and all the values that were returned are compared with the votes cast.

mod ballot;
mod check;
pub mod item;
mod summary;
mod told;
pub mod voter;

use std::time::{Duration, Instant};

use self::ballot::Ballot;
use self::check::Checked;
use self::summary::Figures;
use self::told::Told;
use crate::disturb::Disturber;
use crate::meter::Meter;
use crate::reconcilers::Reconcilers;
use crate::rounds::{Rounds, without_own};
use crate::servers::Servers;
use crate::writers::{WRITERS, Writers};
use crate::{Result, families};

/// Long enough for the counters of the busiest items to be saved, and to leave Redis, before the next round.
const ROUND_TIME: Duration = Duration::from_millis(500);

/// Casts votes for items, and checks every number that was returned.
///
/// Each vote returns the item's new number of votes, while counters leave Redis and come back, processes are
/// killed, scripts flushed and connections cut; then the table, and every number returned, are compared with the votes
/// cast. Exit status: 0 if they agree, 1 if not, 2 if it could not be found out.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    ballot: Ballot,
}

/// Returns whether the table and all values returned are right.
pub async fn run(Args { ballot }: Args) -> Result<bool> {
    println!("{}", testkit::versions());
    let servers = Servers::start().await;
    item::create_tables(&servers.mysql, ballot.items).await?;

    let before = Meter::read(&servers).await?;
    let mut disturber = Disturber::new(&servers, Reconcilers::start("saver-process", &servers.place).await?);
    let args = [ballot.args(), servers.directory_args()?].concat();
    let voters = Writers::start("voter-process", &servers.place, &args).await?;
    let started = Instant::now();
    let rounds = Rounds { lines: ballot.votes, time: ROUND_TIME, what: "votes" };
    let voted = rounds.run(voters, &mut disturber).await?;

    let Disturber { reconcilers, done, .. } = disturber;
    reconcilers.stop().await?;
    let (pair, _votes) = item::open(&servers.place).await?;
    pair.drain().await?;
    let total = started.elapsed();
    let used = Meter::read(&servers).await? - before;

    let mut told = Told::default();
    for voter in 0..WRITERS {
        told.read(servers.directory(), voter)?;
    }
    let checked = Checked::new(&ballot, told, &item::vote_counts(&servers.mysql).await?);
    let rejects = families::rejects(&servers.mysql).await?;
    summary::print(&Figures { voted, done, total, used: without_own(used, &done), rejects }, &checked);
    Ok(checked.is_exact())
}

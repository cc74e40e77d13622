//! The demo of cached counters: several processes cast votes for items, and each vote returns the
//! item's new number of votes. Meanwhile counters leave Redis and come back, processes are killed,
//! connections cut and scripts flushed. Then the demo compares MySQL and all returned values with
//! the votes cast.

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

/// The minimum time of a round. It is long enough for the busiest counters to be saved and to leave
/// Redis.
const ROUND_TIME: Duration = Duration::from_millis(500);

/// Casts votes for items and checks every number that a vote returned.
///
/// Each vote returns the item's new number of votes, while counters leave Redis and come back,
/// processes are killed, scripts flushed and connections cut. Then the demo compares the table and
/// every returned number with the votes cast. Exit status: 0 if they agree, 1 if not, 2 if an error
/// prevented the comparison.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    ballot: Ballot,
}

/// Runs the demo and returns whether the table and all returned values are right.
pub async fn run(Args { ballot }: Args) -> Result<bool> {
    println!("{}", testkit::versions());
    let servers = Servers::start().await;
    item::create_tables(&servers.mysql, ballot.items).await?;

    let before = Meter::read(&servers).await?;
    let mut disturber = Disturber::new(
        &servers,
        Reconcilers::start(&["saver-process"], &servers.place).await?,
    );
    let args = [ballot.args(), servers.directory_args()?].concat();
    let voters = Writers::start("voter-process", &servers.place, &args).await?;
    let started = Instant::now();
    let rounds = Rounds {
        lines: ballot.votes,
        time: ROUND_TIME,
        what: "votes",
    };
    let voted = rounds.run(voters, &mut disturber).await?;

    let Disturber {
        reconcilers, done, ..
    } = disturber;
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
    summary::print(
        &Figures {
            voted,
            done,
            total,
            used: without_own(used, &done),
            rejects,
        },
        &checked,
    );
    Ok(checked.is_exact())
}

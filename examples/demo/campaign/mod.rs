//! The fault campaign: rounds in which processes count with all kinds while servers, connections
//! and processes fail at random. After each round, every row in MySQL is compared with the
//! journals of the processes.

mod fault;
mod hand;
mod journal;
mod persistence;
mod round;
mod server;
mod site;
mod stage;
mod summary;
mod watch;
mod way;
pub mod writer;

use std::time::Duration;

use clap::ValueEnum;
use testkit::MysqlServer;

pub use self::hand::run as save_by_hand;
use self::persistence::Persistence;
use self::round::Round;
pub use self::site::connect;
use self::stage::Stage;
use self::summary::Summary;
pub use self::way::Way;
use crate::Result;
use crate::zipf::Random;

/// Counts with all kinds in rounds of random faults, and compares MySQL with what was acknowledged.
///
/// The rounds take in turn what a crash of Redis loses: nothing, the last seconds of the append-only
/// file, what a replica lacks that takes over, all since the last snapshot, everything, and what a
/// replica lacks in a cluster. Exit
/// status: 0 if no hit was doubled, none lost but in a crash of Redis, and no value wrong; 1 if not; 2 if an
/// error prevented the comparison.
#[derive(clap::Args)]
pub struct Args {
    /// The number of rounds
    #[arg(long, value_name = "N", default_value_t = 20)]
    rounds: u64,
    /// The time of a round in seconds, within which Redis remembers jobs
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=40))]
    seconds: u64,
    /// The way to count: the library's, or one that applications use without it
    #[arg(long, default_value = "library")]
    way: Way,
}

/// Runs the rounds and returns whether all promises were kept.
pub async fn run(args: Args) -> Result<bool> {
    println!("{}", testkit::versions());
    let seed = testkit::seed();
    let mysql = MysqlServer::start().await;
    let mut summary = Summary::default();
    let all = Persistence::value_variants().iter().copied();
    let all: Vec<_> = all.filter(|it| args.way.takes(*it)).collect();
    for number in 0..args.rounds {
        let persistence = all[number as usize % all.len()];
        let stage = Stage::start(&mysql, persistence, args.way).await?;
        let round = Round {
            time: Duration::from_secs(args.seconds),
            random: Random(seed.wrapping_add(number.wrapping_mul(1_000_003))),
        };
        let outcome = round.run(stage).await?;
        println!("{:>4}  {outcome}", number + 1);
        summary.add(outcome);
    }
    summary.print();
    Ok(summary.is_exact())
}

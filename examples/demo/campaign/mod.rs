//! The fault campaign: rounds in which the crate and the client packages count with all kinds while
//! servers, connections and processes fail at random. After each round, every row in MySQL is compared
//! with the journals of the processes.

mod clock;
mod daemon;
mod fault;
mod guard;
mod hand;
mod host;
mod job;
mod journal;
mod likes;
mod outside;
mod package;
mod persistence;
pub mod results;
mod round;
mod seats;
mod server;
mod site;
mod stage;
mod watch;
mod way;
mod window;
pub mod writer;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use testkit::{MysqlServer, Package};

use self::fault::Fault;
pub use self::guard::{WITHOUT, removed, take_out};
pub use self::hand::run as save_by_hand;
use self::package::Client;
pub use self::persistence::Persistence;
use self::results::{Outcome, Run, figure, tables};
use self::round::{Plant, Round};
pub use self::site::serve;
use self::stage::{Plan, Stage};
pub use self::way::Way;
use crate::Result;
use crate::zipf::Random;

/// The number of packages that count in a round, of which the last counts for a tenant.
const PACKAGES: usize = 3;
/// The results of long runs.
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/campaign");

/// Counts with all kinds in rounds of random faults, and compares MySQL with what was acknowledged.
///
/// The rounds take in turn what a crash of Redis loses: nothing, the last seconds of the append-only
/// file, what a replica lacks that takes over, all since the last snapshot, everything, and what a
/// replica lacks in a cluster. Exit status: 0 if no hit was doubled, none lost that the promise
/// covers, no value wrong, and everything in MySQL within a minute; 1 if not; 2 if an error prevented
/// the comparison.
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
    /// The persistence of Redis in all rounds, which decides what a crash loses
    #[arg(long)]
    persistence: Option<Persistence>,
    /// Write the results to FILE as JSON, after each round
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Remove a guard of the protocol, to see that the campaign finds what is lost or doubled. Only the
    /// crate counts then
    #[arg(long, value_name = "GUARD")]
    without: Option<String>,
    /// Inject only these faults, separated by commas
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Plant an error before each comparison
    #[arg(long)]
    plant: Option<Plant>,
    /// End with the first round that is not exact
    #[arg(long)]
    until_found: bool,
    /// Print the tables of the runs in docs/campaign instead
    #[arg(long)]
    table: bool,
}

/// Runs the rounds and returns whether all promises were kept.
pub async fn run(args: Args) -> Result<bool> {
    if args.table {
        let runs = Run::read_all(Path::new(RESULTS))?;
        print!("{}\n{}\n", tables(&runs), figure(&runs));
        return Ok(true);
    }
    if let Some(guard) = &args.without {
        take_out(guard)?;
    }
    let versions = testkit::versions();
    println!("{versions}");
    let seed = testkit::seed();
    let (clients, daemon) = cast(&args);
    let version = |of: &str| {
        let mut lines = versions.lines().filter_map(|line| line.strip_prefix(of));
        lines.next().unwrap_or_default().to_owned()
    };
    let mut run = Run {
        commit: commit(),
        started: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        seed,
        redis: version("redis: "),
        mysql: version("mysql: "),
        way: args.way.to_string(),
        without: args.without.clone(),
        ..Run::default()
    };
    let mysql = match MysqlServer::start_with_disk(false).await {
        Ok(mysql) => mysql,
        Err(_) => MysqlServer::start().await,
    };
    let all: Vec<_> = Persistence::value_variants()
        .iter()
        .copied()
        .filter(|it| args.way.takes(*it))
        .collect();
    for number in 0..args.rounds {
        let persistence = args.persistence.unwrap_or(all[number as usize % all.len()]);
        let plan = Plan {
            persistence,
            way: args.way,
            clients: of_round(&clients, number, persistence),
            daemon: daemon.clone(),
        };
        let round = Round {
            number: number + 1,
            time: Duration::from_secs(args.seconds),
            random: Random(seed.wrapping_add(number.wrapping_mul(1_000_003))),
            only: args.faults.clone(),
            plant: args.plant,
        };
        let round_seed = round.random.0;
        let played = match Stage::start(&mysql, plan).await {
            Ok(stage) => round.run(stage).await,
            Err(error) => Err(error),
        };
        let outcome = played.unwrap_or_else(|error| {
            testkit::keep();
            Outcome {
                number: number + 1,
                seed: round_seed,
                persistence: persistence.to_string(),
                failed: Some(error.to_string()),
                ..Outcome::default()
            }
        });
        println!("{:>4}  {outcome}", number + 1);
        let is_found = !outcome.is_exact();
        run.rounds.push(outcome);
        if let Some(file) = &args.results {
            run.write(file)?;
        }
        if is_found && args.until_found {
            break;
        }
    }
    print!("\n{}", tables(std::slice::from_ref(&run)));
    let is_exact = run.rounds.iter().all(Outcome::is_exact);
    println!("exact: {}", if is_exact { "yes" } else { "no" });
    Ok(is_exact)
}

/// Returns the packages that are installed, and the daemon. Without the library, or without one of its
/// guards, only the crate and its reconcilers take part.
fn cast(args: &Args) -> (Vec<(Client, PathBuf)>, Option<PathBuf>) {
    if args.way != Way::Library || args.without.is_some() {
        return (Vec::new(), None);
    }
    let daemon = daemon::program();
    if daemon.is_none() {
        println!(
            "neither the daemon nor the packages take part: `cargo build -p counterfoil-cli` builds the daemon"
        );
        return (Vec::new(), None);
    }
    let mut installed = Vec::new();
    let mut last: Option<(&str, Option<PathBuf>)> = None;
    for client in Client::sorted() {
        let folder = match &last {
            Some((package, folder)) if *package == client.package => folder.clone(),
            _ => match Package(client.package).install() {
                Ok(folder) => Some(folder),
                Err(reason) => {
                    println!("{} does not take part: {}", client.package, reason.trim());
                    None
                }
            },
        };
        last = Some((client.package, folder.clone()));
        installed.extend(folder.map(|folder| (client, folder)));
    }
    (installed, daemon)
}

/// Returns the packages of a round: all come in turn.
fn of_round(
    clients: &[(Client, PathBuf)],
    number: u64,
    persistence: Persistence,
) -> Vec<(Client, PathBuf)> {
    let can = |client: &Client| persistence != Persistence::Cluster || client.takes_clusters();
    let able: Vec<_> = clients.iter().filter(|(client, _)| can(client)).collect();
    let first = number as usize * PACKAGES;
    (0..PACKAGES.min(able.len()))
        .map(|index| able[(first + index) % able.len()].clone())
        .collect()
}

/// Returns the commit of the checkout, marked if files have changed since.
fn commit() -> String {
    let git = std::process::Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude=*"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let commit = git.map(|git| String::from_utf8_lossy(&git.stdout).trim().to_owned());
    commit
        .ok()
        .filter(|commit| !commit.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

//! The demo of the fleet: programs in five languages, php-fpm and daemons count together, while
//! servers, programs and daemons are killed. At the end the demo compares MySQL with the counts
//! that Redis confirmed to the programs.

mod arrival;
mod calls;
mod check;
mod daemon;
mod daemons;
mod fpm;
mod journal;
mod signals;
mod site;
mod stored;
mod trouble;
mod workers;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;

use self::check::Checked;
use self::daemons::Daemons;
use self::fpm::Fpm;
use self::signals::Signals;
use self::site::Site;
use self::stored::Stored;
use self::trouble::Trouble;
use self::workers::Workers;

/// The result of a step. An error ends the demo with its message.
type Result<T> = std::result::Result<T, BoxError>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Runs the daemon with its status page, and programs in Python, Node, PHP, Ruby and Go that count
/// with their packages, until Ctrl-C.
///
/// Meanwhile the demo kills Redis, MySQL, the programs and the daemon, cuts connections and flushes
/// scripts. Then it compares MySQL with the counts that Redis confirmed to the programs. Exit status:
/// 0 if they agree, 1 if not, 2 after an error.
#[derive(Parser)]
#[command(name = "demo fleet", max_term_width = 100)]
struct Args {
    /// The run time in seconds; by default the demo runs until Ctrl-C
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::from(2)
        }
    }
}

/// Everything that runs.
struct Fleet {
    site: Arc<Site>,
    before: Stored,
    trouble: Trouble,
    workers: Workers,
    fpm: Option<Fpm>,
}

/// Runs the demo, and returns whether MySQL has exactly what was counted.
async fn run(args: Args) -> Result<bool> {
    let mut signals = Signals::new()?;
    let mut fleet = tokio::select! {
        begun = begin() => begun?,
        () = signals.end() => return Err("interrupted".into()),
    };
    let started = Instant::now();
    let over = async {
        tokio::select! {
            () = over(args.seconds) => {}
            () = signals.end() => {}
        }
    };
    go_on(&mut fleet, over).await?;
    tokio::select! {
        exact = finish(fleet, started) => exact,
        () = signals.end() => Err("interrupted before everything was in MySQL".into()),
    }
}

async fn begin() -> Result<Fleet> {
    let program = daemon::program()?;
    println!("{}", testkit::versions());
    let site = Arc::new(Site::start().await?);
    let daemons = Daemons::start(program, &site).await?;
    println!("status page: http://{}/", site.listen);
    let before = Stored::read(&site.mysql).await?;
    let (workers, fpm) = (Workers::start(&site).await?, Fpm::start(&site).await?);
    let php = fpm.as_ref().and_then(Fpm::master);
    let trouble = Trouble::new(site.clone(), daemons, workers.kills(), php);
    Ok(Fleet {
        site,
        before,
        trouble,
        workers,
        fpm,
    })
}

/// Injects faults until it is over, or something fails.
async fn go_on(fleet: &mut Fleet, over: impl Future<Output = ()>) -> Result<()> {
    tokio::select! {
        done = fleet.trouble.go_on(over) => done,
        error = fleet.workers.failed() => Err(error),
        error = failed(&mut fleet.fpm) => Err(error),
    }
}

async fn failed(fpm: &mut Option<Fpm>) -> BoxError {
    match fpm {
        Some(fpm) => fpm.failed().await,
        None => std::future::pending().await,
    }
}

async fn over(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

async fn finish(fleet: Fleet, started: Instant) -> Result<bool> {
    let mut journal = fleet.workers.stop().await?;
    if let Some(fpm) = fleet.fpm {
        journal.merge(fpm.stop().await?);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("the clients are done; what waits in Redis is brought to MySQL");
    arrival::wait(&fleet.site, &journal).await?;
    let mut trouble = fleet.trouble;
    trouble.daemons.stop().await?;
    let after = Stored::read(&fleet.site.mysql).await?;
    let checked = Checked::new(&journal, &fleet.before, &after);
    println!();
    trouble.print();
    println!("{} hits in {seconds:.1} s", journal.hits());
    println!(
        "{} calls were not counted, and reported so",
        journal.refused
    );
    checked.print();
    match journal.unknown {
        0 => Ok(checked.is_exact()),
        unknown => Err(format!(
            "{unknown} calls have an unknown outcome, so that nothing is known of the sums"
        )
        .into()),
    }
}

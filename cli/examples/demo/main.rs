//! The demo of the daemon: programs in Python and Node count with the Lua bundle alone, and daemons
//! bring their counts to MySQL. Meanwhile daemons are killed, connections cut and scripts flushed.
//! At the end the demo compares MySQL with the counts that Redis confirmed to the programs.

mod arrival;
mod check;
mod daemon;
mod daemons;
mod signals;
mod site;
mod stored;
mod trouble;
mod writers;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use self::check::Checked;
use self::daemons::Daemons;
use self::signals::Signals;
use self::site::Site;
use self::stored::Stored;
use self::trouble::Trouble;
use self::writers::Writers;

/// The result of a step. An error ends the demo with its message.
type Result<T> = std::result::Result<T, BoxError>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Runs the daemon with its status page, and programs in Python and Node that count with the Lua
/// bundle, until Ctrl-C.
///
/// Meanwhile the demo kills daemons, cuts connections and flushes scripts. Then it compares MySQL
/// with the counts that Redis confirmed to the programs. Exit status: 0 if they agree, 1 if not, 2
/// after an error.
#[derive(Parser)]
#[command(name = "demo daemon", max_term_width = 100)]
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

/// Runs the demo, and returns whether MySQL has exactly what was counted.
async fn run(args: Args) -> Result<bool> {
    let mut signals = Signals::new()?;
    let (site, daemons) = tokio::select! {
        begun = begin() => begun?,
        () = signals.end() => return Err("interrupted".into()),
    };
    let before = Stored::read(&site.mysql).await?;
    let mut writers = Writers::start(&site)?;
    let mut trouble = Trouble::new(daemons, site.redis.clone());
    tokio::select! {
        error = writers.failed() => return Err(error),
        error = trouble.go_on() => return Err(error),
        () = over(args.seconds) => {}
        () = signals.end() => {}
    }
    tokio::select! {
        exact = finish(&site, &before, writers, trouble) => exact,
        () = signals.end() => Err("interrupted before everything was in MySQL".into()),
    }
}

async fn begin() -> Result<(Site, Daemons)> {
    let program = daemon::program()?;
    println!("{}", testkit::versions());
    let site = Site::start().await?;
    site.open_families().await?;
    let daemons = Daemons::start(program, &site).await?;
    println!("status page: http://{}/", site.listen);
    Ok((site, daemons))
}

async fn over(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

async fn finish(site: &Site, before: &Stored, writers: Writers, trouble: Trouble) -> Result<bool> {
    let (mut daemons, done) = trouble.end();
    let told = writers.stop().await?;
    println!("the writers are done; what waits in Redis is brought to MySQL");
    arrival::wait(site, &told).await?;
    daemons.stop().await?;
    let checked = Checked::new(&told, before, &Stored::read(&site.mysql).await?);
    println!("\n{done}");
    checked.print();
    match told.unknown {
        0 => Ok(checked.is_exact()),
        unknown => Err(format!(
            "{unknown} calls have an unknown outcome, so that nothing is known of the sums"
        )
        .into()),
    }
}

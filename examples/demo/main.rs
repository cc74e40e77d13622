//! The demo: several processes replay a web access log into counters, series and unique visitors.
//! Meanwhile processes are killed, connections cut and scripts flushed. Then the demo compares
//! MySQL with a plain count of the file.
//!
//! In `demo campaign`, all kinds count in rounds of random faults of servers, processes and the
//! network. `demo votes` casts votes for items, and also checks every value that a vote returned.
//! In `demo recount`, processes forget to count some rows and count others twice, while counters
//! are compared with their rows and corrected.
//!
//! This process is the supervisor. It starts private servers, and this program again as writers and
//! reconcilers.

mod campaign;
mod child;
mod count;
mod disturb;
mod families;
mod generate;
mod log;
mod measured;
mod meter;
mod progress;
mod read_back;
mod reconciler;
mod reconcilers;
mod recount;
mod replay;
mod rounds;
mod servers;
mod summary;
mod votes;
mod work;
mod writer;
mod writers;
mod zipf;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use counterfoil::test_hooks::set_time;

use self::campaign::{Persistence, Way};

/// The result of a demo. Any error ends it with a message.
type Result<T> = std::result::Result<T, BoxError>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Replays a web access log into counters, series and unique visitors while processes are killed,
/// scripts flushed and connections cut. Then compares MySQL with a plain count of the file. Exit
/// status: 0 if they agree, 1 if not, 2 if an error prevented the comparison.
#[derive(Parser)]
#[command(
    name = "demo",
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    demo: Demo,
}

/// The options of the demo.
#[derive(clap::Args)]
struct Demo {
    /// The log, in the common or combined log format. Defaults to a generated log: several days,
    /// Zipf-distributed pages
    log: Option<PathBuf>,
    /// Write the final contents of MySQL to FILE: family TAB id TAB value, sorted by bytes
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// The number of lines to generate
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    lines: u64,
    /// The seed of the generated log: the same number gives the same log
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The other demos, and the roles in which the supervisor starts this program.
#[derive(Subcommand)]
enum Role {
    Campaign(campaign::Args),
    Votes(votes::Args),
    Recount(recount::Args),
    #[command(hide = true)]
    WriterProcess(writer::Args),
    #[command(hide = true)]
    ReconcilerProcess(reconciler::Args),
    #[command(hide = true)]
    VoterProcess(votes::voter::Args),
    #[command(hide = true)]
    SaverProcess(reconciler::Args),
    #[command(hide = true)]
    SaveProcess(recount::saver::Args),
    #[command(hide = true)]
    SaveReconcilerProcess(reconciler::Args),
    #[command(hide = true)]
    RecountProcess(recount::recounter::Args),
    #[command(hide = true)]
    CountProcess(campaign::writer::Args),
    #[command(hide = true)]
    ServeProcess {
        #[command(flatten)]
        args: reconciler::Args,
        #[arg(long)]
        persistence: Persistence,
    },
    #[command(hide = true)]
    ByHandProcess {
        #[command(flatten)]
        args: reconciler::Args,
        #[arg(long)]
        way: Way,
    },
}

// One thread per process: there are more processes than most machines have cores.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Ok(guard) = std::env::var(campaign::WITHOUT)
        && let Err(error) = campaign::take_out(&guard)
    {
        eprintln!("demo: {error}");
        return ExitCode::from(2);
    }
    let ended = match cli.role {
        Some(Role::WriterProcess(args)) => writer::run(args).await.map(|()| true),
        Some(Role::ReconcilerProcess(args)) => {
            // the writers' producers count at the log's times and must not be mistaken for long idle
            set_time(Some(0));
            reconciler::run(args, families::pair).await.map(|()| true)
        }
        Some(Role::VoterProcess(args)) => votes::voter::run(args).await.map(|()| true),
        Some(Role::SaverProcess(args)) => reconciler::run(args, votes::item::pair)
            .await
            .map(|()| true),
        Some(Role::SaveProcess(args)) => recount::saver::run(args).await.map(|()| true),
        Some(Role::SaveReconcilerProcess(args)) => reconciler::run(args, recount::saves::pair)
            .await
            .map(|()| true),
        Some(Role::RecountProcess(args)) => recount::recounter::run(args).await.map(|()| true),
        Some(Role::CountProcess(args)) => campaign::writer::run(args).await.map(|()| true),
        Some(Role::ServeProcess { args, persistence }) => {
            let open = async |place: &families::Place| campaign::serve(place, persistence).await;
            reconciler::run(args, open).await.map(|()| true)
        }
        Some(Role::ByHandProcess { args, way }) => {
            campaign::save_by_hand(args, way).await.map(|()| true)
        }
        Some(Role::Campaign(args)) => until_interrupted(campaign::run(args)).await,
        Some(Role::Recount(args)) => until_interrupted(recount::run(args)).await,
        Some(Role::Votes(args)) => until_interrupted(votes::run(args)).await,
        None => until_interrupted(replay::run(cli.demo)).await,
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs `work` until Ctrl-C, which drops it together with every process that it started.
async fn until_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        ended = work => ended,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    }
}

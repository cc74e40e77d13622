//! The demo from its start to its end.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio::try_join;

use crate::count::{PlainCount, Totals};
use crate::disturb::{Disturbances, Disturber};
use crate::log::Log;
use crate::measured::Recorder;
use crate::meter::Meter;
use crate::progress::Progress;
use crate::reconcilers::Reconcilers;
use crate::servers::Servers;
use crate::summary::{self, Figures};
use crate::writer::Tally;
use crate::writers::Writers;
use crate::{Demo, Result, families, generate};

/// The log is replayed in rounds, each with a disturbance in its middle. At least so many ...
const ROUNDS: u64 = 24;
/// ... each of at most about so many lines ...
const ROUND_LINES: u64 = 10_000;
/// ... and this long, so that also a short log lasts for many syncs. What is waited for is in no figure.
const ROUND_TIME: Duration = Duration::from_millis(250);

/// Answers whether MySQL holds what is in the log.
pub async fn run(demo: Demo) -> Result<bool> {
    let dump = demo.dump.as_deref().map(create).transpose()?;
    let given = demo.log.map(Log::open).transpose()?;
    let recorder = Recorder::install()?;
    println!("{}", testkit::versions());
    let servers = Servers::start().await;
    let log = match given {
        Some(log) => log,
        None => make_up(servers.directory(), demo.lines, demo.seed)?,
    };
    let (log, counted) = spawn_blocking(|| PlainCount::of(&log).map(|counted| (log, counted))).await??;
    if counted.lines == counted.skipped {
        return Err(format!("{}: no line of an access log in it", log.path.display()).into());
    }
    families::create_tables(&servers.mysql, counted.totals.of(families::STATUS_CODES).map(|(status, _)| status))
        .await?;

    let before = Meter::read(&servers).await?;
    let mut disturber = Disturber::new(&servers, Reconcilers::start(&servers.place).await?);
    let writers = Writers::start(&servers.place, &log).await?;
    let started = Instant::now();
    let replayed = replay(writers, &mut disturber, counted.lines).await?;

    let Disturber { reconcilers, done, .. } = disturber;
    let mut ages = reconcilers.stop().await?;
    let opened = families::open(&servers.place).await?;
    opened.pair.drain().await?;
    let total = started.elapsed();
    ages.extend(recorder.take().lags);
    let used = Meter::read(&servers).await? - before;

    let mysql = Totals::in_mysql(&servers.mysql).await?;
    if let Some(file) = dump {
        mysql.dump(file)?;
    }
    let rejects = sqlx::query_scalar("SELECT COUNT(*) FROM counterfoil_rejects").fetch_one(&servers.mysql).await?;
    let figures = Figures { log, replayed, done, total, used: without_own(used, &done), rejects, ages };
    summary::print(&figures, &mysql, &counted)
}

/// Before the work, since it would be a pity afterwards.
fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn make_up(directory: &Path, lines: u64, seed: u64) -> Result<Log> {
    let path = directory.join("access.log");
    generate::write(&path, lines, seed)?;
    Log::open(path)
}

/// What became of the log, and in how many seconds of work.
pub struct Replayed {
    pub tally: Tally,
    pub seconds: f64,
    pub rounds: u64,
}

async fn replay(mut writers: Writers, disturber: &mut Disturber, lines: u64) -> Result<Replayed> {
    let rounds = lines.div_ceil(ROUND_LINES).max(ROUNDS);
    let mut progress = Progress::new(lines)?;
    let (tally, counted) = watch::channel(Tally::default());
    let mut seconds = 0.0;
    for round in 0..rounds {
        let (begin, end) = (lines * round / rounds, lines * (round + 1) / rounds);
        let counting = writers.round(end, &tally);
        let strike = strike_at(begin.midpoint(end), counted.clone(), disturber);
        let pause = async {
            sleep(ROUND_TIME).await;
            Ok(())
        };
        let (time, (), ()) = try_join!(counting, strike, pause)?;
        seconds += time;
        progress.show(*counted.borrow(), seconds, &disturber.done);
    }
    progress.clear();
    let tally = *counted.borrow();
    Ok(Replayed { tally, seconds, rounds })
}

async fn strike_at(line: u64, mut counted: watch::Receiver<Tally>, disturber: &mut Disturber) -> Result<()> {
    counted.wait_for(|tally| tally.lines >= line).await?;
    disturber.strike().await
}

/// The readings and the disturbances are asked of the servers as well, and are no cost of counting.
fn without_own(used: Meter, done: &Disturbances) -> Meter {
    let reading = Meter { commands: 1, evalsha: 0, statements: 1 };
    used - reading - Meter { commands: done.commands, evalsha: 0, statements: done.statements }
}

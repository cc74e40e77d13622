//! The replay of a log, from start to end.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

use crate::count::{PlainCount, Totals};
use crate::disturb::Disturber;
use crate::log::Log;
use crate::measured::Recorder;
use crate::meter::Meter;
use crate::reconcilers::Reconcilers;
use crate::rounds::{Rounds, without_own};
use crate::servers::Servers;
use crate::summary::{self, Figures, Found};
use crate::writers::Writers;
use crate::{Demo, Result, families, generate, read_back};

/// The minimum time of a round, so that even a short log spans many syncs.
const ROUND_TIME: Duration = Duration::from_millis(250);

/// Runs the demo and returns whether MySQL matches the log.
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
    let (log, counted) =
        spawn_blocking(|| PlainCount::of(&log).map(|counted| (log, counted))).await??;
    if counted.lines == counted.skipped {
        return Err(format!("{}: no line of an access log in it", log.path.display()).into());
    }
    families::create_tables(
        &servers.mysql,
        counted
            .totals
            .of(families::STATUS_CODES)
            .map(|(status, _)| status),
    )
    .await?;

    let before = Meter::read(&servers).await?;
    let mut disturber = Disturber::new(
        &servers,
        Reconcilers::start(&["reconciler-process"], &servers.place).await?,
    );
    let writers = Writers::start("writer-process", &servers.place, &log.args()?).await?;
    let started = Instant::now();
    let rounds = Rounds {
        lines: counted.lines,
        time: ROUND_TIME,
        what: "hits",
    };
    let replayed = rounds.run(writers, &mut disturber).await?;

    let opened = families::open(&servers.place).await?;
    // while the last batches are still on their way to MySQL
    let read = read_back::read(&opened, &counted).await?;
    let Disturber {
        reconcilers, done, ..
    } = disturber;
    let mut ages = reconcilers.stop().await?;
    opened.pair.drain().await?;
    let total = started.elapsed();
    ages.extend(recorder.take().lags);
    let used = Meter::read(&servers).await? - before;

    let mysql = Totals::in_mysql(&servers.mysql).await?;
    if let Some(file) = dump {
        mysql.dump(file)?;
    }
    let rejects = families::rejects(&servers.mysql).await?;
    let figures = Figures {
        log,
        replayed,
        done,
        total,
        used: without_own(used, &done),
        rejects,
        ages,
    };
    Ok(summary::print(&figures, &Found { mysql, read }, &counted))
}

/// Creates the dump file. It runs before the work, so that a wrong path fails early.
fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn make_up(directory: &Path, lines: u64, seed: u64) -> Result<Log> {
    let path = directory.join("access.log");
    generate::write(&path, lines, seed)?;
    Log::open(path)
}

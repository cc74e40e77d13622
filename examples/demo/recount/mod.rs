//! The recount demo: processes insert rows and then count them. They are killed between the two
//! steps, or count twice, while two other processes recount. The rows must explain every value read
//! meanwhile, and at the end every counter must equal its number of rows. Recounts without the
//! library run under the same load.

mod check;
mod journal;
pub mod recounter;
pub mod saver;
pub mod saves;
mod summary;
mod way;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio::try_join;

use self::check::{Reads, Stored};
use self::journal::Journals;
use self::summary::Figures;
use self::way::Way;
use crate::Result;
use crate::child::{Report, Reports, Worker};
use crate::disturb::{Disturbances, Disturber};
use crate::families::{self, Place};
use crate::progress::Progress;
use crate::reconcilers::Reconcilers;
use crate::servers::Servers;
use crate::work::Tally;
use crate::writers::WRITERS;

const RECOUNTERS: usize = 2;
/// The pause between two disturbances.
const REST: Duration = Duration::from_millis(150);

/// Saves and counts rows, and recounts them meanwhile.
///
/// Writers are killed between inserting and counting a row, and sometimes count twice. Recounters
/// and reconcilers are killed, scripts flushed and connections cut. The demo compares every read,
/// and at the end every counter, with the rows. Exit status: 0 if everything is right, 1 if not, 2
/// if an error prevented the comparison.
#[derive(clap::Args)]
pub struct Args {
    /// The way to recount: the library's, or one that applications use without it
    #[arg(long, value_enum, default_value_t = Way::Proven)]
    way: Way,
    /// The number of seconds for which rows are saved
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    #[command(flatten)]
    load: saver::Load,
}

/// Runs the demo and returns whether every read and every counter was right.
pub async fn run(Args { way, seconds, load }: Args) -> Result<bool> {
    println!("{}", testkit::versions());
    let servers = Servers::start().await;
    saves::create_tables(&servers.mysql).await?;
    let (pair, saves) = saves::open(&servers.place).await?;
    let journals = RefCell::new(Journals::new(servers.directory(), load.users));
    let is_over = Cell::new(false);

    let work = async {
        let mut processes = Processes::start(&servers, way, &load, &journals).await?;
        let seconds = processes.work(Duration::from_secs(seconds)).await?;
        let (killed, done) = processes.stop().await?;
        pair.drain().await?;
        let ended = Stored::read(&servers.mysql, load.users).await?;
        way::quiet(way, &servers.place, &pair, &saves, load.users).await?;
        pair.drain().await?;
        let quiet = Stored::read(&servers.mysql, load.users).await?;
        is_over.set(true);
        Ok::<_, crate::BoxError>((seconds, killed, done, ended, quiet))
    };
    let reads = check::watch(&saves, &journals, &is_over);
    let ((seconds, killed, done, ended, quiet), reads): (_, Reads) = try_join!(work, reads)?;

    let corrections = saves::corrections(&servers.mysql).await?;
    let rejects = families::rejects(&servers.mysql).await?;
    let journals = journals.into_inner();
    let figures = Figures {
        way,
        seconds,
        killed,
        done,
        corrections,
        rejects,
        journals,
        reads,
        ended,
        quiet,
    };
    summary::print(&figures);
    figures.verdict()
}

/// The number of killed processes of each kind.
#[derive(Clone, Copy, Default)]
struct Killed {
    writers: u64,
    recounters: u64,
}

/// The supervisor's view of all processes.
struct Processes<'s> {
    servers: &'s Servers,
    way: Way,
    load: &'s saver::Load,
    journals: &'s RefCell<Journals>,
    /// The writers, each with the number of its journal.
    writers: Vec<(usize, Worker, Reports)>,
    recounters: Vec<(Worker, Reports)>,
    disturber: Disturber,
    killed: Killed,
}

impl<'s> Processes<'s> {
    async fn start(
        servers: &'s Servers,
        way: Way,
        load: &'s saver::Load,
        journals: &'s RefCell<Journals>,
    ) -> Result<Self> {
        let reconcilers = Reconcilers::start(&["save-reconciler-process"], &servers.place).await?;
        let mut processes = Processes {
            servers,
            way,
            load,
            journals,
            writers: Vec::new(),
            recounters: Vec::new(),
            disturber: Disturber::new(servers, reconcilers),
            killed: Killed::default(),
        };
        for _ in 0..RECOUNTERS {
            processes.start_recounter().await?;
        }
        for _ in 0..WRITERS {
            processes.start_writer().await?;
        }
        Ok(processes)
    }

    async fn start_writer(&mut self) -> Result<()> {
        let number = self.journals.borrow_mut().open_next()?;
        let args = [
            self.own_args("save-process"),
            self.load.args(),
            self.servers.directory_args()?,
        ]
        .concat();
        let (worker, reports) =
            Worker::start(&[args, vec![format!("--number={number}")]].concat()).await?;
        self.writers.push((number, worker, reports));
        Ok(())
    }

    async fn start_recounter(&mut self) -> Result<()> {
        let args = [
            self.own_args("recount-process"),
            self.way.args(self.load.users),
        ]
        .concat();
        self.recounters.push(Worker::start(&args).await?);
        Ok(())
    }

    fn own_args(&self, role: &str) -> Vec<String> {
        let Place { redis, mysql } = &self.servers.place;
        [role, "--redis", redis, "--mysql", mysql]
            .map(str::to_owned)
            .into()
    }

    /// Disturbs the processes for `time`. Returns the elapsed seconds.
    async fn work(&mut self, time: Duration) -> Result<f64> {
        let mut progress = Progress::new(time.as_millis().try_into()?, "rows")?;
        let started = Instant::now();
        for turn in 0.. {
            sleep(REST).await;
            match turn % 6 {
                1 | 5 => self.disturber.strike().await?,
                3 => self.kill_a_recounter().await?,
                _ => self.kill_a_writer().await?,
            }
            let lines = started.elapsed().min(time).as_millis().try_into()?;
            let tally = Tally {
                lines,
                hits: self.journals.borrow().begun(),
                ..Tally::default()
            };
            progress.show(tally, started.elapsed().as_secs_f64(), &self.disturber.done);
            if started.elapsed() >= time {
                break;
            }
        }
        progress.clear();
        Ok(started.elapsed().as_secs_f64())
    }

    /// Kills the oldest writer, at any point of its work, and starts another one.
    async fn kill_a_writer(&mut self) -> Result<()> {
        let (number, worker, _reports) = self.writers.remove(0);
        self.journals.borrow_mut().dying(number);
        worker.kill().await?;
        self.journals.borrow_mut().dead(number)?;
        self.killed.writers += 1;
        self.start_writer().await
    }

    async fn kill_a_recounter(&mut self) -> Result<()> {
        self.recounters.remove(0).0.kill().await?;
        self.killed.recounters += 1;
        self.start_recounter().await
    }

    /// Lets the writers count what they inserted. Kills the recounters, so that unfinished recounts
    /// are checked too.
    async fn stop(mut self) -> Result<(Killed, Disturbances)> {
        for (_, writer, _) in &mut self.writers {
            writer.order("stop").await?;
        }
        for (_, _, reports) in &mut self.writers {
            if !matches!(reports.next().await?, Some(Report::Finished { .. })) {
                return Err("a writer ended early".into());
            }
        }
        for (recounter, _) in self.recounters {
            recounter.kill().await?;
        }
        self.disturber.reconcilers.stop().await?;
        Ok((self.killed, self.disturber.done))
    }
}

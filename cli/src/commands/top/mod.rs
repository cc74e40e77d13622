//! A table of all families that stays up to date.

mod screen;
mod table;

use std::io::{self, IsTerminal};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use self::table::Table;
use super::Context;
use crate::exit::{Exit, Failure};
use crate::poll::{Poller, ServerStatus, ticks};
use crate::sampler::Sampler;
use crate::status::LATE;
use crate::view::FamilyView;

/// The interval between reads of a pair.
const INTERVAL: Duration = Duration::from_secs(1);
/// The maximum age of data from MySQL, which is polled less often to spare it.
const MYSQL_AGE: Duration = Duration::from_secs(5);
/// The maximum delay before a key or a signal is handled.
const POLL_KEYS: Duration = Duration::from_millis(100);

/// The state of one pair at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub pair: String,
    pub redis: ServerStatus,
    pub mysql: ServerStatus,
    pub families: Vec<FamilyView>,
}

pub async fn run(context: &Context) -> Result<Exit, Failure> {
    if context.output.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal: `counterfoil status` prints the same once, also as JSON",
        ));
    }
    let snapshots = start_polling(context.pollers()?);
    let (mut terminate, mut hang_up) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    );
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
        stop.send_replace(true);
    });
    // this restores the terminal also after a panic
    let mut terminal = ratatui::try_init()?;
    let shown = tokio::task::block_in_place(|| show(&mut terminal, &snapshots, &stopped));
    ratatui::try_restore()?;
    shown?;
    Ok(Exit::Ok)
}

/// Polls each pair in its own task, so that an unavailable one does not delay the others.
fn start_polling(pollers: Vec<Poller>) -> watch::Receiver<Vec<Snapshot>> {
    let (snapshots, shown) = watch::channel(Vec::<Snapshot>::new());
    for mut poller in pollers {
        let snapshots = snapshots.clone();
        tokio::spawn(async move {
            let mut sampler = Sampler::new(poller.pair());
            let mut ticks = ticks(INTERVAL);
            loop {
                ticks.tick().await;
                let status = poller.poll(LATE, MYSQL_AGE).await;
                let snapshot = Snapshot {
                    pair: status.pair,
                    redis: status.redis,
                    mysql: status.mysql,
                    families: sampler.sample(status.families),
                };
                snapshots.send_modify(|all| {
                    match all.iter_mut().find(|other| other.pair == snapshot.pair) {
                        Some(other) => *other = snapshot,
                        None => all.push(snapshot),
                    }
                });
            }
        });
    }
    shown
}

/// Draws the table until the user quits or a signal arrives.
fn show(
    terminal: &mut DefaultTerminal,
    snapshots: &watch::Receiver<Vec<Snapshot>>,
    stopped: &watch::Receiver<bool>,
) -> io::Result<()> {
    let mut table = Table::default();
    while !*stopped.borrow() {
        table.update(&snapshots.borrow());
        terminal.draw(|frame| screen::draw(frame, &mut table))?;
        if event::poll(POLL_KEYS)?
            && let Event::Key(key) = event::read()?
            && table.press(key).is_break()
        {
            break;
        }
    }
    Ok(())
}

//! A table of all families that stays up to date.

mod feed;
mod keys;
mod screen;

use std::io::{self, IsTerminal};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use self::feed::Shot;
use self::keys::Table;
use super::Context;
use crate::exit::{Exit, Failure};
use crate::look::Look;

/// The maximum delay before a key or a signal is handled.
const BEAT: Duration = Duration::from_millis(100);

pub async fn run(context: &Context) -> Result<Exit, Failure> {
    if context.output.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top is for terminals: `counterfoil status` prints the same once, also as JSON",
        ));
    }
    let looks = context
        .pairs()
        .map(|pair| Look::new(pair, &context.config.families));
    let looks = looks.collect::<counterfoil::Result<Vec<_>>>()?;
    let shots = feed::start(looks);
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
    let shown = tokio::task::block_in_place(|| show(&mut terminal, &shots, &stopped));
    ratatui::try_restore()?;
    shown?;
    Ok(Exit::Ok)
}

/// Draws the table until the user quits or a signal arrives.
fn show(
    terminal: &mut DefaultTerminal,
    shots: &watch::Receiver<Vec<Shot>>,
    stopped: &watch::Receiver<bool>,
) -> io::Result<()> {
    let mut table = Table::default();
    while !*stopped.borrow() {
        table.update(&shots.borrow());
        terminal.draw(|frame| screen::draw(frame, &mut table))?;
        if event::poll(BEAT)?
            && let Event::Key(key) = event::read()?
            && table.press(key).is_break()
        {
            break;
        }
    }
    Ok(())
}

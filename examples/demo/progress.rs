//! The progress of the work, on a terminal or in a file.

use std::io::IsTerminal;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use crate::Result;
use crate::disturb::Disturbances;
use crate::work::Tally;

/// A bar on a terminal; elsewhere a line after each tenth of the work.
pub struct Progress {
    bar: ProgressBar,
    lines: u64,
    what: &'static str,
    /// The tenths that were printed.
    said: u64,
}

impl Progress {
    /// Creates the progress of `lines` lines; `what` names the counted things.
    pub fn new(lines: u64, what: &'static str) -> Result<Self> {
        let style = ProgressStyle::with_template("{bar:20} {percent:>3} %  {wide_msg}")?;
        Ok(Progress {
            bar: ProgressBar::new(lines).with_style(style),
            lines,
            what,
            said: 0,
        })
    }

    pub fn show(&mut self, tally: Tally, seconds: f64, done: &Disturbances) {
        let per_second = HumanCount((tally.hits as f64 / seconds) as u64);
        let (kills, flushes, cuts) = (done.kills, done.flushes, done.redis_cuts + done.mysql_cuts);
        let hits = HumanCount(tally.hits);
        let message = format!(
            "{hits} {}, {per_second}/s, kills {kills}, flushes {flushes}, cuts {cuts}",
            self.what
        );
        let tenth = 10 * tally.lines / self.lines;
        if !std::io::stderr().is_terminal() && tenth > self.said {
            self.said = tenth;
            eprintln!("{:>3} %  {message}", 10 * tenth);
        }
        self.bar.set_position(tally.lines);
        self.bar.set_message(message);
    }

    pub fn clear(self) {
        self.bar.finish_and_clear();
    }
}

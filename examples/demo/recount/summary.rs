//! The summary that the recount demo prints at the end.

use indicatif::HumanCount;

use super::check::{Reads, Stored};
use super::journal::Journals;
use super::saves::Corrections;
use super::way::{WITHIN, Way};
use super::{Killed, RECOUNTERS};
use crate::Result;
use crate::disturb::Disturbances;
use crate::reconcilers::RECONCILERS;
use crate::writers::WRITERS;

const DIFFERENCES: usize = 20;

/// The measured figures.
pub struct Figures {
    pub way: Way,
    pub seconds: f64,
    pub killed: Killed,
    pub done: Disturbances,
    pub corrections: Corrections,
    /// Rows in the table of rejects.
    pub rejects: i64,
    pub journals: Journals,
    pub reads: Reads,
    /// The stored values when all counts had arrived (`ended`), and after one more recount
    /// (`quiet`).
    pub ended: Stored,
    pub quiet: Stored,
}

impl Figures {
    pub fn is_exact(&self) -> bool {
        self.reads.is_exact() && self.quiet.wrong.is_empty()
    }

    /// Returns whether the run was exact. Fails if the machine was too slow to decide.
    pub fn verdict(&self) -> Result<bool> {
        let slowest = self.journals.slowest;
        if self.is_exact() || self.way != Way::Proven || slowest < WITHIN {
            Ok(self.is_exact())
        } else {
            Err(
                format!("a row was counted {slowest:?} after its insert, and within is {WITHIN:?}")
                    .into(),
            )
        }
    }
}

pub fn print(figures: &Figures) {
    println!();
    print_work(figures);
    print_checks(figures);
    println!();
    for read in &figures.reads.described {
        println!("{read}");
    }
    for (user, value, rows) in figures.quiet.wrong.iter().take(DIFFERENCES) {
        println!("user {user}: MySQL {value}, rows {rows}");
    }
    println!("exact: {}", if figures.is_exact() { "yes" } else { "no" });
}

fn print_work(figures: &Figures) {
    let Figures {
        way,
        seconds,
        killed,
        done,
        corrections,
        rejects,
        journals,
        quiet,
        ..
    } = figures;
    let (twice, counted, counting) = journals.sums();
    println!("way         {way}");
    println!("processes   {WRITERS} writers, {RECONCILERS} reconcilers, {RECOUNTERS} recounters");
    println!(
        "killed      {} writers, {} recounters",
        killed.writers, killed.recounters
    );
    println!("disturbed   {done}");
    let per_second = HumanCount((quiet.rows as f64 / seconds) as u64);
    println!(
        "rows        {} of {} users in {seconds:.1} s: {per_second} a second",
        count(quiet.rows),
        quiet.users
    );
    println!(
        "            counted at most {} ms after the insert began",
        journals.slowest.as_millis()
    );
    println!(
        "never       {} to {} rows were never counted",
        quiet.rows - counting,
        quiet.rows - counted
    );
    println!(
        "twice       {} rows were counted twice, at most",
        count(twice)
    );
    println!("refused     {rejects} by MySQL");
    if *way == Way::Proven {
        let Corrections {
            runs,
            corrections,
            up,
            down,
        } = corrections;
        println!("corrected   {corrections} times in {runs} runs: {up} added, {down} taken");
    }
}

fn print_checks(figures: &Figures) {
    let Figures {
        reads,
        ended,
        quiet,
        ..
    } = figures;
    println!(
        "reads       {} checked, {} failed",
        HumanCount(reads.checked),
        reads.failed
    );
    println!(
        "            {} outside of what the rows explain",
        HumanCount(reads.outside)
    );
    println!(
        "            {} below the one before by more than was counted twice",
        HumanCount(reads.fell)
    );
    println!(
        "counters    {} wrong when all counts had arrived, by {} in all",
        ended.wrong.len(),
        HumanCount(ended.off())
    );
    println!(
        "            {} wrong after one more recount in quiet, by {}",
        quiet.wrong.len(),
        HumanCount(quiet.off())
    );
}

fn count(number: i64) -> HumanCount {
    HumanCount(number.unsigned_abs())
}

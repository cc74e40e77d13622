//! The summary that the votes demo prints at the end.

use std::time::Duration;

use indicatif::HumanCount;

use super::check::{Checked, Item};
use crate::disturb::Disturbances;
use crate::meter::Meter;
use crate::reconcilers::RECONCILERS;
use crate::rounds::Worked;
use crate::writers::WRITERS;

const DIFFERENCES: usize = 20;

/// The measured figures.
pub struct Figures {
    pub voted: Worked,
    pub done: Disturbances,
    /// The time from the first vote until everything was in MySQL.
    pub total: Duration,
    /// The commands and statements of voters and reconcilers.
    pub used: Meter,
    /// Rows in the table of rejects.
    pub rejects: i64,
}

pub fn print(figures: &Figures, checked: &Checked) {
    println!();
    print_work(figures, checked);
    print_costs(figures, checked);
    print_checks(checked);
    println!();
    print_verdict(checked);
}

fn print_work(figures: &Figures, checked: &Checked) {
    let Figures {
        voted,
        done,
        total,
        rejects,
        ..
    } = figures;
    let tally = &voted.tally;
    println!(
        "items       {}, of which {} were voted for",
        count(checked.items()),
        count(checked.voted_for())
    );
    println!("processes   {WRITERS} voters, {RECONCILERS} reconcilers");
    println!("disturbed   {done}");
    let per_second = HumanCount((tally.hits as f64 / voted.seconds) as u64);
    println!(
        "votes       {} in {:.2} s: {per_second} a second",
        HumanCount(tally.hits),
        voted.seconds
    );
    println!(
        "            {:.1} s with the pauses after {} rounds, in which counters leave Redis, and the way to MySQL",
        total.as_secs_f64(),
        voted.rounds
    );
    println!(
        "failures    {} calls made again, {} votes of unknown outcome",
        HumanCount(tally.repeated),
        tally.unknown
    );
    println!(
        "refused     {} votes by Redis, {rejects} by MySQL",
        tally.refused
    );
}

fn print_costs(figures: &Figures, checked: &Checked) {
    let Figures { voted, used, .. } = figures;
    let votes = voted.tally.hits as f64;
    let (seeds, items) = (voted.tally.seeds, checked.voted_for());
    println!(
        "seeds       {} reads of a row whose counter was not in Redis",
        HumanCount(seeds)
    );
    println!(
        "            {:.1} for each item voted for: its counter had left Redis, and came back",
        seeds as f64 / items as f64
    );
    println!(
        "Redis       {:.3} EVALSHA calls a vote, with those of the reconcilers",
        used.evalsha as f64 / votes
    );
    println!(
        "            {:.3} commands of all kinds a vote, with connecting and loading the scripts",
        used.commands as f64 / votes
    );
    println!(
        "MySQL       {:.3} statements a vote, with connecting",
        used.statements as f64 / votes
    );
}

fn print_checks(checked: &Checked) {
    println!(
        "table       {} items whose vote_count is not the votes cast",
        checked.miscounted().count()
    );
    println!(
        "values      {} returned; {} items of which they are not 1, 2, 3 ... each once",
        count(checked.values()),
        checked.mistold().count()
    );
}

/// Prints the differences and, as the last line, the verdict.
fn print_verdict(checked: &Checked) {
    for Item {
        id, cast, stored, ..
    } in checked.miscounted().take(DIFFERENCES)
    {
        let stored = stored.map_or("no row".to_owned(), |stored| stored.to_string());
        println!("item {id}: MySQL {stored}, votes cast {cast}");
    }
    for item in checked.mistold().take(DIFFERENCES) {
        println!(
            "item {}: {}",
            item.id,
            item.wrong_values().unwrap_or_default()
        );
    }
    match (checked.is_exact(), checked.unknown()) {
        (true, 0) => println!("exact: yes"),
        (true, unknown) => println!("exact: yes, but for {unknown} votes whose outcome is unknown"),
        (false, _) => println!("exact: no"),
    }
}

fn count(number: usize) -> HumanCount {
    HumanCount(number as u64)
}

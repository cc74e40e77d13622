//! What the demo says in the end.

use std::time::Duration;

use indicatif::HumanCount;

use crate::Result;
use crate::count::{Difference, PlainCount, Totals};
use crate::disturb::Disturbances;
use crate::families::{DAILY_HITS, PAGE_VIEWS, SETTLE};
use crate::log::Log;
use crate::meter::Meter;
use crate::reconcilers::RECONCILERS;
use crate::rounds::Worked;
use crate::writers::WRITERS;

const TOP_PAGES: usize = 10;
const DAYS: usize = 31;
const BAR: i64 = 40;
const DIFFERENCES: usize = 20;

/// What was measured.
pub struct Figures {
    pub log: Log,
    pub replayed: Worked,
    pub done: Disturbances,
    /// From the first hit until everything was in MySQL.
    pub total: Duration,
    /// By writers and reconcilers.
    pub used: Meter,
    /// Rows in the table of rejects.
    pub rejects: i64,
    /// Of the batches, in seconds.
    pub ages: Vec<f64>,
}

/// Prints everything, and answers whether MySQL holds what was counted.
pub fn print(figures: &Figures, mysql: &Totals, counted: &PlainCount) -> Result<bool> {
    println!();
    print_work(figures, counted);
    print_costs(figures);
    print_top_pages(mysql);
    print_days(mysql);
    println!();
    Ok(print_verdict(figures, &mysql.differences(&counted.totals)))
}

fn print_work(figures: &Figures, counted: &PlainCount) {
    let Figures { log, replayed, done, total, .. } = figures;
    let tally = &replayed.tally;
    let name = log.path.file_name().unwrap_or_default().display();
    println!(
        "log         {name}: {} lines, {} skipped as not of an access log",
        HumanCount(counted.lines),
        counted.skipped
    );
    println!("processes   {WRITERS} writers, {RECONCILERS} reconcilers");
    println!("disturbed   {done}");
    println!("hits        {} in {:.2} s: {} a second", HumanCount(tally.hits), replayed.seconds, rate(figures));
    println!(
        "            {:.1} s with the pauses between {} rounds and the way to MySQL",
        total.as_secs_f64(),
        replayed.rounds
    );
    println!("failures    {} calls made again, {} hits of unknown outcome", HumanCount(tally.repeated), tally.unknown);
    println!("refused     {} hits by Redis, {} by MySQL", tally.refused, figures.rejects);
}

fn rate(figures: &Figures) -> HumanCount {
    HumanCount((figures.replayed.tally.hits as f64 / figures.replayed.seconds) as u64)
}

fn print_costs(figures: &Figures) {
    let Figures { used, ages, .. } = figures;
    let hits = figures.replayed.tally.hits as f64;
    println!("Redis       {:.3} EVALSHA calls a hit: hits of the same moment share one", used.evalsha as f64 / hits);
    println!(
        "            {:.3} commands of all kinds a hit, with connecting and loading the scripts",
        used.commands as f64 / hits
    );
    println!("MySQL       {:.3} statements a hit, with connecting", used.statements as f64 / hits);
    println!("lag         {}", lag(ages.clone()));
    println!("            of {} batches: the age of the oldest hit, {SETTLE:?} of settling included", ages.len());
}

fn lag(mut ages: Vec<f64>) -> String {
    if ages.is_empty() {
        return "not measured".to_owned();
    }
    ages.sort_unstable_by(f64::total_cmp);
    let mean = ages.iter().sum::<f64>() / ages.len() as f64;
    let at = |share: usize| ages.get((ages.len() * share / 100).min(ages.len() - 1)).copied().unwrap_or(f64::NAN);
    format!("mean {mean:.2} s, median {:.2} s, 95 % {:.2} s, highest {:.2} s", at(50), at(95), at(100))
}

fn print_top_pages(mysql: &Totals) {
    let mut pages: Vec<_> = mysql.of(PAGE_VIEWS).collect();
    pages.sort_by_key(|(_, views)| std::cmp::Reverse(*views));
    println!("\n{:>10}  page", "views");
    for (path, views) in pages.into_iter().take(TOP_PAGES) {
        println!("{:>10}  {}", HumanCount(views as u64).to_string(), path.chars().take(80).collect::<String>());
    }
}

fn print_days(mysql: &Totals) {
    let all: Vec<_> = mysql.of(DAILY_HITS).collect();
    let days = &all[all.len().saturating_sub(DAYS)..];
    let highest = days.iter().map(|(_, hits)| *hits).max().unwrap_or(1).max(1);
    let which = if days.len() < all.len() { ", the last ones" } else { "" };
    println!("\n{:>10}  day{which}", "hits");
    for (day, hits) in days {
        let bar = "█".repeat((hits * BAR / highest) as usize);
        println!("{:>10}  {day} {bar}", HumanCount(*hits as u64).to_string());
    }
}

/// The last line is the verdict.
fn print_verdict(figures: &Figures, differences: &[Difference<'_>]) -> bool {
    for Difference { family, id, mysql, counted } in differences.iter().take(DIFFERENCES) {
        let value = |value: &Option<i64>| value.map_or("no row".to_owned(), |value| value.to_string());
        println!("{family} {id}: MySQL {}, counted {}", value(mysql), value(counted));
    }
    let unknown = figures.replayed.tally.unknown;
    if unknown > 0 {
        println!("exact: no, the outcome of {unknown} hits is unknown; {} counters differ", differences.len());
    } else if !differences.is_empty() {
        println!("exact: no, {} counters differ", differences.len());
    } else {
        println!("exact: yes");
    }
    unknown == 0 && differences.is_empty()
}

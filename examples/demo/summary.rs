//! The summary that the demo prints at the end.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use counterfoil::Day;
use indicatif::HumanCount;

use crate::count::{Difference, PlainCount, Totals};
use crate::disturb::Disturbances;
use crate::families::{PAGE_VIEWS, REQUESTS, SETTLE, VISITORS};
use crate::log::{Log, SITE};
use crate::meter::Meter;
use crate::read_back;
use crate::reconcilers::RECONCILERS;
use crate::rounds::Worked;
use crate::writers::WRITERS;

const TOP_PAGES: usize = 10;
const DAYS: usize = 31;
const BAR: i64 = 40;
const DIFFERENCES: usize = 20;

/// The measured figures.
pub struct Figures {
    pub log: Log,
    pub replayed: Worked,
    pub done: Disturbances,
    /// The time from the first hit until everything was in MySQL.
    pub total: Duration,
    /// The commands and statements of writers and reconcilers.
    pub used: Meter,
    /// Rows in the table of rejects.
    pub rejects: i64,
    /// The ages of the batches, in seconds.
    pub ages: Vec<f64>,
}

/// The counts that were found.
pub struct Found {
    /// The counts in MySQL at the end.
    pub mysql: Totals,
    /// The counts read through the library before everything was in MySQL.
    pub read: Totals,
}

/// Prints everything and returns whether the counts that were found match the plain count.
pub fn print(figures: &Figures, found: &Found, counted: &PlainCount) -> bool {
    let Found { mysql, read } = found;
    println!();
    print_work(figures, counted);
    print_costs(figures);
    print_top_pages(mysql);
    print_days(mysql);
    println!();
    print_compared(figures, found, counted);
    let readable = counted.totals.only(&read_back::FAMILIES);
    let differences = [
        ("MySQL", mysql.differences(&counted.totals)),
        ("read", read.differences(&readable)),
    ];
    print_verdict(
        figures,
        &differences,
        figures.replayed.tally.first_visits == counted.first_visits(),
    )
}

fn print_work(figures: &Figures, counted: &PlainCount) {
    let Figures {
        log,
        replayed,
        done,
        total,
        ..
    } = figures;
    let tally = &replayed.tally;
    let name = log.path.file_name().unwrap_or_default().display();
    println!(
        "log         {name}: {} lines, {} skipped as not of an access log",
        HumanCount(counted.lines),
        counted.skipped
    );
    println!("processes   {WRITERS} writers, {RECONCILERS} reconcilers");
    println!("disturbed   {done}");
    println!(
        "hits        {} in {:.2} s: {} a second",
        HumanCount(tally.hits),
        replayed.seconds,
        rate(figures)
    );
    println!(
        "            {:.1} s with the pauses between {} rounds and the way to MySQL",
        total.as_secs_f64(),
        replayed.rounds
    );
    println!(
        "failures    {} calls made again, {} hits of unknown outcome",
        HumanCount(tally.repeated),
        tally.unknown
    );
    println!(
        "refused     {} hits by Redis, {} by MySQL",
        tally.refused, figures.rejects
    );
}

fn rate(figures: &Figures) -> HumanCount {
    HumanCount((figures.replayed.tally.hits as f64 / figures.replayed.seconds) as u64)
}

fn print_costs(figures: &Figures) {
    let Figures { used, ages, .. } = figures;
    let hits = figures.replayed.tally.hits as f64;
    println!(
        "Redis       {:.3} EVALSHA calls a hit: hits of the same moment share one",
        used.evalsha as f64 / hits
    );
    println!(
        "            {:.3} commands of all kinds a hit, with connecting and loading the scripts",
        used.commands as f64 / hits
    );
    println!(
        "MySQL       {:.3} statements a hit, with connecting",
        used.statements as f64 / hits
    );
    println!("lag         {}", lag(ages.clone()));
    println!(
        "            of {} batches of counters: the age of the oldest hit, {SETTLE:?} of settling included",
        ages.len()
    );
}

fn lag(mut ages: Vec<f64>) -> String {
    if ages.is_empty() {
        return "not measured".to_owned();
    }
    ages.sort_unstable_by(f64::total_cmp);
    let mean = ages.iter().sum::<f64>() / ages.len() as f64;
    let at = |share: usize| {
        ages.get((ages.len() * share / 100).min(ages.len() - 1))
            .copied()
            .unwrap_or(f64::NAN)
    };
    format!(
        "mean {mean:.2} s, median {:.2} s, 95 % {:.2} s, highest {:.2} s",
        at(50),
        at(95),
        at(100)
    )
}

fn print_top_pages(mysql: &Totals) {
    let mut pages: Vec<_> = mysql.of(PAGE_VIEWS).collect();
    pages.sort_by_key(|(_, views)| std::cmp::Reverse(*views));
    println!("\n{:>10}  page", "views");
    for (path, views) in pages.into_iter().take(TOP_PAGES) {
        println!(
            "{:>10}  {}",
            HumanCount(views as u64).to_string(),
            path.chars().take(80).collect::<String>()
        );
    }
}

fn print_days(mysql: &Totals) {
    let requests = mysql
        .of(REQUESTS)
        .filter_map(|(id, hits)| Some((site_day(id)?, hits)));
    let all: Vec<_> = requests.collect();
    let visitors: BTreeMap<_, _> = mysql.of(VISITORS).collect();
    let days = &all[all.len().saturating_sub(DAYS)..];
    let highest = days.iter().map(|(_, hits)| *hits).max().unwrap_or(1).max(1);
    let which = if days.len() < all.len() {
        ", the last ones"
    } else {
        ""
    };
    println!("\n{:>10}  {:>10}  day{which}", "requests", "visitors");
    for (day, hits) in days {
        let visitors = visitors
            .get(format!("{SITE}/{day}").as_str())
            .copied()
            .unwrap_or(0);
        let bar = "█".repeat((hits * BAR / highest) as usize);
        let [hits, visitors] =
            [*hits, visitors].map(|number| HumanCount(number as u64).to_string());
        println!("{hits:>10}  {visitors:>10}  {day} {bar}");
    }
}

/// Returns the day of the id if the id belongs to the whole site.
fn site_day(id: &str) -> Option<String> {
    let start = id.strip_prefix("86400s/")?.strip_suffix(SITE)?;
    let start = start.strip_suffix('/')?.parse().ok()?;
    let day = Day::of(UNIX_EPOCH + Duration::from_secs(start)).ok()?;
    Some(day.to_string())
}

fn print_compared(figures: &Figures, Found { mysql, read }: &Found, counted: &PlainCount) {
    println!(
        "compared    {} rows in MySQL with a plain count of the log",
        count(mysql.len())
    );
    println!(
        "            {} of series and visitors, read while they were on their way there",
        count(read.len())
    );
    let (told, first) = (figures.replayed.tally.first_visits, counted.first_visits());
    println!(
        "            {} visits told to be a visitor's first of the day, of {}",
        HumanCount(told),
        HumanCount(first)
    );
}

/// Prints the differences and, as the last line, the verdict.
fn print_verdict(
    figures: &Figures,
    found: &[(&str, Vec<Difference<'_>>)],
    is_told_right: bool,
) -> bool {
    for (place, differences) in found {
        for Difference {
            family,
            id,
            found,
            counted,
        } in differences.iter().take(DIFFERENCES)
        {
            let value =
                |value: &Option<i64>| value.map_or("nothing".to_owned(), |value| value.to_string());
            println!(
                "{family} {id}: {place} {}, counted {}",
                value(found),
                value(counted)
            );
        }
    }
    let unknown = figures.replayed.tally.unknown;
    let differences: usize = found.iter().map(|(_, differences)| differences.len()).sum();
    if unknown > 0 {
        println!(
            "exact: no, the outcome of {unknown} hits is unknown; {differences} counts differ"
        );
    } else if differences > 0 {
        println!("exact: no, {differences} counts differ");
    } else if !is_told_right {
        println!("exact: no, first visits were told wrongly");
    } else {
        println!("exact: yes");
    }
    unknown == 0 && differences == 0 && is_told_right
}

fn count(number: usize) -> HumanCount {
    HumanCount(number as u64)
}

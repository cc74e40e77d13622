//! The results of runs as JSON, and the tables that are made of them.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::{fs, io};

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

/// A run of the campaign.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// The commit whose code ran.
    pub commit: String,
    /// Unix seconds.
    pub started: u64,
    pub seed: u64,
    pub redis: String,
    pub mysql: String,
    pub way: String,
    /// The guard of the protocol that was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<String>,
    /// The error that a run found, and the change that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub rounds: Vec<Outcome>,
}

/// The outcome of a round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub number: u64,
    pub seed: u64,
    pub persistence: String,
    /// The time that it took.
    pub seconds: f64,
    pub faults: BTreeMap<String, u64>,
    /// The acknowledged hits of each client.
    pub clients: BTreeMap<String, i64>,
    pub acknowledged: i64,
    /// Those of calls with one hit.
    pub single: i64,
    /// Hits whose outcome no process knows.
    pub unknown: i64,
    /// Acknowledged hits that MySQL lacks, and that a crash of Redis may lose.
    pub lost_in_crashes: i64,
    /// Those that an older backup of MySQL lacks.
    pub lost_with_backups: i64,
    /// Further acknowledged hits that MySQL lacks.
    pub lost: i64,
    /// Hits in MySQL beyond those that were acknowledged or of unknown outcome.
    pub doubled: i64,
    /// Values that were read, and those of them that the daemon replied.
    pub read: u64,
    pub read_by_daemon: u64,
    /// Values that lack an acknowledged hit, or have one too many.
    pub wrong: u64,
    /// The hits that MySQL reports as dropped, and the batches as lost, by servers that were set back.
    pub dropped: u64,
    pub lost_batches: u64,
    /// The partitions whose batches MySQL lost without a report.
    #[serde(default)]
    pub unreported: u64,
    /// The time from the last fault until everything was in MySQL, in milliseconds.
    pub saved_ms: u64,
    /// Why the round came to no comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The cause of that, and the change that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Outcome {
    pub fn is_exact(&self) -> bool {
        let is_right =
            (self.lost, self.doubled) == (0, 0) && (self.wrong, self.unreported) == (0, 0);
        self.failed.is_none() && is_right
    }

    pub fn faults(&self) -> u64 {
        self.faults.values().sum()
    }

    fn add(&mut self, more: &Outcome) {
        for (fault, times) in &more.faults {
            *self.faults.entry(fault.clone()).or_default() += times;
        }
        for (client, hits) in &more.clients {
            *self.clients.entry(client.clone()).or_default() += hits;
        }
        self.number += 1;
        self.seconds += more.seconds;
        self.acknowledged += more.acknowledged;
        self.single += more.single;
        self.unknown += more.unknown;
        self.lost_in_crashes += more.lost_in_crashes;
        self.lost_with_backups += more.lost_with_backups;
        self.lost += more.lost;
        self.doubled += more.doubled;
        self.read += more.read;
        self.read_by_daemon += more.read_by_daemon;
        self.wrong += more.wrong;
        self.dropped += more.dropped;
        self.lost_batches += more.lost_batches;
        self.unreported += more.unreported;
        self.saved_ms = self.saved_ms.max(more.saved_ms);
        self.failed = self.failed.take().or_else(|| more.failed.clone());
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(failed) = &self.failed {
            return write!(
                f,
                "{:<9}  FAILED, seed {}: {failed}",
                self.persistence, self.seed
            );
        }
        write!(
            f,
            "{:<9}  {:>3} faults; {} acknowledged, {} unknown, lost {} in crashes, {} with backups, {} otherwise, {} doubled; \
             {} values read, {} wrong; {} set-backs without a report; saved after {:.1} s",
            self.persistence,
            self.faults(),
            count(self.acknowledged),
            count(self.unknown),
            count(self.lost_in_crashes),
            count(self.lost_with_backups),
            count(self.lost),
            count(self.doubled),
            HumanCount(self.read),
            HumanCount(self.wrong),
            self.unreported,
            self.saved_ms as f64 / 1000.0,
        )
    }
}

fn count(number: i64) -> HumanCount {
    HumanCount(number.unsigned_abs())
}

impl Run {
    /// Returns whether the run is of the library as it is.
    fn counts(&self) -> bool {
        self.way == "library" && self.without.is_none() && self.note.is_none()
    }

    /// Writes the run to a file, as far as it came.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        fs::write(file, text + "\n")
    }

    /// Reads the runs in a folder, in the order of their files' names.
    pub fn read_all(folder: &Path) -> io::Result<Vec<Run>> {
        let mut files = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<_>>>()?;
        files.retain(|file| {
            file.extension()
                .is_some_and(|extension| extension == "json")
        });
        files.sort();
        let read =
            |file| serde_json::from_str(&fs::read_to_string(file)?).map_err(io::Error::other);
        files.iter().map(read).collect()
    }
}

/// The sum of all rounds of some runs, with their number.
fn sum<'r>(rounds: impl Iterator<Item = &'r Outcome>) -> Outcome {
    let mut sum = Outcome::default();
    rounds.for_each(|round| sum.add(round));
    sum
}

/// Returns the sums of rounds by a text.
fn sums<'r>(rounds: impl Iterator<Item = (String, &'r Outcome)>) -> BTreeMap<String, Outcome> {
    let mut sums = BTreeMap::<_, Outcome>::new();
    for (by, round) in rounds {
        sums.entry(by).or_default().add(round);
    }
    sums
}

fn row(table: &mut String, first: &str, sum: &Outcome) {
    let counts = [
        sum.number.cast_signed(),
        sum.faults().cast_signed(),
        sum.acknowledged,
        sum.single,
        sum.unknown,
        sum.lost_in_crashes,
        sum.lost_with_backups,
        sum.lost,
        sum.doubled,
        sum.read.cast_signed(),
        sum.wrong.cast_signed(),
    ];
    let counts = counts.map(|number| count(number).to_string()).join(" | ");
    let _ = writeln!(table, "| {first} | {counts} |");
}

/// Returns the tables of these runs, in Markdown.
pub fn tables(runs: &[Run]) -> String {
    let library: Vec<_> = runs.iter().filter(|run| run.counts()).collect();
    let rounds = || library.iter().flat_map(|run| &run.rounds);
    let head = |first: &str| {
        format!(
            "| {first} | rounds | faults | acknowledged | single calls | unknown | lost in crashes | lost with backups | lost otherwise \
             | doubled | values read | wrong |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n"
        )
    };
    let mut text = head("a crash of Redis");
    for (persistence, sum) in sums(rounds().map(|round| (round.persistence.clone(), round))) {
        row(&mut text, &format!("`{persistence}`"), &sum);
    }
    let all = sum(rounds());
    row(&mut text, "all", &all);
    text.push('\n');
    text += &head("servers");
    let by_servers = library
        .iter()
        .flat_map(|run| run.rounds.iter().map(|round| (servers(run), round)));
    for (servers, sum) in sums(by_servers) {
        row(&mut text, &servers, &sum);
    }
    text += "\n| client | hits acknowledged |\n|---|---|\n";
    for (client, hits) in &all.clients {
        let _ = writeln!(text, "| {client} | {} |", count(*hits));
    }
    let mut faults: Vec<_> = all.faults.iter().collect();
    faults.sort_by_key(|(name, times)| (std::cmp::Reverse(**times), (*name).clone()));
    let faults = faults
        .into_iter()
        .map(|(name, times)| format!("{name} {}", HumanCount(*times)));
    let _ = writeln!(
        text,
        "\nThe faults: {}.",
        faults.collect::<Vec<_>>().join(", ")
    );
    for run in runs.iter().filter(|run| run.counts()) {
        for round in &run.rounds {
            if let Some(failed) = &round.failed {
                let (servers, commit) = (servers(run), &run.commit);
                let (persistence, seed) = (&round.persistence, round.seed);
                let note = round.note.iter().map(|note| format!(" {note}."));
                let _ = writeln!(
                    text,
                    "\nA round did not end: `{persistence}`, {servers}, commit {commit}, seed {seed}: {failed}.{}",
                    note.collect::<String>()
                );
            }
        }
    }
    let by_hand = runs.iter().filter(|run| run.way != "library");
    let by_hand = sums(by_hand.flat_map(|run| {
        run.rounds
            .iter()
            .map(|round| (format!("`{}`", run.way), round))
    }));
    if !by_hand.is_empty() {
        text.push('\n');
        text += &head("counted by hand");
        for (way, sum) in by_hand {
            row(&mut text, &way, &sum);
        }
    }
    let before: Vec<_> = runs.iter().filter(|run| run.note.is_some()).collect();
    if !before.is_empty() {
        text.push('\n');
        text += &head("runs before a fix");
        for run in before {
            let note = run.note.clone().unwrap_or_default();
            let first = format!("{}, {}: {note}", run.commit, servers(run));
            row(&mut text, &first, &sum(run.rounds.iter()));
        }
    }
    let without = runs
        .iter()
        .filter_map(|run| Some((run.without.clone()?, run)));
    let mut guards = String::new();
    for (guard, run) in without {
        let _ = writeln!(guards, "| {guard} | {} |", found(run));
    }
    if !guards.is_empty() {
        text += "\n| without the guard | found |\n|---|---|\n";
        text += &guards;
    }
    text
}

/// Returns when a run found an error, and what.
fn found(run: &Run) -> String {
    let mut faults = 0;
    for round in &run.rounds {
        faults += round.faults();
        if !round.is_exact() {
            let what = match &round.failed {
                Some(failed) => failed.split(": ").next().unwrap_or_default().to_owned(),
                None if round.unreported > 0 => {
                    format!("{} set-backs of MySQL without a report", round.unreported)
                }
                None => format!(
                    "{} lost, {} doubled, {} values wrong",
                    round.lost, round.doubled, round.wrong
                ),
            };
            return format!("round {}, after {faults} faults: {what}", round.number);
        }
    }
    format!("not in {} rounds and {faults} faults", run.rounds.len())
}

/// Returns the names and versions of both servers.
fn servers(run: &Run) -> String {
    format!("{}, {}", version(&run.redis), version(&run.mysql))
}

/// Returns the name and version of a server out of what its program prints.
fn version(text: &str) -> String {
    let name = ["Valkey", "MariaDB"]
        .into_iter()
        .find(|name| text.contains(name));
    let name = name.unwrap_or(if text.contains("Redis") {
        "Redis"
    } else {
        "MySQL"
    });
    let is_version = |word: &&str| {
        word.chars()
            .next()
            .is_some_and(|first| first.is_ascii_digit())
            && word.contains('.')
    };
    let words = text.split([' ', '=', '-']);
    format!(
        "{name} {}",
        words.into_iter().find(is_version).unwrap_or_default()
    )
}

/// Returns the figure: what the runs with the library came to, in a sentence.
pub fn figure(runs: &[Run]) -> String {
    let library = runs.iter().filter(|run| run.counts());
    let rounds: Vec<_> = library.flat_map(|run| &run.rounds).collect();
    let failed = rounds.iter().filter(|round| round.failed.is_some()).count();
    let all = sum(rounds.iter().copied());
    format!(
        "{} faults over {} acknowledged hits, {} of them by single calls: {} lost beyond the promise, {} doubled, \
         {} of {} values wrong; {failed} of {} rounds did not end",
        HumanCount(all.faults()),
        count(all.acknowledged),
        count(all.single),
        count(all.lost),
        count(all.doubled),
        HumanCount(all.wrong),
        HumanCount(all.read),
        rounds.len(),
    )
}
